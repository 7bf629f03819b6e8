"""Plots of runs and results with matplotlib, an extra: `pip install 'metasched[plot]'`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from metasched.errors import UserError
from metasched.laboratory.experiments.harness import Curves, FigureResult, confidence_interval
from metasched.laboratory.simulate.engine import Schedule, ScheduledJob
from metasched.laboratory.simulate.metrics import UsageSample, average_usage, usage_over_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
MAX_BARS = 3000  # jobs: with more, a Gantt chart is unreadable
MAX_LINES = 8  # clusters: with more, only their total is plotted
MAX_LABELS = 30  # bars, or labels of an axis
LABEL_COLUMNS = 110  # characters below an axis: longer labels of settings are wrapped
PANELS_IN_A_ROW, TITLE_COLUMNS = 3, 34  # of small multiples; characters of a title's line
TIME_INTERVALS = 300  # equal parts of the time axis, for means
# Of lines over a quantity: those of policies with equal figures lie on each other.
_MARKERS, _LINES = "osv^Dx+<>", ("-", "--", ":", "-.")
_NUMBER = re.compile(r"\d[\d,.]*")


class PlotError(UserError):
    """A plot that cannot be created."""


def check_plot(path: Path) -> None:
    """Check before a long run that its plot can be written. PlotError if not."""
    check_library("--plot")
    if path.suffix.lower() not in SUFFIXES:
        raise PlotError(f"{path} has no supported suffix, --plot; use {', '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise PlotError(f"{path} is not in an existing folder, --plot; create the folder first")


def check_folder(path: Path) -> None:
    """Create a folder of plots. PlotError if it cannot be created or matplotlib is missing."""
    check_library("--plot")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlotError(f"{error.strerror}, --plot {path}; name another folder") from None


def check_library(option: str) -> None:
    """Raise PlotError if `option` needs matplotlib and it is not installed."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise PlotError(
            f"matplotlib is not installed, {option}; install it with pip install 'metasched[plot]'"
        )


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the file's suffix. Equal figures give equal bytes."""
    import matplotlib

    date = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
    with matplotlib.rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, dpi=120, metadata=date)


