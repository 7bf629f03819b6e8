"""The benchmarks page: rendered from stored figures, each of an existing benchmark."""

from __future__ import annotations

import re
from pathlib import Path

from tests.bench.figures import (
    FILE,
    PAGE,
    ROOT,
    SECTIONS,
    Conditions,
    Figure,
    read_figures,
    render,
    store_figures,
)

QUIET = Conditions("2026-11-01", "abc1234", "3.11.2", "x86_64, 2 processors", 0.5)
BUSY = Conditions("2026-11-02", "def5678+", "3.11.2", "x86_64, 2 processors", 3.0)
RATE = Figure("test_daemon.py::a", "submissions", 265.4, "/s", {"`sbatch -H`": 71}, "2 x", QUIET)
TIME = Figure("test_daemon.py::b", "one process", 0.1274, "s", {}, "", BUSY)


def test_a_stored_sample_becomes_a_table() -> None:
    page = render([RATE, TIME])
    assert page.startswith("# Benchmarks\n")
    assert page.endswith(
        "| what | figure | `sbatch -H` | ratio | target |\n"
        "|---|--:|--:|--:|--:|\n"
        "| submissions | 265/s | 71/s | 3.7 | 2 x |\n"
        "| one process | 0.127 s |  |  |  |\n"
        "\n"
        "Measured on 2026-11-01 at abc1234, 2026-11-02 at def5678+ "
        "(Python 3.11.2, x86_64, 2 processors, load 0.5 to 3).\n"
    )
    assert "## Daemon" in page
    assert "## Arrays" not in page


def test_a_repeated_benchmark_replaces_its_own_figures(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    store_figures(path, TIME.test, [TIME])
    store_figures(path, RATE.test, [RATE, RATE])
    store_figures(path, RATE.test, [RATE])
    assert read_figures(path) == [TIME, RATE]


def test_the_page_is_rendered_from_the_stored_figures() -> None:
    assert PAGE.read_text() == render(read_figures(FILE)), "run python -m tests.bench.figures"


def test_every_stored_figure_has_its_benchmark_and_every_benchmark_its_section() -> None:
    tests = {
        f"{path.name}::{name}"
        for path in (ROOT / "tests/bench").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert {test.partition(".py")[0] for test in tests} == set(SECTIONS)
    assert {figure.test.partition("[")[0] for figure in read_figures(FILE)} <= tests


def test_benchmarks_run_only_on_request() -> None:
    for path in (ROOT / "tests/bench").glob("test_*.py"):
        for decorators, name in re.findall(
            r"((?:^@.*\n(?:^[ )\]].*\n)*)*)^def (test_\w+)", path.read_text(), re.MULTILINE
        ):
            assert "@pytest.mark.bench\n" in decorators, f"{path.name}::{name}"
