"""Demand and capacity of a whole cell: queues, slots, running and pending jobs. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from metasched.adapters.gridengine.listing import (
    ANY_QUEUE,
    ExecutionHost,
    QstatJob,
    QueueInstance,
    QueueLimits,
    parse_seconds,
)
from metasched.model.cluster import ClusterInfo, NodeCapacity, Partition
from metasched.model.listing import MAX_LISTED_JOBS, ListedQueue, PendingJob, StartedJob

_MAX_JOB_ID = 9_999_999  # the qmaster then begins anew


@dataclass(frozen=True)
class CellDemand:
    """The jobs of all users in a cell."""

    jobs: Sequence[QstatJob]
    listed_at: float  # epoch seconds
    default_time: float  # seconds; run time of a job without h_rt
    own_ids: Collection[str] = ()  # of this instance's jobs
    awaiting: Collection[str] = ()  # jobs that wait in a reservation and compete with no other

    def limit(self, job: QstatJob) -> float:
        """Return the seconds that a job may run."""
        return parse_seconds(job.requests.get("h_rt", "")) or self.default_time

    def end(self, job: QstatJob) -> float:
        """Return the end of a running job by its limit, not before the listing."""
        started = self.listed_at if job.started is None else job.started
        return max(started + self.limit(job), self.listed_at)

    @property
    def waiting(self) -> list[QstatJob]:
        """The jobs that wait for resources that others may use, in the manager's order."""
        return [
            job
            for job in self.jobs
            if job.is_waiting and job.waits_only_for_resources and job.id not in self.awaiting
        ]


def cluster_info(
    demand: CellDemand,
    hosts: Sequence[ExecutionHost],
    limits: Mapping[str, QueueLimits],
    totals: Mapping[str, Mapping[str, float]],
    memory: str | None,
) -> ClusterInfo:
    """Return the demand of all users and the capacity of the cell when its jobs were listed.

    `totals` are the total consumables by host. They cannot be computed as free plus used amounts:
    these come from two commands at different times, and free amounts are rounded. `memory` is the
    consumable that counts memory.
    """
    running = [(demand.end(job), job.slots) for job in demand.jobs if not job.is_waiting]
    waiting = demand.waiting
    owed = math.fsum(
        job.task_count * job.slots * demand.limit(job)
        for job in waiting
        if job.id not in demand.own_ids
    )
    capacities = [_HostCapacity(host, totals.get(host.name, {}), memory) for host in hosts]
    usable = [capacity for capacity in capacities if capacity.up]
    return ClusterInfo(
        cpus=sum(capacity.cpus for capacity in usable),
        used_cpus=sum(capacity.used for capacity in usable),
        partitions=_partitions(capacities, limits),
        running_jobs=tuple(sorted(running)),
        owed_by_others=owed,
        pending_jobs=sum(job.task_count for job in waiting),
        queue_head=(waiting[0].slots, demand.limit(waiting[0])) if waiting else None,
        max_native_id=_MAX_JOB_ID,
    )


def listed_queue(demand: CellDemand) -> ListedQueue:
    """Return the first pending jobs, and the running jobs that end first."""
    waiting = demand.waiting
    running = sorted((job for job in demand.jobs if not job.is_waiting), key=demand.end)
    return ListedQueue(
        tuple(
            PendingJob(
                native_id=job.id if job.id in demand.own_ids else "",
                cpus=max(job.slots, 1),
                limit=max(demand.limit(job), 1.0),
                tasks=job.task_count,
                owner=job.owner,
            )
            for job in waiting[:MAX_LISTED_JOBS]
        ),
        complete=len(waiting) <= MAX_LISTED_JOBS,
        running=tuple(
            StartedJob(demand.end(job), job.slots, max(demand.limit(job), 1.0), job.owner)
            for job in running[:MAX_LISTED_JOBS]
        ),
    )


class _HostCapacity:
    """Total and free resources of a host."""

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
        """Return this host's resources available through these queue instances."""
        queues = list(queue_instances)
        up = any(queue.up for queue in queues)
        free = {
            name: int(amount)
            for name, amount in self.host.free.items()
            if name not in ("slots", self._memory)
        }
        queue_slots = sum(queue.slots - queue.used for queue in queues if queue.up)
        free_slots = min(self.free_slots, queue_slots)
        memory = self._memory or ""
        counted = memory in self.host.free
        free_memory = int(self.host.free[memory] / 2**20) if counted else None
        all_memory = int(self._totals.get(memory, 0.0) / 2**20)
        return NodeCapacity(
            count=1,
            cpus=min(self.cpus, sum(queue.slots for queue in queues)),
            free_cpus=max(0, free_slots) if up else 0,
            memory=None if free_memory is None else max(free_memory, all_memory),
            free_memory=None if free_memory is None else (free_memory if up else 0),
            gres={name: max(count, int(self._totals.get(name, 0))) for name, count in free.items()},
            free_gres={name: count if up else 0 for name, count in free.items()},
            up=up,
        )


def _partitions(
    capacities: Sequence[_HostCapacity], limits: Mapping[str, QueueLimits]
) -> tuple[Partition, ...]:
    names = list(limits)
    partitions = []
    for name in names:
        nodes = [
            (
                capacity.host.name,
                capacity.nodes(queue for queue in capacity.host.queues if queue.name == name),
            )
            for capacity in capacities
            if any(queue.name == name for queue in capacity.host.queues)
        ]
        partitions.append(_partition(name, nodes, limits[name].hard_time, default=len(names) == 1))
    if len(names) > 1:
        hosts = [(c.host.name, c.nodes(c.host.queues)) for c in capacities if c.host.queues]
        times = [limit.hard_time for limit in limits.values()]
        max_time = None if None in times else max(time for time in times if time is not None)
        partitions.insert(0, _partition(ANY_QUEUE, hosts, max_time, default=True))
    return tuple(partitions)


def _partition(
    name: str, hosts: Sequence[tuple[str, NodeCapacity]], max_time: float | None, default: bool
) -> Partition:
    """Return a partition, with equal nodes counted together."""
    counted: list[tuple[NodeCapacity, int]] = []
    nodes = [node for _, node in hosts]
    for node in nodes:
        for position, (other, count) in enumerate(counted):
            if other == node:
                counted[position] = (other, count + 1)
                break
        else:
            counted.append((node, 1))
    return Partition(
        name=name,
        nodes=tuple(replace(node, count=count) for node, count in counted),
        default=default,
        up=any(node.up for node in nodes),
        max_time=max_time,
        max_nodes=1,
        named_nodes=Partition.name_nodes(hosts),
    )
