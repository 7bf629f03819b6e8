"""Stale attempts, restarts by managers, and clocks that are set."""

from __future__ import annotations

import pytest

from metasched.core.events import (
    AccountingReceived,
    ClockSet,
    ClusterUnreachable,
    DaemonStarted,
    Dispatch,
    DispatchAccepted,
    DispatchSkipped,
    DispatchStarted,
    DispatchUncertain,
    JobRequeued,
    JobSubmitted,
    ListingReceived,
    RequeuedTask,
    UserRequested,
    Withdraw,
)
from metasched.core.recovered_state import RecoveredState
from metasched.core.scheduler import Core
from metasched.core.task_state_machine import WITHDRAWAL_RETRY_SECONDS
from metasched.core.tasks import Intent
from metasched.model.cluster import Cluster
from metasched.model.job import Reason, State
from metasched.model.listing import JobStatus
from metasched.model.tags import tag_of
from metasched.policies.policy import Policy
from tests.unit.core_site import NOW, Site, facts, job


def sent_twice(site: Site | None = None) -> Site:
    """An operator resolved dispatch 1 on left as lost; dispatch 2 is pending on right."""
    site = site or Site(pull=False)
    site.step(JobSubmitted(NOW, job(clusters=("left",))))
    site.sent()
    site.step(ClusterUnreachable(NOW, "left", "no answer"))
    site.core.tasks[1, 0].job = job()
    site.step(UserRequested(NOW, "lost", 1, by="root"))
    assert site.out.actions == [Dispatch(1, 2, "right", (0,))]
    site.step(DispatchStarted(NOW, 1, 2))
    site.step(DispatchAccepted(NOW, 1, 2, {0: "8"}))
    return site


def ran_and_called_lost(*, again_on: str = "") -> Site:
    """Dispatch 1 ran on left and was resolved as lost; the task is queued or dispatched again."""
    site = Site(pull=False)
    site.step(JobSubmitted(NOW, job(clusters=("left",))))
    site.sent()
    site.seen("left", None, site.row(State.RUNNING, started=NOW))
    site.step(ClusterUnreachable(NOW, "left", "no answer"))
    if again_on:
        site.core.tasks[1, 0].job = job(clusters=(again_on,))
    site.step(UserRequested(NOW, "lost", 1, by="root"))
    if again_on:
        site.sent(cluster=again_on, sending=2, native="8")
    return site


def causes(site: Site) -> list[str]:
    return [change.cause for change in site.out.changes]


def test_a_withdrawal_of_a_pending_task_is_repeated() -> None:
    site = sent_twice()
    withdrawal = [Withdraw(1, 1, "left", {0: "7"}, only_pending=True)]
    assert site.seen("left", facts(8), site.row(State.PENDING), full=True) == withdrawal
    assert causes(site) == ["dispatch 1 on left is listed again: withdrawing it"]
    assert site.seen("left", None, site.row(State.PENDING, manager_reason="Priority")) == []
    assert causes(site) == []
    later = NOW + WITHDRAWAL_RETRY_SECONDS
    assert site.core.unchanged_listing_matters("left", later)
    assert site.seen("left", None, at=later) == withdrawal
    site.seen("left", None, site.row(State.CANCELLED, ended=later), at=later)
    assert not site.core.unchanged_listing_matters("left", later + WITHDRAWAL_RETRY_SECONDS)
    assert site.core.tasks[1, 0].attempt.dispatch_id == 2  # type: ignore[union-attr]


def test_one_that_has_begun_goes_before_a_newer_one_that_has_not() -> None:
    site = sent_twice()
    running = site.row(State.RUNNING, started=NOW)
    assert site.seen("left", facts(8), running, full=True) == [
        Withdraw(1, 2, "right", {0: "8"}, only_pending=True)
    ]
    gone = JobStatus(tag_of("cafe", 1, 2), 0, "8", State.CANCELLED, ended=NOW)
    assert site.seen("right", None, gone) == []
    task = site.core.tasks[1, 0]
    assert task.attempt is not None
    assert (task.attempt.number, task.attempt.dispatch_id, task.state) == (3, 1, State.RUNNING)
    site.seen("left", None, site.row(State.COMPLETED, started=NOW, ended=NOW + 9, exit_code=0))
    assert not site.core.tasks


