"""The queue of Convergent Scheduling as arrays, one row per job. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress, filterfalse, repeat
from operator import attrgetter, is_not

import numpy as np
from numpy.typing import NDArray

from metasched.policies.local.queueing import WaitingJob

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]
Mask = NDArray[np.bool_]
_ID = attrgetter("id")
NONE = -1  # instead of the index of a machine


@dataclass(frozen=True)
class JobMachineView:
    """What heuristics see of a pass: N jobs and C machines that may be paired now.

    The queue has Q jobs, the cluster M machines and L licences. A pair that cannot run has an
    infinite run time.
    """

    now: float  # seconds of the caller's clock
    rows: IndexArray  # N: positions in the queue
    machines: IndexArray  # C: machines
    longest: FloatArray  # N: longest run time of the job on any machine
    shortest: FloatArray  # N: shortest run time
    submitted: FloatArray  # N
    deadlines: FloatArray  # N; inf: none
    current: IndexArray  # N: position in `machines` on which the job runs; NONE: it waits
    rho: FloatArray  # L: requested and held copies / copies
    left: FloatArray  # N: share of the job that is left; 1: it has never run
    queue_run_times: FloatArray  # Q x M: seconds of the whole job
    queue_nearness: FloatArray | None  # Q x M: 1 - share of all transfers; None: no input
    queue_requests: FloatArray  # Q x L: copies of licences
    longest_of_queue: float  # longest run time of all queued jobs on all machines

    @property
    def shape(self) -> tuple[int, int]:
        """N, C."""
        return len(self.rows), len(self.machines)

    @cached_property
    def run_times(self) -> FloatArray:
        """Seconds that are left of each job on each machine, N x C."""
        times = take_pairs(self.queue_run_times, self.rows, self.machines)
        return times if (self.left == 1).all() else times * self.left[:, np.newaxis]


class JobMachineTable:
    """Arrays of the values that do not change while a job waits.

    `update` costs O(M) per new job and O(N M) per removal, `update_unordered` O(M) for both, in C.
    """

    def __init__(self, machine_count: int, resources: Iterable[str] = ()) -> None:
        """`resources` have columns from the beginning, others when a job asks for them."""
        self.machine_count = machine_count
        self.jobs: list[WaitingJob] = []
        self.row_of: dict[int, int] = {}  # by id of the job, after `update_unordered`
        self.resource_columns = {name: column for column, name in enumerate(resources)}
        self._times = np.empty((0, machine_count))
        self._nearness: FloatArray | None = None
        self._amounts = np.empty((0, len(self.resource_columns)))
        self._columns = np.empty((6, 0))
        self._sums = np.empty((0, machine_count))
        self.summed = 0

    @property
    def run_times(self) -> FloatArray:
        return self._times[: len(self.jobs)]

    @property
    def nearness(self) -> FloatArray | None:
        """1 - the machine's share of the transfers to all machines of the job; 0 without input."""
        return None if self._nearness is None else self._nearness[: len(self.jobs)]

    @property
    def amounts(self) -> FloatArray:
        """Requested amounts of counted resources; `resource_columns` names the columns."""
        return self._amounts[: len(self.jobs)]

    @property
    def sums(self) -> FloatArray:
        """Room for a sum for each job and machine, which moves with the job.

        The user fills it. It has those of the first `summed` jobs.
        """
        return self._sums[: len(self.jobs)]

    @property
    def means(self) -> FloatArray:
        """Room for the mean of the sums of each job, which moves with the job."""
        return self._column(5)

    def amounts_of(self, names: Sequence[str]) -> FloatArray:
        """Return the requested amounts of some resources, in that order; not a copy if it can."""
        columns = [self.resource_columns[name] for name in names]
        if columns == list(range(len(columns))):
            return self.amounts[:, : len(columns)]
        return self.amounts[:, columns]

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
        self.row_of.clear()
        if jobs[: len(self.jobs)] != self.jobs:
            by_id = {job.id: job for job in jobs}
            kept = [i for i, job in enumerate(self.jobs) if is_same(by_id.get(job.id), job)]
            self._keep(kept)
            if jobs[: len(self.jobs)] != self.jobs:  # in another order
                self._keep([])
        if len(jobs) > len(self.jobs):
            self._append(jobs[len(self.jobs) :])

    def update_unordered(self, queue: Collection[WaitingJob]) -> None:
        """Update the table to the current queue, in any order; then `row_of` has all of its jobs.

        Jobs that stay keep their rows, but for the last: they move to the rows of jobs that left.
        """
        jobs, size = self.jobs, len(self.jobs)
        if len(self.row_of) != size:
            self.row_of = {job.id: row for row, job in enumerate(jobs)}
        row_of, others, ids = self.row_of, list(queue), list(map(_ID, queue))
        if size:  # without a loop in Python: most jobs are the same objects
            rows = map(row_of.get, ids, repeat(0))
            others = list(compress(queue, map(is_not, queue, map(jobs.__getitem__, rows))))
        added = [job for job in others if job.id not in row_of or job != jobs[row_of[job.id]]]
        gone = list[int]()
        if len(queue) - len(added) < size:
            staying = set(ids).difference(map(_ID, added))
            gone = sorted(row_of[job] for job in filterfalse(staying.__contains__, row_of))
        count = size - len(gone)
        left = gone[: bisect_left(gone, count)]
        moved = sorted(set(range(count, size)).difference(gone))
        if left:
            for array in (self._times, self._nearness, self._amounts, self._sums):
                if array is not None:
                    array[left] = array[moved]
            self._columns[:, left] = self._columns[:, moved]
        for row in gone:
            del row_of[jobs[row].id]
        for row, source in zip(left, moved, strict=True):
            jobs[row] = jobs[source]
            row_of[jobs[row].id] = row
        del jobs[count:]
        if self.summed < size:
            self.summed = min([self.summed, count, *left[:1]])
        self.summed = min(self.summed, count)
        if added:
            row_of.update((job.id, row) for row, job in enumerate(added, count))
            self._append(added)

    def _keep(self, kept: Sequence[int]) -> None:
        """Keep the jobs at these positions."""
        size, count = len(self.jobs), len(kept)
        first = next((new for new, old in enumerate(kept) if new != old), count)
        rows = np.array(kept[first:], dtype=np.intp)
        for array in (self._times, self._nearness, self._amounts, self._sums):
            if array is not None and count - first:
                array[first:count] = array[:size].take(rows, axis=0)
        if count - first:
            self._columns[:, first:count] = self._columns[:, :size].take(rows, axis=1)
        self.jobs = [self.jobs[index] for index in kept]
        self.summed = bisect_left(kept, self.summed)

    def _append(self, added: Sequence[WaitingJob]) -> None:
        start, end = len(self.jobs), len(self.jobs) + len(added)
        columns = self.resource_columns
        needs = [
            (row, columns.setdefault(name, len(columns)), amount)
            for row, job in enumerate(added, start)
            for name, amount in job.resources.items()
        ]
        with_input = any(job.transfers for job in added)
        if self._nearness is None and with_input:
            self._nearness = np.zeros((len(self._times), self.machine_count))
        self._grow(end)
        # a job that no machine can run has an infinite run time; counted processors run all
        counted = self.machine_count == 1
        machines = [job.machines or {0: job.estimated if counted else math.inf} for job in added]
        counts = [len(times) for times in machines]
        starts = np.cumsum([0, *counts[:-1]])
        rows_of_times = np.repeat(np.arange(start, end), counts)
        columns_of_times = np.fromiter(chain.from_iterable(machines), np.intp, len(rows_of_times))
        places = np.ravel_multi_index((rows_of_times, columns_of_times), self._times.shape)
        times = _flat([of_job.values() for of_job in machines], len(places))
        self._times[start:end] = math.inf
        self._times.ravel()[places] = times
        if self._nearness is not None:
            self._nearness[start:end] = 0.0
        if self._nearness is not None and with_input:
            seconds = _flat(
                [
                    job.transfers.values() or repeat(0.0, count)
                    for job, count in zip(added, counts, strict=True)
                ],
                len(places),
            )
            sums = np.add.reduceat(seconds, starts)
            seconds /= np.repeat(np.where(sums > 0, -sums, 1.0), counts)
            seconds += np.repeat(sums > 0, counts)
            self._nearness.ravel()[places] = seconds
        self._amounts[start:end] = 0.0
        if needs:
            rows, resources, amounts = zip(*needs, strict=True)
            self._amounts[list(rows), list(resources)] = amounts
        columns_of_added = self._columns[:, start:end]
        columns_of_added[0] = [job.cpus for job in added]
        columns_of_added[1] = [job.waiting_since for job in added]
        columns_of_added[2] = [math.inf if job.deadline is None else job.deadline for job in added]
        columns_of_added[3] = np.minimum.reduceat(times, starts)
        times[times == math.inf] = 0.0
        columns_of_added[4] = np.maximum.reduceat(times, starts)
        self.jobs.extend(added)

    def _grow(self, rows: int) -> None:
        """Make room for so many rows, and for all resources."""
        size = len(self._times)
        new_size = size if rows <= size else max(rows, 2 * size)
        if new_size > size:
            self._times = _enlarged(self._times, new_size, self.machine_count)
            self._sums = _enlarged(self._sums, new_size, self.machine_count)
            self._columns = _enlarged(self._columns, len(self._columns), new_size)
            if self._nearness is not None:
                self._nearness = _enlarged(self._nearness, new_size, self.machine_count)
        if self._amounts.shape != (new_size, len(self.resource_columns)):
            self._amounts = _enlarged(self._amounts, new_size, len(self.resource_columns))


