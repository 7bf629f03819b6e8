"""Summaries of the jobs and tasks that other jobs depend on, read for hundreds at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, and_, or_, select, tuple_

from metasched.core.array_remainder import common_indices, range_of
from metasched.core.dependency_status import TargetSummary
from metasched.db.schema import attempt, job, task, task_run
from metasched.model.arrays import format_indices
from metasched.model.dependencies import DependencyTarget
from metasched.model.job import State

_TARGETS_PER_QUERY = 1_000
_ENDS = (
    select(task.c.job, task.c.task_index, task.c.state, task.c.ended, attempt.c.started)
    .add_columns(job.c.array)
    .join(job, job.c.id == task.c.job)
    .outerjoin(  # the attempt that ended with the task, if there was any
        attempt,
        and_(
            task.c.job == attempt.c.job,
            task.c.task_index == attempt.c.task_index,
            attempt.c.number == task.c.attempts,
            attempt.c.ended == task.c.ended,
            # of equal times: a task cancelled in metasched had ended otherwise before
            or_(task.c.state != State.CANCELLED, attempt.c.state == State.CANCELLED),
        ),
    )
)
_RUNS = select(
    task_run.c.job, task_run.c.first_index, task_run.c.last_index, task_run.c.step, task_run.c.ended
).join(job, job.c.id == task_run.c.job)


@dataclass
class _TargetTasks:
    """Tasks of a target, as far as they were read."""

    size: int = 0
    array: bool = False
    succeeded: list[int] = field(default_factory=list)  # indices
    failed: list[int] = field(default_factory=list)  # indices that ended without success
    last_start: float = 0.0  # epoch seconds; latest start (end, if never started) of ended tasks


def summarise(
    connection: Connection, targets: Iterable[DependencyTarget], owner: str | None = None
) -> dict[DependencyTarget, TargetSummary]:
    """Summarise the tasks of targets that exist and belong to `owner` (None: to anybody)."""
    by_index: dict[int, dict[int | None, _TargetTasks]] = {}
    for target in targets:
        by_index.setdefault(target.job, {})[target.index] = _TargetTasks()
    whole = [job_id for job_id, of_job in by_index.items() if None in of_job]
    indices = {
        job_id: sorted(index for index in of_job if index is not None)
        for job_id, of_job in by_index.items()
    }
    single = [(job_id, index) for job_id, of_job in indices.items() for index in of_job]
    owned = [] if owner is None else [job.c.user == owner]
    for row in _portions(connection, _ENDS.where(*owned), task.c.job, whole):
        _add_task(by_index[row.job][None], row)
    task_id = tuple_(task.c.job, task.c.task_index)
    for row in _portions(connection, _ENDS.where(*owned), task_id, single):
        _add_task(by_index[row.job][row.task_index], row)
    for row in _portions(connection, _RUNS.where(*owned), task_run.c.job, list(by_index)):
        run = range_of((row.first_index, row.last_index, row.step))
        of_job = by_index[row.job]
        if None in of_job:
            _add_run(of_job[None], run, row.ended)
        for index in common_indices(run, indices[row.job]):
            _add_run(of_job[index], (index,), row.ended)
    return {
        DependencyTarget(job_id, index): TargetSummary(
            DependencyTarget(job_id, index),
            tasks.size,
            tasks.array,
            format_indices(sorted(tasks.succeeded)),
            format_indices(sorted(tasks.failed)),
            tasks.last_start,
        )
        for job_id, of_job in by_index.items()
        for index, tasks in of_job.items()
        if tasks.size
    }


def _portions(connection: Connection, query: Any, key: Any, keys: Sequence[Any]) -> Iterator[Any]:
    """Yield the rows with one of `keys`."""
    for first in range(0, len(keys), _TARGETS_PER_QUERY):
        yield from connection.execute(
            query.where(key.in_(keys[first : first + _TARGETS_PER_QUERY]))
        )


def _add_task(tasks: _TargetTasks, row: Any) -> None:
    tasks.size += 1
    tasks.array |= row.array is not None
    if row.ended is not None:
        (tasks.succeeded if row.state == State.COMPLETED else tasks.failed).append(row.task_index)
        tasks.last_start = max(tasks.last_start, row.started or row.ended)


def _add_run(tasks: _TargetTasks, indices: Sequence[int], ended: float | None) -> None:
    """Add tasks of a run; those that have ended were cancelled before they started."""
    tasks.size += len(indices)
    tasks.array = True
    if ended is not None:
        tasks.failed += indices
        tasks.last_start = max(tasks.last_start, ended)
