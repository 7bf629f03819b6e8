"""Limits of a manager on the number of jobs, as far as its refusals show them. Pure.

A limit is found by bisection: after a refusal half as many tasks are dispatched. A search that has
ended is repeated with a single task after a delay, since others may have fewer jobs then. A limit
that has grown is found by doubling.

The number of a user's tasks on the way to a manager is bounded. So a refusal takes back few. Users
share that number, but each may have a whole dispatch on the way. So few tasks wait for commands,
and the others can still be ordered anew.

The tasks that wait in the manager's queue have places there, which all users share. The others
follow in turn as these start. So a later job of any user has few tasks before it, and a manager
that keeps the order of dispatch starts tasks in the order of turns. Tasks that cannot start may
take all places. So while processors are idle, each user may have an even part of the places, but
no more than processors are idle.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from metasched.core.rechecks import Recheck
from metasched.core.tasks import Task, TaskId
from metasched.model.job import Job, State
from metasched.model.refusal_scope import JobSet

# jobs for which a cluster has room that it had not before, by cluster and jobs
Rechecks = dict[tuple[str, JobSet], Recheck]
PROBE_DELAY = (10.0, 300.0)  # seconds until a further task is tried: initial, maximum
# Share of the most tasks without an answer at which dispatches begin again: two dispatches of 200
# tasks then follow, not many small ones
FEW_UNANSWERED = 0.6


@dataclass
class ScopeLimit:
    """The number of metasched's tasks that a cluster accepts among some jobs."""

    reason: str  # as the manager spelled it
    live_tasks: dict[TaskId, Task]  # of these jobs, on the cluster
    unanswered: int = 0  # of them: the manager has not answered yet
    limit: int = 0  # tasks that may be live
    refused: int | None = None  # a number of tasks that was refused; None: it has grown since
    refused_at: float = 0.0  # epoch seconds
    probe_at: float = 0.0  # epoch seconds; then a single task may exceed the limit
    probe_delay: float = 0.0  # seconds
    probe_allowed: bool = False

    @property
    def live(self) -> int:
        """The number of live tasks."""
        return len(self.live_tasks)

    @property
    def held(self) -> int:
        """The number of live tasks that the manager has accepted."""
        return self.live - self.unanswered

    @property
    def has_room(self) -> bool:
        """Whether another task may be dispatched."""
        return self.live < self.limit or self.probe_allowed


