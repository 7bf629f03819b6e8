"""The plan of a queue's head, computed when it is first read. Not compiled: it fills itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from metasched.model.cluster import HeadPlan


class LazyHeadPlan(HeadPlan):
    """A plan that is computed when it is first read, which few listings need.

    It must be read before the manager changes.
    """

    def __init__(self, compute: Callable[[], HeadPlan]) -> None:
        object.__setattr__(self, "_compute", compute)

    def __getattr__(self, name: str) -> Any:
        plan = self._compute()
        vars(self).update(vars(plan))
        return getattr(plan, name)

    def __reduce__(self) -> tuple[object, ...]:
        """Copy the plan if it was read; else the copy has an unknown plan."""
        if "start" not in vars(self):
            return HeadPlan, (math.inf, (), {})
        return HeadPlan, (self.start, self.partitions, self.licences)