class Workspace:
    """Arrays that each pass uses again: fresh memory costs as much as filling it."""

    def __init__(self) -> None:
        self._arrays: dict[str, FloatArray] = {}

    def array(self, name: str, shape: tuple[int, int]) -> FloatArray:
        """Return an array with any values, until the next call with that name."""
        size = shape[0] * shape[1]
        if name not in self._arrays or len(self._arrays[name]) < size:
            self._arrays[name] = np.empty(2 * size)
        return self._arrays[name][:size].reshape(shape)


def is_same(job: WaitingJob | None, known: WaitingJob) -> bool:
    """Whether a job is as it was; quick if it is the same object."""
    return job is known or job == known


def take_pairs(array: FloatArray, rows: IndexArray, columns: IndexArray) -> FloatArray:
    """Return these rows and columns; not a copy if they are all, in their order."""
    if len(rows) < len(array) or not (np.diff(rows) == 1).all():
        array = array.take(rows, axis=0)
    if len(columns) < array.shape[1]:
        array = array.take(columns, axis=1)
    return array


def _enlarged(array: FloatArray, rows: int, columns: int) -> FloatArray:
    larger = np.zeros((rows, columns))
    larger[: array.shape[0], : array.shape[1]] = array
    return larger


def _flat(rows: Iterable[Iterable[float]], count: int) -> FloatArray:
    return np.fromiter(chain.from_iterable(rows), np.float64, count)
