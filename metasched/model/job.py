"""Jobs, their states and reasons. Pure, validated.

Times are seconds since the epoch (UTC), durations are seconds, memory is MiB.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final

import msgspec

from metasched.model.arrays import JobArray, parse_array, task_number
from metasched.model.dependencies import parse_dependency
from metasched.model.mail import MailRequest
from metasched.model.manager_options import ManagerOptions
from metasched.model.ratings import SiteRatings

MAX_PRIORITY = 10
MAX_LICENCE_CHOICES = 4  # `units.MAX_LICENCE_CHOICES`, which clients keep to


class State(StrEnum):
    """States of a task and of an attempt."""

    # tasks only
    QUEUED = "queued"  # in metasched, waiting for dispatch
    HELD = "held"  # in metasched, until released
    REJECTED = "rejected"  # by every eligible cluster, after metasched had accepted the job

    # tasks and attempts
    DISPATCHING = "dispatching"  # the intent to dispatch is stored; the manager has not answered
    PENDING = "pending"  # in the manager's queue
    RUNNING = "running"
    SUSPENDED = "suspended"
    UNKNOWN = "unknown"  # the manager does not answer, or does not list the attempt

    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"

    # attempts only: the task is `failed` unless requeued
    NODE_FAIL = "node_fail"
    PREEMPTED = "preempted"
    OUT_OF_MEMORY = "out_of_memory"


class Reason(StrEnum):
    """Reasons of a task's state, in order of precedence (docs/design.md)."""

    HELD = "held"
    DEPENDENCY = "dependency"
    BEGIN_TIME = "begin_time"
    LIMIT_USER = "limit_user"  # of the site, for the user alone
    LIMIT_CLASS = "limit_class"  # of the site, shared with others: class, group, account, all
    LIMIT_MANAGER = "limit_manager"
    REFUSED = "refused"  # by its manager, without proof; it is tried again
    REFUSED_THRICE = "refused_thrice"  # likewise; it is held
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
    DUPLICATE = "duplicate"  # two attempts of the task have started


MANAGER_REASON = "manager:"  # prefix of a reason that the manager reports


def public_reason(reason: str) -> str:
    """Return a reason as it is shown to everybody.

    The codes of managers are words. A sentence may quote options of the job, which are its owner's.
    """
    is_sentence = reason.startswith(MANAGER_REASON) and " " in reason
    return MANAGER_REASON if is_sentence else reason


def require_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value!r}; it must be a positive number")


def require_at_least(name: str, value: int, minimum: int = 1) -> None:
    if value < minimum:
        raise ValueError(f"{name} is {value}; it must be {minimum} or more")


def _check_choices(choices: Sequence[Mapping[str, int]], chosen: Mapping[str, int]) -> None:
    """Raise ValueError unless these are different alternatives, and `chosen` is among them."""
    if not 2 <= len(choices) <= MAX_LICENCE_CHOICES:
        raise ValueError(
            f"{len(choices)} alternatives of licences; there must be 2 to {MAX_LICENCE_CHOICES}"
        )
    if any(len(choice) != 1 for choice in choices):
        raise ValueError("an alternative of licences must name one licence")
    if chosen not in choices or any(choices.count(choice) > 1 for choice in choices):
        raise ValueError("licences are none of their alternatives, or an alternative is repeated")


