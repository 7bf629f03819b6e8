"""Offers for requests of advance reservations: windows that clusters can reserve. Pure.

Source: Kurowski et al. 2011, section 4.4.1. Times are seconds since the epoch. Sizes count
processors or nodes, whichever unit the cluster's `Carts` counts.
"""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from metasched.carts.carts import Carts
from metasched.carts.node_assignment import NodeDemand, merge_spans
from metasched.core.reservations.availability import Availability
from metasched.core.reservations.events import ReservationRequested
from metasched.model.reservation import Reservation
from metasched.model.reservation_request import Offer, ReservationRequest

MAX_SURVEY_AGE = 60.0  # seconds
_SEARCH_AHEAD = 365 * 86400.0  # seconds: how far ahead another window is searched for
MIN_OFFERED_DURATION = 60.0  # seconds: a request for more is offered no shorter window


def best_offer(carts: Carts, request: ReservationRequest) -> Offer | None:
    """Return the best offer of the cluster for a request, or None; nothing is reserved."""
    if request.min_duration < request.max_duration:
        return _longest_offer(carts, request)
    low, high, offer = request.min_size, min(request.max_size, carts.capacity), None
    while low <= high:  # if a size fits, so does every smaller size
        size = (low + high + 1) // 2
        start = carts.earliest_start(size, request.max_duration, request.ready, request.deadline)
        if start is None:
            high = size - 1
        else:
            offer, low = Offer(start, start + request.max_duration, size), size + 1
    return offer


def alternative_offers(carts: Carts, request: ReservationRequest, horizon: float) -> list[Offer]:
    """Return offers for a request that cannot be met, the nearest to it first.

    They are: the same later, ending by `horizon`; fewer processors in the window; a shorter
    duration in the window.
    """
    ready, deadline, size = request.ready, request.deadline, request.min_size
    offers = []
    if ready + request.min_duration <= horizon:
        later = ReservationRequest.flexible(size, request.min_duration, ready, horizon)
        offers.append(best_offer(carts, later))
    if size > 1:
        fewer = ReservationRequest.best_size(1, size - 1, request.min_duration, ready, deadline)
        offers.append(best_offer(carts, fewer))
    if request.min_duration > MIN_OFFERED_DURATION:
        shorter = ReservationRequest.best_time(
            size, MIN_OFFERED_DURATION, request.min_duration, ready, deadline
        )
        offers.append(best_offer(carts, shorter))
    return [offer for offer in offers if offer is not None]


def _longest_offer(carts: Carts, request: ReservationRequest) -> Offer | None:
    gaps = carts.starts(request.min_size, request.min_duration, request.ready, request.deadline)
    offers = [
        Offer(
            first, min(first + request.max_duration, last + request.min_duration), request.min_size
        )
        for first, last in gaps
    ]
    return min(offers, key=lambda offer: offer.rank, default=None)


