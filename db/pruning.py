"""Deletion of old rows, possible while a daemon writes."""

from __future__ import annotations

import time

from sqlalchemy import Connection, Engine, delete, func, select
from sqlalchemy.exc import DBAPIError

from metasched.db import reservations
from metasched.db.schema import (
    attempt,
    change,
    checkpoint,
    content,
    dependency,
    epoch,
    event,
    job,
    lease,
    task,
)
from metasched.db.store import StoreError, driver_message

JOBS_PER_TRANSACTION = 100
PRUNED_KINDS = ("jobs", "reservations", "events")
EVENTS_PER_TRANSACTION = 2000
PAUSE = 0.01  # seconds between transactions, for others to write
MARGINS_KEPT = 1000  # recent jobs with a deadline are kept: later priorities depend on them


def lock_epoch(connection: Connection) -> int:
    """Wait for other writers and exclude them until this transaction ends; return the epoch.

    SQLite serialises writers by itself.
    """
    return int(connection.execute(select(epoch.c.number).with_for_update()).scalar_one())


def prune(engine: Engine, before: float) -> dict[str, int]:
    """Delete all rows that ended before a time (epoch seconds); return the numbers by kind.

    Raises StoreError if another program locks the database for too long. Batches deleted until
    then stay deleted.
    """
    removed = dict.fromkeys(PRUNED_KINDS, 0)
    try:
        with engine.connect() as connection:
            while True:
                with connection.begin():
                    lock_epoch(connection)
                    batch = prune_batch(connection, before)
                if not any(batch.values()):
                    return removed
                removed = {name: removed[name] + batch[name] for name in removed}
                time.sleep(PAUSE)
    except DBAPIError as error:
        raise StoreError(
            f"pruning stopped after {removed['jobs']} jobs ({driver_message(error)}); try again"
        ) from None


def prune_batch(connection: Connection, before: float) -> dict[str, int]:
    """Delete jobs that ended before a time; without any, reservations; without any, events.

    A job is kept while an open job depends on it. The newest job is kept, since ids continue from
    it: a reused id would repeat a tag that a manager may still list. Events without changes are
    deleted up to the last checkpoint before that time, from which the rest can be replayed.
    Return the numbers deleted, by kind; all are 0 if nothing remains to be deleted.
    """
    execute = connection.execute
    margin_jobs = (
        select(job.c.id).where(job.c.margin >= 0).order_by(job.c.id.desc()).limit(MARGINS_KEPT)
    )
    has_recent_task = select(task.c.job).where(
        task.c.job == job.c.id, (task.c.ended.is_(None)) | (task.c.ended >= before)
    )
    has_open_dependent = (
        select(dependency.c.job)
        .join(task, task.c.job == dependency.c.job)
        .where(dependency.c.target == job.c.id, task.c.ended.is_(None))
    )
    prunable = (
        select(job.c.id, job.c.script, job.c.environment)
        .where(
            job.c.id.in_(select(task.c.job).where(task.c.ended < before)),
            ~has_recent_task.exists(),
            ~has_open_dependent.exists(),
            job.c.id.not_in(margin_jobs),
            job.c.id < select(func.max(job.c.id)).scalar_subquery(),
        )
        .order_by(job.c.id)
        .limit(JOBS_PER_TRANSACTION)
    )
    if rows := execute(prunable).all():
        ids = [row.id for row in rows]
        for table, column in (
            (change, change.c.job),
            (dependency, dependency.c.job),
            (lease, lease.c.job),
            (attempt, attempt.c.job),
            (task, task.c.job),
            (job, job.c.id),
        ):
            execute(delete(table).where(column.in_(ids)))
        texts = {text for row in rows for text in (row.script, row.environment)}
        used = select(job.c.id).where(
            (job.c.script == content.c.digest) | (job.c.environment == content.c.digest)
        )
        execute(delete(content).where(content.c.digest.in_(texts), ~used.exists()))
        return _counts(jobs=len(rows))
    if pruned_reservations := reservations.prune_batch(connection, before, JOBS_PER_TRANSACTION):
        return _counts(reservations=pruned_reservations)
    newest_checkpoint = execute(
        select(func.max(checkpoint.c.event)).where(checkpoint.c.time < before)
    ).scalar()
    if newest_checkpoint is None:
        return _counts()
    execute(delete(checkpoint).where(checkpoint.c.event < newest_checkpoint))
    has_change = select(change.c.id).where(change.c.event == event.c.id)
    unreferenced = (
        select(event.c.id)
        .where(event.c.id < newest_checkpoint, ~has_change.exists())
        .limit(EVENTS_PER_TRANSACTION)
    )
    return _counts(events=execute(delete(event).where(event.c.id.in_(unreferenced))).rowcount)


def _counts(**counts: int) -> dict[str, int]:
    """Return the numbers of deleted rows, 0 for kinds not named."""
    return dict.fromkeys(PRUNED_KINDS, 0) | counts
