"""Pages of the rows that `status` lists, in the order of job and task index.

A page walks an index: of the open tasks of a user or of all users, of ended tasks, of jobs. Other
filters are applied to at most `MAX_EXAMINED` of the tasks that the index gives. So a page costs the
same however many rows are stored; it may be short although another page follows.

Job and index of a task never change. So a row that passes the filter while its pages are read is on
exactly one page, whatever begins or ends meanwhile.

Tasks in runs (`task_runs`) get their rows here. A page reads the runs first: a task that leaves its
run meanwhile is in the table then, and its row there counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from sqlalchemy import (
    JSON,
    ColumnElement,
    Connection,
    Select,
    Subquery,
    Text,
    and_,
    case,
    cast,
    false,
    func,
    or_,
    select,
    tuple_,
    type_coerce,
    union_all,
)

from metasched.core.array_remainder import in_index_order
from metasched.core.tasks import TaskId
from metasched.core.transitions import ATTEMPT_FINAL, FINAL
from metasched.db import task_runs
from metasched.db.schema import attempt, current_spec, job, task, task_run
from metasched.db.task_runs import IndicesByJob, ListedRun
from metasched.model.job import MANAGER_REASON, MAX_LICENCE_CHOICES, State

MAX_EXAMINED = 10_000  # tasks that a page compares with filters that no index serves
SELECTORS_PER_QUERY = 500  # named jobs and tasks
BEFORE_ALL: TaskId = (-1, -1)  # position before the first task
LAST_INDEX = 2**63 - 1  # an index is at most 63 bits in both databases

TaskSelector = tuple[int, int | None]  # a job and a task's index; None: all its tasks
Columns = Sequence[ColumnElement[Any]]
TaskIds = Select[Any]  # a query that gives jobs and indices

_RUN_STATES = frozenset((State.QUEUED, State.HELD, State.CANCELLED))
_OF_ATTEMPTS = ATTEMPT_FINAL - FINAL
_job_id, _index = task.c.job, task.c.task_index
# of a selection: a page of all columns takes five times the memory
SELECTION_COLUMNS: Columns = (_job_id, job.c.array, job.c.user, _index, task.c.state)
# sorted: else SQLite would walk all tasks in this order rather than sort those that ended
_unindexed = (_job_id + 0, _index + 0)
# PostgreSQL's planner misjudges how few rows a LIMIT leaves, and would read whole tables
PLAN_BY_INDEX = select(
    *(
        func.set_config(name, "off", True)
        for name in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit")
    )
)


@dataclass(frozen=True)
class TaskFilter:
    """Which tasks are listed: those that pass all conditions."""

    named: Sequence[TaskSelector] | None = None  # None: any
    user: str | None = None  # owner
    states: Sequence[str] = ()  # (): any
    since: float | None = None  # epoch seconds; submitted at or after it
    ended_since: float | None = None  # epoch seconds; open, or ended at or after it
    only_open: bool = False
    cluster: str | None = None  # of the present or last attempt
    reason: str | None = None  # of the state; `manager:` stands for all reasons of managers
    licence: str | None = None  # that is requested, also as an alternative

    @property
    def needs_comparison(self) -> bool:
        """Whether there are conditions that no index serves."""
        other_filters = (self.since, self.cluster, self.reason, self.licence)
        return bool(self.states) or any(condition is not None for condition in other_filters)

    @property
    def task_states(self) -> frozenset[str]:
        """The states of tasks that may pass: a state that only attempts have is a failure."""
        return frozenset(State.FAILED if s in _OF_ATTEMPTS else s for s in self.states)

    def _has_state(self) -> ColumnElement[bool]:
        of_attempts = _OF_ATTEMPTS.intersection(self.states)
        is_state: ColumnElement[bool] = task.c.state.in_(set(self.states) - of_attempts)
        if not of_attempts:
            return is_state
        is_failure = and_(task.c.state == State.FAILED, attempt.c.state.in_(of_attempts))
        return or_(is_state, is_failure)

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        """Yield all conditions but the names."""
        if self.user is not None:
            yield task.c.user == self.user
        if self.states:
            yield self._has_state()
        if self.since is not None:
            yield job.c.submitted >= self.since
        if self.ended_since is not None:
            yield or_(task.c.ended.is_(None), task.c.ended >= self.ended_since)
        if self.only_open:
            yield task.c.ended.is_(None)
        if self.cluster is not None:
            yield attempt.c.cluster == self.cluster
        if self.reason is not None:
            yield _has_reason(task.c.reason, self.reason)
        if self.licence is not None:
            yield _requests_licence(self.licence)


def _has_reason(column: ColumnElement[str], reason: str) -> ColumnElement[bool]:
    if reason == MANAGER_REASON:
        return column.startswith(MANAGER_REASON, autoescape=True)
    return column == reason


def _requests_licence(licence: str) -> ColumnElement[bool]:
    """Return whether a job, as it was modified last, requests a licence."""
    # PostgreSQL has a type for JSON, and SQLite reads text
    document = type_coerce(cast(current_spec, JSON().with_variant(Text(), "sqlite")), JSON)
    choices = (document["licence_choices"][number] for number in range(MAX_LICENCE_CHOICES))
    # a step at a time: SQLAlchemy writes no path with a name in quotes
    return or_(*(counts[licence].as_integer() > 0 for counts in (document["licences"], *choices)))


@dataclass(frozen=True)
class JobPage:
    """A page of the rows of `status`."""

    rows: list[dict[str, Any]]  # times in epoch seconds
    next_after: TaskId | None  # the next page begins after this task; None: there is none


def read_page(
    connection: Connection,
    task_filter: TaskFilter,
    after: TaskId = BEFORE_ALL,
    limit: int = 10_000,
    with_runs: bool = True,
    columns: Columns | None = None,
    fold: bool = False,
) -> JobPage:
    """Return at most `limit` rows after a task, from 1 to `MAX_EXAMINED`.

    `with_runs`: also those of tasks in runs; see `read_runs`. `columns`: of tasks with rows of
    their own; None: those of `status`. `fold`: successive open tasks of a run have one row, that of
    the first; `folded` of the row has the range of their indices.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(PLAN_BY_INDEX)  # for this transaction
    if task_filter.named is None:
        runs, until = (
            _page_of_runs(connection, task_filter, after, limit) if with_runs else ([], None)
        )
        page = _read_from(
            connection, task_filter, _indexed_tasks(task_filter, after), limit, columns
        )
        return _with_runs(page, runs, limit, fold, until)
    rows: list[dict[str, Any]] = []
    examined = 0
    selectors = _selectors_after(task_filter.named, after)
    for first in range(0, len(selectors), SELECTORS_PER_QUERY):
        portion = selectors[first : first + SELECTORS_PER_QUERY]
        remaining = limit - len(rows)
        named = _indices_by_job(portion)
        runs = _listed_runs(connection, task_filter, after, named) if with_runs else []
        page = _read_from(connection, task_filter, _named_tasks(portion, after), remaining, columns)
        page = _with_runs(page, runs, remaining, fold)
        rows += page.rows
        examined += len(portion)
        if page.next_after is not None:
            return JobPage(rows, page.next_after)
        last_id, last_index = portion[-1]
        after = (last_id, last_index if last_index is not None else LAST_INDEX)
        is_last = first + SELECTORS_PER_QUERY >= len(selectors)
        if not is_last and (len(rows) == limit or examined >= MAX_EXAMINED):
            return JobPage(rows, after)
    return JobPage(rows, None)


