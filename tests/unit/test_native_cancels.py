"""Cancels past metasched of tasks that it is about to withdraw: they count if they came first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metasched.adapters.protocol import ListingDelta, WorkerCall, WorkerReply
from metasched.core.events import (
    AccountingReceived,
    Action,
    ClaimsRevoked,
    ClusterDrained,
    DispatchAccepted,
    DispatchStarted,
    JobSubmitted,
    ListingReceived,
    TimerExpired,
    UserRequested,
    Withdraw,
)
from metasched.core.reservations.events import (
    ReservationBound,
    ReservationRequested,
    SurveyReceived,
)
from metasched.core.task_state_machine import WITHDRAWAL_RETRY_SECONDS
from metasched.model.job import State
from metasched.model.reservation_request import ReservationRequest
from metasched.model.survey import NodeUsage, Survey
from metasched.model.tags import tag_of
from tests.unit.core_site import NOW, Site, facts, job
from tests.unit.test_cluster_connection import a_connection

KEY = (tag_of("cafe", 1, 1), 0)
CLAIMS = "/claims"


def pending(fence: str = "") -> Site:
    """Return a site whose task is pending on left, with claims if there is a folder for them."""
    site = Site(fence_dir=fence)
    site.step(JobSubmitted(NOW, job(clusters=("left",), requeue=True)))
    site.step(DispatchStarted(NOW, 1, 1, fence and f"{fence}/{32 * 'x'}"))
    site.step(DispatchAccepted(NOW, 1, 1, {0: "7"}))
    site.seen("left", facts(8, accounting_source="slurmdbd"), site.row(State.PENDING), at=NOW + 1)
    return site


def drain(site: Site) -> list[Action]:
    return site.step(ClusterDrained(NOW + 2, "left", "op"))


def hold(site: Site) -> list[Action]:
    return site.step(UserRequested(NOW + 2, "hold", 1))


def take_back(site: Site) -> list[Action]:
    """Let left requeue the task after a run."""
    site.seen("left", None, site.row(State.RUNNING, started=NOW + 1), at=NOW + 1)
    return site.seen("left", None, site.row(State.PENDING, restarts=1), at=NOW + 2)


WITHDRAWALS = (drain, hold, take_back)


def cancelled(site: Site, at: float = NOW + 3, *, first: bool = True, gone: bool = False) -> None:
    """Report that the task is cancelled, or gone; with `first` before a withdrawal was begun."""
    restarts = site.core.tasks[1, 0].live_attempt.restarts
    row = site.row(State.CANCELLED, ended=NOW + 3, restarts=restarts)
    site.seen(
        "left",
        None,
        *(() if gone else (row,)),
        at=at,
        previous_taken=NOW + 2,
        vanished=(KEY,) if gone else (),
        not_withdrawn=(KEY,) if first else (),
    )


def final_state(site: Site) -> State | None:
    ended = site.core.state.ended_tasks.get((1, 0))
    return None if ended is None else ended.state


@pytest.mark.parametrize("withdraw", WITHDRAWALS)
def test_a_native_cancel_before_the_withdrawal_ends_the_task(withdraw: Any) -> None:
    site = pending()
    assert [type(action) for action in withdraw(site)] == [Withdraw]
    cancelled(site)
    assert final_state(site) is State.CANCELLED
    assert any("not by metasched" in change.cause for change in site.out.changes)


def test_a_task_that_is_gone_without_a_record_was_cancelled_too() -> None:
    site = pending()
    drain(site)
    cancelled(site, gone=True)
    assert final_state(site) is State.CANCELLED


def test_a_task_that_is_gone_counts_as_cancelled_once_that_is_proved() -> None:
    """A listing proves nothing of the last seconds before it: commands may still arrive."""
    site = pending()
    drain(site)
    gone: dict[str, Any] = {"previous_taken": NOW + 2, "vanished": (KEY,), "not_withdrawn": (KEY,)}
    site.seen("left", None, at=NOW + 3, until=NOW - 10, **gone)
    assert site.state() is State.UNKNOWN
    site.seen("left", None, at=NOW + 20, until=NOW + 10)
    assert final_state(site) is State.CANCELLED


def gone(site: Site, at: float, *, first: bool) -> None:
    """Report that the task is gone; the listing proves nothing of the time since it was pending."""
    site.seen(
        *("left", None),
        at=at,
        until=NOW - 10,
        previous_taken=at - 1,
        vanished=(KEY,),
        not_withdrawn=(KEY,) if first else (),
    )


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("fence", ["", CLAIMS])
def test_accounting_tells_that_a_task_that_is_gone_was_cancelled(fence: str, first: bool) -> None:
    """The claim is asked where metasched may have cancelled it: then a start counts."""
    site = pending(fence)
    drain(site)
    gone(site, NOW + 3, first=first)
    row = site.row(State.CANCELLED, ended=NOW + 3)
    site.step(AccountingReceived(NOW + 4, "left", (row,), ()))
    if fence and not first:
        site.step(ClaimsRevoked(NOW + 5, (KEY,)))
    assert final_state(site) is (State.CANCELLED if first else None)


@pytest.mark.parametrize("first", [True, False])
def test_accounting_that_answers_before_the_claim_tells_it_too(first: bool) -> None:
    site = pending(CLAIMS)
    hold(site)
    gone(site, NOW + 3, first=first)
    site.seen("left", None, at=NOW + 9, until=NOW - 10)
    assert site.core.tasks[1, 0].live_attempt.revoking
    row = site.row(State.CANCELLED, ended=NOW + 3)
    site.step(AccountingReceived(NOW + 10, "left", (row,), ()))
    site.step(ClaimsRevoked(NOW + 11, (KEY,)))
    if first:
        assert final_state(site) is State.CANCELLED
    else:
        assert site.state() is State.HELD


def test_a_task_that_was_not_gone_after_all_is_withdrawn_later() -> None:
    """It is listed again, with values that cannot be used; then metasched's command arrives."""
    site = pending()
    drain(site)
    gone(site, NOW + 3, first=True)
    site.seen("left", None, at=NOW + 4, quarantined=(KEY,))
    gone(site, NOW + 5, first=False)
    site.seen("left", None, at=NOW + 30, until=NOW + 20)
    assert final_state(site) is None