# attributes that decide which nodes can run a job, and those that decide which clusters can
_NODE_REQUIREMENTS: Final = (
    "cpus",
    "tasks",
    "nodes",
    "tasks_per_node",
    "exclusive",
    "memory",
    "memory_per_cpu",
    "partition",
    "constraint",
    "manager_options",
)
_node_requirements = attrgetter(*_NODE_REQUIREMENTS)
_requirements = attrgetter(
    *_NODE_REQUIREMENTS, "clusters", "time_limit", "account", "qos", "reservation"
)


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes that a job request and an accepted job share. A new attribute is declared here."""

    name: str = ""
    tasks: int = 1  # processes of the job, as in `sbatch --ntasks`
    nodes: int | None = None
    tasks_per_node: int | None = None  # at most
    memory: int | None = None  # MiB per node
    memory_per_cpu: int | None = None  # MiB per processor
    gres: Mapping[str, int] = msgspec.field(default_factory=dict)  # per node: "gpu", "gpu:a100"
    # each could take the place of `gres`, in this order; a cluster gets those that it has
    gres_alternatives: tuple[Mapping[str, int], ...] = ()
    exclusive: bool = False
    time_limit: float | None = None  # seconds
    begin: float | None = None  # epoch seconds; earliest start
    deadline: float | None = None  # epoch seconds
    held: bool = False
    requeue: bool | None = False  # whether it may run again; None: as its manager does by default
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    clusters: tuple[str, ...] = ()  # the only eligible clusters; empty: any
    native: Mapping[str, str] = msgspec.field(
        default_factory=dict
    )  # options as written, by cluster
    licences: Mapping[str, int] = msgspec.field(default_factory=dict)  # copies, by licence
    # alternatives in order, each of a single licence; `licences` is among them. Empty: none
    licence_choices: tuple[Mapping[str, int], ...] = ()
    array: str | None = None  # range of task indices as submitted
    dependency: str | None = None  # as submitted; its targets existed at submission
    kill_on_invalid_dep: bool = False  # cancel the job once its dependency can never be met
    reservation: int | None = None  # the job waits for this reservation and runs in it
    directory: str = ""  # working directory
    comment: str | None = None  # of the user, for listings
    manager_options: ManagerOptions | None = None  # None: as all by default
    mail: MailRequest | None = None  # None: no mail

    @property
    def spec_values(self) -> dict[str, Any]:
        """The values of the attributes of `JobSpec`, by name."""
        return {name: getattr(self, name) for name in JobSpec.__struct_fields__}


class Job(JobSpec, frozen=True, kw_only=True):
    """The request of a user, once metasched has accepted it.

    Raises ValueError if a value is out of range.
    """

    id: int
    submitted: float  # epoch seconds
    estimated: float  # seconds; expected run time: the time limit, else a default
    cpus: int = 1  # processors of all `tasks` together
    user: str = ""
    user_class: str = "regular"
    groups: tuple[str, ...] = ()  # of the user; those with limits at the submission
    group: str = ""  # primary group of the user at the submission; "": not recorded
    owner_priority: int = 0  # 0..3: `--urgency`
    benchmark: float = 1.0  # speed of the machine that `estimated` refers to
    writes: tuple[str, ...] = ()  # output and error path; they too decide on filesystems
    stored_bytes: int = 0  # of its script, arguments and environment as submitted
    ratings: SiteRatings | None = None  # by heuristics of the site; None: there were none

    def __post_init__(self) -> None:
        # most jobs set the first three fields only: checks of unset fields call no function
        if not 0 < self.estimated < math.inf:
            require_positive("estimated", self.estimated)
        if self.cpus < 1:
            require_at_least("cpus", self.cpus)
        if self.benchmark != 1.0:
            require_positive("benchmark", self.benchmark)
        if self.deadline is not None and not math.isfinite(self.deadline):
            raise ValueError(f"deadline is {self.deadline}; it must be a time")
        if self.begin is not None and not math.isfinite(self.begin):
            raise ValueError(f"begin time is {self.begin}; it must be a time")
        if self.tasks != 1:
            require_at_least("tasks", self.tasks)
            if self.cpus % self.tasks:
                raise ValueError(f"{self.cpus} cpus cannot be shared equally by {self.tasks} tasks")
        if self.nodes is not None:
            require_at_least("nodes", self.nodes)
            if self.nodes > self.tasks:
                raise ValueError(f"{self.tasks} tasks cannot fill {self.nodes} nodes")
        if self.tasks_per_node is not None:
            require_at_least("tasks per node", self.tasks_per_node)
        if self.time_limit is not None:
            require_positive("time limit", self.time_limit)
            if self.manager_options is not None and self.manager_options.unlimited:
                raise ValueError("both a time limit and no time limit")
        if self.memory is not None:
            require_at_least("memory", self.memory)
        if self.memory_per_cpu is not None:
            require_at_least("memory per cpu", self.memory_per_cpu)
        if self.licence_choices:
            _check_choices(self.licence_choices, self.licences)
        for licences in self.licence_requests if self.licences else ():
            for name, count in licences.items():
                require_at_least(f"licence {name}", count)
        for gres in self.gres_choices if self.gres else ():
            for name, count in gres.items():
                require_at_least(f"gres {name}", count)
        if self.gres_alternatives and not all(self.gres_choices):
            raise ValueError("an alternative of gres is empty")
        if not 0 <= self.owner_priority <= 3:
            raise ValueError(f"owner priority is {self.owner_priority}; it must be 0..3")
        if self.array is not None:
            parse_array(self.array)
        if self.dependency is not None:
            parse_dependency(self.dependency)

    @property
    def parsed_array(self) -> JobArray | None:
        return None if self.array is None else parse_array(self.array)

    @property
    def licence_requests(self) -> tuple[Mapping[str, int], ...]:
        """The alternatives of its licences: it needs all tokens of any entry."""
        return self.licence_choices or (self.licences,)

    @property
    def licence_choice(self) -> int | None:
        """Which of `licence_choices` its `licences` are; None: it has no alternatives."""
        return self.licence_choices.index(self.licences) if self.licence_choices else None

    def with_licences(self, choice: int | None) -> Job:
        """Return the job with a choice of `licence_choices`; itself if it has none, or for None."""
        if not self.licence_choices or choice in (None, self.licence_choice):
            return self
        return msgspec.structs.replace(self, licences=self.licence_choices[choice or 0])

    @property
    def gres_choices(self) -> tuple[Mapping[str, int], ...]:
        """The alternatives of its generic resources: it gets those of the first that fits."""
        return self.gres, *self.gres_alternatives

    @property
    def node_requirements(self) -> Hashable:
        """Key of the requirements on nodes; jobs with equal keys fit the same nodes."""
        if not self.gres:  # as for most jobs
            return _node_requirements(self)
        return (*_node_requirements(self), *self._gres_key)

    @property
    def requirements(self) -> Hashable:
        """Key of all requirements except paths; jobs with equal keys fit the same clusters."""
        if not self.licences:
            return self.requirements_without_licences
        # None: no gres has the key of a licence
        return self.requirements_without_licences, None, *self.licences.items()

    @property
    def requirements_without_licences(self) -> Hashable:
        """Key of all requirements except paths and licences."""
        if not self.gres:  # as for most jobs
            return _requirements(self)
        return _requirements(self), *self._gres_key

    @property
    def _gres_key(self) -> tuple[Hashable, ...]:
        alternatives = (tuple(gres.items()) for gres in self.gres_alternatives)
        return (*self.gres.items(), *alternatives)

    @property
    def indices(self) -> tuple[int, ...]:
        """Indices of the array's tasks; (0,) for a job without an array."""
        if self.array is None or self.parsed_array is None:
            return (0,)
        return self.parsed_array.indices

    def task_number(self, index: int) -> int:
        """Return the number that only this task has, among all jobs and tasks."""
        return task_number(self.id, self.parsed_array, index)

    @property
    def cpus_per_task(self) -> int:
        return self.cpus // self.tasks

    @property
    def margin(self) -> float | None:
        """Seconds between the estimated end of an immediate start and the deadline (S0 §3.1.1)."""
        return None if self.deadline is None else self.deadline - self.estimated - self.submitted


@dataclass(frozen=True, kw_only=True)
class Payload:
    """The program of a job: taken at submission, never changed."""

    script: str  # text of the batch script
    arguments: tuple[str, ...] = ()  # of the script
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = "/"  # working directory
    output: str = "/dev/null"  # absolute; %a, %j, %N and %% are expanded per task (`output_paths`)
    error: str | None = None  # None: as `output`
    umask: int = 0o022
