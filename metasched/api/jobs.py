"""What is told of jobs: how they are, their stories, where they write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from fastapi.responses import Response

from metasched.api.request import Running, Serving, Who
from metasched.api.selection import RECENT, ids, known, owners, states
from metasched.daemon.service import Daemon, Engine
from metasched.errors import Wrong
from metasched.model.job import State
from metasched.model.output_paths import differs, filled, first_node
from metasched.units import iso

LONGEST_WAIT = 60.0  # seconds

router = APIRouter()


@router.get("/jobs")
def status(
    daemon: Serving,
    who: Who,
    job: Annotated[list[str] | None, Query()] = None,
    user: str | None = None,
    state: str | None = None,
    since: float | None = None,
    all: bool = False,
) -> Response:
    wanted = ids(job) if job else None
    if wanted is not None:
        who.may_see(owners(daemon, wanted))
    elif user is not None:
        who.may_see([user])
    elif not who.sees_all:
        user = who.user
    rows = daemon.ledger.status(
        wanted,
        user=user,
        states=states(state),
        since=since,
        ended_since=None if all or wanted else time.time() - RECENT,
    )
    # written here, in a thread: it would be checked and written by the one that sends jobs
    told = msgspec.json.encode([_row(row, daemon.engine) for row in rows])
    return Response(told, media_type="application/json")


@router.get("/jobs/wait")
async def wait(
    daemon: Serving,
    who: Who,
    running: Running,
    job: Annotated[list[str], Query()],
    timeout: Annotated[float, Query(ge=0)] = 30.0,
) -> list[dict[str, Any]]:
    wanted = ids(job)
    who.may_see(owners(daemon, wanted))
    async for _change in _changes(daemon, min(timeout, LONGEST_WAIT)):
        if daemon.engine is not running or not any(
            running.core.is_open(id, index) for id, index in wanted
        ):
            break
    return [_row(row, daemon.engine) for row in daemon.ledger.status(wanted)]


@router.get("/jobs/{job}/story")
def story(daemon: Serving, who: Who, job: str) -> dict[str, Any]:
    id, index = known(daemon, who, job)
    return {
        "job": id,
        "events": [
            {
                "time": iso(line["time"]),
                "task": line["task_index"] if line["array"] else None,
                "attempt": line["attempt"] or None,
                "event": line["what"],
                "from": line["before"],
                "to": line["after"],
                "cluster": line["cluster"],
                "reason": line["reason"],
                "cause": line["cause"],
            }
            for line in daemon.ledger.story(id, index)
        ],
    }


@router.get("/jobs/{job}/output")
def output(daemon: Serving, who: Who, job: str) -> dict[str, Any]:
    """Where one task writes. Wrong if it must be named first, or its node is not known yet."""
    id, index = known(daemon, who, job)
    stored = daemon.ledger.of_job(id)
    assert stored is not None
    payload = msgspec.json.decode(stored["payload"])
    paths = {"output": payload["output"], "error": payload["error"]}
    if index is None and any(path and differs(path) for path in paths.values()):
        first = daemon.ledger.status([(id, None)])[0]["task_index"]
        raise Wrong(422, f"job {id} has a file for each task; name one, as {id}_{first}")
    ran_on = [first_node(nodes) for nodes in daemon.ledger.nodes(id, index or 0)]
    node = (ran_on and ran_on[-1]) or "%N"
    return {kind: path and filled(path, index or 0, node) for kind, path in paths.items()}


def _row(row: dict[str, Any], running: Engine | None) -> dict[str, Any]:
    """A row of `status --json`."""
    expected = None
    if running is not None and row["state"] == State.PENDING:
        expected = running.expected((row["job"], row["task_index"]))
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
        "expected_start": iso(expected.start) if expected else None,
        "started": iso(row["started"]),
        "ended": iso(row["ended"]),
        "exit_code": _exit_code(row["exit_code"], row["signal"]),
    }


def _exit_code(code: int | None, signal: int | None) -> int | None:
    """As a shell gives it: 128 + the signal that ended it."""
    return 128 + signal if signal else code


async def _changes(daemon: Daemon, timeout: float) -> AsyncIterator[None]:
    """Now, then after each stored change, until the time-out or the daemon's end.

    At most ten times a second.
    """
    deadline = time.monotonic() + timeout
    while True:
        running = daemon.engine
        changed = running.changed if running else asyncio.Event()
        yield
        left = deadline - time.monotonic()
        if left <= 0 or daemon.stopping:
            return
        try:
            async with asyncio.timeout(left):
                await changed.wait()
        except TimeoutError:
            continue
        await asyncio.sleep(0.1)
