"""Consequences of events for reservations, as data: new versions, actions, warnings. Pure.

The parts of the book yield consequences; `ReservationBook` applies each before the part continues.
A version that is over has further consequences, which the book adds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import structs

from metasched.core.reservations.events import ReservationAction
from metasched.model.reservation import Reservation, ReservationTransition, next_state

# A suffix of stored causes: do not change it
_NO_SPARE_NODE = "cannot be used, and no other node is free"


@dataclass(frozen=True)
class SiteWarning:
    """A message for the log of the site."""

    text: str


# A `Reservation` is its new version, which replaces the version in the book
Consequence = Reservation | ReservationAction | SiteWarning


def warning_about(reservation: Reservation, text: str) -> SiteWarning:
    """Return a warning that names the reservation and its owner."""
    return SiteWarning(f"reservation {reservation.id} of {reservation.user}{text}")


def apply_transition(
    reservation: Reservation, transition: ReservationTransition, cause: str
) -> Reservation:
    """Return the reservation after a transition: the only place where its state changes.

    Raises IllegalReservationTransition if the transition table has no such entry.
    """
    state = next_state(reservation, transition)
    return structs.replace(reservation, state=state, cause=cause)


def close(
    reservation: Reservation, transition: ReservationTransition, now: float, cause: str
) -> Reservation:
    """Return the reservation closed at `now` (epoch seconds) by a transition to a final state."""
    return structs.replace(apply_transition(reservation, transition, cause), closed=now)


def break_off(reservation: Reservation, now: float, cause: str) -> Reservation:
    """Return the reservation broken at `now` (epoch seconds)."""
    return close(reservation, ReservationTransition.BREAK, now, cause)


def with_cause(reservation: Reservation, cause: str) -> Reservation:
    """Return the reservation with another cause."""
    return structs.replace(reservation, cause=cause)


def no_spare_node_cause(down_nodes: Iterable[str]) -> str:
    """Return the cause of a reservation whose nodes are down and cannot be replaced."""
    return f"{', '.join(down_nodes)} {_NO_SPARE_NODE}"


def lacks_spare_node(reservation: Reservation) -> bool:
    """Return whether the last cause of a reservation was `no_spare_node_cause`."""
    return reservation.cause.endswith(_NO_SPARE_NODE)
