"""The writing connection of the active daemon, and the transaction that several requests share.

Requests of different clients and events of different clusters join the open group in
turn; a single commit stores them all. Each but the first is in a savepoint: rows that the database
refuses take back their own request alone. A lost connection or a full disk loses the whole group.
Then nothing is written until the next start of the service.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from sqlalchemy import ColumnElement, Connection, Engine, RootTransaction, func, select
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from metasched.db.pruning import lock_epoch
from metasched.db.queries import Queries
from metasched.db.schema import epoch
from metasched.db.store import (
    RowsRejected,
    StorageFailed,
    StorageUncertain,
    WriterLock,
    driver_message,
)
from metasched.times.active_until import ActiveUntil

# Primary result codes of SQLite after which the log has no end of the transaction
_NOTHING_WRITTEN = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CONSTRAINT,
)
_REFUSED = (DataError, IntegrityError, OverflowError, UnicodeError)  # rows, not the database


class Writer(Queries):
    """Transactions on the writing connection. A single thread uses it."""

    def __init__(self, engine: Engine, writer_lock: WriterLock | None = None) -> None:
        super().__init__(engine)
        self._writer_lock = writer_lock or WriterLock(engine)
        self._connection = self._writer_lock.connection
        self._daemon_epoch = 0  # of this daemon; 0 before `Ledger.restore`
        self._group: RootTransaction | None = None
        self._has_members = False  # whether the open group holds a request
        self._lost: StorageFailed | None = None  # why a group was lost since the last start
        # epoch seconds when this daemon replaced another that may still act; 0: it replaced none
        self.taken_over = 0.0

    def _note_commit(self) -> None:
        """Note that the writes are stored."""

    def _forget_failed(self) -> None:
        """Note that the writes are not stored."""

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        self._engine.dispose()

    def long_silence(self) -> AbstractContextManager[None]:
        """Return a context for work without a statement for long, such as a start."""
        return self._writer_lock.long_silence()

    @property
    def active_until(self) -> ActiveUntil | None:
        """Until when no standby can have taken over; None: none ever does."""
        return self._writer_lock.active_until

    def commit_group(self) -> None:
        """Commit the open group, if any.

        Raises StorageFailed if the group is lost; StorageUncertain if it may be stored.
        """
        if self._lost is not None:
            raise self._lost
        group, self._group, self._has_members = self._group, None, False
        if group is None:
            return
        try:
            with group:
                pass
        except DBAPIError as error:
            failure = StorageUncertain if _may_be_stored(error) else StorageFailed
            self._lost = failure(driver_message(error))
            self._undo_failed_commit()
            self._forget_failed()
            raise self._lost from error
        self._note_commit()

    @contextmanager
    def _join_group(self) -> Iterator[Connection]:
        """Write in the open group; open a group if there is none.

        RowsRejected, or any error of the block, takes back the writes of the block. StorageFailed
        loses the group.
        """
        if self._lost is not None:
            raise self._lost
        try:
            if self._group is None:
                self._group = self._connection.begin()
                self._require_epoch(self._connection)
            # without other members a failure loses nothing else
            with self._connection.begin_nested() if self._has_members else nullcontext():
                yield self._connection
            self._has_members = True
        except DBAPIError as error:
            if isinstance(error, _REFUSED):
                self._abandon_empty_group()
                raise _rejected(error) from error
            raise self._lose_group(StorageFailed(driver_message(error))) from error
        except StorageFailed as error:
            raise self._lose_group(error) from None
        except (OverflowError, UnicodeError) as error:
            self._abandon_empty_group()
            raise _rejected(error) from error
        except BaseException:
            self._abandon_empty_group()
            raise

    def _abandon_empty_group(self) -> None:
        """Roll the group back unless it holds requests that are to be stored."""
        if not self._has_members:
            self._roll_back()

    def _lose_group(self, error: StorageFailed) -> StorageFailed:
        self._roll_back()
        self._lost = error
        return error

    def _undo_failed_commit(self) -> None:
        """Roll back in the driver: SQLAlchemy leaves its transaction open, for the next commit."""
        if self._connection.invalidated:
            return
        try:
            self._connection.connection.rollback()
        except self._engine.dialect.loaded_dbapi.Error:
            self._connection.invalidate()

    def _roll_back(self) -> None:
        group, self._group, self._has_members = self._group, None, False
        self._forget_failed()
        if group is not None:
            try:
                group.rollback()
            except DBAPIError:  # the connection is lost, and with it the transaction
                self._connection.invalidate()

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        """Read on the writing connection; rows of the open group count.

        StorageFailed loses the group: PostgreSQL continues no transaction after an error.
        """
        if self._group is None:
            with self._transaction() as connection:
                yield connection
            return
        try:
            yield self._connection
        except DBAPIError as error:
            raise self._lose_group(StorageFailed(driver_message(error))) from error

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Open a transaction of its own on the writing connection; commit the open group first."""
        self.commit_group()
        committing = False
        try:
            with self._connection.begin():
                yield self._connection
                committing = True
            self._note_commit()
        except _REFUSED as error:
            self._forget_failed()
            raise _rejected(error) from error
        except DBAPIError as error:
            self._forget_failed()
            failure = StorageFailed
            if committing:
                failure = StorageUncertain if _may_be_stored(error) else StorageFailed
                self._undo_failed_commit()
            raise failure(driver_message(error)) from error

    @contextmanager
    def _write_transaction(self) -> Iterator[Connection]:
        """Open a transaction that excludes other writers and older daemons."""
        with self._transaction() as connection:
            self._require_epoch(connection)
            yield connection

    def _require_epoch(self, connection: Connection) -> None:
        """Exclude other writers until the transaction ends.

        StorageFailed in an older daemon, or if the database is not in its place any more.
        """
        self._writer_lock.require_place()
        if not self._writer_lock.held or lock_epoch(connection) != self._daemon_epoch:
            raise StorageFailed("another daemon may be active on it")

    def _stored_epoch(self) -> int:
        return self._highest(epoch.c.number)

    def _highest(self, column: ColumnElement[int]) -> int:
        return self._connection.execute(select(func.max(column))).scalar() or 0


def _may_be_stored(error: DBAPIError) -> bool:
    """Return whether a transaction may be stored though its COMMIT failed.

    SQLite may have written the end of the transaction before an error of the disk. Then the next
    opening of the file takes it as committed.
    """
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is None:
        return error.connection_invalidated
    return code & 0xFF not in _NOTHING_WRITTEN


def _rejected(error: Exception) -> RowsRejected:
    return RowsRejected(f"the database refuses a row: {error}")
