"""`report`: its table, CSV and page; hostile names; what is wrong with options."""

from __future__ import annotations

import csv
import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.fake_daemon import FakeDaemon, Run

USE: dict[str, Any] = {"jobs": 3, "completed": 2, "failed": 1, "timed_out": 0, "cancelled": 0}
USE |= {"elapsed": 7200.0, "cpu_seconds": 36000.0, "share": 0.75, "cpu_seconds_used": 18000.0}
USE |= {"efficiency": 0.5, "node_seconds": 7200.0, "gpu_seconds": 0.0}
USE |= {"cpu_seconds_outside": 360.0}
WAITS: dict[str, Any] = {"jobs": 2, "mean_wait": 90.0, "median_wait": 60.0, "p90_wait": 7000.0}
WAITS |= {"max_wait": 36000.0, "mean_bounded_slowdown": 2.5}
LICENCES: dict[str, Any] = {"leases": 2, "token_seconds": 7200.0, "mean_wait": 0.0, "max_wait": 0.0}
FORMULAS = ["=1+2", "+1", "-1", "@x", " =1", "\t=1", "\r=cmd|' /C calc'!A0"]


def answer(by: list[str], rows: list[dict[str, Any]], total: dict[str, Any]) -> dict[str, Any]:
    period = {"since": "2026-03-01", "until": "2026-04-01", "time_zone": "CET"}
    return {"report": "use", **period, "by": by, "rows": rows, "total": total}


@pytest.fixture
def use(daemon: FakeDaemon) -> FakeDaemon:
    rows = [{"user": "ada", **USE}, {"user": "", **USE, "efficiency": None}]
    daemon.answer("/reports/use", answer(["user"], rows, USE))
    return daemon


def test_a_table_in_hours_with_a_total(use: FakeDaemon, run: Run) -> None:
    lines = [line.split() for line in run("report", "use").out.splitlines()]
    assert lines[0][:3] == ["USER", "JOBS", "COMPLETED"]
    figures = ["3", "2", "1", "0", "0", "2.0", "10.0", "75.0", "5.0"]
    assert lines[1:] == [
        ["ada", *figures, "50.0", "2.0", "0.0", "0.1"],
        ["-", *figures, "-", "2.0", "0.0", "0.1"],
        ["all", *figures, "50.0", "2.0", "0.0", "0.1"],
    ]
    [(_, _, query, _)] = [request for request in use.requests if "report" in request[1]]
    assert query == {"by": ["user"]}


def test_durations_have_units(daemon: FakeDaemon, run: Run) -> None:
    daemon.answer("/reports/waits", answer(["cluster"], [{"cluster": "left", **WAITS}], WAITS))
    [_, line] = run("report", "waits").out.splitlines()
    assert line.split() == ["left", "2", "90s", "60s", "117m", "10.0h", "2.5"]


def test_unknown_figures_take_no_column(daemon: FakeDaemon, run: Run) -> None:
    row = {"licence": "matlab", **LICENCES, "peak": None, "total": None}
    daemon.answer("/reports/licences", answer([], [row], row))
    assert "PEAK" not in run("report", "licences").out
    daemon.answer("/reports/licences", answer([], [row | {"peak": 2, "total": 4}], row))
    assert "PEAK" in run("report", "licences").out


def test_filters_and_days_of_a_request(use: FakeDaemon, run: Run) -> None:
    row = {"month": "2026-03", "user": "ada", **USE}
    use.answer("/reports/use", answer(["month", "user"], [row], USE))
    run(*("report", "use", "--by", "month,user", "--since", "2026-03", "--until", "2026-04-02"))
    run(*("report", "use", "--since", "30d", "--class", "gold", "--group", "g", "--cluster", "c"))
    first, second = [query for _, path, query, _ in use.requests if path == "/reports/use"]
    assert first == {"by": ["month", "user"], "since": ["2026-03-01"], "until": ["2026-04-02"]}
    assert second.pop("since") == [(date.today() - timedelta(days=30)).isoformat()]
    assert second == {"by": ["user"], "class": ["gold"], "group": ["g"], "cluster": ["c"]}


def test_json_is_the_answer(use: FakeDaemon, run: Run) -> None:
    printed = json.loads(run("report", "use", "--json").out)
    assert printed["rows"][0] == {"user": "ada", **USE}


