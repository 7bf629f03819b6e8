"""Remainders of arrays change no decision and no story: a core without them decides alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from msgspec import structs

from metasched.core import array_remainder
from metasched.core.array_remainder import (
    MAX_RUNS,
    IndexRun,
    Remainder,
    RunChanges,
    range_of,
    run_length,
    runs_of,
)
from metasched.core.events import (
    CoreEvent,
    DaemonStarted,
    JobSubmitted,
    Outcome,
    UserRequested,
)
from metasched.core.recovered_state import RecoveredState
from metasched.core.scheduler import Core
from metasched.core.tasks import Task
from metasched.model.cluster import Cluster
from metasched.model.job import Job
from metasched.model.limits import LimitSettings, LimitTable
from metasched.policies.policy import Policy
from tests.harness.examples import examples
from tests.property.core_model import KINDS
from tests.property.core_rules import BEGINNING, Deeds

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
    stored = {run[0]: run for run in runs}
    apply(remainder.remove(sorted(own & others)), stored)
    assert expanded(remainder.runs) == sorted(own - others)
    assert sorted(stored.values()) == remainder.runs


@given(indices, st.lists(indices, max_size=4), st.integers(0, 6), st.integers(1, 4))
def test_runs_are_few_or_long(
    own: set[int], removed: list[set[int]], most: int, short: int
) -> None:
    """A request that names tasks makes few others single."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(array_remainder, "MAX_RUNS", most)
        patched.setattr(array_remainder, "SHORT_RUN", short)
        runs = list(runs_of(sorted(own)))
        remainder = Remainder(Job(id=1, submitted=0.0, user="a", estimated=1.0), runs, 1, 0.0)
        stored, remaining = {run[0]: run for run in runs}, set(own)
        for others in removed:
            apply(remainder.remove(sorted(remaining & others)), stored)
            before = len(remainder.runs)
            dropped, changes = remainder.drop_short_runs()
            apply(changes, stored)
            remaining -= others | set(expanded(dropped))
            assert len(dropped) <= max(before - most, 0)
            assert all(run_length(run) < short for run in dropped)
            is_few = len(remainder.runs) <= most
            assert is_few or all(run_length(run) >= short for run in remainder.runs)
            assert expanded(remainder.runs) == sorted(remaining)
            assert sorted(stored.values()) == remainder.runs


def apply(changes: RunChanges, stored: dict[int, IndexRun]) -> None:
    """Change stored runs, by first index."""
    for first, run in changes.items():
        if run is None:
            stored.pop(first, None)
        else:
            assert run[0] == first
            stored[first] = run


