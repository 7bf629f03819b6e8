"""Flexible Backfilling: EASY on a queue whose priorities change as its jobs wait. Pure.

Pasquali 2008, §3.2.1, with the constants of its §4.1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from metasched.policies.queueing import (
    NOWHERE,
    Free,
    Room,
    Running,
    Start,
    Waiting,
    backfill,
    room,
)


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The constants of the four heuristics. ValueError if one makes no sense.

    `age_factor` priority per second waited; `least` and `most` what a deadline is worth far from
    it and at it, rising from `lead` times the run time before it; `licence` per job that asks for
    a copy; `boost` of the job with the shortest estimate. `run` is the time counted by the
    deadline: the `estimate`, or what it takes on the `best` machine; `late` what a deadline that
    will be missed is worth: nothing (`zero`) or `least`.
    """

    age_factor: float = 0.01
    least: float = 0.1
    most: float = 20.0
    lead: float = 1.4
    licence: float = 1.0
    boost: float = 2.0
    run: Literal["best", "estimate"] = "best"
    late: Literal["zero", "least"] = "zero"

    def __post_init__(self) -> None:
        for name in ("age_factor", "least", "most", "licence", "boost"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}; it must be 0 or more")
        if not (math.isfinite(self.lead) and self.lead > 1):
            raise ValueError(f"lead is {self.lead}; it must be more than 1")
        if self.run not in ("best", "estimate"):
            raise ValueError(f'run is "{self.run}"; it must be "best" or "estimate"')
        if self.late not in ("zero", "least"):
            raise ValueError(f'late is "{self.late}"; it must be "zero" or "least"')


class _Known(NamedTuple):
    """What of a job's priority does not change while it waits.

    The deadline is worth `least` until `rise`, then `slope` more per second until `fall`.
    """

    job: Waiting
    rank: float  # without what changes, at time 0
    shortness: float
    licences: tuple[str, ...]
    rise: float
    slope: float
    fall: float


class FlexibleBackfilling:
    """EASY on a queue ordered by `P = anti-aging + deadline + licences + wait minimisation`.

    P is computed again at every pass, O(q). `licences` says how many copies the cluster has of
    what `Waiting.counts` calls by those names; other counted resources have no part in P. This is
    the variant BF_MOD: the reservation belongs to whoever is first in the queue.
    """

    name: ClassVar[str] = "fb-mod"
    period: float = 0.0

    def __init__(
        self, weights: Weights | None = None, licences: Mapping[str, int] | None = None
    ) -> None:
        self.weights = weights or Weights()
        self.licences = dict(licences or {})
        self._known: dict[int, _Known] = {}
        self._asked: Counter[str] = Counter()  # licences, by queued jobs

    def starts(
        self, now: float, queue: Collection[Waiting], running: Collection[Running], free: Free
    ) -> list[Start]:
        space = room(now, running, free)
        self._learn(queue)
        if queue and not space.full:
            self._pass(now, queue, space)
        return space.starts

    def _pass(self, now: float, queue: Collection[Waiting], space: Room) -> None:
        fitting = [job for job in queue if space.place(job) != NOWHERE]
        if fitting:
            backfill(self._ordered(now, queue, fitting), space)

    def _ordered(
        self, now: float, queue: Collection[Waiting], fitting: Sequence[Waiting]
    ) -> list[Waiting]:
        """The jobs that matter in this pass, the highest priority first, equal ones as queued.

        Those are what fits now, and of all others the first: nothing else can start or be head.
        """
        ranks = self.priorities(now, queue)
        order = sorted(fitting, key=lambda job: -ranks[job.id])
        fits = {job.id for job in fitting}
        others = [job for job in queue if job.id not in fits]
        if others:
            head = max(others, key=lambda job: ranks[job.id])
            earlier = {job.id: place for place, job in enumerate(queue)}
            place = sum(
                (-ranks[job.id], earlier[job.id]) < (-ranks[head.id], earlier[head.id])
                for job in order
            )
            order.insert(place, head)
        return order

    def priorities(self, now: float, queue: Collection[Waiting]) -> dict[int, float]:
        """P of every job of a queue, by its id."""
        self._learn(queue)
        weights, known = self.weights, self._known
        aged = weights.age_factor * now
        late = 0.0 if weights.late == "zero" else weights.least
        worth = self._worth()
        shortest = weights.boost * min([job.estimated for job in queue], default=0.0)
        ranks = {}
        for job in queue:
            _, rank, shortness, licences, rise, slope, fall = known[job.id]
            rank += aged + shortest * shortness
            if now > fall:
                rank += late
            elif now > rise:
                rank += weights.least + slope * (now - rise)
            elif fall < math.inf:
                rank += weights.least
            for name in licences:
                rank += worth[name]
            ranks[job.id] = rank
        return ranks

    def _learn(self, queue: Collection[Waiting]) -> None:
        """Take note of jobs that joined the queue or left it since the last pass."""
        known = self._known
        for job in queue:
            if job.id not in known:
                known[job.id] = self._look_at(job)
                self._asked.update(known[job.id].licences)
        if len(known) > len(queue):
            here = {job.id for job in queue}
            for gone in [id for id in known if id not in here]:
                self._asked.subtract(known.pop(gone).licences)

    def _look_at(self, job: Waiting) -> _Known:
        weights = self.weights
        rise = fall = math.inf
        slope = 0.0
        if job.deadline is not None:
            seconds = job.estimated
            if weights.run == "best" and job.machines:
                seconds = min(job.machines.values())
            fall = job.deadline - seconds
            rise = fall - weights.lead * seconds
            slope = (weights.most - weights.least) / (fall - rise)
        licences = tuple(name for name in job.counts if name in self.licences)
        rank = -weights.age_factor * job.since
        return _Known(job, rank, 1 / job.estimated, licences, rise, slope, fall)

    def _worth(self) -> dict[str, float]:
        """What asking for each licence adds: queued jobs per copy, times d if it is critical.

        d is the number of different licences asked for that are not critical, at least 1: by the
        formula of Pasquali 2008, (3.6)-(3.8).
        """
        copies, asked = self.licences, self._asked
        rho = {name: jobs / max(copies[name], 1) for name, jobs in asked.items() if jobs > 0}
        d = max(sum(value <= 1 for value in rho.values()), 1)
        weight = self.weights.licence
        return {name: weight * (value if value <= 1 else d * value) for name, value in rho.items()}


class KeptReservation(FlexibleBackfilling):
    """The variant BF_UNMOD: the first job that could not start stays first until it does."""

    name: ClassVar[str] = "fb-unmod"

    def __init__(
        self, weights: Weights | None = None, licences: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(weights, licences)
        self._reserved: int | None = None

    def _pass(self, now: float, queue: Collection[Waiting], space: Room) -> None:
        reserved = self._known.get(self._reserved) if self._reserved is not None else None
        fitting = [job for job in queue if space.place(job) != NOWHERE]
        if reserved is not None and not fitting:
            return
        order = self._ordered(now, queue, fitting)
        if reserved is not None:
            order = [reserved.job, *(job for job in order if job.id != reserved.job.id)]
        head = backfill(order, space)
        self._reserved = None if head is None else head.id