def _figure(rows: int, *, height: float) -> tuple[Figure, list[Axes]]:
    """Create a figure with rows that share their x axis, outside matplotlib's global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0])


_SECONDS = ("makespan", "mean_wait", "mean_flow", "mean_tardiness", "longest_wait")


def describe_figure(figure: str) -> str:
    """Return the label of a figure, with its unit."""
    return figure.replace("_", " ") + (", s" if figure in _SECONDS else "")


# Comparisons


def plot_results(
    name: str, results: Sequence[FigureResult], quantity: str = ""
) -> Iterator[tuple[str, Figure]]:
    """Yield a plot for each figure: bars by setting, or lines if these are values of a quantity.

    Published values are marked. Error bars are 95% confidence intervals of the mean over seeds.
    """
    for figure in dict.fromkeys(result.figure for result in results):
        figure_results = [result for result in results if result.figure == figure]
        rows = list(dict.fromkeys(result.row for result in figure_results))
        columns = list(dict.fromkeys(result.column for result in figure_results))
        picture, (axis,) = _figure(1, height=4.5 if quantity else 3.5)
        width = 0.8 / len(columns)
        for index, column in enumerate(columns):
            column_results = [result for result in figure_results if result.column == column]
            positions = [
                _value_of(result.row)
                if quantity
                else rows.index(result.row) + (index - (len(columns) - 1) / 2) * width
                for result in column_results
            ]
            means = [confidence_interval(result.values) for result in column_results]
            half_widths = [
                half_width if math.isfinite(half_width) else 0.0 for _, half_width in means
            ]
            heights = [mean for mean, _ in means]
            if quantity:
                axis.errorbar(
                    positions,
                    heights,
                    half_widths,
                    label=column,
                    linestyle=_LINES[index % len(_LINES)],
                    marker=_MARKERS[index % len(_MARKERS)],
                    fillstyle="none",
                    capsize=2,
                )
            else:
                axis.bar(positions, heights, width * 0.9, yerr=half_widths, label=column, capsize=2)
            published = [
                (x, result.published) for x, result in zip(positions, column_results, strict=True)
            ]
            marks = [(x, value) for x, value in published if value is not None]
            axis.scatter(
                [x for x, _ in marks], [value for _, value in marks], marker="x", color="black"
            )
        if quantity:
            axis.set_xticks([_value_of(row) for row in rows])
            axis.set(xlabel=quantity)
            if axis.get_ylim()[0] < axis.get_ylim()[1] / 2:  # else differences would be invisible
                axis.set_ylim(0)
        else:
            columns_of_label = max(LABEL_COLUMNS // len(rows), 1)
            axis.set_xticks(range(len(rows)), [fill(row, columns_of_label) for row in rows])
        if not any(any(result.values) for result in figure_results):
            axis.set_ylim(0, 1)
        has_published = any(result.published is not None for result in figure_results)
        axis.set(
            ylabel=describe_figure(figure),
            title=f"{name} (x: published)" if has_published else name,
        )
        picture.legend(loc="outside lower center", ncols=min(len(columns), 6))
        yield figure, picture


def plot_differences(results: Sequence[FigureResult]) -> list[tuple[str, Figure]]:
    """Plot the paired differences from the baseline as small multiples, with their 95% intervals.

    With several settings there is a plot for each figure with a panel for each setting, so that
    panels share their axis. With a single setting there is a plot with a panel for each figure.
    Return titles and plots; none if all results are of the baseline.
    """
    compared = [result for result in results if result.paired is not None]
    rows = list(dict.fromkeys(result.row for result in compared))
    figures = list(dict.fromkeys(result.figure for result in compared))
    if not compared:
        return []
    baseline = next(result.column for result in results if result.baseline is None)
    if len(rows) == 1:
        panels = {
            describe_figure(name): [result for result in compared if result.figure == name]
            for name in figures
        }
        return [(f"Differences from {baseline}", _small_multiples(panels, shared=False))]
    return [
        (
            f"{describe_figure(name)}: difference from {baseline}",
            _small_multiples(
                {
                    row: [each for each in compared if (each.row, each.figure) == (row, name)]
                    for row in rows
                },
                shared=True,
            ),
        )
        for name in figures
    ]


def _small_multiples(panels: Mapping[str, Sequence[FigureResult]], *, shared: bool) -> Figure:
    """Draw panels by title, a line for each policy; `shared`: they share a scale."""
    from matplotlib.figure import Figure

    columns = list(dict.fromkeys(result.column for panel in panels.values() for result in panel))
    width = min(len(panels), PANELS_IN_A_ROW)
    height = -(-len(panels) // width)
    figure = Figure(
        figsize=(1.5 + 3.2 * width, height * (0.9 + 0.22 * len(columns))), layout="constrained"
    )
    axes = figure.subplots(height, width, sharex=shared, sharey=True, squeeze=False)
    for axis, (title, panel) in zip(axes.flat, panels.items(), strict=False):
        for result in panel:
            assert result.paired is not None
            difference, half_width = result.paired
            finite = math.isfinite(half_width)
            sure = finite and abs(difference) > half_width
            axis.errorbar(
                [difference],
                [columns.index(result.column)],
                xerr=[half_width] if finite else None,
                marker="o",
                markersize=4,
                capsize=2,
                linewidth=1.2,
                color="black" if sure or not finite else "0.6",
            )
        axis.axvline(0.0, color="black", linewidth=0.8, linestyle=":")
        axis.set_title(_plain([fill(title, TITLE_COLUMNS)])[0], fontsize=9)
        axis.tick_params(labelsize=8, labelbottom=True)
        axis.margins(x=0.1)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    first = axes[0, 0]
    first.set_yticks(range(len(columns)), _plain(columns))
    first.set_ylim(len(columns) - 0.5, -0.5)
    return figure


def _value_of(row: str) -> float:
    """Return the number in the name of a setting."""
    number = _NUMBER.search(row)
    assert number is not None, row
    return float(number.group().replace(",", ""))


def plot_curves(curves: Curves) -> Figure:
    """Plot lines over the positions, a row for each panel."""
    figure, axes = _figure(len(curves.panels), height=3)
    for axis, (label, lines) in zip(axes, curves.panels.items(), strict=True):
        for name, values in lines.items():
            axis.plot(range(1, len(values) + 1), values, linewidth=1, label=name)
        axis.set(ylabel=label, ylim=(0, None))
        axis.legend(loc="upper right")
    axes[0].set(title=curves.name)
    axes[-1].set(xlabel=curves.about)
    return figure


def save_result_plots(
    name: str, results: Sequence[FigureResult], folder: Path, quantity: str = ""
) -> None:
    """Write a plot `<name>-<figure>.png` of each figure."""
    for figure, picture in plot_results(name, results, quantity):
        stem = "".join(character if character.isalnum() else "_" for character in figure).strip("_")
        save_figure(picture, folder / f"{name}-{stem}.png")


def save_curves(name: str, plotted: Iterable[Curves], folder: Path) -> None:
    """Write a plot `<name>-<plot>.png` of each."""
    for curves in plotted:
        save_figure(plot_curves(curves), folder / f"{name}-{curves.name.replace(' ', '-')}.png")


# Single runs


def save_schedule_plot(schedule: Schedule, path: Path) -> None:
    """Plot a run over time: processors in use, queue, and a Gantt chart if the run is small."""
    small = len(schedule.jobs) <= MAX_BARS
    figure, axes = _figure(3 if small else 2, height=3)
    samples = usage_over_time(schedule.jobs)
    times = [sample.time for sample in samples]
    used, queue = axes[-2:]
    used.step(times, [sample.used for sample in samples], where="post", linewidth=0.8)
    used.axhline(sum(cluster.cpus for cluster in schedule.clusters), color="grey", linestyle=":")
    used.set(ylabel="processors in use", ylim=(0, None))
    queue.step(times, [sample.waiting for sample in samples], where="post", linewidth=0.8)
    queue.set(ylabel="jobs waiting", xlabel="seconds", ylim=(0, None))
    if small:
        _draw_gantt(schedule, axes[0])
    save_figure(figure, path)


def plot_gantt(schedule: Schedule) -> Figure:
    """Plot which job ran when, on which processors."""
    figure, (axis,) = _figure(1, height=5)
    _draw_gantt(schedule, axis)
    axis.set(xlabel="seconds")
    return figure


def _draw_gantt(schedule: Schedule, axis: Axes) -> None:
    """Draw each job on the lowest free processors: they are counted, not assigned."""
    from matplotlib.collections import PolyCollection

    bars, colours, offset = [], [], 0
    for index, cluster in enumerate(schedule.clusters):
        free_at = [0.0] * cluster.cpus  # seconds, by processor
        runs = [
            (run.start, scheduled.job.id, run)
            for scheduled in schedule.jobs
            if scheduled.cluster == index
            for run in scheduled.runs
        ]
        for start, job_id, run in sorted(runs):
            end = run.end
            free = [processor for processor, time in enumerate(free_at) if time <= start]
            processors = free[: run.cpus]
            for processor in processors:
                free_at[processor] = end
            for first, last in _contiguous_runs(processors):
                low, high = offset + first, offset + last + 1
                bars.append([(start, low), (end, low), (end, high), (start, high)])
                colours.append(job_id % 20)
        axis.text(
            1.005, offset + cluster.cpus / 2, cluster.name, transform=_right_margin_transform(axis)
        )
        offset += cluster.cpus
        axis.axhline(offset, color="black", linewidth=0.6)
    shapes = PolyCollection(bars, array=colours, cmap="tab20", edgecolors="white", linewidths=0.2)
    shapes.set_rasterized(True)
    axis.add_collection(shapes)
    axis.set(ylabel="processor", ylim=(0, offset))
    axis.autoscale_view(scaley=False)


def _right_margin_transform(axis: Axes) -> object:
    """Return the transform with x as a share of the axis and y in processors."""
    return axis.get_yaxis_transform()


def _contiguous_runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Return (first, last) of each contiguous run of ascending numbers."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def plot_load(schedule: Schedule) -> Figure:
    """Plot mean utilisation and queue over equal intervals, per cluster if there are few.

    With licensed jobs, also the licences in use.
    """
    jobs = schedule.jobs
    first = min((scheduled.job.submitted for scheduled in jobs), default=0.0)
    last = max((scheduled.end for scheduled in jobs), default=0.0)
    licensed = any(scheduled.job.licences for scheduled in jobs)
    figure, axes = _figure(3 if licensed else 2, height=3)
    show_each_cluster = len(schedule.clusters) <= MAX_LINES
    lines: list[tuple[str, int, Sequence[ScheduledJob]]]  # label, processors, jobs
    if show_each_cluster:
        lines = [
            (cluster.name, cluster.cpus, [job for job in jobs if job.cluster == index])
            for index, cluster in enumerate(schedule.clusters)
        ]
    else:
        lines = [("all clusters", sum(cluster.cpus for cluster in schedule.clusters), jobs)]
    for name, cpus, cluster_jobs in lines:
        means = average_usage(usage_over_time(cluster_jobs), first, last, TIME_INTERVALS)
        times = [sample.time for sample in means]
        for axis, values in zip(axes, _plotted_values(means, cpus), strict=False):
            axis.step(times, values, where="post", linewidth=1, label=name)
    axes[0].set(ylabel="utilisation, %", ylim=(0, 105))
    axes[1].set(ylabel="jobs waiting", ylim=(0, max(axes[1].get_ylim()[1], 1)))
    if licensed:
        axes[2].set(ylabel="licences in use", ylim=(0, None))
    axes[-1].set(xlabel="seconds")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=MAX_LINES)
    return figure


def _plotted_values(means: Sequence[UsageSample], cpus: int) -> tuple[list[float], ...]:
    """Return the values of each row of `plot_load`."""
    return (
        [100 * sample.used / cpus for sample in means],
        [sample.waiting for sample in means],
        [sample.licences for sample in means],
    )


def plot_load_shares(shares: dict[str, float]) -> Figure:
    """Plot the share of the work of each cluster, in percent."""
    figure, (axis,) = _figure(1, height=1 + 0.3 * min(len(shares), 30))
    names = list(shares)[:30]
    bars = axis.barh(range(len(names)), [100 * shares[name] for name in names])
    axis.bar_label(bars, fmt="%.1f%%", padding=3)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set(xlabel="share of the work, %", xlim=(0, 110 * max(shares.values(), default=1.0)))
    return figure


def plot_bars(labels: Sequence[str], series: Mapping[str, Sequence[float]], unit: str) -> Figure:
    """Plot values of each label, at most `MAX_LABELS`; series side by side, by their names."""
    labels = labels[:MAX_LABELS]
    figure, (axis,) = _figure(1, height=1 + 0.3 * len(labels) * max(len(series), 1))
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        offset = (number - (len(series) - 1) / 2) * width
        positions = [position + offset for position in range(len(labels))]
        axis.barh(positions, values[: len(labels)], width * 0.95, label=name)
    axis.set_yticks(range(len(labels)), _plain(labels))
    axis.invert_yaxis()
    axis.set(xlabel=unit, xlim=(0, None))
    if len(series) > 1:
        figure.legend(loc="outside upper right", ncols=len(series))
    return figure


def plot_changes(
    labels: Sequence[str],
    changes: Sequence[float],
    intervals: Sequence[tuple[float, float] | None],
    unit: str,
) -> Figure:
    """Plot changes of at most `MAX_LABELS` labels as points, with their intervals if known."""
    labels, changes = labels[:MAX_LABELS], changes[:MAX_LABELS]
    figure, (axis,) = _figure(1, height=1 + 0.3 * len(labels))
    axis.axvline(0, color="grey", linewidth=0.8)
    axis.scatter(changes, range(len(labels)), s=18)
    for position, interval in enumerate(intervals[:MAX_LABELS]):
        if interval is not None:
            axis.plot(interval, (position, position), color="C0", linewidth=1.5)
    axis.set_yticks(range(len(labels)), _plain(labels))
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.set(xlabel=unit)
    return figure


def plot_lines(
    positions: Sequence[float], series: Mapping[str, Sequence[float]], axes: tuple[str, str]
) -> Figure:
    """Plot values over positions, a line for each series; `axes` are the labels of x and y."""
    figure, (axis,) = _figure(1, height=3.5)
    for name, values in series.items():
        axis.plot(positions, values, linewidth=1, label=name)
    axis.set(xlabel=axes[0], ylabel=axes[1], ylim=(0, None))
    axis.legend(loc="upper right")
    return figure


def plot_wait_shares(waits: Mapping[str, Sequence[float]]) -> Figure:
    """Plot cumulative distributions of waits in seconds."""
    figure, (axis,) = _figure(1, height=3.5)
    for name, values in waits.items():
        ordered = sorted(values)
        shares = [100 * (index + 1) / len(ordered) for index in range(len(ordered))]
        axis.step(ordered, shares, where="post", linewidth=1, label=name)
    axis.set_xscale("symlog", linthresh=10)
    axis.set(xlabel="wait, seconds", ylabel="jobs, %", ylim=(0, 101))
    axis.set_xlim(0, max(10.0, *(max(values) for values in waits.values())))
    axis.legend(loc="lower right")
    return figure


def plot_over_time(
    times: Sequence[str], parts: Iterable[tuple[str, Sequence[float]]], unit: str
) -> Figure:
    """Plot the sums of months or days, each divided into parts, which are named."""
    figure, (axis,) = _figure(1, height=4)
    base = [0.0] * len(times)
    for name, values in parts:
        axis.bar(range(len(times)), values, 0.8, bottom=base, label=_plain([name])[0])
        base = [below + value for below, value in zip(base, values, strict=True)]
    step = -(-len(times) // MAX_LABELS)
    axis.set_xticks(range(0, len(times), step), times[::step], rotation=60)
    axis.set(ylabel=unit, ylim=(0, None))
    figure.legend(loc="outside right upper")
    return figure


def _plain(labels: Sequence[str]) -> list[str]:
    """Return names of any characters as plain labels: `$` begins a formula, `_` hides a label."""
    return [" " * name.startswith("_") + name.replace("$", r"\$") for name in labels]


def plot_waits(schedule: Schedule) -> Figure:
    """Plot the cumulative distribution of waits."""
    figure, (axis,) = _figure(1, height=3.5)
    ordered = sorted(scheduled.wait for scheduled in schedule.jobs)
    shares = [100 * (index + 1) / len(ordered) for index in range(len(ordered))]
    axis.step(ordered, shares, where="post", linewidth=1)
    axis.set_xscale("symlog", linthresh=10)
    axis.set(xlabel="wait, seconds", ylabel="jobs, %", ylim=(0, 101))
    axis.set_xlim(0, max(ordered[-1], 10.0))
    return figure
