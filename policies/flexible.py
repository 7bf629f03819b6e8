"""Flexible Backfilling: EASY on a queue whose priorities change as its jobs wait. Pure.

Pasquali 2008, §3.2.1, with the constants of its §4.1. Every pass computes every priority anew, so
the queue is kept as columns (`_Columns`), and a pass is some twenty operations on whole columns.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metasched.policies.queueing import (
    Free,
    Room,
    Running,
    Start,
    Waiting,
    backfill,
    room,
)
from metasched.policies.weights import MODIFIED, UNMODIFIED, Weights

Floats = NDArray[np.float64]
_NONE: Mapping[str, float] = MappingProxyType({})


class _Leased(NamedTuple):
    """A licence of the whole site, which is not counted here."""

    name: str


class _Columns:
    """The queue in its order, a row of columns for each job: what stays as it is while it waits.

    `rank` is the part of the priority that does not change, at time 0; the deadline is worth
    `least` until `rise`, then `slope` more per second until `fall`. `counts` has a column for each
    counted resource that a job ever asked for, and each licence that one has leased, in the order
    of `names`.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.names: dict[str | _Leased, int] = {}
        self._clear()

    def _clear(self) -> None:
        self.jobs: list[Waiting] = []
        self._fixed: Floats = np.empty((7, 0))
        self.counts: Floats = np.empty((0, len(self.names)))

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def ids(self) -> Floats:
        ids: Floats = self._fixed[0]
        return ids

    @property
    def cpus(self) -> Floats:
        cpus: Floats = self._fixed[1]
        return cpus

    @property
    def priced(self) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """`rank`, 1/estimate, `rise`, `slope`, `fall`."""
        rank, shortness, rise, slope, fall = self._fixed[2:]
        return rank, shortness, rise, slope, fall

    def follow(self, queue: Collection[Waiting]) -> None:
        """Take over the queue as it is now. O(1) per job that was there before, in C."""
        jobs = list(queue)
        if jobs[: len(self.jobs)] != self.jobs:
            here = {job.id: job for job in jobs}
            self._keep([here.get(job.id) == job for job in self.jobs])
            if jobs[: len(self.jobs)] != self.jobs:  # in another order
                self._clear()
        if new := jobs[len(self.jobs) :]:
            self._append(new)

    def drop(self, ids: Collection[int]) -> None:
        """Forget jobs that leave the queue."""
        self._keep(~np.isin(self.ids, list(ids)))

    def _keep(self, which: Sequence[bool] | NDArray[np.bool_]) -> None:
        kept = np.asarray(which, dtype=bool)
        for place in np.flatnonzero(~kept)[::-1].tolist():
            del self.jobs[place]
        self._fixed, self.counts = self._fixed[:, kept], self.counts[kept]

    def _append(self, jobs: Sequence[Waiting]) -> None:
        wants = [{**job.counts, **{_Leased(name): 1 for name in job.licences}} for job in jobs]
        for name in chain.from_iterable(wants):
            self.names.setdefault(name, len(self.names))
        old = self.counts
        self.counts = np.zeros((len(self.jobs) + len(jobs), len(self.names)))
        self.counts[: len(old), : old.shape[1]] = old
        for row, wanted in enumerate(wants, len(old)):
            for name, amount in wanted.items():
                self.counts[row, self.names[name]] = amount
        self.jobs += jobs
        fixed = np.array([self._look_at(job) for job in jobs]).T
        self._fixed = np.concatenate((self._fixed, fixed), axis=1)

    def _look_at(self, job: Waiting) -> tuple[float, ...]:
        weights = self._weights
        rise = fall = math.inf
        slope = 0.0
        if job.deadline is not None:
            seconds = job.estimated
            if weights.run == "best" and job.machines:
                seconds = min(job.machines.values())
            fall = job.deadline - seconds
            rise = fall - weights.lead * seconds
            slope = (weights.most - weights.least) / (fall - rise)
        rank = -weights.age_factor * job.since
        return job.id, job.cpus, rank, 1 / job.estimated, rise, slope, fall


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

    def __init__(
        self, weights: Weights | None = None, licences: Mapping[str, int] | None = None
    ) -> None:
        self.weights = weights or Weights()
        self.licences = dict(licences or {})
        self._queue = _Columns(self.weights)

    def starts(
        self, now: float, queue: Collection[Waiting], running: Collection[Running], free: Free
    ) -> list[Start]:
        self._queue.follow(queue)
        if not queue:
            return []
        space = room(now, running, free)
        if not space.full:
            self._pass(now, space)
        if space.starts:
            self._queue.drop([start.id for start in space.starts])
        return space.starts

    def _pass(self, now: float, space: Room) -> None:
        small = self._small(space)
        if small.any():
            backfill(self._ordered(now, small, space.rho), space)

    def _small(self, space: Room) -> NDArray[np.bool_]:
        """The jobs that are not too large for what is free: no other can start in this pass."""
        small = self._queue.cpus <= space.largest
        if self._queue.names and small.any():
            free = [
                space.counts.get(name, math.inf) if isinstance(name, str) else math.inf
                for name in self._queue.names
            ]
            small &= (self._queue.counts <= np.array(free)).all(axis=1)
        return small

    def _ordered(
        self, now: float, small: NDArray[np.bool_], rho: Mapping[str, float]
    ) -> Iterator[Waiting]:
        """The jobs that matter in this pass, the highest priority first, equal ones as queued.

        Those are the small ones, and of all others the first: it alone may be head.
        """
        ranks = self._ranks(now, rho)
        matter = small.copy()
        if not small.all():
            matter[np.where(small, -math.inf, ranks).argmax()] = True
        places = np.flatnonzero(matter)
        order = places[np.argsort(-ranks[places], kind="stable")]
        return map(self._queue.jobs.__getitem__, order.tolist())

    def priorities(
        self, now: float, queue: Collection[Waiting], rho: Mapping[str, float] = _NONE
    ) -> list[float]:
        """P of every job of a queue, in its order; `rho` as in `Free`."""
        self._queue.follow(queue)
        ranks: list[float] = self._ranks(now, rho).tolist()
        return ranks

    def _ranks(self, now: float, rho: Mapping[str, float]) -> Floats:
        weights, queue = self.weights, self._queue
        rank, shortness, rise, slope, fall = queue.priced
        shortest = weights.boost / shortness.max(initial=0.0) if len(queue) else 0.0
        ranks: Floats = rank + (weights.age_factor * now + shortest * shortness)
        late = 0.0 if weights.late == "zero" else weights.least
        since = np.maximum(now - rise, 0.0)
        pressing = np.where(now > fall, late, weights.least + slope * since)
        ranks += np.where(fall < math.inf, pressing, 0.0)
        if queue.names and (self.licences or rho):
            ranks += self._worth(rho)
        return ranks

    def _worth(self, told: Mapping[str, float]) -> Floats:
        """What each job's licences add: its rho, times d if that is above 1, critical.

        rho is the number of queued jobs per copy of what the cluster counts, else it is `told`.
        d is the number of different licences asked for that are not critical, at least 1: by the
        formula of Pasquali 2008, (3.6)-(3.8).
        """
        asks = self._queue.counts > 0
        rho: Floats = np.zeros(len(self._queue.names))
        for name, column in self._queue.names.items():
            if isinstance(name, _Leased):
                rho[column] = told.get(name.name, 0.0) if asks[:, column].any() else 0.0
            elif name in self.licences:
                rho[column] = asks[:, column].sum() / max(self.licences[name], 1)
        critical = rho > 1
        d = max(int(((rho > 0) & ~critical).sum()), 1)
        worth: Floats = np.dot(asks, np.where(critical, d * rho, rho))
        return self.weights.licence * worth


class KeptReservation(FlexibleBackfilling):
    """The variant BF_UNMOD: the first job that could not start stays first until it does."""

    name: ClassVar[str] = UNMODIFIED

    def __init__(
        self, weights: Weights | None = None, licences: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(weights, licences)
        self._reserved: int | None = None

    def _pass(self, now: float, space: Room) -> None:
        small, reserved = self._small(space), self._place_of_reserved()
        if reserved is None:
            order = self._ordered(now, small, space.rho)
        elif small.any():
            first = self._queue.jobs[reserved]
            others = (j for j in self._ordered(now, small, space.rho) if j is not first)
            order = chain((first,), others)
        else:
            return
        head = backfill(order, space)
        self._reserved = None if head is None else head.id

    def _place_of_reserved(self) -> int | None:
        places = np.flatnonzero(self._queue.ids == self._reserved)
        return int(places[0]) if len(places) else None
