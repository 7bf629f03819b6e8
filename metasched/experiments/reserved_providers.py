"""Simulation of providers with batch jobs and reservations: Kurowski et al. 2011, section 4.

A batch job goes to the provider with the fewest waiting jobs. It starts first fit, in the order of
arrival or the largest first (LSF), and never runs into a reservation by its limit. A reservation is
booked at its request, by the daemon's own CARTS and cluster choosers. Its processors are chosen
when it starts (dynamic binding), so checking amounts is enough, or, for comparison, when it is
booked (static binding). A reservation that does not fit into its window is booked at the first
later time; none is rejected. Decisions are made as tasks arrive, or every `period` seconds for all
tasks that arrived (section 4.4.4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, nextafter
from typing import Literal, Protocol

from metasched.carts.carts import Carts
from metasched.carts.sets import CartsSets
from metasched.model.reservation_request import Offer, ReservationRequest
from metasched.policies.reservation_choice import ClusterChooser
from metasched.simulate.clusters import SimulatedCluster
from metasched.simulate.engine import Schedule, ScheduledJob
from metasched.simulate.workload import Workload, WorkloadEntry

_END, _ARRIVAL = 0, 1  # at equal times, endings come before arrivals

# when processors are chosen: at the start of a task, or at its booking; "apart": batch jobs get the
# highest free processors, reservations the lowest
ProcessorBinding = Literal["late", "early", "early, apart"]


class ProcessorTimeline(Protocol):
    """The interface of a record of a cluster's free processors over time.

    Reservations are booked; batch jobs are started, and stopped before `end`, their limit.
    """

    def free(self, start: float, end: float) -> int: ...
    def book(self, id: int, start: float, end: float, size: int) -> None: ...
    def start(self, id: int, now: float, end: float, size: int) -> None: ...
    def stop(self, id: int, now: float, end: float, size: int) -> None: ...
    def earliest_start(
        self, size: int, duration: float, ready: float, deadline: float | None = None
    ) -> float | None: ...
    def prune(self, until: float) -> None: ...


class _CountedTimeline(Carts):
    """Processors are chosen when each task starts: only amounts are booked."""

    def book(self, id: int, start: float, end: float, size: int) -> None:
        self.reserve(start, end, size)

    start = book

    def stop(self, id: int, now: float, end: float, size: int) -> None:
        self.release(now, end, size)


class _AssignedTimeline:
    """Processors are assigned when a task is booked or started, the lowest free processors first.

    `apart`: batch jobs get the highest free processors, which reservations use last.
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
        """Keep the past: searches begin by bisection after it."""


def make_timeline(binding: ProcessorBinding, processors: int, origin: float) -> ProcessorTimeline:
    """Create the timeline of a cluster for a kind of binding, beginning at `origin` (seconds)."""
    if binding == "late":
        return _CountedTimeline(processors, origin)
    return _AssignedTimeline(processors, origin, binding == "early, apart")


@dataclass
class _Provider:
    """A cluster with its batch queue."""

    timeline: ProcessorTimeline
    largest_first: bool
    queue: dict[int, WorkloadEntry] = field(default_factory=dict)  # batch jobs, by id
    limit_ends: dict[int, float] = field(default_factory=dict)  # of running batch jobs, by id

    def start_waiting(self, now: float) -> list[WorkloadEntry]:
        """Start, first fit, the jobs that end by their limit before the next reservation."""
        started = []
        free = self.timeline.free(now, nextafter(now, now + 1))
        waiting = list(self.queue.values())
        if self.largest_first:
            waiting.sort(key=lambda entry: -entry.job.cpus)
        for entry in waiting:
            cpus, end = entry.job.cpus, now + batch_limit(entry)
            if cpus <= free and self.timeline.free(now, end) >= cpus:
                self.timeline.start(entry.job.id, now, end, cpus)
                free -= cpus
                self.limit_ends[entry.job.id] = end
                del self.queue[entry.job.id]
                started.append(entry)
        return started

    def end_job(self, now: float, entry: WorkloadEntry) -> None:
        """End a batch job and release its processors up to its limit."""
        limit_end = self.limit_ends.pop(entry.job.id)
        if now < limit_end:
            self.timeline.stop(entry.job.id, now, limit_end, entry.job.cpus)


