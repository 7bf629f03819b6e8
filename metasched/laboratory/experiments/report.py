"""Self-contained HTML report of a run or a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metasched.laboratory.experiments import plots
from metasched.laboratory.experiments.harness import FigureResult, confidence_interval
from metasched.laboratory.experiments.html_page import html_table, image, page, section
from metasched.laboratory.experiments.plots import PlotError, check_library
from metasched.laboratory.simulate.engine import Schedule

_SHARES = ("utilisation", "missed_deadlines", "licence_usage")
_HIDDEN = (
    *("policy", "clusters", "load_share", "dropped", "reservations"),
    *("wall_seconds", "cpu_seconds", "jobs_per_second"),
)
_ABOUT_DIFFERENCES = (
    "Mean difference from the baseline with the same seed, and its 95% interval. "
    "An interval across the line at 0 shows no difference."
)


def check_report(path: Path, option: str = "--report") -> None:
    """Check before a long run that its report can be written. PlotError if not."""
    check_library(option)
    if path.suffix.lower() not in (".html", ".htm"):
        raise PlotError(f"{path} is not an HTML file, {option}; use a name that ends in .html")
    if not path.absolute().parent.is_dir():
        raise PlotError(f"{path} is not in an existing folder, {option}; create the folder first")


def render_run(
    title: str, about: Mapping[str, object], schedule: Schedule, figures: Mapping[str, Any]
) -> str:
    """Return the report of a run; `figures` are those of `metrics.summary`."""
    small = len(schedule.jobs) <= plots.MAX_BARS
    parts = [
        section("Figures", html_table(("figure", "value"), _figure_rows(figures))),
        section("Clusters", _cluster_table(schedule, figures)),
        section(
            "Utilisation and queue",
            image(plots.plot_load(schedule), "utilisation and queue over time"),
            f"Means over {plots.TIME_INTERVALS} equal intervals. "
            "A job that was moved counts where it ran.",
        ),
        section("Load share", image(plots.plot_load_shares(figures["load_share"]), "load shares")),
        section("Waits", image(plots.plot_waits(schedule), "distribution of waits")),
    ]
    if small:
        text = "Processors are counted, not assigned: a job is shown on the lowest free processors."
        parts.append(section("Schedule", image(plots.plot_gantt(schedule), "Gantt chart"), text))
    if "reservations" in figures:
        rows = [
            (name.replace("_", " "), _format_number(value))
            for name, value in figures["reservations"].items()
        ]
        parts.append(section("Reservations", html_table(("figure", "value"), rows)))
    if figures["dropped"]:
        rows = [(cause, str(count)) for cause, count in figures["dropped"].items()]
        parts.append(section("Jobs left out", html_table(("cause", "jobs"), rows)))
    return page(title, about, parts)


def render_results(
    title: str, about: Mapping[str, object], results: Sequence[FigureResult], quantity: str = ""
) -> str:
    """Return the report comparing several policies; intervals are over the seeds."""
    columns = list(dict.fromkeys(result.column for result in results))
    baseline_column = next(result.column for result in results if result.baseline is None)
    seed_count = len(results[0].values)
    rows = []
    for row, figure in dict.fromkeys((result.row, result.figure) for result in results):
        cells = {
            result.column: result
            for result in results
            if (result.row, result.figure) == (row, figure)
        }
        label = f"{row}: {plots.describe_figure(figure)}" if row else plots.describe_figure(figure)
        rows.append(
            (
                label,
                *(_format_result(cells[column]) if column in cells else "" for column in columns),
            )
        )
    seeds = f"{seed_count} seeds: mean ± half of its 95% interval" if seed_count > 1 else "One seed"
    text = f"{seeds}; in brackets, the difference from {baseline_column} with the same seed."
    if any(result.published is not None for result in results):
        text += " After the slash, the published value."
    parts = [section("Figures", html_table(("figure", *columns), rows), text)]
    differences = () if quantity else plots.plot_differences(results)
    for heading, picture in differences:
        parts.append(section(heading, image(picture, heading), _ABOUT_DIFFERENCES))
    if not differences:  # lines over a quantity, or a policy that nothing is compared with
        for figure, picture in plots.plot_results("", results, quantity):
            parts.append(section(plots.describe_figure(figure), image(picture, figure)))
    return page(title, about, parts)


def _figure_rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for name, value in figures.items():
        if name in _HIDDEN:
            continue
        text = f"{value:.2%}" if name in _SHARES else _format_number(value)
        rows.append((plots.describe_figure(name), text))
    return rows


def _cluster_table(schedule: Schedule, figures: Mapping[str, Any]) -> str:
    headings = (
        "cluster",
        "processors",
        "jobs",
        "share of the work",
        "utilisation",
        "mean wait, s",
        "bounded slowdown",
        "longest wait, s",
        "missed deadlines",
        "licence usage",
    )
    rows = []
    for cluster in schedule.clusters:
        cluster_figures = figures["clusters"][cluster.name]
        rows.append(
            (
                cluster.name,
                str(cluster.cpus),
                str(cluster_figures["jobs"]),
                f"{figures['load_share'][cluster.name]:.1%}",
                f"{cluster_figures['utilisation']:.1%}",
                _format_number(cluster_figures["mean_wait"]),
                _format_number(cluster_figures["mean_bounded_slowdown"]),
                _format_number(cluster_figures["longest_wait"]),
                f"{cluster_figures['missed_deadlines']:.1%}",
                f"{cluster_figures['licence_usage']:.1%}",
            )
        )
    return html_table(headings, rows)


def _format_result(result: FigureResult) -> str:
    """Return `mean ± half-width (difference ± half-width) / published`, as far as they exist."""
    text = _format_interval(*confidence_interval(result.values))
    if result.paired is not None:
        difference, half = result.paired
        text += f" ({'+' if difference >= 0 else '−'}{_format_interval(abs(difference), half)})"
    if result.published is not None:
        text += f" / {result.published:g}"
    return text


def _format_interval(mean: float, half: float) -> str:
    """Format a mean and, if finite, the half-width of its interval with two digits."""
    text = _format_number(mean)
    if math.isfinite(half):
        text += f" ± {_format_number(float(f'{half:.2g}'))}"
    return text


def _format_number(value: float) -> str:
    if isinstance(value, int) or abs(value) >= 1e4:
        return f"{value:,.0f}"
    return f"{value:.4g}"
