"""Requests for advance reservations, offers of clusters, and quotas of users. Pure.

Source: Kurowski et al. 2011, section 4.4.1. Times are seconds since the epoch. Sizes count
processors or nodes, whichever unit the cluster reserves.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, nextafter

import msgspec


class ReservationRequest(msgspec.Struct, frozen=True):
    """Sizes and durations requested within [ready, deadline].

    The four kinds of the source are special cases, made by the four class methods. ValueError if
    the request can never be met, or if both the size and the duration are ranges.
    """

    ready: float  # earliest start
    deadline: float  # latest end
    min_size: int  # processors or nodes
    max_size: int
    min_duration: float  # seconds
    max_duration: float

    def __post_init__(self) -> None:
        for name in ("ready", "deadline", "min_duration", "max_duration"):
            if not isfinite(getattr(self, name)):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be a finite number")
        if self.min_size < 1:
            raise ValueError(f"size {self.min_size} is too small; ask for 1 or more")
        if self.max_size < self.min_size:
            raise ValueError(f"at most {self.max_size} is below at least {self.min_size}")
        if self.min_duration <= 0:
            problem = f"a duration of {self.min_duration:g} s is too short"
            raise ValueError(f"{problem}; ask for a positive duration")
        if self.max_duration < self.min_duration:
            raise ValueError(
                f"at most {self.max_duration:g} s is below at least {self.min_duration:g} s"
            )
        if self.deadline <= self.ready:
            raise ValueError("the end is not after the start")
        if self.ready + self.min_duration > self.deadline:
            raise ValueError(
                f"{self.min_duration:g} s do not fit between ready and deadline, which are "
                f"{self.deadline - self.ready:g} s apart"
            )
        if self.min_size < self.max_size and self.min_duration < self.max_duration:
            raise ValueError("either the size or the duration may be open, not both")

    @classmethod
    def fixed(cls, size: int, start: float, end: float) -> ReservationRequest:
        """Request that size for exactly that window."""
        duration = end - start
        while start + duration > end:  # by rounding
            duration = nextafter(duration, 0.0)
        return cls(start, end, size, size, duration, duration)

    @classmethod
    def flexible(
        cls, size: int, duration: float, ready: float, deadline: float
    ) -> ReservationRequest:
        """Request the earliest window within [ready, deadline]."""
        return cls(ready, deadline, size, size, duration, duration)

    @classmethod
    def best_size(
        cls, min_size: int, max_size: int, duration: float, ready: float, deadline: float
    ) -> ReservationRequest:
        """Request the largest size, then the earliest window (best effort per size)."""
        return cls(ready, deadline, min_size, max_size, duration, duration)

    @classmethod
    def best_time(
        cls, size: int, min_duration: float, max_duration: float, ready: float, deadline: float
    ) -> ReservationRequest:
        """Request the longest duration, then the earliest window (best effort per time)."""
        return cls(ready, deadline, size, size, min_duration, max_duration)


@dataclass(frozen=True)
class ReservationQuota:
    """Limits on the reservations of a user."""

    horizon: float = 365 * 86400.0  # seconds from now until its latest end
    max_duration: float = 30 * 86400.0  # seconds
    # processors (or nodes, as requested) of all open reservations; None: unlimited
    max_size: int | None = None
    let_run: float = 0.0  # seconds that jobs may run past the end

    def refusal(self, size: int, reserved: int) -> str | None:
        """Return why `size` beside `reserved` units exceeds the quota; None: it does not."""
        if self.max_size is None or size + reserved <= self.max_size:
            return None
        return f"{size} more, beside {reserved}, exceed the {self.max_size} that you may reserve"


@dataclass(frozen=True)
class Offer:
    """A possible window: `size` units in [start, end)."""

    start: float
    end: float
    size: int
    cluster: str = ""  # set if it differs from that of the broken reservation

    @property
    def rank(self) -> tuple[int, float, float]:
        """Sort key, smallest first: the larger, then the longer, then the earlier."""
        return (-self.size, self.start - self.end, self.start)
