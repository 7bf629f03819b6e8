"""Rows of tasks that differ in their index alone: the database makes them of one statement.

An array of 100,000 tasks is stored in one transaction, in which the daemon does nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Table, insert, literal, select

INDEX = "task_index"
MANY = 50  # rows for which a statement of their own is worth it

Row = dict[str, Any]


def insert_rows(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert rows, all with the same columns, in this order."""
    plain: list[Row] = []
    for run in _runs(rows):
        if len(run) < MANY:
            plain += run
            continue
        if plain:
            connection.execute(insert(table), plain)
            plain = []
        _insert_run(connection, table, run)
    if plain:
        connection.execute(insert(table), plain)


def _runs(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """The rows in parts: in each they are alike, and their indices grow by the same step."""
    first = 0
    for here in range(1, len(rows) + 1):
        if here < len(rows) and _goes_on(rows, first, here):
            continue
        yield rows[first:here]
        first = here


def _goes_on(rows: Sequence[Row], first: int, here: int) -> bool:
    row, last = rows[here], rows[here - 1]
    step = row[INDEX] - last[INDEX]
    if step <= 0 or (here - 1 > first and step != last[INDEX] - rows[here - 2][INDEX]):
        return False
    return bool(row == {**last, INDEX: row[INDEX]})


def _insert_run(connection: Connection, table: Table, run: Sequence[Row]) -> None:
    first, second, last = run[0][INDEX], run[1][INDEX], run[-1][INDEX]
    kind = table.c[INDEX].type
    indices = select(literal(first, kind).label("index")).cte("indices", recursive=True)
    following = indices.c.index + literal(second - first, kind)
    indices = indices.union_all(select(following).where(following <= literal(last, kind)))
    values = [
        indices.c.index if name == INDEX else literal(value, table.c[name].type)
        for name, value in run[0].items()
    ]
    connection.execute(insert(table).from_select(list(run[0]), select(*values)))
