"""Figures of licences over time, in SQL: samples, and the periods that a plot shows.

A sample holds until the next sample of its licence, at most for `MAX_HOLD`. After that the use is
unknown, as while no daemon ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Row,
    Select,
    cast,
    delete,
    func,
    insert,
    select,
)

from metasched.db.schema import licence_sample
from metasched.model.licence import LicencePeriod, LicenceSample

MAX_HOLD: Final = 3000.0  # seconds
KEPT: Final = 31 * 86400.0  # seconds; daily sums and peaks stay longer
_time = licence_sample.c.time
# A number that orders samples by tokens in use, then by leased tokens; MAX_TOKENS is below 2**30
_BUSIEST: Final = 2**31


def store(connection: Connection, samples: Sequence[LicenceSample]) -> None:
    connection.execute(insert(licence_sample), [sample._asdict() for sample in samples])


def read_periods(
    connection: Connection, licence: str, since: float, seconds: float, number: int
) -> list[LicencePeriod | None]:
    """Return `number` periods of equal length in `seconds` from `since` (epoch seconds) on.

    None: nothing is known of a period. The database groups the samples, O(s), and returns two rows
    of each period at most.
    """
    of_licence = licence_sample.c.licence == licence
    rows = connection.execute(_grouped(connection, licence, since, seconds, number)).all()
    by_place = {row.place: row for row in rows}
    lasts = connection.execute(
        select(licence_sample).where(of_licence, _time.in_([row.last for row in rows]))
    )
    by_time = {row.time: _sample(row) for row in lasts}
    before = connection.execute(
        select(licence_sample)
        .where(of_licence, _time < since, _time >= since - MAX_HOLD)
        .order_by(_time.desc())
        .limit(1)
    ).first()
    held = None if before is None else _sample(before)
    periods: list[LicencePeriod | None] = []
    for index in range(number):
        begin, period = since + index * seconds, None
        if held is not None and begin <= held.time + MAX_HOLD:
            period = LicencePeriod(
                begin, held.total, held.leased, held.outside, held.free, held.waiting
            )
        if (row := by_place.get(index)) is not None:
            used, leased = divmod(row.busiest, _BUSIEST)
            within = LicencePeriod(begin, row.total, leased, used - leased, row.free, row.waiting)
            period = within if period is None else period.merged(within)
            held = by_time[row.last]
        periods.append(period)
    return periods


def _grouped(
    connection: Connection, licence: str, since: float, seconds: float, number: int
) -> Select[Any]:
    """Return a query of the extreme figures of each period that has samples."""
    columns = licence_sample.c
    position = (_time - since) / seconds
    if connection.dialect.name == "postgresql":  # whose cast rounds; that of SQLite truncates
        position = func.floor(position)
    slot = cast(position, Integer).label("place")
    used = columns.leased + columns.outside
    figures: list[ColumnElement[Any]] = [
        func.max(used * _BUSIEST + columns.leased).label("busiest"),
        func.max(columns.total).label("total"),
        func.min(columns.free).label("free"),
        func.max(columns.waiting).label("waiting"),
        func.max(_time).label("last"),
    ]
    return (
        select(slot, *figures)
        .where(columns.licence == licence, _time >= since, _time < since + number * seconds)
        .group_by(slot)
    )


def _sample(row: Row[Any]) -> LicenceSample:
    return LicenceSample(*(getattr(row, name) for name in LicenceSample._fields))


def prune_batch(connection: Connection, before: float, limit: int) -> int:
    """Delete at most about `limit` of the oldest samples before a time; return their number."""
    oldest = select(_time).where(_time < before).order_by(_time).limit(limit)
    times = connection.execute(oldest).scalars().all()
    if not times:
        return 0
    return connection.execute(delete(licence_sample).where(_time <= times[-1])).rowcount
