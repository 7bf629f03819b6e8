"""Opening a database: its lock, its pragmas, its schema. Every failure is one line for an admin."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError

from metasched.db.schema import REVISION
from metasched.errors import UserError

if TYPE_CHECKING:  # a third of the daemon's start, and only needed when there is work for it
    from alembic.config import Config

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


class StoreError(UserError):
    """A database that cannot be used; the message says what, where and what to do."""

    exit_code = 1


class Busy(StoreError):
    """Another daemon is active on this database."""


def sqlite_path(url: str) -> Path:
    """The file that a SQLite URL names. StoreError if the URL is none that we can open."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StoreError(f'database "{url}" is no URL; write sqlite:////path/to/file.db') from None
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        raise StoreError(f'database "{url}" is not supported yet; write sqlite:////path/to/file.db')
    return Path(parsed.database)


@contextmanager
def active(path: Path, standby: bool = False) -> Iterator[None]:
    """Be the only daemon on the database: Busy if another is, or wait for it (`standby`)."""
    path = path.resolve()  # the lock of a file, by whatever name it is reached
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{path}.lock: {error.strerror}; give a folder you can write") from None
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
        yield
    finally:
        os.close(lock)


def filesystem(path: Path) -> str:
    """The kind of filesystem on which a path lies, such as ext4 or nfs4."""
    parts = [p for p in psutil.disk_partitions(all=True) if path.is_relative_to(p.mountpoint)]
    return max(parts, key=lambda p: len(p.mountpoint)).fstype if parts else ""


def open_sqlite(path: Path) -> Engine:
    """An engine on the file, at the newest schema. StoreError if that cannot be."""
    if (kind := filesystem(path.parent.resolve())) in NETWORK_FILESYSTEMS:
        raise StoreError(f"{path} is on {kind}, where SQLite loses data; use a local disk")
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}; give a file you can write") from None
    return _opened(path, _migrate)


def open_existing(path: Path) -> Engine:
    """An engine on a database at the newest schema; nothing is made or migrated.

    StoreError if there is none, or it has another schema.
    """
    if not path.is_file():
        raise StoreError(f"no database {path}; start the daemon once, or name another file")
    return _opened(path, _at_newest)


def _opened(path: Path, prepare: Callable[[Connection, Path], None]) -> Engine:
    engine = create_engine(f"sqlite:///{path}", connect_args={"check_same_thread": False})

    @event.listens_for(engine, "connect")
    def _set_up(connection: object, _record: object) -> None:
        cursor = connection.cursor()  # type: ignore[attr-defined]
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA busy_timeout=5000")
        cursor.close()

    try:
        with engine.connect() as connection:
            prepare(connection, path)
    except DBAPIError as error:
        engine.dispose()
        raise StoreError(
            f"{path} cannot be read as our database ({error.orig}); "
            "restore a backup, or name another file"
        ) from None
    except StoreError:
        engine.dispose()
        raise
    return engine


def schema_of(path: Path) -> str | None:
    """The schema that a database has; None if it is empty. StoreError if it is none of ours."""
    found: list[str | None] = []
    if not path.is_file():
        raise StoreError(f"no database {path}; start the daemon once, or name its configuration")
    _opened(path, lambda connection, at: found.append(revision(connection, at))).dispose()
    return found[0]


def _at_newest(connection: Connection, path: Path) -> None:
    found = revision(connection, path)
    if found != REVISION:
        raise StoreError(
            f"{path} has schema {found}, this metasched {REVISION}; run `metasched db upgrade`"
        )


def scripts() -> Config:
    """Alembic's configuration of our migrations."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def revision(connection: Connection, path: Path) -> str | None:
    """The schema that the file has, None if it is empty."""
    tables = connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars().all()
    if "alembic_version" in tables:
        found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        return None if found is None else str(found)
    if tables:
        raise StoreError(
            f"{path} holds tables that are not ours ({tables[0]}, ...); name another file"
        )
    return None


def _migrate(connection: Connection, path: Path) -> None:
    current = revision(connection, path)
    if current == REVISION:
        return
    from alembic import command
    from alembic.script import ScriptDirectory

    config = scripts()
    known = {s.revision for s in ScriptDirectory.from_config(config).walk_revisions()}
    if current is not None and current not in known:
        raise StoreError(
            f"{path} has schema {current}, newer than this metasched knows; "
            "start the newer version, or restore an older backup"
        )
    config.attributes["connection"] = connection
    try:
        # sqlite3 begins no transaction for DDL by itself: a crash would leave some of the tables
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        command.upgrade(config, "head")
        connection.commit()
    except DatabaseError as error:
        raise StoreError(f"{path}: migration failed ({error.orig}); restore a backup") from None