class OfferFinder:
    """Finds windows by the free capacity of each cluster; reserves nothing."""

    def __init__(self, availability: Availability) -> None:
        self._availability = availability

    def offers(self, event: ReservationRequested) -> dict[str, Offer]:
        """Return the offer of each cluster, the best first, without reserving anything."""
        ranked = [
            (self.comparable(event, cluster, result[0]).rank, cluster, result[0])
            for cluster in event.clusters
            if (result := self.find_offer(event, cluster)) is not None
        ]
        return {cluster: offer for _, cluster, offer in sorted(ranked, key=lambda entry: entry[:2])}

    def possible_starts(
        self, event: ReservationRequested, cluster: str, offer: Offer
    ) -> list[tuple[float, float]]:
        """Return all starts of a window like this offer, by amounts, as intervals (first, last)."""
        duration = offer.end - offer.start + event.let_run
        spans = [
            span
            for carts in self._availability.carts_for(event, cluster)
            if offer.size <= carts.capacity
            for span in carts.starts(
                offer.size, duration, event.request.ready, event.request.deadline + event.let_run
            )
        ]
        if not spans:  # possible only if others move
            return [(offer.start, offer.start)]
        return list(merge_spans(spans))

    def alternatives(self, event: ReservationRequested) -> dict[str, list[Offer]]:
        """Return windows possible instead, by cluster, the nearest to the request first."""
        by_cluster = {}
        for cluster in event.clusters:
            offers: list[Offer] = []
            for carts in self._availability.carts_for(event, cluster):
                if (request := self._in_cluster_units(event, cluster, carts)) is not None:
                    offers += alternative_offers(carts, request, event.horizon + event.let_run)
            by_cluster[cluster] = [
                _without_let_run(offer, event.let_run) for offer in dict.fromkeys(offers)
            ]
        return {cluster: offers for cluster, offers in by_cluster.items() if offers}

    def find_offer(
        self, event: ReservationRequested, cluster: str
    ) -> tuple[Offer, dict[int, tuple[str, ...]]] | None:
        """Return the best offer of a cluster, with its nodes and those of others that move."""
        survey = self._availability.surveys.get(cluster)
        if survey is None or event.time - survey.observed > MAX_SURVEY_AGE:
            return None
        offers = [
            offer
            for carts in self._availability.carts_for(event, cluster)
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
        busy = self._availability.busy_spans(cluster, event.time)
        assigned = self._availability.assigned_on(cluster)
        assignment = assigned.assign(busy, [demand])
        if assignment is None:  # another reservation, perhaps in another window, lacks nodes
            assignment = assigned.place(busy, [demand])
        return None if assignment is None else (_without_let_run(offer, event.let_run), assignment)

    def comparable(self, event: ReservationRequested, cluster: str, offer: Offer) -> Offer:
        """Return an offer without the excess by rounding up to nodes, to compare clusters by."""
        cpus = 1 if event.by_node else self._availability.cpus_per_unit(cluster)
        return replace(offer, size=min(offer.size * cpus, event.request.max_size))

    def _offer_by_relocation(self, event: ReservationRequested, cluster: str) -> Offer | None:
        """Return the first window in all pools together, if others can leave one pool for it.

        The adapter relocates them when the manager has no room.
        """
        if (pool_map := self._availability.pool_map(cluster, event.time)) is None:
            return None
        for carts in self._availability.carts_for(event, cluster, together=True):
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
        if event.by_node and not self._availability.reserves_nodes(cluster):
            return None
        cpus = 1 if event.by_node else self._availability.cpus_per_unit(cluster)
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

    def next_window_on_cluster(self, reservation: Reservation, now: float) -> Offer | None:
        """Return the next window of the same length and size on its cluster."""
        duration, ready = reservation.until - reservation.start, max(reservation.start, now)
        starts = [
            start
            for carts in self._availability.carts(reservation.cluster, now)
            if reservation.size <= carts.capacity
            and (start := carts.earliest_start(reservation.size, duration, ready)) is not None
        ]
        if not starts:
            return None
        return Offer(
            min(starts), min(starts) + reservation.end - reservation.start, reservation.size
        )

    def next_window_anywhere(self, reservation: Reservation, now: float) -> Offer | None:
        """Return the next window of any cluster with as many processors, by the last surveys."""
        earliest, duration = max(reservation.start, now), reservation.end - reservation.start
        candidates = [
            name
            for name, cluster in self._availability.clusters.items()
            if cluster.supports_reservations
            and cluster.takes != "jobs"
            and duration >= cluster.granularity
        ]
        request = ReservationRequest.flexible(
            reservation.cpus, duration, earliest, earliest + _SEARCH_AHEAD
        )
        event = ReservationRequested(
            time=now,
            id=reservation.id,
            user=reservation.user,
            request=request,
            by_node=False,
            clusters=tuple(candidates),
            horizon=earliest + _SEARCH_AHEAD,
            let_run=reservation.let_run,
            licences=reservation.licences,
        )
        offers = [
            replace(
                _without_let_run(window, reservation.let_run),
                size=window.size * self._availability.cpus_per_unit(name),
                cluster=name,
            )
            for name in candidates
            for carts in self._availability.carts_for(event, name)
            if (converted := self._in_cluster_units(event, name, carts)) is not None
            and (window := best_offer(carts, converted)) is not None
        ]
        return min(offers, key=lambda offer: (offer.start, offer.cluster), default=None)


def _without_let_run(offer: Offer, let_run: float) -> Offer:
    """Return the offer without the time that jobs may run past its end."""
    return replace(offer, end=offer.end - let_run)
