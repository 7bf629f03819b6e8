"""Pictures of runs, drawn by matplotlib, which is an extra: `pip install 'metasched[plot]'`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from metasched.errors import UserError
from metasched.experiments.harness import Result, interval
from metasched.simulate.engine import Placed, Schedule
from metasched.simulate.metrics import Moment, over_time, sampled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = (".png", ".svg", ".pdf")
MOST_BARS = 3000  # jobs: beyond that a Gantt chart shows nothing
MOST_LINES = 8  # clusters: beyond that only all of them together have a line
PARTS = 300  # of the time, for means over time


class PlotError(UserError):
    """A picture that cannot be drawn."""


def check_plot(path: Path) -> None:
    """Find out before a long run whether its picture can be drawn after it. PlotError if not."""
    check_library("--plot")
    if path.suffix.lower() not in KINDS:
        raise PlotError(f"{path} is no known kind of picture, --plot; write {', '.join(KINDS)}")
    if not path.absolute().parent.is_dir():
        raise PlotError(f"{path} is in no folder, --plot; make it first")


def check_folder(path: Path) -> None:
    """The same for a folder of pictures, which is made. PlotError if it cannot be."""
    check_library("--plot")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlotError(f"{error.strerror}, --plot {path}; name another folder") from None


def check_library(option: str) -> None:
    """PlotError if there is no matplotlib for what `option` asks."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise PlotError(f"no matplotlib, {option}; install it with pip install 'metasched[plot]'")


def save(figure: Figure, path: Path) -> None:
    """Write a picture; the name says of what kind. The same picture gives the same bytes."""
    import matplotlib

    date = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
    with matplotlib.rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, dpi=120, metadata=date)


def _figure(rows: int, *, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of rows that share their x axis; it belongs to no window and to no state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0])


_SECONDS = ("makespan", "mean_wait", "mean_flow", "mean_tardiness", "longest_wait")


def in_words(figure: str) -> str:
    """The name of a figure as a reader wants it, with its unit."""
    return figure.replace("_", " ") + (", s" if figure in _SECONDS else "")


# Several policies


def of_results(name: str, results: Sequence[Result]) -> Iterator[tuple[str, Figure]]:
    """A picture of each figure: bars by setting, the published ones marked.

    Whiskers are 95% intervals of the mean over the seeds.
    """
    for figure in dict.fromkeys(result.figure for result in results):
        of_figure = [result for result in results if result.figure == figure]
        rows = list(dict.fromkeys(result.row for result in of_figure))
        columns = list(dict.fromkeys(result.column for result in of_figure))
        picture, (axis,) = _figure(1, height=3.5)
        width = 0.8 / len(columns)
        for place, column in enumerate(columns):
            of_column = [result for result in of_figure if result.column == column]
            at = [rows.index(r.row) + (place - (len(columns) - 1) / 2) * width for r in of_column]
            means = [interval(r.values) for r in of_column]
            halves = [half if math.isfinite(half) else 0.0 for _, half in means]
            heights = [mean for mean, _ in means]
            axis.bar(at, heights, width * 0.9, yerr=halves, label=column, capsize=2)
            published = [(x, r.published) for x, r in zip(at, of_column, strict=True)]
            marks = [(x, value) for x, value in published if value is not None]
            axis.scatter([x for x, _ in marks], [v for _, v in marks], marker="x", color="black")
        axis.set_xticks(range(len(rows)), rows)
        if not any(any(result.values) for result in of_figure):
            axis.set_ylim(0, 1)
        marked = any(result.published is not None for result in of_figure)
        axis.set(ylabel=in_words(figure), title=f"{name} (x: published)" if marked else name)
        picture.legend(loc="outside lower center", ncols=min(len(columns), 6))
        yield figure, picture


def draw_results(name: str, results: Sequence[Result], folder: Path) -> None:
    """Write a picture `<name>-<figure>.png` of each figure."""
    for figure, picture in of_results(name, results):
        word = "".join(letter if letter.isalnum() else "_" for letter in figure).strip("_")
        save(picture, folder / f"{name}-{word}.png")


# One run


def draw_schedule(schedule: Schedule, path: Path) -> None:
    """A run over time: the Gantt chart if it is small, processors in use, the queue."""
    small = len(schedule.placed) <= MOST_BARS
    figure, axes = _figure(3 if small else 2, height=3)
    moments = over_time(schedule.placed)
    times = [moment.time for moment in moments]
    used, queue = axes[-2:]
    used.step(times, [moment.used for moment in moments], where="post", linewidth=0.8)
    used.axhline(sum(cluster.cpus for cluster in schedule.clusters), color="grey", linestyle=":")
    used.set(ylabel="processors in use", ylim=(0, None))
    queue.step(times, [moment.waiting for moment in moments], where="post", linewidth=0.8)
    queue.set(ylabel="jobs waiting", xlabel="seconds", ylim=(0, None))
    if small:
        _gantt(schedule, axes[0])
    save(figure, path)


