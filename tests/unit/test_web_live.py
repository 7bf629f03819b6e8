"""The budget of followed pages, and the stream of a browser that reads nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from types import SimpleNamespace
from typing import cast

import pytest
from fastapi import Request
from fastapi.responses import StreamingResponse

from metasched.api.connections import OpenConnections
from metasched.api.identity import Caller
from metasched.daemon.service import Daemon
from metasched.errors import ApiError
from metasched.web import live
from metasched.web.live import (
    INTERVAL,
    MAX_INTERVAL,
    MAX_LIFE,
    MAX_STREAMS,
    SHARE,
    ChangeClock,
    changes,
)


class Processor:
    """Stands for the CPU time of the process, in seconds."""

    def __init__(self) -> None:
        self.used = 100.0

    def process_time(self) -> float:
        return self.used

    def monotonic(self) -> float:
        return 0.0


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Processor:
    processor = Processor()
    monkeypatch.setattr(live, "time", processor)
    return processor


def pause_after(processor: Processor, pages: dict[str, int], loads: dict[str, int]) -> float:
    """Return the pause after loads of 16 ms each, of accounts with so many open pages."""

    async def run() -> float:
        daemon = SimpleNamespace(started=0.0, stopping=False, service=None)
        clock = ChangeClock(cast("Daemon", daemon))
        with ExitStack() as stack:
            for user, count in pages.items():
                for _ in range(count):
                    stack.enter_context(clock.followed(user))
            for user, count in loads.items():
                for _ in range(count):
                    begun = processor.used
                    processor.used += 0.016
                    clock.charge(user, begun)
            return clock.pause

    return asyncio.run(run())


def test_fifty_pages_get_the_share_together(processor: Processor) -> None:
    fifty = dict.fromkeys("abcde", 10)
    assert pause_after(processor, fifty, fifty) == pytest.approx(50 * 0.016 / SHARE)
    assert pause_after(processor, {"a": 1}, {"a": 1}) == INTERVAL
    many = {str(user): 16 for user in range(20)}
    assert pause_after(processor, many, many) == MAX_INTERVAL


def test_an_account_delays_others_by_its_open_pages_alone(processor: Processor) -> None:
    pages = {"alice": 1, "mallory": 16}
    pause = pause_after(processor, pages, {"mallory": 1000, "alice": 1, "stranger": 1000})
    assert pause == pytest.approx(17 * 0.016 / SHARE)


def test_concurrent_loads_are_charged_once(processor: Processor) -> None:
    async def run() -> float:
        daemon = SimpleNamespace(started=0.0, stopping=False, service=None)
        clock = ChangeClock(cast("Daemon", daemon))
        with clock.followed("alice"), clock.followed("alice"):
            begun = processor.used
            processor.used += 0.2
            clock.charge("alice", begun)
            processor.used += 0.1
            clock.charge("alice", begun)
            return clock.pause

    assert asyncio.run(run()) == pytest.approx(0.3 / SHARE)


BUFFER = 64 * 1024  # bytes that asyncio takes before it waits for a reader


async def stream_of(
    clock: ChangeClock, connections: OpenConnections, stack: AsyncExitStack
) -> AsyncIterator[bytes]:
    """Open the stream of a page of ada; `stack` ends as the request does."""
    app = SimpleNamespace(state=SimpleNamespace(change_clock=clock, daemon=clock._daemon))
    state = SimpleNamespace(connections=connections, until_answered=stack)
    caller = cast(Caller, SimpleNamespace(user="ada"))
    answer = await changes(cast(Request, SimpleNamespace(app=app, state=state)), caller)
    assert isinstance(answer, StreamingResponse)
    return cast(AsyncIterator[bytes], answer.body_iterator)


def test_a_browser_that_reads_nothing_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks that it misses are one event; its stream ends, and so does its place."""
    moment = SimpleNamespace(now=0.0)
    times = SimpleNamespace(monotonic=lambda: moment.now, process_time=lambda: 0.0)
    monkeypatch.setattr(live, "time", times)

    async def run() -> None:
        daemon = SimpleNamespace(started=0.0, stopping=False, service=None)
        clock = ChangeClock(cast("Daemon", daemon))
        connections = OpenConnections("pages", 400)
        async with AsyncExitStack() as stack:
            streams = [await stream_of(clock, connections, stack) for _ in range(MAX_STREAMS)]
            assert connections.waiting_requests == MAX_STREAMS
            with pytest.raises(ApiError, match="close some"):
                await stream_of(clock, connections, stack)
            idle, followed = streams[:2]
            assert clock._task is not None
            clock._task.cancel()  # the test ticks
            events = [await anext(idle), await anext(idle)]
            await anext(followed)
            sent = 0
            # as many ticks as there can be in the life of a stream
            while moment.now < MAX_LIFE:
                sent += len(await anext(followed))
                clock._tick()
                moment.now += INTERVAL
            assert sent < BUFFER  # so it never waits for its reader
            # the other was not asked for anything meanwhile
            events.append(await anext(idle))
            assert events[-1] != events[-2]
            waits = asyncio.ensure_future(anext(idle))
            await asyncio.sleep(0)
            assert not waits.done()
            waits.cancel()
            moment.now += INTERVAL
            assert [part async for part in followed] == []
        assert connections.waiting_requests == 0
        assert clock._streams == {}

    asyncio.run(run())
