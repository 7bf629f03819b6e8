"""The policies of Convergent Scheduling without preemption. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

import numpy as np

from metasched.policies.local.capacity import Capacity, FreeOnMachines, make_capacity
from metasched.policies.local.convergent.heuristics import (
    MatrixHeuristic,
    default_heuristics,
    sum_contributions,
)
from metasched.policies.local.convergent.knapsack import choose_exact, choose_greedy, choose_jobs
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
    ConvergentWeights,
)
from metasched.policies.local.queueing import FreeResources, JobStart, RunningJob, WaitingJob


class Convergent:
    """Match queued jobs to free machines by the sum of the heuristics; running jobs stay.

    A pass computes the matrix, drops jobs that cannot hold scarce licences together, and matches.
    Ours: matching is repeated with what is left until no job fits, which also lets shared machines
    take several jobs. A cluster of counted processors is one shared machine. No job has a
    reservation: anti-aging alone keeps a large job from waiting forever.

    `licences` maps licence names to the copies of the cluster; other counted resources restrict
    starts and have no preference.
    """

    name: ClassVar[str]
    matcher: ClassVar[Matcher]
    period: float = 0.0
    incremental: ClassVar[bool] = False

    def __init__(
        self,
        weights: ConvergentWeights | None = None,
        licences: Mapping[str, int] | None = None,
        heuristics: Sequence[MatrixHeuristic] | None = None,
    ) -> None:
        self.weights = weights or ConvergentWeights()
        self.licences = dict(licences or {})
        self.heuristics = tuple(
            default_heuristics(self.weights) if heuristics is None else heuristics
        )
        self._solve = choose_exact if self.weights.knapsack == "exact" else choose_greedy
        self._table = JobMachineTable(1)

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        capacity = make_capacity(now, running, free)
        machine_count = 1 if free.machines is None else len(free.machines)
        if self._table.machine_count != machine_count:
            self._table = JobMachineTable(machine_count)
        self._table.update(queue)
        if self._table.jobs and not capacity.full:
            self._start_matched(capacity)
        return capacity.starts

    def preferences(
        self, now: float, queue: Collection[WaitingJob], free: FreeResources
    ) -> FloatArray:
        """Return the job x machine matrix of a queue, in its order."""
        machines = np.arange(1 if free.machines is None else len(free.machines))
        if self._table.machine_count != len(machines):
            self._table = JobMachineTable(len(machines))
        self._table.update(queue)
        return self._preferences(now, free.resources, np.arange(len(queue)), machines)

    def _preferences(
        self, now: float, free: Mapping[str, int], rows: IndexArray, machines: IndexArray
    ) -> FloatArray:
        """Return these rows and columns of the matrix; they depend on the whole queue."""
        table = self._table
        names = [name for name in table.resource_columns if name in self.licences]
        requests = table.amounts[:, [table.resource_columns[name] for name in names]]
        totals = np.array([max(self.licences[name], 1) for name in names], dtype=float)
        held = np.array([self.licences[name] - free.get(name, 0) for name in names], dtype=float)
        view = JobMachineView(
            now=now,
            rows=rows,
            machines=machines,
            run_times=table.run_times[rows[:, np.newaxis], machines],
            longest=table.longest[rows],
            shortest=table.shortest[rows],
            submitted=table.submitted[rows],
            deadlines=table.deadlines[rows],
            current=np.full(len(rows), NONE, dtype=np.intp),
            rho=(requests.sum(axis=0) + held) / totals,
            queue_inverse=table.inverse,
            queue_transfers=table.transfers,
            queue_requests=requests,
            longest_of_queue=float(table.longest.max(initial=0.0)),
        )
        return sum_contributions(self.heuristics, view)

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
        matrix = self._preferences(capacity.now, capacity.resources, rows, machines)
        while len(rows) and not capacity.full:
            free_amounts = np.array([capacity.resources[name] for name in names], dtype=float)
            fits = cpus[:, np.newaxis] <= _free_cpus(capacity)[machines]
            fits &= (amounts <= free_amounts).all(axis=1, keepdims=True)
            pairs = self._match(np.where(fits, matrix, -math.inf), amounts, free_amounts)
            if not pairs:
                return
            for row, machine in pairs.items():
                capacity.start(table.jobs[rows[row]], int(machines[machine]))
            left = np.ones(len(rows), dtype=bool)
            left[list(pairs)] = False
            rows, matrix, amounts, cpus = rows[left], matrix[left], amounts[left], cpus[left]

    def _match(
        self, preferences: FloatArray, amounts: FloatArray, free_amounts: FloatArray
    ) -> dict[int, int]:
        """Return pairs that fit together; a possible pair fits alone."""
        possible = preferences > -math.inf
        counts = possible.sum(axis=1)
        rows = np.flatnonzero(counts)
        if not len(rows):
            return {}
        values = preferences[rows].sum(axis=1, where=possible[rows]) / counts[rows]
        rows = rows[choose_jobs(values, amounts[rows], free_amounts, self._solve)]
        pairs = type(self).matcher(preferences[rows], {})
        return {int(rows[row]): machine for row, machine in pairs.items()}


def _free_cpus(capacity: Capacity) -> FloatArray:
    machines = capacity.machines if isinstance(capacity, FreeOnMachines) else [capacity.cpus]
    return np.array(machines, dtype=float)


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


VARIANTS: dict[str, type[Convergent]] = {
    variant.name: variant
    for variant in (IncrementalConvergent, OptimalConvergent, GreedyConvergent)
}
