"""The tasks of an instance in a listing of Slurm, and the lines that are set aside. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from msgspec import structs

from metasched.adapters.slurm.launch_failures import is_held_by_slurm
from metasched.adapters.slurm.listing import (
    HAS_STATUS,
    HOLDS_PROCESSORS,
    MAX_DISPATCHED_TASKS,
    QueueLine,
    QueueListing,
    has_ended,
    parse_duration,
    parse_epoch_time,
    parse_exit_status,
    parse_mark,
    parse_state,
    task_count,
    task_ids,
)
from metasched.adapters.slurm.records import EMPTY_VALUES, parse_int
from metasched.model.host_lists import count_hosts
from metasched.model.job import State
from metasched.model.listing import JobStatus, JobTerms, KnownJob, QuarantinedRow
from metasched.model.tags import parse_number, parse_tag

_REFUSALS = ("BadConstraints",)  # why Slurm can never start a job
_EMPTY_ARRAY = re.compile(r"\d+(_(\[\])?)?")  # all its pending tasks were cancelled together


def is_own(line: QueueLine, instances: frozenset[str], user: int | None) -> bool:
    """Return whether the job has a tag of `instances` and, if given, the owner `user`.

    Other users may forge a tag.
    """
    return (
        user in (None, parse_number(line.user))
        and parse_tag(line.tag.partition("/")[0], instances) is not None
    )


class KnownIds:
    """Finds known jobs in records of squeue, which may stand for several tasks of an array."""

    def __init__(self, ids: Collection[str]) -> None:
        self._ids = ids
        self._arrays = {id.partition("_")[0] for id in ids if "_" in id}

    def of_record(self, record: str) -> list[str]:
        """Return the known native ids of a record's tasks."""
        if record in self._ids:
            return [record]
        if record.partition("_")[0] not in self._arrays:
            return []
        return [id for id in task_ids(record) if id in self._ids]


class JobStatuses(NamedTuple):
    """The tasks in a listing."""

    tagged: list[JobStatus]
    untagged: list[JobStatus]  # see `Listing.untagged`
    set_aside: list[QuarantinedRow]  # lines that may be tasks and cannot be used


def job_statuses(
    listing: QueueListing,
    instances: frozenset[str],
    user: int | None,
    known: Mapping[str, JobStatus | KnownJob] = MappingProxyType({}),
    verdict: Callable[[QueueLine], str | None] = lambda _: "",
    unanswered: Mapping[str, float] = MappingProxyType({}),
) -> JobStatuses:
    """Return the tasks of `instances`, and the `known` jobs without a tag of theirs.

    Jobs of owners in `unanswered` that were submitted since then are among the latter: they may be
    dispatches that were never answered.

    If `user` is None, each has its owner's user id. The account column is the controller's, and
    names the owner of a line. A line without a readable account may be of any user. `verdict`: see
    `LaunchFailures.verdict`.
    """
    statuses: list[JobStatus] = []
    untagged: list[JobStatus] = []
    set_aside: dict[tuple[str, str, int], QuarantinedRow] = {}  # by tag, owner and task
    counts: Counter[tuple[str, str]] = Counter()
    known_ids = KnownIds(known)

    def set_line_aside(row: QuarantinedRow) -> None:
        set_aside[row.tag, row.owner, row.task] = row

    if listing.unreadable:
        set_line_aside(quarantined_line(listing.unreadable))
    for line in listing.lines:
        tag, uid = line.tag.partition("/")[0], parse_number(line.user)
        if uid is None:
            row = quarantined_line(line.user)
            if parse_tag(tag, instances) is not None:
                row = QuarantinedRow(tag, -1, "", "its account cannot be read")
            set_line_aside(row)
            continue
        if user not in (None, uid):
            continue
        owner = "" if user is not None else str(uid)
        shown: Collection[str] = ()  # native ids of the tasks that the mark names
        if is_own(line, instances, user):
            tasks = parse_mark(line.tag, line.id)
            counts[tag, owner] += len(tasks)
            try:
                if counts[tag, owner] > MAX_DISPATCHED_TASKS:
                    raise ValueError(f"more than {MAX_DISPATCHED_TASKS} tasks")
                statuses += _statuses_of(line, owner, tasks, verdict(line))
                shown = tasks.values()
            except ValueError as error:
                set_line_aside(QuarantinedRow(tag, -1, owner, f"job {line.id}: {error}"))
        if line.id in shown and not line.id.endswith("]"):
            continue
        known_natives = known_ids.of_record(line.id)
        if owner in unanswered and not (shown or known_natives):
            job = structs.replace(claim(line, line.id), owner=owner)
            if job.submitted is None or job.submitted >= unanswered[owner]:
                untagged.append(job)
        for native_id in known_natives:
            if native_id in shown:
                continue
            try:
                untagged += _statuses_of(line, owner, {("", 0): native_id}, verdict(line))
            except ValueError as error:
                tag, task = known[native_id].tag, known[native_id].task
                set_line_aside(QuarantinedRow(tag, task, owner, f"job {line.id}: {error}"))
    return JobStatuses(statuses, untagged, list(set_aside.values()))


