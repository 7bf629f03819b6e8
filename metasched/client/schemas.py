"""Bodies that a client sends to the daemon to submit jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_NAME_LENGTH = 255  # characters


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A job as the client sends it."""

    script: str  # digest of its text in SubmitRequest.scripts
    environment: str  # digest of its variables in SubmitRequest.environments
    directory: str  # working directory, an absolute path
    umask: int = 0o022
    arguments: tuple[str, ...] = ()  # of the script
    output: str | None = None  # path; the daemon expands its patterns
    error: str | None = None  # path; None: the output file
    name: str = ""
    tasks: int = 1
    cpus_per_task: int = 1  # processors; an array task has tasks x cpus_per_task
    nodes: int | None = None
    memory: int | None = None  # MiB per node
    memory_per_cpu: int | None = None  # MiB
    gres: Mapping[str, int] = field(default_factory=dict)  # count per node
    exclusive: bool = False
    time_limit: float | None = None  # seconds
    begin: float | None = None  # epoch seconds
    deadline: float | None = None  # epoch seconds
    urgency: int = 0  # 0 to 3
    held: bool = False
    requeue: bool = False
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    clusters: tuple[str, ...] = ()  # allowed clusters; empty: all
    native: Mapping[str, str] = field(default_factory=dict)  # cluster -> native options
    licences: Mapping[str, int] = field(default_factory=dict)  # name -> count
    array: str | None = None  # range as written by the user
    dependency: str | None = None  # as written by the user
    kill_on_invalid_dep: bool = False
    reservation: int | None = None

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by the API


@dataclass(frozen=True, kw_only=True)
class SubmitRequest:
    """Jobs of which all are accepted or none, with the texts that they name by digest."""

    jobs: tuple[JobRequest, ...]
    scripts: Mapping[str, str]  # digest -> text
    environments: Mapping[str, Mapping[str, str]]  # digest -> variables
    strict: bool = False  # treat warnings as errors
    dry_run: bool = False  # return the outcome, store nothing

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by the API
