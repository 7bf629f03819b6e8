"""Concurrent commands of different owners: turns, threads, and listings in between."""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import Any, cast

import msgspec
import pytest

from metasched.adapters.base import Adapter, Submission, Withdrawal
from metasched.adapters.launcher_client import owner_deadline, remaining_seconds
from metasched.adapters.protocol import WorkerCall, WorkerReply
from metasched.adapters.worker import AdapterHost, serve
from metasched.core.events import (
    DispatchAccepted,
    DispatchRejected,
    DispatchStarted,
    DispatchUncertain,
    JobSubmitted,
)
from metasched.daemon.owner_turns import OwnerTurns
from metasched.model.adapter_errors import Unreachable
from metasched.model.job import State
from metasched.times.active_until import ActiveUntil, boot_time
from tests.unit.core_site import NOW, Site, job

NOW_DUE = {"a": 0.0, "b": 0.0, "c": 0.0}


def test_owners_have_turns_round_robin() -> None:
    turns = OwnerTurns(2, 60.0)
    assert turns.begin_next(NOW_DUE) == ["a", "b"]
    assert turns.must_yield(NOW_DUE)
    assert turns.next_due(NOW_DUE) == float("inf")
    assert turns.begin_next(NOW_DUE) == []
    turns.end("b")
    assert turns.begin_next(NOW_DUE) == ["c"]
    turns.end("a")
    turns.end("c")
    assert not turns.must_yield(NOW_DUE)
    assert turns.begin_next(NOW_DUE) == ["a", "b"]  # c began its last turn after them


def test_an_owner_without_an_answer_pauses_longer_each_time() -> None:
    turns, pauses = OwnerTurns(4, 6.0), []
    for _ in range(4):
        for breaker in turns._breakers.values():
            breaker.open_until = 0.0  # ends the pause
        assert "a" in turns.begin_next({"a": 0.0})
        pauses.append(turns.end("a", "no answer"))
        assert turns.begin_next({"a": 0.0, "b": 0.0}) == ["b"]
        assert turns.next_due({"a": 0.0}) > time.monotonic()
        turns.end("b")
    assert pauses == [2.0, 4.0, 6.0, 6.0]
    turns.forget_pauses()
    assert turns.begin_next({"a": 0.0}) == ["a"]


class StalledAdapter:
    """An adapter whose withdrawals of user a hang until `go` is set."""

    access = ""
    exclusions = None
    settle = 0.0

    def __init__(self) -> None:
        self.go = threading.Event()

    def withdraw_all(self, withdrawals: tuple[Withdrawal, ...]) -> None:
        if withdrawals[0].user == "a":
            assert self.go.wait(60)

    def submit(self, submission: Submission) -> dict[int, str]:
        raise Unreachable("never")

    def query_accounting(self, missing: object) -> None:
        return None


def test_a_stalled_owner_delays_only_his_own_calls() -> None:
    adapter = StalledAdapter()
    calls: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    replies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    host = AdapterHost(cast(Adapter, adapter))
    worker = threading.Thread(
        target=serve, args=(host, iter(calls.get, None), replies.put), daemon=True
    )
    worker.start()

    def write(operation: Any, owner: str = "") -> int:
        withdrawals = (Withdrawal(tag="t", user=owner),) if owner else ()
        call = WorkerCall(operation, owner=owner, withdrawals=withdrawals)
        calls.put(msgspec.json.encode(call))
        return call.number

    def next_reply() -> int:
        reply = msgspec.json.decode(replies.get(timeout=60), type=WorkerReply)
        assert reply.error == ""
        return reply.number

    stalled = [write("withdraw", "a"), write("withdraw", "a")]
    for owner, operation in (("b", "withdraw"), ("", "accounting")):
        number = write(operation, owner)
        assert next_reply() == number
    adapter.go.set()
    assert [next_reply(), next_reply()] == stalled  # in the order of the calls
    calls.put(None)
    worker.join(60)
    assert not worker.is_alive()


def test_a_broken_chain_is_its_owners_alone() -> None:
    host = AdapterHost(cast(Adapter, StalledAdapter()))
    submission = Submission(tag="t", job=cast(Any, None), payload=cast(Any, None))
    first = WorkerCall("submit", submission=submission, owner="a")
    assert host.execute(first).error == "unreachable"
    chained = WorkerCall("submit", submission=submission, owner="a", chained=True)
    assert host.execute(chained).error == "untried"
    other = WorkerCall("submit", submission=submission, owner="b", chained=True)
    assert host.execute(other).error == "unreachable"


