"""Constants of the heuristics of Convergent Scheduling. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

# Variants of the thesis, with preemption or not: incremental matching or not.
INCREMENTAL, OPTIMAL = "cs-i-np", "cs-ni-np"
PREEMPTIVE_INCREMENTAL, PREEMPTIVE_OPTIMAL = "cs-i-p", "cs-ni-p"
GREEDY = "cs-greedy-np"  # its first matching, MIS
VARIANT_NAMES = (INCREMENTAL, OPTIMAL, GREEDY, PREEMPTIVE_INCREMENTAL, PREEMPTIVE_OPTIMAL)


@dataclass(frozen=True, kw_only=True)
class ConvergentWeights:
    """The constants of Pasquali 2008, §4.2; the field names are keys of configuration.

    ValueError if a value is out of range.
    """

    age_factor: float = 0.02  # preference per second waited
    least: float = 0.1  # urgency of a deadline that is far away
    most: float = 10.0  # urgency of a deadline that an immediate start just meets
    lead: float = 1.3  # run times from the rise of the urgency to the deadline
    licence: float = 2.5  # preference of the job with the greatest demand for licences
    input: float = 3.0  # preference for a machine that holds all input
    shortness: float = 4.0  # preference for the shortest run time
    overhead: float = 8.0  # preference for the machine on which a job runs already
    late: Literal["none", "printed"] = "none"
    """Share of a machine that misses a deadline which another meets; `printed`: as in (3.10)."""
    longest: Literal["queue", "job"] = "queue"
    """Run time that shortness is relative to: the longest of the queue, or (printed) of the job."""
    discarded: Literal["return", "wait"] = "return"
    """Jobs that the knapsack discards: they return where they fit, or (printed) wait for a plan."""
    knapsack: Literal["greedy", "exact"] = "greedy"  # choice of the jobs that hold scarce licences

    def __post_init__(self) -> None:
        names = ("age_factor", "least", "most", "licence", "input", "shortness", "overhead")
        for name in names:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}; it must be 0 or more")
        if not any(getattr(self, name) for name in names):
            raise ValueError("all weights are 0; give one of them a positive value")
        if self.least > self.most:
            raise ValueError(f"least is {self.least}; it must be at most most, {self.most}")
        if not (math.isfinite(self.lead) and self.lead > 1):
            raise ValueError(f"lead is {self.lead}; it must be more than 1")
        if self.late not in ("none", "printed"):
            raise ValueError(f'late is "{self.late}"; it must be "none" or "printed"')
        if self.longest not in ("queue", "job"):
            raise ValueError(f'longest is "{self.longest}"; it must be "queue" or "job"')
        if self.discarded not in ("return", "wait"):
            raise ValueError(f'discarded is "{self.discarded}"; it must be "return" or "wait"')
        if self.knapsack not in ("greedy", "exact"):
            raise ValueError(f'knapsack is "{self.knapsack}"; it must be "greedy" or "exact"')
