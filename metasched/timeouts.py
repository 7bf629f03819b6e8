"""A time limit for somebody's answer that leaves out the seconds in which we did not listen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MAX_STEP = 1.0  # seconds: so much of a stall of ours counts, at the most
LOOP_ITERATIONS = (
    10  # of the loop, until what has come is read: asyncio takes two for a pipe of a child
)


@asynccontextmanager
async def reply_timeout(seconds: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, for a loop that may itself be busy for longer than `seconds`.

    That one would raise TimeoutError although the answer came meanwhile. Here the time runs in
    steps, each counted as it was meant however long it took; what has come by the end of the last
    one is read before TimeoutError is raised.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.Handle
    async with asyncio.timeout(None) as timeout:

        def count_down(remaining: float, iterations: int = LOOP_ITERATIONS) -> None:
            nonlocal timer
            if remaining > 0:
                timer = loop.call_later(min(remaining, MAX_STEP), count_down, remaining - MAX_STEP)
            elif iterations > 0:
                timer = loop.call_soon(count_down, remaining, iterations - 1)
            else:
                timeout.reschedule(loop.time())

        count_down(seconds)
        try:
            yield
        finally:
            timer.cancel()
