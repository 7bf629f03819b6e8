"""Convergent Scheduling over random events: what a policy keeps decides as a new policy would."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("scipy")

from metasched.policies.local.convergent.weights import (
    GREEDY,
    INCREMENTAL,
    OPTIMAL,
    PREEMPTIVE_INCREMENTAL,
    PREEMPTIVE_OPTIMAL,
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
from metasched.simulate.manager import SimulatedManager
from metasched.simulate.preemptive_manager import PreemptiveManager
from metasched.simulate.synthetic import CONVERGENT, TWO_LEVEL
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
