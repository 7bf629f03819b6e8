"""Classification: the priority of a job, from its own properties and the margins of earlier jobs.

Pasquali 2008, §3.1.1. Each heuristic rates the urgency of a job; their weighted mean, rounded half
up and limited to 1..max_priority, is the priority. The state of the clusters plays no part.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Final, NamedTuple

from metasched.model.job import MAX_PRIORITY, Job
from metasched.model.tuning import TuningChange
from metasched.policies.heuristic import Heuristic
from metasched.policies.self_optimising import SelfOptimiser

DEFAULT_BASE, DEFAULT_SPAN = 2.0, 2.0  # of the intervals of `Deadline`
# the name of `Deadline`; compiled, its class has no attribute of this value
DEADLINE: Final = "deadline"
MAX_CACHED_CLASSIFICATIONS = 1000  # entries; the cache is emptied when it is full
USER_CLASSES: Mapping[str, float] = MappingProxyType({"gold": 7, "silver": 4, "regular": 1})


class Deadline(Heuristic):
    """Urgency by the margin before the deadline, relative to the margins of earlier jobs.

    `window` is the number of earlier jobs with a deadline whose margins are averaged. `base` is the
    ratio of the widths of neighbouring intervals: with 2, each priority is meant to be half as
    frequent as the priority below it. The intervals cover `span` times the mean margin. ValueError
    if `window`, `base` or `span` is not positive.
    """

    name = DEADLINE

    def __init__(
        self, window: int = 100, base: float = DEFAULT_BASE, span: float = DEFAULT_SPAN
    ) -> None:
        if window < 1:
            raise ValueError(f"window is {window}; it must be 1 or more jobs")
        if not (math.isfinite(base) and base > 0):
            raise ValueError(f"base is {base}; it must be a positive number")
        if not (math.isfinite(span) and span > 0):
            raise ValueError(f"span is {span}; it must be a positive number")
        self.base, self.span = base, span
        self._margins: deque[float] = deque(maxlen=window)

    def bounds(
        self, mean_margin: float, base: float | None = None, span: float | None = None
    ) -> list[float]:
        """Return S_0..S_max in seconds: [S_k, S_k+1) has priority max_priority - k.

        Pasquali 2008, (3.3) and (3.4), with `base` in both; S_max is exactly `span * mean_margin`.
        Without `base` and `span` those of the heuristic count.
        """
        base, span = base or self.base, span or self.span
        widths = (base**k for k in range(1, self.max_priority + 1))
        bounds = list(accumulate(widths, initial=0))
        return [span * mean_margin * bound / bounds[-1] for bound in bounds]

    def interval_class(self, margin: float) -> int:
        """Return the priority of the interval of a margin above 0."""
        interval = bisect_right(self.bounds(self.mean_margin(margin)), margin) - 1
        return max(self.max_priority - interval, 1)

    def contribution(self, job: Job) -> float:
        """Return 0..max_priority: 1 without a deadline, max_priority if it can no longer be met."""
        if job.deadline is None or (margin := job.margin) is None:
            return 1
        if margin <= 0:
            return self.max_priority
        urgency = self.interval_class(margin)
        ratio = margin / job.estimated
        if ratio >= 1:
            return urgency - math.floor(min(ratio, urgency))
        # ratio lies in [2**-(w+1), 2**-w), for which frexp returns the exponent -w
        return min(urgency - math.frexp(ratio)[1], self.max_priority)

    def remember(self, job: Job) -> None:
        """Add the job's margin to the window, unless it is negative or there is no deadline."""
        if job.deadline is not None and (margin := job.margin) is not None and margin >= 0:
            self._margins.append(margin)

    def mean_margin(self, own_margin: float) -> float:
        """Return the mean margin of the window; `own_margin` while it is empty."""
        if not self._margins:
            return own_margin
        return math.fsum(self._margins) / len(self._margins)


class Licence(Heuristic):
    """Urgency by the number of *different* licences requested, of the `total` that the site has.

    Such jobs start early and so return their licences early. ValueError if `total` is negative.
    """

    name = "licence"

    def __init__(self, total: int = 20) -> None:
        if total < 0:
            raise ValueError(f"total is {total}; it must be 0 or more licences")
        self.total = total

    def contribution(self, job: Job) -> float:
        """Cut [0, total] into max_priority parts; return the 1-based index of the job's part."""
        requested = len(job.licences)
        if requested >= self.total:
            return self.max_priority if requested else 1
        return requested * self.max_priority // self.total + 1


class User(Heuristic):
    """Urgency by the class of the user and by the priority that the owner gives the job.

    `classes` maps a user class to its base value; a missing class counts 1. The job's
    `owner_priority`, 0..3, is added. ValueError if a base value is negative or not finite.
    """

    name = "user"

    def __init__(self, classes: Mapping[str, float] = USER_CLASSES) -> None:
        for name, value in classes.items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"user class {name} is {value}; it must be 0 or more")
        self.classes = dict(classes)

    def contribution(self, job: Job) -> float:
        return self.classes.get(job.user_class, 1) + job.owner_priority


class RatedAtSubmission(Heuristic):
    """A heuristic of the site: the job has its value, or the heuristic is excluded."""

    def __init__(self, name: str) -> None:
        self.name = name

    def contribution(self, job: Job) -> float | None:
        """Return the value that the plug-in gave at the submission; None: it is excluded."""
        return None if job.ratings is None else job.ratings.priorities.get(self.name)


