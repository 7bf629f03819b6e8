"""All advance reservations and the decisions about them: events in, changes and actions out. Pure.

A request is granted by free amounts (`availability`), in windows in which all requested licences
are free as well (the licence queue keeps them from then on). Its nodes are assigned at the same
time, and may change until it begins (`node_assignment`), to admit another reservation or to replace
a failed node. A manager that chooses nodes itself gets an amount only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf

from msgspec import structs

from metasched.carts.carts import Carts
from metasched.carts.node_assignment import NodeDemand, assign_nodes, move_order
from metasched.core.events import Outcome
from metasched.core.licences.queue import LicenceQueue
from metasched.core.reservations.availability import Availability, merge_spans
from metasched.core.reservations.events import (
    Bind,
    ReservationBound,
    ReservationCancelled,
    ReservationEvent,
    ReservationRejected,
    ReservationReleased,
    ReservationRequested,
    SurveyCluster,
    SurveyReceived,
    Unbind,
)
from metasched.core.reservations.offers import alternative_offers, best_offer
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
from metasched.model.reservation_request import Offer, ReservationRequest
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
MAX_SURVEY_AGE = 60.0  # seconds
_SEARCH_AHEAD = 365 * 86400.0  # seconds: how far ahead another window is searched for
_NO_SPARE_NODE = "cannot be used, and no other node is free"


class ReservationBook:
    """The reservations that are open, or that a manager may still have."""

    def __init__(self, licences: LicenceQueue) -> None:
        self.reservations: dict[int, Reservation] = {}
        self.availability = Availability(self.reservations, licences)
        self._instance = ""
        self._chooser: ClusterChooser = MinimumCompletionTime()
        self._to_reassign: set[int] = set()  # rejected: the next survey assigns other nodes
        self._clusters: dict[str, Cluster] = {}
        self._nodes_chosen: set[int] = set()  # late-binding: nodes are chosen
        self._survey_requested: dict[int, float] = {}  # late-binding: when a survey was requested
        self._expired: set[int] = set()  # returned by `collect_expired`: jobs must be gone

    def restore(self, reservations: Iterable[Reservation]) -> None:
        """Load stored reservations, before `start`."""
        self.reservations.update((reservation.id, reservation) for reservation in reservations)

    def start(
        self, instance: str, policy: Policy, clusters: Iterable[Cluster], out: Outcome
    ) -> None:
        """Reset what is known of managers; bind and unbind each reservation again."""
        self._instance = instance
        by_id = sorted(self.reservations.items())
        self.reservations.clear()
        self.reservations.update(by_id)
        self._to_reassign, self._nodes_chosen, self._survey_requested, self._expired = (
            set(),
            set(),
            {},
            set(),
        )
        self._clusters = {cluster.name: cluster for cluster in clusters}
        self.availability.configure(instance, self._clusters)
        self._chooser = (
            ResourcePriority([*self._clusters])
            if policy.reserve == "first"
            else MinimumCompletionTime(policy.seed)
        )
        for reservation in [*self.reservations.values()]:
            self._check_cluster_configured(reservation, out)
            if reservation.cluster not in self._clusters or self._awaits_node_choice(reservation):
                continue
            if reservation.state not in OPEN_STATES:
                out.reservation_actions.append(Unbind(reservation.cluster, reservation.id))
            elif (
                reservation.state in (ReservationState.REQUESTED, ReservationState.CONFIRMED)
                or reservation.nodes != reservation.bound_nodes
            ):
                out.reservation_actions.append(Bind(reservation.cluster, reservation.id))

    def _check_cluster_configured(self, reservation: Reservation, out: Outcome) -> None:
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
                self._store(structs.replace(reservation, cause=restored), out)
            return
        self._store(structs.replace(reservation, cause=missing), out)
        hint = "put it back, or cancel the reservation"
        out.warnings.append(
            f"reservation {reservation.id} of {reservation.user}: {missing}; {hint}"
        )

    # Queries

    def check_job(self, job: Job, cluster: str) -> Ineligibility | None:
        """Return why the job's reservation keeps it from a cluster; None: it does not."""
        if job.reservation is None:
            return None
        reservation = self.reservations.get(job.reservation)
        if reservation is None or reservation.state in FINAL_STATES:
            status = "over" if reservation is None else f"{reservation.state}: {reservation.cause}"
            return Ineligibility(
                Reason.RESERVATION_WAIT, f"reservation {job.reservation} is {status}"
            )
        if reservation.cluster not in self._clusters:
            return Ineligibility(
                Reason.RESERVATION_WAIT, f"reservation {reservation.id}: {reservation.cause}"
            )
        if reservation.cluster != cluster:
            return Ineligibility(
                Reason.NO_CLUSTER_FITS, f"its reservation is on {reservation.cluster}"
            )
        if reservation.state not in (ReservationState.BOUND, ReservationState.ACTIVE):
            message = f"reservation {reservation.id} is {reservation.state}: {reservation.cause}"
            return Ineligibility(Reason.RESERVATION_WAIT, message)
        if (
            job.licences and reservation.state is not ReservationState.ACTIVE
        ):  # they must not lie idle until then
            message = f"reservation {reservation.id} has not begun; its jobs have their licences from then on"
            return Ineligibility(Reason.RESERVATION_WAIT, message)
        return None

    def has_reservations_on(self, cluster: str) -> bool:
        """Return whether a cluster's manager has, or is to have, any reservation."""
        return any(reservation.cluster == cluster for reservation in self.reservations.values())

    def needs_nodes_on(self, cluster: str) -> bool:
        """Return whether a reservation there has too few nodes, which any survey may show to be
        free.
        """
        return any(
            reservation.id in self._to_reassign
            or (reservation.bound_nodes and self.availability.down_nodes(reservation))
            for reservation in self.availability.open_on(cluster)
        )

    @property
    def next_due(self) -> float | None:
        """The next time (epoch seconds) at which a reservation changes without an event, or None."""
        dues = (
            self._due_time(reservation) if reservation.state in OPEN_STATES else reservation.until
            for reservation in self.reservations.values()
            if reservation.id not in self._expired
        )
        return min(dues, default=None)

    def _due_time(self, reservation: Reservation) -> float:
        if reservation.cluster not in self._clusters:
            return (
                reservation.end
                if reservation.state is ReservationState.ACTIVE
                else reservation.start
            )
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
        return (
            reservation.end
            if reservation.state in (ReservationState.ACTIVE, ReservationState.CONFIRMED)
            else reservation.start
        )

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
            for reservation in self.reservations.values()
            if reservation.until <= now
            and reservation.state in FINAL_STATES
            and reservation.id not in self._expired
        ]
        self._expired.update(reservation.id for reservation in expired)
        return expired

    def expired_on(self, cluster: str) -> list[Reservation]:
        """Return those that `collect_expired` has returned and that the manager may still have."""
        expired = (self.reservations[id] for id in sorted(self._expired))
        return [reservation for reservation in expired if reservation.cluster == cluster]

    # Capacity kept by late dispatch

    def reserved_capacity(self, cluster: Cluster, now: float) -> ReservedNodes | None:
        """Return what a cluster that binds late must keep free for its reservations; None: nothing.

        The manager sees to it itself where it binds early.
        """
        if not cluster.binds_late:
            return None
        upcoming = [
            reservation
            for reservation in self.availability.open_on(cluster.name)
            if reservation.state is not ReservationState.ACTIVE
        ]
        if not upcoming:
            return None
        first = min(reservation.start for reservation in upcoming)
        carts = next(iter(self.availability.carts(cluster.name, now)), None)
        return ReservedNodes(
            now, first, self.availability.guard(cluster.name), cluster.granularity, carts
        )

    # Events

    def handle(self, event: ReservationEvent, out: Outcome) -> None:
        """Apply an event to the book; add changes and actions to `out`."""
        match event:
            case SurveyReceived():
                self._handle_survey(event, out)
            case ReservationRequested():
                self._handle_request(event, out)
            case ReservationBound():
                self._handle_bound(event, out)
            case ReservationRejected():
                self._handle_rejected(event, out)
            case ReservationReleased():
                self._handle_released(event, out)
            case ReservationCancelled():
                reservation = self.reservations[event.id]
                if reservation.state in OPEN_STATES:
                    self._close(
                        reservation,
                        ReservationTransition.CANCEL,
                        event.time,
                        f"cancelled by {event.by}",
                        out,
                    )

    def advance_time(self, now: float, out: Outcome) -> None:
        """Begin and end reservations that are due; break those not bound in time."""
        for reservation in [
            reservation
            for reservation in self.reservations.values()
            if reservation.state in OPEN_STATES
        ]:
            if (
                reservation.state is ReservationState.BOUND
                and reservation.start <= now
                and reservation.cluster in self._clusters
            ):
                reservation = self._activate(reservation, now, out)
            if reservation.state not in OPEN_STATES or self._due_time(reservation) > now:
                continue
            if self._awaits_node_choice(reservation) and now < reservation.end:
                self._survey_requested[reservation.id] = now
                out.reservation_actions.append(SurveyCluster(reservation.cluster))
                continue
            if reservation.state is ReservationState.ACTIVE:
                self._close(reservation, ReservationTransition.END, now, "its window is over", out)
            elif reservation.cluster not in self._clusters:
                self._break(reservation, now, reservation.cause, out)
            elif reservation.state is not ReservationState.BOUND:
                self._break(reservation, now, f"not bound in time: {reservation.cause}", out)

    def _activate(self, reservation: Reservation, now: float, out: Outcome) -> Reservation:
        down_nodes = self.availability.down_nodes(reservation)
        if down_nodes and now < reservation.end:
            self._break(reservation, now, f"{', '.join(down_nodes)} {_NO_SPARE_NODE}", out)
            return self.reservations[reservation.id]
        return self._transition(
            reservation, ReservationTransition.BEGIN, "its window has begun", out
        )

    def _handle_survey(self, event: SurveyReceived, out: Outcome) -> None:
        cluster, survey = event.cluster, event.survey
        self.availability.surveys[cluster] = survey
        reported = {}
        for held in survey.reservations:
            if (id := reservation_id(held.name, self._instance)) is not None:
                reported[id] = held
        for id in reported.keys() - {
            reservation.id for reservation in self.availability.open_on(cluster)
        }:
            out.reservation_actions.append(Unbind(cluster, id))  # unknown, or closed
        for reservation in self.availability.open_on(cluster):
            if reservation.state not in (ReservationState.BOUND, ReservationState.ACTIVE):
                continue
            if reservation.id in reported:
                if reported[reservation.id].size not in (None, reservation.size):
                    out.reservation_actions.append(
                        Bind(cluster, reservation.id)
                    )  # changed at the manager
            elif event.time < reservation.end:
                reservation = self._transition(
                    reservation,
                    ReservationTransition.LOSE,
                    "its manager does not know it any more",
                    out,
                )
                out.reservation_actions.append(Bind(cluster, reservation.id))
        for reservation in self.availability.open_on(cluster):
            if reservation.cause.endswith(_NO_SPARE_NODE) and not self.availability.down_nodes(
                reservation
            ):
                self._store(structs.replace(reservation, cause="its nodes can be used again"), out)
        self._choose_due_nodes(cluster, event.time, out)
        self._reassign_nodes(cluster, event.time, out)

    def _handle_request(self, event: ReservationRequested, out: Outcome) -> None:
        results = {name: self._find_offer(event, name) for name in event.clusters}
        offers = {name: result[0] for name, result in results.items() if result is not None}
        if not offers:
            return
        comparable = {name: self._comparable(event, name, offer) for name, offer in offers.items()}
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
            cause="asked for",
            let_run=event.let_run,
            licences=event.licences,
            mail=event.mail,
        )
        if self._clusters[cluster].binds_late:
            cause = f"its nodes are chosen {self._clusters[cluster].lead:g} s before its start"
            reservation = structs.replace(
                reservation, state=ReservationState.CONFIRMED, cause=cause
            )
        self._store(reservation, out)
        self._assign_nodes(cluster, assignment, out, force_id=event.id)

    def _comparable(self, event: ReservationRequested, cluster: str, offer: Offer) -> Offer:
        """Return an offer without the excess by rounding up to nodes, to compare clusters by."""
        cpus = 1 if event.by_node else self.availability.cpus_per_unit(cluster)
        return replace(offer, size=min(offer.size * cpus, event.request.max_size))

    def offers(self, event: ReservationRequested) -> dict[str, Offer]:
        """Return the offer of each cluster, the best first, without reserving anything."""
        ranked = [
            (self._comparable(event, cluster, result[0]).rank, cluster, result[0])
            for cluster in event.clusters
            if (result := self._find_offer(event, cluster)) is not None
        ]
        return {cluster: offer for _, cluster, offer in sorted(ranked, key=lambda entry: entry[:2])}

    def possible_starts(
        self, event: ReservationRequested, cluster: str, offer: Offer
    ) -> list[tuple[float, float]]:
        """Return all starts of a window like this offer, by amounts, as intervals (first, last)."""
        duration = offer.end - offer.start + event.let_run
        spans = [
            span
            for carts in self.availability.carts_for(event, cluster)
            if offer.size <= carts.capacity
            for span in carts.starts(
                offer.size, duration, event.request.ready, event.request.deadline + event.let_run
            )
        ]
        return list(merge_spans(spans)) or [
            (offer.start, offer.start)
        ]  # possible only if others move

    def alternatives(self, event: ReservationRequested) -> dict[str, list[Offer]]:
        """Return windows possible instead, by cluster, the nearest to the request first."""
        by_cluster = {}
        for cluster in event.clusters:
            offers: list[Offer] = []
            for carts in self.availability.carts_for(event, cluster):
                if (request := self._in_cluster_units(event, cluster, carts)) is not None:
                    offers += alternative_offers(carts, request, event.horizon + event.let_run)
            by_cluster[cluster] = [
                _without_let_run(offer, event.let_run) for offer in dict.fromkeys(offers)
            ]
        return {cluster: offers for cluster, offers in by_cluster.items() if offers}

    def _find_offer(
        self, event: ReservationRequested, cluster: str
    ) -> tuple[Offer, dict[int, tuple[str, ...]]] | None:
        """Return the best offer of a cluster, and the nodes of all its reservations with it."""
        survey = self.availability.surveys.get(cluster)
        if survey is None or event.time - survey.observed > MAX_SURVEY_AGE:
            return None
        offers = [
            offer
            for carts in self.availability.carts_for(event, cluster)
            if (request := self._in_cluster_units(event, cluster, carts)) is not None
            and (offer := best_offer(carts, request)) is not None
        ]
        if not offers and (relocated := self._offer_by_relocation(event, cluster)) is not None:
            offers = [relocated]
        if not offers:
            return None
        offer = min(offers, key=lambda offer: offer.rank)
        if survey.pools:
            return _without_let_run(offer, event.let_run), {event.id: ()}
        demand = NodeDemand(event.id, offer.start, offer.end, offer.size)
        assignment = assign_nodes(
            self.availability.busy_spans(cluster, event.time),
            [*self.availability.needs(cluster), demand],
        )
        return None if assignment is None else (_without_let_run(offer, event.let_run), assignment)

    def _offer_by_relocation(self, event: ReservationRequested, cluster: str) -> Offer | None:
        """Return the first window by the amounts of all pools, if others can leave one pool for it.

        The adapter relocates them when the manager has no room.
        """
        if (pool_map := self.availability.pool_map(cluster, event.time)) is None:
            return None
        for carts in self.availability.carts_for(event, cluster, together=True):
            request = self._in_cluster_units(event, cluster, carts)
            largest = max(pool_map.slots.values())
            if request is None or request.min_size > largest:
                return None
            offer = best_offer(
                carts, structs.replace(request, max_size=min(request.max_size, largest))
            )
            if offer is not None:
                demand = NodeDemand(event.id, offer.start, offer.end, offer.size)
                return offer if pool_map.find_moves(demand) is not None else None
        return None

    def _in_cluster_units(
        self, event: ReservationRequested, cluster: str, carts: Carts
    ) -> ReservationRequest | None:
        """Return the request in units that the cluster reserves, extended by `let_run`.

        None: it is too large, or asks for nodes where processors are reserved.
        """
        if event.by_node and not self.availability.reserves_nodes(cluster):
            return None
        cpus = 1 if event.by_node else self.availability.cpus_per_unit(cluster)
        request = event.request
        min_size, max_size = -(-request.min_size // cpus), -(-request.max_size // cpus)
        if min_size > carts.capacity:
            return None
        return structs.replace(
            request,
            min_size=min_size,
            max_size=min(max_size, carts.capacity),
            deadline=request.deadline + event.let_run,
            min_duration=request.min_duration + event.let_run,
            max_duration=request.max_duration + event.let_run,
        )

    def _handle_bound(self, event: ReservationBound, out: Outcome) -> None:
        reservation = structs.replace(
            self.reservations[event.id],
            bound_nodes=event.nodes,
            known_to_manager=True,
            rejections=0,
        )
        if reservation.state in (ReservationState.REQUESTED, ReservationState.CONFIRMED):
            resources = ", ".join(event.nodes) or f"{reservation.cpus} processors"
            self._transition(
                reservation, ReservationTransition.BIND, f"its manager keeps {resources}", out
            )
            return
        if reservation.state in OPEN_STATES and reservation.nodes == event.nodes:
            reservation = structs.replace(
                reservation, cause=f"moved to {', '.join(event.nodes) or 'other nodes'}"
            )
        self._store(reservation, out)

    def _handle_rejected(self, event: ReservationRejected, out: Outcome) -> None:
        """Survey again and assign other nodes; its nodes may have been taken meanwhile."""
        reservation = self.reservations[event.id]
        reservation = structs.replace(
            reservation,
            rejections=reservation.rejections + 1,
            cause=f"its manager refused: {event.reason}",
        )
        if reservation.state in (
            ReservationState.BOUND,
            ReservationState.ACTIVE,
        ):  # it keeps its nodes
            if down_nodes := self.availability.down_nodes(reservation):
                reservation = structs.replace(
                    reservation, cause=f"{', '.join(down_nodes)} {_NO_SPARE_NODE}"
                )
            self._store(structs.replace(reservation, nodes=reservation.bound_nodes), out)
            return
        if reservation.state not in OPEN_STATES:
            return
        if reservation.rejections >= (
            MAX_REJECTIONS
            if reservation.state is ReservationState.REQUESTED
            else MAX_REJECTIONS_CONFIRMED
        ):
            self._break(reservation, event.time, reservation.cause, out)
            return
        self._store(reservation, out)
        self._to_reassign.add(reservation.id)
        if reservation.rejections < MAX_REJECTIONS:
            out.reservation_actions.append(SurveyCluster(reservation.cluster))

    def _handle_released(self, event: ReservationReleased, out: Outcome) -> None:
        reservation = self.reservations.get(event.id)
        if reservation is not None and reservation.state not in OPEN_STATES:
            self._store(structs.replace(reservation, known_to_manager=False), out)
            del self.reservations[event.id]
            self._expired.discard(event.id)

    # Node choice

    def _choose_due_nodes(self, cluster: str, now: float, out: Outcome) -> None:
        """Bind reservations whose nodes are due, on the lowest-numbered nodes that will be free."""
        lead = self._clusters[cluster].lead
        due = [
            reservation
            for reservation in self.availability.open_on(cluster)
            if self._awaits_node_choice(reservation) and reservation.start - lead <= now
        ]
        for reservation in sorted(due, key=lambda reservation: (reservation.start, reservation.id)):
            nodes = self._lowest_free_nodes(reservation, now)
            if nodes is not None:
                self._nodes_chosen.add(reservation.id)
                self._store(
                    structs.replace(reservation, nodes=nodes, cause="its nodes are chosen"), out
                )
                out.reservation_actions.append(Bind(cluster, reservation.id))
            elif now >= reservation.start:
                self._break(reservation, now, "too few nodes are free at its start", out)
            elif reservation.cause != (cause := "too few nodes are free for it as yet"):
                self._store(structs.replace(reservation, cause=cause), out)

    def _lowest_free_nodes(self, reservation: Reservation, now: float) -> tuple[str, ...] | None:
        """Return the lowest-numbered free nodes for a late-binding reservation, or None.

        Nodes that jobs may hold past their limits are avoided if possible.
        """
        earliest = max(reservation.start, now)
        fixed = [
            other
            for other in self.availability.open_on(reservation.cluster)
            if other.state is not ReservationState.ACTIVE and not self._awaits_node_choice(other)
        ]
        for guard in (self.availability.guard(reservation.cluster), 0.0):
            busy = self.availability.busy_spans(reservation.cluster, now, guard=guard)
            for other in fixed:
                for node in busy.keys() & set(other.nodes):
                    busy[node].append((other.start, other.until))
            free = [
                node
                for node in sorted(busy, key=_natural_key)
                if not any(
                    start < reservation.until and earliest < end for start, end in busy[node]
                )
            ]
            if len(free) >= reservation.size:
                return tuple(free[: reservation.size])
        return None

    def _reassign_nodes(self, cluster: str, now: float, out: Outcome) -> None:
        """Assign new nodes for those that failed, and to reservations that were rejected."""
        rejected = [
            reservation
            for reservation in self.availability.open_on(cluster)
            if reservation.id in self._to_reassign
        ]
        bound_states = (ReservationState.BOUND, ReservationState.ACTIVE)
        failing = [
            reservation
            for reservation in self.availability.open_on(cluster)
            if reservation.state in bound_states and self.availability.down_nodes(reservation)
        ]
        if not (rejected or failing):
            return
        for reservation in rejected:
            self._to_reassign.discard(reservation.id)
        if not self.availability.reserves_nodes(cluster):  # the manager chooses
            out.reservation_actions += [
                Bind(cluster, reservation.id) for reservation in (*rejected, *failing)
            ]
            return
        unassigned = {reservation.id for reservation in rejected}
        busy = self.availability.busy_spans(cluster, now)
        for reservation in rejected:
            demands = [
                demand
                for demand in self.availability.needs(cluster)
                if demand.id == reservation.id or demand.id not in unassigned
            ]
            assignment = assign_nodes(
                busy,
                [
                    replace(demand, current=()) if demand.id == reservation.id else demand
                    for demand in demands
                ],
            )
            if assignment is None:
                self._break(reservation, now, reservation.cause, out)
                continue
            unassigned.discard(reservation.id)
            self._assign_nodes(cluster, assignment, out, force_id=reservation.id)
        for reservation in failing:
            demands = [
                demand for demand in self.availability.needs(cluster) if demand.id != reservation.id
            ]
            busy = self.availability.busy_spans(cluster, now, excluded_id=reservation.id)
            usable = tuple(node for node in reservation.nodes if node in busy)
            start = (
                max(reservation.start, now)
                if reservation.state is ReservationState.ACTIVE
                else reservation.start
            )
            assignment = assign_nodes(
                busy,
                [
                    *demands,
                    NodeDemand(reservation.id, start, reservation.until, reservation.size, usable),
                ],
            )
            down_nodes = ", ".join(self.availability.down_nodes(reservation))
            if assignment is None:
                cause = f"{down_nodes} {_NO_SPARE_NODE}"
                if reservation.cause != cause:
                    self._store(structs.replace(reservation, cause=cause), out)
                    out.warnings.append(
                        f"reservation {reservation.id} of {reservation.user}: {cause}"
                    )
                continue
            self._assign_nodes(cluster, assignment, out, f"{down_nodes} cannot be used")

    def _assign_nodes(
        self,
        cluster: str,
        assignment: Mapping[int, tuple[str, ...]],
        out: Outcome,
        cause: str = "",
        force_id: int | None = None,
    ) -> None:
        """Store new nodes and bind them, in an order in which each reservation finds its nodes
        free.
        """
        new_nodes = {
            id: nodes
            for id, nodes in assignment.items()
            if set(nodes) != set(self.reservations[id].bound_nodes) or id == force_id
        }
        moved = [self.reservations[id] for id in new_nodes]
        current = {
            reservation.id: NodeDemand(
                reservation.id,
                reservation.start,
                reservation.until,
                reservation.size,
                reservation.bound_nodes,
            )
            for reservation in moved
        }
        for id in move_order(current, new_nodes):
            reservation = self.reservations[id]
            self._store(
                structs.replace(reservation, nodes=new_nodes[id], cause=cause or reservation.cause),
                out,
            )
            if not self._awaits_node_choice(reservation):
                out.reservation_actions.append(Bind(cluster, id))

    # Changes of a reservation

    def _transition(
        self, reservation: Reservation, transition: ReservationTransition, cause: str, out: Outcome
    ) -> Reservation:
        """Apply a transition: the only place where the state of a reservation changes."""
        updated = structs.replace(
            reservation, state=next_state(reservation, transition), cause=cause
        )
        self._store(updated, out)
        return updated

    def _close(
        self,
        reservation: Reservation,
        transition: ReservationTransition,
        now: float,
        cause: str,
        out: Outcome,
    ) -> None:
        self._to_reassign.discard(reservation.id)
        self._store(
            structs.replace(self._transition(reservation, transition, cause, out), closed=now), out
        )
        if reservation.cluster in self._clusters:  # else when the cluster is configured again
            out.reservation_actions.append(Unbind(reservation.cluster, reservation.id))

    def _break(self, reservation: Reservation, now: float, cause: str, out: Outcome) -> None:
        """Break a reservation: log the cause and store the window offered instead."""
        self._close(reservation, ReservationTransition.BREAK, now, cause, out)
        configured = reservation.cluster in self._clusters
        offer = (
            self._next_window_on_cluster(reservation, now)
            if configured
            else self._next_window_anywhere(reservation, now)
        )
        if offer is not None:
            self._store(structs.replace(self.reservations[reservation.id], offers=(offer,)), out)
        out.warnings.append(
            f"reservation {reservation.id} of {reservation.user} is broken: {cause}"
        )

    def _next_window_on_cluster(self, reservation: Reservation, now: float) -> Offer | None:
        """Return the next window of the same length and size on its cluster."""
        duration, ready = reservation.until - reservation.start, max(reservation.start, now)
        starts = [
            start
            for carts in self.availability.carts(reservation.cluster, now)
            if reservation.size <= carts.capacity
            and (start := carts.earliest_start(reservation.size, duration, ready)) is not None
        ]
        if not starts:
            return None
        return Offer(
            min(starts), min(starts) + reservation.end - reservation.start, reservation.size
        )

    def _next_window_anywhere(self, reservation: Reservation, now: float) -> Offer | None:
        """Return the next window of any cluster with as many processors, by the last surveys."""
        earliest, duration = max(reservation.start, now), reservation.end - reservation.start
        candidates = [
            name
            for name, cluster in self._clusters.items()
            if cluster.supports_reservations
            and cluster.takes != "jobs"
            and duration >= cluster.granularity
        ]
        request = ReservationRequest.flexible(
            reservation.cpus, duration, earliest, earliest + _SEARCH_AHEAD
        )
        event = ReservationRequested(
            *(
                now,
                reservation.id,
                reservation.user,
                request,
                False,
                tuple(candidates),
                earliest + _SEARCH_AHEAD,
                reservation.let_run,
            ),
            reservation.licences,
        )
        offers = [
            replace(
                _without_let_run(window, reservation.let_run),
                size=window.size * self.availability.cpus_per_unit(name),
                cluster=name,
            )
            for name in candidates
            for carts in self.availability.carts_for(event, name)
            if (converted := self._in_cluster_units(event, name, carts)) is not None
            and (window := best_offer(carts, converted)) is not None
        ]
        return min(offers, key=lambda offer: (offer.start, offer.cluster), default=None)

    def _store(self, reservation: Reservation, out: Outcome) -> None:
        self.reservations[reservation.id] = out.reservations[reservation.id] = reservation


def _without_let_run(offer: Offer, let_run: float) -> Offer:
    """Return the offer without the time that jobs may run past its end."""
    return replace(offer, end=offer.end - let_run)


def _natural_key(node: str) -> list[tuple[int, str]]:
    """Return a key that sorts n2 before n10."""
    parts = re.split(r"(\d+)", node)
    return [(int(part) if part.isdecimal() else -1, part) for part in parts]
