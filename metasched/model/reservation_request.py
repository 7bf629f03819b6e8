"""Requests for advance reservations and what one cluster can promise of them: pure, over `Carts`.

Source: Kurowski et al. 2011, section 4.4.1. Times are seconds, sizes are processors or
nodes, whichever unit the cluster's `Carts` counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, nextafter

import msgspec

from metasched.model.stored_names import STORED_FIELDS


class ReservationRequest(msgspec.Struct, rename=STORED_FIELDS["ReservationRequest"], frozen=True):
    """`least` to `most` processors for `shortest` to `longest` seconds in [ready, deadline].

    The four kinds of the source are its special cases, and are made by the four class methods.
    ValueError if it can never be met, or if both the size and the duration are open.
    """

    ready: float
    deadline: float
    min_size: int
    max_size: int
    min_duration: float
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
            raise ValueError(
                f"a duration of {self.min_duration:g} s is none; ask for a positive one"
            )
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
        """That size for that window, or nothing."""
        duration = end - start
        while start + duration > end:  # by rounding
            duration = nextafter(duration, 0.0)
        return cls(start, end, size, size, duration, duration)

    @classmethod
    def flexible(
        cls, size: int, duration: float, ready: float, deadline: float
    ) -> ReservationRequest:
        """As soon as possible within [ready, deadline]."""
        return cls(ready, deadline, size, size, duration, duration)

    @classmethod
    def best_size(
        cls, min_size: int, max_size: int, duration: float, ready: float, deadline: float
    ) -> ReservationRequest:
        """Best effort per size: as many as there are, then as soon as possible."""
        return cls(ready, deadline, min_size, max_size, duration, duration)

    @classmethod
    def best_time(
        cls, size: int, min_duration: float, max_duration: float, ready: float, deadline: float
    ) -> ReservationRequest:
        """Best effort per time: for as long as possible, then as soon as possible."""
        return cls(ready, deadline, size, size, min_duration, max_duration)


@dataclass(frozen=True)
class ReservationQuota:
    """What a user may reserve: until `horizon` seconds from now, `longest` seconds each.

    `most` processors (or nodes, as they are asked for) in all that are open at a time; None: all.
    What still runs at the end may go on for `let_run` seconds.
    """

    horizon: float = 365 * 86400.0
    max_duration: float = 30 * 86400.0
    max_size: int | None = None
    let_run: float = 0.0

    def refusal(self, size: int, reserved: int) -> str | None:
        """Why `size` more are too many beside the `others` that the user has, or None."""
        if self.max_size is None or size + reserved <= self.max_size:
            return None
        return f"{size} more, beside {reserved}, exceed the {self.max_size} that you may reserve"


@dataclass(frozen=True)
class Offer:
    """`size` processors in [start, end).

    `cluster` is said of those that are told instead of one on another cluster.
    """

    start: float
    end: float
    size: int
    cluster: str = ""

    @property
    def rank(self) -> tuple[int, float, float]:
        """Less is better: the larger, then the longer, then the earlier."""
        return (-self.size, self.start - self.end, self.start)
