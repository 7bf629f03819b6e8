"""Groups of queued tasks with the same request, and their lines by owner. Pure.

Times are seconds since the epoch, durations seconds, amounts tokens (copies of a licence).
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import NamedTuple

from metasched.core.tasks import TaskId
from metasched.core.user_turns import Turn
from metasched.model.job import Job

# step of patience, -size, queue time, job, index; the smallest goes first
QueueKey = tuple[float, int, float, int, int]
LineRank = tuple[int, Turn, QueueKey]  # level (negative), turn, key; the smallest goes first
RequestedTokens = tuple[tuple[str, int], ...]  # licence, count; sorted


class QueueOwner(NamedTuple):
    """Whose turn a queued task uses."""

    user: str = ""
    priority: int = 1
    account: str | None = None


def round_up_duration(seconds: float) -> float:
    """Return the duration of a waiting task's group: a power of two."""
    return float(2.0 ** math.ceil(math.log2(seconds)))


class LeaseTerms(NamedTuple):
    """How long a task holds its licences, and in which reservation."""

    duration: float  # seconds, at most
    enforced: bool  # whether the task is killed at its limit
    reservation: int | None  # of the task


@dataclass(eq=False)
class RequestGroup:
    """Queued tasks with the same request and the same terms; never empty.

    If the first of them cannot go, no other can. Its rank and the heap of its lines are kept by
    `QueueOrder`.
    """

    requested: dict[str, int]  # tokens by licence, of each of its tasks; sorted by licence
    terms: LeaseTerms
    lines: dict[QueueOwner, OwnerLine] = field(default_factory=dict)

    rank: LineRank | None = None  # of the first task; None: computed on demand
    ranking: int = -1  # `QueueOrder.ranking` of `rank`
    # heap of (rank, number, line); an entry whose rank is not that of its line is stale
    entries: list[tuple[LineRank, int, OwnerLine]] = field(default_factory=list)
    changed: dict[OwnerLine, None] = field(default_factory=dict)  # lines without a right entry
    falls: int = -1  # `QueueOrder.falls` when all lines were ranked
    valid_until: float = 0.0  # epoch seconds; then a level of `entries` rises by time alone

    def note_change(self, line: OwnerLine) -> None:
        """Have a line ranked anew: it has another first task, or this task goes earlier."""
        self.changed[line] = None
        self.rank = None

    def remove(self, line: OwnerLine) -> None:
        """Remove a line without tasks."""
        del self.lines[line.owner]
        self.changed.pop(line, None)
        self.rank = line.rank = None


@dataclass(eq=False)
class OwnerLine:
    """The tasks of one owner in a group; never empty."""

    group: RequestGroup
    owner: QueueOwner
    job: Job | None  # of a task; jobs of an owner have the same share
    queue_keys: dict[TaskId, QueueKey] = field(default_factory=dict)  # of its tasks
    heap: list[QueueKey] = field(default_factory=list)  # of `queue_keys`; others may be stale
    head_key: QueueKey = field(init=False)  # of the first task
    rank: LineRank | None = None  # of its entry in the group's heap; None: it has none

    def add(self, task_id: TaskId, queue_key: QueueKey) -> None:
        """Add a task."""
        self.queue_keys[task_id] = queue_key
        heapq.heappush(self.heap, queue_key)
        if self.heap[0] == queue_key:
            self._set_head()

    def remove(self, task_id: TaskId) -> None:
        """Remove a task, and the line from its group with the last; O(log n) amortised."""
        del self.queue_keys[task_id]
        while self.heap and self.queue_keys.get(self.heap[0][3:]) != self.heap[0]:
            heapq.heappop(self.heap)
        if not self.heap:
            self.group.remove(self)
        elif self.heap[0] != self.head_key:
            self._set_head()

    def _set_head(self) -> None:
        self.head_key = self.heap[0]
        self.group.note_change(self)
