"""The route that lists audit records: what operators, clusters, licences and reservations did.

Operators see all. Others see the records of their own jobs, reservations and tokens; of public
records, as of clusters and licences, they see neither who acted nor why.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from metasched.api.answers import encoded
from metasched.api.connections import OpenConnections
from metasched.api.identity import Caller, ForbiddenError
from metasched.api.modifications import MAX_EPOCH
from metasched.api.pages import (
    MAX_NUMBER,
    PageCursor,
    PageLimit,
    decode_cursor,
    encode_cursor,
)
from metasched.api.readers import CurrentReaders, ReadingKind
from metasched.api.request import CurrentCaller, CurrentDaemon
from metasched.client.site_answers import EventRow
from metasched.daemon.audit_log import readable
from metasched.db.audit import AuditFilter
from metasched.model.audit import PUBLIC, AuditKind
from metasched.model.units import iso
from metasched.paths import NEXT_CURSOR_HEADER

PAGE = 1000  # rows, if the request does not say how many
MAX_WAIT = 30.0  # seconds
FOLLOW_PAUSE = 0.5  # seconds between two looks for new records of a request
_HIDDEN: dict[str, Any] = {"actor": None, "owner": None, "cause": None, "details": {}}

router = APIRouter()


@router.get("/events", response_model=list[EventRow])
async def events(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    readers: CurrentReaders,
    since: Annotated[float, Query(ge=0, le=MAX_EPOCH)] | None = None,
    until: Annotated[float, Query(ge=0, le=MAX_EPOCH)] | None = None,
    user: str | None = None,
    cluster: str | None = None,
    job: Annotated[int, Query(ge=1, le=MAX_NUMBER)] | None = None,
    kind: AuditKind | None = None,
    newest: bool = False,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT)] = 0.0,
    limit: PageLimit = None,
    cursor: PageCursor = None,
) -> Response:
    """List records by id, always a page; Metasched-Next-Cursor is where the next page begins.

    `newest`: the last records, and the cursor is behind all. `wait`: if there is none, wait so
    many seconds for a record.
    """
    if not caller.operator and user not in (None, caller.user):
        raise ForbiddenError(
            f"only operators see events of {user}, and you are {caller.user}; leave out --user"
        )
    audit_filter = AuditFilter(
        since=since,
        until=until,
        user=user,
        cluster=cluster,
        job=job,
        kind=kind,
        visible_to=None if caller.operator else caller.user,
    )
    [after] = (0,) if cursor is None else decode_cursor(cursor, 1)

    def read_page() -> tuple[list[dict[str, Any]], int]:
        rows, position = daemon.ledger.audit_page(audit_filter, after, limit or PAGE, newest=newest)
        return [_event_row(row, caller) for row in rows], position

    deadline = time.monotonic() + wait
    connections: OpenConnections = request.state.connections
    added = daemon.audit_added
    rows, position = await readers.run(
        request, ReadingKind.LISTING, read_page, until_answered=False
    )
    if wait and not rows:
        with connections.waiting(caller.user) as room:
            while not (rows or room.is_over or daemon.stopping):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                try:
                    async with asyncio.timeout(remaining) as room.timeout:
                        await added.wait()
                except TimeoutError:
                    continue
                await asyncio.sleep(FOLLOW_PAUSE)
                added, after = daemon.audit_added, position
                rows, position = await readers.run(
                    request, ReadingKind.LISTING, read_page, until_answered=False
                )
    answer = encoded(rows)
    answer.headers[NEXT_CURSOR_HEADER] = encode_cursor(position)
    return answer


def _event_row(row: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Return a row of `events --json`."""
    is_public = row["owner"] == PUBLIC
    shown = {
        "id": row["id"],
        "time": iso(row["time"]),
        "kind": row["kind"],
        "actor": row["actor"] or None,
        "owner": row["owner"] or None,
        "cluster": row["cluster"] or None,
        "licence": row["licence"] or None,
        "reservation": row["reservation"],
        "job": row["job"],
        "task": row["task_index"],
        "count": row["count"],
        "cause": row["cause"] or None,
        "details": readable(msgspec.json.decode(row["details"])),
    }
    return shown | _HIDDEN if is_public and not caller.operator else shown
