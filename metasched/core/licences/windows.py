"""Tokens of one licence over time: what leases leave, and what reservations keep of it. Pure.

Slots are (start, amount) in order, the last one without an end, as those of `carts.Carts`. Amounts
may be below 0, by what lacks of what has been promised: a total was lowered, or others use more.
Times are seconds since the epoch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf, nextafter
from operator import itemgetter

TokenSlots = list[tuple[float, int]]


@dataclass(frozen=True)
class TokenWindow:
    """The tokens that jobs of the reservation `id`, and no others, have in [start, until)."""

    id: int
    start: float
    until: float
    licences: Mapping[str, int]


TokenClaim = tuple[
    TokenWindow, int
]  # and what it has of a licence that none of its jobs has leased
_FREE, _EARLIER, _OWN, _LATER = range(4)


def tokens_over_time(
    now: float,
    free: int,
    returns: Iterable[tuple[float, int]],
    claims: Iterable[TokenClaim],
    reservation: int | None = None,
) -> TokenSlots:
    """How many tokens may be taken from when on by jobs of the reservation `own` (None: of none).

    `free` are so now, of the `returns` (when, how many) those at infinity never come. Where there
    are too few for all windows those have theirs that were promised first. O(n log n).
    """
    changes = [(now, _FREE, 0)]
    after_now = nextafter(now, inf)  # who is past its limit ends at any moment, but has not yet
    changes += [(max(end, after_now), _FREE, count) for end, count in returns if end < inf]
    for window, count in claims:
        if window.until > now:
            category = _LATER if reservation is not None and window.id > reservation else _EARLIER
            category = _OWN if window.id == reservation else category
            changes += [(max(window.start, now), category, count), (window.until, category, -count)]
    counts = [free, 0, 0, 0]
    amounts: dict[float, int] = {}
    for moment, category, count in sorted(changes):
        counts[category] += count
        free, earlier, own, later = counts
        remaining = free - earlier
        amounts[moment] = remaining if not later else max(remaining - later, min(remaining, own))
    return list(amounts.items())


def slot_spans(slots: TokenSlots) -> Iterator[tuple[float, float, int]]:
    """The slots as (start, end, amount); the last one ends at infinity."""
    for (start, count), (end, _) in pairwise([*slots, (inf, 0)]):
        yield start, end, count


def min_tokens(slots: TokenSlots, start: float, end: float) -> int:
    """The least amount in [start, end), which must not be empty nor begin before the slots."""
    first = bisect_right(slots, start, key=itemgetter(0)) - 1
    return min(count for _, count in slots[first : bisect_left(slots, end, key=itemgetter(0))])


def earliest_start(
    slots: TokenSlots, needed: int, ready: float, duration: float, until: float
) -> float:
    """The first moment from `ready` on at which so many are there for `lasts` seconds.

    It is enough if they are there `until` then. Infinity: there is none.
    """
    opened: float | None = None
    for start, stop, count in slot_spans(slots):
        if stop <= ready:
            continue
        if count < needed:
            opened = None
            continue
        opened = max(start, ready) if opened is None else opened
        if opened >= until:
            return inf
        if min(opened + duration, until) <= stop:
            return opened
    return inf
