"""Plots of trade-offs among stored results: a policy's gain in a figure, and loss in another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from metasched.laboratory.experiments.plots import save_figure
from metasched.laboratory.experiments.tables import StoredFigure, StoredResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "osD^v<>pPX*hd8"
_LEGEND_COLUMNS = 6


class TradeOff(NamedTuple):
    """Two figures of an experiment, a panel for each setting."""

    name: str  # of the picture
    experiment: str
    settings: tuple[str, ...]
    x: str  # figure
    y: str  # figure


TRADE_OFFS = (
    TradeOff(
        "placement", "better", ("SP2 0.70", "SP2 0.85", "SP2 0.95"), "wait, s", "longest wait, h"
    ),
    TradeOff(
        "deadlines",
        "local-policies",
        ("SDSC 0.90", "KTH 0.90", "CERIT 0.90"),
        "late, %",
        "longest wait, h",
    ),
    TradeOff(
        "bounds",
        "bounded-waits",
        ("SDSC 0.90", "KTH 0.90", "CERIT 0.90"),
        "late, %",
        "longest wait, h",
    ),
    TradeOff(
        "slowdown",
        "local-policies",
        ("SDSC 0.90", "KTH 0.90", "CERIT 0.90"),
        "bounded slowdown",
        "longest wait, h",
    ),
    TradeOff("reservation-clusters", "reservation-strategies", ("10%", "30%", "50%"), "F", "D"),
    TradeOff(
        "reservations",
        "reserving-jobs",
        ("easy", "fb-unmod"),
        "refused, %",
        "longest wait of others, h",
    ),
)


def save_trade_offs(results: Sequence[StoredResults], folder: Path) -> None:
    """Draw FOLDER/NAME.png for each trade-off whose experiment is among the results."""
    for name, figure in plot_trade_offs(results):
        save_figure(figure, folder / f"{name}.png")


def plot_trade_offs(results: Sequence[StoredResults]) -> Iterator[tuple[str, Figure]]:
    """Yield name and plot of each trade-off whose experiment is among the results.

    Each policy is a point at its means. Bars are the 95% intervals of its difference from the
    baseline with the same seed: the baseline, at the dotted lines, has none.
    """
    from matplotlib.figure import Figure

    stored = {each.experiment: each for each in results}
    for trade_off in TRADE_OFFS:
        if trade_off.experiment not in stored:
            continue
        experiment = stored[trade_off.experiment]
        policies = list(dict.fromkeys(figure.policy for figure in experiment.figures))
        count = len(trade_off.settings)
        figure = Figure(figsize=(3.6 * count, 4.0), layout="constrained")
        axes = figure.subplots(1, count, squeeze=False)[0]
        for axis, setting in zip(axes, trade_off.settings, strict=True):
            _draw_panel(axis, experiment, trade_off, setting, policies)
        axes[0].set_ylabel(trade_off.y)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(len(labels), _LEGEND_COLUMNS)
        )
        yield trade_off.name, figure


def _draw_panel(
    axis: Axes,
    experiment: StoredResults,
    trade_off: TradeOff,
    setting: str,
    policies: Sequence[str],
) -> None:
    cells = {
        (cell.policy, cell.figure): cell for cell in experiment.figures if cell.setting == setting
    }
    for index, policy in enumerate(policies):
        x, y = (cells.get((policy, name)) for name in (trade_off.x, trade_off.y))
        if x is None or y is None:
            continue
        if policy == experiment.baseline:
            axis.axvline(x.mean, color="0.6", linewidth=0.8, linestyle=":")
            axis.axhline(y.mean, color="0.6", linewidth=0.8, linestyle=":")
        axis.errorbar(
            [x.mean],
            [y.mean],
            xerr=[_half_width(x)],
            yerr=[_half_width(y)],
            marker=_MARKERS[index % len(_MARKERS)],
            color=f"C{index % 10}",
            ecolor="0.8",
            elinewidth=1,
            linestyle="",
            label=policy,
        )
    axis.margins(0.1)
    axis.set(title=setting, xlabel=trade_off.x, xlim=(0, None), ylim=(0, None))


def _half_width(figure: StoredFigure) -> float:
    return figure.half_width or 0.0
