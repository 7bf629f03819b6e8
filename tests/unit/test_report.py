"""Reports and pictures: a self-contained page that names the measured figures."""

from __future__ import annotations

import csv
import json
import re
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from metasched.cli import main
from metasched.laboratory.experiments.harness import FigureResult
from metasched.laboratory.experiments.plots import describe_figure
from metasched.laboratory.experiments.report import render_results

# attributes that may make a browser load a resource
LOADING = {"src", "href", "srcset", "data", "poster", "action", "background", "xlink:href"}


class Page(HTMLParser):
    """The resources that a page would load, its pictures and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.pictures: list[str] = []
        self.cells: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base")
        self.open.append(tag)
        for name, value in attrs:
            if name in LOADING and value is not None:
                if value.startswith("data:image/svg+xml;base64,"):
                    self.pictures.append(b64decode(value.partition(",")[2]).decode())
                else:
                    self.fetched.append(value)
            assert name != "style" or "url(" not in (value or "")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th", "h1", "h2", "p"):
            self.cells.append(data)
        if self.open and self.open[-1] == "style":
            assert "url(" not in data
            assert "@import" not in data


def page(path: Path) -> Page:
    """Read a page; assert that it and its pictures are self-contained."""
    read = Page(path.read_text(encoding="utf-8"))
    assert read.fetched == []
    for picture in read.pictures:
        for element in ElementTree.fromstring(picture).iter():
            for name, value in element.attrib.items():
                if name.rpartition("}")[2] in ("href", "src"):
                    assert value.startswith(("#", "data:")), value
                assert all(url.startswith("#") for url in re.findall(r"url\((.*?)\)", value))
    return read


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["metasched", *map(str, arguments)])
    return main()


def test_a_report_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, times = tmp_path / "out.html", tmp_path / "times.csv"
    arguments = ["--set", "jobs=60", "--policy", "easy", "--report", out, "--over-time", times]
    assert command(monkeypatch, "simulate", "table6", *arguments, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    read = page(out)
    assert len(read.pictures) == 4
    for title in ("Figures", "Clusters", "Utilisation and queue", "Load share", "Schedule"):
        assert title in read.cells
    assert f"{figures['mean_flow']:.4g}" in read.cells
    assert {"c1", "c2", "c3", "c4"} <= set(read.cells)
    assert "policy easy · set jobs=60 · seed 0" in read.cells
    with open(times, newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["cluster"] for row in rows} == {"c1", "c2", "c3", "c4"}
    last = [row for row in rows if row["cluster"] == "c1"][-1]
    assert [last[key] for key in ("used", "running", "waiting", "licences")] == ["0"] * 4
    assert max(int(row["licences"]) for row in rows) > 0


def test_a_large_run_has_no_chart_of_its_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("metasched.laboratory.experiments.plots.MAX_BARS", 40)
    out = tmp_path / "out.html"
    assert command(monkeypatch, "simulate", "lublin", "--set", "jobs=50", "--report", out) == 0
    assert "Schedule" not in page(out).cells


def test_several_policies_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.html"
    arguments = ["--policy", "easy", "--policy", "fcfs", "--set", "jobs=80", "--seed", 4]
    options = ["--runs", 3, "--report", out, "--json"]
    assert command(monkeypatch, "simulate", "table1", *arguments, *options) == 0
    rows = json.loads(capsys.readouterr().out)
    of = {(row["policy"], row["figure"]): row for row in rows}
    single = []
    for seed in (4, 5, 6):
        arguments = ["--policy", "fcfs", "--set", "jobs=80", "--seed", seed, "--json"]
        assert command(monkeypatch, "simulate", "table1", *arguments) == 0
        single.append(json.loads(capsys.readouterr().out)["mean_wait"])
    assert of["fcfs", "mean_wait"]["values"] == single
    assert of["easy", "mean_wait"]["minus_baseline"] is None
    difference = of["fcfs", "mean_wait"]["mean"] - of["easy", "mean_wait"]["mean"]
    assert of["fcfs", "mean_wait"]["minus_baseline"] == pytest.approx(difference)
    assert of["fcfs", "mean_wait"]["minus_baseline_95"] > 0
    read = page(out)
    assert "set jobs=80 · seeds 4 to 6" in read.cells
    assert "mean wait, s" in read.cells
    assert "Differences from easy" in read.cells
    assert len(read.pictures) == 1  # with a panel for each figure
    assert command(monkeypatch, "simulate", "table1", *arguments[:4], "--runs", 2) == 0
    assert "longest_wait" in capsys.readouterr().out


def test_cells_show_intervals_differences_and_published_values() -> None:
    results = [
        FigureResult("1 x 128", "FCFS", "U", (0.5,), 0.587, None),
        FigureResult("1 x 128", "LSF", "U", (0.25,), None, (0.5,)),
        FigureResult("1 x 128", "FCFS", "<F>", (1.0, 3.0), None, None),
        FigureResult("1 x 128", "LSF", "<F>", (4.0, 8.0), None, (1.0, 3.0)),
    ]
    text = render_results("A & B", {"source": "x"}, results)
    assert "<h1>A &amp; B</h1>" in text
    cells = Page(text).cells
    assert "0.5 / 0.587" in cells
    assert "0.25 (−0.25)" in cells
    assert "1 x 128: <F>" in cells
    assert "2 ± 13" in cells
    assert "6 ± 25 (+4 ± 13)" in cells
    assert describe_figure("mean_wait") == "mean wait, s"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--report", "out.pdf"], "is not an HTML file"),
        (["--report", "nowhere/out.html"], "is not in an existing folder"),
        (["--policy", "easy", "--policy", "easy"], "easy is named twice"),
        (["--policy", "easy", "--policy", "esy"], 'write "easy"'),
        (["--runs", "2", "--plot", "out.png"], "no single schedule"),
    ],
)
def test_wrong_usage_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert command(monkeypatch, "simulate", "table1", "--set", "jobs=20", *arguments) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert (out, err.count("\n")) == ("", 1)