class HeuristicContribution(NamedTuple):
    """The contribution of a heuristic to a priority."""

    heuristic: str  # its name
    contribution: float  # urgency, usually 0..max_priority
    weight: float


class Classifier:
    """Assigns priorities 1..`max_priority`, higher first.

    `heuristics` defaults to Deadline, Licence and User; `weights` maps heuristic names to weights
    (default 1). ValueError if two heuristics share a name, if a weight is negative or names no
    heuristic, or if all weights are zero.
    """

    def __init__(
        self,
        max_priority: int = MAX_PRIORITY,
        heuristics: Sequence[Heuristic] | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        if max_priority < 1:
            raise ValueError(f"max_priority is {max_priority}; it must be 1 or more")
        self.max_priority = max_priority
        selected = [Deadline(), Licence(), User()] if heuristics is None else heuristics
        self.heuristics = {heuristic.name: heuristic for heuristic in selected}
        if len(self.heuristics) != len(selected):
            raise ValueError("two heuristics have the same name; use each name once")
        self.weights = dict.fromkeys(self.heuristics, 1.0)
        for name, weight in (weights or {}).items():
            if name not in self.heuristics:
                available = ", ".join(self.heuristics)
                raise ValueError(f"weight of {name}: no such heuristic; available are {available}")
            if not (math.isfinite(weight) and weight >= 0):
                raise ValueError(f"weight of {name} is {weight}; it must be 0 or more")
            self.weights[name] = weight
        always = (h.name for h in selected if not isinstance(h, RatedAtSubmission))
        if not sum(self.weights[name] for name in always) > 0:  # others may be excluded
            raise ValueError("no heuristic has a weight above 0; give at least one such a weight")
        for heuristic in selected:
            heuristic.max_priority = max_priority
        self.optimisers: list[SelfOptimiser] = []
        self._ordered_heuristics = list(selected)
        self._cache: dict[tuple[float | None, ...], tuple[int, list[HeuristicContribution]]] = {}
        self._learning_heuristics = [
            h for h in selected if type(h).remember is not Heuristic.remember
        ]

    def priority(self, job: Job) -> int:
        """Classify a job at its submission: `peek`, then `remember`. Call it once per job."""
        priority = self.peek(job)
        self.remember(job)
        return priority

    def peek(self, job: Job) -> int:
        """Return the priority that the job would get now, without remembering the job."""
        return self.classify(job)[0]

    def contributions(self, job: Job) -> list[HeuristicContribution]:
        """Return what each heuristic contributes for the job now, without remembering the job.

        The result changes as other jobs are remembered: store it at submission to explain the
        priority later.
        """
        return [*self.classify(job)[1]]  # a copy: the cached list must not change

    def classify(self, job: Job) -> tuple[int, list[HeuristicContribution]]:
        """Return the priority that the job would get now and its breakdown.

        Jobs with equal contributions share a cached result.
        """
        contributions = tuple(
            [heuristic.contribution(job) for heuristic in self._ordered_heuristics]
        )
        cached = self._cache.get(contributions)
        if cached is None:
            if len(self._cache) >= MAX_CACHED_CLASSIFICATIONS:
                self._cache.clear()
            cached = self._cache[contributions] = self._combine(contributions)
        return cached

    def _combine(
        self, contributions: Sequence[float | None]
    ) -> tuple[int, list[HeuristicContribution]]:
        """Return the rounded weighted mean, limited to 1..max_priority, and its breakdown."""
        breakdown = [
            HeuristicContribution(name, contribution, weight)
            for (name, weight), contribution in zip(
                self.weights.items(), contributions, strict=True
            )
            if contribution is not None
        ]
        return self.combine(contributions), breakdown

    def combine(
        self, contributions: Sequence[float | None], weights: Mapping[str, float] | None = None
    ) -> int:
        """Return the priority of contributions in the order of the heuristics; None is left out."""
        weight_sum = weighted_sum = 0.0
        for contribution, weight in zip(
            contributions, (weights or self.weights).values(), strict=True
        ):
            if contribution is None:
                continue
            weight_sum += weight
            weighted_sum += weight * contribution
        # with weights such as 0.7 rounding errors leave an exact half slightly below it
        rounded = math.floor(round(weighted_sum / weight_sum, 9) + 0.5)
        return min(max(rounded, 1), self.max_priority)

    def set_weight(self, name: str, weight: float) -> None:
        """Change the weight of a heuristic for later jobs."""
        self.weights[name] = weight
        self._cache.clear()

    def remember(self, job: Job) -> list[TuningChange]:
        """Count the job for later priorities; a restart replays the last jobs in order.

        Return how `optimisers` changed the classification, which later jobs meet.
        """
        for optimiser in self.optimisers:
            optimiser.record(job)
        for heuristic in self._learning_heuristics:
            heuristic.remember(job)
        changes = (optimiser.evaluate() for optimiser in self.optimisers)
        return [change for change in changes if change is not None]


def cannot_meet_deadline(job: Job) -> bool:
    """Return whether the deadline is missed even if the job starts at its submission."""
    return job.margin is not None and job.margin <= 0
