"""What Flexible Backfilling may be told: the constants of its heuristics. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

MODIFIED, UNMODIFIED = "fb-mod", "fb-unmod"  # by what its reservation may be taken over


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
