"""The last lines of a task's output, which only a personal daemon may read itself."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

TAIL = 16 << 10  # bytes that are read from the end of a file
MAX_LINES = 40


@dataclass(frozen=True)
class Tail:
    """The end of a file."""

    path: str
    lines: list[str]
    is_cut: bool  # whether there is more before it
    problem: str = ""  # why it cannot be read


def read_tail(path: Path) -> Tail:
    """Read the last lines of a regular file. A FIFO or a device is not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return Tail(str(path), [], False, "it is no regular file")
            begin = max(status.st_size - TAIL, 0)
            file.seek(begin)
            text = file.read(TAIL).decode(errors="replace")
    except (OSError, ValueError) as error:
        return Tail(str(path), [], False, getattr(error, "strerror", None) or str(error))
    lines = text.splitlines()
    shown = lines[-MAX_LINES:]
    return Tail(str(path), shown, begin > 0 or len(shown) < len(lines))
