"""Backing up, checking and pruning the database; all of it may be done while a daemon writes."""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from pathlib import Path

from sqlalchemy import Connection, Engine, delete, func, select
from sqlalchemy.exc import DBAPIError

from metasched.db.schema import (
    attempt,
    change,
    checkpoint,
    content,
    dependency,
    event,
    job,
    lease,
    task,
)
from metasched.db.store import StoreError
from metasched.transitions import LIVE

PORTION = 100  # jobs forgotten in one transaction
EVENTS = 2000  # likewise events
PAUSE = 0.01  # seconds between transactions, for others to write
MARGINS = 1000  # jobs with a deadline that are kept: later priorities come from them


def backup(source: Path, target: Path) -> int:
    """Copy the database at one moment to a new file; its size in bytes.

    SQLite's backup: the daemon goes on writing. The copy has an instance of its own, so that a
    daemon started on it gives no tag a second time; what was with a manager then can no longer be
    proved absent there, and stays unknown until it is resolved. StoreError if either file cannot
    be used.
    """
    if not source.is_file():
        raise StoreError(f"no database {source}; start the daemon once, or name its configuration")
    try:
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise StoreError(f"{target} is there already; name a new file") from None
    except OSError as error:
        raise StoreError(f"{target}: {error.strerror}; name a file you can write") from None
    try:
        snapshot(source, target)
        with sqlite3.connect(target, isolation_level=None) as copy:
            copy.execute("BEGIN")
            copy.execute(
                "INSERT INTO instance (name, created) VALUES (?, ?)",
                (secrets.token_hex(4), time.time()),
            )
            live = ", ".join("?" * len(LIVE))
            copy.execute(f"UPDATE attempt SET sent = 0 WHERE state IN ({live})", sorted(LIVE))
            copy.execute("COMMIT")
            copy.execute("PRAGMA journal_mode = DELETE")  # one file is the whole copy
        copy.close()
    except (sqlite3.Error, StoreError) as error:
        target.unlink()
        raise StoreError(f"{target}: not written ({error}); see that there is room") from None
    return target.stat().st_size


def snapshot(source: Path, target: Path) -> None:
    """Copy the database as it is at one moment, all in one read transaction. sqlite3.Error."""
    reading = sqlite3.connect(f"file:{source}?mode=ro", uri=True)
    writing = sqlite3.connect(target)
    try:
        reading.execute("PRAGMA busy_timeout = 5000")
        reading.backup(writing)
    finally:
        writing.close()
        reading.close()


def prune(engine: Engine, before: float) -> dict[str, int]:
    """Forget all that ended before a time; how many jobs and events that were.

    StoreError if another program holds the database for too long: what is gone is gone.
    """
    gone = {"jobs": 0, "events": 0}
    try:
        with engine.connect() as connection:
            while True:
                with connection.begin():
                    portion = prune_some(connection, before)
                if not any(portion.values()):
                    return gone
                gone = {kind: gone[kind] + portion[kind] for kind in gone}
                time.sleep(PAUSE)
    except DBAPIError as error:
        raise StoreError(
            f"pruning stopped after {gone['jobs']} jobs ({error.orig}); try again"
        ) from None


def prune_some(connection: Connection, before: float) -> dict[str, int]:
    """Forget some jobs all of whose tasks ended before a time, then events nothing refers to.

    What an open job depends on stays.

    Events go up to the last checkpoint of that time, from which they can still be replayed.
    How many of each are gone: none if nothing is left to forget.
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
        return {"jobs": len(rows), "events": 0}
    newest = run(select(func.max(checkpoint.c.event)).where(checkpoint.c.time < before)).scalar()
    if newest is None:
        return {"jobs": 0, "events": 0}
    run(delete(checkpoint).where(checkpoint.c.event < newest))
    told = select(change.c.id).where(change.c.event == event.c.id)
    gone = select(event.c.id).where(event.c.id < newest, ~told.exists()).limit(EVENTS)
    return {"jobs": 0, "events": run(delete(event).where(event.c.id.in_(gone))).rowcount}
