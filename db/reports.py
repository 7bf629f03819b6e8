"""Reports from the sums by day: use, waits, deadlines and licences of a period, by several keys.

A report reads sums of days, never jobs. So its cost grows with the users, accounts and clusters of
the period, and pruned jobs count. Use and deadlines by at most a single key are read from the sums
of closed periods (`period_use`), and grow with the values of that key alone. Time and number of
rows of a report are bounded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.exc import DBAPIError

from metasched.db import period_use
from metasched.db.schema import daily_licence_peak, daily_licence_use, daily_use
from metasched.model.daily_use import quantile

MAX_ROWS = 10_000  # of a report
MAX_SECONDS = 10.0  # for which a report reads
# no parameter: PostgreSQL takes two parameters for different expressions
_HUNDRED: ColumnElement[int] = literal_column("100")
_ROUNDING = 1e-9  # of a sum: a smaller difference of two sums is their rounding
_STEPS = 20_000  # of SQLite between two looks at the clock
_WAITS = msgspec.json.Decoder(dict[int, int])


class ReportKind(StrEnum):
    """The subject of a report."""

    USE = "use"
    WAITS = "waits"
    DEADLINES = "deadlines"
    LICENCES = "licences"


class ReportKey(StrEnum):
    """A key of the rows of a report."""

    USER = "user"
    GROUP = "group"
    ACCOUNT = "account"
    CLASS = "class"
    CLUSTER = "cluster"
    MONTH = "month"
    DAY = "day"


TIME_KEYS = (ReportKey.MONTH, ReportKey.DAY)
_COLUMNS = {
    ReportKey.USER: "user",
    ReportKey.GROUP: "user_group",
    ReportKey.ACCOUNT: "account",
    ReportKey.CLASS: "user_class",
    ReportKey.CLUSTER: "cluster",
}
# by kind: the sums that are read
_SUMS = {
    ReportKind.USE: (
        *("jobs", "completed", "failed", "timed_out", "cancelled", "elapsed", "cpu_allocated"),
        *("cpu_used", "cpu_measured", "node_seconds", "gpu_seconds", "cpu_outside"),
    ),
    ReportKind.WAITS: ("starts", "wait", "max_wait", "slowdown"),
    ReportKind.DEADLINES: ("deadlines", "met", "missed", "lateness", "max_lateness"),
    ReportKind.LICENCES: ("leases", "token_seconds", "wait", "max_wait"),
}
_COUNTED = {  # rows without any of these are left out
    ReportKind.USE: ("jobs", "cpu_outside"),
    ReportKind.WAITS: ("starts",),
    ReportKind.DEADLINES: ("deadlines",),
    ReportKind.LICENCES: ("leases", "token_seconds"),
}


class ReportTooLarge(Exception):
    """A report has too many rows, or takes too long. The message says which."""


@dataclass(frozen=True)
class ReportQuery:
    """Which report: days such as 20260331; a filter that is None lets everything pass."""

    kind: ReportKind
    first: int  # day
    last: int  # day, included
    by: tuple[ReportKey, ...]
    user: str | None = None
    group: str | None = None
    account: str | None = None
    user_class: str | None = None
    cluster: str | None = None
    licence: str | None = None
    # of use: this many values of the first key that is no time have rows of their own, the others
    # share a row, whose key is None; None: all have
    largest: int | None = None

    @property
    def ranked_key(self) -> ReportKey | None:
        """The key with rows for its largest values only; None: all values have rows."""
        names = (key for key in self.by if key not in TIME_KEYS)
        return None if self.largest is None else next(names, None)

    @property
    def filters(self) -> dict[ReportKey, str]:
        """The filters that are set."""
        values = {
            ReportKey.USER: self.user,
            ReportKey.GROUP: self.group,
            ReportKey.ACCOUNT: self.account,
            ReportKey.CLASS: self.user_class,
            ReportKey.CLUSTER: self.cluster,
        }
        return {key: value for key, value in values.items() if value is not None}


Row = dict[str, Any]


def read_report(connection: Connection, query: ReportQuery) -> tuple[list[Row], Row]:
    """Return the rows of a report and their total, with sums as stored, in no order.

    Each row has the values of the keys; months are 202603. Waits have `median` and `p90`, and
    licences `peak` and `total` where they are not of some users alone. The connection has no
    transaction yet: a report begins one. ReportTooLarge.
    """
    _begin_snapshot(connection)
    with _time_limit(connection):
        if query.ranked_key is None:
            rows = _read_sums(connection, query)
            total = _total(query.kind, rows)
        else:
            rows, total = _read_largest(connection, query, query.ranked_key)
        if query.kind is ReportKind.WAITS:
            _add_quantiles(connection, query, rows, total)
        elif query.kind is ReportKind.LICENCES and _is_of_all(query):
            _add_peaks(connection, query, rows)
    return rows, total


def _is_of_all(query: ReportQuery) -> bool:
    return not query.filters and set(query.by) <= set(TIME_KEYS)


def _begin_snapshot(connection: Connection) -> None:
    """Begin a transaction whose statements read the same state.

    Marks of `period_use` hold for the sums of that state only: a correction deletes them.
    """
    is_sqlite = connection.dialect.name == "sqlite"
    connection.exec_driver_sql(
        "BEGIN" if is_sqlite else "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
    )


@contextmanager
def _time_limit(connection: Connection) -> Iterator[None]:
    """Let the statements of the block fail after `MAX_SECONDS`. ReportTooLarge."""
    end = time.monotonic() + MAX_SECONDS
    is_sqlite = connection.dialect.name == "sqlite"
    if is_sqlite:
        raw: Any = connection.connection.driver_connection
        raw.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
    else:
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {int(MAX_SECONDS * 1000)}")
    try:
        yield
    except DBAPIError as error:
        if time.monotonic() < end - 1.0 or error.connection_invalidated:
            raise
        raise ReportTooLarge(f"the report takes longer than {MAX_SECONDS:g} s") from error
    finally:
        if is_sqlite:
            raw.set_progress_handler(None, 0)


def _source(connection: Connection, query: ReportQuery) -> FromClause:
    """Return the rows that a report sums up: those of closed periods if these know its keys."""
    if query.kind is ReportKind.LICENCES:
        return daily_licence_use
    keys = {key for key in (*query.by, *query.filters) if key not in TIME_KEYS}
    if len(keys) > 1 or query.kind is ReportKind.WAITS:
        return daily_use
    column = next((_COLUMNS[key] for key in keys), period_use.ALL)
    days = query.first, query.last
    return period_use.source(connection, column, days, by_day=ReportKey.DAY in query.by)


def _keys(query: ReportQuery, table: FromClause) -> list[ColumnElement[Any]]:
    """Return the columns that a report is by, each named after its key."""
    columns: list[ColumnElement[Any]] = [
        (
            table.c.day.label("day")
            if key is ReportKey.DAY
            else (table.c.day.op("/")(_HUNDRED)).label("month")
            if key is ReportKey.MONTH
            else table.c[_COLUMNS[key]].label(key.value)
        )
        for key in query.by
    ]
    return columns if query.kind is not ReportKind.LICENCES else [table.c.licence, *columns]


def _of_period(query: ReportQuery, table: FromClause) -> list[ColumnElement[bool]]:
    conditions = [table.c.day >= query.first, table.c.day <= query.last]
    conditions += [table.c[_COLUMNS[key]] == value for key, value in query.filters.items()]
    if query.kind is ReportKind.LICENCES and query.licence is not None:
        conditions.append(table.c.licence == query.licence)
    return conditions


def _read_largest(
    connection: Connection, query: ReportQuery, key: ReportKey
) -> tuple[list[Row], Row]:
    """Return the rows of the largest values of a key, those of the others together, the total."""
    table = _source(connection, replace(query, by=(key,)))
    column = table.c[_COLUMNS[key]]
    largest = connection.scalars(
        select(column)
        .where(*_of_period(query, table))
        .group_by(column)
        .order_by(func.sum(table.c.cpu_allocated).desc(), column)
        .limit(query.largest)
    ).all()
    rows = _read_sums(connection, query, key, largest)
    others_of = replace(query, by=tuple(name for name in query.by if name is not key))
    whole = _read_sums(connection, others_of)
    total, names = _total(query.kind, whole), [name.value for name in others_of.by]
    wholes = {tuple(row[name] for name in names): row for row in whole}
    rest = {values: row | {key.value: None} for values, row in wholes.items()}
    for row in rows:
        together = rest[tuple(row[name] for name in names)]
        for name in _SUMS[query.kind]:
            together[name] -= row[name]
    for values, together in rest.items():
        for name in _SUMS[query.kind]:
            if together[name] < _ROUNDING * wholes[values][name]:
                together[name] = 0
    counted = _COUNTED[query.kind]
    return [*rows, *(row for row in rest.values() if any(row[name] for name in counted))], total


def _read_sums(
    connection: Connection,
    query: ReportQuery,
    key: ReportKey | None = None,
    values: Sequence[str] = (),
) -> list[Row]:
    """Return the sums by the keys of a query; for some values of a key, if it is named."""
    table = _source(connection, query)
    conditions = _of_period(query, table)
    if key is not None:
        conditions.append(table.c[_COLUMNS[key]].in_(values))
    sums = [
        (func.max if name.startswith("max_") else func.sum)(table.c[name]).label(name)
        for name in _SUMS[query.kind]
    ]
    keys = _keys(query, table)
    statement: Select[Any] = (
        select(*keys, *sums)
        .where(*conditions)
        .group_by(*(key.element if hasattr(key, "element") else key for key in keys))
        .having(or_(*(func.sum(table.c[name]) > 0 for name in _COUNTED[query.kind])))
        .limit(MAX_ROWS + 1)
    )
    rows = [_with_numbers(dict(row)) for row in connection.execute(statement).mappings()]
    if len(rows) > MAX_ROWS:
        raise ReportTooLarge(f"the report has more than {MAX_ROWS} rows")
    return rows


def _with_numbers(row: Row) -> Row:
    """Replace the exact sums of whole numbers that PostgreSQL returns."""
    return {
        name: int(value) if not isinstance(value, str | float) else value
        for name, value in row.items()
    }


def _total(kind: ReportKind, rows: Sequence[Row]) -> Row:
    return {
        name: (
            max((row[name] for row in rows), default=0)
            if name.startswith("max_")
            else sum(row[name] for row in rows)
        )
        for name in _SUMS[kind]
    }


def _add_quantiles(
    connection: Connection, query: ReportQuery, rows: Sequence[Row], total: Row
) -> None:
    """Add median and p90 of the waits, from the histograms of the days."""
    names = [key.value for key in query.by]
    waits: dict[tuple[Any, ...], dict[int, int]] = {
        tuple(row[name] for name in names): {} for row in rows
    }
    statement = select(*_keys(query, daily_use), daily_use.c.waits).where(
        *_of_period(query, daily_use), daily_use.c.starts > 0
    )
    end = time.monotonic() + MAX_SECONDS
    for number, (*key, text) in enumerate(
        connection.execute(statement, execution_options={"yield_per": 1000})
    ):
        if number % 1000 == 0 and time.monotonic() > end:
            raise ReportTooLarge(f"the report takes longer than {MAX_SECONDS:g} s")
        counts = waits.setdefault(tuple(key), {})
        for range_number, count in _WAITS.decode(text).items():
            counts[range_number] = counts.get(range_number, 0) + count
    of_all: dict[int, int] = {}
    for row in rows:
        counts = waits[tuple(row[name] for name in names)]
        row |= _quantiles(counts, row["max_wait"])
        for range_number, count in counts.items():
            of_all[range_number] = of_all.get(range_number, 0) + count
    total |= _quantiles(of_all, total["max_wait"])


def _quantiles(counts: dict[int, int], longest: float) -> Row:
    values = {"median": quantile(counts, 0.5), "p90": quantile(counts, 0.9)}
    return {name: None if x is None else min(x, longest) for name, x in values.items()}


def _add_peaks(connection: Connection, query: ReportQuery, rows: list[Row]) -> None:
    """Add `peak` and `total`; also rows of licences that were leased, and not yet returned."""
    table = daily_licence_peak
    statement = (
        select(table)
        .where(table.c.day <= query.last)
        .order_by(table.c.licence, table.c.day)
        .limit(100 * MAX_ROWS)
    )
    if query.licence is not None:
        statement = statement.where(table.c.licence == query.licence)
    unit = {ReportKey.DAY: 1, ReportKey.MONTH: 100}
    peaks: dict[tuple[Any, ...], tuple[int, int]] = {}
    for row in connection.execute(statement):
        if row.day < query.first:
            if not query.by:  # perhaps the only row: nothing changed since
                peaks[(row.licence,)] = (row.last, row.total)
            continue
        key = (row.licence, *(row.day // unit[time_key] for time_key in query.by))
        peak, total = peaks.get(key, (0, 0))
        peaks[key] = (max(peak, row.peak), max(total, row.total))
    names = ["licence", *(key.value for key in query.by)]
    rows_by_key = {tuple(row[name] for name in names): row for row in rows}
    for key, (peak, total) in peaks.items():
        if key not in rows_by_key and not peak:
            continue
        if key not in rows_by_key:
            rows.append(rows_by_key.setdefault(key, dict(zip(names, key, strict=True))))
            rows_by_key[key] |= dict.fromkeys(_SUMS[ReportKind.LICENCES], 0)
        rows_by_key[key] |= {"peak": peak, "total": total}
