"""Dispatch by a plan of every cluster, which only a simulation can compute."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from metasched.laboratory.simulate.manager import SimulatedManager
from metasched.model.job import Job
from metasched.policies.dispatch import LoadOrdering
from metasched.policies.policy import Policy


class PlannedDispatch(LoadOrdering):
    """Chooses the cluster where the job starts first in a plan of all running and queued jobs.

    The simulation sets `now` before each choice.
    """

    def __init__(self, managers: Sequence[SimulatedManager], policy: Policy) -> None:
        names = [manager.cluster.name for manager in managers]
        super().__init__(names, max_priority=policy.max_priority, seed=policy.seed)
        self.now, self._managers = 0.0, dict(zip(names, managers, strict=True))

    def choose(self, job: Job, priority: int, eligible: Collection[str] | None = None) -> str:
        names = [name for name in self.clusters if eligible is None or name in eligible]
        return min(names, key=lambda name: self._managers[name].plan_start(job, self.now))
