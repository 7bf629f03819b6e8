"""Load and Ordering: after any operations the arrays equal a recount, and choices follow them."""

from __future__ import annotations

import math

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metasched.model.job import Job
from metasched.policies.dispatch import LoadOrdering

CLUSTERS = ["big", "mid", "small"]
priorities = st.integers(1, 4)


class Arrays(RuleBasedStateMachine):
    """Random assignments and departures, compared with a plain list of queued jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.dispatch = LoadOrdering(CLUSTERS, max_priority=4, tolerance=0.05)
        self.queued: list[tuple[str, Job, int]] = []
        self.issued = 0

    @rule(
        cluster=st.sampled_from(CLUSTERS),
        priority=priorities,
        # a few fixed values besides any float, so that ties occur
        estimated=st.sampled_from([10.0, 0.1]) | st.floats(1e-6, 1e12),
        benchmark=st.sampled_from([1.0, 0.3, 300.0]),
    )
    def assign(self, cluster: str, priority: int, estimated: float, benchmark: float) -> None:
        self.issued += 1
        job = Job(id=self.issued, submitted=0, estimated=estimated, benchmark=benchmark)
        self.dispatch.assigned(cluster, job, priority)
        self.queued.append((cluster, job, priority))

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.queued) - 1))
        self.dispatch.left_queue(*self.queued.pop(index))

    @rule(cluster=st.sampled_from(CLUSTERS), priority=priorities)
    def leave_without_having_come(self, cluster: str, priority: int) -> None:
        stranger = Job(id=0, submitted=0, estimated=1e18)
        with pytest.raises(ValueError, match="never assigned"):
            self.dispatch.left_queue(cluster, stranger, priority)

    @rule(priority=priorities, eligible=st.sets(st.sampled_from(CLUSTERS), min_size=1))
    def choose(self, priority: int, eligible: set[str]) -> None:
        chosen = self.dispatch.choose(Job(id=1, submitted=0, estimated=1), priority, eligible)
        loads = {cluster: self.load(cluster, priority) for cluster in CLUSTERS}
        idle = [c for c in CLUSTERS if c in eligible and loads[c] == 0]
        if idle:
            assert chosen == idle[0]
            return
        near = min(loads[c] for c in eligible) * 1.05
        equal = [c for c in eligible if loads[c] <= near]
        assert chosen in equal
        assert self.count(chosen, priority) == min(self.count(c, priority) for c in equal)

    @invariant()
    def arrays_equal_a_recount(self) -> None:
        for cluster in CLUSTERS:
            assert self.dispatch.load(cluster) == [self.load(cluster, p) for p in range(1, 5)]
            assert self.dispatch.count(cluster) == [self.count(cluster, p) for p in range(1, 5)]

    def load(self, cluster: str, least: int) -> float:
        return math.fsum(
            job.estimated * job.benchmark
            for where, job, priority in self.queued
            if where == cluster and priority >= least
        )

    def count(self, cluster: str, least: int) -> int:
        return sum(where == cluster and priority >= least for where, _, priority in self.queued)


TestArrays = Arrays.TestCase
