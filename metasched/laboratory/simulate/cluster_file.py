"""The clusters of a simulation, their shared licences, shares and limits, read from a TOML file."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from metasched.config.settings import ConfigError
from metasched.config.tables import MAX_QUEUE_DEPTH, FairShareTable, LimitsTable
from metasched.config.toml_files import read_toml, validated
from metasched.errors import UserError
from metasched.laboratory.simulate.clusters import (
    MAX_CLUSTERS,
    MAX_CPUS,
    REFERENCE_BENCHMARK,
    ClusterError,
    Machine,
    SimulatedCluster,
)
from metasched.model.fair_share import FairShareSettings
from metasched.model.licence import LicencePool
from metasched.model.limits import LimitSettings
from metasched.policies.local.queueing import ReservedWindow

MAX_RESERVATIONS = 10_000  # of a cluster


class _TableModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MachineTable(_TableModel):
    """`count` equal machines."""

    count: Annotated[int, Field(ge=1, le=10**5)] = 1
    cpus: Annotated[int, Field(ge=1, le=MAX_CPUS)]
    benchmark: Annotated[float, Field(gt=0, le=1e9)] = REFERENCE_BENCHMARK
    licences: frozenset[str] | None = None


class ReservationTable(_TableModel):
    """Counted processors that queued jobs leave free, in seconds from the trace's origin."""

    start: Annotated[float, Field(ge=0, le=1e12)]
    end: Annotated[float, Field(gt=0, le=1e12)]
    cpus: Annotated[int, Field(ge=1, le=MAX_CPUS)]


class SimulatedClusterTable(_TableModel):
    """A cluster of `cpus` counted processors, or of the machines of its [[cluster.machine]]."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.]{0,62}$")]
    cpus: Annotated[int, Field(ge=1, le=MAX_CPUS)] | None = None
    benchmark: Annotated[float, Field(gt=0, le=1e9)] = REFERENCE_BENCHMARK
    shared: bool = True
    licences: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    policy: str = ""
    queue_depth: Annotated[int, Field(ge=1, le=MAX_QUEUE_DEPTH)] | None = None
    machine: tuple[MachineTable, ...] = ()
    reservation: Annotated[tuple[ReservationTable, ...], Field(max_length=MAX_RESERVATIONS)] = ()


class SimulatedLicenceTable(_TableModel):
    """A licence shared by `clusters` (default: all)."""

    name: str
    total: Annotated[int, Field(ge=1)]
    clusters: tuple[str, ...] = ()
    linger: Annotated[float, Field(ge=0)] = 0.0


class ClustersFile(_TableModel):
    cluster: Annotated[
        tuple[SimulatedClusterTable, ...], Field(min_length=1, max_length=MAX_CLUSTERS)
    ]
    licence: tuple[SimulatedLicenceTable, ...] = ()
    fair_share: FairShareTable | None = None
    limits: LimitsTable = LimitsTable()


def read_clusters(path: Path) -> tuple[SimulatedCluster, ...]:
    """Read the [[cluster]] tables of a TOML file. ClusterError if they are invalid."""
    return tuple(_build_cluster(table, path) for table in _read_file(path).cluster)


def read_licence_pools(path: Path) -> tuple[LicencePool, ...]:
    """Read the [[licence]] tables, shared by all clusters. ClusterError if they are invalid."""
    tables = _read_file(path)
    names = {table.name for table in tables.cluster}
    pools: dict[str, LicencePool] = {}
    for table in tables.licence:
        location = f'licence "{table.name}", {path}'
        if table.name in pools:
            raise ClusterError(f"described twice, {location}; remove one description")
        if unknown := [name for name in table.clusters if name not in names]:
            raise ClusterError(
                f'there is no cluster "{unknown[0]}", {location}; correct its clusters'
            )
        try:
            pools[table.name] = LicencePool(
                name=table.name, total=table.total, clusters=table.clusters, linger=table.linger
            )
        except ValueError as error:
            raise ClusterError(f"{error}, {path}") from None
    if pools and (with_licences := [table.name for table in tables.cluster if table.licences]):
        raise ClusterError(
            f'cluster "{with_licences[0]}" has its own licences beside [[licence]] tables, {path}; '
            "use one of the two forms for all licences"
        )
    return tuple(pools.values())


def read_shares(path: Path) -> FairShareSettings | None:
    """Read the table [fair_share]; None: there is none. ClusterError if it is invalid."""
    table = _read_file(path).fair_share
    if table is None:
        return None
    if table.shares_from is not None:
        raise ClusterError(
            f"shares_from, {path}, [fair_share]; write the shares, simulated clusters report none"
        )
    from metasched.config.fair_share import read_fair_share  # imports half of the daemon

    try:
        return read_fair_share(table, (), path)
    except UserError as error:
        raise ClusterError(str(error)) from None


def read_limit_settings(
    path: Path, classes: Collection[str], licences: Collection[str]
) -> LimitSettings:
    """Read the table [limits]. ClusterError if it is invalid.

    `classes`: of users, of the policy; `licences`: those besides the licences of the file.
    """
    tables = _read_file(path)
    licences = {*licences, *(licence.name for licence in tables.licence)}
    for cluster in tables.cluster:
        licences.update(cluster.licences)
    from metasched.config.limits import read_limits  # imports half of the daemon

    try:
        return read_limits(tables.limits, classes, licences, path)
    except UserError as error:
        raise ClusterError(str(error)) from None


def _read_file(path: Path) -> ClustersFile:
    try:
        tables = validated(ClustersFile, read_toml(path), path)
    except ConfigError as error:
        raise ClusterError(str(error)) from None
    names = [table.name for table in tables.cluster]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise ClusterError(f'two clusters are named "{duplicate}", {path}; rename one')
    return tables


def _build_cluster(table: SimulatedClusterTable, path: Path) -> SimulatedCluster:
    if bool(table.machine) == (table.cpus is not None):
        raise ClusterError(
            f'cluster "{table.name}" needs either cpus or [[cluster.machine]] tables, {path}; '
            "write one of the two"
        )
    if table.cpus is None and table.reservation:
        raise ClusterError(
            f'cluster "{table.name}" has machines and reservations, {path}; '
            "reservations need counted processors, write cpus"
        )
    if bad := next((r for r in table.reservation if r.end <= r.start), None):
        raise ClusterError(
            f'cluster "{table.name}" has a reservation from {bad.start:g} to {bad.end:g}, {path}; '
            "the end must be later"
        )
    if table.cpus is not None and any(r.cpus > table.cpus for r in table.reservation):
        raise ClusterError(
            f'cluster "{table.name}" has a reservation of more than its {table.cpus} processors, '
            f"{path}; correct one of the two"
        )
    if table.cpus is not None:
        return SimulatedCluster(
            name=table.name,
            cpus=table.cpus,
            benchmark=table.benchmark,
            licences=table.licences,
            policy=table.policy,
            queue_depth=table.queue_depth,
            windows=tuple([ReservedWindow(r.start, r.end, r.cpus) for r in table.reservation]),
        )
    machines = [
        Machine(machine.cpus, machine.benchmark, machine.licences)
        for machine in table.machine
        for _ in range(machine.count)
    ]
    return SimulatedCluster.of_machines(
        table.name,
        machines,
        shared=table.shared,
        licences=table.licences,
        policy=table.policy,
        queue_depth=table.queue_depth,
    )
