"""Takes a database back to an earlier schema, for a rollback to the release that had it.

What it drops is found by a trial: the migrations run back in a transaction that is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, MetaData, Table, exists, func, inspect, select
from sqlalchemy.exc import DBAPIError

from metasched.core.transitions import LIVE
from metasched.db.schema import REVISION, attempt
from metasched.db.store import Database, StoreError, known_revisions, migrations
from metasched.errors import UserError, quote_for_error


@dataclass(frozen=True)
class Drop:
    """A table or column that an earlier schema lacks. `db downgrade --json` prints these fields."""

    table: str
    column: str | None  # None: the whole table
    rows: int  # that have a value there

    def __str__(self) -> str:
        return self.table if self.column is None else f"{self.table}.{self.column}"


def downgrade(
    database: Database, revision: str, confirm: Callable[[Sequence[Drop]], bool]
) -> list[Drop] | None:
    """Take a database at the newest schema back to a revision; return what is dropped.

    None, and nothing is changed, if `confirm` returns false when it is called with the drops.
    UserError, and nothing is changed, for an unknown revision, a database in use or at another
    schema, or if dispatched jobs need what is dropped.
    """
    if revision not in (known := known_revisions()):
        raise UserError(
            f"schema {quote_for_error(revision)} is not known to this metasched, --to; "
            f"name one of {', '.join(known)}"
        )
    database.open_existing().dispose()  # at another schema, `acquire_writer` would upgrade it
    with database.acquire_writer() as writer_lock:
        connection = writer_lock.connection
        try:
            drops = _find_drops(database, connection, revision)
            if not confirm(drops):
                return None
            if revision != REVISION:
                database.downgrade(connection, revision)
                connection.commit()
        except DBAPIError as error:
            raise database.store_error(error) from None
    return drops


def _find_drops(database: Database, connection: Connection, revision: str) -> list[Drop]:
    """Return what an earlier schema lacks. StoreError if dispatched jobs need any of it."""
    before = _columns_by_table(connection)
    database.downgrade(connection, revision)
    after = _columns_by_table(connection)
    connection.rollback()
    newer = migrations().iterate_revisions(REVISION, revision)
    renames = [getattr(script.module, "RENAMED", {}) for script in newer]
    drops = []
    for table, column in _missing(before, after, renames):
        drop = Drop(table, column, _count(connection, table, column))
        if dispatched := _count(connection, table, column, of_dispatched=True):
            raise StoreError(
                f"{database}: schema {revision} has no {drop}, which {dispatched} rows of "
                "dispatched jobs need; nothing is changed: wait until these have ended, or "
                "cancel them"
            )
        drops.append(drop)
    connection.rollback()
    return drops


def _columns_by_table(connection: Connection) -> dict[str, list[str]]:
    return {
        name: [column["name"] for column in columns]
        for (_, name), columns in inspect(connection).get_multi_columns().items()
    }


def _missing(
    before: Mapping[str, Sequence[str]],
    after: Mapping[str, Sequence[str]],
    renames: Sequence[Mapping[str, str]],
) -> Iterator[tuple[str, str | None]]:
    """Yield the tables, or the columns of other tables, that are gone under any name.

    `renames` of the migrations, newest first, map former names to later names.
    """
    for table, columns in sorted(before.items()):
        former_table, former_columns = table, {column: column for column in columns}
        for of_migration in renames:
            former = {later: earlier for earlier, later in of_migration.items()}
            for column, name in former_columns.items():
                earlier = former.get(f"{former_table}.{name}", name)
                former_columns[column] = earlier.rpartition(".")[2]
            former_table = former.get(former_table, former_table)
        if former_table not in after:
            yield table, None
            continue
        for column, name in former_columns.items():
            if name not in after[former_table]:
                yield table, column


def _count(
    connection: Connection, name: str, column: str | None, of_dispatched: bool = False
) -> int:
    """Count the rows of a table that have a value in a column; `column` None: all rows.

    `of_dispatched`: those of tasks that are dispatched alone.
    """
    table = Table(name, MetaData(), autoload_with=connection)
    query = select(func.count()).select_from(table)
    if column is not None:
        query = query.where(table.c[column].is_not(None))
    if of_dispatched:
        job = table.c.id if name == "job" else table.c.get("job")
        if job is None:
            return 0
        live = attempt.alias()
        is_same_task = [live.c.job == job]
        if "task_index" in table.c:
            is_same_task.append(live.c.task_index == table.c.task_index)
        query = query.where(exists().where(live.c.state.in_(sorted(LIVE)), *is_same_task))
    return connection.execute(query).scalar_one()
