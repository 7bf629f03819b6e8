"""The daemon's watch over one licence server: a probe at every interval, and what follows of it.

A server that fails is asked less and less often. Nothing is told of it then: what the core knows
grows old, and counts no more once it is older than the licence's `stale_after`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from metasched.clock import ClockStepDetector
from metasched.config.settings import LicenceServerSettings
from metasched.core.events import LicencesCounted
from metasched.core.scheduler import Core
from metasched.daemon.circuit_breaker import CircuitBreaker
from metasched.licence_servers.base import LicenceServerError, UsageReport
from metasched.licence_servers.matching import LeasedTokens, count_outside, expand_hosts
from metasched.licence_servers.process import ServerQuery, query_server
from metasched.model.licence import LicenceCount, LicencePool

if TYPE_CHECKING:
    from metasched.daemon.service import SchedulerService

log = logging.getLogger("metasched")

MAX_RETRY_DELAY = 600.0  # seconds between tries of a server that does not answer, at the most
MAX_CLOCK_LEAD = 120.0  # seconds by which the clock of a server may be ahead of ours
REPORT_RESOLUTION = 60.0  # servers tell whole minutes: what is told of the last one is told of now
REPEATS_WITHIN_MARGIN = 3  # so often within the margin what has not changed is told again


class LicenceMonitor:
    """One server; `pools` are the licences that it counts."""

    def __init__(
        self,
        service: SchedulerService,
        settings: LicenceServerSettings,
        pools: Sequence[LicencePool],
    ) -> None:
        self.settings, self.pools = settings, pools
        self.breaker = CircuitBreaker(settings.interval, MAX_RETRY_DELAY)
        self.observed: float | None = None  # of the last answer
        self.missing_licences: dict[str, str] = {}  # licences that it did not tell of, and why
        self._service = service
        self._last_counts: dict[str, LicenceCount] = {}

    async def run(self) -> None:
        """Probe for ever."""
        while True:
            started_at = time.monotonic()
            await self._query_server()
            due = max(started_at + self.settings.interval, self.breaker.open_until)
            await asyncio.sleep(max(due - time.monotonic(), 0.0))

    async def _query_server(self) -> None:
        settings, core = self.settings, self._service.core
        leased_before = [leased_tokens(core, pool.name) for pool in self.pools]
        clock_detector, queried_at = ClockStepDetector(), time.time()
        try:
            report = await query_server(
                ServerQuery(settings.server_type, settings.options, settings.timeout)
            )
            observed = observation_time(report, queried_at)
            if clock_step := clock_detector.detect_step():
                raise LicenceServerError(f"the clock was set by {clock_step:+.0f} s meanwhile")
        except LicenceServerError as error:
            self._record_failure(str(error))
            return
        if self.breaker.failures:
            log.info("licence server %s answers", settings.name)
        self.breaker.record_success()
        self.observed = observed
        counts, missing = [], {}
        for pool, leased in zip(self.pools, leased_before, strict=True):
            name = settings.features.get(pool.name, pool.name)
            feature = report.feature(name)
            if feature is None:
                messages = [str(trouble) for trouble in report.troubles if name in trouble.text]
                missing[pool.name] = messages[0] if messages else f"it has no {name}"
                continue
            # what was given back meanwhile lingers as ours: it was when the server was asked
            leased_during_query = leased | leased_tokens(core, pool.name)
            used = count_outside(feature, leased_during_query.values())
            counts.append(LicenceCount(pool.name, feature.issued, used, observed))
        for licence_name, reason in missing.items():
            if self.missing_licences.get(licence_name) != reason:
                arguments = (settings.name, licence_name, reason)
                log.warning("licence server %s does not tell of %s: %s", *arguments)
        self.missing_licences = missing
        self._report_counts([count for count in counts if self._must_report(count)])

    def _record_failure(self, error: str) -> None:
        delay = self.breaker.record_failure(error, time.time(), time.monotonic())
        arguments = (self.settings.name, error, delay)
        log.warning("licence server %s does not answer (%s); next try in %g s", *arguments)

    def _must_report(self, count: LicenceCount) -> bool:
        """Whether something may follow from it; an idle daemon writes little."""
        last_count = self._last_counts.get(count.name)
        if last_count is None or (count.total, count.outside) != (
            last_count.total,
            last_count.outside,
        ):
            return True
        core = self._service.core
        lingers = core.licences.status(count.name, count.observed).lingering > 0
        margin = min(pool.stale_after for pool in self.pools if pool.name == count.name)
        return lingers or count.observed - last_count.observed >= margin / REPEATS_WITHIN_MARGIN

    def _report_counts(self, counts: Sequence[LicenceCount]) -> None:
        if counts:
            self._service.apply_events(LicencesCounted(time.time(), tuple(counts)))
            self._last_counts |= {count.name: count for count in counts}


def observation_time(report: UsageReport, queried_at: float) -> float:
    """Of when the figures are: the asking, or earlier if the answer says so. ProbeError: later."""
    if report.observed is None:
        return queried_at
    if report.observed > queried_at + MAX_CLOCK_LEAD:
        ahead = report.observed - queried_at
        raise LicenceServerError(
            f"its answer is of {ahead:.0f} s in the future; set both clocks by NTP"
        )
    return queried_at if report.observed > queried_at - REPORT_RESOLUTION else report.observed


def leased_tokens(core: Core, licence: str) -> dict[tuple[int, int, int], LeasedTokens]:
    """What attempts that have begun have leased of a licence, by job, index and attempt."""
    tokens = {}
    for lease in core.licences.leases.values():
        task = core.tasks.get((lease.job, lease.index))
        attempt = task.attempt if task is not None else None
        if task is None or attempt is None or licence not in lease.tokens:
            continue
        if attempt.started is not None:
            tokens[lease.job, lease.index, lease.attempt] = LeasedTokens(
                *(task.job.user, expand_hosts(attempt.node), attempt.started, lease.tokens[licence])
            )
    return tokens
