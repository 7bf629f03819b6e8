"""Pulls to a cluster: pulls under way, pulls that started at once, and their evidence. Pure.

Kept since the start of the daemon. A pull is judged by the first listing after its manager had
`Cluster.start_delay` seconds to start it, or that names a limit for which it waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from metasched.core.promising_groups import PromisingGroups
from metasched.core.tasks import Attempt, Task, TaskId
from metasched.core.transitions import LIVE
from metasched.model.job import Job
from metasched.policies.pull import PullCapacity
from metasched.policies.pull_evidence import PullEvidence, names_limit


class PullRecord:
    """Pulls to a cluster since the start of the daemon."""

    def __init__(self, cluster: str, start_delay: float) -> None:
        """`start_delay`: see `Cluster`."""
        self._start_delay = start_delay
        self.pulls = 0  # dispatched to the cluster
        self.started_at_once = 0
        self.evidence = PullEvidence()
        self.promising_groups = PromisingGroups(cluster)
        # of the last check of a listing, until jobs are counted in it
        self.unused_capacity: PullCapacity | None = None
        self._withdrawn: set[TaskId] = set()  # from their former clusters, not dispatched yet
        self._arriving: dict[TaskId, tuple[Task, Attempt]] = {}  # dispatched, not judged yet

    @property
    def arriving(self) -> list[Job]:
        """Jobs that are listed as pending, but may still start at once."""
        return [
            task.job
            for task, attempt in self._arriving.values()
            if attempt.unstarted and attempt.in_last_listing
        ]

    @property
    def unjudged(self) -> list[Job]:
        """Jobs of dispatched pulls that have not shown yet whether they start at once."""
        return [task.job for task, _ in self._arriving.values()]

    def record_withdrawal(self, task: Task) -> None:
        """Record that a pulled task has left its former cluster."""
        self._withdrawn.add(task.task_id)

    def drop(self, task: Task) -> None:
        """Forget a pulled task that is not dispatched to the cluster after all."""
        self._withdrawn.discard(task.task_id)

    def record_dispatch(self, task: Task, attempt: Attempt) -> None:
        """Record a dispatch of a task that was withdrawn elsewhere; not each was a pull."""
        if task.task_id in self._withdrawn:
            self._withdrawn.remove(task.task_id)
            self._arriving[task.task_id] = task, attempt
            self.pulls += 1

    def judge(self, now: float, free_cpus: int, live_tasks: Iterable[Task]) -> None:
        """Judge the pulls that this listing shows as started, or that had time to start.

        `live_tasks` are all of the cluster.
        """
        if self.evidence.has_bars:
            self.evidence.pass_time(now, free_cpus)
        for task_id, (task, attempt) in list(self._arriving.items()):
            dispatched = attempt.dispatched if attempt.accepted is None else attempt.accepted
            latest_start = dispatched + self._start_delay
            if attempt.has_started:
                if attempt.started is None or attempt.started <= latest_start:
                    self.started_at_once += 1
                    self.evidence.record_success(task.job.user)
            elif attempt.state not in LIVE:
                pass  # cancelled, moved or rejected: no evidence
            elif attempt.in_last_listing and (
                now >= latest_start or names_limit(attempt.manager_reason)
            ):
                self.evidence.record_failure(
                    task.job,
                    attempt.manager_reason,
                    free_cpus,
                    now,
                    (live.job for live in live_tasks if live.live_attempt.has_started),
                )
            else:
                continue
            del self._arriving[task_id]

    def record_end(self, job: Job) -> None:
        """Lift the bars for which the end of a started job leaves room."""
        if self.evidence.has_bars:
            self.evidence.record_end(job)
