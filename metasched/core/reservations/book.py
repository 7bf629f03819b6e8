"""All advance reservations and the decisions about them: events in, changes and actions out. Pure.

A request is granted by free amounts (`availability`), in windows in which all requested licences
are free as well (the licence queue keeps them from then on). Its nodes are assigned at the same
time, and may change until it begins (`binding`), to admit another reservation or to replace a
failed node. A manager that chooses nodes itself gets an amount only.

Consequences are data. The part that applies an event yields new versions of reservations, actions
and warnings (`consequences`). `ReservationBook._settle` applies each to the book and the outcome.
It alone adds what the end of a reservation entails. The parts are:
- `owner_requests`: requests and cancellations;
- `survey_reconciler`: surveys against the book;
- `manager_answers`: bound, rejected, released;
- `timer`: windows that begin and end;
- `binding`: nodes chosen late, or again after a rejection or failure;
- `job_access`: read-only, for placement.
Each part depends only on parts that `ReservationBook.__init__` creates before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import structs

from metasched.core.licences.queue import LicenceQueue
from metasched.core.reservations.availability import Availability
from metasched.core.reservations.binding import NodeBinding
from metasched.core.reservations.consequences import (
    Consequence,
    SiteWarning,
    warning_about,
    with_cause,
)
from metasched.core.reservations.events import (
    Bind,
    ReservationBound,
    ReservationCancelled,
    ReservationEvent,
    ReservationOutcome,
    ReservationRejected,
    ReservationReleased,
    ReservationRequested,
    SurveyReceived,
    Unbind,
)
from metasched.core.reservations.index import ReservationIndex
from metasched.core.reservations.job_access import JobAccess
from metasched.core.reservations.manager_answers import ManagerAnswers
from metasched.core.reservations.offers import OfferFinder
from metasched.core.reservations.owner_requests import OwnerRequests
from metasched.core.reservations.survey_reconciler import SurveyReconciler
from metasched.core.reservations.timer import ReservationTimer
from metasched.model.cluster import Cluster
from metasched.model.reservation import FINAL_STATES, OPEN_STATES, Reservation, ReservationState
from metasched.policies.policy import Policy


class ReservationBook:
    """The reservations that are open, or that a manager may still have."""

    def __init__(self, licences: LicenceQueue) -> None:
        self._index = ReservationIndex()
        self.by_id = self._index.by_id
        self.availability = Availability(self._index, licences)
        self.offer_finder = OfferFinder(self.availability)
        job_access = JobAccess(self.by_id, self.availability)
        self._binding = NodeBinding(self.by_id, self.availability)
        self._timer = ReservationTimer(self.by_id, self.availability, self._binding)
        self._owner_requests = OwnerRequests(
            self.by_id, self.availability, self.offer_finder, self._binding
        )
        survey_reconciler = SurveyReconciler(self.availability, self._binding)
        answers = ManagerAnswers(self.by_id, self.availability, self._binding)
        self._handlers: dict[type, Callable[[Any], Iterator[Consequence]]] = {
            SurveyReceived: survey_reconciler.apply_survey,
            ReservationRequested: self._owner_requests.apply_request,
            ReservationCancelled: self._owner_requests.apply_cancellation,
            ReservationBound: answers.apply_bound,
            ReservationRejected: answers.apply_rejected,
            ReservationReleased: answers.apply_released,
        }
        # Queries, besides the methods below
        self.check_job, self.reserved_capacity = job_access.check_job, job_access.reserved_capacity
        self.has_reservations_on = self._index.has_any_on
        self.needs_nodes_on = self._binding.needs_nodes_on
        self.collect_expired = self._timer.collect_expired
        self.expired_on = self._timer.expired_on

    # Start

    def restore(self, reservations: Iterable[Reservation]) -> None:
        """Load stored reservations, before `start`."""
        for reservation in reservations:
            self._index.store(reservation)

    def start(
        self,
        instance: str,
        policy: Policy,
        clusters: Iterable[Cluster],
        outcome: ReservationOutcome,
    ) -> None:
        """Reset what is known of managers; bind and unbind each reservation again."""
        self._index.load([self.by_id[id] for id in sorted(self.by_id)])
        clusters_by_name = {cluster.name: cluster for cluster in clusters}
        self.availability.configure(instance, clusters_by_name)
        self._binding.reset()
        self._timer.reset()
        self._owner_requests.configure(policy, clusters_by_name)
        self._settle(self._repeat_actions(), outcome)

    def _repeat_actions(self) -> Iterator[Consequence]:
        """Yield the actions that managers may not have received before the daemon's start."""
        for reservation in [*self.by_id.values()]:
            yield from self._check_cluster_configured(reservation)
            if reservation.cluster not in self.availability.clusters:
                continue
            if self._binding.awaits_choice(reservation):
                continue
            if reservation.state not in OPEN_STATES:
                yield Unbind(reservation.cluster, reservation.id)
            elif (
                reservation.state in (ReservationState.REQUESTED, ReservationState.CONFIRMED)
                or reservation.nodes != reservation.bound_nodes
            ):
                yield Bind(reservation.cluster, reservation.id)

    def _check_cluster_configured(self, reservation: Reservation) -> Iterator[Consequence]:
        """Log a reservation whose cluster is not configured (any more), or is configured again.

        It is kept, since a mistake in a file must not cost a reservation: its manager still has it,
        and it is broken only when it would begin. An active reservation stays active for its jobs.
        """
        missing = f"cluster {reservation.cluster} is not configured"
        if reservation.state in FINAL_STATES:
            return
        if reservation.cluster not in self.availability.clusters:
            yield with_cause(reservation, missing)
            hint = "put it back, or cancel the reservation"
            yield warning_about(reservation, f": {missing}; {hint}")
        elif reservation.cause == missing:
            restored = f"cluster {reservation.cluster} is configured again"
            yield with_cause(reservation, restored)

    # Events

    def handle(self, event: ReservationEvent, outcome: ReservationOutcome) -> None:
        """Apply an event to the book; add changes and actions to `outcome`."""
        self._settle(self._handlers[type(event)](event), outcome)

    def advance_time(self, now: float, outcome: ReservationOutcome) -> None:
        """Begin and end reservations that are due; break reservations not bound in time."""
        self._settle(self._timer.apply_time(now), outcome)

    def _settle(self, consequences: Iterable[Consequence], outcome: ReservationOutcome) -> None:
        """Apply each consequence, then what the end of a reservation entails.

        `consequences` come from a generator, which continues when the last consequence is settled:
        it sees a book that agrees with what it yielded.
        """
        for consequence in consequences:
            match consequence:
                case Reservation():
                    self._store(consequence, outcome)
                case SiteWarning():
                    outcome.warnings.append(consequence.text)
                case _:
                    outcome.reservation_actions.append(consequence)

    def _store(self, reservation: Reservation, outcome: ReservationOutcome) -> None:
        """Replace the version in the book. A reservation leaves it when its manager deleted it."""
        before = self.by_id.get(reservation.id)
        outcome.reservations[reservation.id] = reservation
        self._index.store(reservation)
        self.availability.update(before, reservation)
        self._timer.update(reservation)
        if before is None or reservation.state in OPEN_STATES:
            return
        if before.state in OPEN_STATES:
            self._settle(self._end(reservation), outcome)
        elif not reservation.known_to_manager:
            self._index.remove(reservation)
            self._timer.remove(reservation)

    def _end(self, reservation: Reservation) -> Iterator[Consequence]:
        """Unbind a reservation that has just closed; offer another window if it is broken."""
        self._binding.remove(reservation)
        is_configured = reservation.cluster in self.availability.clusters
        if is_configured:  # else when the cluster is configured again
            yield Unbind(reservation.cluster, reservation.id)
        if reservation.state is not ReservationState.BROKEN:
            return
        assert reservation.closed is not None
        if is_configured:
            offer = self.offer_finder.next_window_on_cluster(reservation, reservation.closed)
        else:
            offer = self.offer_finder.next_window_anywhere(reservation, reservation.closed)
        if offer is not None:
            yield structs.replace(reservation, offers=(offer,))
        yield warning_about(reservation, f" is broken: {reservation.cause}")

    # Queries

    @property
    def next_due(self) -> float | None:
        """The next time (epoch seconds) at which a reservation is due, or None."""
        return self._timer.next_due
