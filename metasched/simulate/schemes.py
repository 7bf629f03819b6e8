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
from metasched.policies.late_binding import LateSending
from metasched.policies.pull import Room
from metasched.simulate.manager import Manager
from metasched.simulate.workload import Request

# Of a job, the time, the seed and all managers: where it is submitted, by their places.
Choice = Callable[[Request, float, int, Sequence[Manager]], Sequence[int]]


@dataclass(frozen=True)
class Scheme:
    """`choice`: users choose by themselves; "": the meta-scheduler does. Of its clusters it
    chooses by Load and Ordering, or by a `plan`; `late`: it sends only what starts at once.
    ValueError for a choice that there is not.
    """

    choice: str = ""
    plan: bool = False
    late: bool = False

    def __post_init__(self) -> None:
        if self.choice and self.choice not in CHOICES:
            raise ValueError(f"choice is {self.choice}; it must be one of {', '.join(CHOICES)}")

    def places(
        self, request: Request, now: float, seed: int, managers: Sequence[Manager]
    ) -> Sequence[int]:
        """Where the job goes past the meta-scheduler; nowhere if it goes through it."""
        if request.direct:
            return home(request, now, seed, managers)
        return CHOICES[self.choice](request, now, seed, managers) if self.choice else ()


# What users do


def _able(job: Job, managers: Sequence[Manager]) -> list[int]:
    return [place for place, manager in enumerate(managers) if manager.able(job)]


def _at_home(request: Request, managers: Sequence[Manager], place: int) -> bool:
    return managers[place].cluster.name == request.home


def home(request: Request, now: float, seed: int, managers: Sequence[Manager]) -> Sequence[int]:
    """The cluster that its owner always uses; the first that can run it, for want of one."""
    able = _able(request.job, managers)
    return [next((p for p in able if _at_home(request, managers, p)), able[0])]


def drawn(request: Request, now: float, seed: int, managers: Sequence[Manager]) -> Sequence[int]:
    """A cluster drawn among those that can run it."""
    return [Random(f"{seed}/choice/{request.job.id}").choice(_able(request.job, managers))]


def everywhere(
    request: Request, now: float, seed: int, managers: Sequence[Manager]
) -> Sequence[int]:
    """All clusters that can run it: what begins first stays, the others are cancelled."""
    return _able(request.job, managers)


def slurm(request: Request, now: float, seed: int, managers: Sequence[Manager]) -> Sequence[int]:
    """`sbatch -M a,b`: the cluster that promises the earliest start, the home one among equals.

    Slurm's promise is the earliest fit among what runs, plus the work (processors x limit) of all
    that waits over the processors of the partition.
    """
    job = request.job

    def promise(place: int) -> float:
        return managers[place].fits_at(job, now) + managers[place].waiting_work()

    return [_least(promise, request, managers)]


def foreseen(request: Request, now: float, seed: int, managers: Sequence[Manager]) -> Sequence[int]:
    """Where it would start first if all knew how long each job will really run."""
    job, ran = request.job, request.ran
    return [_least(lambda place: managers[place].plans_at(job, now, ran=ran), request, managers)]


def _least(promise: Callable[[int], float], request: Request, managers: Sequence[Manager]) -> int:
    able = _able(request.job, managers)
    return min(able, key=lambda place: (promise(place), not _at_home(request, managers, place)))


CHOICES: dict[str, Choice] = {
    "home": home,
    "random": drawn,
    "duplicates": everywhere,
    "slurm": slurm,
    "foreseen": foreseen,
}


# What the meta-scheduler might do instead


@dataclass
class Late:
    """One queue for all clusters, in the order of the aged key (`policies.late`)."""

    managers: Sequence[Manager]
    classifier: Classifier
    age: float
    held: dict[int, tuple[float, Request]] = field(default_factory=dict)

    def hold(self, request: Request) -> None:
        """Take a job that has just been submitted."""
        job = request.job
        key = job.submitted - self.age * (self.classifier.peek(job) - 1)
        self.held[job.id] = (key, request)

    def sendable(self, now: float) -> list[tuple[Request, int]]:
        """What is sent now, and where, in order; it is held no longer."""
        if not self.held or not any(manager.free > 0 for manager in self.managers):
            return []
        sending = LateSending({p: Room(m.facts(), now) for p, m in enumerate(self.managers)})
        sent: list[tuple[Request, int]] = []
        for _, request in sorted(self.held.values(), key=itemgetter(0)):
            place = sending.choose(request.job, _able(request.job, self.managers))
            if place is not None:
                sent.append((request, place))
            if sending.full:
                break
        for request, _ in sent:
            del self.held[request.job.id]
        return sent
