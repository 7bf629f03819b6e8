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

from metasched.policies.local.capacity import Reservation, Room, room
from metasched.policies.local.queueing import NOWHERE, Free, Running, Start, Waiting
from metasched.policies.local.weights import MODIFIED, UNMODIFIED, Weights

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
_NONE: Mapping[str, float] = MappingProxyType({})
_FIRST_SIZE = 64  # jobs for which a table has room at first
_ID, _CPUS, _QUICKEST, _RANK, _SHORTNESS, _RISE, _SLOPE, _FALL, _FIXED = range(9)  # rows of one


class _Leased(NamedTuple):
    """A licence of the whole site, which is not counted here."""

    name: str


class _Table:
    """The queue in its order, a column for each job: what stays as it is while it waits.

    Six rows give its priority and two what it needs: `rank` is the part of the priority that does
    not change, at time 0; the deadline is worth `least` until `rise`, then `slope` more per second
    until `fall`. The others, by `named`, hold how much it wants of each counted resource that a
    job ever asked for, and of each licence that one has leased.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.jobs: list[Waiting] = []
        self.named: dict[str | _Leased, int] = {}
        self.asked: dict[str | _Leased, int] = {}  # by the same: how many of the jobs ask for it
        self._most: dict[str | _Leased, int] = {}  # that a job ever asked for
        self._cells: Floats = np.empty((_FIXED, _FIRST_SIZE))

    def row(self, row: int) -> Floats:
        cells: Floats = self._cells[row, : len(self.jobs)]
        return cells

    def columns(self, places: NDArray[np.intp] | None) -> Floats:
        """All rows at these places of the queue; None: at all."""
        if places is None:
            return self._cells[:, : len(self.jobs)]
        return self._cells.take(places, axis=1)

    def place(self, id: int | None) -> int | None:
        """Where in the queue, which is not empty, a job is, if it is there."""
        found = self.row(_ID) == id
        place = int(found.argmax())
        return place if found[place] else None

    # What has come and gone

    def follow(self, queue: Collection[Waiting]) -> None:
        """Take over the queue as it is now. O(1) per job that was there before, in C."""
        jobs = list(queue)
        if jobs[: len(self.jobs)] != self.jobs:
            here = {job.id: job for job in jobs}
            self.drop([p for p, job in enumerate(self.jobs) if here.get(job.id) != job])
            if jobs[: len(self.jobs)] != self.jobs:  # in another order
                self.drop(range(len(self.jobs)))
        for job in jobs[len(self.jobs) :]:
            self._append(job)

    def drop(self, places: Collection[int]) -> None:
        """Forget the jobs at some places, which leave the queue."""
        gone, size = sorted(places), len(self.jobs)
        for place in reversed(gone):
            for name in _wants(self.jobs.pop(place)):
                self.asked[name] -= 1
        for moved, (place, end) in enumerate(pairwise([*gone, size]), 1):
            self._cells[:, place + 1 - moved : end - moved] = self._cells[:, place + 1 : end]

    def _append(self, job: Waiting) -> None:
        wants, place = _wants(job), len(self.jobs)
        for name in wants:
            if name not in self.named:
                self.named[name] = _FIXED + len(self.named)
                self.asked[name] = self._most[name] = 0
        rows, size = self._cells.shape
        if place == size or len(self.named) > rows - _FIXED:
            cells = np.zeros((_FIXED + len(self.named), 2 * size if place == size else size))
            cells[:rows, :size] = self._cells
            self._cells = cells
        self.jobs.append(job)
        self._cells[:_FIXED, place] = self._look_at(job)
        self._cells[_FIXED:, place] = 0.0
        for name, amount in wants.items():
            self._cells[self.named[name], place] = amount
            self.asked[name] += 1
            self._most[name] = max(self._most[name], amount)

    def _look_at(self, job: Waiting) -> tuple[float, ...]:
        weights, quickest = self._weights, job.estimated
        if job.machines:
            quickest = min(job.machines.values())
        rise = fall = math.inf
        slope = 0.0
        if job.deadline is not None:
            seconds = quickest if weights.run == "best" else job.estimated
            fall = job.deadline - seconds
            rise = fall - weights.lead * seconds
            slope = (weights.most - weights.least) / (fall - rise)
        rank = -weights.age_factor * job.since
        return job.id, job.cpus, quickest, rank, 1 / job.estimated, rise, slope, fall

    # Who can start

    def small(self, space: Room) -> Mask:
        """The jobs that are not too large for what is free: no other can start now."""
        return self._within(space.largest, space.counts)

    def hopeful(self, small: Mask, promise: Reservation) -> Mask:
        """Those of the small ones that might start beside the promise to the head."""
        in_time = promise.room.now + self.row(_QUICKEST) <= promise.shadow
        return small & (in_time | self._within(promise.widest, promise.counts))

    def _within(self, cpus: float, counts: Mapping[str, int]) -> Mask:
        within: Mask = self.row(_CPUS) <= cpus
        for name, amount in counts.items():
            if amount < self._most.get(name, 0):
                within &= self.row(self.named[name]) <= amount
        return within


def _wants(job: Waiting) -> Mapping[str | _Leased, int]:
    """What a job asks for of each resource; of a licence that it has leased, one."""
    wants: dict[str | _Leased, int] = {_Leased(name): 1 for name in job.licences}
    wants.update(job.counts)
    return wants


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
    steady: ClassVar[bool] = False

    def __init__(
        self, weights: Weights | None = None, licences: Mapping[str, int] | None = None
    ) -> None:
        self.weights = weights or Weights()
        self.licences = dict(licences or {})
        self._queue = _Table(self.weights)
        self._promise: Reservation | None = None  # to the head of the last pass that had one

    def starts(
        self, now: float, queue: Collection[Waiting], running: Collection[Running], free: Free
    ) -> list[Start]:
        self._queue.follow(queue)
        space = room(now, running, free)
        if self._queue.jobs and not space.full:
            self._pass(space)
        return space.starts

    def _pass(self, space: Room) -> None:
        small = self._queue.small(space)
        if small.any():
            self._backfill(space, small, self._descending(space))

    def _backfill(self, space: Room, small: Mask, order: Iterable[int]) -> Waiting | None:
        """EASY on the queue in an order of places: who is first and does not fit, if any."""
        jobs, begun = self._queue.jobs, []
        head: Waiting | None = None
        for place in order:
            small[place] = False
            machine = space.place(jobs[place])
            if machine == NOWHERE:
                head = jobs[place]
                break
            space.start(jobs[place], machine)
            begun.append(place)
        if head is not None and not space.full and small.any():
            promise = self._promised(head, space)
            hopeful = self._queue.hopeful(small, promise)
            for place in self._sorted(hopeful, space):
                if hopeful[place] and promise.admit(jobs[place]):
                    begun.append(place)
                    hopeful = self._queue.hopeful(small, promise)
            promise.settle()
        if begun:
            self._queue.drop(begun)
        return head

    def _promised(self, head: Waiting, space: Room) -> Reservation:
        """What the head was promised in an earlier pass, if that still holds, else anew."""
        before = self._promise
        if before is None or before.head != head or not before.holds_in(space):
            self._promise = before = space.reserve(head)
        return before

    def _descending(self, space: Room, but: int | None = None) -> Iterator[int]:
        """All places but one, the highest priority first, equal ones as queued.

        Few are looked at in most passes, so each is sought by itself.
        """
        ranks = self._ranks(space.now, space.rho)
        if but is not None:
            ranks[but] = -math.inf
        for _ in range(len(ranks) - (but is not None)):
            place = int(ranks.argmax())
            yield place
            ranks[place] = -math.inf

    def _sorted(self, which: Mask, space: Room) -> list[int]:
        """The places of these, the highest priority first, equal ones as queued."""
        places = np.flatnonzero(which)
        if len(places) > 1:
            ranks = self._ranks(space.now, space.rho, places)
            places = places[np.argsort(-ranks, kind="stable")]
        ordered: list[int] = places.tolist()
        return ordered

    def priorities(
        self, now: float, queue: Collection[Waiting], rho: Mapping[str, float] = _NONE
    ) -> list[float]:
        """P of every job of a queue, in its order; `rho` as in `Free`."""
        self._queue.follow(queue)
        ranks: list[float] = self._ranks(now, rho).tolist() if queue else []
        return ranks

    def _ranks(
        self, now: float, rho: Mapping[str, float], places: NDArray[np.intp] | None = None
    ) -> Floats:
        """P of the jobs at some places of the queue, or at all: it depends on the whole queue."""
        weights, table = self.weights, self._queue
        columns = table.columns(places)
        rank, shortness, rise, slope, fall = columns[_RANK:_FIXED]
        shortest = weights.boost / table.row(_SHORTNESS).max()
        ranks: Floats = rank + (weights.age_factor * now + shortest * shortness)
        late = 0.0 if weights.late == "zero" else weights.least
        since = np.maximum(now - rise, 0.0)
        pressing = np.where(now > fall, late, weights.least + slope * since)
        ranks += np.where(fall < math.inf, pressing, 0.0)
        if table.named:
            # with `dot` the last bit of a sum depends on how many jobs are looked at
            worth = np.einsum("i,ij->j", self._worth(rho), columns[_FIXED:] > 0)
            ranks += weights.licence * worth
        return ranks

    def _worth(self, told: Mapping[str, float]) -> Floats:
        """What each licence adds for who asks for it: its rho, times d if it is critical (> 1).

        rho is the number of queued jobs per copy of what the cluster counts, else it is `told`.
        d is the number of different licences asked for that are not critical, at least 1: by the
        formula of Pasquali 2008, (3.6)-(3.8).
        """
        rho = []
        for name, asked in self._queue.asked.items():
            if isinstance(name, _Leased):
                rho.append(told.get(name.name, 0.0) if asked else 0.0)
            else:
                rho.append(asked / max(self.licences[name], 1) if name in self.licences else 0.0)
        d = max(sum([0 < r <= 1 for r in rho]), 1)
        return np.array([d * r if r > 1 else r for r in rho])


class KeptReservation(FlexibleBackfilling):
    """The variant BF_UNMOD: the first job that could not start stays first until it does."""

    name: ClassVar[str] = UNMODIFIED

    def __init__(
        self, weights: Weights | None = None, licences: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(weights, licences)
        self._reserved: int | None = None

    def _pass(self, space: Room) -> None:
        small, first = self._queue.small(space), self._queue.place(self._reserved)
        if first is None:
            order = self._descending(space)
        elif small.any():
            order = chain((first,), self._descending(space, but=first))
        else:
            return
        head = self._backfill(space, small, order)
        self._reserved = None if head is None else head.id
