"""Queries a licence server at intervals and reports its counts to the core.

A server that fails is queried less and less often, and reports no counts. The last counts in the
core expire after the `stale_after` seconds of the licence.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from metasched.config.settings import LicenceServerSettings
from metasched.core.events import LicencesCounted
from metasched.core.scheduler import Core
from metasched.daemon.circuit_breaker import CircuitBreaker
from metasched.daemon.host import SchedulerHost
from metasched.licence_servers.base import LicenceServerError, UsageReport
from metasched.licence_servers.matching import LeasedTokens, count_outside, job_hosts
from metasched.licence_servers.process import ServerQuery, query_server
from metasched.model.audit import AuditKind, AuditRecord
from metasched.model.licence import LicenceCount, LicencePool
from metasched.times.clock import ClockStepDetector

log = logging.getLogger("metasched")

MAX_RETRY_DELAY = 600.0  # seconds between queries of a server that does not answer
MAX_CLOCK_LEAD = 120.0  # seconds that a server's clock may be ahead of this host's
REPORT_RESOLUTION = 60.0  # seconds; servers report whole minutes
REPEATS_WITHIN_MARGIN = 3  # reports of unchanged counts within `stale_after`


class LicenceMonitor:
    """The queries of a server; `pools` are the licences that it counts."""

    def __init__(
        self,
        host: SchedulerHost,
        settings: LicenceServerSettings,
        pools: Sequence[LicencePool],
    ) -> None:
        self.settings, self.pools = settings, pools
        self.breaker = CircuitBreaker(settings.interval, MAX_RETRY_DELAY)
        self.observed: float | None = None  # epoch seconds of the last counts
        self.missing_licences: dict[str, str] = {}  # not counted by the last report, with reason
        # tokens leased to started tasks that the last report does not show, by licence
        self.unseen: dict[str, int] = {}
        self._host = host
        self._last_counts: dict[str, LicenceCount] = {}

    @property
    def name(self) -> str:
        return self.settings.name

    async def run(self) -> None:
        """Query at intervals until cancelled."""
        while True:
            started_at = time.monotonic()
            await self._query_server()
            due = max(started_at + self.settings.interval, self.breaker.open_until)
            await asyncio.sleep(max(due - time.monotonic(), 0.0))

    async def _query_server(self) -> None:
        settings, core = self.settings, self._host.core
        leased_before = [leased_tokens(core, pool.name) for pool in self.pools]
        clock_detector, queried_at = ClockStepDetector(), time.time()
        try:
            query = ServerQuery(settings.server_type, settings.options, settings.timeout)
            report = await query_server(query)
            observed = observation_time(report, queried_at)
            if clock_step := clock_detector.detect_step():
                raise LicenceServerError(
                    f"the clock was set by {clock_step:+.0f} s during the query"
                )
        except LicenceServerError as error:
            self._record_failure(str(error))
            return
        self.breaker.record_success()
        self._note_state(AuditKind.LICENCE_SERVER_ANSWERS, "")
        self.observed = observed
        counts, missing, unseen = [], {}, {}
        for pool, leased in zip(self.pools, leased_before, strict=True):
            name = settings.features.get(pool.name, pool.name)
            feature = report.feature(name)
            if feature is None:
                messages = [str(trouble) for trouble in report.troubles if name in trouble.text]
                missing[pool.name] = messages[0] if messages else f"it has no {name}"
                continue
            # tokens released during the query may still be in the server's count
            leased_during_query = leased | leased_tokens(core, pool.name)
            used = count_outside(feature, leased_during_query.values())
            counts.append(LicenceCount(pool.name, feature.issued, used, observed))
            leased_tokens_now = sum(tokens.count for tokens in leased_during_query.values())
            unseen[pool.name] = max(leased_tokens_now - (feature.used - used), 0)
        for licence_name, reason in missing.items():
            if self.missing_licences.get(licence_name) != reason:
                message = f"licence server {settings.name} does not count {licence_name}"
                log.warning("%s: %s", message, reason)
        self.missing_licences, self.unseen = missing, unseen
        await self._report_counts([count for count in counts if self._matters_to_core(count)])

    def _record_failure(self, error: str) -> None:
        delay = self.breaker.record_failure(error, time.time(), time.monotonic())
        name = self.settings.name
        self._note_state(AuditKind.LICENCE_SERVER_SILENT, f"{error}; next try in {delay:g} s")
        if self.breaker.failures > 1:
            message = "licence server %s does not answer yet (%s); next try in %g s"
            log.warning(message, name, error, delay)

    def _note_state(self, kind: AuditKind, cause: str) -> None:
        """Record whether the server answers; `cause` "": it does."""
        record = AuditRecord(
            time=time.time(), kind=kind, cause=cause, details={"server": self.name}
        )
        subject = f"licence server {self.name}"
        self._host.note_condition(record, subject, "silent" if cause else "")

    def _matters_to_core(self, count: LicenceCount) -> bool:
        """Return whether a count may have an effect; an idle daemon writes little."""
        last = self._last_counts.get(count.name)
        if last is None or (count.total, count.outside) != (last.total, last.outside):
            return True
        core = self._host.core
        lingers = core.licences.status(count.name, count.observed).lingering > 0
        margin = min(pool.stale_after for pool in self.pools if pool.name == count.name)
        return lingers or count.observed - last.observed >= margin / REPEATS_WITHIN_MARGIN

    async def _report_counts(self, counts: Sequence[LicenceCount]) -> None:
        if counts:
            await self._host.apply_events(LicencesCounted(time.time(), tuple(counts)))
            self._last_counts |= {count.name: count for count in counts}


def observation_time(report: UsageReport, queried_at: float) -> float:
    """Return the time of the counts of a report, in epoch seconds.

    This is the time of the query, or an earlier time that the report states. LicenceServerError
    if it states a later time.
    """
    if report.observed is None:
        return queried_at
    if report.observed > queried_at + MAX_CLOCK_LEAD:
        ahead = report.observed - queried_at
        raise LicenceServerError(
            f"its answer is dated {ahead:.0f} s in the future; set both clocks by NTP"
        )
    return queried_at if report.observed > queried_at - REPORT_RESOLUTION else report.observed


def leased_tokens(core: Core, licence: str) -> dict[tuple[int, int, int], LeasedTokens]:
    """Return the leases of started attempts on a licence, by job, index and attempt."""
    tokens = {}
    for lease in core.licences.leases.values():
        task = core.tasks.get((lease.job, lease.index))
        attempt = task.attempt if task is not None else None
        if task is None or attempt is None or licence not in lease.tokens:
            continue
        if attempt.started is not None:
            tokens[lease.job, lease.index, lease.attempt] = LeasedTokens(
                user=task.job.user,
                hosts=job_hosts(attempt.node),
                since=attempt.started,
                count=lease.tokens[licence],
            )
    return tokens
