"""CARTS: how many processors of a cluster are free over time, under advance reservations.

`Carts` keeps amounts, so that processors can be chosen as late as a reservation's start (dynamic
binding); `CartsSets` (CARTS-SR) keeps sets of processors, for managers that bind at creation.
Source: Kurowski et al. 2011, sections 3.2 to 3.4. Its printed algorithms 1 and 2 do not work; this
is their meaning. Times are seconds, integers or floats; a window is [start, end).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import count, pairwise
from math import inf, isfinite, ulp
from operator import ge, lt
from typing import Any

_FULL = 64
"""Entries of a node before it is split. Measured: 32 to 128 differ by less than a fifth."""
_POOR = _FULL // 4
"""Entries below which a node joins a neighbour that has room."""
_LEVELS = 16
"""Parts of the capacity for which longest gaps are remembered: a search for 90 of 128 processors
passes over what has no gap for 88."""

_PATIENCE = 4
"""Gaps looked at one by one before the longest gaps of nodes are asked for, which are dear to find
the first time. Measured on 128 processors 60% booked: 12 take twice as long, 3 hardly less."""


class Carts:
    """Free processors of one cluster as slots (start, amount), one for each change.

    There are v slots, at most two for each reservation and one. All calls but `of` and `slots`
    take O(log v): a window that covers whole nodes of the tree is booked in these nodes alone, and
    a search passes over nodes whose longest gap (remembered until they change) is too short.

    >>> carts = Carts(capacity=4)
    >>> carts.reserve(10, 20, 3)
    >>> carts.slots()
    [(0.0, 4), (10, 1), (20, 4)]
    >>> carts.earliest_start(size=2, duration=5, ready=7)
    20
    >>> carts.starts(size=2, duration=5, ready=3, deadline=30)
    [(3, 5), (20, 25)]
    """

    def __init__(self, capacity: int, origin: float = 0.0) -> None:
        """`capacity` processors, all free from `origin` (seconds) on."""
        _positive("capacity", capacity)
        self.capacity = capacity
        self._grain = max(1, capacity // _LEVELS)
        self._root: _Node = _Leaf([_finite("origin", origin)], [capacity])

    @classmethod
    def of(
        cls, capacity: int, reservations: Iterable[tuple[float, float, int]], origin: float = 0.0
    ) -> Carts:
        """From (start, end, size) of all reservations at once, in O(n log n).

        ValueError names the first time at which they do not fit.
        """
        carts = cls(capacity, origin)
        changes: list[tuple[float, int]] = []
        for start, end, size in reservations:
            carts._check_window(start, end, size)
            changes += ((start, -size), (end, size))
        changes.sort()
        times, amounts, free = [carts.origin], [capacity], capacity
        for place, (time, change) in enumerate(changes):
            free += change
            if place + 1 < len(changes) and changes[place + 1][0] == time:
                continue
            if free < 0:
                raise ValueError(f"{-free} processors too many are reserved at {time}")
            if times[-1] == time:
                amounts[-1] = free
            elif amounts[-1] != free:
                times.append(time)
                amounts.append(free)
        carts._root = _built(times, amounts)
        return carts

    @property
    def origin(self) -> float:
        """The start of the first slot (seconds): nothing is known before it."""
        return self._root.times[0]

    def slots(self) -> list[tuple[float, int]]:
        """(start, free processors) of every slot in order; the last one has no end."""
        return list(self._root.walk(0))

    def free(self, start: float, end: float) -> int:
        """The least number of processors free at once in [start, end). ValueError as `reserve`."""
        self._check_window(start, end, 1)
        return self._root.least(start, end)

    def reserve(self, start: float, end: float, size: int) -> None:
        """Take `size` processors for [start, end). ValueError, and no change, if they don't fit."""
        self._check_window(start, end, size)
        if (least := self._root.least(start, end)) < size:
            raise ValueError(
                f"{size} processors do not fit into [{start}, {end}): {least} are free"
            )
        self._change(start, end, -size)

    def release(self, start: float, end: float, size: int) -> None:
        """Give back what was taken. ValueError, and no change, if more would be free than exists.

        What begins before the origin, because the past was pruned, is given back from there on.
        """
        _positive("size", size)
        start = max(_finite("start", start), self.origin)
        if not start < _finite("end", end):
            raise ValueError(f"[{start}, {end}) is empty")
        most = self.capacity - size
        above = self._root.first(start, most + 1, ge)
        if above is not None and above < end:
            raise ValueError(f"fewer than {size} processors are reserved at {max(above, start)}")
        self._change(start, end, size)

    def earliest_start(
        self, size: int, duration: float, ready: float, deadline: float | None = None
    ) -> float | None:
        """The first time from `ready` on at which `size` processors are free for `duration`.

        None if there is none that ends by `deadline`, or if the cluster is smaller. ValueError if
        size or duration is not positive. ARTS2 (Kurowski et al. 2011, Algorithm 2), but beginning
        in the slot that contains `ready`, and ending with the last slot, which is unbounded.
        """
        return next((first for first, _ in self._gaps(size, duration, ready, deadline)), None)

    def starts(
        self, size: int, duration: float, ready: float, deadline: float
    ) -> list[tuple[float, float]]:
        """All possible starts as closed intervals (first, last); arguments as `earliest_start`."""
        return list(self._gaps(size, duration, ready, deadline))

    def prune(self, until: float) -> None:
        """Forget what lies before `until`, which becomes the origin."""
        if _finite("until", until) > self.origin:
            self._root.drop(until)
            self._shrink()

    def _gaps(
        self, size: int, duration: float, ready: float, deadline: float | None
    ) -> Iterator[tuple[float, float]]:
        _positive("size", size)
        _lasting(duration)
        end = inf if deadline is None else _finite("deadline", deadline)
        start = max(_finite("ready", ready), self.origin)
        for short in count():
            if size > self.capacity or start + duration > end:
                return
            opens = self._root.first(start, size, ge)
            if opens is None:
                return
            start = max(start, opens)
            closes = self._root.first(start, size, lt)
            stop = end if closes is None else min(end, closes)
            if start + duration <= stop:
                yield start, max(start, _last_start(stop, duration))
            if closes is None:
                return
            start = closes
            if short >= _PATIENCE:
                _, opened = self._root.gap(start, size, duration, None, self._grain)
                start = start if opened is None else opened

    def _check_window(self, start: float, end: float, size: int) -> None:
        _positive("size", size)
        if not self.origin <= _finite("start", start):
            raise ValueError(f"{start} lies before the origin {self.origin}")
        if not start < _finite("end", end):
            raise ValueError(f"[{start}, {end}) is empty")

    def _change(self, start: float, end: float, amount: int) -> None:
        for time in (start, end):
            self._root.cut(time)
            self._split()
        self._root.add(start, end, amount)
        for time in (start, end):
            if time > self.origin and self._root.at(time) == self._root.at(time, bisect_left):
                self._root.remove(time)
                self._shrink()

    def _split(self) -> None:
        if len(self._root.times) > _FULL:
            self._root = _Inner([self._root, self._root.halve()])

    def _shrink(self) -> None:
        while isinstance(self._root, _Inner) and len(self._root.kids) == 1:
            shift, self._root = self._root.shifts[0], self._root.kids[0]
            self._root.add(-inf, inf, shift)

    def _check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        self._root.check()
        slots = self.slots()
        assert all(a[0] < b[0] and a[1] != b[1] for a, b in pairwise(slots))
        assert all(0 <= free <= self.capacity for _, free in slots)
        assert slots[-1][1] == self.capacity


