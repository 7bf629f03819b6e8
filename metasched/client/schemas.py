"""Bodies that a client sends to the daemon to submit jobs.

`metasched submit` writes them as plain dicts (`job_request`), without the time to load msgspec.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from metasched.client.options import MAX_NAME_LENGTH
from metasched.model.dependencies import MAX_DEPENDENCY
from metasched.model.job import JobSpec
from metasched.model.mail import MailRequest
from metasched.model.manager_options import ManagerOptions
from metasched.model.request_bounds import (
    MAX_ARGUMENTS,
    MAX_COMMENT,
    MAX_JOBS,
    MAX_NAME,
    MAX_NAMES,
    MAX_OPTION_TEXT,
    MAX_SCRIPT,
    MAX_VARIABLES,
    MAX_WORD,
)

Name = Annotated[str, Meta(max_length=MAX_NAME)]
Word = Annotated[str, Meta(max_length=MAX_WORD)]
Option = Annotated[str, Meta(max_length=MAX_OPTION_TEXT)]
Names = Annotated[tuple[Name, ...], Meta(max_length=MAX_NAMES)]
Counts = Annotated[Mapping[Name, int], Meta(max_length=MAX_NAMES)]
Alternatives = Annotated[tuple[Counts, ...], Meta(max_length=MAX_NAMES)]


class JobRequest(JobSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job as the client sends it: the attributes of `JobSpec`, and these.

    Texts and lists of `JobSpec` are declared again, with their bounds: a job that is stored is
    decoded whatever bounds a later release has.
    """

    script: Name  # key of its text in SubmitRequest.scripts
    environment: Name  # key of its variables in SubmitRequest.environments
    directory: Option  # working directory, an absolute path
    umask: int = 0o022
    arguments: Annotated[tuple[Word, ...], Meta(max_length=MAX_ARGUMENTS)] = ()  # of the script
    output: Option | None = None  # path; the daemon expands its patterns
    error: Option | None = None  # path; None: the output file
    cpus_per_task: int = 1  # processors; an array task has tasks x cpus_per_task
    urgency: int = 0  # 0 to 3
    # of sbatch, a word each, for every Slurm cluster
    slurm_options: Annotated[tuple[Option, ...], Meta(max_length=MAX_NAMES)] = ()
    slurm_only: bool = False  # whether other clusters cannot run a job with these options

    # bounds of attributes of JobSpec
    name: Annotated[str, Meta(max_length=MAX_NAME_LENGTH)] = ""
    gres: Counts = msgspec.field(default_factory=dict)
    gres_alternatives: Alternatives = ()
    account: Option | None = None
    partition: Option | None = None
    qos: Option | None = None
    constraint: Option | None = None
    clusters: Names = ()
    native: Annotated[Mapping[Name, Option], Meta(max_length=MAX_NAMES)] = msgspec.field(
        default_factory=dict
    )
    licences: Counts = msgspec.field(default_factory=dict)
    licence_choices: Alternatives = ()
    array: Word | None = None
    dependency: Annotated[str, Meta(max_length=MAX_DEPENDENCY)] | None = None
    comment: Annotated[str, Meta(max_length=MAX_COMMENT)] | None = None
    manager_options: ManagerOptions | None = None
    mail: MailRequest | None = None


Script = Annotated[str, Meta(max_length=MAX_SCRIPT)]
Variables = Annotated[Mapping[Word, Word], Meta(max_length=MAX_VARIABLES)]


class SubmitRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs that are accepted together or not at all, with the texts that they name by keys."""

    jobs: Annotated[tuple[JobRequest, ...], Meta(max_length=MAX_JOBS)]
    scripts: Annotated[Mapping[Name, Script], Meta(max_length=MAX_JOBS)]  # key -> text
    # key -> variables
    environments: Annotated[Mapping[Name, Variables], Meta(max_length=MAX_JOBS)]
    strict: bool = False  # treat warnings as errors
    dry_run: bool = False  # return the outcome, store nothing
