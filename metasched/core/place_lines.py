"""Groups of tasks that await a place in a cluster's queue, in lines by cluster and owner. Pure.

When a cluster has places again, only the first group of each line is ranked, and as many tasks
are examined as there are places: the owners take turns.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from metasched.core.state import SchedulerState
from metasched.core.task_groups import GroupOwner, SortKey, TaskGroup

# A heap; the number makes entries unique
_Line = list[tuple[SortKey, int, TaskGroup]]
LEAST_SWEEP = 1000  # new entries until all lines are swept


class PlaceLines:
    """The lines of all clusters.

    Entries of groups that have left are dropped when reached, and by a sweep of all lines after as
    many new entries as there were.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._lines: dict[str, dict[GroupOwner, _Line]] = {}
        self._serial = 0  # number of the newest entry of a line
        self._next_sweep = LEAST_SWEEP  # number of the entry that causes a sweep

    def add(self, group: TaskGroup) -> None:
        """Let a group wait in the lines of the clusters whose places it awaits."""
        for cluster in group.awaited:
            key = group.place_keys.get(cluster)
            if key is None or group.first < key:
                lines = self._lines.setdefault(cluster, {})
                self._push(cluster, lines.setdefault(group.owner, []), group)

    def _push(self, cluster: str, line: _Line, group: TaskGroup) -> None:
        self._serial += 1
        group.place_keys[cluster] = group.first
        heapq.heappush(line, (group.first, self._serial, group))
        if self._serial >= self._next_sweep:
            self._sweep()

    def _sweep(self) -> None:
        """Drop all entries of groups that have left."""
        count = 0
        for cluster, lines in self._lines.items():
            for owner, line in list(lines.items()):
                line[:] = [entry for entry in line if self._keeps(cluster, entry[0], entry[2])]
                heapq.heapify(line)
                count += len(line)
                if not line:
                    del lines[owner]
        self._next_sweep = self._serial + max(count, LEAST_SWEEP)

    def _keeps(self, cluster: str, key: SortKey, group: TaskGroup) -> bool:
        """Return whether an entry is valid; a group that has left may come again."""
        if group.place_keys.get(cluster) != key:  # another entry of the group is earlier
            return False
        if group.tasks and cluster in group.awaited:
            return True
        del group.place_keys[cluster]
        return False

    def owners_with_place(self, clusters: Iterable[str]) -> dict[GroupOwner, None]:
        """Return the owners of waiting groups who may get a place now in one of these clusters."""
        owners: dict[GroupOwner, None] = {}
        for cluster in clusters:
            limits = self._state.views[cluster].scope_limits
            if limits.may_have_places:
                for owner in self._lines.get(cluster, ()):
                    if not limits.awaits_place(owner[0]):
                        owners[owner] = None
        return owners

    def first_with_place(self, owner: GroupOwner, clusters: Iterable[str]) -> TaskGroup | None:
        """Return the group of the owner's first task that has a place in a cluster now, or None."""
        earliest = None
        for cluster in clusters:
            if not self._state.views[cluster].scope_limits.awaits_place(owner[0]):
                group = self._first_group(cluster, owner)
                if group is not None and (earliest is None or group.first < earliest.first):
                    earliest = group
        return earliest

    def _first_group(self, cluster: str, owner: GroupOwner) -> TaskGroup | None:
        """Return the first group of a line; remove groups that no longer wait there."""
        lines = self._lines.get(cluster, {})
        line = lines.get(owner, [])
        while line:
            key, _, group = line[0]
            if not self._keeps(cluster, key, group):
                heapq.heappop(line)
            elif group.first == key:
                return group
            else:
                heapq.heappop(line)
                self._push(cluster, line, group)
        lines.pop(owner, None)
        return None

    def has_place(self, group: TaskGroup, clusters: Iterable[str]) -> bool:
        """Return whether a task of the group may get a place now in one of these clusters."""
        return any(
            cluster in group.awaited
            and not self._state.views[cluster].scope_limits.awaits_place(group.user)
            for cluster in clusters
        )

    def any_left(self, clusters: Iterable[str]) -> bool:
        """Return whether any user may get a place now in one of these clusters."""
        return any(self._state.views[cluster].scope_limits.may_have_places for cluster in clusters)
