"""The scheduling policy: keys and defaults of a policy file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MAX_WINDOW = 1000  # jobs; upper limit of `Policy.window`
MAX_HISTORY = 1000  # jobs; upper limit of `SelfOptimisation.history`
WEIGHT_PREFIX = "weight-"  # of the name of a heuristic, in the keys of `Policy.self_optimising`


@dataclass(frozen=True, kw_only=True)
class SelfOptimisation:
    """How a parameter of the classification follows a target; ValueError for a wrong value."""

    history: int = 100  # jobs whose classes are compared with the target
    delta: float = 0.25  # distance from the target by `norm`; nothing changes below
    norm: Literal["l1", "l2"] = "l2"  # sum of the differences of shares, or Euclidean distance
    # relative numbers of jobs of priorities 1, 2, ...; (): each half of that below
    target: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 10 <= self.history <= MAX_HISTORY:
            raise ValueError(
                f"history is {self.history}; it must be a number of jobs from 10 to {MAX_HISTORY}"
            )
        if self.norm not in ("l1", "l2"):
            raise ValueError(f'norm is "{self.norm}"; it must be "l1" or "l2"')
        if not 0 < self.delta <= 2:  # the greatest distance of two distributions, by l1
            raise ValueError(f"delta is {self.delta}; it must be above 0 and at most 2")
        for share in self.target:
            if not 0 <= share <= 1e6:
                raise ValueError(f"target has {share}; a share must be from 0 to 1e6")
        if self.target and not sum(self.target) > 0:
            raise ValueError("target has no share above 0; give at least one such a share")

    def shares(self, classes: int) -> tuple[float, ...]:
        """Return the target as shares of 1; (): halving. ValueError for another number of them."""
        if self.target and len(self.target) != classes:
            raise ValueError(
                f"target has {len(self.target)} shares, there are {classes} priorities; "
                "write a share for each"
            )
        total = sum(self.target)
        return tuple(share / total for share in self.target)


@dataclass(frozen=True, kw_only=True)
class PlugInSettings:
    """How a heuristic of the site counts."""

    weight: float = 1.0
    parameters: dict[str, float] = field(default_factory=dict)  # keywords of its class


def weights_of(settings: Mapping[str, PlugInSettings]) -> dict[str, float]:
    """Return the weights of heuristics of the site by name."""
    return {name: each.weight for name, each in settings.items()}


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Parameters of the meta-scheduler. Daemon and simulator share the defaults."""

    max_priority: int = 10
    window: int = 100  # jobs with a deadline that heuristic `Deadline` compares with
    weights: dict[str, float] = field(default_factory=dict)  # of heuristics
    # base priority of each user class
    classes: dict[str, int] = field(default_factory=lambda: {"gold": 7, "silver": 4, "regular": 1})
    # loads from listings, of own jobs (S0), or expected waits
    load: Literal["observed", "paper", "forecast"] = "observed"
    ordering: Literal["array", "equal"] = "array"
    tolerance: float = 0.0  # loads that differ by no more count as equal
    pull: bool = True  # withdraw pending tasks that would start on another cluster now
    pull_after: float = 3.0  # seconds pending before a task may be pulled; doubles with each move
    # seconds until a pending task is recalled if others wait for its licences, and until no task
    # overtakes the head of a licence queue any more
    patience: float = 600.0
    age: float = 4 * 3600.0  # seconds of waiting that outweigh a step of priority
    default_time: float = 3600.0  # seconds; estimate of jobs without a time limit
    seed: int = 0
    send: Literal["at_once", "late"] = "at_once"  # late: when the task can start
    # cluster of a reservation: with the earliest start, or the first in the site's order that fits
    reserve: Literal["earliest", "first"] = "earliest"
    # parameters of the classification that optimise themselves, see `tuned_strategies`
    self_optimising: dict[str, SelfOptimisation] = field(default_factory=dict)
    # heuristics of the site by the names of their entry points, see `plug_in_ratings`
    heuristics: dict[str, PlugInSettings] = field(default_factory=dict)  # of the priority
    placement: dict[str, PlugInSettings] = field(default_factory=dict)
    run_times: dict[str, PlugInSettings] = field(default_factory=dict)

    @property
    def pull_enabled(self) -> bool:
        """Whether pending tasks are moved; tasks dispatched late start where they are."""
        return self.pull and self.send == "at_once"
