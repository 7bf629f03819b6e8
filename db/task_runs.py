"""Runs of equal tasks of an array in SQL: the open tasks of its remainder, and cancelled tasks.

Each function works in the caller's transaction. No task has both a row in `task` and a place in a
run. Tasks leave runs and never return.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    delete,
    insert,
    select,
    tuple_,
    update,
)

from metasched.core.array_remainder import (
    MIN_MEAN_RUN,
    IndexRun,
    Remainder,
    RunChanges,
    common_indices,
    range_of,
    run_length,
    runs_of,
)
from metasched.core.events import CoreEvent, JobRequeued, Outcome
from metasched.db.bulk_rows import insert_rows
from metasched.db.schema import current_spec, job, task, task_run
from metasched.model.job import Job, State

IndicesByJob = dict[int, list[int] | None]  # selected indices of jobs, ascending; None: all

_IS_OPEN = task_run.c.ended.is_(None)
_LISTED = (
    task_run.c.job,
    task_run.c.first_index,
    task_run.c.last_index,
    task_run.c.step,
    task_run.c.state,
    task_run.c.reason,
    task_run.c.ended,
    job.c.array,
    job.c.name,
    job.c.user,
    job.c.priority,
    job.c.submitted,
)

# Statements of each change of a remainder. All its runs have the same state and reason
_OF_JOB = task_run.c.job == bindparam("of_job"), _IS_OPEN
_DELETE_OPEN = delete(task_run).where(task_run.c.first_index == bindparam("of_first"), *_OF_JOB)
_STORED_LABEL = select(task_run.c.state, task_run.c.reason).where(*_OF_JOB).limit(1)
_UPDATE_LABEL = (
    update(task_run)
    .where(*_OF_JOB)
    .values(state=bindparam("new_state"), reason=bindparam("new_reason"))
)


# Writing


def store(connection: Connection, steps: Sequence[tuple[CoreEvent, Outcome]]) -> None:
    """Store changed remainders and cancelled tasks; requeued tasks get rows of their own.

    Of a remainder only the runs are written that have changed.
    """
    remainders: dict[int, Remainder | None] = {}
    changes: dict[int, RunChanges] = {}
    rows: list[dict[str, Any]] = []
    for event, outcome in steps:
        remainders |= outcome.remainders
        for job_id, of_step in outcome.run_changes.items():
            changes.setdefault(job_id, {}).update(of_step)
        if outcome.cancelled_runs:
            users = dict(
                connection.execute(
                    select(job.c.id, job.c.user).where(
                        job.c.id.in_({job_id for job_id, _ in outcome.cancelled_runs})
                    )
                ).all()
            )
            rows += [
                _row(job_id, users[job_id], run, State.CANCELLED, "", event.time)
                for job_id, run in outcome.cancelled_runs
            ]
    for job_id, remainder in remainders.items():
        if remainder is None:
            connection.execute(delete(task_run).where(task_run.c.job == job_id, _IS_OPEN))
            continue
        of_job = changes.get(job_id, {})
        if of_job:
            connection.execute(
                _DELETE_OPEN, [{"of_job": job_id, "of_first": first} for first in of_job]
            )
        user, state, reason = remainder.job.user, remainder.state, remainder.reason
        label = {"of_job": job_id, "new_state": state, "new_reason": reason}
        stored = connection.execute(_STORED_LABEL, {"of_job": job_id}).first()
        if stored is not None and tuple(stored) != (state, reason):
            connection.execute(_UPDATE_LABEL, label)
        rows += [_row(job_id, user, run, state, reason, None) for run in of_job.values() if run]
    if rows:
        connection.execute(insert(task_run), rows)
    for event, _ in steps:
        if isinstance(event, JobRequeued):
            indices = {requeued.index for requeued in event.tasks}
            _expand(connection, event.job.id, indices)


def _row(
    job_id: int, user: str, run: IndexRun, state: State, reason: str, ended: float | None
) -> dict[str, Any]:
    first, last, step = run
    return {
        "job": job_id,
        "first_index": first,
        "last_index": last,
        "step": step,
        "state": state,
        "reason": reason,
        "ended": ended,
        "user": user,
    }


def _expand(connection: Connection, job_id: int, indices: set[int]) -> None:
    """Give ended tasks of runs rows of their own."""
    ended = task_run.c.job == job_id, task_run.c.ended.is_not(None)
    for row in connection.execute(select(task_run).where(*ended)).all():
        run = (row.first_index, row.last_index, row.step)
        leaving = [index for index in range_of(run) if index in indices]
        if not leaving:
            continue
        connection.execute(
            delete(task_run).where(
                task_run.c.job == job_id, task_run.c.first_index == row.first_index
            )
        )
        remaining = list(runs_of(index for index in range_of(run) if index not in indices))
        if len(remaining) * MIN_MEAN_RUN > run_length(run):
            leaving, remaining = list(range_of(run)), []
        state = State(row.state)
        if rows := [_row(job_id, row.user, r, state, row.reason, row.ended) for r in remaining]:
            connection.execute(insert(task_run), rows)
        common = {"job": job_id, "state": row.state, "reason": row.reason, "ended": row.ended}
        common |= {"user": row.user, "held": False, "target": None}
        common |= {"attempts": 0, "moves": 0, "ignore_rejections_until": 0}
        insert_rows(connection, task, [{**common, "task_index": index} for index in leaving])


# Reading


def remainders(connection: Connection) -> list[Remainder]:
    """Return the remainders of open arrays, by job."""
    rows = connection.execute(
        select(task_run, job.c.priority, current_spec)
        .join(job, job.c.id == task_run.c.job)
        .where(_IS_OPEN)
        .order_by(task_run.c.job, task_run.c.first_index)
    )
    remainders_by_job: dict[int, Remainder] = {}
    for row in rows:
        if row.job not in remainders_by_job:
            decoded, held = msgspec.json.decode(row.spec, type=Job), row.state == State.HELD
            remainders_by_job[row.job] = Remainder(decoded, [], row.priority, 0.0, held, row.reason)
        remainders_by_job[row.job].runs.append((row.first_index, row.last_index, row.step))
    return list(remainders_by_job.values())


def indices_of(connection: Connection, job_id: int, ended: bool) -> list[int]:
    """Return the indices of a job's tasks in runs, those that are open or that have ended."""
    is_open = task_run.c.ended.is_not(None) if ended else _IS_OPEN
    rows = connection.execute(
        select(task_run).where(task_run.c.job == job_id, is_open).order_by(task_run.c.first_index)
    ).all()
    runs = [(row.first_index, row.last_index, row.step) for row in rows]
    return sorted(chain.from_iterable(map(range_of, runs)))


