"""SQLite: one file beside its lock, on a local disk; nothing to install."""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
from sqlalchemy import Connection, Engine, create_engine, event

from metasched.core.transitions import LIVE
from metasched.db.store import Busy, Database, Seat, StoreError, new_file

# SQLite's locks and shared memory do not work there: a database would be destroyed in silence
NETWORK_FILESYSTEMS = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "glusterfs",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.ceph",
        "9p",
    ]
)


class Sqlite(Database):
    """A database in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.with_suffix(".clusters")

    def __str__(self) -> str:
        return str(self.path)

    @contextmanager
    def active(self, standby: bool = False) -> Iterator[Seat]:
        path = self.path.resolve()  # the lock of a file, by whatever name it is reached
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"{path}.lock: {error.strerror}; give a folder you can write"
            ) from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if standby else fcntl.LOCK_NB))
            except BlockingIOError:
                owner = os.pread(lock, 32, 0).decode(errors="replace").strip()
                raise Busy(
                    f"another daemon (process {owner or '?'}) is active on {path}; "
                    "stop it, or start this one with --standby"
                ) from None
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            engine = self.open()
            try:
                seat = Seat(engine)
                yield seat
                seat.connection.close()
            finally:
                engine.dispose()
        finally:
            os.close(lock)

    def open(self) -> Engine:
        if (kind := filesystem(self.path.parent.resolve())) in NETWORK_FILESYSTEMS:
            raise StoreError(f"{self} is on {kind}, where SQLite loses data; use a local disk")
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreError(f"{self}: {error.strerror}; give a file you can write") from None
        return super().open()

    def engine(self) -> Engine:
        made = create_engine(f"sqlite:///{self.path}", connect_args={"check_same_thread": False})

        @event.listens_for(made, "connect")
        def _set_up(connection: sqlite3.Connection, _record: object) -> None:
            cursor = connection.cursor()
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute("PRAGMA synchronous=FULL")
            cursor.execute("PRAGMA foreign_keys=ON")
            cursor.execute("PRAGMA busy_timeout=5000")
            cursor.close()

        return made

    def must_exist(self) -> None:
        if not self.path.is_file():
            raise StoreError(f"no database {self}; start the daemon once, or name another")

    @contextmanager
    def moment(self) -> Iterator[Connection]:
        """A copy is read: what is looked at for long would keep the log from being written back."""
        self.must_exist()
        parent, prefix = self.path.parent, f".{self.path.name}-check-"
        try:
            with tempfile.TemporaryDirectory(dir=parent, prefix=prefix) as folder:
                copy = Sqlite(Path(folder, "copy.db"))
                _copied(self.path, copy.path)
                engine = copy.open_existing()
                try:
                    with engine.connect() as connection:
                        yield connection
                finally:
                    engine.dispose()
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{self} cannot be copied ({error}); see that there is room") from None

    def damage(self, connection: Connection) -> list[str]:
        said = connection.exec_driver_sql("PRAGMA integrity_check").scalars()
        return [str(line) for line in said if line != "ok"]

    def weakness(self, connection: Connection) -> tuple[str, str] | None:
        said = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        return None if said == "ok" else (str(said), "stop the daemon and restore a backup")

    def size(self, connection: Connection) -> int:
        return self.path.stat().st_size

    def backup(self, target: Path) -> int:
        """By SQLite's own backup, all in one read transaction."""
        self.must_exist()
        new_file(target)
        try:
            _copied(self.path, target)
            with closing(sqlite3.connect(target, isolation_level=None)) as copy:
                copy.execute("BEGIN")
                copy.execute(
                    "INSERT INTO instance (name, created) VALUES (?, ?)",
                    (secrets.token_hex(4), time.time()),
                )
                live = ", ".join("?" * len(LIVE))
                copy.execute(f"UPDATE attempt SET sent = 0 WHERE state IN ({live})", sorted(LIVE))
                copy.execute("COMMIT")
                copy.execute("PRAGMA journal_mode = DELETE")  # one file is the whole copy
        except sqlite3.Error as error:
            target.unlink()
            raise StoreError(f"{target}: not written ({error}); see that there is room") from None
        return target.stat().st_size

    def begin_upgrade(self, connection: Connection) -> None:
        # sqlite3 begins no transaction for DDL by itself: a crash would leave some of the tables
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def filesystem(path: Path) -> str:
    """The kind of filesystem on which a path lies, such as ext4 or nfs4."""
    parts = [p for p in psutil.disk_partitions(all=True) if path.is_relative_to(p.mountpoint)]
    return max(parts, key=lambda p: len(p.mountpoint)).fstype if parts else ""


def _copied(source: Path, target: Path) -> None:
    with (
        closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as reading,
        closing(sqlite3.connect(target)) as writing,
    ):
        reading.execute("PRAGMA busy_timeout = 5000")
        reading.backup(writing)
