"""Deletion of old rows in short transactions, beside a daemon that writes.

A pass walks the index of ended tasks, then reservations, keys, audit records, notifications,
tokens, figures of licences and events, each by a cursor: a row that is kept is examined once in a
pass. So its cost grows with the rows that have become old, and with tokens, and neither with their
square nor with the whole history. `PortionSize` bounds for how long others wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, and_, delete, func, select, tuple_
from sqlalchemy.exc import DBAPIError

from metasched.db import (
    audit,
    licence_samples,
    outbox,
    reservations,
    sessions,
    submission_keys,
    task_runs,
)
from metasched.db.job_pages import PLAN_BY_INDEX
from metasched.db.portion_size import PortionSize
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
    limit_mail,
    task,
    task_run,
)
from metasched.db.store import StoreError, driver_message

# Rows of a portion; fewer while these take too long.
TASKS_PER_PORTION = 200  # examined, and deleted
CHANGES_PER_PORTION = 2000  # of a larger job
EVENTS_PER_PORTION = 2000
RESERVATIONS_PER_PORTION = 100
RECORDS_PER_PORTION = 2000  # of the audit, of the outbox, or tokens
PRUNED_KINDS = ("jobs", "reservations", "events")
PAUSE = 0.01  # seconds between transactions, for others to write
MARGINS_KEPT = 1000  # recent jobs with a deadline are kept: later priorities depend on them


_LOCK_EPOCH = select(epoch.c.number).with_for_update()


def lock_epoch(connection: Connection) -> int:
    """Wait for other writers and exclude them until this transaction ends; return the epoch.

    SQLite serialises writers by itself.
    """
    return int(connection.execute(_LOCK_EPOCH).scalar_one())


@contextmanager
def exclude_writers(engine: Engine) -> Iterator[Connection]:
    """Begin a transaction that excludes other writers until it ends. DBAPIError."""
    with engine.connect() as connection, connection.begin():
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.execute(PLAN_BY_INDEX)
            lock_epoch(connection)
        yield connection


def prune(engine: Engine, before: float) -> dict[str, int]:
    """Delete all rows that ended before a time (epoch seconds); return the numbers by kind.

    Raises StoreError if another program locks the database for too long. Portions deleted until
    then stay deleted.
    """
    pruning = PruningPass(before)
    try:
        while pruning.prune_portion(engine):
            time.sleep(PAUSE)
    except DBAPIError as error:
        raise StoreError(
            f"pruning stopped after {pruning.deleted['jobs']} jobs ({driver_message(error)}); "
            "try again"
        ) from None
    return pruning.deleted


class PruningPass:
    """A pass over all rows that ended before a time.

    A job is kept while an open job depends on it. The newest job is kept, since ids continue from
    it: a reused id would repeat a tag that a manager may still list. Events without changes are
    deleted up to the last checkpoint before that time, from which the rest can be replayed.
    """

    def __init__(
        self,
        before: float,
        keys_before: float | None = None,
        audit_before: float | None = None,
        now: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Times are epoch seconds; None: those rows are not deleted.

        `keys_before`: creation of submission keys. `audit_before`: audit records. `now`: the
        present time, for tokens that ended, notifications that were delivered or given up, and
        figures of licences.
        `clock` returns seconds.
        """
        self._clock = clock
        self._size = PortionSize()
        self._before, self._keys_before = before, keys_before
        self._audit_before, self._now = audit_before, now
        self.deleted = dict.fromkeys(PRUNED_KINDS, 0)
        self._last_task = (0.0, 0)  # end and job of the last task examined
        self._last_reservation = 0  # the last examined
        self._last_token = 0  # the last examined
        self._last_event = -1  # the last event examined
        self._newest_job: int | None = None  # at the first portion
        self._oldest_margin = 0  # the oldest job that is kept for its deadline, 0: all are
        self._phases = [
            self._prune_jobs,
            self._prune_reservations,
            self._prune_keys,
            self._prune_audit,
            self._prune_outbox,
            self._prune_tokens,
            self._prune_samples,
            self._prune_events,
        ]

    def prune_portion(self, engine: Engine) -> bool:
        """Delete a portion in a transaction; return False if nothing remains. Raises DBAPIError."""
        while self._phases:
            with exclude_writers(engine) as connection:
                begun = self._clock()
                has_more = self._phases[0](connection)
            self._size.note(self._clock() - begun)
            if has_more:
                return True
            del self._phases[0]
        return False

    def _prune_jobs(self, connection: Connection) -> bool:
        """Delete jobs whose tasks ended before the time; return False at the end of the index."""
        most, position = self._size.rows(TASKS_PER_PORTION), tuple_(task.c.ended, task.c.job)
        ended = connection.execute(
            select(task.c.ended, task.c.job)
            .where(task.c.ended < self._before, position > self._last_task)
            .order_by(task.c.ended, task.c.job)
            .limit(most)
        ).all()
        if not ended:
            return False
        planned: list[Any] = []
        examined, size = len(ended), 0
        for row in self._prunable(connection, list(dict.fromkeys(row.job for row in ended))):
            size += 1 if row.array is None else len(_first_tasks(connection, row.id, most + 1))
            if size > most:
                if not planned:
                    _delete_part(connection, row.id, most, self._size.rows(CHANGES_PER_PORTION))
                    return True
                examined = next(n for n, end in enumerate(ended) if end.job == row.id)
                break
            planned.append(row)
        _delete_jobs(connection, planned)
        self.deleted["jobs"] += len(planned)
        self._last_task = (ended[examined - 1].ended, ended[examined - 1].job)
        return True

    def _prunable(self, connection: Connection, job_ids: list[int]) -> list[Any]:
        """Return rows (id, array, script, environment) of those jobs that may be deleted.

        They have the order of `job_ids`.
        """
        if self._newest_job is None:
            self._newest_job = connection.execute(select(func.max(job.c.id))).scalar_one()
            margins = select(job.c.id).where(job.c.margin >= 0).order_by(job.c.id.desc())
            last = connection.execute(margins.offset(MARGINS_KEPT - 1).limit(1)).scalar()
            self._oldest_margin = 0 if last is None else last
        has_recent_task = select(task.c.job).where(
            task.c.job == job.c.id, (task.c.ended.is_(None)) | (task.c.ended >= self._before)
        )
        has_recent_run = task_runs.has_recent(job.c.id, self._before)
        has_open_dependent = (
            select(dependency.c.job)
            .join(task, task.c.job == dependency.c.job)
            .where(dependency.c.target == job.c.id, task.c.ended.is_(None))
        )
        rows = connection.execute(
            select(job.c.id, job.c.array, job.c.script, job.c.environment).where(
                job.c.id.in_(job_ids),
                ~has_recent_task.exists(),
                ~has_recent_run,
                ~has_open_dependent.exists(),
                job.c.margin.is_(None) | (job.c.margin < 0) | (job.c.id < self._oldest_margin),
                job.c.id < self._newest_job,
            )
        ).all()
        order = {id: position for position, id in enumerate(job_ids)}
        return sorted(rows, key=lambda row: order[row.id])

    def _prune_reservations(self, connection: Connection) -> bool:
        last, count = reservations.prune_batch(
            connection,
            self._before,
            self._last_reservation,
            self._size.rows(RESERVATIONS_PER_PORTION),
        )
        self.deleted["reservations"] += count
        self._last_reservation = last or self._last_reservation
        return last is not None

    def _prune_keys(self, connection: Connection) -> bool:
        if self._keys_before is None:
            return False
        return submission_keys.prune_batch(connection, self._keys_before) > 0

    def _prune_audit(self, connection: Connection) -> bool:
        if self._audit_before is None:
            return False
        most = self._size.rows(RECORDS_PER_PORTION)
        return audit.prune_batch(connection, self._audit_before, most) > 0

    def _prune_outbox(self, connection: Connection) -> bool:
        if self._now is None:
            return False
        most = self._size.rows(RECORDS_PER_PORTION)
        return outbox.prune_batch(connection, self._now, most) > 0

    def _prune_tokens(self, connection: Connection) -> bool:
        if self._now is None:
            return False
        most = self._size.rows(RECORDS_PER_PORTION)
        last = sessions.prune_batch(connection, self._now, self._last_token, most)
        self._last_token = last or self._last_token
        return last is not None

    def _prune_samples(self, connection: Connection) -> bool:
        """Delete figures of licences before the time, or when they are as old as they get."""
        oldest = self._before
        if self._now is not None:
            oldest = max(oldest, self._now - licence_samples.KEPT)
        most = self._size.rows(RECORDS_PER_PORTION)
        return licence_samples.prune_batch(connection, oldest, most) > 0

    def _prune_events(self, connection: Connection) -> bool:
        """Delete events without changes before the last checkpoint that is old enough."""
        newest_checkpoint = connection.execute(
            select(func.max(checkpoint.c.event)).where(checkpoint.c.time < self._before)
        ).scalar()
        if newest_checkpoint is None:
            return False
        connection.execute(delete(checkpoint).where(checkpoint.c.event < newest_checkpoint))
        examined = connection.execute(
            select(event.c.id)
            .where(event.c.id > self._last_event, event.c.id < newest_checkpoint)
            .order_by(event.c.id)
            .limit(self._size.rows(EVENTS_PER_PORTION))
        ).scalars()
        ids = list(examined)
        if not ids:
            return False
        first, self._last_event = self._last_event, ids[-1]
        has_change = select(change.c.id).where(change.c.event == event.c.id)
        unreferenced = delete(event).where(
            event.c.id > first, event.c.id <= self._last_event, ~has_change.exists()
        )
        self.deleted["events"] += connection.execute(unreferenced).rowcount
        return True


