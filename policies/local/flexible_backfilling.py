"""Flexible Backfilling: EASY on a queue whose priorities change while jobs wait. Pure.

Pasquali 2008, §3.2.1, with the constants of its §4.1. Every pass computes all priorities anew, so
the queue is a table (`_QueueTable`) whose rows are processed as numpy arrays. A pass first selects
the jobs that fit; priorities order these, and select the head once they have started.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, pairwise
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metasched.policies.local.capacity import Capacity, HeadReservation, make_capacity
from metasched.policies.local.queueing import (
    NO_MACHINE,
    FreeResources,
    JobStart,
    RunningJob,
    WaitingJob,
)
from metasched.policies.local.weights import MODIFIED, UNMODIFIED, Weights

FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]
_NO_RHO: Mapping[str, float] = MappingProxyType({})
_INITIAL_COLUMNS = 64  # jobs
(
    _ID,
    _CPUS,
    _SHORTEST_RUN,
    _BASE_PRIORITY,
    _INVERSE_ESTIMATE,
    _RISE_START,
    _SLOPE,
    _LATEST_START,
    _FIXED_ROWS,
) = range(9)  # table rows


class _LeasedLicence(NamedTuple):
    """A licence leased from a site-wide pool, which this cluster does not count."""

    name: str


class _QueueTable:
    """The queue in its order, a column per job: the values that do not change while it waits.

    Six rows give the priority and two the needs: `base_priority` is the constant part of the
    priority, at time 0; the deadline is worth `least` until `rise_start`, then `slope` more per
    second until `latest_start`. The rows of `resource_rows` hold the amount requested of each
    counted resource, and of each leased licence, that any job ever requested.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.jobs: list[WaitingJob] = []
        self.resource_rows: dict[str | _LeasedLicence, int] = {}
        self.request_counts: dict[str | _LeasedLicence, int] = {}  # jobs requesting it, by resource
        self._max_amounts: dict[
            str | _LeasedLicence, int
        ] = {}  # largest request so far, by resource
        self._cells: FloatArray = np.empty((_FIXED_ROWS, _INITIAL_COLUMNS))

    def row(self, row: int) -> FloatArray:
        cells: FloatArray = self._cells[row, : len(self.jobs)]
        return cells

    def columns(self, positions: NDArray[np.intp] | None) -> FloatArray:
        """Return all rows at these positions of the queue; None: at all positions."""
        if positions is None:
            return self._cells[:, : len(self.jobs)]
        return self._cells.take(positions, axis=1)

    def find_position(self, id: int | None) -> int | None:
        """Return the position of a job in the queue, which must not be empty; None if missing."""
        matches = self.row(_ID) == id
        position = int(matches.argmax())
        return position if matches[position] else None

    # Changes of the queue

    def update(self, queue: Collection[WaitingJob]) -> None:
        """Update the table to the current queue. O(1) per unchanged job, in C."""
        jobs = list(queue)
        if jobs[: len(self.jobs)] != self.jobs:
            jobs_by_id = {job.id: job for job in jobs}
            self.remove(
                [
                    position
                    for position, job in enumerate(self.jobs)
                    if jobs_by_id.get(job.id) != job
                ]
            )
            if jobs[: len(self.jobs)] != self.jobs:  # in another order
                self.remove(range(len(self.jobs)))
        for job in jobs[len(self.jobs) :]:
            self._append(job)

    def remove(self, positions: Collection[int]) -> None:
        """Remove the jobs at these positions."""
        removed, size = sorted(positions), len(self.jobs)
        for position in reversed(removed):
            for name in _requested_resources(self.jobs.pop(position)):
                self.request_counts[name] -= 1
        for removed_count, (position, end) in enumerate(pairwise([*removed, size]), 1):
            self._cells[:, position + 1 - removed_count : end - removed_count] = self._cells[
                :, position + 1 : end
            ]

    def _append(self, job: WaitingJob) -> None:
        requested, column = _requested_resources(job), len(self.jobs)
        for name in requested:
            if name not in self.resource_rows:
                self.resource_rows[name] = _FIXED_ROWS + len(self.resource_rows)
                self.request_counts[name] = self._max_amounts[name] = 0
        rows, size = self._cells.shape
        if column == size or len(self.resource_rows) > rows - _FIXED_ROWS:
            cells = np.zeros(
                (_FIXED_ROWS + len(self.resource_rows), 2 * size if column == size else size)
            )
            cells[:rows, :size] = self._cells
            self._cells = cells
        self.jobs.append(job)
        self._cells[:_FIXED_ROWS, column] = self._column_values(job)
        self._cells[_FIXED_ROWS:, column] = 0.0
        for name, amount in requested.items():
            self._cells[self.resource_rows[name], column] = amount
            self.request_counts[name] += 1
            self._max_amounts[name] = max(self._max_amounts[name], amount)

    def _column_values(self, job: WaitingJob) -> tuple[float, ...]:
        weights, shortest_run = self._weights, job.estimated
        if job.machines:
            shortest_run = min(job.machines.values())
        rise_start = latest_start = math.inf
        slope = 0.0
        if job.deadline is not None:
            run_time = _run_time_for_deadline(job, shortest_run, weights)
            latest_start = job.deadline - run_time
            rise_start = latest_start - weights.lead * run_time
            slope = (weights.most - weights.least) / (latest_start - rise_start)
        base_priority = -weights.age_factor * job.waiting_since
        return (
            job.id,
            job.cpus,
            shortest_run,
            base_priority,
            1 / job.estimated,
            rise_start,
            slope,
            latest_start,
        )

    # Jobs that can start

    def fitting_now(self, capacity: Capacity) -> Mask:
        """Return the jobs that fit into the free resources: no other job can start now."""
        return self._at_most(capacity.largest, capacity.resources)

    def startable(self, fitting: Mask, reservation: HeadReservation) -> Mask:
        """Return the fitting jobs that may start without delaying the head."""
        ends_in_time = reservation.capacity.now + self.row(_SHORTEST_RUN) <= reservation.shadow_time
        return fitting & (
            ends_in_time
            | self._at_most(reservation.max_overlapping_cpus, reservation.extra_resources)
        )

    def _at_most(self, cpus: float, resources: Mapping[str, int]) -> Mask:
        mask: Mask = self.row(_CPUS) <= cpus
        for name, amount in resources.items():
            # below 0: the host has less than when its running jobs started
            free = max(amount, 0)
            if free < self._max_amounts.get(name, 0):
                mask &= self.row(self.resource_rows[name]) <= free
        return mask


