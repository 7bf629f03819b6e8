"""SQLite: a file on a local disk, with a lock file beside it; no server is needed."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from metasched.db.instances import MARK_BACKUP
from metasched.db.marks import Mark, MarkFile
from metasched.db.store import (
    Database,
    DatabaseInUse,
    StorageFailed,
    StoreError,
    WriterLock,
    create_private_file,
)

# SQLite's locks and shared memory do not work on these: the database would be corrupted silently
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


_PLACE = re.compile(r"file (\d+):(\d+) (.+)", re.DOTALL)


class FileLock(WriterLock):
    """The writing connection to a file, which may be moved or replaced below it."""

    def __init__(self, engine: Engine, path: Path) -> None:
        super().__init__(engine)
        self._path, self._place = path, _place_of(path)
        self.process = f"file {self._place[0]}:{self._place[1]} {path}"

    def find_original(self, process: str) -> str:
        match = _PLACE.fullmatch(process)
        if match is None or process == self.process:
            return ""
        place, path = (int(match[1]), int(match[2])), Path(match[3])
        with suppress(OSError):
            if place != self._place and _place_of(path) == place:
                return str(path)
        return ""

    def require_place(self) -> None:
        if problem := self._find_displacement():
            raise StorageFailed(problem)

    def acquire(self) -> None:
        if problem := self._find_displacement():
            raise StoreError(problem)

    def _find_displacement(self) -> str:
        """Return what happened to the file, and how to save its last state; "": nothing."""
        try:
            if _place_of(self._path) == self._place:
                return ""
            replaced = True
        except (FileNotFoundError, NotADirectoryError):
            replaced = False
        except OSError as error:
            return f"{self._path}: {error.strerror}"
        copy, place = self._open_file()
        if not self._is_whole():
            return f"{self._path} is not the file that the daemon has open; wait, it is being saved"
        if replaced:
            return (
                f"{self._path} was replaced below the daemon: its last state is in {copy} alone; "
                f"cp {copy} {self._path}.last, stop the daemon, then put the right one in its place"
            )
        if place.endswith(" (deleted)"):
            return (
                f"{self._path} was removed below the daemon: its last state is in {copy} alone; "
                f"cp {copy} {self._path}, then restart the daemon"
            )
        return (
            f"{self._path} was moved to {place} below the daemon: the next daemon would not find "
            f"it; mv {place} {self._path}, then the daemon continues"
        )

    def _is_whole(self) -> bool:
        """Move the log into the open file, which has the last state alone then."""
        try:
            connection: Any = self.connection.connection.driver_connection
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except (DBAPIError, sqlite3.Error):
            return False
        return not busy

    def _open_file(self) -> tuple[str, str]:
        """Return the path of the open file in /proc, and its place as the kernel knows it."""
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                status = os.fstat(int(descriptor))
                if (status.st_dev, status.st_ino) == self._place:
                    place = os.readlink(f"/proc/self/fd/{descriptor}")
                    return f"/proc/{os.getpid()}/fd/{descriptor}", place
        return "a file that is not open any more", " (deleted)"


def _place_of(path: Path) -> tuple[int, int]:
    """Return device and inode of a file. OSError."""
    status = path.stat()
    return status.st_dev, status.st_ino


class Sqlite(Database):
    """A database in a file."""

    backup_suffix = ".db"

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    @contextmanager
    def acquire_writer(self, standby: bool = False) -> Iterator[WriterLock]:
        path = self.path.resolve()  # symbolic links must lead to the same lock
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
                raise DatabaseInUse(
                    f"another daemon (process {owner or '?'}) is active on {path}; "
                    "stop it, or start this one with --standby"
                ) from None
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            self._require_no_mark()
            engine = self.open()
            try:
                writer_lock = FileLock(engine, path)
                yield writer_lock
                writer_lock.connection.close()
            finally:
                engine.dispose()
        finally:
            os.close(lock)

    def open(self) -> Engine:
        self._require_local(self.path.parent)
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreError(f"{self}: {error.strerror}; give a file you can write") from None
        return super().open()

    def _require_local(self, folder: Path) -> None:
        if (filesystem := filesystem_type(folder.resolve())) in NETWORK_FILESYSTEMS:
            raise StoreError(
                f"{self} is on {filesystem}, where SQLite loses data; use a local disk"
            )

    def new_engine(self) -> Engine:
        # no connection creates a file: it may be missing since it was moved below a daemon
        name, options = self.path.absolute().as_uri(), {"mode": "rw", "uri": "true"}
        url = URL.create("sqlite", database=name, query=options)
        engine = create_engine(url, connect_args={"check_same_thread": False})

        @event.listens_for(engine, "connect")
        def _set_up(connection: sqlite3.Connection, _record: object) -> None:
            cursor = connection.cursor()
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute("PRAGMA synchronous=FULL")
            cursor.execute("PRAGMA foreign_keys=ON")
            cursor.execute("PRAGMA busy_timeout=5000")
            cursor.close()

        return engine

    def require_existing(self) -> None:
        if not self.path.is_file():
            self._require_no_mark()
            raise StoreError(f"no database {self}; start the daemon once, or name another")

    def _require_no_mark(self) -> None:
        """Raise StoreError if there is no database, but the mark of one: it was not to be lost."""
        if (lost := self.lost_mark()) is not None:
            raise StoreError(
                f"no database {self}, though {lost.path} says that there was one: it was moved, "
                "removed or emptied; put it back, or a backup, or begin a new one by "
                "`metasched db adopt`"
            )

    def lost_mark(self) -> MarkFile | None:
        mark = MarkFile(mark_path(self.path.resolve()))
        return mark if isinstance(mark.read(), Mark) and not self._has_names() else None

    def _has_names(self) -> bool:
        """Return whether a daemon has used the file; also if it cannot be read at all."""
        if not self.path.is_file():
            return False
        uri = f"{self.path.absolute().as_uri()}?mode=rw"
        try:
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                return (
                    connection.execute("SELECT name FROM instance LIMIT 1").fetchone() is not None
                )
        except sqlite3.Error as error:
            return "no such table" not in str(error)

    def mark_path(self, folder: Path, name: str) -> Path:
        return mark_path(self.path.resolve())

    def require_creatable(self) -> None:
        self._require_no_mark()
        folder = nearest_existing(self.path.parent)
        self._require_local(folder)
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            raise StoreError(f"{self} cannot be created in {folder}; give a folder you can write")

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Yield a connection to a copy: a long read of the original would delay WAL checkpoints."""
        self.open_existing().dispose()  # its errors name this file, not the copy
        parent, prefix = self.path.parent, f".{self.path.name}-check-"
        try:
            with tempfile.TemporaryDirectory(dir=parent, prefix=prefix) as folder:
                copy = Sqlite(Path(folder, "copy.db"))
                _copy_database(self.path, copy.path)
                engine = copy.open_existing()
                try:
                    with engine.connect() as connection:
                        yield connection
                finally:
                    engine.dispose()
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{self} cannot be copied ({error}); check the free space") from None

    def find_damage(self, connection: Connection) -> list[str]:
        report = connection.exec_driver_sql("PRAGMA integrity_check").scalars()
        return [str(line) for line in report if line != "ok"]

    def quick_check(self, connection: Connection) -> tuple[str, str] | None:
        report = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        return None if report == "ok" else (str(report), "stop the daemon and restore a backup")

    def size(self, connection: Connection) -> int:
        log = Path(f"{self.path.resolve()}-wal")
        return self.path.stat().st_size + (log.stat().st_size if log.exists() else 0)

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.path.resolve().parent).free

    def backup(self, target: Path) -> int:
        """Copy by SQLite's online backup, in a single read transaction."""
        self.open_upgradable().dispose()
        create_private_file(target)
        try:
            _copy_database(self.path, target)
            with closing(sqlite3.connect(target, isolation_level=None)) as copy:
                copy.execute(MARK_BACKUP.format(schema="", time=time.time()))
                copy.execute("PRAGMA journal_mode = DELETE")  # no second file remains
        except sqlite3.Error as error:
            target.unlink()
            raise StoreError(f"{target}: not written ({error}); check the free space") from None
        return target.stat().st_size

    def begin_upgrade(self, connection: Connection) -> None:
        # sqlite3 begins no transaction before DDL: a crash would leave a partial schema
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def mark_path(path: Path) -> Path:
    """Return the file of the mark of a database file."""
    return path.with_name(f"{path.name}.mark")


def nearest_existing(path: Path) -> Path:
    """Return the path, or the nearest of its parents that exists, as far as one may look."""
    return next(each for each in (path, *path.parents) if os.path.exists(each))


def filesystem_type(path: Path) -> str:
    """Return the type of the filesystem that holds a path, such as ext4 or nfs4."""
    mounts = [m for m in psutil.disk_partitions(all=True) if path.is_relative_to(m.mountpoint)]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""


def _copy_database(source: Path, target: Path) -> None:
    uri = f"{source.absolute().as_uri()}?mode=ro"  # quotes ?, % and #
    with (
        closing(sqlite3.connect(uri, uri=True)) as source_connection,
        closing(sqlite3.connect(target)) as target_connection,
    ):
        source_connection.execute("PRAGMA busy_timeout = 5000")
        source_connection.backup(target_connection)
