"""Self-contained HTML report of a run or a comparison."""

from __future__ import annotations

import io
import math
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metasched.experiments import plots
from metasched.experiments.harness import FigureResult, confidence_interval
from metasched.experiments.plots import PlotError, check_library
from metasched.simulate.engine import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2330; background: #fff; margin: 0 auto;
       max-width: 1080px; padding: 1.5rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.about { color: #57606f; margin-top: 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem .3rem 0; border-bottom: 1px solid #e3e6ea; text-align: right; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
"""
_SHARES = ("utilisation", "missed_deadlines", "licence_usage")
_HIDDEN = ("policy", "clusters", "load_share", "dropped", "wall_seconds", "jobs_per_second")


def check_report(path: Path) -> None:
    """Check before a long run that its report can be written. PlotError if not."""
    check_library("--report")
    if path.suffix.lower() not in (".html", ".htm"):
        raise PlotError(f"{path} is not an HTML file, --report; use a name that ends in .html")
    if not path.absolute().parent.is_dir():
        raise PlotError(f"{path} is not in an existing folder, --report; create the folder first")


def render_run(
    title: str, about: Mapping[str, object], schedule: Schedule, figures: Mapping[str, Any]
) -> str:
    """Return the report of a run; `figures` are those of `metrics.summary`."""
    small = len(schedule.jobs) <= plots.MAX_BARS
    parts = [
        _section("Figures", _html_table(("figure", "value"), _figure_rows(figures))),
        _section("Clusters", _cluster_table(schedule, figures)),
        _section(
            "Utilisation and queue",
            _image(plots.plot_load(schedule), "utilisation and queue over time"),
            f"Means over {plots.TIME_INTERVALS} equal intervals. "
            "A job that was moved counts where it ran.",
        ),
        _section(
            "Load share", _image(plots.plot_load_shares(figures["load_share"]), "load shares")
        ),
        _section("Waits", _image(plots.plot_waits(schedule), "distribution of waits")),
    ]
    if small:
        text = "Processors are counted, not assigned: a job is shown on the lowest free processors."
        parts.append(_section("Schedule", _image(plots.plot_gantt(schedule), "Gantt chart"), text))
    if figures["dropped"]:
        rows = [(cause, str(count)) for cause, count in figures["dropped"].items()]
        parts.append(_section("Jobs left out", _html_table(("cause", "jobs"), rows)))
    return _page(title, about, parts)


def render_results(title: str, about: Mapping[str, object], results: Sequence[FigureResult]) -> str:
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
    parts = [_section("Figures", _html_table(("figure", *columns), rows), text)]
    for figure, picture in plots.plot_results("", results):
        parts.append(_section(plots.describe_figure(figure), _image(picture, figure)))
    return _page(title, about, parts)


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
    return _html_table(headings, rows)


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


def _html_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    header = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows
    )
    return f'<div class="wide"><table><tr>{header}</tr>\n{body}</table></div>'


def _image(figure: Figure, about: str) -> str:
    """Return the plot as an embedded image, an SVG with ids of its own."""
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context({"svg.hashsalt": about}):
        figure.savefig(file, format="svg", dpi=150, metadata={"Date": None})
    data = b64encode(file.getvalue()).decode("ascii")
    return f'<figure><img alt="{escape(about)}" src="data:image/svg+xml;base64,{data}"></figure>'


def _section(title: str, body: str, text: str = "") -> str:
    paragraph = f"<p>{escape(text)}</p>\n" if text else ""
    return f"<h2>{escape(title)}</h2>\n{paragraph}{body}\n"


def _page(title: str, about: Mapping[str, object], parts: Iterable[str]) -> str:
    subtitle = " · ".join(f"{escape(key)} {escape(str(value))}" for key, value in about.items())
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="about">{subtitle}</p>\n{"".join(parts)}'
        "</body>\n</html>\n"
    )
