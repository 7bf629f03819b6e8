"""Constants of the heuristics of Flexible Backfilling. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

MODIFIED, UNMODIFIED = "fb-mod", "fb-unmod"  # BF_MOD and BF_UNMOD of the thesis


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The constants of the four heuristics; the field names are keys of configuration.

    ValueError if a value is out of range.
    """

    age_factor: float = 0.01  # priority per second waited
    least: float = 0.1  # value of a deadline that is far away
    most: float = 20.0  # value of a deadline at the latest start that meets it
    lead: float = 1.4  # run times from the begin of the rise of that value to the latest start
    licence: float = 1.0  # factor of the licence values
    boost: float = 2.0  # value of the job with the shortest estimate
    run: Literal["best", "estimate", "fastest"] = "best"
    """Run time used for the deadline: on the best machine that can run the job, as estimated, or on
    the fastest machine of the cluster."""
    late: Literal["zero", "least"] = "zero"  # value of a deadline that will be missed

    def __post_init__(self) -> None:
        for name in ("age_factor", "least", "most", "licence", "boost"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}; it must be 0 or more")
        if not (math.isfinite(self.lead) and self.lead > 1):
            raise ValueError(f"lead is {self.lead}; it must be more than 1")
        if self.run not in ("best", "estimate", "fastest"):
            raise ValueError(f'run is "{self.run}"; it must be "best", "estimate" or "fastest"')
        if self.late not in ("zero", "least"):
            raise ValueError(f'late is "{self.late}"; it must be "zero" or "least"')


def make_weights(arguments: Mapping[str, Any]) -> Weights:
    """Create weights from keys of configuration. ValueError for a bad value, or if all are 0."""
    weights = Weights(**arguments)
    if not any((weights.age_factor, weights.least, weights.most, weights.licence, weights.boost)):
        raise ValueError("all weights are 0, so jobs stay in the order of arrival; use policy easy")
    return weights
