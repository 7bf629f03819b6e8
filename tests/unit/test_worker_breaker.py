"""The circuit breaker of a worker: deaths and hangs pause it, longer each time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metasched.adapters.protocol import WorkerCall, WorkerReply
from metasched.config.settings import ClusterSettings
from metasched.daemon.host import SchedulerHost
from metasched.daemon.worker_process import HEALTHY_AFTER, RESTART_DELAY, WorkerProcess
from metasched.model.cluster import Cluster
from tests.harness.worker_adapter import ANSWER_A_CALL

TIMEOUT = 0.2  # of a call, in seconds


class CountedWorker(WorkerProcess):
    """A worker whose process is a shell script; counts its starts."""

    def __init__(self, script: str) -> None:
        settings = ClusterSettings(Cluster(name="c", adapter="local"), {}, 1.0, TIMEOUT, None, {})
        super().__init__(cast(SchedulerHost, SimpleNamespace()), settings, on_exit=lambda: None)
        self.script = script
        self.processes: list[asyncio.subprocess.Process] = []

    @property
    def starts(self) -> int:
        return len(self.processes)

    async def _start(self) -> None:
        self._started, self._replied, self._reader = time.monotonic(), False, None
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *("sh", "-c", self.script), stdin=pipe, stdout=pipe
        )
        self.processes.append(self._process)

    async def ask(self) -> WorkerReply:
        return await self.call(WorkerCall("poll"))

    async def close(self) -> None:
        """Kill all processes; close their pipes while the loop runs."""
        self.kill()
        for process in self.processes:
            await process.wait()
            cast(Any, process)._transport.close()
        await asyncio.sleep(0.05)  # the loop closes the pipes

    def end_pause(self) -> None:
        """Let the pause be over, as if its seconds had passed."""
        self.breaker.open_until = 0.0


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("exec sleep 60", "no answer to poll in "),  # hangs
        ("exit 3", "its worker died with exit code 3"),
        (r"printf '\0\0\0\010nonsense'; exec sleep 60", "its worker sent an invalid reply"),
        (r"printf '\0\0\0\002{}'; exec sleep 60", "its worker has protocol 0, this daemon "),
        ("echo nonsense; exec sleep 60", "its worker failed: an answer of more than 256 MiB"),
        (r"printf '\0\0\0\010half'; exit 3", "its worker died with exit code 3"),
        (r"printf '\0\0\0\010half'; exec sleep 60", "no answer to poll in "),
    ],
)
def test_a_worker_that_fails_is_paused_longer_each_time(script: str, cause: str) -> None:
    async def fail() -> None:
        worker = CountedWorker(script)
        for failures in (1, 2, 3):
            reply = await worker.ask()
            assert reply.error == "unreachable"
            assert cause in reply.reason
            again = f"{failures} times in a row"
            assert reply.reason.endswith(again) == (failures > 1)
            assert worker.breaker.failures == worker.starts == failures
            assert worker.is_paused
            pause = worker.breaker.open_until - time.monotonic()
            assert pause == pytest.approx(RESTART_DELAY * 2 ** (failures - 1), abs=RESTART_DELAY)
            # in the pause no process is started, and every call has the cause at once
            assert await worker.ask() == WorkerReply("unreachable", reply.reason)
            assert worker.starts == failures
            worker.end_pause()
        await worker.close()

    asyncio.run(fail())


def test_a_worker_that_floods_its_pipe_is_stopped() -> None:
    async def stop() -> int | None:
        worker = CountedWorker(f"{ANSWER_A_CALL}; exec tr '\\0' x </dev/zero")
        assert (await worker.ask()).error == ""
        await asyncio.sleep(0.5)  # nobody reads the garbage
        [process] = worker.processes
        async with asyncio.timeout(10.0):
            await worker.stop()
        return process.returncode

    assert asyncio.run(stop()) == -9


def test_calls_under_way_end_with_the_worker_that_hangs() -> None:
    async def hang() -> None:
        worker = CountedWorker("exec sleep 60")
        replies = await asyncio.gather(worker.ask(), worker.ask())
        assert {reply.error for reply in replies} == {"unreachable"}
        assert (worker.breaker.failures, worker.starts) == (1, 1)
        await worker.close()

    asyncio.run(hang())


def test_deaths_are_forgotten_after_a_minute_of_life() -> None:
    async def live_and_die() -> list[int]:
        worker = CountedWorker(f"{ANSWER_A_CALL}; {ANSWER_A_CALL}; exit 1")
        worker.settings = replace(worker.settings, call_timeout=60.0)
        failures = []
        for life in (0.0, 0.0, HEALTHY_AFTER + 1):
            assert (await worker.ask()).error == ""
            worker._started -= life
            assert (await worker.ask()).error == ""
            failures.append(worker.breaker.failures)  # also while it lives
            assert (await worker.ask()).error == "unreachable"
            failures.append(worker.breaker.failures)
            worker.end_pause()
        await worker.close()
        return failures

    assert asyncio.run(live_and_die()) == [0, 1, 1, 2, 0, 1]
