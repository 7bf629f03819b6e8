"""Batch jobs and advance reservations on several providers: Kurowski et al. 2011, section 4.

A batch job goes to the provider where the fewest wait and is started first fit, in the order of
arrival or the largest first (LSF), never past a reservation by its limit. A reservation is booked
when it is asked for, by the daemon's own CARTS and choosers; its processors are chosen when it
starts (dynamic binding), so amounts are enough, or, to compare, when it is booked (static binding).
One that does not fit into its window is booked for the first time after it: late, never refused.
Decisions are made as tasks arrive, or every so many seconds for all that have (section 4.4.4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, nextafter
from typing import Literal, Protocol

from metasched.carts.carts import Carts
from metasched.carts.sets import CartsSets
from metasched.model.reservation_request import Offer
from metasched.model.reservation_request import Request as Reservation
from metasched.policies.reservation_choice import Chooser
from metasched.simulate.clusters import SimulatedCluster
from metasched.simulate.engine import Placed, Schedule
from metasched.simulate.workload import Request, Workload

_END, _ARRIVAL = 0, 1  # what ends at a moment ends before what arrives


Binding = Literal["late", "early", "early, apart"]


class Slots(Protocol):
    """What is free of a cluster over time; tasks are known by their ids.

    Reservations are booked, batch jobs start, and stop before `end`, their limit.
    """

    def free(self, start: float, end: float) -> int: ...
    def book(self, id: int, start: float, end: float, size: int) -> None: ...
    def start(self, id: int, now: float, end: float, size: int) -> None: ...
    def stop(self, id: int, now: float, end: float, size: int) -> None: ...
    def earliest_start(
        self, size: int, duration: float, ready: float, deadline: float | None = None
    ) -> float | None: ...
    def prune(self, until: float) -> None: ...


class _Amounts(Carts):
    """Processors are chosen as each task starts: amounts are enough."""

    def book(self, id: int, start: float, end: float, size: int) -> None:
        self.reserve(start, end, size)

    start = book

    def stop(self, id: int, now: float, end: float, size: int) -> None:
        self.release(now, end, size)


class _Named:
    """Processors are chosen when a task is booked or started, and stay: the lowest free ones.

    `apart`: batch jobs have the highest, which reservations want last.
    """

    def __init__(self, processors: int, origin: float, apart: bool) -> None:
        self._carts, self._apart = CartsSets(processors, origin), apart
        self._running: dict[int, frozenset[int]] = {}
        self.earliest_start = self._carts.earliest_start

    def free(self, start: float, end: float) -> int:
        return len(self._carts.free(start, end))

    def book(self, id: int, start: float, end: float, size: int) -> None:
        self._carts.reserve(start, end, size)

    def start(self, id: int, now: float, end: float, size: int) -> None:
        self._running[id] = self._carts.reserve(now, end, size, highest=self._apart)

    def stop(self, id: int, now: float, end: float, size: int) -> None:
        self._carts.release(now, end, self._running.pop(id))

    def prune(self, until: float) -> None:
        """The past stays: a search begins by bisection, after it."""


def slots_of(binding: Binding, processors: int, origin: float) -> Slots:
    if binding == "late":
        return _Amounts(processors, origin)
    return _Named(processors, origin, binding == "early, apart")


@dataclass
class _Provider:
    """One cluster: what it has promised, what waits, when what runs must end by its limit."""

    slots: Slots
    largest_first: bool
    queue: dict[int, Request] = field(default_factory=dict)
    limits: dict[int, float] = field(default_factory=dict)

    def pass_queue(self, now: float) -> list[Request]:
        """Start, first fit, what ends by its limit before a reservation needs its processors."""
        begun = []
        free = self.slots.free(now, nextafter(now, now + 1))
        waiting = list(self.queue.values())
        if self.largest_first:
            waiting.sort(key=lambda request: -request.job.cpus)
        for request in waiting:
            cpus, end = request.job.cpus, now + limit(request)
            if cpus <= free and self.slots.free(now, end) >= cpus:
                self.slots.start(request.job.id, now, end, cpus)
                free -= cpus
                self.limits[request.job.id] = end
                del self.queue[request.job.id]
                begun.append(request)
        return begun

    def end(self, now: float, request: Request) -> None:
        """A batch job has ended: what it held until its limit is free."""
        until = self.limits.pop(request.job.id)
        if now < until:
            self.slots.stop(request.job.id, now, until, request.job.cpus)


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
    binding: Binding = "late",
) -> Schedule:
    """Run it all. `windows` maps those jobs to their requests, of one size, that are reservations.

    `batch` and `reserved` are the places of the clusters for either kind: disjoint ones are a
    static partition. What arrives is decided every `period` seconds; 0: at once. Of what is decided
    together reservations are booked before batch jobs start, or all have their turn in the order of
    arrival. Batch jobs of a provider have their turn in that order, too, or the largest first. By
    `binding` processors are chosen as tasks start, or named when they are booked; "early, apart":
    the lowest for reservations, the highest for batch jobs.
    Deterministic but for the chooser's own draws.
    """
    first = workload.requests[0].job.submitted if workload.requests else 0.0
    providers = [
        _Provider(slots_of(binding, cluster.cpus, first), largest_first) for cluster in clusters
    ]
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
            provider.slots.prune(now)
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
                    clusters[place].name: _offer(providers[place].slots, window, now)
                    for place in reserved
                }
                name = chooser.choose(offers, window.deadline)
                offer, place = offers[name], names[name]
                providers[place].slots.book(id, offer.start, offer.end, offer.size)
                placed[id] = Placed(
                    request, offer.start, offer.end, offer.size, place, 0, priority=0, moves=0
                )
                heappush(events, (offer.end, _END, id))
        pass_queues(stirred, now)
    rows = tuple(placed[request.job.id] for request in workload.requests)
    return Schedule(tuple(clusters), rows, dict(workload.dropped), handled, passes)


def _offer(slots: Slots, window: Reservation, now: float) -> Offer:
    """The window asked for, or the first one after its start that there is from now on."""
    size, lasts, ready = window.least, window.shortest, max(window.ready, now)
    start = slots.earliest_start(size, lasts, ready, window.deadline)
    if start is None:
        start = slots.earliest_start(size, lasts, ready)
    assert start is not None, "a reservation larger than its cluster"
    return Offer(start, start + lasts, size)
