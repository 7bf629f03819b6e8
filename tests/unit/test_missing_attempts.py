"""Lost answers and attempts missing from listings: proved absent, queried, or unknown."""

from __future__ import annotations

from typing import Literal

import pytest

from metasched.core.events import (
    AccountingReceived,
    Dispatch,
    DispatchStarted,
    DispatchUncertain,
    JobSubmitted,
    ListingReceived,
    QueryAccounting,
    UserRequested,
)
from metasched.model.job import State
from metasched.model.listing import MissingTask
from metasched.model.tags import tag_of
from tests.unit.core_site import NOW, Site, facts, job


@pytest.mark.parametrize(
    ("since", "until", "state", "again"),
    [
        (NOW - 1, NOW + 9, State.DISPATCHING, True),  # manager up since the intent: proved absent
        (NOW + 1, NOW + 9, State.UNKNOWN, False),  # manager restarted since: the task may be lost
        (NOW - 1, NOW + 4, State.DISPATCHING, False),  # the command may still arrive
    ],
)
def test_lost_answer(since: float, until: float, state: State, again: bool) -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.step(DispatchStarted(NOW, 1, 1))
    site.step(DispatchUncertain(NOW + 5, 1, 1, "time-out"))
    actions = site.seen("left", None, at=NOW + 10, since=since, until=until)
    assert actions == ([Dispatch(1, 2, "left", (0,))] if again else [])
    assert site.state() is state


@pytest.mark.parametrize(
    ("restarts", "until", "again"),
    [
        ([(NOW + 10, 0.0)], NOW + 10, True),
        ([(NOW + 10, NOW + 70)], NOW + 69, False),  # a call of the former daemon may still arrive
        ([(NOW + 10, NOW + 70)], NOW + 70, True),
        ([(NOW + 10, NOW + 70), (NOW + 20, 0.0)], NOW + 69, False),  # this one started again
        ([(NOW + 10, NOW + 9999), (NOW + 20, 0.0)], NOW + 20, True),  # as a clock that was ahead
    ],
)
def test_calls_of_a_daemon_that_was_replaced_may_still_arrive(
    restarts: list[tuple[float, float]], until: float, again: bool
) -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.step(DispatchStarted(NOW, 1, 1))
    for start, former_acts_until in restarts:
        site.step(site.started(start, former_acts_until=former_acts_until))
    actions = site.seen("left", facts(8), at=until, full=True)
    assert actions == ([Dispatch(1, 2, "left", (0,))] if again else [])


def test_lost_answer_but_listed_is_adopted() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.step(DispatchStarted(NOW, 1, 1))
    site.step(DispatchUncertain(NOW + 5, 1, 1, "time-out"))
    assert site.seen("left", None, site.row(State.PENDING), at=NOW + 10) == []
    assert site.state() is State.PENDING
    assert site.core.tasks[1, 0].attempt.native_id == "7"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("since", "until", "before"),
    [
        (NOW + 1, NOW + 9, NOW),  # the manager restarted after the last listing of the task
        (NOW - 1, NOW - 1, NOW),  # the task was dispatched after `until`
        (NOW + 4, NOW + 9, NOW + 3),
    ],
)
def test_acknowledged_and_then_missing_is_unknown(
    since: float, until: float, before: float
) -> None:
    site = missed(since, until, before)
    assert site.state() is State.UNKNOWN


@pytest.mark.parametrize(
    ("since", "until", "before"),
    [
        (NOW - 1, NOW + 9, NOW),  # reaches back before the dispatch
        (NOW + 3, NOW + 9, NOW + 3),  # reaches back to the last listing of the task
    ],
)
def test_missing_but_what_began_would_be_listed_it_was_cancelled_there(
    since: float, until: float, before: float
) -> None:
    site = missed(since, until, before)
    assert site.out.changes[-1].after is State.CANCELLED
    assert not site.core.tasks


def test_withdrawn_without_a_record_it_is_sent_again() -> None:
    site = missed(NOW - 1, NOW + 9, NOW, action="hold")
    assert site.state() is State.HELD
    assert site.step(UserRequested(NOW + 9, "release", 1)) == [Dispatch(1, 2, "left", (0,))]


def test_missing_after_it_began_is_unknown_whatever_the_listing_proves() -> None:
    site = missed(NOW - 1, NOW + 9, NOW, row=State.RUNNING, started=NOW)
    assert site.state() is State.UNKNOWN


