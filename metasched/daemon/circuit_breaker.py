"""A circuit breaker: when something that keeps failing may be tried again, and what it said.

Closed while all is well, open until the next try, half open while that try is under way
(Nygard, Release It!, 2007, ch. 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass
class Breaker:
    """Waits of `first` seconds after a failure, doubled by each further one, `most` at the most.

    `words` are what was said last, `since` the epoch seconds of the first failure in a row,
    `next_try` the epoch seconds before which there is none, for people; `until` is the same on
    the monotonic clock, which decides.
    """

    first: float
    most: float
    failures: int = 0
    words: str = ""
    since: float | None = None
    next_try: float | None = None
    until: float = 0.0

    def fail(self, words: str, now: float, monotonic: float, least: float = 0.0) -> float:
        """Count a failure; the seconds until the next try, `least` or more."""
        delay = max(min(self.first * 2.0 ** min(self.failures, 30), self.most), least)
        self.failures += 1
        self.words, self.since = words, now if self.since is None else self.since
        self.next_try, self.until = now + delay, monotonic + delay
        return delay

    def succeed(self) -> None:
        """All is well again."""
        self.failures, self.words = 0, ""
        self.since, self.next_try, self.until = None, None, 0.0

    def state(self, monotonic: float) -> Literal["closed", "open", "half_open"]:
        if not self.failures:
            return "closed"
        return "open" if monotonic < self.until else "half_open"
