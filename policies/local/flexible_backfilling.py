"""Flexible Backfilling: EASY on a queue whose priorities change as its jobs wait. Pure.

Pasquali 2008, §3.2.1, with the constants of its §4.1. Every pass computes priorities anew, so the
queue is kept as a table (`_Table`) whose rows are operated on as a whole. Who can start at all is
seen first; priorities decide among those, and who is head when that has begun.
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
_INITIAL_COLUMNS = 64  # jobs for which a table has room at first
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
) = range(9)  # rows of one


class _LeasedLicence(NamedTuple):
    """A licence of the whole site, which is not counted here."""

    name: str


class _QueueTable:
    """The queue in its order, a column for each job: what stays as it is while it waits.

    Six rows give its priority and two what it needs: `rank` is the part of the priority that does
    not change, at time 0; the deadline is worth `least` until `rise`, then `slope` more per second
    until `fall`. The others, by `named`, hold how much it wants of each counted resource that a
    job ever asked for, and of each licence that one has leased.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.jobs: list[WaitingJob] = []
        self.resource_rows: dict[str | _LeasedLicence, int] = {}
        self.request_counts: dict[
            str | _LeasedLicence, int
        ] = {}  # by the same: how many of the jobs ask for it
        self._max_amounts: dict[str | _LeasedLicence, int] = {}  # that a job ever asked for
        self._cells: FloatArray = np.empty((_FIXED_ROWS, _INITIAL_COLUMNS))

    def row(self, row: int) -> FloatArray:
        cells: FloatArray = self._cells[row, : len(self.jobs)]
        return cells

    def columns(self, positions: NDArray[np.intp] | None) -> FloatArray:
        """All rows at these places of the queue; None: at all."""
        if positions is None:
            return self._cells[:, : len(self.jobs)]
        return self._cells.take(positions, axis=1)

    def find_position(self, id: int | None) -> int | None:
        """Where in the queue, which is not empty, a job is, if it is there."""
        matches = self.row(_ID) == id
        position = int(matches.argmax())
        return position if matches[position] else None

    # What has come and gone

    def update(self, queue: Collection[WaitingJob]) -> None:
        """Take over the queue as it is now. O(1) per job that was there before, in C."""
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
        """Forget the jobs at some places, which leave the queue."""
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
            run_time = shortest_run if weights.run == "best" else job.estimated
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

    # Who can start

    def fitting_now(self, capacity: Capacity) -> Mask:
        """The jobs that are not too large for what is free: no other can start now."""
        return self._at_most(capacity.largest, capacity.resources)

    def startable(self, fitting: Mask, reservation: HeadReservation) -> Mask:
        """Those of the small ones that might start beside the promise to the head."""
        ends_in_time = reservation.capacity.now + self.row(_SHORTEST_RUN) <= reservation.shadow_time
        return fitting & (
            ends_in_time
            | self._at_most(reservation.max_overlapping_cpus, reservation.extra_resources)
        )

    def _at_most(self, cpus: float, resources: Mapping[str, int]) -> Mask:
        mask: Mask = self.row(_CPUS) <= cpus
        for name, amount in resources.items():
            if amount < self._max_amounts.get(name, 0):
                mask &= self.row(self.resource_rows[name]) <= amount
        return mask


def _requested_resources(job: WaitingJob) -> Mapping[str | _LeasedLicence, int]:
    """What a job asks for of each resource; of a licence that it has leased, one."""
    requested: dict[str | _LeasedLicence, int] = {_LeasedLicence(name): 1 for name in job.licences}
    requested.update(job.resources)
    return requested


