"""Turns of reading requests: one of a user and kind, others in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

from metasched.api.readers import Readers, ReadingKind
from metasched.api.throttle import Throttle


def request_of(user: str) -> Any:
    """Return a request as far as readers look at it."""
    caller, connection = SimpleNamespace(user=user), SimpleNamespace(is_closed=False)
    stack = AsyncExitStack()
    return SimpleNamespace(
        state=SimpleNamespace(caller=caller, connection=connection, until_answered=stack)
    )


def test_a_request_may_read_again_in_its_turn() -> None:
    """A selection is read again if tasks have ended meanwhile."""

    async def run() -> list[str]:
        readers, order = Readers(Throttle()), list[str]()

        async def select(name: str) -> None:
            request = request_of("ada")
            async with request.state.until_answered:
                for _ in range(3):
                    portions = iter([name, name])
                    order.extend(
                        await readers.run_portions(request, ReadingKind.SELECTION, portions)
                    )

        async with asyncio.timeout(30):
            await asyncio.gather(select("first"), select("second"))
        assert not readers._queued
        assert not readers._holders
        return order

    assert asyncio.run(run()) == ["first"] * 6 + ["second"] * 6


def test_others_read_between_the_pages_of_a_selection() -> None:
    async def run() -> None:
        readers, order = Readers(Throttle()), list[str]()
        bulk, small = request_of("ada"), request_of("bob")

        def pages() -> Iterator[int]:
            for number in range(50):
                order.append(f"page {number}")
                yield number

        async def select() -> None:
            async with bulk.state.until_answered:
                await readers.run_portions(bulk, ReadingKind.SELECTION, pages())

        async def read() -> None:
            while not order:
                await asyncio.sleep(0)
            async with small.state.until_answered:
                await readers.run(small, ReadingKind.SELECTION, lambda: order.append("other"))

        async with asyncio.timeout(60):
            await asyncio.gather(select(), read())
        assert 0 < order.index("other") < 50

    asyncio.run(run())
