"""Strikes: refusals without proof, counted by job and cluster. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

STRIKE_DELAYS: Final = (60.0, 600.0)  # seconds until a job is tried again: after one, after more
MAX_STRIKES: Final = 3  # after which it is not tried there
MAX_DELAY: Final = 3600.0  # seconds, for a job whose strikes do not count
_ROUNDING: Final = 1e-3  # seconds


class Strike(msgspec.Struct):
    """The strikes of a job on a cluster. Times are epoch seconds."""

    job: int
    cluster: str
    count: int = 0  # those that count: none while the cluster refuses jobs of others, too
    sentence: str = ""  # of the last: what the manager's program said
    time: float = 0.0  # when the last was found; earlier dispatches give no other
    delay: float = 0.0  # seconds until the next try
    retry_at: float = 0.0  # then a single task of the job is tried there

    @property
    def is_last(self) -> bool:
        """Whether the job is not tried there any more."""
        return self.count >= MAX_STRIKES

    def bars(self, dispatched: float) -> bool:
        """Return whether a dispatch was decided before the job was tried there last."""
        return dispatched < self.retry_at - self.delay - _ROUNDING

    def add(self) -> None:
        """Count another strike."""
        self.count += 1
        self.delay = STRIKE_DELAYS[min(self.count, len(STRIKE_DELAYS)) - 1]

    def add_uncounted(self) -> None:
        """Let other jobs be tried before this job: the delay doubles."""
        self.delay = min(max(STRIKE_DELAYS[0], 2 * self.delay), MAX_DELAY)


class Strikes:
    """The strikes of open jobs."""

    def __init__(self) -> None:
        self._by_job: dict[int, dict[str, Strike]] = {}
        self._retries: list[tuple[float, int, str]] = []  # a heap; entries may be outdated
        # changed in this step, by job and cluster; None: forgotten
        self.changed: dict[tuple[int, str], Strike | None] = {}

    def __bool__(self) -> bool:
        return bool(self._by_job)

    def __contains__(self, job: int) -> bool:
        return job in self._by_job

    def __iter__(self) -> Iterator[Strike]:
        for strikes in self._by_job.values():
            yield from strikes.values()

    def find(self, job: int, cluster: str) -> Strike | None:
        """Return the strikes of a job on a cluster, or None."""
        strikes = self._by_job.get(job)
        return None if strikes is None else strikes.get(cluster)

    def sentences(self, job: int) -> set[str]:
        """Return what managers' programs said last of a job with strikes."""
        return {strike.sentence for strike in self._by_job.get(job, {}).values()}

    def set_all(self, strikes: Iterable[Strike]) -> None:
        """Begin anew with stored strikes."""
        self._by_job, self._retries = {}, []
        for strike in strikes:
            self._by_job.setdefault(strike.job, {})[strike.cluster] = strike
            self._retries.append((strike.retry_at, strike.job, strike.cluster))
        heapq.heapify(self._retries)

    def doubt(self, job: int, cluster: str, sentence: str, now: float) -> None:
        """Let other tasks of a job wait while a look decides whether it was refused there."""
        strike = self.find(job, cluster)
        if strike is None:
            strike = Strike(job, cluster, sentence=sentence, delay=STRIKE_DELAYS[0])
        self.store(strike, now)

    def store(self, strike: Strike, now: float) -> None:
        """Store changed strikes; the job is tried there again after the delay."""
        strike.retry_at = now + strike.delay
        self._by_job.setdefault(strike.job, {})[strike.cluster] = strike
        self.changed[strike.job, strike.cluster] = strike
        heapq.heappush(self._retries, (strike.retry_at, strike.job, strike.cluster))

    def forget(self, job: int, cluster: str | None = None) -> bool:
        """Forget the strikes of a job, on a cluster or on all. Return whether there were any."""
        strikes = self._by_job.get(job, {})
        forgotten = [name for name in strikes if cluster in (None, name)]
        for name in forgotten:
            del strikes[name]
            self.changed[job, name] = None
        if forgotten and not strikes:
            del self._by_job[job]
        return bool(forgotten)

    def is_due(self, now: float) -> bool:
        """Return whether a job with strikes may be tried again."""
        return bool(self._retries) and self._retries[0][0] <= now

    def pass_time(self, now: float) -> bool:
        """Return whether jobs with strikes may be tried again since the last call."""
        was_due = False
        while self.is_due(now):
            _, job, cluster = heapq.heappop(self._retries)
            strike = self.find(job, cluster)
            was_due |= strike is not None and strike.retry_at <= now
        return was_due

    def adjust_clock(self, step: float) -> None:
        """Correct times after the wall clock was set by `step` seconds; see `Core`."""
        strikes = list(self)
        for strike in strikes:
            strike.time += min(step, 0.0)
            strike.retry_at += step
            self.changed[strike.job, strike.cluster] = strike
        self.set_all(strikes)
