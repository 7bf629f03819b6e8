"""Local policies: which queued jobs of one cluster start now, and on which machines. Pure.

A caller (the `local` adapter, the simulator) gives the queue in submission order, the running jobs
and the free resources; a policy returns the jobs to start. One protocol serves a cluster of counted
processors (its free processors are one number, a job takes any of them) and a cluster of machines
(a job runs on one machine, at its speed). Other resources (memory, GPUs, licences) are counted for
the whole cluster.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

NO_MACHINE = -1
NEVER = math.inf
EMPTY: Mapping[Any, Any] = MappingProxyType({})


# The input of each pass. Named tuples are immutable like frozen dataclasses and take about a third
# of the time to create.


class WaitingJob(NamedTuple):
    """A queued job: processors, estimated seconds, and other counted resources that it needs
    (`resources`: "memory" in MiB, "gpu", a licence).

    `machines` maps each machine that can run the job, by its index in `FreeResources.machines`, to
    the run time there in seconds; empty where processors are counted. `licences` are leases of
    site-wide licences, not counted by the cluster. `waiting_since` and `deadline` are times of the
    caller's clock; `priority` is the priority assigned by metasched.
    """

    id: int
    cpus: int
    estimated: float
    resources: Mapping[str, int] = EMPTY
    machines: Mapping[int, float] = EMPTY
    waiting_since: float = 0.0
    deadline: float | None = None
    priority: int = 1
    user: str = ""
    licences: tuple[str, ...] = ()


class RunningJob(NamedTuple):
    """A running job; `end` is its start + its estimate, in seconds of the caller's clock.

    `cpus` is what it holds: all processors of its machine where machines are not shared.
    """

    id: int
    cpus: int
    end: float
    resources: Mapping[str, int] = EMPTY
    machine: int = 0
    user: str = ""


class FreeResources(NamedTuple):
    """Free resources of a cluster. A resource missing from `resources` is unlimited.

    `machines` are the free processors of each machine, the most powerful first; None where
    processors are counted. `shared`: a machine may run several jobs at a time. `rho` maps site-wide
    licences to the demand per copy (`Licences.rho`).
    """

    cpus: int
    resources: Mapping[str, int] = EMPTY
    machines: Sequence[int] | None = None
    shared: bool = True
    rho: Mapping[str, float] = EMPTY


class JobStart(NamedTuple):
    """A job to start now; `machine` is 0 where processors are counted."""

    id: int
    machine: int = 0


class LocalPolicy(Protocol):
    """The interface of a local policy; an object serves one cluster.

    Call it after every arrival and ending, or only every `period` seconds if that is not 0.
    `incremental`: a job that was not started can only start after a job ends or exceeds its
    estimate; until then it is enough to pass the head of the queue and the jobs that arrived since.
    """

    @property
    def period(self) -> float: ...

    @property
    def incremental(self) -> bool: ...

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        """Return the jobs of `queue` to start at `now`; together they never exceed `free`."""
        ...


# Free resources during one pass.


# How far a pass goes down the queue.


# The policies.
