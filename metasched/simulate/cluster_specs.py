"""The clusters of a simulation, and licences that they share, as a TOML file describes them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from metasched.model.licence import LicencePool
from metasched.simulate.clusters import (
    MOST_CLUSTERS,
    MOST_CPUS,
    REFERENCE,
    ClusterError,
    Machine,
    SimulatedCluster,
)


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MachineTable(_Table):
    count: Annotated[int, Field(ge=1, le=10**5)] = 1
    cpus: Annotated[int, Field(ge=1, le=MOST_CPUS)]
    benchmark: Annotated[float, Field(gt=0, le=1e9)] = REFERENCE
    licences: frozenset[str] | None = None


class ClusterTable(_Table):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.]{0,62}$")]
    cpus: Annotated[int, Field(ge=1, le=MOST_CPUS)] | None = None
    benchmark: Annotated[float, Field(gt=0, le=1e9)] = REFERENCE
    shared: bool = True
    licences: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    policy: str = ""
    machine: tuple[MachineTable, ...] = ()


class LicenceTable(_Table):
    name: str
    total: Annotated[int, Field(ge=1)]
    clusters: tuple[str, ...] = ()
    linger: Annotated[float, Field(ge=0)] = 0.0


class ClustersFile(_Table):
    cluster: Annotated[tuple[ClusterTable, ...], Field(min_length=1, max_length=MOST_CLUSTERS)]
    licence: tuple[LicenceTable, ...] = ()


def read(path: Path) -> tuple[SimulatedCluster, ...]:
    """The clusters of a TOML file of [[cluster]] tables. ClusterError if it makes no sense."""
    return tuple(_cluster(t, path) for t in _tables(path).cluster)


def read_pools(path: Path) -> tuple[LicencePool, ...]:
    """The licences of its [[licence]] tables, which all clusters share. ClusterError as `read`."""
    tables = _tables(path)
    names = {t.name for t in tables.cluster}
    pools: dict[str, LicencePool] = {}
    for t in tables.licence:
        where = f'licence "{t.name}", {path}'
        if t.name in pools:
            raise ClusterError(f"described twice, {where}; leave out one")
        if unknown := [name for name in t.clusters if name not in names]:
            raise ClusterError(f'there is no cluster "{unknown[0]}", {where}; mend its clusters')
        try:
            pools[t.name] = LicencePool(
                name=t.name, total=t.total, clusters=t.clusters, linger=t.linger
            )
        except ValueError as error:
            raise ClusterError(f"{error}, {path}") from None
    if pools and (own := [t.name for t in tables.cluster if t.licences]):
        raise ClusterError(
            f'cluster "{own[0]}" has licences of its own beside [[licence]] tables, {path}; '
            "describe all in one of the two ways"
        )
    return tuple(pools.values())


def _tables(path: Path) -> ClustersFile:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        tables = ClustersFile.model_validate(table)
    except OSError as error:
        raise ClusterError(f"{error.strerror}, {path}; name a readable file") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ClusterError(f"no TOML ({error}), {path}; mend that line") from None
    except ValidationError as error:
        wrong = error.errors()[0]
        where = ".".join(str(step) for step in wrong["loc"])
        raise ClusterError(f"{where}: {wrong['msg'].lower()}, {path}; mend it") from None
    names = [t.name for t in tables.cluster]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ClusterError(f'two clusters are called "{twice}", {path}; rename one')
    return tables


def _cluster(table: ClusterTable, path: Path) -> SimulatedCluster:
    if bool(table.machine) == (table.cpus is not None):
        raise ClusterError(
            f'cluster "{table.name}" needs either cpus or [[cluster.machine]] tables, {path}; '
            "write one of the two"
        )
    if table.cpus is not None:
        return SimulatedCluster(
            name=table.name,
            cpus=table.cpus,
            benchmark=table.benchmark,
            licences=table.licences,
            policy=table.policy,
        )
    machines = [
        Machine(m.cpus, m.benchmark, m.licences) for m in table.machine for _ in range(m.count)
    ]
    return SimulatedCluster.of_machines(
        table.name,
        machines,
        shared=table.shared,
        licences=table.licences,
        policy=table.policy,
    )