def read_runs(connection: Connection, task_filter: TaskFilter) -> list[ListedRun]:
    """Return all runs with tasks that pass a filter, in no order."""
    if task_filter.named is None:
        return _listed_runs(connection, task_filter, BEFORE_ALL)
    selectors = _selectors_after(task_filter.named, BEFORE_ALL)
    return [
        run
        for first in range(0, len(selectors), SELECTORS_PER_QUERY)
        for run in _listed_runs(
            connection,
            task_filter,
            BEFORE_ALL,
            _indices_by_job(selectors[first : first + SELECTORS_PER_QUERY]),
        )
    ]


def _page_of_runs(
    connection: Connection, task_filter: TaskFilter, after: TaskId, limit: int
) -> tuple[list[ListedRun], TaskId | None]:
    """Return runs with tasks after a task, and the position until which the list is complete.

    None: all later tasks. The runs of a job may overlap, so they are read together.
    """
    runs = _listed_runs(connection, task_filter, after, {after[0]: None})
    later = _listed_runs(connection, task_filter, (after[0], LAST_INDEX), limit=limit)
    if len(later) < limit:
        return runs + later, None
    last_job = max(run.row["job"] for run in later)
    return runs + [run for run in later if run.row["job"] < last_job], (last_job, -1)


def _listed_runs(
    connection: Connection,
    task_filter: TaskFilter,
    after: TaskId,
    named: IndicesByJob | None = None,
    limit: int | None = None,
) -> list[ListedRun]:
    """Return the runs with tasks after a task that pass a filter, the first `limit` by job."""
    if task_filter.cluster is not None:
        return []
    if task_filter.states and _RUN_STATES.isdisjoint(task_filter.states):
        return []
    conditions: list[ColumnElement[bool]] = []
    if task_filter.user is not None:
        conditions.append(task_run.c.user == task_filter.user)
    if task_filter.states:
        conditions.append(task_run.c.state.in_(list(task_filter.states)))
    if task_filter.since is not None:
        conditions.append(job.c.submitted >= task_filter.since)
    if task_filter.reason is not None:
        conditions.append(_has_reason(task_run.c.reason, task_filter.reason))
    if task_filter.licence is not None:
        conditions.append(_requests_licence(task_filter.licence))
    ended = task_run.c.ended
    kinds: list[list[ColumnElement[bool]]] = [[]]
    # a cancelled run has no reason: a page looks for reasons among open runs alone
    only_open = task_filter.only_open or task_filter.reason is not None
    if only_open or task_filter.ended_since is not None:
        kinds = [[ended.is_(None)]]
    if task_filter.ended_since is not None and not only_open:
        kinds.append([ended >= task_filter.ended_since])
    runs = [
        task_runs.listed(connection, [*conditions, *kind], after, limit, named) for kind in kinds
    ]
    return sorted(chain(*runs), key=lambda run: run.row["job"])[:limit]


