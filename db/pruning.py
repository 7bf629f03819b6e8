"""Pruning the database, which may be done while a daemon writes; taking turns at that."""

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

JOBS_PER_TRANSACTION = 100  # jobs forgotten in one transaction
PRUNED_KINDS = ("jobs", "reservations", "events")
EVENTS_PER_TRANSACTION = 2000  # likewise events
PAUSE = 0.01  # seconds between transactions, for others to write
MARGINS_KEPT = 1000  # jobs with a deadline that are kept: later priorities come from them


def lock_epoch(connection: Connection) -> int:
    """Wait until nobody else writes, and keep others from it until this transaction ends.

    How many lives of a daemon have begun. SQLite lets one write at a time by itself.
    """
    return int(connection.execute(select(epoch.c.number).with_for_update()).scalar_one())


def prune(engine: Engine, before: float) -> dict[str, int]:
    """Forget all that ended before a time; how many jobs, reservations and events that were.

    StoreError if another program holds the database for too long: what is gone is gone.
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
    """Forget some jobs all of whose tasks ended before a time, then reservations, then events.

    What an open job depends on stays, and so does the newest job: ids go on from it, and one that
    were given twice would be a tag that a manager may still list, ended.

    Events to which nothing refers go up to the last checkpoint of that time, from which they can
    still be replayed. How many of each are gone: none if nothing is left to forget.
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
    return dict.fromkeys(PRUNED_KINDS, 0) | counts
