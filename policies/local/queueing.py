"""The interface of local policies: which queued jobs of a cluster start now, and where. Pure.

A caller (the `local` adapter, the simulator) gives the queue in submission order, the running jobs
and the free resources; a policy returns the jobs to start. The protocol serves a cluster of counted
processors (its free processors are a number, a job takes any of them) and a cluster of machines (a
job runs on a single machine, at its speed). Other resources (memory, GPUs, licences) are counted
for the whole cluster.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

NO_MACHINE = -1
NEVER = math.inf  # as a time in seconds
EMPTY: Mapping[Any, Any] = MappingProxyType({})


# The input of each pass. Named tuples are immutable like frozen dataclasses and take about a third
# of the time to create.


class WaitingJob(NamedTuple):
    """A queued job; times are seconds of the caller's clock."""

    id: int
    cpus: int
    estimated: float  # seconds
    resources: Mapping[str, int] = EMPTY  # needed: "memory" in MiB, "gpu", licences of the cluster
    machines: Mapping[int, float] = EMPTY
    """Run time in seconds on each machine that can run the job, by its index in
    `FreeResources.machines`; empty where processors are counted."""
    waiting_since: float = 0.0
    deadline: float | None = None
    priority: int = 1  # assigned by metasched
    user: str = ""
    licences: tuple[str, ...] = ()  # leases of site-wide licences, not counted by the cluster
    on_fastest: float = 0.0
    """Run time in seconds on the fastest machine of the cluster, even if it cannot run the job; 0
    where processors are counted: `estimated`."""
    transfers: Mapping[int, float] = EMPTY
    """Seconds to bring its input to each machine of `machines`, in that order; empty: no input."""


class RunningJob(NamedTuple):
    """A running job."""

    id: int
    cpus: int  # held; all of its machine where machines are not shared
    end: float  # start + estimate, in seconds of the caller's clock
    resources: Mapping[str, int] = EMPTY  # held
    machine: int = 0  # index; 0 where processors are counted
    user: str = ""


class ReservedWindow(NamedTuple):
    """Processors that no queued job may use; times are seconds of the caller's clock."""

    start: float
    end: float
    cpus: int
    machine: int = 0  # index; 0 where processors are counted


class FreeResources(NamedTuple):
    """Free resources of a cluster."""

    cpus: int
    resources: Mapping[str, int] = EMPTY  # a missing resource is unlimited
    machines: Sequence[int] | None = None
    """Free processors of each machine, the most powerful first; None where these are counted."""
    shared: bool = True  # a machine may run several jobs at a time
    rho: Mapping[str, float] = EMPTY  # demand per copy of site-wide licences
    windows: Sequence[ReservedWindow] = ()
    """Present and future windows. What they hold now is among the free processors. Only policies
    that have `keeps_windows` keep them free."""


class LeftOver(NamedTuple):
    """The resources that a planned queue leaves to a job that is submitted now."""

    start: float  # seconds of the caller's clock; a job that ends by then may use all that is free
    free: FreeResources  # the part of the free resources that no queued job will use


class JobStart(NamedTuple):
    """A job to start now."""

    id: int
    machine: int = 0  # index; 0 where processors are counted


class LocalPolicy(Protocol):
    """The interface of a local policy; an object serves a single cluster.

    Call it after every arrival and ending, or only every `period` seconds if that is not 0.
    `incremental`: a job that was not started can only start after a job ends or exceeds its
    estimate; until then it is enough to pass the head of the queue and the jobs that arrived since.

    A policy may have more, for pulls and listings:
    - `keeps_windows`: whether its jobs stay out of `FreeResources.windows`, by their estimates,
      where processors are counted. While there are any, it is not `incremental`;
    - `keeps_plan`: whether it remembers the jobs of its last pass, which must all be real;
    - `in_order`: whether no job starts before an earlier job of the queue;
    - `head_id`: the job for which its last pass reserved, if not the first of the queue;
    - `reservation`: the `HeadReservation` of its last pass, or None;
    - `left_over()`: the `LeftOver` of its last pass, if that planned more than the head;
    - `planned_starts()`: the planned start of each queued job in its last pass, by id, for users.
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
