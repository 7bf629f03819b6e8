"""Opening a database: who may write, and at which schema. Every failure is one line for an admin.

What each kind of database does in its own way is in `sqlite` and `postgresql`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection, Engine, inspect
from sqlalchemy.exc import DatabaseError, DBAPIError

from metasched.db.schema import REVISION
from metasched.errors import UserError

if TYPE_CHECKING:  # a third of the daemon's start, and only needed when there is work for it
    from alembic.config import Config


class StoreError(UserError):
    """A database that cannot be used; the message says what, where and what to do."""

    exit_code = 1


class DatabaseInUse(StoreError):
    """Another daemon is active on this database."""


class StorageFailed(Exception):
    """The database does not answer, or did not take a transaction: nothing of it is stored."""


class StorageUncertain(StorageFailed):
    """The database was gone before it said whether it took a transaction."""


class WriterLock:
    """The one connection by which a ledger writes.

    This one belongs to a database whose lock is not the connection's own.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.connection = engine.connect()

    @property
    def held(self) -> bool:
        """Whether what is written by the connection now is written by the active daemon."""
        return True

    def acquire(self) -> None:
        """After a failure: be the active daemon still, or again.

        Busy if another is by now, StoreError if the database cannot be reached.
        """


class Database(ABC):
    """A place for a ledger; `str` names it to people, without a password."""

    folder: Path  # where what belongs to it, and is no table, is kept if nothing else is said

    @abstractmethod
    def acquire_writer(self, standby: bool = False) -> AbstractContextManager[WriterLock]:
        """Be the only daemon on it, at the newest schema, and be able to write.

        Busy if another daemon is active (`standby`: wait for its end); StoreError.
        """

    @abstractmethod
    def new_engine(self) -> Engine:
        """An engine, connected to nothing yet."""

    @abstractmethod
    def require_existing(self) -> None:
        """StoreError if there is certainly no such database."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Connection]:
        """Read, at the newest schema, what it held at one moment, while a daemon goes on writing.

        StoreError if it cannot be read.
        """

    @abstractmethod
    def find_damage(self, connection: Connection) -> list[str]:
        """What is wrong with its pages, as far as it can tell; takes as long as it is large."""

    @abstractmethod
    def quick_check(self, connection: Connection) -> tuple[str, str] | None:
        """What a quick look finds wrong with it, and what to do about that."""

    @abstractmethod
    def size(self, connection: Connection) -> int:
        """Bytes."""

    @abstractmethod
    def backup(self, target: Path) -> int:
        """Copy it as it is at one moment to a new file; its size in bytes. StoreError.

        The copy has an instance of its own, so that a daemon started on it gives no tag a second
        time; what was with a manager then can no longer be proved absent there, and stays unknown
        until it is resolved.
        """

    @abstractmethod
    def begin_upgrade(self, connection: Connection) -> None:
        """Begin the transaction in which the schema is changed."""

    def open(self) -> Engine:
        """An engine at the newest schema, which is made if need be. StoreError."""
        return self._open_with(self.upgrade)

    def open_existing(self) -> Engine:
        """An engine on a database at the newest schema; nothing is made or migrated.

        StoreError if there is none, or it has another schema.
        """
        self.require_existing()
        return self._open_with(self._require_newest)

    def schema_revision(self) -> str | None:
        """The schema that it has; None if it is empty. StoreError if it is none of ours."""
        revisions: list[str | None] = []
        self.require_existing()
        self._open_with(
            lambda connection: revisions.append(self.read_revision(connection))
        ).dispose()
        return revisions[0]

    def store_error(self, error: DBAPIError) -> StoreError:
        """The error of the driver in one line for an admin."""
        return StoreError(
            f"{self} cannot be read as our database ({driver_message(error)}); "
            "restore a backup, or name another"
        )

    def _open_with(self, prepare: Callable[[Connection], None]) -> Engine:
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

    def _require_newest(self, connection: Connection) -> None:
        current = self.read_revision(connection)
        if current is None:
            raise StoreError(f"{self} is empty; start the daemon once, or name another")
        if current != REVISION:
            raise StoreError(
                f"{self} has schema {current}, this metasched {REVISION}; run `metasched db upgrade`"
            )

    def read_revision(self, connection: Connection) -> str | None:
        """The schema that it has, None if it is empty."""
        tables = inspect(connection).get_table_names()
        if "alembic_version" in tables:
            version = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
            return None if version is None else str(version)
        if tables:
            raise StoreError(
                f"{self} holds tables that are not ours ({tables[0]}, ...); name another"
            )
        return None

    def upgrade(self, connection: Connection) -> None:
        """Bring it to the newest schema. StoreError."""
        current = self.read_revision(connection)
        connection.rollback()
        if current == REVISION:
            return
        from alembic import command
        from alembic.script import ScriptDirectory

        config = migration_config()
        known_revisions = {
            script.revision for script in ScriptDirectory.from_config(config).walk_revisions()
        }
        if current is not None and current not in known_revisions:
            raise StoreError(
                f"{self} has schema {current}, newer than this metasched knows; "
                "start the newer version, or restore an older backup"
            )
        config.attributes["connection"] = connection
        try:
            self.begin_upgrade(connection)
            command.upgrade(config, "head")
            connection.commit()
        except DatabaseError as error:
            remedy = "restore a backup" if current else "see that its account may make tables"
            raise StoreError(
                f"{self}: migration failed ({driver_message(error)}); {remedy}"
            ) from None


def hide_password(url: URL) -> str:
    return url.render_as_string(hide_password=True)


def _without_password(url: str) -> str:
    return url if "@" not in url else "..." + url[url.rindex("@") :]


def driver_message(error: DBAPIError) -> str:
    """What the driver says, in one line."""
    lines = str(error.orig).strip().splitlines()
    return lines[0].strip() if lines else type(error.orig).__name__


def create_private_file(target: Path) -> None:
    """Make an empty file that only its owner can read. StoreError if it is there, or cannot be."""
    try:
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise StoreError(f"{target} is there already; name a new file") from None
    except OSError as error:
        raise StoreError(f"{target}: {error.strerror}; name a file you can write") from None


def migration_config() -> Config:
    """Alembic's configuration of our migrations."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config
