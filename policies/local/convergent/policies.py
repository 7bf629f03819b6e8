"""The policies of Convergent Scheduling, with preemption and without. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from metasched.policies.local.capacity import Capacity, FreeOnMachines, make_capacity
from metasched.policies.local.convergent.heuristics import (
    MatrixHeuristic,
    default_heuristics,
    sum_contributions,
)
from metasched.policies.local.convergent.knapsack import KNAPSACKS, Knapsack, choose_jobs
from metasched.policies.local.convergent.matching import (
    Matcher,
    match_greedy,
    match_incremental,
    match_optimal,
)
from metasched.policies.local.convergent.table import (
    NONE,
    FloatArray,
    IndexArray,
    JobMachineTable,
    JobMachineView,
)
from metasched.policies.local.convergent.weights import (
    GREEDY,
    INCREMENTAL,
    OPTIMAL,
    PREEMPTIVE_INCREMENTAL,
    PREEMPTIVE_OPTIMAL,
    ConvergentWeights,
)
from metasched.policies.local.preemption import (
    Changes,
    PreemptibleJob,
    PreemptivePolicy,
    without_restarts,
)
from metasched.policies.local.queueing import FreeResources, JobStart, RunningJob, WaitingJob


class ConvergentMatching:
    """Match jobs to machines by the sum of the heuristics.

    A pass computes the matrix, drops jobs that cannot hold scarce licences together, and matches.
    Ours: matching is repeated with what is left until no job fits, which also lets shared machines
    take several jobs. A cluster of counted processors is one shared machine. No job has a
    reservation: anti-aging alone keeps a large job from waiting forever.

    `licences` maps licence names to the copies of the cluster; other counted resources restrict
    starts and have no preference. `solve` replaces the knapsack of the weights.
    """

    matcher: ClassVar[Matcher]

    def __init__(
        self,
        weights: ConvergentWeights | None = None,
        licences: Mapping[str, int] | None = None,
        heuristics: Sequence[MatrixHeuristic] | None = None,
        solve: Knapsack | None = None,
    ) -> None:
        self.weights = weights or ConvergentWeights()
        self.licences = dict(licences or {})
        self.heuristics = tuple(
            default_heuristics(self.weights) if heuristics is None else heuristics
        )
        self._solve = solve or KNAPSACKS[self.weights.knapsack]
        self._table = JobMachineTable(1)

    def preferences(
        self, now: float, queue: Collection[WaitingJob], free: FreeResources
    ) -> FloatArray:
        """Return the job x machine matrix of a queue, in its order."""
        self._update_table(queue, free)
        machines = np.arange(self._table.machine_count)
        view = self._view(now, free.resources, np.arange(len(queue)), machines)
        return sum_contributions(self.heuristics, view)

    def _update_table(self, jobs: Collection[WaitingJob], free: FreeResources) -> None:
        machine_count = 1 if free.machines is None else len(free.machines)
        if self._table.machine_count != machine_count:
            self._table = JobMachineTable(machine_count)
        self._table.update(jobs)

    def _view(
        self, now: float, free: Mapping[str, int], rows: IndexArray, machines: IndexArray
    ) -> JobMachineView:
        """Return what the heuristics see of these rows and columns, and of the whole queue."""
        table = self._table
        names = [name for name in table.resource_columns if name in self.licences]
        requests = table.amounts[:, [table.resource_columns[name] for name in names]]
        totals = np.array([max(self.licences[name], 1) for name in names], dtype=float)
        held = np.array([self.licences[name] - free.get(name, 0) for name in names], dtype=float)
        return JobMachineView(
            now=now,
            rows=rows,
            machines=machines,
            run_times=table.run_times.take(rows, axis=0).take(machines, axis=1),
            longest=table.longest[rows],
            shortest=table.shortest[rows],
            submitted=table.submitted[rows],
            deadlines=table.deadlines[rows],
            current=np.full(len(rows), NONE, dtype=np.intp),
            rho=(requests.sum(axis=0) + held) / totals,
            queue_inverse=table.inverse,
            queue_nearness=table.nearness,
            queue_requests=requests,
            longest_of_queue=float(table.longest.max(initial=0.0)),
        )

    def _start_matched(self, capacity: Capacity) -> None:
        """Start matched jobs until no other fits."""
        table, free_cpus = self._table, _free_cpus(capacity)
        names = [name for name in table.resource_columns if name in capacity.resources]
        free_amounts = np.array([capacity.resources[name] for name in names], dtype=float)
        amounts = table.amounts[:, [table.resource_columns[name] for name in names]]
        machines = np.flatnonzero(free_cpus > 0)
        # few jobs fit at most events: the others need no preferences
        fits = (amounts <= free_amounts).all(axis=1) & (table.cpus <= free_cpus.max())
        rows = np.flatnonzero(fits)
        if not len(rows):
            return
        amounts, cpus = amounts[rows], table.cpus[rows]
        view = self._view(capacity.now, capacity.resources, rows, machines)
        matrix = sum_contributions(self.heuristics, view)
        placed = {
            row: int(view.current[row]) for row in np.flatnonzero(view.current != NONE).tolist()
        }
        while len(rows) and not capacity.full:
            free_amounts = np.array([capacity.resources[name] for name in names], dtype=float)
            fits = cpus[:, np.newaxis] <= _free_cpus(capacity)[machines]
            fits &= (amounts <= free_amounts).all(axis=1, keepdims=True)
            pairs = self._match(np.where(fits, matrix, -math.inf), amounts, free_amounts, placed)
            if not pairs:
                return
            for row, machine in pairs.items():
                capacity.start(table.jobs[rows[row]], int(machines[machine]))
            left = np.ones(len(rows), dtype=bool)
            left[list(pairs)] = False
            rows, matrix, amounts, cpus = rows[left], matrix[left], amounts[left], cpus[left]
            placed = {}

    def _match(
        self,
        preferences: FloatArray,
        amounts: FloatArray,
        free_amounts: FloatArray,
        placed: Mapping[int, int],
    ) -> dict[int, int]:
        """Return pairs that fit together; a possible pair fits alone. `placed`: those in force."""
        possible = preferences > -math.inf
        counts = possible.sum(axis=1)
        rows = np.flatnonzero(counts)
        if not len(rows):
            return {}
        values = preferences[rows].sum(axis=1, where=possible[rows]) / counts[rows]
        rows = rows[choose_jobs(values, amounts[rows], free_amounts, self._solve)]
        previous = {
            position: placed[row] for position, row in enumerate(rows.tolist()) if row in placed
        }
        pairs = type(self).matcher(preferences[rows], previous)
        return {int(rows[row]): machine for row, machine in pairs.items()}


def _free_cpus(capacity: Capacity) -> FloatArray:
    machines = capacity.machines if isinstance(capacity, FreeOnMachines) else [capacity.cpus]
    return np.array(machines, dtype=float)


class Convergent(ConvergentMatching):
    """Match queued jobs to free machines; running jobs stay."""

    name: ClassVar[str]
    period: float = 0.0
    incremental: ClassVar[bool] = False

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        capacity = make_capacity(now, running, free)
        self._update_table(queue, free)
        if self._table.jobs and not capacity.full:
            self._start_matched(capacity)
        return capacity.starts


class PreemptiveConvergent(ConvergentMatching, PreemptivePolicy):
    """Match queued and running jobs to all machines; unmatched running jobs are suspended.

    Overhead minimisation alone keeps a running job in place. Rho counts the requests of running
    jobs, as the thesis does.
    """

    _running_rows: IndexArray  # of the table
    _running_machines: IndexArray
    _left: FloatArray  # share of the run time of each job of the table that is left

    def choose_changes(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[PreemptibleJob],
        free: FreeResources,
    ) -> Changes:
        jobs = {job.id: job for job in (*[p.job for p in running], *queue)}
        kept = [job for job in self._table.jobs if jobs.get(job.id) == job]
        for job in kept:
            del jobs[job.id]
        self._update_table([*kept, *jobs.values()], free)  # in its own order: it stays as it is
        rows = {job.id: row for row, job in enumerate(self._table.jobs)}
        self._running_rows = np.array([rows[p.job.id] for p in running], dtype=np.intp)
        self._running_machines = np.array([p.running.machine for p in running], dtype=np.intp)
        self._left = np.ones(len(rows))
        self._left[self._running_rows] = [p.left(now) for p in running]
        capacity = make_capacity(now, (), free)
        for p in running:
            capacity.release(p.running)
        if self._table.jobs and not capacity.full:
            self._start_matched(capacity)
        suspended = [p.job.id for p in running]
        return without_restarts(running, Changes(suspended, capacity.starts))

    def _view(
        self, now: float, free: Mapping[str, int], rows: IndexArray, machines: IndexArray
    ) -> JobMachineView:
        """Return the view with the progress and the machines of running jobs."""
        view, left = super()._view(now, free, rows, machines), self._left
        if not len(self._running_rows):
            return view
        machine_of_row = np.full(len(left), NONE, dtype=np.intp)
        machine_of_row[self._running_rows] = self._running_machines
        position_of_machine = np.full(self._table.machine_count + 1, NONE, dtype=np.intp)
        position_of_machine[machines] = np.arange(len(machines))  # the last stays NONE
        return replace(
            view,
            run_times=view.run_times * left[rows, np.newaxis],
            longest=view.longest * left[rows],
            shortest=view.shortest * left[rows],
            current=position_of_machine[machine_of_row[rows]],
            queue_inverse=view.queue_inverse / left[:, np.newaxis],
            longest_of_queue=float((self._table.longest * left).max(initial=0.0)),
        )


class IncrementalConvergent(Convergent):
    """CS_i_np of the thesis."""

    name: ClassVar[str] = INCREMENTAL
    matcher: ClassVar[Matcher] = match_incremental


class OptimalConvergent(Convergent):
    """CS_ni_np of the thesis."""

    name: ClassVar[str] = OPTIMAL
    matcher: ClassVar[Matcher] = match_optimal


class GreedyConvergent(Convergent):
    """Convergent Scheduling with the greedy matching of the thesis, MIS."""

    name: ClassVar[str] = GREEDY
    matcher: ClassVar[Matcher] = match_greedy


class PreemptiveIncrementalConvergent(PreemptiveConvergent):
    """CS_i_p of the thesis."""

    name: ClassVar[str] = PREEMPTIVE_INCREMENTAL
    matcher: ClassVar[Matcher] = match_incremental


class PreemptiveOptimalConvergent(PreemptiveConvergent):
    """CS_ni_p of the thesis."""

    name: ClassVar[str] = PREEMPTIVE_OPTIMAL
    matcher: ClassVar[Matcher] = match_optimal


VARIANTS: dict[str, type[Convergent | PreemptiveConvergent]] = {
    variant.name: variant
    for variant in (
        IncrementalConvergent,
        OptimalConvergent,
        GreedyConvergent,
        PreemptiveIncrementalConvergent,
        PreemptiveOptimalConvergent,
    )
}
