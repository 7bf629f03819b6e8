"""Late binding: one queue in metasched for all clusters, and EASY over all of them. Pure.

A job is dispatched only to a cluster where it starts at once, delays no head of that cluster's own
queue, and leaves enough nodes for reservations by its limit. The first job that starts nowhere gets
a reservation on the cluster where it fits first (Lifka 1995, over several clusters).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from metasched.carts.carts import Carts
from metasched.model.job import Job
from metasched.policies.local.queueing import NEVER
from metasched.policies.pull import BackfillCapacity

K = TypeVar("K", bound=Hashable)


@dataclass
class ReservedNodes:
    """Nodes of a cluster that must be free when its reservations begin.

    The manager reports the nodes of a job only later, so each task is taken to need a node of its
    own. Before `free_nodes` is known, no job is dispatched that would still run at `first_start`.
    """

    now: float  # epoch seconds
    first_start: float  # epoch seconds: the begin of the first reservation
    guard: float  # seconds that a job may hold its nodes after its limit
    granularity: float  # seconds: limits are rounded up to multiples of it
    free_nodes: Carts | None  # neither reserved nor used, by limits; None: not known yet

    def leaves_reserved_nodes(self, job: Job) -> bool:
        """Return whether all reservations can be kept if the job starts now."""
        end = self._latest_end(job)
        if end <= self.first_start:
            return True
        return self.free_nodes is not None and self.free_nodes.free(
            max(self.first_start, self.now), end
        ) >= self._node_count(job, self.free_nodes)

    def record_start(self, job: Job) -> None:
        """Record a job that may start now."""
        if self.free_nodes is None or (end := self._latest_end(job)) <= self.first_start:
            return
        start = max(self.first_start, self.now)
        if count := min(self._node_count(job, self.free_nodes), self.free_nodes.free(start, end)):
            self.free_nodes.reserve(start, end, count)

    def _latest_end(self, job: Job) -> float:
        seconds = job.time_limit or job.estimated
        return self.now + math.ceil(seconds / self.granularity) * self.granularity + self.guard

    @staticmethod
    def _node_count(job: Job, free_nodes: Carts) -> int:
        return min(job.nodes or job.tasks, free_nodes.capacity)


@dataclass
class LateBinding(Generic[K]):
    """One pass over the queue. Clusters are identified by keys; the caller gives their order."""

    capacities: Mapping[K, BackfillCapacity]
    reserved_nodes: Mapping[K, ReservedNodes] = field(default_factory=dict)
    """Of the clusters whose reservations only metasched enforces."""
    head_reserved: bool = False  # the first blocked job has its reservation

    @property
    def full(self) -> bool:
        """Whether no job can start on any cluster."""
        return all(capacity.free_cpus <= 0 for capacity in self.capacities.values())

    def choose(self, job: Job, eligible: Iterable[K]) -> K | None:
        """Record a start of the job and return its cluster; None if the job stays queued."""
        keys = list(eligible)
        for key in keys:
            reserved = self.reserved_nodes.get(key)
            if self.capacities[key].can_start(job) and (
                reserved is None or reserved.leaves_reserved_nodes(job)
            ):
                self.capacities[key].record_start(job)
                if reserved is not None:
                    reserved.record_start(job)
                return key
        if not self.head_reserved:
            self.head_reserved = True
            self._reserve_for_head(job, keys)
        return None

    def blocked_by_reservations(self, job: Job, eligible: Iterable[K]) -> bool:
        """Return whether only reservations prevent a queued job from starting on some cluster."""
        return any(
            key in self.reserved_nodes and self.capacities[key].can_start(job) for key in eligible
        )

    def _reserve_for_head(self, job: Job, eligible: Iterable[K]) -> None:
        """Reserve for the first blocked job where it fits first and no other job is the head."""
        capacities = self.capacities
        starts = {
            key: capacities[key].fit_time(job.cpus)
            for key in eligible
            if not capacities[key].has_head
        }
        earliest = min(starts, key=starts.__getitem__, default=None)
        if earliest is not None and starts[earliest] < NEVER:
            capacities[earliest].reserve_head(job.cpus, job.time_limit or job.estimated)
