"""Groups of unstarted tasks that may start on a cluster, kept between its listings. Pure.

A listing checks groups that fitted before, new groups, and groups that need a resource with more
free units now. Groups that would delay the head of the queue are checked again once it needs
something else: time alone frees nothing.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from metasched.core.unstarted_index import UnstartedGroup, UnstartedIndex
from metasched.model.cluster import ClusterInfo, NodeCapacity, Partition
from metasched.model.job import Job
from metasched.policies.pull import PullCapacity


class _Limits(NamedTuple):
    """Limits of the tasks that can start, by their size alone: checked in O(1)."""

    largest: int  # most processors that are free on a node
    lacking: Set[str]  # licences without a free copy

    @classmethod
    def of(cls, partitions: Iterable[Partition], licences: Mapping[str, int]) -> _Limits:
        free = [group.free_cpus for part in partitions for group in part.nodes if group.up]
        return cls(max(free, default=0), {name for name, count in licences.items() if count <= 0})

    def may_hold(self, group: UnstartedGroup) -> bool:
        """Return whether a task of a group may fit, in O(1)."""
        return group.cpus_per_task <= self.largest and self.lacking.isdisjoint(group.job.licences)

    def select(self, groups: Iterable[UnstartedGroup], cluster: str) -> list[UnstartedGroup]:
        """Return the groups of other clusters that may fit, in O(1) for each."""
        largest, lacking = self
        return [
            group
            for group in groups
            if group.cpus_per_task <= largest
            and group.cluster != cluster
            and lacking.isdisjoint(group.job.licences)
            and group.tasks
        ]


class _Gain(NamedTuple):
    """Resources that are free in a listing and were not before: nothing else can start newly."""

    least: float  # processors of the smallest task for which there is more room on nodes
    most: float  # of the largest; 0: there is none
    total: float  # processors of the cluster that were free before; inf: no fewer than now
    licences: Mapping[str, int]  # free copies before, of licences with more free copies now

    @classmethod
    def of(cls, info: ClusterInfo, before: ClusterInfo) -> _Gain:
        now, licences = info.free_licences, dict[str, int]()
        if now != before.free_licences:
            licences = {
                name: copies
                for name, copies in before.free_licences.items()
                if copies < now.get(name, math.inf)
            }
        total = before.cpus - before.used_cpus
        least, most = _gained_room(info.partitions, before.partitions)
        has_more = info.cpus - info.used_cpus > total
        return cls(least, most, total if has_more else math.inf, licences)

    def select(self, groups: Iterable[UnstartedGroup]) -> list[UnstartedGroup]:
        """Return the groups that need the gained resources."""
        least, most, total, licences = self
        if not (most or licences or total < math.inf):
            return []
        lacked = {name for name, copies in licences.items() if copies <= 0}
        fewest = min([copies for copies in licences.values() if copies > 0], default=math.inf)
        return [
            group
            for group in groups
            if (least <= group.cpus_per_task <= most)
            or (group.job.tasks > 1 and group.cpus_per_task <= most)  # more tasks fit on a node
            or group.job.cpus > total
            or not lacked.isdisjoint(group.job.licences)
            or (group.most_copies > fewest and self._includes_licence_of(group.job))
        ]

    def _includes_licence_of(self, job: Job) -> bool:
        """Return whether a job could not have its licences before."""
        licences = self.licences
        return any(count > licences.get(name, count) for name, count in job.licences.items())


def _differ_in_room(info: ClusterInfo, before: ClusterInfo) -> bool:
    """Return whether there may be a gain: none if the same nodes and licences are free. O(1)."""
    return (
        info.partitions is not before.partitions
        or info.free_licences is not before.free_licences
        or info.cpus - info.used_cpus > before.cpus - before.used_cpus
    )


def _gained_room(now: Sequence[Partition], before: Sequence[Partition]) -> tuple[float, float]:
    """Return the processors of the smallest and the largest task for which there is more room.

    Nodes are compared with nodes that differ in free processors only.
    """
    if len(now) != len(before):
        return 0, math.inf
    least, most = math.inf, 0
    for partition, partition_before in zip(now, before, strict=True):
        if partition is partition_before:
            continue
        if _facts(partition) != _facts(partition_before):
            return 0, math.inf
        gained, lost = _differing_nodes(partition.nodes, partition_before.nodes)
        changes: dict[Hashable, dict[int, int]] = {}  # in numbers of nodes, by free processors
        _count_nodes(gained, 1, changes)
        _count_nodes(lost, -1, changes)
        for counts in changes.values():
            total, levels = 0, sorted(counts, reverse=True)
            for level, lower in zip(levels, [*levels[1:], 0], strict=True):
                total += counts[level]
                if total > 0:  # nodes with at least as many free processors
                    least, most = min(least, lower + 1), max(most, level)
    return least, most


def _facts(partition: Partition) -> Hashable:
    return partition.name, partition.default, partition.max_nodes


def _differing_nodes(
    now: Sequence[NodeCapacity], before: Sequence[NodeCapacity]
) -> tuple[list[NodeCapacity], list[NodeCapacity]]:
    """Return the nodes of either list, except the very same objects in both."""
    by_id = dict(zip(map(id, now), now, strict=True))
    by_id_before = dict(zip(map(id, before), before, strict=True))
    return (
        [by_id[key] for key in by_id.keys() - by_id_before.keys()],
        [by_id_before[key] for key in by_id_before.keys() - by_id.keys()],
    )


def _count_nodes(
    nodes: Iterable[NodeCapacity], sign: int, changes: dict[Hashable, dict[int, int]]
) -> None:
    """Count nodes that are up."""
    for group in nodes:
        if group.up:
            amounts = (*group.gres.items(), None, *group.free_gres.items())
            key = group.cpus, group.memory, group.free_memory, group.features, amounts
            counts = changes.setdefault(key, {})
            counts[group.free_cpus] = counts.get(group.free_cpus, 0) + sign * group.count


class GroupCheck(NamedTuple):
    """A check of all groups: the groups found, or before it, those that it may find."""

    info: ClusterInfo
    promising: list[UnstartedGroup]  # groups that may start
    delaying: list[UnstartedGroup]  # groups that would delay the head, if they fit
    position: int  # in the log of groups; checked up to here

    def has_same_head(self, info: ClusterInfo) -> bool:
        """Return whether a group that would have delayed the head still would."""
        before = self.info
        return (
            before.head_plan is info.head_plan
            and before.queue_head == info.queue_head
            and before.used_cpus == info.used_cpus
            and before.upcoming_windows == info.upcoming_windows
            and before.running_jobs == info.running_jobs
        )


class PromisingGroups:
    """Groups of tasks, unstarted on other clusters, that may start on a cluster."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._last: GroupCheck | None = None  # the last check
        self._checked_at: float | None = None  # time of the last check, if groups were checked
        # of these partitions and licences
        self._limits: tuple[Sequence[Partition], Mapping[str, int], _Limits] | None = None

    def plan_check(self, info: ClusterInfo, index: UnstartedIndex) -> GroupCheck | None:
        """Return the check to be made with these facts; None: it would find no group.

        None at most listings. O(groups) with new facts, else O(new groups).
        """
        last, position = self._last, index.position
        if last is None:
            planned = GroupCheck(info, self._select(info, index.groups), [], position)
        elif info is last.info and last.position == position:
            planned = last
        else:
            groups, delaying = [*last.promising], last.delaying
            if last.position != position:
                groups += self._select(info, index.groups_since(last.position))
            if info is not last.info:
                if not last.has_same_head(info):
                    groups += self._select(info, delaying)
                    delaying = []
                if _differ_in_room(info, last.info):
                    listed = set(groups)
                    added = [g for g in self._select(info, index.groups) if g not in listed]
                    if added:
                        groups += _Gain.of(info, last.info).select(added)
            planned = GroupCheck(info, groups, delaying, position)
        for group in planned.promising:
            if group.tasks:
                return planned
        if planned is not last:
            self._last, self._checked_at = planned, None
        return None

    def _select(self, info: ClusterInfo, groups: list[UnstartedGroup]) -> list[UnstartedGroup]:
        """Return the groups of other clusters that may fit, in O(1) for each."""
        if not groups:
            return groups
        cached, partitions, licences = self._limits, info.partitions, info.free_licences
        if cached is None or cached[0] is not partitions or cached[1] is not licences:
            cached = self._limits = partitions, licences, _Limits.of(partitions, licences)
        return cached[2].select(groups, self._cluster)

    def check(self, planned: GroupCheck, capacity: PullCapacity) -> list[UnstartedGroup]:
        """Return the groups with a task that may start there while no other is on its way.

        `capacity` is that of the planned facts, without expected jobs.
        """
        if planned is self._last and capacity.now == self._checked_at:
            return planned.promising
        promising: list[UnstartedGroup] = []
        delaying = dict.fromkeys(planned.delaying)
        plan, later = planned.info.head_plan, None  # the room that the head leaves, once it matters
        for group in dict.fromkeys(planned.promising):
            if not group.tasks:
                continue
            seconds = group.shortest
            outlasts = plan is not None and capacity.now + seconds > plan.start
            if plan is not None and outlasts and later is None:
                later = _Limits.of(plan.partitions, plan.licences)
            # most groups exceed that room: found in O(1), before their nodes are sought
            if not capacity.leaves_head_cpus(group.job, seconds) or (
                later is not None and outlasts and not later.may_hold(group)
            ):
                delaying[group] = None
            elif capacity.fits_now(group.job):
                if outlasts and not capacity.delays_no_head(group.job, seconds):
                    delaying[group] = None
                else:
                    promising.append(group)
        self._last = GroupCheck(planned.info, promising, list(delaying), planned.position)
        self._checked_at = capacity.now
        return promising
