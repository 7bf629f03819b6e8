"""Advance reservations: the reservation, its states and transitions. Pure.

Times are seconds since the epoch. Sizes count the unit that the cluster reserves: nodes or
processors.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from metasched.model.reservation_request import Offer


class ReservationState(StrEnum):
    """The state of a reservation."""

    REQUESTED = "requested"  # stored, nodes assigned; the manager has not answered
    CONFIRMED = "confirmed"  # granted; to be bound later, or again after the manager lost it
    BOUND = "bound"  # the manager has reserved the nodes
    ACTIVE = "active"  # its window has begun
    ENDED = "ended"
    CANCELLED = "cancelled"
    BROKEN = "broken"  # could not be kept


class ReservationTransition(StrEnum):
    """Events in the life of a reservation, with their source."""

    BIND = "bind"  # manager: has reserved the nodes
    LOSE = "lose"  # manager: does not know it any more
    BEGIN = "begin"  # clock
    END = "end"  # clock
    CANCEL = "cancel"  # owner
    BREAK = "break"  # metasched: cannot be kept


OPEN_STATES = frozenset(
    {
        ReservationState.REQUESTED,
        ReservationState.CONFIRMED,
        ReservationState.BOUND,
        ReservationState.ACTIVE,
    }
)
FINAL_STATES = frozenset(ReservationState) - OPEN_STATES
BOUND_STATES = frozenset({ReservationState.BOUND, ReservationState.ACTIVE})

TRANSITIONS: dict[tuple[ReservationState, ReservationTransition], ReservationState] = {
    (ReservationState.REQUESTED, ReservationTransition.BIND): ReservationState.BOUND,
    (ReservationState.CONFIRMED, ReservationTransition.BIND): ReservationState.BOUND,
    (ReservationState.BOUND, ReservationTransition.LOSE): ReservationState.CONFIRMED,
    (ReservationState.ACTIVE, ReservationTransition.LOSE): ReservationState.CONFIRMED,
    (ReservationState.BOUND, ReservationTransition.BEGIN): ReservationState.ACTIVE,
    (ReservationState.ACTIVE, ReservationTransition.END): ReservationState.ENDED,
    **{(state, ReservationTransition.CANCEL): ReservationState.CANCELLED for state in OPEN_STATES},
    **{(state, ReservationTransition.BREAK): ReservationState.BROKEN for state in OPEN_STATES},
}


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """`size` nodes (`cpus` processors in all) of a cluster for its owner in [start, end)."""

    id: int
    user: str  # the owner
    cluster: str
    start: float
    end: float
    size: int  # nodes, or units of a pool
    cpus: int  # processors in all
    created: float  # when it was requested
    nodes: tuple[str, ...]  # assigned nodes; empty where the manager chooses
    state: ReservationState = ReservationState.REQUESTED
    cause: str = ""  # of the last change, reported to users
    bound_nodes: tuple[str, ...] = ()  # confirmed by the manager
    known_to_manager: bool = True  # whether the manager may have it, in any state
    rejections: int = 0  # by its manager since it was last bound
    closed: float | None = None  # when it ended
    offers: tuple[Offer, ...] = ()  # windows that were possible when it broke
    let_run: float = 0.0  # seconds that jobs may run past `end`; its nodes stay reserved
    licences: Mapping[str, int] = msgspec.field(default_factory=dict)  # kept for its jobs, by name
    mail: str = ""  # address for the notice that it broke; "": the user name
    users: tuple[str, ...] = ()  # accounts, besides the owner, whose jobs may run in it
    # accounts of accounting whose jobs alone may run in it, of any user; empty: those of the users
    accounts: tuple[str, ...] = ()
    series: int | None = None  # id of its series, if it is an occurrence

    @property
    def until(self) -> float:
        """When its nodes are free again at the latest."""
        return self.end + self.let_run


class IllegalReservationTransition(Exception):
    """The transition table has no entry for this state and transition: a bug in metasched."""

    def __init__(self, reservation: Reservation, transition: ReservationTransition) -> None:
        super().__init__(
            f"reservation {reservation.id}: {transition} is impossible in state {reservation.state}"
        )


def next_state(reservation: Reservation, transition: ReservationTransition) -> ReservationState:
    """Return the state after a transition; IllegalReservationTransition if the table has none."""
    try:
        return TRANSITIONS[reservation.state, transition]
    except KeyError:
        raise IllegalReservationTransition(reservation, transition) from None


def manager_name(instance: str, id: int) -> str:
    """Return the name of a reservation at its manager: `ms-<instance>-r<id>`."""
    return f"ms-{instance}-r{id}"


def reservation_id(name: str, instance: str) -> int | None:
    """Return the id in a manager's name of a reservation of this instance, else None."""
    prefix = f"ms-{instance}-r"
    number = name.removeprefix(prefix)
    return int(number) if name.startswith(prefix) and number.isdecimal() else None
