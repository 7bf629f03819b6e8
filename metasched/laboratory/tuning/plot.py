"""The plot of a study: its trials, the trade-offs, the present and the chosen policy."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from metasched.laboratory.experiments.plots import describe_figure
from metasched.laboratory.tuning.outcome import StudyResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_outcome(outcome: StudyResult) -> Figure:
    """Plot the training part: trials in sequence, or the first objective against the others.

    Lower is better; the trade-offs are joined by a line.
    """
    from matplotlib.figure import Figure

    later_objectives = outcome.objectives[1:]
    count = max(len(later_objectives), 1)
    figure = Figure(figsize=(5.5 * min(count, 2) + 1, 4.5 * -(-count // 2)), layout="constrained")
    axes = figure.subplots(-(-count // 2), min(count, 2), squeeze=False).flat
    if later_objectives:
        for index, axis in enumerate(list(axes)[: len(later_objectives)], 1):
            _draw_trade_offs(axis, outcome, index)
    else:
        _draw_history(next(axes), outcome)
    for axis in list(axes)[count:]:
        axis.set_axis_off()
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def _draw_trade_offs(axis: Axes, outcome: StudyResult, other: int) -> None:
    """Draw the first objective against another objective."""
    points = [each.values for each in outcome.trials if each.values is not None]
    axis.scatter(
        [v[0] for v in points], [v[other] for v in points], s=12, color="0.7", label="trial"
    )
    front = [each.trial.values for each in outcome.trade_offs if each.trial.values is not None]
    axis.plot(
        [v[0] for v in front],
        [v[other] for v in front],
        marker="o",
        linewidth=1 if len(outcome.objectives) == 2 else 0,
        label="trade-off",
    )
    for judged, marker, label in (
        (outcome.present, "s", "present policy"),
        (outcome.chosen, "*", "chosen"),
    ):
        if judged is not None and judged.trial.values is not None:
            values = judged.trial.values
            axis.scatter([values[0]], [values[other]], s=90, marker=marker, label=label, zorder=3)
    names = outcome.objectives
    axis.set(xlabel=describe_figure(names[0]), ylabel=describe_figure(names[other]))


def _draw_history(axis: Axes, outcome: StudyResult) -> None:
    """Draw the values of a single objective by trial, and the lowest so far."""
    complete = [
        (number, each.values[0])
        for number, each in enumerate(outcome.trials)
        if each.values is not None
    ]
    numbers, values = [number for number, _ in complete], [value for _, value in complete]
    axis.scatter(numbers, values, s=12, color="0.7", label="trial")
    axis.step(numbers, list(accumulate(values, min)), where="post", label="lowest so far")
    axis.axhline(values[0], linestyle=":", color="black", label="present policy")
    axis.set(xlabel="trial", ylabel=describe_figure(outcome.objectives[0]))
