"""Groups of tasks that wait for a limit, in lines by limit, user, priority and demand. Pure.

A release at a limit looks at the first group of each line there, not at all that wait. So tasks
above a limit cost nothing in steps that release none of it. Users take turns at shared limits.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator

from metasched.core.task_groups import GroupOwner, QueuesOfGroups, SortKey, TaskGroup
from metasched.core.tasks import Task
from metasched.core.usage_limits import ScopeUse, UsageLimits
from metasched.model.job import Job
from metasched.model.limits import LimitScope

MAX_CANDIDATES_PER_STEP = 400  # tasks; a step must not take long

_Line = list[tuple[SortKey, int, TaskGroup]]  # a heap; the number makes entries unique
_Lines = dict[Hashable, _Line]  # of a limit and an owner, by demand


class LimitLines:
    """The lines of all limits. Of each line, the first task that fits goes first."""

    def __init__(self, limits: UsageLimits) -> None:
        self._limits = limits
        self._lines: dict[LimitScope, dict[GroupOwner, _Lines]] = {}
        self._serial = 0  # number of the newest entry of a line
        self._allowance = 0  # tasks that may still be examined in this pass

    @property
    def has_candidates(self) -> bool:
        """Whether a limit was released for which tasks may wait."""
        return bool(self._limits.released)

    def add(self, group: TaskGroup, use: ScopeUse) -> None:
        """Let a group wait for a limit; it leaves the line where it waited before."""
        use.awaited = True
        lines = self._lines.setdefault(use.scope, {})
        self._push(lines.setdefault(group.owner, {}), group)

    def _push(self, lines: _Lines, group: TaskGroup) -> None:
        self._serial += 1
        key = group.line_key = group.first, self._serial
        heapq.heappush(lines.setdefault(_demand(group.first_task.job), []), (*key, group))

    def take_candidates(self) -> QueuesOfGroups:
        """Return the tasks that released limits may let go.

        After each task the caller has dispatched it, or set it aside again.
        """
        self._allowance = MAX_CANDIDATES_PER_STEP
        uses_of: dict[GroupOwner, list[ScopeUse]] = {}
        for use in self._limits.take_released():
            for owner in self._lines.get(use.scope, ()):
                uses_of.setdefault(owner, []).append(use)
        return {owner: self._candidates_of(owner, uses) for owner, uses in uses_of.items()}

    def _candidates_of(
        self, owner: GroupOwner, uses: list[ScopeUse]
    ) -> Iterator[tuple[SortKey, Task]]:
        while (group := self._first_fitting(owner, uses)) is not None:
            if not self._allowance:
                self._limits.add_released(uses)
                return
            self._allowance -= 1
            yield group.first, group.first_task

    def _first_fitting(self, owner: GroupOwner, uses: list[ScopeUse]) -> TaskGroup | None:
        """Return the group of the owner's first task that keeps within its limit, or None."""
        earliest = None
        for use in uses:
            lines_of = self._lines.get(use.scope, {})
            lines = lines_of.get(owner, {})
            for demand, line in list(lines.items()):
                group = self._first_group(lines, line)
                if group is None:
                    del lines[demand]
                elif (earliest is None or group.first < earliest.first) and not use.lacking(
                    group.first_task.job
                ):
                    earliest = group
            if not lines:
                lines_of.pop(owner, None)
            if not lines_of:
                self._lines.pop(use.scope, None)
                use.awaited = False
        return earliest

    def _first_group(self, lines: _Lines, line: _Line) -> TaskGroup | None:
        """Return the first group of a line; remove groups that no longer wait there."""
        while line:
            *key, group = line[0]
            if tuple(key) == group.line_key and group.tasks:
                if group.first == key[0]:
                    return group
                heapq.heappop(line)
                self._push(lines, group)
            else:
                heapq.heappop(line)
        return None


def _demand(job: Job) -> Hashable:
    """Return a key that jobs share if they take the same of each limit."""
    return job.cpus, *sorted(job.licences.items())
