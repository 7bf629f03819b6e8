"""Dependencies: parsing, when each kind is met, and their effect in the core."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from metasched.core.dependency_status import (
    DependencyStatus,
    TargetProgress,
    TargetSummary,
    TermStatus,
    combine_statuses,
)
from metasched.core.dependency_tracker import DependencyTracker
from metasched.core.dependent_jobs import DependentJob
from metasched.core.events import (
    Dispatch,
    DispatchRejected,
    DispatchStarted,
    JobRequeued,
    JobSubmitted,
    RequeuedTask,
    TimerExpired,
    UserRequested,
)
from metasched.core.gates import SchedulingGates
from metasched.core.tasks import Task
from metasched.errors import ParseError
from metasched.model.dependencies import (
    Dependency,
    DependencyTarget,
    DependencyTerm,
    parse_dependency,
)
from metasched.model.job import Reason, State
from tests.unit.core_site import NOW, Site, job

WAIT, MET, NEVER = (
    DependencyStatus.WAITING,
    DependencyStatus.SATISFIED,
    DependencyStatus.NEVER_SATISFIED,
)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("afterok:12", Dependency((DependencyTerm("afterok", DependencyTarget(12)),))),
        (
            "afterok:12:13,AfterAny:14_3",
            Dependency(
                (
                    DependencyTerm("afterok", DependencyTarget(12)),
                    DependencyTerm("afterok", DependencyTarget(13)),
                    DependencyTerm("afterany", DependencyTarget(14, 3)),
                )
            ),
        ),
        (
            "after:12+5?singleton",
            Dependency(
                (DependencyTerm("after", DependencyTarget(12), 300.0), DependencyTerm("singleton")),
                any_term=True,
            ),
        ),
        ("afterok:7:7", Dependency((DependencyTerm("afterok", DependencyTarget(7)),))),
    ],
)
def test_what_is_read(text: str, read: Dependency) -> None:
    assert parse_dependency(text) == read
    assert parse_dependency(("?" if read.any_term else ",").join(map(str, read.terms))) == read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", '"" in "" is no dependency'),
        ("12", '"12" in "12" is no dependency'),
        ("afterok", "is no job to wait for"),
        ("afterok:0", "is no job to wait for"),
        ("afterok:12_[1-3]", "is no job to wait for"),
        ("afterok:12+5", '"12+5" in "afterok:12+5" is no delay; write after:12+5'),
        ("after:12+x", "is no delay; write after:12+5, for minutes after its start"),
        ("singleton:12", '"singleton" in "singleton:12" is no dependency'),
        ("afterok:1,after:2?after:3", "both , and"),
        ("afterok:" + ":".join(map(str, range(1, 1002))), "more than 1000"),
    ],
)
def test_what_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=re.escape(message)):
        parse_dependency(text)


@pytest.mark.parametrize(
    ("ok", "bad", "begun", "prospects"),
    [
        #                     after afterany afterok afternotok
        ("", "", 0, (WAIT, WAIT, WAIT, WAIT)),
        ("", "", 3, (MET, WAIT, WAIT, WAIT)),
        ("1", "2", 3, (MET, WAIT, NEVER, WAIT)),
        ("1-3", "", 3, (MET, MET, MET, NEVER)),
        ("1,3", "2", 3, (MET, MET, NEVER, MET)),
    ],
)
def test_when_each_kind_has_come(
    ok: str, bad: str, begun: int, prospects: tuple[DependencyStatus, ...]
) -> None:
    target = DependencyTarget(12)
    progress = TargetProgress.from_summary(
        TargetSummary(target, 3, array=True, succeeded=ok, failed=bad, last_start=NOW)
    )
    for index in range(1, begun + 1):
        if index not in progress.start_times:
            progress.update(index, None, NOW)
    conditions = ("after", "afterany", "afterok", "afternotok")
    matches = tuple(
        progress.status_and_due(DependencyTerm(condition, target), None, NOW)[0]
        for condition in conditions
    )
    assert matches == prospects


def test_task_by_task() -> None:
    progress = TargetProgress.from_summary(
        TargetSummary(DependencyTarget(12), 3, array=True, succeeded="1", failed="2")
    )
    term = DependencyTerm("aftercorr", DependencyTarget(12))
    assert [progress.status_and_due(term, index, NOW)[0] for index in (1, 2, 3)] == [
        MET,
        NEVER,
        WAIT,
    ]
    assert progress.status_and_due(term, None, NOW)[0] is NEVER  # a plain job: as afterok
    progress.update(2, None, None)  # task 2 was requeued
    assert progress.status_and_due(term, 2, NOW)[0] is WAIT


def test_a_delay_counts_from_the_last_start() -> None:
    progress = TargetProgress(DependencyTarget(12), 2)
    progress.update(0, None, NOW)
    progress.update(1, None, NOW + 60)
    term = DependencyTerm("after", DependencyTarget(12), 300.0)
    assert progress.status_and_due(term, None, NOW + 300) == (WAIT, NOW + 360)
    assert progress.status_and_due(term, None, NOW + 360) == (MET, None)


def test_all_or_any() -> None:
    assert combine_statuses([MET, WAIT], any_of=False) is WAIT
    assert combine_statuses([MET, WAIT], any_of=True) is MET
    assert combine_statuses([NEVER, WAIT], any_of=False) is NEVER
    assert combine_statuses([NEVER, WAIT], any_of=True) is WAIT
    assert combine_statuses([NEVER, NEVER], any_of=True) is NEVER


def fate(id: int, size: int = 1, **fields: object) -> TargetSummary:
    return TargetSummary(DependencyTarget(id), size, **fields)  # type: ignore[arg-type]


def test_every_task_of_an_array_is_cancelled_that_can_never_begin() -> None:
    site = Site()
    hopeless = job(2, array="1-3", dependency="afterok:1", kill_on_invalid_dep=True)
    assert site.step(JobSubmitted(NOW, hopeless, (fate(1, failed="0"),))) == []
    assert [c.after for c in site.out.changes] == [State.QUEUED, State.CANCELLED] * 3
    assert site.out.changes[1].cause == "afterok:1 can never be met: 1 ended without success"
    assert not site.core.tasks


def test_what_can_never_come_waits_until_its_owner_decides() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(2, dependency="afterok:1"), (fate(1, failed="0"),)))
    assert (site.state(2), site.core.tasks[2, 0].reason) == (State.QUEUED, Reason.DEPENDENCY)
    assert "can never be met" in site.core.describe_dependencies(site.core.tasks[2, 0])
    site.step(UserRequested(NOW, "cancel", 2))
    assert not site.core.tasks


def test_hopelessness_spreads_along_a_chain() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(1, held=True)))
    for id in (2, 3):
        waits = job(id, dependency=f"afterok:{id - 1}", kill_on_invalid_dep=True)
        site.step(JobSubmitted(NOW, waits, (fate(id - 1),)))
    site.step(UserRequested(NOW, "cancel", 1))
    assert not site.core.tasks
    assert [c.job for c in site.out.changes if c.after is State.CANCELLED] == [1, 2, 3]


def test_a_chain_of_delays_is_due() -> None:
    site = Site()
    site.step(
        JobSubmitted(NOW, job(2, dependency="after:1+1"), (fate(1, succeeded="0", last_start=NOW),))
    )
    assert site.core.next_due == NOW + 60
    assert site.step(TimerExpired(NOW + 59)) == []
    assert [send.job for send in site.step(TimerExpired(NOW + 60))] == [2]  # type: ignore[union-attr]


def test_one_job_of_a_name_at_a_time() -> None:
    site = Site()
    for id in (1, 2, 3):
        alone = "singleton" if id > 1 else None
        site.step(JobSubmitted(NOW, job(id, name="solo", held=id == 1, dependency=alone)))
    site.step(JobSubmitted(NOW, job(4, name="other", dependency="singleton")))
    assert [site.state(id) for id in (2, 3, 4)] == [State.QUEUED, State.QUEUED, State.DISPATCHING]
    assert "job 1 of that name has not ended" in site.core.describe_dependencies(
        site.core.tasks[2, 0]
    )
    assert [send.job for send in site.step(UserRequested(NOW, "cancel", 1))] == [2]  # type: ignore[union-attr]
    assert site.state(3) is State.QUEUED


def test_a_slot_of_an_array_goes_to_its_next_task() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(1, array="1-9%2")))
    tasks = site.core.tasks

    def states() -> list[tuple[State, str]]:
        return [(task.state, task.reason) for task in site.core.tasks_of(1)]

    sent, waits = (State.DISPATCHING, ""), (State.QUEUED, Reason.LIMIT_ARRAY)
    assert states() == [sent] * 2 + [waits] * 7
    site.step(UserRequested(NOW, "cancel", 1, (3,)))  # task 3 had no slot
    assert states() == [sent] * 2 + [waits] * 6
    site.step(UserRequested(NOW, "hold", 1, (1,)))
    assert states() == [(State.HELD, Reason.HELD), sent, sent] + [waits] * 5
    assert tasks[1, 4].state is State.DISPATCHING
    site.step(UserRequested(NOW, "release", 1, (1,)))
    assert tasks[1, 1].reason == Reason.LIMIT_ARRAY
    site.step(UserRequested(NOW, "cancel", 1, (2,)))
    assert tasks[1, 1].state is State.DISPATCHING  # the queued task of the lowest index


@pytest.mark.parametrize("dependency", ["afterok:1", "afterany:1", "after:1+5", "aftercorr:1"])
def test_what_happens_to_one_task_concerns_few(
    dependency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, looked = 300, 0
    queued = SchedulingGates.enqueue

    def counted(gates: SchedulingGates, task: Task, now: float) -> DependencyStatus:
        nonlocal looked
        looked += 1
        return queued(gates, task, now)

    monkeypatch.setattr(SchedulingGates, "enqueue", counted)
    site = Site()
    site.step(JobSubmitted(NOW, job(1, array=f"1-{tasks}", held=True)))
    site.step(
        JobSubmitted(
            NOW, job(2, array=f"1-{tasks}", dependency=dependency), (fate(1, tasks, array=True),)
        )
    )
    for index in range(1, tasks + 1):
        site.step(UserRequested(NOW, "cancel", 1, (index,)))
    site.step(TimerExpired(NOW + 300))
    assert looked <= 4 * tasks
    gone = dependency in ("afterany:1", "after:1+5")
    assert {t.reason == Reason.DEPENDENCY for t in site.core.tasks_of(2)} == {not gone}


def test_a_task_that_must_wait_again_keeps_no_slot() -> None:
    site = Site()
    pairs = job(2, array="1-3%1", dependency="aftercorr:1", held=True)
    site.step(JobSubmitted(NOW, pairs, (fate(1, 3, array=True, succeeded="1-3"),)))
    for index in (2, 1, 3):
        site.step(UserRequested(NOW, "release", 2, (index,)))
    waits = [task.reason for task in site.core.tasks_of(2, (1, 2, 3))]
    assert waits == [Reason.LIMIT_ARRAY, "", Reason.LIMIT_ARRAY]
    again = (RequeuedTask(1, State.COMPLETED, 1),)
    site.step(JobRequeued(NOW, job(1, array="1-3", held=True), 1, 1, again))
    site.step(UserRequested(NOW, "cancel", 2, (2,)))
    assert site.core.tasks[2, 1].reason == Reason.DEPENDENCY
    assert site.core.tasks[2, 3].state is State.DISPATCHING


def test_what_waits_for_one_that_no_cluster_takes_goes_in_the_same_step() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(1, clusters=("left",))))
    site.step(JobSubmitted(NOW, job(2, dependency="afterany:1"), (fate(1),)))
    site.step(DispatchStarted(NOW, 1, 1))
    assert site.step(DispatchRejected(NOW, 1, 1, "never here")) == [Dispatch(2, 1, "left", (0,))]


def test_a_singleton_that_was_cancelled_unsent_and_is_requeued_waits_for_its_turn_again() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(1, name="x")))
    site.sent(1)
    single = job(2, name="x", dependency="singleton")
    site.step(JobSubmitted(NOW, single))
    site.step(UserRequested(NOW, "cancel", 2))
    site.step(JobRequeued(NOW, single, 1, 0, (RequeuedTask(0, State.CANCELLED, 0),)))
    assert site.core.tasks[2, 0].reason == Reason.DEPENDENCY
    [send] = site.seen("left", None, site.row(State.COMPLETED, started=NOW, ended=NOW + 1))
    assert isinstance(send, Dispatch)
    assert send.job == 2


def test_a_dependent_job_is_the_same_whichever_alternative_it_takes() -> None:
    """A restored core knows the last choice, one that continues the first."""
    tracker, choices = DependencyTracker(), ({"a": 1}, {"b": 1})
    for choice in choices:
        waits = job(2, dependency="afterok:1", licences=choice, licence_choices=choices)
        tracker.add_job(waits)
        tracker.track(waits, [TargetSummary(DependencyTarget(1), 1)], lambda _: [])
        tracker.update_progress(Task(job(1), 0, 1, 0.0, state=State.COMPLETED, ended=NOW))
        [(checked, concerns_all, counterparts)] = tracker.take_changes()
        assert (checked, concerns_all, counterparts) == (waits.with_licences(0), True, set())
        tracker.remove_job(waits)


@dataclass
class Counts:
    """Calls that evaluate terms or count them, since they were last taken."""

    evaluated: int = 0
    counted: int = 0

    def take(self) -> tuple[int, int]:
        taken = self.evaluated, self.counted
        self.evaluated = self.counted = 0
        return taken


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    calls, evaluate, count = Counts(), TargetProgress.status_for, DependentJob.recount

    def counted_evaluation(*values: Any) -> TermStatus:
        calls.evaluated += 1
        return evaluate(*values)

    def counted_count(*values: Any) -> bool:
        calls.counted += 1
        return count(*values)

    monkeypatch.setattr(TargetProgress, "status_for", counted_evaluation)
    monkeypatch.setattr(DependentJob, "recount", counted_count)
    return calls


def test_many_jobs_that_wait_for_the_same_many_cost_each_what_the_first_did(counts: Counts) -> None:
    targets, jobs = 60, 20
    site = Site()
    for id in range(1, targets + 1):
        site.step(JobSubmitted(NOW, job(id, held=True)))
    summaries = tuple(fate(id) for id in range(1, targets + 1))
    dependency = "afterany:" + ":".join(map(str, range(1, targets + 1)))
    counts.take()
    waiting = range(100, 100 + jobs)
    # the sentence in the story evaluates each term of the new job once
    for id in waiting:
        site.step(JobSubmitted(NOW, job(id, dependency=dependency), summaries))
        assert counts.take() == ((2 if id == waiting[0] else 1) * targets, 0), id
    for id in range(1, targets):
        site.step(UserRequested(NOW, "cancel", id))
        assert counts.take() == (1, jobs)
    assert {site.core.tasks[id, 0].reason for id in waiting} == {Reason.DEPENDENCY}
    site.step(UserRequested(NOW, "cancel", targets))
    assert counts.take() == (1, jobs)
    assert {site.core.tasks[id, 0].reason == Reason.DEPENDENCY for id in waiting} == {False}


def test_a_start_of_the_daemon_evaluates_each_term_once(counts: Counts) -> None:
    targets, jobs = 30, 10
    site = Site()
    for id in range(1, targets + 1):
        site.step(JobSubmitted(NOW, job(id, held=True)))
    summaries = tuple(fate(id) for id in range(1, targets + 1))
    dependency = "afterok:" + ":".join(map(str, range(1, targets + 1)))
    for id in range(100, 100 + jobs):
        site.step(JobSubmitted(NOW, job(id, dependency=dependency), summaries))
    counts.take()
    site.step(site.started(NOW))
    assert counts.take() == (targets, 0)


def test_a_change_that_met_no_term_concerns_no_job(counts: Counts) -> None:
    """Of thousands that wait for a job none is looked at when it is held, sent or listed."""
    site = Site()
    site.step(JobSubmitted(NOW, job(1)))
    for id in range(2, 30):
        site.step(JobSubmitted(NOW, job(id, dependency="afterok:1"), (fate(1),)))
    counts.take()
    site.sent(1)
    site.seen("left", None, site.row(State.RUNNING, started=NOW))
    assert counts.take() == (1, 0)
