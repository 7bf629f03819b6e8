"""Events, actions and results of advance reservations; times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from metasched.model.calendar import CalendarLimit
from metasched.model.reservation import Reservation
from metasched.model.reservation_request import ReservationRequest
from metasched.model.survey import Survey


class SurveyReceived(msgspec.Struct, frozen=True):
    """A cluster's manager reported the use of its nodes."""

    time: float
    cluster: str
    survey: Survey


class ReservationRequested(msgspec.Struct, frozen=True):
    """A user requests a reservation."""

    time: float
    id: int
    user: str  # the owner
    request: ReservationRequest  # counts processors, or nodes if `by_node`
    by_node: bool
    clusters: tuple[str, ...]  # to choose from
    horizon: float  # latest end of alternative offers
    let_run: float = 0.0  # seconds that jobs may run past the end
    licences: Mapping[str, int] = msgspec.field(default_factory=dict)  # to reserve as well
    mail: str = ""  # address of the owner
    by: str = ""  # user who requested it; "": the owner
    users: tuple[str, ...] = ()  # accounts that share it, besides the owner
    series: int | None = None  # id of the series of which it is an occurrence
    next_occurrence: float | None = None  # start of the next one of the series; None: the last
    # until `horizon`, of the requested licences
    calendar_limits: tuple[CalendarLimit, ...] = ()
    accounts: tuple[str, ...] = ()  # of accounting, whose jobs alone may run in it; empty: of users


class ReservationBound(msgspec.Struct, frozen=True):
    """The manager confirmed these nodes for a reservation."""

    time: float
    id: int
    nodes: tuple[str, ...]  # empty: the manager chose, or reserved processors


class ReservationRejected(msgspec.Struct, frozen=True):
    """The manager certainly did not create or change the reservation as requested."""

    time: float
    id: int
    reason: str


class ReservationReleased(msgspec.Struct, frozen=True):
    """The manager has deleted the reservation."""

    time: float
    id: int


class ReservationCancelled(msgspec.Struct, frozen=True):
    """The owner, or an operator, cancelled a reservation."""

    time: float
    id: int
    by: str = ""  # user


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
    """Create or change a reservation at its manager, as it is in the book at that time."""

    cluster: str
    id: int


@dataclass(frozen=True)
class Unbind:
    """Delete a reservation at its manager."""

    cluster: str
    id: int


@dataclass(frozen=True)
class SurveyCluster:
    """Query a survey from the manager."""

    cluster: str


ReservationAction = Bind | Unbind | SurveyCluster


class ReservationOutcome(Protocol):
    """The part of `core.events.Outcome` to which the book adds its results."""

    reservations: dict[int, Reservation]  # new or changed
    reservation_actions: list[ReservationAction]
    warnings: list[str]  # for the log of the site
