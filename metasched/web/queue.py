"""The view of the queue: tasks by filters, in the pages of the API."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from metasched.api.jobs import ListedJobs, details
from metasched.api.readers import CurrentReaders
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.model.job import MANAGER_REASON, Reason, State
from metasched.web.api_calls import answer_of
from metasched.web.filters import Filter
from metasched.web.job_acts import ACTS
from metasched.web.rendering import page

ROWS = 100  # of a page

router = APIRouter()


@router.get("/queue")
async def show_queue(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    user: Filter = "",
    state: Filter = "",
    reason: Filter = "",
    cluster: Filter = "",
    licence: Filter = "",
    array: Filter = "",
    ended: Filter = "",
    cursor: Filter = "",
) -> Response:
    """`array` names a job; `ended` lists those that ended more than an hour ago, too."""
    chosen = {
        "user": user.strip(),
        "state": state,
        "reason": reason,
        "cluster": cluster,
        "licence": licence,
        "array": array.strip(),
        "ended": ended,
    }
    query = ListedJobs(
        job=[chosen["array"]] if chosen["array"] else [],
        user=chosen["user"] or None,
        state=state or None,
        all=bool(ended),
        cluster=cluster or None,
        reason=reason or None,
        licence=licence or None,
        limit=ROWS,
        cursor=cursor or None,
    )
    tasks = await answer_of(request, details(request, daemon, caller, readers, query))
    return page(
        request,
        "queue.html",
        tasks=tasks.content,
        chosen=chosen,
        states=list(State),
        reasons=[*Reason, MANAGER_REASON],
        clusters=[each.name for each in service.core.clusters],
        licences=[pool.name for pool in service.settings.licences],
        acts=[(name, act.label) for name, act in ACTS.items() if not act.for_operators],
        cursor=cursor,
        next_cursor=tasks.next_cursor,
    )
