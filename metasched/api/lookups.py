"""Look-ups that a directory service, munged or the database may delay, in threads of their own.

asyncio's threads also delete old jobs and take the lock of the database: they must not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

MAX_LOOKUPS = 8  # at a time, of a kind

Result = TypeVar("Result")


class Lookups:
    """Look-ups of a kind. Equal look-ups at the same time share a thread and a result."""

    def __init__(self, kind: str) -> None:
        self._executor = ThreadPoolExecutor(MAX_LOOKUPS, kind)
        self._running: dict[Hashable, asyncio.Future[Any]] = {}

    async def run(self, key: Hashable, look_up: Callable[[], Result]) -> Result:
        """Call `look_up` in a thread, or wait for the call with the same key that is under way."""
        running = self._running.get(key)
        if running is None:
            running = asyncio.get_running_loop().run_in_executor(self._executor, look_up)
            self._running[key] = running
            running.add_done_callback(lambda _: self._running.pop(key))
        answer: Result = await asyncio.shield(running)  # others may wait for it
        return answer


async def _get_account_lookups(request: Request) -> Lookups:
    lookups: Lookups = request.app.state.account_lookups
    return lookups


AccountLookups = Annotated[Lookups, Depends(_get_account_lookups)]
