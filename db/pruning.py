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
from metasched.db.store import StoreError, words

PORTION = 100  # jobs forgotten in one transaction
KINDS = ("jobs", "reservations", "events")
EVENTS = 2000  # likewise events
PAUSE = 0.01  # seconds between transactions, for others to write
MARGINS = 1000  # jobs with a deadline that are kept: later priorities come from them


def turn(connection: Connection) -> int:
    """Wait until nobody else writes, and keep others from it until this transaction ends.

    How many lives of a daemon have begun. SQLite lets one write at a time by itself.
    """
    return int(connection.execute(select(epoch.c.number).with_for_update()).scalar_one())


def prune(engine: Engine, before: float) -> dict[str, int]:
    """Forget all that ended before a time; how many jobs, reservations and events that were.

    StoreError if another program holds the database for too long: what is gone is gone.
    """
    gone = dict.fromkeys(KINDS, 0)
    try:
        with engine.connect() as connection:
            while True:
                with connection.begin():
                    turn(connection)
                    portion = prune_some(connection, before)
                if not any(portion.values()):
                    return gone
                gone = {kind: gone[kind] + portion[kind] for kind in gone}
                time.sleep(PAUSE)
    except DBAPIError as error:
        raise StoreError(
            f"pruning stopped after {gone['jobs']} jobs ({words(error)}); try again"
        ) from None


def prune_some(connection: Connection, before: float) -> dict[str, int]:
    """Forget some jobs all of whose tasks ended before a time, then reservations, then events.

    What an open job depends on stays, and so does the newest job: ids go on from it, and one that
    were given twice would be a tag that a manager may still list, ended.

    Events to which nothing refers go up to the last checkpoint of that time, from which they can
    still be replayed. How many of each are gone: none if nothing is left to forget.
    """
    run = connection.execute
    yardstick = select(job.c.id).where(job.c.margin >= 0).order_by(job.c.id.desc()).limit(MARGINS)
    lately = select(task.c.job).where(
        task.c.job == job.c.id, (task.c.ended.is_(None)) | (task.c.ended >= before)
    )
    waited_for = (
        select(dependency.c.job)
        .join(task, task.c.job == dependency.c.job)
        .where(dependency.c.target == job.c.id, task.c.ended.is_(None))
    )
    old = (
        select(job.c.id, job.c.script, job.c.environment)
        .where(
            job.c.id.in_(select(task.c.job).where(task.c.ended < before)),
            ~lately.exists(),
            ~waited_for.exists(),
            job.c.id.not_in(yardstick),
            job.c.id < select(func.max(job.c.id)).scalar_subquery(),
        )
        .order_by(job.c.id)
        .limit(PORTION)
    )
    if rows := run(old).all():
        ids = [row.id for row in rows]
        for table, column in (
            (change, change.c.job),
            (dependency, dependency.c.job),
            (lease, lease.c.job),
            (attempt, attempt.c.job),
            (task, task.c.job),
            (job, job.c.id),
        ):
            run(delete(table).where(column.in_(ids)))
        texts = {text for row in rows for text in (row.script, row.environment)}
        used = select(job.c.id).where(
            (job.c.script == content.c.digest) | (job.c.environment == content.c.digest)
        )
        run(delete(content).where(content.c.digest.in_(texts), ~used.exists()))
        return _gone(jobs=len(rows))
    if forgotten := reservations.forget_some(connection, before, PORTION):
        return _gone(reservations=forgotten)
    newest = run(select(func.max(checkpoint.c.event)).where(checkpoint.c.time < before)).scalar()
    if newest is None:
        return _gone()
    run(delete(checkpoint).where(checkpoint.c.event < newest))
    told = select(change.c.id).where(change.c.event == event.c.id)
    gone = select(event.c.id).where(event.c.id < newest, ~told.exists()).limit(EVENTS)
    return _gone(events=run(delete(event).where(event.c.id.in_(gone))).rowcount)


def _gone(**many: int) -> dict[str, int]:
    return dict.fromkeys(KINDS, 0) | many
