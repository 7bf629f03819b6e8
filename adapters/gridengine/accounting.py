"""Follows Grid Engine's accounting file: each line of ours is read once, as it is appended.

`qacct` reads the whole file at every call. Here the first look reads it whole too (only lines
that hold our tags are parsed), every later one what has come since.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import IO

from metasched.adapters.gridengine.listing import Record, record

_FIRST_LOOK = 2**30  # bytes at the end of an accounting file that has grown beyond it
_BLOCK = 2**22


class Accounting:
    """The records whose line holds `needle`, since `since` (epoch seconds).

    `since` is None while the file cannot be read: it then proves nothing.
    """

    def __init__(self, path: Path, needle: str) -> None:
        self._path, self._needle = path, needle.encode()
        self._file: IO[bytes] | None = None
        self._partial = b""
        self.since: float | None = None

    def news(self) -> list[Record]:
        """What has been appended since the last call. ValueError if a line cannot be read."""
        looked = time.time()
        found: list[Record] = []
        if self._file is not None:
            found += self._rest(self._file)
            if self._replaced(self._file):
                self.close()
        if self._file is None:
            # A rotated file was read to its end just above, so nothing is lost between the two.
            self._open(looked)
            if self._file is not None:
                found += self._rest(self._file)
        return found

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._partial = None, b""

    def _open(self, looked: float) -> None:
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            # It is made with the first end; a folder that is not there is one not mounted.
            if self._path.parent.is_dir():
                self.since = looked if self.since is None else self.since
            else:
                self.since = None
            return
        except OSError:
            self.since = None
            return
        self._file = file
        size = os.fstat(file.fileno()).st_size
        first: Record | None = None
        file.seek(max(0, size - _FIRST_LOOK))
        if size > _FIRST_LOOK:
            file.readline()
        start = file.tell()
        while line := file.readline():
            if not line.startswith(b"#") and line.endswith(b"\n"):
                candidate = record(_text(line))
                if candidate.ended:
                    first = candidate
                    break
        file.seek(start)
        reaches = looked if first is None else first.ended + 1  # lines come in the order of ends
        self.since = reaches if self.since is None else min(self.since, reaches)

    def _replaced(self, file: IO[bytes]) -> bool:
        mine = os.fstat(file.fileno())
        try:
            there = self._path.stat()
        except OSError:
            return True
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino) or (
            there.st_size < file.tell()
        )

    def _rest(self, file: IO[bytes]) -> list[Record]:
        found = []
        while block := file.read(_BLOCK):
            *lines, self._partial = (self._partial + block).split(b"\n")
            found += [record(_text(line)) for line in lines if self._needle in line]
        return found


def _text(line: bytes) -> str:
    return line.decode(errors="replace")
