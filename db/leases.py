"""Licences and leases in SQL: token counters bounded by the total, and the leases behind them.

Each function works in the caller's transaction: a lease is stored with the intent to dispatch,
and ended with the end of its attempt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, bindparam, case, func, insert, select, update

from metasched.core.events import ClockSet, Outcome
from metasched.db.schema import event, lease, licence
from metasched.model.licence import (
    Lease,
    LicenceCount,
    LicenceStatus,
    LingeringTokens,
    ReturnedLease,
)


def _excess(leased: ColumnElement[int], total: ColumnElement[int]) -> ColumnElement[int]:
    return case((leased > total, leased - total), else_=0)


_COUNT: ColumnElement[int] = bindparam("b_count", type_=licence.c.leased.type)
_TOTAL: ColumnElement[int] = bindparam("b_total", type_=licence.c.total.type)
_BY_NAME = licence.c.name == bindparam("b_name")
# Fails on the constraint `within_total` if too few tokens are free.
_TAKE = update(licence).where(_BY_NAME).values(leased=licence.c.leased + _COUNT)
_FORCE = _TAKE.values(excess=_excess(licence.c.leased + _COUNT, licence.c.total))
_GIVE_BACK = (
    update(licence)
    .where(_BY_NAME)
    .values(
        leased=licence.c.leased - _COUNT,
        excess=_excess(licence.c.leased - _COUNT, licence.c.total),
    )
)
_SET_TOTAL = (
    update(licence).where(_BY_NAME).values(total=_TOTAL, excess=_excess(licence.c.leased, _TOTAL))
)
_UPDATE_STATUS = (
    update(licence)
    .where(_BY_NAME)
    .values(
        {c: bindparam(f"b_{c}") for c in ("operator_total", "outside", "observed", "used_outside")}
    )
)
_END_LEASE = (
    update(lease)
    .where(
        lease.c.licence == bindparam("b_name"),
        lease.c.job == bindparam("b_job"),
        lease.c.task_index == bindparam("b_index"),
        lease.c.until.is_(None),
    )
    .values({c: bindparam(f"b_{c}") for c in ("until", "reason", "lingering_until")})
)


def store(connection: Connection, outcome: Outcome) -> None:
    """Store changes of licences and leases. IntegrityError if more tokens are leased than exist.

    The counters are updated last: concurrent writers wait for each other there, until the commit.
    """
    for status in outcome.licence_statuses.values():
        _store_status(connection, status)
    for change in outcome.leases:
        if isinstance(change, Lease):
            _open_lease(connection, change)
        else:
            _end_lease(connection, change)
    for change in outcome.leases:
        _update_counter(connection, change)


def shift_clock(connection: Connection, clock: ClockSet) -> None:
    """Move the end of each lingering period with the clock.

    A period that had ended before the clock was set must not begin again.
    """
    shifted = lease.c.lingering_until + clock.step
    still_lingers = shifted > clock.time
    connection.execute(
        update(lease)
        .where(lease.c.lingering_until > min(clock.time, clock.time - clock.step))
        .values(
            lingering_until=case((still_lingers, shifted)),
            until=case((still_lingers, lease.c.until + clock.step), else_=lease.c.until),
        )
    )


def _store_status(connection: Connection, status: LicenceStatus) -> None:
    """Insert or update the row of a licence."""
    columns = {
        "operator_total": status.operator_total,
        "outside": status.outside,
        "observed": status.observed,
        "used_outside": msgspec.json.encode(status.used_outside).decode(),
    }
    row = {"b_name": status.licence} | {f"b_{name}": value for name, value in columns.items()}
    if not connection.execute(_UPDATE_STATUS, row).rowcount:
        new = {"name": status.licence, "total": 0, "leased": 0, "excess": 0}
        connection.execute(insert(licence), new | columns)
    if status.total is not None:  # None keeps the last known total
        connection.execute(_SET_TOTAL, {"b_name": status.licence, "b_total": status.total})


def _open_lease(connection: Connection, opened: Lease) -> None:
    """Insert a lease: a row for each licence."""
    connection.execute(
        insert(lease),
        [
            {
                "licence": name,
                "job": opened.job,
                "task_index": opened.index,
                "attempt": opened.attempt,
                "tokens": count,
                "since": opened.since,
            }
            for name, count in sorted(opened.tokens.items())
        ],
    )


def _end_lease(connection: Connection, returned: ReturnedLease) -> None:
    """Store the end of a lease, with its cause and lingering periods."""
    connection.execute(
        _END_LEASE,
        [
            {
                "b_name": name,
                "b_job": returned.lease.job,
                "b_index": returned.lease.index,
                "b_until": returned.until,
                "b_reason": returned.reason,
                "b_lingering_until": returned.lingering_until.get(name),
            }
            for name in sorted(returned.lease.tokens)
        ],
    )


def _update_counter(connection: Connection, change: Lease | ReturnedLease) -> None:
    """Add or subtract the tokens of a lease in the counters of its licences."""
    if isinstance(change, Lease):
        changed_lease, statement = change, _FORCE if change.forced else _TAKE
    else:
        changed_lease, statement = change.lease, _GIVE_BACK
    tokens = sorted(changed_lease.tokens.items())
    connection.execute(statement, [{"b_name": name, "b_count": count} for name, count in tokens])


def live_leases(connection: Connection) -> list[Lease]:
    """Return the leases that have not ended."""
    by_task: dict[tuple[int, int], dict[str, Any]] = {}
    rows = connection.execute(
        select(lease).where(lease.c.until.is_(None)).order_by(lease.c.job, lease.c.task_index)
    )
    for row in rows:
        fields = by_task.setdefault(
            (row.job, row.task_index), {"attempt": row.attempt, "since": row.since, "tokens": {}}
        )
        fields["tokens"][row.licence] = row.tokens
    return [Lease(*task_id, **fields) for task_id, fields in by_task.items()]


def lingering(connection: Connection) -> list[LingeringTokens]:
    """Return tokens of ended leases that still counted as in use at the last event."""
    newest = select(event.c.time).order_by(event.c.id.desc()).limit(1).scalar_subquery()
    query = select(lease).where(lease.c.lingering_until > func.coalesce(newest, 0.0))
    if not (rows := connection.execute(query.order_by(lease.c.id)).all()):
        return []
    last_clock_set = (
        select(func.max(event.c.id)).where(event.c.kind == ClockSet.__name__).scalar_subquery()
    )
    since_earliest = event.c.time >= min(row.until for row in rows)
    times: list[float] = list(
        connection.execute(
            select(event.c.time)
            .where(event.c.id >= func.coalesce(last_clock_set, 0), since_earliest)
            .order_by(event.c.id)
        ).scalars()
    )
    # The clock may have been set back while no daemon ran, before or after the return: tokens are
    # free if an event since their return was later than `lingering_until`.
    latest_since: dict[float, float] = {}  # latest time from the last event of a time on
    latest = -math.inf
    for time in reversed(times):
        latest = max(latest, time)
        latest_since.setdefault(time, latest)
    return [
        LingeringTokens(row.licence, row.tokens, row.until, row.lingering_until)
        for row in rows
        if row.lingering_until > latest_since.get(row.until, latest)
    ]


def operator_totals(connection: Connection) -> dict[str, int]:
    """Return the totals set by operators, by licence."""
    rows = connection.execute(
        select(licence.c.name, licence.c.operator_total).where(
            licence.c.operator_total.is_not(None)
        )
    )
    return {row.name: row.operator_total for row in rows}


def used_outside(connection: Connection) -> dict[str, dict[str, LicenceCount]]:
    """Return the last counts that managers reported as used by others, by licence and cluster."""
    by_cluster = dict[str, LicenceCount]
    rows = connection.execute(select(licence.c.name, licence.c.used_outside))
    return {row.name: msgspec.json.decode(row.used_outside, type=by_cluster) for row in rows}


def find_mismatches(connection: Connection) -> Iterator[str]:
    """Yield a message for each counter that differs from a recount of the live leases."""
    counted = {
        row.licence: int(row.tokens)
        for row in connection.execute(
            select(lease.c.licence, func.sum(lease.c.tokens).label("tokens"))
            .where(lease.c.until.is_(None))
            .group_by(lease.c.licence)
        )
    }
    for row in connection.execute(select(licence).order_by(licence.c.name)):
        if row.leased != counted.get(row.name, 0):
            mismatch = f"counts {row.leased} leased, there are {counted.get(row.name, 0)}"
            yield f"licence {row.name} {mismatch}"
