"""CARTS-SR: free sets of processors over time. Source: Kurowski et al. 2011, section 3.4."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from metasched.carts.carts import check_duration, check_processors, check_time, no_room


class CartsSets:
    """CARTS-SR: free processors (0, 1, ...) over time, chosen when they are reserved.

    For managers that bind at creation, and as the baseline for `Carts`. A window needs processors
    that are free throughout, so some requests are refused that amounts would admit (Kurowski et al.
    2011, Proposition 1). `reserve` takes the lowest numbers, or the `highest`. Each call takes
    O(slots).
    """

    def __init__(self, processors: int, origin: float = 0.0) -> None:
        check_processors("processors", processors)
        self.origin = check_time("origin", origin)
        self._times = [self.origin]
        self._free = [(1 << processors) - 1]
        self._all = self._free[0]

    def slots(self) -> list[tuple[float, frozenset[int]]]:
        """Return (start, free processors) of every slot in order; the last slot has no end."""
        return [(t, _processors_in(bits)) for t, bits in zip(self._times, self._free, strict=True)]

    def free(self, start: float, end: float) -> frozenset[int]:
        """Return the processors that are free throughout [start, end)."""
        return _processors_in(self._common(start, end))

    def reserve(self, start: float, end: float, size: int, highest: bool = False) -> frozenset[int]:
        """Reserve and return `size` processors. ValueError, and no change, if they do not fit."""
        check_processors("size", size)
        common = self._common(start, end)
        if common.bit_count() < size:
            raise no_room(size, start, end, common.bit_count())
        taken = frozenset(sorted(_processors_in(common), reverse=highest)[:size])
        self._flip(start, end, taken)
        return taken

    def release(self, start: float, end: float, processors: Iterable[int]) -> None:
        """Give back processors. ValueError, and no change, if any of them was free."""
        returned = frozenset(processors)
        bits = sum(1 << processor for processor in returned)
        low, high = self._window(start, end)
        if bits & ~self._all or any(bits & free for free in self._free[low:high]):
            raise ValueError(f"not all of {sorted(returned)} are reserved in [{start}, {end})")
        self._flip(start, end, returned)

    def earliest_start(
        self, size: int, duration: float, ready: float, deadline: float | None = None
    ) -> float | None:
        """Return the first start from `ready` on with `size` processors throughout, or None."""
        check_processors("size", size)
        check_duration(duration)
        earliest = max(check_time("ready", ready), self.origin)
        later = self._times[bisect_right(self._times, earliest) :]
        for start in (earliest, *later):
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
        if not self.origin <= check_time("start", start):
            raise ValueError(f"{start} lies before the origin {self.origin}")
        if not start < check_time("end", end):
            raise ValueError(f"[{start}, {end}) is empty")
        return bisect_right(self._times, start) - 1, bisect_left(self._times, end)

    def _flip(self, start: float, end: float, processors: frozenset[int]) -> None:
        for time in (start, end):
            index = bisect_left(self._times, time)
            if index == len(self._times) or self._times[index] != time:
                self._times.insert(index, time)
                self._free.insert(index, self._free[index - 1])
        low, high = self._window(start, end)
        bits = sum(1 << processor for processor in processors)
        for index in range(low, high):
            self._free[index] ^= bits
        for index in (high, low):
            if index and self._free[index] == self._free[index - 1]:
                del self._times[index], self._free[index]


def _processors_in(bits: int) -> frozenset[int]:
    return frozenset(processor for processor in range(bits.bit_length()) if bits >> processor & 1)
