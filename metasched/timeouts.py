"""A time limit for somebody's answer that leaves out the seconds in which we did not listen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

STEP = 1.0  # seconds: so much of a stall of ours counts, at the most
TURNS = 10  # of the loop, until what has come is read: asyncio takes two for a pipe of a child


@asynccontextmanager
async def listening(seconds: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, for a loop that may itself be busy for longer than `seconds`.

    That one would raise TimeoutError although the answer came meanwhile. Here the time runs in
    steps, each counted as it was meant however long it took; what has come by the end of the last
    one is read before TimeoutError is raised.
    """
    loop = asyncio.get_running_loop()
    step: asyncio.Handle
    async with asyncio.timeout(None) as limit:

        def listen(left: float, turns: int = TURNS) -> None:
            nonlocal step
            if left > 0:
                step = loop.call_later(min(left, STEP), listen, left - STEP)
            elif turns > 0:
                step = loop.call_soon(listen, left, turns - 1)
            else:
                limit.reschedule(loop.time())

        listen(seconds)
        try:
            yield
        finally:
            step.cancel()