def test_duplicates_that_have_begun_go_on_and_are_reported() -> None:
    site = sent_twice()
    site.seen("right", None, JobStatus(tag_of("cafe", 1, 2), 0, "8", State.RUNNING, started=NOW))
    assert site.seen("left", facts(8), site.row(State.RUNNING, started=NOW), full=True) == []
    assert causes(site) == ["DUPLICATE: dispatch 1 on left has started, too"]
    assert site.out.warnings == ["job 1: DUPLICATE: dispatch 1 on left has started, too"]
    assert site.core.tasks[1, 0].reason == Reason.DUPLICATE
    site.step(UserRequested(NOW, "cancel", 1, by="ada"))
    assert site.out.actions == [Withdraw(1, 2, "right", {0: "8"}, only_pending=False)]
    assert site.seen("left", None, at=NOW) == [Withdraw(1, 1, "left", {0: "7"}, only_pending=False)]


def test_one_that_is_to_begin_anew_is_ended_if_a_newer_one_has_begun() -> None:
    site = sent_twice()
    site.seen("right", None, JobStatus(tag_of("cafe", 1, 2), 0, "8", State.RUNNING, started=NOW))
    again = site.row(State.PENDING, started=NOW, restarts=1)
    end = [Withdraw(1, 1, "left", {0: "7"}, only_pending=False)]
    assert site.seen("left", facts(8), again, full=True) == end


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING])
def test_what_was_seen_to_run_and_is_there_after_all_is_gone_on_with(state: State) -> None:
    site = ran_and_called_lost()
    assert site.seen("left", facts(8), site.row(state, started=NOW, restarts=1), full=True) == []
    task = site.core.tasks[1, 0]
    assert task.attempt is not None
    assert (task.attempt.dispatch_id, task.state) == (1, state)


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING])
def test_what_was_seen_to_run_goes_before_a_newer_one_that_has_not(state: State) -> None:
    site = ran_and_called_lost(again_on="right")
    yields = [Withdraw(1, 2, "right", {0: "8"}, only_pending=True)]
    assert site.seen("left", facts(8), site.row(state, started=NOW), full=True) == yields
    assert site.seen("left", facts(8), site.row(state, started=NOW), full=True) == []  # only once


def test_a_running_task_and_its_newer_attempt_are_reported_once() -> None:
    site = ran_and_called_lost(again_on="right")
    site.seen("right", None, JobStatus(tag_of("cafe", 1, 2), 0, "8", State.RUNNING, started=NOW))
    message = "DUPLICATE: dispatch 1 on left has started, too"
    for expected in ([message], []):
        site.seen("left", facts(8), site.row(State.RUNNING, started=NOW), full=True)
        assert causes(site) == expected


def test_a_newer_one_that_began_before_it_could_yield_makes_two() -> None:
    site = sent_twice()
    site.seen("left", facts(8), site.row(State.RUNNING, started=NOW), full=True)
    site.seen("right", None, JobStatus(tag_of("cafe", 1, 2), 0, "8", State.RUNNING, started=NOW))
    assert "DUPLICATE: dispatch 1 on left has started, too" in causes(site)
    assert site.core.tasks[1, 0].attempt.intent is None  # type: ignore[union-attr]


def test_an_attempt_declared_lost_has_no_start() -> None:
    """Dependencies of the kind `after` do not count it: the operator says that nothing ran."""
    site = ran_and_called_lost()
    [(_, lost)] = site.out.closed_attempts
    assert (lost.number, lost.state, lost.started) == (1, State.CANCELLED, None)


def test_a_stale_pending_attempt_is_recalled_while_its_task_is_queued() -> None:
    site = Site(pull=False)
    site.step(JobSubmitted(NOW, job(clusters=("left",))))
    site.sent()
    site.step(ClusterUnreachable(NOW, "left", "no answer"))
    site.step(UserRequested(NOW, "lost", 1, by="root"))
    assert site.state() is State.QUEUED
    actions = site.seen("left", facts(8), site.row(State.PENDING), full=True)
    assert actions == [Withdraw(1, 1, "left", {0: "7"}, only_pending=True)]
    assert site.core.tasks[1, 0].attempt.intent is Intent.RECALL  # type: ignore[union-attr]
    # an earlier withdrawal may end the attempt; the task is not cancelled by that
    assert site.seen("left", None, site.row(State.CANCELLED, ended=NOW)) == [
        Dispatch(1, 2, "left", (0,))
    ]


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING])
def test_a_cancel_that_the_manager_forgot_is_repeated(state: State) -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    site.step(UserRequested(NOW, "cancel", 1))
    site.seen("left", None, site.row(State.CANCELLED, ended=NOW))
    assert not site.core.tasks
    listed = site.row(state, started=None if state is State.PENDING else NOW)
    assert site.seen("left", None, listed) == [
        Withdraw(1, 1, "left", {0: "7"}, only_pending=state is State.PENDING)
    ]
    assert [(c.before, c.after) for c in site.out.changes] == [(State.CANCELLED, State.CANCELLED)]


