"""A circuit breaker: delays the next try of an operation that keeps failing.

It is closed without failures, open until the next try and half open during that try (Nygard,
Release It!, 2007, ch. 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass
class CircuitBreaker:
    """Consecutive failures of an operation, and the exponential delay of its next try."""

    initial_delay: float  # seconds after the first failure; doubles with each further failure
    max_delay: float  # seconds
    failures: int = 0  # in a row
    last_error: str = ""
    failing_since: float | None = None  # epoch seconds of the first failure in a row
    next_retry: float | None = None  # epoch seconds, for display
    open_until: float = 0.0  # monotonic seconds, for decisions

    def record_failure(
        self, error: str, now: float, monotonic: float, minimum: float = 0.0
    ) -> float:
        """Count a failure. Return the seconds until the next try, at least `minimum`."""
        delay = self.initial_delay * 2.0 ** min(self.failures, 30)
        delay = max(min(delay, self.max_delay), minimum)
        if self.failing_since is None:
            self.failing_since = now
        self.failures += 1
        self.last_error = error
        self.next_retry, self.open_until = now + delay, monotonic + delay
        return delay

    def record_success(self) -> None:
        """Reset the breaker."""
        self.failures, self.last_error = 0, ""
        self.failing_since, self.next_retry, self.open_until = None, None, 0.0

    def state(self, monotonic: float) -> Literal["closed", "open", "half_open"]:
        """Return the state at a monotonic time."""
        if not self.failures:
            return "closed"
        return "open" if monotonic < self.open_until else "half_open"
