"""Reservations over time: lines for a terminal, and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from metasched.cli.show import clean

OPEN = ("requested", "confirmed", "bound", "active")
NARROWEST = 20  # columns: a chart in fewer shows nothing
LETTER = 1 / 120  # of the width of a picture
Row = Mapping[str, Any]
Box = tuple[float, float, int, int]  # start, end, lowest processor, processors


def open_rows(rows: Sequence[Row]) -> list[Row]:
    """Those of `reservations --json` that are not over, by cluster and start."""
    return sorted(
        (row for row in rows if row["state"] in OPEN),
        key=lambda row: (row["cluster"], row["start"], row["reservation"]),
    )


def chart(rows: Sequence[Row], now: float, width: int, full: str = "█") -> list[str]:
    """A bar for each reservation that is open, on one axis of `width` columns from now on.

    None at all if there is nothing to show, or no room for it.
    """
    shown = open_rows(rows)
    labels = [clean(f"{r['reservation']} {r['cluster']} {r['size']} {r['user']}") for r in shown]
    left = max(map(len, labels), default=0) + 1
    cells = width - left
    if not shown or cells < NARROWEST:
        return []
    last = max(_seconds(row["end"]) for row in shown)
    each = max(last - now, 1.0) / cells
    lines = []
    for label, row in zip(labels, shown, strict=True):
        first, stop = (_seconds(row[side]) - now for side in ("start", "end"))
        begin = min(max(int(first / each), 0), cells - 1)
        length = max(min(round(stop / each), cells) - begin, 1)
        lines.append(f"{label:{left}}{'.' * begin}{full * length}".rstrip())
    ends = [datetime.fromtimestamp(time).strftime("%Y-%m-%d %H:%M") for time in (now, last)]
    return [*lines, f"{'':{left}}{ends[0]}{ends[1]:>{cells - len(ends[0])}}".rstrip()]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write a picture of the open ones: time across, processors up, an axis for each cluster."""
    from matplotlib.figure import Figure

    from metasched.experiments.plots import save

    shown = open_rows(rows)
    times = [_seconds(row[side]) for row in shown for side in ("start", "end")]
    span = max(times, default=0.0) - min(times, default=0.0)
    names = sorted({str(row["cluster"]) for row in shown}) or [""]
    figure = Figure(figsize=(11, 1 + 2 * len(names)), layout="constrained")
    axes = list(figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0])
    for axis, name in zip(axes, names, strict=True):
        here = [row for row in shown if row["cluster"] == name]
        for row, (start, end, low, size) in zip(here, stacked(here), strict=True):
            begin, lasts = datetime.fromtimestamp(start), timedelta(seconds=end - start)
            bars = axis.barh(
                [low],
                [lasts],
                left=[begin],
                height=size,
                align="edge",
                alpha=0.7,
                edgecolor="black",
            )
            words = clean(f"{row['reservation']} {row['user']}")
            [label] = axis.bar_label(bars, [words], label_type="center", parse_math=False)
            if end - start < len(words) * LETTER * span:  # it would cover what is beside it
                label.set_rotation(90)
        axis.set(ylabel=f"{name}\nprocessors", ylim=(0, None))
    save(figure, path)


def stacked(rows: Sequence[Row]) -> list[Box]:
    """Boxes of a cluster's reservations that do not overlap, each as low as there is room."""
    boxes: list[Box] = []
    for row in rows:
        start, end, size = _seconds(row["start"]), _seconds(row["end"]), int(row["size"])
        beside = sorted(
            (low, low + many) for begin, stop, low, many in boxes if begin < end and start < stop
        )
        lowest = 0
        for low, high in beside:
            if lowest + size <= low:
                break
            lowest = max(lowest, high)
        boxes.append((start, end, lowest, size))
    return boxes


def _seconds(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()
