"""Reserved windows of a cluster of counted processors, and the jobs that run in them. Pure.

A manager keeps windows with this: the `local` adapter, the simulated manager. Jobs of a window
start in it in the order of the queue. All others are left to a local policy that keeps windows.
Times are seconds of the caller's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

from metasched.policies.local.queueing import ReservedWindow

CpuUse = tuple[float, float, int]  # start, end, processors


def peak_use(uses: Iterable[CpuUse], start: float, end: float) -> int:
    """Return the most processors in use at any time in [start, end)."""
    changes = sorted(
        change
        for first, last, cpus in uses
        if first < end and start < last
        for change in ((max(first, start), cpus), (min(last, end), -cpus))
    )
    return max(accumulate(cpus for _, cpus in changes), default=0)


def is_open(window: ReservedWindow, now: float) -> bool:
    """Return whether a window has begun and is not over."""
    return window.start <= now < window.end


class WindowUse:
    """The windows of a cluster at a moment, and the processors that jobs hold in them.

    `held` has the processors of started jobs by the name of their window. Jobs that outlast their
    window hold processors like all others.
    """

    def __init__(
        self, now: float, windows: Mapping[str, ReservedWindow], held: Mapping[str, int]
    ) -> None:
        self._now, self._windows = now, windows
        self.held = {name: held.get(name, 0) for name, w in windows.items() if is_open(w, now)}
        self.unended = tuple([window for window in windows.values() if window.end > now])

    def room(self, name: str) -> int:
        """Return the processors for a further job in a window; 0 while it is not open."""
        if name not in self.held:
            return 0
        return self._windows[name].cpus - self.held[name]

    def start(self, name: str, cpus: int) -> None:
        """Record the start of a job in its window."""
        self.held[name] += cpus

    @property
    def idle_cpus(self) -> int:
        """Processors of open windows that no job holds: not free for other jobs."""
        return sum(max(self.room(name), 0) for name in self.held)

    @property
    def held_cpus(self) -> int:
        """Processors of open windows that their jobs hold.

        A local policy, which sees the windows whole, has to count them as free.
        """
        return sum(min(cpus, self._windows[name].cpus) for name, cpus in self.held.items())

    def upcoming(self, cpus: int, running: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
        """Return `ClusterInfo.upcoming_windows` of a cluster of so many processors.

        `running` has (end by the limit, processors) of the jobs outside open windows. Only windows
        that leave less than all before them: a job that others bar is barred by these. O(n log n)
        for n windows and jobs, since it is part of each listing.
        """
        uses = [(window.start, window.end, window.cpus) for window in self.unended]
        uses += [(self._now, end, job_cpus) for end, job_cpus in running]
        changes = sorted(
            change for start, end, n in uses if start < end for change in ((start, n), (end, -n))
        )
        upcoming, held, position = list[tuple[float, int]](), 0, 0
        for start in sorted({window.start for window in self.unended if window.start > self._now}):
            while position < len(changes) and changes[position][0] <= start:
                held += changes[position][1]
                position += 1
            available = max(cpus - held, 0)
            if not upcoming or available < upcoming[-1][1]:
                upcoming.append((start, available))
        return upcoming
