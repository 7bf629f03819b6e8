"""How jobs reach clusters: through the meta-scheduler, or as users do without one.

The core sends and pulls by its policy. Beside it, for comparison: users who choose a cluster by
themselves (`CHOICES`), clusters chosen by a plan of each, and jobs that wait in one queue until
they can start (`Late`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from random import Random

from metasched.model.job import Job
from metasched.policies.classify import Classifier
from metasched.policies.late_binding import LateBinding
from metasched.policies.pull import BackfillCapacity
from metasched.simulate.manager import SimulatedManager
from metasched.simulate.workload import WorkloadEntry

# Of a job, the time, the seed and all managers: where it is submitted, by their places.
UserChoice = Callable[[WorkloadEntry, float, int, Sequence[SimulatedManager]], Sequence[int]]


@dataclass(frozen=True)
class SubmissionScheme:
    """`choice`: users choose by themselves; "": the meta-scheduler does. Of its clusters it
    chooses by Load and Ordering, or by a `plan`; `late`: it sends only what starts at once.
    ValueError for a choice that there is not.
    """

    user_choice: str = ""
    planned_dispatch: bool = False
    late_binding: bool = False

    def __post_init__(self) -> None:
        if self.user_choice and self.user_choice not in USER_CHOICES:
            raise ValueError(
                f"choice is {self.user_choice}; it must be one of {', '.join(USER_CHOICES)}"
            )

    def bypass_targets(
        self, entry: WorkloadEntry, now: float, seed: int, managers: Sequence[SimulatedManager]
    ) -> Sequence[int]:
        """Where the job goes past the meta-scheduler; nowhere if it goes through it."""
        if entry.direct:
            return choose_home(entry, now, seed, managers)
        return (
            USER_CHOICES[self.user_choice](entry, now, seed, managers) if self.user_choice else ()
        )


# What users do


def _eligible_indexes(job: Job, managers: Sequence[SimulatedManager]) -> list[int]:
    return [index for index, manager in enumerate(managers) if manager.can_run(job)]


def _is_home(entry: WorkloadEntry, managers: Sequence[SimulatedManager], index: int) -> bool:
    return managers[index].cluster.name == entry.home


def choose_home(
    entry: WorkloadEntry, now: float, seed: int, managers: Sequence[SimulatedManager]
) -> Sequence[int]:
    """The cluster that its owner always uses; the first that can run it, for want of one."""
    eligible = _eligible_indexes(entry.job, managers)
    return [next((index for index in eligible if _is_home(entry, managers, index)), eligible[0])]


def choose_random(
    entry: WorkloadEntry, now: float, seed: int, managers: Sequence[SimulatedManager]
) -> Sequence[int]:
    """A cluster drawn among those that can run it."""
    return [Random(f"{seed}/choice/{entry.job.id}").choice(_eligible_indexes(entry.job, managers))]


def choose_all(
    entry: WorkloadEntry, now: float, seed: int, managers: Sequence[SimulatedManager]
) -> Sequence[int]:
    """All clusters that can run it: what begins first stays, the others are cancelled."""
    return _eligible_indexes(entry.job, managers)


def choose_like_slurm(
    entry: WorkloadEntry, now: float, seed: int, managers: Sequence[SimulatedManager]
) -> Sequence[int]:
    """`sbatch -M a,b`: the cluster that promises the earliest start, the home one among equals.

    Slurm's promise is the earliest fit among what runs, plus the work (processors x limit) of all
    that waits over the processors of the partition.
    """
    job = entry.job

    def estimated_start(index: int) -> float:
        return managers[index].fit_time(job, now) + managers[index].pending_work()

    return [_choose_earliest(estimated_start, entry, managers)]


def choose_foreseen(
    entry: WorkloadEntry, now: float, seed: int, managers: Sequence[SimulatedManager]
) -> Sequence[int]:
    """Where it would start first if all knew how long each job will really run."""
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
    "slurm": choose_like_slurm,
    "foreseen": choose_foreseen,
}


# What the meta-scheduler might do instead


@dataclass
class LateBindingQueue:
    """One queue for all clusters, in the order of the aged key (`policies.late`)."""

    managers: Sequence[SimulatedManager]
    classifier: Classifier
    age: float
    waiting: dict[int, tuple[float, WorkloadEntry]] = field(default_factory=dict)

    def add(self, entry: WorkloadEntry) -> None:
        """Take a job that has just been submitted."""
        job = entry.job
        key = job.submitted - self.age * (self.classifier.peek(job) - 1)
        self.waiting[job.id] = (key, entry)

    def take_startable(self, now: float) -> list[tuple[WorkloadEntry, int]]:
        """What is sent now, and where, in order; it is held no longer."""
        if not self.waiting or not any(manager.free_cpus > 0 for manager in self.managers):
            return []
        late_binding = LateBinding(
            {
                position: BackfillCapacity(manager.cluster_info(), now)
                for position, manager in enumerate(self.managers)
            }
        )
        startable: list[tuple[WorkloadEntry, int]] = []
        for _, entry in sorted(self.waiting.values(), key=itemgetter(0)):
            index = late_binding.choose(entry.job, _eligible_indexes(entry.job, self.managers))
            if index is not None:
                startable.append((entry, index))
            if late_binding.full:
                break
        for entry, _ in startable:
            del self.waiting[entry.job.id]
        return startable
