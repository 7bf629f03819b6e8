"""Routes that report jobs: status, waiting for the end, story, output paths."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from fastapi.responses import Response

from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService, ReadingTurn
from metasched.api.selection import (
    RECENTLY_ENDED,
    find_owners,
    find_visible_job,
    parse_job_ids,
    parse_states,
)
from metasched.daemon.service import Daemon, SchedulerService
from metasched.errors import ApiError
from metasched.model.job import State
from metasched.model.output_paths import expand_task_fields, first_node, varies_by_task
from metasched.units import iso

MAX_WAIT = 60.0  # seconds

router = APIRouter()


@router.get("/jobs")
def status(
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    _: ReadingTurn,
    job: Annotated[list[str] | None, Query()] = None,
    user: str | None = None,
    state: str | None = None,
    since: float | None = None,
    all: bool = False,
) -> Response:
    requested = parse_job_ids(job) if job else None
    if requested is not None:
        find_owners(daemon, caller, requested)
    elif user is not None:
        caller.require_visible([user])
    elif not caller.sees_all:
        user = caller.user
    rows = daemon.ledger.status(
        requested,
        user=user,
        states=parse_states(state),
        since=since,
        ended_since=None if all or requested else time.time() - RECENTLY_ENDED,
    )
    # encoded in this worker thread: FastAPI would validate and encode it in the event loop
    body = msgspec.json.encode([_status_row(row, daemon.service) for row in rows])
    return Response(body, media_type="application/json")


@router.get("/jobs/wait")
async def wait(
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    service: CurrentService,
    job: Annotated[list[str], Query()],
    timeout: Annotated[float, Query(ge=0)] = 30.0,
) -> list[dict[str, Any]]:
    requested = parse_job_ids(job)
    find_owners(daemon, caller, requested)
    async for _change in _stored_changes(daemon, min(timeout, MAX_WAIT)):
        if daemon.service is not service or not any(
            service.core.is_open(job_id, index) for job_id, index in requested
        ):
            break
    return [_status_row(row, daemon.service) for row in daemon.ledger.status(requested)]


@router.get("/jobs/{job}/story")
def story(daemon: CurrentDaemon, caller: CurrentCaller, _: ReadingTurn, job: str) -> dict[str, Any]:
    job_id, index = find_visible_job(daemon, caller, job)
    return {
        "job": job_id,
        "events": [
            {
                "time": iso(event["time"]),
                "task": event["task_index"] if event["array"] else None,
                "attempt": event["attempt"] or None,
                "event": event["what"],
                "from": event["before"],
                "to": event["after"],
                "cluster": event["cluster"],
                "reason": event["reason"],
                "cause": event["cause"],
            }
            for event in daemon.ledger.story(job_id, index)
        ],
    }


@router.get("/jobs/{job}/output")
def output(
    daemon: CurrentDaemon, caller: CurrentCaller, _: ReadingTurn, job: str
) -> dict[str, Any]:
    """Return the output paths of a task; `%N` stays until its node is known."""
    job_id, index = find_visible_job(daemon, caller, job)
    job_row = daemon.ledger.job_row(job_id)
    assert job_row is not None
    payload = msgspec.json.decode(job_row["payload"])
    paths = {"output": payload["output"], "error": payload["error"]}
    if index is None and any(path and varies_by_task(path) for path in paths.values()):
        first_index = daemon.ledger.status([(job_id, None)])[0]["task_index"]
        raise ApiError(
            422, f"job {job_id} has a file for each task; name a task, as {job_id}_{first_index}"
        )
    first_nodes = [first_node(node_list) for node_list in daemon.ledger.nodes(job_id, index or 0)]
    node = (first_nodes and first_nodes[-1]) or "%N"
    return {
        stream: path and expand_task_fields(path, index or 0, node)
        for stream, path in paths.items()
    }


def _status_row(row: dict[str, Any], service: SchedulerService | None) -> dict[str, Any]:
    """Return a row of `status --json`."""
    expectation = None
    if service is not None and row["state"] == State.PENDING:
        expectation = service.expected_start((row["job"], row["task_index"]))
    return {
        "job": row["job"],
        "array": row["array"],
        "task": row["task_index"] if row["array"] else None,
        "name": row["name"],
        "user": row["user"],
        "state": row["state"],
        "reason": row["reason"],
        "priority": row["priority"],
        "cluster": row["cluster"],
        "native_id": row["native_id"],
        "submitted": iso(row["submitted"]),
        "expected_start": iso(expectation.start) if expectation else None,
        "started": iso(row["started"]),
        "ended": iso(row["ended"]),
        "exit_code": _shell_exit_code(row["exit_code"], row["signal"]),
    }


def _shell_exit_code(code: int | None, signal: int | None) -> int | None:
    """Return the exit code as a shell reports it: 128 + signal if a signal ended the job."""
    return 128 + signal if signal else code


async def _stored_changes(daemon: Daemon, timeout: float) -> AsyncIterator[None]:
    """Yield at once, then after each stored change, at most ten times a second.

    Ends after `timeout` seconds, or when the daemon stops.
    """
    deadline = time.monotonic() + timeout
    while True:
        service = daemon.service
        changed = service.state_changed if service else asyncio.Event()
        yield
        remaining = deadline - time.monotonic()
        if remaining <= 0 or daemon.stopping:
            return
        try:
            async with asyncio.timeout(remaining):
                await changed.wait()
        except TimeoutError:
            continue
        await asyncio.sleep(0.1)