@pytest.mark.parametrize("name", FORMULAS)
def test_no_name_is_a_formula_in_a_spreadsheet(
    daemon: FakeDaemon, run: Run, tmp_path: Path, name: str
) -> None:
    daemon.answer("/reports/use", answer(["account"], [{"account": name, **USE}], USE))
    file = tmp_path / "use.csv"
    assert run("report", "use", "--by", "account", "--csv", str(file)).code == 0
    with file.open(newline="") as stream:
        heading, row = csv.reader(stream)
    assert heading == ["account", *USE]
    assert row[0][0] in "'?", row
    assert [float(cell) for cell in row[1:]] == list(USE.values())


def test_csv_on_the_standard_output(use: FakeDaemon, run: Run) -> None:
    lines = run("report", "use", "--csv", "-").out.splitlines()
    assert lines[0].startswith("user,jobs,completed,")
    assert lines[2].startswith(",3,2,")
    assert len(lines) == 3


HOSTILE = "<script>alert(1)</script>$\\frac{a}$\x1b[2J_"


@pytest.mark.parametrize("by", [["account"], ["month", "account"], ["month", "day"]])
def test_a_page_shows_hostile_names_as_text(
    daemon: FakeDaemon, run: Run, tmp_path: Path, by: list[str]
) -> None:
    pytest.importorskip("matplotlib")
    keys = {"account": HOSTILE, "month": "2026-03", "day": "2026-03-31"}
    rows = [{**{key: keys[key] for key in by}, **USE}]
    rows += [{**row, "account": "_hidden"} for row in rows if "account" in by]
    daemon.answer("/reports/use", answer(by, rows, USE))
    file = tmp_path / "use.html"
    done = run("report", "use", "--by", ",".join(by), "--html", str(file))
    assert (done.code, done.out, done.err) == (0, "", "")
    page = file.read_text()
    assert "<script" not in page
    assert "\x1b" not in page
    assert "data:image/svg+xml;base64," in page
    assert ("&lt;script&gt;" in page) == ("account" in by)


@pytest.mark.parametrize("kind", ["waits", "deadlines", "licences"])
def test_every_report_has_a_page(daemon: FakeDaemon, run: Run, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib")
    figures: dict[str, Any] = {
        "waits": WAITS | {"p90_wait": None},
        "deadlines": {"jobs": 2, "met": 1, "missed": 1, "missed_deadlines": 0.5}
        | {"mean_tardiness": 7.0, "max_tardiness": 7.0},
        "licences": {"licence": "matlab", **LICENCES, "peak": 2, "total": 4},
    }[kind]
    daemon.answer(
        f"/reports/{kind}", answer(["cluster"], [{"cluster": "left", **figures}], figures)
    )
    file = tmp_path / "page.html"
    assert run("report", kind, "--by", "cluster", "--html", str(file)).code == 0
    assert "left" in file.read_text()


def test_an_empty_period_is_one_line(daemon: FakeDaemon, run: Run, tmp_path: Path) -> None:
    daemon.answer("/reports/use", answer(["user"], [], dict.fromkeys(USE)))
    done = run("report", "use")
    assert (done.code, done.out) == (0, "")
    assert "no job ended from 2026-03-01 until 2026-04-01, as far as you may see" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("usage",), 'unknown report "usage"; write one of use, waits'),
        (("use", "--by", "user,nam"), 'unknown key "nam", --by; write some of user,'),
        (("use", "--by", "user,,month"), "an empty name"),
        (("use", "--since", "yesterday"), '"yesterday" is no day, --since'),
        (("use", "--until", "2026-02-30"), '"2026-02-30" is no day, --until'),
        (("use", "--since", "2026-13"), '"2026-13" is no day, --since'),
        (("use", "--since", ""), '"" is no day, --since'),
        (("use", "--user", ""), "an empty word, --user"),
        (("use", "--html", "page.txt"), "page.txt is not an HTML file, --html"),
        (("use", "--html", "/nonexistent/page.html"), "is not in an existing folder, --html"),
        (("use", "--csv", "/nonexistent/use.csv"), "No such file or directory, /nonexistent"),
    ],
)
def test_bad_input(use: FakeDaemon, run: Run, arguments: tuple[str, ...], problem: str) -> None:
    done = run("report", *arguments)
    assert done.code != 0
    assert problem in done.err
    assert done.err.count("\n") == 1
