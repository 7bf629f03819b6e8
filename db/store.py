"""Interface of a database: exclusive write access, snapshots, schema upgrades, backups.

`sqlite` and `postgresql` implement it. Every StoreError is a single line for the administrator.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection, Engine, inspect
from sqlalchemy.exc import DatabaseError, DBAPIError

from metasched.db.schema import REVISION, metadata
from metasched.errors import UserError, quote_for_error
from metasched.times.active_until import ActiveUntil

if TYPE_CHECKING:  # slow to import; needed for migrations only
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    from metasched.db.marks import MarkFile


MOVED = "moved-"  # in place of the schema's revision: the ledger is in another database now
_BEFORE_1_0 = re.compile(r"00\d\d")  # revisions before the first release
# after a migration that was rolled back: another session may have had a lock, or ended this one
_TRY_AGAIN = "try again; if it fails again, report this defect"
_CUT_SHORT = "a migration or a copy was cut short; restore a backup"


class StoreError(UserError):
    """The database cannot be used; the message states problem, place and remedy."""

    exit_code = 1


class DatabaseUnreachable(StoreError):
    """The database server does not answer, or not yet; a later try may succeed."""


class DatabaseInUse(StoreError):
    """Another daemon is active on this database."""


class StorageFailed(Exception):
    """The database did not answer or rejected a transaction: nothing is stored."""


class StorageUncertain(StorageFailed):
    """The connection was lost during a commit: the transaction may be stored or not."""


class RowsRejected(Exception):
    """The database answered, but its types or constraints refuse a row: nothing is stored.

    The caller passed values that it should have checked; a retry with the same rows fails again.
    """


class WriterLock:
    """The writing connection of the active daemon.

    This base class serves databases whose lock is outside the connection.
    """

    # until when no standby can have taken over; None: none ever does
    active_until: ActiveUntil | None = None
    process: str = ""  # name of this process, for the daemon that replaces it; "": none does

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.connection = engine.connect()

    def find_original(self, process: str) -> str:
        """Return the database of a former daemon, if this is a copy beside it; else ""."""
        return ""

    def server(self) -> str:
        """Return the identifier of the database's server, and its timeline; "": it has none."""
        return ""

    def require_place(self) -> None:
        """Raise StorageFailed if the next daemon would not find what this daemon writes."""

    def confirm(self, asked: float) -> None:
        """Note that this daemon was active at `asked`, in seconds of `boot_time`."""

    def may_act(self, process: str) -> bool:
        """Return whether the process of a former daemon may still run, and its workers with it."""
        return False

    @property
    def held(self) -> bool:
        """Whether this daemon is still active."""
        return True

    @contextmanager
    def long_silence(self) -> Iterator[None]:
        """Let a standby wait longer for a sign of this daemon, which is busy with its state."""
        yield

    def acquire(self) -> None:
        """Become the active daemon, or confirm it after a failure.

        Raises DatabaseInUse if another daemon is active, StoreError if the database does not
        answer.
        """


