"""Pictures of runs, drawn by matplotlib, which is an extra: `pip install 'metasched[plot]'`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from metasched.errors import UserError
from metasched.simulate.engine import Schedule
from metasched.simulate.metrics import over_time
from metasched.simulate.trials import Result, interval

KINDS = (".png", ".svg", ".pdf")
MOST_BARS = 3000  # jobs: beyond that a Gantt chart shows nothing


class PlotError(UserError):
    """A picture that cannot be drawn."""


def check_plot(path: Path) -> None:
    """Find out before a long run whether its picture can be drawn after it. PlotError if not."""
    _check_library()
    if path.suffix.lower() not in KINDS:
        raise PlotError(f"{path} is no known kind of picture, --plot; write {', '.join(KINDS)}")
    if not path.absolute().parent.is_dir():
        raise PlotError(f"{path} is in no folder, --plot; make it first")


def check_folder(path: Path) -> None:
    """The same for a folder of pictures, which is made. PlotError if it cannot be."""
    _check_library()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlotError(f"{error.strerror}, --plot {path}; name another folder") from None


def _check_library() -> None:
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise PlotError("no matplotlib, --plot; install it with pip install 'metasched[plot]'")


def draw_results(name: str, results: Sequence[Result], folder: Path) -> None:
    """A picture `<name>-<figure>.png` of each figure: bars by setting, the published ones marked.

    Whiskers are 95% intervals of the mean over the seeds.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    for figure in dict.fromkeys(result.figure for result in results):
        of_figure = [result for result in results if result.figure == figure]
        rows = list(dict.fromkeys(result.row for result in of_figure))
        columns = list(dict.fromkeys(result.column for result in of_figure))
        picture, axis = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
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
        axis.set(ylabel=figure, title=f"{name} (x: published)")
        axis.legend()
        picture.savefig(folder / f"{name}-{figure}.png", dpi=120)
        pyplot.close(picture)


def draw_schedule(schedule: Schedule, path: Path) -> None:
    """A run over time: the Gantt chart if it is small, processors in use, the queue."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    small = len(schedule.placed) <= MOST_BARS
    rows = 3 if small else 2
    figure, axes = pyplot.subplots(
        rows, 1, sharex=True, figsize=(11, 3 * rows), layout="constrained", squeeze=False
    )
    moments = over_time(schedule.placed)
    times = [moment.time for moment in moments]
    used, queue = axes[-2][0], axes[-1][0]
    used.step(times, [moment.used for moment in moments], where="post", linewidth=0.8)
    used.axhline(sum(cluster.cpus for cluster in schedule.clusters), color="grey", linestyle=":")
    used.set(ylabel="processors in use", ylim=(0, None))
    queue.step(times, [moment.waiting for moment in moments], where="post", linewidth=0.8)
    queue.set(ylabel="jobs waiting", xlabel="seconds", ylim=(0, None))
    if small:
        _gantt(schedule, axes[0][0])
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _gantt(schedule: Schedule, axis: object) -> None:
    """Processors are counted, not named: a job takes the lowest that are free when it starts."""
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection

    assert isinstance(axis, Axes)
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
        base += cluster.cpus
        axis.axhline(base, color="black", linewidth=0.6)
    shapes = PolyCollection(bars, array=colours, cmap="tab20", edgecolors="white", linewidths=0.2)
    axis.add_collection(shapes)
    axis.set(ylabel="processor", ylim=(0, base))
    axis.autoscale_view(scaley=False)


def _runs(lanes: list[int]) -> list[tuple[int, int]]:
    """(first, last) of each unbroken stretch of ascending numbers."""
    runs: list[tuple[int, int]] = []
    for lane in lanes:
        if runs and runs[-1][1] == lane - 1:
            runs[-1] = (runs[-1][0], lane)
        else:
            runs.append((lane, lane))
    return runs