def test_a_task_that_is_listed_while_its_claim_is_revoked_is_withdrawn_later() -> None:
    site = pending(CLAIMS)
    hold(site)
    gone(site, NOW + 3, first=True)
    site.seen("left", None, at=NOW + 9, until=NOW - 10)
    site.seen("left", None, site.row(State.PENDING), at=NOW + 10)
    site.seen("left", None, site.row(State.CANCELLED, ended=NOW + 10), at=NOW + 11)
    site.step(ClaimsRevoked(NOW + 12, (KEY,)))
    assert site.state() is State.HELD


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_task_that_waits_at_the_end_of_its_reservation_comes_back(is_gone: bool) -> None:
    """Grid Engine deletes it then, and so does metasched: nobody has cancelled it."""
    site = Site()
    request = ReservationRequest(NOW, NOW + 60, 1, 1, 60.0, 60.0)
    survey = Survey(NOW, (NodeUsage(("n1",), 4, True),))
    site.step(SurveyReceived(NOW, "left", survey))
    site.step(ReservationRequested(NOW, 3, "alice", request, True, ("left",), NOW + 60))
    site.step(ReservationBound(NOW, 3, ("n1",)))
    site.step(JobSubmitted(NOW + 1, job(user="alice", clusters=("left",), reservation=3)))
    site.sent()
    site.seen("left", None, site.row(State.PENDING), at=NOW + 2)
    assert Withdraw in map(type, site.step(TimerExpired(NOW + 61)))
    cancelled(site, NOW + 62, gone=is_gone)
    assert site.state() is State.QUEUED


def test_a_task_that_its_manager_lost_is_held_as_requested() -> None:
    """Nobody cancelled it: the manager has restarted since it had the task."""
    site = pending()
    hold(site)
    site.seen(
        *("left", None),
        at=NOW + 3,
        previous_taken=NOW + 1,
        up_since=NOW + 2,
        vanished=(KEY,),
        not_withdrawn=(KEY,),
    )
    assert site.state() is State.UNKNOWN  # it may have started before
    site.step(AccountingReceived(NOW + 4, "left", never_started=(KEY,)))
    assert site.state() is State.HELD


