"""User and operator requests for open jobs: cancel, hold, requeue, modify, resolve."""

from __future__ import annotations

import pytest

from metasched.core.dependency_status import TargetSummary
from metasched.core.events import (
    Action,
    ClusterDrained,
    Dispatch,
    DispatchRejected,
    DispatchSkipped,
    DispatchStarted,
    JobModified,
    JobRequeued,
    JobSubmitted,
    RequeuedTask,
    UserAction,
    UserRequested,
    Withdraw,
)
from metasched.model.dependencies import DependencyTarget
from metasched.model.job import State
from metasched.model.listing import JobStatus
from tests.unit.core_site import NOW, Site, facts, job


def test_cancel_before_the_send_was_tried_needs_no_manager() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    assert site.step(UserRequested(NOW, "cancel", 1)) == []
    assert site.out.changes[-1].after is State.CANCELLED
    assert not site.core.tasks
    assert site.step(DispatchSkipped(NOW, ((1, 1),))) == []


def test_cancel_is_sent_once_and_repeated_without_effect() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    withdrawal = Withdraw(1, 1, "left", {0: "7"}, only_pending=False)
    assert site.step(UserRequested(NOW, "cancel", 1)) == [withdrawal]
    row = site.row(State.RUNNING, started=NOW)
    assert site.seen("left", None, row, at=NOW + 5) == []
    assert site.seen("left", None, row, at=NOW + 61) == [withdrawal]
    ended = site.row(State.CANCELLED, started=NOW, ended=NOW + 70)
    site.seen("left", None, ended, at=NOW + 70)
    assert site.out.changes[-1].after is State.CANCELLED
    assert not site.core.tasks


def test_hold_recalls_a_pending_task_and_leaves_a_running_one() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    withdrawal = Withdraw(1, 1, "left", {0: "7"}, only_pending=True)
    assert site.step(UserRequested(NOW, "hold", 1)) == [withdrawal]
    assert site.seen("left", None, site.row(State.CANCELLED, ended=NOW)) == []
    assert site.state() is State.HELD
    assert site.step(UserRequested(NOW, "release", 1)) == [Dispatch(1, 2, "left", (0,))]
    site.sent(sending=2)
    site.step(UserRequested(NOW, "hold", 1))
    site.seen("left", None, site.row(State.RUNNING, sending=2, started=NOW))
    assert site.state() is State.RUNNING
    site.seen("left", None, site.row(State.FAILED, sending=2, started=NOW, exit_code=3))
    assert site.out.changes[-1].after is State.FAILED


@pytest.mark.parametrize(("answer", "after"), [("lost", State.QUEUED), ("ran", State.COMPLETED)])
def test_an_operator_resolves_what_is_unknown(answer: str, after: State) -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    assert site.step(UserRequested(NOW, answer, 1, by="root")) == []  # type: ignore[arg-type]
    assert site.state() is State.PENDING
    site.seen("left", since=NOW + 1)
    actions = site.step(UserRequested(NOW, answer, 1, by="root"))  # type: ignore[arg-type]
    assert site.out.changes[0].after is after
    assert "root" in site.out.changes[0].cause
    assert actions == ([Dispatch(1, 2, "left", (0,))] if answer == "lost" else [])


@pytest.mark.parametrize(("code", "after"), [(0, State.COMPLETED), (3, State.FAILED)])
def test_an_operator_knows_how_an_unknown_task_ended(code: int, after: State) -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    site.seen("left", since=NOW + 1)
    site.step(UserRequested(NOW, "ran", 1, by="root", exit_code=code))
    [(task, attempt)] = site.out.closed_attempts
    assert (task.state, attempt.exit_code, attempt.has_started) == (after, code, True)


def test_a_running_task_that_is_requeued_is_ended_and_begins_again() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    site.seen("left", None, site.row(State.RUNNING, started=NOW))
    assert site.step(UserRequested(NOW, "requeue", 1, by="ada")) == [
        Withdraw(1, 1, "left", {0: "7"}, only_pending=False)
    ]
    ended = site.row(State.CANCELLED, started=NOW, ended=NOW + 1)
    assert site.seen("left", None, ended) == [Dispatch(1, 2, "left", (0,))]
    assert [c.event for c in site.out.changes] == ["kill", "requeue", "send"]
    [(_, attempt)] = site.out.closed_attempts
    assert attempt.state is State.CANCELLED


def preempted(site: Site) -> JobStatus:
    return site.row(State.PREEMPTED, started=NOW, ended=NOW + 1)


