"""Asks a cluster's accounting what ended tasks used, and stores it.

Listings of some managers, such as Slurm's, do not report it. One question names many tasks, beside
all other calls. Use decides nothing: a failure leaves it unknown, and is tried again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from metasched.adapters.protocol import WorkerCall
from metasched.config.settings import ClusterSettings
from metasched.daemon.host import SchedulerHost
from metasched.daemon.worker_process import WorkerProcess
from metasched.model.job_usage import EndedRun, RunUsage

INTERVAL = 30.0  # seconds between two questions
HORIZON = 600.0  # seconds after its end for which a task is asked for
MAX_RUNS = 1000  # in a question
MAX_QUESTIONS = 5  # about a task
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
        self._asked: Counter[EndedRun] = Counter()

    async def run(self) -> None:
        """Ask at intervals until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            info, _ = self._host.core.cluster_status(self.name)
            if info is not None and info.use_source and self._is_up():
                await self.collect(time.time())

    async def collect(self, now: float) -> None:
        """Ask once for all tasks that ended lately, and store the answer."""
        ledger = self._host.ledger
        unknown = await asyncio.to_thread(ledger.ended_runs, self.name, now - HORIZON, MAX_RUNS)
        self._asked = Counter({run: self._asked[run] for run in unknown})
        asked = [run for run in unknown if self._asked[run] < MAX_QUESTIONS]
        if not asked:
            return
        self._asked.update(asked)
        limit = self._settings.call_timeout / 2
        reply = await self._worker.call(WorkerCall("usage", ended=tuple(asked), time_limit=limit))
        usage = {
            asked[position]: use
            for position, use in reply.usage.items()
            if 0 <= position < len(asked) and _is_plausible(use)
        }
        if usage:
            ledger.store_usage(usage)


def _is_plausible(usage: RunUsage) -> bool:
    """Whether amounts that a worker reports can be stored."""
    return all(
        amount is None or 0 <= amount <= MAX_AMOUNT
        for amount in (usage.cpu_seconds, usage.max_memory, usage.elapsed, usage.cpus)
    )
