"""How jobs reach clusters: through metasched, or as users submit without it.

The core dispatches and pulls by its policy. For comparison there are users who choose a cluster
themselves (`USER_CHOICES`), and dispatch by a plan of every cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from metasched.laboratory.simulate.manager import SimulatedManager
from metasched.laboratory.simulate.workload import WorkloadEntry
from metasched.model.job import Job

# From a job, the time, the seed and all managers: the indexes of the managers it is submitted to.
UserChoice = Callable[[WorkloadEntry, float, int, Sequence[SimulatedManager]], Sequence[int]]


@dataclass(frozen=True)
class SubmissionScheme:
    """How jobs reach clusters. ValueError for an unknown `user_choice`."""

    user_choice: str = ""  # key of USER_CHOICES; "": metasched chooses
    planned_dispatch: bool = False  # by a plan of every cluster, not by Load and Ordering
    # local policies start what arrived before a reservation is requested at the same moment
    in_turn: bool = False

    def __post_init__(self) -> None:
        if self.user_choice and self.user_choice not in USER_CHOICES:
            raise ValueError(
                f"choice is {self.user_choice}; it must be one of {', '.join(USER_CHOICES)}"
            )

    def bypass_targets(
        self, entry: WorkloadEntry, now: float, seed: int, managers: Sequence[SimulatedManager]
    ) -> Sequence[int]:
        """Return the clusters of a job that bypasses metasched; empty if it does not."""
        if entry.direct:
            return choose_home(entry, now, seed, managers)
        return (
            USER_CHOICES[self.user_choice](entry, now, seed, managers) if self.user_choice else ()
        )


# Choices of users


def _eligible_indexes(job: Job, managers: Sequence[SimulatedManager]) -> list[int]:
    return [
        index
        for index, manager in enumerate(managers)
        if manager.can_run(job) and (not job.clusters or manager.cluster.name in job.clusters)
    ]


def _is_home(entry: WorkloadEntry, managers: Sequence[SimulatedManager], index: int) -> bool:
    return managers[index].cluster.name == entry.home


def choose_home(
    entry: WorkloadEntry, now: float, seed: int, managers: Sequence[SimulatedManager]
) -> Sequence[int]:
    """Choose the owner's home cluster; if it cannot run the job, the first that can."""
    eligible = _eligible_indexes(entry.job, managers)
    return [next((index for index in eligible if _is_home(entry, managers, index)), eligible[0])]


def choose_random(
    entry: WorkloadEntry, now: float, seed: int, managers: Sequence[SimulatedManager]
) -> Sequence[int]:
    """Choose a random cluster that can run the job."""
    return [Random(f"{seed}/choice/{entry.job.id}").choice(_eligible_indexes(entry.job, managers))]


def choose_all(
    entry: WorkloadEntry, now: float, seed: int, managers: Sequence[SimulatedManager]
) -> Sequence[int]:
    """Choose all clusters that can run the job: the first start cancels the other copies."""
    return _eligible_indexes(entry.job, managers)


def choose_shortest_queue(
    entry: WorkloadEntry, now: float, seed: int, managers: Sequence[SimulatedManager]
) -> Sequence[int]:
    """Choose the cluster with the fewest queued jobs, ties to the first (Kurowski et al. 2011)."""
    return [min(_eligible_indexes(entry.job, managers), key=lambda i: len(managers[i].queue))]


def choose_like_slurm(
    entry: WorkloadEntry, now: float, seed: int, managers: Sequence[SimulatedManager]
) -> Sequence[int]:
    """Choose as `sbatch -M a,b`: the earliest estimated start, ties to the home cluster.

    Slurm's estimate is the earliest fit among the running jobs, plus the work (processors x limit)
    of all pending jobs over the processors of the partition.
    """
    job = entry.job

    def estimated_start(index: int) -> float:
        return managers[index].fit_time(job, now) + managers[index].pending_work()

    return [_choose_earliest(estimated_start, entry, managers)]


def choose_foreseen(
    entry: WorkloadEntry, now: float, seed: int, managers: Sequence[SimulatedManager]
) -> Sequence[int]:
    """Choose the cluster of the earliest start in a plan with the true run times of all jobs."""
    job, run_time = entry.job, entry.run_time
    return [
        _choose_earliest(
            lambda index: managers[index].plan_start(job, now, run_time=run_time), entry, managers
        )
    ]


def _choose_earliest(
    start_on: Callable[[int], float], entry: WorkloadEntry, managers: Sequence[SimulatedManager]
) -> int:
    eligible = _eligible_indexes(entry.job, managers)
    return min(eligible, key=lambda index: (start_on(index), not _is_home(entry, managers, index)))


USER_CHOICES: dict[str, UserChoice] = {
    "home": choose_home,
    "random": choose_random,
    "duplicates": choose_all,
    "shortest queue": choose_shortest_queue,
    "sbatch": choose_like_slurm,
    "foreseen": choose_foreseen,
}
