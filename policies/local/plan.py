"""The plan of a cluster: where and when each queued job runs. Pure.

A plan has a schedule for each machine; a cluster of counted processors is a single machine with
all processors. A gap is a time when processors of a machine are free. Memory, licences and other
counted resources are free in the whole cluster. When a job ends early, late or leaves the queue,
the jobs of its machine are placed again in the order of their planned starts, each as early as
possible. That makes no start later unless a job exceeds its estimate. For at any time from its old
start on, the jobs before it use no more than they did.

Reserved windows are no gaps: no run overlaps a window. A new window delays the jobs of its machine.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from metasched.policies.local.availability import AvailabilityProfile
from metasched.policies.local.capacity import expected_end
from metasched.policies.local.queueing import (
    NEVER,
    FreeResources,
    LeftOver,
    ReservedWindow,
    RunningJob,
    WaitingJob,
)

_START = attrgetter("start")
_ROUNDING = 1e-5  # seconds; most by rounding in sums of times
COUNTED = 0  # the machine of a cluster of counted processors


class PlannedRun(NamedTuple):
    """A queued job on a machine; times are seconds of the caller's clock."""

    job: WaitingJob
    machine: int
    start: float
    end: float
    cpus: int  # held; all of the machine where machines are not shared

    @property
    def late(self) -> bool:
        """Whether the job will miss its deadline."""
        return self.job.deadline is not None and self.end > self.job.deadline


class PlanQuality(NamedTuple):
    """The figures that compare plans."""

    makespan: float  # seconds from now to the end of the last job, running jobs included
    in_time: int  # queued jobs that are not late
    late: int  # queued jobs that will miss their deadlines


