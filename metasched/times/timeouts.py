"""A timeout for replies that does not count the time while the event loop was blocked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MAX_STEP = 1.0  # seconds; a blocked event loop counts as a step
# Iterations of the loop before the timeout, so that arrived data is read first. asyncio needs two
# for the pipe of a child process.
LOOP_ITERATIONS = 10


@asynccontextmanager
async def reply_timeout(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError after `seconds`, even if the event loop is blocked for longer.

    After a blocked loop `asyncio.timeout` raises although the reply has arrived. Here the time runs
    in steps of fixed length, however long they take. Data that has arrived by the end of the last
    step is read before TimeoutError is raised.
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
