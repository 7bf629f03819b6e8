"""The view of licences: their tokens, holders and waiting tasks; and each over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import Response
from markupsafe import Markup

from metasched.api.licences import licence_history, licence_servers, licences
from metasched.api.pages import KeyPage, PageCursor, decode_key
from metasched.api.readers import CurrentReaders
from metasched.api.request import CurrentCaller, CurrentService
from metasched.web.api_calls import answer_of
from metasched.web.charts import stacked
from metasched.web.filters import Filter
from metasched.web.rendering import page

ROWS = 50  # licences of a page, each with its holders
SPANS = {"6 hours": 6, "1 day": 24, "7 days": 7 * 24, "31 days": 31 * 24}  # hours, of a history

router = APIRouter()

Row = Mapping[str, Any]


class TokenPlot(NamedTuple):
    """A plot of tokens over time."""

    heading: str
    parts: tuple[str, ...]  # names of the colours
    picture: Markup
    highest: int  # of the axis


@router.get("/licences")
async def show_licences(
    request: Request,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    cursor: PageCursor = None,
) -> Response:
    after = None if cursor is None else decode_key(cursor, 1)
    listed = await answer_of(
        request, licences(request, caller, service, readers, KeyPage(after, ROWS, True))
    )
    return page(
        request,
        "licences.html",
        licences=listed.content,
        servers=await licence_servers(caller, service),
        cursor=cursor,
        next_cursor=listed.next_cursor,
    )


@router.get("/licences/{name}")
async def show_licence(
    request: Request,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    name: str,
    span: Filter = "1 day",
) -> Response:
    """`span` is one of `SPANS`; for others the shortest counts."""
    hours = SPANS.get(span, min(SPANS.values()))
    answer = await answer_of(
        request, licence_history(request, caller, service, readers, name, hours)
    )
    history: Row = answer.content
    begin, seconds = datetime.fromisoformat(history["since"]), history["seconds"]
    slots = [begin + timedelta(seconds=seconds * n) for n in range(history["periods"] + 1)]
    by_begin = {datetime.fromisoformat(row["begin"]): row for row in history["rows"]}
    rows = [by_begin.get(slot) for slot in slots[:-1]]
    return page(
        request,
        "licence.html",
        licence=name,
        spans=list(SPANS),
        chosen=next(label for label, length in SPANS.items() if length == hours),
        minutes=seconds / 60,
        plots=list(_plots(name, slots, rows)),
        times=[slots[at].isoformat(timespec="milliseconds") for at in (0, len(slots) // 2, -1)],
        rows=[row for row in reversed(rows) if row is not None],
    )


def _plots(
    licence: str, slots: Sequence[datetime], rows: Sequence[Row | None]
) -> Iterator[TokenPlot]:
    """Yield plots of the tokens in use below the total, of free tokens, and of requested tokens."""
    names = [f"{slot:%Y-%m-%d %H:%M} UTC" for slot in slots[:-1]]
    present = [row for row in rows if row is not None]
    if not present:
        return
    totals = [None if row is None else row["total"] for row in rows]
    most = max(total or 0 for total in totals)
    for heading, figures, limits in (
        ("in use", {"leased": "ours", "used outside": "outside"}, totals),
        ("free", {"free": "free"}, totals),
        ("waited for", {"waited for": "waiting"}, ()),
    ):
        heights = [
            [0 if row is None else row[figure] or 0 for row in rows] for figure in figures.values()
        ]
        peak = max(map(sum, zip(*heights, strict=True)))
        highest = max(peak, most) if limits else peak
        label = f"Tokens of {licence} {heading}, from {names[0]} to {names[-1]}: at most {peak}"
        picture = stacked(names, list(figures), heights, highest, label, limits)
        yield TokenPlot(heading, tuple(figures), picture, highest)
