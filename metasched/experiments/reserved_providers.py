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
from metasched.model.reservation_request import ReservationRequest as Reservation
from metasched.policies.reservation_choice import ClusterChooser
from metasched.simulate.clusters import SimulatedCluster
from metasched.simulate.engine import Schedule, ScheduledJob
from metasched.simulate.workload import Workload, WorkloadEntry

_END, _ARRIVAL = 0, 1  # what ends at a moment ends before what arrives


ProcessorBinding = Literal["late", "early", "early, apart"]


class ProcessorTimeline(Protocol):
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


class _CountedTimeline(Carts):
    """Processors are chosen as each task starts: amounts are enough."""

    def book(self, id: int, start: float, end: float, size: int) -> None:
        self.reserve(start, end, size)

    start = book

    def stop(self, id: int, now: float, end: float, size: int) -> None:
        self.release(now, end, size)


class _AssignedTimeline:
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


def make_timeline(binding: ProcessorBinding, processors: int, origin: float) -> ProcessorTimeline:
    if binding == "late":
        return _CountedTimeline(processors, origin)
    return _AssignedTimeline(processors, origin, binding == "early, apart")


@dataclass
class _Provider:
    """One cluster: what it has promised, what waits, when what runs must end by its limit."""

    timeline: ProcessorTimeline
    largest_first: bool
    queue: dict[int, WorkloadEntry] = field(default_factory=dict)
    limit_ends: dict[int, float] = field(default_factory=dict)

    def start_waiting(self, now: float) -> list[WorkloadEntry]:
        """Start, first fit, what ends by its limit before a reservation needs its processors."""
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
        """A batch job has ended: what it held until its limit is free."""
        limit_end = self.limit_ends.pop(entry.job.id)
        if now < limit_end:
            self.timeline.stop(entry.job.id, now, limit_end, entry.job.cpus)


def batch_limit(entry: WorkloadEntry) -> float:
    """Seconds for which a batch job is taken to run: one that ran longer was let run."""
    return max(entry.job.estimated, entry.run_time)


def schedule_reservations(
    workload: Workload,
    clusters: Sequence[SimulatedCluster],
    reservations: Mapping[int, Reservation],
    chooser: ClusterChooser,
    batch_clusters: Sequence[int],
    reserved_clusters: Sequence[int],
    period: float = 0.0,
    reserved_first: bool = True,
    largest_first: bool = False,
    binding: ProcessorBinding = "late",
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
    origin = workload.entries[0].job.submitted if workload.entries else 0.0
    providers = [
        _Provider(make_timeline(binding, cluster.cpus, origin), largest_first)
        for cluster in clusters
    ]
    index_by_name = {cluster.name: index for index, cluster in enumerate(clusters)}
    by_id = {entry.job.id: entry for entry in workload.entries}
    scheduled: dict[int, ScheduledJob] = {}

    def decision_time(arrival: float) -> float:
        return origin + ceil((arrival - origin) / period) * period if period else arrival

    events = [
        (decision_time(entry.job.submitted), _ARRIVAL, entry.job.id) for entry in workload.entries
    ]
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
            _, event_kind, id = heappop(events)
            entry, reservation = by_id[id], reservations.get(id)
            event_count += 1
            if event_kind == _END:
                index = scheduled[id].cluster
                if reservation is None:
                    providers[index].end_job(now, entry)
                changed.add(index)
            elif reservation is None:
                index = min(batch_clusters, key=lambda index: len(providers[index].queue))
                providers[index].queue[id] = entry
                changed.add(index)
            else:
                if not reserved_first:
                    start_waiting(changed, now)
                offers = {
                    clusters[index].name: _make_offer(providers[index].timeline, reservation, now)
                    for index in reserved_clusters
                }
                name = chooser.choose(offers, reservation.deadline)
                offer, index = offers[name], index_by_name[name]
                providers[index].timeline.book(id, offer.start, offer.end, offer.size)
                scheduled[id] = ScheduledJob(
                    entry, offer.start, offer.end, offer.size, index, 0, priority=0, moves=0
                )
                heappush(events, (offer.end, _END, id))
        start_waiting(changed, now)
    jobs = tuple(scheduled[entry.job.id] for entry in workload.entries)
    return Schedule(tuple(clusters), jobs, dict(workload.dropped), event_count, pass_count)


def _make_offer(timeline: ProcessorTimeline, reservation: Reservation, now: float) -> Offer:
    """The window asked for, or the first one after its start that there is from now on."""
    size, duration, ready = (
        reservation.min_size,
        reservation.min_duration,
        max(reservation.ready, now),
    )
    start = timeline.earliest_start(size, duration, ready, reservation.deadline)
    if start is None:
        start = timeline.earliest_start(size, duration, ready)
    assert start is not None, "a reservation larger than its cluster"
    return Offer(start, start + duration, size)
