"""Bounds of a wait from past waits alone: the binomial method, a peer of the forecast.

Brevik, Nurmi, Wolski 2006, "Predicting bounds on queuing delay for batch-scheduled parallel
machines" (BMBP, later QBETS). An order statistic of past waits bounds a quantile of the next wait
with a given confidence, whatever the distribution. Jobs are grouped by their processors. After
misses in a row the waits have changed, and only the last waits are kept.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from functools import cache
from typing import NamedTuple

QUANTILE, CONFIDENCE = 0.9, 0.95  # of the upper bound; the lower bound has 1 - QUANTILE
MIN_WAITS = 29  # least number with a bound: 1 - 0.9 ** 29 >= 0.95
MISSES = 3  # in a row above the upper bound: a change
MAX_WAITS = 5000  # kept of a group; a bound does not need older waits
GROUPS = (4, 16, 64)  # most processors of each group but the last
_Z = 1.6449  # 95% quantile of the normal distribution
_EXACT = 300  # most waits for which the binomial distribution is summed


class WaitBounds(NamedTuple):
    """Bounds of a wait in seconds; inf or 0 if there are too few past waits."""

    early: float
    median: float
    late: float


class BinomialBounds:
    """Past waits of a machine by processors."""

    def __init__(self) -> None:
        self._groups = [_PastWaits() for _ in range(len(GROUPS) + 1)]

    def add(self, cpus: int, wait: float) -> None:
        """Learn from a job that has started."""
        self._groups[bisect_left(GROUPS, cpus)].add(wait)

    def bounds(self, cpus: int) -> WaitBounds:
        """Return the bounds for a job that is submitted now."""
        return self._groups[bisect_left(GROUPS, cpus)].bounds()


class _PastWaits:
    """The past waits of a group, in seconds."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._ascending: list[float] = []
        self._misses = 0

    def add(self, wait: float) -> None:
        self._misses = self._misses + 1 if wait > self.bounds().late else 0
        self._recent.append(wait)
        insort(self._ascending, wait)
        if self._misses >= MISSES:
            self._misses = 0
            self._forget(len(self._recent) - MIN_WAITS)
        self._forget(len(self._recent) - MAX_WAITS)

    def _forget(self, number: int) -> None:
        for _ in range(number):
            del self._ascending[bisect_left(self._ascending, self._recent.popleft())]

    def bounds(self) -> WaitBounds:
        ascending = self._ascending
        if len(ascending) < MIN_WAITS:
            return WaitBounds(0.0, ascending[len(ascending) // 2] if ascending else 0.0, math.inf)
        rank = upper_rank(len(ascending))
        return WaitBounds(
            ascending[len(ascending) - rank],
            ascending[len(ascending) // 2],
            ascending[rank - 1],
        )


@cache
def upper_rank(number: int) -> int:
    """Return the rank of the order statistic that bounds QUANTILE with CONFIDENCE.

    The least k for which fewer than k of `number` values lie below the quantile with probability
    CONFIDENCE. ValueError if there is none: fewer than MIN_WAITS values.
    """
    if number > _EXACT:
        deviation = math.sqrt(number * QUANTILE * (1 - QUANTILE))
        return min(number, math.ceil(number * QUANTILE + _Z * deviation) + 1)
    below = 0.0  # probability that fewer than k values lie below the quantile
    for k in range(1, number + 1):
        below += math.comb(number, k - 1) * QUANTILE ** (k - 1) * (1 - QUANTILE) ** (number - k + 1)
        if below >= CONFIDENCE:
            return k
    raise ValueError(f"{number} values give no bound; {MIN_WAITS} do")
