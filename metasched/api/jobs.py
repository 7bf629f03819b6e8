"""Routes that report jobs: status, waiting for the end, story, output paths."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from metasched.api.answers import encoded, job_details
from metasched.api.connections import OpenConnections, Wait
from metasched.api.explanations import shown_start
from metasched.api.identity import Caller
from metasched.api.modifications import MAX_EPOCH
from metasched.api.pages import (
    MAX_PAGE,
    PageCursor,
    PageLimit,
    decode_cursor,
    encode_cursor,
)
from metasched.api.readers import CurrentReaders, ReadingKind
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.api.selection import (
    RECENTLY_ENDED,
    find_owners,
    find_visible_job,
    parse_states,
    requested_jobs,
    visible_jobs,
)
from metasched.api.whole_answers import joined, whole_answer
from metasched.client.job_answers import JobDetails, JobRow, OutputPaths, Story, StoryEvent
from metasched.core.tasks import TaskId
from metasched.daemon.service import Daemon, SchedulerService
from metasched.db.job_pages import BEFORE_ALL, JobPage, TaskFilter, TaskSelector
from metasched.db.policy_versions import PolicyHistory
from metasched.db.queries import BEFORE_STORY
from metasched.errors import ApiError
from metasched.model.arrays import parse_array, task_number
from metasched.model.job import State, public_reason
from metasched.model.output_paths import expand_task_fields, first_node, varies_by_task
from metasched.model.units import iso
from metasched.paths import NEXT_CURSOR_HEADER

MAX_WAIT = 60.0  # seconds

router = APIRouter()


class ListedJobs(NamedTuple):
    """Query of a listing of jobs."""

    job: list[str]  # []: any
    user: str | None = None
    state: str | None = None
    since: float | None = None  # epoch seconds
    ended_since: float | None = None  # epoch seconds; None: the last hour
    all: bool = False
    skip_missing: bool = False  # leave out jobs that do not exist for the caller
    cluster: str | None = None  # of the present or last attempt
    reason: str | None = None  # of the state; `manager:` stands for all reasons of managers
    licence: str | None = None  # that is requested, also as an alternative
    limit: int | None = None
    cursor: str | None = None


async def _listed_jobs(
    job: Annotated[list[str] | None, Query()] = None,
    user: str | None = None,
    state: str | None = None,
    since: float | None = None,
    ended_since: float | None = None,
    all: bool = False,
    skip_missing: bool = False,
    cluster: str | None = None,
    reason: str | None = None,
    licence: str | None = None,
    limit: PageLimit = None,
    cursor: PageCursor = None,
) -> ListedJobs:
    return ListedJobs(
        *(job or [], user, state, since, ended_since, all, skip_missing),
        *(cluster, reason, licence, limit, cursor),
    )


JobQuery = Annotated[ListedJobs, Depends(_listed_jobs)]
Fold = Annotated[bool, Query(description="List waiting tasks of an array in one row.")]


@router.get("/jobs", response_model=list[JobRow])
async def status(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    readers: CurrentReaders,
    query: JobQuery,
) -> Response:
    """List jobs. If a page is requested, Metasched-Next-Cursor in its header announces the next."""

    kind = ReadingKind.NAMED if query.job else ReadingKind.LISTING
    if query.limit is None and query.cursor is None:
        return await whole_answer(
            request,
            readers,
            kind,
            lambda: _whole_listing(daemon, caller, _read_query(daemon, caller, query)[0]),
        )

    def list_page() -> Response:
        task_filter, listed_since, after = _read_query(daemon, caller, query)
        page = daemon.ledger.status_page(task_filter, after, query.limit or MAX_PAGE)
        rows = [_job_row(row, daemon.service, caller) for row in page.rows]
        return _page_answer(page, listed_since, rows)

    return await readers.run(request, kind, list_page)


@router.get("/jobs/details", response_model=list[JobDetails])
async def details(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    readers: CurrentReaders,
    query: JobQuery,
    fold: Fold = False,
) -> Response:
    """List jobs with their requests and clusters, always in pages."""

    def list_jobs() -> Response:
        task_filter, listed_since, after = _read_query(daemon, caller, query)
        page = daemon.ledger.status_page(task_filter, after, query.limit or MAX_PAGE, fold=fold)
        stored = daemon.ledger.stored_jobs({row["job"] for row in page.rows})
        rows = [
            job_details(
                _job_row(row, daemon.service, caller),
                row,
                *stored[row["job"]],
                is_readable=caller.may_read(row["user"]),
            )
            for row in page.rows
            if row["job"] in stored  # it may have been pruned since
        ]
        return _page_answer(page, listed_since, rows)

    kind = ReadingKind.NAMED if query.job else ReadingKind.LISTING
    return await readers.run(request, kind, list_jobs)


def _read_query(
    daemon: Daemon, caller: Caller, query: ListedJobs
) -> tuple[TaskFilter, int, TaskId]:
    """Return the filter of a listing, the earliest end that is listed, and where its page begins.

    The start is in epoch milliseconds. ApiError for an invalid query, or a query of hidden jobs.
    """
    requested = requested_jobs(daemon.ledger, caller, query.job) if query.job else None
    owner = query.user
    if requested is not None:
        if query.skip_missing:
            requested = visible_jobs(daemon.ledger, caller, requested)
        find_owners(daemon.ledger, caller, requested)
    elif owner is not None:
        caller.require_visible([owner])
    elif not caller.sees_all:
        owner = caller.user
    if query.reason and not caller.operator and public_reason(query.reason) != query.reason:
        # a match would confirm what a manager said of a job, which is for its owner
        caller.require_owner([] if owner is None else [owner])
        owner = caller.user
    # the same for all pages: a job that ends between two pages is not lost
    since = time.time() - RECENTLY_ENDED if query.ended_since is None else query.ended_since
    if not 0 <= since < MAX_EPOCH:
        raise ApiError(422, "ended_since is out of range; give epoch seconds")
    if "\0" in (query.licence or ""):
        raise ApiError(422, "licence has a NUL; give the name of a licence")
    listed_since, after = math.floor(since * 1000), BEFORE_ALL
    if query.cursor is not None:
        listed_since, *position = decode_cursor(query.cursor, 3)
        after = (position[0], position[1])
    task_filter = TaskFilter(
        named=requested,
        user=owner,
        states=parse_states(query.state),
        since=query.since,
        ended_since=None if query.all or requested else listed_since / 1000,
        cluster=query.cluster,
        reason=query.reason,
        licence=query.licence,
    )
    return task_filter, listed_since, after


def _page_answer(page: JobPage, listed_since: int, rows: Sequence[JobRow]) -> Response:
    """Return a page; its header announces the next, if any."""
    answer = encoded(rows)
    if page.next_after is not None:
        answer.headers[NEXT_CURSOR_HEADER] = encode_cursor(listed_since, *page.next_after)
    return answer


def _whole_listing(daemon: Daemon, caller: Caller, task_filter: TaskFilter) -> Iterator[bytes]:
    """Yield the text of all pages as a single list."""
    pages = (
        msgspec.json.encode([_job_row(row, daemon.service, caller) for row in page.rows])
        for page in daemon.ledger.status_pages(task_filter)
    )
    yield from joined(b"[", pages, b"]")


@router.get("/jobs/wait", response_model=list[JobRow])
async def wait(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    job: Annotated[list[str], Query()],
    timeout: Annotated[float, Query(ge=0)] = 30.0,
) -> Response:
    """Answer when all jobs have ended, after `timeout` seconds, or when others need the room."""

    def find_jobs() -> list[TaskSelector]:
        requested = requested_jobs(daemon.ledger, caller, job)
        find_owners(daemon.ledger, caller, requested)
        return requested

    requested = await readers.run(request, ReadingKind.NAMED, find_jobs, until_answered=False)
    open_jobs = requested.copy()
    connections: OpenConnections = request.state.connections
    with connections.waiting(caller.user) as room:
        async for _change in _stored_changes(daemon, room, min(timeout, MAX_WAIT)):
            if daemon.service is not service:
                break
            # a job that has ended is not looked at again: many requests may wait for many jobs
            while open_jobs and not service.core.is_open(*open_jobs[-1]):
                open_jobs.pop()
            if not open_jobs:
                break

    return await whole_answer(
        request,
        readers,
        ReadingKind.NAMED,
        lambda: _whole_listing(daemon, caller, TaskFilter(requested)),
    )


@router.get("/jobs/{job}/story", response_model=Story)
async def story(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    readers: CurrentReaders,
    job: str,
    limit: PageLimit = None,
    cursor: PageCursor = None,
) -> Response:
    """List the events of a job. Pages as of GET /jobs."""
    after = BEFORE_STORY if cursor is None else decode_cursor(cursor, 2)

    def read_page() -> Response:
        job_id, index = find_visible_job(daemon.ledger, caller, job)
        lines, next_after = daemon.ledger.story_page(
            job_id, index, (after[0], after[1]), limit or MAX_PAGE
        )
        versions = daemon.ledger.policy_history()
        rows = [_event_row(line, versions) for line in lines]
        answer = encoded({"job": job_id, "events": rows})
        if next_after is not None:
            answer.headers[NEXT_CURSOR_HEADER] = encode_cursor(*next_after)
        return answer

    if limit is not None or cursor is not None:
        return await readers.run(request, ReadingKind.LISTING, read_page)

    def events() -> Iterator[bytes]:
        job_id, index = find_visible_job(daemon.ledger, caller, job)
        versions = daemon.ledger.policy_history()
        portions = (
            msgspec.json.encode([_event_row(event, versions) for event in portion])
            for portion in daemon.ledger.story_portions(job_id, index)
        )
        yield from joined(b'{"job":%d,"events":[' % job_id, portions, b"]}")

    return await whole_answer(request, readers, ReadingKind.LISTING, events)


@router.get("/jobs/{job}/output")
async def output(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    readers: CurrentReaders,
    job: str,
) -> OutputPaths:
    """Return the output paths of a task; `%N` stays until its node is known."""

    def find_paths() -> OutputPaths:
        return _output_paths(daemon, *find_visible_job(daemon.ledger, caller, job))

    return await readers.run(request, ReadingKind.NAMED, find_paths)


def _event_row(event: dict[str, Any], versions: PolicyHistory) -> StoryEvent:
    """Return a row of `story --json`."""
    return {
        "time": iso(event["time"]),
        "task": event["task_index"] if event["array"] else None,
        "attempt": event["attempt"] or None,
        "event": event["task_event"],
        "from": event["before"],
        "to": event["after"],
        "cluster": event["cluster"],
        "reason": event["reason"],
        "cause": event["cause"],
        "policy": versions.version_at(event["event"]),
    }


def _output_paths(daemon: Daemon, job_id: int, index: int | None) -> OutputPaths:
    """Return the output paths of a job or task. ApiError if they differ by task."""
    job_row = daemon.ledger.job_row(job_id)
    assert job_row is not None
    payload = msgspec.json.decode(job_row["payload"])
    paths = {"output": payload["output"], "error": payload["error"]}
    if index is None and any(path and varies_by_task(path) for path in paths.values()):
        named = TaskFilter([(job_id, None)])
        first_index = daemon.ledger.status_page(named, BEFORE_ALL, 1).rows[0]["task_index"]
        raise ApiError(
            422, f"job {job_id} has a file for each task; name a task, as {job_id}_{first_index}"
        )
    first_nodes = [first_node(node_list) for node_list in daemon.ledger.nodes(job_id, index or 0)]
    node = (first_nodes and first_nodes[-1]) or "%N"
    array = parse_array(job_row["array"]) if job_row["array"] else None
    number = task_number(job_id, array, index or 0)
    output, error = (
        path and expand_task_fields(path, index or 0, number, node) for path in paths.values()
    )
    return {"output": output, "error": error}


def _job_row(row: dict[str, Any], service: SchedulerService | None, caller: Caller) -> JobRow:
    """Return a row of `status --json`, for others without what their managers said of the job."""
    expectation = estimate = None
    if service is not None and row["state"] in (State.PENDING, State.QUEUED):
        task_id = row["job"], row["task_index"]
        expectation, estimate = service.expected_start(task_id), service.estimate(task_id)
    return JobRow(
        job=row["job"],
        array=row["array"],
        task=row["task_index"] if row["array"] else None,
        name=row["name"],
        user=row["user"],
        state=row["state"],
        reason=row["reason"] if caller.may_read(row["user"]) else public_reason(row["reason"]),
        priority=row["priority"],
        cluster=row["cluster"],
        native_id=row["native_id"],
        submitted=iso(row["submitted"]),
        expected_start=iso(shown_start(expectation, estimate)),
        expected_early=iso(estimate.start.early) if estimate else None,
        expected_late=iso(estimate.start.late) if estimate else None,
        started=iso(row["started"]),
        ended=iso(row["ended"]),
        exit_code=_shell_exit_code(row["exit_code"], row["signal"]),
    )


def _shell_exit_code(code: int | None, signal: int | None) -> int | None:
    """Return the exit code as a shell reports it: 128 + signal if a signal ended the job."""
    return 128 + signal if signal else code


async def _stored_changes(daemon: Daemon, room: Wait, timeout: float) -> AsyncIterator[None]:
    """Yield at once, then after each stored change, at most ten times a second.

    Ends after `timeout` seconds, when the daemon stops, or when `room` is for another.
    """
    deadline = time.monotonic() + timeout
    while True:
        service = daemon.service
        changed = service.state_changed if service else daemon.service_runs
        yield
        remaining = deadline - time.monotonic()
        if remaining <= 0 or daemon.stopping or room.is_over:
            return
        try:
            async with asyncio.timeout(remaining) as room.timeout:
                await changed.wait()
        except TimeoutError:
            continue
        await asyncio.sleep(0.1)