class FlexibleBackfilling:
    """EASY on a queue ordered by `P = anti-aging + deadline + licences + wait minimisation`.

    P is computed again at every pass, O(q). `licences` says how many copies the cluster has of
    what `Waiting.counts` calls by those names; other counted resources have no part in P. How
    critical licences of the whole site are (`Waiting.licences`) `Free.rho` tells: who has leased a
    critical one is to start, and so to end, early. This is the variant BF_MOD: the reservation
    belongs to whoever is first in the queue.
    """

    name: ClassVar[str] = MODIFIED
    period: float = 0.0
    incremental: ClassVar[bool] = False

    def __init__(
        self, weights: Weights | None = None, licences: Mapping[str, int] | None = None
    ) -> None:
        self.weights = weights or Weights()
        self.licences = dict(licences or {})
        self._queue = _QueueTable(self.weights)
        self._reservation: HeadReservation | None = (
            None  # to the head of the last pass that had one
        )

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        self._queue.update(queue)
        capacity = make_capacity(now, running, free)
        if self._queue.jobs and not capacity.full:
            self._run_pass(capacity)
        return capacity.starts

    def _run_pass(self, capacity: Capacity) -> None:
        fitting = self._queue.fitting_now(capacity)
        if fitting.any():
            self._backfill(capacity, fitting, self._positions_by_priority(capacity))

    def _backfill(
        self, capacity: Capacity, fitting: Mask, order: Iterable[int]
    ) -> WaitingJob | None:
        """EASY on the queue in an order of places: who is first and does not fit, if any."""
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
        if started:
            self._queue.remove(started)
        return head

    def _reservation_for(self, head: WaitingJob, capacity: Capacity) -> HeadReservation:
        """What the head was promised in an earlier pass, if that still holds, else anew."""
        previous = self._reservation
        if previous is None or previous.head != head or not previous.still_valid(capacity):
            self._reservation = previous = capacity.reserve(head)
        return previous

    def _positions_by_priority(
        self, capacity: Capacity, excluded: int | None = None
    ) -> Iterator[int]:
        """All places but one, the highest priority first, equal ones as queued.

        Few are looked at in most passes, so each is sought by itself.
        """
        priorities = self._compute_priorities(capacity.now, capacity.rho)
        if excluded is not None:
            priorities[excluded] = -math.inf
        for _ in range(len(priorities) - (excluded is not None)):
            position = int(priorities.argmax())
            yield position
            priorities[position] = -math.inf

    def _sort_by_priority(self, mask: Mask, capacity: Capacity) -> list[int]:
        """The places of these, the highest priority first, equal ones as queued."""
        positions = np.flatnonzero(mask)
        if len(positions) > 1:
            priorities = self._compute_priorities(capacity.now, capacity.rho, positions)
            positions = positions[np.argsort(-priorities, kind="stable")]
        ordered: list[int] = positions.tolist()
        return ordered

    def priorities(
        self, now: float, queue: Collection[WaitingJob], rho: Mapping[str, float] = _NO_RHO
    ) -> list[float]:
        """P of every job of a queue, in its order; `rho` as in `Free`."""
        self._queue.update(queue)
        priorities: list[float] = self._compute_priorities(now, rho).tolist() if queue else []
        return priorities

    def _compute_priorities(
        self, now: float, rho: Mapping[str, float], positions: NDArray[np.intp] | None = None
    ) -> FloatArray:
        """P of the jobs at some places of the queue, or at all: it depends on the whole queue."""
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
            # with `dot` the last bit of a sum depends on how many jobs are looked at
            licence_values = np.einsum(
                "i,ij->j", self._licence_values(rho), columns[_FIXED_ROWS:] > 0
            )
            priorities += weights.licence * licence_values
        return priorities

    def _licence_values(self, site_rho: Mapping[str, float]) -> FloatArray:
        """What each licence adds for who asks for it: its rho, times d if it is critical (> 1).

        rho is the number of queued jobs per copy of what the cluster counts, else it is `told`.
        d is the number of different licences asked for that are not critical, at least 1: by the
        formula of Pasquali 2008, (3.6)-(3.8).
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
    """The variant BF_UNMOD: the first job that could not start stays first until it does."""

    name: ClassVar[str] = UNMODIFIED

    def __init__(
        self, weights: Weights | None = None, licences: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(weights, licences)
        self._head_id: int | None = None

    def _run_pass(self, capacity: Capacity) -> None:
        fitting, head_position = (
            self._queue.fitting_now(capacity),
            self._queue.find_position(self._head_id),
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
        self._head_id = None if head is None else head.id