def _with_runs(
    page: JobPage,
    runs: Sequence[ListedRun],
    limit: int,
    fold: bool,
    until: TaskId | None = None,
) -> JobPage:
    """Return a page with the rows of tasks in runs, which are complete up to `until`.

    `limit` is that of the page; `fold` as of `read_page`.
    """
    ends = [end for end in (page.next_after, until) if end is not None]
    if not runs and until is None:
        return page
    last = min(ends, default=None)
    rows: list[dict[str, Any]] = []
    # a task that is in the table, too, has left its run
    parts = [(row, _single(row["task_index"])) for row in page.rows]
    parts += [(run.row, indices) for run in runs for indices in run.ranges()]
    for position, indices in in_index_order((row["job"], indices) for row, indices in parts):
        row = parts[position][0]
        is_folded = fold and len(indices) > 1 and row["ended"] is None
        for part in (indices,) if is_folded else map(_single, indices):
            if last is not None and row["job"] == last[0]:
                part = part[: bisect_right(part, last[1])]
            if not part or (last is not None and row["job"] > last[0]):
                return JobPage(rows, last)
            task_row = {**row, "task_index": part[0]}
            rows.append(task_row | {"folded": part} if len(part) > 1 else task_row)
            if len(rows) == limit:
                return JobPage(rows, (row["job"], part[-1]))
    return JobPage(rows, last)


def _single(index: int) -> range:
    return range(index, index + 1)


def _indices_by_job(selectors: Iterable[TaskSelector]) -> IndicesByJob:
    """Return the selected indices by job; None: all."""
    indices: IndicesByJob = {}
    for id, index in selectors:
        if index is None:
            indices[id] = None
        elif (of_job := indices.setdefault(id, [])) is not None:
            of_job.append(index)
    return indices


def _read_from(
    connection: Connection,
    task_filter: TaskFilter,
    sources: Sequence[TaskIds],
    limit: int,
    columns: Columns | None,
) -> JobPage:
    """Return the first `limit` tasks of several queries that pass the filter."""
    if not sources:
        return JobPage([], None)
    boundary = None
    count = limit
    if task_filter.needs_comparison:
        count = MAX_EXAMINED
        last = _first_tasks(sources, count).offset(count - 1).limit(1)
        boundary = connection.execute(last).first()
    first_ids = _first_tasks(sources, count).limit(count).subquery("found")
    query = (
        select(*(_STATUS_COLUMNS if columns is None else columns))
        .select_from(first_ids)
        .join(task, and_(_job_id == first_ids.c.job, _index == first_ids.c.task_index))
        .join(job, job.c.id == _job_id)
        .outerjoin(attempt, _IS_LAST_ATTEMPT)
        .where(*_conditions_after(first_ids, task_filter, connection.dialect.name))
        .order_by(_job_id, _index)
        .limit(limit)
    )
    rows = [dict(row) for row in connection.execute(query).mappings()]
    if len(rows) == limit:
        return JobPage(rows, (rows[-1]["job"], rows[-1]["task_index"]))
    return JobPage(rows, None if boundary is None else (boundary.job, boundary.task_index))


