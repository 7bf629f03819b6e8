"""The use of a Grid Engine cell by all jobs, from its accounting file.

The qmaster appends a line when a job ends, so a job counts once, at its end. The cursor is a
position in the file. Each query reads a bounded part of it.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import IO, NamedTuple

from metasched.adapters.gridengine.listing import epoch_seconds, parse_accounting_line, parse_int
from metasched.model.adapter_errors import Unreachable
from metasched.model.foreign_use import UseAnswer, UseQuery, UseSum

_MAX_READ = 2**23  # bytes of a query: some 20,000 jobs
_NEAR = 3600.0  # seconds; a job submitted later than that has the time of another clock
_NONE = "NONE"  # of a project, and of a line that is no task of a parallel job
_SUBMITTED, _PROJECT, _SLOTS, _TASK_OF_JOB = 8, 31, 34, 41  # columns


class _Position(NamedTuple):
    """A position in a file that may be replaced by another of the same name."""

    inode: int
    offset: int  # bytes

    @classmethod
    def parse(cls, cursor: str) -> _Position:
        """Return the position of a cursor; the beginning of no file for other text."""
        inode, _, offset = cursor.partition(":")
        if not all(part.isascii() and part.isdecimal() for part in (inode, offset)):
            return cls(0, 0)
        return cls(int(inode), int(offset))

    def __str__(self) -> str:
        return f"{self.inode}:{self.offset}"


class ForeignUseFile:
    """Reads the use from the accounting file at `path`.

    The file stays open between queries: after a rotation the rest of the old file is read first.
    """

    def __init__(self, path: Path, settle: float) -> None:
        self._path, self._settle = path, settle
        self._file: IO[bytes] | None = None

    def query(self, query: UseQuery) -> UseAnswer:
        """Return the use by jobs that ended in the next part; see `Adapter.query_foreign_use`."""
        now = time.time()
        try:
            file, start = self._open(_Position.parse(query.cursor))
            part = _Part(query, now - self._settle, start.offset)
            file.seek(start.offset)
            part.read(file.read(_MAX_READ))
            at_end = part.offset == os.fstat(file.fileno()).st_size
            replaced = at_end and self._is_replaced(start)
        except FileNotFoundError:  # the first job that ends creates it
            return UseAnswer(cursor=query.cursor, until=now)
        except OSError as error:
            raise Unreachable(f"{self._path}: {error.strerror}") from None
        return UseAnswer(
            rows=part.total.rows,
            cursor="" if replaced else str(start._replace(offset=part.offset)),
            until=now if at_end else part.ended,
            more=replaced or part.more,
            set_aside=part.total.set_aside,
            defect=part.total.defect,
        )

    def _open(self, position: _Position) -> tuple[IO[bytes], _Position]:
        """Return the file and where to read it: at `position`, or from the start of a new file."""
        file = self._file
        if file is None or os.fstat(file.fileno()).st_ino != position.inode:
            self.close()
            file = self._file = self._path.open("rb")
        status = os.fstat(file.fileno())
        continues = status.st_ino == position.inode and position.offset <= status.st_size
        return file, _Position(status.st_ino, position.offset if continues else 0)

    def _is_replaced(self, position: _Position) -> bool:
        try:
            return self._path.stat().st_ino != position.inode
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = None


class _Part:
    """Lines of the file that are summed up in an answer."""

    def __init__(self, query: UseQuery, known_until: float, offset: int) -> None:
        """Begin at `offset`. Of jobs submitted after `known_until`, metasched may not know the ids.

        That is in epoch seconds, too.
        """
        self._query, self._known_until = query, known_until
        self._latest = math.inf  # epoch seconds of the last end that the answer may sum up
        self.offset = offset  # bytes; after the last line
        self.total = UseSum()
        self.ended = 0.0  # epoch seconds of the latest end
        self.more = False  # further lines can be read at once

    def read(self, block: bytes) -> None:
        """Sum up the complete lines of a block, as many as belong to one answer."""
        lines = block.split(b"\n")
        incomplete = lines.pop()
        self.more = len(block) == _MAX_READ
        if self.more and not lines:
            self.total.reject("a line without end")
            self.offset += len(incomplete)
        for line in lines:
            if not self._add(line.decode(errors="replace")):
                return
            self.offset += len(line) + 1

    def _add(self, text: str) -> bool:
        """Sum up a line; return False if it belongs to a later answer."""
        if text.startswith("#") or not text:
            return True
        try:
            line, fields = parse_accounting_line(text), text.split(":")
            submitted, slots = epoch_seconds(fields[_SUBMITTED]), parse_int(fields[_SLOTS])
        except ValueError as error:
            self.total.reject(str(error)[:200])
            return True
        if not line.started or fields[_TASK_OF_JOB] != _NONE or line.ended < self._query.since:
            return True
        if self._known_until < submitted <= self._known_until + _NEAR:
            self.more = False
            return False
        if line.ended > self._latest:
            self.more = True
            return False
        self._latest = min(self._latest, line.ended + self._query.max_span)
        self.ended = max(self.ended, line.ended)
        if not self._query.is_own(line.id, submitted):
            project = fields[_PROJECT]
            seconds = slots * (line.ended - line.started)
            self.total.add(line.owner, "" if project == _NONE else project, seconds, line.ended)
        return True
