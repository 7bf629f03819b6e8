"""The clusters of a simulation as a TOML file of [[cluster]] tables describes them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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


class ClustersFile(_Table):
    cluster: Annotated[tuple[ClusterTable, ...], Field(min_length=1, max_length=MOST_CLUSTERS)]


def read(path: Path) -> tuple[SimulatedCluster, ...]:
    """The clusters of a TOML file of [[cluster]] tables. ClusterError if it makes no sense."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        tables = ClustersFile.model_validate(table).cluster
    except OSError as error:
        raise ClusterError(f"{error.strerror}, {path}; name a readable file") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ClusterError(f"no TOML ({error}), {path}; mend that line") from None
    except ValidationError as error:
        wrong = error.errors()[0]
        where = ".".join(str(step) for step in wrong["loc"])
        raise ClusterError(f"{where}: {wrong['msg'].lower()}, {path}; mend it") from None
    names = [t.name for t in tables]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ClusterError(f'two clusters are called "{twice}", {path}; rename one')
    return tuple(_cluster(t, path) for t in tables)


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
