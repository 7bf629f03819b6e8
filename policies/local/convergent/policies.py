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
    lower_bound,
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
    Workspace,
    take_pairs,
)
from metasched.policies.local.convergent.weights import (
    GREEDY,
    INCREMENTAL,
    OPTIMAL,
    PREEMPTIVE_INCREMENTAL,
    PREEMPTIVE_OPTIMAL,
    ConvergentWeights,
)
from metasched.policies.local.preemption import Changes, PreemptibleJob, PreemptivePolicy
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
        self._lasting = tuple(each for each in self.heuristics if each.lasting)
        self._changing = tuple(each for each in self.heuristics if not each.lasting)
        self._table = self._new_table(1)
        self._workspace = Workspace()
        self._longest = 0.0  # `longest_of_queue` of the sums of the table

    def preferences(
        self, now: float, queue: Collection[WaitingJob], free: FreeResources
    ) -> FloatArray:
        """Return the job x machine matrix of a queue, in its order."""
        self._fit_table(free).update(queue)
        machines = np.arange(self._table.machine_count)
        view = self._view(now, free.resources, np.arange(len(queue)), machines)
        return self._matrix(view).copy()

    def _fit_table(self, free: FreeResources) -> JobMachineTable:
        """Return the table, a new one if there are other machines."""
        machine_count = 1 if free.machines is None else len(free.machines)
        if self._table.machine_count != machine_count:
            self._table = self._new_table(machine_count)
        return self._table

    def _new_table(self, machine_count: int) -> JobMachineTable:
        """Return a table that has all licences: their number must not depend on past queues."""
        return JobMachineTable(machine_count, self.licences)

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
            longest=table.longest[rows],
            shortest=table.shortest[rows],
            submitted=table.submitted[rows],
            deadlines=table.deadlines[rows],
            current=np.full(len(rows), NONE, dtype=np.intp),
            rho=(requests.sum(axis=0) + held) / totals,
            left=np.ones(len(rows)),
            queue_run_times=table.run_times,
            queue_nearness=table.nearness,
            queue_requests=requests,
            longest_of_queue=float(table.longest.max(initial=0.0)),
        )

    def _matrix(self, view: JobMachineView) -> FloatArray:
        """Return the preferences; what lasts is computed for new and for running jobs alone."""
        table, longest = self._table, view.longest_of_queue
        if longest != self._longest:
            self._longest, table.summed = longest, 0
        count, every_machine = len(table.jobs), np.arange(table.machine_count)
        if table.summed < count:
            rows = np.arange(table.summed, count)
            waiting = replace(
                view,
                rows=rows,
                machines=every_machine,
                longest=table.longest[rows],
                shortest=table.shortest[rows],
                submitted=table.submitted[rows],
                deadlines=table.deadlines[rows],
                current=np.full(len(rows), NONE, dtype=np.intp),
                left=np.ones(len(rows)),
            )
            table.sums[rows] = sum_contributions(self._lasting, waiting)
            table.summed = count
        sums = self._workspace.array("matrix", view.shape)
        sums[:] = take_pairs(table.sums, view.rows, view.machines)
        started = np.flatnonzero(view.left != 1)
        if len(started):
            sums[started] = sum_contributions(self._lasting, view.at(started))
        return sum_contributions(self._changing, view, sums)

    def _choose_pairs(
        self, now: float, free_cpus: FloatArray, resources: Mapping[str, int], shared: bool
    ) -> dict[int, int]:
        """Return the machines of the rows to run now; pairs are added until no other job fits.

        `free_cpus` of each machine, and resources; machines run several jobs if `shared`.
        """
        table, free_cpus = self._table, free_cpus.copy()
        names = [name for name in table.resource_columns if name in resources]
        # running jobs may hold more than there is by now; those that ask for none of it may start
        free_amounts = np.array([max(resources[name], 0) for name in names], dtype=float)
        amounts = table.amounts[:, [table.resource_columns[name] for name in names]]
        machines = np.flatnonzero(free_cpus > 0)
        if not len(machines):
            return {}
        # few jobs fit at most events: the others need no preferences
        fits = (amounts <= free_amounts).all(axis=1) & (table.cpus <= free_cpus.max())
        rows = np.flatnonzero(fits)
        if not len(rows):
            return {}
        amounts, cpus = amounts[rows], table.cpus[rows]
        view = self._view(now, resources, rows, machines)
        matrix = self._matrix(view)
        running = np.flatnonzero(view.current != NONE)
        placed = dict(zip(running.tolist(), view.current[running].tolist(), strict=True))
        result: dict[int, int] = {}
        while len(rows):
            too_small = cpus[:, np.newaxis] > free_cpus[machines]
            too_small &= matrix > -math.inf
            if too_small.any():
                matrix[too_small] = -math.inf
            pairs = self._match(matrix, amounts, free_amounts, placed)
            if not pairs:
                break
            started = np.fromiter(pairs, np.intp, len(pairs))
            taken = machines[np.fromiter(pairs.values(), np.intp, len(pairs))]
            result.update(zip(rows[started].tolist(), taken.tolist(), strict=True))
            free_cpus[taken] -= cpus[started] if shared else free_cpus[taken]
            free_amounts = free_amounts - amounts[started].sum(axis=0)
            is_free = free_cpus[machines] > 0
            if not is_free.any():
                break
            fits = (amounts <= free_amounts).all(axis=1) & (cpus <= free_cpus.max())
            fits[started] = False
            matrix = matrix[fits][:, is_free]
            rows, amounts, cpus, machines = rows[fits], amounts[fits], cpus[fits], machines[is_free]
            placed = {}
        return result

    def _match(
        self,
        preferences: FloatArray,
        amounts: FloatArray,
        free_amounts: FloatArray,
        placed: Mapping[int, int],
    ) -> dict[int, int]:
        """Return pairs that fit together; a possible pair fits alone. `placed`: those in force."""
        counts = np.count_nonzero(preferences > -math.inf, axis=1)
        lowest = lower_bound(preferences)
        working = self._workspace.array("rows", preferences.shape)
        sums = np.maximum(preferences, lowest, out=working).sum(axis=1)
        sums -= lowest * (preferences.shape[1] - counts)
        rows = np.flatnonzero(counts)
        if not len(rows):
            return {}
        values = sums[rows] / counts[rows]
        rows = rows[choose_jobs(values, amounts[rows], free_amounts, self._solve)]
        previous = {
            position: placed[row] for position, row in enumerate(rows.tolist()) if row in placed
        }
        working = self._workspace.array("rows", (len(rows), preferences.shape[1]))
        # without the mode it would be filled by way of another array
        np.take(preferences, rows, axis=0, out=working, mode="clip")
        pairs = type(self).matcher(working, previous)
        return {int(rows[row]): machine for row, machine in pairs.items()}


