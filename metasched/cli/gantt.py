"""Gantt charts of reservations: text for a terminal, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from metasched.cli.show import printable
from metasched.client.reservation_boxes import (
    ReservationRow,
    epoch_seconds,
    open_rows,
    stack_boxes,
)

MIN_CHART_WIDTH = 20  # columns
CHARACTER_WIDTH = 1 / 120  # fraction of the width of a picture


def render_chart(
    rows: Sequence[ReservationRow], now: float, width: int, bar_character: str = "█"
) -> list[str]:
    """Return the lines of a chart: a bar for each open reservation, on a time axis from `now`.

    Return no lines without open reservations, or if `width` columns are too few.
    """
    open_reservations = open_rows(rows)
    labels = [
        printable(f"{row['reservation']} {row['cluster']} {row['size']} {row['user']}")
        for row in open_reservations
    ]
    label_width = max(map(len, labels), default=0) + 1
    chart_width = width - label_width
    if not open_reservations or chart_width < MIN_CHART_WIDTH:
        return []
    latest_end = max(epoch_seconds(row["end"]) for row in open_reservations)
    seconds_per_column = max(latest_end - now, 1.0) / chart_width
    lines = []
    for label, row in zip(labels, open_reservations, strict=True):
        start_offset, end_offset = (epoch_seconds(row[key]) - now for key in ("start", "end"))
        bar_start = min(max(int(start_offset / seconds_per_column), 0), chart_width - 1)
        bar_length = max(min(round(end_offset / seconds_per_column), chart_width) - bar_start, 1)
        lines.append(f"{label:{label_width}}{'.' * bar_start}{bar_character * bar_length}".rstrip())
    first_label, last_label = (
        datetime.fromtimestamp(time).strftime("%Y-%m-%d %H:%M") for time in (now, latest_end)
    )
    axis = f"{first_label}{last_label:>{chart_width - len(first_label)}}"
    return [*lines, f"{'':{label_width}}{axis}".rstrip()]


def draw_picture(rows: Sequence[ReservationRow], path: Path) -> None:
    """Write a picture of the open reservations: time by processors, an axis for each cluster."""
    from matplotlib.figure import Figure

    from metasched.laboratory.experiments.plots import save_figure

    open_reservations = open_rows(rows)
    times = [epoch_seconds(row[key]) for row in open_reservations for key in ("start", "end")]
    span = max(times, default=0.0) - min(times, default=0.0)
    cluster_names = sorted({str(row["cluster"]) for row in open_reservations}) or [""]
    figure = Figure(figsize=(11, 1 + 2 * len(cluster_names)), layout="constrained")
    axes = list(figure.subplots(len(cluster_names), 1, sharex=True, squeeze=False)[:, 0])
    for axis, name in zip(axes, cluster_names, strict=True):
        cluster_rows = [row for row in open_reservations if row["cluster"] == name]
        for row, (start, end, lowest, size) in zip(
            cluster_rows, stack_boxes(cluster_rows), strict=True
        ):
            begin, duration = datetime.fromtimestamp(start), timedelta(seconds=end - start)
            bars = axis.barh(
                [lowest],
                [duration],
                left=[begin],
                height=size,
                align="edge",
                alpha=0.7,
                edgecolor="black",
            )
            caption = printable(f"{row['reservation']} {row['user']}")
            [label] = axis.bar_label(bars, [caption], label_type="center", parse_math=False)
            if end - start < len(caption) * CHARACTER_WIDTH * span:  # wider than its bar
                label.set_rotation(90)
        axis.set(ylabel=f"{name}\nprocessors", ylim=(0, None))
    save_figure(figure, path)
