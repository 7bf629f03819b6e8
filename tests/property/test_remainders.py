"""Remainders of arrays change no decision and no story: a core without them decides alike."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from metasched.core.array_remainder import Remainder, range_of, run_length, runs_of
from metasched.core.events import (
    CoreEvent,
    DaemonStarted,
    JobSubmitted,
    Outcome,
    UserRequested,
)
from metasched.core.recovered_state import RecoveredState
from metasched.core.scheduler import Core
from metasched.model.cluster import Cluster
from metasched.model.job import Job
from metasched.model.limits import LimitSettings, LimitTable
from metasched.policies.policy import Policy
from tests.harness.examples import examples
from tests.property.core_rules import Deeds

indices = st.sets(st.integers(0, 60))
CLUSTERS = (Cluster(name="left", adapter="local"),)
MINIMUM = 2  # tasks of an array that has a remainder here


def expanded(runs: list[tuple[int, int, int]]) -> list[int]:
    return [index for run in runs for index in range_of(run)]


@given(indices, indices, st.integers(1, 4))
def test_runs_hold_the_same_indices_as_a_set(own: set[int], others: set[int], step: int) -> None:
    runs = list(runs_of(sorted(own)))
    assert expanded(runs) == sorted(own)
    assert sum(map(run_length, runs)) == len(own)
    remainder = Remainder(Job(id=1, submitted=0.0, user="a", estimated=1.0), runs, 1, 0.0)
    assert len(remainder) == len(own)
    assert {index for index in range(61) if index in remainder} == own
    for selected in (sorted(others), range(3, 50, step)):
        common = [index for part in remainder.members(selected) for index in part]
        assert sorted(common) == sorted(own & set(selected))
    remainder.remove(sorted(own & others))
    assert expanded(remainder.runs) == sorted(own - others)


def task_states(core: Core) -> dict[tuple[int, int], tuple[Any, ...]]:
    """Return state, reason, priority and attempts of each open task."""
    states: dict[tuple[int, int], tuple[Any, ...]] = {
        key: (task.state, task.reason, task.held, task.priority, task.attempts)
        for key, task in core.tasks.items()
    }
    for job_id, rest in core.remainders.items():
        for index in expanded(rest.runs):
            assert (job_id, index) not in states
            states[job_id, index] = (rest.state, rest.reason, rest.held, rest.priority, 0)
    return states


def story_lines(outcome: Outcome) -> Iterator[tuple[Any, ...]]:
    """Yield a line for each task of the stories in an outcome."""
    for line in outcome.changes:
        last = line.index if line.run_last is None else line.run_last
        for index in range(line.index, last + 1, line.run_step):
            yield (
                *(line.job, index, line.attempt, str(line.event), str(line.before)),
                *(line.after, str(line.cluster), line.reason, line.cause),
            )


class Compared(Deeds):
    """Each event goes to a core without remainders and to a core with them."""

    def begin(self, policy: Policy, fences: Sequence[str]) -> None:
        super().begin(policy, fences)
        self.with_remainders = Core(remainder_minimum=MINIMUM)

    def booted(self, max_priority: int = 10) -> DaemonStarted:
        """Count the tasks of each user; the limits are never reached."""
        limits = LimitSettings(each_user=LimitTable(open_tasks=1000, queued=1000))
        return structs.replace(super().booted(max_priority), limits=limits)

    def restored(self) -> Core:
        plain, former = self.core, self.with_remainders
        self.core = former
        self.with_remainders = super().restored()
        remainders = self.with_remainders._remainders
        remainders._minimum = remainders._min_mean_run = MINIMUM
        self.with_remainders.remainders.update(copy.deepcopy(former.remainders))
        self.core = plain
        return super().restored()

    def decide(self, event: CoreEvent) -> Outcome:
        outcome, compared = super().decide(event), self.with_remainders.step(event)
        assert compared.actions == outcome.actions
        assert compared.leases == outcome.leases
        assert compared.limit_changes == outcome.limit_changes
        assert compared.limit_uses == outcome.limit_uses
        assert task_states(self.with_remainders) == task_states(self.core)
        assert sorted(story_lines(compared)) == sorted(story_lines(outcome))
        assert self.with_remainders.next_due == self.core.next_due
        for job_id in {job_id for job_id, _ in self.core.tasks}:
            assert self.with_remainders.count_open(job_id) == self.core.count_open(job_id)
        return outcome


def test_a_checkpoint_keeps_remainders() -> None:
    core = Core(remainder_minimum=MINIMUM)
    core.step(DaemonStarted(1.0, "cafe", Policy(), CLUSTERS))
    job = Job(id=1, submitted=1.0, user="a", estimated=1.0, array="1-9:2,20", held=True)
    core.step(JobSubmitted(1.0, job))
    rest = core.remainders[1]
    assert (rest.runs, list(core.open_tasks[1])) == ([(3, 9, 2), (20, 20, 1)], [1])
    recovered = RecoveredState(
        tasks=[], last_dispatches={}, info={}, margins=[], drains=[], remainders=[rest]
    )
    assert RecoveredState.unpack(recovered.pack()).remainders == [rest]


def test_tasks_of_many_short_runs_become_single() -> None:
    """Each change of a remainder stores all its runs, so they are few."""
    core = Core()
    core.step(DaemonStarted(1.0, "cafe", Policy(), CLUSTERS))
    job = Job(id=1, submitted=1.0, user="a", estimated=1.0, array="0-1999", held=True)
    core.step(JobSubmitted(1.0, job))
    core.step(UserRequested(2.0, "cancel", 1, tuple(range(1000, 2000, 2))))
    assert core.remainders[1].runs == [(1, 999, 1), (1001, 1999, 2)]
    named = tuple(index for index in range(100, 900) if index % 10 < 5 and index % 3)
    outcome = core.step(UserRequested(3.0, "cancel", 1, named))
    assert not outcome.cancelled_runs
    assert {index for _, index in outcome.tasks} >= set(named)
    assert core.count_open(1) == 1500 - len(named)
    assert 1 not in core.remainders


TestCompared = Compared.TestCase
TestCompared.settings = examples(100, steps=40)
