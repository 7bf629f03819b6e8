"""Queries a cluster's accounting for the use of ended tasks, and stores it.

Listings of some managers, such as Slurm's, do not report it. One question names many tasks, beside
all other calls. Use decides nothing: a failure leaves it unknown, and is tried again.

A sweep queries all runs without a stored use, oldest first. Most sweeps begin at the runs that
have ended lately. Once an hour a sweep begins days ago, since the daemon or the accounting may have
been down. So a run that is unknown to accounting is queried a bounded number of times.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from metasched.adapters.protocol import WorkerCall
from metasched.config.settings import ClusterSettings
from metasched.daemon.host import SchedulerHost
from metasched.daemon.worker_process import WorkerProcess
from metasched.model.job_usage import EndedRun, RunUsage

INTERVAL = 30.0  # seconds between two rounds of questions
RECENT = 600.0  # seconds after its end for which each sweep asks for a run
HORIZON = 7 * 86400.0  # the same of a long sweep
LONG_SWEEP = 120  # sweeps from a long sweep to the next
MAX_RUNS = 1000  # in a question
MAX_QUESTIONS = 5  # in a round; a sweep goes on in the next
MAX_STORED = 100  # runs in a transaction, for which the scheduler waits
STORE_PAUSE = 0.1  # seconds between two of these
MAX_AMOUNT = 2**53  # of seconds, MiB and processors


class UsageCollector:
    """The questions to the accounting of a cluster."""

    def __init__(
        self,
        host: SchedulerHost,
        settings: ClusterSettings,
        worker: WorkerProcess,
        is_up: Callable[[], bool],
    ) -> None:
        """`is_up`: the cluster answers."""
        self.name, self._host, self._settings = settings.cluster.name, host, settings
        self._worker, self._is_up = worker, is_up
        self._sweeps = 0  # begun
        self._since = 0.0  # epoch seconds: where the sweep began
        self._last: EndedRun | None = None  # of the sweep so far; None: it has ended

    async def run(self) -> None:
        """Ask at intervals until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            info, _ = self._host.core.cluster_status(self.name)
            if info is not None and info.use_source and self._is_up():
                await self.collect(time.time())

    async def collect(self, now: float) -> None:
        """Ask a round of questions, and store the answers."""
        for _ in range(MAX_QUESTIONS):
            if self._last is None:
                is_long = self._sweeps % LONG_SWEEP == 0
                self._sweeps += 1
                self._since = now - (HORIZON if is_long else RECENT)
            runs = await asyncio.to_thread(
                self._host.ledger.ended_runs, self.name, self._since, MAX_RUNS, self._last
            )
            # also after a failure: a question that never succeeds bars no others
            self._last = runs[-1] if len(runs) == MAX_RUNS else None
            if runs and not await self._ask(runs):
                return
            if self._last is None:
                return

    async def _ask(self, runs: Sequence[EndedRun]) -> bool:
        """Ask for runs, and store their use. Return False if there is no answer."""
        limit = self._settings.call_timeout / 2
        reply = await self._worker.call(WorkerCall("usage", ended=tuple(runs), time_limit=limit))
        usage = {
            runs[position]: use
            for position, use in reply.usage.items()
            if 0 <= position < len(runs) and _is_plausible(use)
        }
        answered = list(usage)
        for first in range(0, len(answered), MAX_STORED):
            if first:
                await asyncio.sleep(STORE_PAUSE)
            portion = answered[first : first + MAX_STORED]
            self._host.ledger.store_usage({run: usage[run] for run in portion})
        return not reply.error


def _is_plausible(usage: RunUsage) -> bool:
    """Return whether amounts that a worker reports can be stored."""
    return all(
        amount is None or 0 <= amount <= MAX_AMOUNT
        for amount in (usage.cpu_seconds, usage.max_memory, usage.elapsed, usage.cpus)
    )
