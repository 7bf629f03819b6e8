"""The tree below `Carts`: a B+ tree by time, with cached gaps.

Amounts in a leaf are relative: the shifts on the way down to it are added, so that a change of
whole nodes is an addition.

Trees may share nodes. A tree changes only nodes of its own owner, which is that of its root; it
copies others first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from math import inf, ulp
from operator import ge
from typing import Any

NODE_MAX = 64
"""Entries above which a node is split. Measured: 32 to 128 differ by less than a fifth."""
NODE_MIN = NODE_MAX // 4
"""Entries below which a node is merged with a neighbour that has room."""


class LeafNode:
    """Slots: their start `times` and free `amounts`, relative to the shifts above."""

    __slots__ = ("amounts", "gaps", "owner", "times")

    def __init__(self, times: list[float], amounts: list[int], owner: object) -> None:
        self.times, self.amounts, self.owner = times, amounts, owner
        self.gaps: dict[int, GapSummary] = {}

    def copy(self, owner: object) -> LeafNode:
        """Return a node with the same entries for another owner."""
        copy = LeafNode(self.times.copy(), self.amounts.copy(), owner)
        copy.gaps = self.gaps.copy()
        return copy

    def bounds(self) -> tuple[int, int]:
        """Return the least and the largest amount."""
        return min(self.amounts), max(self.amounts)

    def walk(self, shift: int) -> Iterator[tuple[float, int]]:
        """Yield (start, amount + shift) of every slot in order."""
        return zip(self.times, (amount + shift for amount in self.amounts), strict=True)

    def amount_at(self, time: float, side: Bisection = bisect_right) -> int:
        """Return the amount at `time`; with `bisect_left`, just before it."""
        return self.amounts[side(self.times, time) - 1]

    def least(self, start: float, end: float) -> int:
        """Return the least amount in [start, end)."""
        times = self.times
        return min(self.amounts[max(bisect_right(times, start) - 1, 0) : bisect_left(times, end)])

    def first_time(self, time: float, limit: int, meets: LimitTest) -> float | None:
        """Return the start of the first slot, from the slot at `time` on, that meets the limit."""
        amounts = self.amounts
        for index in range(max(bisect_right(self.times, time) - 1, 0), len(amounts)):
            if meets(amounts[index], limit):
                return self.times[index]
        return None

    def find_gap(
        self, time: float, limit: int, duration: float, opened: float | None, grain: int
    ) -> tuple[bool, float | None]:
        """Return whether a gap of `limit` processors for `duration` closes, and where it opened.

        Searches from `time` on; `opened` is the start of a gap still open before this node. If no
        gap closes, the second value is the start of the gap open at the node's end, or None. By the
        rounding of `grain` a gap may have too few processors, but no gap is passed over.
        """
        times, amounts = self.times, self.amounts
        for index in range(max(bisect_right(times, time) - 1, 0), len(times)):
            if amounts[index] >= limit:
                if opened is None:
                    opened = max(times[index], time)
            elif opened is not None:
                if opened + duration <= times[index]:
                    return True, opened
                opened = None
        return False, opened

    def summary(self, limit: int, grain: int) -> GapSummary:
        """Return the gaps of `limit` processors, rounded down to whole grains; cached."""
        level = limit // grain
        if level not in self.gaps:
            self.gaps[level] = self._summary(level * grain)
        return self.gaps[level]

    def _summary(self, limit: int) -> GapSummary:
        closes: float | None = None
        longest, opened = 0.0, None
        for time, amount in zip(self.times, self.amounts, strict=True):
            if amount >= limit:
                if opened is None:
                    opened = time
            elif closes is None:
                closes, opened = time, None
            elif opened is not None:
                longest, opened = max(longest, gap_length(opened, time)), None
        return None if closes is None else (closes, longest, opened)

    def cut(self, time: float) -> None:
        """Begin a slot at `time`, if none begins there."""
        index = bisect_left(self.times, time)
        if index == len(self.times) or self.times[index] != time:
            self.times.insert(index, time)
            self.amounts.insert(index, self.amounts[index - 1])

    def add(self, start: float, end: float, amount: int) -> None:
        """Add `amount` to all slots that begin in [start, end)."""
        self.gaps.clear()
        amounts = self.amounts
        for index in range(bisect_left(self.times, start), bisect_left(self.times, end)):
            amounts[index] += amount

    def remove(self, time: float) -> None:
        """Merge the slot that begins at `time` into the slot before it."""
        self.gaps.clear()
        index = bisect_left(self.times, time)
        del self.times[index], self.amounts[index]

    def drop(self, until: float) -> None:
        """Drop everything before `until`, where the first slot then begins."""
        self.gaps.clear()
        index = bisect_right(self.times, until) - 1
        del self.times[:index], self.amounts[:index]
        self.times[0] = until

    def halve(self) -> LeafNode:
        """Move the right half of the entries to a new node, and return it."""
        self.gaps.clear()
        half = len(self.times) // 2
        right = LeafNode(self.times[half:], self.amounts[half:], self.owner)
        del self.times[half:], self.amounts[half:]
        return right

    def append(self, other: TreeNode) -> None:
        """Append the entries of the right neighbour."""
        assert isinstance(other, LeafNode)
        self.gaps.clear()
        self.times += other.times
        self.amounts += other.amounts

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert 0 < len(self.times) == len(self.amounts) <= NODE_MAX


class InnerNode:
    """Nodes of equal height: the start, shift and bounds (with the shift) of each."""

    __slots__ = ("children", "gaps", "high", "low", "owner", "shifts", "times")

    def __init__(self, children: list[TreeNode], owner: object) -> None:
        self.children, self.owner = children, owner
        self.gaps: dict[int, list[GapSummary]] = {}
        self.times: list[float] = [child.times[0] for child in children]
        self.shifts = [0] * len(children)
        bounds = [child.bounds() for child in children]
        self.low = [low for low, _ in bounds]
        self.high = [high for _, high in bounds]

    def copy(self, owner: object) -> InnerNode:
        """Return a node with the same children for another owner; they keep theirs."""
        copy = InnerNode([], owner)
        for column, addition in zip(copy._columns(), self._columns(), strict=True):
            column += addition
        copy.gaps = self.gaps.copy()
        return copy

    def own_child(self, index: int) -> TreeNode:
        """Return a child that may be changed: it has the owner of this node."""
        child = self.children[index]
        if child.owner is not self.owner:
            child = self.children[index] = child.copy(self.owner)
        return child

    def bounds(self) -> tuple[int, int]:
        """Return the least and the largest amount."""
        return min(self.low), max(self.high)

    def walk(self, shift: int) -> Iterator[tuple[float, int]]:
        """Yield (start, amount + shift) of every slot in order."""
        for child, own_shift in zip(self.children, self.shifts, strict=True):
            yield from child.walk(shift + own_shift)

    def amount_at(self, time: float, side: Bisection = bisect_right) -> int:
        index = side(self.times, time) - 1
        return self.children[index].amount_at(time, side) + self.shifts[index]

    def least(self, start: float, end: float) -> int:
        """Return the least amount in [start, end)."""
        first = max(bisect_right(self.times, start) - 1, 0)
        last = bisect_left(self.times, end) - 1
        lowest = self.children[first].least(start, end) + self.shifts[first]
        if first >= last:
            return lowest
        lowest = min(lowest, self.children[last].least(start, end) + self.shifts[last])
        return min([lowest, *self.low[first + 1 : last]])

    def first_time(self, time: float, limit: int, meets: LimitTest) -> float | None:
        bounds = self.high if meets is ge else self.low
        for index in range(max(bisect_right(self.times, time) - 1, 0), len(bounds)):
            if meets(bounds[index], limit):
                start = self.children[index].first_time(time, limit - self.shifts[index], meets)
                if start is not None:
                    return start
        return None

    def find_gap(
        self, time: float, limit: int, duration: float, opened: float | None, grain: int
    ) -> tuple[bool, float | None]:
        first = max(bisect_right(self.times, time) - 1, 0)
        if self.times[first] < time:  # a child's gaps say nothing of a part of it
            relative_limit = limit - self.shifts[first]
            closed, opened = self.children[first].find_gap(
                time, relative_limit, duration, opened, grain
            )
            first += 1
            if closed or first == len(self.children):
                return closed, opened
        skipped, opened_after = pass_over(
            self.tails(limit, grain)[first], self.times[first], opened, duration
        )
        if skipped:
            return False, opened_after
        for index in range(first, len(self.children)):
            start = self.times[index]
            if opened is not None and opened + duration <= start:
                return True, opened
            skipped, opened_after = pass_over(
                self._gaps(index, limit, grain), start, opened, duration
            )
            if skipped:
                opened = opened_after
                continue
            relative_limit = limit - self.shifts[index]
            closed, opened = self.children[index].find_gap(
                time, relative_limit, duration, opened, grain
            )
            if closed:
                return True, opened
        return False, opened

    def tails(self, limit: int, grain: int) -> list[GapSummary]:
        """Return `summary` for the slots from each child on to the end."""
        level = limit // grain
        if level not in self.gaps:
            tails = [self._gaps(len(self.children) - 1, level * grain, grain)]
            for index in range(len(self.children) - 2, -1, -1):
                own_gaps = self._gaps(index, level * grain, grain)
                tails.append(join_gaps(own_gaps, self.times[index + 1], tails[-1]))
            self.gaps[level] = tails[::-1]
        return self.gaps[level]

    def summary(self, limit: int, grain: int) -> GapSummary:
        return self.tails(limit, grain)[0]

    def _gaps(self, index: int, limit: int, grain: int) -> GapSummary:
        if self.low[index] >= limit:
            return None
        if self.high[index] < limit:
            return self.times[index], 0.0, None
        return self.children[index].summary(limit - self.shifts[index], grain)

    def cut(self, time: float) -> None:
        index = bisect_right(self.times, time) - 1
        child = self.own_child(index)
        child.cut(time)
        if len(child.times) > NODE_MAX:
            self._insert(index + 1, child.halve(), self.shifts[index])
            self._refresh(index)

    def add(self, start: float, end: float, amount: int) -> None:
        self.gaps.clear()
        first, stop = bisect_right(self.times, start) - 1, bisect_left(self.times, end)
        for index in range(max(first, 0), stop):
            inside = start <= self.times[index] and (
                index + 1 < len(self.times) and self.times[index + 1] <= end
            )
            if inside:
                self.shifts[index] += amount
                self.low[index] += amount
                self.high[index] += amount
            else:
                self.own_child(index).add(start, end, amount)
                self._refresh(index)

    def remove(self, time: float) -> None:
        self.gaps.clear()
        index = bisect_right(self.times, time) - 1
        child = self.own_child(index)
        child.remove(time)
        if not child.times:
            self._delete(index)
            return
        self._refresh(index)
        if len(child.times) < NODE_MIN:
            self._join_neighbours(index)

    def drop(self, until: float) -> None:
        self.gaps.clear()
        index = bisect_right(self.times, until) - 1
        for column in self._columns():
            del column[:index]
        self.own_child(0).drop(until)
        self._refresh(0)

    def halve(self) -> InnerNode:
        """Move the right half of the entries to a new node, and return it."""
        self.gaps.clear()
        half = len(self.children) // 2
        right = InnerNode(self.children[half:], self.owner)
        right.shifts, right.low, right.high = self.shifts[half:], self.low[half:], self.high[half:]
        for column in self._columns():
            del column[half:]
        return right

    def append(self, other: TreeNode) -> None:
        """Append the entries of the right neighbour."""
        assert isinstance(other, InnerNode)
        self.gaps.clear()
        for column, addition in zip(self._columns(), other._columns(), strict=True):
            column += addition

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert 0 < len(self.children) <= NODE_MAX
        assert self.times == [child.times[0] for child in self.children]
        for child, shift, low, high in zip(
            self.children, self.shifts, self.low, self.high, strict=True
        ):
            child.check()
            assert (low - shift, high - shift) == child.bounds()

    def _columns(self) -> tuple[list[Any], ...]:
        return self.times, self.shifts, self.low, self.high, self.children

    def _refresh(self, index: int) -> None:
        child, shift = self.children[index], self.shifts[index]
        low, high = child.bounds()
        self.times[index] = child.times[0]
        self.low[index], self.high[index] = low + shift, high + shift

    def _insert(self, index: int, child: TreeNode, shift: int) -> None:
        self.children.insert(index, child)
        self.shifts.insert(index, shift)
        for column in (self.times, self.low, self.high):
            column.insert(index, 0)  # until `_refresh`
        self._refresh(index)

    def _delete(self, index: int) -> None:
        for column in self._columns():
            del column[index]

    def _join_neighbours(self, index: int) -> None:
        left_index = index - 1 if index else 0
        if left_index + 1 == len(self.children):
            return
        left_child, right_child = self.children[left_index], self.children[left_index + 1]
        if len(left_child.times) + len(right_child.times) > NODE_MAX - NODE_MIN:
            return
        left_child, right_child = self.own_child(left_index), self.own_child(left_index + 1)
        right_child.add(-inf, inf, self.shifts[left_index + 1] - self.shifts[left_index])
        left_child.append(right_child)
        self._delete(left_index + 1)
        self._refresh(left_index)


TreeNode = LeafNode | InnerNode
GapSummary = tuple[float, float, float | None] | None
"""Of the slots of a node: the start of the first slot below the limit, the longest gap between two
such slots, and the start of the gap after the last (None: it is the last slot of all). None: no
slot is below the limit."""
Bisection = Callable[[list[float], float], int]
LimitTest = Callable[[int, int], bool]


def build_tree(times: list[float], amounts: list[int]) -> TreeNode:
    """Return a tree over slots in order, its nodes three quarters full."""
    width, owner = NODE_MAX * 3 // 4, object()
    level: list[TreeNode] = [
        LeafNode(times[at : at + width], amounts[at : at + width], owner)
        for at in range(0, len(times), width)
    ]
    while len(level) > 1:
        level = [InnerNode(level[at : at + width], owner) for at in range(0, len(level), width)]
    return level[0]


def join_gaps(gaps: GapSummary, next_start: float, next_gaps: GapSummary) -> GapSummary:
    """Return the gaps of two adjacent runs of slots, the second beginning at `next_start`."""
    if gaps is None:
        return next_gaps
    closes, longest, opened = gaps
    opened = next_start if opened is None else opened
    if next_gaps is None:
        return closes, longest, opened
    return closes, max(longest, next_gaps[1], gap_length(opened, next_gaps[0])), next_gaps[2]


def pass_over(
    gaps: GapSummary, start: float, opened: float | None, duration: float
) -> tuple[bool, float | None]:
    """Return whether no gap of that duration closes in slots that begin at `start`.

    `opened` is the start of a gap still open before; the second value, of the gap open at the end.
    """
    since = start if opened is None else opened
    if gaps is None:
        return True, since
    closes, longest, opened_after = gaps
    return closes < since + duration and longest < duration, opened_after


def gap_length(opened: float, closes: float) -> float:
    """Return the length plus an ulp: start + duration <= end may hold by rounding alone."""
    return closes - opened + ulp(closes)


def last_start(end: float, duration: float) -> float:
    """Return the latest start that ends by `end`, in spite of rounding."""
    last = end - duration
    while last + duration > end:
        last -= ulp(end)
    return last