class ScopeLimits:
    """The limits of a cluster, by the jobs for which they hold."""

    def __init__(
        self,
        cluster: str,
        max_unanswered: int | None,
        max_per_dispatch: int,
        queue_depth: int | None,
        rechecks: Rechecks,
        refills: set[str],
    ) -> None:
        """`max_unanswered`, `queue_depth`: see `Cluster`; `rechecks`: of all clusters.

        `max_per_dispatch`: most tasks of a dispatch.
        `refills`: the clusters that may have got a place in their queues again.
        """
        self._cluster, self._rechecks, self._refills = cluster, rechecks, refills
        self._max_unanswered = math.inf if max_unanswered is None else max_unanswered
        self._max_per_dispatch = min(max_per_dispatch, self._max_unanswered)
        # by user (None: limits that hold for several users) and jobs
        self._limits: dict[str | None, dict[JobSet, ScopeLimit]] = {}
        self._limited_jobs: set[int] = set()  # jobs with a limit of their own
        self._unanswered: Counter[str] = Counter()  # dispatched tasks without an answer, by user
        self._awaiting: set[str] = set()  # users who get no further dispatch until answers come
        self._queue_depth = math.inf if queue_depth is None else queue_depth
        self._queued: Counter[str] = Counter()  # dispatched tasks that have not started, by user
        self._queued_total = 0  # of all users
        # reported last; unknown processors count as 1 idle processor
        self._idle_cpus = 1
        self._times_filled = 0  # how often all places were taken
        self._entered: dict[str, int] = {}  # `_times_filled` when a user's first task there came
        self.counts_tasks = True  # whether changes of tasks matter
        self._update_activity()

    def _update_activity(self) -> None:
        bounds = (self._max_unanswered, self._queue_depth)
        self.counts_tasks = bool(self._limits) or min(bounds) < math.inf

    def __bool__(self) -> bool:
        return bool(self._limits or self._awaiting or self._is_full)

    def _matching(self, job: Job) -> list[tuple[JobSet, ScopeLimit]]:
        return [
            (jobs, limit)
            for user in (None, job.user)
            for jobs, limit in self._limits.get(user, {}).items()
            if jobs.includes(job)
        ]

    def _all_limits(self) -> Iterator[tuple[JobSet, ScopeLimit]]:
        for limits in list(self._limits.values()):
            yield from list(limits.items())

    def has_limit_of(self, job: int) -> bool:
        """Return whether a limit holds for this job alone."""
        return job in self._limited_jobs

    def refuse(
        self, jobs: JobSet, refused: int, live_tasks: Iterable[Task], reason: str, now: float
    ) -> None:
        """Record that the manager refused `refused` tasks, which are among the live tasks."""
        limit = self._limits.setdefault(jobs.user, {}).get(jobs)
        if limit is None:
            tasks = {task.task_id: task for task in live_tasks if jobs.includes(task.job)}
            unanswered = sum(task.state is State.DISPATCHING for task in tasks.values())
            limit = self._limits[jobs.user][jobs] = ScopeLimit(reason, tasks, unanswered)
            self.counts_tasks = True
            if jobs.job is not None:
                self._limited_jobs.add(jobs.job)
        limit.reason, limit.refused_at = reason, now
        limit.limit, limit.refused = limit.held + refused // 2, limit.held + refused
        initial, maximum = PROBE_DELAY
        if refused == 1:
            limit.probe_delay = min(limit.probe_delay * 2, maximum) or initial
        limit.probe_allowed = False
        limit.probe_at = now + max(limit.probe_delay, initial)
        self._free(jobs, limit)

    def accept(self, job: Job) -> None:
        """Record that the manager accepted tasks of a job."""
        for jobs, limit in self._matching(job):
            if limit.held < limit.limit:
                continue
            if limit.refused is not None and limit.held >= limit.refused:
                limit.refused = None
            if limit.refused is None:
                limit.limit = 2 * limit.held
            else:
                limit.limit = (limit.held + limit.refused) // 2
            if limit.has_room:
                self._free(jobs, limit)

    def _free(self, jobs: JobSet, limit: ScopeLimit) -> None:
        self._rechecks[self._cluster, jobs] = Recheck(jobs, lambda: limit.has_room)

    def _forget(self, jobs: JobSet) -> None:
        limits = self._limits[jobs.user]
        del limits[jobs]
        if not limits:
            del self._limits[jobs.user]
        self._limited_jobs.discard(jobs.job or 0)
        self._rechecks[self._cluster, jobs] = Recheck(jobs, lambda: True)

    def add_task(self, task: Task) -> None:
        """Count a task that is dispatched or adopted."""
        if not self._limits:
            return
        for _, limit in self._matching(task.job):
            if limit.live >= limit.limit:
                limit.probe_allowed = False
            limit.live_tasks[task.task_id] = task

    def remove_task(self, task: Task) -> None:
        """Count a task whose attempt has ended."""
        if not self._limits:
            return
        for user in (None, task.job.user):
            for jobs, limit in self._limits.get(user, {}).items():
                if limit.live_tasks.pop(task.task_id, None) is not None and limit.has_room:
                    self._free(jobs, limit)

    # Dispatches without an answer

    def count_unanswered(self, task: Task, change: Literal[1, -1]) -> None:
        """Count a live task that is dispatched (1), or whose manager has answered (-1)."""
        user = task.job.user
        if self._limits:
            for owner in (None, user):
                for limit in self._limits.get(owner, {}).values():
                    if task.task_id in limit.live_tasks:
                        limit.unanswered += change
        if self._max_unanswered == math.inf:
            return
        count = self._unanswered[user] + change
        self._unanswered[user] = count
        most = max(self._max_unanswered // len(self._unanswered), self._max_per_dispatch)
        if count >= most:
            self._awaiting.add(user)
        elif user in self._awaiting and count <= FEW_UNANSWERED * most:
            self._awaiting.remove(user)
            self._recheck_user(user)
        if not count:
            del self._unanswered[user]

    def _recheck_user(self, user: str) -> None:
        jobs = JobSet(user=user)
        self._rechecks[self._cluster, jobs] = Recheck(jobs, lambda: user not in self._awaiting)

    def awaits_answers(self, user: str) -> bool:
        """Return whether the user gets no further dispatch until earlier ones are answered."""
        return user in self._awaiting

    # Tasks that wait in the manager's queue

    @property
    def _is_full(self) -> bool:
        return self._queued_total >= self._queue_depth

    @property
    def may_have_places(self) -> bool:
        """Whether a further task of any user may wait there."""
        return self._idle_cpus > 0 or not self._is_full

    def count_queued(self, user: str, change: Literal[1, -1]) -> None:
        """Count a task of a user that is dispatched (1), or that starts or ends there (-1)."""
        if self._queue_depth == math.inf:
            return
        was_full = self._is_full
        self._queued_total += change
        count = self._queued[user] + change
        self._queued[user] = count
        if change > 0:
            if count == 1:
                self._entered[user] = self._times_filled
            self._times_filled += not was_full and self._is_full
            return
        if not count:
            del self._queued[user], self._entered[user]
        if was_full and self.may_have_places:
            self._refills.add(self._cluster)

    def set_queue_depth(self, queue_depth: int | None) -> None:
        """Change the number of tasks that may wait."""
        depth = math.inf if queue_depth is None else queue_depth
        if depth != self._queue_depth:
            self._set_places(depth, self._idle_cpus)
            self._update_activity()

    def set_idle_cpus(self, idle_cpus: int | None) -> None:
        """Change the number of idle processors; None: unknown."""
        if self._queue_depth < math.inf:
            self._set_places(self._queue_depth, 1 if idle_cpus is None else idle_cpus)

    def _set_places(self, depth: float, idle_cpus: int) -> None:
        was_full = self._is_full
        is_larger = depth > self._queue_depth or idle_cpus > self._idle_cpus
        self._queue_depth, self._idle_cpus = depth, idle_cpus
        self._times_filled += not was_full and self._is_full
        if was_full and is_larger and self.may_have_places:
            self._refills.add(self._cluster)

    def awaits_place(self, user: str) -> bool:
        """Return whether a further task of the user awaits a place in the queue."""
        if self._queued_total < self._queue_depth:
            return False
        queued = self._queued.get(user, 0)
        users = len(self._queued) + (not queued)
        return queued >= min(self._idle_cpus, max(self._queue_depth // users, 1))

    def follows(self, user: str) -> bool:
        """Return whether the user has had tasks there since a time when all places were taken."""
        return self._entered.get(user, self._times_filled) < self._times_filled

    # Queries and time

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
        """Return whether a further task above a limit may be tried."""
        return any(now >= limit.probe_at for _, limit in self._all_limits())

    def pass_time(self, now: float) -> None:
        """Allow the probes that are due; forget a limit when no task has reached it for long."""
        for jobs, limit in self._all_limits():
            if now < limit.probe_at:
                continue
            if limit.probe_allowed and (limit.live == 0 or limit.refused is None):
                self._forget(jobs)
                continue
            limit.probe_allowed = True
            limit.probe_at = now + max(limit.probe_delay, PROBE_DELAY[0])
            self._free(jobs, limit)

    def adjust_clock(self, step: float) -> None:
        """Correct times after the wall clock was set by `step` seconds; see `Core`."""
        for _, limit in self._all_limits():
            limit.refused_at += min(step, 0.0)
            limit.probe_at += step
