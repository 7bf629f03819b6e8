"""Use of ended jobs, from slurmdbd: processors, their time, memory of the largest task.

Comments and command lines are not queried: users control their length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from metasched.adapters.slurm.records import split_records
from metasched.model.job_usage import EndedRun, RunUsage
from metasched.model.tags import parse_number

USAGE_FIELDS = ("jobid", "uid", "end", "totalcpu", "maxrss", "elapsedraw", "alloccpus")
_CPU_TIME = re.compile(r"(?:(?:(\d{1,6})-)?(\d{1,6}):)?(\d{1,9}):(\d{1,2}(?:\.\d{1,9})?)")
_MEMORY = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([KMGT]?)")
_MEBIBYTES = {"": 2.0**-20, "K": 2.0**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20}


@dataclass
class JobRecord:
    """The use of a job in slurmdbd."""

    user: str = ""  # user id
    has_ended: bool = False
    cpu_seconds: float | None = None
    max_memory: int | None = None  # MiB
    elapsed: float | None = None  # seconds
    cpus: int | None = None  # allocated


def parse_usage(output: str, delimiter: str) -> dict[str, JobRecord]:
    """Parse the output of `sacct --parsable` with USAGE_FIELDS: jobs by id, each with its steps.

    A value that cannot be read counts as unknown. Raises ValueError for a truncated output.
    """
    jobs: dict[str, JobRecord] = {}
    for name, user, end, cpu_time, memory, elapsed, cpus in split_records(
        output, delimiter, len(USAGE_FIELDS)
    ).records:
        id, _, step = name.partition(".")
        job = jobs.setdefault(id, JobRecord())
        if not step:
            job.user, job.has_ended = user, end[:1].isdecimal()
            job.cpu_seconds = _parse_cpu_time(cpu_time)
            seconds, allocated = parse_number(elapsed), parse_number(cpus)
            job.elapsed = None if seconds is None else float(seconds)
            job.cpus = allocated or None
        elif (size := _parse_memory(memory)) is not None:
            job.max_memory = max(size, job.max_memory or 0)
    return jobs


def match_usage(
    ended: Sequence[EndedRun], jobs: dict[str, JobRecord], user_id: Callable[[str], str]
) -> dict[int, RunUsage]:
    """Return the use of runs by their position; `user_id` returns the id of an owner, or "".

    Slurm may issue an id again: the record must be of the run's owner.
    """
    return {
        position: RunUsage(job.cpu_seconds, job.max_memory, job.elapsed, job.cpus)
        for position, run in enumerate(ended)
        if (job := jobs.get(run.native_id)) is not None
        and job.has_ended
        and job.user != ""
        and job.user == user_id(run.user)
    }


def _parse_cpu_time(text: str) -> float | None:
    match = _CPU_TIME.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _parse_memory(text: str) -> int | None:
    match = _MEMORY.fullmatch(text)
    return None if match is None else round(float(match[1]) * _MEBIBYTES[match[2]])
