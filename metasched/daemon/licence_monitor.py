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

from metasched.clock import Clock
from metasched.config.settings import LicenceServerSettings
from metasched.core.events import LicencesCounted
from metasched.core.scheduler import Core
from metasched.daemon.circuit_breaker import Breaker
from metasched.licence_servers.base import ProbeError, Report
from metasched.licence_servers.matching import Held, hosts_of, outside
from metasched.licence_servers.process import Question, probe
from metasched.model.licence import LicenceCount, LicencePool

if TYPE_CHECKING:
    from metasched.daemon.service import Engine

log = logging.getLogger("metasched")

SLOWEST = 600.0  # seconds between tries of a server that does not answer, at the most
AHEAD = 120.0  # seconds by which the clock of a server may be ahead of ours
MINUTE = 60.0  # servers tell whole minutes: what is told of the last one is told of now
AGAIN = 3  # so often within the margin what has not changed is told again


class Watch:
    """One server; `pools` are the licences that it counts."""

    def __init__(
        self, engine: Engine, settings: LicenceServerSettings, pools: Sequence[LicencePool]
    ) -> None:
        self.settings, self.pools = settings, pools
        self.breaker = Breaker(settings.interval, SLOWEST)
        self.observed: float | None = None  # of the last answer
        self.lacking: dict[str, str] = {}  # licences that it did not tell of, and why
        self._engine = engine
        self._told: dict[str, LicenceCount] = {}

    async def run(self) -> None:
        """Probe for ever."""
        while True:
            begun = time.monotonic()
            await self._probe()
            due = max(begun + self.settings.interval, self.breaker.until)
            await asyncio.sleep(max(due - time.monotonic(), 0.0))

    async def _probe(self) -> None:
        settings, core = self.settings, self._engine.core
        held = [held_of(core, pool.name) for pool in self.pools]
        clock, asked = Clock(), time.time()
        try:
            report = await probe(Question(settings.kind, settings.options, settings.timeout))
            observed = observed_at(report, asked)
            if by := clock.step():
                raise ProbeError(f"the clock was set by {by:+.0f} s meanwhile")
        except ProbeError as error:
            self._failed(str(error))
            return
        if self.breaker.failures:
            log.info("licence server %s answers", settings.name)
        self.breaker.succeed()
        self.observed = observed
        counts, lacking = [], {}
        for pool, before in zip(self.pools, held, strict=True):
            name = settings.features.get(pool.name, pool.name)
            feature = report.feature(name)
            if feature is None:
                why = [str(t) for t in report.troubles if name in t.text]
                lacking[pool.name] = why[0] if why else f"it has no {name}"
                continue
            # what was given back meanwhile lingers as ours: it was when the server was asked
            ours = before | held_of(core, pool.name)
            used = outside(feature, ours.values())
            counts.append(LicenceCount(pool.name, feature.issued, used, observed))
        for licence, why_not in lacking.items():
            if self.lacking.get(licence) != why_not:
                told = (settings.name, licence, why_not)
                log.warning("licence server %s does not tell of %s: %s", *told)
        self.lacking = lacking
        self._tell([count for count in counts if self._is_news(count)])

    def _failed(self, words: str) -> None:
        delay = self.breaker.fail(words, time.time(), time.monotonic())
        told = (self.settings.name, words, delay)
        log.warning("licence server %s does not answer (%s); next try in %g s", *told)

    def _is_news(self, count: LicenceCount) -> bool:
        """Whether something may follow from it; an idle daemon writes little."""
        last = self._told.get(count.name)
        if last is None or (count.total, count.outside) != (last.total, last.outside):
            return True
        core = self._engine.core
        lingers = core.licences.standing(count.name, count.observed).lingering > 0
        margin = min(pool.stale_after for pool in self.pools if pool.name == count.name)
        return lingers or count.observed - last.observed >= margin / AGAIN

    def _tell(self, counts: Sequence[LicenceCount]) -> None:
        if counts:
            self._engine.take(LicencesCounted(time.time(), tuple(counts)))
            self._told |= {count.name: count for count in counts}


def observed_at(report: Report, asked: float) -> float:
    """Of when the figures are: the asking, or earlier if the answer says so. ProbeError: later."""
    if report.observed is None:
        return asked
    if report.observed > asked + AHEAD:
        ahead = report.observed - asked
        raise ProbeError(f"its answer is of {ahead:.0f} s in the future; set both clocks by NTP")
    return asked if report.observed > asked - MINUTE else report.observed


def held_of(core: Core, licence: str) -> dict[tuple[int, int, int], Held]:
    """What attempts that have begun have leased of a licence, by job, index and attempt."""
    found = {}
    for lease in core.licences.leases.values():
        task = core.tasks.get((lease.job, lease.index))
        attempt = task.attempt if task is not None else None
        if task is None or attempt is None or licence not in lease.tokens:
            continue
        if attempt.started is not None:
            found[lease.job, lease.index, lease.attempt] = Held(
                *(task.job.user, hosts_of(attempt.node), attempt.started, lease.tokens[licence])
            )
    return found
