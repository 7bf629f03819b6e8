"""The ledger: all writes to the database. A single thread writes.

`add_to_group` joins the open group, which `commit_group` stores (`writer`). Every other method is a
transaction of its own, after the group.

A daemon begins with `restore`, which increments the stored epoch. Every transaction locks the
epoch and compares it with the daemon's own. This serialises writers on any database, and a
daemon that lost its place to a newer daemon can store nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs
from sqlalchemy import Connection, Engine, bindparam, delete, insert, or_, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from metasched.core.audit_trail import AuditTrail
from metasched.core.dependency_status import TargetSummary
from metasched.core.events import (
    ClockSet,
    ClusterDrained,
    ClusterResumed,
    CoreEvent,
    DaemonStarted,
    JobModified,
    JobSubmitted,
    ListingReceived,
    Outcome,
)
from metasched.core.scheduler import DECISION_VERSION, Core
from metasched.core.tasks import Intent, PastAttempt, Task
from metasched.core.transitions import TaskEvent
from metasched.db import (
    audit,
    calendar,
    daily_use,
    dependency_targets,
    leases,
    licence_samples,
    limit_uses,
    outbox,
    policy_versions,
    recovery,
    reservations,
    sessions,
    shadows,
    share_uses,
    strikes,
    submission_keys,
    task_runs,
    tuning,
)
from metasched.db.bulk_rows import insert_rows
from metasched.db.cluster_info import changed_fields
from metasched.db.instances import (
    FirstIds,
    Identity,
    mark_as_backup,
    read_first_ids,
    read_identity,
    read_key,
    store_name,
)
from metasched.db.job_pages import TaskSelector
from metasched.db.job_rows import (
    UPDATE_ATTEMPT,
    UPDATE_PAST_ATTEMPT,
    UPDATE_TASK,
    attempt_row,
    bind_values,
    new_task_row,
    task_row,
)
from metasched.db.marks import LastStored, Mark, present_mark
from metasched.db.outbox import Mail, NotificationRules, Outbox, PendingNotices
from metasched.db.period_use import PeriodPass
from metasched.db.pruning import PruningPass, exclude_writers, lock_epoch
from metasched.db.queries import ALL_IN_USE
from metasched.db.schema import (
    attempt,
    change,
    checkpoint,
    cluster,
    content,
    dependency,
    digest,
    drain,
    epoch,
    event,
    job,
    listing_cursor,
    task,
    token,
)
from metasched.db.schema import outbox as outbox_table
from metasched.db.store import (
    DatabaseInUse,
    StorageFailed,
    StoreError,
    WriterLock,
    driver_message,
)
from metasched.db.submission_keys import Receipt, SubmissionKey
from metasched.db.task_numbers import replace_numbers
from metasched.db.writer import Writer
from metasched.model.arrays import parse_array
from metasched.model.audit import AuditKind, AuditRecord, cleaned
from metasched.model.cluster import ClusterInfo
from metasched.model.dependencies import DependencyTarget, parse_dependency
from metasched.model.job import Job, Payload
from metasched.model.job_usage import EndedRun, RunUsage
from metasched.model.licence import LicenceSample
from metasched.model.notice import DeliveryState, Notice
from metasched.model.policy_version import PolicyVersion
from metasched.model.shadow import Shadow, ShadowDecision
from metasched.model.token_scope import OPENED_SESSIONS, TokenScope
from metasched.times.active_until import boot_time

log = logging.getLogger("metasched")

_OPENING_EVENTS = (TaskEvent.SEND, TaskEvent.RESTART, TaskEvent.ADOPT)  # each opens an attempt

# Statements of each request: to build them takes longer than to execute them
_STORED_DIGESTS = select(content.c.digest).where(
    content.c.digest.in_(bindparam("digests", expanding=True))
)
_INSERT_CONTENT, _INSERT_JOB = insert(content), insert(job)
_INSERT_EVENT, _INSERT_ATTEMPT = insert(event), insert(attempt)

# Events since the last checkpoint, after which the next start of the daemon stores another.
# The first start, and that of a release that decides otherwise, always store a checkpoint.
CHECKPOINT_AFTER = 50_000


@dataclass(frozen=True, kw_only=True)
class StoredJob:
    """A new job with its payload. Texts are stored once, by digest."""

    job: Job
    script: str  # digest of the script
    environment: str  # digest of the environment
    payload: Payload  # without script and environment


def encode(value: Any) -> str:
    """Encode a value as JSON."""
    return msgspec.json.encode(value).decode()


def _ignore_records(_: Sequence[AuditRecord]) -> None:
    """Nobody is to learn of audit records."""


def _token_record(kind: AuditKind, id: int, actor: str, owner: str, now: float) -> AuditRecord:
    return cleaned(AuditRecord(time=now, kind=kind, actor=actor, owner=owner, cause=f"token {id}"))


class Ledger(Writer):
    """The writer of the database. Any method raises StorageFailed if nothing was stored."""

    def __init__(
        self,
        engine: Engine,
        writer_lock: WriterLock | None = None,
        first_id: int = 1,
        mark_path: Callable[[str], Path] | None = None,
    ) -> None:
        """`first_id` is the lowest id of a new job.

        `mark_path` returns the file of the mark, given the first name of the database; None: it
        has no mark.
        """
        super().__init__(engine, writer_lock)
        self._last_stored = LastStored(mark_path)
        self._names: tuple[str, ...] = ()  # of the database, oldest first
        self._first_ids = FirstIds()  # stored with the name of a restored database
        self._next_dispatch = 0  # above all dispatch ids
        self._server = ""  # identifier and timeline of the database's server
        # (id, time) of the last event: of the open transaction, and of those that are stored
        self._group_event: tuple[int, float] | None = None
        self._stored_event = (0, 0.0)
        # how it was noticed that the database went back, and ids above those issued since
        self._went_back, self._lost_ids = "", FirstIds()
        self._first_id = first_id
        self._next_event = self._next_job = self._next_reservation = 0
        self._stored_infos: dict[str, ClusterInfo] = {}  # base of the next difference, by cluster
        self._lasting_infos: dict[str, str] = {}  # as in the table `cluster`
        self._cursors: dict[str, str] = {}  # as in the table `listing_cursor`
        self._pending_checkpoint: bytes | None = None  # stored with the next DaemonStarted
        self._policy_number: int | None = None  # version of the policy in force
        self._audit_trail, self._last_audit = AuditTrail(), 0
        # of the open transaction: records without a line in the log, and whether there are others
        self._new_records: list[AuditRecord] = []
        self._has_logged_records = False
        # called after the commit of audit records, with those that have no line in the log yet
        self.on_audit: Callable[[Sequence[AuditRecord]], None] = _ignore_records
        self._outbox, self._has_new_notices = Outbox(), False
        self.on_notices: Callable[[], None] = lambda: None  # called after the commit of notices

    def acquire_lock(self) -> None:
        """Check before `restore` that the database answers and no other daemon is active on it.

        Raises DatabaseInUse if another daemon is active, StorageFailed if the database does not
        answer, which may take seconds. May be called from any thread.
        """
        try:
            self._writer_lock.acquire()
        except DatabaseInUse:
            raise
        except StoreError as error:
            raise StorageFailed(str(error)) from error
        self._lost = None

    def check_active(self) -> None:
        """Check that the database answers and that this daemon is still active."""
        asked = boot_time()
        self._writer_lock.require_place()
        with self._transaction():
            if not self._writer_lock.held or self._stored_epoch() != self._daemon_epoch:
                raise StorageFailed("another daemon may be active on it")
        self._writer_lock.confirm(asked)
        self._last_stored.write_soon()

    def _next_free_id(self) -> int:
        """Return the id after those of the newest job and its tasks."""
        query = select(job.c.id, job.c.array).order_by(job.c.id.desc()).limit(1)
        newest = self._connection.execute(query).first()
        if newest is None:
            return 1
        tasks = 1 if newest.array is None else len(parse_array(newest.array).indices)
        return int(newest.id) + tasks

    # Identity

    def identity(self, now: float) -> Identity:
        """Return the random names of this database, used in tags; the first call creates a name."""
        with self._transaction() as connection:
            present = present_mark(connection, self._next_job, self._next_reservation, self._server)
            went_back, first = self._last_stored.compare(connection, present)
            first = first.above(self._lost_ids)
            first_dispatch = max(first.dispatch, present.next_dispatch)
            went_back = went_back or self._went_back
            identity = read_identity(connection, now, went_back, first_dispatch)
        self._next_job, self._next_reservation = first.job, first.reservation
        self._first_ids = first._replace(dispatch=identity.first_dispatches[identity.instance])
        self._next_dispatch = max(present.next_dispatch, self._first_ids.dispatch)
        self._names = tuple(identity.first_dispatches)
        self._stored_event = (present.event, present.time)
        self._last_stored.begin(self._names)
        return identity

    @property
    def next_job_id(self) -> int:
        """The lowest id that no job has."""
        return self._next_job

    def skip_ids(self, lost: FirstIds) -> None:
        """Issue no job id that was issued before the database went back."""
        self._next_job = max(self._next_job, lost.job)

    def note_loss(self, cause: str, lost: FirstIds) -> None:
        """Let the next start take the database for one that went back.

        `lost`: ids above those that were issued after the state of the database.
        """
        self._went_back, self._lost_ids = cause, lost.above(self._lost_ids)

    def replace_task_numbers(
        self, selectors: list[TaskSelector], visible_to: str | None
    ) -> list[TaskSelector]:
        """Return the selectors with tasks in the place of their numbers, if ids are set apart."""
        if self._first_id == 1:
            return selectors
        with self._connect() as connection:
            return replace_numbers(connection, selectors, self._first_id, visible_to)

    def next_job(self, tasks: int) -> int:
        """Return the id of a new job. It takes as many ids as it has tasks: `Job.task_number`."""
        self._next_job += tasks
        return self._next_job - tasks

    @contextmanager
    def kept_ids(self) -> Iterator[None]:
        """Take back the ids of new jobs if the block, which awaits nothing, raises."""
        before = self._next_job
        try:
            yield
        except BaseException:
            self._next_job = before
            raise

    def next_reservation(self) -> int:
        """Return a new id of a reservation, of a series, or of another entry of the calendar."""
        self._next_reservation += 1
        return self._next_reservation - 1

    # Writing

    def record(
        self,
        steps: Sequence[tuple[CoreEvent, Outcome]],
        new_jobs: Sequence[StoredJob] = (),
        texts: Mapping[str, str] | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        """Store what `add_to_group` takes, at once."""
        self.add_to_group(steps, new_jobs, texts, receipt)
        self.commit_group()

    def record_start(
        self, started: DaemonStarted, outcome: Outcome, policy: PolicyVersion | None
    ) -> None:
        """Store a start of the daemon at once, with the policy that it puts in force, if new."""
        with self._join_group() as connection:
            if policy is not None:
                policy_versions.store(connection, policy, self._next_event)
                shadows.end_in_force(connection, policy, started.time)
            self._policy_number = None if policy is None else policy.number
            self.add_to_group([(started, outcome)])
        self.commit_group()
        self._went_back, self._lost_ids = "", FirstIds()  # it is stored

    def add_to_group(
        self,
        steps: Sequence[tuple[CoreEvent, Outcome]],
        new_jobs: Sequence[StoredJob] = (),
        texts: Mapping[str, str] | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        """Add events, their outcomes and new jobs with their texts to the open group.

        `receipt` is the answer to the submission of the jobs, if that has a key. `commit_group`
        stores them. RowsRejected, or any other error than StorageFailed, leaves out these alone.
        """
        with self._join_group() as connection:
            if new_jobs:
                self._insert_jobs(steps, new_jobs, texts or {})
            notices = self._read_notices(connection, steps)
            self._write_steps(steps)
            self._store_notices(lambda: self._outbox.store(connection, notices))
            if receipt is not None:
                submission_keys.store(connection, receipt)
            self._audit(
                connection,
                [record for step in steps for record in self._audit_records(*step)],
            )
        self._group_event = self._next_event - 1, steps[-1][0].time

    def _read_notices(
        self, connection: Connection, steps: Sequence[tuple[CoreEvent, Outcome]]
    ) -> PendingNotices:
        """Return the notices of steps; none after a defect, which must not stop the scheduler."""
        try:
            return self._outbox.read_changes(connection, steps)
        except DBAPIError:
            raise
        except Exception:
            log.exception("steps have no notifications; please report it")
            return PendingNotices()

    def _store_notices(self, store: Callable[[], bool]) -> None:
        """Store notices; leave them out after a defect, which must not stop the scheduler."""
        try:
            self._has_new_notices |= store()
        except DBAPIError:
            raise
        except Exception:
            log.exception("notifications are not stored; please report it")

    def _audit_records(self, event: CoreEvent, outcome: Outcome) -> list[AuditRecord]:
        """Return the records of a step; none after a defect, which must not stop the scheduler."""
        try:
            return self._audit_trail.records(event, outcome)
        except Exception:
            log.exception("a %s has no audit record; please report it", type(event).__name__)
            return []

    def record_notices(
        self,
        records: Sequence[AuditRecord],
        conditions: Iterable[tuple[AuditRecord, str, str]] = (),
    ) -> None:
        """Add audit records that no event causes to the open group, which the caller commits.

        `records` have lines in the log. `conditions`: records with a subject and its condition,
        left out if that is the same.
        """
        with self._join_group():
            self._write_notices(records, conditions)

    def start_shadow(self, shadow: Shadow, record: AuditRecord) -> int:
        """Add a candidate in place of the last candidate to the open group; return its number."""
        with self._join_group() as connection:
            number = shadows.start(connection, shadow)
            self._write_notices([record], ())
        return number

    def stop_shadow(self, shadow: Shadow, record: AuditRecord) -> None:
        """Add to the open group that a candidate has ended."""
        assert shadow.ended is not None
        with self._join_group() as connection:
            shadows.end(connection, shadow.number, shadow.ended, shadow.end_reason)
            self._write_notices([record], ())

    def add_shadow_decisions(self, number: int, decisions: Sequence[ShadowDecision]) -> None:
        """Store decisions of a candidate over a connection of its own.

        May be called from any thread. Raises StorageFailed if nothing was stored.
        """
        with self._own_transaction() as connection:
            shadows.add_decisions(connection, number, decisions)

    def add_licence_samples(self, samples: Sequence[LicenceSample]) -> None:
        """Store figures of licences over a connection of its own.

        May be called from any thread. Raises StorageFailed if nothing was stored.
        """
        with self._own_transaction() as connection:
            licence_samples.store(connection, samples)

    @contextmanager
    def _own_transaction(self) -> Iterator[Connection]:
        """Begin a writing transaction beside that of the scheduler. StorageFailed."""
        try:
            with self._engine.connect() as connection, connection.begin():
                if connection.dialect.name == "sqlite":
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                yield connection
        except DBAPIError as error:
            raise StorageFailed(driver_message(error)) from error
        except PoolTimeout as error:
            raise StorageFailed(ALL_IN_USE) from error

    def _write_notices(
        self,
        records: Sequence[AuditRecord],
        conditions: Iterable[tuple[AuditRecord, str, str]],
    ) -> None:
        changed = [
            cleaned(record)
            for record, subject, value in conditions
            if self._audit_trail.changes(subject, value)
        ]
        self._audit(self._connection, changed)
        if records:
            self._last_audit = audit.store(self._connection, records, self._last_audit)
            self._store_notices(lambda: self._outbox.add_records(self._connection, records))
            self._has_logged_records = True

    def audit_condition(self, subject: str) -> str:
        """Return the condition last recorded of a subject; see `AuditTrail`."""
        return self._audit_trail.condition(subject)

    def _audit(self, connection: Connection, records: Sequence[AuditRecord]) -> None:
        """Store audit records and the conditions that changed in the caller's transaction."""
        self._last_audit = audit.store(connection, records, self._last_audit)
        audit.store_conditions(connection, self._audit_trail.take_changed())
        self._store_notices(lambda: self._outbox.add_records(connection, records))
        self._new_records += records

    def _forget_failed(self) -> None:
        self._new_records, self._has_logged_records = [], False
        self._has_new_notices = False
        self._group_event = None

    def _note_commit(self) -> None:
        records, has_logged = self._new_records, self._has_logged_records
        has_notices = self._has_new_notices
        if self._group_event is not None:
            self._stored_event = self._group_event
            self._last_stored.note(self._mark())
        self._forget_failed()
        if has_notices:
            self.on_notices()
        if records or has_logged:
            self.on_audit(records)

    def _mark(self) -> Mark:
        """Return the mark of what is stored."""
        event_id, event_time = self._stored_event
        return Mark(
            names=self._names,
            event=event_id,
            time=event_time,
            next_job=self._next_job,
            next_reservation=self._next_reservation,
            next_dispatch=self._next_dispatch,
            server=self._server,
        )

    def write_mark(self) -> None:
        """Write the mark of what is stored, before this daemon ends."""
        self._last_stored.close()

    def find_submission(self, key: SubmissionKey, after: float) -> tuple[str, Any] | None:
        """Return digest of the body and answer of the submission with a key, or None.

        Submissions before `after` (epoch seconds) do not count.
        """
        with self._read() as connection:
            return submission_keys.find(connection, key, after)

    def _write_steps(self, steps: Sequence[tuple[CoreEvent, Outcome]]) -> None:
        """Store events and outcomes in the caller's transaction."""
        execute = self._connection.execute
        event_rows, change_rows, cluster_rows = [], [], []
        tasks: dict[tuple[int, int], Task] = {}
        new_tasks: set[tuple[int, int]] = set()
        attempts: dict[tuple[int, int, int], dict[str, Any]] = {}
        new_attempts: set[tuple[int, int, int]] = set()
        past: dict[tuple[int, int, int], PastAttempt] = {}
        for core_event, outcome in steps:
            event_id, self._next_event = self._next_event, self._next_event + 1
            event_rows.append(
                {
                    "id": event_id,
                    "time": core_event.time,
                    "kind": type(core_event).__name__,
                    "data": self._encode_event(core_event),
                }
            )
            if isinstance(core_event, DaemonStarted) and self._pending_checkpoint is not None:
                execute(
                    insert(checkpoint).values(
                        event=event_id,
                        time=core_event.time,
                        data=self._pending_checkpoint,
                        decision_version=DECISION_VERSION,
                    )
                )
                self._pending_checkpoint = None
            if isinstance(core_event, DaemonStarted) and core_event.restored:
                store_name(
                    self._connection,
                    core_event.instance,
                    core_event.time,
                    self._first_ids,
                    core_event.went_back,
                )
            if isinstance(core_event, JobModified):
                self._modify(core_event, outcome)
            if isinstance(core_event, ClusterDrained | ClusterResumed):
                execute(delete(drain).where(drain.c.cluster == core_event.cluster))
            if isinstance(core_event, ClusterDrained):
                execute(insert(drain), structs.asdict(core_event))
            if isinstance(core_event, ListingReceived) and core_event.info is not None:
                encoded_info = encode(core_event.info.without_load)
                if self._lasting_infos.get(core_event.cluster) != encoded_info:
                    cluster_rows.append(
                        {"name": core_event.cluster, "info": encoded_info, "time": core_event.time}
                    )
                    self._lasting_infos[core_event.cluster] = encoded_info
            if isinstance(core_event, ListingReceived):
                self._store_cursor(core_event)
            for task_change in outcome.changes:
                key = (task_change.job, task_change.index)
                is_run = task_change.run_last is not None
                if task_change.before is None and task_change.event is None and not is_run:
                    new_tasks.add(key)
                if task_change.event in _OPENING_EVENTS:
                    new_attempts.add((*key, task_change.attempt))
                change_rows.append(
                    {
                        "event": event_id,
                        "time": core_event.time,
                        "job": task_change.job,
                        "task_index": task_change.index,
                        "attempt": task_change.attempt,
                        "task_event": task_change.event,
                        "before": task_change.before,
                        "after": task_change.after,
                        "cluster": task_change.cluster,
                        "reason": task_change.reason,
                        "cause": task_change.cause,
                        "run_last": task_change.run_last,
                        "run_step": task_change.run_step if is_run else None,
                    }
                )
            tasks |= outcome.tasks
            new_tasks |= outcome.split_tasks
            for changed_task, ended in outcome.closed_attempts:
                key = (changed_task.job.id, changed_task.index)
                attempts[*key, ended.number] = attempt_row(changed_task, ended)
                past.pop((*key, ended.dispatch_id), None)  # superseded by the full row
            past |= outcome.past_attempts
            for key, changed_task in outcome.tasks.items():
                if changed_task.attempt is not None:
                    past.pop((*key, changed_task.attempt.dispatch_id), None)  # live again
        for key, changed_task in tasks.items():
            if (live := changed_task.attempt) is not None:
                attempts[*key, live.number] = attempt_row(changed_task, live)
        execute(_INSERT_EVENT, event_rows)
        task_runs.store(self._connection, steps)
        tuning.store(self._connection, self._next_event - len(steps), steps)
        if new_rows := [new_task_row(new) for key, new in tasks.items() if key in new_tasks]:
            insert_rows(self._connection, task, new_rows)
        if updates := [
            bind_values(task_row(changed)) for key, changed in tasks.items() if key not in new_tasks
        ]:
            execute(UPDATE_TASK, updates)
        # ended attempts first: a task must never have two live attempts
        if updates := [bind_values(r) for key, r in attempts.items() if key not in new_attempts]:
            execute(UPDATE_ATTEMPT, updates)
        if new_rows := [row for key, row in attempts.items() if key in new_attempts]:
            execute(_INSERT_ATTEMPT, new_rows)
            highest = max(row["dispatch_id"] for row in new_rows)
            self._next_dispatch = max(self._next_dispatch, highest + 1)
        if updates := [
            bind_values(
                {
                    "job": job_id,
                    "task_index": index,
                    "dispatch_id": dispatch_id,
                    "has_started": past_attempt.has_started,
                    "revoked": past_attempt.revoked,
                    "intent": Intent.REQUEUE if past_attempt.requeued else None,
                }
            )
            for (job_id, index, dispatch_id), past_attempt in past.items()
        ]:
            execute(UPDATE_PAST_ATTEMPT, updates)
        # in event order: a reservation is checked against the licence total of its time
        for core_event, outcome in steps:
            if isinstance(core_event, ClockSet):
                leases.shift_clock(self._connection, core_event)
            leases.store(self._connection, outcome)
            reservations.store(self._connection, [outcome])
        calendar.store(self._connection, [outcome for _, outcome in steps])
        limit_uses.store(self._connection, [outcome for _, outcome in steps])
        share_uses.store(self._connection, steps)
        strikes.store(self._connection, [outcome for _, outcome in steps])
        daily_use.store(self._connection, steps)
        insert_rows(self._connection, change, change_rows)
        for row in cluster_rows:
            statement = update(cluster).where(cluster.c.name == row["name"]).values(row)
            if not execute(statement).rowcount:
                execute(insert(cluster), row)

    def _store_cursor(self, listing: ListingReceived) -> None:
        """Store the cursor of a listing if it has moved."""
        name, position = listing.cluster, listing.cursor
        if position and position != self._cursors.get(name):
            statement = update(listing_cursor).where(listing_cursor.c.cluster == name)
            if not self._connection.execute(statement.values(cursor=position)).rowcount:
                self._connection.execute(
                    insert(listing_cursor).values(cluster=name, cursor=position)
                )
            self._cursors[name] = position

    def _encode_event(self, core_event: CoreEvent) -> str:
        """Encode an event; of cluster information only the difference from the last is stored."""
        if not isinstance(core_event, ListingReceived) or core_event.info is None:
            return encode(core_event)
        before = self._stored_infos.get(core_event.cluster)
        self._stored_infos[core_event.cluster] = core_event.info
        if before is None:
            return encode(core_event)
        fields = msgspec.to_builtins(structs.replace(core_event, info=None))
        return encode({**fields, "changed": changed_fields(before, core_event.info)})

    def _insert_jobs(
        self,
        steps: Sequence[tuple[CoreEvent, Outcome]],
        new_jobs: Sequence[StoredJob],
        texts: Mapping[str, str],
    ) -> None:
        """Insert new jobs, those of their texts that are not stored yet, and their dependencies."""
        execute = self._connection.execute
        stored_digests = set(execute(_STORED_DIGESTS, {"digests": list(texts)}).scalars())
        if rows := [
            {"digest": text_digest, "text": content_text}
            for text_digest, content_text in texts.items()
            if text_digest not in stored_digests
        ]:
            execute(_INSERT_CONTENT, rows)
        outcomes = {
            core_event.job.id: outcome
            for core_event, outcome in steps
            if isinstance(core_event, JobSubmitted)
        }
        execute(
            _INSERT_JOB,
            [
                {
                    "id": new_job.job.id,
                    "user": new_job.job.user,
                    "name": new_job.job.name,
                    "submitted": new_job.job.submitted,
                    "margin": new_job.job.margin,
                    "array": new_job.job.array,
                    "priority": outcomes[new_job.job.id].priority,
                    "priority_parts": encode(
                        [part._asdict() for part in outcomes[new_job.job.id].priority_parts]
                    ),
                    "spec": encode(new_job.job),
                    "script": new_job.script,
                    "environment": new_job.environment,
                    "payload": encode(new_job.payload),
                    "policy_version": self._policy_number,
                }
                for new_job in new_jobs
            ],
        )
        dependencies = {
            submitted.job.id: parse_dependency(submitted.job.dependency)
            for submitted in new_jobs
            if submitted.job.dependency
        }
        if targets := [
            {"job": id, "target": target}
            for id, job_dependency in dependencies.items()
            for target in sorted({target.job for target in job_dependency.targets})
        ]:
            execute(insert(dependency), targets)

    def _modify(self, modification: JobModified, outcome: Outcome) -> None:
        """Store a job as modified, beside the job as submitted.

        Attempts so far, which are all stored, keep the account of their dispatch.
        """
        daily_use.keep_account(self._connection, modification.job)
        self._connection.execute(
            update(job)
            .where(job.c.id == modification.job.id)
            .values(
                modified_spec=encode(modification.job),
                name=modification.job.name,
                priority=outcome.priority,
                priority_parts=encode([part._asdict() for part in outcome.priority_parts]),
                policy_version=self._policy_number,
            )
        )

    def add_token(
        self,
        user: str,
        secret: str,
        now: float,
        expires: float,
        scope: TokenScope = TokenScope.USER,
    ) -> int:
        """Store the hash of a user's new token and return the token's id."""
        with self._write_transaction() as connection:
            id = self._highest(token.c.id) + 1
            row = {"id": id, "user": user, "digest": digest(secret), "scope": scope.value}
            connection.execute(insert(token).values(**row, created=now, expires=expires))
            self._audit(connection, [_token_record(AuditKind.TOKEN_CREATED, id, user, user, now)])
        return id

    def open_session(self, opener: str, secret: str, now: float, lifetime: float) -> str | None:
        """Store the hash of a new session of a browser; return its user.

        `opener` is the secret of a one-time link, which is used up, or of a user's token.
        None, and nothing is stored, unless it is valid at `now` (epoch seconds). TooManySignIns if
        the user signs in too often. Of too many sessions the oldest end.
        """
        with self._write_transaction() as connection:
            valid = select(token).where(
                token.c.digest == digest(opener), token.c.expires > now, token.c.revoked.is_(None)
            )
            opened_by = connection.execute(valid).first()
            scope = opened_by and OPENED_SESSIONS.get(TokenScope(opened_by.scope))
            if opened_by is None or scope is None:
                return None
            user: str = opened_by.user
            sessions.check_pace(connection, user, scope.value, now)
            is_link = scope is TokenScope.SESSION
            expires = now + lifetime if is_link else min(now + lifetime, opened_by.expires)
            if is_link:
                used = update(token).where(token.c.id == opened_by.id)
                connection.execute(used.values(revoked=now))
            session_id = self._highest(token.c.id) + 1
            session = {
                "id": session_id,
                "user": user,
                "digest": digest(secret),
                "created": now,
                "expires": expires,
                "scope": scope.value,
                "parent": None if is_link else opened_by.id,
            }
            connection.execute(insert(token).values(**session))
            ended = sessions.end_oldest(connection, user, scope.value, now)
            kinds = [(AuditKind.TOKEN_CREATED, session_id)]
            kinds += [(AuditKind.TOKEN_REVOKED, id) for id in ended]
            records = [_token_record(kind, id, user, user, now) for kind, id in kinds]
            self._audit(connection, records)
        return user

    def close_session(self, secret: str, now: float) -> None:
        """Revoke the session of a browser that signs out."""
        with self._connect() as connection:
            of_secret = select(token.c.id, token.c.user).where(token.c.digest == digest(secret))
            session = connection.execute(of_secret).first()
        if session is not None:
            self.revoke_token(session.id, now, session.user)

    def revoke_token(self, id: int, now: float, by: str) -> None:
        """Revoke a token, and the sessions that it opened, on behalf of a user.

        An earlier revocation keeps its time.
        """
        query = update(token).where(
            or_(token.c.id == id, token.c.parent == id), token.c.revoked.is_(None)
        )
        with self._write_transaction() as connection:
            owner = connection.execute(select(token.c.user).where(token.c.id == id)).scalar()
            if connection.execute(query.values(revoked=now)).rowcount:
                record = _token_record(AuditKind.TOKEN_REVOKED, id, by, owner or "", now)
                self._audit(connection, [record])

    def mark_notified(self, id: int, now: float) -> None:
        """Store that the owner of a broken reservation has been notified."""
        with self._write_transaction() as connection:
            reservations.mark_notified(connection, id, now)

    # Notifications

    def open_outbox(self, rules: NotificationRules, now: float, *, restored: bool) -> None:
        """Take over the rules of notifications, and settle interrupted deliveries."""
        with self._write_transaction() as connection:
            records = self._outbox.open(connection, rules, now, restored=restored)
            self._audit(connection, records)

    def queue_broken_reservations(self, since: float, now: float) -> None:
        """Store a mail to each owner of a reservation that broke since then, once."""
        with self._write_transaction() as connection:
            mails = []
            for broken in reservations.unnotified(connection, since):
                notice = Notice(
                    kind=AuditKind.RESERVATION_BROKEN.value,
                    time=now,
                    user=broken.user,
                    reservation=broken.id,
                )
                mails.append(Mail(broken.user, broken.mail or broken.user, notice))
                reservations.mark_notified(connection, broken.id, now)
            self._outbox.add_mails(connection, mails)

    def queue_limit_mails(self, mails: Iterable[Mail]) -> None:
        """Add to the open group mails about shares of time limits; each is stored once."""
        with self._join_group() as connection:
            self._store_notices(lambda: self._outbox.add_limit_mails(connection, mails))

    def mark_sending(self, id: int) -> tuple[Notice, ...]:
        """Add to the open group that a mail is being sent; after a crash it is not sent again.

        Return its notices; empty: it was given up.
        """
        with self._join_group() as connection:
            return outbox.mark_sending(connection, id)

    def mark_delivered(self, id: int, now: float) -> None:
        """Add to the open group that a row of the outbox was delivered."""
        with self._join_group() as connection:
            outbox.mark_delivered(connection, id, now)

    def mark_tried(self, id: int, due: float, error: str) -> None:
        """Add to the open group that a row was not delivered, and when it is due again."""
        with self._join_group() as connection:
            outbox.mark_tried(connection, id, due, error)

    def mark_uncertain(self, id: int, cause: str, now: float) -> None:
        """Add to the open group that a mail may have been sent; it is not sent again."""
        self._close_notice(id, DeliveryState.UNCERTAIN, cause, now)

    def mark_failed(self, id: int, cause: str, now: float) -> None:
        """Add to the open group that a row of the outbox can never be delivered."""
        self._close_notice(id, DeliveryState.FAILED, cause, now)

    def _close_notice(self, id: int, state: DeliveryState, cause: str, now: float) -> None:
        with self._join_group() as connection:
            condition = outbox_table.c.id == id
            self._audit(connection, outbox.close(connection, condition, state, cause, now))

    def give_up_notices(self, receiver: str, created_before: float, now: float) -> None:
        """Give up old rows of a receiver, and those that are too many."""
        with self._write_transaction() as connection:
            self._audit(connection, outbox.give_up(connection, receiver, created_before, now))

    def store_usage(self, usage: Mapping[EndedRun, RunUsage]) -> None:
        """Store the use of ended attempts; figures that are stored already stay.

        Other writers wait meanwhile: give a few hundred at the most.
        """
        statement = (
            update(attempt)
            .where(
                attempt.c.job == bindparam("of_job"),
                attempt.c.task_index == bindparam("of_task"),
                attempt.c.number == bindparam("of_attempt"),
                attempt.c.cpu_seconds.is_(None),
            )
            .values(
                cpu_seconds=bindparam("seconds"),
                max_memory=bindparam("memory"),
                elapsed=bindparam("elapsed"),
                allocated_cpus=bindparam("cpus"),
            )
        )
        rows = [
            {
                "of_job": run.job,
                "of_task": run.task,
                "of_attempt": run.attempt,
                "seconds": used.cpu_seconds,
                "memory": used.max_memory,
                # with the processor time alone: the sums by day are corrected once
                "elapsed": None if used.cpu_seconds is None else used.elapsed,
                "cpus": None if used.cpu_seconds is None else used.cpus,
            }
            for run, used in usage.items()
        ]
        with self._write_transaction() as connection:
            daily_use.correct(connection, usage)
            connection.execute(statement, rows)

    # Recovery
    def restore(self, core: Core, window: int) -> None:
        """Increment the epoch, which shuts out older daemons, and restore the state of `core`.

        `window` is the number of recent jobs with a deadline whose margins are restored.
        """
        self._stored_infos.clear()  # a failed transaction may have changed them
        self._lasting_infos.clear()
        self._cursors.clear()
        self._lost = None
        with self._transaction() as connection:
            execute = connection.execute
            self._daemon_epoch = lock_epoch(connection) + 1
            former = execute(select(epoch.c.holder)).scalar_one()
            if self._writer_lock.may_act(former):
                self.taken_over = time.time()
            if original := self._writer_lock.find_original(former):
                self._went_back = f"it is a copy of {original}, which is still there"
                mark_as_backup(connection)
            self._server = self._writer_lock.server()
            core.tag_key = read_key(connection)
            holder = self._writer_lock.process
            execute(update(epoch).values(number=self._daemon_epoch, holder=holder))
            self._next_event = self._highest(event.c.id) + 1
            self._next_job = max(self._next_free_id(), self._first_id)
            highest = max(reservations.highest_id(connection), calendar.highest_id(connection))
            first_ids = read_first_ids(connection)
            self._next_job = max(self._next_job, first_ids.job)
            self._next_reservation = max(highest + 1, first_ids.reservation)
            self._last_audit = audit.last_id(connection)
            conditions = audit.read_conditions(connection)
            recovered = recovery.recover(connection, window)
            newest = execute(
                select(checkpoint.c.event, checkpoint.c.decision_version)
                .order_by(checkpoint.c.event.desc())
                .limit(1)
            ).first()
            checkpoint_due = (
                newest is None
                or newest.decision_version != DECISION_VERSION
                or self._next_event - newest.event > CHECKPOINT_AFTER
            )
            self._pending_checkpoint = recovered.pack() if checkpoint_due else None
            core.restore(recovered)
            self._audit_trail = AuditTrail(
                conditions,
                core.reservations.by_id,
                {d.cluster: d for d in recovered.drains},
                core.calendar.entries,
            )

    def listing_cursors(self) -> dict[str, str]:
        """Return the stored positions in the listings of clusters."""
        with self._transaction() as connection:
            rows = connection.execute(select(listing_cursor)).all()
        return {row.cluster: row.cursor for row in rows}

    def use_cursors(self) -> dict[str, str]:
        """Return the stored positions in the accounting of clusters."""
        with self._transaction() as connection:
            return share_uses.read_cursors(connection)

    def target_summaries(
        self, targets: Iterable[DependencyTarget], owner: str | None = None
    ) -> dict[DependencyTarget, TargetSummary]:
        """Summarise jobs and tasks named in dependencies, if they exist and belong to `owner`.

        None: of any user.
        """
        with self._read() as connection:
            return dependency_targets.summarise(connection, targets, owner)

    def payloads(self, jobs: Iterable[int]) -> dict[int, Payload]:
        """Return the payloads of jobs with their texts, by job id."""
        if not (job_ids := set(jobs)):
            return {}
        with self._read() as connection:
            execute = connection.execute
            rows = execute(
                select(job.c.id, job.c.payload, job.c.script, job.c.environment).where(
                    job.c.id.in_(job_ids)
                )
            ).all()
            digests = {text for row in rows for text in (row.script, row.environment)}
            texts = dict(
                execute(
                    select(content.c.digest, content.c.text).where(content.c.digest.in_(digests))
                ).all()
            )
        environments = {row.environment for row in rows}
        decoded = {text: msgspec.json.decode(texts[text]) for text in environments}
        return {
            row.id: msgspec.convert(
                msgspec.json.decode(row.payload)
                | {"script": texts[row.script], "environment": decoded[row.environment]},
                Payload,
            )
            for row in rows
        }

    # Use of closed periods

    def sum_period(self, periods: PeriodPass) -> bool:
        """Sum a period over a connection of its own; return False if nothing remains.

        May be called from any thread. Raises StorageFailed if nothing was stored.
        """
        try:
            with exclude_writers(self._engine) as connection:
                return periods.sum_portion(connection)
        except DBAPIError as error:
            raise StorageFailed(driver_message(error)) from error
        except PoolTimeout as error:
            raise StorageFailed(ALL_IN_USE) from error

    # Pruning

    def prune_portion(self, pruning: PruningPass) -> bool:
        """Delete a portion over a connection of its own; return False if nothing remains.

        May be called from any thread. Raises StorageFailed if nothing was deleted.
        """
        try:
            return pruning.prune_portion(self._engine)
        except DBAPIError as error:
            raise StorageFailed(driver_message(error)) from error
        except PoolTimeout as error:
            raise StorageFailed(ALL_IN_USE) from error
