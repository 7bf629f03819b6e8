"""Late sending: one queue of ours for all clusters, and EASY over all of them. Pure.

A job is sent only where it starts at once, delaying no head of that cluster's own queue, and by its
limit leaves what reservations there have been promised. The first that starts nowhere is promised
the cluster where it fits first, which keeps a place for it (Lifka 1995, over several clusters).
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
    """What one cluster must have free when its reservations begin, in nodes.

    `free` counts the nodes that nobody has, by limits, and that nobody is promised; `first` is when
    the first of the promised windows begins. Jobs may hold their nodes for `guard` seconds after
    their limits, which are counted in steps of `granularity`. Where a job will run its manager
    says only later, so that each of its tasks may have a node of its own. `free` None: nobody has
    told yet; then what would still run at `first` is not sent.
    """

    now: float
    first_start: float
    guard: float
    granularity: float
    free_nodes: Carts | None

    def leaves_reserved_nodes(self, job: Job) -> bool:
        """Whether all promises can be kept if the job starts now."""
        end = self._latest_end(job)
        if end <= self.first_start:
            return True
        return self.free_nodes is not None and self.free_nodes.free(
            max(self.first_start, self.now), end
        ) >= self._node_count(job, self.free_nodes)

    def record_start(self, job: Job) -> None:
        """Count a job that may start now."""
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
    """One pass over the queue: clusters by their keys, in the order in which jobs are asked for.

    `promises` are there for clusters that keep reservations by this alone.
    """

    capacities: Mapping[K, BackfillCapacity]
    reserved_nodes: Mapping[K, ReservedNodes] = field(default_factory=dict)
    _head_reserved: bool = False

    @property
    def full(self) -> bool:
        """Whether nothing can start anywhere."""
        return all(capacity.free_cpus <= 0 for capacity in self.capacities.values())

    def choose(self, job: Job, eligible: Iterable[K]) -> K | None:
        """Where the job is sent now, which is counted; None: it waits."""
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
        if not self._head_reserved:
            self._head_reserved = True
            self._reserve_for_head(job, keys)
        return None

    def blocked_by_reservations(self, job: Job, eligible: Iterable[K]) -> bool:
        """Whether a job that waits would start somewhere but for a reservation there."""
        return any(
            key in self.reserved_nodes and self.capacities[key].can_start(job) for key in eligible
        )

    def _reserve_for_head(self, job: Job, eligible: Iterable[K]) -> None:
        """Let a job that starts nowhere be the head where it fits first and nobody else is."""
        capacities = self.capacities
        fit_times = {
            key: capacities[key].fit_time(job.cpus)
            for key in eligible
            if not capacities[key].has_head
        }
        earliest = min(fit_times, key=fit_times.__getitem__, default=None)
        if earliest is not None and fit_times[earliest] < NEVER:
            capacities[earliest].reserve_head(job.cpus, job.time_limit or job.estimated)
