"""Limits of a manager on the number of jobs, as far as its refusals show them. Pure.

A limit is found by bisection: after a refusal half as many tasks are dispatched. A search that has
ended is repeated with a single task after a delay, since others may have fewer jobs then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from metasched.core.tasks import Task, TaskId
from metasched.model.job import Job, State
from metasched.model.refusal_scope import JobSet

PROBE_DELAY = (10.0, 300.0)  # seconds until one task more is tried: initial, maximum


@dataclass
class ScopeLimit:
    """The number of metasched's tasks that a cluster accepts among some jobs."""

    reason: str  # as the manager spelled it
    live_tasks: set[TaskId]  # of these jobs, on the cluster
    limit: int = 0  # tasks that may be live
    refused: int = 0  # a number of tasks that was refused
    refused_at: float = 0.0  # epoch seconds
    probe_at: float = 0.0  # epoch seconds; then a single task may exceed the limit
    probe_delay: float = 0.0  # seconds
    probe_allowed: bool = False

    @property
    def live(self) -> int:
        """The number of live tasks."""
        return len(self.live_tasks)

    @property
    def has_room(self) -> bool:
        """Whether another task may be dispatched."""
        return self.live < self.limit or self.probe_allowed


class ScopeLimits:
    """The limits of a cluster, by the jobs for which they hold."""

    def __init__(self) -> None:
        self._limits: dict[JobSet, ScopeLimit] = {}
        self.room_freed = False  # waiting tasks may be dispatched that could not be before

    def __bool__(self) -> bool:
        return bool(self._limits)

    def _matching(self, job: Job) -> Iterator[tuple[JobSet, ScopeLimit]]:
        return ((jobs, limit) for jobs, limit in self._limits.items() if jobs.includes(job))

    def refuse(
        self, jobs: JobSet, refused: int, live_tasks: Iterable[Task], reason: str, now: float
    ) -> None:
        """Record that the manager refused `refused` tasks, which are among the live tasks."""
        tasks = [task for task in live_tasks if jobs.includes(task.job)]
        held = sum(task.state is not State.DISPATCHING for task in tasks)
        limit = self._limits.setdefault(jobs, ScopeLimit(reason, set()))
        limit.live_tasks = {task.task_id for task in tasks}
        limit.reason, limit.refused_at = reason, now
        limit.limit, limit.refused = held + refused // 2, held + refused
        initial, maximum = PROBE_DELAY
        if refused == 1:
            limit.probe_delay = min(limit.probe_delay * 2, maximum) or initial
        limit.probe_allowed = False
        limit.probe_at = now + max(limit.probe_delay, initial)
        self.room_freed = True

    def accept(self, job: Job) -> None:
        """Record that the manager accepted tasks of a job."""
        for jobs, limit in list(self._matching(job)):
            if limit.live >= limit.refused:
                del self._limits[jobs]  # it accepts as many as it has refused before
                self.room_freed = True
            elif limit.live >= limit.limit:
                grown = max((limit.live + limit.refused) // 2, limit.live)
                self.room_freed |= grown > limit.live
                limit.limit = grown

    def add_task(self, task: Task) -> None:
        """Count a task that is dispatched or adopted."""
        for jobs, limit in self._limits.items():
            if not jobs.includes(task.job):
                continue
            if limit.live >= limit.limit:
                limit.probe_allowed = False
            limit.live_tasks.add(task.task_id)

    def remove_task(self, task: Task) -> None:
        """Count a task whose attempt has ended."""
        for limit in self._limits.values():
            if task.task_id in limit.live_tasks:
                limit.live_tasks.remove(task.task_id)
                self.room_freed |= limit.has_room

    def obstacle(self, job: Job) -> str:
        """Return the limit that bars a job for now, as text; "" if none does."""
        for jobs, limit in self._matching(job):
            if not limit.has_room:
                return f"{limit.reason}; it holds {limit.live} tasks of {jobs}"
        return ""

    def refused_at(self, job: Job) -> float | None:
        """Return when a job like this was refused last (epoch seconds), or None."""
        return max((limit.refused_at for _, limit in self._matching(job)), default=None)

    def probe_due(self, now: float) -> bool:
        """Whether one task more than a limit may be tried."""
        return any(now >= limit.probe_at for limit in self._limits.values())

    def pass_time(self, now: float) -> None:
        """Allow the probes that are due; forget a limit when no task has reached it for long."""
        for jobs, limit in list(self._limits.items()):
            if now < limit.probe_at:
                continue
            if limit.probe_allowed and limit.live == 0:
                del self._limits[jobs]
            limit.probe_allowed = self.room_freed = True
            limit.probe_at = now + max(limit.probe_delay, PROBE_DELAY[0])

    def adjust_clock(self, step: float) -> None:
        """Correct times after the wall clock was set by `step` seconds; see `Core`."""
        for limit in self._limits.values():
            limit.refused_at += min(step, 0.0)
            limit.probe_at += step
