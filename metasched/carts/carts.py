"""CARTS: free processors of a cluster over time, under advance reservations.

`Carts` keeps amounts, so that processors can be chosen as late as the start of a reservation
(dynamic binding); `CartsSets` (CARTS-SR) keeps sets of processors, for managers that bind at
creation. Source: Kurowski et al. 2011, sections 3.2 to 3.4. Its printed algorithms 1 and 2 do not
work; this implements their intention. Times are seconds, integers or floats; a window is
[start, end).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import count, pairwise
from math import inf, isfinite
from operator import ge, lt

from metasched.carts.tree import NODE_MAX, InnerNode, LeafNode, TreeNode, build_tree, last_start

GAP_LEVELS = 16
"""Steps of the capacity for which longest gaps are cached: a search for 90 of 128 processors skips
nodes without a gap for 88."""

_LINEAR_SEARCHES = 4
"""Gaps checked one by one before the longest gaps of nodes are used, which are costly to compute
the first time. Measured on 128 processors, 60% booked: 12 take twice as long, 3 hardly less."""


class Carts:
    """Free processors of a cluster as slots (start, amount), a slot for each change.

    There are v slots, at most two for each reservation and one. All calls but `of` and `slots`
    take O(log v): a window that covers whole nodes of the tree is booked in these nodes alone, and
    a search skips nodes whose longest gap (cached until they change) is too short.

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
        """Start with `capacity` processors, all free from `origin` (seconds) on."""
        check_processors("capacity", capacity)
        self.capacity = capacity
        self._grain = max(1, capacity // GAP_LEVELS)
        self._root: TreeNode = LeafNode([check_time("origin", origin)], [capacity], object())

    @classmethod
    def of(
        cls, capacity: int, reservations: Iterable[tuple[float, float, int]], origin: float = 0.0
    ) -> Carts:
        """Build from (start, end, size) of all reservations at once, in O(n log n).

        ValueError names the first time at which they do not fit.
        """
        carts = cls(capacity, origin)
        changes: list[tuple[float, int]] = []
        for start, end, size in reservations:
            carts._check_window(start, end, size)
            changes += ((start, -size), (end, size))
        changes.sort()
        times, amounts, free = [carts.origin], [capacity], capacity
        for index, (time, change) in enumerate(changes):
            free += change
            if index + 1 < len(changes) and changes[index + 1][0] == time:
                continue
            if free < 0:
                raise ValueError(f"{-free} processors too many are reserved at {time}")
            if times[-1] == time:
                amounts[-1] = free
            elif amounts[-1] != free:
                times.append(time)
                amounts.append(free)
        carts._root = build_tree(times, amounts)
        return carts

    def copy(self) -> Carts:
        """Return the same slots, to be changed apart. O(1): both share what neither changes."""
        other = Carts(self.capacity, self.origin)
        other._root = self._root.copy(object())
        self._root.owner = object()
        return other

    @property
    def origin(self) -> float:
        """The start of the first slot (seconds); no time before it is represented."""
        return self._root.times[0]

    def slots(self) -> list[tuple[float, int]]:
        """Return (start, free processors) of every slot in order; the last slot has no end."""
        return list(self._root.walk(0))

    def free(self, start: float, end: float) -> int:
        """Return the least processors free at once in [start, end). ValueError as `reserve`."""
        self._check_window(start, end, 1)
        return self._root.least(start, end)

    def reserve(self, start: float, end: float, size: int) -> None:
        """Reserve processors for [start, end). ValueError, and no change, if they do not fit."""
        self._check_window(start, end, size)
        if (least := self._root.least(start, end)) < size:
            raise no_room(size, start, end, least)
        self._change(start, end, -size)

    def release(self, start: float, end: float, size: int) -> None:
        """Give back processors. ValueError, and no change, if more would be free than exist.

        The part before the origin is ignored: the past may have been pruned.
        """
        check_processors("size", size)
        start = max(check_time("start", start), self.origin)
        if not start < check_time("end", end):
            raise ValueError(f"[{start}, {end}) is empty")
        max_free = self.capacity - size
        excess_at = self._root.first_time(start, max_free + 1, ge)
        if excess_at is not None and excess_at < end:
            raise ValueError(
                f"fewer than {size} processors are reserved at {max(excess_at, start)}"
            )
        self._change(start, end, size)

    def earliest_start(
        self, size: int, duration: float, ready: float, deadline: float | None = None
    ) -> float | None:
        """Return the first time from `ready` on with `size` processors free for `duration`.

        None if no such time ends by `deadline`, or if the cluster is smaller. ValueError if size or
        duration is not positive. ARTS2 (Kurowski et al. 2011, Algorithm 2), but beginning in the
        slot that contains `ready`, and ending with the last slot, which is unbounded.
        """
        return next((first for first, _ in self._gaps(size, duration, ready, deadline)), None)

    def starts(
        self, size: int, duration: float, ready: float, deadline: float
    ) -> list[tuple[float, float]]:
        """Return all possible starts as closed intervals (first, last); see `earliest_start`."""
        return list(self._gaps(size, duration, ready, deadline))

    def prune(self, until: float) -> None:
        """Forget everything before `until`, which becomes the origin."""
        if check_time("until", until) > self.origin:
            self._root.drop(until)
            self._shrink()

    def _gaps(
        self, size: int, duration: float, ready: float, deadline: float | None
    ) -> Iterator[tuple[float, float]]:
        check_processors("size", size)
        check_duration(duration)
        end = inf if deadline is None else check_time("deadline", deadline)
        start = max(check_time("ready", ready), self.origin)
        for passed in count():
            if size > self.capacity or start + duration > end:
                return
            opens = self._root.first_time(start, size, ge)
            if opens is None:
                return
            start = max(start, opens)
            closes = self._root.first_time(start, size, lt)
            stop = end if closes is None else min(end, closes)
            if start + duration <= stop:
                yield start, max(start, last_start(stop, duration))
            if closes is None:
                return
            start = closes
            if passed >= _LINEAR_SEARCHES:
                _, opened = self._root.find_gap(start, size, duration, None, self._grain)
                start = start if opened is None else opened

    def _check_window(self, start: float, end: float, size: int) -> None:
        check_processors("size", size)
        if not self.origin <= check_time("start", start):
            raise ValueError(f"{start} lies before the origin {self.origin}")
        if not start < check_time("end", end):
            raise ValueError(f"[{start}, {end}) is empty")

    def _change(self, start: float, end: float, amount: int) -> None:
        for time in (start, end):
            self._root.cut(time)
            self._split()
        self._root.add(start, end, amount)
        for time in (start, end):
            if time > self.origin and self._root.amount_at(time) == self._root.amount_at(
                time, bisect_left
            ):
                self._root.remove(time)
                self._shrink()

    def _split(self) -> None:
        if len(self._root.times) > NODE_MAX:
            self._root = InnerNode([self._root, self._root.halve()], self._root.owner)

    def _shrink(self) -> None:
        while isinstance(self._root, InnerNode) and len(self._root.children) == 1:
            shift, self._root = self._root.shifts[0], self._root.own_child(0)
            self._root.add(-inf, inf, shift)

    def _check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        self._root.check()
        slots = self.slots()
        assert all(a[0] < b[0] and a[1] != b[1] for a, b in pairwise(slots))
        assert all(0 <= free <= self.capacity for _, free in slots)
        assert slots[-1][1] == self.capacity


"""Of the slots of a node: where the first with too few processors begins, the longest gap between
two such, and where the gap after the last such opens (None if it is the last slot of all). None if
there is no such slot."""


def no_room(size: int, start: float, end: float, free: int) -> ValueError:
    return ValueError(f"{size} processors do not fit into [{start}, {end}): {free} are free")


def check_duration(duration: float) -> None:
    if check_time("duration", duration) <= 0:
        raise ValueError(f"duration must be positive, not {duration}")


def check_processors(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of processors from 1 on, not {value!r}")


def check_time(name: str, value: float) -> float:
    if not isfinite(value):
        raise ValueError(f"{name} must be a finite time in seconds, not {value}")
    return value