def test_a_preempted_task_that_may_run_again_is_queued_again_and_goes_elsewhere() -> None:
    site = Site()
    waits = job(2, dependency="afterok:1", kill_on_invalid_dep=True)
    site.step(JobSubmitted(NOW, job(cpus=4, requeue=True)))
    site.sent()
    site.step(JobSubmitted(NOW, waits, (TargetSummary(DependencyTarget(1), 1),)))
    site.seen("left", None, site.row(State.RUNNING, started=NOW))
    full = facts(8, 0, owed_by_others=9999.0)  # as is the cluster that preempted it
    assert site.seen("left", full, preempted(site), at=NOW + 2) == [Dispatch(1, 2, "right", (0,))]
    assert [c.event for c in site.out.changes] == ["preempt", "requeue", "send"]
    assert site.out.changes[1].cause == "preempted, and it may run again"
    [(_, attempt)] = site.out.closed_attempts
    assert attempt.state is State.PREEMPTED
    assert (site.state(), site.state(2)) == (State.DISPATCHING, State.QUEUED)
    # its former manager still lists the end
    assert site.seen("left", full, preempted(site), at=NOW + 3) == []


def requeued_by_its_manager(
    site: Site, restarts: int = 1, restart_stays: bool = False
) -> list[Action]:
    site.step(JobSubmitted(NOW, job(cpus=4, requeue=True)))
    site.sent()
    site.seen("left", None, site.row(State.RUNNING, started=NOW))
    again = site.row(State.PENDING, started=NOW + 1, restarts=restarts, restart_stays=restart_stays)
    return site.seen("left", None, again, at=NOW + 1)


def test_a_task_that_its_manager_requeued_is_taken_back_and_goes_elsewhere() -> None:
    site = Site()
    taken_back = [Withdraw(1, 1, "left", {0: "7"}, False)]
    assert requeued_by_its_manager(site) == taken_back
    assert site.state() is State.PENDING  # until its manager has ended it
    full = facts(8, 0, owed_by_others=9999.0)
    ended = site.row(State.CANCELLED, started=NOW + 1, ended=NOW + 2, restarts=1)
    assert site.seen("left", full, ended, at=NOW + 2) == [Dispatch(1, 2, "right", (0,))]
    assert [c.event for c in site.out.changes] == ["kill", "requeue", "send"]
    assert site.out.changes[1].cause == "its cluster had requeued it, and it may run elsewhere"
    assert site.core.tasks[1, 0].past_attempts[1].requeued  # it is ended if it comes back


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.TIMEOUT])
def test_a_task_that_ended_before_it_was_taken_back_is_not_run_again(state: State) -> None:
    site = Site()
    requeued_by_its_manager(site)
    ended = site.row(state, started=NOW + 2, ended=NOW + 3, restarts=1, exit_code=0)
    assert site.seen("left", None, ended, at=NOW + 4) == []
    assert (1, 0) not in site.core.tasks
    assert [c.after for c in site.out.changes] == [state]


@pytest.mark.parametrize("requeue", [None, True, False])
def test_a_recall_that_meets_a_restart_ends_no_task_that_may_run_again(
    requeue: bool | None,
) -> None:
    """It ended what its manager had requeued meanwhile: nobody has cancelled the task."""
    site = Site()
    site.step(JobSubmitted(NOW, job(requeue=requeue)))
    site.sent()
    site.seen("left", None, site.row(State.PENDING))
    assert site.step(ClusterDrained(NOW, "left", "op", "new kernel")) != []
    ended = site.row(State.CANCELLED, started=NOW + 1, ended=NOW + 2, restarts=1)
    again = [] if requeue is False else [Dispatch(1, 2, "right", (0,))]
    assert site.seen("left", None, ended, at=NOW + 2) == again
    assert site.out.closed_attempts[-1][1].state is State.CANCELLED


@pytest.mark.parametrize("listed_before_its_end", [True, False])
def test_a_hold_that_meets_a_restart_holds_the_task(listed_before_its_end: bool) -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(requeue=True)))
    site.sent()
    site.seen("left", None, site.row(State.PENDING))
    site.step(UserRequested(NOW, "hold", 1))
    if listed_before_its_end:
        requeued = site.row(State.PENDING, started=NOW + 1, restarts=1)
        assert [type(action) for action in site.seen("left", None, requeued, at=NOW + 1)] == [
            Withdraw
        ]
    ended = site.row(State.CANCELLED, started=NOW + 1, ended=NOW + 2, restarts=1)
    assert site.seen("left", None, ended, at=NOW + 2) == []
    assert site.state() is State.HELD
    assert site.step(UserRequested(NOW + 3, "release", 1)) == [Dispatch(1, 2, "left", (0,))]


def test_a_cancel_of_a_task_that_is_taken_back_counts() -> None:
    site = Site()
    requeued_by_its_manager(site)
    site.step(UserRequested(NOW, "cancel", 1, by="ada"))
    ended = site.row(State.CANCELLED, started=NOW + 1, ended=NOW + 2, restarts=1)
    assert site.seen("left", None, ended, at=NOW + 4) == []
    assert (1, 0) not in site.core.tasks


@pytest.mark.parametrize(("restarts", "held"), [(0, False), (1, True)])
def test_a_task_that_may_still_run_or_is_held_there_is_left_to_its_manager(
    restarts: int, held: bool
) -> None:
    site = Site()
    assert requeued_by_its_manager(site, restarts, held) == []
    assert site.state() is State.PENDING


