"""Plots of experiments: lines over a quantity, and what changes during a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.patches import Rectangle

from metasched.laboratory.experiments.catalogue import EXPERIMENTS
from metasched.laboratory.experiments.harness import Curves, FigureResult
from metasched.laboratory.experiments.plots import (
    plot_curves,
    plot_differences,
    plot_results,
    save_curves,
)

RESULTS = [
    FigureResult("3,000 jobs", "tabu", "late", (1.0, 3.0), 2.5, None),
    FigureResult("3,000 jobs", "rcbo", "late", (5.0, 5.0), None, (1.0, 3.0)),
    FigureResult("12,000 jobs", "tabu", "late", (4.0, 4.0), None, None),
    FigureResult("12,000 jobs", "rcbo", "late", (9.0, 9.0), None, (4.0, 4.0)),
]


def test_settings_of_a_quantity_are_lines_over_it() -> None:
    [(figure, picture)] = plot_results("grid", RESULTS, "jobs")
    (axis,) = picture.axes
    lines = [c.lines[0] for c in axis.containers if isinstance(c, ErrorbarContainer)]
    assert figure == "late"
    assert [np.asarray(line.get_xydata()).tolist() for line in lines] == [
        [[3000.0, 2.0], [12_000.0, 4.0]],
        [[3000.0, 5.0], [12_000.0, 9.0]],
    ]
    assert axis.get_xlabel() == "jobs"
    assert axis.get_title() == "grid (x: published)"


def test_other_settings_are_bars() -> None:
    [(_, picture)] = plot_results("grid", RESULTS)
    (axis,) = picture.axes
    heights = [patch.get_height() for patch in axis.patches if isinstance(patch, Rectangle)]
    assert heights == [2.0, 4.0, 5.0, 9.0]


def intervals(axis: Axes) -> list[list[list[float]]]:
    """Return the bars of the intervals, from end to end."""
    bars = [bar for c in axis.containers if isinstance(c, ErrorbarContainer) for bar in c.lines[2]]
    return [segment.tolist() for bar in bars for segment in bar.get_segments()]


def test_differences_have_a_panel_for_each_setting() -> None:
    [(title, picture)] = plot_differences(RESULTS)
    assert title == "late: difference from tabu"
    first, second = picture.axes
    assert [axis.get_title() for axis in (first, second)] == ["3,000 jobs", "12,000 jobs"]
    # differences 4 and 2 over two seeds: 3 +- 12.706; 5 and 5: 5 +- 0
    assert np.array(intervals(first)).ravel() == pytest.approx([-9.706, 0, 15.706, 0], abs=1e-3)
    assert np.array(intervals(second)).ravel() == pytest.approx([5, 0, 5, 0])
    assert first.get_xlim() == second.get_xlim()
    assert [label.get_text() for label in first.get_yticklabels()] == ["rcbo"]


def test_differences_of_a_single_setting_have_a_panel_for_each_figure() -> None:
    results = [result._replace(row="") for result in RESULTS[:2]]
    results += [result._replace(figure="mean_wait", values=(7.0, 9.0)) for result in results]
    [(title, picture)] = plot_differences(results)
    assert title == "Differences from tabu"
    assert [axis.get_title() for axis in picture.axes] == ["late", "mean wait, s"]


def test_a_single_seed_has_no_interval_and_a_single_policy_no_difference() -> None:
    alone = RESULTS[1]._replace(values=(5.0,), baseline=(3.0,))
    [(_, picture)] = plot_differences([RESULTS[0]._replace(values=(3.0,)), alone])
    assert intervals(picture.axes[0]) == []
    assert plot_differences(RESULTS[:1]) == []


@pytest.mark.parametrize(
    "name", [name for name, experiment in EXPERIMENTS.items() if experiment.quantity]
)
def test_each_setting_has_a_value_of_the_quantity(name: str) -> None:
    experiment = EXPERIMENTS[name]
    cases = experiment.cases()
    results = [FigureResult(case.row, case.column, "f", (1.0,), None, None) for case in cases]
    [(_, picture)] = plot_results(name, results, experiment.quantity)
    values = picture.axes[0].get_xticks().tolist()
    assert values == sorted(set(values))
    assert len(values) == len({case.row for case in cases})


def test_curves_have_a_row_for_each_panel(tmp_path: Path) -> None:
    panels = {"margin": {"mean": [3.0, 4.0]}, "base": {"adh": [2.0, 5.0], "fixed": [2.0, 2.0]}}
    curves = Curves("table 11", "job", panels)
    upper, lower = plot_curves(curves).axes
    (line,) = upper.get_lines()
    assert np.asarray(line.get_xydata()).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert [line.get_label() for line in lower.get_lines()] == ["adh", "fixed"]
    assert (upper.get_ylabel(), lower.get_xlabel()) == ("margin", "job")
    save_curves("streams", [curves], tmp_path)
    assert (tmp_path / "streams-table-11.png").read_bytes().startswith(b"\x89PNG")


def test_the_base_follows_falling_margins() -> None:
    """Figure 35 of Pasquali 2008: margins fall after job 400, and ADH then raises its base."""
    curves = EXPERIMENTS["self-optimising-parts"].curves
    assert curves is not None
    table_11, table_12 = curves(1)
    assert (table_11.name, table_12.name) == ("table 11", "table 12")
    (margins,) = table_11.panels["margin, s"].values()
    bases = table_11.panels["base"]
    assert len(margins) == len(bases["adh"]) == 2000
    assert 2000 < margins[399] < 4000
    assert 0 < margins[500] < 200
    assert set(bases["deadline"]) == {2.0}
    assert max(bases["adh"][:400]) < 3 < max(bases["adh"][400:500])
    distances = table_11.panels["distance from the target"]
    assert distances["base-span"][900] < distances["delta"][900] < distances["base-span"][450]