def test_nothing_is_submitted_while_another_daemon_may_be_active() -> None:
    active_until = ActiveUntil.create()
    host = AdapterHost(cast(Adapter, StalledAdapter()), active_until=active_until)
    submission = Submission(tag="t", job=cast(Any, None), payload=cast(Any, None))
    call = WorkerCall("submit", submission=submission, owner="a")
    replies: queue.SimpleQueue[WorkerReply] = queue.SimpleQueue()
    worker = threading.Thread(target=lambda: replies.put(host.execute(call)), daemon=True)
    worker.start()
    assert host.execute(WorkerCall("accounting")).error == ""
    with pytest.raises(queue.Empty):
        replies.get(timeout=0.3)
    active_until.extend(boot_time() + 60)
    assert replies.get(timeout=60).error == "unreachable"  # it was executed
    assert not active_until.has_passed
    os.close(active_until.descriptor)


def test_the_waits_of_a_call_for_its_owner_share_a_deadline() -> None:
    with owner_deadline(None):
        assert remaining_seconds(10.0) == 10.0
    with owner_deadline(60.0):
        assert remaining_seconds(10.0) == 10.0
        assert 0 < remaining_seconds(100.0) <= 60.0
    with owner_deadline(0.0), pytest.raises(Unreachable, match="took too long"):
        remaining_seconds(10.0)
    assert remaining_seconds(10.0) == 10.0


@pytest.fixture
def in_flight() -> Site:
    """A site with one dispatch under way."""
    site = Site()
    site.step(JobSubmitted(NOW, job(1, clusters=("left",))))
    site.step(DispatchStarted(NOW, 1, 1))
    return site


def test_a_listing_proves_nothing_about_a_command_under_way(in_flight: Site) -> None:
    in_flight.seen("left", at=NOW + 100, full=True, in_flight=((1, 1),))
    assert in_flight.state() is State.DISPATCHING
    in_flight.step(DispatchAccepted(NOW + 101, 1, 1, {0: "7"}))
    # the poll began before the answer
    in_flight.seen("left", at=NOW + 102, full=True, in_flight=((1, 1),), until=NOW + 100)
    assert in_flight.state() is State.PENDING
    in_flight.seen("left", None, in_flight.row(State.RUNNING, started=NOW + 103), at=NOW + 104)
    assert in_flight.state() is State.RUNNING


def test_a_command_that_got_no_answer_is_proved_absent_later(in_flight: Site) -> None:
    in_flight.step(DispatchUncertain(NOW + 50, 1, 1, "no answer"))
    in_flight.seen("left", at=NOW + 60, full=True, until=NOW + 40)
    assert in_flight.state() is State.DISPATCHING  # the command may still arrive
    in_flight.seen("left", at=NOW + 80, full=True, until=NOW + 60)
    [action] = in_flight.out.actions  # dispatched again
    assert in_flight.core.tasks[1, 0].live_attempt.dispatch_id == 2, action


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING])
def test_a_listing_may_come_before_the_answer(in_flight: Site, state: State) -> None:
    in_flight.seen("left", None, in_flight.row(state, started=NOW + 1), at=NOW + 2)
    assert in_flight.state() is state
    in_flight.step(DispatchAccepted(NOW + 3, 1, 1, {0: "7"}))
    assert in_flight.state() is state
    in_flight.step(DispatchRejected(NOW + 4, 1, 1, "no"))  # the listing has disproved the rejection
    assert in_flight.state() is state


def test_a_task_that_vanished_before_the_answer_is_looked_for_again(in_flight: Site) -> None:
    tag = in_flight.row(State.PENDING).tag
    in_flight.seen("left", None, in_flight.row(State.PENDING), at=NOW + 2, in_flight=((1, 1),))
    in_flight.seen("left", vanished=((tag, 0),), at=NOW + 4, in_flight=((1, 1),))
    assert in_flight.state() is State.PENDING
    in_flight.step(DispatchAccepted(NOW + 5, 1, 1, {0: "7"}))
    in_flight.seen("left", at=NOW + 10)
    assert (1, 0) not in in_flight.core.tasks  # cancelled outside metasched
