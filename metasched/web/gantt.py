"""The view of reservations: a Gantt chart of each cluster, with running jobs, and tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import Response
from markupsafe import Markup

from metasched.api.calendar import calendar
from metasched.api.clusters import clusters
from metasched.api.jobs import ListedJobs, details
from metasched.api.pages import IdPage
from metasched.api.readers import CurrentReaders
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.api.reservations import reservations
from metasched.client.reservation_boxes import (
    Box,
    ProcessorShortage,
    ReservationRow,
    epoch_seconds,
    open_rows,
    shortages,
    stack_boxes,
)
from metasched.model.units import iso
from metasched.web.api_calls import answer_of
from metasched.web.rendering import duration_text, page
from metasched.web.visible import visible

ROWS = 200  # reservations, entries of the calendar, clusters; stacking takes O(n²)
MAX_JOBS = 200  # running tasks of all clusters
WIDTH, HEIGHT = 1000, 160  # units of a chart
TICKS = 5  # times below a chart
NO_LIMIT = 86_400.0  # seconds after now for the drawn end of a job without a time limit

router = APIRouter()


class Chart(NamedTuple):
    """The chart of a cluster."""

    cluster: str
    picture: Markup
    shortages: list[tuple[str, str, int]]  # from, until, processors
    cpus: int


@router.get("/reservations")
async def show_reservations(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
) -> Response:
    whole = IdPage(0, ROWS, True)
    listed = await answer_of(request, reservations(request, daemon, caller, readers, whole))
    entries = await answer_of(request, calendar(request, caller, service, readers, whole, 3))
    sizes = await answer_of(request, clusters(request, caller, service, readers, whole))
    query = ListedJobs(
        job=[],
        user=caller.visible_owner,
        state="running",
        limit=MAX_JOBS,
    )
    running = await answer_of(request, details(request, daemon, caller, readers, query))
    now, reserved = time.time(), open_rows(listed.content)
    end = max([now + 3600, *(epoch_seconds(row["end"]) for row in reserved)])
    charts = []
    for cluster in sizes.content:
        name, cpus = cluster["cluster"], cluster["cpus"]
        own = [row for row in reserved if row["cluster"] == name]
        jobs = [_job_row(row, now) for row in running.content if row["cluster"] == name]
        if own:
            charts.append(_chart(name, cpus, jobs, own, now, end))
    moments = [now + (end - now) * tick / (TICKS - 1) for tick in range(TICKS)]
    return page(
        request,
        "reservations.html",
        charts=charts,
        moments=list(map(iso, moments)),
        reservations=listed.content,
        more_reservations=listed.next_cursor is not None,
        open_ids={row["reservation"] for row in reserved},
        series=[row for row in entries.content if row["owner"]],
        more_jobs=running.next_cursor is not None,
    )


def _job_row(row: ReservationRow, now: float) -> dict[str, Any]:
    """Return a running task as a row of a chart, until its time limit."""
    start = row["started"] or iso(now)
    limit = row["time_limit"]
    end = max(epoch_seconds(start) + limit if limit else now + NO_LIMIT, now + 1)
    reference = row["job"] if row["task"] is None else f"{row['job']}_{row['task']}"
    return {"start": start, "end": iso(end), "size": row["cpus"], "job": reference} | {
        key: row[key] for key in ("user", "name", "reservation")
    }


def _chart(
    cluster: str,
    cpus: int,
    jobs: Sequence[ReservationRow],
    reserved: Sequence[ReservationRow],
    now: float,
    end: float,
) -> Chart:
    """Draw jobs beneath reservations. Jobs of a reservation use its processors."""
    outside = [row for row in jobs if row["reservation"] is None]
    boxes = stack_boxes([*outside, *reserved])
    lacking = shortages(boxes, cpus) if cpus else []
    top = max([cpus, *(lowest + size for _, _, lowest, size in boxes)])
    x_scale, y_scale = WIDTH / (end - now), HEIGHT / max(top, 1)
    titles = [
        *(f"job {row['job']} of {row['user']}, {row['name']}" for row in outside),
        *(f"reservation {row['reservation']} of {row['user']}, {row['state']}" for row in reserved),
    ]
    parts = []
    for position, (box, title) in enumerate(zip(boxes, titles, strict=True)):
        kind = "used" if position < len(outside) else "reserved"
        parts.append(_rectangle(box, title, kind, now, end, x_scale, y_scale))
    line = HEIGHT - cpus * y_scale
    label = f"Cluster {cluster}: {len(reserved)} reservations, {len(outside)} running jobs"
    picture = Markup(
        '<svg class="gantt" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}<rect class="limit" y="{:.1f}" width="{}" height="1"/></svg>'
    ).format(WIDTH, HEIGHT, label, Markup().join(parts), max(line, 0), WIDTH)
    return Chart(cluster, picture, list(map(_as_text, lacking)), cpus)


def _rectangle(
    box: Box, title: str, kind: str, now: float, end: float, x_scale: float, y_scale: float
) -> Markup:
    start, stop, lowest, size = box
    begin, right = max(start, now), min(max(stop, now), end)
    about = f"{title}: {size} processors for {duration_text(stop - start)}"
    return Markup(
        '<rect class="{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}">'
        "<title>{}</title></rect>"
    ).format(
        kind,
        (begin - now) * x_scale,
        HEIGHT - (lowest + size) * y_scale,
        max((right - begin) * x_scale, 1),
        size * y_scale,
        visible(about),
    )


def _as_text(shortage: ProcessorShortage) -> tuple[str, str, int]:
    return iso(shortage.start), iso(shortage.end), shortage.cpus
