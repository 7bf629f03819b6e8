"""Log lines on stderr; repeated lines are counted instead of written."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from dataclasses import dataclass

BURST = 5  # equal lines that are written in an interval
INTERVAL = 60.0  # seconds
MAX_KEYS = 1000  # lines that are remembered
LIBRARY_BURST = 20  # lines of a library in an interval that differ in numbers only
CLIENT_BURST = 200  # lines with a `repeat_key` in an interval, of all keys
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass
class _Repetition:
    """A line that was written lately."""

    since: float  # epoch seconds
    written: int = 0
    suppressed: int = 0


class RepeatHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes each line at most `BURST` times a minute, and then how often it was repeated.

    Lines are equal if their `repeat_key` is, or their text. Their number in memory is limited.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: OrderedDict[str, _Repetition] = OrderedDict()  # oldest first

    def emit(self, record: logging.LogRecord) -> None:
        self._forget(record.created)
        lines = []
        for key, burst in _keys_of(record):
            line = self._remember(key, record.created)
            if line.written >= burst:
                line.suppressed += 1
                return
            lines.append(line)
        for line in lines:
            line.written += 1
        super().emit(record)

    def _remember(self, key: str, now: float) -> _Repetition:
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= MAX_KEYS:
                self._write_count(*self._lines.popitem(last=False))
            line = self._lines[key] = _Repetition(now)
        return line

    def _forget(self, now: float) -> None:
        """Forget lines after the interval, and write how often they were repeated."""
        while self._lines:
            key, line = next(iter(self._lines.items()))
            if line.since <= now < line.since + INTERVAL:
                return
            del self._lines[key]
            self._write_count(key, line)

    def _write_count(self, key: str, line: _Repetition) -> None:
        if line.suppressed:
            message = f"repeated {line.suppressed} times in {INTERVAL:g} s: {key}"
            super().emit(logging.LogRecord("", logging.WARNING, "", 0, message, None, None))

    def close(self) -> None:
        self._forget(float("inf"))
        super().close()


def _keys_of(record: logging.LogRecord) -> list[tuple[str, int]]:
    """Return the texts that equal lines have in common, each with the limit of written lines."""
    if hasattr(record, "audit"):  # `notices` counts repetitions
        return []
    key = getattr(record, "repeat_key", None)
    if key is not None:
        return [("lines about clients", CLIENT_BURST), (key, BURST)]
    message = record.getMessage()
    if record.name.startswith("metasched"):
        return [(message, BURST)]
    return [(_NUMBER.sub("N", message.partition("\n")[0]), LIBRARY_BURST)]
