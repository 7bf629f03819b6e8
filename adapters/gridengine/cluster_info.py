"""What Grid Engine says of a whole cell: queues, slots, running and pending work."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from metasched.adapters.gridengine.listing import (
    ANY_QUEUE,
    ExecutionHost,
    QstatJob,
    QueueInstance,
    QueueLimits,
    parse_seconds,
)
from metasched.model.cluster import ClusterInfo, NodeCapacity, Partition


def cluster_info(
    jobs: Sequence[QstatJob],
    hosts: Sequence[ExecutionHost],
    limits: Mapping[str, QueueLimits],
    totals: Mapping[str, Mapping[str, float]],
    memory: str | None,
    own_ids: set[str],
    listed_at: float,
    default_time: float,
    awaiting: Collection[str] = (),
) -> ClusterInfo:
    """Everyone's demand and what there is to meet it.

    `totals` are those of each host: what is left and what runs are told by two commands, between
    which jobs begin and end, and the former is rounded, so that they do not add up. `ours` are the
    ids of our jobs, `awaiting` those of jobs that wait in a reservation, in nobody's way; `memory`
    is the consumable that counts it, `default_time` what a job without h_rt is taken to need.
    """

    def time_limit(job: QstatJob) -> float:
        return parse_seconds(job.requests.get("h_rt", "")) or default_time

    running, waiting = [], []
    owed = 0.0
    for job in jobs:
        if not job.is_waiting:
            end = (listed_at if job.started is None else job.started) + time_limit(job)
            running.append((max(end, listed_at), job.slots))
        elif job.is_eligible and job.id not in awaiting:
            waiting.append(job)
            if job.id not in own_ids:
                owed += job.task_count * job.slots * time_limit(job)
    capacities = [_HostCapacity(host, totals.get(host.name, {}), memory) for host in hosts]
    usable = [capacity for capacity in capacities if capacity.up]
    return ClusterInfo(
        cpus=sum(capacity.cpus for capacity in usable),
        used_cpus=sum(capacity.used for capacity in usable),
        partitions=_partitions(capacities, limits),
        running_jobs=tuple(sorted(running)),
        owed_by_others=owed,
        pending_jobs=sum(job.task_count for job in waiting),
        queue_head=(waiting[0].slots, time_limit(waiting[0])) if waiting else None,
    )


class _HostCapacity:
    """A host with what is left of it, and what it has in all."""

    def __init__(
        self, host: ExecutionHost, totals: Mapping[str, float], memory: str | None
    ) -> None:
        self.host, self._totals, self._memory = host, totals, memory
        self.used = sum(queue.used for queue in host.queues)
        self.up = any(queue.up for queue in host.queues)
        total = sum(queue.slots for queue in host.queues)
        self.cpus = total
        self.free_slots = total - self.used
        if "slots" in host.free:
            self.free_slots = min(self.free_slots, int(host.free["slots"]))
            self.cpus = min(total, int(host.free["slots"]) + self.used)

    def nodes(self, queue_instances: Iterable[QueueInstance]) -> NodeCapacity:
        """This host as these queues give it out."""
        queues = list(queue_instances)
        up = any(queue.up for queue in queues)
        free = {
            resource: int(amount_free)
            for resource, amount_free in self.host.free.items()
            if resource not in ("slots", self._memory)
        }
        free_slots = min(
            self.free_slots, sum(queue.slots - queue.used for queue in queues if queue.up)
        )
        memory = self._memory or ""
        counted = memory in self.host.free
        free_memory = int(self.host.free[memory] / 2**20) if counted else None
        all_memory = int(self._totals.get(memory, 0.0) / 2**20)
        total = {
            resource_name: max(free_slots, int(self._totals.get(resource_name, 0)))
            for resource_name, free_slots in free.items()
        }
        return NodeCapacity(
            count=1,
            cpus=min(self.cpus, sum(queue.slots for queue in queues)),
            free_cpus=max(0, free_slots) if up else 0,
            memory=None if free_memory is None else max(free_memory, all_memory),
            free_memory=None if free_memory is None else (free_memory if up else 0),
            gres=total,
            free_gres={
                resource_name: free_slots if up else 0 for resource_name, free_slots in free.items()
            },
            up=up,
        )


def _partitions(
    capacities: Sequence[_HostCapacity], limits: Mapping[str, QueueLimits]
) -> tuple[Partition, ...]:
    names = list(limits)
    partitions = []
    for name in names:
        nodes = [
            capacity.nodes(queue for queue in capacity.host.queues if queue.name == name)
            for capacity in capacities
            if any(queue.name == name for queue in capacity.host.queues)
        ]
        partitions.append(_partition(name, nodes, limits[name].hard_time, default=len(names) == 1))
    if len(names) > 1:
        nodes_of_all = [
            capacity.nodes(capacity.host.queues) for capacity in capacities if capacity.host.queues
        ]
        times = [limit.hard_time for limit in limits.values()]
        max_time = None if None in times else max(time for time in times if time is not None)
        partitions.insert(0, _partition(ANY_QUEUE, nodes_of_all, max_time, default=True))
    return tuple(partitions)


def _partition(
    name: str, nodes: Sequence[NodeCapacity], max_time: float | None, default: bool
) -> Partition:
    counted: list[tuple[NodeCapacity, int]] = []
    for node in nodes:
        for position, (counted_node, count) in enumerate(counted):
            if counted_node == node:
                counted[position] = (counted_node, count + 1)
                break
        else:
            counted.append((node, 1))
    return Partition(
        name=name,
        nodes=tuple(_repeat(counted_node, count) for counted_node, count in counted),
        default=default,
        up=any(node.up for node in nodes),
        max_time=max_time,
        max_nodes=1,
    )


def _repeat(node: NodeCapacity, count: int) -> NodeCapacity:
    return NodeCapacity(**{**vars(node), "count": count})
