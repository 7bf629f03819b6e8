"""The route that lists the calendar: acts of the site that recur, and series of reservations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from metasched.api.answers import encoded
from metasched.api.pages import RequestedPage
from metasched.api.readers import CurrentReaders, ReadingKind
from metasched.api.request import CurrentCaller, CurrentService
from metasched.client.site_answers import CalendarRow
from metasched.daemon.calendar_runner import recurrence_of
from metasched.errors import ParseError
from metasched.model.calendar import BackUpDatabase, CalendarEntry
from metasched.model.units import iso

MAX_RUNS = 50  # of an entry in an answer

router = APIRouter()


@router.get("/calendar", response_model=list[CalendarRow])
async def calendar(
    request: Request,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    page: RequestedPage,
    runs: Annotated[int, Query(ge=1, le=MAX_RUNS)] = 1,
) -> Response:
    """List the entries of the calendar by id, each with its next `runs` times.

    A caller who may not see the jobs of all users sees his own series, and the site's entries.
    """
    every = list(service.core.calendar.entries.values())  # may be tens of thousands

    def answer() -> Response:
        entries = sorted(
            (
                entry
                for entry in every
                if entry.id > page.after and (not entry.owner or caller.may_list(entry.owner))
            ),
            key=lambda entry: entry.id,
        )
        if page.requested:
            entries = entries[: page.size + 1]
        rows = [calendar_row(entry, runs, caller.operator) for entry in entries]
        return page.answer(rows, "entry") if page.requested else encoded(rows)

    return await readers.run(request, ReadingKind.LISTING, answer)


def calendar_row(entry: CalendarEntry, runs: int, is_operator: bool) -> CalendarRow:
    """Return a row of `calendar --json`; only operators see where copies are."""
    folder = entry.act.folder if isinstance(entry.act, BackUpDatabase) else None
    return {
        "entry": entry.id,
        "name": entry.name or None,
        "does": entry.describe(),
        "rule": entry.rule,
        "zone": entry.zone,
        "next": [iso(moment) for moment in _next_runs(entry, runs)],
        "last": iso(entry.last_runs[-1]) if entry.last_runs else None,
        "running": iso(entry.running),
        "grace": entry.grace,
        "until": iso(entry.until),
        "owner": entry.owner or None,
        "made_by": entry.requested_by or None,
        "made": iso(entry.created),
        "folder": folder if is_operator else None,
    }


def _next_runs(entry: CalendarEntry, runs: int) -> Iterator[float]:
    moment = entry.next_run
    while moment is not None and runs:
        yield moment
        runs -= 1
        try:
            moment = recurrence_of(entry.rule, entry.zone).next_after(moment) if runs else None
        except ParseError:  # this host has no such zone any more
            return
        if moment is not None and entry.until is not None and moment > entry.until:
            return
