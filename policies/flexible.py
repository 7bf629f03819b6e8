"""Flexible Backfilling: EASY on a queue whose priorities change as its jobs wait. Pure.

Pasquali 2008, §3.2.1, with the constants of its §4.1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from metasched.policies.queueing import (
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

    def starts(
        self, now: float, queue: Collection[Waiting], running: Collection[Running], free: Free
    ) -> list[Start]:
        space = room(now, running, free)
        if queue and not space.full:
            self._pass(now, list(queue), space)
        return space.starts

    def _pass(self, now: float, queue: Sequence[Waiting], space: Room) -> None:
        backfill(self.ordered(now, queue), space)

    def ordered(self, now: float, queue: Sequence[Waiting]) -> list[Waiting]:
        """The queue, the highest priority first; equal ones keep their order."""
        ranks = self.priorities(now, queue)
        order = sorted(range(len(queue)), key=ranks.__getitem__, reverse=True)
        return [queue[place] for place in order]

    def priorities(self, now: float, queue: Sequence[Waiting]) -> list[float]:
        """P of every job of a queue that is not empty."""
        weights = self.weights
        age, boost = weights.age_factor, weights.boost
        shortest = boost * min([job.estimated for job in queue])
        ranks = [age * (now - job.since) + shortest / job.estimated for job in queue]
        for place, job in enumerate(queue):
            if job.deadline is not None:
                ranks[place] += self.urgency(now, job, job.deadline)
        if self.licences:
            worth = self._worth(queue)
            for place, job in enumerate(queue):
                for name in job.counts:
                    ranks[place] += worth.get(name, 0.0)
        return ranks

    def urgency(self, now: float, job: Waiting, deadline: float) -> float:
        """What the deadline adds: `least`, rising to `most` for a run that would just meet it."""
        weights = self.weights
        seconds = job.estimated
        if weights.run == "best" and job.machines:
            seconds = min(job.machines.values())
        end, rise = now + seconds, deadline - weights.lead * seconds
        if end <= rise:
            return weights.least
        if end > deadline:
            return 0.0 if weights.late == "zero" else weights.least
        slope = (weights.most - weights.least) / (deadline - rise)
        return slope * (end - rise) + weights.least

    def _worth(self, queue: Sequence[Waiting]) -> dict[str, float]:
        """What asking for each licence adds: queued jobs per copy, times d if it is critical.

        d is the number of different licences asked for that are not critical, at least 1: by the
        formula of Pasquali 2008, (3.6)-(3.8).
        """
        copies = self.licences
        asked = Counter(name for job in queue for name in job.counts if name in copies)
        rho = {name: jobs / max(copies[name], 1) for name, jobs in asked.items()}
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

    def _pass(self, now: float, queue: Sequence[Waiting], space: Room) -> None:
        order = self.ordered(now, queue)
        for place, job in enumerate(order):
            if job.id == self._reserved:
                order.insert(0, order.pop(place))
                break
        head = backfill(order, space)
        self._reserved = None if head is None else head.id
