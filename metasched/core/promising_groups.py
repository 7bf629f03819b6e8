"""Groups of unstarted tasks that may start on a cluster, kept between its listings. Pure.

A listing checks groups that fitted before, new groups, and groups that need something of which
more is free now. Groups that would delay the head of the queue are checked again once it needs
something else: time alone frees nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Set
from typing import NamedTuple

from metasched.core.unstarted_index import UnstartedGroup, UnstartedIndex
from metasched.model.cluster import ClusterInfo, NodeCapacity
from metasched.policies.pull import PullCapacity


class _Limits(NamedTuple):
    """Limits of what can start, whatever else it needs: checked in O(1)."""

    largest: int  # most processors that are free on a node
    lacking: Set[str]  # licences of which no copy is free

    @classmethod
    def of(cls, free_cpus: Iterable[int], licences: Mapping[str, int]) -> _Limits:
        """`free_cpus`: of each node."""
        lacking = {name for name, count in licences.items() if count <= 0}
        return cls(max(free_cpus, default=0), lacking)


class _Free(NamedTuple):
    """What a listing shows as free."""

    cpus: int
    nodes: Mapping[Hashable, int]  # processors that are free on a node; by all facts of a group
    licences: Mapping[str, int]
    limits: _Limits

    @classmethod
    def of(cls, info: ClusterInfo) -> _Free:
        nodes: dict[Hashable, int] = {}
        for position, partition in enumerate(info.partitions):
            facts = position, partition.name, partition.default, partition.max_nodes
            for group in partition.nodes:
                nodes[facts, _key(group)] = group.free_cpus if group.up else 0
        return cls(
            info.cpus - info.used_cpus,
            nodes,
            info.free_licences,
            _Limits.of(nodes.values(), info.free_licences),
        )

    def select(self, groups: Iterable[UnstartedGroup], cluster: str) -> list[UnstartedGroup]:
        """Return the groups of other clusters that may fit, in O(1) for each."""
        largest, lacking = self.limits
        return [
            group
            for group in groups
            if group.cpus_per_task <= largest
            and group.cluster != cluster
            and lacking.isdisjoint(group.job.licences)
            and group.tasks
        ]

    def select_newly(
        self, groups: Iterable[UnstartedGroup], cluster: str, before: _Free
    ) -> list[UnstartedGroup]:
        """Return of these the groups that could not start before: they need what has changed."""
        changed = self.nodes.keys() - before.nodes.keys()
        largest = max([self.nodes[key] for key in changed], default=0)
        licences = {
            name for name, count in self.licences.items() if count > before.licences.get(name, 0)
        } | (before.licences.keys() - self.licences.keys())
        if not (largest or licences or self.cpus > before.cpus):
            return []
        return [
            group
            for group in self.select(groups, cluster)
            if group.cpus_per_task <= largest
            or group.job.cpus > before.cpus
            or not licences.isdisjoint(group.job.licences)
        ]


def _key(group: NodeCapacity) -> Hashable:
    """Return all facts of a group of nodes."""
    amounts = (group.memory, group.free_memory, *group.gres.items(), None, *group.free_gres.items())
    return group.count, group.cpus, group.free_cpus, group.up, group.features, amounts


class GroupCheck(NamedTuple):
    """A check of all groups: what it found, or before it, what it may find."""

    info: ClusterInfo
    free: _Free
    promising: list[UnstartedGroup]  # groups that may start
    delaying: list[UnstartedGroup]  # groups that may fit, but would delay the head
    position: int  # in the log of groups, up to which they were checked

    def has_same_free(self, info: ClusterInfo) -> bool:
        """Whether the same is free now."""
        before = self.info
        return before is info or (
            before.used_cpus == info.used_cpus
            and before.partitions == info.partitions
            and before.free_licences == info.free_licences
        )

    def has_same_head(self, info: ClusterInfo) -> bool:
        """Whether a group that would have delayed the head still would."""
        before = self.info
        return (
            before.head_plan is info.head_plan
            and before.queue_head == info.queue_head
            and before.used_cpus == info.used_cpus
            and before.upcoming_windows == info.upcoming_windows
            and before.running_jobs == info.running_jobs
        )


class PromisingGroups:
    """Groups of unstarted tasks on other clusters of which one may start on a cluster."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        # the last check while nothing was on its way to the cluster
        self._last: GroupCheck | None = None

    def plan_check(self, info: ClusterInfo, index: UnstartedIndex) -> GroupCheck | None:
        """Return the check to be made with these facts; None: it would find no group.

        None at most listings. O(groups) if more is free than at the last check, else O(new groups).
        """
        last, delaying = self._last, list[UnstartedGroup]()
        if last is None:
            free = _Free.of(info)
            groups = free.select(index.groups, self._cluster)
        else:
            free, newly = last.free, list[UnstartedGroup]()
            if not last.has_same_free(info):
                free = _Free.of(info)
                newly = free.select_newly(index.groups, self._cluster, last.free)
            added = free.select(index.groups_since(last.position), self._cluster)
            groups = [*last.promising, *newly, *added]
            if info is last.info or last.has_same_head(info):
                delaying = last.delaying
            else:
                groups += free.select(last.delaying, self._cluster)
        planned = GroupCheck(info, free, groups, delaying, index.position)
        if any(group.tasks for group in groups):
            return planned
        self._last = planned
        return None

    def check(self, planned: GroupCheck, capacity: PullCapacity) -> list[UnstartedGroup]:
        """Return the groups of which a task may start in this capacity."""
        promising, delaying = list[UnstartedGroup](), dict.fromkeys(planned.delaying)
        candidates = dict.fromkeys([group for group in planned.promising if group.tasks])
        held_up = _select_held_up(candidates, capacity)
        for group in candidates:
            if group not in held_up:
                if not capacity.fits_now(group.job):
                    continue
                if capacity.delays_no_head(group.job, group.shortest):
                    promising.append(group)
                    continue
            delaying[group] = None
        if not capacity.expected_jobs:
            self._last = planned._replace(promising=promising, delaying=list(delaying))
        return promising


def _select_held_up(
    groups: Iterable[UnstartedGroup], capacity: PullCapacity
) -> Set[UnstartedGroup]:
    """Return the groups that exceed what the head leaves, in O(1) for each: most of them."""
    if (plan := capacity.info.head_plan) is None:
        return frozenset()
    nodes = (group for partition in plan.partitions for group in partition.nodes)
    largest, lacking = _Limits.of((group.free_cpus for group in nodes if group.up), plan.licences)
    now, start = capacity.now, plan.start
    return {
        group
        for group in groups
        if now + group.shortest > start
        and (group.cpus_per_task > largest or not lacking.isdisjoint(group.job.licences))
    }
