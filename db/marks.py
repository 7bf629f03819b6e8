"""The mark beside the database: what was stored last. A database behind its mark went back.

The mark is written after a commit, and without fsync: a power cut may take it back, but never ahead
of what is stored. So only a mark that is ahead of its database proves something. A missing or torn
mark, or that of another database, proves nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from sqlalchemy import Connection, func, select

from metasched.db.instances import UNNAMED, FirstIds
from metasched.db.schema import attempt, event, instance

log = logging.getLogger("metasched")

INTERVAL = 1.0  # seconds between two writes of the mark
WRITE_TIME = 2.0  # seconds that the end of a daemon waits for the last write
MAX_BYTES = 1 << 20  # of a file that may be a mark


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What a database held after a commit."""

    names: tuple[str, ...]  # of the database in its tags, oldest first
    event: int  # id of the last event; 0: none
    time: float  # of that event, epoch seconds
    next_job: int  # lowest id that no job has had
    next_reservation: int  # the same of reservations and entries of the calendar
    next_dispatch: int  # above all dispatch ids
    server: str = ""  # system identifier and timeline of its server; "": it has none


class MarkFile:
    """The file of a mark. Only the active daemon, or a command in its place, writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._next_write = 0.0  # monotonic seconds
        self._writing: threading.Thread | None = None
        self._failed = ""  # why the last write failed

    def read(self) -> Mark | str:
        """Return the mark, or why there is none that can be read."""
        try:
            with self.path.open("rb") as file:
                return msgspec.json.decode(file.read(MAX_BYTES), type=Mark)
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        except msgspec.MsgspecError:
            return "is torn"

    def write(self, mark: Mark) -> None:
        """Replace the mark. OSError."""
        new = self.path.with_name(self.path.name + ".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(new, flags, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(mark))
        new.replace(self.path)

    def note(self, mark: Mark) -> bool:
        """Replace the mark in a thread, if it is time; return whether it is.

        A folder that hangs delays nobody: the next write waits for the last.
        """
        is_writing = self._writing is not None and self._writing.is_alive()
        if is_writing or time.monotonic() < self._next_write:
            return False
        self._next_write = time.monotonic() + INTERVAL
        self._writing = threading.Thread(target=self._try_to_write, args=(mark,), daemon=True)
        self._writing.start()
        return True

    def close(self, mark: Mark | None) -> None:
        """Replace the mark for the last time; wait for that, but not for ever."""
        if self._writing is not None:
            self._writing.join(WRITE_TIME)
        self._next_write = 0.0
        if mark is not None and self.note(mark):
            assert self._writing is not None
            self._writing.join(WRITE_TIME)

    def _try_to_write(self, mark: Mark) -> None:
        try:
            self.write(mark)
        except OSError as error:
            if self._failed != (failure := error.strerror or str(error)):
                log.error("%s: the mark is not written (%s)", self.path, failure)
            self._failed = failure
        else:
            self._failed = ""


def present_mark(
    connection: Connection, next_job: int = 0, next_reservation: int = 0, server: str = ""
) -> Mark:
    """Return the mark of the database as it is. It takes a scan of all attempts."""
    execute, columns = connection.execute, instance.c
    named = select(columns.name).where(columns.name != UNNAMED)
    names = execute(named.order_by(columns.first_dispatch, columns.created))
    last = execute(select(event.c.id, event.c.time).order_by(event.c.id.desc()).limit(1)).first()
    last_dispatch = execute(select(func.max(attempt.c.dispatch_id))).scalar()
    first_dispatch = execute(select(func.max(columns.first_dispatch))).scalar() or 0
    return Mark(
        names=tuple(names.scalars()),
        event=last.id if last else 0,
        time=last.time if last else 0.0,
        next_job=next_job,
        next_reservation=next_reservation,
        next_dispatch=max(0 if last_dispatch is None else last_dispatch + 1, first_dispatch),
        server=server,
    )


def find_loss(connection: Connection, mark: Mark, present: Mark) -> str:
    """Return how a mark shows that the database went back; "": it does not."""
    if not present.names or present.names[-1] not in mark.names:
        return ""  # it is the mark of another database, or from before its newest name
    if mark.names[-1] not in present.names:
        return f"the database lacks the name {mark.names[-1]}, which it had already"
    if mark.names[-1] != present.names[-1]:
        return ""
    if mark.event > present.event:
        return f"its last event is {present.event}, but it had {mark.event} already"
    stored = connection.execute(select(event.c.time).where(event.c.id == mark.event)).scalar()
    if stored is not None and stored != mark.time:
        return f"its event {mark.event} is another than the one that was stored first"
    return ""


def is_related(mark: Mark, present: Mark) -> bool:
    """Return whether a mark is of this database, as it was or will have been."""
    return not set(mark.names).isdisjoint(present.names)


class LastStored:
    """What this daemon knows to be stored: in its memory, and in the mark for the next daemon."""

    def __init__(self, path_of: Callable[[str], Path] | None) -> None:
        """`path_of` returns the path of the mark, given the first name; None: it has no mark."""
        self._path_of = path_of
        self._file: MarkFile | None = None
        self._mark: Mark | None = None  # of the last commit of this daemon
        self._is_written = True  # whether the file has `_mark`
        self._reported = False  # whether the log has what is wrong with the file

    def compare(self, connection: Connection, present: Mark) -> tuple[str, FirstIds]:
        """Return how the database went back ("": it did not), and which ids may be issued."""
        cause, first = "", FirstIds(present.next_job, present.next_reservation, 0)
        marks = {"this daemon remembers": self._mark, "its mark says": self._read(present)}
        for source, mark in marks.items():
            if mark is None or not is_related(mark, present):
                continue
            if found := find_loss(connection, mark, present):
                cause = cause or f"{found}, as {source}{_other_server(mark, present)}"
            first = FirstIds(
                max(first.job, mark.next_job),
                max(first.reservation, mark.next_reservation),
                max(first.dispatch, mark.next_dispatch),
            )
        return cause, first

    def _read(self, present: Mark) -> Mark | None:
        """Return the mark in the file; log once what is wrong with it."""
        if self._path_of is None or not present.names:
            return None
        self._file = MarkFile(self._path_of(present.names[0]))
        mark = self._file.read()
        problem = mark if isinstance(mark, str) else ""
        if isinstance(mark, Mark) and not is_related(mark, present):
            problem = "is of another database"
        if problem and present.event and not self._reported:
            log.warning("the mark %s %s: this start writes it anew", self._file.path, problem)
        self._reported = True
        return None if isinstance(mark, str) else mark

    def begin(self, names: Sequence[str]) -> None:
        """Give a new database its file."""
        if self._path_of is not None and self._file is None:
            self._file = MarkFile(self._path_of(names[0]))

    def note(self, mark: Mark) -> None:
        """Note what a commit has stored; write it if it is time."""
        self._mark, self._is_written = mark, False
        self.write_soon()

    def write_soon(self) -> None:
        """Write what was stored since the last write, if it is time."""
        if not self._is_written and self._file is not None and self._mark is not None:
            self._is_written = self._file.note(self._mark)

    def close(self) -> None:
        """Write what was stored last."""
        if self._file is not None:
            self._file.close(None if self._is_written else self._mark)


def _other_server(mark: Mark, present: Mark) -> str:
    if mark.server == present.server or not (mark.server and present.server):
        return ""
    return f"; then its server was {mark.server}, now it is {present.server}"
