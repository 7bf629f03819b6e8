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
from metasched.model.licence import GivenBack, Lease, LicenceCount, Lingering, Standing


def _excess(leased: ColumnElement[int], total: ColumnElement[int]) -> ColumnElement[int]:
    return case((leased > total, leased - total), else_=0)


_MANY: ColumnElement[int] = bindparam("b_many", type_=licence.c.leased.type)
_TOTAL: ColumnElement[int] = bindparam("b_total", type_=licence.c.total.type)
_NAMED = licence.c.name == bindparam("b_name")
# The one statement that the constraint guards: it fails if that many are not left.
_TAKE = update(licence).where(_NAMED).values(leased=licence.c.leased + _MANY)
_FORCE = _TAKE.values(excess=_excess(licence.c.leased + _MANY, licence.c.total))
_GIVE_BACK = (
    update(licence)
    .where(_NAMED)
    .values(
        leased=licence.c.leased - _MANY,
        excess=_excess(licence.c.leased - _MANY, licence.c.total),
    )
)
_SET_TOTAL = (
    update(licence).where(_NAMED).values(total=_TOTAL, excess=_excess(licence.c.leased, _TOTAL))
)
_TELL = (
    update(licence)
    .where(_NAMED)
    .values({c: bindparam(f"b_{c}") for c in ("chosen", "outside", "observed", "past_us")})
)
_END = (
    update(lease)
    .where(
        lease.c.licence == bindparam("b_name"),
        lease.c.job == bindparam("b_job"),
        lease.c.task_index == bindparam("b_index"),
        lease.c.until.is_(None),
    )
    .values({c: bindparam(f"b_{c}") for c in ("until", "why", "lingers")})
)


def write(connection: Connection, out: Outcome) -> None:
    """Store what became of licences and leases. IntegrityError: more than there are.

    The counters come last: writers wait for each other there, until the commit.
    """
    for standing in out.standings.values():
        _tell(connection, standing)
    for change in out.leases:
        if isinstance(change, Lease):
            _open(connection, change)
        else:
            _end(connection, change)
    for change in out.leases:
        _count(connection, change)


def clock_set(connection: Connection, to: ClockSet) -> None:
    """Move what lingers with the clock; what did until then must not begin to do so again."""
    moved = lease.c.lingers + to.by
    still = moved > to.time
    connection.execute(
        update(lease)
        .where(lease.c.lingers > min(to.time, to.time - to.by))
        .values(
            lingers=case((still, moved)),
            until=case((still, lease.c.until + to.by), else_=lease.c.until),
        )
    )


def _tell(connection: Connection, told: Standing) -> None:
    known = {
        "chosen": told.chosen,
        "outside": told.outside,
        "observed": told.observed,
        "past_us": msgspec.json.encode(told.past_us).decode(),
    }
    row = {"b_name": told.licence} | {f"b_{name}": value for name, value in known.items()}
    if not connection.execute(_TELL, row).rowcount:
        new = {"name": told.licence, "total": 0, "leased": 0, "excess": 0}
        connection.execute(insert(licence), new | known)
    if told.total is not None:  # else the last one that was known
        connection.execute(_SET_TOTAL, {"b_name": told.licence, "b_total": told.total})


def _open(connection: Connection, taken: Lease) -> None:
    connection.execute(
        insert(lease),
        [
            {
                "licence": name,
                "job": taken.job,
                "task_index": taken.index,
                "attempt": taken.attempt,
                "tokens": count,
                "since": taken.since,
            }
            for name, count in sorted(taken.tokens.items())
        ],
    )


def _end(connection: Connection, back: GivenBack) -> None:
    connection.execute(
        _END,
        [
            {
                "b_name": name,
                "b_job": back.lease.job,
                "b_index": back.lease.index,
                "b_until": back.until,
                "b_why": back.why,
                "b_lingers": back.lingers.get(name),
            }
            for name in sorted(back.lease.tokens)
        ],
    )


def _count(connection: Connection, change: Lease | GivenBack) -> None:
    taken = change if isinstance(change, Lease) else change.lease
    rows = [{"b_name": name, "b_many": count} for name, count in sorted(taken.tokens.items())]
    take = _FORCE if taken.forced else _TAKE
    connection.execute(take if taken is change else _GIVE_BACK, rows)


def live(connection: Connection) -> list[Lease]:
    """The leases that have not been given back."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    rows = connection.execute(
        select(lease).where(lease.c.until.is_(None)).order_by(lease.c.job, lease.c.task_index)
    )
    for row in rows:
        of = found.setdefault(
            (row.job, row.task_index), {"attempt": row.attempt, "since": row.since, "tokens": {}}
        )
        of["tokens"][row.licence] = row.tokens
    return [Lease(*place, **of) for place, of in found.items()]


def lingering(connection: Connection) -> list[Lingering]:
    """What was given back, and still counted as in use when the daemon was last heard of."""
    newest = select(event.c.time).order_by(event.c.id.desc()).limit(1).scalar_subquery()
    query = select(lease).where(lease.c.lingers > func.coalesce(newest, 0.0))
    if not (rows := connection.execute(query.order_by(lease.c.id)).all()):
        return []
    # it may have been set back while no daemon was there to tell
    set_last = select(func.max(event.c.id)).where(event.c.kind == "clockset").scalar_subquery()
    since = event.c.id >= func.coalesce(set_last, 0)
    latest = connection.execute(select(func.max(event.c.time)).where(since)).scalar_one()
    found = [Lingering(row.licence, row.tokens, row.until, row.lingers) for row in rows]
    return [back for back in found if back.until > latest]


def totals(connection: Connection) -> dict[str, int]:
    """What operators have set."""
    rows = connection.execute(
        select(licence.c.name, licence.c.chosen).where(licence.c.chosen.is_not(None))
    )
    return {row.name: row.chosen for row in rows}


def past_us(connection: Connection) -> dict[str, dict[str, LicenceCount]]:
    """What managers had given to others when they were last heard, by licence and cluster."""
    told = dict[str, LicenceCount]
    rows = connection.execute(select(licence.c.name, licence.c.past_us))
    return {row.name: msgspec.json.decode(row.past_us, type=told) for row in rows}


def wrong(connection: Connection) -> Iterator[str]:
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
            told = f"counts {row.leased} leased, there are {counted.get(row.name, 0)}"
            yield f"licence {row.name} {told}"
