"""Reservations in SQL: each in its last state, and nothing promised twice for one moment.

Each function works in the caller's transaction. Writers take turns (`upkeep.turn`), so that what
is looked at before a promise is stored cannot change until it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import structs
from sqlalchemy import Connection, bindparam, delete, func, insert, or_, select, update

from metasched.core.events import Outcome
from metasched.db.schema import licence, reservation
from metasched.model.reservation import OPEN, Reservation, Stage

_OPEN = reservation.c.state.in_(sorted(OPEN))
_JSON = ("nodes", "placed", "offers", "licences")
_UPDATE = (
    update(reservation)
    .where(reservation.c.id == bindparam("b_id"))
    .values(
        {c.name: bindparam(f"b_{c.name}") for c in reservation.c if c.name not in ("id", "told")}
    )
)


class Overbooked(Exception):
    """A node or token is promised twice for one moment: a defect, or two daemons.

    Nothing is stored.
    """


def write(connection: Connection, outcomes: Iterable[Outcome]) -> None:
    """Store what became of reservations. Overbooked if a new one has what others have."""
    last = {id: one for out in outcomes for id, one in out.reservations.items()}
    if not last:
        return
    known = set(
        connection.execute(select(reservation.c.id).where(reservation.c.id.in_(list(last))))
        .scalars()
        .all()
    )
    old = [_row(one) for id, one in last.items() if id in known]
    new = [_row(one) for id, one in last.items() if id not in known]
    if old:
        connection.execute(_UPDATE, [{f"b_{k}": v for k, v in row.items()} for row in old])
    if new:
        connection.execute(insert(reservation), new)
    for row in new:
        one = last[row["id"]]
        if one.state in OPEN:
            _must_be_alone(connection, one)


def _must_be_alone(connection: Connection, one: Reservation) -> None:
    of = reservation.c
    beside = select(reservation).where(
        *(_OPEN, of.id != one.id, of.cluster == one.cluster),
        *(of.start < one.until, of.end + of.let_run > one.start),
    )
    for other in map(_read, connection.execute(beside)):
        if shared := set(one.nodes) & set(other.nodes):
            raise Overbooked(
                f"reservations {other.id} and {one.id} both want {min(shared)} of {one.cluster}"
            )
    if one.licences:
        _must_have_licences(connection, one)


def _must_have_licences(connection: Connection, one: Reservation) -> None:
    of = reservation.c
    beside = select(reservation).where(_OPEN, of.start < one.until, of.end + of.let_run > one.start)
    windows = [_read(row) for row in connection.execute(beside)]
    of_pools = select(licence.c.name, licence.c.total).where(licence.c.name.in_(one.licences))
    totals = {row.name: row.total for row in connection.execute(of_pools)}
    for name in one.licences:
        for moment in {max(window.start, one.start) for window in windows}:
            there = [window for window in windows if window.start <= moment < window.until]
            wanted = sum(window.licences.get(name, 0) for window in there)
            if wanted > (total := totals.get(name, 0)):
                ids = ", ".join(str(window.id) for window in there)
                raise Overbooked(f"reservations {ids} want {wanted} of licence {name}, not {total}")


def live(connection: Connection) -> list[Reservation]:
    """Those that are open, or that a manager may still know."""
    query = select(reservation).where(or_(reservation.c.closed.is_(None), reservation.c.held))
    return [_read(row) for row in connection.execute(query.order_by(reservation.c.id))]


def listed(connection: Connection, since: float) -> list[Reservation]:
    """Those that are open, or were so after `since` (epoch seconds), by their start."""
    query = select(reservation).where(
        or_(reservation.c.closed.is_(None), reservation.c.closed >= since)
    )
    order = query.order_by(reservation.c.start, reservation.c.id)
    return [_read(row) for row in connection.execute(order)]


def untold(connection: Connection, since: float) -> list[Reservation]:
    """Those that broke after `since`, and whose owners have not been told."""
    of = reservation.c
    query = select(reservation).where(
        of.state == Stage.BROKEN, of.told.is_(None), of.closed >= since
    )
    return [_read(row) for row in connection.execute(query.order_by(of.id))]


def told(connection: Connection, id: int, time: float) -> None:
    """Store that its owner has been told."""
    connection.execute(update(reservation).where(reservation.c.id == id).values(told=time))


def one(connection: Connection, id: int) -> Reservation | None:
    row = connection.execute(select(reservation).where(reservation.c.id == id)).first()
    return None if row is None else _read(row)


def forget_some(connection: Connection, before: float, portion: int) -> int:
    """Forget some of those that were over before a time; how many.

    The newest stays, since ids go on from it.
    """
    of = reservation.c
    newest = select(func.max(of.id)).scalar_subquery()
    old = select(of.id).where(of.closed < before, ~of.held, of.id < newest)
    ids = list(connection.execute(old.limit(portion)).scalars())
    connection.execute(delete(reservation).where(of.id.in_(ids)))
    return len(ids)


def highest(connection: Connection) -> int:
    return connection.execute(select(func.max(reservation.c.id))).scalar() or 0


def wrong(connection: Connection) -> Iterator[str]:
    """Nodes that managers keep for two open reservations at one moment."""
    found = [_read(row) for row in connection.execute(select(reservation).where(_OPEN))]
    for place, one in enumerate(found):
        for other in found[place + 1 :]:
            shared = set(one.placed) & set(other.placed)
            together = one.start < other.until and other.start < one.until
            if shared and together and one.cluster == other.cluster:
                yield f"reservations {one.id} and {other.id} both have {min(shared)}"


def _row(one: Reservation) -> dict[str, Any]:
    encoded = {name: msgspec.json.encode(getattr(one, name)).decode() for name in _JSON}
    return {**structs.asdict(one), **encoded}


def _read(row: Any) -> Reservation:
    found = {str(name): value for name, value in row._mapping.items()}  # plain str: msgspec asks
    decoded = {name: msgspec.json.decode(found[name]) for name in _JSON}
    return msgspec.convert(found | decoded, Reservation)
