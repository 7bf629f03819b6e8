"""Conservative backfilling: every waiting job holds a place in a plan. Pure.

Mu'alem and Feitelson 2001, §2.2: a job is promised the earliest start that delays nobody planned
before it; when something ends early each job, in the order of the queue, gives its place back and
takes the earliest there is then, until nobody gains by it; so no promise ever becomes later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable
from typing import ClassVar, NamedTuple

from metasched.policies.local.capacity import OVERRUN, MachineRoom, Room, room
from metasched.policies.local.queueing import NEVER, NOWHERE, Free, Running, Start, Waiting


class Profile:
    """How much of one resource is free from now on: a step function of time.

    `releases` holds (time, amount) of what comes back. With v steps, `take` and `earliest` are
    O(v).
    """

    def __init__(self, now: float, free: int, releases: Iterable[tuple[float, int]]) -> None:
        self.times, self.free = [now], [free]
        for time, amount in sorted(releases):
            free += amount
            if time <= self.times[-1]:
                self.free[-1] = free
            else:
                self.times.append(time)
                self.free.append(free)

    def take(self, start: float, end: float, amount: int) -> None:
        """Hold `amount` from `start` (not before now) to `end`; a negative one gives it back."""
        first, last = self._step(start), self._step(end)
        for place in range(first, last):
            self.free[place] -= amount

    def earliest(self, amount: int, seconds: float, after: float) -> float:
        """The first time, from `after` on, from which `amount` stays free for `seconds`.

        `NEVER` if it never does.
        """
        place = max(bisect_right(self.times, after) - 1, 0)
        start = NEVER
        for step in range(place, len(self.times)):
            if self.free[step] < amount:
                start = NEVER
                continue
            start = min(start, max(self.times[step], after))
            if step + 1 < len(self.times) and self.times[step + 1] >= start + seconds:
                return start
        return start

    def _step(self, time: float) -> int:
        """The place of the step that begins at `time`, which is made if there is none."""
        place = bisect_right(self.times, time)
        if self.times[place - 1] == time:
            return place - 1
        self.times.insert(place, time)
        self.free.insert(place, self.free[place - 1])
        return place


class _Promise(NamedTuple):
    start: float
    end: float
    machine: int


class _Plan:
    """Profiles of the processors (of each machine, if there are such) and of what is counted."""

    def __init__(self, space: Room) -> None:
        now, held = space.now, list(space.held())
        self.now = now
        self.whole: dict[int, int] = {}  # what a job takes of a machine that is not shared
        self.machines: dict[int, Profile] = {}
        free = space.machines if isinstance(space, MachineRoom) else [space.cpus]
        for machine, cpus in enumerate(free):
            there = [(_end(r, now), r.cpus) for r in held if r.machine == machine]
            self.machines[machine] = Profile(now, cpus, there)
            if isinstance(space, MachineRoom) and not space.shared:
                self.whole[machine] = cpus + sum(amount for _, amount in there)
        self.counts = {
            name: Profile(now, amount, [(_end(r, now), r.counts.get(name, 0)) for r in held])
            for name, amount in space.counts.items()
        }

    def take(self, job: Waiting, promise: _Promise, sign: int = 1) -> None:
        start, end, machine = promise
        self.machines[machine].take(start, end, sign * self._cpus(job, machine))
        for name, amount in job.counts.items():
            if name in self.counts:
                self.counts[name].take(start, end, sign * amount)

    def earliest(self, job: Waiting) -> _Promise:
        """The earliest place for the job, on the most powerful machine among equals."""
        best = _Promise(NEVER, NEVER, NOWHERE)
        for machine, seconds in (job.machines or {0: job.estimated}).items():
            start = self._start(job, machine, seconds, best.start)
            if (start, machine) < (best.start, best.machine):
                best = _Promise(start, start + seconds, machine)
        return best

    def _start(self, job: Waiting, machine: int, seconds: float, limit: float) -> float:
        """The earliest start there at which all that the job needs is free together."""
        profiles = [(self.machines[machine], self._cpus(job, machine))]
        if profiles[0][1] < job.cpus:
            return NEVER
        profiles += [(self.counts[n], a) for n, a in job.counts.items() if n in self.counts]
        start, agreed = self.now, 0
        while agreed < len(profiles) and start < NEVER and start <= limit:
            for profile, amount in profiles:
                fit = profile.earliest(amount, seconds, start)
                agreed = agreed + 1 if fit == start else 1
                start = fit
        return start

    def _cpus(self, job: Waiting, machine: int) -> int:
        return self.whole.get(machine, job.cpus)


def planned_start(
    now: float,
    queue: Iterable[Waiting],
    running: Collection[Running],
    free: Free,
    job: Waiting,
) -> float:
    """When `job` would start behind the jobs of `queue`, each planned as early as it can be.

    `NEVER` if it does not fit at all. O(q v) for q jobs and v steps of the plan.
    """
    plan = _Plan(room(now, running, free))
    for waiting in queue:
        promise = plan.earliest(waiting)
        if promise.start < NEVER:
            plan.take(waiting, promise)
    return plan.earliest(job).start


class Conservative:
    """Every job keeps the start that it was promised, or gets an earlier one. O(q v)."""

    name: ClassVar[str] = "conservative"
    period: float = 0.0
    steady: ClassVar[bool] = False

    def __init__(self) -> None:
        self._promises: dict[int, _Promise] = {}
        self._expected: dict[int, float] = {}  # the end of each job that ran after the last pass

    def starts(
        self, now: float, queue: Collection[Waiting], running: Collection[Running], free: Free
    ) -> list[Start]:
        space = room(now, running, free)
        plan = _Plan(space)
        promises = self._kept(now, queue, running)
        for job in queue:
            if job.id in promises:
                plan.take(job, promises[job.id])
        # as long as all goes to plan, only what is new needs a place
        settled = promises.keys() == self._promises.keys() and self._to_plan(now, running)
        moved = True
        while moved:  # a place that one job leaves may be better for one that was asked before
            moved = False
            for job in queue:
                old = promises.get(job.id)
                if old is not None and (settled or old.start <= now):
                    continue
                if old is not None:
                    plan.take(job, old, -1)
                found = plan.earliest(job)
                if found.start < NEVER:
                    plan.take(job, found)
                    promises[job.id] = found
                    moved = moved or (old is not None and found.start < old.start)
        for job in queue:
            if job.id in promises and promises[job.id].start <= now:
                space.start(job, promises.pop(job.id).machine)
        self._promises = promises
        self._expected = {r.id: r.end for r in space.held()}
        return space.starts

    def _kept(
        self, now: float, queue: Collection[Waiting], running: Collection[Running]
    ) -> dict[int, _Promise]:
        """The promises that can still be kept: none while something runs past its estimate."""
        promises = {job.id: self._promises[job.id] for job in queue if job.id in self._promises}
        broken = any(promise.start < now for promise in promises.values())
        return {} if broken or any(r.end <= now for r in running) else promises

    def _to_plan(self, now: float, running: Collection[Running]) -> bool:
        """Whether all that ran after the last pass still does, or ends now as expected."""
        ended = {job: end for job, end in self._expected.items() if end == now}
        return self._expected == ended | {r.id: r.end for r in running}


def _end(job: Running, now: float) -> float:
    return job.end if job.end > now else now + OVERRUN
