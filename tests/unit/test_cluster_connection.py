"""The connection to one cluster and its worker: waits, time limits and cancellation."""

from __future__ import annotations

import asyncio
import gc
import math
import select
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metasched.adapters.base import Withdrawal
from metasched.adapters.protocol import WorkerCall, WorkerReply
from metasched.config.settings import ClusterSettings
from metasched.core.events import ClaimsRevoked, ClusterDrained, JobSubmitted, Revoke, Withdraw
from metasched.daemon.cluster_connection import ClusterConnection
from metasched.daemon.host import SchedulerHost
from metasched.daemon.quarantine import Quarantine
from metasched.daemon.worker_process import _exit_cause
from metasched.model.cluster import Cluster
from metasched.model.job import State
from metasched.model.listing import TaskClaim
from metasched.model.tags import tag_of
from tests.harness.worker_adapter import ANSWER_A_CALL
from tests.unit.core_site import NOW, Site, job


class FakeProcess:
    """A process that ends when `ended` is set."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def wait(self) -> int:
        await self.ended.wait()
        return -9


def a_connection(name: str = "c") -> ClusterConnection:
    settings = ClusterSettings(Cluster(name=name, adapter="local"), {}, 1.0, 1.0, None, {})
    settings_of_host = SimpleNamespace(launcher=None)
    host = SimpleNamespace(quarantine=Quarantine(), settings=settings_of_host)
    return ClusterConnection(cast(SchedulerHost, host), settings)


def sleeping() -> tuple[Awaitable[object], Callable[[], None]]:
    connection = a_connection()
    return connection._sleep_until(time.monotonic() + 60), connection._wake.set


def waiting_for_the_exit_cause() -> tuple[Awaitable[object], Callable[[], None]]:
    process = FakeProcess()
    return _exit_cause(cast(asyncio.subprocess.Process, process)), process.ended.set


@pytest.mark.parametrize("waiting", [sleeping, waiting_for_the_exit_cause])
@pytest.mark.parametrize("turns", range(6))
def test_a_cancellation_is_not_lost_at_the_end_of_a_wait(
    waiting: Callable[[], tuple[Awaitable[object], Callable[[], None]]], turns: int
) -> None:
    """The loop runs `turns` times between the end of the wait and the cancellation."""

    async def stopped() -> bool:
        awaited, end_wait = waiting()

        async def wait() -> None:
            await awaited

        task = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        end_wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        had_ended = task.done()
        task.cancel()
        await asyncio.wait([task])
        return had_ended or task.cancelled()

    assert asyncio.run(stopped())


def test_a_reply_that_arrives_while_the_loop_is_blocked_counts() -> None:
    """The loop is blocked from before the reply until after its timeout."""

    async def call() -> WorkerReply:
        worker = a_connection().worker
        pipe = asyncio.subprocess.PIPE
        worker._process = process = await asyncio.create_subprocess_exec(
            *("sh", "-c", f"{ANSWER_A_CALL}; exec sleep 60"), stdin=pipe, stdout=pipe
        )
        read = cast(Any, process)._transport.get_pipe_transport(1).get_extra_info("pipe")

        def block() -> None:
            select.select([read], [], [], 30)
            time.sleep(1.5 * worker.settings.call_timeout)

        asyncio.get_running_loop().call_soon(block)  # as soon as the worker waits for the reply
        reply = await worker.call(WorkerCall("withdraw"))
        await worker.stop()
        return reply

    assert asyncio.run(call()).error == ""


def test_a_worker_killed_before_it_has_read_its_input_logs_no_traceback() -> None:
    """asyncio logs a traceback for a broken pipe whose error is not retrieved."""
    complaints: list[dict[str, Any]] = []

    async def call_without_reader() -> str:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(context)
        )
        worker = a_connection().worker
        pipe = asyncio.subprocess.PIPE
        worker._process = process = await asyncio.create_subprocess_exec(
            "sleep", "60", stdin=pipe, stdout=pipe
        )
        withdrawal = Withdrawal(tag="x" * 10**6)
        reply = await worker.call(WorkerCall("withdraw", withdrawals=(withdrawal,)))
        await process.wait()
        return reply.reason

    assert asyncio.run(call_without_reader()) == "it did not read in 1 s"
    gc.collect()
    assert complaints == []


def test_only_tasks_that_wait_for_their_claims_are_reported_without_an_answer() -> None:
    """Of four claims a start and a revocation are known; the fourth task is unknown already."""
    site = Site(fence_dir="/fence")
    for number in range(1, 5):
        site.step(JobSubmitted(NOW, job(number, clusters=("left",))))
        site.sent(number)
    site.step(ClusterDrained(NOW + 2, "left", "op"))
    rows = [site.row(State.CANCELLED, number, ended=NOW + 3) for number in range(1, 5)]
    asked = site.seen("left", None, *rows, at=NOW + 3)
    site.step(ClaimsRevoked(NOW + 3, unanswered=((tag_of("cafe", 4, 1), 0),)))
    connection = a_connection()
    host: Any = connection._host
    host.core, host.settings = site.core, SimpleNamespace(launcher=None)
    events: list[ClaimsRevoked] = []

    async def apply_events(event: ClaimsRevoked) -> None:
        events.append(event)
        site.step(event)

    async def answer(call: WorkerCall) -> WorkerReply:
        return WorkerReply(reason="the folder hangs", revoked={0: True, 1: False})

    host.apply_events = apply_events
    connection.worker.call = answer  # type: ignore[method-assign]
    for action in asked:
        connection.enqueue(action)
    asyncio.run(connection._revoke_claims())
    [event] = events
    results = (event.tasks, event.already_started, event.unanswered)
    assert results == tuple(((tag_of("cafe", number, 1), 0),) for number in (1, 2, 3))
    for action in asked:
        connection.enqueue(action)
    asyncio.run(connection._revoke_claims())
    assert len(events) == 2
    assert events[1].unanswered == ()


def test_claims_take_half_of_the_time_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are more claims than one call revokes, and their folder is slow, or hangs."""

    async def steps() -> None:
        site = Site()
        site.step(JobSubmitted(NOW, job(1, user="ada")))
        connection = a_connection()
        host: Any = connection._host
        host.core, host.owner_of = site.core, lambda tag: "ada"
        host.settings = SimpleNamespace(launcher=None)
        claims = (TaskClaim("/fence", tag_of("cafe", 99, 1), n) for n in range(1000))
        connection.enqueue(Revoke("c", tuple(claims)))
        connection.enqueue(Withdraw(1, 1, "c", {0: "7"}, only_pending=True))
        connection._next_poll = math.inf
        now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: now)

        async def no_answer(call: WorkerCall) -> WorkerReply:
            nonlocal now
            now += 60.0
            return WorkerReply("unreachable", f"no answer to {call.operation} in 60 s")

        monkeypatch.setattr(connection.worker, "call", no_answer)
        assert connection._select_urgent_step() == connection._revoke_claims
        await connection._revoke_claims()
        assert connection._select_urgent_step() == connection._withdraw_in_sequence
        assert connection._next_due <= now
        now += 59.0
        assert connection._select_urgent_step() == connection._withdraw_in_sequence
        now += 1.0
        assert connection._select_urgent_step() == connection._revoke_claims
        await connection._revoke_claims()
        [withdrawal] = connection.pending_actions.next_withdrawals("")
        connection.pending_actions.remove_withdrawals([withdrawal])
        assert connection._select_urgent_step() == connection._revoke_claims  # nobody waits

    asyncio.run(steps())