class CartsSets:
    """CARTS-SR: which processors (0, 1, ...) are free over time; bound when they are reserved.

    For managers that bind at creation, and as the baseline that `Carts` is compared with. A window
    needs processors that are free through all of it, so some requests are refused that amounts
    would admit (Kurowski et al. 2011, Proposition 1). `reserve` takes the lowest numbers, or the
    `highest`. Each call takes O(slots).
    """

    def __init__(self, processors: int, origin: float = 0.0) -> None:
        _positive("processors", processors)
        self.origin = _finite("origin", origin)
        self._times = [self.origin]
        self._free = [(1 << processors) - 1]
        self._all = self._free[0]

    def slots(self) -> list[tuple[float, frozenset[int]]]:
        """(start, free processors) of every slot in order; the last one has no end."""
        return [(t, _members(bits)) for t, bits in zip(self._times, self._free, strict=True)]

    def free(self, start: float, end: float) -> frozenset[int]:
        """The processors that are free through all of [start, end)."""
        return _members(self._common(start, end))

    def reserve(self, start: float, end: float, size: int, highest: bool = False) -> frozenset[int]:
        """The `size` processors taken. ValueError, and no change, if no `size` of them are free."""
        _positive("size", size)
        common = self._common(start, end)
        if common.bit_count() < size:
            raise _too_many(size, start, end, common.bit_count())
        taken = frozenset(sorted(_members(common), reverse=highest)[:size])
        self._flip(start, end, taken)
        return taken

    def release(self, start: float, end: float, processors: Iterable[int]) -> None:
        """Give back what was taken. ValueError, and no change, if one of them was free."""
        returned = frozenset(processors)
        bits = sum(1 << processor for processor in returned)
        low, high = self._window(start, end)
        if bits & ~self._all or any(bits & free for free in self._free[low:high]):
            raise ValueError(f"not all of {sorted(returned)} are reserved in [{start}, {end})")
        self._flip(start, end, returned)

    def earliest_start(
        self, size: int, duration: float, ready: float, deadline: float | None = None
    ) -> float | None:
        """The first start from `ready` on with `size` processors free throughout, or None."""
        _positive("size", size)
        _lasting(duration)
        begin = max(_finite("ready", ready), self.origin)
        later = self._times[bisect_right(self._times, begin) :]
        for start in (begin, *later):
            if deadline is not None and start + duration > deadline:
                return None
            if self._common(start, start + duration).bit_count() >= size:
                return start
        return None

    def _common(self, start: float, end: float) -> int:
        low, high = self._window(start, end)
        common = self._all
        for bits in self._free[low:high]:
            common &= bits
        return common

    def _window(self, start: float, end: float) -> tuple[int, int]:
        if not self.origin <= _finite("start", start):
            raise ValueError(f"{start} lies before the origin {self.origin}")
        if not start < _finite("end", end):
            raise ValueError(f"[{start}, {end}) is empty")
        return bisect_right(self._times, start) - 1, bisect_left(self._times, end)

    def _flip(self, start: float, end: float, processors: frozenset[int]) -> None:
        for time in (start, end):
            place = bisect_left(self._times, time)
            if place == len(self._times) or self._times[place] != time:
                self._times.insert(place, time)
                self._free.insert(place, self._free[place - 1])
        low, high = self._window(start, end)
        bits = sum(1 << processor for processor in processors)
        for place in range(low, high):
            self._free[place] ^= bits
        for place in (high, low):
            if place and self._free[place] == self._free[place - 1]:
                del self._times[place], self._free[place]


# The tree below `Carts`: a B+ tree by time. An amount in a leaf is relative: the shifts on the way
# down to it are added, so that a change of whole nodes is one addition.


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
"""Of the slots of a node: where the first with too few processors begins, the longest gap between
two such, and where the gap after the last such opens (None if it is the last slot of all). None if
there is no such slot."""
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


def _members(bits: int) -> frozenset[int]:
    return frozenset(place for place in range(bits.bit_length()) if bits >> place & 1)


def _too_many(size: int, start: float, end: float, free: int) -> ValueError:
    return ValueError(f"{size} processors do not fit into [{start}, {end}): {free} are free")


def _lasting(duration: float) -> None:
    if _finite("duration", duration) <= 0:
        raise ValueError(f"duration must be positive, not {duration}")


def _positive(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of processors from 1 on, not {value!r}")


def _finite(name: str, value: float) -> float:
    if not isfinite(value):
        raise ValueError(f"{name} must be a finite time in seconds, not {value}")
    return value
