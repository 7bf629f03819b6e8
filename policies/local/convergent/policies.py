"""The policies of Convergent Scheduling, with preemption and without. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from metasched.policies.local.capacity import (
    OVERRUN_SECONDS,
    Capacity,
    FreeOnMachines,
    make_capacity,
)
from metasched.policies.local.convergent.heuristics import (
    MatrixHeuristic,
    check_numbers,
    collect_contributions,
    default_heuristics,
)
from metasched.policies.local.convergent.knapsack import (
    KNAPSACKS,
    Knapsack,
    choose_jobs,
    fit,
    total_amounts,
)
from metasched.policies.local.convergent.matching import (
    Matcher,
    match_greedy,
    match_incremental,
    match_optimal,
)
from metasched.policies.local.convergent.preferences import (
    MatrixPreferences,
    Preferences,
    SummedPreferences,
    mean_of_possible,
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
        self._solve = solve or KNAPSACKS[self.weights.knapsack, self.weights.discarded]
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
        rows, machines = np.arange(len(queue)), np.arange(self._table.machine_count)
        return self._preferences(self._view(now, free.resources, rows, machines)).take(rows)

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
        requests = table.amounts_of(list(self.licences))
        totals = np.array([max(copies, 1) for copies in self.licences.values()], dtype=float)
        held = np.array([n - free.get(name, 0) for name, n in self.licences.items()], dtype=float)
        return JobMachineView(
            now=now,
            rows=rows,
            machines=machines,
            longest=table.longest[rows],
            shortest=table.shortest[rows],
            submitted=table.submitted[rows],
            deadlines=table.deadlines[rows],
            current=np.full(len(rows), NONE, dtype=np.intp),
            rho=(total_amounts(requests) + held) / totals,
            left=np.ones(len(rows)),
            queue_run_times=table.run_times,
            queue_nearness=table.nearness,
            queue_requests=requests,
            longest_of_queue=float(table.longest.max(initial=0.0)),
        )

    def _preferences(self, view: JobMachineView) -> Preferences:
        """Return the preferences; what lasts is computed for new and for running jobs alone."""
        table = self._table
        started = np.flatnonzero(view.left != 1)
        of_started = self._sum_lasting(view, started)
        changing = collect_contributions(self._changing, view)
        every_machine = len(view.machines) == table.machine_count
        if not every_machine or changing.others or not (changing.per_job < math.inf).all():
            matrix = self._workspace.array("matrix", view.shape)
            matrix[:] = take_pairs(table.sums, view.rows, view.machines)
            matrix[started] = of_started
            check_numbers(changing.add_to(matrix), self._changing, view)
            return MatrixPreferences(matrix)
        result = SummedPreferences(table.sums, table.means, view.rows, changing.per_job)
        changed = np.zeros(len(view.rows), dtype=bool)
        changed[started] = True
        for contribution in changing.of_rows:
            changed[contribution.rows] = True
        positions = np.flatnonzero(changed)
        row_of = np.cumsum(changed) - 1
        values = self._workspace.array("changed", (len(positions), table.machine_count))
        np.take(table.sums, view.rows[positions], axis=0, out=values, mode="clip")
        values[row_of[started]] = of_started
        for contribution in changing.of_rows:
            values[row_of[contribution.rows]] += contribution.values
        values += changing.per_job[positions]
        check_numbers(values, self._changing, view)
        result.replace(positions, values)
        return result

    def _sum_lasting(self, view: JobMachineView, started: IndexArray) -> FloatArray:
        """Sum what lasts for the jobs of the table that have no sums; return that of `started`."""
        table, longest = self._table, view.longest_of_queue
        if longest != self._longest:
            self._longest, table.summed = longest, 0
        new = np.arange(table.summed, len(table.jobs))
        rows = np.concatenate([new, view.rows[started]])
        left = np.concatenate([np.ones(len(new)), view.left[started]])
        sums = self._lasting_sums(
            replace(
                view,
                rows=rows,
                machines=np.arange(table.machine_count),
                longest=table.longest[rows] * left,
                shortest=table.shortest[rows] * left,
                submitted=table.submitted[rows],
                deadlines=table.deadlines[rows],
                current=np.full(len(rows), NONE, dtype=np.intp),
                left=left,
            )
        )
        if len(new):
            table.sums[new] = sums[: len(new)]
            table.means[new] = mean_of_possible(sums[: len(new)])
            table.summed = len(table.jobs)
        return take_pairs(sums[len(new) :], np.arange(len(started)), view.machines)

    def _lasting_sums(self, view: JobMachineView) -> FloatArray:
        """Return the sum of the lasting contributions, N x C."""
        sums = np.zeros(view.shape)
        for heuristic in self._lasting:  # one at a time: their arrays are large
            collect_contributions([heuristic], view).add_to(sums)
        check_numbers(sums, self._lasting, view)
        return sums

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
        amounts = table.amounts_of(names)
        machines = np.flatnonzero(free_cpus > 0)
        if not len(machines):
            return {}
        # few jobs fit at most events: the others need no preferences
        rows = np.flatnonzero(fit(amounts, free_amounts) & (table.cpus <= free_cpus.max()))
        if not len(rows):
            return {}
        amounts, cpus = amounts.take(rows, axis=0), table.cpus[rows]
        view = self._view(now, resources, rows, machines)
        preferences = self._preferences(view)
        if shared:  # else a machine that is free is free as a whole
            every_row = np.arange(len(rows))
            preferences = _forbid_small(preferences.take(every_row), cpus, free_cpus[machines])
        placed = view.current
        result: dict[int, int] = {}
        while len(rows):
            started, columns, discarded = self._match(
                preferences, len(machines), amounts, free_amounts, placed
            )
            if not len(started):
                break
            taken = machines[columns]
            result.update(zip(rows[started].tolist(), taken.tolist(), strict=True))
            free_cpus[taken] -= cpus[started] if shared else free_cpus[taken]
            free_amounts = free_amounts - amounts[started].sum(axis=0)
            is_free = free_cpus[machines] > 0
            if not is_free.any():
                break
            fits = fit(amounts, free_amounts) & (cpus <= free_cpus.max())
            fits[started] = False
            if self.weights.discarded == "wait":
                fits[discarded] = False
            matrix = preferences.take(np.flatnonzero(fits))[:, is_free]
            rows, amounts, cpus, machines = rows[fits], amounts[fits], cpus[fits], machines[is_free]
            preferences = _forbid_small(matrix, cpus, free_cpus[machines])
            placed = np.full(len(rows), NONE)
        return result

    def _match(
        self,
        preferences: Preferences,
        machine_count: int,
        amounts: FloatArray,
        free_amounts: FloatArray,
        placed: IndexArray,
    ) -> tuple[IndexArray, IndexArray, IndexArray]:
        """Return rows and machines of pairs that fit together, and the rows that are discarded.

        A possible pair fits alone. `placed`: the machine of each row that is in force, or NONE.
        """
        rows = np.flatnonzero(preferences.means > -math.inf)
        if not len(rows):
            return rows, rows, rows
        values, requests = preferences.means[rows], amounts.take(rows, axis=0)
        is_chosen = choose_jobs(values, requests, free_amounts, self._solve)
        rows, discarded = rows[is_chosen], rows[~is_chosen]
        machine_of = placed[rows]
        kept = np.flatnonzero(machine_of != NONE)
        previous = dict(zip(kept.tolist(), machine_of[kept].tolist(), strict=True))
        matrix = self._workspace.array("rows", (len(rows), machine_count))
        pairs = type(self).matcher(preferences.take(rows, matrix), previous)
        matched = np.fromiter(pairs, np.intp, len(pairs))
        return rows[matched], np.fromiter(pairs.values(), np.intp, len(pairs)), discarded


def _forbid_small(matrix: FloatArray, cpus: FloatArray, free_cpus: FloatArray) -> Preferences:
    """Return the preferences without machines that have too few free processors for the job."""
    matrix[cpus[:, np.newaxis] > free_cpus] = -math.inf
    return MatrixPreferences(matrix)


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
        jobs, row_of = self._table.jobs, self._table.row_of
        rows = [row_of[p.job.id] for p in running]
        self._running_rows = np.array(rows, dtype=np.intp)
        self._running_machines = np.array([p.running.machine for p in running], dtype=np.intp)
        self._left = np.ones(len(jobs))
        # `PreemptibleJob.left`; the table has the run times of counted processors, too
        seconds = self._table.run_times[self._running_rows, self._running_machines]
        ends = np.array([p.running.end for p in running], dtype=float)
        self._left[self._running_rows] = np.maximum(ends - now, OVERRUN_SECONDS) / seconds
        capacity = make_capacity(now, (), free)
        free_cpus, resources = _free_cpus(capacity), capacity.resources
        np.add.at(free_cpus, self._running_machines, [p.running.cpus for p in running])
        held = total_amounts(self._table.amounts[self._running_rows])
        for name, column in self._table.resource_columns.items():
            if name in resources:
                resources[name] += int(held[column])
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
