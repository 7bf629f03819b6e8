"""Which requirement of a job excludes which nodes of a cluster, for its owner. Pure.

`eligible` decides; this module only describes, and is read when an owner asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from metasched.model.cluster import Cluster, ClusterInfo, NodeCapacity, Partition
from metasched.model.host_lists import shorten_hosts
from metasched.model.job import Job
from metasched.policies.eligible import (
    UnmappedNameError,
    count_tasks,
    describe_size_excess,
    satisfies_constraint,
    translate_job,
)

MAX_NAMES = 1000  # characters of a list of nodes
_NAMES_IN_TEXT = 80  # characters
_UP, _FREE = _PASSING = ("up", "free")  # requirements that nodes may meet later


@dataclass(frozen=True)
class NodeExclusion:
    """Nodes that cannot run a task of the job."""

    requirement: str  # constraint, cpus, memory or gres; up or free: of the nodes left, now
    nodes: int
    text: str  # follows the number: "have less than 64 GiB of memory"
    names: str = ""  # of these nodes, as in n[1-3], at most `MAX_NAMES` characters; "": unknown


@dataclass(frozen=True)
class PartitionFit:
    """How many tasks of a job the nodes of its partition on a cluster can hold."""

    partition: str  # the manager's name
    nodes: int  # in all
    exclusions: tuple[NodeExclusion, ...]  # a node may miss several permanent requirements
    shortage: str  # why the nodes that remain do not suffice together, without load; "": they do
    other_partitions: tuple[str, ...]  # that fit the job without load, if this partition does not

    @property
    def without_load(self) -> PartitionFit:
        """The same with all nodes up and free."""
        lasting = tuple(e for e in self.exclusions if e.requirement not in _PASSING)
        return replace(self, exclusions=lasting)

    @property
    def text(self) -> str:
        """One line for the owner of the job; "" if nothing excludes nodes."""
        parts = [
            f"{cause.nodes} {'of' if position == 0 else 'of the'} {self.nodes} nodes {cause.text}"
            + (f" ({shorten_hosts(cause.names, _NAMES_IN_TEXT)})" if cause.names else "")
            for position, cause in enumerate(self.exclusions)
        ]
        if self.shortage:
            parts.append(self.shortage)
        if self.other_partitions:
            parts.append(f"the job fits in partition {' or '.join(self.other_partitions)}")
        return f"partition {self.partition}: {'; '.join(parts)}" if parts else ""


def describe_fit(job: Job, cluster: Cluster, info: ClusterInfo | None) -> PartitionFit | None:
    """Return what excludes nodes of a cluster; None if the job has no partition there."""
    if info is None or (job.clusters and cluster.name not in job.clusters):
        return None
    try:
        job = translate_job(job, cluster, info)
    except UnmappedNameError:
        return None
    partition = info.partition(job.partition)
    if partition is None:
        return None
    lacking = list(_permanent_requirements(job))
    suitable = [
        group for group in partition.nodes if not any(lacks(group) for _, lacks, _ in lacking)
    ]
    exclusions = [
        NodeExclusion(requirement, nodes, text, _names(partition, lacks))
        for requirement, lacks, text in lacking
        if (nodes := sum(group.count for group in partition.nodes if lacks(group)))
    ]
    if down := sum(group.count for group in suitable if not group.up):
        names = _names(partition, lambda g: not (g.up or any(lacks(g) for _, lacks, _ in lacking)))
        exclusions.append(NodeExclusion(_UP, down, "are down or drained", names))
    if busy := sum(g.count for g in suitable if g.up and not count_tasks(job, g, only_free=True)):
        exclusions.append(NodeExclusion(_FREE, busy, "are busy now"))
    does_not_fit = describe_size_excess(job, partition) is not None
    mapped_names = cluster.maps.get("partition", {})
    return PartitionFit(
        partition.name,
        sum(group.count for group in partition.nodes),
        tuple(exclusions),
        _describe_shortage(job, partition, suitable) if does_not_fit else "",
        tuple(
            other.name
            for other in info.partitions
            if does_not_fit
            and other.up
            and other.name not in mapped_names
            and describe_size_excess(job, other) is None
        ),
    )


def _names(partition: Partition, excludes: Callable[[NodeCapacity], bool]) -> str:
    """Return the names of nodes by their kind without load, cut at `MAX_NAMES` characters."""
    names = [kind.names for kind in partition.named_nodes if excludes(kind.capacity)]
    return shorten_hosts(",".join(names), MAX_NAMES)


def _permanent_requirements(job: Job) -> Iterator[tuple[str, Callable[[NodeCapacity], bool], str]]:
    """Yield each requirement of a task: its name, the nodes that miss it, and a text for them."""
    if (constraint := job.constraint) is not None:
        text = f"lack the features {constraint}"
        yield "constraint", lambda group: not satisfies_constraint(group, constraint), text
    cpus = job.cpus_per_task
    yield "cpus", lambda group: group.cpus < cpus, f"have fewer than {cpus} processors"
    memory = max(job.memory or 0, (job.memory_per_cpu or 0) * cpus)  # MiB
    text = f"have less than {_format_memory(memory)} of memory"
    yield "memory", lambda group: group.memory is not None and group.memory < memory, text
    for name, count in job.gres.items():
        yield "gres", _lacks_gres(name, count), f"have fewer than {count} {name}"


def _lacks_gres(name: str, count: int) -> Callable[[NodeCapacity], bool]:
    return lambda group: group.gres.get(name, 0) < count


def _describe_shortage(job: Job, partition: Partition, suitable: list[NodeCapacity]) -> str:
    """Describe why nodes that each hold a task do not hold the whole job; "" without such nodes."""
    nodes = sum(group.count for group in suitable)
    if not nodes:
        return ""
    if job.nodes is not None and nodes < job.nodes:
        return f"{nodes} remain, the job requests {job.nodes} nodes"
    if partition.max_nodes is not None and (job.nodes or 1) > partition.max_nodes:
        return ""  # the obstacle names this limit
    tasks = sum(count_tasks(job, group, only_free=False) * group.count for group in suitable)
    if tasks >= job.tasks:
        return ""
    return f"the {nodes} that remain hold {tasks} of its {job.tasks} tasks"


def _format_memory(mebibytes: int) -> str:
    return f"{mebibytes} MiB" if mebibytes % 1024 else f"{mebibytes // 1024} GiB"
