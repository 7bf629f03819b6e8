"""Convergent Scheduling over random events: what a policy keeps decides as a new policy would."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("scipy")

from metasched.laboratory.simulate.manager import SimulatedManager
from metasched.laboratory.simulate.preemptive_manager import PreemptiveManager
from metasched.laboratory.simulate.synthetic import CONVERGENT, TWO_LEVEL
from metasched.policies.local.convergent.heuristics import (
    MatrixHeuristic,
    RowContributions,
    default_heuristics,
)
from metasched.policies.local.convergent.policies import PreemptiveOptimalConvergent
from metasched.policies.local.convergent.preferences import Preferences
from metasched.policies.local.convergent.table import FloatArray, JobMachineView
from metasched.policies.local.convergent.weights import (
    GREEDY,
    INCREMENTAL,
    OPTIMAL,
    PREEMPTIVE_INCREMENTAL,
    PREEMPTIVE_OPTIMAL,
    ConvergentWeights,
)
from metasched.policies.local.preemption import Changes, PreemptibleJob, PreemptivePolicy
from metasched.policies.local.queueing import (
    FreeResources,
    JobStart,
    LocalPolicy,
    RunningJob,
    WaitingJob,
)
from metasched.policies.local.registry import make_policy
from tests.harness.examples import examples

# of a policy: the one that it must equal. The least difference of two sums that the incremental
# matching distinguishes is 1e-6, which no two plans of these jobs have.
FRESH = {
    OPTIMAL: OPTIMAL,
    INCREMENTAL: OPTIMAL,
    GREEDY: GREEDY,
    PREEMPTIVE_OPTIMAL: PREEMPTIVE_OPTIMAL,
    PREEMPTIVE_INCREMENTAL: PREEMPTIVE_OPTIMAL,
}
JOBS = 80
FEW = replace(CONVERGENT, machines=(7,), licences=4, jobs=JOBS, inter_arrival=10)
SHARED = replace(TWO_LEVEL, machines=(5,), licences=3, jobs=JOBS, inter_arrival=50)


class Compared(PreemptivePolicy):
    """A policy that keeps its arrays, and a new one that has the same input."""

    name = "compared"

    def __init__(self, name: str, licences: dict[str, int]) -> None:
        self._kept, self._fresh_name, self._licences = (
            make_policy(name, licences=licences),
            FRESH[name],
            licences,
        )

    def _fresh(self) -> LocalPolicy:
        return make_policy(self._fresh_name, licences=self._licences)

    def choose_changes(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[PreemptibleJob],
        free: FreeResources,
    ) -> Changes:
        kept, fresh = self._kept, self._fresh()
        assert isinstance(kept, PreemptivePolicy)
        assert isinstance(fresh, PreemptivePolicy)
        changes = kept.choose_changes(now, queue, running, free)
        again = fresh.choose_changes(now, queue, running, free)
        assert sorted(changes.suspended) == sorted(again.suspended)
        assert sorted(changes.starts) == sorted(again.starts)
        return changes

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        starts = self._kept.choose_starts(now, queue, running, free)
        again = self._fresh().choose_starts(now, queue, running, free)
        assert sorted(starts) == sorted(again)
        return starts


@examples(40)
@given(
    name=st.sampled_from(list(FRESH)),
    shared=st.booleans(),
    seed=st.integers(1, 1000),
    events=st.lists(
        st.tuples(
            st.sampled_from(["arrival", "arrivals", "ending", "overrun", "withdrawal", "change"]),
            st.integers(0, 100),
        ),
        min_size=15,
        max_size=60,
    ),
)
def test_kept_arrays_decide_as_new_ones(
    name: str, shared: bool, seed: int, events: list[tuple[str, int]]
) -> None:
    workload, (cluster,) = (SHARED if shared else FEW).generate("events", seed)
    policy = Compared(name, dict(cluster.licences))
    preemptive = name in (PREEMPTIVE_OPTIMAL, PREEMPTIVE_INCREMENTAL)
    manager = (PreemptiveManager if preemptive else SimulatedManager)(cluster, policy)
    # a few drawn jobs fit no machine; metasched sends none of these
    entries, now = [each for each in workload.entries if manager.can_run(each.job)], 0.0
    for kind, number in [("arrivals", 0), ("arrivals", 0), *events]:
        if kind.startswith("arrival"):
            for entry in entries[: 8 if kind == "arrivals" else 1]:
                manager.submit(entry.job, 1, entry.run_time, entry.inputs)
                now = max(now, entry.job.submitted)
                entries.remove(entry)
        elif kind == "withdrawal" and manager.queue:
            manager.withdraw(list(manager.queue)[number % len(manager.queue)])
        elif kind == "change" and manager.queue:
            job = list(manager.queue.values())[number % len(manager.queue)]
            run_times = {machine: t * (1 + number / 99) for machine, t in job.machines.items()}
            deadline = None if number % 3 == 0 else now + 30.0 * number
            manager.queue[job.id] = job._replace(machines=run_times, deadline=deadline)
        elif manager.running:
            # no two jobs outlast their estimates at a time: both would have a second left, a tie
            running = sorted(manager.running.values(), key=lambda job: job.end)
            if kind == "overrun":
                ended = running[0]
                now = max(now, (ended.end + running[min(1, len(running) - 1)].end) / 2)
            else:
                ended, now = running[number % len(running)], min(running[0].end, now + number)
            manager.end_job(ended.id)
        manager.run_policy(now)


class Even(MatrixHeuristic):
    """Forbids every other machine to every third job, so it has a value for each pair."""

    name = "even"

    def contribution(self, view: JobMachineView) -> FloatArray:
        forbidden = (view.rows[:, np.newaxis] % 3 == 0) & (view.machines % 2 == 0)
        return np.where(forbidden, -np.inf, 0.5)


class Rare(MatrixHeuristic):
    """Forbids all machines to some jobs, without regard to machines."""

    name = "rare"

    def contribution(self, view: JobMachineView) -> FloatArray:
        return np.where(view.rows % 5 == 0, -np.inf, 1.0)[:, np.newaxis]


class Short(MatrixHeuristic):
    """Prefers jobs whose longest run time is short; what is left of a running job counts."""

    name = "short"
    lasting = True

    def contribution(self, view: JobMachineView) -> FloatArray:
        return (1 / view.longest + 1 / view.shortest)[:, np.newaxis]


class Checked(PreemptiveOptimalConvergent):
    """A policy that compares what it sums when it is needed with the whole matrix."""

    passes = 0

    def _preferences(self, view: JobMachineView) -> Preferences:
        result = super()._preferences(view)
        contributions = [each.contribution(view) for each in self.heuristics]
        matrix = np.zeros(view.shape)
        for each in contributions:
            matrix = matrix + (
                each.dense(view.shape) if isinstance(each, RowContributions) else each
            )
        rows = np.arange(len(matrix))
        assert result.take(rows) == pytest.approx(matrix, rel=1e-9)
        picked = rows[1::2][::-1]
        assert result.take(picked) == pytest.approx(matrix[picked], rel=1e-9)
        possible = np.isfinite(matrix)
        sums = np.where(possible, matrix, 0.0).sum(axis=1)
        counts = possible.sum(axis=1)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf)
        assert result.means == pytest.approx(means, rel=1e-9)
        self.passes += 1
        return result


@pytest.mark.parametrize(
    "added", [[], [Even()], [Rare()], [Short()]], ids=["thesis", "pairs", "jobs", "lasting"]
)
def test_rows_that_are_summed_when_needed_are_those_of_the_matrix(
    added: list[MatrixHeuristic],
) -> None:
    workload, (cluster,) = FEW.generate("rows", 1)
    heuristics = [*default_heuristics(ConvergentWeights()), *added]
    policy = Checked(licences=dict(cluster.licences), heuristics=heuristics)
    manager = PreemptiveManager(cluster, policy)
    entries = [each for each in workload.entries if manager.can_run(each.job)]
    for entry in entries:
        manager.submit(entry.job, 1, entry.run_time, entry.inputs)
        manager.run_policy(entry.job.submitted)
        if entry.job.id % 3 == 0 and manager.running:
            ended = min(manager.running.values(), key=lambda job: job.end)
            manager.end_job(ended.id)
            manager.run_policy(entry.job.submitted + 1)
    assert policy.passes > len(entries)
