"""Reservations in SQL: each in its last state, no node or token reserved twice for a moment.

Each function works in the caller's transaction. Writers are serialised by `pruning.lock_epoch`,
so a check for overlaps still holds when the reservation is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import structs
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from metasched.core.events import Outcome
from metasched.db.schema import licence, reservation
from metasched.model.reservation import OPEN_STATES, Reservation, ReservationState

_IS_OPEN = reservation.c.state.in_(sorted(OPEN_STATES))
_JSON_COLUMNS = ("nodes", "bound_nodes", "offers", "licences", "users", "accounts")
_UPDATE = (
    update(reservation)
    .where(reservation.c.id == bindparam("b_id"))
    .values(
        {
            c.name: bindparam(f"b_{c.name}")
            for c in reservation.c
            if c.name not in ("id", "notified")
        }
    )
)


class Overbooked(Exception):
    """A node or token is reserved twice for a moment: a defect, or two active daemons.

    Nothing is stored.
    """


def store(connection: Connection, outcomes: Iterable[Outcome]) -> None:
    """Store changed reservations. Overbooked if a new reservation overlaps with another."""
    latest = {id: changed for out in outcomes for id, changed in out.reservations.items()}
    if not latest:
        return
    ids = select(reservation.c.id).where(reservation.c.id.in_(list(latest)))
    stored_ids = set(connection.execute(ids).scalars())
    if updated := [changed for id, changed in latest.items() if id in stored_ids]:
        rows = [_encode_row(changed) for changed in updated]
        connection.execute(_UPDATE, [{f"b_{k}": v for k, v in row.items()} for row in rows])
    if new := [changed for id, changed in latest.items() if id not in stored_ids]:
        connection.execute(insert(reservation), [_encode_row(added) for added in new])
    for added in new:
        if added.state in OPEN_STATES:
            _check_no_overlap(connection, added)


def _check_no_overlap(connection: Connection, added: Reservation) -> None:
    columns = reservation.c
    overlapping = select(reservation).where(
        _overlaps(added), columns.id != added.id, columns.cluster == added.cluster
    )
    for other in map(_decode_row, connection.execute(overlapping)):
        if shared := set(added.nodes) & set(other.nodes):
            raise Overbooked(
                f"reservations {other.id} and {added.id} both want {min(shared)} of {added.cluster}"
            )
    if added.licences:
        _check_licences(connection, added)


def _overlaps(added: Reservation) -> ColumnElement[bool]:
    """Return the condition that a stored reservation is open and overlaps with `added`."""
    columns = reservation.c
    return and_(_IS_OPEN, columns.start < added.until, columns.end + columns.let_run > added.start)


def _check_licences(connection: Connection, added: Reservation) -> None:
    overlapping = [
        _decode_row(row) for row in connection.execute(select(reservation).where(_overlaps(added)))
    ]
    query = select(licence.c.name, licence.c.total).where(licence.c.name.in_(added.licences))
    totals = {row.name: row.total for row in connection.execute(query)}
    for name in added.licences:
        for moment in {max(other.start, added.start) for other in overlapping}:
            concurrent = [other for other in overlapping if other.start <= moment < other.until]
            reserved = sum(other.licences.get(name, 0) for other in concurrent)
            if reserved > (total := totals.get(name, 0)):
                ids = ", ".join(str(other.id) for other in concurrent)
                raise Overbooked(
                    f"reservations {ids} want {reserved} of licence {name}, not {total}"
                )


def open_or_held(connection: Connection) -> list[Reservation]:
    """Return reservations that are open, or that a manager may still hold."""
    query = select(reservation).where(
        or_(reservation.c.closed.is_(None), reservation.c.known_to_manager)
    )
    return [_decode_row(row) for row in connection.execute(query.order_by(reservation.c.id))]


def open_since(connection: Connection, since: float, user: str | None = None) -> list[Reservation]:
    """Return reservations that are open or closed at or after `since` (epoch seconds), by start.

    `user` None: of all users.
    """
    ordered = _open_since(since, user).order_by(reservation.c.start, reservation.c.id)
    return [_decode_row(row) for row in connection.execute(ordered)]


def ids_open_since(connection: Connection, since: float, user: str | None) -> list[int]:
    """Return the ids of these reservations, by start."""
    query = _open_since(since, user).order_by(reservation.c.start, reservation.c.id)
    return list(connection.execute(query.with_only_columns(reservation.c.id)).scalars())


def with_ids(connection: Connection, ids: Sequence[int]) -> list[Reservation]:
    """Return the reservations with these ids, in their order; some may have been pruned."""
    rows = connection.execute(select(reservation).where(reservation.c.id.in_(ids)))
    by_id = {row.id: _decode_row(row) for row in rows}
    return [by_id[id] for id in ids if id in by_id]


def page_open_since(
    connection: Connection, since: float, user: str | None, after: int, limit: int
) -> list[Reservation]:
    """Return the first `limit` of these reservations with ids above `after`, by id."""
    query = _open_since(since, user).where(reservation.c.id > after)
    ordered = query.order_by(reservation.c.id).limit(limit)
    return [_decode_row(row) for row in connection.execute(ordered)]


def _open_since(since: float, user: str | None) -> Select[Any]:
    query = select(reservation).where(
        or_(reservation.c.closed.is_(None), reservation.c.closed >= since)
    )
    return query if user is None else query.where(reservation.c.user == user)


def unnotified(connection: Connection, since: float) -> list[Reservation]:
    """Return reservations broken at or after `since` with owners not yet notified."""
    columns = reservation.c
    query = select(reservation).where(
        columns.state == ReservationState.BROKEN,
        columns.notified.is_(None),
        columns.closed >= since,
    )
    return [_decode_row(row) for row in connection.execute(query.order_by(columns.id))]


def mark_notified(connection: Connection, id: int, time: float) -> None:
    """Store that the owner of a reservation has been notified."""
    connection.execute(update(reservation).where(reservation.c.id == id).values(notified=time))


def find(connection: Connection, id: int) -> Reservation | None:
    """Return a reservation, or None if there is no such id."""
    row = connection.execute(select(reservation).where(reservation.c.id == id)).first()
    return None if row is None else _decode_row(row)


def prune_batch(
    connection: Connection, before: float, after: int, limit: int
) -> tuple[int | None, int]:
    """Delete those of the next `limit` reservations that closed before a time.

    `after` is the last id examined before. Return the last id examined now (None: there was none)
    and the number deleted. The newest is kept, since ids continue from it.
    """
    columns = reservation.c
    following = select(columns.id).where(columns.id > after).order_by(columns.id).limit(limit)
    ids = list(connection.execute(following).scalars())
    if not ids:
        return None, 0
    newest = select(func.max(columns.id)).scalar_subquery()
    examined = columns.id.between(ids[0], ids[-1])
    prunable = delete(reservation).where(
        examined, columns.closed < before, ~columns.known_to_manager, columns.id < newest
    )
    return ids[-1], connection.execute(prunable).rowcount


def highest_id(connection: Connection) -> int:
    """Return the highest reservation id, 0 without reservations."""
    return connection.execute(select(func.max(reservation.c.id))).scalar() or 0


def find_conflicts(connection: Connection) -> Iterator[str]:
    """Yield a message for each node that managers hold for two open reservations at once."""
    open_reservations = [
        _decode_row(row) for row in connection.execute(select(reservation).where(_IS_OPEN))
    ]
    for position, first in enumerate(open_reservations):
        for second in open_reservations[position + 1 :]:
            shared = set(first.bound_nodes) & set(second.bound_nodes)
            overlapping = first.start < second.until and second.start < first.until
            if shared and overlapping and first.cluster == second.cluster:
                yield f"reservations {first.id} and {second.id} both have {min(shared)}"


def _encode_row(encoded: Reservation) -> dict[str, Any]:
    fields = structs.fields(Reservation)
    row = {field.name: getattr(encoded, field.name) for field in fields}
    return row | {name: msgspec.json.encode(row[name]).decode() for name in _JSON_COLUMNS}


def _decode_row(row: Any) -> Reservation:
    values = {
        str(name): value for name, value in row._mapping.items()
    }  # msgspec needs plain str keys
    decoded = {name: msgspec.json.decode(values[name]) for name in _JSON_COLUMNS}
    return msgspec.convert(values | decoded, Reservation)