def _run_time_for_deadline(job: WaitingJob, shortest_run: float, weights: Weights) -> float:
    """Return `Nxtime` of the sources, in seconds."""
    if weights.run == "best":
        return shortest_run
    return (weights.run == "fastest" and job.on_fastest) or job.estimated


def _requested_resources(job: WaitingJob) -> Mapping[str | _LeasedLicence, int]:
    """Return the amount of each resource that a job requests; 1 for each leased licence."""
    requested: dict[str | _LeasedLicence, int] = {_LeasedLicence(name): 1 for name in job.licences}
    requested.update(job.resources)
    return requested


class FlexibleBackfilling:
    """EASY on a queue ordered by `P = anti-aging + deadline + licences + wait minimisation`.

    P is computed again at every pass, O(q). `licences` maps licence names to the copies of the
    cluster, requested as `WaitingJob.resources`; other counted resources have no part in P. For
    site-wide licences (`WaitingJob.licences`), `FreeResources.rho` gives how critical they are:
    jobs that hold a critical lease start, and so end, early. This is the variant BF_MOD: the
    reservation belongs to the job that is first in the queue at each pass.
    """

    name: ClassVar[str] = MODIFIED
    period: float = 0.0
    incremental: ClassVar[bool] = False
    keeps_windows: ClassVar[bool] = True

    def __init__(
        self, weights: Weights | None = None, licences: Mapping[str, int] | None = None
    ) -> None:
        self.weights = weights or Weights()
        self.licences = dict(licences or {})
        self._queue = _QueueTable(self.weights)
        self.head_id: int | None = None
        self._reservation: HeadReservation | None = None  # for the head of the last blocked pass
        self.reservation: HeadReservation | None = None  # the same, if the last pass was blocked

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        self._queue.update(queue)
        self.reservation = None
        capacity = make_capacity(now, running, free)
        if self._queue.jobs and not capacity.full:
            self._run_pass(capacity)
        return capacity.starts

    def _run_pass(self, capacity: Capacity) -> None:
        fitting = self._queue.fitting_now(capacity)
        if fitting.any():
            head = self._backfill(capacity, fitting, self._positions_by_priority(capacity))
            self.head_id = None if head is None else head.id

    def _backfill(
        self, capacity: Capacity, fitting: Mask, order: Iterable[int]
    ) -> WaitingJob | None:
        """Run EASY on the queue in the given order; return the head that does not fit, if any."""
        jobs, started = self._queue.jobs, []
        head: WaitingJob | None = None
        for position in order:
            fitting[position] = False
            machine = capacity.find_machine(jobs[position])
            if machine == NO_MACHINE:
                head = jobs[position]
                break
            capacity.start(jobs[position], machine)
            started.append(position)
        if head is not None and not capacity.full and fitting.any():
            reservation = self._reservation_for(head, capacity)
            startable = self._queue.startable(fitting, reservation)
            for position in self._sort_by_priority(startable, capacity):
                if startable[position] and reservation.admit(jobs[position]):
                    started.append(position)
                    startable = self._queue.startable(fitting, reservation)
            reservation.end_pass()
            self.reservation = reservation
        if started:
            self._queue.remove(started)
        return head

    def _reservation_for(self, head: WaitingJob, capacity: Capacity) -> HeadReservation:
        """Return the reservation of an earlier pass if still valid, else a new reservation."""
        previous = self._reservation
        if previous is None or previous.head != head or not previous.still_valid(capacity):
            self._reservation = previous = capacity.reserve(head)
        return previous

    def _positions_by_priority(
        self, capacity: Capacity, excluded: int | None = None
    ) -> Iterator[int]:
        """Yield all positions except one, the highest priority first, ties in queue order.

        Most passes need few of them, so each is searched for separately.
        """
        priorities = self._compute_priorities(capacity.now, capacity.rho)
        if excluded is not None:
            priorities[excluded] = -math.inf
        for _ in range(len(priorities) - (excluded is not None)):
            position = int(priorities.argmax())
            yield position
            priorities[position] = -math.inf

    def _sort_by_priority(self, mask: Mask, capacity: Capacity) -> list[int]:
        """Return the selected positions, the highest priority first, ties in queue order."""
        positions = np.flatnonzero(mask)
        if len(positions) > 1:
            priorities = self._compute_priorities(capacity.now, capacity.rho, positions)
            positions = positions[np.argsort(-priorities, kind="stable")]
        ordered: list[int] = positions.tolist()
        return ordered

    def priorities(
        self, now: float, queue: Collection[WaitingJob], rho: Mapping[str, float] = _NO_RHO
    ) -> list[float]:
        """Return P of every job of a queue, in its order; `rho` as in `FreeResources`."""
        self._queue.update(queue)
        priorities: list[float] = self._compute_priorities(now, rho).tolist() if queue else []
        return priorities

    def _compute_priorities(
        self, now: float, rho: Mapping[str, float], positions: NDArray[np.intp] | None = None
    ) -> FloatArray:
        """Return P of the jobs at these positions, or at all; P depends on the whole queue."""
        weights, table = self.weights, self._queue
        columns = table.columns(positions)
        base_priority, inverse_estimate, rise_start, slope, latest_start = columns[
            _BASE_PRIORITY:_FIXED_ROWS
        ]
        boost_factor = weights.boost / table.row(_INVERSE_ESTIMATE).max()
        priorities: FloatArray = base_priority + (
            weights.age_factor * now + boost_factor * inverse_estimate
        )
        late_value = 0.0 if weights.late == "zero" else weights.least
        rising_seconds = np.maximum(now - rise_start, 0.0)
        deadline_values = np.where(
            now > latest_start, late_value, weights.least + slope * rising_seconds
        )
        priorities += np.where(latest_start < math.inf, deadline_values, 0.0)
        if table.resource_rows:
            # with `dot` the last bit of a sum would depend on the number of columns
            licence_values = np.einsum(
                "i,ij->j", self._licence_values(rho), columns[_FIXED_ROWS:] > 0
            )
            priorities += weights.licence * licence_values
        return priorities

    def _licence_values(self, site_rho: Mapping[str, float]) -> FloatArray:
        """Return the value of each licence requested: rho, times d if critical (> 1).

        rho is the number of queued jobs per copy for licences of the cluster, else `site_rho`. d is
        the number of distinct non-critical licences requested, at least 1: the formula of Pasquali
        2008, (3.6)-(3.8).
        """
        rho = []
        for name, request_count in self._queue.request_counts.items():
            if isinstance(name, _LeasedLicence):
                rho.append(site_rho.get(name.name, 0.0) if request_count else 0.0)
            else:
                rho.append(
                    request_count / max(self.licences[name], 1) if name in self.licences else 0.0
                )
        critical_factor = max(sum([0 < r <= 1 for r in rho]), 1)
        return np.array([critical_factor * r if r > 1 else r for r in rho])


class UnmodifiedFlexibleBackfilling(FlexibleBackfilling):
    """The variant BF_UNMOD: the first job that could not start stays first until it starts."""

    name: ClassVar[str] = UNMODIFIED

    def _run_pass(self, capacity: Capacity) -> None:
        fitting, head_position = (
            self._queue.fitting_now(capacity),
            self._queue.find_position(self.head_id),
        )
        if head_position is None:
            order = self._positions_by_priority(capacity)
        elif fitting.any():
            order = chain(
                (head_position,), self._positions_by_priority(capacity, excluded=head_position)
            )
        else:
            return
        head = self._backfill(capacity, fitting, order)
        self.head_id = None if head is None else head.id
