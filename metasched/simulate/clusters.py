"""The clusters of a simulation: counted processors, or machines with speeds and licences."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from metasched.errors import UserError

MOST_CLUSTERS, MOST_CPUS = 1000, 10**7
REFERENCE = 1.0  # the speed of a processor where nothing else is said


class ClusterError(UserError):
    """Clusters that make no sense; the message says what, where and what to do."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine: processors, speed, and the licences that can be used on it (None: all)."""

    cpus: int
    benchmark: float = REFERENCE
    licences: frozenset[str] | None = None


@dataclass(frozen=True, kw_only=True)
class SimulatedCluster:
    """One cluster. Without `machines` its `cpus` are counted and a job takes some anywhere.

    `machines` are sorted, the most powerful first. `shared`: a machine may run several jobs at a
    time. `licences` are the copies that float among the machines. `policy` names a local policy
    of its own ("": that of the whole simulation).
    """

    name: str
    cpus: int
    benchmark: float = REFERENCE
    machines: tuple[Machine, ...] = ()
    shared: bool = True
    licences: Mapping[str, int] = field(default_factory=dict)
    policy: str = ""

    @staticmethod
    def of_machines(
        name: str,
        machines: list[Machine],
        *,
        shared: bool = True,
        licences: Mapping[str, int] | None = None,
        policy: str = "",
    ) -> SimulatedCluster:
        """A cluster of machines; its `benchmark` is their mean speed, by processors."""
        sorted_machines = sorted(machines, key=lambda m: (-m.benchmark, -m.cpus))
        cpus = sum(m.cpus for m in machines)
        return SimulatedCluster(
            name=name,
            cpus=cpus,
            benchmark=sum(m.cpus * m.benchmark for m in machines) / cpus,
            machines=tuple(sorted_machines),
            shared=shared,
            licences=licences or {},
            policy=policy,
        )


def parse(text: str) -> tuple[SimulatedCluster, ...]:
    """The clusters of a word (`128`, `2x64`, `64,32,32`) or of a TOML file. ClusterError if none.

    They are named c1, c2, ... in that order.
    """
    if text.endswith(".toml") or Path(text).is_file():
        return read(Path(text))
    sizes: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(?:([0-9]{1,4})x)?([0-9]{1,8})\s*", part, re.ASCII)
        if match is None:
            raise ClusterError(
                f'"{text}" describes no clusters, --clusters; '
                "write 128, 2x64, 64,32,32 or the name of a TOML file"
            )
        count, size = int(match[1] or 1), int(match[2])
        if not 1 <= size <= MOST_CPUS or not 1 <= count <= MOST_CLUSTERS - len(sizes):
            raise ClusterError(
                f'"{part.strip()}" makes no clusters, --clusters; '
                f"write 1 to {MOST_CPUS} processors and at most {MOST_CLUSTERS} clusters"
            )
        sizes += [size] * count
    return tuple(
        SimulatedCluster(name=f"c{place}", cpus=size) for place, size in enumerate(sizes, 1)
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
