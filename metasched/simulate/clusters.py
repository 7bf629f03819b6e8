"""The clusters of a simulation: counted processors, or machines with speeds and licences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from metasched.errors import UserError

MAX_CLUSTERS, MAX_CPUS = 1000, 10**7
REFERENCE_BENCHMARK = 1.0  # default speed of a processor


class ClusterError(UserError):
    """Invalid cluster descriptions."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine: processors, speed, and the licences usable on it (None: all)."""

    cpus: int
    benchmark: float = REFERENCE_BENCHMARK
    licences: frozenset[str] | None = None


@dataclass(frozen=True, kw_only=True)
class SimulatedCluster:
    """A cluster. Without `machines`, a job takes any of the counted `cpus`.

    `machines` are sorted, the most powerful first. `shared`: a machine may run several jobs at a
    time. `licences` are copies usable on any machine that allows them. `policy` is the cluster's
    own local policy ("": that of the simulation).
    """

    name: str
    cpus: int
    benchmark: float = REFERENCE_BENCHMARK
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
        """Create a cluster of machines; its `benchmark` is their mean speed by processors."""
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
