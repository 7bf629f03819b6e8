"""The figures of reports: their headings and texts in tables, and their plots.

Rows are those of `report --json`: durations in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

KINDS = ("use", "waits", "deadlines", "licences")
KEYS = ("user", "group", "account", "class", "cluster", "month", "day")
TIME_KEYS = ("month", "day")
MAX_PARTS = 8  # of a bar; the smallest values share a part
OTHERS = "all others"  # how the part of the others is called; names may be the same


class ReportColumn(NamedTuple):
    """A figure: its name in JSON and CSV, its heading, and its text in a table."""

    name: str
    heading: str
    text: Callable[[Any], str]


def _count(value: Any) -> str:
    return f"{value:d}"


def _hours(value: Any) -> str:
    return f"{value / 3600:.1f}"


def _percent(value: Any) -> str:
    return f"{100 * value:.1f}"


def _number(value: Any) -> str:
    return f"{value:.1f}"


def _duration(value: Any) -> str:
    return (
        f"{value:.0f}s" if value < 120 else f"{value / 60:.0f}m" if value < 7200 else _long(value)
    )


def _long(value: Any) -> str:
    return f"{value / 3600:.1f}h"


COLUMNS: Mapping[str, tuple[ReportColumn, ...]] = {
    "use": (
        ReportColumn("jobs", "Jobs", _count),
        ReportColumn("completed", "Completed", _count),
        ReportColumn("failed", "Failed", _count),
        ReportColumn("timed_out", "Timeout", _count),
        ReportColumn("cancelled", "Cancelled", _count),
        ReportColumn("elapsed", "Hours", _hours),
        ReportColumn("cpu_seconds", "CPU hours", _hours),
        ReportColumn("share", "Share %", _percent),
        ReportColumn("cpu_seconds_used", "CPU used", _hours),
        ReportColumn("efficiency", "Efficiency %", _percent),
        ReportColumn("node_seconds", "Node hours", _hours),
        ReportColumn("gpu_seconds", "GPU hours", _hours),
        ReportColumn("cpu_seconds_outside", "Other CPU", _hours),
    ),
    "waits": (
        ReportColumn("jobs", "Jobs", _count),
        ReportColumn("mean_wait", "Mean", _duration),
        ReportColumn("median_wait", "Median", _duration),
        ReportColumn("p90_wait", "P90", _duration),
        ReportColumn("max_wait", "Longest", _duration),
        ReportColumn("mean_bounded_slowdown", "Slowdown", _number),
    ),
    "deadlines": (
        ReportColumn("jobs", "Jobs", _count),
        ReportColumn("met", "Met", _count),
        ReportColumn("missed", "Missed", _count),
        ReportColumn("missed_deadlines", "Missed %", _percent),
        ReportColumn("mean_tardiness", "Late mean", _duration),
        ReportColumn("max_tardiness", "Late most", _duration),
    ),
    "licences": (
        ReportColumn("leases", "Leases", _count),
        ReportColumn("token_seconds", "Token hours", _hours),
        ReportColumn("mean_wait", "Wait mean", _duration),
        ReportColumn("max_wait", "Wait most", _duration),
        ReportColumn("peak", "Peak", _count),
        ReportColumn("total", "Total", _count),
    ),
}


class Plot(NamedTuple):
    """The plot of a report: its figure and keys."""

    unit: str  # of the plot
    figures: Mapping[str, str]  # by heading
    divisor: float  # from the unit of the figures to that of the plot


PLOTS: Mapping[str, Plot] = {
    "use": Plot("CPU hours", {"CPU hours": "cpu_seconds"}, 3600.0),
    "waits": Plot("hours of wait", {"median": "median_wait", "90% wait less": "p90_wait"}, 3600.0),
    "deadlines": Plot("jobs", {"met": "met", "missed": "missed"}, 1.0),
    "licences": Plot("token hours", {"token hours": "token_seconds"}, 3600.0),
}


def stacked_over_time(
    names: Sequence[str], labels: Sequence[Sequence[str | None]], values: Sequence[float]
) -> tuple[list[str], dict[str | None, list[float]]]:
    """Return the times, and the values at each by the other names of the rows, largest first.

    The part None has the sums of the others: of small parts, and of rows with a name that is None.
    """
    moments: list[str] = []
    parts: list[str | None] = []
    for label in labels:
        named = list(zip(names, label, strict=True))
        moments.append(max((text or "" for name, text in named if name in TIME_KEYS), key=len))
        key_texts = [text for name, text in named if name not in TIME_KEYS]
        known_labels = [text for text in key_texts if text is not None]
        parts.append(
            (" ".join(known_labels) or "all") if len(known_labels) == len(key_texts) else None
        )
    sums: dict[str | None, float] = {}
    for part, amount in zip(parts, values, strict=True):
        sums[part] = sums.get(part, 0.0) + amount
    largest = sorted((part for part in sums if part is not None), key=lambda part: -sums[part])
    shown: list[str | None] = [*largest[:MAX_PARTS]]
    if len(sums) > len(shown):
        shown.append(None)
    times = sorted(set(moments))
    columns = {moment: column for column, moment in enumerate(times)}
    stacked = {part: [0.0] * len(times) for part in shown}
    for moment, part, amount in zip(moments, parts, values, strict=True):
        stacked[part if part in stacked else None][columns[moment]] += amount
    return times, stacked