def _free_cpus(capacity: Capacity) -> FloatArray:
    machines = capacity.machines if isinstance(capacity, FreeOnMachines) else [capacity.cpus]
    return np.array(machines, dtype=float)


def _shared(free: FreeResources) -> bool:
    """Whether a machine runs several jobs; counted processors do."""
    return free.machines is None or free.shared


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
        if capacity.full:
            return []
        self._fit_table(free).update(queue)
        pairs = self._choose_pairs(now, _free_cpus(capacity), capacity.resources, _shared(free))
        return [JobStart(self._table.jobs[row].id, machine) for row, machine in pairs.items()]


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
        self._fit_table(free).update_unordered([*[p.job for p in running], *queue])
        jobs = self._table.jobs
        row_of = {job.id: row for row, job in enumerate(jobs)}
        rows = [row_of[p.job.id] for p in running]
        self._running_rows = np.array(rows, dtype=np.intp)
        self._running_machines = np.array([p.running.machine for p in running], dtype=np.intp)
        self._left = np.ones(len(jobs))
        self._left[self._running_rows] = [p.left(now) for p in running]
        capacity = make_capacity(now, (), free)
        free_cpus, resources = _free_cpus(capacity), capacity.resources
        for p in running:
            free_cpus[p.running.machine] += p.running.cpus
            for name, amount in p.running.resources.items():
                if name in resources:
                    resources[name] += amount
        pairs = self._choose_pairs(now, free_cpus, resources, _shared(free))
        suspended = []
        for p, row in zip(running, rows, strict=True):
            if pairs.get(row) == p.running.machine:
                del pairs[row]
            else:
                suspended.append(p.job.id)
        return Changes(suspended, [JobStart(jobs[r].id, machine) for r, machine in pairs.items()])

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
            longest=view.longest * left[rows],
            shortest=view.shortest * left[rows],
            current=position_of_machine[machine_of_row[rows]],
            left=left[rows],
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
