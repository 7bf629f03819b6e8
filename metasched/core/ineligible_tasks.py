"""Ready tasks without an eligible cluster, in groups with equal requirements. Pure.

The tasks of a group have the same eligible clusters. So only its first task is examined when a
cluster may have become eligible: the work depends on what can start, not on how many tasks wait.
Groups above a limit of the site wait in `LimitLines`; no cluster matters to them meanwhile. Groups
that await a place in the queue of a cluster have entries in `PlaceLines`.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Sequence

from metasched.core.limit_lines import LimitLines
from metasched.core.place_lines import PlaceLines
from metasched.core.rechecks import Recheck
from metasched.core.state import SchedulerState
from metasched.core.task_groups import GroupOwner, QueuesOfGroups, SortKey, TaskGroup
from metasched.core.tasks import Task, TaskId
from metasched.core.usage_limits import ScopeUse, UsageLimits

MAX_REASONS_PER_STEP = 400  # tasks whose reason is updated; a step must not take long


class IneligibleTasks:
    """The groups, and which of them are to be examined again."""

    def __init__(self, limits: UsageLimits, state: SchedulerState) -> None:
        self._state = state
        self._groups: dict[Hashable, TaskGroup] = {}
        self._limited: dict[Hashable, TaskGroup] = {}  # the groups above a limit of the site
        self.lines = LimitLines(limits)  # of the latter
        self._places = PlaceLines(state)
        self._by_user: dict[str, dict[Hashable, TaskGroup]] = {}
        self._group_of: dict[TaskId, TaskGroup] = {}
        self._rechecks: list[Recheck] = []
        # of the current pass: rechecks, None: all groups are examined; clusters with places
        self._pass_rechecks: list[Recheck] | None = None
        self._pass_refills: list[str] = []
        self._unfinished: dict[Hashable, TaskGroup] = {}  # groups with outdated reasons
        self._allowance = 0  # reasons that may still be updated in this pass

    def __bool__(self) -> bool:
        return bool(self._group_of)

    def __contains__(self, task_id: TaskId) -> bool:
        return task_id in self._group_of

    def __len__(self) -> int:
        return len(self._group_of)

    def unlimited_tasks(self) -> Iterator[Task]:
        """Yield the tasks that no limit of the site bars."""
        for group in self._groups.values():
            yield from group.tasks.values()

    def group_id(self, task_id: TaskId) -> int | None:
        """Return a number that tasks share for which the same clusters are eligible, if known."""
        group = self._group_of.get(task_id)
        return None if group is None else id(group)

    # Membership

    def add(
        self,
        task: Task,
        key: Hashable,
        verdict: str | None,
        limit: ScopeUse | None = None,
        awaited: Sequence[str] = (),
    ) -> None:
        """Add a task that was examined; `verdict` is its reason, None if it keeps its last reason.

        `limit` bars it, if it is above a limit of the site. The `awaited` clusters lack only a
        place in their queues.
        """
        task_id = task.task_id
        group = self._group_of.get(task_id)
        if group is None or group.key != key:
            self.remove(task_id)
            group = self._groups.get(key) or self._limited.get(key)
            if group is None:
                group = TaskGroup(
                    key,
                    task.job.user,
                    task.priority,
                    task.job.account,
                    reason=task.reason,
                    limit=limit,
                )
                self._insert(group)
            self._put(task, group)
        group.last_verdict = verdict
        if limit is not group.limit:
            self._take_out(group)
            group.limit, group.line_key = limit, None
            self._insert(group)
            self._unfinished[key] = group  # the reasons of its other tasks
        if limit is not None and (group.line_key is None or group.first < group.line_key[0]):
            self.lines.add(group, limit)
        elif verdict not in (None, group.reason, group.updated_to):
            self._unfinished[key] = group
        group.awaited = awaited
        self._places.add(group)

    def join(self, task: Task, member: TaskId) -> None:
        """Add a task to the group of an equal task without an examination."""
        self._put(task, self._group_of[member])

    def _put(self, task: Task, group: TaskGroup) -> None:
        if task.reason not in (group.reason, group.updated_to):
            group.reason = group.updated_to = None
        group.tasks[task.task_id] = task
        self._group_of[task.task_id] = group
        heapq.heappush(group.queue, (task.queue_key, *task.task_id))

    def remove(self, task_id: TaskId) -> bool:
        """Remove a task from its group; return whether it was in a group."""
        group = self._group_of.pop(task_id, None)
        if group is None:
            return False
        del group.tasks[task_id]
        if not group.tasks:
            self._unfinished.pop(group.key, None)
            self._take_out(group)
        return True

    def _insert(self, group: TaskGroup) -> None:
        if group.limit is not None:
            self._limited[group.key] = group
            return
        self._groups[group.key] = group
        self._by_user.setdefault(group.user, {})[group.key] = group

    def _take_out(self, group: TaskGroup) -> None:
        if group.limit is not None:
            del self._limited[group.key]
            return
        del self._groups[group.key]
        groups_of_user = self._by_user[group.user]
        del groups_of_user[group.key]
        if not groups_of_user:
            del self._by_user[group.user]

    # Rechecks

    def request_recheck(self, recheck: Recheck) -> None:
        """Examine the first tasks of these jobs' groups in the next pass."""
        if self._groups:
            self._rechecks.append(recheck)

    @property
    def has_unfinished_work(self) -> bool:
        """Whether the next step has reasons to update, or tasks to examine."""
        return bool(self._unfinished) or self.lines.has_candidates

    def take_rechecked(self, every: bool) -> QueuesOfGroups:
        """Return the tasks to be examined: of all groups, as requested, or that may get a place.

        After each task the caller has dispatched it, or added it again with its verdict.
        """
        refills = self._state.take_refills()
        if not (self._groups or self._unfinished):
            self._rechecks.clear()
            return {}
        rechecks, self._rechecks = self._rechecks, []
        self._pass_rechecks, self._pass_refills = None if every else rechecks, refills
        groups = self._unfinished
        if every:
            groups = {**self._groups, **groups}
        elif rechecks:
            groups = {**self._requested_groups(rechecks), **groups}
        self._allowance = MAX_REASONS_PER_STEP
        queues: dict[GroupOwner, list[TaskGroup]] = {}
        for group in groups.values():
            queues.setdefault(group.owner, []).append(group)
        if refills and not every:
            for owner in self._places.owners_with_place(refills):
                queues.setdefault(owner, [])
        return {owner: self._examine(owner, requested) for owner, requested in queues.items()}

    def _examine(
        self, owner: GroupOwner, requested: list[TaskGroup]
    ) -> Iterator[tuple[SortKey, Task]]:
        """Yield the tasks of an owner to be examined: of requested groups, or that have a place."""
        heap = [(group.first, group) for group in requested]
        heapq.heapify(heap)
        refills = () if self._pass_rechecks is None else self._pass_refills
        passed_over = None
        while True:
            in_line = self._places.first_with_place(owner, refills) if refills else None
            if in_line is not None and in_line.first == passed_over:
                in_line, refills = None, ()  # the caller took no notice: late binding has no room
            if in_line is not None and (not heap or in_line.first < heap[0][0]):
                passed_over = in_line.first
                yield in_line.first, in_line.first_task
                continue
            if not heap:
                return
            first, group = heapq.heappop(heap)
            task = group.tasks.get(first[1:])
            if task is not None:
                if not self._is_requested(group, task):
                    continue
                yield first, task
            if first[1:] in group.tasks:  # no cluster accepts it, nor the others
                yield from self._outdated_tasks(group)
            elif group.tasks:
                heapq.heappush(heap, (group.first, group))

    def _is_requested(self, group: TaskGroup, task: Task) -> bool:
        """Return whether the first task of a group is to be examined in this pass, places aside."""
        rechecks = self._pass_rechecks
        return rechecks is None or group.key in self._unfinished or _may_start(task, rechecks)

    def is_candidate(self, task: Task) -> bool:
        """Return whether a task is still to be examined in this pass."""
        group = self._group_of.get(task.task_id)
        return (
            group is None
            or group.limit is not None
            or self._is_requested(group, task)
            or self._places.has_place(group, self._pass_refills)
        )

    @property
    def exhausted(self) -> bool:
        """Whether no further task of a group may start in this pass."""
        return not (
            self._pass_rechecks is None
            or self._pass_rechecks
            or self.has_unfinished_work
            or self._places.any_left(self._pass_refills)
        )

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
            self._unfinished.pop(group.key, None)
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
