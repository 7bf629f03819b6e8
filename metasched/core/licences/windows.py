"""Free tokens of one licence over time, given leases and reservation windows. Pure.

Slots are (start, amount) in order, the last slot without an end, like those of `carts.Carts`.
Amounts are negative by the tokens that are missing for windows: a total was lowered, or use outside
metasched grew. Times are seconds since the epoch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf, nextafter
from operator import itemgetter

from metasched.model.calendar import CalendarEntry, CalendarLimit, LimitLicence

TokenSlots = list[tuple[float, int]]  # start, tokens


@dataclass(frozen=True)
class TokenWindow:
    """Tokens that only jobs of the reservation `id` may lease in [start, until).

    Or tokens that do not exist then, since an entry of the calendar lowers the total.
    """

    id: int  # negative: of a calendar entry; it precedes all reservations
    start: float
    until: float
    licences: Mapping[str, int]  # tokens by licence; of a calendar entry, those that remain
    entry: str = ""  # name of the calendar entry; "": a reservation
    longest_gap: float | None = None  # as `LimitLicence.longest_gap`

    def describe(self) -> str:
        return f"calendar entry {self.entry}" if self.entry else f"reservation {self.id}"


def windows_of_entry(entry: CalendarEntry) -> Iterator[TokenWindow]:
    """Yield the window of the last run of a calendar entry, and that of its next run.

    A later run matters to no lease: a lease that lasts until then also covers the next run. It
    matters to reservations (`later_windows`).
    """
    act = entry.act
    if not isinstance(act, LimitLicence):
        return
    starts = [*entry.last_runs[-1:], *(() if entry.next_run is None else (entry.next_run,))]
    for run_index, (start, following) in enumerate(pairwise([*starts, inf])):
        until = min(start + act.duration, following)
        yield TokenWindow(
            id=-2 * entry.id - run_index,
            start=start,
            until=until,
            licences={act.licence: act.total},
            entry=entry.name,
            longest_gap=act.longest_gap,
        )


def later_windows(
    limits: Iterable[CalendarLimit], licence: str, present: Iterable[TokenWindow]
) -> Iterator[TokenWindow]:
    """Yield when entries lower the total of a licence after their `present` windows."""
    known_until: dict[str, float] = {}
    for window in present:
        if window.entry:
            known_until[window.entry] = max(known_until.get(window.entry, 0.0), window.until)
    for limit in limits:
        if limit.licence == licence:
            begin = known_until.get(limit.name, 0.0)
            for start, until in limit.spans:
                if until > begin:
                    tokens = {licence: limit.total}
                    yield TokenWindow(
                        -2 * limit.entry, max(start, begin), until, tokens, limit.name
                    )


TokenClaim = tuple[TokenWindow, int]  # a window, and its tokens not leased by its jobs
_FREE, _EARLIER, _OWN, _LATER = range(4)  # free tokens; claims by order of reservations


def tokens_over_time(
    now: float,
    free: int,
    returns: Iterable[tuple[float, int]],
    claims: Iterable[TokenClaim],
    reservation: int | None = None,
) -> TokenSlots:
    """Return the tokens that jobs of `reservation` (None: of none) may lease, from `now` on.

    `free` tokens are available now; `returns` are (time, count), infinity for never. Where there
    are too few tokens for all windows, earlier reservations go first. O(n log n).
    """
    changes = [(now, _FREE, 0)]
    after_now = nextafter(now, inf)  # a task past its limit ends at any moment, but has not yet
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


def less_claims(slots: TokenSlots, claims: Iterable[TokenClaim]) -> TokenSlots:
    """Return the slots without the tokens that windows claim. O(n log n)."""
    changes: dict[float, int] = {}
    before = 0
    for start, count in slots:
        changes[start], before = count - before, count
    now = slots[0][0]
    for window, count in claims:
        if window.until > now:
            start = max(window.start, now)
            changes[start] = changes.get(start, 0) - count
            changes[window.until] = changes.get(window.until, 0) + count
    moments = sorted(moment for moment in changes if moment < inf)
    return list(zip(moments, accumulate(changes[moment] for moment in moments), strict=True))


def slot_spans(slots: TokenSlots) -> Iterator[tuple[float, float, int]]:
    """Yield the slots as (start, end, amount); the last slot ends at infinity."""
    for (start, count), (end, _) in pairwise([*slots, (inf, 0)]):
        yield start, end, count


def min_tokens(slots: TokenSlots, start: float, end: float) -> int:
    """Return the least amount in [start, end), which must not be empty or precede the slots."""
    first = bisect_right(slots, start, key=itemgetter(0)) - 1
    return min(count for _, count in slots[first : bisect_left(slots, end, key=itemgetter(0))])


def earliest_start(
    slots: TokenSlots, needed: int, ready: float, duration: float, until: float
) -> float:
    """Return the first time from `ready` on with `needed` tokens for `duration` seconds.

    It is enough if they are available until `until`. Infinity: there is no such time.
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