def batch_limit(entry: WorkloadEntry) -> float:
    """Return the limit of a batch job in seconds: its run time if the log let it run longer."""
    return max(entry.job.estimated, entry.run_time)


@dataclass(frozen=True, kw_only=True)
class ProviderStrategy:
    """How providers share their processors between batch jobs and reservations.

    Disjoint clusters of batch jobs and reservations give a static partition.
    """

    chooser: ClusterChooser  # of the cluster of a reservation
    batch_clusters: Sequence[int]  # indexes of the clusters that run batch jobs
    reserved_clusters: Sequence[int]  # indexes of the clusters that take reservations
    period: float = 0.0  # seconds between decisions about arrivals; 0: at once
    # within one decision, book reservations before batch jobs start; else in the order of arrival
    reserved_first: bool = True
    largest_first: bool = False  # order of a provider's batch queue; else the order of arrival
    binding: ProcessorBinding = "late"


def schedule_reservations(
    workload: Workload,
    clusters: Sequence[SimulatedCluster],
    reservations: Mapping[int, ReservationRequest],
    strategy: ProviderStrategy,
) -> Schedule:
    """Simulate the workload. `reservations` maps job ids to reservation requests of fixed size.

    Deterministic except for draws of the strategy's chooser.
    """
    period = strategy.period
    origin = workload.entries[0].job.submitted if workload.entries else 0.0
    providers = [
        _Provider(make_timeline(strategy.binding, cluster.cpus, origin), strategy.largest_first)
        for cluster in clusters
    ]
    index_by_name = {cluster.name: index for index, cluster in enumerate(clusters)}
    entries = {entry.job.id: entry for entry in workload.entries}
    scheduled: dict[int, ScheduledJob] = {}

    def decision_time(arrival: float) -> float:
        return origin + ceil((arrival - origin) / period) * period if period else arrival

    events = [(decision_time(e.job.submitted), _ARRIVAL, e.job.id) for e in workload.entries]
    events.sort()
    event_count = pass_count = 0

    def start_waiting(indexes: set[int], now: float) -> None:
        nonlocal pass_count
        for index in sorted(indexes):
            provider = providers[index]
            provider.timeline.prune(now)
            pass_count += 1
            for entry in provider.start_waiting(now):
                job, end = entry.job, now + entry.run_time
                scheduled[job.id] = ScheduledJob(
                    entry, now, end, job.cpus, index, 0, priority=0, moves=0
                )
                heappush(events, (end, _END, job.id))
        indexes.clear()

    while events:
        now = events[0][0]
        changed: set[int] = set()
        while events and events[0][0] <= now:
            _, event, id = heappop(events)
            entry, reservation = entries[id], reservations.get(id)
            event_count += 1
            if event == _END:
                index = scheduled[id].cluster
                if reservation is None:
                    providers[index].end_job(now, entry)
                changed.add(index)
            elif reservation is None:
                index = min(strategy.batch_clusters, key=lambda index: len(providers[index].queue))
                providers[index].queue[id] = entry
                changed.add(index)
            else:
                if not strategy.reserved_first:
                    start_waiting(changed, now)
                offers = {
                    clusters[index].name: _make_offer(providers[index].timeline, reservation, now)
                    for index in strategy.reserved_clusters
                }
                name = strategy.chooser.choose(offers, reservation.deadline)
                offer, index = offers[name], index_by_name[name]
                providers[index].timeline.book(id, offer.start, offer.end, offer.size)
                scheduled[id] = ScheduledJob(
                    entry, offer.start, offer.end, offer.size, index, 0, priority=0, moves=0
                )
                heappush(events, (offer.end, _END, id))
        start_waiting(changed, now)
    jobs = tuple(scheduled[entry.job.id] for entry in workload.entries)
    return Schedule(tuple(clusters), jobs, dict(workload.dropped), event_count, pass_count)


def _make_offer(timeline: ProcessorTimeline, request: ReservationRequest, now: float) -> Offer:
    """Return the earliest offer within the requested window, else the earliest after it."""
    size, duration, ready = request.min_size, request.min_duration, max(request.ready, now)
    start = timeline.earliest_start(size, duration, ready, request.deadline)
    if start is None:
        start = timeline.earliest_start(size, duration, ready)
    assert start is not None, "a reservation larger than its cluster"
    return Offer(start, start + duration, size)
