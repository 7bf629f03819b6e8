"""The life of an advance reservation: its states, what it is, what a manager tells. Pure.

Times are seconds since the epoch, sizes count what the cluster promises: nodes, or processors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from metasched.model.reservation_request import Offer, Request


class Stage(StrEnum):
    """Where a reservation is."""

    REQUESTED = "requested"  # stored, and its nodes are kept for it; its manager has not answered
    CONFIRMED = "confirmed"  # promised; its manager is told later, or again since it has lost it
    BOUND = "bound"  # its manager keeps the nodes
    ACTIVE = "active"  # its window has begun
    ENDED = "ended"
    CANCELLED = "cancelled"
    BROKEN = "broken"  # it could not be kept


class Turn(StrEnum):
    """What can happen to a reservation, with whose word we have for it."""

    BIND = "bind"  # manager: it keeps the nodes
    LOSE = "lose"  # manager: it does not know it any more
    BEGIN = "begin"  # the clock
    END = "end"  # the clock
    CANCEL = "cancel"  # owner
    BREAK = "break"  # we: it cannot be kept


OPEN = frozenset({Stage.REQUESTED, Stage.CONFIRMED, Stage.BOUND, Stage.ACTIVE})
OVER = frozenset(Stage) - OPEN

TABLE: dict[tuple[Stage, Turn], Stage] = {
    (Stage.REQUESTED, Turn.BIND): Stage.BOUND,
    (Stage.CONFIRMED, Turn.BIND): Stage.BOUND,
    (Stage.BOUND, Turn.LOSE): Stage.CONFIRMED,
    (Stage.ACTIVE, Turn.LOSE): Stage.CONFIRMED,
    (Stage.BOUND, Turn.BEGIN): Stage.ACTIVE,
    (Stage.ACTIVE, Turn.END): Stage.ENDED,
    **{(stage, Turn.CANCEL): Stage.CANCELLED for stage in OPEN},
    **{(stage, Turn.BREAK): Stage.BROKEN for stage in OPEN},
}


@dataclass(frozen=True, kw_only=True)
class Reservation:
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
    made: float
    nodes: tuple[str, ...]
    state: Stage = Stage.REQUESTED
    cause: str = ""
    placed: tuple[str, ...] = ()
    held: bool = True
    tries: int = 0
    closed: float | None = None
    offers: tuple[Offer, ...] = ()
    let_run: float = 0.0
    licences: Mapping[str, int] = field(default_factory=dict)
    mail: str = ""

    @property
    def until(self) -> float:
        """When its nodes are free again at the latest."""
        return self.end + self.let_run


class IllegalTurn(Exception):
    """Something that cannot happen to a reservation in its state: a defect of ours."""

    def __init__(self, reservation: Reservation, turn: Turn) -> None:
        super().__init__(
            f"reservation {reservation.id}: {turn} is impossible in state {reservation.state}"
        )


def turned(reservation: Reservation, turn: Turn) -> Stage:
    """The state after a turn. IllegalTurn if the table has none."""
    try:
        return TABLE[reservation.state, turn]
    except KeyError:
        raise IllegalTurn(reservation, turn) from None


def name_of(instance: str, id: int) -> str:
    """By which a manager knows it: `ms-<instance>-r<id>`."""
    return f"ms-{instance}-r{id}"


def id_of(name: str, instance: str) -> int | None:
    """The id in a name if the reservation is this instance's, else None."""
    begin = f"ms-{instance}-r"
    number = name.removeprefix(begin)
    return int(number) if name.startswith(begin) and number.isdecimal() else None


# What a manager tells.

Span = tuple[float, float]


@dataclass(frozen=True)
class NodesInUse:
    """Nodes that are alike: `cpus` of each, whether they are `up`, when they are taken.

    `spans` are others' reservations, and jobs until their limits; they may overlap.
    """

    nodes: tuple[str, ...]
    cpus: int
    up: bool
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Pool:
    """`size` units on nodes that are up, over all of which one reservation may spread.

    A unit is a processor, or a core that has several (`cpus`). `uses` are what takes some of them:
    start, end, units. They are reservations, also those of this instance, and jobs in none until
    their limits; they may overlap.
    """

    nodes: tuple[str, ...]
    size: int
    uses: tuple[tuple[float, float, int], ...] = ()
    cpus: int = 1


@dataclass(frozen=True)
class Held:
    """A reservation of this instance as its manager keeps it; `size` is told of those in pools."""

    name: str
    start: float
    end: float
    nodes: tuple[str, ...]
    size: int | None = None


@dataclass(frozen=True)
class Survey:
    """What a manager tells of its nodes over time, begun at `taken`.

    One that promises processors and chooses the nodes by itself tells of `pools`, and no `nodes`.
    Jobs may hold theirs for `guard` seconds after their limits, and are counted so in pools; None:
    it does not tell.
    """

    taken: float
    nodes: tuple[NodesInUse, ...]
    held: tuple[Held, ...] = ()
    pools: tuple[Pool, ...] = ()
    guard: float | None = None

    @property
    def up(self) -> frozenset[str]:
        """The nodes that can be used."""
        groups = [use.nodes for use in self.nodes if use.up] + [pool.nodes for pool in self.pools]
        return frozenset(node for group in groups for node in group)


@dataclass(frozen=True)
class Window:
    """What a manager is to keep for a user: exactly these nodes, or `size` units of a pool.

    With it go those `licences`, in its own names, that it can reserve. At `end` it kills what runs.
    """

    name: str
    user: str
    start: float
    end: float
    nodes: tuple[str, ...]
    size: int = 0
    licences: Mapping[str, int] = field(default_factory=dict)


# What the core is told.


@dataclass(frozen=True)
class Surveyed:
    """What a cluster's manager tells of its nodes."""

    time: float
    cluster: str
    survey: Survey


@dataclass(frozen=True)
class ReservationAsked:
    """A user wants a reservation: `request` counts processors, or nodes with `by_node`.

    `clusters` are those to choose from. `until` (the horizon) bounds what is offered instead.
    What runs in it may go on for `let_run` seconds after its end. `licences` are to be kept, too.
    The owner is written to at `mail`.
    """

    time: float
    id: int
    user: str
    request: Request
    by_node: bool
    clusters: tuple[str, ...]
    until: float
    let_run: float = 0.0
    licences: Mapping[str, int] = field(default_factory=dict)
    mail: str = ""


@dataclass(frozen=True)
class ReservationBound:
    """The manager keeps these nodes for it."""

    time: float
    id: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class ReservationDeclined:
    """The manager certainly does not keep for it what was asked for."""

    time: float
    id: int
    reason: str


@dataclass(frozen=True)
class ReservationReleased:
    """The manager keeps nothing for it any more."""

    time: float
    id: int


@dataclass(frozen=True)
class ReservationCancelled:
    """Its owner does not want it any more."""

    time: float
    id: int
    by: str = ""


ReservationEvent = (
    Surveyed
    | ReservationAsked
    | ReservationBound
    | ReservationDeclined
    | ReservationReleased
    | ReservationCancelled
)


# What is to be done.


@dataclass(frozen=True)
class Bind:
    """Let the manager keep the nodes of a reservation, as they are in the book by then."""

    cluster: str
    id: int


@dataclass(frozen=True)
class Unbind:
    """Let the manager forget a reservation."""

    cluster: str
    id: int


@dataclass(frozen=True)
class LookAround:
    """Ask the manager for a survey."""

    cluster: str


ReservationAction = Bind | Unbind | LookAround
