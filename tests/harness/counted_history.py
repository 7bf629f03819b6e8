"""The use of all stored runs and leases, counted anew from the attempts: an oracle of the sums."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, and_, select

from metasched.core.transitions import FINAL
from metasched.db.daily_use import (
    _IN_PORTIONS,
    _IS_ENDED_RUN,
    _add_leases,
    _count_lease,
    add,
    day_of,
)
from metasched.db.schema import attempt, current_spec, job, lease, task
from metasched.model.daily_use import UseKey, UseSums, count_deadline, count_run
from metasched.model.job import Job, State
from metasched.model.licence import Lease, ReturnedLease
from metasched.policies.eligible import choose_gres

_HISTORY = (
    select(
        *(attempt.c[name] for name in ("job", "task_index", "number", "state", "cluster")),
        *(attempt.c[name] for name in ("started", "ended", "node", "cpu_seconds", "gres_choice")),
        *(attempt.c[name] for name in ("elapsed", "allocated_cpus")),
        task.c.attempts,
        task.c.state.label("task_state"),
        task.c.ended.label("task_ended"),
        current_spec,
    )
    .join(task, and_(task.c.job == attempt.c.job, task.c.task_index == attempt.c.task_index))
    .join(job, job.c.id == attempt.c.job)
    .where(*_IS_ENDED_RUN)
    .order_by(attempt.c.job, attempt.c.task_index, attempt.c.number)
)


def count_history(connection: Connection) -> None:
    """Count all stored runs and leases that ended into empty tables.

    Tasks with a deadline that never started are not counted.
    """
    sums: dict[UseKey, UseSums] = {}
    decoder, job_id, owner = msgspec.json.Decoder(Job), 0, None
    started: tuple[int, int] = (0, 0)  # the last task with a counted start
    rows = connection.execute(_HISTORY, execution_options=_IN_PORTIONS)
    for row in rows:
        if owner is None or job_id != row.job:
            job_id, owner = row.job, decoder.decode(row.spec)
        key = UseKey.of(owner, row.cluster, day_of(row.ended))
        run = count_run(
            choose_gres(owner, row.gres_choice),
            state=State(row.state),
            started=row.started,
            ended=row.ended,
            node=row.node,
            cpu_seconds=row.cpu_seconds,
            first_start=started != (row.job, row.task_index),
            elapsed=row.elapsed,
            cpus=row.allocated_cpus,
        )
        started = row.job, row.task_index
        sums.setdefault(key, UseSums()).add(run)
        is_last = row.number == row.attempts and row.task_state in FINAL
        if is_last and owner.deadline is not None:
            end = count_deadline(owner.deadline, State(row.task_state), row.task_ended)
            sums.setdefault(key, UseSums()).add(end)
    add(connection, sums)
    _count_past_leases(connection)


def _count_past_leases(connection: Connection) -> None:
    """Count stored leases that ended; how many were leased at a time is not known of the past."""
    ended = (
        select(lease, current_spec, attempt.c.cluster)
        .join(job, job.c.id == lease.c.job)
        .join(
            attempt,
            and_(
                attempt.c.job == lease.c.job,
                attempt.c.task_index == lease.c.task_index,
                attempt.c.number == lease.c.attempt,
            ),
        )
        .where(lease.c.until.is_not(None))
    )
    sums: dict[tuple[UseKey, str], dict[str, float]] = {}
    for row in connection.execute(ended, execution_options=_IN_PORTIONS):
        owner = msgspec.json.decode(row.spec, type=Job)
        held = Lease(row.job, row.task_index, row.attempt, {row.licence: row.tokens}, row.since)
        key = UseKey.of(owner, row.cluster, day_of(row.until))
        _count_lease(sums, key, owner, ReturnedLease(held, row.until, row.reason))
    _add_leases(connection, sums)
