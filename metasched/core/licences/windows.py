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

Slots = list[tuple[float, int]]


@dataclass(frozen=True)
class TokenWindow:
    """The tokens that jobs of the reservation `id`, and no others, have in [start, until)."""

    id: int
    start: float
    until: float
    licences: Mapping[str, int]


Claim = tuple[TokenWindow, int]  # and what it has of a licence that none of its jobs has leased
_FREE, _EARLIER, _OWN, _LATER = range(4)


def ahead(
    now: float,
    free: int,
    returns: Iterable[tuple[float, int]],
    claims: Iterable[Claim],
    own: int | None = None,
) -> Slots:
    """How many tokens may be taken from when on by jobs of the reservation `own` (None: of none).

    `free` are so now, of the `returns` (when, how many) those at infinity never come. Where there
    are too few for all windows those have theirs that were promised first. O(n log n).
    """
    changes = [(now, _FREE, 0)]
    soon = nextafter(now, inf)  # who is past its limit ends at any moment, but has not yet
    changes += [(max(end, soon), _FREE, many) for end, many in returns if end < inf]
    for window, many in claims:
        if window.until > now:
            kind = _LATER if own is not None and window.id > own else _EARLIER
            kind = _OWN if window.id == own else kind
            changes += [(max(window.start, now), kind, many), (window.until, kind, -many)]
    counts = [free, 0, 0, 0]
    amounts: dict[float, int] = {}
    for moment, kind, many in sorted(changes):
        counts[kind] += many
        free, earlier, mine, later = counts
        left = free - earlier
        amounts[moment] = left if not later else max(left - later, min(left, mine))
    return list(amounts.items())


def spans(slots: Slots) -> Iterator[tuple[float, float, int]]:
    """The slots as (start, end, amount); the last one ends at infinity."""
    for (start, many), (end, _) in pairwise([*slots, (inf, 0)]):
        yield start, end, many


def least(slots: Slots, start: float, end: float) -> int:
    """The least amount in [start, end), which must not be empty nor begin before the slots."""
    first = bisect_right(slots, start, key=itemgetter(0)) - 1
    return min(many for _, many in slots[first : bisect_left(slots, end, key=itemgetter(0))])


def earliest(slots: Slots, wanted: int, ready: float, lasts: float, until: float) -> float:
    """The first moment from `ready` on at which so many are there for `lasts` seconds.

    It is enough if they are there `until` then. Infinity: there is none.
    """
    opened: float | None = None
    for begin, stop, many in spans(slots):
        if stop <= ready:
            continue
        if many < wanted:
            opened = None
            continue
        opened = max(begin, ready) if opened is None else opened
        if opened >= until:
            return inf
        if min(opened + lasts, until) <= stop:
            return opened
    return inf
