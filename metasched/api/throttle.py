"""Throttling: while others call, an account whose readings take much of the daemon's time waits.

Slurm's slurmctld counts the requests of each user in a token bucket (`rl_enable`). Readings differ
in cost by a factor of a thousand, so processor time counts: of the threads that list, and of the
event loop and short readings for each request that changes nothing (`WHOLE_REQUEST`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

log = logging.getLogger("metasched")

WINDOW = 5.0  # seconds; time constant of the decayed use of an account
SHARE = 0.07  # of a processor, for what an account reads of a kind while others call
# The same for short readings and all that happens in the event loop; less, since each takes the
# interpreter from the scheduler for up to 5 ms.
REQUEST_SHARE = 0.05
WHOLE_REQUEST = "request"  # kind of these
MAX_USE = 1.0  # of a processor; so a reading waits at most WINDOW * log(MAX_USE / share), 15 s
QUIET = 5.0  # seconds after a request until its account no longer counts as a caller
SHORTEST = 0.001  # seconds of a wait
RECHECK = 1.0  # seconds after which a waiting request looks whether others still call
MAX_READERS = 10_000  # whose use is remembered

Reader: TypeAlias = tuple[str, str]  # account, and kind of its readings


@dataclass(slots=True)
class DecayedUse:
    """Processor time of an account per second, averaged with exponential decay."""

    share: float  # of a processor, at `at`
    at: float  # seconds of the clock

    def decay(self, now: float) -> float:
        """Decay the use until `now` and return it."""
        self.share *= math.exp((self.at - now) / WINDOW)
        self.at = now
        return self.share


@dataclass(slots=True)
class Delays:
    """The delays of an account's requests since the start of the daemon."""

    requests: int = 0  # that waited
    seconds: float = 0.0  # that they waited together


class Throttle:
    """Processor time of what each account reads; a reading waits while that is above `SHARE`.

    Each kind of readings counts by itself: a request about named jobs does not wait for listings.
    Callers of `wait` bound how many requests of an account wait.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._uses: dict[Reader, DecayedUse] = {}
        # account and time of the last request, and of the last from another account
        self._last_call, self._last_other = ("", -math.inf), ("", -math.inf)
        self._turns: defaultdict[Reader, asyncio.Lock] = defaultdict(asyncio.Lock)  # FIFO
        self._waiting: Counter[Reader] = Counter()  # requests
        self.delays: defaultdict[str, Delays] = defaultdict(Delays)  # by user

    def note_call(self, user: str) -> None:
        """Remember that an account calls, with any request."""
        if user != self._last_call[0]:
            self._last_other = self._last_call
        self._last_call = (user, self._clock())

    def charge(self, reader: Reader, seconds: float) -> None:
        """Add processor time, in seconds, to the use of an account."""
        now = self._clock()
        use = self._uses.get(reader)
        if use is None:
            if len(self._uses) >= MAX_READERS:
                self._forget(now)
            use = self._uses[reader] = DecayedUse(0.0, now)
        use.share = min(use.decay(now) + seconds / WINDOW, MAX_USE)

    def delay(self, reader: Reader) -> float:
        """Return the seconds that a reading of an account has to wait from now on; mostly 0."""
        use, now = self._uses.get(reader), self._clock()
        share = REQUEST_SHARE if reader[1] == WHOLE_REQUEST else SHARE
        if use is None or use.decay(now) <= share:
            return 0.0
        other = self._last_other if reader[0] == self._last_call[0] else self._last_call
        return WINDOW * math.log(use.share / share) if now - other[1] < QUIET else 0.0

    async def wait(self, reader: Reader) -> None:
        """Return when a reading of the account may start; its readings keep their order."""
        if not self._waiting[reader] and not self.delay(reader):
            return
        log.info(
            "readings of %s wait: they take much of the daemon's time while others call",
            reader[0],
            extra={"repeat_key": f"throttled {reader[0]}"},
        )
        begun = self._clock()
        self._waiting[reader] += 1
        try:
            async with self._turns[reader]:
                while (seconds := self.delay(reader)) > 0:
                    await self._sleep(min(max(seconds, SHORTEST), RECHECK))
        finally:
            self.delays[reader[0]].requests += 1
            self.delays[reader[0]].seconds += self._clock() - begun
            self._waiting[reader] -= 1
            if not self._waiting[reader]:
                del self._waiting[reader], self._turns[reader]

    def delay_rows(self, limit: int) -> list[dict[str, Any]]:
        """Return the accounts whose requests waited longest together, with number and seconds."""
        users = sorted(self.delays, key=lambda user: -self.delays[user].seconds)
        return [{"user": user, **asdict(self.delays[user])} for user in users[:limit]]

    def _forget(self, now: float) -> None:
        """Forget the half with the least use."""
        by_use = sorted(self._uses, key=lambda reader: self._uses[reader].decay(now))
        for reader in by_use[: len(by_use) // 2]:
            del self._uses[reader]
