"""Bodies that a client sends to the daemon to submit jobs.

`metasched submit` writes them as plain dicts (`job_request`), without the time to load msgspec.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from metasched.model.job import JobSpec


class JobRequest(JobSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job as the client sends it: the attributes of `JobSpec`, and these."""

    script: str  # key of its text in SubmitRequest.scripts
    environment: str  # key of its variables in SubmitRequest.environments
    directory: str  # working directory, an absolute path
    umask: int = 0o022
    arguments: tuple[str, ...] = ()  # of the script
    output: str | None = None  # path; the daemon expands its patterns
    error: str | None = None  # path; None: the output file
    cpus_per_task: int = 1  # processors; an array task has tasks x cpus_per_task
    urgency: int = 0  # 0 to 3
    slurm_options: tuple[str, ...] = ()  # of sbatch, a word each, for every Slurm cluster
    slurm_only: bool = False  # whether other clusters cannot run a job with these options


class SubmitRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs that are accepted together or not at all, with the texts that they name by keys."""

    jobs: tuple[JobRequest, ...]
    scripts: Mapping[str, str]  # key -> text
    environments: Mapping[str, Mapping[str, str]]  # key -> variables
    strict: bool = False  # treat warnings as errors
    dry_run: bool = False  # return the outcome, store nothing
