"""The balanced tree of slots under CARTS: inner nodes know what lies below them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from math import inf, ulp
from operator import ge
from typing import Any

_FULL = 64


_POOR = _FULL // 4


class _Leaf:
    """Slots: `times` and the `amounts` free from each on."""

    __slots__ = ("amounts", "gaps", "times")

    def __init__(self, times: list[float], amounts: list[int]) -> None:
        self.times, self.amounts = times, amounts
        self.gaps: dict[int, _Gaps] = {}

    def bounds(self) -> tuple[int, int]:
        return min(self.amounts), max(self.amounts)

    def walk(self, shift: int) -> Iterator[tuple[float, int]]:
        return zip(self.times, (amount + shift for amount in self.amounts), strict=True)

    def at(self, time: float, side: _Side = bisect_right) -> int:
        """The amount at `time`; with `bisect_left` the one just before it."""
        return self.amounts[side(self.times, time) - 1]

    def least(self, start: float, end: float) -> int:
        times = self.times
        return min(self.amounts[max(bisect_right(times, start) - 1, 0) : bisect_left(times, end)])

    def first(self, time: float, limit: int, meets: _Meets) -> float | None:
        """The start of the first slot, from the one that contains `time`, that meets the limit."""
        amounts = self.amounts
        for place in range(max(bisect_right(self.times, time) - 1, 0), len(amounts)):
            if meets(amounts[place], limit):
                return self.times[place]
        return None

    def gap(
        self, time: float, limit: int, duration: float, opened: float | None, grain: int
    ) -> tuple[bool, float | None]:
        """Whether a gap of `limit` processors for `duration` closes here, and where it opened.

        Looks from `time` on. `opened` tells since when the gap before this node is open. Without
        success the second answer is where the gap at this node's end opened, if one is open. A
        gap may have too few processors, by what `grain` rounds off, but none is passed over.
        """
        times, amounts = self.times, self.amounts
        for place in range(max(bisect_right(times, time) - 1, 0), len(times)):
            if amounts[place] >= limit:
                if opened is None:
                    opened = max(times[place], time)
            elif opened is not None:
                if opened + duration <= times[place]:
                    return True, opened
                opened = None
        return False, opened

    def summary(self, limit: int, grain: int) -> _Gaps:
        """The gaps of `limit` processors, rounded down to whole grains; remembered."""
        level = limit // grain
        if level not in self.gaps:
            self.gaps[level] = self._summary(level * grain)
        return self.gaps[level]

    def _summary(self, limit: int) -> _Gaps:
        closes: float | None = None
        longest, opened = 0.0, None
        for time, amount in zip(self.times, self.amounts, strict=True):
            if amount >= limit:
                if opened is None:
                    opened = time
            elif closes is None:
                closes, opened = time, None
            elif opened is not None:
                longest, opened = max(longest, _length(opened, time)), None
        return None if closes is None else (closes, longest, opened)

    def cut(self, time: float) -> None:
        """Begin a slot at `time`, if none begins there."""
        place = bisect_left(self.times, time)
        if place == len(self.times) or self.times[place] != time:
            self.times.insert(place, time)
            self.amounts.insert(place, self.amounts[place - 1])

    def add(self, start: float, end: float, amount: int) -> None:
        """Add to all slots that begin in [start, end)."""
        self.gaps.clear()
        amounts = self.amounts
        for place in range(bisect_left(self.times, start), bisect_left(self.times, end)):
            amounts[place] += amount

    def remove(self, time: float) -> None:
        """Join the slot that begins at `time` to the one before it."""
        self.gaps.clear()
        place = bisect_left(self.times, time)
        del self.times[place], self.amounts[place]

    def drop(self, until: float) -> None:
        """Let the first slot begin at `until`; what lies before is dropped."""
        self.gaps.clear()
        place = bisect_right(self.times, until) - 1
        del self.times[:place], self.amounts[:place]
        self.times[0] = until

    def halve(self) -> _Leaf:
        self.gaps.clear()
        half = len(self.times) // 2
        right = _Leaf(self.times[half:], self.amounts[half:])
        del self.times[half:], self.amounts[half:]
        return right

    def append(self, other: _Node) -> None:
        assert isinstance(other, _Leaf)
        self.gaps.clear()
        self.times += other.times
        self.amounts += other.amounts

    def check(self) -> None:
        assert 0 < len(self.times) == len(self.amounts) <= _FULL


class _Inner:
    """Nodes of one height: where each begins, its shift, and its bounds with that shift."""

    __slots__ = ("gaps", "high", "kids", "low", "shifts", "times")

    def __init__(self, kids: list[_Node]) -> None:
        self.kids = kids
        self.gaps: dict[int, list[_Gaps]] = {}
        self.times: list[float] = [kid.times[0] for kid in kids]
        self.shifts = [0] * len(kids)
        bounds = [kid.bounds() for kid in kids]
        self.low = [low for low, _ in bounds]
        self.high = [high for _, high in bounds]

    def bounds(self) -> tuple[int, int]:
        return min(self.low), max(self.high)

    def walk(self, shift: int) -> Iterator[tuple[float, int]]:
        for kid, own in zip(self.kids, self.shifts, strict=True):
            yield from kid.walk(shift + own)

    def at(self, time: float, side: _Side = bisect_right) -> int:
        place = side(self.times, time) - 1
        return self.kids[place].at(time, side) + self.shifts[place]

    def least(self, start: float, end: float) -> int:
        first = max(bisect_right(self.times, start) - 1, 0)
        last = bisect_left(self.times, end) - 1
        found = self.kids[first].least(start, end) + self.shifts[first]
        if first >= last:
            return found
        found = min(found, self.kids[last].least(start, end) + self.shifts[last])
        return min([found, *self.low[first + 1 : last]])

    def first(self, time: float, limit: int, meets: _Meets) -> float | None:
        bounds = self.high if meets is ge else self.low
        for place in range(max(bisect_right(self.times, time) - 1, 0), len(bounds)):
            if meets(bounds[place], limit):
                found = self.kids[place].first(time, limit - self.shifts[place], meets)
                if found is not None:
                    return found
        return None

    def gap(
        self, time: float, limit: int, duration: float, opened: float | None, grain: int
    ) -> tuple[bool, float | None]:
        first = max(bisect_right(self.times, time) - 1, 0)
        if self.times[first] < time:  # the gaps of a kid say nothing of a part of it
            rest = limit - self.shifts[first]
            found, opened = self.kids[first].gap(time, rest, duration, opened, grain)
            first += 1
            if found or first == len(self.kids):
                return found, opened
        passed, after = _passed(
            self.tails(limit, grain)[first], self.times[first], opened, duration
        )
        if passed:
            return False, after
        for place in range(first, len(self.kids)):
            begin = self.times[place]
            if opened is not None and opened + duration <= begin:
                return True, opened
            passed, after = _passed(self._gaps(place, limit, grain), begin, opened, duration)
            if passed:
                opened = after
                continue
            rest = limit - self.shifts[place]
            found, opened = self.kids[place].gap(time, rest, duration, opened, grain)
            if found:
                return True, opened
        return False, opened

    def tails(self, limit: int, grain: int) -> list[_Gaps]:
        """From each kid on, the gaps of `limit` processors to the end; otherwise as `summary`."""
        level = limit // grain
        if level not in self.gaps:
            tails = [self._gaps(len(self.kids) - 1, level * grain, grain)]
            for place in range(len(self.kids) - 2, -1, -1):
                ours = self._gaps(place, level * grain, grain)
                tails.append(_joined(ours, self.times[place + 1], tails[-1]))
            self.gaps[level] = tails[::-1]
        return self.gaps[level]

    def summary(self, limit: int, grain: int) -> _Gaps:
        return self.tails(limit, grain)[0]

    def _gaps(self, place: int, limit: int, grain: int) -> _Gaps:
        if self.low[place] >= limit:
            return None
        if self.high[place] < limit:
            return self.times[place], 0.0, None
        return self.kids[place].summary(limit - self.shifts[place], grain)

    def cut(self, time: float) -> None:
        place = bisect_right(self.times, time) - 1
        kid = self.kids[place]
        kid.cut(time)
        if len(kid.times) > _FULL:
            self._insert(place + 1, kid.halve(), self.shifts[place])
            self._refresh(place)

    def add(self, start: float, end: float, amount: int) -> None:
        self.gaps.clear()
        first, stop = bisect_right(self.times, start) - 1, bisect_left(self.times, end)
        for place in range(max(first, 0), stop):
            inside = start <= self.times[place] and (
                place + 1 < len(self.times) and self.times[place + 1] <= end
            )
            if inside:
                self.shifts[place] += amount
                self.low[place] += amount
                self.high[place] += amount
            else:
                self.kids[place].add(start, end, amount)
                self._refresh(place)

    def remove(self, time: float) -> None:
        self.gaps.clear()
        place = bisect_right(self.times, time) - 1
        kid = self.kids[place]
        kid.remove(time)
        if not kid.times:
            self._delete(place)
            return
        self._refresh(place)
        if len(kid.times) < _POOR:
            self._join_neighbours(place)

    def drop(self, until: float) -> None:
        self.gaps.clear()
        place = bisect_right(self.times, until) - 1
        for column in self._columns():
            del column[:place]
        self.kids[0].drop(until)
        self._refresh(0)

    def halve(self) -> _Inner:
        self.gaps.clear()
        half = len(self.kids) // 2
        right = _Inner(self.kids[half:])
        right.shifts, right.low, right.high = self.shifts[half:], self.low[half:], self.high[half:]
        for column in self._columns():
            del column[half:]
        return right

    def append(self, other: _Node) -> None:
        assert isinstance(other, _Inner)
        self.gaps.clear()
        for column, more in zip(self._columns(), other._columns(), strict=True):
            column += more

    def check(self) -> None:
        assert 0 < len(self.kids) <= _FULL
        assert self.times == [kid.times[0] for kid in self.kids]
        for kid, shift, low, high in zip(self.kids, self.shifts, self.low, self.high, strict=True):
            kid.check()
            assert (low - shift, high - shift) == kid.bounds()

    def _columns(self) -> tuple[list[Any], ...]:
        return self.times, self.shifts, self.low, self.high, self.kids

    def _refresh(self, place: int) -> None:
        kid, shift = self.kids[place], self.shifts[place]
        low, high = kid.bounds()
        self.times[place] = kid.times[0]
        self.low[place], self.high[place] = low + shift, high + shift

    def _insert(self, place: int, kid: _Node, shift: int) -> None:
        self.kids.insert(place, kid)
        self.shifts.insert(place, shift)
        for column in (self.times, self.low, self.high):
            column.insert(place, 0)  # until the refresh
        self._refresh(place)

    def _delete(self, place: int) -> None:
        for column in self._columns():
            del column[place]

    def _join_neighbours(self, place: int) -> None:
        left = place - 1 if place else 0
        if left + 1 == len(self.kids):
            return
        kid, right = self.kids[left], self.kids[left + 1]
        if len(kid.times) + len(right.times) > _FULL - _POOR:
            return
        right.add(-inf, inf, self.shifts[left + 1] - self.shifts[left])
        kid.append(right)
        self._delete(left + 1)
        self._refresh(left)


_Node = _Leaf | _Inner


_Gaps = tuple[float, float, float | None] | None


_Side = Callable[[list[float], float], int]


_Meets = Callable[[int, int], bool]


def _built(times: list[float], amounts: list[int]) -> _Node:
    """The tree over slots in order, its nodes three quarters full."""
    width = _FULL * 3 // 4
    level: list[_Node] = [
        _Leaf(times[at : at + width], amounts[at : at + width])
        for at in range(0, len(times), width)
    ]
    while len(level) > 1:
        level = [_Inner(level[at : at + width]) for at in range(0, len(level), width)]
    return level[0]


def _joined(ours: _Gaps, begin: float, rest: _Gaps) -> _Gaps:
    """The gaps of some slots and of the rest, which begins at `begin`."""
    if ours is None:
        return rest
    closes, longest, opened = ours
    opened = begin if opened is None else opened
    if rest is None:
        return closes, longest, opened
    return closes, max(longest, rest[1], _length(opened, rest[0])), rest[2]


def _passed(
    gaps: _Gaps, begin: float, opened: float | None, duration: float
) -> tuple[bool, float | None]:
    """Whether no gap of that duration closes in slots that begin at `begin`.

    `opened` tells since when one is open; the second answer, since when one is at their end.
    """
    since = begin if opened is None else opened
    if gaps is None:
        return True, since
    closes, longest, after = gaps
    return closes < since + duration and longest < duration, after


def _length(opened: float, closes: float) -> float:
    """Of a gap: an ulp more, since start + duration <= end may hold by rounding alone."""
    return closes - opened + ulp(closes)


def _last_start(end: float, duration: float) -> float:
    """The latest start that ends by `end`, in spite of rounding."""
    last = end - duration
    while last + duration > end:
        last -= ulp(end)
    return last
