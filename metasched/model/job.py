"""What metasched talks about: jobs, attempts, clusters, what a cluster says. Pure, validated.

Times are seconds since the epoch (UTC), durations seconds, memory MiB, sizes processors.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property
from operator import attrgetter

from metasched.model.arrays import JobArray, parse_array
from metasched.model.dependencies import parse_dependency

MAX_PRIORITY = 10


class State(StrEnum):
    """Where a task, or one attempt at it, is. Tasks use the first block and the shared ones."""

    __hash__ = str.__hash__  # that of Enum is not in C, and every decision looks states up

    QUEUED = "queued"  # with us, waiting to be sent
    HELD = "held"  # with us until released
    REJECTED = "rejected"  # accepted by us, then refused by every eligible cluster

    DISPATCHING = "dispatching"  # the intent to send is stored; the manager has not answered
    PENDING = "pending"  # in a manager's queue
    RUNNING = "running"
    SUSPENDED = "suspended"
    UNKNOWN = "unknown"  # the manager does not answer, or does not know it

    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"

    NODE_FAIL = "node_fail"  # attempts only; the task is `failed` unless requeued
    PREEMPTED = "preempted"
    OUT_OF_MEMORY = "out_of_memory"


class Reason(StrEnum):
    """Why a task is where it is; the order is the precedence (design §3)."""

    HELD = "held"
    DEPENDENCY = "dependency"
    BEGIN_TIME = "begin_time"
    LIMIT_ARRAY = "limit_array"
    NO_CLUSTER_FITS = "no_cluster_fits"
    CLUSTER_DOWN = "cluster_down"
    CLUSTER_DRAINED = "cluster_drained"
    NO_MAPPING = "no_mapping"
    FILESYSTEM = "filesystem"
    LICENCE_UNKNOWN = "licence_unknown"
    LICENCE_BUSY = "licence_busy"
    RESERVATION_WAIT = "reservation_wait"
    RESERVATION_NEAR = "reservation_near"
    RECALLED = "recalled"
    PRIORITY = "priority"
    DUPLICATE = "duplicate"  # two attempts have begun: a manager brought one back


MANAGER_REASON = "manager:"  # prefix of a reason in the manager's own words


def _require_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value!r}; it must be a positive number")


def _require_at_least(name: str, value: int, minimum: int = 1) -> None:
    if value < minimum:
        raise ValueError(f"{name} is {value}; it must be {minimum} or more")


# what the nodes of a job must have, and what else decides which clusters can run it
_NODE_REQUIREMENTS = attrgetter(
    *("cpus", "tasks", "nodes", "exclusive", "memory", "memory_per_cpu", "partition", "constraint")
)
_OTHER_REQUIREMENTS = attrgetter("clusters", "time_limit", "account", "qos", "reservation")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a user asked for, once accepted.

    `estimated` is the expected run time (the time limit, else a default); `cpus` the processors
    of all `tasks` together; `memory` MiB per node, `memory_per_cpu` MiB per processor; `gres`
    counts generic resources per node ("gpu", "gpu:a100"). `benchmark` is the speed of the machine
    that `estimated` was made on. ValueError if a number makes no sense.
    """

    id: int
    submitted: float
    estimated: float
    cpus: int = 1
    deadline: float | None = None
    licences: Mapping[str, int] = field(default_factory=dict)
    user: str = ""
    user_class: str = "regular"
    owner_priority: int = 0
    benchmark: float = 1.0
    name: str = ""
    tasks: int = 1
    nodes: int | None = None
    memory: int | None = None
    memory_per_cpu: int | None = None
    gres: Mapping[str, int] = field(default_factory=dict)
    exclusive: bool = False
    time_limit: float | None = None
    begin: float | None = None
    held: bool = False
    requeue: bool = False
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    clusters: tuple[str, ...] = ()  # only these; empty: any
    native: Mapping[str, str] = field(default_factory=dict)  # cluster -> options passed as written
    array: str | None = None  # the range as submitted
    dependency: str | None = None  # likewise; once submitted it may wait for what is there only
    kill_on_invalid_dep: bool = False  # cancelled once its dependency can never come
    reservation: int | None = None  # it waits for this one, and runs in it
    directory: str = ""  # where it runs; with `writes` it decides which filesystems it needs
    writes: tuple[str, ...] = ()  # output and error path

    def __post_init__(self) -> None:
        # few jobs ask for more than the first three: nothing is called for what they leave out
        if not 0 < self.estimated < math.inf:
            _require_positive("estimated", self.estimated)
        if self.cpus < 1:
            _require_at_least("cpus", self.cpus)
        if self.benchmark != 1.0:
            _require_positive("benchmark", self.benchmark)
        if self.deadline is not None and not math.isfinite(self.deadline):
            raise ValueError(f"deadline is {self.deadline}; it must be a time")
        if self.begin is not None and not math.isfinite(self.begin):
            raise ValueError(f"begin time is {self.begin}; it must be a time")
        if self.tasks != 1:
            _require_at_least("tasks", self.tasks)
            if self.cpus % self.tasks:
                raise ValueError(f"{self.cpus} cpus cannot be shared equally by {self.tasks} tasks")
        if self.nodes is not None:
            _require_at_least("nodes", self.nodes)
            if self.nodes > self.tasks:
                raise ValueError(f"{self.tasks} tasks cannot fill {self.nodes} nodes")
        if self.time_limit is not None:
            _require_positive("time limit", self.time_limit)
        if self.memory is not None:
            _require_at_least("memory", self.memory)
        if self.memory_per_cpu is not None:
            _require_at_least("memory per cpu", self.memory_per_cpu)
        if self.licences:
            for name, count in self.licences.items():
                _require_at_least(f"licence {name}", count)
        if self.gres:
            for name, count in self.gres.items():
                _require_at_least(f"gres {name}", count)
        if not 0 <= self.owner_priority <= 3:
            raise ValueError(f"owner priority is {self.owner_priority}; it must be 0..3")
        if self.array is not None:
            parse_array(self.array)
        if self.dependency is not None:
            parse_dependency(self.dependency)

    @classmethod
    def minimal(cls, *, id: int, submitted: float, estimated: float, cpus: int, user: str) -> Job:
        """A job that asks for nothing else: as the constructor, in a fifth of its time and space.

        A trace has a hundred thousand of them, and a frozen class sets its fields one by one. The
        defaults of those that are not set here are the class's.
        """
        job = cls.__new__(cls)
        job.__dict__.update(
            id=id,
            submitted=submitted,
            estimated=estimated,
            cpus=cpus,
            user=user,
            licences={},
            gres={},
            native={},
            needs=_minimal_requirements(cpus),
        )
        job.__post_init__()
        return job

    @cached_property
    def parsed_array(self) -> JobArray | None:
        return None if self.array is None else parse_array(self.array)

    @cached_property
    def node_requirements(self) -> Hashable:
        """What its nodes must have: equal for jobs that the same nodes hold."""
        return (*_NODE_REQUIREMENTS(self), *self.gres.items())

    @cached_property
    def requirements(self) -> Hashable:
        """All that decides which clusters can run it, but for its paths: equal for jobs that
        find the same answer everywhere."""
        return self.requirements_without_licences, *self.licences.items()

    @cached_property
    def requirements_without_licences(self) -> Hashable:
        """The same where no licence makes a difference."""
        return (*_NODE_REQUIREMENTS(self), *_OTHER_REQUIREMENTS(self), *self.gres.items())

    @property
    def indices(self) -> tuple[int, ...]:
        """One for each task; (0,) of a job that is no array."""
        if self.array is None or self.parsed_array is None:
            return (0,)
        return self.parsed_array.indices

    @property
    def cpus_per_task(self) -> int:
        return self.cpus // self.tasks

    @property
    def margin(self) -> float | None:
        """Seconds to spare between submission, one estimated run and the deadline (S0 §3.1.1)."""
        return None if self.deadline is None else self.deadline - self.estimated - self.submitted


@cache
def _minimal_requirements(cpus: int) -> Hashable:
    """What `Job.plain` gives all jobs of that size, rather than that each makes it anew."""
    return Job(id=0, submitted=0.0, estimated=1.0, cpus=cpus).requirements


@dataclass(frozen=True, kw_only=True)
class Payload:
    """What runs: taken at submission, never changed. `arguments` follow the script."""

    script: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = "/"
    output: str = "/dev/null"  # absolute; %a, %N and %% are filled in for each task (`patterns`)
    error: str | None = None  # None: together with output
    umask: int = 0o022


# Facts and rows are made by the thousand at each listing, and nobody changes them: the fields of a
# frozen class are set one by one, which takes two to four times as long.
