"""The connection to one cluster and its worker: waits, time limits, and being stopped meanwhile."""

from __future__ import annotations

import asyncio
import gc
import select
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from metasched.adapters.base import Withdrawal
from metasched.adapters.protocol import WorkerCall, WorkerReply
from metasched.config.settings import ClusterSettings
from metasched.daemon.cluster_connection import ClusterConnection
from metasched.daemon.host import SchedulerHost
from metasched.daemon.worker_process import _exit_cause
from metasched.model.cluster import Cluster


class Ending:
    """A worker that may end at any moment."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def wait(self) -> int:
        await self.ended.wait()
        return -9


def a_connection() -> ClusterConnection:
    settings = ClusterSettings(Cluster(name="c", adapter="local"), {}, 1.0, 1.0, None, {})
    return ClusterConnection(cast(SchedulerHost, None), settings)


def sleeping() -> tuple[Awaitable[object], Callable[[], None]]:
    connection = a_connection()
    return connection._sleep_until(time.monotonic() + 60), connection._wake.set


def asking_for_a_cause() -> tuple[Awaitable[object], Callable[[], None]]:
    worker = Ending()
    return _exit_cause(cast(asyncio.subprocess.Process, worker)), worker.ended.set


@pytest.mark.parametrize("waiting", [sleeping, asking_for_a_cause])
@pytest.mark.parametrize("turns", range(6))
def test_a_stop_is_not_swallowed_by_what_comes_at_the_same_moment(
    waiting: Callable[[], tuple[Awaitable[object], Callable[[], None]]], turns: int
) -> None:
    """`turns` of the loop lie between what was waited for and the cancellation."""

    async def stopped() -> bool:
        awaited, comes = waiting()

        async def wait() -> None:
            await awaited

        task = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        comes()
        for _ in range(turns):
            await asyncio.sleep(0)
        had_ended = task.done()
        task.cancel()
        await asyncio.wait([task])
        return had_ended or task.cancelled()

    assert asyncio.run(stopped())


def test_an_answer_that_comes_while_we_are_busy_ourselves_counts() -> None:
    """The loop is away from before the answer until long after the time for it is over."""

    async def answered() -> WorkerReply:
        worker = a_connection().worker
        pipe = asyncio.subprocess.PIPE
        worker._process = process = await asyncio.create_subprocess_exec(
            *("sh", "-c", 'read -r call; echo "{}"; exec sleep 60'), stdin=pipe, stdout=pipe
        )
        read = cast(Any, process)._transport.get_pipe_transport(1).get_extra_info("pipe")

        def be_busy() -> None:
            select.select([read], [], [], 30)
            time.sleep(1.5 * worker.settings.call_timeout)

        asyncio.get_running_loop().call_soon(be_busy)  # as soon as it waits for the answer
        answer = await worker.call(WorkerCall("withdraw"))
        await worker.stop()
        return answer

    assert asyncio.run(answered()) == WorkerReply()


def test_a_worker_that_is_killed_before_it_has_read_all_is_one_line_in_the_log() -> None:
    """asyncio logs a traceback of its own for a broken pipe that nobody asks about."""
    complaints: list[dict[str, Any]] = []

    async def told_in_vain() -> str:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        worker = a_connection().worker
        pipe = asyncio.subprocess.PIPE
        worker._process = process = await asyncio.create_subprocess_exec(
            "sleep", "60", stdin=pipe, stdout=pipe
        )
        words = Withdrawal(tag="x" * 10**6)
        answer = await worker.call(WorkerCall("withdraw", withdrawals=(words,)))
        await process.wait()
        return answer.reason

    assert asyncio.run(told_in_vain()) == "it did not read in 1 s"
    gc.collect()
    assert complaints == []
