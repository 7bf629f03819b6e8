"""Events and actions of advance reservations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from metasched.model.reservation_request import ReservationRequest
from metasched.model.stored_names import STORED_FIELDS
from metasched.model.survey import Survey


class SurveyReceived(msgspec.Struct, frozen=True):
    """What a cluster's manager tells of its nodes."""

    time: float
    cluster: str
    survey: Survey


class ReservationRequested(
    msgspec.Struct, rename=STORED_FIELDS["ReservationRequested"], frozen=True
):
    """A user wants a reservation: `request` counts processors, or nodes with `by_node`.

    `clusters` are those to choose from. `until` (the horizon) bounds what is offered instead.
    What runs in it may go on for `let_run` seconds after its end. `licences` are to be kept, too.
    The owner is written to at `mail`.
    """

    time: float
    id: int
    user: str
    request: ReservationRequest
    by_node: bool
    clusters: tuple[str, ...]
    horizon: float
    let_run: float = 0.0
    licences: Mapping[str, int] = msgspec.field(default_factory=dict)
    mail: str = ""


class ReservationBound(msgspec.Struct, frozen=True):
    """The manager keeps these nodes for it."""

    time: float
    id: int
    nodes: tuple[str, ...]


class ReservationRejected(msgspec.Struct, frozen=True):
    """The manager certainly does not keep for it what was asked for."""

    time: float
    id: int
    reason: str


class ReservationReleased(msgspec.Struct, frozen=True):
    """The manager keeps nothing for it any more."""

    time: float
    id: int


class ReservationCancelled(msgspec.Struct, frozen=True):
    """Its owner does not want it any more."""

    time: float
    id: int
    by: str = ""


ReservationEvent = (
    SurveyReceived
    | ReservationRequested
    | ReservationBound
    | ReservationRejected
    | ReservationReleased
    | ReservationCancelled
)


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
class SurveyCluster:
    """Ask the manager for a survey."""

    cluster: str


ReservationAction = Bind | Unbind | SurveyCluster
