"""Use of closed periods: sums of `daily_use` by a single key. So reports of months read few rows.

`daily_use` has a row of each day, user, cluster, account, group and class. Kept beside it are the
sums by each of these keys alone, and by none, of days, of parts of a month and of months that are
over. The row by no key marks that the sums of its period are valid. The transaction that changes a
day deletes the marks of its periods: so a late correction never meets an old sum. Days
without a mark are read from `daily_use`, until `PeriodPass` sums them anew.
"""

from __future__ import annotations

import calendar
from collections.abc import Collection, Iterable
from datetime import date, timedelta
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Subquery,
    and_,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    union_all,
)

from metasched.db.schema import daily_use, period_use

ALL: Final = ""  # the key of sums over everything
KEYS: Final = ("user", "user_group", "account", "user_class", "cluster")  # of `daily_use`
SUMS: Final = tuple(
    column.name
    for column in period_use.c
    if column.name not in ("key", "period", "name", "first_day")
)
# that a period is summed from, by all keys together: writers wait for this transaction, up to 0.2 s
# on a busy host. Larger periods are read from `daily_use`.
MAX_ROWS: Final = 30_000
MAX_RANGES: Final = 300  # of periods and days between them that a report reads
_DAYS_OF_PART: Final = 8
_PARTS: Final = 4  # of a month; the last part ends with the month
_WALKED: Final = 100  # periods that a portion of a pass examines

Range = tuple[int, int]  # first and last day, such as 20260331


# Periods: a month is 202603, its parts 2026030 to 2026033, a day 20260331