class Database(ABC):
    """A database of a ledger; `str` gives its address without the password."""

    backup_suffix: str  # of the name of a copy

    @abstractmethod
    def acquire_writer(self, standby: bool = False) -> AbstractContextManager[WriterLock]:
        """Be the only active daemon on the database, at the newest schema, and yield the lock.

        Raises DatabaseInUse if another daemon is active; with `standby` waits for its end instead.
        Raises DatabaseUnreachable if its server does not answer; a standby waits for that, too.
        Raises StoreError if the database cannot be used.
        """

    @abstractmethod
    def new_engine(self) -> Engine:
        """Return an engine that is not connected yet."""

    @abstractmethod
    def require_existing(self) -> None:
        """Raise StoreError if the database certainly does not exist."""

    @abstractmethod
    def require_creatable(self) -> None:
        """Raise StoreError if a first start could certainly not create the tables.

        The database has no tables yet; nothing is created.
        """

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Connection]:
        """Yield a connection that reads a consistent state, while a daemon keeps writing.

        The schema must be the newest. Raises StoreError if the database cannot be read.
        """

    def lost_mark(self) -> MarkFile | None:
        """Return the mark of a database that is not there any more, else None."""
        return None

    @abstractmethod
    def mark_path(self, folder: Path, name: str) -> Path:
        """Return the file of the database's mark; see `marks`.

        `folder` is the daemon's, and `name` the first name of the database.
        """

    @abstractmethod
    def find_damage(self, connection: Connection) -> list[str]:
        """Return the problems found in all pages of the database. Slow if it is large."""

    @abstractmethod
    def quick_check(self, connection: Connection) -> tuple[str, str] | None:
        """Return the first problem of a quick check and its remedy, or None."""

    @abstractmethod
    def size(self, connection: Connection) -> int:
        """Return the size in bytes, with the log of writes that are yet to be taken over."""

    def free_bytes(self) -> int | None:
        """Return the bytes that are free for it; None: unknown. OSError."""
        return None

    @abstractmethod
    def backup(self, target: Path) -> int:
        """Copy a consistent state of the database to a new file; return its size in bytes.

        Each daemon started on a copy gets an instance name of its own, and repeats no tag.
        Raises StoreError if the copy cannot be written.
        """

    @abstractmethod
    def begin_upgrade(self, connection: Connection) -> None:
        """Begin a transaction that changes the schema."""

    def open(self) -> Engine:
        """Return an engine at the newest schema; create or upgrade it first. StoreError."""
        return self._open_with(self.upgrade)

    def open_existing(self) -> Engine:
        """Return an engine at the newest schema; create and upgrade nothing.

        Raises StoreError if the database does not exist or has another schema.
        """
        self.require_existing()
        return self._open_with(self._require_newest)

    def open_upgradable(self) -> Engine:
        """Return an engine at the newest schema, or at one that a start would upgrade.

        Raises StoreError if the database does not exist or has another schema.
        """
        self.require_existing()
        return self._open_with(self._require_known)

    def schema_revision(self) -> str | None:
        """Return the schema revision, or None for an empty database.

        Raises StoreError if the database belongs to another program.
        """
        revisions: list[str | None] = []
        self.require_existing()
        self._open_with(
            lambda connection: revisions.append(self.read_revision(connection))
        ).dispose()
        return revisions[0]

    def downgrade(self, connection: Connection, revision: str) -> None:
        """Take the schema back in a new transaction, which the caller ends. StoreError."""
        from alembic import command

        connection.rollback()
        config = migration_config()
        config.attributes["connection"] = connection
        try:
            self.begin_upgrade(connection)
            command.downgrade(config, revision)
        except DatabaseError as error:
            connection.rollback()
            raise StoreError(
                f"{self}: downgrade failed ({driver_message(error)}), nothing is changed; "
                f"{_TRY_AGAIN}"
            ) from None

    def store_error(self, error: DBAPIError) -> StoreError:
        """Return a StoreError for an error of the driver, as a single line."""
        return StoreError(
            f"{self} cannot be read as a metasched database ({driver_message(error)}); "
            "restore a backup, or name another"
        )

    def _open_with(self, prepare: Callable[[Connection], object]) -> Engine:
        engine = self.new_engine()
        try:
            with engine.connect() as connection:
                prepare(connection)
        except DBAPIError as error:
            engine.dispose()
            raise self.store_error(error) from None
        except BaseException:
            engine.dispose()
            raise
        return engine

    def _require_known(self, connection: Connection) -> str:
        current = self.read_revision(connection)
        if current is None:
            raise StoreError(f"{self} is empty; start the daemon once, or name another")
        if current == REVISION:
            self._require_whole(connection)
        else:
            self.require_upgradable(current)
        return current

    def _require_newest(self, connection: Connection) -> None:
        if (current := self._require_known(connection)) != REVISION:
            raise StoreError(
                f"{self} has schema {current}, this metasched {REVISION}; "
                "run `metasched db upgrade`"
            )

    def _require_whole(self, connection: Connection) -> None:
        """Raise StoreError unless all tables are there with all columns."""
        stored = {
            name: {column["name"] for column in columns}
            for (_, name), columns in inspect(connection).get_multi_columns().items()
        }
        for table in metadata.sorted_tables:
            lacking = {column.name for column in table.c} - stored.get(table.name, set())
            if lacking:
                part = f"{table.name}.{min(lacking)}" if table.name in stored else table.name
                raise StoreError(f"{self} has schema {REVISION} without {part}: {_CUT_SHORT}")

    def read_revision(self, connection: Connection) -> str | None:
        """Return the schema revision, or None for an empty database."""
        tables = inspect(connection).get_table_names()
        if "alembic_version" in tables:
            stored = connection.exec_driver_sql("SELECT version_num FROM alembic_version")
            revisions = [str(revision) for revision in stored.scalars()]
            if len(revisions) == 1:
                return revisions[0]
            if not revisions and len(tables) == 1:
                return None
            raise StoreError(f"{self} has {len(revisions)} schema revisions: {_CUT_SHORT}")
        if tables:
            raise StoreError(
                f"{self} holds tables of another program ({tables[0]}, ...); name another database"
            )
        return None

    def require_upgradable(self, revision: str) -> None:
        """Raise StoreError if a start refuses this schema: of another release, or moved away."""
        if revision.startswith(MOVED):
            raise StoreError(
                f"{self} was moved to another database by `metasched db move`; name that one in "
                "[daemon] database, or if the move was interrupted, repeat it with the same URL"
            )
        if _BEFORE_1_0.fullmatch(revision):
            raise StoreError(
                f"{self} has schema {revision} of a metasched before 1.0, which this metasched "
                "cannot upgrade; name a new database in [daemon] database"
            )
        if revision not in known_revisions():
            shown = revision if revision.isalnum() else quote_for_error(revision)
            raise StoreError(
                f"{self} has schema {shown}, newer than this metasched knows; start the newer "
                f"version, or run its `metasched db downgrade --to {REVISION}`"
            )

    def upgrade(self, connection: Connection) -> None:
        """Upgrade to the newest schema. StoreError if this fails."""
        current = self.read_revision(connection)
        if current == REVISION:
            self._require_whole(connection)
        elif current is not None:
            self.require_upgradable(current)
        connection.rollback()
        if current == REVISION:
            return
        from alembic import command

        config = migration_config()
        config.attributes["connection"] = connection
        try:
            self.begin_upgrade(connection)
            command.upgrade(config, "head")
            connection.commit()
        except DatabaseError as error:
            remedy = _TRY_AGAIN if current else "check that its account may create tables"
            raise StoreError(
                f"{self}: migration failed ({driver_message(error)}); {remedy}"
            ) from None


def hide_password(url: URL) -> str:
    """Return the URL with the password replaced by asterisks."""
    return url.render_as_string(hide_password=True)


def driver_message(error: DBAPIError) -> str:
    """Return the driver's message, shortened to its first line."""
    lines = str(error.orig).strip().splitlines()
    return lines[0].strip() if lines else type(error.orig).__name__


def create_private_file(target: Path) -> None:
    """Create an empty file readable by its owner only. StoreError if it exists or this fails."""
    try:
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise StoreError(f"{target} exists already; name a new file") from None
    except OSError as error:
        raise StoreError(f"{target}: {error.strerror}; name a file you can write") from None


def migration_config() -> Config:
    """Return Alembic's configuration of the migrations."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def migrations() -> ScriptDirectory:
    """Return the migrations that this release knows."""
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(migration_config())


def known_revisions() -> list[str]:
    """Return the revisions of the schema that this release knows, newest first."""
    return [script.revision for script in migrations().walk_revisions()]
