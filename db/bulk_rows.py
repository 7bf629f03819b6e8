"""Bulk insert of task rows: a run of rows that differ only in their index is a single statement.

An array of 100,000 tasks is stored in a single transaction, and the daemon waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Insert, Table, insert, literal, select

INDEX = "task_index"
BULK_MINIMUM = 50  # rows; shorter runs are inserted row by row

RowValues = dict[str, Any]


def insert_rows(connection: Connection, table: Table, rows: Sequence[RowValues]) -> None:
    """Insert rows in this order. All rows must have the same columns."""
    single_rows: list[RowValues] = []
    for run in _split_into_runs(rows):
        if len(run) < BULK_MINIMUM:
            single_rows += run
            continue
        if single_rows:
            connection.execute(_insert_into(table), single_rows)
            single_rows = []
        _insert_run(connection, table, run)
    if single_rows:
        connection.execute(_insert_into(table), single_rows)


@cache  # building a statement takes as long as its execution
def _insert_into(table: Table) -> Insert:
    return insert(table)


def _split_into_runs(rows: Sequence[RowValues]) -> Iterator[Sequence[RowValues]]:
    """Yield maximal runs: rows that differ only in their index, which grows by a constant step."""
    first = 0
    for position in range(1, len(rows) + 1):
        if position < len(rows) and _continues_run(rows, first, position):
            continue
        yield rows[first:position]
        first = position


def _continues_run(rows: Sequence[RowValues], first: int, position: int) -> bool:
    """Return whether the row at `position` continues the run that starts at `first`."""
    row, previous = rows[position], rows[position - 1]
    step = row[INDEX] - previous[INDEX]
    if step <= 0 or (position - 1 > first and step != previous[INDEX] - rows[position - 2][INDEX]):
        return False
    return bool(row == {**previous, INDEX: row[INDEX]})


def _insert_run(connection: Connection, table: Table, run: Sequence[RowValues]) -> None:
    """Insert a run with a single statement; a recursive query generates the indices."""
    first, second, last = run[0][INDEX], run[1][INDEX], run[-1][INDEX]
    index_type = table.c[INDEX].type
    indices = select(literal(first, index_type).label("index")).cte("indices", recursive=True)
    following = indices.c.index + literal(second - first, index_type)
    indices = indices.union_all(select(following).where(following <= literal(last, index_type)))
    values = [
        indices.c.index if name == INDEX else literal(value, table.c[name].type)
        for name, value in run[0].items()
    ]
    connection.execute(insert(table).from_select(list(run[0]), select(*values)))
