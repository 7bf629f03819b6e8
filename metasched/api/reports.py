"""The route of reports: use, waits, deadlines and licences of a period. See `db.reports`."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from metasched.api.answers import encoded
from metasched.api.identity import Caller, ForbiddenError
from metasched.api.readers import CurrentReaders, ReadingKind
from metasched.api.request import CurrentCaller, CurrentDaemon
from metasched.client.site_answers import Report
from metasched.db.reports import (
    TIME_KEYS,
    ReportKey,
    ReportKind,
    ReportQuery,
    ReportTooLarge,
    Row,
)
from metasched.errors import ApiError, quote_for_error

MAX_NAME = 256  # characters of a filter
_FILTER = Query(max_length=MAX_NAME)

router = APIRouter()


@router.get("/reports/{kind}", response_model=Report)
async def report(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    readers: CurrentReaders,
    kind: ReportKind,
    by: Annotated[list[ReportKey] | None, Query(max_length=len(ReportKey))] = None,
    since: Annotated[date | None, Query(description="first day; this month's")] = None,
    until: Annotated[date | None, Query(description="day after the last; tomorrow")] = None,
    user: Annotated[str | None, _FILTER] = None,
    group: Annotated[str | None, _FILTER] = None,
    account: Annotated[str | None, _FILTER] = None,
    user_class: Annotated[str | None, Query(alias="class", max_length=MAX_NAME)] = None,
    cluster: Annotated[str | None, _FILTER] = None,
    licence: Annotated[str | None, _FILTER] = None,
    largest: Annotated[
        int | None,
        Query(ge=1, le=100, description="values of the first key with rows of their own"),
    ] = None,
) -> Response:
    """Return a report of the jobs, or leases, that ended in a period, by the days of the site.

    Operators see the use of all users, others their own.
    """
    if licence is not None and kind is not ReportKind.LICENCES:
        raise ApiError(422, f"report {kind} is not of licences; leave out the licence")
    if largest is not None and kind is not ReportKind.USE:
        raise ApiError(422, f"report {kind} has a row for each value; leave out `largest`")
    now = datetime.now().astimezone()
    first = now.date().replace(day=1) if since is None else since
    end = now.date() + timedelta(days=1) if until is None else until
    if first >= end:
        raise ApiError(
            422, f"the period from {first} until {end} is empty; give a later day as `until`"
        )
    query = ReportQuery(
        kind=kind,
        first=_day(first),
        last=_day(end - timedelta(days=1)),
        by=tuple(dict.fromkeys(by or ())),
        user=_visible_user(caller, user),
        group=group,
        account=account,
        user_class=user_class,
        cluster=cluster,
        licence=licence,
        largest=largest,
    )
    _check_filters(query)

    def read() -> Report:
        try:
            rows, total = daemon.ledger.report(query)
        except ReportTooLarge as error:
            raise ApiError(
                422, f"{error}; choose a shorter period or a filter, or leave out a key of --by"
            ) from None
        return {
            "report": kind,
            "since": first.isoformat(),
            "until": end.isoformat(),
            "time_zone": now.tzname(),
            "by": list(query.by),
            "rows": _in_order(
                [_key_values(row, query) | _figures(kind, row, total) for row in rows], query
            ),
            "total": _figures(kind, total, total),
        }

    return encoded(await readers.run(request, ReadingKind.LISTING, read, until_answered=False))


def _day(day: date) -> int:
    return day.year * 10000 + day.month * 100 + day.day


def _visible_user(caller: Caller, user: str | None) -> str | None:
    """Return the only user whose use the caller gets; None: all. ForbiddenError."""
    if caller.operator:
        return user
    if user not in (None, caller.user):
        name = quote_for_error(user or "")
        raise ForbiddenError(
            f"only operators see the use of {name}, and you are {caller.user}; leave out --user"
        )
    return caller.user


def _check_filters(query: ReportQuery) -> None:
    """Refuse a name that no database stores."""
    for key, name in query.filters.items():
        if not name.isprintable():
            raise ApiError(422, f"{quote_for_error(name)} is no name, {key}; write it as listed")


def _key_values(row: Row, query: ReportQuery) -> Row:
    """Return licence and keys of a row, with months and days as users write them."""
    values = {name: row[name] for name in ("licence", *query.by) if name in row}
    for key, size in ((ReportKey.MONTH, 6), (ReportKey.DAY, 8)):
        if key in values:
            text = f"{values[key]:0{size}}"
            values[key] = "-".join((text[:4], *(text[i : i + 2] for i in range(4, size, 2))))
    return {str(name): value for name, value in values.items()}


def _figures(kind: ReportKind, sums: Row, total: Row) -> Row:
    """Return the figures of a row, from its sums and those of all rows. Durations in seconds."""
    if kind is ReportKind.USE:
        return {
            **{name: sums[name] for name in ("jobs", "completed", "failed", "timed_out")},
            **{name: sums[name] for name in ("cancelled", "elapsed")},
            "cpu_seconds": sums["cpu_allocated"],
            "share": _ratio(sums["cpu_allocated"], total["cpu_allocated"]),
            "cpu_seconds_used": sums["cpu_used"],
            "efficiency": _ratio(sums["cpu_used"], sums["cpu_measured"]),
            "node_seconds": sums["node_seconds"],
            "gpu_seconds": sums["gpu_seconds"],
            "cpu_seconds_outside": sums["cpu_outside"],
        }
    if kind is ReportKind.WAITS:
        return {
            "jobs": sums["starts"],
            "mean_wait": _ratio(sums["wait"], sums["starts"]),
            "median_wait": sums["median"],
            "p90_wait": sums["p90"],
            "max_wait": sums["max_wait"],
            "mean_bounded_slowdown": _ratio(sums["slowdown"], sums["starts"]),
        }
    if kind is ReportKind.DEADLINES:
        return {
            "jobs": sums["deadlines"],
            "met": sums["met"],
            "missed": sums["missed"],
            "missed_deadlines": _ratio(sums["missed"], sums["deadlines"]),
            "mean_tardiness": _ratio(sums["lateness"], sums["missed"]),
            "max_tardiness": sums["max_lateness"],
        }
    return {
        "leases": sums["leases"],
        "token_seconds": sums["token_seconds"],
        "mean_wait": _ratio(sums["wait"], sums["leases"]),
        "max_wait": sums["max_wait"],
        "peak": sums.get("peak"),
        "total": sums.get("total"),
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


_MAIN_FIGURE = {
    ReportKind.USE: "cpu_seconds",
    ReportKind.WAITS: "jobs",
    ReportKind.DEADLINES: "jobs",
    ReportKind.LICENCES: "token_seconds",
}


def _in_order(rows: list[Row], query: ReportQuery) -> list[Row]:
    """Sort rows by time, then by licence, then by the main figure, largest first."""
    times = [key for key in query.by if key in TIME_KEYS]
    names = [key for key in query.by if key not in TIME_KEYS]

    def order(row: Row) -> tuple[Any, ...]:
        return (
            *(row[key] for key in times),
            row.get("licence", ""),
            -row[_MAIN_FIGURE[query.kind]],
            *((row[key] is None, row[key] or "") for key in names),
        )

    return sorted(rows, key=order)
