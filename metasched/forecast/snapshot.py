"""The state from which a forward run begins. Pure; times are seconds of the caller's clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from metasched.policies.local.queueing import EMPTY, LocalPolicy, ReservedWindow


class RunningTask(NamedTuple):
    """A running task, of metasched or of others."""

    cluster: int  # index in `Snapshot.clusters`
    cpus: int  # held
    start: float
    limit: float  # seconds
    user: str = ""
    user_class: str = ""
    resources: Mapping[str, int] = EMPTY  # held, as in `WaitingTasks`


class WaitingTasks(NamedTuple):
    """Tasks that wait with equal requests, such as an array: they start in sequence."""

    cpus: int
    # seconds, on each cluster where the tasks may start, by its index in `Snapshot.clusters`: the
    # cluster in whose queue they are, or all that may take them if they can still move
    limits: Mapping[int, float]
    tasks: int = 1
    user: str = ""
    user_class: str = ""
    resources: Mapping[str, int] = EMPTY  # needed: counted by the cluster, or in `site_resources`
    waiting_since: float = 0.0
    deadline: float | None = None
    priority: int = 1  # assigned by metasched
    queued: bool = False  # in metasched, not in the queue of a cluster
    leased: bool = False  # its resources are no longer free: it took them before it starts


class ForecastCluster(NamedTuple):
    """A cluster of counted processors."""

    free_cpus: int
    make_policy: Callable[[], LocalPolicy]  # called once for each forward run
    resources: Mapping[str, int] = EMPTY  # free; a missing resource is unlimited
    windows: tuple[ReservedWindow, ...] = ()  # reservations: processors that tasks cannot use


class Probe(NamedTuple):
    """A task that might be submitted: behind all others, and without any effect on them."""

    cluster: int  # index in `Snapshot.clusters`
    cpus: int
    limit: float  # seconds


class Snapshot(NamedTuple):
    """Running and waiting tasks."""

    now: float
    clusters: tuple[ForecastCluster, ...]
    running: tuple[RunningTask, ...]
    waiting: tuple[WaitingTasks, ...]  # in the order of each cluster's scheduling
    site_resources: Mapping[str, int] = EMPTY  # free licences that clusters share
    probes: tuple[Probe, ...] = ()
