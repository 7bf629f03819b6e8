"""Which clusters may run a job, and for every one ruled out the reason, in words for its owner."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from metasched.model.cluster import Cluster, Facts, Nodes, Partition
from metasched.model.job import Job, Reason

# Reasons that no waiting mends while the site and the cluster stay as they are.
PERMANENT = frozenset({Reason.NO_CLUSTER_FITS, Reason.NO_MAPPING, Reason.FILESYSTEM})
FEATURE = re.compile(r"[A-Za-z0-9_.:\-]+")


@dataclass(frozen=True)
class Unfit:
    """Why a cluster cannot take a job (now, or ever: see PERMANENT)."""

    reason: Reason
    text: str


class NoMapping(Exception):
    """A word of the job's (account, partition, QOS, feature) means nothing on the cluster."""


def translated(job: Job, cluster: Cluster, facts: Facts | None) -> Job:
    """The job in the cluster's own words. NoMapping if the site maps one of its words nowhere.

    A partition or feature that the cluster itself has under that name needs no mapping. Of the
    licences those are left that its manager counts; one that only some machines can use is asked
    for as their feature.
    """
    if not (job.partition or job.account or job.qos or job.constraint or job.licences):
        return job
    own_partitions = {p.name for p in facts.partitions} if facts else set()
    own_features = (
        {f for p in facts.partitions for n in p.nodes for f in n.features} if facts else set()
    )

    def word(kind: str, name: str | None, own: Iterable[str] = ()) -> str | None:
        if name is None:
            return None
        table = cluster.maps.get(kind, {})
        if name in table:
            return table[name]
        if table.get("*") == "*" or name in own:
            return name
        raise NoMapping(f'{kind} "{name}" is not known there')

    constraint = job.constraint
    if constraint is not None:
        constraint = FEATURE.sub(
            lambda m: word("feature", m.group(), own_features) or "", constraint
        )
    locked = {cluster.licensed[name] for name in job.licences if name in cluster.licensed}
    return replace(
        job,
        partition=word("partition", job.partition, own_partitions),
        account=word("account", job.account),
        qos=word("qos", job.qos),
        constraint=_with_features(constraint, sorted(locked)),
        licences=_counted(job, cluster, facts) if facts and facts.licences else {},
    )


def _with_features(constraint: str | None, features: list[str]) -> str | None:
    """A constraint that asks for these as well, in a form that needs no brackets."""
    more = "&".join(features)
    if constraint is None or not more:
        return constraint or more or None
    return "|".join(f"{group}&{more}" for group in constraint.split("|"))


def _counted(job: Job, cluster: Cluster, facts: Facts) -> dict[str, int]:
    """What the job asks for of the licences that the manager counts, in its names."""
    known: Counter[str] = Counter()
    for name, count in job.licences.items():
        word = cluster.licence(name)
        if word in facts.licences:
            known[word] += count
    return dict(known)


def _has_features(nodes: Nodes, constraint: str | None) -> bool:
    """Slurm's simple constraints: names joined by & or |, & binding closer."""
    if constraint is None:
        return True
    return any(
        all(name in nodes.features for name in FEATURE.findall(group))
        for group in constraint.split("|")
    )


