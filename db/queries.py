"""Read-only queries of the ledger, each on a connection of its own, from any thread."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, TypeVar

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    and_,
    exists,
    func,
    literal,
    or_,
    select,
    tuple_,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from metasched.core.events import CoreEvent, RequeuedTask
from metasched.core.tasks import EndedTask, TaskId
from metasched.core.transitions import ATTEMPT_FINAL
from metasched.db import (
    audit,
    licence_samples,
    outbox,
    policy_versions,
    recovery,
    reservations,
    shadows,
    task_runs,
    tuning,
)
from metasched.db.job_pages import (
    BEFORE_ALL,
    MAX_EXAMINED,
    SELECTION_COLUMNS,
    JobPage,
    TaskFilter,
    read_page,
    read_runs,
)
from metasched.db.outbox import OutboxRow
from metasched.db.policy_versions import DecisionsOfTask, PolicyHistory
from metasched.db.reports import ReportQuery, read_report
from metasched.db.schema import attempt, change, current_spec, digest, epoch, job, task, token
from metasched.db.store import Database, StorageFailed, driver_message
from metasched.model.job import Job, Payload, State
from metasched.model.job_usage import EndedRun
from metasched.model.licence import LicencePeriod
from metasched.model.policy_version import PolicyVersion
from metasched.model.reservation import Reservation
from metasched.model.shadow import Shadow, ShadowComparison, ShadowDecision, compare
from metasched.model.token_scope import TokenScope, ValidToken

Value = TypeVar("Value")

ALL_TASKS = TaskFilter()
ALL_IN_USE = "all connections to it are in use"
STORY_PORTION = 1_000  # lines of a story, or reservations, that are in memory
StoryPosition = tuple[int, int]  # id of a change, and index of a task in it
BEFORE_STORY: StoryPosition = (0, -1)


class Queries:
    """Read-only queries of the ledger. All raise StorageFailed if the database does not answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextmanager
    def _connect(self) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except DBAPIError as error:
            raise StorageFailed(driver_message(error)) from error
        except PoolTimeout as error:
            raise StorageFailed(ALL_IN_USE) from error

    def status(self, task_filter: TaskFilter = ALL_TASKS) -> list[dict[str, Any]]:
        """Return all rows of `status --json` (times in epoch seconds), by job and task."""
        return [row for page in self.status_pages(task_filter) for row in page.rows]

    def status_pages(self, task_filter: TaskFilter, with_runs: bool = True) -> Iterator[JobPage]:
        """Yield all pages of the rows of `status --json`; see `job_pages`.

        `with_runs`: also the rows of tasks in runs.
        """
        return _all_pages(
            lambda after: self.status_page(task_filter, after, MAX_EXAMINED, with_runs)
        )

    def status_page(
        self,
        task_filter: TaskFilter,
        after: TaskId,
        limit: int = MAX_EXAMINED,
        with_runs: bool = True,
        fold: bool = False,
    ) -> JobPage:
        """Return at most `limit` rows of `status --json` after a task; `fold`: see `read_page`."""
        with self._connect() as connection:
            return read_page(connection, task_filter, after, limit, with_runs, fold=fold)

    def selected_tasks(self, task_filter: TaskFilter) -> Iterator[JobPage]:
        """Yield pages of tasks that pass a filter, not in runs, with `SELECTION_COLUMNS`."""

        def page(after: TaskId) -> JobPage:
            with self._connect() as connection:
                return read_page(
                    connection, task_filter, after, MAX_EXAMINED, False, SELECTION_COLUMNS
                )

        return _all_pages(page)

    def selected_runs(self, task_filter: TaskFilter) -> list[task_runs.ListedRun]:
        """Return the runs with tasks that pass a filter."""
        with self._connect() as connection:
            return read_runs(connection, task_filter)

    def missing_jobs(
        self, jobs: Iterable[tuple[int, int | None]], visible_to: str | None = None
    ) -> list[str]:
        """Return the members of `jobs` that were never stored, spelled as users write them.

        With `visible_to`, jobs of other users count as never stored.
        """
        requested = sorted(set(jobs), key=lambda pair: (pair[0], pair[1] is not None, pair[1]))
        visible = [] if visible_to is None else [job.c.user == visible_to]
        stored: set[tuple[int, int | None]] = set()
        with self._connect() as connection:
            for ids in _in_portions([id for id, index in requested if index is None]):
                query = select(job.c.id).where(job.c.id.in_(ids), *visible)
                stored |= {(id, None) for id in connection.execute(query).scalars()}
            for pairs in _in_portions([pair for pair in requested if pair[1] is not None]):
                tasks = (
                    select(task.c.job, task.c.task_index)
                    .join(job, job.c.id == task.c.job)
                    .where(tuple_(task.c.job, task.c.task_index).in_(pairs), *visible)
                )
                stored |= {(id, index) for id, index in connection.execute(tasks)}
                absent = [(id, index) for id, index in pairs if (id, index) not in stored]
                stored |= task_runs.contains(connection, absent, *visible)
        return [
            str(id) if index is None else f"{id}_{index}"
            for id, index in requested
            if (id, index) not in stored
        ]

    def ended_jobs(self, cluster: str, since: float) -> dict[str, float]:
        """Return the native ids on a cluster of tasks that ended since a time.

        They map to the times of their dispatches; all times are epoch seconds.
        """
        query = (
            select(attempt.c.native_id, attempt.c.dispatched)
            .join(task, (task.c.job == attempt.c.job) & (task.c.task_index == attempt.c.task_index))
            .where(
                task.c.ended >= since,
                attempt.c.cluster == cluster,
                attempt.c.native_id.is_not(None),
            )
        )
        with self._connect() as connection:
            return {row.native_id: row.dispatched for row in connection.execute(query)}

    def recent_runs(self, limit: int) -> list[tuple[Job, float]]:
        """Return the jobs and run times (seconds) of tasks that have ended, the newest jobs last.

        Of the last `limit` attempts in the order of jobs; O(limit).
        """
        columns = attempt.c.job, attempt.c.task_index, attempt.c.number
        last = (
            select(*columns, attempt.c.state, attempt.c.started, attempt.c.ended)
            .order_by(*(column.desc() for column in columns))
            .limit(limit)
            .subquery()
        )
        is_run = (
            last.c.state.in_(sorted(ATTEMPT_FINAL)),
            last.c.started.is_not(None),
            last.c.ended.is_not(None),
        )
        with self._connect() as connection:
            runs = connection.execute(
                select(last.c.job, (last.c.ended - last.c.started).label("seconds")).where(*is_run)
            ).all()
            specs = connection.execute(
                select(job.c.id, current_spec).where(
                    job.c.id.in_(select(last.c.job).where(*is_run))
                )
            )
            jobs = {row.id: msgspec.json.decode(row.spec, type=Job) for row in specs}
        return [(jobs[run.job], run.seconds) for run in reversed(runs) if run.job in jobs]

    def ended_runs(
        self, cluster: str, since: float, limit: int, after: EndedRun | None = None
    ) -> list[EndedRun]:
        """Return the attempts on a cluster that ran, ended since a time, and have no stored use.

        `since` is in epoch seconds. The first `limit` after another are returned, by their ends. A
        run whose payload its manager restarted under the same id is left out: it knows the last.
        """
        later = attempt.alias("later")
        is_restarted = exists().where(
            later.c.job == attempt.c.job,
            later.c.task_index == attempt.c.task_index,
            later.c.number > attempt.c.number,
            later.c.cluster == attempt.c.cluster,
            later.c.native_id == attempt.c.native_id,
        )
        order = (attempt.c.ended, attempt.c.job, attempt.c.task_index, attempt.c.number)
        start = (since, -1, -1, -1)
        if after is not None:
            start = (after.ended, after.job, after.task, after.attempt)
        query = (
            select(
                attempt.c.job,
                attempt.c.task_index.label("task"),
                attempt.c.number.label("attempt"),
                attempt.c.native_id,
                job.c.user,
                attempt.c.ended,
            )
            .join(job, job.c.id == attempt.c.job)
            .where(
                attempt.c.cluster == cluster,
                # as in the index `ix_attempt_lacks_use`
                attempt.c.started.is_not(None),
                attempt.c.ended.is_not(None),
                attempt.c.native_id.is_not(None),
                attempt.c.cpu_seconds.is_(None),
                tuple_(*order) > tuple_(*map(literal, start)),
                attempt.c.state.in_(sorted(ATTEMPT_FINAL)),
                ~is_restarted,
            )
            .order_by(*order)
            .limit(limit)
        )
        with self._connect() as connection:
            return [EndedRun(**row._mapping) for row in connection.execute(query)]

    def current_job(self, id: int) -> tuple[Job, int]:
        """Return a job as modified so far, and its priority."""
        with self._connect() as connection:
            query = select(current_spec, job.c.priority)
            spec, priority = connection.execute(query.where(job.c.id == id)).one()
        return msgspec.json.decode(spec, type=Job), priority

    def stored_jobs(self, ids: Iterable[int]) -> dict[int, tuple[Job, Payload]]:
        """Return jobs as modified so far, and their payloads without texts, by id."""
        jobs: dict[int, tuple[Job, Payload]] = {}
        columns = (job.c.id, current_spec, job.c.payload)
        with self._connect() as connection:
            for portion in _in_portions(sorted(set(ids))):
                for row in connection.execute(select(*columns).where(job.c.id.in_(portion))):
                    payload = msgspec.json.decode(row.payload, type=Payload)
                    jobs[row.id] = (msgspec.json.decode(row.spec, type=Job), payload)
        return jobs

    def ended_tasks(self, id: int, indices: Iterable[int]) -> tuple[tuple[RequeuedTask, ...], int]:
        """Return the ended tasks of a job among `indices`, and the job's highest dispatch id."""
        requested = set(indices)
        with self._connect() as connection:
            rows = connection.execute(
                select(task).where(task.c.job == id, task.c.ended.is_not(None))
            ).all()
            in_runs = task_runs.indices_of(connection, id, ended=True)
            last_dispatch = _last_dispatch(connection, id)
        ended = [
            RequeuedTask(row.task_index, State(row.state), row.attempts)
            for row in rows
            if row.task_index in requested
        ]
        ended += [
            RequeuedTask(index, State.CANCELLED, 0) for index in in_runs if index in requested
        ]
        return tuple(ended), last_dispatch

    def last_dispatch(self, id: int) -> int:
        """Return the highest dispatch id of a job; 0 if it has none."""
        with self._connect() as connection:
            return _last_dispatch(connection, id)

    def stored_attempts(self, attempts: Iterable[tuple[int, int, int]]) -> dict[TaskId, EndedTask]:
        """Return tasks, with those of the attempts (job, index, dispatch id) that are stored."""
        with self._connect() as connection:
            return recovery.stored_attempts(connection, attempts)

    def job_row(self, id: int) -> dict[str, Any] | None:
        """Return the stored row of a job, or None."""
        with self._connect() as connection:
            row = connection.execute(select(job).where(job.c.id == id)).mappings().first()
            return dict(row) if row is not None else None

    def array_ranges(self, jobs: Iterable[int]) -> dict[int, str]:
        """Return the ranges of those of these jobs that are arrays, as submitted."""
        ranges: dict[int, str] = {}
        with self._connect() as connection:
            for ids in _in_portions(sorted(set(jobs))):
                query = select(job.c.id, job.c.array).where(
                    job.c.id.in_(ids), job.c.array.is_not(None)
                )
                ranges |= dict(connection.execute(query).all())
        return ranges

    def owner(self, id: int) -> str | None:
        """Return the user who owns a job, or None if there is no such job."""
        stored = self.job_row(id)
        return stored["user"] if stored else None

    def owners(self, jobs: Iterable[int]) -> set[str]:
        """Return the users who own these jobs."""
        users: set[str] = set()
        with self._connect() as connection:
            for ids in _in_portions(sorted(set(jobs))):
                query = select(job.c.user).distinct().where(job.c.id.in_(ids))
                users.update(connection.execute(query).scalars())
        return users

    def story(self, id: int, index: int | None = None) -> list[dict[str, Any]]:
        """Return all changes of a job, or of its task `index`, oldest first."""
        return list(chain.from_iterable(self.story_portions(id, index)))

    def story_portions(
        self, id: int, index: int | None = None
    ) -> Iterator[tuple[dict[str, Any], ...]]:
        """Yield the changes of a job, or of its task `index`, in portions, oldest first."""
        lines = self._story_lines(id, index, BEFORE_STORY)
        while portion := tuple(islice(lines, STORY_PORTION)):
            yield portion

    def story_page(
        self, id: int, index: int | None, after: StoryPosition, limit: int
    ) -> tuple[list[dict[str, Any]], StoryPosition | None]:
        """Return the first `limit` lines of a story after a position.

        The second value is where the next page begins; None: there is none.
        """
        lines = list(islice(self._story_lines(id, index, after), limit + 1))
        if len(lines) <= limit:
            return lines, None
        return lines[:limit], (lines[limit - 1]["id"], lines[limit - 1]["task_index"])

    def tuning_in_force(self, id: int) -> list[tuning.RecordedChange]:
        """Return the last change of each tuned parameter before the submission of a job."""
        with self._connect() as connection:
            return tuning.changes_before(connection, id)

    def policy_in_force(self) -> PolicyVersion | None:
        """Return the newest version of the policy; None: none was recorded yet."""
        with self._connect() as connection:
            return policy_versions.read_newest(connection)

    def policy_version(self, number: int) -> PolicyVersion | None:
        """Return a version of the policy; None: there is none, or it was deleted."""
        with self._connect() as connection:
            return policy_versions.read_version(connection, number)

    def policy_versions(
        self, use: Callable[[PolicyVersion], Value], limit: int = policy_versions.MAX_VERSIONS
    ) -> list[Value]:
        """Return what `use` makes of versions of the policy, the newest first."""
        with self._connect() as connection:
            return [use(row) for row in policy_versions.read_newest_first(connection, limit)]

    def shadow(self) -> Shadow | None:
        """Return the candidate policy that runs or ran last."""
        with self._connect() as connection:
            return shadows.read(connection)

    def shadow_comparison(self, number: int) -> ShadowComparison:
        """Return how the stored decisions of a candidate differ from those in force."""
        with self._connect() as connection:
            return compare(shadows.read_groups(connection, number))

    def shadow_differences(self, number: int, limit: int) -> list[tuple[ShadowDecision, bool]]:
        """Return the last decisions of a candidate that differ, the newest first."""
        with self._connect() as connection:
            return shadows.read_differing(connection, number, limit)

    def policy_history(self) -> PolicyHistory:
        """Return from which event on each version of the policy was in force."""
        with self._connect() as connection:
            return policy_versions.read_history(connection)

    def decisions_of_task(self, id: int, index: int) -> DecisionsOfTask:
        """Return what decided about a task."""
        with self._connect() as connection:
            return policy_versions.decisions_of_task(connection, id, index)

    def last_cause(self, id: int, index: int) -> str:
        """Return the cause of the last change of a task; "" if there is none."""
        query = select(change.c.cause).where(change.c.job == id, *_concerned(index))
        with self._connect() as connection:
            return connection.execute(query.order_by(change.c.id.desc()).limit(1)).scalar() or ""

    def _story_lines(
        self, id: int, index: int | None, after: StoryPosition
    ) -> Iterator[dict[str, Any]]:
        """Yield the lines of a story after a position."""
        for row in self._story_rows(id, index, after[0] - 1):
            last_index = after[1] if row["id"] == after[0] else -1
            yield from _lines_of(row, index, last_index)

    def _story_rows(self, id: int, index: int | None, after: int) -> Iterator[dict[str, Any]]:
        """Yield the stored lines of a story, each portion read in a transaction of its own."""
        query = (
            select(change, job.c.array)
            .join(job, job.c.id == change.c.job)
            .where(change.c.job == id, *([] if index is None else _concerned(index)))
            .order_by(change.c.id)
            .limit(STORY_PORTION)
        )
        is_last = False
        while not is_last:
            with self._connect() as connection:
                rows = connection.execute(query.where(change.c.id > after)).mappings().all()
            yield from map(dict, rows)
            is_last = len(rows) < STORY_PORTION
            after = rows[-1]["id"] if rows else after

    def nodes(self, id: int, index: int) -> list[str]:
        """Return the nodes of each attempt of a task, in the manager's notation, oldest first."""
        query = (
            select(attempt.c.node)
            .where(attempt.c.job == id, attempt.c.task_index == index)
            .order_by(attempt.c.number)
        )
        with self._connect() as connection:
            return list(connection.execute(query).scalars())

    def reservation(self, id: int) -> Reservation | None:
        """Return a reservation, also long after its end; None if there is none."""
        with self._connect() as connection:
            return reservations.find(connection, id)

    def reservations_open_since(self, since: float, user: str | None = None) -> list[Reservation]:
        """Return reservations of all or of a user, open at or after `since` (epoch), by start."""
        with self._connect() as connection:
            return reservations.open_since(connection, since, user)

    def reservation_portions(self, since: float, user: str | None) -> Iterator[list[Reservation]]:
        """Yield these reservations, by start, in portions."""
        with self._connect() as connection:
            ids = reservations.ids_open_since(connection, since, user)
        for portion in _in_portions(ids, STORY_PORTION):
            with self._connect() as connection:
                yield reservations.with_ids(connection, portion)

    def reservation_page(
        self, since: float, user: str | None, after: int, limit: int
    ) -> list[Reservation]:
        """Return the first `limit` of these reservations with ids above `after`, by id."""
        with self._connect() as connection:
            return reservations.page_open_since(connection, since, user, after, limit)

    def unnotified_reservations(self, since: float) -> list[Reservation]:
        """Return reservations broken since `since` (epoch seconds) with owners not yet notified."""
        with self._connect() as connection:
            return reservations.unnotified(connection, since)

    def due_notices(
        self, receiver: str, now: float, limit: int, paused: Collection[str] = ()
    ) -> list[OutboxRow]:
        """Return rows of the outbox that are due, oldest first; none of recipients in `paused`."""
        with self._connect() as connection:
            return outbox.due_rows(connection, receiver, now, limit, paused)

    def next_notice(self, receiver: str) -> OutboxRow | None:
        """Return the oldest pending row of a receiver, due or not."""
        with self._connect() as connection:
            return next(iter(outbox.next_rows(connection, receiver, 1)), None)

    def next_notice_due(self, receiver: str, paused: Collection[str] = ()) -> float | None:
        """Return when the next row of a receiver is due (epoch seconds); None: there is none."""
        with self._connect() as connection:
            return outbox.next_due(connection, receiver, paused)

    def open_notices(self) -> dict[str, tuple[int, float]]:
        """Return the number of open rows by receiver, and the time of the oldest."""
        with self._connect() as connection:
            return outbox.open_rows(connection)

    def notices(
        self, user: str | None, after: int, limit: int, *, delivered: bool
    ) -> list[dict[str, Any]]:
        """Return rows of the outbox by id; see `outbox.read_page`."""
        with self._connect() as connection:
            return outbox.read_page(connection, user, after, limit, delivered=delivered)

    def check_readable(self) -> None:
        """Read a row of a small table."""
        with self._connect() as connection:
            connection.execute(select(epoch.c.number).limit(1)).first()

    def measure(self, database: Database) -> int:
        """Return the size of the database in bytes, see `Database.size`."""
        with self._connect() as connection:
            return database.size(connection)

    def find_token(self, secret: str, now: float) -> ValidToken | None:
        """Return a token that is valid at `now` (epoch seconds), None if there is no such token."""
        query = select(token.c.user, token.c.scope, token.c.expires).where(
            token.c.digest == digest(secret), token.c.expires > now, token.c.revoked.is_(None)
        )
        with self._connect() as connection:
            row = connection.execute(query).first()
        return row and ValidToken(row.user, TokenScope(row.scope), row.expires)

    def tokens(self, user: str | None, after: int, limit: int) -> list[dict[str, Any]]:
        """Return the first `limit` tokens with ids above `after`, without their hashes, by id.

        `user` None: of all users.
        """
        columns = [column for column in token.c if column.name != "digest"]
        query = select(*columns).where(token.c.id > after).order_by(token.c.id).limit(limit)
        if user is not None:
            query = query.where(token.c.user == user)
        with self._connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def token_owner(self, token_id: int) -> str | None:
        """Return the user of a token, or None if it does not exist."""
        query = select(token.c.user).where(token.c.id == token_id)
        with self._connect() as connection:
            return connection.execute(query).scalar()

    def audit_page(
        self, audit_filter: audit.AuditFilter, after: int, limit: int, *, newest: bool = False
    ) -> tuple[list[dict[str, Any]], int]:
        """Return audit records and the position after them; see `audit.read_page`.

        The position is that of the last record on the page, if there may be more; else that of the
        last record that the caller may see, whatever the filter.
        """
        with self._connect() as connection:
            # later records have larger ids
            last = audit.last_id(connection, audit_filter.visible_to)
            rows = audit.read_page(connection, audit_filter, (after, last), limit, newest=newest)
        if len(rows) == limit and not newest:
            return rows, int(rows[-1]["id"])
        return rows, max(last, after)

    def report(self, query: ReportQuery) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return the rows of a report and their total; see `reports.read_report`."""
        with self._connect() as connection:
            return read_report(connection, query)

    def licence_periods(
        self, licence: str, since: float, seconds: float, number: int
    ) -> list[LicencePeriod | None]:
        """Return the figures of a licence by period; see `licence_samples.read_periods`."""
        with self._connect() as connection:
            return licence_samples.read_periods(connection, licence, since, seconds, number)

    def events(self, since: int = 0) -> Iterator[CoreEvent]:
        """Yield the recorded events in order; see `recovery.recorded_events`."""
        with self._connect() as connection:
            yield from recovery.recorded_events(connection, since)


def _concerned(index: int) -> list[ColumnElement[bool]]:
    """Return the conditions of changes of a task, also within a run."""
    last, step = change.c.run_last, func.coalesce(change.c.run_step, 1)
    in_run = and_(change.c.task_index <= index, last >= index)
    in_step = (index - change.c.task_index) % step == 0
    return [or_(change.c.task_index == index, and_(in_run, in_step))]


def _lines_of(row: dict[str, Any], index: int | None, after: int) -> Iterator[dict[str, Any]]:
    """Yield the lines of the tasks in a stored line, of tasks with indices above `after`.

    `index`: of this task alone; None: of all.
    """
    first, last, step = row["task_index"], row.pop("run_last"), row.pop("run_step")
    listed = range(first, first + 1) if last is None else range(first, last + 1, step)
    if index is not None:
        listed = range(index, index + 1)
    for task_index in listed[bisect_right(listed, after) :]:
        yield {**row, "task_index": task_index}


def _all_pages(page: Callable[[TaskId], JobPage]) -> Iterator[JobPage]:
    """Yield pages; `page` reads each from the end of the last page."""
    after: TaskId | None = BEFORE_ALL
    while after is not None:
        yield (read := page(after))
        after = read.next_after


def _last_dispatch(connection: Connection, id: int) -> int:
    highest = select(func.max(attempt.c.dispatch_id)).where(attempt.c.job == id)
    return connection.execute(highest).scalar() or 0


def _in_portions(ids: Sequence[Value], size: int = 10_000) -> Iterator[Sequence[Value]]:
    """Yield ids, or pairs, in portions that fit into the parameters of a statement."""
    for first in range(0, len(ids), size):
        yield ids[first : first + size]
