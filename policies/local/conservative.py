"""Conservative backfilling: every queued job has a reservation in a plan. Pure.

Mu'alem and Feitelson 2001, §2.2: a job gets the earliest start that delays no job planned before
it. When a job ends early, each queued job, in queue order, gives up its reservation and takes the
earliest start then available, until no job gains; so no planned start ever becomes later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar, NamedTuple

from metasched.policies.local.availability import AvailabilityProfile
from metasched.policies.local.capacity import (
    Capacity,
    CapacityBesideWindows,
    FreeOnMachines,
    expected_end,
    make_capacity,
)
from metasched.policies.local.queueing import (
    NEVER,
    NO_MACHINE,
    FreeResources,
    JobStart,
    LeftOver,
    ReservedWindow,
    RunningJob,
    WaitingJob,
)


class _PlannedRun(NamedTuple):
    start: float
    end: float
    machine: int


class _Plan:
    """Profiles of the processors (per machine, if there are any) and of counted resources."""

    def __init__(self, capacity: Capacity) -> None:
        now, running = capacity.now, list(capacity.all_running())
        self.now = now
        self.whole_machines: dict[int, int] = {}  # processors of each machine that is not shared
        self.machines: dict[int, AvailabilityProfile] = {}
        free_cpus = capacity.machines if isinstance(capacity, FreeOnMachines) else [capacity.cpus]
        for machine, cpus in enumerate(free_cpus):
            releases = [(expected_end(r, now), r.cpus) for r in running if r.machine == machine]
            self.machines[machine] = AvailabilityProfile(now, cpus, releases)
            if isinstance(capacity, FreeOnMachines) and not capacity.shared:
                self.whole_machines[machine] = cpus + sum(amount for _, amount in releases)
        if isinstance(capacity, CapacityBesideWindows):
            self.machines = {0: capacity.profile.copy()}
        self.resources = {
            name: AvailabilityProfile(
                now, amount, [(expected_end(r, now), r.resources.get(name, 0)) for r in running]
            )
            for name, amount in capacity.resources.items()
        }

    def least_free(self) -> FreeResources:
        """Return the resources that are free from now on."""
        machines = [min(profile.free) for profile in self.machines.values()]
        resources = {name: min(profile.free) for name, profile in self.resources.items()}
        return FreeResources(sum(machines), resources, machines)

    def hold(self, job: WaitingJob, planned: _PlannedRun) -> None:
        self._change(job, planned, 1)

    def release(self, job: WaitingJob, planned: _PlannedRun) -> None:
        self._change(job, planned, -1)

    def _change(self, job: WaitingJob, planned: _PlannedRun, direction: int) -> None:
        start, end, machine = planned
        self.machines[machine].hold(start, end, direction * self._cpus_on(job, machine))
        for name, amount in job.resources.items():
            if name in self.resources:
                self.resources[name].hold(start, end, direction * amount)

    def earliest_run(self, job: WaitingJob) -> _PlannedRun:
        """Return the earliest run of the job, on the most powerful machine among equal starts."""
        best = _PlannedRun(NEVER, NEVER, NO_MACHINE)
        for machine, seconds in (job.machines or {0: job.estimated}).items():
            start = self._earliest_start(job, machine, seconds, best.start)
            if (start, machine) < (best.start, best.machine):
                best = _PlannedRun(start, start + seconds, machine)
        return best

    def _earliest_start(
        self, job: WaitingJob, machine: int, run_time: float, latest: float
    ) -> float:
        """Return the earliest start on the machine at which all needed resources are free."""
        profiles = [(self.machines[machine], self._cpus_on(job, machine))]
        if profiles[0][1] < job.cpus:
            return NEVER
        profiles += [
            (self.resources[name], amount)
            for name, amount in job.resources.items()
            if name in self.resources
        ]
        start, agreeing = self.now, 0
        while agreeing < len(profiles) and start < NEVER and start <= latest:
            for profile, amount in profiles:
                fit_time = profile.earliest_start(amount, run_time, start)
                agreeing = agreeing + 1 if fit_time == start else 1
                start = fit_time
        return start

    def _cpus_on(self, job: WaitingJob, machine: int) -> int:
        return self.whole_machines.get(machine, job.cpus)


def planned_start(
    now: float,
    queue: Iterable[WaitingJob],
    running: Collection[RunningJob],
    free: FreeResources,
    job: WaitingJob,
) -> float:
    """Return when `job` would start behind `queue`, each job planned as early as possible.

    `NEVER` if it does not fit at all. O(q v) for q jobs and v steps of the plan.
    """
    plan = _Plan(make_capacity(now, running, free))
    for waiting in queue:
        planned = plan.earliest_run(waiting)
        if planned.start < NEVER:
            plan.hold(waiting, planned)
    return plan.earliest_run(job).start


class Conservative:
    """Every job keeps its planned start, or gets an earlier start. O(q v)."""

    name: ClassVar[str] = "conservative"
    period: float = 0.0
    incremental: ClassVar[bool] = False
    keeps_windows: ClassVar[bool] = True

    def __init__(self) -> None:
        self._planned: dict[int, _PlannedRun] = {}
        self._plan: _Plan | None = None  # of the last pass
        self._expected_ends: dict[int, float] = {}  # end of each job that ran after the last pass
        self._windows: Sequence[ReservedWindow] = ()  # of the last pass

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        capacity = make_capacity(now, running, free)
        plan = self._plan = _Plan(capacity)
        windows = [window for window in free.windows if window.end > now]
        windows_kept = windows == [window for window in self._windows if window.end > now]
        self._windows = windows
        planned = self._valid_runs(now, queue, running) if windows_kept else {}
        for job in queue:
            if job.id in planned:
                plan.hold(job, planned[job.id])
        # while all jobs run as planned, only new jobs need a reservation
        unchanged = planned.keys() == self._planned.keys() and self._ran_as_planned(now, running)
        improved = True
        while improved:  # a freed reservation may suit an earlier job of the queue
            improved = False
            for job in queue:
                previous = planned.get(job.id)
                if previous is not None and (unchanged or previous.start <= now):
                    continue
                if previous is not None:
                    plan.release(job, previous)
                earliest = plan.earliest_run(job)
                if earliest.start < NEVER:
                    plan.hold(job, earliest)
                    planned[job.id] = earliest
                    improved = improved or (
                        previous is not None and earliest.start < previous.start
                    )
        for job in queue:
            if job.id in planned and planned[job.id].start <= now:
                capacity.start(job, planned.pop(job.id).machine)
        self._planned = planned
        self._expected_ends = {r.id: r.end for r in capacity.all_running()}
        return capacity.starts

    def planned_starts(self) -> dict[int, float]:
        return {job_id: run.start for job_id, run in self._planned.items()}

    def left_over(self) -> LeftOver:
        if self._plan is None:
            return LeftOver(NEVER, FreeResources(0))
        first_start = min((run.start for run in self._planned.values()), default=NEVER)
        return LeftOver(first_start, self._plan.least_free())

    def _valid_runs(
        self, now: float, queue: Collection[WaitingJob], running: Collection[RunningJob]
    ) -> dict[int, _PlannedRun]:
        """Return the planned runs that are still valid: none while a job exceeds its estimate."""
        planned = {job.id: self._planned[job.id] for job in queue if job.id in self._planned}
        overdue = any(run.start < now for run in planned.values())
        return {} if overdue or any(r.end <= now for r in running) else planned

    def _ran_as_planned(self, now: float, running: Collection[RunningJob]) -> bool:
        """Return whether each job of the last pass still runs, or ends now as expected."""
        ended = {job_id: end for job_id, end in self._expected_ends.items() if end == now}
        return self._expected_ends == ended | {r.id: r.end for r in running}