def _tasks_on(job: Job, nodes: Nodes, free: bool) -> int:
    """How many of the job's tasks one of these nodes can hold, in all or in what is free."""
    cpus = nodes.free_cpus if free else nodes.cpus
    memory = nodes.free_memory if free else nodes.memory
    gres = nodes.free_gres if free else nodes.gres
    if free and job.exclusive and nodes.free_cpus < nodes.cpus:
        return 0
    if any(gres.get(name, 0) < count for name, count in job.gres.items()):
        return 0
    tasks = cpus // job.cpus_per_task
    if memory is not None:
        if job.memory is not None and memory < job.memory:
            return 0
        if job.memory_per_cpu is not None:
            tasks = min(tasks, memory // (job.memory_per_cpu * job.cpus_per_task))
    return tasks


def holds(job: Job, partition: Partition, *, free: bool = False, up: bool = False) -> bool:
    """Whether the partition's nodes (only those up; only what is free) can hold the whole job."""
    wanted, most = job.tasks, partition.max_nodes
    most_nodes = job.nodes if job.nodes is not None else most
    sizes = (
        (_tasks_on(job, nodes, free), nodes.count)
        for nodes in partition.nodes
        if _has_features(nodes, job.constraint) and (nodes.up or not (up or free))
    )
    if most_nodes is None:  # which nodes are taken first makes no difference
        for tasks, count in sizes:
            wanted -= tasks * count
            if wanted <= 0:
                return True
        return False
    largest_first = sorted(sizes, reverse=True)
    if job.nodes is not None and sum(count for tasks, count in largest_first if tasks) < job.nodes:
        return False
    for tasks, count in largest_first:
        used = min(count, most_nodes)
        wanted -= tasks * used
        most_nodes -= used
        if wanted <= 0:
            return True
    return False


def _outside(job: Job, cluster: Cluster) -> str | None:
    """The first path of the job that lies on none of the cluster's filesystems."""
    if not cluster.filesystems:
        return None
    for path in (job.directory, *job.writes):
        if path == "/dev/null" or not path:
            continue
        if not any(
            PurePosixPath(path).is_relative_to(PurePosixPath("/", fs)) for fs in cluster.filesystems
        ):
            return path
    return None


def unfit(job: Job, cluster: Cluster, facts: Facts | None) -> Unfit | None:
    """Why this cluster cannot run the job, or None. Reasons for ever come before passing ones."""
    if job.clusters and cluster.name not in job.clusters:
        return Unfit(Reason.NO_CLUSTER_FITS, f"only {', '.join(job.clusters)} was asked for")
    if cluster.takes == "reservations" and job.reservation is None:
        return Unfit(Reason.NO_CLUSTER_FITS, "only jobs in a reservation may use it")
    if (path := _outside(job, cluster)) is not None:
        return Unfit(Reason.FILESYSTEM, f"{path} is on none of its filesystems")
    if facts is None:
        return Unfit(Reason.CLUSTER_DOWN, "it has not been heard from yet")
    try:
        here = translated(job, cluster, facts)
    except NoMapping as error:
        return Unfit(Reason.NO_MAPPING, str(error))
    partition = facts.partition(here.partition)
    if partition is None and here.partition is None:
        return Unfit(Reason.CLUSTER_DRAINED, "it has no partition with nodes now")
    if partition is None:
        return Unfit(Reason.NO_MAPPING, f'it has no partition "{here.partition}"')
    if (text := _too_large(here, partition) or _too_many(here, facts)) is not None:
        return Unfit(Reason.NO_CLUSTER_FITS, text)
    if not partition.up:
        return Unfit(Reason.CLUSTER_DRAINED, f"its partition {partition.name} is closed")
    # nodes of a reservation that has begun are not up for others
    if here.reservation is None and not (
        all(n.up for n in partition.nodes) or holds(here, partition, up=True)
    ):
        return Unfit(Reason.CLUSTER_DRAINED, "too many of its nodes are down or drained")
    for name, count in here.licences.items():
        copies = facts.licences[name]
        if count > copies.total - copies.used:
            told = f"by its own count {copies.used} of {copies.total} {name} are taken"
            return Unfit(Reason.LICENCE_BUSY, told)
    return None


def _too_many(job: Job, facts: Facts) -> str | None:
    """Why the manager's own counter of licences can never let the job begin."""
    for name, count in job.licences.items():
        if count > (total := facts.licences[name].total):
            return f"its manager counts {total} {name} in all, the job asks for {count}"
    return None


def _too_large(job: Job, partition: Partition) -> str | None:
    limit = job.time_limit
    if limit is not None and partition.max_time is not None and limit > partition.max_time:
        return f"its time limit is {partition.max_time:g} s, the job asks for {limit:g} s"
    if partition.max_nodes is not None and (job.nodes or 1) > partition.max_nodes:
        return f"its largest job has {partition.max_nodes} nodes, this one asks for {job.nodes}"
    if holds(job, partition):
        return None
    cpus = sum(n.count * n.cpus for n in partition.nodes)
    if job.cpus > cpus:
        return f"it has {cpus} processors, the job asks for {job.cpus}"
    return "no set of its nodes has the processors, memory, gres or features asked for"
