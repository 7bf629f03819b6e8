"""Reports to the core the use of a cluster by jobs that metasched did not send, and its shares.

Runs only with fair share. Accounting that does not answer delays nothing else: the use counted
before stays in force, and the next answer continues at the end of the last answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from metasched.adapters.protocol import WorkerCall
from metasched.config.settings import ClusterSettings
from metasched.core.events import SharesReported, UseReported
from metasched.daemon.circuit_breaker import CircuitBreaker
from metasched.daemon.host import SchedulerHost
from metasched.daemon.worker_process import WorkerProcess
from metasched.model.fair_share import FairShareSettings
from metasched.model.foreign_use import UseAnswer, UseQuery, is_name

log = logging.getLogger("metasched")

HISTORY = 5.0  # half-lives before the first start that are counted: 97% of all that decayed use
# An answer sums up at most this part of a half-life, or of the age of the use: that decays a bit
# too little (by 1.4%, or at most 4% of the use when it was new)
SPAN_OF_HALF_LIFE, SPAN_OF_AGE = 0.02, 0.2
MIN_SPAN, MAX_SPAN = 60.0, 86400.0  # seconds
# seconds before the last answer: jobs that ended in them may have had no records then
LATE_RECORDS = 600.0
RETRY_DELAY = 60.0  # seconds after an answer that failed, at most
FIRST_LISTING_CHECK = 1.0  # seconds between checks for the first listing of the cluster
MIN_PAUSE = 0.2  # seconds between two answers of a long history, at least


class UseCursor(NamedTuple):
    """A position in the accounting of a cluster, as stored. Times are epoch seconds."""

    counted_since: int  # since then the core counts the use of metasched's own jobs
    until: int  # use until then has been reported
    position: str  # `UseAnswer.cursor`

    @classmethod
    def parse(cls, text: str) -> UseCursor | None:
        """Return the cursor that `str` wrote; None for other text."""
        since, _, rest = text.partition(" ")
        until, _, position = rest.partition(" ")
        if not all(
            part.isascii() and part.isdecimal() and len(part) < 16 for part in (since, until)
        ):
            return None
        return cls(int(since), int(until), position)

    def __str__(self) -> str:
        return f"{self.counted_since} {self.until} {self.position}"


class UseMonitor:
    """The queries of a cluster's accounting."""

    def __init__(
        self,
        host: SchedulerHost,
        settings: ClusterSettings,
        worker: WorkerProcess,
        cursor: str,
        is_up: Callable[[], bool],
    ) -> None:
        """`cursor` is the stored position, "" without one; `is_up`: the cluster answers."""
        self.name, self._host, self._settings = settings.cluster.name, host, settings
        self._worker, self._is_up = worker, is_up
        self.cursor = UseCursor.parse(cursor)
        self.breaker = CircuitBreaker(RETRY_DELAY, RETRY_DELAY)  # of use
        self.shares_breaker = CircuitBreaker(RETRY_DELAY, RETRY_DELAY)
        self._defect = ""  # of records set aside, as logged last

    @property
    def source(self) -> str:
        """The accounting that reports the use; "" if none does."""
        info, _ = self._host.core.cluster_status(self.name)
        return info.use_source if info else ""

    async def run(self) -> None:
        """Query at intervals until cancelled; return at once without fair share."""
        fair_share = self._host.settings.fair_share
        if fair_share is None:
            return
        while self._host.core.cluster_status(self.name)[0] is None:
            await asyncio.sleep(FIRST_LISTING_CHECK)
        has_more = False  # the last answer left further use
        while True:
            started = time.monotonic()
            if self.source and self._is_up():
                if fair_share.shares_from == self.name and not has_more:
                    await self._query_shares()
                has_more = await self._query_use(fair_share)
            pause = self._host.settings.use_interval
            if has_more:
                pause = max(time.monotonic() - started, MIN_PAUSE)
            elif self.breaker.failures or self.shares_breaker.failures:
                pause = min(pause, RETRY_DELAY)
            await asyncio.sleep(pause)

    async def _query_use(self, fair_share: FairShareSettings) -> bool:
        """Report the next use. Return whether there is more at once."""
        now, half_life = time.time(), fair_share.half_life
        oldest = now - HISTORY * half_life
        cursor = self.cursor or UseCursor(int(now), int(oldest), "")
        own_jobs = await self._own_jobs(max(cursor.until - LATE_RECORDS, cursor.counted_since))
        span = max(SPAN_OF_HALF_LIFE * half_life, SPAN_OF_AGE * (now - cursor.until))
        query = UseQuery(
            cursor=cursor.position,
            since=oldest,
            max_span=min(max(span, MIN_SPAN), MAX_SPAN),
            own_jobs=own_jobs,
        )
        limit = self._settings.call_timeout / 2
        reply = await self._worker.call(WorkerCall("use", use_query=query, time_limit=limit))
        if reply.use is None:
            self._record_failure(self.breaker, "use", reply.reason)
            return False
        self._record_success(self.breaker, "use")
        await self._report(reply.use, cursor)
        return reply.use.more

    async def _own_jobs(self, since: float) -> dict[str, float]:
        """Return the dispatch times by native id of own jobs that are open or ended `since`."""
        attempts = (task.live_attempt for task in self._host.core.tasks_on(self.name))
        live = {a.native_id: a.dispatched for a in attempts if a.native_id is not None}
        return await asyncio.to_thread(self._host.ledger.ended_jobs, self.name, since) | live

    async def _report(self, answer: UseAnswer, before: UseCursor) -> None:
        """Store use and cursor together; without use only the first cursor is stored."""
        if answer.set_aside and answer.defect != self._defect:
            message = "cluster %s: %d records of its accounting cannot be read, the first: %s"
            log.warning(message, self.name, answer.set_aside, answer.defect)
        self._defect = answer.defect
        until = max(before.until, int(min(answer.until, time.time())))
        cursor = UseCursor(before.counted_since, until, answer.cursor)
        uses = tuple(use for use in answer.rows if is_name(use.user))
        if uses or self.cursor is None:
            await self._host.apply_events(UseReported(time.time(), self.name, str(cursor), uses))
        self.cursor = cursor

    async def _query_shares(self) -> None:
        """Report the shares if they have changed. Shares that cannot be read stay as they were."""
        limit = self._settings.call_timeout / 2
        reply = await self._worker.call(WorkerCall("shares", time_limit=limit))
        if reply.shares is None:
            self._record_failure(self.shares_breaker, "shares", reply.reason)
            return
        self._record_success(self.shares_breaker, "shares")
        if reply.shares != self._host.core.fair_share.trees.get(self.name):
            await self._host.apply_events(SharesReported(time.time(), self.name, reply.shares))

    def _record_failure(self, breaker: CircuitBreaker, subject: str, reason: str) -> None:
        if reason != breaker.last_error:
            log.warning("cluster %s: its accounting reports no %s: %s", self.name, subject, reason)
        breaker.record_failure(reason, time.time(), time.monotonic())

    def _record_success(self, breaker: CircuitBreaker, subject: str) -> None:
        if breaker.failures:
            log.info("cluster %s: its accounting reports the %s again", self.name, subject)
        breaker.record_success()
