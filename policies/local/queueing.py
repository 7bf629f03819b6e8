"""Which waiting jobs of one cluster start now, and on which of its machines. Pure.

A caller (the `local` adapter, the simulator) gives the queue in its own order, what runs and what
is free; a policy answers with what to start. One protocol serves a cluster whose processors are
counted (its free processors are one number, a job takes some of them anywhere) and one of
machines (a job runs on one of them, at that machine's speed). What else is short (memory, GPUs,
licences) is counted for the whole cluster.

Here are the queues in one order and their backfilling: strict, first fit, sorted, EASY. Plans for
the whole queue are in `planning`, priorities that change as jobs wait in `flexible`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

NO_MACHINE = -1
NEVER = math.inf
EMPTY: Mapping[Any, Any] = MappingProxyType({})


# What a policy is told, anew at each pass: named tuples are as fixed as frozen classes, whose
# fields are set one by one, and made in about a third of the time.


class WaitingJob(NamedTuple):
    """A job that waits: processors, estimated seconds, and how much it needs of what else is
    counted (`counts`: "memory" in MiB, "gpu", a licence).

    `machines` maps those that may run it, by their place in `Free.machines`, to the seconds it
    takes there; it is left empty where processors are counted. `licences` are those that it has
    leased of the whole site, which are not counted here. `since` is the moment from which
    its waiting counts, `deadline` one in the same clock; `priority` the meta-scheduler's.
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
    """A job that runs: `end` is its start + its estimate, in the seconds of the caller's clock.

    `cpus` is what it holds: all of its machine where machines are not shared.
    """

    id: int
    cpus: int
    end: float
    resources: Mapping[str, int] = EMPTY
    machine: int = 0
    user: str = ""


class FreeResources(NamedTuple):
    """What no job holds. A resource that `counts` does not name is unlimited.

    `machines` are the free processors of each, the most powerful machine first; None where
    processors are counted. `shared` says whether a machine may run several jobs at a time. `rho`
    tells of licences of the whole site how much waits for a copy (`Licences.rho`).
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
    """The one question that is asked of a local policy; an object serves one cluster.

    It is asked after every arrival and ending, or only every `period` seconds if that is not 0.
    `steady`: what it did not start it starts no sooner than something ends, or is past its
    estimate: until then it may be asked of the head of the queue and of what has come since.
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
        """The jobs of `queue` to start at `now`, together never more than `free`."""
        ...


# What is free, as one pass hands it out.


# How far down the queue a pass looks.


# The policies.
