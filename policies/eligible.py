"""Eligibility: which clusters can run a job, with a reason and a message for each other cluster."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from msgspec import structs

from metasched.model.cluster import (
    Associations,
    Cluster,
    ClusterInfo,
    NodeCapacity,
    Partition,
)
from metasched.model.host_lists import cluster_hosts, expand_hosts
from metasched.model.job import Job, Reason

# Reasons that remain until the site or the cluster is reconfigured, or the owner acts.
PERMANENT_REASONS = frozenset(
    {Reason.NO_CLUSTER_FITS, Reason.NO_MAPPING, Reason.FILESYSTEM, Reason.REFUSED_THRICE}
)
# alternatives of features that are all required, without brackets and counts
_SIMPLE_ALTERNATIVES = re.compile(r"[\w.:\-]+(?:[&|][\w.:\-]+)*", re.ASCII)
FEATURE = re.compile(r"[A-Za-z0-9_.:\-]+")
# a native option that may choose another account or partition
_ACCOUNT_OPTION = re.compile(r"""(?:^|\s)["']?(?:-[Ap]|--acc|--par)""")


@dataclass(frozen=True)
class Ineligibility:
    """Why a cluster cannot take a job."""

    reason: Reason  # lasting if in PERMANENT_REASONS
    text: str  # for the owner of the job


class UnmappedNameError(Exception):
    """An account, partition, QOS or feature of the job has no equivalent on the cluster."""


def translate_job(job: Job, cluster: Cluster, info: ClusterInfo | None) -> Job:
    """Return the job in the names of the cluster. UnmappedNameError if a name has no mapping.

    A partition or feature that the cluster itself has under that name needs no mapping. Licences
    that the cluster's manager does not count are removed; a licence that only some machines can use
    becomes a requested feature of these machines.

    Of several partitions (`a,b`) and of alternative features (`a|b`) those remain that have a
    mapping. Those with which the job fits come first, in the order of the request: the first
    decides on eligibility, and the manager may use all. Of alternative generic resources the first
    remains with which the job fits on nodes that are up, else on any nodes.
    """
    if not (
        job.partition
        or job.account
        or job.qos
        or job.constraint
        or job.licences
        or job.gres_alternatives
    ):
        return job
    cluster_partitions = {p.name for p in info.partitions} if info else set()
    cluster_features: set[str] = set()
    if info and job.constraint is not None:
        cluster_features = {f for p in info.partitions for n in p.nodes for f in n.features}

    def map_name(category: str, name: str | None, cluster_names: Iterable[str] = ()) -> str | None:
        if name is None:
            return None
        mapping = cluster.maps.get(category, {})
        if category == "account" and name in cluster.user_accounts:
            by_user = cluster.user_accounts[name]
            if (account := by_user.get(job.user, by_user.get("*"))) is not None:
                return account
            raise UnmappedNameError(f'account "{name}" has no mapping there for {job.user}')
        if name in mapping:
            return mapping[name]
        if mapping.get("*") == "*" or name in cluster_names:
            return name
        raise UnmappedNameError(f'{category} "{name}" has no mapping on the cluster')

    def map_features(constraint: str) -> str:
        return FEATURE.sub(
            lambda m: map_name("feature", m.group(), cluster_features) or "", constraint
        )

    constraint, partition = job.constraint, job.partition
    if constraint is not None:
        if _SIMPLE_ALTERNATIVES.fullmatch(constraint):
            constraint = "|".join(_map_alternatives(constraint.split("|"), map_features))
        else:
            constraint = map_features(constraint)
    if partition is not None:
        names = _map_alternatives(
            partition.split(","), lambda name: map_name("partition", name, cluster_partitions) or ""
        )
        partition = ",".join(dict.fromkeys(names))
    licence_features = {
        cluster.licence_features[name] for name in job.licences if name in cluster.licence_features
    }
    translated = structs.replace(
        job,
        partition=partition,
        account=map_name("account", job.account),
        qos=map_name("qos", job.qos),
        constraint=_add_features(constraint, sorted(licence_features)),
        licences=_counted_licences(job, cluster, info) if info and info.licences else {},
        licence_choices=(),
    )
    return translated if info is None else _fitting_first(translated, info)


def _map_alternatives(names: Sequence[str], translate: Callable[[str], str]) -> list[str]:
    """Translate alternatives; leave out those without a mapping. UnmappedNameError if none has."""
    translated, errors = [], []
    for name in names:
        try:
            translated.append(translate(name))
        except UnmappedNameError as error:
            errors.append(error)
    if not translated:
        raise errors[0]
    return translated


