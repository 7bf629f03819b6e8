"""The clusters of a simulation: counted processors, or machines with speeds and licences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from metasched.errors import UserError

MAX_CLUSTERS, MAX_CPUS = 1000, 10**7
REFERENCE_BENCHMARK = 1.0  # the speed of a processor where nothing else is said


class ClusterError(UserError):
    """Clusters that make no sense; the message says what, where and what to do."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine: processors, speed, and the licences that can be used on it (None: all)."""

    cpus: int
    benchmark: float = REFERENCE_BENCHMARK
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
