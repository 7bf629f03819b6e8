"""The scheduling policy: keys and defaults of a policy file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

MAX_WINDOW = 1000  # jobs; upper limit of `Policy.window`


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Parameters of the meta-scheduler. Daemon and simulator share the defaults."""

    max_priority: int = 10
    window: int = 100  # jobs with a deadline that heuristic `Deadline` compares with
    weights: dict[str, float] = field(default_factory=dict)  # of heuristics
    # base priority of each user class
    classes: dict[str, int] = field(default_factory=lambda: {"gold": 7, "silver": 4, "regular": 1})
    load: Literal["observed", "paper"] = "observed"  # loads from listings, or of own jobs (S0)
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

    @property
    def pull_enabled(self) -> bool:
        """Whether pending tasks are moved; tasks dispatched late start where they are."""
        return self.pull and self.send == "at_once"


# values of the keys that accept a few words
POLICY_CHOICES = {
    "load": ("observed", "paper"),
    "ordering": ("array", "equal"),
    "send": ("at_once", "late"),
    "reserve": ("earliest", "first"),
}
