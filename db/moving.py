"""Moves a ledger into an empty database, from SQLite to PostgreSQL or back. All ids stay.

1. Both databases are locked, the target first, so that no daemon and no second move uses them.
2. All rows are copied in a single transaction of the target.
3. The source is marked as moved, then the transaction is committed. No daemon starts on a marked
   database, so two daemons never continue the same ledger.

After a crash between these two steps the source is marked and the target empty: the same
move again takes the mark back and copies anew. The mark names its target, so no other move does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from sqlalchemy import Connection, Table, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from metasched.db.schema import REVISION, epoch, event, instance, job, metadata
from metasched.db.store import MOVED, Database, StoreError

PORTION = 1_000  # rows that are written at once

# given the number of rows: a context whose value, if it is not None, is called with numbers of rows
ShowProgress = Callable[[int], AbstractContextManager[Callable[[int], None] | None]]


def move(source: Database, target: Database, show: ShowProgress = lambda _: nullcontext()) -> int:
    """Move a ledger; return the number of rows.

    StoreError if a daemon uses either database, if the target is not empty, or if either fails:
    then the source is as before.
    """
    if str(source) == str(target):
        raise StoreError(f"{target} is the database itself; name another")
    mark = MOVED + hashlib.sha256(str(target).encode()).hexdigest()[:16]
    if source.schema_revision() != mark:  # the mark is of the same move, which was interrupted
        source.open_upgradable().dispose()  # else refused before the target is created
    with ExitStack() as stack:
        writing = stack.enter_context(target.acquire_writer()).connection
        writing.rollback()
        if any(_count(writing, table) for table in (event, job, instance)):
            raise StoreError(f"{target} is not empty; name an empty database")
        writing.rollback()
        _replace_revision(source, mark, REVISION)  # of the same move that was interrupted
        reading = stack.enter_context(source.acquire_writer()).connection
        again = "run the same command again: nothing is lost"
        try:
            transaction = writing.begin()
            total = sum(_count(reading, table) for table in metadata.sorted_tables)
            with show(total) as advance:
                copied = _copy(reading, writing, advance or (lambda _: None))
            reading.rollback()
            _replace_revision(source, REVISION, mark)
            transaction.commit()
        except DBAPIError as error:
            raise StoreError(f"{target.store_error(error)}; then {again}") from None
    return copied


def _copy(reading: Connection, writing: Connection, advance: Callable[[int], None]) -> int:
    """Copy the rows of all tables. StoreError if their numbers differ afterwards."""
    for table in reversed(metadata.sorted_tables):  # rows that migrations make
        writing.execute(table.delete())
    copied = 0
    for table in metadata.sorted_tables:
        rows = reading.execution_options(stream_results=True).execute(select(table))
        for portion in rows.mappings().partitions(PORTION):
            writing.execute(insert(table), [dict(row) for row in portion])
            advance(len(portion))
        number = _count(reading, table)
        if _count(writing, table) != number:
            raise StoreError(f"table {table.name}: not all rows were copied; report this defect")
        copied += number
        _continue_ids(writing, table)
    writing.execute(update(epoch).values(holder=""))  # the target is no copy beside the source
    return copied


def _continue_ids(connection: Connection, table: Table) -> None:
    """Let PostgreSQL give ids after the highest; SQLite does so by itself."""
    column = table.autoincrement_column
    if connection.dialect.name != "postgresql" or column is None:
        return
    highest = connection.execute(select(func.max(column))).scalar()
    arguments = {"table": f'"{table.name}"', "column": column.name}
    name = connection.execute(
        text("SELECT pg_get_serial_sequence(:table, :column)"), arguments
    ).scalar()
    if name is not None and highest is not None:
        connection.execute(
            text("SELECT setval(:name, :highest)"), {"name": name} | {"highest": highest}
        )


def _replace_revision(database: Database, old: str, new: str) -> None:
    """Replace the stored revision of the schema if it is `old`."""
    database.require_existing()
    engine = database.new_engine()
    try:
        with engine.begin() as connection:
            connection.execute(
                text("UPDATE alembic_version SET version_num = :new WHERE version_num = :old"),
                {"new": new, "old": old},
            )
    except DBAPIError as error:
        raise database.store_error(error) from None
    finally:
        engine.dispose()


def _count(connection: Connection, table: Table) -> int:
    number: Any = connection.execute(select(func.count()).select_from(table)).scalar_one()
    return int(number)
