"""Batch jobs and advance reservations on several providers: Kurowski et al. 2011, section 4.

A batch job goes to the provider where the fewest wait and is started first fit, in the order of
arrival or the largest first (LSF), never past a reservation by its limit. A reservation is booked
when it is asked for, by the daemon's own CARTS, requests and choosers; its processors are chosen
when it starts (dynamic binding), so amounts are enough. One that does not fit into its window is
booked for the first time after it: late, never refused. Decisions are made as tasks arrive, or
every so many seconds for all that have (section 4.4.4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import ceil, nextafter

from metasched.carts import Carts
from metasched.policies.reserving import Chooser
from metasched.reservations import Offer, best
from metasched.reservations import Request as Reservation
from metasched.simulate.clusters import SimulatedCluster
from metasched.simulate.engine import Placed, Schedule
from metasched.simulate.workload import Request, Workload

_END, _ARRIVAL = 0, 1  # what ends at a moment ends before what arrives


@dataclass
class _Provider:
    """One cluster: what it has promised, what waits, when what runs must end by its limit."""

    carts: Carts
    largest_first: bool
    queue: dict[int, Request] = field(default_factory=dict)
    limits: dict[int, float] = field(default_factory=dict)

    def pass_queue(self, now: float) -> list[Request]:
        """Start, first fit, what ends by its limit before a reservation needs its processors."""
        begun = []
        free = self.carts.free(now, nextafter(now, now + 1))
        waiting = list(self.queue.values())
        if self.largest_first:
            waiting.sort(key=lambda request: -request.job.cpus)
        for request in waiting:
            cpus, end = request.job.cpus, now + limit(request)
            if cpus <= free and self.carts.free(now, end) >= cpus:
                self.carts.reserve(now, end, cpus)
                free -= cpus
                self.limits[request.job.id] = end
                del self.queue[request.job.id]
                begun.append(request)
        return begun

    def end(self, now: float, request: Request) -> None:
        """A batch job has ended: what it held until its limit is free."""
        until = self.limits.pop(request.job.id)
        if now < until:
            self.carts.release(now, until, request.job.cpus)


def limit(request: Request) -> float:
    """Seconds for which a batch job is taken to run: one that ran longer was let run."""
    return max(request.job.estimated, request.ran)


def schedule(
    workload: Workload,
    clusters: Sequence[SimulatedCluster],
    windows: Mapping[int, Reservation],
    chooser: Chooser,
    batch: Sequence[int],
    reserved: Sequence[int],
    period: float = 0.0,
    reserved_first: bool = True,
    largest_first: bool = False,
) -> Schedule:
    """Run it all. `windows` maps those jobs to their requests that are reservations.

    `batch` and `reserved` are the places of the clusters for either kind: disjoint ones are a
    static partition. What arrives is decided every `period` seconds; 0: at once. Of what is decided
    together reservations are booked before batch jobs start, or all have their turn in the order of
    arrival. Batch jobs of a provider have their turn in that order, too, or the largest first.
    Deterministic but for the chooser's own draws.
    """
    first = workload.requests[0].job.submitted if workload.requests else 0.0
    providers = [_Provider(Carts(cluster.cpus, first), largest_first) for cluster in clusters]
    names = {cluster.name: place for place, cluster in enumerate(clusters)}
    by_id = {request.job.id: request for request in workload.requests}
    placed: dict[int, Placed] = {}

    def decided(arrived: float) -> float:
        return first + ceil((arrived - first) / period) * period if period else arrived

    events = [(decided(r.job.submitted), _ARRIVAL, r.job.id) for r in workload.requests]
    events.sort()
    handled = passes = 0

    def pass_queues(some: set[int], now: float) -> None:
        nonlocal passes
        for place in sorted(some):
            provider = providers[place]
            provider.carts.prune(now)
            passes += 1
            for request in provider.pass_queue(now):
                job, end = request.job, now + request.ran
                placed[job.id] = Placed(request, now, end, job.cpus, place, 0, priority=0, moves=0)
                heappush(events, (end, _END, job.id))
        some.clear()

    while events:
        now = events[0][0]
        stirred: set[int] = set()
        while events and events[0][0] <= now:
            _, kind, id = heappop(events)
            request, window = by_id[id], windows.get(id)
            handled += 1
            if kind == _END:
                place = placed[id].cluster
                if window is None:
                    providers[place].end(now, request)
                stirred.add(place)
            elif window is None:
                place = min(batch, key=lambda place: len(providers[place].queue))
                providers[place].queue[id] = request
                stirred.add(place)
            else:
                if not reserved_first:
                    pass_queues(stirred, now)
                offers = {
                    clusters[place].name: _offer(providers[place].carts, window, now)
                    for place in reserved
                }
                name = chooser.choose(offers, window.deadline)
                offer, place = offers[name], names[name]
                providers[place].carts.reserve(offer.start, offer.end, offer.size)
                placed[id] = Placed(
                    request, offer.start, offer.end, offer.size, place, 0, priority=0, moves=0
                )
                heappush(events, (offer.end, _END, id))
        pass_queues(stirred, now)
    rows = tuple(placed[request.job.id] for request in workload.requests)
    return Schedule(tuple(clusters), rows, dict(workload.dropped), handled, passes)


def _offer(carts: Carts, window: Reservation, now: float) -> Offer:
    """The window asked for, or the first one after its start that there is from now on."""
    ready = max(window.ready, now)
    offer = None
    if ready == window.ready:
        offer = best(carts, window)
    elif ready + window.shortest <= window.deadline:
        offer = best(carts, replace(window, ready=ready))
    if offer is None:
        start = carts.earliest_start(window.least, window.shortest, ready)
        assert start is not None, "a reservation larger than its cluster"
        offer = Offer(start, start + window.shortest, window.least)
    return offer