def task_states(
    core: Core, with_reasons: bool, limited: bool = False
) -> dict[tuple[int, int], tuple[Any, ...]]:
    """Return state, priority, attempts and perhaps the reason of each open task.

    If the site is `limited`, a task may wait for licences and a limit: either is its reason.
    """

    def described(task: Task | Remainder, attempts: int) -> tuple[Any, ...]:
        reason = task.reason if with_reasons and not (limited and task.job.licences) else None
        return task.state, reason, task.held, task.priority, attempts

    states = {key: described(task, task.attempts) for key, task in core.tasks.items()}
    for job_id, rest in core.remainders.items():
        for index in expanded(rest.runs):
            assert (job_id, index) not in states
            states[job_id, index] = described(rest, 0)
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
    """Each event goes to a core without remainders and to a core with them.

    Managers take few tasks of a user, and most jobs are arrays, so that remainders are queued.
    """

    def begin(self, policy: Policy, fences: Sequence[str]) -> None:
        super().begin(policy, fences)
        self.with_remainders = Core(remainder_minimum=MINIMUM)
        self.stored: dict[int, dict[int, IndexRun]] = {}  # runs by first index, of each job

    def booted(self, max_priority: int = 10) -> DaemonStarted:
        """Let few tasks be on the way to a manager, wait there and be dispatched."""
        event = super().booted(max_priority)
        clusters = tuple(
            structs.replace(cluster, max_unanswered=3, queue_depth=4) for cluster in event.clusters
        )
        return structs.replace(event, clusters=clusters, limits=self.limits)

    @initialize(
        **BEGINNING,
        dispatched=st.sampled_from([None, 2, 5]),
        waiting=st.lists(st.sampled_from([{}, {}, {"a": 1}, {"c": 1}]), max_size=3),
    )
    def boot(self, dispatched: int | None, waiting: list[dict[str, int]], **beginning: Any) -> None:
        """Submit an array for each of `waiting`, of both users in turn, with these licences.

        Count the tasks of each user; admission limits are never reached.
        """
        self.limited = dispatched is not None
        table = LimitTable(open_tasks=10_000, queued=10_000, dispatched=dispatched)
        self.limits = LimitSettings(each_user=table)
        super().boot(**beginning)
        for number, licences in enumerate(waiting):
            name = ("mine", "yours")[number % 2]
            self.submit_array("0-29", 1, None, False, name, licences, None, False, None)
        while self.actions:
            self.act(None, "done")

    @rule(
        array=st.sampled_from(["0-29", "1-20:2", "1-9,11-19,30", "1-15%2", "3-30:3%5"]),
        cpus=st.sampled_from([1, 1, 2]),
        begin=st.sampled_from([None, None, None, 20.0]),
        held=st.sampled_from([False, False, False, True]),
        name=st.sampled_from(["mine", "yours"]),
        licences=st.sampled_from([{}, {}, {}, {"a": 1}]),
        dependency_type=st.sampled_from([None, None, *KINDS, "aftercorr"]),
        kill=st.booleans(),
        data=st.data(),
    )
    def submit_array(
        self,
        array: str,
        cpus: int,
        begin: float | None,
        held: bool,
        name: str,
        licences: dict[str, int],
        dependency_type: str | None,
        kill: bool,
        data: Any,
    ) -> None:
        """Submit an array of more tasks than the managers take; it may depend on another job."""
        dependency = dependency_type and self.some_term(dependency_type, array, data)
        job = Job(
            id=len(self.jobs) + 1,
            submitted=self.now,
            user=self.users[name],
            estimated=100.0,
            cpus=cpus,
            tasks=cpus,
            begin=None if begin is None else self.now + begin,
            held=held,
            name=name,
            licences=licences,
            array=array,
            dependency=dependency,
            kill_on_invalid_dep=kill,
        )
        self.submit_job(job)

    @rule(
        data=st.data(),
        action=st.sampled_from(["cancel", "hold", "hold", "release"]),
        named=st.sampled_from(["first", "some", "half"]),
    )
    def ask_for_tasks_of_a_remainder(self, data: st.DataObject, action: Any, named: str) -> None:
        """Name the head of a remainder, or tasks in it."""
        remainders = self.with_remainders.remainders
        if not remainders:
            return
        job = data.draw(st.sampled_from(sorted(remainders)))
        own = expanded(remainders[job].runs)
        match named:
            case "first":
                indices = sorted(self.with_remainders.state.open_tasks.get(job, {}))[-1:]
            case "some":
                indices = sorted(data.draw(st.sets(st.sampled_from(own), min_size=1)))
            case _:
                indices = own[len(own) // 2 :]
        if action == "cancel":
            self.cancelled |= {(job, index) for index in indices}
        self.step(UserRequested(self.now, action, job, tuple(indices), by="ada"))

    def store_runs(self, outcome: Outcome) -> None:
        """Store the changes of runs: all runs are stored then."""
        for job_id, remainder in outcome.remainders.items():
            apply(outcome.run_changes.get(job_id, {}), self.stored.setdefault(job_id, {}))
            if remainder is None:
                del self.stored[job_id]
        remainders = self.with_remainders.remainders
        assert {id: sorted(runs.values()) for id, runs in self.stored.items()} == {
            id: remainder.runs for id, remainder in remainders.items()
        }

    def restored(self) -> Core:
        former = self.with_remainders
        self.with_remainders = self.restore_from(former, Core(remainder_minimum=MINIMUM))
        return super().restored()

    def decide(self, event: CoreEvent) -> Outcome:
        outcome, compared = super().decide(event), self.with_remainders.step(event)
        assert compared.actions == outcome.actions
        assert compared.leases == outcome.leases
        assert compared.limit_changes == outcome.limit_changes
        # by scope: a start counts single tasks before remainders
        uses, expected_uses = compared.limit_uses or [], outcome.limit_uses or []
        assert sorted(uses, key=str) == sorted(expected_uses, key=str)
        # a group that leaves the line of a limit gets its reasons in the next step, a run at once
        reasons_follow = self.core._gates.ineligible.has_unfinished_work
        states, expected = (
            task_states(core, not reasons_follow, self.limited)
            for core in (self.with_remainders, self.core)
        )
        assert states == expected
        if not self.limited:
            assert sorted(story_lines(compared)) == sorted(story_lines(outcome))
            assert self.with_remainders.next_due == self.core.next_due
        self.store_runs(compared)
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
    """Each change of a remainder writes a line of the story for each run, so they are few."""
    core = Core()
    core.step(DaemonStarted(1.0, "cafe", Policy(), CLUSTERS))
    size = 20 * MAX_RUNS
    job = Job(id=1, submitted=1.0, user="a", estimated=1.0, array=f"0-{size - 1}", held=True)
    core.step(JobSubmitted(1.0, job))
    half = size // 2
    core.step(UserRequested(2.0, "cancel", 1, tuple(range(half, size, 2))))
    assert core.remainders[1].runs == [(1, half - 1, 1), (half + 1, size - 1, 2)]
    named = tuple(index for index in range(100, half - 100) if index % 10 < 5 and index % 3)
    outcome = core.step(UserRequested(3.0, "cancel", 1, named))
    assert not outcome.cancelled_runs
    assert {index for _, index in outcome.tasks} >= set(named)
    assert core.count_open(1) == half + size // 4 - len(named)
    runs = core.remainders[1].runs
    assert len(runs) == MAX_RUNS
    assert {(1, 99, 1), (half + 1, size - 1, 2)} < set(runs)
    singles = {index for _, index in core.tasks}
    assert singles | set(expanded(runs)) == set(range(half)) - set(named) | set(
        range(half + 1, size, 2)
    )


TestCompared = pytest.mark.slow("a hundred lives, each in two cores")(Compared.TestCase)
TestCompared.settings = examples(100, steps=40)
