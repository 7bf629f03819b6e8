"""Ready tasks without an eligible cluster, in groups with equal requirements. Pure.

The tasks of a group have the same eligible clusters. So only its first task is examined when a
cluster may have become eligible: the work depends on what can start, not on how many tasks wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

from metasched.core.tasks import Task, TaskId
from metasched.model.refusal_scope import JobSet

SortKey = tuple[float, int, int]  # queue key, job, index
# Tasks to be examined, each with its sort key, by user and priority
QueuesOfGroups = dict[tuple[str, int], Iterator[tuple[SortKey, Task]]]
MAX_REASONS_PER_STEP = 400  # tasks whose reason is updated; a step must not take long


@dataclass(eq=False)
class TaskGroup:
    """Tasks of a user with equal requirements and priority that no cluster accepts for now."""

    key: Hashable  # of their requirements, user and priority
    user: str  # of their jobs
    priority: int  # of all tasks
    tasks: dict[TaskId, Task] = field(default_factory=dict)
    queue: list[SortKey] = field(default_factory=list)  # a heap: all of `tasks`, and more
    reason: str | None = ""  # of all tasks; None: they may differ
    last_verdict: str | None = None  # reason of the task examined last; None: it keeps its own
    outdated: list[TaskId] = field(default_factory=list)  # reasons to be updated
    updated_to: str | None = None  # the reason that `outdated` tasks are to have

    @property
    def first(self) -> SortKey:
        """The first task of the queue."""
        while self.queue[0][1:] not in self.tasks:
            heapq.heappop(self.queue)
        return self.queue[0]


@dataclass(frozen=True)
class Recheck:
    """Jobs for which a cluster may have become eligible."""

    jobs: JobSet
    has_room: Callable[[], bool]  # whether that cluster accepts another task of them


class IneligibleTasks:
    """The groups, and which of them are to be examined again."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, TaskGroup] = {}
        self._by_user: dict[str, dict[Hashable, TaskGroup]] = {}
        self._group_of: dict[TaskId, TaskGroup] = {}
        self._rechecks: list[Recheck] = []
        self._unfinished: dict[Hashable, TaskGroup] = {}  # groups with outdated reasons
        self._allowance = 0  # reasons that may still be updated in this pass

    def __bool__(self) -> bool:
        return bool(self._group_of)

    def __contains__(self, task_id: TaskId) -> bool:
        return task_id in self._group_of

    # Membership

    def add(self, task: Task, key: Hashable, verdict: str | None) -> None:
        """Add a task that was examined; `verdict` is its reason, None if it keeps its last one."""
        task_id = task.task_id
        group = self._group_of.get(task_id)
        if group is None or group.key != key:
            self.remove(task_id)
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = TaskGroup(
                    key, task.job.user, task.priority, reason=task.reason
                )
                self._by_user.setdefault(group.user, {})[key] = group
            elif task.reason not in (group.reason, group.updated_to):
                group.reason = group.updated_to = None
            group.tasks[task_id] = task
            self._group_of[task_id] = group
            heapq.heappush(group.queue, (task.queue_key, *task_id))
        group.last_verdict = verdict

    def remove(self, task_id: TaskId) -> bool:
        """Remove a task from its group; return whether it was in a group."""
        group = self._group_of.pop(task_id, None)
        if group is None:
            return False
        del group.tasks[task_id]
        if not group.tasks:
            del self._groups[group.key]
            self._unfinished.pop(group.key, None)
            groups_of_user = self._by_user[group.user]
            del groups_of_user[group.key]
            if not groups_of_user:
                del self._by_user[group.user]
        return True

    # Rechecks

    def request_recheck(self, recheck: Recheck) -> None:
        """Examine the first tasks of these jobs' groups in the next pass."""
        if self._groups:
            self._rechecks.append(recheck)

    @property
    def has_outdated_reasons(self) -> bool:
        """Whether the next step has reasons to update."""
        return bool(self._unfinished)

    def take_rechecked(self, every: bool) -> QueuesOfGroups:
        """Return the tasks to be examined: of all groups, or as requested.

        After each task the caller has dispatched it, or added it again with its verdict.
        """
        rechecks, self._rechecks = self._rechecks, []
        groups = self._unfinished
        if every:
            groups = self._groups
        elif rechecks:
            groups = {**self._requested_groups(rechecks), **groups}
        self._allowance = MAX_REASONS_PER_STEP
        queues: dict[tuple[str, int], list[TaskGroup]] = {}
        for group in groups.values():
            queues.setdefault((group.user, group.priority), []).append(group)
        return {
            owner: self._examine_groups(groups_of_owner, None if every else rechecks)
            for owner, groups_of_owner in queues.items()
        }

    def _examine_groups(
        self, groups: list[TaskGroup], rechecks: list[Recheck] | None
    ) -> Iterator[tuple[SortKey, Task]]:
        """Yield the tasks to be examined of these groups; `rechecks` None: of all."""
        heap = [(group.first, group) for group in groups]
        heapq.heapify(heap)
        while heap:
            first, group = heapq.heappop(heap)
            task = group.tasks.get(first[1:])
            if task is not None:
                if not (rechecks is None or group.outdated or _may_start(task, rechecks)):
                    continue
                yield first, task
            if first[1:] in group.tasks:  # no cluster accepts it, nor the others
                yield from self._outdated_tasks(group)
            elif group.tasks:
                heapq.heappush(heap, (group.first, group))

    def _requested_groups(self, rechecks: list[Recheck]) -> dict[Hashable, TaskGroup]:
        groups: dict[Hashable, TaskGroup] = {}
        for recheck in rechecks:
            user = recheck.jobs.user
            groups |= self._groups if user is None else self._by_user.get(user, {})
        return groups

    def _outdated_tasks(self, group: TaskGroup) -> Iterator[tuple[SortKey, Task]]:
        """Yield tasks whose reason differs from that of the first task, as far as allowed."""
        verdict = group.last_verdict
        if verdict is None or verdict == group.reason:
            return
        if verdict != group.updated_to:
            group.updated_to, group.outdated, group.reason = verdict, list(group.tasks), None
        while group.outdated and self._allowance > 0:
            task = group.tasks.get(group.outdated.pop())
            if task is not None and task.reason != verdict:
                self._allowance -= 1
                yield (task.queue_key, *task.task_id), task
        if group.outdated:
            self._unfinished[group.key] = group
        else:
            self._unfinished.pop(group.key, None)
            group.reason, group.updated_to = verdict, None


def _may_start(task: Task, rechecks: list[Recheck]) -> bool:
    return any(recheck.has_room() and recheck.jobs.includes(task.job) for recheck in rechecks)