def test_the_end_that_a_repeated_cancel_makes_does_not_undo_a_requeue() -> None:
    site = Site(pull=False)
    site.step(JobSubmitted(NOW, job(clusters=("left",))))
    site.sent()
    site.step(UserRequested(NOW, "cancel", 1))
    site.seen("left", None, site.row(State.CANCELLED, ended=NOW))
    # a killed controller forgot the cancel, and started the job
    assert site.seen("left", None, site.row(State.RUNNING, started=NOW)) == END
    again = (RequeuedTask(0, State.CANCELLED, 1),)
    site.step(JobRequeued(NOW + 9, job(clusters=("right",)), 1, 1, again, "ada"))
    assert site.out.actions == [Dispatch(1, 2, "right", (0,))]
    site.seen("left", None, site.row(State.CANCELLED, started=NOW, ended=NOW + 9))
    assert causes(site) == []
    site.sent(cluster="right", sending=2, native="8")
    assert (site.state(), site.out.actions) == (State.PENDING, [])


def test_an_unknown_tag_causes_only_a_warning() -> None:
    site = Site()
    row = JobStatus(tag_of("cafe", 99, 1), 0, "4", State.RUNNING, started=NOW)
    assert site.seen("left", None, row) == []
    assert site.out.warnings == ["left lists ms-cafe-99-1, which is unknown to metasched"]


def test_many_unknown_tags_cause_few_warnings() -> None:
    site = Site()
    tags = [tag_of("cafe", 99, number) for number in range(1, 1001)]
    site.seen("left", None, *(JobStatus(tag, 0, "4", State.RUNNING, started=NOW) for tag in tags))
    assert len(site.out.warnings) == 10


def test_a_restart_by_the_manager_is_a_new_attempt() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    site.seen("left", None, site.row(State.RUNNING, started=NOW))
    site.seen("left", None, site.row(State.RUNNING, started=NOW, restarts=1))  # still the first run
    assert not site.out.closed_attempts
    site.seen("left", None, site.row(State.PENDING, started=NOW + 9, restarts=1))
    [(_, first)] = site.out.closed_attempts
    assert (first.number, first.state, first.started) == (1, State.NODE_FAIL, NOW)
    assert causes(site) == ["the manager restarted it by itself (restart 1)"]
    task = site.core.tasks[1, 0]
    assert task.attempt is not None
    assert (task.attempt.number, task.attempt.dispatch_id, task.state) == (2, 1, State.PENDING)
    assert task.attempt.started is None
    assert site.step(UserRequested(NOW, "hold", 1)) == []  # it has started once: it is not recalled
    site.seen("left", None, site.row(State.RUNNING, started=NOW + 20, restarts=1))
    site.seen("left", None, site.row(State.RUNNING, started=NOW + 90, restarts=1))
    assert task.attempt.number == 3  # another start that the manager does not count
    site.seen("left", None, site.row(State.COMPLETED, started=NOW + 90, restarts=1, exit_code=0))
    assert not site.core.tasks


def test_a_started_task_that_is_pending_again_was_restarted() -> None:
    """A controller that lost its last seconds counts no restart."""
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    site.seen("left", None, site.row(State.RUNNING, started=NOW))
    site.seen("left", None, site.row(State.PENDING))
    [(_, first)] = site.out.closed_attempts
    assert (first.number, first.state, first.started) == (1, State.NODE_FAIL, NOW)
    task = site.core.tasks[1, 0]
    assert task.attempt is not None
    assert (task.attempt.number, task.state) == (2, State.PENDING)


def test_a_task_lost_with_a_managers_last_seconds_is_sent_again_without_record() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    site.seen("left", None, at=NOW + 9, since=NOW + 5, until=NOW + 9, up_since=NOW + 5)
    assert site.state() is State.UNKNOWN
    missing = ((tag_of("cafe", 1, 1), 0),)
    assert site.step(AccountingReceived(NOW + 9, "left", never_started=missing)) == [
        Dispatch(1, 2, "left", (0,))
    ]


