"""The view of use: the reports of a period, as a plot over time and a table.

It reads the sums of days twice: by the rows of the table, and over time by their first key. It does
not follow changes, since each look costs as much as a report.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import partial
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from markupsafe import Markup

from metasched.api.readers import CurrentReaders
from metasched.api.reports import report
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.db.reports import ReportKey, ReportKind
from metasched.errors import ApiError, quote_for_error
from metasched.model.report_figures import (
    COLUMNS,
    KINDS,
    MAX_PARTS,
    OTHERS,
    PLOTS,
    TIME_KEYS,
    ReportColumn,
    stacked_over_time,
)
from metasched.web.api_calls import answer_of
from metasched.web.charts import columns, stacked
from metasched.web.filters import MAX_FILTER, Filter
from metasched.web.rendering import page

ROWS = 200  # of the table
FIRST_DAY = date(1970, 1, 1)
DAYS = 30  # of the period, if none is chosen
PERIODS = {"7 days": 7, "30 days": 30, "1 year": 365}
MOST_DAYS = 92  # of a period that is plotted by day; longer periods by month
MAX_SLOTS = 400  # columns of a plot
MAX_LICENCES = 50  # whose tokens are plotted
_UNKNOWN = "–"
_DEFAULT_KEYS = {"use": "user", "waits": "cluster", "deadlines": "cluster", "licences": ""}
_MAIN_FIGURES = {
    "use": "cpu_seconds",
    "waits": "jobs",
    "deadlines": "jobs",
    "licences": "token_seconds",
}

router = APIRouter()

Row = Mapping[str, Any]


class TokenUsePlot(NamedTuple):
    """The tokens of a licence over time."""

    licence: str
    picture: Markup  # most tokens leased at a time
    peak: int  # of the period
    total: int  # the most that there were


class TimePlot(NamedTuple):
    """A plot over time."""

    picture: Markup
    unit: str
    highest: float  # of the axis
    times: tuple[str, ...]  # first, middle and last
    parts: list[str | None]  # names of the colours, in their order; None: all others


@router.get("/use")
async def show_use(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    kind: Filter = "use",
    by: Filter | None = None,
    then: Filter = "",
    since: Filter = "",
    until: Filter = "",
    user: Filter = "",
    group: Filter = "",
    account: Filter = "",
    user_class: Annotated[str, Query(alias="class", max_length=MAX_FILTER)] = "",
    cluster: Filter = "",
    licence: Filter = "",
) -> Response:
    """`by` and `then` are the keys of rows; `until` is the day after the period."""
    if kind not in KINDS:
        raise ApiError(422, f"report {quote_for_error(kind)}; choose one of the list")
    first_key = _DEFAULT_KEYS[kind] if by is None else by
    keys = [_key(text) for text in dict.fromkeys((first_key, then)) if text]
    today = datetime.now().astimezone().date()
    end = _day(until) if until else today + timedelta(days=1)
    first = _day(since) if since else end - timedelta(days=DAYS)
    filters = {
        "user": user.strip(),
        "group": group.strip(),
        "account": account.strip(),
        "user_class": user_class.strip(),
        "cluster": cluster,
        "licence": licence if kind == "licences" else "",
    }

    async def read(by: Sequence[ReportKey], largest: int | None = None) -> Row:
        answer = await answer_of(
            request,
            report(
                request,
                daemon,
                caller,
                readers,
                ReportKind(kind),
                list(by),
                first,
                end,
                **{name: text or None for name, text in filters.items()},
                largest=largest,
            ),
        )
        content: Row = answer.content
        return content

    table = await read(keys)
    slot = ReportKey.DAY if (end - first).days <= MOST_DAYS else ReportKey.MONTH
    is_stacked = len(PLOTS[kind].figures) == 1
    parts = [key for key in keys if key not in TIME_KEYS][:1] if is_stacked else []
    # hundreds of users have thousands of rows over time; the plot names a few
    named = MAX_PARTS if kind == "use" and parts else None
    over_time = await _over_time(partial(read, largest=named), slot, parts)
    names = [*(["licence"] if kind == "licences" else []), *map(str, keys)]
    main = _MAIN_FIGURES[kind]
    rows = table["rows"]
    shown = [column for column in COLUMNS[kind] if _is_known(column, rows)]
    return page(
        request,
        "use.html",
        chosen={
            **{name: text for name, text in filters.items() if name != "user_class"},
            "kind": kind,
            "class": filters["user_class"],
            "by": first_key,
            "then": then,
            "since": first.isoformat(),
            "until": end.isoformat(),
        },
        kinds=KINDS,
        keys=[str(key) for key in ReportKey],
        periods={
            label: (today + timedelta(days=1 - days)).isoformat() for label, days in PERIODS.items()
        },
        clusters=[each.name for each in service.core.clusters],
        licences=[pool.name for pool in service.settings.licences],
        others=OTHERS,
        plot=_plot(kind, over_time, slot, _slots(slot, first, end)),
        tokens=_token_plots(over_time, slot, _slots(slot, first, end)),
        time_zone=table["time_zone"],
        names=names,
        columns=shown,
        rows=[
            {
                "names": [row[name] or _UNKNOWN for name in names],
                "figures": _texts(shown, row),
                "main": row[main] or 0,
            }
            for row in rows[:ROWS]
        ],
        total=_texts(shown, table["total"]) if len(rows) > 1 else None,
        main_heading=next(column.heading for column in COLUMNS[kind] if column.name == main),
        highest=max((row[main] or 0 for row in rows), default=0),
        row_count=len(rows),
    )


def _key(text: str) -> ReportKey:
    try:
        return ReportKey(text)
    except ValueError:
        raise ApiError(422, f"rows by {quote_for_error(text)}; choose one of the list") from None


def _day(text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise ApiError(422, f"day {quote_for_error(text)}; write it as 2026-11-26") from None
    if day < FIRST_DAY:  # the calendar has no periods before year 1
        raise ApiError(422, f"day {quote_for_error(text)}; write one after {FIRST_DAY}")
    return day


async def _over_time(
    read: Callable[[Sequence[ReportKey]], Awaitable[Row]],
    slot: ReportKey,
    parts: Sequence[ReportKey],
) -> Row:
    """Return the report over time by `parts`; of all together if it has too many rows."""
    try:
        return await read([slot, *parts])
    except ApiError as error:
        if error.status != 422 or not parts:
            raise
        return await read([slot])


def _slots(slot: ReportKey, first: date, end: date) -> list[str]:
    """Return the last times of a period, as reports name them."""
    names: list[str] = []
    day = end - timedelta(days=1)
    while day >= first and len(names) < MAX_SLOTS:
        names.append(day.isoformat() if slot is ReportKey.DAY else day.isoformat()[:7])
        day = (day if slot is ReportKey.DAY else day.replace(day=1)) - timedelta(days=1)
    return names[::-1]


def _plot(kind: str, answer: Row, slot: ReportKey, slots: Sequence[str]) -> TimePlot | None:
    """Draw a report over time; None if there is nothing to see."""
    if not answer["rows"]:
        return None
    unit, figures, divisor = PLOTS[kind]
    if len(figures) == 1:
        names = [*(["licence"] if kind == "licences" else []), *answer["by"]]
        labels = [[_label(row[name]) for name in names] for row in answer["rows"]]
        [figure] = figures.values()
        numbers = [row[figure] / divisor for row in answer["rows"]]
        times, parts = stacked_over_time(names, labels, numbers)
    else:
        times = [row[slot.value] for row in answer["rows"]]
        parts = {
            heading: [(row[figure] or 0.0) / divisor for row in answer["rows"]]
            for heading, figure in figures.items()
        }
        if kind == "waits":  # the second contains the first
            first, second = parts.values()
            second[:] = [max(b - a, 0.0) for a, b in zip(first, second, strict=True)]
    by_time = [dict(zip(times, numbers, strict=True)) for numbers in parts.values()]
    heights = [[of_part.get(time, 0.0) for time in slots] for of_part in by_time]
    highest = max(map(sum, zip(*heights, strict=True)), default=0.0)
    if not highest:
        return None
    label = f"{unit} by {slot}, from {slots[0]} to {slots[-1]}, at most {highest:.4g}"
    titles = [OTHERS if part is None else part for part in parts]
    picture = stacked(slots, titles, heights, highest, label)
    return TimePlot(
        picture, unit, highest, (slots[0], slots[len(slots) // 2], slots[-1]), list(parts)
    )


def _label(value: str | None) -> str | None:
    """Return the text of a key's value; None: the others, whose sums share a row."""
    return None if value is None else value or _UNKNOWN


