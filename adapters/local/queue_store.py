"""The database of a local cluster: submissions, and the final status of their tasks.

Ends have growing numbers: a reader asks for the ends after the last number that it has read.

A transaction is synced to disk when its method returns. Methods raise sqlite3.Error.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from metasched.model.listing import JobStatus

VERSION = 1  # of the tables, in PRAGMA user_version
SCHEMA = f"""
BEGIN;
PRAGMA user_version = {VERSION};
CREATE TABLE opened (first REAL NOT NULL, boot_id TEXT NOT NULL);  -- the last boot id
CREATE TABLE submissions (tag TEXT PRIMARY KEY, header BLOB NOT NULL, script BLOB NOT NULL);
CREATE TABLE tasks (
    native_id INTEGER PRIMARY KEY AUTOINCREMENT,  -- no id is ever used twice
    tag TEXT NOT NULL, task INTEGER NOT NULL, requirements TEXT NOT NULL,
    ended REAL, status TEXT,  -- both are set when the task ends
    UNIQUE (tag, task)
);
CREATE TABLE ends (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- grows with each end that is stored
    native_id INTEGER NOT NULL UNIQUE
);
CREATE TABLE windows (  -- reservations
    name TEXT PRIMARY KEY, users TEXT NOT NULL,  -- accounts, separated by commas
    start REAL NOT NULL, "end" REAL NOT NULL, cpus INTEGER NOT NULL
);
CREATE INDEX open_tasks ON tasks (native_id) WHERE ended IS NULL;
CREATE INDEX ended_tasks ON tasks (ended) WHERE ended IS NOT NULL;
COMMIT;
"""


class Requirements(msgspec.Struct, frozen=True):
    """Resources that a task needs, and its position in the queue. Stored as JSON."""

    cpus: int
    counts: dict[str, int]  # generic resources, and MEMORY_RESOURCE in MiB
    estimated: float  # seconds
    limit: float | None  # seconds
    key: float  # epoch seconds; the queue is in ascending order
    priority: int = 1
    deadline: float | None = None  # epoch seconds
    user: str = ""
    uid: int = 0  # of `user`, in site mode
    licences: tuple[str, ...] = ()  # the site's licences that are leased to the task
    reservation: str = ""  # the window that it runs in; "": in none


class NewSubmission(NamedTuple):
    """A submission that is not in the queue yet; its tasks share the requirements."""

    tag: str
    header: bytes  # what all supervisors of the submission are sent, see `spec.shared_header`
    script: bytes
    indices: tuple[int, ...]  # of the tasks in their array
    requirements: Requirements


class StoredTask(NamedTuple):
    """A task that has not ended, as the database stores it."""

    native_id: int
    tag: str
    task: int  # array index
    requirements: Requirements


class StoredWindow(NamedTuple):
    """A reserved window."""

    users: tuple[str, ...]  # accounts whose jobs may run in it
    start: float  # epoch seconds
    end: float  # epoch seconds
    cpus: int


class StoredEnds(NamedTuple):
    """Final statuses of tasks, in the order of their storage."""

    statuses: list[JobStatus]
    last: int  # number of the last of them; without any, the number that they follow
    more: bool  # further ends follow


class QueueStore:
    """The SQLite database `queue.db`; only a single thread at a time may use it."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, check_same_thread=False)
        try:
            [version] = self._db.execute("PRAGMA user_version").fetchone()
            [tables] = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if tables and version != VERSION:
                raise sqlite3.DatabaseError(
                    f"{path.name} has tables of another release (version {version}, not "
                    f"{VERSION}); install that release, or move the folder away"
                )
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            if not tables:
                self._db.executescript(SCHEMA)
            with self._db:
                self._db.execute(
                    "INSERT INTO opened SELECT ?, '' WHERE NOT EXISTS (SELECT * FROM opened)",
                    (time.time(),),
                )
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    def rollback(self) -> None:
        """End a transaction that an error has interrupted."""
        self._db.rollback()

    def opened(self) -> tuple[float, str]:
        """Return when the database was first opened (epoch seconds), and the last boot id."""
        first_opened, boot = self._db.execute("SELECT first, boot_id FROM opened").fetchone()
        return first_opened, boot

    def set_boot(self, boot: str) -> None:
        with self._db:
            self._db.execute("UPDATE opened SET boot_id = ?", (boot,))

    def open_tasks(self) -> Iterator[StoredTask]:
        """Yield the tasks that have not ended in the order of submission."""
        for native_id, tag, index, requirements in self._db.execute(
            "SELECT native_id, tag, task, requirements FROM tasks "
            "WHERE ended IS NULL ORDER BY native_id"
        ):
            yield StoredTask(
                native_id, tag, index, msgspec.json.decode(requirements, type=Requirements)
            )

    def native_ids(self, tag: str) -> dict[int, str]:
        """Return the native ids of a submission's tasks by index; empty if it is unknown."""
        rows = self._db.execute("SELECT task, native_id FROM tasks WHERE tag = ?", (tag,))
        return {index: str(native_id) for index, native_id in rows}

    def ends_after(self, number: int, limit: int) -> StoredEnds:
        """Return at most `limit` ends that were stored after the end of a number.

        A number that was never given counts as 0: the database is not the same.
        """
        [highest] = self._db.execute("SELECT MAX(number) FROM ends").fetchone()
        number = number if number <= (highest or 0) else 0
        rows = self._db.execute(
            "SELECT number, status FROM ends JOIN tasks USING (native_id) WHERE number > ? "
            "ORDER BY number LIMIT ?",
            (number, limit + 1),
        ).fetchall()
        statuses = [msgspec.json.decode(status, type=JobStatus) for _, status in rows[:limit]]
        last = rows[len(statuses) - 1][0] if statuses else number
        return StoredEnds(statuses, last, len(rows) > limit)

    def insert(self, submission: NewSubmission) -> list[int]:
        """Store a submission and its tasks; return the native ids of the tasks."""
        tag = submission.tag
        requirements = msgspec.json.encode(submission.requirements).decode()
        native_ids = []
        with self._db:
            self._db.execute(
                "INSERT INTO submissions VALUES (?, ?, ?)",
                (tag, submission.header, submission.script),
            )
            for index in submission.indices:
                native_id = self._db.execute(
                    "INSERT INTO tasks (tag, task, requirements) VALUES (?, ?, ?)",
                    (tag, index, requirements),
                ).lastrowid
                assert native_id is not None
                native_ids.append(native_id)
        return native_ids

    def submission(self, tag: str) -> tuple[bytes, bytes]:
        """Return (header, script) of a submission that has not ended."""
        header, script = self._db.execute(
            "SELECT header, script FROM submissions WHERE tag = ?", (tag,)
        ).fetchone()
        return header, script

    def windows(self) -> dict[str, StoredWindow]:
        """Return the reserved windows by name."""
        rows = self._db.execute('SELECT name, users, start, "end", cpus FROM windows ORDER BY name')
        return {
            name: StoredWindow(tuple(users.split(",")), start, end, cpus)
            for name, users, start, end, cpus in rows
        }

    def save_window(self, name: str, window: StoredWindow) -> None:
        """Store a window, in place of a former window with that name."""
        row = (name, ",".join(window.users), window.start, window.end, window.cpus)
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO windows VALUES (?, ?, ?, ?, ?)", row)

    def delete_windows(self, names: Collection[str]) -> None:
        with self._db:
            self._db.executemany("DELETE FROM windows WHERE name = ?", [(name,) for name in names])

    def save_ended(
        self, statuses: Collection[tuple[int, JobStatus]], ended_tags: Collection[str]
    ) -> None:
        """Store the final status of tasks by native id; delete submissions that have ended."""
        with self._db:
            self._db.executemany(
                "UPDATE tasks SET ended = ?, status = ? WHERE native_id = ?",
                [
                    (status.ended, msgspec.json.encode(status).decode(), native_id)
                    for native_id, status in statuses
                ],
            )
            self._db.executemany(
                "INSERT INTO ends (native_id) VALUES (?)",
                [(native_id,) for native_id, _ in statuses],
            )
            self._db.executemany(
                "DELETE FROM submissions WHERE tag = ?", [(t,) for t in ended_tags]
            )

    def delete_ended(self, before: float, limit: int) -> None:
        """Delete at most `limit` tasks that ended before a time (epoch seconds), oldest first."""
        expired = self._db.execute(
            "SELECT native_id FROM tasks WHERE ended < ? ORDER BY ended LIMIT ?", (before, limit)
        ).fetchall()
        if expired:
            with self._db:
                self._db.executemany("DELETE FROM ends WHERE native_id = ?", expired)
                self._db.executemany("DELETE FROM tasks WHERE native_id = ?", expired)
