"""Iterations of Tabu Search and RCBO over plans of 5,000 and 60,000 jobs."""

from __future__ import annotations

from random import Random
from time import process_time

import pytest

from metasched.policies.local.plan import ClusterPlan
from metasched.policies.local.plan_search import PlanSearch, ResourceOptimisation, TabuSearch
from metasched.policies.local.queueing import FreeResources, WaitingJob
from tests.bench.conftest import Record

MACHINES, ITERATIONS = 150, 1000


def planned(jobs: int, seed: int) -> ClusterPlan:
    """Return a plan of jobs and machines of Pasquali 2008, Table 13; jobs go to drawn machines.

    A fifth of the deadlines can be met by a search, and most of the rest cannot.
    """
    draw = Random(seed)
    speeds = sorted((draw.uniform(200, 600) for _ in range(MACHINES)), reverse=True)
    sizes = [max(8, draw.randint(1, 16)) for _ in range(MACHINES)]
    plan = ClusterPlan()
    plan.observe(0.0, [], [], FreeResources(sum(sizes), machines=sizes))
    span = jobs / MACHINES * 600
    for number in range(jobs):
        work = draw.uniform(500, 3000) * draw.uniform(200, 600)
        machines = {machine: work / speed for machine, speed in enumerate(speeds)}
        deadline = draw.uniform(0, span) if draw.random() < 0.7 else None
        job = WaitingJob(number, draw.randint(1, 8), 1.0, machines=machines, deadline=deadline)
        machine = draw.randrange(MACHINES)
        plan.place(job, machine, plan.earliest_start(job, machine))
    return plan


@pytest.mark.bench
@pytest.mark.cpu
@pytest.mark.parametrize("kind", ["tabu", "rcbo"])
@pytest.mark.parametrize("jobs", [5000, 60_000])
def test_a_thousand_iterations(jobs: int, kind: str, record: Record) -> None:
    plan = planned(jobs, 1)
    search: PlanSearch = (
        TabuSearch(plan, 100, "rounds") if kind == "tabu" else ResourceOptimisation(plan, 100)
    )
    begun = process_time()
    search.run(ITERATIONS)
    seconds = process_time() - begun
    assert search.iterations == ITERATIONS
    target = "under 2 s" if jobs == 5000 else ""
    record(f"{kind}: {ITERATIONS:,} iterations, {jobs:,} jobs", seconds, "s of CPU", target=target)
    record(f"{kind}: moves among these", search.moves, "moves")
