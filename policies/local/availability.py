"""The free amount of a resource over time, and the gaps in it. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from metasched.policies.local.queueing import NEVER


class AvailabilityProfile:
    """Free amount of a resource from now on, a step function of time.

    `releases` holds (time, amount); a negative amount is held from then on. Neighbouring steps
    differ, so n holds make at most 2n + 1 steps. All methods are O(v) in the v steps.
    """

    def __init__(self, now: float, free: int, releases: Iterable[tuple[float, int]]) -> None:
        times, steps = [now], [free]
        for time, amount in sorted(releases):
            free += amount
            if time > times[-1]:
                if len(steps) > 1 and steps[-1] == steps[-2]:
                    times[-1] = time
                    steps[-1] = free
                else:
                    times.append(time)
                    steps.append(free)
            else:
                steps[-1] = free
        if len(steps) > 1 and steps[-1] == steps[-2]:
            del times[-1], steps[-1]
        self.times, self.free = times, steps

    def hold(self, start: float, end: float, amount: int) -> None:
        """Hold `amount` from `start` (not before now) to `end`; a negative amount releases it."""
        if start >= end:
            return
        first_step, last_step = self._step_at(start), self._step_at(end)
        free = self.free
        for step in range(first_step, last_step):
            free[step] -= amount
        for step in (last_step, first_step):
            if step > 0 and free[step] == free[step - 1]:
                del self.times[step], free[step]

    def earliest_start(
        self, amount: int, seconds: float, after: float, latest: float = NEVER
    ) -> float:
        """Return the first time from `after` to `latest` from which `amount` is free so long.

        `NEVER` if there is none.
        """
        times, free = self.times, self.free
        step, last_step = max(bisect_right(times, after) - 1, 0), len(times) - 1
        start = max(times[step], after)
        end = start + seconds
        while start <= latest:
            if free[step] < amount:
                if step == last_step:
                    break
                step += 1
                start = times[step]
                end = start + seconds
            elif step == last_step or times[step + 1] >= end:
                return start
            else:
                step += 1
        return NEVER

    def longest_gap(self, amount: int, end: float) -> tuple[float, float]:
        """Return the seconds of the longest gap up to `end`, and when the last gap begins.

        A gap is a time with `amount` free; the last gap has no end.
        """
        longest, begin = 0.0, NEVER
        for time, free in zip(self.times, self.free, strict=True):
            if free >= amount:
                begin = min(begin, time)
            elif begin < NEVER:
                longest, begin = max(longest, time - begin), NEVER
        return max(longest, end - begin), begin

    def advance(self, now: float) -> None:
        """Forget the time before `now`."""
        step = bisect_right(self.times, now) - 1
        if step > 0:
            del self.times[:step], self.free[:step]
        self.times[0] = max(self.times[0], now)

    def copy(self) -> AvailabilityProfile:
        """Return an independent copy."""
        copied = AvailabilityProfile(0.0, 0, ())
        copied.times, copied.free = self.times.copy(), self.free.copy()
        return copied

    def _step_at(self, time: float) -> int:
        """Return the index of the step that begins at `time`, inserting it if missing."""
        step = bisect_right(self.times, time)
        if self.times[step - 1] == time:
            return step - 1
        self.times.insert(step, time)
        self.free.insert(step, self.free[step - 1])
        return step