def contains(
    connection: Connection,
    selectors: Iterable[tuple[int, int | None]],
    *conditions: ColumnElement[bool],
) -> set[tuple[int, int]]:
    """Return those of tasks, by job and index, that are in runs. `conditions` are of the job."""
    indices: dict[int, list[int]] = {}
    for job_id, index in selectors:
        if index is not None:
            indices.setdefault(job_id, []).append(index)
    for of_job in indices.values():
        of_job.sort()
    task_ids: set[tuple[int, int]] = set()
    job_ids = list(indices)
    for first in range(0, len(job_ids), 500):
        is_named = task_run.c.job.in_(job_ids[first : first + 500])
        runs = select(task_run).join(job, job.c.id == task_run.c.job).where(is_named, *conditions)
        for row in connection.execute(runs):
            run = range_of((row.first_index, row.last_index, row.step))
            task_ids |= {(row.job, index) for index in common_indices(run, indices[row.job])}
    return task_ids


def all_states(connection: Connection) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield job and index of each task in a run, with its state."""
    for row in connection.execute(select(task_run)):
        for index in range_of((row.first_index, row.last_index, row.step)):
            yield (row.job, index), row.state


# Listings


@dataclass(frozen=True)
class ListedRun:
    """Tasks of a run that a listing selects."""

    row: dict[str, Any]  # of `status` but for the index; times in epoch seconds
    indices: Sequence[int]  # ascending, never empty

    def ranges(self) -> Iterator[range]:
        """Yield its indices as ranges."""
        if isinstance(self.indices, range):
            yield self.indices
        else:
            yield from map(range_of, runs_of(self.indices))


def listed(
    connection: Connection,
    conditions: Iterable[ColumnElement[bool]],
    after: tuple[int, int],
    limit: int | None,
    selected: IndicesByJob | None,
) -> list[ListedRun]:
    """Return the runs with tasks after a task, by job and first index.

    `limit` is the number of runs; `selected` restricts jobs and indices.
    """
    is_after = tuple_(task_run.c.job, task_run.c.last_index) > after
    query: Select[Any] = (
        select(*_LISTED)
        .join(job, job.c.id == task_run.c.job)
        .where(*conditions, task_run.c.job >= after[0], is_after)
        .order_by(task_run.c.job, task_run.c.first_index)
    )
    if selected is not None:
        query = query.where(task_run.c.job.in_(list(selected)))
    if limit is not None:
        query = query.limit(limit)
    runs = []
    for row in connection.execute(query).mappings():
        run = range_of((row["first_index"], row["last_index"], row["step"]))
        indices: Sequence[int] = run
        if selected is not None and (named := selected[row["job"]]) is not None:
            indices = common_indices(run, named)
        if row["job"] == after[0]:
            indices = _after(indices, after[1])
        if indices:
            runs.append(ListedRun(_status_row(row), indices))
    return runs


def _after(indices: Sequence[int], index: int) -> Sequence[int]:
    """Return the indices after an index; of a range, a range."""
    if isinstance(indices, range):
        passed = max((index - indices.start) // indices.step + 1, 0)
        return indices[passed:]
    return [other for other in indices if other > index]


def _status_row(row: Any) -> dict[str, Any]:
    return {
        "job": row["job"],
        "array": row["array"],
        "task_index": 0,
        "name": row["name"],
        "user": row["user"],
        "state": row["state"],
        "reason": row["reason"],
        "priority": row["priority"],
        "cluster": None,
        "native_id": None,
        "submitted": row["submitted"],
        "started": None,
        "ended": row["ended"],
        "exit_code": None,
        "signal": None,
        "attempt_state": None,
        "node": None,
        "cpu_seconds": None,
        "max_memory": None,
        "restarts": None,
        "gres_choice": None,
        "licence_choice": None,
    }


def has_recent(job_id: ColumnElement[int], before: float) -> ColumnElement[bool]:
    """Return the condition that a job has a task in a run that is open or ended since `before`."""
    recent = _IS_OPEN | (task_run.c.ended >= before)
    return select(task_run.c.job).where(task_run.c.job == job_id, recent).exists()
