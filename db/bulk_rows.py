"""Rows of tasks that differ in their index alone: the database makes them of one statement.

An array of 100,000 tasks is stored in one transaction, in which the daemon does nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Table, insert, literal, select

INDEX = "task_index"
BULK_MINIMUM = 50  # rows for which a statement of their own is worth it

RowValues = dict[str, Any]


def insert_rows(connection: Connection, table: Table, rows: Sequence[RowValues]) -> None:
    """Insert rows, all with the same columns, in this order."""
    single_rows: list[RowValues] = []
    for run in _split_into_runs(rows):
        if len(run) < BULK_MINIMUM:
            single_rows += run
            continue
        if single_rows:
            connection.execute(insert(table), single_rows)
            single_rows = []
        _insert_run(connection, table, run)
    if single_rows:
        connection.execute(insert(table), single_rows)


def _split_into_runs(rows: Sequence[RowValues]) -> Iterator[Sequence[RowValues]]:
    """The rows in parts: in each they are alike, and their indices grow by the same step."""
    first = 0
    for position in range(1, len(rows) + 1):
        if position < len(rows) and _continues_run(rows, first, position):
            continue
        yield rows[first:position]
        first = position


def _continues_run(rows: Sequence[RowValues], first: int, position: int) -> bool:
    row, previous = rows[position], rows[position - 1]
    step = row[INDEX] - previous[INDEX]
    if step <= 0 or (position - 1 > first and step != previous[INDEX] - rows[position - 2][INDEX]):
        return False
    return bool(row == {**previous, INDEX: row[INDEX]})


def _insert_run(connection: Connection, table: Table, run: Sequence[RowValues]) -> None:
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
