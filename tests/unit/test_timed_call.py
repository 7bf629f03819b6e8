"""The time of a request in the event loop: its own steps alone, whatever runs in between."""

from __future__ import annotations

import asyncio
import time

import pytest

from metasched.api.timed_call import TimedCall


def work(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_only_steps_of_the_call_count() -> None:
    async def busy() -> None:
        for _ in range(5):
            work(0.02)
            await asyncio.sleep(0)

    async def idle(future: asyncio.Future[None]) -> None:
        work(0.01)
        await future

    async def run() -> tuple[float, float]:
        future = asyncio.get_running_loop().create_future()
        first, second = TimedCall(busy()), TimedCall(idle(future))

        async def awaited(call: TimedCall) -> None:
            await call

        waiting = asyncio.create_task(awaited(second))
        await first
        future.set_result(None)
        await waiting
        return first.seconds, second.seconds

    busy_seconds, idle_seconds = asyncio.run(run())
    assert busy_seconds >= 0.1
    assert 0.01 <= idle_seconds < 0.1


def test_errors_and_cancellations_reach_the_call() -> None:
    seen: list[str] = []

    async def fail() -> None:
        raise KeyError("x")

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def outlive() -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            seen.append("went on")

    async def run() -> None:
        with pytest.raises(KeyError):
            await TimedCall(fail())

        async def awaited() -> None:
            await TimedCall(wait())

        task = asyncio.create_task(awaited())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await TimedCall(outlive())

    asyncio.run(run())
    assert seen == ["cancelled", "went on"]
