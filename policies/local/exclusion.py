"""Local policies of other packages: a pass that fails is decided by FCFS instead. Pure.

So in simulations, which run them in their own process. A `local` cluster has the same rule, and
runs them in a process beside its worker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from operator import index
from typing import Any, Final

from metasched.policies.local.orders import FCFS
from metasched.policies.local.queueing import (
    FreeResources,
    JobStart,
    LocalPolicy,
    RunningJob,
    WaitingJob,
)

# Jobs at the head of the queue about which a policy of another package is asked: a million of them
# take seconds and 1 GB to pass on. As `bf_max_job_test` of Slurm, it bounds a pass.
MAX_ASKED: Final = 10_000


class ExcludablePolicy:
    """A policy that may raise, or start what does not wait or fit: FCFS decides that pass.

    It has all other attributes of the policy.
    """

    incremental = False  # it does not see all jobs, so later ones may start before an end

    def __init__(self, name: str, policy: LocalPolicy) -> None:
        self.name, self._policy, self._fallback = name, policy, FCFS()
        self.excluded_passes = 0

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._policy, attribute)

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        try:
            asked = queue if len(queue) <= MAX_ASKED else list(islice(queue, MAX_ASKED))
            chosen = self._policy.choose_starts(now, asked, running, free)
            starts = read_starts(chosen, asked)
            check_starts(starts, asked, free)
        except (Exception, SystemExit):
            self.excluded_passes += 1
            return self._fallback.choose_starts(now, queue, running, free)
        return starts


def read_starts(chosen: Iterable[Any], queue: Collection[WaitingJob]) -> list[JobStart]:
    """Return the starts that a policy of another package chooses: one more than `queue` at most.

    Its iterator may raise, hang or be endless. TypeError for an entry that is no start.
    """
    starts = (JobStart(*start) for start in islice(chosen, len(queue) + 1))
    return [JobStart(index(start.id), index(start.machine)) for start in starts]


def check_starts(
    starts: Collection[JobStart], queue: Collection[WaitingJob], free: FreeResources
) -> None:
    """Raise ValueError if a job does not wait, or has no room."""
    waiting = {job.id: job for job in queue}
    machines = None if free.machines is None else list(free.machines)
    cpus, resources = free.cpus, dict(free.resources)
    for start in starts:
        if (job := waiting.pop(start.id, None)) is None:
            raise ValueError(f"it starts {start.id}, which does not wait")
        cpus -= job.cpus
        if machines is not None:
            if start.machine not in job.machines:
                raise ValueError(f"machine {start.machine} cannot run {start.id}")
            machines[start.machine] -= job.cpus
        names = job.resources.keys() & resources.keys()  # others are unlimited
        for name in names:
            resources[name] -= job.resources[name]
        short = machines is not None and machines[start.machine] < 0
        if cpus < 0 or short or any(resources[name] < 0 for name in names):
            raise ValueError(f"it starts {start.id}, for which there is no room")
