"""Preemptive policies that sort their queue: priority queue, EDF, SJF, LSF. Pure."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from heapq import heapify, heappop, heappush
from typing import ClassVar, NamedTuple

from metasched.policies.local.capacity import Capacity, make_capacity
from metasched.policies.local.preemption import (
    Changes,
    PreemptibleJob,
    PreemptivePolicy,
    without_restarts,
)
from metasched.policies.local.queueing import NEVER, NO_MACHINE, FreeResources, WaitingJob


class _Candidate(NamedTuple):
    """A running job that a job of lower rank may displace."""

    rank: float
    preemptible: PreemptibleJob


class PreemptiveOrder(PreemptivePolicy):
    """Start every job that fits, in an order, at the expense of running jobs later in it.

    A job that does not fit displaces the running jobs that are last in the order, as few as it
    takes; equal jobs do not displace each other. A displaced job is queued again at once, and may
    itself displace others. O(q r M) for r running jobs and M machines, and much less if few of the
    queued jobs come before a running job.
    """

    @abstractmethod
    def rank(self, job: WaitingJob, remaining: float) -> float:
        """Return the rank, the lowest first; `remaining` is the share of its run time."""

    def choose_changes(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[PreemptibleJob],
        free: FreeResources,
    ) -> Changes:
        capacity = make_capacity(now, [p.running for p in running], free)
        candidates = sorted(
            [_Candidate(self.rank(p.job, p.left(now)), p) for p in running],
            key=lambda candidate: -candidate.rank,
        )
        waiting = [(self.rank(job, 1.0), position, job) for position, job in enumerate(queue)]
        heapify(waiting)
        suspended: list[int] = []
        while waiting:
            rank, position, job = heappop(waiting)
            if capacity.find_machine(job) == NO_MACHINE:
                displaced = _displace(job, rank, candidates, capacity)
                if not displaced:
                    continue
                for candidate in displaced:
                    candidates.remove(candidate)
                    victim = candidate.preemptible
                    suspended.append(victim.job.id)
                    position = -len(suspended)  # before queued jobs of the same rank
                    heappush(waiting, (candidate.rank, position, victim.suspended(now)))
            capacity.start(job, capacity.find_machine(job))
        return without_restarts(running, Changes(suspended, capacity.starts))


def _displace(
    job: WaitingJob, rank: float, candidates: Collection[_Candidate], capacity: Capacity
) -> list[_Candidate]:
    """Release jobs that are later in the order until the job fits; return them, none if it cannot.

    `candidates` has the last job of the order first.
    """
    released: list[_Candidate] = []
    fits = False
    for candidate in candidates:
        if candidate.rank <= rank or fits:
            break
        capacity.release(candidate.preemptible.running)
        released.append(candidate)
        fits = capacity.find_machine(job) != NO_MACHINE
    needed: list[_Candidate] = []
    for candidate in reversed(released):
        capacity.hold(candidate.preemptible.running)
        if fits and capacity.find_machine(job) == NO_MACHINE:
            capacity.release(candidate.preemptible.running)
            needed.append(candidate)
    return needed


class PreemptivePriority(PreemptiveOrder):
    """The priority queue of the thesis with preemption: higher priorities of metasched first."""

    name: ClassVar[str] = "priority-p"

    def rank(self, job: WaitingJob, remaining: float) -> float:
        return -job.priority


class PreemptiveEDF(PreemptiveOrder):
    """Earliest deadline first, jobs without a deadline last."""

    name: ClassVar[str] = "edf-p"

    def rank(self, job: WaitingJob, remaining: float) -> float:
        return NEVER if job.deadline is None else job.deadline


class PreemptiveSJF(PreemptiveOrder):
    """Shortest remaining estimate first."""

    name: ClassVar[str] = "sjf-p"

    def rank(self, job: WaitingJob, remaining: float) -> float:
        return job.estimated * remaining


class PreemptiveLSF(PreemptiveOrder):
    """Largest size first."""

    name: ClassVar[str] = "lsf-p"

    def rank(self, job: WaitingJob, remaining: float) -> float:
        return -job.cpus
