"""The interface of policies that suspend running jobs, and resume them on any machine. Pure.

A suspended job keeps its progress: it is queued with the run times that are left. It holds neither
processors nor licences until it is resumed. Only the laboratory has clusters that can do that, so
no cluster of a daemon takes such a policy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import ClassVar, NamedTuple

from metasched.policies.local.capacity import OVERRUN_SECONDS
from metasched.policies.local.queueing import FreeResources, JobStart, RunningJob, WaitingJob


class PreemptibleJob(NamedTuple):
    """A running job that may be suspended."""

    job: WaitingJob  # as it was queued when it started last: the run times from then on
    running: RunningJob

    def left(self, now: float) -> float:
        """Return the share of the run times of `job` that is left, more than 0.

        A job past its estimate is taken to need `OVERRUN_SECONDS` on its machine.
        """
        job, running = self.job, self.running
        seconds = job.machines[running.machine] if job.machines else job.estimated
        return max(running.end - now, OVERRUN_SECONDS) / seconds

    def suspended(self, now: float) -> WaitingJob:
        """Return the job as it is queued if it is suspended now."""
        job, share = self.job, self.left(now)
        return job._replace(
            estimated=job.estimated * share,
            machines={machine: seconds * share for machine, seconds in job.machines.items()},
            on_fastest=job.on_fastest * share,
        )


class Changes(NamedTuple):
    """The result of a pass: first all suspensions, then all starts."""

    suspended: list[int]  # ids of running jobs; `starts` may resume some on other machines
    starts: list[JobStart]


class PreemptivePolicy(ABC):
    """A local policy that may suspend running jobs; an object serves a single cluster."""

    name: ClassVar[str]
    period: float = 0.0
    incremental: ClassVar[bool] = False

    @abstractmethod
    def choose_changes(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[PreemptibleJob],
        free: FreeResources,
    ) -> Changes:
        """Return the running jobs to suspend at `now`, and the jobs to start.

        `queue` includes suspended jobs. Starts never exceed `free` and the resources of the
        suspended jobs together.
        """

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        """Return the jobs to start if none can be suspended."""
        return self.choose_changes(now, queue, (), free).starts


def without_restarts(running: Iterable[PreemptibleJob], changes: Changes) -> Changes:
    """Leave running each job that would be suspended and resumed on its machine."""
    machines = {p.running.id: p.running.machine for p in running}
    resumed = {start.id for start in changes.starts if machines.get(start.id) == start.machine}
    return Changes(
        [job for job in changes.suspended if job not in resumed],
        [start for start in changes.starts if start.id not in resumed],
    )
