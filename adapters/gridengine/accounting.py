"""Follows Grid Engine's accounting file: each line of metasched is read once.

`qacct` reads the whole file at every call. Here the first read covers the whole file, and later
reads only appended lines. Lines without tags of its instances are not parsed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import IO

from metasched.adapters.gridengine.listing import (
    AccountingLine,
    UnreadableJob,
    parse_accounting_line,
)

_FIRST_READ = 2**30  # bytes; of a longer file only the end is read at first
_BLOCK = 2**22  # bytes
_NAME_COLUMN = 4  # of a job; the column before is its owner
_ID_COLUMN = 5


class AccountingFile:
    """The lines of an accounting file with jobs of `instances`.

    The file is complete for jobs that ended after `since` (epoch seconds). `since` is None while
    the file cannot be read: then it proves nothing.
    """

    def __init__(self, path: Path, instances: frozenset[str]) -> None:
        self._path, self._needles = path, tuple[bytes, ...]()
        self.add_instances(instances)
        self.unreadable: list[UnreadableJob] = []  # lines of the last `read_new` that were left out
        self._file: IO[bytes] | None = None
        self._partial = b""
        self._ids: Container[str] = ()  # of known jobs
        self.since: float | None = None

    def add_instances(self, instances: frozenset[str]) -> None:
        """Recognise the names of these instances, too, in lines that are not read yet."""
        self._needles += tuple(f":ms-{name}-".encode() for name in sorted(instances))

    def read_new(self, ids: Container[str] = ()) -> list[AccountingLine]:
        """Return the lines appended since the last call, but those that are `unreadable`.

        Lines of the jobs `ids` count, too: their owners may have renamed them.
        """
        self._ids = ids
        read_at, self.unreadable = time.time(), []
        lines: list[AccountingLine] = []
        if self._file is not None:
            lines += self._read_rest(self._file)
            if self._is_replaced(self._file):
                self.close()
        if self._file is None:
            # a rotated file has just been read to its end, so no line is lost
            self._open(read_at)
            if self._file is not None:
                lines += self._read_rest(self._file)
        return lines

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._partial = None, b""

    def _open(self, read_at: float) -> None:
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            # The first ended job creates the file. A missing folder is not mounted.
            if self._path.parent.is_dir():
                self.since = read_at if self.since is None else self.since
            else:
                self.since = None
            return
        except OSError:
            self.since = None
            return
        self._file = file
        size = os.fstat(file.fileno()).st_size
        first_end: AccountingLine | None = None
        file.seek(max(0, size - _FIRST_READ))
        if size > _FIRST_READ:
            file.readline()
        start = file.tell()
        while line := file.readline():
            if not line.startswith(b"#") and line.endswith(b"\n"):
                with suppress(ValueError):
                    candidate = parse_accounting_line(_decode(line))
                    if candidate.ended:
                        first_end = candidate
                        break
        file.seek(start)
        # lines are in the order of ends
        covered_since = read_at if first_end is None else first_end.ended + 1
        self.since = covered_since if self.since is None else min(self.since, covered_since)

    def _is_replaced(self, file: IO[bytes]) -> bool:
        opened = os.fstat(file.fileno())
        try:
            current = self._path.stat()
        except OSError:
            return True
        return (current.st_dev, current.st_ino) != (opened.st_dev, opened.st_ino) or (
            current.st_size < file.tell()
        )

    def _read_rest(self, file: IO[bytes]) -> list[AccountingLine]:
        parsed = []
        while block := file.read(_BLOCK):
            *lines, self._partial = (self._partial + block).split(b"\n")
            for line in lines:
                if any(needle in line for needle in self._needles) or self._is_known(line):
                    try:
                        parsed.append(parse_accounting_line(_decode(line)))
                    except ValueError as error:
                        self.unreadable += _set_aside(_decode(line), str(error))
        return parsed

    def _is_known(self, line: bytes) -> bool:
        fields = line.split(b":", _ID_COLUMN + 1)
        return len(fields) > _ID_COLUMN and fields[_ID_COLUMN].decode(errors="replace") in self._ids


def _set_aside(line: str, defect: str) -> list[UnreadableJob]:
    """Return the jobs of which a line may be: those that it names, by its columns if it has them.

    After a full disk a line may be the beginning of one and the end of another.
    """
    fields = line.split(":")
    if len(fields) > _NAME_COLUMN and fields[_NAME_COLUMN].startswith("ms-"):
        return [UnreadableJob(fields[_NAME_COLUMN], fields[_NAME_COLUMN - 1], defect)]
    names = dict.fromkeys(field for field in fields if field.startswith("ms-"))
    return [UnreadableJob(name, "", defect) for name in names]


def _decode(line: bytes) -> str:
    return line.decode(errors="replace")