def job_terms(
    lines: Iterable[QueueLine], new_jobs: Mapping[str, str | None], accounts: Mapping[str, str]
) -> Iterator[tuple[str, JobTerms]]:
    """Yield native ids and terms of new jobs; leave out lines that cannot be read."""
    known_ids = KnownIds(new_jobs)
    for line in lines:
        for native_id in known_ids.of_record(line.id):
            with suppress(ValueError):
                yield (
                    native_id,
                    JobTerms(
                        cpus=parse_int(line.cpus.partition("-")[0]),
                        pending=parse_state(line.state) is State.PENDING,
                        account=accounts.get(native_id.partition("_")[0]),
                        partition=line.partition,
                        limit=parse_duration(line.limit),
                    ),
                )


def claim(line: QueueLine, native_id: str, tag: str = "", task: int = 0) -> JobStatus:
    """Return what tells whether a line is a known job; its other values may be unreadable."""
    submitted, restarts = parse_number(line.submitted), parse_number(line.restarts)
    return JobStatus(
        *(tag, task, native_id, parse_state(line.state)),
        restarts=restarts or 0,
        submitted=None if submitted is None else float(submitted),
    )


def quarantined_line(text: str) -> QuarantinedRow:
    """Return the record of a line that may be any task of this instance."""
    return QuarantinedRow("", -1, "", f"a line that cannot be read: {text[:80]!r}")


def is_readable(line: QueueLine) -> bool:
    """Return whether all columns of a line can be used."""
    try:
        _statuses_of(line, "", parse_mark(line.tag, line.id), "")
        times = (line.submitted, line.eligible, line.start, line.end)
        [parse_epoch_time(time) for time in times]
        parse_duration(line.limit)
        count_hosts(line.nodes)
        cpus = parse_int(line.cpus.partition("-")[0])
        parse_int(line.priority), parse_int(line.restarts)
        return cpus >= 0 and task_count(line.id) > 0 and line.id[:1].isdecimal()
    except ValueError:
        return False


def _statuses_of(
    line: QueueLine, owner: str, tasks: Mapping[tuple[str, int], str], unbegun_on: str | None
) -> list[JobStatus]:
    """Return the tasks that a record stands for, given their native ids. Raises ValueError.

    `unbegun_on` are the nodes that could not begin it. None: not known yet, so it still ends.
    """
    if unbegun_on is None:
        line = line._replace(state="COMPLETING")
    if not tasks and line.tag.endswith("/a") and not _EMPTY_ARRAY.fullmatch(line.id):
        raise ValueError(f"{line.id[:40]!r} names no tasks of a dispatch")
    current = parse_state(line.state)
    started, code, signal = _first_start(line, current), None, None
    if started is not None and current in HAS_STATUS:
        code, signal = parse_exit_status(line.status)
    ended = parse_epoch_time(line.end) if has_ended(current) else None
    manager_reason = "" if line.reason in EMPTY_VALUES else line.reason
    node = "" if line.nodes in EMPTY_VALUES else line.nodes
    submitted = parse_epoch_time(line.submitted)
    restarts = parse_int(line.restarts) - _is_requeued_while_completing(line)
    # for a record of several tasks Slurm shows the start of a single task, without its id
    expected = _expected_start(line) if current is State.PENDING and len(tasks) == 1 else None
    return [
        JobStatus(
            tag=tag,
            task=task,
            native_id=native_id,
            state=current,
            started=started,
            ended=ended,
            exit_code=code,
            signal=signal,
            manager_reason=manager_reason,
            node=node,
            restarts=restarts,
            restart_stays=restarts > 0
            and current is State.PENDING
            and line.priority == "0"
            and not is_held_by_slurm(line),
            unbegun_on=unbegun_on or "",
            owner=owner,
            submitted=submitted,
            expected=expected,
        )
        for (tag, task), native_id in tasks.items()
    ]


def _is_requeued_while_completing(line: QueueLine) -> bool:
    """Return whether a requeued job still has processes of its last run.

    Slurm counts the restart then, though none has begun. It shows the present time as the start,
    and as the end when the limit would be reached from now on: not that of the run.
    """
    if line.state != "COMPLETING" or parse_int(line.restarts) == 0:
        return False
    start, end = parse_epoch_time(line.start), parse_epoch_time(line.end)
    limit = parse_duration(line.limit)
    return start is None or end is None or (limit is not None and end - start == limit)


def _expected_start(line: QueueLine) -> float | None:
    """Return Slurm's estimate of the start of a pending job; of a held job it is outdated."""
    return None if line.eligible in EMPTY_VALUES else parse_epoch_time(line.start)


def _first_start(line: QueueLine, state: State) -> float | None:
    """Return the start of a job in epoch seconds; None if it never started.

    A job that is cancelled while pending gets a start time too, but never a node. A requeued job
    has started before, at the latest when it was requeued; Slurm keeps no earlier time.
    """
    restarts = parse_int(line.restarts)
    if (restarts > 0 and state is State.PENDING) or _is_requeued_while_completing(line):
        return parse_epoch_time(line.submitted)
    if state is State.PENDING:
        return None
    if state in HOLDS_PROCESSORS or line.nodes not in EMPTY_VALUES or restarts > 0:
        start = parse_epoch_time(line.start)
        return parse_epoch_time(line.submitted) if start is None else start
    return None
