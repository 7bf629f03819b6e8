"""Listed attempts that the core has forgotten: looked up in turns, then withdrawn or reported."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import cast

import pytest

from metasched.adapters.protocol import ListingDelta
from metasched.core import state as core_state
from metasched.core.events import JobRequeued, JobSubmitted, RequeuedTask, Withdraw
from metasched.core.tasks import EndedTask, PastAttempt
from metasched.daemon import forgotten_attempts
from metasched.daemon.forgotten_attempts import ForgottenAttempts
from metasched.daemon.host import SchedulerHost
from metasched.model.job import Reason, State
from metasched.model.listing import JobStatus
from metasched.model.tags import tag_of
from tests.unit.core_site import NOW, Site, job

Key = tuple[int, int, int]


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Site:
    """A core that remembers no ended task; job 1 has run on left, and has completed."""
    monkeypatch.setattr(core_state, "MAX_ENDED_TASKS", 0)
    site = Site(pull=False)
    site.step(JobSubmitted(NOW, job(clusters=("left",))))
    site.sent()
    site.seen("left", None, done(site))
    assert not site.core.state.ended_tasks
    monkeypatch.setattr(core_state, "MAX_ENDED_TASKS", 9)
    return site


def done(site: Site) -> JobStatus:
    return site.row(State.COMPLETED, started=NOW + 1, ended=NOW + 9, exit_code=0)


def stored(state: State = State.COMPLETED, started: float = NOW + 1) -> tuple[int, int, EndedTask]:
    return 1, 0, EndedTask(state, 1, {1: PastAttempt("left", True, started=started)})


def test_a_forgotten_task_that_is_pending_again_is_withdrawn(forgetful: Site) -> None:
    row = forgetful.row(State.PENDING)
    assert forgetful.core.state.has_forgotten(1, 0, 1)
    [withdrawal] = forgetful.seen("left", None, row, at=NOW + 99, looked_up=(stored(),))
    assert isinstance(withdrawal, Withdraw)
    assert (withdrawal.native_ids, withdrawal.only_pending) == ({0: "7"}, True)
    assert not forgetful.core.state.has_forgotten(1, 0, 1)


@pytest.mark.parametrize(("started", "is_another"), [(NOW + 90, True), (NOW + 2, False)])
def test_a_forgotten_task_that_runs_again_is_a_duplicate(
    forgetful: Site, started: float, is_another: bool
) -> None:
    """A run that began as it was listed before is the same run."""
    row = forgetful.row(State.RUNNING, started=started)
    for at in (NOW + 99, NOW + 100):
        assert forgetful.seen("left", None, row, at=at, looked_up=(stored(),)) == []
        expected = ["job 1: DUPLICATE: dispatch 1 on left has started, too"] if is_another else []
        assert forgetful.out.warnings == (expected if at == NOW + 99 else [])


def test_what_was_looked_up_is_stored_as_the_core_received_it(forgetful: Site) -> None:
    """A replay would otherwise take the second run for the first."""
    row, entry = forgetful.row(State.RUNNING, started=NOW + 90), stored()
    forgetful.seen("left", None, row, at=NOW + 99, looked_up=(entry,))
    assert forgetful.out.warnings
    assert entry == stored()


def test_a_forgotten_task_that_was_cancelled_is_cancelled_again(forgetful: Site) -> None:
    row = forgetful.row(State.RUNNING, started=NOW + 90)
    [withdrawal] = forgetful.seen("left", None, row, looked_up=(stored(State.CANCELLED),))
    assert isinstance(withdrawal, Withdraw)
    assert not withdrawal.only_pending


def test_a_forgotten_attempt_of_a_requeued_task_is_withdrawn(forgetful: Site) -> None:
    again = (RequeuedTask(0, State.COMPLETED, 1),)
    forgetful.step(JobRequeued(NOW + 9, job(clusters=("left",)), 1, 1, again, "ada"))
    forgetful.sent(sending=2, native="8")
    row, old = forgetful.row(State.PENDING, sending=2), forgetful.row(State.PENDING)
    actions = forgetful.seen("left", None, row, old, at=NOW + 99, looked_up=(stored(),))
    assert [a.dispatch_id for a in actions if isinstance(a, Withdraw)] == [1]
    assert forgetful.state() is State.PENDING
    assert forgetful.core.tasks[1, 0].reason != Reason.DUPLICATE


def test_a_former_run_of_a_requeued_task_is_cancelled_though_it_was_forgotten(
    forgetful: Site,
) -> None:
    again = (RequeuedTask(0, State.COMPLETED, 1),)
    forgetful.step(JobRequeued(NOW + 9, job(clusters=("left",)), 1, 1, again, "ada"))
    forgetful.sent(sending=2, native="8")
    entry = stored()
    entry[2].past_attempts[1].unbegun_on = "n1"
    rows = (
        forgetful.row(State.RUNNING, sending=2, started=NOW + 90),
        forgetful.row(State.RUNNING, started=NOW + 91),
    )
    actions = forgetful.seen("left", None, *rows, at=NOW + 99, looked_up=(entry,))
    assert [a.dispatch_id for a in actions if isinstance(a, Withdraw)] == [1]
    task = forgetful.core.tasks[1, 0]
    assert task.reason != Reason.DUPLICATE
    assert not task.hosts_to_avoid("left")  # its owner has asked for another try


class Ledger:
    """A database with the first attempt of each even job; it counts what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Key] = []

    def stored_attempts(self, keys: Iterable[Key]) -> dict[tuple[int, int], EndedTask]:
        asked = list(keys)
        self.asked += asked
        return {
            (id, index): EndedTask(State.COMPLETED, 1, {1: PastAttempt("left")})
            for id, index, _ in asked
            if id % 2 == 0
        }


