"""A group of ready tasks with equal requirements. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from metasched.core.tasks import Task, TaskId
from metasched.core.usage_limits import ScopeUse

SortKey = tuple[float, int, int]  # queue key, job, index
GroupOwner = tuple[str, int, str | None]  # user, priority, account
# Tasks to be examined, each with its sort key
QueuesOfGroups = dict[GroupOwner, Iterator[tuple[SortKey, Task]]]


def owner_of(task: Task) -> GroupOwner:
    """Return whose turn a task uses."""
    return task.job.user, task.priority, task.job.account


@dataclass(eq=False)
class TaskGroup:
    """Tasks of a user with equal requirements and priority that cannot be dispatched for now."""

    key: Hashable  # of their requirements, user and priority
    user: str  # of their jobs
    priority: int  # of all tasks
    account: str | None  # of their jobs
    tasks: dict[TaskId, Task] = field(default_factory=dict)
    queue: list[SortKey] = field(default_factory=list)  # a heap: all of `tasks`, and more
    reason: str | None = ""  # of all tasks; None: they may differ
    last_verdict: str | None = None  # reason of the task examined last; None: it keeps its own
    outdated: list[TaskId] = field(default_factory=list)  # reasons to be updated
    updated_to: str | None = None  # the reason that `outdated` tasks are to have
    limit: ScopeUse | None = None  # the limit that bars them; None: no cluster accepts them
    line_key: tuple[SortKey, int] | None = None  # of its valid entry in a line of `LimitLines`
    awaited: Sequence[str] = ()  # clusters that lack only a place in their queues
    # of its valid entries in `PlaceLines`, by cluster
    place_keys: dict[str, SortKey] = field(default_factory=dict)

    @property
    def owner(self) -> GroupOwner:
        """Whose tasks these are."""
        return self.user, self.priority, self.account

    @property
    def first(self) -> SortKey:
        """The first task of the queue."""
        while self.queue[0][1:] not in self.tasks:
            heapq.heappop(self.queue)
        return self.queue[0]

    @property
    def first_task(self) -> Task:
        """The task of `first`."""
        return self.tasks[self.first[1:]]