def missed(
    since: float,
    until: float,
    before: float,
    action: Literal["hold"] | None = None,
    row: State = State.PENDING,
    records: str = "",
    **fields: object,
) -> Site:
    """Return a site whose task was listed and is missing from the next listing."""
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    site.seen("left", facts(8, accounting_source=records), site.row(row, **fields))  # type: ignore[arg-type]
    if action is not None:
        site.step(UserRequested(NOW, action, 1))
    gone = ((tag_of("cafe", 1, 1), 0),)
    site.step(
        ListingReceived(
            NOW + 9, "left", vanished=gone, since=since, until=until, previous_taken=before
        )
    )
    return site


def test_missing_tasks_are_queried_in_accounting_with_growing_delay() -> None:
    site = missed(NOW + 5, NOW + 9, NOW, row=State.RUNNING, started=NOW, records="sacct")
    missing = MissingTask(tag_of("cafe", 1, 1), 0, "7", NOW, NOW)
    assert site.out.actions == [QueryAccounting("left", (missing,))]
    query_times = [NOW + 9]
    for second in range(10, 60):
        if site.core.unchanged_listing_matters("left", NOW + second):
            site.step(ListingReceived(NOW + second, "left", since=NOW + second, until=NOW + second))
            assert site.out.actions == [QueryAccounting("left", (missing,))]
            query_times.append(NOW + second)
    assert query_times == [NOW + 9, NOW + 14, NOW + 24, NOW + 44]
    assert site.state() is State.UNKNOWN
    ended = site.row(State.FAILED, started=NOW, ended=NOW + 2, exit_code=3)
    site.step(AccountingReceived(NOW + 61, "left", rows=(ended,)))
    assert [c.after for c in site.out.changes] == [State.UNKNOWN, State.FAILED]
    assert site.out.closed_attempts[0][1].exit_code == 3


def test_accounting_is_not_asked_where_there_is_none() -> None:
    assert missed(NOW + 5, NOW + 9, NOW, row=State.RUNNING, started=NOW).out.actions == []


def test_what_accounting_proves_never_to_have_arrived_is_sent_again() -> None:
    site = Site()
    site.seen("left", facts(8, accounting_source="sacct"))
    site.step(JobSubmitted(NOW, job()))
    site.step(DispatchStarted(NOW, 1, 1))
    site.step(DispatchUncertain(NOW + 5, 1, 1, "time-out"))
    looks = site.seen("left", None, at=NOW + 400, since=NOW + 100, until=NOW + 380)
    # accounting proves nothing of a job that may have arrived until just now
    missing = MissingTask(tag_of("cafe", 1, 1), 0, None, NOW, NOW + 400)
    assert looks == [QueryAccounting("left", (missing,))]
    sends = site.step(
        AccountingReceived(NOW + 401, "left", never_started=((tag_of("cafe", 1, 1), 0),))
    )
    assert sends == [Dispatch(1, 2, "left", (0,))]


def test_accounting_that_comes_after_the_listing_knows_again_changes_nothing() -> None:
    site = missed(NOW + 5, NOW + 9, NOW, row=State.RUNNING, started=NOW, records="sacct")
    site.seen("left", None, site.row(State.RUNNING, started=NOW), at=NOW + 10)
    ended = site.row(State.FAILED, started=NOW, ended=NOW + 2, exit_code=3)
    tag = tag_of("cafe", 1, 1)
    site.step(AccountingReceived(NOW + 11, "left", rows=(ended,), never_started=((tag, 0),)))
    assert site.state() is State.RUNNING


def test_a_started_task_without_a_record_of_accounting_is_unknown_not_cancelled() -> None:
    site = missed(NOW + 5, NOW + 9, NOW, row=State.RUNNING, started=NOW, records="sacct")
    tag = tag_of("cafe", 1, 1)
    assert site.step(AccountingReceived(NOW + 11, "left", never_started=((tag, 0),))) == []
    assert site.state() is State.UNKNOWN


def test_what_is_acknowledged_and_in_no_listing_is_expected_ever_later() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    assert site.core.unchanged_listing_matters("left", NOW)
    site.seen("left", since=NOW + 1)
    assert site.state() is State.UNKNOWN
    site.step(UserRequested(NOW, "cancel", 1))
    assert not site.core.unchanged_listing_matters("left", NOW + 1)
    assert site.core.unchanged_listing_matters("left", NOW + 5)
