"""Clusters: configuration by the site, and state reported by their managers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec
from msgspec import structs

from metasched.model.host_lists import cluster_hosts, compressed_hosts, find_host
from metasched.model.job import require_positive

MAX_CALL_TIMEOUT = 600.0  # seconds; longest answer of a worker that a site may wait for


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster as the site configures it; its manager reports `ClusterInfo`."""

    name: str
    adapter: str
    benchmark: float = 1.0  # speed of a processor relative to the other clusters
    filesystems: tuple[str, ...] = ()  # mounted there, below "/"; empty: every path can be used
    # names that mean another filesystem there than on the submit host -> the filesystem there
    other_filesystems: Mapping[str, str] = msgspec.field(default_factory=dict)
    max_tasks_per_dispatch: int = 1000  # of an array
    # most tasks of all users on the way to its manager, without an answer; each user may always
    # have the tasks of one dispatch; None: any number
    max_unanswered: int | None = 1000
    # tasks of all users that wait there, the others wait in metasched, see `ScopeLimits`; 0: by
    # its size, see `ClusterView.queue_depth`; None: any number
    queue_depth: int | None = 0
    # metasched's names -> the manager's, by category: {"partition": {"long": "week"}};
    # "*" = "*" keeps any name
    maps: Mapping[str, Mapping[str, str]] = msgspec.field(default_factory=dict)
    # metasched's account -> user, or "*" for all others -> the manager's account
    user_accounts: Mapping[str, Mapping[str, str]] = msgspec.field(default_factory=dict)
    move_after: float | None = None  # seconds without answer before unstarted tasks move; None: off
    fence_dir: str = ""  # shared folder for the claims of payloads; "": no claims
    supports_reservations: bool = False  # whether its manager can reserve nodes
    reserves_for_accounts: bool = False  # whether it can reserve them for jobs of accounts
    takes: Literal["both", "jobs", "reservations"] = "both"  # jobs without reservation, or within
    binds_late: bool = False  # reservations reach its manager `lead` seconds before the start
    lead: float = 60.0  # seconds
    guard: float = 60.0  # seconds that jobs hold nodes after their limits; used if not reported
    granularity: float = 1.0  # seconds; the manager rounds limits up to multiples
    start_delay: float = 30.0  # most seconds until its manager starts a new job that can start
    # licence -> the manager's feature of the machines that can use it; unlisted: all machines
    licence_features: Mapping[str, str] = msgspec.field(default_factory=dict)
    job_options: tuple[str, ...] = ()  # those of `ManagerOptions` that its adapter supports
    local_policy: str = ""  # as its adapter declares it (`Capabilities`); "": not declared
    orders_by_priority: bool = False  # its queue has the order of metasched's priorities

    def __post_init__(self) -> None:
        require_positive(f"cluster {self.name}: benchmark", self.benchmark)

    @property
    def local_policy_or_fcfs(self) -> str:
        """Name of the local policy that stands for its manager in forecasts and simulations.

        FCFS, if its adapter declares none: it expects no job to start before its turn.
        """
        return self.local_policy or "fcfs"

    @property
    def has_listed_filesystems(self) -> bool:
        """Whether the paths of a job decide on its eligibility."""
        return bool(self.filesystems or self.other_filesystems)

    def manager_licence_name(self, name: str) -> str:
        """Return the manager's name of a licence."""
        return self.maps.get("licence", {}).get(name, name)

    def manager_accounts(self, name: str) -> tuple[str, ...]:
        """Return the manager's accounts that jobs of an account charge, whichever users have them.

        Empty: the account has no mapping there, as in `policies.eligible.translate_names`.
        """
        if name in self.user_accounts:
            return tuple(sorted(set(self.user_accounts[name].values())))
        mapping = self.maps.get("account", {})
        default = (name,) if mapping.get("*") == "*" else ()
        return (mapping[name],) if name in mapping else default


