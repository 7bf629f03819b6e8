"""The clusters of a simulation: counted processors, or machines with speeds and licences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from metasched.errors import UserError
from metasched.policies.local.queueing import ReservedWindow

MAX_CLUSTERS, MAX_CPUS = 1000, 10**7  # of a simulation; of a cluster
REFERENCE_BENCHMARK = 1.0  # default speed of a processor


class ClusterError(UserError):
    """Invalid cluster descriptions."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of a cluster."""

    cpus: int
    benchmark: float = REFERENCE_BENCHMARK  # speed
    licences: frozenset[str] | None = None  # usable on it; None: all
    bandwidth: float = math.inf  # megabytes per second of its link to all other machines


class StoredInput(NamedTuple):
    """A part of the input of a job, where it is stored."""

    cluster: str  # name
    machine: int  # index
    size: float  # megabytes
    bandwidth: float  # megabytes per second of the machine's link


@dataclass(frozen=True, kw_only=True)
class SimulatedCluster:
    """A cluster of counted processors, or of machines."""

    name: str
    cpus: int
    benchmark: float = REFERENCE_BENCHMARK  # speed, mean over the processors
    machines: tuple[Machine, ...] = ()  # the most powerful first; (): processors are counted
    shared: bool = True  # a machine may run several jobs at a time
    licences: Mapping[str, int] = field(default_factory=dict)  # copies, on any machine
    policy: str = ""  # name of its local policy; "": that of the simulation
    # tasks that wait there at most, see `Cluster.queue_depth`; None: any number, with fair share 0
    queue_depth: int | None = None
    windows: tuple[ReservedWindow, ...] = ()  # that its jobs leave free, if its policy keeps them

    @staticmethod
    def of_machines(
        name: str,
        machines: list[Machine],
        *,
        shared: bool = True,
        licences: Mapping[str, int] | None = None,
        policy: str = "",
        queue_depth: int | None = None,
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
            queue_depth=queue_depth,
        )

    def transfer_seconds(self, inputs: Sequence[StoredInput], machine: int) -> float:
        """Return the seconds to bring the input to a machine, part by part; 0 for parts there.

        `Transf` of Pasquali 2008, §3.2.2. The slower of two links limits a transfer.
        """
        bandwidth = self.machines[machine].bandwidth
        return sum(
            stored.size / min(stored.bandwidth, bandwidth)
            for stored in inputs
            if (stored.cluster, stored.machine) != (self.name, machine)
        )
