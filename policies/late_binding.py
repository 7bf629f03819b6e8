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
from metasched.policies.pull import Room

K = TypeVar("K", bound=Hashable)


@dataclass
class Promises:
    """What one cluster must have free when its reservations begin, in nodes.

    `free` counts the nodes that nobody has, by limits, and that nobody is promised; `first` is when
    the first of the promised windows begins. Jobs may hold their nodes for `guard` seconds after
    their limits, which are counted in steps of `granularity`. Where a job will run its manager
    says only later, so that each of its tasks may have a node of its own. `free` None: nobody has
    told yet; then what would still run at `first` is not sent.
    """

    now: float
    first: float
    guard: float
    granularity: float
    free: Carts | None

    def leaves_enough(self, job: Job) -> bool:
        """Whether all promises can be kept if the job starts now."""
        end = self._end(job)
        if end <= self.first:
            return True
        return self.free is not None and self.free.free(
            max(self.first, self.now), end
        ) >= self._nodes(job, self.free)

    def take(self, job: Job) -> None:
        """Count a job that may start now."""
        if self.free is None or (end := self._end(job)) <= self.first:
            return
        start = max(self.first, self.now)
        if many := min(self._nodes(job, self.free), self.free.free(start, end)):
            self.free.reserve(start, end, many)

    def _end(self, job: Job) -> float:
        seconds = job.time_limit or job.estimated
        return self.now + math.ceil(seconds / self.granularity) * self.granularity + self.guard

    @staticmethod
    def _nodes(job: Job, free: Carts) -> int:
        return min(job.nodes or job.tasks, free.capacity)


@dataclass
class LateSending(Generic[K]):
    """One pass over the queue: clusters by their keys, in the order in which jobs are asked for.

    `promises` are there for clusters that keep reservations by this alone.
    """

    rooms: Mapping[K, Room]
    promises: Mapping[K, Promises] = field(default_factory=dict)
    _blocked: bool = False

    @property
    def full(self) -> bool:
        """Whether nothing can start anywhere."""
        return all(room.free <= 0 for room in self.rooms.values())

    def choose(self, job: Job, able: Iterable[K]) -> K | None:
        """Where the job is sent now, which is counted; None: it waits."""
        places = list(able)
        for place in places:
            kept = self.promises.get(place)
            if self.rooms[place].admits(job) and (kept is None or kept.leaves_enough(job)):
                self.rooms[place].take(job)
                if kept is not None:
                    kept.take(job)
                return place
        if not self._blocked:
            self._blocked = True
            self._promise(job, places)
        return None

    def barred_by_promises(self, job: Job, able: Iterable[K]) -> bool:
        """Whether a job that waits would start somewhere but for a reservation there."""
        return any(p in self.promises and self.rooms[p].admits(job) for p in able)

    def _promise(self, job: Job, able: Iterable[K]) -> None:
        """Let a job that starts nowhere be the head where it fits first and nobody else is."""
        rooms = self.rooms
        fits = {p: rooms[p].fits_at(job.cpus) for p in able if not rooms[p].promised}
        place = min(fits, key=fits.__getitem__, default=None)
        if place is not None and fits[place] < NEVER:
            rooms[place].promise(job.cpus, job.time_limit or job.estimated)
