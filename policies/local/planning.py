"""Policies with a plan of the whole queue: EG-EDF, and Tabu Search and RCBO on top of it. Pure.

Pasquali 2008, §5.2. A job is inserted when it is first seen, and starts when its planned start has
come. With every ten arrivals a search improves the plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import ClassVar

from metasched.policies.local.capacity import make_capacity
from metasched.policies.local.insertion import COMPARISONS, Comparison, insert_job
from metasched.policies.local.plan import ClusterPlan
from metasched.policies.local.plan_search import (
    STOP_RULES,
    PlanSearch,
    ResourceOptimisation,
    StopRule,
    TabuSearch,
)
from metasched.policies.local.queueing import (
    FreeResources,
    JobStart,
    LeftOver,
    RunningJob,
    WaitingJob,
)


class EarliestGap:
    """EG-EDF: each arriving job goes into the earliest gap, else by deadline.

    At most `depth` jobs are planned; later jobs of the queue wait until one of these has started.
    ValueError if a parameter is out of range.
    """

    name: ClassVar[str] = "eg-edf"
    period: float = 0.0
    incremental: ClassVar[bool] = False
    keeps_windows: ClassVar[bool] = True
    keeps_plan: ClassVar[bool] = True

    def __init__(self, compare: Comparison = "plan", depth: float = 1000) -> None:
        if compare not in COMPARISONS:
            raise ValueError(f'compare is "{compare}"; it must be {" or ".join(COMPARISONS)}')
        self._compare: Comparison = compare
        self._depth = _whole("depth", depth)
        self.plan = ClusterPlan()

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        plan = self.plan
        inserted = 0
        for job in plan.observe(now, queue, running, free):
            if len(plan.runs) >= self._depth:
                break
            inserted += insert_job(plan, job, self._compare)
        self.improve(inserted)
        capacity = make_capacity(now, running, free)
        for run in plan.take_due():
            capacity.start(run.job, run.machine)
        return capacity.starts

    def improve(self, inserted: int) -> None:
        """Improve the plan after so many insertions."""

    def left_over(self) -> LeftOver:
        return self.plan.left_over()

    def planned_starts(self) -> dict[int, float]:
        """Return the planned start of each planned job, by id."""
        return {job_id: run.start for job_id, run in self.plan.runs.items()}


class ImprovedPlan(EarliestGap, ABC):
    """EG-EDF, and a search after every `every` arrivals, at most once in each pass.

    `memory` bounds the list of jobs that were tried lately. ValueError as for `EarliestGap`.
    """

    def __init__(
        self,
        compare: Comparison = "plan",
        depth: float = 1000,
        every: float = 10,
        iterations: float = 1000,
        memory: float = 100,
    ) -> None:
        super().__init__(compare, depth)
        self._every, self._limit = _whole("every", every), _whole("iterations", iterations)
        self._memory, self._arrived = _whole("memory", memory), 0
        self.iterations = 0  # of all searches

    def improve(self, inserted: int) -> None:
        self._arrived += inserted
        if self._arrived >= self._every:
            self._arrived = 0
            search = self.make_search()
            search.run(self._limit)
            self.iterations += search.iterations

    @abstractmethod
    def make_search(self) -> PlanSearch:
        """Return a new search of the plan."""


class TabuPlan(ImprovedPlan):
    """EG-EDF with Tabu Search; `stop`: what happens when no machine with late jobs is left."""

    name: ClassVar[str] = "tabu"

    def __init__(
        self,
        compare: Comparison = "plan",
        depth: float = 1000,
        every: float = 10,
        iterations: float = 1000,
        memory: float = 100,
        stop: StopRule = "late",
    ) -> None:
        super().__init__(compare, depth, every, iterations, memory)
        if stop not in STOP_RULES:
            raise ValueError(f'stop is "{stop}"; it must be {" or ".join(STOP_RULES)}')
        self._stop: StopRule = stop

    def make_search(self) -> PlanSearch:
        return TabuSearch(self.plan, self._memory, self._stop)


class OptimisedPlan(ImprovedPlan):
    """EG-EDF with RCBO, resource characteristic based optimisation."""

    name: ClassVar[str] = "rcbo"

    def make_search(self) -> PlanSearch:
        return ResourceOptimisation(self.plan, self._memory)


def _whole(name: str, value: float) -> int:
    """Return a parameter that counts something, 1 to a million. ValueError."""
    if not 1 <= value <= 10**6 or value != int(value):
        raise ValueError(f"{name} is {value:g}; it must be a whole number from 1 to 1000000")
    return int(value)
