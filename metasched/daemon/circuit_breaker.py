"""A circuit breaker: when something that keeps failing may be tried again, and what it said.

Closed while all is well, open until the next try, half open while that try is under way
(Nygard, Release It!, 2007, ch. 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass
class CircuitBreaker:
    """Waits of `first` seconds after a failure, doubled by each further one, `most` at the most.

    `words` are what was said last, `since` the epoch seconds of the first failure in a row,
    `next_try` the epoch seconds before which there is none, for people; `until` is the same on
    the monotonic clock, which decides.
    """

    initial_delay: float
    max_delay: float
    failures: int = 0
    last_error: str = ""
    failing_since: float | None = None
    next_retry: float | None = None
    open_until: float = 0.0

    def record_failure(
        self, error: str, now: float, monotonic: float, minimum: float = 0.0
    ) -> float:
        """Count a failure; the seconds until the next try, `least` or more."""
        delay = max(
            min(self.initial_delay * 2.0 ** min(self.failures, 30), self.max_delay), minimum
        )
        self.failures += 1
        self.last_error, self.failing_since = (
            error,
            now if self.failing_since is None else self.failing_since,
        )
        self.next_retry, self.open_until = now + delay, monotonic + delay
        return delay

    def record_success(self) -> None:
        """All is well again."""
        self.failures, self.last_error = 0, ""
        self.failing_since, self.next_retry, self.open_until = None, None, 0.0

    def state(self, monotonic: float) -> Literal["closed", "open", "half_open"]:
        if not self.failures:
            return "closed"
        return "open" if monotonic < self.open_until else "half_open"