def _delete_jobs(connection: Connection, rows: Sequence[Any]) -> None:
    """Delete jobs with all that belongs to them, and texts that no other job has."""
    ids = [row.id for row in rows]
    for table, column in (
        (change, change.c.job),
        (dependency, dependency.c.job),
        (lease, lease.c.job),
        (limit_mail, limit_mail.c.job),
        (attempt, attempt.c.job),
        (task, task.c.job),
        (task_run, task_run.c.job),
        (job, job.c.id),
    ):
        connection.execute(delete(table).where(column.in_(ids)))
    texts = {text for row in rows for text in (row.script, row.environment)}
    # each by its index: PostgreSQL would scan the table for either of two columns
    users = [
        select(job.c.id).where(column == content.c.digest).exists()
        for column in (job.c.script, job.c.environment)
    ]
    unused = and_(*(~user for user in users))
    connection.execute(delete(content).where(content.c.digest.in_(texts), unused))


def _first_tasks(connection: Connection, job_id: int, most: int) -> Sequence[int]:
    """Return the lowest `most` indices of a job's tasks."""
    indices = select(task.c.task_index).where(task.c.job == job_id).order_by(task.c.task_index)
    return connection.execute(indices.limit(most)).scalars().all()


def _delete_part(connection: Connection, job_id: int, tasks: int, changes: int) -> None:
    """Delete a portion of a large array: its story first, then tasks, lowest indices first."""
    story = select(change.c.id).where(change.c.job == job_id).order_by(change.c.id)
    first = connection.execute(story.limit(changes)).scalars().all()
    if first:
        connection.execute(delete(change).where(change.c.job == job_id, change.c.id <= first[-1]))
        return
    last = _first_tasks(connection, job_id, tasks)[-1]
    for table in (lease, limit_mail, attempt, task):
        connection.execute(delete(table).where(table.c.job == job_id, table.c.task_index <= last))
