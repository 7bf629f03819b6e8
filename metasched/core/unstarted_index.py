"""Index of unstarted tasks for pulls: groups of equal requests on the same cluster. Pure.

Each listing asks which of all pending tasks would start on its cluster now. Tasks of a group need
the same nodes and licences, so that a group is checked once for all of its tasks. A task with
alternative licences is in a group for each of them. While the facts of a cluster do not change,
only new groups and groups that passed the check are examined again.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass, field
from operator import itemgetter

from metasched.core.tasks import Task, TaskId
from metasched.model.job import Job

_SPARE_LOG = 1000  # entries of ended groups before the log is cut
_SPARE_LIMITS = 1000  # limits without a task before a heap of them is cut


@dataclass(eq=False, slots=True)
class UnstartedGroup:
    """Unstarted tasks on a cluster that need the same nodes and licences."""

    cluster: str
    job: Job  # of some task, with the licences of the group
    cpus_per_task: int
    most_copies: int  # of a licence
    # by queue key and id, with the number of the alternative licences
    tasks: list[tuple[float, TaskId, int, Task]] = field(default_factory=list)
    _counts: dict[float, int] = field(default_factory=dict)  # tasks by time limit in seconds
    _limits: list[float] = field(default_factory=list)  # a heap: all of `_counts`, and more

    @property
    def shortest(self) -> float:
        """The lowest time limit of a task in seconds; without tasks inf."""
        return self._limits[0] if self._limits else math.inf

    def add(self, task: Task, choice: int, seconds: float) -> None:
        """Add a task with this time limit; of its alternative licences it takes `choice`."""
        insort(self.tasks, (task.queue_key, task.task_id, choice, task))
        if seconds not in self._counts:
            heapq.heappush(self._limits, seconds)
        self._counts[seconds] = self._counts.get(seconds, 0) + 1

    def remove(self, task: Task, seconds: float) -> None:
        """Remove a task that was added with this time limit. Amortised O(log limits)."""
        del self.tasks[bisect_left(self.tasks, (task.queue_key, task.task_id))]
        self._counts[seconds] -= 1
        if not self._counts[seconds]:
            del self._counts[seconds]
        if len(self._limits) > 2 * len(self._counts) + _SPARE_LIMITS:
            self._limits = sorted(self._counts)
        while self._limits and self._limits[0] not in self._counts:
            heapq.heappop(self._limits)


class UnstartedIndex:
    """Groups of unstarted tasks; `log` lists groups that may newly start, in order."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, UnstartedGroup] = {}
        # by task: keys of its groups, and its time limit in seconds when it was added
        self._entries: dict[TaskId, tuple[list[Hashable], float]] = {}
        self._log: list[UnstartedGroup] = []
        self._cut = 0  # entries cut off from the log
        self.position = 0  # the present end of the log
        # by cluster: how many groups need so many processors, and the fewest that some group needs
        self._sizes: dict[str, dict[int, int]] = {}
        self._fewest_cpus: dict[str, int] = {}
        # cluster where some task needs the fewest processors, these, the fewest of all others;
        # None: to be found again
        self._least: tuple[str, float, float] | None = None

    def add(self, task: Task, cluster: str) -> None:
        """Add a task that is now pending, or may be, on a cluster."""
        job = task.job
        seconds = job.time_limit or job.estimated
        keys = list[Hashable]()
        self._entries[task.task_id] = keys, seconds
        for choice, licences in enumerate(job.licence_requests):
            key = (cluster, job.node_requirements, frozenset(licences.items()))
            keys.append(key)
            group = self._groups.get(key)
            if group is None:
                most_copies = max(licences.values(), default=0)
                group = self._groups[key] = UnstartedGroup(
                    cluster, job.with_licences(choice), job.cpus_per_task, most_copies
                )
                self._append_to_log(group)
                self._count_size(cluster, job.cpus)
            elif seconds < group.shortest:
                self._append_to_log(group)
            group.add(task, choice, seconds)

    def remove(self, task: Task) -> None:
        """Remove a task that has started or left its cluster."""
        keys, seconds = self._entries.pop(task.task_id)
        for key in keys:
            group = self._groups[key]
            group.remove(task, seconds)
            if group.tasks:
                continue
            del self._groups[key]
            self._discount_size(group.cluster, group.job.cpus)
            if len(self._log) > 2 * len(self._groups) + _SPARE_LOG:
                self._cut += len(self._log)
                self._log = list(self._groups.values())
                self.position = self._cut + len(self._log)

    def _append_to_log(self, group: UnstartedGroup) -> None:
        self._log.append(group)
        self.position += 1

    def _count_size(self, cluster: str, cpus: int) -> None:
        sizes = self._sizes.setdefault(cluster, {})
        sizes[cpus] = sizes.get(cpus, 0) + 1
        if cpus < self._fewest_cpus.get(cluster, math.inf):
            self._fewest_cpus[cluster] = cpus
            self._least = None

    def _discount_size(self, cluster: str, cpus: int) -> None:
        sizes = self._sizes[cluster]
        sizes[cpus] -= 1
        if sizes[cpus]:
            return
        del sizes[cpus]
        if cpus == self._fewest_cpus[cluster]:
            self._least = None
            if sizes:
                self._fewest_cpus[cluster] = min(sizes)
            else:
                del self._sizes[cluster], self._fewest_cpus[cluster]

    def fewest_cpus_elsewhere(self, cluster: str) -> float:
        """Return the fewest processors that a task of another cluster needs; inf: there is none."""
        least = self._least
        if least is None:
            ordered = sorted(self._fewest_cpus.items(), key=itemgetter(1))
            first = ordered[0] if ordered else ("", math.inf)
            second = ordered[1][1] if len(ordered) > 1 else math.inf
            least = self._least = *first, second
        return least[2] if least[0] == cluster else least[1]

    def groups_since(self, position: int) -> list[UnstartedGroup]:
        """Return the groups in the log from a position on; after a cut, all groups."""
        return self._log[max(position - self._cut, 0) :]

    @property
    def groups(self) -> list[UnstartedGroup]:
        """All groups, in the order of their creation."""
        return list(self._groups.values())