class MachineSchedule:
    """The schedule of a machine: running jobs, and planned runs in the order of their starts.

    An arrival asks all machines and changes one of them. So the answer of a machine is kept until
    it changes: the longest gaps, the order of deadlines, and profiles without the last runs.
    """

    def __init__(self, cpus: int) -> None:
        self.cpus = cpus
        self.running: dict[int, tuple[float, int]] = {}  # end and processors, by job
        self.windows: tuple[ReservedWindow, ...] = ()
        self.runs: list[PlannedRun] = []
        self.profile = AvailabilityProfile(0.0, cpus, ())
        self.end = 0.0  # of the last job
        self.late_count = 0
        self._gaps: dict[int, tuple[float, float]] = {}  # by processors
        self._latest_deadlines: list[float] = []  # of the runs up to each
        self._late: list[tuple[int, PlannedRun]] = []  # late runs and their positions
        self._truncated: dict[int, AvailabilityProfile] = {}  # by number of runs that are kept

    def restart(self, now: float, running: Mapping[int, tuple[float, int]]) -> None:
        """Forget all runs; `running` holds end and processors of running jobs."""
        self.running = dict(running)
        self.runs = []
        self.profile = self._new_profile(now, ())
        self._summarise(now)

    def add(self, run: PlannedRun) -> None:
        insort(self.runs, run, key=_START)
        self.profile.hold(run.start, run.end, run.cpus)
        self.end = max(self.end, run.end)
        self.late_count += run.late
        self._forget_answers()

    def remove(self, run: PlannedRun) -> None:
        self.profile.hold(run.start, run.end, -run.cpus)
        del self.runs[self._index(run)]
        self.late_count -= run.late
        if run.end >= self.end:
            self.end = self._last_end(0.0)
        self._forget_answers()

    def remove_from(self, position: int) -> list[PlannedRun]:
        """Remove and return the runs from a position on."""
        profile = self.profile_without(position).copy()
        removed = self.runs[position:]
        del self.runs[position:]
        self.profile = profile
        self._summarise(0.0)
        return removed

    def begin(self, run: PlannedRun) -> None:
        """Turn a planned run into a running job that ends as planned."""
        del self.runs[self._index(run)]
        self.late_count -= run.late
        self.running[run.job.id] = run.end, run.cpus
        self._forget_positions()

    def may_start(self, cpus: int, seconds: float, latest: float) -> bool:
        """Return False if no gap of so many seconds begins up to `latest`."""
        if cpus not in self._gaps:
            self._gaps[cpus] = self.profile.longest_gap(cpus, self.end)
        longest, free_from = self._gaps[cpus]
        return seconds <= longest + _ROUNDING or free_from <= latest

    def late_from(self, position: int) -> Iterator[PlannedRun]:
        """Yield the late runs from a position on."""
        if len(self._late) != self.late_count:
            self._late = [(index, run) for index, run in enumerate(self.runs) if run.late]
        for index, run in reversed(self._late):
            if index < position:
                break
            yield run

    def position_by_deadline(self, deadline: float | None) -> int:
        """Return the position before the first run with a later deadline, or with none."""
        if deadline is None:
            return len(self.runs)
        if len(self._latest_deadlines) != len(self.runs):
            deadlines = [NEVER if r.job.deadline is None else r.job.deadline for r in self.runs]
            self._latest_deadlines = list(accumulate(deadlines, max))
        return bisect_right(self._latest_deadlines, deadline)

    def profile_without(self, position: int) -> AvailabilityProfile:
        """Return the profile without the runs from a position on; not to be changed."""
        profile = self._truncated.get(position)
        if profile is None:
            now = self.profile.times[0]
            profile = self._truncated[position] = self._new_profile(now, self.runs[:position])
        return profile

    def _new_profile(self, now: float, runs: Iterable[PlannedRun]) -> AvailabilityProfile:
        """Return the profile of the running jobs and some runs, from `now` on."""
        releases = [(end, cpus) for end, cpus in self.running.values() if end > now]
        free = self.cpus - sum([cpus for _, cpus in releases])
        held = [(window.start, window.end, window.cpus) for window in self.windows]
        held += [(run.start, run.end, run.cpus) for run in runs]
        for start, end, cpus in held:
            if end > now:
                releases += ((start, -cpus), (end, cpus))
        return AvailabilityProfile(now, free, releases)

    def _summarise(self, earliest_end: float) -> None:
        """Find the last end and the late runs again."""
        self.end = self._last_end(earliest_end)
        self.late_count = sum([run.late for run in self.runs])
        self._forget_answers()

    def _last_end(self, earliest: float) -> float:
        ends = [end for end, _ in self.running.values()]
        return max([*ends, *[run.end for run in self.runs]], default=earliest)

    def _forget_answers(self) -> None:
        self._gaps = {}
        self._forget_positions()

    def _forget_positions(self) -> None:
        self._latest_deadlines, self._late = [], []
        self._truncated = {}

    def _index(self, run: PlannedRun) -> int:
        index = bisect_right(self.runs, run.start, key=_START) - 1
        while self.runs[index].job.id != run.job.id:
            index -= 1
        return index

    def copy(self) -> MachineSchedule:
        """Return an independent copy."""
        copied = MachineSchedule(self.cpus)
        copied.running, copied.runs = self.running, self.runs.copy()
        copied.windows = self.windows
        copied.profile = self.profile.copy()
        copied.end, copied.late_count = self.end, self.late_count
        copied._gaps, copied._truncated = self._gaps, self._truncated
        copied._latest_deadlines, copied._late = self._latest_deadlines, self._late
        return copied


class SavedMachine(NamedTuple):
    """The schedule of a machine before a trial; `ClusterPlan.restore` returns to it."""

    machine: int
    schedule: MachineSchedule
    resources: dict[str, AvailabilityProfile]


