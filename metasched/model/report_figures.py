"""The figures of reports: their headings and texts in tables, and what is plotted of them.

Rows are those of `report --json`: durations in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

KINDS = ("use", "waits", "deadlines", "licences")
KEYS = ("user", "group", "account", "class", "cluster", "month", "day")
TIME_KEYS = ("month", "day")
MAX_PARTS = 8  # of a bar; the smaller ones share one part
OTHERS = "others"


class Column(NamedTuple):
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


COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "use": (
        Column("jobs", "Jobs", _count),
        Column("completed", "Completed", _count),
        Column("failed", "Failed", _count),
        Column("timed_out", "Timeout", _count),
        Column("cancelled", "Cancelled", _count),
        Column("elapsed", "Hours", _hours),
        Column("cpu_seconds", "CPU hours", _hours),
        Column("share", "Share %", _percent),
        Column("cpu_seconds_used", "CPU used", _hours),
        Column("efficiency", "Efficiency %", _percent),
        Column("node_seconds", "Node hours", _hours),
        Column("gpu_seconds", "GPU hours", _hours),
        Column("cpu_seconds_outside", "Other CPU", _hours),
    ),
    "waits": (
        Column("jobs", "Jobs", _count),
        Column("mean_wait", "Mean", _duration),
        Column("median_wait", "Median", _duration),
        Column("p90_wait", "P90", _duration),
        Column("max_wait", "Longest", _duration),
        Column("mean_bounded_slowdown", "Slowdown", _number),
    ),
    "deadlines": (
        Column("jobs", "Jobs", _count),
        Column("met", "Met", _count),
        Column("missed", "Missed", _count),
        Column("missed_deadlines", "Missed %", _percent),
        Column("mean_tardiness", "Late mean", _duration),
        Column("max_tardiness", "Late most", _duration),
    ),
    "licences": (
        Column("leases", "Leases", _count),
        Column("token_seconds", "Token hours", _hours),
        Column("mean_wait", "Wait mean", _duration),
        Column("max_wait", "Wait most", _duration),
        Column("peak", "Peak", _count),
        Column("total", "Total", _count),
    ),
}


class Plot(NamedTuple):
    """What is plotted of a report."""

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
    names: Sequence[str], labels: Sequence[Sequence[str]], values: Sequence[float]
) -> tuple[list[str], dict[str, list[float]]]:
    """Return the times, and the values at each by the other names of the rows, largest first."""
    positions = [position for position, name in enumerate(names) if name in TIME_KEYS]
    moments, parts = [], []
    for label in labels:
        moments.append(max((label[position] for position in positions), key=len))
        other = [word for position, word in enumerate(label) if position not in positions]
        parts.append(" ".join(other) or "all")
    sums: dict[str, float] = {}
    for part, value in zip(parts, values, strict=True):
        sums[part] = sums.get(part, 0.0) + value
    named = (part for part in sums if part != OTHERS)
    largest = sorted(named, key=lambda part: -sums[part])[:MAX_PARTS]
    times = sorted(set(moments))
    places = {moment: place for place, moment in enumerate(times)}
    shown = [*largest, *([OTHERS] if len(sums) > len(largest) else [])]
    stacked = {part: [0.0] * len(times) for part in shown}
    for moment, part, value in zip(moments, parts, values, strict=True):
        stacked[part if part in largest else OTHERS][places[moment]] += value
    return times, stacked