def test_a_task_cancelled_without_a_record_is_not_sent_again() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    site.seen("left", None, at=NOW + 9, since=NOW + 5, until=NOW + 9, up_since=NOW - 5)
    missing = ((tag_of("cafe", 1, 1), 0),)
    assert site.step(AccountingReceived(NOW + 9, "left", never_started=missing)) == []
    assert not site.core.tasks


@pytest.mark.parametrize("by", [-3600.0, 3600.0])
def test_a_doubtful_send_does_not_wait_out_a_set_clock(by: float) -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(1)))
    site.step(DispatchStarted(NOW, 1, 1))
    site.step(DispatchUncertain(NOW, 1, 1, "time-out"))
    now = NOW + 30 + by
    site.step(ClockSet(now, by))
    assert site.step(ListingReceived(now, "left", since=NOW - 4000, until=NOW + by - 1)) == []
    assert site.state() is State.DISPATCHING
    site.step(ListingReceived(now, "left", since=NOW - 4000, until=NOW + by))
    assert site.state() is State.DISPATCHING  # the next attempt
    assert site.core.tasks[1, 0].attempts == 2


@pytest.mark.parametrize("by", [-3600.0, 3600.0])
def test_a_request_is_repeated_as_soon_as_if_the_clock_had_not_been_set(by: float) -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    site.seen("left", None, site.row(State.PENDING))
    assert len(site.step(UserRequested(NOW, "cancel", 1))) == 1
    site.step(ClockSet(NOW + by + 1, by))
    assert site.seen("left", None, at=NOW + by + WITHDRAWAL_RETRY_SECONDS - 1) == []
    assert len(site.seen("left", None, at=NOW + by + WITHDRAWAL_RETRY_SECONDS)) == 1


def test_a_set_clock_is_no_time_for_which_a_cluster_has_been_watched() -> None:
    site = Site(pull_after=100.0)
    site.step(JobSubmitted(NOW, job(clusters=("left",))))
    site.sent()
    site.seen("left", None, site.row(State.PENDING))
    site.core.tasks[1, 0].job = job()
    site.step(ClockSet(NOW + 3601, 3600.0))
    assert site.seen("right", facts(8), at=NOW + 3602) == []
    assert site.seen("right", facts(8), at=NOW + 3710) == [
        Withdraw(1, 1, "left", {0: "7"}, only_pending=True)
    ]


def test_a_task_that_ran_by_an_operators_answer_is_no_duplicate() -> None:
    site = Site(pull=False)
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    site.step(ClusterUnreachable(NOW, "left", "no answer"))
    site.step(UserRequested(NOW, "ran", 1, by="root"))
    assert site.seen("left", facts(8), site.row(State.RUNNING, started=NOW), full=True) == []
    assert not site.out.warnings


def test_an_adopted_one_brings_its_restarts_along() -> None:
    site = Site(pull=False)
    site.step(JobSubmitted(NOW, job(clusters=("left",))))
    site.sent()
    site.step(ClusterUnreachable(NOW, "left", "no answer"))
    site.step(UserRequested(NOW, "lost", 1, by="root"))
    running = site.row(State.RUNNING, started=NOW, restarts=1)
    site.seen("left", facts(8), running, full=True)
    assert (site.state(), site.core.tasks[1, 0].attempts) == (State.RUNNING, 2)


def requeued(*, again: State = State.DISPATCHING) -> Site:
    """Dispatch 1 ran on left and was requeued; dispatch 2 is on right, in the state `again`."""
    site = Site(pull=False)
    site.step(JobSubmitted(NOW, job(clusters=("left",))))
    site.sent()
    site.seen("left", facts(8), site.row(State.RUNNING, started=NOW))
    site.step(UserRequested(NOW, "requeue", 1, by="ada"))
    site.core.tasks[1, 0].job = job(clusters=("right",))
    site.seen("left", None, site.row(State.CANCELLED, started=NOW, ended=NOW, signal=15))
    assert site.out.actions == [Dispatch(1, 2, "right", (0,))]
    if again is not State.DISPATCHING:
        site.sent(cluster="right", sending=2, native="8")
        row = JobStatus(tag_of("cafe", 1, 2), 0, "8", again, started=NOW)
        site.seen("right", None, row)
    return site


