"""A plan of Convergent Scheduling with its matrix: from scratch, after an event, and its growth.

Each is also compared with SciPy's assignment solver alone, on the same matrix in the same run.
"""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

pytest.importorskip("scipy")

from scipy.optimize import linear_sum_assignment

from metasched.laboratory.experiments.knapsacks import KnapsackCase, meet_instances, solve_instance
from metasched.laboratory.experiments.pass_times import (
    BEGIN,
    PassTimesCase,
    full_queue,
    milliseconds,
)
from metasched.laboratory.simulate.manager import SimulatedManager
from metasched.policies.local.convergent.knapsack import choose_exact, choose_greedy
from metasched.policies.local.convergent.matching import match_incremental, match_optimal
from metasched.policies.local.convergent.policies import OptimalConvergent
from metasched.policies.local.convergent.weights import (
    INCREMENTAL,
    OPTIMAL,
    PREEMPTIVE_INCREMENTAL,
    PREEMPTIVE_OPTIMAL,
)
from metasched.policies.local.queueing import FreeResources
from tests.bench.conftest import Record

ROUNDS = 7
SMALL, LARGE = 1000, 10_000  # jobs
TRIVIAL = 100.0  # milliseconds of the exact knapsack


def solver_time(manager: SimulatedManager) -> float:
    """Return milliseconds of SciPy's solver on the matrix of all jobs and machines."""
    sizes = tuple(machine.cpus for machine in manager.cluster.machines)
    free = FreeResources(sum(sizes), manager.cluster.licences, sizes, shared=False)
    policy = OptimalConvergent(licences=manager.cluster.licences)
    matrix = policy.preferences(BEGIN, list(manager.queue.values()), free)
    matrix = np.where(matrix > -np.inf, matrix + 1e5, 0.0)
    times = [
        milliseconds(lambda: linear_sum_assignment(matrix, maximize=True)) for _ in range(ROUNDS)
    ]
    return min(times)


@pytest.mark.bench
@pytest.mark.cpu
@pytest.mark.parametrize("name", [OPTIMAL, INCREMENTAL, PREEMPTIVE_OPTIMAL, PREEMPTIVE_INCREMENTAL])
@pytest.mark.parametrize("jobs", [SMALL, LARGE])
def test_plan(jobs: int, name: str, record: Record) -> None:
    """With preemption an event matches queued and running jobs to all machines.

    The time of an event is the median of nine endings or arrivals, and of all rounds.
    EDF has a pass over the same queue as a peer, as in Figure 24 of the thesis.
    """
    passes = [PassTimesCase(jobs, name).run(1) for _ in range(ROUNDS)]
    edf = min(PassTimesCase(jobs, "edf").run(1).new for _ in range(ROUNDS))
    peers = {"SciPy's solver": solver_time(full_queue(jobs, OPTIMAL)), "EDF": edf}
    targets = ("at most 25 ms", "at most 3 ms") if jobs == SMALL else ("", "")
    label = f"{jobs:,} jobs, 150 machines" + ("" if name == OPTIMAL else f", {name}")
    new = min(times.new for times in passes)
    record(f"plan of {label}", new, "ms", target=targets[0], peers=peers)
    for event, values in (
        ("ending", [times.ending for times in passes]),
        ("arrival", [times.arrival for times in passes]),
    ):
        time = median(values)
        record(f"after an {event}, {label}", time, "ms", target=targets[1], peers=peers)


@pytest.mark.bench
@pytest.mark.cpu
@pytest.mark.parametrize("jobs", [SMALL, LARGE])
def test_matching_after_an_arrival(jobs: int, record: Record) -> None:
    """The incremental matching against a new one, with all machines in the matrix."""
    manager = full_queue(jobs, OPTIMAL)
    sizes = tuple(machine.cpus for machine in manager.cluster.machines)
    free = FreeResources(sum(sizes), manager.cluster.licences, sizes, shared=False)
    queue = list(manager.queue.values())
    policy = OptimalConvergent(licences=manager.cluster.licences)
    previous = match_optimal(policy.preferences(BEGIN, queue[:-1], free), {})
    matrix = policy.preferences(BEGIN + 5, queue, free)
    fresh = [milliseconds(lambda: match_optimal(matrix, {})) for _ in range(ROUNDS)]
    repaired = [milliseconds(lambda: match_incremental(matrix, previous)) for _ in range(ROUNDS)]
    assert len(match_incremental(matrix, previous)) == len(match_optimal(matrix, {}))
    peers = {"new matching": min(fresh)}
    record(f"matching after an arrival, {jobs:,} jobs", min(repaired), "ms", peers=peers)


@pytest.mark.bench
@pytest.mark.cpu
def test_knapsack(record: Record) -> None:
    """Times of the greedy knapsack and of HiGHS on instances of Table 5 that are not trivial."""
    instances = meet_instances(KnapsackCase(40, 45).scenario(1))
    greedy, exact, shares = [], [], []
    for instance in instances:
        exact_time = milliseconds(lambda instance=instance: choose_exact(*instance))  # type: ignore[misc]
        if exact_time >= TRIVIAL:
            exact.append(exact_time)
            greedy.append(milliseconds(lambda instance=instance: choose_greedy(*instance)))  # type: ignore[misc]
            shares.append(solve_instance(instance).value)
    label = f"knapsack of 40 licences, {len(exact)} instances"
    record(f"{label}: greedy / exact", float(np.mean(shares)), "%", target="at least 97 %")
    record(f"{label}: time", float(np.mean(greedy)), "ms", peers={"HiGHS": float(np.mean(exact))})
