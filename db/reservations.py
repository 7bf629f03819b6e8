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
from metasched.model.reservation import OPEN_STATES, Reservation, ReservationState

_IS_OPEN = reservation.c.state.in_(sorted(OPEN_STATES))
_JSON_COLUMNS = ("nodes", "placed", "offers", "licences")
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


def store(connection: Connection, outcomes: Iterable[Outcome]) -> None:
    """Store what became of reservations. Overbooked if a new one has what others have."""
    latest = {
        id: changed_reservation
        for outcome in outcomes
        for id, changed_reservation in outcome.reservations.items()
    }
    if not latest:
        return
    stored_ids = set(
        connection.execute(select(reservation.c.id).where(reservation.c.id.in_(list(latest))))
        .scalars()
        .all()
    )
    updated_rows = [
        _encode_row(changed_reservation)
        for id, changed_reservation in latest.items()
        if id in stored_ids
    ]
    new_rows = [
        _encode_row(changed_reservation)
        for id, changed_reservation in latest.items()
        if id not in stored_ids
    ]
    if updated_rows:
        connection.execute(
            _UPDATE,
            [{f"b_{column}": value for column, value in row.items()} for row in updated_rows],
        )
    if new_rows:
        connection.execute(insert(reservation), new_rows)
    for row in new_rows:
        changed_reservation = latest[row["id"]]
        if changed_reservation.state in OPEN_STATES:
            _check_no_overlap(connection, changed_reservation)


def _check_no_overlap(connection: Connection, added: Reservation) -> None:
    columns = reservation.c
    overlapping = select(reservation).where(
        *(_IS_OPEN, columns.id != added.id, columns.cluster == added.cluster),
        *(columns.start < added.until, columns.end + columns.let_run > added.start),
    )
    for other in map(_decode_row, connection.execute(overlapping)):
        if shared := set(added.nodes) & set(other.nodes):
            raise Overbooked(
                f"reservations {other.id} and {added.id} both want {min(shared)} of {added.cluster}"
            )
    if added.licences:
        _check_licences(connection, added)


def _check_licences(connection: Connection, added: Reservation) -> None:
    columns = reservation.c
    overlapping = select(reservation).where(
        _IS_OPEN, columns.start < added.until, columns.end + columns.let_run > added.start
    )
    overlaps = [_decode_row(row) for row in connection.execute(overlapping)]
    pool_totals = select(licence.c.name, licence.c.total).where(licence.c.name.in_(added.licences))
    totals = {row.name: row.total for row in connection.execute(pool_totals)}
    for name in added.licences:
        for moment in {
            max(concurrent_reservation.start, added.start) for concurrent_reservation in overlaps
        }:
            concurrent = [
                concurrent_reservation
                for concurrent_reservation in overlaps
                if concurrent_reservation.start <= moment < concurrent_reservation.until
            ]
            reserved_tokens = sum(
                concurrent_reservation.licences.get(name, 0)
                for concurrent_reservation in concurrent
            )
            if reserved_tokens > (total := totals.get(name, 0)):
                ids = ", ".join(
                    str(concurrent_reservation.id) for concurrent_reservation in concurrent
                )
                raise Overbooked(
                    f"reservations {ids} want {reserved_tokens} of licence {name}, not {total}"
                )


def open_or_held(connection: Connection) -> list[Reservation]:
    """Those that are open, or that a manager may still know."""
    query = select(reservation).where(or_(reservation.c.closed.is_(None), reservation.c.held))
    return [_decode_row(row) for row in connection.execute(query.order_by(reservation.c.id))]


def open_since(connection: Connection, since: float) -> list[Reservation]:
    """Those that are open, or were so after `since` (epoch seconds), by their start."""
    query = select(reservation).where(
        or_(reservation.c.closed.is_(None), reservation.c.closed >= since)
    )
    ordered = query.order_by(reservation.c.start, reservation.c.id)
    return [_decode_row(row) for row in connection.execute(ordered)]


def unnotified(connection: Connection, since: float) -> list[Reservation]:
    """Those that broke after `since`, and whose owners have not been told."""
    columns = reservation.c
    query = select(reservation).where(
        columns.state == ReservationState.BROKEN, columns.told.is_(None), columns.closed >= since
    )
    return [_decode_row(row) for row in connection.execute(query.order_by(columns.id))]


def mark_notified(connection: Connection, id: int, time: float) -> None:
    """Store that its owner has been told."""
    connection.execute(update(reservation).where(reservation.c.id == id).values(told=time))


def find(connection: Connection, id: int) -> Reservation | None:
    row = connection.execute(select(reservation).where(reservation.c.id == id)).first()
    return None if row is None else _decode_row(row)


def prune_batch(connection: Connection, before: float, limit: int) -> int:
    """Forget some of those that were over before a time; how many.

    The newest stays, since ids go on from it.
    """
    columns = reservation.c
    newest = select(func.max(columns.id)).scalar_subquery()
    prunable = select(columns.id).where(columns.closed < before, ~columns.held, columns.id < newest)
    ids = list(connection.execute(prunable.limit(limit)).scalars())
    connection.execute(delete(reservation).where(columns.id.in_(ids)))
    return len(ids)


def highest_id(connection: Connection) -> int:
    return connection.execute(select(func.max(reservation.c.id))).scalar() or 0


def find_conflicts(connection: Connection) -> Iterator[str]:
    """Nodes that managers keep for two open reservations at one moment."""
    open_reservations = [
        _decode_row(row) for row in connection.execute(select(reservation).where(_IS_OPEN))
    ]
    for position, first in enumerate(open_reservations):
        for second in open_reservations[position + 1 :]:
            shared = set(first.bound_nodes) & set(second.bound_nodes)
            overlapping = first.start < second.until and second.start < first.until
            if shared and overlapping and first.cluster == second.cluster:
                yield f"reservations {first.id} and {second.id} both have {min(shared)}"


def _encode_row(encoded_reservation: Reservation) -> dict[str, Any]:
    row = {
        field.encode_name: getattr(encoded_reservation, field.name)
        for field in structs.fields(Reservation)
    }
    return row | {name: msgspec.json.encode(row[name]).decode() for name in _JSON_COLUMNS}


def _decode_row(row: Any) -> Reservation:
    values = {str(name): value for name, value in row._mapping.items()}  # plain str: msgspec asks
    decoded = {name: msgspec.json.decode(values[name]) for name in _JSON_COLUMNS}
    return msgspec.convert(values | decoded, Reservation)