END = [Withdraw(1, 1, "left", {0: "7"}, only_pending=False)]


def test_what_was_requeued_and_is_back_is_ended_again_and_the_task_still_runs_anew() -> None:
    site = requeued()
    site.step(DispatchStarted(NOW, 1, 2))
    running = site.row(State.RUNNING, started=NOW)
    site.seen("left", None, running, full=True)
    site.step(DispatchSkipped(NOW, ((1, 2),)))
    assert (site.state(), site.out.actions) == (State.RUNNING, END)
    site.seen("left", None, site.row(State.CANCELLED, started=NOW, ended=NOW, signal=15))
    assert site.out.actions == [Dispatch(1, 3, "right", (0,))]


def test_what_was_requeued_and_is_back_is_ended_though_a_newer_one_runs() -> None:
    site = requeued(again=State.RUNNING)
    running = site.row(State.RUNNING, started=NOW)
    assert site.seen("left", facts(8), running, full=True) == END
    cause = "dispatch 1 on left is listed again: cancelling it, since the task was requeued"
    assert causes(site) == [cause]
    assert site.seen("left", None, running) == []
    assert causes(site) == []


def test_what_was_requeued_and_is_back_after_the_end_is_ended() -> None:
    site = requeued(again=State.COMPLETED)
    assert not site.core.tasks
    running = site.row(State.RUNNING, started=NOW)
    assert site.seen("left", facts(8), running, full=True) == END


def test_an_ended_job_that_was_requeued_runs_anew_even_if_its_end_was_not_one() -> None:
    """A controller that lost its last seconds of state lists an ended job as running again."""
    site = Site(pull=False)
    site.step(JobSubmitted(NOW, job(clusters=("left",))))
    site.sent()
    done = site.row(State.COMPLETED, started=NOW, ended=NOW + 9, exit_code=0)
    site.seen("left", facts(8), done)
    again = (RequeuedTask(0, State.COMPLETED, 1),)
    site.step(JobRequeued(NOW + 9, job(clusters=("right",)), 1, 1, again, "ada"))
    assert site.out.actions == [Dispatch(1, 2, "right", (0,))]
    site.seen("left", None, site.row(State.RUNNING, started=NOW), full=True)
    site.step(DispatchSkipped(NOW + 10, ((1, 2),)))
    assert site.state() is State.RUNNING
    site.seen("left", None, done)
    assert site.out.actions == [Dispatch(1, 3, "right", (0,))]


def test_what_was_seen_only_before_a_restart_and_is_lost_is_unknown_until_proved() -> None:
    """Its manager may have started it, and have lost that, too."""
    site = Site(pull=False)
    site.step(JobSubmitted(NOW, job(clusters=("left",))))
    site.step(DispatchStarted(NOW, 1, 1))
    site.step(DispatchUncertain(NOW, 1, 1, "no answer"))
    site.seen("left", None, site.row(State.PENDING), at=NOW + 1)
    attempt = site.core.tasks[1, 0].attempt
    assert attempt is not None
    assert (attempt.accepted, attempt.native_id) == (None, "7")
    attempt.last_listed = None  # `last_listed` is not stored
    again = Site.__new__(Site)
    again.core = Core()
    tasks = list(site.core.tasks.values())
    again.core.restore(
        RecoveredState(tasks=tasks, last_dispatches={1: 1}, info={}, margins=[], drains=[])
    )
    cluster = Cluster(name="left", adapter="local")
    again.step(DaemonStarted(NOW + 60, "cafe", Policy(pull=False), (cluster,)))
    again.seen("left", facts(8), at=NOW + 70, full=True, up_since=NOW + 50)
    assert (again.out.actions, again.state()) == ([], State.UNKNOWN)
    missing = ((tag_of("cafe", 1, 1), 0),)
    again.step(AccountingReceived(NOW + 71, "left", never_started=missing))
    assert again.out.actions == [Dispatch(1, 2, "left", (0,))]


def test_a_clock_set_back_while_we_were_down_proves_nothing() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.step(DispatchStarted(NOW, 1, 1))
    earlier = NOW - 3600
    clusters = tuple(Cluster(name=n, adapter="local") for n in ("left", "right"))
    site.step(DaemonStarted(earlier, "cafe", Policy(), clusters))
    site.step(
        ListingReceived(earlier + 30, "left", full=True, since=earlier - 9, until=earlier + 10)
    )
    assert site.state() is State.UNKNOWN
