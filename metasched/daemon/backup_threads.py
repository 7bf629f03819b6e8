"""Threads that write the copies of the calendar. They outlive a service, but not the daemon.

A copy may take long, and services end and start while it is written. The next service awaits the
thread of the previous service. Else each start would begin a further copy of the same run.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

RETRY_PAUSE = 300.0  # seconds after a failed copy until the next copy for its run begins


class EntryRun(NamedTuple):
    """A run of an entry of the calendar, outside of the core."""

    entry: int  # id
    due: float  # nominal time, epoch seconds


@dataclass
class _Copy:
    result: Future[str] = field(default_factory=Future)
    ended: float = 0.0  # monotonic seconds, once there is a result

    def write(self, work: Callable[[], str]) -> None:
        """Call `work` in a thread for which the end of the daemon never waits."""
        self.result.set_running_or_notify_cancel()  # so that no awaiting task can cancel it

        def run() -> None:
            text, failure = "", None
            try:
                text = work()
            except Exception as error:
                failure = error
            self.ended = time.monotonic()
            if failure is None:
                self.result.set_result(text)
            else:
                self.result.set_exception(failure)

        threading.Thread(target=run, name="backup", daemon=True).start()


class BackupThreads:
    """The copies that are written, and results that no service has recorded yet."""

    def __init__(self) -> None:
        self._copies: dict[EntryRun, _Copy] = {}

    async def write(self, run: EntryRun, work: Callable[[], str]) -> str:
        """Return what `work` returns, or raise its error; a copy that was begun is awaited.

        An unfinished copy at the end of the daemon is made again by the next daemon. A copy that
        failed while no service awaited it is begun again `RETRY_PAUSE` later.
        """
        copy = self._copies.get(run)
        if copy is not None and copy.result.done() and copy.result.exception() is not None:
            await asyncio.sleep(copy.ended + RETRY_PAUSE - time.monotonic())
            copy = None
        if copy is None:
            copy = self._copies[run] = _Copy()
            copy.write(work)
        return await asyncio.wrap_future(copy.result)

    def forget(self, run: EntryRun) -> None:
        """Forget a run whose result is stored."""
        self._copies.pop(run, None)
