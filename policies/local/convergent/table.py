"""The queue of Convergent Scheduling as arrays, one row per job. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from metasched.policies.local.queueing import WaitingJob

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]
Mask = NDArray[np.bool_]
NONE = -1  # instead of the index of a machine


@dataclass(frozen=True)
class JobMachineView:
    """What heuristics see of a pass: N jobs and C machines that may be paired now.

    The queue has Q jobs, the cluster M machines and L licences. A pair that cannot run has an
    infinite run time and an inverse of 0.
    """

    now: float  # seconds of the caller's clock
    rows: IndexArray  # N: positions in the queue
    machines: IndexArray  # C: machines
    run_times: FloatArray  # N x C: seconds that are left of each job on each machine
    longest: FloatArray  # N: longest run time of the job on any machine
    shortest: FloatArray  # N: shortest run time
    submitted: FloatArray  # N
    deadlines: FloatArray  # N; inf: none
    current: IndexArray  # N: position in `machines` on which the job runs; NONE: it waits
    rho: FloatArray  # L: requested and held copies / copies
    queue_inverse: FloatArray  # Q x M: 1 / run time
    queue_nearness: FloatArray | None  # Q x M: 1 - share of all transfers; None: no input
    queue_requests: FloatArray  # Q x L: copies of licences
    longest_of_queue: float  # longest run time of all queued jobs on all machines

    @property
    def shape(self) -> tuple[int, int]:
        """N, C."""
        return len(self.rows), len(self.machines)


class JobMachineTable:
    """Arrays of the values that do not change while a job waits.

    `update` costs O(M) per new job and O(N M) per removal, in C.
    """

    def __init__(self, machine_count: int) -> None:
        self.machine_count = machine_count
        self.jobs: list[WaitingJob] = []
        self.resource_columns: dict[str, int] = {}
        self._times = np.empty((0, machine_count))
        self._inverse = np.empty((0, machine_count))
        self._nearness: FloatArray | None = None
        self._amounts = np.empty((0, 0))
        self._columns = np.empty((5, 0))

    @property
    def run_times(self) -> FloatArray:
        return self._times[: len(self.jobs)]

    @property
    def inverse(self) -> FloatArray:
        return self._inverse[: len(self.jobs)]

    @property
    def nearness(self) -> FloatArray | None:
        """1 - the machine's share of the transfers to all machines of the job; 0 without input."""
        return None if self._nearness is None else self._nearness[: len(self.jobs)]

    @property
    def amounts(self) -> FloatArray:
        """Requested amounts of counted resources; `resource_columns` names the columns."""
        return self._amounts[: len(self.jobs)]

    @property
    def cpus(self) -> FloatArray:
        return self._column(0)

    @property
    def submitted(self) -> FloatArray:
        return self._column(1)

    @property
    def deadlines(self) -> FloatArray:
        return self._column(2)

    @property
    def shortest(self) -> FloatArray:
        return self._column(3)

    @property
    def longest(self) -> FloatArray:
        return self._column(4)

    def _column(self, index: int) -> FloatArray:
        column: FloatArray = self._columns[index, : len(self.jobs)]
        return column

    def update(self, queue: Collection[WaitingJob]) -> None:
        """Update the table to the current queue."""
        jobs = list(queue)
        if jobs[: len(self.jobs)] != self.jobs:
            by_id = {job.id: job for job in jobs}
            kept = [index for index, job in enumerate(self.jobs) if by_id.get(job.id) == job]
            self._keep(kept)
            if jobs[: len(self.jobs)] != self.jobs:  # in another order
                self._keep([])
        if len(jobs) > len(self.jobs):
            self._append(jobs[len(self.jobs) :])

    def _keep(self, kept: Sequence[int]) -> None:
        """Keep the jobs at these positions."""
        size, count = len(self.jobs), len(kept)
        first = next((new for new, old in enumerate(kept) if new != old), count)
        rows = np.array(kept[first:], dtype=np.intp)
        for array in (self._times, self._inverse, self._nearness, self._amounts):
            if array is not None and count - first:
                array[first:count] = array[:size].take(rows, axis=0)
        if count - first:
            self._columns[:, first:count] = self._columns[:, :size].take(rows, axis=1)
        self.jobs = [self.jobs[index] for index in kept]

    def _append(self, added: Sequence[WaitingJob]) -> None:
        start = len(self.jobs)
        for job in added:
            for name in job.resources:
                self.resource_columns.setdefault(name, len(self.resource_columns))
        if self._nearness is None and any(job.transfers for job in added):
            self._nearness = np.zeros((len(self._times), self.machine_count))
        self._grow(start + len(added))
        end = start + len(added)
        times = self._times[start:end]
        times.fill(math.inf)
        machines = [job.machines or {0: job.estimated} for job in added]
        places = _places(machines)
        times[places] = _flat(machines)
        self._inverse[start:end] = 1 / times
        if self._nearness is not None:
            nearness = self._nearness[start:end]
            nearness[:] = 0.0
            nearness[places] = _flat(
                [
                    job.transfers or dict.fromkeys(m, 0.0)
                    for job, m in zip(added, machines, strict=True)
                ]
            )
            sums = nearness.sum(axis=1, keepdims=True)
            nearness /= np.where(sums > 0, -sums, 1.0)
            nearness += sums > 0
        self._amounts[start:end] = 0.0
        for row, job in enumerate(added, start):
            for name, amount in job.resources.items():
                self._amounts[row, self.resource_columns[name]] = amount
        columns = self._columns[:, start:end]
        columns[0] = [job.cpus for job in added]
        columns[1] = [job.waiting_since for job in added]
        columns[2] = [math.inf if job.deadline is None else job.deadline for job in added]
        columns[3] = times.min(axis=1)
        columns[4] = np.where(np.isfinite(times), times, 0.0).max(axis=1)
        self.jobs.extend(added)

    def _grow(self, rows: int) -> None:
        """Make room for so many rows, and for all resources."""
        size = len(self._times)
        new_size = size if rows <= size else max(rows, 2 * size)
        if new_size > size:
            self._times = _enlarged(self._times, new_size, self.machine_count)
            self._inverse = _enlarged(self._inverse, new_size, self.machine_count)
            self._columns = _enlarged(self._columns, len(self._columns), new_size)
            if self._nearness is not None:
                self._nearness = _enlarged(self._nearness, new_size, self.machine_count)
        if self._amounts.shape != (new_size, len(self.resource_columns)):
            self._amounts = _enlarged(self._amounts, new_size, len(self.resource_columns))


def _enlarged(array: FloatArray, rows: int, columns: int) -> FloatArray:
    larger = np.zeros((rows, columns))
    larger[: array.shape[0], : array.shape[1]] = array
    return larger


def _places(rows: Sequence[Mapping[int, float]]) -> tuple[IndexArray, IndexArray]:
    """Return the rows and columns of the values, in their order."""
    counts = [len(values) for values in rows]
    columns = np.fromiter(chain.from_iterable(rows), np.intp, sum(counts))
    return np.repeat(np.arange(len(counts)), counts), columns


def _flat(rows: Sequence[Mapping[int, float]]) -> FloatArray:
    count = sum([len(values) for values in rows])
    return np.fromiter(chain.from_iterable([values.values() for values in rows]), np.float64, count)