def _conditions_after(
    first_ids: Subquery, task_filter: TaskFilter, dialect: str
) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions of a filter, compared with found tasks alone.

    PostgreSQL expects few tasks with a rare state or reason, and would read all tasks to find these
    first. So there the conditions depend on `first_ids`.
    """
    for condition in task_filter.conditions():
        if dialect == "postgresql":
            yield case((first_ids.c.job >= 0, condition), else_=false())
        else:
            yield condition


def _first_tasks(sources: Sequence[TaskIds], count: int) -> TaskIds:
    """Return a query of the first tasks of several ordered queries, which share no task."""
    ids = union_all(*(select(source.limit(count).subquery()) for source in sources)).subquery()
    return select(ids.c.job, ids.c.task_index).order_by(ids.c.job, ids.c.task_index)


def _indexed_tasks(task_filter: TaskFilter, after: TaskId) -> list[TaskIds]:
    """Return queries that together give the tasks after `after`, each by an index."""
    finals = FINAL & task_filter.task_states
    wants_open = not task_filter.states or len(finals) < len(task_filter.task_states)
    wants_ended = not task_filter.only_open and (not task_filter.states or bool(finals))
    if wants_ended and task_filter.ended_since is None:
        return _all_tasks(task_filter.user, after)
    of_user = [] if task_filter.user is None else [task.c.user == task_filter.user]
    ids, sources = select(_job_id, _index).where(*of_user), []
    if wants_open:
        is_after = tuple_(_job_id, _index) > after
        sources.append(ids.where(task.c.ended.is_(None), is_after).order_by(_job_id, _index))
    if wants_ended:
        is_after = tuple_(*_unindexed) > after
        ended = ids.where(task.c.ended >= task_filter.ended_since, is_after)
        sources.append(ended.order_by(*_unindexed))
    return sources


def _all_tasks(user: str | None, after: TaskId) -> list[TaskIds]:
    """Return queries that together give all tasks after `after`, of a user or of all."""
    if user is None:
        is_after = tuple_(_job_id, _index) > after
        return [select(_job_id, _index).where(is_after).order_by(_job_id, _index)]
    id, index = after
    rest_of_job = select(_job_id, _index).where(_job_id == id, _index > index, task.c.user == user)
    later_jobs = (
        select(job.c.id.label("job"), _index)
        .join(task, _job_id == job.c.id)
        .where(job.c.user == user, job.c.id > id)
    )
    return [rest_of_job.order_by(_index), later_jobs.order_by(job.c.id, _index)]


def _selectors_after(named: Sequence[TaskSelector], after: TaskId) -> list[TaskSelector]:
    """Return the selectors that may give tasks after `after`, without repetitions, in order."""
    whole = {id for id, index in named if index is None and id >= after[0]}
    single = {
        (id, index)
        for id, index in named
        if index is not None and id not in whole and (id, index) > after
    }
    return sorted([*((id, None) for id in whole), *single], key=lambda s: (s[0], s[1] or 0))


def _named_tasks(selectors: Sequence[TaskSelector], after: TaskId) -> list[TaskIds]:
    """Return queries that together give the tasks of selectors after `after`."""
    whole: list[int] = []
    jobs_by_indices: dict[tuple[int, ...], list[int]] = {}
    for id, indices in _indices_by_job(selectors).items():
        if indices is None:
            whole.append(id)
        else:
            jobs_by_indices.setdefault(tuple(indices), []).append(id)
    named = select(_job_id, _index)
    sources = []
    if whole:
        is_after = tuple_(*_unindexed) > after
        sources.append(named.where(_job_id.in_(whole), is_after).order_by(*_unindexed))
    if jobs_by_indices:
        arms = (
            and_(_job_id.in_(ids), _index.in_(indices)) for indices, ids in jobs_by_indices.items()
        )
        sources.append(named.where(or_(*arms)).order_by(*_unindexed))
    return sources


_STATUS_COLUMNS = (
    task.c.job,
    job.c.array,
    task.c.task_index,
    job.c.name,
    job.c.user,
    task.c.state,
    task.c.reason,
    job.c.priority,
    attempt.c.cluster,
    attempt.c.native_id,
    job.c.submitted,
    attempt.c.started,
    task.c.ended,
    attempt.c.exit_code,
    attempt.c.signal,
    attempt.c.state.label("attempt_state"),
    attempt.c.node,
    attempt.c.cpu_seconds,
    attempt.c.max_memory,
    attempt.c.restarts,
    attempt.c.gres_choice,
    attempt.c.licence_choice,
)
_IS_LAST_ATTEMPT = and_(
    attempt.c.job == task.c.job,
    attempt.c.task_index == task.c.task_index,
    attempt.c.number == task.c.attempts,
    task.c.state.not_in(["queued", "held", "rejected"]),
)