def periods_of(day: int) -> tuple[int, int, int]:
    """Return month, part of the month and day: the periods that a day belongs to."""
    month, day_of_month = divmod(day, 100)
    part = min((day_of_month - 1) // _DAYS_OF_PART, _PARTS - 1)
    return month, month * 10 + part, day


def days_of(period: int) -> Range:
    """Return the first and the last day of a period."""
    if period >= 1000_00_00:
        return period, period
    is_month = period < 10_000_00
    month, part = (period, 0) if is_month else divmod(period, 10)
    first = month * 100 + part * _DAYS_OF_PART + 1
    if is_month or part == _PARTS - 1:
        return first, month * 100 + calendar.monthrange(month // 100, month % 100)[1]
    return first, first + _DAYS_OF_PART - 1


def cover(periods: Iterable[int], days: Range) -> tuple[list[int], list[Range]]:
    """Choose the largest periods within the days; return them and the days between them.

    Each day of the range is in exactly one period or range between. O(p log p).
    """
    first, last = days
    chosen: list[int] = []
    gaps: list[Range] = []
    bounds = ((*days_of(period), period) for period in periods)
    for start, end, period in sorted(bounds, key=lambda each: (each[0], -each[1])):
        if start < first or end > last:
            continue
        if start > first:
            gaps.append((first, _day_before(start)))
        chosen.append(period)
        first = _day_after(end)
    if first <= last:
        gaps.append((first, last))
    return chosen, gaps


def _day_after(day: int) -> int:
    return _moved(day, 1)


def _day_before(day: int) -> int:
    return _moved(day, -1)


def _moved(day: int, days: int) -> int:
    moved = date(day // 10000, day // 100 % 100, day % 100) + timedelta(days=days)
    return moved.year * 10000 + moved.month * 100 + moved.day


# Reading


def source(connection: Connection, key: str, days: Range, *, by_day: bool) -> FromClause:
    """Return rows that sum up to `daily_use`: `day`, the column of the key, and `SUMS`.

    `by_day`: each row is of a single day, else of a period within a month, and `day` is its first.
    `daily_use` itself if that is less work.
    """
    periods, gaps = cover(_marked(connection, days, by_day=by_day), days)
    if not periods or len(periods) + len(gaps) > MAX_RANGES:
        return daily_use
    return _sums_of(key, periods, gaps)


def _sums_of(key: str, periods: Collection[int], gaps: Collection[Range]) -> Subquery:
    stored = period_use.c
    parts = [
        select(
            stored.first_day.label("day"),
            stored.name.label(key or "everything"),
            *(stored[name] for name in SUMS),
        ).where(stored.key == key, stored.period.in_(sorted(periods)))
    ]
    if gaps:
        value = daily_use.c[key] if key else literal(ALL)
        parts.append(
            select(
                daily_use.c.day,
                value.label(key or "everything"),
                *(daily_use.c[name] for name in SUMS),
            ).where(or_(*(daily_use.c.day.between(*gap) for gap in gaps)))
        )
    return union_all(*parts).subquery("use")


def _marked(connection: Connection, days: Range, *, by_day: bool) -> list[int]:
    """Return the periods of some days whose sums are valid."""
    first, last = days
    period = period_use.c.period
    numbers: list[ColumnElement[bool]] = [period.between(max(first, 1000_00_00), last)]
    if not by_day:
        first_month, last_month = first // 100, last // 100
        numbers.append(period.between(first_month, min(last_month, 9999_99)))
        numbers.append(period.between(max(first_month * 10, 1000_00_0), last_month * 10 + _PARTS))
    marks = select(period).where(period_use.c.key == ALL, or_(*numbers))
    return list(connection.execute(marks).scalars())


# Writing


def invalidate(connection: Connection, days: Iterable[int]) -> None:
    """Delete the marks of the periods of days that are changed in this transaction."""
    periods = sorted({period for day in days for period in periods_of(day)})
    if periods:
        is_mark = and_(period_use.c.key == ALL, period_use.c.period.in_(periods))
        connection.execute(delete(period_use).where(is_mark))


class PeriodPass:
    """Sums the periods that are over and have no mark: days first, then parts and months."""

    def __init__(self, today: int) -> None:
        """`today` and later days are not summed."""
        self._today = today
        self._sizes = [2, 1, 0]  # positions in `periods_of`
        self._last_day = -1  # the last day examined, of the first of these sizes

    def sum_portion(self, connection: Connection) -> bool:
        """Sum a period at most; return False if nothing remains.

        The transaction must exclude others that change `daily_use`.
        """
        for _ in range(_WALKED):
            if not self._sizes:
                return False
            day = connection.execute(
                select(func.min(daily_use.c.day)).where(
                    daily_use.c.day > self._last_day, daily_use.c.day < self._today
                )
            ).scalar()
            if day is None:
                del self._sizes[0]
                self._last_day = -1
                continue
            periods = periods_of(day)[: self._sizes[0] + 1]
            marked = _marks_among(connection, periods)
            period = next((each for each in periods if each in marked), periods[-1])
            self._last_day = days_of(period)[1]
            if period not in marked and self._last_day < self._today:
                _sum_period(connection, period)
                return True
        return True


def _marks_among(connection: Connection, periods: Collection[int]) -> set[int]:
    period = period_use.c.period
    marks = select(period).where(period_use.c.key == ALL, period.in_(periods))
    return set(connection.execute(marks).scalars())


def _sum_period(connection: Connection, period: int) -> None:
    """Store the sums of a period, from those of smaller periods, in place of its old sums."""
    stored = period_use.c
    connection.execute(
        delete(period_use).where(stored.key.in_((*KEYS, ALL)), stored.period == period)
    )
    days = days_of(period)
    smaller, gaps = cover(_marked(connection, days, by_day=False), days)
    rows_of = {key: _sums_of(key, smaller, gaps) for key in (*KEYS, ALL)}
    row_budget = MAX_ROWS
    for rows in rows_of.values():
        counted = select(literal(1)).select_from(rows).limit(row_budget + 1).subquery()
        row_budget -= connection.execute(select(func.count()).select_from(counted)).scalar_one()
        if row_budget < 0:
            return  # without a mark
    for key, rows in rows_of.items():
        name: ColumnElement[Any] = rows.c[key or "everything"]
        sums = (
            (func.max if column.startswith("max_") else func.sum)(rows.c[column]) for column in SUMS
        )
        summed = select(literal(key), literal(period), name, literal(days[0]), *sums).group_by(name)
        columns = ("key", "period", "name", "first_day", *SUMS)
        connection.execute(insert(period_use).from_select(columns, summed))


# Checking

_COMPARED: Final = ("jobs", "elapsed", "cpu_allocated", "cpu_outside", "deadlines")


def find_mismatches(connection: Connection) -> Iterable[str]:
    """Yield a message if valid sums of a period differ from those of its days."""
    marks = select(period_use.c.period).where(period_use.c.key == ALL)
    for period in sorted(connection.execute(marks).scalars()):
        for key in (*KEYS, ALL):
            value = daily_use.c[key] if key else literal(ALL)
            counted = (
                select(value.label("name"), *(func.sum(daily_use.c[name]) for name in _COMPARED))
                .where(daily_use.c.day.between(*days_of(period)))
                .group_by(value)
            )
            stored = select(period_use.c.name, *(period_use.c[name] for name in _COMPARED)).where(
                period_use.c.key == key, period_use.c.period == period
            )
            sums = {row.name: row[1:] for row in connection.execute(counted)}
            kept_sums = {row.name: row[1:] for row in connection.execute(stored)}
            for name in sorted(sums.keys() | kept_sums.keys()):
                if not _agree(sums.get(name), kept_sums.get(name)):
                    of_whom = f" of {key} {name}" if key else ""
                    yield f"use of period {period}{of_whom} is not the sum of its days"
                    break


def _agree(sums: Any, stored: Any) -> bool:
    if sums is None or stored is None:
        return False
    return all(
        abs(float(a) - float(b)) <= 1e-6 * abs(float(a)) + 1e-3
        for a, b in zip(sums, stored, strict=True)
    )
