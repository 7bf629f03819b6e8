"""What a policy author tunes: the keys of a policy file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a policy author tunes; durations in seconds. Daemon and simulator share the defaults.

    `age` is what one step of priority is worth in waiting; `pull_after` how long a task has been
    pending before it may be pulled, doubled with each move. After `patience` a task that has not
    begun is recalled if others wait for its licences, and one that is first in line for all of its
    own is passed no more. Jobs are sent `at_once`, or `late`: when they can start. A reservation is
    on the cluster that has it `earliest`, or on the `first` of the site's order that can keep it.
    """

    max_priority: int = 10
    window: int = 100
    weights: dict[str, float] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=lambda: {"gold": 7, "silver": 4, "regular": 1})
    load: Literal["observed", "paper"] = "observed"
    ordering: Literal["array", "equal"] = "array"
    tolerance: float = 0.0
    pull: bool = True
    pull_after: float = 3.0
    patience: float = 600.0
    age: float = 4 * 3600.0
    default_time: float = 3600.0
    seed: int = 0
    send: Literal["at_once", "late"] = "at_once"
    reserve: Literal["earliest", "first"] = "earliest"

    @property
    def pull_enabled(self) -> bool:
        """Whether pending tasks are moved: what is sent late starts where it is sent."""
        return self.pull and self.send == "at_once"


# what those keys may be
POLICY_CHOICES = {
    "load": ("observed", "paper"),
    "ordering": ("array", "equal"),
    "send": ("at_once", "late"),
    "reserve": ("earliest", "first"),
}
