"""Recovery: reads the state of the core, and its events in order, back from the tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from sys import intern
from typing import Any, get_args

import msgspec
from msgspec import structs
from sqlalchemy import Connection, and_, func, select, tuple_

from metasched.core.dependency_status import TargetSummary
from metasched.core.events import ClusterDrained, CoreEvent, ListingReceived
from metasched.core.recovered_state import RecoveredState
from metasched.core.state import MAX_ENDED_TASKS
from metasched.core.tasks import NO_CLUSTERS, Attempt, EndedTask, Intent, PastAttempt, Task
from metasched.core.transitions import LIVE
from metasched.db import (
    calendar,
    dependency_targets,
    leases,
    reservations,
    share_uses,
    strikes,
    task_runs,
    tuning,
)
from metasched.db.cluster_info import apply_changes
from metasched.db.schema import attempt, cluster, current_spec, drain, event, job, task, task_run
from metasched.model.cluster import ClusterInfo
from metasched.model.dependencies import parse_dependency
from metasched.model.job import Job, State

EVENT_TYPES: dict[str, type[CoreEvent]] = {kind.__name__: kind for kind in get_args(CoreEvent)}
# Fields of Attempt that have a column of their own; the others begin anew after a restart.
ATTEMPT_FIELDS = tuple(f.name for f in structs.fields(Attempt) if f.name in attempt.c)
# all rows at once take more memory than the objects made of them, and the process keeps that
_IN_PORTIONS = {"yield_per": 1000}
_SAME_TASK = and_(task.c.job == attempt.c.job, task.c.task_index == attempt.c.task_index)


def recover(connection: Connection, window: int) -> RecoveredState:
    """Read the stored state, with the last `window` jobs that had a margin."""
    execute = connection.execute
    tasks, remainders = list(_open_tasks(connection)), task_runs.remainders(connection)
    waiting_jobs = {t.job.id: t.job for t in tasks if not t.attempts}
    waiting_jobs |= {remainder.job.id: remainder.job for remainder in remainders}
    last_dispatches = execute(
        select(attempt.c.job, func.max(attempt.c.dispatch_id))
        # also of ended tasks of these jobs: no tag may repeat
        .where(
            attempt.c.job.in_(select(task.c.job).where(task.c.ended.is_(None)))
            | attempt.c.job.in_(select(task_run.c.job).where(task_run.c.ended.is_(None)))
        )
        .group_by(attempt.c.job)
    )
    margins = execute(
        select(job.c.spec).where(job.c.margin >= 0).order_by(job.c.id.desc()).limit(window)
    ).scalars()
    return RecoveredState(
        tasks=tasks,
        last_dispatches={row[0]: row[1] for row in last_dispatches},
        info={
            row.name: msgspec.json.decode(row.info, type=ClusterInfo)
            for row in execute(select(cluster))
        },
        margins=[msgspec.json.decode(text, type=Job) for text in margins][::-1],
        drains=[ClusterDrained(**row) for row in execute(select(drain)).mappings()],
        ended=_ended_tasks(connection),
        # a task dispatched before no longer depends on other jobs
        target_summaries=_target_summaries(connection, waiting_jobs.values()),
        strikes=strikes.read_all(connection),
        leases=leases.live_leases(connection),
        lingering=leases.lingering(connection),
        totals=leases.operator_totals(connection),
        used_outside=leases.used_outside(connection),
        reservations=reservations.open_or_held(connection),
        share_uses=share_uses.read_uses(connection),
        share_trees=share_uses.read_trees(connection),
        tuning=tuning.read_states(connection),
        remainders=remainders,
        calendar=calendar.read_entries(connection),
    )


def _open_tasks(connection: Connection) -> Iterator[Task]:
    """Yield the open tasks with their live and past attempts."""
    execute = connection.execute
    is_open = task.c.ended.is_(None)
    rejected_by: dict[tuple[int, int], frozenset[str]] = {}
    refusals: dict[tuple[int, int], str] = {}
    past: dict[tuple[int, int], dict[int, PastAttempt]] = {}
    ended_attempts = (
        select(attempt, task.c.ignore_rejections_until)
        .join(task, _SAME_TASK)
        .where(is_open, attempt.c.state.not_in(sorted(LIVE)))
        .order_by(attempt.c.number)
    )
    for row in execute(ended_attempts, execution_options=_IN_PORTIONS):
        key = (row.job, row.task_index)
        past_attempt = _decode_past_attempt(row)
        if row.number <= row.ignore_rejections_until:
            past_attempt.unbegun_on = None
        past.setdefault(key, {})[row.dispatch_id] = past_attempt
        if row.rejected and row.number > row.ignore_rejections_until:
            rejected_by[key] = rejected_by.get(key, NO_CLUSTERS) | {intern(row.cluster)}
            refusals[key] = row.manager_reason
    live = {
        (row.job, row.task_index): _decode_attempt(row)
        for row in execute(
            select(attempt).where(attempt.c.state.in_(sorted(LIVE))),
            execution_options=_IN_PORTIONS,
        )
    }
    # apart from the tasks: the tasks of an array share a text
    jobs = {
        row.id: (msgspec.json.decode(row.spec, type=Job), row.priority)
        for row in execute(
            select(job.c.id, job.c.priority, current_spec).where(
                job.c.id.in_(select(task.c.job).where(is_open))
            ),
            execution_options=_IN_PORTIONS,
        )
    }
    chosen_jobs: dict[tuple[int, int], Job] = {}  # by id and chosen licences
    rows = select(task).where(is_open).order_by(task.c.job, task.c.task_index)
    for row in execute(rows, execution_options=_IN_PORTIONS):
        key = (row.job, row.task_index)
        live_attempt = live.get(key)
        if live_attempt is not None:
            past.get(key, {}).pop(live_attempt.dispatch_id, None)
        job_of_task, priority = jobs[row.job]
        choice = None if live_attempt is None else live_attempt.licence_choice
        if choice is not None:
            if (row.job, choice) not in chosen_jobs:
                chosen_jobs[row.job, choice] = job_of_task.with_licences(choice)
            job_of_task = chosen_jobs[row.job, choice]
        yield Task(
            job_of_task,
            row.task_index,
            priority,
            queue_key=0.0,
            state=State(row.state),
            reason=intern(row.reason),
            held=row.held,
            attempts=row.attempts,
            moves=row.moves,
            target=row.target,
            attempt=live_attempt,
            rejected_by=rejected_by.get(key, NO_CLUSTERS),
            refusal=refusals.get(key, ""),
            ignore_rejections_until=row.ignore_rejections_until,
            past_attempts=past.get(key, {}),
        )


def _ended_tasks(connection: Connection) -> dict[tuple[int, int], EndedTask]:
    """Return the last ended tasks, oldest first."""
    execute = connection.execute
    remembered = (task.c.job, task.c.task_index, task.c.state, task.c.attempts, task.c.ended)
    ended_rows = select(*remembered).order_by(task.c.ended.desc()).where(task.c.ended.is_not(None))
    rows = execute(ended_rows.limit(MAX_ENDED_TASKS)).all()
    past: dict[tuple[int, int], dict[int, PastAttempt]] = {}
    if rows:
        oldest = rows[-1].ended
        columns = attempt.c
        for row in execute(
            select(
                columns.job,
                columns.task_index,
                columns.dispatch_id,
                columns.cluster,
                columns.has_started,
                columns.fence,
                columns.revoked,
                columns.intent,
                columns.gres_choice,
                columns.licence_choice,
                columns.started,
                columns.unbegun_on,
            )
            .join(task, _SAME_TASK)
            .where(task.c.ended >= oldest)
            .order_by(columns.number),
            execution_options=_IN_PORTIONS,
        ):
            task_attempts = past.setdefault((row.job, row.task_index), {})
            task_attempts[row.dispatch_id] = _decode_past_attempt(row)
    return {
        (row.job, row.task_index): EndedTask(
            State(row.state), row.attempts, past.get((row.job, row.task_index), {})
        )
        for row in reversed(rows)
    }


def stored_attempts(
    connection: Connection, attempts: Iterable[tuple[int, int, int]]
) -> dict[tuple[int, int], EndedTask]:
    """Return tasks by job and index, with those of the attempts (job, index, dispatch id)."""
    columns = attempt.c
    query = (
        select(attempt, task.c.state.label("task_state"), task.c.attempts)
        .join(task, _SAME_TASK)
        .where(tuple_(columns.job, columns.task_index, columns.dispatch_id).in_([*attempts]))
        .order_by(columns.number)
    )
    tasks: dict[tuple[int, int], EndedTask] = {}
    for row in connection.execute(query):
        new = EndedTask(State(row.task_state), row.attempts, {})
        stored = tasks.setdefault((row.job, row.task_index), new)
        stored.past_attempts[row.dispatch_id] = _decode_past_attempt(row)
    return tasks


def _target_summaries(
    connection: Connection, jobs: Iterable[Job]
) -> dict[int, list[TargetSummary]]:
    """Summarise the dependency targets of jobs, by job id."""
    targets = {j.id: parse_dependency(j.dependency).targets for j in jobs if j.dependency}
    distinct = {target for job_targets in targets.values() for target in job_targets}
    summaries = dependency_targets.summarise(connection, distinct)
    return {
        id: [summaries.get(target) or TargetSummary(target, 0) for target in of_job]
        for id, of_job in targets.items()
    }


def _decode_attempt(row: Any) -> Attempt:
    fields = {name: getattr(row, name) for name in ATTEMPT_FIELDS}
    fields["state"] = State(row.state)
    fields["intent"] = Intent(row.intent) if row.intent else None
    fields["cluster"] = intern(row.cluster)
    return Attempt(**fields)


def _decode_past_attempt(row: Any) -> PastAttempt:
    requeued = row.has_started and row.intent == Intent.REQUEUE
    return PastAttempt(
        intern(row.cluster),
        row.has_started,
        intern(row.fence),
        row.revoked,
        requeued,
        row.gres_choice,
        row.licence_choice,
        row.started,
        row.unbegun_on,
    )


def recorded_events(connection: Connection, since: int = 0) -> Iterator[CoreEvent]:
    """Yield the recorded events in order, for a replay.

    `since` is the id of the first event. It must be 0 or the id of a daemon's start: stored
    cluster information is relative to earlier events since that start.
    """
    infos: dict[str, ClusterInfo] = {}
    query = select(event).where(event.c.id >= since).order_by(event.c.id)
    for row in connection.execute(query, execution_options=_IN_PORTIONS):
        event_type = EVENT_TYPES[row.kind]
        if event_type is not ListingReceived:
            yield msgspec.json.decode(row.data, type=event_type)
            continue
        fields = msgspec.json.decode(row.data)
        changes = fields.pop("changed", None)
        received = msgspec.convert(fields, ListingReceived, str_keys=True)
        if changes is not None:
            info = apply_changes(infos[received.cluster], changes)
            received = structs.replace(received, info=info)
        if received.info is not None:
            infos[received.cluster] = received.info
        yield received
