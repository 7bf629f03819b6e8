"""The view of a job: its state and why, each cluster's verdict, its story, output and use."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from metasched.api.explanations import explain
from metasched.api.jobs import ListedJobs, details, output, story
from metasched.api.pages import PageCursor
from metasched.api.readers import CurrentReaders
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.errors import ApiError
from metasched.web.api_calls import answer_of
from metasched.web.job_acts import offered_acts
from metasched.web.output import OutputReader, Tail
from metasched.web.rendering import page

TASKS = 50  # of an array
EVENTS = 200  # of a story

router = APIRouter()


@router.get("/jobs/{job}")
async def show_job(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    job: str,
    cursor: PageCursor = None,
) -> Response:
    """`cursor`: of the page of the story."""
    query = ListedJobs(
        job=[job],
        limit=TASKS,
    )
    tasks = await answer_of(request, details(request, daemon, caller, readers, query))
    explanation: dict[str, Any] | None = None
    events: list[dict[str, Any]] = []
    next_cursor = None
    is_own = tasks.content[0]["user"] == caller.user or caller.operator
    if is_own:  # a site may list the jobs of others; it does not explain them
        explained = await answer_of(
            request, explain(request, daemon, caller, service, readers, job)
        )
        explanation = explained.content
        history = await answer_of(
            request, story(request, daemon, caller, readers, job, EVENTS, cursor)
        )
        events, next_cursor = history.content["events"], history.next_cursor
    task = _task_of(tasks.content, explanation)
    tails: list[Tail] = []
    is_readable = daemon.settings.site is None or task["user"] == caller.user
    if is_readable and (task["started"] or task["ended"]):
        tails = await _tails(request, daemon, caller, readers, task)
    return page(
        request,
        "job.html",
        job=job,
        task=task,
        tasks=tasks.content,
        more_tasks=tasks.next_cursor is not None,
        explanation=explanation,
        events=events,
        cursor=cursor,
        next_cursor=next_cursor,
        tails=tails,
        acts=offered_acts(tasks.content, caller),
        is_readable=is_readable,
    )


def _task_of(tasks: list[dict[str, Any]], explanation: dict[str, Any] | None) -> dict[str, Any]:
    """Return the task that is explained, else the first."""
    if explanation is not None:
        for task in tasks:
            if task["task"] == explanation["task"]:
                return task
    return tasks[0]


async def _tails(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    readers: CurrentReaders,
    task: dict[str, Any],
) -> list[Tail]:
    """Return the ends of a task's output and errors."""
    reference = str(task["job"])
    if task["task"] is not None:
        reference += f"_{task['task']}"
    try:
        paths = await output(request, daemon, caller, readers, reference)
    except ApiError:
        return []
    reader: OutputReader = request.app.state.output_reader
    return [
        await reader.read(daemon.settings.launcher, task["user"], task["directory"], path)
        for path in (paths["output"], paths["error"])
        if path
    ]
