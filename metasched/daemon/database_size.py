"""The size of the database and the room around it, measured once a minute at most.

A scrape starts the measurement, in a thread of its own, and waits briefly for the first result. So
neither many scrapes nor a hung database or disk delay the scheduler.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from metasched.db.store import StorageFailed

LIFETIME = 60.0  # seconds from the start of a measurement until the next
PATIENCE = 1.0  # seconds that a reader waits for a measurement


class Size(NamedTuple):
    """Sizes in bytes."""

    used: int
    free: int | None  # for the database on its filesystem; None: unknown, it is on a server


class DatabaseSize:
    """The last measurement, shared by all readers."""

    def __init__(self, measure: Callable[[], Size]) -> None:
        """`measure` is called in a thread; StorageFailed or OSError: the size is unknown."""
        self._measure = measure
        self._executor = ThreadPoolExecutor(1, "database-size")
        self._started = -math.inf  # monotonic seconds
        self._measuring: asyncio.Future[Size | None] | None = None
        self._last: Size | None = None

    async def read(self) -> Size | None:
        """Return the last measurement; None if the size is unknown."""
        now = time.monotonic()
        if self._measuring is None and now - self._started > LIFETIME:
            loop = asyncio.get_running_loop()
            self._started = now
            self._measuring = loop.run_in_executor(self._executor, self._call_measure)
        if (measuring := self._measuring) is not None:
            await asyncio.wait([measuring], timeout=PATIENCE)
            if measuring.done():
                self._last = measuring.result()
                if self._measuring is measuring:  # else another reader was first
                    self._measuring = None
        return self._last

    def _call_measure(self) -> Size | None:
        try:
            return self._measure()
        except (StorageFailed, OSError):
            return None