@dataclass(frozen=True)
class NodeCapacity:
    """Capacity of `count` identical nodes, per node."""

    count: int
    cpus: int
    free_cpus: int
    memory: int | None = None  # MiB; None: not limited
    free_memory: int | None = None  # MiB
    gres: Mapping[str, int] = field(default_factory=dict)
    free_gres: Mapping[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    up: bool = True  # False: down or drained, nothing free; jobs that need the nodes wait for them

    @property
    def without_load(self) -> NodeCapacity:
        """What these nodes have in common with others, whatever their number and load."""
        return replace(self, count=0, free_cpus=0, free_memory=None, free_gres={})


@dataclass(frozen=True)
class NamedNodes:
    """Names of nodes that are alike, whatever their load: they change as seldom as the nodes."""

    names: str  # a list of hosts, as in n[1-3]
    capacity: NodeCapacity  # without load


@dataclass(frozen=True)
class Partition:
    """A partition (queue) of a cluster. A limit of None: unlimited."""

    name: str
    nodes: tuple[NodeCapacity, ...]
    default: bool = False
    up: bool = True
    max_time: float | None = None  # seconds
    default_time: float | None = None  # seconds
    max_nodes: int | None = None  # per job
    named_nodes: tuple[NamedNodes, ...] = ()  # all nodes; empty: their names are unknown

    @property
    def free_cpus(self) -> int:
        return sum(group.count * group.free_cpus for group in self.nodes)

    @property
    def eligibility_key(self) -> object:
        """Key of the properties that decide whether a job is eligible; ignores free resources."""
        counts: dict[object, int] = {}
        for group in self.nodes:
            gres = tuple(sorted(group.gres.items())) if group.gres else ()
            node_type = (group.cpus, group.memory, gres, group.features, group.up)
            counts[node_type] = counts.get(node_type, 0) + group.count
        return self.name, self.default, self.up, self.max_time, self.max_nodes, counts

    @property
    def with_all_nodes_up(self) -> Partition:
        """The partition with itself and all of its nodes up."""
        return replace(self, up=True, nodes=tuple(replace(group, up=True) for group in self.nodes))

    @staticmethod
    def name_nodes(nodes: Iterable[tuple[str, NodeCapacity]]) -> tuple[NamedNodes, ...]:
        """Return `named_nodes` of (name, capacity) of each node."""
        kinds: dict[str, tuple[NodeCapacity, list[str]]] = {}
        for name, capacity in nodes:
            kind = capacity.without_load
            kinds.setdefault(repr(kind), (kind, []))[1].append(name)
        return tuple(
            NamedNodes(compressed_hosts(frozenset(names)), kind) for kind, names in kinds.values()
        )

    @property
    def without_load(self) -> Partition:
        """The partition without free resources, equal nodes merged."""
        groups: dict[str, NodeCapacity] = {}
        for group in self.nodes:
            node_type = group.without_load
            key = repr(node_type)
            merged = groups.get(key, node_type)
            groups[key] = replace(merged, count=merged.count + group.count)
        return replace(self, nodes=tuple(groups[key] for key in sorted(groups)))


@dataclass(frozen=True)
class HeadPlan:
    """The planned start of a queue's head, and the resources left to jobs that still run then."""

    start: float  # epoch seconds; inf: the manager does not know it
    partitions: tuple[Partition, ...]  # free processors of nodes, now and at the start
    licences: Mapping[str, int]  # free copies, now and at the start


@dataclass(frozen=True)
class ManagerLicences:
    """Copies of a licence that a manager counts itself."""

    total: int
    used: int = 0


class UserAccounts(msgspec.Struct, frozen=True, kw_only=True):
    """The accounts that a user may charge on a cluster. Names are in lower case."""

    default: str = ""  # charged by jobs that name no account; "": none, or unknown
    # partitions that may charge an account, by account; empty: all; not reported where
    # associations are not required
    accounts: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class Associations(msgspec.Struct, frozen=True, kw_only=True):
    """The users that a manager's accounting knows, with their accounts."""

    required: bool  # the manager rejects jobs of users and accounts without association
    users: Mapping[str, UserAccounts]  # by name in lower case


class ClusterInfo(msgspec.Struct):
    """State of a cluster as its manager reports it, reduced to the needs of decisions.

    Pending jobs are jobs of any user that could start: not held, dependencies met. Built at each
    listing and never changed; not frozen, since setting the fields of a frozen struct is slower.
    """

    cpus: int  # usable processors; nodes shared by partitions count once
    used_cpus: int
    partitions: tuple[Partition, ...]
    # (end by the limit in epoch seconds, processors) of all running jobs, earliest end first
    running_jobs: tuple[tuple[float, int], ...] = ()
    owed_by_others: float = 0.0  # processors x limit (seconds) of other users' pending jobs
    pending_jobs: int = 0  # of all users
    queue_head: tuple[int, float] | None = None  # (processors, limit) of the first pending job
    # reserved windows, if the manager starts jobs before them: (start in epoch seconds, processors
    # left for jobs that start now and run into the window)
    upcoming_windows: tuple[tuple[float, int], ...] = ()
    accounting_source: str = ""  # description of the accounting of ended jobs; "": there is none
    use_source: str = ""  # accounting with the use of all jobs; "": it is not reported
    licences: Mapping[str, ManagerLicences] = msgspec.field(default_factory=dict)  # manager's names
    associations: Associations | None = None  # None: the manager has none, or they are unknown
    # free copies of licences that the manager counts without refusing jobs that must wait for them
    free_licences: Mapping[str, int] = msgspec.field(default_factory=dict)
    head_plan: HeadPlan | None = None  # None: `queue_head` is all that the manager reports
    max_native_id: int | None = None  # highest id that the manager gives a job; None: unknown
    in_order: bool = False  # its manager starts no job before an earlier pending job
    manager_name: str = ""  # its name in its manager (ClusterName of Slurm); "": unknown
    hosts: str = ""  # names of its nodes, such as n[1-3]; "": unknown

    @property
    def requires_associations(self) -> bool:
        """Whether a job depends on its user's associations."""
        return self.associations is not None and self.associations.required

    @property
    def may_start_jobs(self) -> bool:
        """Whether a job that is submitted now may start at once."""
        return self.used_cpus < self.cpus and not (self.in_order and self.pending_jobs)

    @property
    def without_load(self) -> ClusterInfo:
        """The permanent part: decides which jobs can ever run there, without current load."""
        return structs.replace(
            self,
            used_cpus=0,
            partitions=tuple(partition.without_load for partition in self.partitions),
            running_jobs=(),
            owed_by_others=0.0,
            pending_jobs=0,
            queue_head=None,
            upcoming_windows=(),
            free_licences={},
            head_plan=None,
            licences={name: replace(counts, used=0) for name, counts in self.licences.items()},
        )

    def find_node(self, name: str) -> str | None:
        """Return the manager's name of a node; None: there is no such node."""
        return name if not self.hosts else find_host(name, cluster_hosts(self.hosts))

    def partition(self, name: str | None) -> Partition | None:
        """Return the partition of that name; for None the default partition, else the first.

        Of a comma list the first name counts.
        """
        if name is not None:
            first_name = name.partition(",")[0]
            return next(
                (partition for partition in self.partitions if partition.name == first_name), None
            )
        first = self.partitions[0] if self.partitions else None
        return next((partition for partition in self.partitions if partition.default), first)
