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


class Busy(StoreError):
    """Another daemon is active on this database."""


class StorageFailed(Exception):
    """The database does not answer, or did not take a transaction: nothing of it is stored."""


class StorageUncertain(StorageFailed):
    """The database was gone before it said whether it took a transaction."""


class Seat:
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

    def renew(self) -> None:
        """After a failure: be the active daemon still, or again.

        Busy if another is by now, StoreError if the database cannot be reached.
        """


class Database(ABC):
    """A place for a ledger; `str` names it to people, without a password."""

    folder: Path  # where what belongs to it, and is no table, is kept if nothing else is said

    @abstractmethod
    def active(self, standby: bool = False) -> AbstractContextManager[Seat]:
        """Be the only daemon on it, at the newest schema, and be able to write.

        Busy if another daemon is active (`standby`: wait for its end); StoreError.
        """

    @abstractmethod
    def engine(self) -> Engine:
        """An engine, connected to nothing yet."""

    @abstractmethod
    def must_exist(self) -> None:
        """StoreError if there is certainly no such database."""

    @abstractmethod
    def moment(self) -> AbstractContextManager[Connection]:
        """Read, at the newest schema, what it held at one moment, while a daemon goes on writing.

        StoreError if it cannot be read.
        """

    @abstractmethod
    def damage(self, connection: Connection) -> list[str]:
        """What is wrong with its pages, as far as it can tell; takes as long as it is large."""

    @abstractmethod
    def weakness(self, connection: Connection) -> tuple[str, str] | None:
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
        return self._opened(self.upgrade)

    def open_existing(self) -> Engine:
        """An engine on a database at the newest schema; nothing is made or migrated.

        StoreError if there is none, or it has another schema.
        """
        self.must_exist()
        return self._opened(self._at_newest)

    def schema(self) -> str | None:
        """The schema that it has; None if it is empty. StoreError if it is none of ours."""
        found: list[str | None] = []
        self.must_exist()
        self._opened(lambda connection: found.append(self.revision(connection))).dispose()
        return found[0]

    def unusable(self, error: DBAPIError) -> StoreError:
        """The error of the driver in one line for an admin."""
        return StoreError(
            f"{self} cannot be read as our database ({words(error)}); "
            "restore a backup, or name another"
        )

    def _opened(self, prepare: Callable[[Connection], None]) -> Engine:
        engine = self.engine()
        try:
            with engine.connect() as connection:
                prepare(connection)
        except DBAPIError as error:
            engine.dispose()
            raise self.unusable(error) from None
        except BaseException:
            engine.dispose()
            raise
        return engine

    def _at_newest(self, connection: Connection) -> None:
        found = self.revision(connection)
        if found is None:
            raise StoreError(f"{self} is empty; start the daemon once, or name another")
        if found != REVISION:
            raise StoreError(
                f"{self} has schema {found}, this metasched {REVISION}; run `metasched db upgrade`"
            )

    def revision(self, connection: Connection) -> str | None:
        """The schema that it has, None if it is empty."""
        tables = inspect(connection).get_table_names()
        if "alembic_version" in tables:
            found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
            return None if found is None else str(found)
        if tables:
            raise StoreError(
                f"{self} holds tables that are not ours ({tables[0]}, ...); name another"
            )
        return None

    def upgrade(self, connection: Connection) -> None:
        """Bring it to the newest schema. StoreError."""
        current = self.revision(connection)
        connection.rollback()
        if current == REVISION:
            return
        from alembic import command
        from alembic.script import ScriptDirectory

        config = scripts()
        known = {s.revision for s in ScriptDirectory.from_config(config).walk_revisions()}
        if current is not None and current not in known:
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
            mend = "restore a backup" if current else "see that its account may make tables"
            raise StoreError(f"{self}: migration failed ({words(error)}); {mend}") from None


def shown(url: URL) -> str:
    return url.render_as_string(hide_password=True)


def _without_password(url: str) -> str:
    return url if "@" not in url else "..." + url[url.rindex("@") :]


def words(error: DBAPIError) -> str:
    """What the driver says, in one line."""
    said = str(error.orig).strip().splitlines()
    return said[0].strip() if said else type(error.orig).__name__


def new_file(target: Path) -> None:
    """Make an empty file that only its owner can read. StoreError if it is there, or cannot be."""
    try:
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise StoreError(f"{target} is there already; name a new file") from None
    except OSError as error:
        raise StoreError(f"{target}: {error.strerror}; name a file you can write") from None


def scripts() -> Config:
    """Alembic's configuration of our migrations."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config
