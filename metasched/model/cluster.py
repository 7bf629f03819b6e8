"""Clusters as a site describes them and as they describe themselves. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import msgspec
from msgspec import structs

from metasched.model.job import _require_positive
from metasched.model.stored_names import STORED_FIELDS


class Cluster(msgspec.Struct, rename=STORED_FIELDS["Cluster"], frozen=True, kw_only=True):
    """A cluster as the site describes it; what it says of itself is `Facts`.

    `benchmark` is the speed of one processor relative to the other clusters; `maps` translates
    (what, our name) to the manager's: {"partition": {"long": "week"}}, "*" = "*" keeps any name.
    After a silence of `move_after` seconds what has not begun there goes elsewhere (None: stays).
    In the folder `fence_dir` its payloads claim their attempts ("": they do not). Its manager
    `reserves` nodes for windows of time; it `takes` jobs that have no reservation, reservations,
    or both: a static partition. Where not every machine can use a licence, `licensed`
    names the feature of those that can, in its own words. Of one that `binds_late` its manager is
    told a reservation only `lead` seconds before the start; `guard` are the seconds for which jobs
    hold their nodes after their limits, if its manager does not tell, and it counts limits in steps
    of `granularity` seconds.
    """

    name: str
    adapter: str
    benchmark: float = 1.0
    filesystems: tuple[str, ...] = ()
    max_tasks_per_dispatch: int = 1000  # tasks of an array in one sending, at the most
    maps: Mapping[str, Mapping[str, str]] = msgspec.field(default_factory=dict)
    move_after: float | None = None
    fence_dir: str = ""
    supports_reservations: bool = False
    takes: Literal["both", "jobs", "reservations"] = "both"
    binds_late: bool = False
    lead: float = 60.0
    guard: float = 60.0
    granularity: float = 1.0
    licence_features: Mapping[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_positive(f"cluster {self.name}: benchmark", self.benchmark)

    def manager_licence_name(self, name: str) -> str:
        """What its manager calls a licence."""
        return self.maps.get("licence", {}).get(name, name)


@dataclass(frozen=True)
class NodeCapacity:
    """`count` like nodes: what each has and what is free on it now (processors, MiB, gres).

    Nodes that are down or drained are listed too, with `up` False and nothing free: a job that
    needs them waits, it is not impossible.
    """

    count: int
    cpus: int
    free_cpus: int
    memory: int | None = None
    free_memory: int | None = None
    gres: Mapping[str, int] = field(default_factory=dict)
    free_gres: Mapping[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    up: bool = True


@dataclass(frozen=True)
class Partition:
    """A queue of a cluster; limits in seconds, None = no limit."""

    name: str
    nodes: tuple[NodeCapacity, ...]
    default: bool = False
    up: bool = True
    max_time: float | None = None
    default_time: float | None = None
    max_nodes: int | None = None

    @property
    def free_cpus(self) -> int:
        return sum(group.count * group.free_cpus for group in self.nodes)

    @cached_property
    def eligibility_key(self) -> object:
        """What of it decides whether a job may be sent: not what is free."""
        counts: dict[object, int] = {}
        for group in self.nodes:
            gres = tuple(sorted(group.gres.items())) if group.gres else ()
            node_type = (group.cpus, group.memory, gres, group.features, group.up)
            counts[node_type] = counts.get(node_type, 0) + group.count
        return self.name, self.default, self.up, self.max_time, self.max_nodes, counts

    @property
    def with_all_nodes_up(self) -> Partition:
        """As it would be with all of its nodes up."""
        return replace(self, up=True, nodes=tuple(replace(group, up=True) for group in self.nodes))

    @property
    def without_load(self) -> Partition:
        """Its nodes by kind, whatever of them is free."""
        groups: dict[str, NodeCapacity] = {}
        for group in self.nodes:
            node_type = replace(group, count=0, free_cpus=0, free_memory=None, free_gres={})
            key = repr(node_type)
            merged = groups.get(key, node_type)
            groups[key] = replace(merged, count=merged.count + group.count)
        return replace(self, nodes=tuple(groups[key] for key in sorted(groups)))


@dataclass(frozen=True)
class ManagerLicences:
    """How many copies of a licence a manager itself gives out, and how many of them are taken."""

    total: int
    used: int = 0


class ClusterInfo(msgspec.Struct, rename=STORED_FIELDS["ClusterInfo"]):
    """What a cluster says of itself, reduced to what decisions need.

    `cpus` and `used` count usable nodes once even where partitions share them. `running` is
    everyone's (end by the limit, cpus), earliest end first; `owed` the cpu seconds
    (cpus x limit) of *other people's* pending jobs that could start (not held, no dependency);
    `pending` the number of everyone's such jobs; `head` (cpus, limit) of the first of them in
    the manager's own order. `coming` are reserved windows (by when others must have ended, cpus
    left to what begins now and still runs then), where the manager lets jobs begin until then.
    `licences` are those that it counts itself, under its own names. `records` says in words how the
    manager's accounting tells of jobs that it lists no more; empty: it does not.
    """

    cpus: int
    used_cpus: int
    partitions: tuple[Partition, ...]
    running_jobs: tuple[tuple[float, int], ...] = ()
    owed_by_others: float = 0.0
    pending_jobs: int = 0
    queue_head: tuple[int, float] | None = None
    upcoming_windows: tuple[tuple[float, int], ...] = ()
    accounting_source: str = ""
    licences: Mapping[str, ManagerLicences] = msgspec.field(default_factory=dict)

    @property
    def without_load(self) -> ClusterInfo:
        """What decides which jobs can ever run there: not what is free, running or pending now."""
        return structs.replace(
            self,
            used_cpus=0,
            partitions=tuple(partition.without_load for partition in self.partitions),
            running_jobs=(),
            owed_by_others=0.0,
            pending_jobs=0,
            queue_head=None,
            upcoming_windows=(),
            licences={name: replace(counts, used=0) for name, counts in self.licences.items()},
        )

    def partition(self, name: str | None) -> Partition | None:
        """The partition of that name; for None the default one, else the first."""
        if name is not None:
            return next(
                (partition for partition in self.partitions if partition.name == name), None
            )
        first = self.partitions[0] if self.partitions else None
        return next((partition for partition in self.partitions if partition.default), first)
