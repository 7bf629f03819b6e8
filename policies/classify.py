"""Classification: the priority of a job, from its own properties and earlier jobs' margins.

Pasquali 2008, §3.1.1: several heuristics each say how urgent a job is, and their weighted mean,
rounded half up and kept within 1..max, is its priority. It never looks at a cluster.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

from metasched.model.job import MAX_PRIORITY, Job
from metasched.policies.heuristic import Heuristic

MAX_CACHED_CLASSIFICATIONS = 1000  # different contributions whose priority is kept, at the most
USER_CLASSES: Mapping[str, float] = MappingProxyType({"gold": 7, "silver": 4, "regular": 1})


class Deadline(Heuristic):
    """Urgent is what has little time to spare, measured by what earlier jobs had to spare.

    `window` is the number of earlier jobs with a deadline whose margins count. `base` is the
    ratio between the widths of neighbouring intervals: with 2 each priority is meant to be half
    as frequent as the one below. ValueError if `window` or `base` is not positive.
    """

    name = "deadline"

    def __init__(self, window: int = 100, base: float = 2.0) -> None:
        if window < 1:
            raise ValueError(f"window is {window}; it must be 1 or more jobs")
        if not (math.isfinite(base) and base > 0):
            raise ValueError(f"base is {base}; it must be a positive number")
        self.base = base
        self._margins: deque[float] = deque(maxlen=window)

    def bounds(self, mean_margin: float) -> list[float]:
        """S_0..S_max (seconds) for a mean margin: [S_k, S_k+1) has priority max_priority - k.

        Pasquali 2008, (3.3) and (3.4), with `base` in both places; S_max is exactly `2 * mean`.
        """
        partial_sums = list(
            accumulate(
                (self.base**exponent for exponent in range(1, self.max_priority + 1)), initial=0
            )
        )
        return [2 * mean_margin * partial_sum / partial_sums[-1] for partial_sum in partial_sums]

    def contribution(self, job: Job) -> float:
        """0..max_priority; 1 without a deadline, the highest if it can no longer be met."""
        if job.deadline is None or (margin := job.margin) is None:
            return 1
        if margin <= 0:
            return self.max_priority
        interval = bisect_right(self.bounds(self._mean_margin(margin)), margin) - 1
        urgency = max(self.max_priority - interval, 1)
        ratio = margin / job.estimated
        if ratio >= 1:
            return urgency - math.floor(min(ratio, urgency))
        # ratio lies in [2**-(w+1), 2**-w), and frexp answers the exponent -w
        return min(urgency - math.frexp(ratio)[1], self.max_priority)

    def remember(self, job: Job) -> None:
        """Let the margin count for later jobs, unless there is none or it is negative."""
        if job.deadline is not None and (margin := job.margin) is not None and margin >= 0:
            self._margins.append(margin)

    def _mean_margin(self, own_margin: float) -> float:
        if not self._margins:
            return own_margin
        return math.fsum(self._margins) / len(self._margins)


class Licence(Heuristic):
    """Urgent is what asks for many *different* licences of the site's `total`.

    Such jobs start early, and so give their licences back early. ValueError if `total` is
    negative.
    """

    name = "licence"

    def __init__(self, total: int = 20) -> None:
        if total < 0:
            raise ValueError(f"total is {total}; it must be 0 or more licences")
        self.total = total

    def contribution(self, job: Job) -> float:
        """1-based index of the part of [0, total], cut into max_priority parts, asked for."""
        requested = len(job.licences)
        if requested >= self.total:
            return self.max_priority if requested else 1
        return requested * self.max_priority // self.total + 1


class User(Heuristic):
    """Urgent is what an important user submits, and what any user calls urgent.

    `classes` gives the base value of each class of users; a class that it lacks counts 1. The
    job's `owner_priority`, 0..3, is added. ValueError if a base value is negative or no number.
    """

    name = "user"

    def __init__(self, classes: Mapping[str, float] = USER_CLASSES) -> None:
        for name, value in classes.items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"user class {name} is {value}; it must be 0 or more")
        self.classes = dict(classes)

    def contribution(self, job: Job) -> float:
        return self.classes.get(job.user_class, 1) + job.owner_priority


class HeuristicContribution(NamedTuple):
    """What one heuristic says of a job, and how much that counts."""

    heuristic: str
    contribution: float
    weight: float


class Classifier:
    """The priority of jobs, 1..`max_priority`, higher first.

    `heuristics` are by default Deadline, Licence and User; `weights` maps the names of some to
    their weight (default 1). ValueError if a heuristic comes twice, a weight names none of them,
    is negative, or all are zero.
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
            raise ValueError("two heuristics have the same name; each counts once")
        self.weights = dict.fromkeys(self.heuristics, 1.0)
        for name, weight in (weights or {}).items():
            if name not in self.heuristics:
                available = ", ".join(self.heuristics)
                raise ValueError(f"weight of {name}: no such heuristic; there are {available}")
            if not (math.isfinite(weight) and weight >= 0):
                raise ValueError(f"weight of {name} is {weight}; it must be 0 or more")
            self.weights[name] = weight
        if not sum(self.weights.values()) > 0:
            raise ValueError("no heuristic has a weight above 0; at least one must count")
        for heuristic in selected:
            heuristic.max_priority = max_priority
        self._ordered_heuristics = list(selected)
        self._cache: dict[tuple[float, ...], tuple[int, list[HeuristicContribution]]] = {}
        self._learning_heuristics = [
            h for h in selected if type(h).remember is not Heuristic.remember
        ]

    def priority(self, job: Job) -> int:
        """Classify a job that is being submitted: `peek`, then `remember`. Once per job."""
        priority = self.peek(job)
        self.remember(job)
        return priority

    def peek(self, job: Job) -> int:
        """The priority the job would get now; nothing is remembered."""
        return self.classify(job)[0]

    def contributions(self, job: Job) -> list[HeuristicContribution]:
        """What each heuristic says of the job now; nothing is remembered.

        Later answers differ once other jobs have been remembered: whoever explains a priority
        afterwards keeps the parts that made it.
        """
        return [*self.classify(job)[1]]  # those that are kept stay as they are

    def classify(self, job: Job) -> tuple[int, list[HeuristicContribution]]:
        """The priority the job would get now, and its parts; both alike for jobs judged alike."""
        contributions = tuple(
            [heuristic.contribution(job) for heuristic in self._ordered_heuristics]
        )
        cached = self._cache.get(contributions)
        if cached is None:
            if len(self._cache) >= MAX_CACHED_CLASSIFICATIONS:
                self._cache.clear()
            cached = self._cache[contributions] = self._combine(contributions)
        return cached

    def _combine(self, contributions: Sequence[float]) -> tuple[int, list[HeuristicContribution]]:
        """The weighted mean of the contributions, rounded half up, in bounds; and its parts."""
        breakdown = [
            HeuristicContribution(*values)
            for values in zip(self.weights, contributions, self.weights.values(), strict=True)
        ]
        weight_sum = weighted_sum = 0.0
        for _, contribution, weight in breakdown:
            weight_sum += weight
            weighted_sum += weight * contribution
        mean = weighted_sum / weight_sum
        # weights like 0.7 leave a mean a hair below the half that it is
        rounded = math.floor(round(mean, 9) + 0.5)
        return min(max(rounded, 1), self.max_priority), breakdown

    def remember(self, job: Job) -> None:
        """Let the job count for those after it; a restart repeats it for the last jobs in turn."""
        for heuristic in self._learning_heuristics:
            heuristic.remember(job)


def cannot_meet_deadline(job: Job) -> bool:
    """Whether its deadline can no longer be met, even by starting at the time of submission."""
    return job.margin is not None and job.margin <= 0
