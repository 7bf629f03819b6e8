"""Stores the figures of licences over time. Nothing is decided by them.

A thread writes them, over a connection of its own, so no step of the scheduler waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from metasched.core.scheduler import Core
from metasched.db.ledger import Ledger
from metasched.db.store import StorageFailed
from metasched.model.licence import MAX_TOKENS, LicenceSample, LicenceStatus

log = logging.getLogger("metasched")

INTERVAL: Final = 60.0  # seconds between looks: a licence has at most a sample of each
UNCHANGED: Final = 1800.0  # seconds after which figures that stay the same are stored again
# Rows of a look; licences whose last sample is older come first. With `licence_samples.KEPT` that
# bounds the table. 100 a minute repeat the unchanged figures of 3,000 licences.
MAX_SAMPLES: Final = 100
STATUSES_AT_ONCE: Final = 50  # computed before the loop does other things


class LicenceHistory:
    """The last samples of the configured licences."""

    def __init__(self, core: Core, ledger: Ledger) -> None:
        self._core, self._ledger = core, ledger
        self._last: dict[str, LicenceSample] = {}

    async def run(self) -> None:
        """Store samples at intervals until cancelled."""
        while True:
            await self.look(time.time())
            await asyncio.sleep(INTERVAL)

    async def look(self, now: float) -> None:
        """Store the figures that have changed, or that were stored long ago."""
        due: list[LicenceSample] = []
        for number, name in enumerate(self._core.licences.configured_names, 1):
            sample = _sample(self._core.licences.status(name, now), now)
            if self._is_due(sample):
                due.append(sample)
            if number % STATUSES_AT_ONCE == 0:
                await asyncio.sleep(0)
        due.sort(key=lambda sample: self._last_time(sample.licence))
        stored = due[:MAX_SAMPLES]
        if not stored:
            return
        try:
            await asyncio.to_thread(self._ledger.add_licence_samples, stored)
        except StorageFailed as error:  # the service finds out by itself whether it can go on
            log.warning("the figures of %d licences are not stored now: %s", len(stored), error)
            return
        self._last |= {sample.licence: sample for sample in stored}

    def _is_due(self, sample: LicenceSample) -> bool:
        last = self._last.get(sample.licence)
        if last is None or not 0 <= sample.time - last.time < UNCHANGED:  # or the clock was set
            return True
        return sample != last._replace(time=sample.time)

    def _last_time(self, licence: str) -> float:
        last = self._last.get(licence)
        return 0.0 if last is None else last.time


def _sample(status: LicenceStatus, now: float) -> LicenceSample:
    return LicenceSample(
        status.licence,
        now,
        status.total,
        status.leased_tokens,
        min(status.outside, MAX_TOKENS),  # a sum over managers, whose reports are not trusted
        None if status.free is None else max(status.free, 0),
        status.waiting_tokens,
    )
