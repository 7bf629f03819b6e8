"""Figures of licences over time, in SQL: samples, and the periods that a plot shows.

A sample holds until the next one of its licence, at most for `MAX_HOLD`: after that nothing is
known, as while no daemon ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Integer, Row, cast, delete, func, insert, or_, select

from metasched.db.schema import licence_sample
from metasched.model.licence import LicencePeriod, LicenceSample

MAX_HOLD: Final = 3000.0  # seconds
KEPT: Final = 31 * 86400.0  # seconds; daily sums and peaks stay longer


def store(connection: Connection, samples: Sequence[LicenceSample]) -> None:
    connection.execute(insert(licence_sample), [sample._asdict() for sample in samples])


def read_periods(
    connection: Connection, licence: str, since: float, seconds: float, number: int
) -> list[LicencePeriod | None]:
    """Return `number` periods of equal length in `seconds` from `since` (epoch seconds) on.

    None: nothing is known of a period. The database sorts the samples, O(s log s), and returns two
    of each period at most.
    """
    columns = licence_sample.c
    of_licence = columns.licence == licence
    position = (columns.time - since) / seconds
    if connection.dialect.name == "postgresql":  # whose cast rounds; that of SQLite truncates
        position = func.floor(position)
    place = cast(position, Integer)
    used = columns.leased + columns.outside
    sorted_samples = (
        select(
            licence_sample,
            place.label("place"),
            func.row_number()
            .over(partition_by=place, order_by=(used.desc(), columns.time))
            .label("by_use"),
            func.row_number().over(partition_by=place, order_by=columns.time.desc()).label("last"),
            func.min(columns.free).over(partition_by=place).label("least_free"),
            func.max(columns.waiting).over(partition_by=place).label("most_waiting"),
        )
        .where(of_licence, columns.time >= since, columns.time < since + number * seconds)
        .subquery()
    )
    rows = connection.execute(
        select(sorted_samples)
        .where(or_(sorted_samples.c.by_use == 1, sorted_samples.c.last == 1))
        .order_by(sorted_samples.c.time)
    ).all()
    before = connection.execute(
        select(licence_sample)
        .where(of_licence, columns.time < since, columns.time >= since - MAX_HOLD)
        .order_by(columns.time.desc())
        .limit(1)
    ).first()
    return _with_held(before, rows, since, seconds, number)


def _with_held(
    before: Row[Any] | None,
    rows: Sequence[Row[Any]],
    since: float,
    seconds: float,
    number: int,
) -> list[LicencePeriod | None]:
    """Return the periods; what held when one began counts in it, too."""
    by_place: dict[int, list[Row[Any]]] = {}
    for row in rows:
        by_place.setdefault(row.place, []).append(row)
    periods: list[LicencePeriod | None] = []
    held = None if before is None else _sample(before)
    for place in range(number):
        begin, of_place = since + place * seconds, by_place.get(place, ())
        period = None
        if held is not None and begin <= held.time + MAX_HOLD:
            period = LicencePeriod(
                begin, held.total, held.leased, held.outside, held.free, held.waiting
            )
        for row in of_place:
            if row.by_use == 1:
                busiest = LicencePeriod(
                    begin, row.total, row.leased, row.outside, row.least_free, row.most_waiting
                )
                period = busiest if period is None else period.merged(busiest)
            if row.last == 1:
                held = _sample(row)
        periods.append(period)
    return periods


def _sample(row: Row[Any]) -> LicenceSample:
    return LicenceSample(*(getattr(row, name) for name in LicenceSample._fields))


def prune_batch(connection: Connection, before: float, limit: int) -> int:
    """Delete at most about `limit` of the oldest samples before a time; return their number."""
    time = licence_sample.c.time
    oldest = select(time).where(time < before).order_by(time).limit(limit)
    times = connection.execute(oldest).scalars().all()
    if not times:
        return 0
    return connection.execute(delete(licence_sample).where(time <= times[-1])).rowcount
