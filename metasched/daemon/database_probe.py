"""Whether the database answers: health reports it also while the scheduler has nothing to store.

All callers share a small read per second, in a thread of its own. So neither many callers nor a
hung database take the threads and connections of other requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from metasched.db.store import StorageFailed

PROBE_TIMEOUT = 5.0  # seconds from the start of a read until it counts as failed
PROBE_LIFETIME = 1.0  # seconds from the start of a read for which its result is used again


@dataclass(frozen=True)
class _Probe:
    started: float  # monotonic seconds
    failure: asyncio.Future[str | None]  # the error of the database, None if it answered


class DatabaseProbe:
    """Reads from the database, shared by all callers of `check`."""

    def __init__(self, read: Callable[[], object]) -> None:
        """`read` is called in a thread; it raises StorageFailed if the database does not answer."""
        self._read = read
        self._executor = ThreadPoolExecutor(1, "database-probe")
        self._probe: _Probe | None = None

    async def check(self) -> None:
        """StorageFailed if the database does not answer within `PROBE_TIMEOUT`."""
        probe = self._current_probe()
        remaining = probe.started + PROBE_TIMEOUT - time.monotonic()
        done, _ = await asyncio.wait([probe.failure], timeout=max(remaining, 0))
        if not done:
            raise StorageFailed(f"no answer in {PROBE_TIMEOUT:g} s")
        if (failure := probe.failure.result()) is not None:
            raise StorageFailed(failure)

    def forget_answer(self) -> None:
        """Use no earlier answer of the database: a request has just failed on it."""
        if self._probe is not None and self._probe.failure.done():
            self._probe = None

    def _current_probe(self) -> _Probe:
        """Return the probe under way or of the last second; start a probe if there is none."""
        now, probe = time.monotonic(), self._probe
        if probe is None or (probe.failure.done() and now - probe.started > PROBE_LIFETIME):
            loop = asyncio.get_running_loop()
            probe = _Probe(now, loop.run_in_executor(self._executor, self._call_read))
            self._probe = probe
        return probe

    def _call_read(self) -> str | None:
        try:
            self._read()
        except StorageFailed as error:
            return str(error)
        return None