@pytest.mark.parametrize("withdraw", WITHDRAWALS)
def test_a_native_cancel_during_the_withdrawal_cannot_be_told_from_it(withdraw: Any) -> None:
    """The owner's `scancel` and that of metasched are of the same account."""
    site = pending()
    withdraw(site)
    cancelled(site, first=False)
    assert final_state(site) is None
    assert site.state() in (State.QUEUED, State.HELD, State.DISPATCHING)


@pytest.mark.parametrize("withdraw", WITHDRAWALS)
def test_a_request_that_is_repeated_may_have_ended_the_task_before(withdraw: Any) -> None:
    site = pending()
    withdraw(site)
    later, restarts = NOW + 3 + WITHDRAWAL_RETRY_SECONDS, int(withdraw is take_back)
    again = site.seen("left", None, site.row(State.PENDING, restarts=restarts), at=later)
    assert [type(action) for action in again] == [Withdraw]
    cancelled(site, later + 1)
    assert final_state(site) is None


@pytest.mark.parametrize("withdraw", WITHDRAWALS)
def test_a_daemon_that_starts_knows_no_request_of_the_former(withdraw: Any) -> None:
    site = pending()
    withdraw(site)
    site.step(site.started(NOW + 3))
    restarts = int(withdraw is take_back)
    site.seen("left", facts(8), site.row(State.PENDING, restarts=restarts), at=NOW + 4, full=True)
    cancelled(site, NOW + 5)
    assert final_state(site) is None


def test_a_withdrawal_of_an_earlier_request_is_not_another_cancel() -> None:
    """It starts before it is held, and its manager requeues it; the hold may still be under way."""
    site = pending()
    hold(site)
    site.seen("left", None, site.row(State.RUNNING, started=NOW + 2), at=NOW + 3)
    site.seen("left", None, site.row(State.PENDING, restarts=1), at=NOW + 4)
    assert site.core.tasks[1, 0].live_attempt.maybe_withdrawn
    cancelled(site, NOW + 5)
    assert final_state(site) is None


@pytest.mark.parametrize("partial", [True, False])
def test_the_daemon_reports_only_cancels_before_its_command(partial: bool) -> None:
    """Of three withdrawn tasks two are in the queue, of which one is cancelled; one is begun."""
    site = Site()
    for number in (1, 2, 3):
        site.step(JobSubmitted(NOW, job(number, clusters=("left",), user=f"user{number}")))
        site.step(DispatchStarted(NOW, number, 1))
        site.step(DispatchAccepted(NOW, number, 1, {0: str(number)}))
    connection = a_connection("left")
    host: Any = connection._host
    host.core, host.owner_of = site.core, lambda tag: f"user{tag.split('-')[2]}"
    host.is_owner, host.ledger = lambda tag, owner: True, None
    for action in drain(site):
        connection.enqueue(action)
    events: list[ListingReceived] = []

    async def apply_events(event: ListingReceived) -> None:
        events.append(event)

    async def answer(call: WorkerCall) -> WorkerReply:
        rows = [site.row(State.CANCELLED, number, ended=NOW) for number in (1, 2)]
        rows.append(site.row(State.PENDING, 3))
        if call.operation == "withdraw":
            return WorkerReply("unreachable", "no answer in 60 s")
        times: dict[str, Any] = {"taken": NOW, "since": 0.0, "until": NOW}
        return WorkerReply(delta=ListingDelta(rows=tuple(rows), partial=partial, **times))

    host.apply_events = apply_events
    host.note_condition = lambda *_: None
    connection.worker.call = answer  # type: ignore[method-assign]

    async def steps() -> None:
        assert await connection._commands.withdraw("")  # of user1, whose jobs come first
        await connection._poll()

    asyncio.run(steps())
    assert [event.not_withdrawn for event in events] == [((tag_of("cafe", 2, 1), 0),)]
