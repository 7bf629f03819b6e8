"""The history of a site before metasched: accounting as `sacct -P` and `qacct -j` print it.

Both are text that other users have a part in, so a line or block that cannot be read is left out
and counted. Accounting does not record the size of a cluster: the most processors that were ever in
use at a time are a lower bound. Times are epoch seconds; times without a zone are local.

Tasks of an array are submitted as one array. Both managers account each task by itself, without the
limit (`%N`) of its array.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from metasched.errors import UserError
from metasched.laboratory.simulate.clusters import MAX_CLUSTERS, MAX_CPUS, SimulatedCluster
from metasched.laboratory.simulate.recorded_workload import (
    NOT_ENDED,
    NOT_STARTED,
    RecordedPeriod,
    RecordedTask,
)
from metasched.laboratory.simulate.workload import MIN_ESTIMATE, Workload, WorkloadEntry
from metasched.model.arrays import MAX_INDEX, MAX_TASKS
from metasched.model.job import Job
from metasched.model.units import ParseError, parse_duration, quote_for_error
from metasched.policies.local.orders import EASY, FirstFit
from metasched.policies.policy import Policy

SACCT_COMMAND = (
    "sacct -aPX -S now-90days -o JobID,User,Group,Cluster,Submit,Eligible,Start,End,AllocCPUS,"
    "TimelimitRaw"
)
NEEDED_COLUMNS = ("jobid", "user", "submit", "start", "end", "alloccpus")
UNREADABLE = "could not be read"
MAX_LINE = 65536  # characters
LATEST = 4102444800.0  # epoch seconds: the year 2100; a time after it, or below 0, is an error
_SEPARATOR = re.compile(r"={20,}")
_LIMIT = re.compile(r"\bh_rt=(\d+)")
_NUMBER = re.compile(r"(\d+)")
_SLURM_TASK = re.compile(r"\d+_(\d+)")
_QACCT_TIMES = ("%a %b %d %H:%M:%S %Y", "%m/%d/%Y %H:%M:%S.%f", "%m/%d/%Y %H:%M:%S")


class AccountingError(UserError):
    """A file that is no accounting; the message names it."""


class _AccountedJob(NamedTuple):
    cluster: str
    id: int
    task: int | None  # index in its array; None: of none
    user: str
    group: str
    submitted: float
    ready: float  # when it might have started
    started: float
    ended: float
    cpus: int
    limit: float | None  # seconds; None: none is recorded


class _Unusable(Exception):
    """Why a job is left out."""


def read_accounting(
    sacct: Sequence[Path],
    qacct: Sequence[Path],
    cpus: Mapping[str, int],
    since: float | None = None,
    until: float | None = None,
) -> RecordedPeriod:
    """Return the jobs of these files submitted from `since` to before `until` that ran.

    A file without a column of clusters is one cluster, named as the file. `cpus`: processors by
    cluster, where they are known. AccountingError if there is no such job.
    """
    dropped, jobs = Counter[str](), list[_AccountedJob]()
    policies: dict[str, str] = {}
    for paths, read, policy in ((sacct, _read_sacct, EASY), (qacct, _read_qacct, FirstFit)):
        for path in paths:
            for job in read(path, dropped):
                if (since or -math.inf) <= job.submitted < (until or math.inf):
                    jobs.append(job)
                    policies[job.cluster] = policy.name
    if not jobs:
        left_out = ", ".join(f"{count} {cause}" for cause, count in dropped.items())
        files = ", ".join(str(path) for path in (*sacct, *qacct))
        raise AccountingError(
            f"no job of the period has run and ended{f' ({left_out})' if left_out else ''}, "
            f"{files}; choose other times, or other files"
        )
    if len(policies) > MAX_CLUSTERS:
        raise AccountingError(
            f"there are {len(policies)} clusters, --sacct; at most {MAX_CLUSTERS} can be simulated"
        )
    if unknown := sorted(cpus.keys() - policies.keys()):
        raise AccountingError(
            f"no job ran on {quote_for_error(unknown[0])}, --cpus; "
            f"there are {', '.join(sorted(policies))}"
        )
    peaks = {name: _peak([job for job in jobs if job.cluster == name]) for name in policies}
    if small := next((name for name, n in cpus.items() if n < peaks[name]), None):
        raise AccountingError(
            f"{small} had {peaks[small]} processors in use at a time, --cpus {small}="
            f"{cpus[small]}; give as many"
        )
    guessed = sorted(policies.keys() - cpus.keys())
    notes = []
    if guessed:
        sizes = ", ".join(f"{name} {peaks[name]}" for name in guessed)
        notes.append(
            f"processors are the most that were in use at a time ({sizes}); --cpus NAME=N "
            "gives those that there are"
        )
    jobs.sort(key=lambda job: (job.ready, job.cluster, job.id, job.task or 0))
    return RecordedPeriod(
        workload=Workload("accounting", tuple(_entries(jobs)), dropped=dict(dropped)),
        tasks=tuple(
            RecordedTask(job.id, job.task or 0, job.cluster, job.submitted, job.started, job.ended)
            for job in jobs
        ),
        clusters=tuple(
            SimulatedCluster(name=name, cpus=cpus.get(name, peaks[name]), queue_depth=0)
            for name in sorted(policies)
        ),
        policy=Policy(),
        notes=tuple(notes),
        local_policies=policies,
    )


def _entries(jobs: Sequence[_AccountedJob]) -> Iterator[WorkloadEntry]:
    """Yield the jobs as entries; tasks of an array have the number of its first as their job."""
    arrays: dict[Hashable, dict[int, int]] = {}  # numbers by task
    for number, job in enumerate(jobs, 1):
        if job.task is not None:
            arrays.setdefault(_array_key(job), {}).setdefault(job.task, number)
    default_time = Policy().default_time
    for number, job in enumerate(jobs, 1):
        limit = max(job.limit, MIN_ESTIMATE) if job.limit else None
        made = Job(
            id=number,
            submitted=job.ready,
            estimated=limit or default_time,
            time_limit=limit,
            cpus=job.cpus,
            user=job.user,
            group=job.group,
        )
        task = number, 0
        numbers = {} if job.task is None else arrays[_array_key(job)]
        # a second run of a task is a job of its own, and so is the only task of an array
        if job.task is not None and numbers[job.task] == number and 1 < len(numbers) <= MAX_TASKS:
            made = msgspec.structs.replace(made, array=str(job.task))
            task = next(iter(numbers.values())), job.task
        yield WorkloadEntry(made, job.ended - job.started, number, job.cluster, task=task)


def _array_key(job: _AccountedJob) -> Hashable:
    """Return what tasks of an array have in common; a requeued task has another submission."""
    return job.cluster, job.id, job.submitted, job.user, job.group, job.cpus, job.limit


def _task_index(digits: str) -> int | None:
    """Return the index of a task of an array; None if it is none."""
    index = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= 10 else None
    return None if index is None or index > MAX_INDEX else index


def _peak(jobs: Sequence[_AccountedJob]) -> int:
    """Return the most processors in use at a time; an end goes before a start."""
    changes = [(job.started, job.cpus) for job in jobs] + [(job.ended, -job.cpus) for job in jobs]
    used = peak = 0
    for _, change in sorted(changes):
        used += change
        peak = max(peak, used)
    return max(peak, *(job.cpus for job in jobs))


def parse_cpus(texts: Sequence[str]) -> dict[str, int]:
    """Parse processors by cluster, written as alpha=512. UserError for any other text."""
    cpus: dict[str, int] = {}
    for text in texts:
        name, separator, number = text.rpartition("=")
        if not (separator and name and number.isascii() and number.isdecimal()):
            raise UserError(f"{quote_for_error(text)} is no size, --cpus; write it as alpha=512")
        if not 1 <= int(number[:9]) <= MAX_CPUS or len(number) > 8:
            raise UserError(f"{quote_for_error(text)}, --cpus; write 1 to {MAX_CPUS} processors")
        cpus[name] = int(number)
    return cpus


def _lines(file: IO[str]) -> Iterator[str]:
    """Yield the lines; an endless line comes in pieces."""
    while line := file.readline(MAX_LINE):
        yield line.rstrip("\n")


# Slurm


def _read_sacct(path: Path, dropped: Counter[str]) -> Iterator[_AccountedJob]:
    """Yield the jobs of the output of `sacct -P`. AccountingError if a column is missing."""
    with path.open(encoding="utf-8", errors="replace") as file:
        lines = _lines(file)
        names = [name.lower() for name in next(lines, "").split("|")]
        if missing := [name for name in NEEDED_COLUMNS if name not in names]:
            raise AccountingError(
                f"no column {missing[0]}, {path}; write it by: {SACCT_COMMAND} > FILE"
            )
        for line in lines:
            values = line.split("|")
            if len(values) != len(names):
                dropped[UNREADABLE] += 1
                continue
            fields = dict(zip(names, values, strict=True))
            if "." in fields["jobid"]:  # a step
                continue
            try:
                yield _slurm_job(fields, path)
            except _Unusable as cause:
                dropped[str(cause)] += 1


def _slurm_job(fields: Mapping[str, str], path: Path) -> _AccountedJob:
    started, ended = (_slurm_time(fields[name]) for name in ("start", "end"))
    submitted, number = _slurm_time(fields["submit"]), _NUMBER.match(fields["jobid"])
    cpus, of_array = fields["alloccpus"], _SLURM_TASK.fullmatch(fields["jobid"])
    if submitted is None or number is None or not (cpus.isascii() and cpus.isdecimal()):
        raise _Unusable(UNREADABLE)
    return _usable(
        _AccountedJob(
            cluster=fields.get("cluster") or path.stem,
            id=int(number[1][:18]),
            task=None if of_array is None else _task_index(of_array[1]),
            user=fields["user"],
            group=fields.get("group", ""),
            submitted=submitted,
            ready=_slurm_time(fields.get("eligible", "")) or submitted,
            started=math.nan if started is None else started,
            ended=math.nan if ended is None else ended,
            cpus=int(cpus[:9]),
            limit=_slurm_limit(fields),
        )
    )


def _slurm_limit(fields: Mapping[str, str]) -> float | None:
    """Return the time limit in seconds; None: none, or none that can be read."""
    raw, written = fields.get("timelimitraw", ""), fields.get("timelimit", "")
    try:
        if raw:
            return parse_duration(raw, 60.0)
        return parse_duration(written) if written else None
    except ParseError:  # UNLIMITED, Partition_Limit
        return None


def _slurm_time(text: str) -> float | None:
    """Return a time: local without a zone, or seconds, as of SLURM_TIME_FORMAT=%s."""
    if text.isascii() and text.isdecimal():
        return float(text[:12])
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):  # Unknown, None
        return None


# Grid Engine


def _read_qacct(path: Path, dropped: Counter[str]) -> Iterator[_AccountedJob]:
    """Yield the jobs of the output of `qacct -j`; AccountingError if there is no block."""
    has_records = False
    fields: dict[str, str] = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in _lines(file):
            if _SEPARATOR.match(line):
                if fields:
                    yield from _grid_engine_jobs(fields, path, dropped)
                fields, has_records = {}, True
            elif has_records:
                name, _, value = line.partition(" ")
                # the first of a name counts: what follows may come from the text of a job
                fields.setdefault(name, value.strip())
    if not has_records:
        raise AccountingError(f"no job, {path}; write it by: qacct -j > FILE")
    if fields:
        yield from _grid_engine_jobs(fields, path, dropped)


def _grid_engine_jobs(
    fields: Mapping[str, str], path: Path, dropped: Counter[str]
) -> Iterator[_AccountedJob]:
    if fields.get("pe_taskid", "NONE") != "NONE":  # a part of a parallel job
        return
    try:
        yield _grid_engine_job(fields, path)
    except _Unusable as cause:
        dropped[str(cause)] += 1


def _grid_engine_job(fields: Mapping[str, str], path: Path) -> _AccountedJob:
    submitted = _grid_engine_time(fields.get("qsub_time", ""))
    number, slots = _NUMBER.match(fields.get("jobnumber", "")), fields.get("slots", "")
    if submitted is None or number is None or not (slots.isascii() and slots.isdecimal()):
        raise _Unusable(UNREADABLE)
    started, ended = (_grid_engine_time(fields.get(n, "")) for n in ("start_time", "end_time"))
    limit = _LIMIT.search(fields.get("category", ""))
    return _usable(
        _AccountedJob(
            cluster=path.stem,
            id=int(number[1][:18]),
            task=_task_index(fields.get("taskid", "")),  # "undefined" for other jobs
            user=fields.get("owner", ""),
            group=fields.get("group", ""),
            submitted=submitted,
            ready=submitted,
            started=math.nan if started is None else started,
            ended=math.nan if ended is None else ended,
            cpus=int(slots[:9]),
            limit=float(limit[1][:9]) if limit else None,
        )
    )


def _grid_engine_time(text: str) -> float | None:
    for form in _QACCT_TIMES:
        try:
            return datetime.strptime(text, form).timestamp()
        except (ValueError, OverflowError, OSError):
            continue
    return None


def _usable(job: _AccountedJob) -> _AccountedJob:
    """Return the job; _Unusable if it cannot be simulated."""
    if math.isnan(job.started):
        raise _Unusable(NOT_STARTED)
    if math.isnan(job.ended):
        raise _Unusable(NOT_ENDED)
    if not 1 <= job.cpus <= MAX_CPUS or job.ended < job.started or job.started < job.submitted:
        # zero processors: it never started, though Slurm sets both times of a cancelled job
        raise _Unusable(NOT_STARTED if job.cpus == 0 else UNREADABLE)
    if job.submitted < 0 or job.ended > LATEST:
        raise _Unusable(UNREADABLE)
    return job._replace(ready=min(max(job.ready, job.submitted), job.started))