def _token_plots(answer: Row, slot: ReportKey, slots: Sequence[str]) -> list[TokenUsePlot]:
    """Draw the most tokens leased at a time; empty in reports without it."""
    by_licence: dict[str, list[Row]] = {}
    for row in answer["rows"]:
        if row.get("peak") is not None and row.get("total") is not None:
            by_licence.setdefault(row["licence"], []).append(row)
    plots = []
    for licence, rows in sorted(by_licence.items())[:MAX_LICENCES]:
        peaks = {row[slot.value]: row["peak"] for row in rows}
        peak, total = max(peaks.values()), max(row["total"] for row in rows)
        label = f"Most tokens of {licence} leased at a time, by {slot}: at most {peak} of {total}"
        values = [peaks.get(time, 0) for time in slots]
        plots.append(TokenUsePlot(licence, columns(values, max(peak, total), label), peak, total))
    return plots


def _is_known(column: ReportColumn, rows: Sequence[Row]) -> bool:
    """Return whether a row has a value of a column."""
    return any(row[column.name] is not None for row in rows)


def _texts(columns: Sequence[ReportColumn], row: Row) -> list[str]:
    values = [row[column.name] for column in columns]
    return [
        _UNKNOWN if value is None else column.text(value)
        for column, value in zip(columns, values, strict=True)
    ]
