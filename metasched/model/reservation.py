"""The life of an advance reservation: its states, what it is, what a manager tells. Pure.

Times are seconds since the epoch, sizes count what the cluster promises: nodes, or processors.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from metasched.model.reservation_request import Offer
from metasched.model.stored_names import STORED_FIELDS


class ReservationState(StrEnum):
    """Where a reservation is."""

    REQUESTED = "requested"  # stored, and its nodes are kept for it; its manager has not answered
    CONFIRMED = "confirmed"  # promised; its manager is told later, or again since it has lost it
    BOUND = "bound"  # its manager keeps the nodes
    ACTIVE = "active"  # its window has begun
    ENDED = "ended"
    CANCELLED = "cancelled"
    BROKEN = "broken"  # it could not be kept


class ReservationTransition(StrEnum):
    """What can happen to a reservation, with whose word we have for it."""

    BIND = "bind"  # manager: it keeps the nodes
    LOSE = "lose"  # manager: it does not know it any more
    BEGIN = "begin"  # the clock
    END = "end"  # the clock
    CANCEL = "cancel"  # owner
    BREAK = "break"  # we: it cannot be kept


OPEN_STATES = frozenset(
    {
        ReservationState.REQUESTED,
        ReservationState.CONFIRMED,
        ReservationState.BOUND,
        ReservationState.ACTIVE,
    }
)
FINAL_STATES = frozenset(ReservationState) - OPEN_STATES

TRANSITIONS: dict[tuple[ReservationState, ReservationTransition], ReservationState] = {
    (ReservationState.REQUESTED, ReservationTransition.BIND): ReservationState.BOUND,
    (ReservationState.CONFIRMED, ReservationTransition.BIND): ReservationState.BOUND,
    (ReservationState.BOUND, ReservationTransition.LOSE): ReservationState.CONFIRMED,
    (ReservationState.ACTIVE, ReservationTransition.LOSE): ReservationState.CONFIRMED,
    (ReservationState.BOUND, ReservationTransition.BEGIN): ReservationState.ACTIVE,
    (ReservationState.ACTIVE, ReservationTransition.END): ReservationState.ENDED,
    **{(stage, ReservationTransition.CANCEL): ReservationState.CANCELLED for stage in OPEN_STATES},
    **{(stage, ReservationTransition.BREAK): ReservationState.BROKEN for stage in OPEN_STATES},
}


class Reservation(msgspec.Struct, rename=STORED_FIELDS["Reservation"], frozen=True, kw_only=True):
    """`size` nodes (`cpus` processors together) of a cluster for its owner, in [start, end).

    `nodes` are those that it is to have, `placed` those that its manager has said to keep; none
    where the manager promises processors and chooses them by itself (`Pool`). While
    it is `held` its manager may know it, whatever became of it. `tries` counts refusals since it
    was last bound; `offers` are windows that were possible when it broke. What still runs in it at
    its end is killed, after `let_run` seconds more: as long nobody else is promised its nodes.
    `licences` are kept for its jobs besides, by name. `mail` is where its owner is told that it
    broke; "": by the owner's name.
    """

    id: int
    user: str
    cluster: str
    start: float
    end: float
    size: int
    cpus: int
    created: float
    nodes: tuple[str, ...]
    state: ReservationState = ReservationState.REQUESTED
    cause: str = ""
    bound_nodes: tuple[str, ...] = ()
    known_to_manager: bool = True
    rejections: int = 0
    closed: float | None = None
    offers: tuple[Offer, ...] = ()
    let_run: float = 0.0
    licences: Mapping[str, int] = msgspec.field(default_factory=dict)
    mail: str = ""

    @property
    def until(self) -> float:
        """When its nodes are free again at the latest."""
        return self.end + self.let_run


class IllegalReservationTransition(Exception):
    """Something that cannot happen to a reservation in its state: a defect of ours."""

    def __init__(self, reservation: Reservation, transition: ReservationTransition) -> None:
        super().__init__(
            f"reservation {reservation.id}: {transition} is impossible in state {reservation.state}"
        )


def next_state(reservation: Reservation, transition: ReservationTransition) -> ReservationState:
    """The state after a turn. IllegalTurn if the table has none."""
    try:
        return TRANSITIONS[reservation.state, transition]
    except KeyError:
        raise IllegalReservationTransition(reservation, transition) from None


def manager_name(instance: str, id: int) -> str:
    """By which a manager knows it: `ms-<instance>-r<id>`."""
    return f"ms-{instance}-r{id}"


def reservation_id(name: str, instance: str) -> int | None:
    """The id in a name if the reservation is this instance's, else None."""
    prefix = f"ms-{instance}-r"
    number = name.removeprefix(prefix)
    return int(number) if name.startswith(prefix) and number.isdecimal() else None


# What a manager tells.


# What the core is told.


# What is to be done.
