"""Trade-offs of stored results: each has its picture, on a page that shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from metasched.cli import main
from metasched.laboratory.experiments.catalogue import EXPERIMENTS
from metasched.laboratory.experiments.tables import StoredFigure, StoredResults, load_results
from metasched.laboratory.experiments.trade_offs import TRADE_OFFS, plot_trade_offs

FOLDER = Path(__file__).parents[2] / "docs/experiments"


def test_each_trade_off_is_of_stored_results_and_on_the_page() -> None:
    stored = {each.experiment: each for each in load_results(FOLDER / "results", list(EXPERIMENTS))}
    shown = re.findall(r"\(pictures/(.*?)\.png\)", (FOLDER / "trade-offs.md").read_text())
    assert sorted(shown) == sorted(trade_off.name for trade_off in TRADE_OFFS)
    for trade_off in TRADE_OFFS:
        assert (FOLDER / "pictures" / f"{trade_off.name}.png").is_file()
        figures = stored[trade_off.experiment].figures
        for setting in trade_off.settings:
            of_setting = {figure.figure for figure in figures if figure.setting == setting}
            assert {trade_off.x, trade_off.y} <= of_setting, setting


def test_a_policy_is_a_point_with_the_intervals_of_its_differences() -> None:
    container = pytest.importorskip("matplotlib.container")
    trade_off = TRADE_OFFS[0]
    figures = [
        StoredFigure(
            setting=setting,
            policy=policy,
            figure=name,
            mean=mean,
            difference=None if policy == "base" else 1.0,
            half_width=None if policy == "base" else 0.5,
        )
        for setting in trade_off.settings
        for policy, (x, y) in {"base": (3.0, 4.0), "other": (4.0, 5.0)}.items()
        for name, mean in ((trade_off.x, x), (trade_off.y, y))
    ]
    results = StoredResults(trade_off.experiment, "", "", "base", 2, "", figures)
    [(name, figure)] = plot_trade_offs([results])
    assert name == trade_off.name
    assert len(figure.axes) == len(trade_off.settings)
    for axis in figure.axes:
        bars: list[Any] = [c for c in axis.containers if isinstance(c, container.ErrorbarContainer)]
        assert [each.lines[0].get_xydata().tolist() for each in bars] == [[[3, 4]], [[4, 5]]]
        across, up = bars[1].lines[2]
        assert across.get_segments()[0].tolist() == [[3.5, 5.0], [4.5, 5.0]]
        assert up.get_segments()[0].tolist() == [[4.0, 4.5], [4.0, 5.5]]


def test_the_command_draws_them_beside_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    stored = tmp_path / "results"
    stored.mkdir()
    name = TRADE_OFFS[0].experiment
    (stored / f"{name}.json").write_bytes((FOLDER / "results" / f"{name}.json").read_bytes())
    pictures = tmp_path / "pictures"
    arguments = ["--tables", str(stored), "--plot", str(pictures)]
    monkeypatch.setattr("sys.argv", ["metasched", "experiment", *arguments])
    assert main() == 0
    assert capsys.readouterr().out.count("\n## ") == 1
    assert [path.name for path in pictures.iterdir()] == [f"{TRADE_OFFS[0].name}.png"]