def _fitting_first(job: Job, info: ClusterInfo) -> Job:
    """Return a translated job with its partitions and alternative features, those that fit first.

    A partition fits if it is up and can hold the job.
    """
    if job.partition is not None and "," in job.partition:

        def rejects(name: str) -> bool:
            candidate = info.partition(name)
            if candidate is None or not candidate.up:
                return True
            return all(describe_size_excess(choice, candidate) for choice in _gres_choices(job))

        # sorting is stable: the order of the request remains
        job = structs.replace(
            job, partition=",".join(sorted(job.partition.split(","), key=rejects))
        )
    if job.constraint is not None and "|" in job.constraint:
        partition = info.partition(job.partition)
        if partition is not None and _SIMPLE_ALTERNATIVES.fullmatch(job.constraint):
            first_partition = partition

            def lacks(group: str) -> bool:
                constrained = structs.replace(job, constraint=group)
                return not any(
                    fits_partition(choice, first_partition) for choice in _gres_choices(constrained)
                )

            alternatives = sorted(job.constraint.split("|"), key=lacks)
            job = structs.replace(job, constraint="|".join(alternatives))
    return _with_fitting_gres(job, info) if job.gres_alternatives else job


def _gres_choices(job: Job) -> list[Job]:
    """Return the job with each of its alternative generic resources in turn."""
    if not job.gres_alternatives:
        return [job]
    return [choose_gres(job, number) for number in range(len(job.gres_choices))]


def choose_gres(job: Job, choice: int | None) -> Job:
    """Return the job with a single one of its `gres_choices`; None: as it is."""
    if choice is None:
        return job
    return structs.replace(job, gres=job.gres_choices[choice], gres_alternatives=())


def _with_fitting_gres(job: Job, info: ClusterInfo) -> Job:
    """Return a translated job with the first of its alternatives that fits.

    The load does not count: `explain` names the same alternative as long as the job waits.
    """
    choices, partition = _gres_choices(job), info.partition(job.partition)
    if partition is None:
        return choices[0]

    def rank(choice: Job) -> int:
        if fits_partition(choice, partition, only_up=True):
            return 0
        return 1 if fits_partition(choice, partition) else 2

    return min(choices, key=rank)


def find_charged_account(job: Job, cluster: Cluster, info: ClusterInfo | None) -> str | None:
    """Return the cluster's name of the account that a job is charged to; None: unknown."""
    if _ACCOUNT_OPTION.search(job.native.get(cluster.name, "")):
        return None
    if job.account is not None:
        try:
            return translate_job(job, cluster, info).account
        except UnmappedNameError:
            return None
    if info is None or info.associations is None:
        return None
    accounts = info.associations.users.get(job.user.lower())
    return (accounts and accounts.default) or None


def _describe_missing_association(
    job: Job, cluster: Cluster, associations: Associations, partition: str
) -> str | None:
    """Return a message if the manager would reject a translated job for its user's associations."""
    user_associations = associations.users.get(job.user.lower())
    if user_associations is None:
        return f"user {job.user} has no account on the cluster; its administrators can add one"
    if _ACCOUNT_OPTION.search(job.native.get(cluster.name, "")):
        return None
    account = (job.account or user_associations.default).lower()
    partitions = user_associations.accounts.get(account)
    if account and partitions is None:
        return f"user {job.user} may not charge account {account} on the cluster"
    if partitions and partition not in partitions:
        return (
            f"user {job.user} may charge account {account} only in partition "
            f"{', '.join(partitions)} of the cluster"
        )
    return None


def _add_features(constraint: str | None, features: list[str]) -> str | None:
    """Return the constraint with the features added, in a form that needs no brackets."""
    required = "&".join(features)
    if constraint is None or not required:
        return constraint or required or None
    return "|".join(f"{group}&{required}" for group in constraint.split("|"))


def _counted_licences(job: Job, cluster: Cluster, info: ClusterInfo) -> dict[str, int]:
    """Return the requested licences that the manager counts, by its names."""
    counts: Counter[str] = Counter()
    for name, count in job.licences.items():
        manager_name = cluster.manager_licence_name(name)
        if manager_name in info.licences:
            counts[manager_name] += count
    return dict(counts)


def satisfies_constraint(nodes: NodeCapacity, constraint: str) -> bool:
    """Evaluate Slurm's simple constraints: names joined by & or |, & binding closer."""
    return any(
        all(name in nodes.features for name in FEATURE.findall(group))
        for group in constraint.split("|")
    )


