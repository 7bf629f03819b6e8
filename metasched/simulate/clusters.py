"""The clusters of a simulation: counted processors, or machines with speeds and licences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from metasched.errors import UserError
from metasched.model.licence import LicencePool

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


def parse_pools(text: str) -> tuple[LicencePool, ...]:
    """The licences that all clusters of such a word share: only a file has any."""
    if text.endswith(".toml") or Path(text).is_file():
        from metasched.simulate.cluster_specs import read_pools

        return read_pools(Path(text))
    return ()


def pooled(
    clusters: Sequence[SimulatedCluster],
) -> tuple[tuple[SimulatedCluster, ...], tuple[LicencePool, ...]]:
    """The clusters without licences of their own, and what they had, shared by those who had it."""
    names = {name: None for cluster in clusters for name in cluster.licences}
    pools = tuple(
        LicencePool(
            name=name,
            total=sum(cluster.licences.get(name, 0) for cluster in clusters),
            clusters=tuple(c.name for c in clusters if c.licences.get(name)),
        )
        for name in names
    )
    return tuple(replace(cluster, licences={}) for cluster in clusters), pools


def parse(text: str) -> tuple[SimulatedCluster, ...]:
    """The clusters of a word (`128`, `2x64`, `64,32,32`) or of a TOML file. ClusterError if none.

    They are named c1, c2, ... in that order.
    """
    if text.endswith(".toml") or Path(text).is_file():
        from metasched.simulate.cluster_specs import read

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
