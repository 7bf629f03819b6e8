"""The budget of followed pages: what their loads cost sets the pace of updates."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from types import SimpleNamespace
from typing import cast

import pytest

from metasched.daemon.service import Daemon
from metasched.web import live
from metasched.web.live import INTERVAL, MAX_INTERVAL, SHARE, ChangeClock


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