class ClusterPlan:
    """The schedules of all machines of a cluster.

    Placing and removing a run are O(v) in the v steps of its machine; so is a search for a gap.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.machines: list[MachineSchedule] = []
        self.runs: dict[int, PlannedRun] = {}  # of queued jobs, by id
        self.shared = True
        self._resources: dict[str, AvailabilityProfile] = {}
        self._running_ends: dict[int, float] = {}  # of all running jobs, by id
        self._total_cpus = 0
        self._windows: tuple[ReservedWindow, ...] = ()  # that are not over
        self._queue: dict[int, WaitingJob] = {}  # of the last pass, without started jobs

    # Events since the last pass.

    def observe(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[WaitingJob]:
        """Bring the plan up to date: place jobs again where it was not kept.

        Returns the jobs of the queue that are not planned, in its order.
        """
        self.now = now
        free_cpus = [free.cpus] if free.machines is None else free.machines
        self.shared = free.shared or free.machines is None
        total = sum(free_cpus) + sum([r.cpus for r in running])
        ends = {r.id: expected_end(r, now) for r in running}
        jobs, planned = list(queue), list(self._queue.values())
        appended = jobs[: len(planned)] == planned
        changed = set() if appended else self._remove_withdrawn(jobs)
        all_planned = appended and len(self.runs) == len(planned)
        windows = tuple([window for window in free.windows if window.end > now])
        windows_kept = windows == tuple([w for w in self._windows if w.end > now])
        self._windows = windows
        if (
            not changed
            and windows_kept
            and total == self._total_cpus
            and ends == {job: end for job, end in self._running_ends.items() if end > now}
            and not any(s.runs and s.runs[0].start < now for s in self.machines)
            and free.resources.keys() == self._resources.keys()
        ):
            for schedule in self.machines:
                schedule.profile.advance(now)
            for profile in self._resources.values():
                profile.advance(now)
        else:
            self._observe_changes(running, free_cpus, free.resources, changed)
            all_planned = False
        self._running_ends, self._total_cpus = ends, total
        if appended:
            arrived = jobs[len(planned) :]
            self._queue.update([(job.id, job) for job in arrived])
            if all_planned:
                return arrived
        else:
            self._queue = {job.id: job for job in jobs}
        return [job for job in jobs if job.id not in self.runs]

    def _observe_changes(
        self,
        running: Collection[RunningJob],
        free_cpus: Sequence[int],
        resources: Mapping[str, int],
        changed: set[int],
    ) -> None:
        """Place the jobs of changed machines again; of all, if they share other resources."""
        now = self.now
        running_by_machine: list[dict[int, tuple[float, int]]] = [{} for _ in free_cpus]
        for r in running:
            running_by_machine[r.machine][r.id] = expected_end(r, now), r.cpus
        if len(free_cpus) != len(self.machines):
            self.machines, self.runs = [MachineSchedule(0) for _ in free_cpus], {}
        for machine, schedule in enumerate(self.machines):
            jobs = running_by_machine[machine]
            size = free_cpus[machine] + sum([held for _, held in jobs.values()])
            expected = {job: end for job, (end, _) in schedule.running.items() if end > now}
            overdue = bool(schedule.runs) and schedule.runs[0].start < now
            windows = tuple([w for w in self._windows if w.machine == machine])
            windows_kept = windows == tuple([w for w in schedule.windows if w.end > now])
            schedule.windows = windows
            if (
                resources
                or overdue
                or not windows_kept
                or schedule.cpus != size
                or expected != {job: end for job, (end, _) in jobs.items()}
            ):
                schedule.cpus = size
                changed.add(machine)
            else:
                schedule.profile.advance(now)
        self._resources = {
            name: AvailabilityProfile(
                now, amount, [(expected_end(r, now), r.resources.get(name, 0)) for r in running]
            )
            for name, amount in resources.items()
        }
        runs = [run for machine in changed for run in self.machines[machine].runs]
        for machine in changed:
            self.machines[machine].restart(now, running_by_machine[machine])
        self.place_again(sorted(runs, key=_START))

    def _remove_withdrawn(self, queue: Iterable[WaitingJob]) -> set[int]:
        """Remove the runs of jobs that have left the queue or have changed; return machines."""
        queued = {job.id: job for job in queue}
        gone = [
            run
            for job_id, run in self.runs.items()
            if (job := queued.get(job_id)) is not run.job and job != run.job
        ]
        for run in gone:
            self.remove(run)
        return {run.machine for run in gone}

    # Runs.

    def cpus_on(self, job: WaitingJob, machine: int) -> int:
        """Return the processors that the job holds on the machine."""
        return job.cpus if self.shared else self.machines[machine].cpus

    def earliest_start(self, job: WaitingJob, machine: int, latest: float = NEVER) -> float:
        """Return the first start up to `latest` that moves no planned job; NEVER if none."""
        schedule = self.machines[machine]
        if job.cpus > schedule.cpus:
            return NEVER
        seconds, cpus = run_time(job, machine), self.cpus_on(job, machine)
        if latest < NEVER and not schedule.may_start(cpus, seconds, latest):
            return NEVER
        if not (job.resources and self._resources):
            return schedule.profile.earliest_start(cpus, seconds, self.now, latest)
        needs = [(schedule.profile, cpus)]
        needs += [
            (self._resources[name], amount)
            for name, amount in job.resources.items()
            if name in self._resources
        ]
        start, agreeing = self.now, 0
        while agreeing < len(needs) and start < NEVER:
            for profile, amount in needs:
                fit_time = profile.earliest_start(amount, seconds, start, latest)
                agreeing = agreeing + 1 if fit_time == start else 1
                start = fit_time
        return start

    def place(self, job: WaitingJob, machine: int, start: float) -> PlannedRun:
        """Plan the job; there must be room."""
        end = start + run_time(job, machine)
        run = PlannedRun(job, machine, start, end, self.cpus_on(job, machine))
        self.machines[machine].add(run)
        self.runs[job.id] = run
        self._hold_resources(run, 1)
        return run

    def remove(self, run: PlannedRun) -> None:
        self.machines[run.machine].remove(run)
        del self.runs[run.job.id]
        self._hold_resources(run, -1)

    def remove_from(self, machine: int, position: int) -> list[PlannedRun]:
        """Remove and return the runs of a machine from a position on."""
        removed = self.machines[machine].remove_from(position)
        for run in removed:
            del self.runs[run.job.id]
            self._hold_resources(run, -1)
        return removed

    def place_again(self, runs: Iterable[PlannedRun]) -> None:
        """Place runs that were removed, each on its machine, as early as possible, in order."""
        for run in runs:
            start = self.earliest_start(run.job, run.machine)
            if start < NEVER:
                self.place(run.job, run.machine, start)
            else:
                self.runs.pop(run.job.id, None)

    def compress(self, machine: int, freed_from: float) -> None:
        """Move runs of the machine to earlier starts, after its processors became free.

        Runs that end by `freed_from` cannot gain.
        """
        for run in [run for run in self.machines[machine].runs if run.end > freed_from]:
            self.remove(run)
            start = self.earliest_start(run.job, machine, run.start)
            self.place(run.job, machine, min(start, run.start))

    def take_due(self) -> list[PlannedRun]:
        """Turn the runs whose starts have come into running jobs; return them."""
        due = [
            run
            for schedule in self.machines
            for run in schedule.runs[: bisect_right(schedule.runs, self.now, key=_START)]
        ]
        for run in due:
            del self.runs[run.job.id], self._queue[run.job.id]
            self.machines[run.machine].begin(run)
            self._running_ends[run.job.id] = run.end
        return due

    def _hold_resources(self, run: PlannedRun, direction: int) -> None:
        for name, amount in run.job.resources.items():
            if name in self._resources:
                self._resources[name].hold(run.start, run.end, direction * amount)

    # Trials.

    def save(self, machine: int) -> SavedMachine:
        """Return the schedule of a machine for `restore`, after a trial with its jobs."""
        resources = {name: profile.copy() for name, profile in self._resources.items()}
        return SavedMachine(machine, self.machines[machine].copy(), resources)

    def restore(self, saved: SavedMachine) -> None:
        """Undo all changes of a machine since `save`; no other machine may have changed."""
        for run in self.machines[saved.machine].runs:
            self.runs.pop(run.job.id, None)
        self.machines[saved.machine], self._resources = saved.schedule, saved.resources
        self.runs.update([(run.job.id, run) for run in saved.schedule.runs])

    # Figures.

    def quality(self) -> PlanQuality:
        late = sum([schedule.late_count for schedule in self.machines])
        makespan = max([schedule.end for schedule in self.machines], default=self.now) - self.now
        return PlanQuality(max(makespan, 0.0), len(self.runs) - late, late)

    def ends_of_others(self) -> list[float]:
        """Return for each machine the end of the last job on any other; `now` if there is none."""
        ends = [schedule.end for schedule in self.machines]
        *_, second, last = [self.now, self.now, *sorted(ends)]
        return [second if end == last else last for end in ends]

    def left_over(self) -> LeftOver:
        """Return the processors that the plan leaves to a job that is submitted now."""
        free = [max(min(schedule.profile.free), 0) for schedule in self.machines]
        resources = {name: min(profile.free) for name, profile in self._resources.items()}
        starts = [run.start for run in self.runs.values()]
        first_start = min([*starts, *[w.start for w in self._windows]], default=NEVER)
        return LeftOver(first_start, FreeResources(sum(free), resources, free))


def run_time(job: WaitingJob, machine: int) -> float:
    """Return the estimated run time of the job on a machine that can run it, in seconds."""
    return job.machines[machine] if job.machines else job.estimated


def suitable_machines(job: WaitingJob) -> Iterable[int]:
    """Return the machines that can run the job, the most powerful first."""
    return job.machines or (COUNTED,)