def look_ups(monkeypatch: pytest.MonkeyPatch) -> tuple[ForgottenAttempts, Ledger]:
    monkeypatch.setattr(forgotten_attempts, "MAX_LOOK_UPS", 4)
    ledger = Ledger()
    host = SimpleNamespace(core=Site().core, ledger=ledger)
    return ForgottenAttempts(cast(SchedulerHost, host)), ledger


def pending(id: int, owner: str) -> JobStatus:
    return JobStatus(tag_of("cafe", id, 1), 0, "7", State.PENDING, owner=owner)


def delta(*rows: JobStatus, full: bool = False, gone: tuple[int, ...] = ()) -> ListingDelta:
    vanished = tuple((tag_of("cafe", id, 1), 0, "eve") for id in gone)
    return ListingDelta(NOW, 0.0, NOW, rows=rows, full=full, vanished=vanished)


def test_owners_take_turns_in_bounded_look_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up, ledger = look_ups(monkeypatch)
    rows = [*(pending(id, "eve") for id in range(100, 110)), pending(4, "ada")]
    listing, found = look_up.look_up(delta(*rows, full=True))
    assert (4, 0, 1) in ledger.asked
    assert len(ledger.asked) == 4
    assert {row.tag for row in listing.rows} == {tag_of("cafe", id, 1) for id, _, _ in ledger.asked}
    assert {id for id, _, _ in found} == {id for id, _, _ in ledger.asked if id % 2 == 0}
    look_up.look_up(delta(gone=(109,)))
    look_up.look_up(delta())
    assert sorted(ledger.asked) == [(id, 0, 1) for id in (4, *range(100, 109))]
    assert look_up.look_up(delta()) == (delta(), ())


def test_what_is_not_stored_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up, ledger = look_ups(monkeypatch)
    for _ in range(2):
        listing, found = look_up.look_up(delta(pending(101, "eve")))
        assert (len(listing.rows), found) == (1, ())
    assert ledger.asked == [(101, 0, 1)]


@pytest.mark.parametrize("state", [State.COMPLETED, State.CANCELLED, State.FAILED])
def test_ended_rows_are_not_looked_up(monkeypatch: pytest.MonkeyPatch, state: State) -> None:
    look_up, ledger = look_ups(monkeypatch)
    row = JobStatus(tag_of("cafe", 4, 1), 0, "7", state, NOW, NOW)
    assert look_up.look_up(delta(row)) == (delta(row), ())
    assert not ledger.asked