def test_a_preempted_task_that_must_not_run_again_has_failed() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    site.seen("left", None, site.row(State.RUNNING, started=NOW))
    assert site.seen("left", None, preempted(site)) == []
    assert (1, 0) not in site.core.tasks
    [(task, _)] = site.out.closed_attempts
    assert task.state is State.FAILED


def test_a_cancel_of_a_preempted_task_counts() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(requeue=True)))
    site.sent()
    site.seen("left", None, site.row(State.RUNNING, started=NOW))
    site.step(UserRequested(NOW, "cancel", 1, by="ada"))
    assert site.seen("left", None, preempted(site)) == []
    [(task, _)] = site.out.closed_attempts
    assert task.state is State.FAILED


def test_an_ended_task_is_requeued_with_a_sending_never_used() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    site.seen("left", None, site.row(State.FAILED, started=NOW, ended=NOW, exit_code=1))
    again = JobRequeued(NOW, job(), 5, 1, (RequeuedTask(0, State.FAILED, 1),), "ada")
    assert site.step(again) == [Dispatch(1, 2, "left", (0,))]
    assert site.core.tasks[1, 0].attempts == 2
    assert site.out.changes[0].cause == "requeued by ada"
    assert (1, 0) not in site.core.state.ended_tasks  # as in a core that is restored now
    assert site.step(again) == []


def test_what_has_not_begun_is_not_requeued() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    assert site.step(UserRequested(NOW, "requeue", 1)) == []
    assert site.core.tasks[1, 0].live_attempt.intent is None


def test_of_a_cancel_and_a_requeue_the_last_counts_though_the_first_is_under_way() -> None:
    orders: tuple[tuple[tuple[UserAction, UserAction], list[Action]], ...] = (
        (("cancel", "requeue"), [Dispatch(1, 2, "left", (0,))]),
        (("requeue", "cancel"), []),
    )
    for commands, sent in orders:
        site = Site()
        site.step(JobSubmitted(NOW, job()))
        site.sent()
        site.seen("left", None, site.row(State.RUNNING, started=NOW))
        for command in commands:
            site.step(UserRequested(NOW, command, 1))
        ended = site.row(State.CANCELLED, started=NOW, ended=NOW)
        assert site.seen("left", None, ended) == sent


def test_a_rejected_job_that_is_requeued_starts_without_refusals() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(clusters=("left",))))
    site.step(DispatchStarted(NOW, 1, 1))
    site.step(DispatchRejected(NOW, 1, 1, "invalid account"))
    assert not site.core.tasks
    again = JobRequeued(NOW, job(clusters=("left",)), 5, 1, (RequeuedTask(0, State.REJECTED, 1),))
    assert site.step(again) == [Dispatch(1, 2, "left", (0,))]


def test_a_waiting_job_is_changed_at_once_and_a_pending_one_sent_anew() -> None:
    site = Site(pull=False)
    site.step(JobSubmitted(NOW, job(1, begin=NOW + 60)))
    assert site.step(JobModified(NOW, job(1), "begin", True, by="ada")) == [
        Dispatch(1, 1, "left", (0,))
    ]
    site.sent()
    loads = site.core.load_ordering.load("left")
    limited = job(1, time_limit=50.0, clusters=("left",))
    assert site.step(JobModified(NOW, limited, "time limit none -> 50", True, by="ada")) == [
        Withdraw(1, 1, "left", {0: "7"}, only_pending=True)
    ]
    assert site.out.changes[0].cause == "changed by ada: time limit none -> 50"
    assert site.core.load_ordering.load("left") == loads
    assert site.seen("left", None, site.row(State.CANCELLED, ended=NOW)) == [
        Dispatch(1, 2, "left", (0,))
    ]
    assert site.core.tasks[1, 0].job == limited


def test_what_only_we_need_to_know_is_changed_in_place_even_while_it_runs() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    before = site.core.tasks[1, 0].priority
    assert site.step(JobModified(NOW, job(owner_priority=3), "owner priority", False)) == []
    assert site.core.tasks[1, 0].priority > before
    assert site.core.load_ordering.count("left")[before] == 1
    site.step(JobModified(NOW, job(), "priority 9", False, priority=9))
    assert site.core.load_ordering.count("left")[8] == 1
    site.seen("left", None, site.row(State.RUNNING, started=NOW))
    assert site.step(JobModified(NOW, job(name="b"), "name", False)) == []
    assert site.core.load_ordering.count("left") == [0] * 10


def test_a_job_that_leaves_a_cluster_by_its_owners_request() -> None:
    site = Site(pull=False)
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    away = job(clusters=("right",))
    assert site.step(JobModified(NOW, away, "clusters", False)) == [
        Withdraw(1, 1, "left", {0: "7"}, only_pending=True)
    ]
    assert site.seen("left", None, site.row(State.RUNNING, started=NOW)) == []
    assert "it started before" in site.out.changes[-1].cause
    assert site.core.tasks[1, 0].attempt.intent is None  # type: ignore[union-attr]
