"""All advance reservations and the decisions about them: events in, changes and actions out. Pure.

A request is granted by free amounts (`availability`), in windows in which all requested licences
are free as well (the licence queue keeps them from then on). Its nodes are assigned at the same
time, and may change until it begins (`node_assignment`), to admit another reservation or to replace
a failed node. A manager that chooses nodes itself gets an amount only.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from msgspec import structs

from metasched.core.licences.queue import LicenceQueue
from metasched.core.reservations.availability import Availability
from metasched.core.reservations.events import (
    Bind,
    ReservationBound,
    ReservationCancelled,
    ReservationEvent,
    ReservationOutcome,
    ReservationRejected,
    ReservationReleased,
    ReservationRequested,
    SurveyCluster,
    SurveyReceived,
    Unbind,
)
from metasched.core.reservations.node_choice import (
    Assignment,
    lowest_free_nodes,
    moves_in_order,
    nodes_after_failure,
    nodes_after_rejection,
)
from metasched.core.reservations.offers import OfferFinder
from metasched.model.cluster import Cluster
from metasched.model.job import Job, Reason
from metasched.model.reservation import (
    FINAL_STATES,
    OPEN_STATES,
    Reservation,
    ReservationState,
    ReservationTransition,
    next_state,
    reservation_id,
)
from metasched.policies.eligible import Ineligibility
from metasched.policies.late_binding import ReservedNodes
from metasched.policies.policy import Policy
from metasched.policies.reservation_choice import (
    ClusterChooser,
    MinimumCompletionTime,
    ResourcePriority,
)

MAX_REJECTIONS = 5  # rejections, retried at once, after which a requested reservation breaks
# The same for a confirmed reservation, retried at each survey after the first MAX_REJECTIONS: a
# controller that has just started rejects everything until it has heard from its nodes
MAX_REJECTIONS_CONFIRMED = MAX_REJECTIONS + 12
BIND_TIMEOUT = 20.0  # seconds: a reservation that begins at once must be bound by then
_BOUND = (ReservationState.BOUND, ReservationState.ACTIVE)
# A suffix of stored causes: do not change it
_NO_SPARE_NODE = "cannot be used, and no other node is free"


class ReservationBook:
    """The reservations that are open, or that a manager may still have."""

    def __init__(self, licences: LicenceQueue) -> None:
        self.by_id: dict[int, Reservation] = {}
        self.availability = Availability(self.by_id, licences)
        self.offer_finder = OfferFinder(self.availability)
        self._instance = ""
        self._chooser: ClusterChooser = MinimumCompletionTime()
        self._to_reassign: set[int] = set()  # rejected: the next survey assigns other nodes
        self._clusters: dict[str, Cluster] = {}
        self._nodes_chosen: set[int] = set()  # late-binding: nodes are chosen
        self._survey_requested: dict[int, float] = {}  # late-binding: when a survey was requested
        self._expired: set[int] = set()  # returned by `collect_expired`: jobs must be gone

    def restore(self, reservations: Iterable[Reservation]) -> None:
        """Load stored reservations, before `start`."""
        self.by_id.update((reservation.id, reservation) for reservation in reservations)

    def start(
        self,
        instance: str,
        policy: Policy,
        clusters: Iterable[Cluster],
        outcome: ReservationOutcome,
    ) -> None:
        """Reset what is known of managers; bind and unbind each reservation again."""
        self._instance = instance
        reservations = sorted(self.by_id.items())
        self.by_id.clear()
        self.by_id.update(reservations)
        self._to_reassign, self._nodes_chosen, self._expired = set(), set(), set()
        self._survey_requested = {}
        self._clusters = {cluster.name: cluster for cluster in clusters}
        self.availability.configure(instance, self._clusters)
        self._chooser = MinimumCompletionTime(policy.seed)
        if policy.reserve == "first":
            self._chooser = ResourcePriority([*self._clusters])
        for reservation in [*self.by_id.values()]:
            self._check_cluster_configured(reservation, outcome)
            if reservation.cluster not in self._clusters or self._awaits_node_choice(reservation):
                continue
            if reservation.state not in OPEN_STATES:
                outcome.reservation_actions.append(Unbind(reservation.cluster, reservation.id))
            elif (
                reservation.state in (ReservationState.REQUESTED, ReservationState.CONFIRMED)
                or reservation.nodes != reservation.bound_nodes
            ):
                outcome.reservation_actions.append(Bind(reservation.cluster, reservation.id))

    def _check_cluster_configured(
        self, reservation: Reservation, outcome: ReservationOutcome
    ) -> None:
        """Log a reservation whose cluster is not configured (any more), or is configured again.

        It is kept, since a mistake in a file must not cost a reservation: its manager still has it,
        and it is broken only when it would begin. An active reservation stays active for its jobs.
        """
        missing = f"cluster {reservation.cluster} is not configured"
        if reservation.state in FINAL_STATES:
            return
        if reservation.cluster in self._clusters:
            if reservation.cause == missing:
                restored = f"cluster {reservation.cluster} is configured again"
                self._set_cause(reservation, restored, outcome)
            return
        self._set_cause(reservation, missing, outcome)
        hint = "put it back, or cancel the reservation"
        outcome.warnings.append(
            f"reservation {reservation.id} of {reservation.user}: {missing}; {hint}"
        )

    # Queries

    def check_job(self, job: Job, cluster: str) -> Ineligibility | None:
        """Return why the job's reservation keeps it from a cluster; None: it does not."""
        if job.reservation is None:
            return None
        reservation = self.by_id.get(job.reservation)
        if reservation is None or reservation.state in FINAL_STATES:
            status = "over" if reservation is None else f"{reservation.state}: {reservation.cause}"
            message = f"reservation {job.reservation} is {status}"
            return Ineligibility(Reason.RESERVATION_WAIT, message)
        if reservation.cluster not in self._clusters:
            message = f"reservation {reservation.id}: {reservation.cause}"
            return Ineligibility(Reason.RESERVATION_WAIT, message)
        if reservation.cluster != cluster:
            message = f"its reservation is on {reservation.cluster}"
            return Ineligibility(Reason.NO_CLUSTER_FITS, message)
        if reservation.state not in _BOUND:
            message = f"reservation {reservation.id} is {reservation.state}: {reservation.cause}"
            return Ineligibility(Reason.RESERVATION_WAIT, message)
        if job.licences and reservation.state is not ReservationState.ACTIVE:
            # the licences must not lie idle until it begins
            message = f"reservation {reservation.id} has not begun; until then it has no licences"
            return Ineligibility(Reason.RESERVATION_WAIT, message)
        return None

    def has_reservations_on(self, cluster: str) -> bool:
        """Return whether a cluster's manager has, or is to have, any reservation."""
        return any(reservation.cluster == cluster for reservation in self.by_id.values())

    def needs_nodes_on(self, cluster: str) -> bool:
        """Return whether a reservation there waits for usable nodes, which a survey may show."""
        return any(
            reservation.id in self._to_reassign
            or (reservation.bound_nodes and self.availability.down_nodes(reservation))
            for reservation in self.availability.open_on(cluster)
        )

    @property
    def next_due(self) -> float | None:
        """The next time (epoch seconds) at which a reservation is due, or None."""
        dues = (
            self._due_time(reservation) if reservation.state in OPEN_STATES else reservation.until
            for reservation in self.by_id.values()
            if reservation.id not in self._expired
        )
        return min(dues, default=None)

    def _due_time(self, reservation: Reservation) -> float:
        """Return when time alone changes the reservation next (epoch seconds)."""
        if reservation.cluster not in self._clusters:
            is_active = reservation.state is ReservationState.ACTIVE
            return reservation.end if is_active else reservation.start
        if self._awaits_node_choice(reservation):
            requested = self._survey_requested.get(reservation.id, -inf)
            times = (
                reservation.start - self._clusters[reservation.cluster].lead,
                reservation.start,
                reservation.end,
            )
            return next(time for time in times if time > requested or time == reservation.end)
        if reservation.state is ReservationState.REQUESTED:
            return min(max(reservation.start, reservation.created + BIND_TIMEOUT), reservation.end)
        if reservation.state is ReservationState.BOUND:
            return reservation.start
        return reservation.end

    def _awaits_node_choice(self, reservation: Reservation) -> bool:
        """Return whether its nodes are still to be chosen and bound, shortly before its start."""
        if (
            reservation.state is not ReservationState.CONFIRMED
            or reservation.bound_nodes
            or reservation.id in self._nodes_chosen
        ):
            return False
        cluster = self._clusters.get(reservation.cluster)
        return cluster is not None and cluster.binds_late

    def collect_expired(self, now: float) -> list[Reservation]:
        """Return reservations in which nothing may run any more, each once per daemon epoch."""
        expired = [
            reservation
            for reservation in self.by_id.values()
            if reservation.until <= now
            and reservation.state in FINAL_STATES
            and reservation.id not in self._expired
        ]
        self._expired.update(reservation.id for reservation in expired)
        return expired

    def expired_on(self, cluster: str) -> list[Reservation]:
        """Return reservations that `collect_expired` returned and the manager may still have."""
        expired = (self.by_id[id] for id in sorted(self._expired))
        return [reservation for reservation in expired if reservation.cluster == cluster]

    # Capacity kept by late dispatch

    def reserved_capacity(self, cluster: Cluster, now: float) -> ReservedNodes | None:
        """Return what a late-binding cluster must keep free for its reservations; None: nothing.

        With early binding the manager keeps it free.
        """
        if not cluster.binds_late:
            return None
        starts = [
            reservation.start
            for reservation in self.availability.open_on(cluster.name)
            if reservation.state is not ReservationState.ACTIVE
        ]
        if not starts:
            return None
        guard = self.availability.guard(cluster.name)
        carts = next(iter(self.availability.carts(cluster.name, now)), None)
        return ReservedNodes(now, min(starts), guard, cluster.granularity, carts)

    # Events

    def handle(self, event: ReservationEvent, outcome: ReservationOutcome) -> None:
        """Apply an event to the book; add changes and actions to `outcome`."""
        match event:
            case SurveyReceived():
                self._handle_survey(event, outcome)
            case ReservationRequested():
                self._handle_request(event, outcome)
            case ReservationBound():
                self._handle_bound(event, outcome)
            case ReservationRejected():
                self._handle_rejected(event, outcome)
            case ReservationReleased():
                self._handle_released(event, outcome)
            case ReservationCancelled():
                reservation = self.by_id[event.id]
                if reservation.state in OPEN_STATES:
                    cause = f"cancelled by {event.by}"
                    cancel = ReservationTransition.CANCEL
                    self._close(reservation, cancel, event.time, cause, outcome)

    def advance_time(self, now: float, outcome: ReservationOutcome) -> None:
        """Begin and end reservations that are due; break reservations not bound in time."""
        for reservation in [r for r in self.by_id.values() if r.state in OPEN_STATES]:
            is_bound = reservation.state is ReservationState.BOUND
            if is_bound and reservation.start <= now and reservation.cluster in self._clusters:
                reservation = self._activate(reservation, now, outcome)
            if reservation.state not in OPEN_STATES or self._due_time(reservation) > now:
                continue
            if self._awaits_node_choice(reservation) and now < reservation.end:
                self._survey_requested[reservation.id] = now
                outcome.reservation_actions.append(SurveyCluster(reservation.cluster))
                continue
            if reservation.state is ReservationState.ACTIVE:
                end = ReservationTransition.END
                self._close(reservation, end, now, "its window is over", outcome)
            elif reservation.cluster not in self._clusters:
                self._break(reservation, now, reservation.cause, outcome)
            elif reservation.state is not ReservationState.BOUND:
                self._break(reservation, now, f"not bound in time: {reservation.cause}", outcome)

    def _activate(
        self, reservation: Reservation, now: float, outcome: ReservationOutcome
    ) -> Reservation:
        down_nodes = self.availability.down_nodes(reservation)
        if down_nodes and now < reservation.end:
            self._break(reservation, now, f"{', '.join(down_nodes)} {_NO_SPARE_NODE}", outcome)
            return self.by_id[reservation.id]
        begin = ReservationTransition.BEGIN
        return self._transition(reservation, begin, "its window has begun", outcome)

    def _handle_survey(self, event: SurveyReceived, outcome: ReservationOutcome) -> None:
        cluster, survey = event.cluster, event.survey
        self.availability.surveys[cluster] = survey
        reported = {}
        for entry in survey.reservations:
            if (id := reservation_id(entry.name, self._instance)) is not None:
                reported[id] = entry
        for id in reported.keys() - {r.id for r in self.availability.open_on(cluster)}:
            outcome.reservation_actions.append(Unbind(cluster, id))  # unknown, or closed
        for reservation in self.availability.open_on(cluster):
            if reservation.state not in _BOUND:
                continue
            if reservation.id in reported:
                if reported[reservation.id].size not in (None, reservation.size):
                    # changed at the manager
                    outcome.reservation_actions.append(Bind(cluster, reservation.id))
            elif event.time < reservation.end:
                cause = "its manager does not know it any more"
                self._transition(reservation, ReservationTransition.LOSE, cause, outcome)
                outcome.reservation_actions.append(Bind(cluster, reservation.id))
        for reservation in self.availability.open_on(cluster):
            was_down = reservation.cause.endswith(_NO_SPARE_NODE)
            if was_down and not self.availability.down_nodes(reservation):
                self._set_cause(reservation, "its nodes can be used again", outcome)
        self._choose_due_nodes(cluster, event.time, outcome)
        self._reassign_nodes(cluster, event.time, outcome)

    def _handle_request(self, event: ReservationRequested, outcome: ReservationOutcome) -> None:
        results = {name: self.offer_finder.find_offer(event, name) for name in event.clusters}
        offers = {name: result[0] for name, result in results.items() if result is not None}
        if not offers:
            return
        comparable = {
            name: self.offer_finder.comparable(event, name, offer) for name, offer in offers.items()
        }
        cluster = self._chooser.choose(comparable, event.request.deadline)
        result = results[cluster]
        assert result is not None
        offer, assignment = result
        reservation = Reservation(
            id=event.id,
            user=event.user,
            cluster=cluster,
            start=offer.start,
            end=offer.end,
            size=offer.size,
            cpus=offer.size * self.availability.cpus_per_unit(cluster),
            created=event.time,
            nodes=assignment[event.id],
            cause="requested",
            let_run=event.let_run,
            licences=event.licences,
            mail=event.mail,
        )
        if self._clusters[cluster].binds_late:
            cause = f"its nodes are chosen {self._clusters[cluster].lead:g} s before its start"
            confirmed = ReservationState.CONFIRMED
            reservation = structs.replace(reservation, state=confirmed, cause=cause)
        self._store(reservation, outcome)
        self._assign_nodes(cluster, assignment, outcome, forced=event.id)

    def _handle_bound(self, event: ReservationBound, outcome: ReservationOutcome) -> None:
        reservation = structs.replace(
            self.by_id[event.id],
            bound_nodes=event.nodes,
            known_to_manager=True,
            rejections=0,
        )
        if reservation.state in (ReservationState.REQUESTED, ReservationState.CONFIRMED):
            resources = ", ".join(event.nodes) or f"{reservation.cpus} processors"
            cause = f"its manager keeps {resources}"
            self._transition(reservation, ReservationTransition.BIND, cause, outcome)
            return
        if reservation.state in OPEN_STATES and reservation.nodes == event.nodes:
            cause = f"moved to {', '.join(event.nodes) or 'other nodes'}"
            reservation = structs.replace(reservation, cause=cause)
        self._store(reservation, outcome)

    def _handle_rejected(self, event: ReservationRejected, outcome: ReservationOutcome) -> None:
        """Survey again and assign other nodes; its nodes may have been taken meanwhile."""
        reservation = self.by_id[event.id]
        reservation = structs.replace(
            reservation,
            rejections=reservation.rejections + 1,
            cause=f"its manager refused: {event.reason}",
        )
        if reservation.state in _BOUND:  # it keeps its nodes
            if down_nodes := self.availability.down_nodes(reservation):
                cause = f"{', '.join(down_nodes)} {_NO_SPARE_NODE}"
                reservation = structs.replace(reservation, cause=cause)
            self._store(structs.replace(reservation, nodes=reservation.bound_nodes), outcome)
            return
        if reservation.state not in OPEN_STATES:
            return
        is_new = reservation.state is ReservationState.REQUESTED
        if reservation.rejections >= (MAX_REJECTIONS if is_new else MAX_REJECTIONS_CONFIRMED):
            self._break(reservation, event.time, reservation.cause, outcome)
            return
        self._store(reservation, outcome)
        self._to_reassign.add(reservation.id)
        if reservation.rejections < MAX_REJECTIONS:
            outcome.reservation_actions.append(SurveyCluster(reservation.cluster))

    def _handle_released(self, event: ReservationReleased, outcome: ReservationOutcome) -> None:
        reservation = self.by_id.get(event.id)
        if reservation is not None and reservation.state not in OPEN_STATES:
            self._store(structs.replace(reservation, known_to_manager=False), outcome)
            del self.by_id[event.id]
            self._expired.discard(event.id)

    # Node choice

    def _choose_due_nodes(self, cluster: str, now: float, outcome: ReservationOutcome) -> None:
        """Bind reservations whose nodes are due, on the lowest-numbered nodes that will be free."""
        lead = self._clusters[cluster].lead
        reservations = self.availability.open_on(cluster)
        due = [r for r in reservations if self._awaits_node_choice(r) and r.start - lead <= now]
        for reservation in sorted(due, key=lambda r: (r.start, r.id)):
            bound = [
                other
                for other in self.availability.open_on(cluster)
                if other.state is not ReservationState.ACTIVE
                and not self._awaits_node_choice(other)
            ]
            nodes = lowest_free_nodes(self.availability, reservation, bound, now)
            if nodes is not None:
                self._nodes_chosen.add(reservation.id)
                cause = "its nodes are chosen"
                self._store(structs.replace(reservation, nodes=nodes, cause=cause), outcome)
                outcome.reservation_actions.append(Bind(cluster, reservation.id))
            elif now >= reservation.start:
                self._break(reservation, now, "too few nodes are free at its start", outcome)
            elif reservation.cause != (cause := "too few nodes are free for it as yet"):
                self._set_cause(reservation, cause, outcome)

    def _reassign_nodes(self, cluster: str, now: float, outcome: ReservationOutcome) -> None:
        """Replace failed nodes, and assign new nodes to rejected reservations."""
        reservations = self.availability.open_on(cluster)
        rejected = [r for r in reservations if r.id in self._to_reassign]
        failed = [r for r in reservations if r.state in _BOUND and self.availability.down_nodes(r)]
        if not (rejected or failed):
            return
        for reservation in rejected:
            self._to_reassign.discard(reservation.id)
        if not self.availability.reserves_nodes(cluster):  # the manager chooses
            for reservation in (*rejected, *failed):
                outcome.reservation_actions.append(Bind(cluster, reservation.id))
            return
        unassigned = {reservation.id for reservation in rejected}
        busy = self.availability.busy_spans(cluster, now)
        for reservation in rejected:
            assignment = nodes_after_rejection(self.availability, reservation, unassigned, busy)
            if assignment is None:
                self._break(reservation, now, reservation.cause, outcome)
                continue
            unassigned.discard(reservation.id)
            self._assign_nodes(cluster, assignment, outcome, forced=reservation.id)
        for reservation in failed:
            assignment = nodes_after_failure(self.availability, reservation, now)
            down_nodes = ", ".join(self.availability.down_nodes(reservation))
            if assignment is not None:
                self._assign_nodes(cluster, assignment, outcome, f"{down_nodes} cannot be used")
                continue
            cause = f"{down_nodes} {_NO_SPARE_NODE}"
            if reservation.cause != cause:
                self._set_cause(reservation, cause, outcome)
                warning = f"reservation {reservation.id} of {reservation.user}: {cause}"
                outcome.warnings.append(warning)

    def _assign_nodes(
        self,
        cluster: str,
        assignment: Assignment,
        outcome: ReservationOutcome,
        cause: str = "",
        forced: int | None = None,
    ) -> None:
        """Store and bind the nodes that change, and the nodes of the reservation `forced`."""
        for id, nodes in moves_in_order(assignment, self.by_id, forced):
            reservation = self.by_id[id]
            new_cause = cause or reservation.cause
            self._store(structs.replace(reservation, nodes=nodes, cause=new_cause), outcome)
            if not self._awaits_node_choice(reservation):
                outcome.reservation_actions.append(Bind(cluster, id))

    # Changes of a reservation

    def _transition(
        self,
        reservation: Reservation,
        transition: ReservationTransition,
        cause: str,
        outcome: ReservationOutcome,
    ) -> Reservation:
        """Apply a transition: the only place where the state of a reservation changes."""
        state = next_state(reservation, transition)
        updated = structs.replace(reservation, state=state, cause=cause)
        self._store(updated, outcome)
        return updated

    def _close(
        self,
        reservation: Reservation,
        transition: ReservationTransition,
        now: float,
        cause: str,
        outcome: ReservationOutcome,
    ) -> None:
        self._to_reassign.discard(reservation.id)
        reservation = self._transition(reservation, transition, cause, outcome)
        self._store(structs.replace(reservation, closed=now), outcome)
        if reservation.cluster in self._clusters:  # else when the cluster is configured again
            outcome.reservation_actions.append(Unbind(reservation.cluster, reservation.id))

    def _break(
        self, reservation: Reservation, now: float, cause: str, outcome: ReservationOutcome
    ) -> None:
        """Break a reservation: log the cause and store the window offered instead."""
        self._close(reservation, ReservationTransition.BREAK, now, cause, outcome)
        if reservation.cluster in self._clusters:
            offer = self.offer_finder.next_window_on_cluster(reservation, now)
        else:
            offer = self.offer_finder.next_window_anywhere(reservation, now)
        if offer is not None:
            self._store(structs.replace(self.by_id[reservation.id], offers=(offer,)), outcome)
        outcome.warnings.append(
            f"reservation {reservation.id} of {reservation.user} is broken: {cause}"
        )

    def _set_cause(self, reservation: Reservation, cause: str, outcome: ReservationOutcome) -> None:
        self._store(structs.replace(reservation, cause=cause), outcome)

    def _store(self, reservation: Reservation, outcome: ReservationOutcome) -> None:
        self.by_id[reservation.id] = outcome.reservations[reservation.id] = reservation