def gantt(schedule: Schedule) -> Figure:
    """What ran when, on which processors."""
    figure, (axis,) = _figure(1, height=5)
    _gantt(schedule, axis)
    axis.set(xlabel="seconds")
    return figure


def _gantt(schedule: Schedule, axis: Axes) -> None:
    """Processors are counted, not named: a job takes the lowest that are free when it starts."""
    from matplotlib.collections import PolyCollection

    bars, colours, base = [], [], 0
    for place, cluster in enumerate(schedule.clusters):
        free_at = [0.0] * cluster.cpus
        for p in sorted((p for p in schedule.placed if p.cluster == place), key=lambda p: p.start):
            lanes = [lane for lane, free in enumerate(free_at) if free <= p.start][: p.cpus]
            for lane in lanes:
                free_at[lane] = p.end
            for first, last in _runs(lanes):
                low, high = base + first, base + last + 1
                bars.append([(p.start, low), (p.end, low), (p.end, high), (p.start, high)])
                colours.append(p.job.id % 20)
        axis.text(1.005, base + cluster.cpus / 2, cluster.name, transform=_beside(axis))
        base += cluster.cpus
        axis.axhline(base, color="black", linewidth=0.6)
    shapes = PolyCollection(bars, array=colours, cmap="tab20", edgecolors="white", linewidths=0.2)
    shapes.set_rasterized(True)
    axis.add_collection(shapes)
    axis.set(ylabel="processor", ylim=(0, base))
    axis.autoscale_view(scaley=False)


def _beside(axis: Axes) -> object:
    """Where x is a share of the axis and y counts processors."""
    return axis.get_yaxis_transform()


def _runs(lanes: list[int]) -> list[tuple[int, int]]:
    """(first, last) of each unbroken stretch of ascending numbers."""
    runs: list[tuple[int, int]] = []
    for lane in lanes:
        if runs and runs[-1][1] == lane - 1:
            runs[-1] = (runs[-1][0], lane)
        else:
            runs.append((lane, lane))
    return runs


def load_over_time(schedule: Schedule) -> Figure:
    """Utilisation and queue, means over equal parts of the time; of each cluster if these are few.

    Where jobs ask for licences also the copies in use.
    """
    placed = schedule.placed
    first = min((p.job.submitted for p in placed), default=0.0)
    last = max((p.end for p in placed), default=0.0)
    licensed = any(p.job.licences for p in placed)
    figure, axes = _figure(3 if licensed else 2, height=3)
    few = len(schedule.clusters) <= MOST_LINES
    lines: list[tuple[str, int, Sequence[Placed]]] = (
        [
            (cluster.name, cluster.cpus, [p for p in placed if p.cluster == place])
            for place, cluster in enumerate(schedule.clusters)
        ]
        if few
        else [("all clusters", sum(c.cpus for c in schedule.clusters), placed)]
    )
    for name, cpus, there in lines:
        means = sampled(over_time(there), first, last, PARTS)
        times = [moment.time for moment in means]
        for axis, values in zip(axes, _values(means, cpus), strict=False):
            axis.step(times, values, where="post", linewidth=1, label=name)
    axes[0].set(ylabel="utilisation, %", ylim=(0, 105))
    axes[1].set(ylabel="jobs waiting", ylim=(0, max(axes[1].get_ylim()[1], 1)))
    if licensed:
        axes[2].set(ylabel="licences in use", ylim=(0, None))
    axes[-1].set(xlabel="seconds")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=MOST_LINES)
    return figure


def _values(means: Sequence[Moment], cpus: int) -> tuple[list[float], ...]:
    return (
        [100 * moment.used / cpus for moment in means],
        [moment.waiting for moment in means],
        [moment.licences for moment in means],
    )


def load_shares(shares: dict[str, float]) -> Figure:
    """The share of the work that each cluster did, in percent."""
    figure, (axis,) = _figure(1, height=1 + 0.3 * min(len(shares), 30))
    names = list(shares)[:30]
    bars = axis.barh(range(len(names)), [100 * shares[name] for name in names])
    axis.bar_label(bars, fmt="%.1f%%", padding=3)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set(xlabel="share of the work, %", xlim=(0, 110 * max(shares.values(), default=1.0)))
    return figure


def waits(schedule: Schedule) -> Figure:
    """The share of the jobs that waited at most so long."""
    figure, (axis,) = _figure(1, height=3.5)
    ordered = sorted(p.wait for p in schedule.placed)
    shares = [100 * (place + 1) / len(ordered) for place in range(len(ordered))]
    axis.step(ordered, shares, where="post", linewidth=1)
    axis.set_xscale("symlog", linthresh=10)
    axis.set(xlabel="wait, seconds", ylabel="jobs, %", ylim=(0, 101))
    axis.set_xlim(0, max(ordered[-1], 10.0))
    return figure
