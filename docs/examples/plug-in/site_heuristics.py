"""Heuristics of a site: small jobs first, long jobs to fast clusters."""

from metasched.model import Job
from metasched.policies.heuristic import ClusterTraits, Heuristic, PlacementHeuristic


class SmallFirst(Heuristic):
    def __init__(self, full: float = 64) -> None:
        self.full = full  # processors of a job that is not urgent at all

    def contribution(self, job: Job) -> float:
        return self.max_priority * max(0.0, 1 - job.cpus / self.full)


class LongToFast(PlacementHeuristic):
    def rating(self, job: Job, cluster: ClusterTraits) -> float:
        is_long, is_fast = job.estimated > 3600, cluster.benchmark > 200
        return 1.0 if is_long == is_fast else 0.0
