"""Answers about jobs, as the OpenAPI document describes them. Times are in UTC, in ISO 8601.

null: it has not happened, or is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import TypedDict

from metasched.client.site_answers import LicenceHolders, ShareRow, TokenCounts, TokenWindowRow


class JobRow(TypedDict):
    """A task, as `status --json` lists it."""

    job: int
    array: str | None  # its range, as submitted; null: the job is no array
    task: int | None  # index in the array
    name: str
    user: str
    state: str
    reason: str
    priority: int  # 1 to 10
    cluster: str | None  # of its last attempt
    native_id: str | None  # in the cluster's manager
    submitted: str | None
    expected_start: str | None  # the median of metasched's estimate, else that of its manager
    expected_early: str | None  # it starts later than this with a probability of 90%
    expected_late: str | None  # it starts earlier than this with a probability of 90%
    started: str | None
    ended: str | None
    exit_code: int | None  # 128 + signal if a signal ended it


class JobDetails(JobRow):
    """A task with its request, its place and its use. Durations are in seconds."""

    number: int  # of the task alone, among all jobs and tasks
    clusters: Sequence[str]  # on which alone it may run; empty: any
    cpus: int  # processors of all `tasks` together
    tasks: int
    nodes: int | None  # null: any number
    memory: int | None  # MiB per node
    memory_per_cpu: int | None  # MiB
    gres: Mapping[str, int]  # per node; of alternatives those that its attempt requests
    gres_alternatives: Sequence[Mapping[str, int]]  # the others, as long as it may get them
    exclusive: bool
    time_limit: float | None
    begin: str | None
    deadline: str | None
    account: str | None
    partition: str | None
    qos: str | None
    constraint: str | None
    comment: str | None
    wckey: str
    nice: int  # in the queue of its cluster
    nodelist: str  # nodes that it must get, as in n[1-3]
    exclude: str  # nodes that it must not get
    # options that only its manager reads, by cluster; of others' jobs those that Slurm shows
    native: Mapping[str, str]
    licences: Mapping[str, int]  # of alternatives those that its attempt has leased
    licence_choices: Sequence[Mapping[str, int]]  # all alternatives; empty: none
    dependency: str | None
    requeue: bool
    reservation: int | None
    directory: str
    output: str  # %a, %N and %% stand for the task, its node and a percent sign
    error: str | None  # null: as `output`
    user_class: str
    attempt_state: str | None  # of the last attempt, which describes a failure in more detail
    signal: int | None  # that ended it
    node_list: str  # of the last attempt, as its manager writes it
    elapsed: float | None  # since the start of the last attempt, to its end or until now
    cpu_seconds: float | None  # used
    max_memory: int | None  # MiB, used
    restarts: int  # by its manager
    folded: str | None  # indices, as 1-9:2, of the waiting tasks that the row stands for


class ChangedTask(TypedDict):
    """A task of a request that changes jobs."""

    job: int
    task: int | None  # index in the array
    was: str  # state before
    state: str  # state after
    note: str  # why it is not as requested; may be empty


class ChangedTasks(TypedDict):
    """All tasks of a request that changes jobs."""

    jobs: list[ChangedTask]


class FoldedChange(TypedDict):
    """Equal tasks of a job, of a request that changes jobs."""

    job: int
    tasks: str | None  # indices in the array, as 1-3,7,9-13:2; null: the job is no array
    count: int  # tasks
    was: str  # state before
    state: str  # state after
    note: str  # why it is not as requested; may be empty


class FoldedChanges(TypedDict):
    """All tasks of a request that changes jobs; equal tasks of a job share a row."""

    folded: list[FoldedChange]


class NodeFitRow(TypedDict):
    """The room for a waiting task on the nodes of a cluster."""

    partition: str  # the manager's name
    count: int  # nodes in all
    excluded: list[dict[str, Any]]  # `NodeExclusion`: requirement, nodes, text, names
    other_partitions: list[str]  # where the job fits without load, if not here
    text: str


class VerdictRow(TypedDict):
    """Whether a task may run on a cluster, and what bars it."""

    cluster: str
    eligible: bool
    reason: str | None
    text: str
    load: float
    count: int  # queued jobs of its priority and above
    chosen: bool
    account: str | None
    gres: str | None  # which of its alternatives it gets there; null: it has none
    nodes: NodeFitRow | None


class PriorityPart(TypedDict):
    """The contribution of a heuristic to a priority."""

    heuristic: str
    contribution: float
    weight: float


class SiteRatingsRow(TypedDict):
    """What heuristics of the site said of a job at its submission, besides its priority."""

    placements: dict[str, dict[str, float]]  # 0 to 1, by heuristic and cluster
    run_times: dict[str, float]  # seconds, by estimator
    excluded: dict[str, str]  # why a heuristic had no valid value


class Forecast(TypedDict):
    """Why a job would get its priority and cluster."""

    parts: list[PriorityPart]
    ratings: SiteRatingsRow | None  # null: no heuristics of the site were asked
    clusters: list[VerdictRow]
    licence_choice: str | None  # the first of its alternatives that is free


class _SubmittedJob(TypedDict):
    job: int | None  # null: the outcome of a dry run
    priority: int | None
    cluster: str | None
    warnings: list[str]
    expected_start: str | None  # median, behind all others; null: unknown
    expected_early: str | None  # it starts later than this with a probability of 90%
    expected_late: str | None  # it starts earlier than this with a probability of 90%


class SubmittedJob(_SubmittedJob, total=False):
    """A job that was accepted, or would be. `why` is of a dry run alone, `tasks` of others."""

    tasks: int | None  # of an array
    why: Forecast


class SubmittedJobs(TypedDict):
    """The jobs of a submission, in its order."""

    jobs: list[SubmittedJob]


StoryEvent = TypedDict(
    "StoryEvent",
    {
        "time": str,
        "task": int | None,  # index in the array
        "attempt": int | None,
        "event": str | None,  # of the task; null: its submission
        "from": str | None,  # state
        "to": str | None,  # state
        "cluster": str | None,
        "reason": str | None,
        "cause": str | None,
        "policy": int | None,  # version that was in force; null: it was not recorded
    },
)


class Story(TypedDict):
    """The events of a job, oldest first."""

    job: int
    events: list[StoryEvent]


class OutputPaths(TypedDict):
    """Where a task writes. `%N` stands for its node until that is known."""

    output: str
    error: str | None  # null: as `output`


class MissingLicence(TokenCounts, LicenceHolders):
    """A licence that a task waits for."""

    licence: str
    wanted: int  # tokens
    windows: list[TokenWindowRow]


class TuningRow(TypedDict):
    """The change that gave a parameter its values at the submission of a job."""

    parameter: str
    before: list[float]
    after: list[float]  # empty: no longer tuned
    distance: float | None
    expected: float | None
    time: str


class UsageRow(TypedDict):
    """What an ended task used, as its manager reported it."""

    elapsed: float | None  # seconds
    cpu_seconds: float | None
    max_memory: int | None  # MiB
    nodes: str


class PolicyVersions(TypedDict):
    """Versions of the policy that decided; null: not decided yet, or not recorded then."""

    priority: int | None
    placement: int | None  # the last
    # what the last placement compared under `load = "forecast"`: forecast or observed; null: under
    # another load, or nothing
    load: str | None


class Explanation(TypedDict):
    """The state of a task, its cause, and the clusters that may run it."""

    job: int
    task: int | None
    state: str
    reason: str
    text: str
    expected_start: str | None
    expected_early: str | None  # it starts later than this with a probability of 90%
    expected_late: str | None  # it starts earlier than this with a probability of 90%
    expected_told: str | None  # when metasched estimated that, or its manager reported it
    priority: int
    parts: list[PriorityPart]
    ratings: SiteRatingsRow | None  # null: no heuristics of the site were asked
    policy: PolicyVersions
    tuning: list[TuningRow]
    clusters: list[VerdictRow]
    licences: list[MissingLicence]
    fair_share: ShareRow | None
    usage: UsageRow | None
