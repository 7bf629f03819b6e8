"""Reservations of a simulation: requested of the daemon's core, kept by simulated managers.

Each request is preceded by a survey of every cluster, as in the daemon. The core grants a window or
refuses, begins and ends windows, and names the actions, which managers carry out at once. A job
with a request of its own is dispatched into its window; refused, it is submitted like all others.
Whoever is content with a later window takes the first that the core offers instead of a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from metasched.core.events import Outcome
from metasched.core.reservations.events import (
    Bind,
    ReservationAction,
    ReservationBound,
    ReservationEvent,
    ReservationRejected,
    ReservationReleased,
    ReservationRequested,
    SurveyReceived,
    Unbind,
)
from metasched.laboratory.simulate.manager import SimulatedManager
from metasched.laboratory.simulate.workload import WindowRequest
from metasched.model.reservation import Reservation, ReservationState, manager_name
from metasched.model.reservation_request import Offer, ReservationRequest
from metasched.policies.local.queueing import ReservedWindow

_Book = Mapping[int, Reservation]  # of the core, by id
REJECTED_BY_MANAGER = "its manager has no room"
_SEARCH_AHEAD = 1e10  # seconds: past the end of any trace


class ReservationResult(NamedTuple):
    """The result of a request; times are seconds from the trace's origin."""

    request: WindowRequest
    job: int | None = None  # id of the job that was to run in it; None: it has no job
    cluster: str = ""  # "": refused
    start: float = 0.0  # granted
    end: float = 0.0
    state: ReservationState | None = None  # the last; None: refused
    # seconds from its start until its job started, or all of its processors were there; None: never
    delay: float | None = None

    @property
    def granted(self) -> bool:
        return bool(self.cluster)

    @property
    def moved(self) -> bool:
        """Whether it was granted for later than the first wish."""
        return self.granted and self.start > max(self.request.ready, self.request.submitted)

    @property
    def kept(self) -> bool:
        """Whether its job started with it, or its processors were there."""
        return self.granted and self.delay == 0.0


class ReservationDesk:
    """Requests windows of the core and carries out its actions on the managers.

    `step` passes an event to the core; the caller hands the actions of each outcome to `act`.
    `offers` returns the core's offers for a request, by cluster, and reserves nothing.
    """

    def __init__(
        self,
        managers: Mapping[str, SimulatedManager],
        instance: str,
        step: Callable[[ReservationEvent], Outcome],
        offers: Callable[[ReservationRequested], Mapping[str, Offer]],
        changed: Callable[[str, float], None],
    ) -> None:
        self._managers, self._instance = managers, instance
        self._step, self._offers = step, offers
        self._changed = changed  # called with a cluster and a time at which its windows change
        self._slowest = min(manager.cluster.benchmark for manager in managers.values())
        self._results: dict[int, ReservationResult] = {}  # by id
        self._unmet: set[int] = set()  # that have begun without all of their processors

    def request(
        self, now: float, wish: WindowRequest, job: int | None, benchmark: float = 1.0
    ) -> Reservation | None:
        """Request a window; return the reservation, or None if it is refused.

        `benchmark` is that of the machine on which the job's duration is counted.
        """
        for name, manager in self._managers.items():
            self._step(SurveyReceived(now, name, manager.survey(now)))
        id = len(self._results) + 1
        self._results[id] = ReservationResult(wish, job)
        ready = max(wish.ready, now)
        duration = wish.duration * (benchmark / self._slowest if job is not None else 1.0)
        terms = ReservationRequest.flexible(
            wish.cpus, duration, ready, ready + duration + wish.slack
        )
        event = ReservationRequested(
            time=now,
            id=id,
            user=wish.user or "nobody",
            request=terms,
            by_node=False,
            clusters=wish.clusters or tuple(self._managers),
            horizon=terms.deadline,
        )
        return self.ask(event, wish.or_later)

    def ask(self, event: ReservationRequested, or_later: bool) -> Reservation | None:
        """Pass a request to the core; return the reservation, or None if it is refused."""
        granted = self._step(event).reservations.get(event.id)
        if granted is None and or_later:
            ready, duration = event.request.ready, event.request.min_duration
            at_any_time = with_window(event, ready, ready + duration + _SEARCH_AHEAD)
            starts = [offer.start for offer in self._offers(at_any_time).values()]
            if starts:
                window = with_window(event, min(starts), min(starts) + duration)
                return self.ask(window, or_later=False)
        return granted

    def act(self, now: float, actions: Sequence[ReservationAction], book: _Book) -> None:
        """Carry out the actions of a step; report the answers of managers to the core."""
        for action in actions:
            manager = self._managers[action.cluster]
            match action:
                case Bind(_, id):
                    reservation = book[id]
                    window = ReservedWindow(reservation.start, reservation.until, reservation.cpus)
                    if not manager.reserve(self.name_of(id), window, now):
                        self._step(ReservationRejected(now, id, REJECTED_BY_MANAGER))
                        continue
                    for time in (max(window.start, now), window.end):
                        self._changed(action.cluster, time)
                    self._step(ReservationBound(now, id, ()))
                case Unbind(_, id):
                    manager.delete_reservation(self.name_of(id))
                    self._changed(action.cluster, now)
                    self._step(ReservationReleased(now, id))
                case _:
                    self._step(SurveyReceived(now, action.cluster, manager.survey(now)))

    def record(self, changed: Mapping[int, Reservation]) -> None:
        """Record the new versions of reservations."""
        for id, version in changed.items():
            self._results[id] = self._results[id]._replace(
                cluster=version.cluster, start=version.start, end=version.end, state=version.state
            )
            result = self._results[id]
            if version.state is not ReservationState.ACTIVE:
                self._unmet.discard(id)
            elif result.job is None and result.delay is None:
                self._unmet.add(id)

    def record_start(self, id: int, now: float) -> None:
        """Record the start of the job of a reservation."""
        result = self._results[id]
        self._results[id] = result._replace(delay=now - result.start)

    def record_passes(self, now: float) -> None:
        """Record, after all passes of local policies, the windows whose processors are there."""
        for id in sorted(self._unmet):
            result = self._results[id]
            if self._managers[result.cluster].has_reserved_cpus(now):
                self._results[id] = result._replace(delay=now - result.start)
                self._unmet.discard(id)

    def name_of(self, id: int) -> str:
        """Return the name of a reservation at its manager."""
        return manager_name(self._instance, id)

    @property
    def results(self) -> tuple[ReservationResult, ...]:
        """The results of all requests, in their order."""
        return tuple(self._results.values())


def with_window(event: ReservationRequested, ready: float, deadline: float) -> ReservationRequested:
    """Return the request with another first start and last end."""
    request = structs.replace(event.request, ready=ready, deadline=deadline)
    return structs.replace(event, request=request, horizon=deadline)
