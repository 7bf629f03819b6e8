"""Rows that are set aside, and the row to which a defect of the core is attributed."""

from __future__ import annotations

import pytest

from metasched.core.events import (
    AccountingReceived,
    ClaimsRevoked,
    ClusterUnreachable,
    Dispatch,
    DispatchStarted,
    DispatchUncertain,
    JobSubmitted,
    UserRequested,
    Withdraw,
)
from metasched.core.gates import SchedulingGates
from metasched.core.task_state_machine import TaskStateMachine
from metasched.core.tasks import StateChange
from metasched.model.job import State
from metasched.model.row_checks import RowDefect
from metasched.model.tags import tag_of
from tests.unit.core_site import NOW, Site, facts, job

TAG = tag_of("cafe", 1, 1)


@pytest.fixture
def site() -> Site:
    """Return a site with jobs 1 and 2 pending on left."""
    site = Site()
    for id in (1, 2):
        site.step(JobSubmitted(NOW, job(id, cpus=2, clusters=("left",))))
        site.sent(id)
    return site


def fail_on_job_2(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Raise an error for job 2 where a row is applied (`producer`) or its change is consumed."""
    if where == "producer":
        apply_status = TaskStateMachine.apply_status

        def failing_producer(self: TaskStateMachine, task, row):  # type: ignore[no-untyped-def]
            yield from apply_status(self, task, row)
            if task.job.id == 2:
                raise ZeroDivisionError

        monkeypatch.setattr(TaskStateMachine, "apply_status", failing_producer)
        return
    update_gates = SchedulingGates.update_gates

    def failing_consumer(
        self: SchedulingGates, change: StateChange, now: float, job_is_open: bool
    ) -> str:
        if change.task.job.id == 2:
            raise ZeroDivisionError
        return update_gates(self, change, now, job_is_open)

    monkeypatch.setattr(SchedulingGates, "update_gates", failing_consumer)


@pytest.mark.parametrize("where", ["producer", "consumer"])
@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_defect_concerns_the_row_whose_changes_are_applied(
    site: Site, monkeypatch: pytest.MonkeyPatch, where: str, order: tuple[int, int]
) -> None:
    rows = {id: site.row(State.RUNNING, id, started=NOW) for id in order}
    fail_on_job_2(monkeypatch, where)
    with pytest.raises(RowDefect) as caught:
        site.seen("left", None, *rows.values())
    assert caught.value.row is rows[2]
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_row_that_stays_set_aside_is_not_stored_at_each_poll(site: Site) -> None:
    site.seen("left", None, *(site.row(State.RUNNING, id, started=NOW) for id in (1, 2)))
    for unusable in ((TAG, 0), (TAG, -1), ("", -1)):
        site.seen("left", None, vanished=((TAG, 0),), quarantined=(unusable,), full=False)
        assert site.state() is State.UNKNOWN
        assert not site.core.unchanged_listing_matters("left", NOW, [unusable])
        assert site.core.unchanged_listing_matters("left", NOW)
        site.seen("left", None, site.row(State.RUNNING, started=NOW))
        assert site.state() is State.RUNNING


@pytest.mark.parametrize("where", ["producer", "consumer"])
def test_a_defect_concerns_the_record_of_accounting(
    site: Site, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    rows = [site.row(State.RUNNING, id, started=NOW) for id in (1, 2)]
    site.seen("left", None, *rows)
    site.seen("left", None, full=True, at=NOW + 10)  # the manager no longer lists them
    fail_on_job_2(monkeypatch, where)
    records = tuple(
        site.row(State.COMPLETED, id, started=NOW, ended=NOW + 5, exit_code=0) for id in (1, 2)
    )
    with pytest.raises(RowDefect) as caught:
        site.step(AccountingReceived(NOW + 11, "left", records))
    assert caught.value.row is records[1]


def test_a_defect_after_the_rows_concerns_none_of_them(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.seen("left", None, site.row(State.RUNNING, 2, started=NOW))
    fail_on_job_2(monkeypatch, "consumer")
    with pytest.raises(ZeroDivisionError):  # raised since job 2 is missing
        site.seen("left", None, site.row(State.RUNNING, started=NOW), full=True, at=NOW + 10)


def test_a_defect_without_rows_concerns_none(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.seen("left", None, site.row(State.RUNNING, 2, started=NOW))
    fail_on_job_2(monkeypatch, "consumer")
    with pytest.raises(ZeroDivisionError):
        site.step(ClusterUnreachable(NOW + 11, "left", "no answer"))


def test_a_task_whose_row_is_set_aside_is_unknown_but_present(site: Site) -> None:
    site.seen("left", None, site.row(State.PENDING, 2), full=True, quarantined=((TAG, 0),))
    assert (site.state(1), site.state(2)) == (State.UNKNOWN, State.PENDING)
    # a row that is set aside is no evidence of absence
    site.seen("left", None, full=True, at=NOW + 1000, quarantined=((TAG, 0),))
    assert site.state(1) is State.UNKNOWN
    assert not site.core.tasks[1, 0].live_attempt.missing
    site.seen("left", None, site.row(State.RUNNING, started=NOW), at=NOW + 1001)
    assert site.state(1) is State.RUNNING


def test_a_missing_task_whose_row_is_set_aside_is_present_again(site: Site) -> None:
    site.seen("left", None, site.row(State.RUNNING, started=NOW))
    site.seen("left", None, vanished=((TAG, 0),), at=NOW + 10)
    assert site.core.tasks[1, 0].live_attempt.missing
    site.seen("left", None, at=NOW + 11, quarantined=((TAG, 0),))
    # an answer to an earlier query proves nothing any more
    site.step(AccountingReceived(NOW + 12, "left", never_started=((TAG, 0),)))
    assert site.state(1) is State.UNKNOWN


@pytest.mark.parametrize("row", [("", -1), (TAG, -1)])
def test_a_line_that_may_be_a_task_is_no_evidence_of_its_absence(
    site: Site, row: tuple[str, int]
) -> None:
    site.seen("left", None, site.row(State.PENDING), site.row(State.PENDING, 2), full=True)
    accounting = facts(8, accounting_source="all")
    site.seen("left", accounting, full=True, at=NOW + 10, previous_taken=NOW, quarantined=(row,))
    assert site.state() is State.UNKNOWN
    assert not site.core.tasks[1, 0].live_attempt.missing
    # where the line cannot be of job 2's dispatch, the listing proves that it never started
    assert ((2, 0) in site.core.tasks) == (row[0] == "")
    # accounting is not queried: it would prove that job 1 never started
    assert site.out.actions == []
    site.seen("left", None, at=NOW + 20, previous_taken=NOW + 10, quarantined=(row,))
    assert site.state() is State.UNKNOWN
    # a complete listing decides at last
    site.seen("left", None, at=NOW + 30, previous_taken=NOW + 20)
    assert (1, 0) not in site.core.tasks


def test_a_dispatch_without_answer_waits_for_a_listing_that_can_be_read() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(1, clusters=("left",))))
    site.step(DispatchStarted(NOW, 1, 1))
    site.step(DispatchUncertain(NOW, 1, 1, "killed"))
    assert site.seen("left", None, at=NOW + 30, full=True, quarantined=(("", -1),)) == []
    assert site.seen("left", None, at=NOW + 40) == [Dispatch(1, 2, "left", (0,))]


def test_a_recall_continues_after_a_row_was_set_aside(site: Site) -> None:
    site.step(UserRequested(NOW, "hold", 1))
    site.seen("left", None, quarantined=((TAG, 0),))
    site.seen("left", None, site.row(State.PENDING), at=NOW + 1)
    site.seen("left", None, site.row(State.CANCELLED, ended=NOW + 2), at=NOW + 2)
    assert site.state() is State.HELD  # not cancelled: its owner requested a hold


@pytest.mark.parametrize(("since", "state"), [(NOW, State.CANCELLED), (NOW + 1, State.UNKNOWN)])
def test_what_vanishes_after_its_row_was_set_aside_may_have_started(
    site: Site, since: float, state: State
) -> None:
    """It is cancelled only if the listing contains all starts since its last usable row."""
    listed = site.row(State.PENDING)
    site.seen("left", None, listed, site.row(State.PENDING, 2), full=True, at=NOW)
    site.seen("left", None, at=NOW + 10, previous_taken=NOW, quarantined=((TAG, 0),))
    gone = {"at": NOW + 20, "previous_taken": NOW + 10, "since": since, "vanished": ((TAG, 0),)}
    site.seen("left", None, **gone)  # type: ignore[arg-type]
    task = site.core.tasks.get((1, 0))
    assert (State.CANCELLED if task is None else task.state) is state


def test_a_user_can_cancel_a_task_whose_row_is_set_aside(site: Site) -> None:
    site.seen("left", None, quarantined=((TAG, 0),))
    assert site.step(UserRequested(NOW + 1, "cancel", 1)) == [
        Withdraw(1, 1, "left", {0: "7"}, only_pending=False)
    ]
    # requested again later, since the task is still listed
    assert site.seen("left", None, at=NOW + 100, quarantined=((TAG, 0),)) == [
        Withdraw(1, 1, "left", {0: "7"}, only_pending=False)
    ]
    cancelled = site.row(State.CANCELLED, started=None, ended=NOW + 101)
    site.seen("left", None, cancelled, at=NOW + 101)
    assert not site.core.is_open(1)


def test_a_claim_that_is_being_revoked_decides_for_a_row_that_is_set_aside() -> None:
    site = Site(fence_dir="/claims")
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    attempt = site.core.tasks[1, 0].live_attempt
    attempt.revoking = True
    site.seen("left", None, quarantined=((TAG, 0),))
    assert site.state() is State.PENDING
    site.step(ClaimsRevoked(NOW + 1, tasks=((TAG, 0),)))
    assert site.core.tasks[1, 0].live_attempt.dispatch_id == 2  # dispatched again


def test_nothing_is_concluded_of_a_dispatch_that_an_untagged_job_may_be() -> None:
    """Such a job is listed until listings no longer prove that its dispatch never arrived."""
    site = Site(pull=False)
    site.step(JobSubmitted(NOW, job(clusters=("left",))))
    site.step(DispatchStarted(NOW, 1, 1))
    site.step(DispatchUncertain(NOW + 1, 1, 1, "no answer"))
    [known] = site.core.known_jobs("left", all=False)
    assert (known.native_id, known.tag, known.accepted) == ("", TAG, None)
    site.seen("left", None, at=NOW + 99, quarantined=((TAG, -1),))
    assert site.state() is State.DISPATCHING
    site.seen("left", None, at=NOW + 500, since=NOW + 200)
    assert site.state() is State.UNKNOWN
    assert site.core.known_jobs("left", all=True) == ()
