"""Licences and leases in SQL: counters that cannot go beyond the total, and who has what.

Each function works in the caller's transaction: a lease is stored with the intent to send, and
given back with the end of its attempt.
"""

from __future__ import annotations

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
from metasched.model.stored_names import EVENT_KINDS


def _excess(leased: ColumnElement[int], total: ColumnElement[int]) -> ColumnElement[int]:
    return case((leased > total, leased - total), else_=0)


_COUNT: ColumnElement[int] = bindparam("b_many", type_=licence.c.leased.type)
_TOTAL: ColumnElement[int] = bindparam("b_total", type_=licence.c.total.type)
_BY_NAME = licence.c.name == bindparam("b_name")
# The one statement that the constraint guards: it fails if that many are not left.
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
    .values({c: bindparam(f"b_{c}") for c in ("chosen", "outside", "observed", "past_us")})
)
_END_LEASE = (
    update(lease)
    .where(
        lease.c.licence == bindparam("b_name"),
        lease.c.job == bindparam("b_job"),
        lease.c.task_index == bindparam("b_index"),
        lease.c.until.is_(None),
    )
    .values({c: bindparam(f"b_{c}") for c in ("until", "why", "lingers")})
)


def store(connection: Connection, out: Outcome) -> None:
    """Store what became of licences and leases. IntegrityError: more than there are.

    The counters come last: writers wait for each other there, until the commit.
    """
    for standing in out.licence_statuses.values():
        _store_status(connection, standing)
    for change in out.leases:
        if isinstance(change, Lease):
            _open_lease(connection, change)
        else:
            _end_lease(connection, change)
    for change in out.leases:
        _update_counter(connection, change)


def shift_clock(connection: Connection, event_clock: ClockSet) -> None:
    """Move what lingers with the clock; what did until then must not begin to do so again."""
    shifted = lease.c.lingers + event_clock.step
    still_lingers = shifted > event_clock.time
    connection.execute(
        update(lease)
        .where(lease.c.lingers > min(event_clock.time, event_clock.time - event_clock.step))
        .values(
            lingers=case((still_lingers, shifted)),
            until=case((still_lingers, lease.c.until + event_clock.step), else_=lease.c.until),
        )
    )


def _store_status(connection: Connection, status: LicenceStatus) -> None:
    columns = {
        "chosen": status.operator_total,
        "outside": status.outside,
        "observed": status.observed,
        "past_us": msgspec.json.encode(status.used_outside).decode(),
    }
    row = {"b_name": status.licence} | {f"b_{name}": value for name, value in columns.items()}
    if not connection.execute(_UPDATE_STATUS, row).rowcount:
        new = {"name": status.licence, "total": 0, "leased": 0, "excess": 0}
        connection.execute(insert(licence), new | columns)
    if status.total is not None:  # else the last one that was known
        connection.execute(_SET_TOTAL, {"b_name": status.licence, "b_total": status.total})


def _open_lease(connection: Connection, opened: Lease) -> None:
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
    connection.execute(
        _END_LEASE,
        [
            {
                "b_name": name,
                "b_job": returned.lease.job,
                "b_index": returned.lease.index,
                "b_until": returned.until,
                "b_why": returned.reason,
                "b_lingers": returned.lingering_until.get(name),
            }
            for name in sorted(returned.lease.tokens)
        ],
    )


def _update_counter(connection: Connection, change: Lease | ReturnedLease) -> None:
    changed_lease = change if isinstance(change, Lease) else change.lease
    rows = [
        {"b_name": name, "b_many": count} for name, count in sorted(changed_lease.tokens.items())
    ]
    addition = _FORCE if changed_lease.forced else _TAKE
    connection.execute(addition if changed_lease is change else _GIVE_BACK, rows)


def live_leases(connection: Connection) -> list[Lease]:
    """The leases that have not been given back."""
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
    """What was given back, and still counted as in use when the daemon was last heard of."""
    newest = select(event.c.time).order_by(event.c.id.desc()).limit(1).scalar_subquery()
    query = select(lease).where(lease.c.lingers > func.coalesce(newest, 0.0))
    if not (rows := connection.execute(query.order_by(lease.c.id)).all()):
        return []
    # it may have been set back while no daemon was there to tell
    last_clock_set = (
        select(func.max(event.c.id))
        .where(event.c.kind == EVENT_KINDS["ClockSet"])
        .scalar_subquery()
    )
    since = event.c.id >= func.coalesce(last_clock_set, 0)
    latest = connection.execute(select(func.max(event.c.time)).where(since)).scalar_one()
    candidates = [LingeringTokens(row.licence, row.tokens, row.until, row.lingers) for row in rows]
    return [returned for returned in candidates if returned.until > latest]


def operator_totals(connection: Connection) -> dict[str, int]:
    """What operators have set."""
    rows = connection.execute(
        select(licence.c.name, licence.c.chosen).where(licence.c.chosen.is_not(None))
    )
    return {row.name: row.chosen for row in rows}


def used_outside(connection: Connection) -> dict[str, dict[str, LicenceCount]]:
    """What managers had given to others when they were last heard, by licence and cluster."""
    counts_type = dict[str, LicenceCount]
    rows = connection.execute(select(licence.c.name, licence.c.past_us))
    return {row.name: msgspec.json.decode(row.past_us, type=counts_type) for row in rows}


def find_mismatches(connection: Connection) -> Iterator[str]:
    """Counters that disagree with a recount of the live leases."""
    counted = {
        row.licence: int(row.many)
        for row in connection.execute(
            select(lease.c.licence, func.sum(lease.c.tokens).label("many"))
            .where(lease.c.until.is_(None))
            .group_by(lease.c.licence)
        )
    }
    for row in connection.execute(select(licence).order_by(licence.c.name)):
        if row.leased != counted.get(row.name, 0):
            mismatch = f"counts {row.leased} leased, there are {counted.get(row.name, 0)}"
            yield f"licence {row.name} {mismatch}"
