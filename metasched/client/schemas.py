"""What a client sends to the daemon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """One job as the client sends it: times in epoch seconds, durations in seconds, memory in MiB.

    `script` and `environment` are digests of texts that travel beside it, once per call.
    `output` and `error` may hold the patterns of `patterns.KNOWN`; the daemon, which knows the
    id, fills them in. `array` and `dependency` are as the user wrote them. `cpus_per_task` x
    `tasks` processors in all (of each task of an array).
    """

    script: str
    environment: str
    directory: str
    umask: int = 0o022
    arguments: tuple[str, ...] = ()
    output: str | None = None
    error: str | None = None
    name: str = ""
    tasks: int = 1
    cpus_per_task: int = 1
    nodes: int | None = None
    memory: int | None = None
    memory_per_cpu: int | None = None
    gres: Mapping[str, int] = field(default_factory=dict)
    exclusive: bool = False
    time_limit: float | None = None
    begin: float | None = None
    deadline: float | None = None
    urgency: int = 0
    held: bool = False
    requeue: bool = False
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    clusters: tuple[str, ...] = ()
    native: Mapping[str, str] = field(default_factory=dict)
    licences: Mapping[str, int] = field(default_factory=dict)
    array: str | None = None
    dependency: str | None = None
    kill_on_invalid_dep: bool = False
    reservation: int | None = None

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - the API checks by it


@dataclass(frozen=True, kw_only=True)
class SubmitRequest:
    """One call: jobs that are all accepted or none, with the texts that they name by digest.

    `strict` refuses what is otherwise a warning (a deadline that has passed); `dry_run` answers
    what would happen and stores nothing.
    """

    jobs: tuple[JobRequest, ...]
    scripts: Mapping[str, str]
    environments: Mapping[str, Mapping[str, str]]
    strict: bool = False
    dry_run: bool = False

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - the API checks by it