def count_tasks(job: Job, nodes: NodeCapacity, only_free: bool) -> int:
    """Return how many tasks of the job fit on a node, empty or beside its jobs."""
    cpus = nodes.free_cpus if only_free else nodes.cpus
    memory = nodes.free_memory if only_free else nodes.memory
    gres = nodes.free_gres if only_free else nodes.gres
    if only_free and job.exclusive and nodes.free_cpus < nodes.cpus:
        return 0
    if job.gres and any(gres.get(name, 0) < count for name, count in job.gres.items()):
        return 0
    tasks = cpus // job.cpus_per_task
    if memory is not None:
        if job.memory is not None and memory < job.memory:
            return 0
        if job.memory_per_cpu is not None:
            tasks = min(tasks, memory // (job.memory_per_cpu * job.cpus_per_task))
    if job.tasks_per_node is not None:
        tasks = min(tasks, job.tasks_per_node)
    return tasks


def fits_partition(
    job: Job, partition: Partition, *, only_free: bool = False, only_up: bool = False
) -> bool:
    """Return whether the nodes of the partition can hold the whole job.

    `only_up` counts only nodes that are up, `only_free` only the free part of nodes that are up.
    """
    remaining_tasks, max_nodes = job.tasks, partition.max_nodes
    remaining_nodes = job.nodes if job.nodes is not None else max_nodes
    constraint, needs_up, cpus = job.constraint, only_up or only_free, job.cpus_per_task
    usable = (
        nodes
        for nodes in partition.nodes
        if (nodes.free_cpus if only_free else nodes.cpus) >= cpus
        and (nodes.up or not needs_up)
        and (constraint is None or satisfies_constraint(nodes, constraint))
    )
    if remaining_nodes is None:  # no limit on nodes: their order does not matter, some suffice
        for nodes in usable:
            remaining_tasks -= count_tasks(job, nodes, only_free) * nodes.count
            if remaining_tasks <= 0:
                return True
        return False
    largest_first = sorted(
        [(count_tasks(job, nodes, only_free), nodes.count) for nodes in usable], reverse=True
    )
    if job.nodes is not None and sum(count for tasks, count in largest_first if tasks) < job.nodes:
        return False
    for tasks, count in largest_first:
        used_nodes = min(count, remaining_nodes)
        remaining_tasks -= tasks * used_nodes
        remaining_nodes -= used_nodes
        if remaining_tasks <= 0:
            return True
    return False


def fits_without(
    job: Job, cluster: Cluster, info: ClusterInfo | None, hosts: Collection[str]
) -> bool:
    """Return whether a cluster can hold the job without some hosts, or does not name its hosts."""
    if info is None:
        return True
    try:
        job = translate_job(job, cluster, info)
    except UnmappedNameError:
        return False
    partition, options = info.partition(job.partition), job.manager_options
    if partition is None or not partition.named_nodes:
        return partition is not None
    if options is not None:
        if not set(hosts).isdisjoint(expand_hosts(options.nodelist)):
            return False
        hosts = {*hosts, *expand_hosts(options.exclude)}
    nodes = tuple(
        replace(kind.capacity, count=len(cluster_hosts(kind.names).difference(hosts)))
        for kind in partition.named_nodes
    )
    return fits_partition(job, replace(partition, nodes=nodes))


def take_nodes(job: Job, partition: Partition) -> Partition:
    """Return the partition without the resources of a job that starts on its free nodes.

    The job fills the nodes with the most room first. What does not fit is left out.
    """
    remaining_tasks = job.tasks
    remaining_nodes = math.inf if (limit := job.nodes or partition.max_nodes) is None else limit
    groups: list[NodeCapacity] = []
    for nodes in sorted(
        partition.nodes, key=lambda nodes: count_tasks(job, nodes, True), reverse=True
    ):
        capacity = count_tasks(job, nodes, True)
        untouched = nodes.count
        usable = nodes.up and (
            job.constraint is None or satisfies_constraint(nodes, job.constraint)
        )
        while usable and capacity > 0 and untouched and remaining_tasks and remaining_nodes:
            tasks = min(capacity, remaining_tasks)
            count = int(min(untouched, remaining_tasks // tasks, remaining_nodes))
            groups.append(_with_tasks(job, nodes, tasks, count))
            untouched -= count
            remaining_tasks -= count * tasks
            remaining_nodes -= count
        if untouched:
            whole = untouched == nodes.count
            groups.append(nodes if whole else replace(nodes, count=untouched))
    return replace(partition, nodes=tuple(groups))


def _with_tasks(job: Job, nodes: NodeCapacity, tasks: int, count: int) -> NodeCapacity:
    """Return `count` nodes of a group, each with some tasks of the job."""
    cpus = tasks * job.cpus_per_task
    memory = max(job.memory or 0, (job.memory_per_cpu or 0) * cpus)
    return replace(
        nodes,
        count=count,
        free_cpus=0 if job.exclusive else nodes.free_cpus - cpus,
        free_memory=None if nodes.free_memory is None else nodes.free_memory - memory,
        free_gres={n: free - job.gres.get(n, 0) for n, free in nodes.free_gres.items()},
    )


def _unusable_path(job: Job, cluster: Cluster) -> str | None:
    """Return the first path of the job that the cluster does not have, and why; else None.

    Of filesystems within each other the innermost has the path.
    """
    if not cluster.has_listed_filesystems:
        return None
    mounts = {
        PurePosixPath("/", name): cluster.other_filesystems.get(name)
        for name in (*cluster.filesystems, *cluster.other_filesystems)
    }
    for path in (job.directory, *job.writes):
        if path == "/dev/null" or not path:
            continue
        above = [mount for mount in mounts if PurePosixPath(path).is_relative_to(mount)]
        innermost = max(above, key=lambda mount: len(mount.parts), default=None)
        if innermost is None:
            return f"{path} is on none of the cluster's filesystems"
        if (other := mounts[innermost]) is not None:
            return f"{path} is on another filesystem than {innermost} there, {other}"
    return None


def find_ineligibility(
    job: Job, cluster: Cluster, info: ClusterInfo | None
) -> Ineligibility | None:
    """Return why this cluster cannot run the job, or None. Permanent reasons come first."""
    if job.clusters and cluster.name not in job.clusters:
        return Ineligibility(
            Reason.NO_CLUSTER_FITS, f"only {', '.join(job.clusters)} was requested"
        )
    if cluster.takes == "reservations" and job.reservation is None:
        return Ineligibility(
            Reason.NO_CLUSTER_FITS, "only jobs in a reservation may use the cluster"
        )
    if (problem := _unusable_path(job, cluster)) is not None:
        return Ineligibility(Reason.FILESYSTEM, problem)
    if info is None:
        return Ineligibility(Reason.CLUSTER_DOWN, "the cluster has not reported yet")
    try:
        job = translate_job(job, cluster, info)
    except UnmappedNameError as error:
        return Ineligibility(Reason.NO_MAPPING, str(error))
    partition = info.partition(job.partition)
    if partition is None and job.partition is None:
        return Ineligibility(Reason.CLUSTER_DRAINED, "the cluster has no partition with nodes now")
    if partition is None:
        return Ineligibility(Reason.NO_MAPPING, f'the cluster has no partition "{job.partition}"')
    if (
        info.associations is not None
        and info.associations.required
        and (text := _describe_missing_association(job, cluster, info.associations, partition.name))
    ):
        return Ineligibility(Reason.NO_MAPPING, text)
    excess = (
        _describe_unsupported_option(job, cluster, info, partition)
        or describe_size_excess(job, partition)
        or _describe_licence_excess(job, info)
    )
    if excess is not None:
        return Ineligibility(Reason.NO_CLUSTER_FITS, excess)
    if not partition.up:
        return Ineligibility(Reason.CLUSTER_DRAINED, f"partition {partition.name} is down")
    # the nodes of an active reservation count as down for jobs outside it
    if job.reservation is None and not (
        all(n.up for n in partition.nodes) or fits_partition(job, partition, only_up=True)
    ):
        return Ineligibility(Reason.CLUSTER_DRAINED, "too many nodes are down or drained")
    for name, count in job.licences.items():
        total, used = info.licences[name].total, info.licences[name].used
        if count > total - used:
            message = f"its manager counts {used} of {total} {name} as used"
            return Ineligibility(Reason.LICENCE_BUSY, message)
    return None


def _describe_unsupported_option(
    job: Job, cluster: Cluster, info: ClusterInfo, partition: Partition
) -> str | None:
    """Return a message if the cluster cannot honour an option of the job."""
    if (options := job.manager_options) is None:
        return None
    for name in options.needed(job.time_limit is not None):
        if name not in cluster.job_options:
            return f"{name} has no equivalent on the cluster"
    if options.unlimited and partition.max_time is not None:
        return f"the partition's time limit is {partition.max_time:g} s, the job requests none"
    for name in expand_hosts(options.nodelist):
        if info.find_node(name) is None:
            return f"the cluster has no node {name}"
    return None


def _describe_licence_excess(job: Job, info: ClusterInfo) -> str | None:
    """Return a message if the job requests more licences than the manager counts in all."""
    for name, count in job.licences.items():
        if count > (total := info.licences[name].total):
            return f"its manager counts {total} {name} in all, the job requests {count}"
    return None


def describe_size_excess(job: Job, partition: Partition) -> str | None:
    """Return a message if the job is too long or too large for the partition."""
    limit = job.time_limit
    if limit is not None and partition.max_time is not None and limit > partition.max_time:
        return (
            f"the partition's time limit is {partition.max_time:g} s, the job requests {limit:g} s"
        )
    if partition.max_nodes is not None and (job.nodes or 1) > partition.max_nodes:
        return f"a job may have at most {partition.max_nodes} nodes, this job requests {job.nodes}"
    if fits_partition(job, partition):
        return None
    cpus = sum(n.count * n.cpus for n in partition.nodes)
    if job.cpus > cpus:
        return f"the partition has {cpus} processors, the job requests {job.cpus}"
    return "no set of nodes has the requested processors, memory, gres or features"
