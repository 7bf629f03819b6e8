"""Local policies that sort their queue: FCFS, first fit, LSF, SJF, EDF, EASY, and others. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import ClassVar

from metasched.policies.local.backfilling import backfill, start_first_fit, start_in_order
from metasched.policies.local.capacity import HeadReservation, make_capacity
from metasched.policies.local.queueing import NEVER, FreeResources, JobStart, RunningJob, WaitingJob


class FCFS:
    """First come, first served: no job overtakes a job that does not fit. O(started)."""

    name: ClassVar[str] = "fcfs"
    period: float = 0.0
    incremental: ClassVar[bool] = True
    keeps_windows: ClassVar[bool] = True
    in_order: ClassVar[bool] = True

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        capacity = make_capacity(now, running, free)
        start_in_order(queue, capacity)
        return capacity.starts


class FirstFit:
    """Start every job that fits, in queue order; a large job may starve. O(q).

    The local "FCFS" of Kurowski et al. 2011, §4.4.3.
    """

    name: ClassVar[str] = "first-fit"
    period: float = 0.0
    incremental: ClassVar[bool] = True
    keeps_windows: ClassVar[bool] = True

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        capacity = make_capacity(now, running, free)
        start_first_fit(self.sort_queue(queue), capacity)
        return capacity.starts

    def sort_queue(self, queue: Collection[WaitingJob]) -> Collection[WaitingJob]:
        return queue


class LSF(FirstFit):
    """Largest size first, run every `period` seconds (0: at each arrival and ending).

    Kurowski et al. 2011, §4.4.3. ValueError if `period` is negative or not finite.
    """

    name: ClassVar[str] = "lsf"

    def __init__(self, period: float = 0.0) -> None:
        if not (math.isfinite(period) and period >= 0):
            raise ValueError(f"period is {period}; it must be 0 or more seconds")
        self.period = period

    def sort_queue(self, queue: Collection[WaitingJob]) -> Collection[WaitingJob]:
        return sorted(queue, key=lambda job: -job.cpus)


class SJF(FirstFit):
    """Shortest estimate first."""

    name: ClassVar[str] = "sjf"

    def sort_queue(self, queue: Collection[WaitingJob]) -> Collection[WaitingJob]:
        return _by_estimate(queue)


class EDF(FirstFit):
    """Earliest deadline first, jobs without a deadline last. Pasquali 2008, §4.2."""

    name: ClassVar[str] = "edf"

    def sort_queue(self, queue: Collection[WaitingJob]) -> Collection[WaitingJob]:
        return _by_deadline(queue)


def _by_estimate(queue: Collection[WaitingJob]) -> list[WaitingJob]:
    return sorted(queue, key=lambda job: job.estimated)


def _by_deadline(queue: Collection[WaitingJob]) -> list[WaitingJob]:
    return sorted(queue, key=lambda job: NEVER if job.deadline is None else job.deadline)


class BoundedFirstFit(FirstFit):
    """First fit without starvation: a starving job goes before all others.

    A job starves once it has waited `starving_after` seconds, as by `max_starve` of PBS. Starving
    jobs go in the order of arrival, and the first that does not fit has the reservation of EASY's
    head. Three days keep most of the gain of EDF and SJF (experiment bounded-waits). ValueError if
    it is negative or not finite.
    """

    incremental: ClassVar[bool] = False  # time alone makes a job the head
    reservation: HeadReservation | None = None  # of the last pass

    def __init__(self, starving_after: float = 3 * 86400.0) -> None:
        if not (math.isfinite(starving_after) and starving_after >= 0):
            raise ValueError(f"starving_after is {starving_after}; it must be 0 or more seconds")
        self.starving_after = starving_after

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        since = now - self.starving_after
        starving = [job for job in queue if job.waiting_since <= since]
        newer = [job for job in queue if job.waiting_since > since]
        capacity = make_capacity(now, running, free)
        backfill(starving, capacity, self.sort_queue(newer))
        self.reservation = capacity.reservation
        return capacity.starts


class BoundedSJF(BoundedFirstFit):
    """Shortest estimate first, but no job starves."""

    name: ClassVar[str] = "sjf-bounded"

    def sort_queue(self, queue: Collection[WaitingJob]) -> Collection[WaitingJob]:
        return _by_estimate(queue)


class BoundedEDF(BoundedFirstFit):
    """Earliest deadline first, but no job starves."""

    name: ClassVar[str] = "edf-bounded"

    def sort_queue(self, queue: Collection[WaitingJob]) -> Collection[WaitingJob]:
        return _by_deadline(queue)


class EASY:
    """FCFS with backfilling: a later job may start if it does not delay the blocked head."""

    name: ClassVar[str] = "easy"
    period: float = 0.0
    incremental: ClassVar[bool] = True
    keeps_windows: ClassVar[bool] = True
    reservation: HeadReservation | None = None  # of the last pass

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        capacity = make_capacity(now, running, free)
        backfill(self.sort_queue(now, queue), capacity)
        self.reservation = capacity.reservation
        return capacity.starts

    def sort_queue(self, now: float, queue: Collection[WaitingJob]) -> Collection[WaitingJob]:
        return queue


class Priority(EASY):
    """EASY on the queue ordered by the fixed priority assigned by metasched, higher first.

    The case MS of Pasquali 2008, §4.3.
    """

    name: ClassVar[str] = "priority"
    incremental: ClassVar[bool] = False

    def sort_queue(self, now: float, queue: Collection[WaitingJob]) -> Collection[WaitingJob]:
        return sorted(queue, key=lambda job: -job.priority)


class FairShare(EASY):
    """EASY on the queue ordered by the recent use of each job's user, the least first.

    Use is processor seconds, halved every `half_life` seconds (a week, the default of Slurm's
    PriorityDecayHalfLife). ValueError if `half_life` is not positive.
    """

    name: ClassVar[str] = "fair-share"
    incremental: ClassVar[bool] = False

    def __init__(self, half_life: float = 7 * 86400.0) -> None:
        if not (math.isfinite(half_life) and half_life > 0):
            raise ValueError(f"half_life is {half_life}; it must be a positive number of seconds")
        self.half_life = half_life
        self._usage: dict[str, float] = {}
        self._running: list[RunningJob] = []
        self._last_pass = 0.0

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        self._update_usage(now)
        capacity = make_capacity(now, running, free)
        backfill(self.sort_queue(now, queue), capacity)
        self.reservation = capacity.reservation
        self._running = list(capacity.all_running())
        return capacity.starts

    def sort_queue(self, now: float, queue: Collection[WaitingJob]) -> Collection[WaitingJob]:
        usage = self._usage
        return sorted(queue, key=lambda job: usage.get(job.user, 0.0))

    def _update_usage(self, now: float) -> None:
        """Add the use since the last pass: a pass follows every start and every end."""
        elapsed, self._last_pass = now - self._last_pass, now
        decay = 0.5 ** (elapsed / self.half_life)
        usage = {user: seconds * decay for user, seconds in self._usage.items()}
        for job in self._running:
            usage[job.user] = usage.get(job.user, 0.0) + job.cpus * elapsed
        self._usage = usage
