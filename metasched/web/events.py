"""The view of audit records, by filters: the last records first, or all from a time on."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter, Request
from fastapi.responses import Response

from metasched.api.events import events
from metasched.api.readers import CurrentReaders
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.errors import ApiError, quote_for_error
from metasched.model.audit import AuditKind
from metasched.web.api_calls import answer_of
from metasched.web.filters import Filter
from metasched.web.rendering import page

ROWS = 100  # of a page

router = APIRouter()


@router.get("/events")
async def show_events(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    user: Filter = "",
    cluster: Filter = "",
    job: Filter = "",
    kind: Filter = "",
    since: Filter = "",
    cursor: Filter = "",
) -> Response:
    """`since` is a day in UTC, from which on records are in the order of time."""
    chosen = {
        "user": user.strip(),
        "cluster": cluster,
        "job": job.strip(),
        "kind": kind,
        "since": since,
    }
    is_newest = not since and not cursor
    rows = await answer_of(
        request,
        events(
            request,
            daemon,
            caller,
            readers,
            since=_day(since) if since else None,
            until=None,
            user=chosen["user"] or None,
            cluster=cluster or None,
            job=_job(chosen["job"]) if chosen["job"] else None,
            kind=_kind(kind) if kind else None,
            newest=is_newest,
            wait=0.0,
            limit=ROWS,
            cursor=cursor or None,
        ),
    )
    records = rows.content
    return page(
        request,
        "events.html",
        records=records[::-1] if is_newest else records,
        is_newest=is_newest,
        chosen=chosen,
        kinds=sorted(AuditKind),
        clusters=[each.name for each in service.core.clusters],
        # the API always returns a cursor: later records will follow it
        next_cursor=rows.next_cursor if len(records) == ROWS and not is_newest else None,
    )


def _day(text: str) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise ApiError(422, f"since {quote_for_error(text)}; write a day, as 2026-11-26") from None


def _job(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 19 and int(text)):
        raise ApiError(422, f"job {quote_for_error(text)}; write its number, as 17")
    return int(text)


def _kind(text: str) -> AuditKind:
    try:
        return AuditKind(text)
    except ValueError:
        raise ApiError(422, f"kind {quote_for_error(text)}; choose one of the list") from None
