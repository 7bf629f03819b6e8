"""The last lines of a task's output.

A personal daemon reads its own files. In site mode the launcher reads them as the job's owner, and
for the owner alone: an operator who has no right to a user's files gets none by these pages.

A filesystem may hang. So a page waits for `READ_SECONDS`, and an owner occupies a single thread.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from metasched.adapters.launcher_client import LauncherClient
from metasched.api.lookups import Lookups
from metasched.model.adapter_errors import Refused, SiteFault, Unreachable

TAIL = 16 << 10  # bytes that are read from the end of a file
MAX_LINES = 40
READ_SECONDS = 2.0  # for which a page waits for a filesystem
LAUNCHER_SECONDS = 4.0  # for an answer of the launcher
KEPT_SECONDS = 5.0  # for which an answer of the launcher serves the pages of its owner
SILENT = "its filesystem does not answer"


@dataclass(frozen=True)
class Tail:
    """The end of a file."""

    path: str
    lines: list[str]
    is_cut: bool  # whether there is more before it
    problem: str = ""  # why it cannot be read


class OutputReader:
    """Reads the output of tasks: a file of an owner at a time."""

    def __init__(self) -> None:
        self._threads = Lookups("output")
        self._running: dict[str, asyncio.Future[Tail]] = {}  # by owner
        self._recent: dict[tuple[str, str, str], tuple[float, Tail]] = {}

    async def read(self, launcher: Path | None, owner: str, directory: str, path: str) -> Tail:
        """Return the end of a file, whose path may be relative to the directory of its job.

        `launcher`: its socket in site mode; None: this process is the owner's.
        """
        whole_path = str(Path(directory) / path)
        if launcher is None:
            read = partial(read_tail, Path(whole_path))
        else:
            read = partial(_read_as_owner, launcher, owner, directory, path)
        key = (owner, directory, path)
        self._recent = {
            cached_key: (moment, tail)
            for cached_key, (moment, tail) in self._recent.items()
            if time.monotonic() - moment < KEPT_SECONDS
        }
        if key in self._recent:
            return self._recent[key][1]
        try:
            async with asyncio.timeout(READ_SECONDS):
                tail = await self._in_turn(owner, key, read)
        except TimeoutError:
            return Tail(whole_path, [], False, SILENT)
        if launcher is not None:
            self._recent[key] = time.monotonic(), tail
        return tail

    async def _in_turn(
        self, owner: str, key: tuple[str, str, str], read: Callable[[], Tail]
    ) -> Tail:
        while (running := self._running.get(owner)) is not None:
            await asyncio.wait([running])  # it may outlive the page that began it
        reading = asyncio.ensure_future(self._threads.run(key, read))
        self._running[owner] = reading
        reading.add_done_callback(lambda _: self._running.pop(owner))
        return await asyncio.shield(reading)


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
    return _tail_of(str(path), text, begin > 0)


def _read_as_owner(launcher: Path, owner: str, directory: str, path: str) -> Tail:
    whole_path = str(Path(directory) / path)
    try:
        client = LauncherClient(launcher, "")
        text, has_more = client.tail(owner, path, LAUNCHER_SECONDS, directory)
    except SiteFault:
        return Tail(whole_path, [], False, "the launcher of this site cannot read it now")
    except Refused as error:
        return Tail(whole_path, [], False, error.reason.removeprefix("file: "))
    except Unreachable:
        return Tail(whole_path, [], False, SILENT)
    return _tail_of(whole_path, text, has_more)


def _tail_of(path: str, text: str, has_more: bool) -> Tail:
    lines = text.splitlines()
    shown = lines[-MAX_LINES:]
    return Tail(path, shown, has_more or len(shown) < len(lines))
