"""The whole demonstration: it ends by itself, loses no job and leaves no process."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import COMMAND

JOBS = 12


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The demonstrations' TMPDIR, with a short name since it contains sockets."""
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


def left_behind(folder: Path) -> list[str]:
    command_lines = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    return [line for line in command_lines if str(folder) in line]


@pytest.mark.slow("a whole demo, with a window that begins after its jobs")
def test_demo_completes_every_job_and_draws_the_chart(tmp_path: Path, folder: Path) -> None:
    chart = tmp_path / "gantt.png"
    done = subprocess.run(
        [COMMAND, "demo", "--jobs", str(JOBS), "--seed", "3", "--json", "--plot", chart],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done
    summary = json.loads(done.stdout)
    assert (summary["jobs"], summary["completed"], summary["lost"]) == (JOBS, JOBS, 0)
    assert 0 <= summary["deadlines_met"] <= summary["deadlines"] <= JOBS
    assert sum(summary["load_share"].values()) == pytest.approx(1)
    assert set(summary["load_share"]) == {"left", "right"}
    window = summary["reservation"]
    assert (window["cluster"], window["job"]) == ("left", "completed")
    assert window["start_delay"] >= 0
    assert datetime.fromisoformat(window["started"]) < datetime.fromisoformat(window["end"])
    assert f"\nGantt chart: {chart}\n" in done.stderr
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert not left_behind(folder)


def test_ctrl_c_ends_the_demo_its_daemon_and_its_jobs(folder: Path) -> None:
    demo = subprocess.Popen(
        [COMMAND, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 120
    while not list(folder.rglob("supervisor.log")):  # of the first job
        assert time.monotonic() < until
        assert demo.poll() is None
        time.sleep(0.05)
    assert left_behind(folder)
    demo.send_signal(signal.SIGINT)
    _, output = demo.communicate(timeout=100)
    assert demo.returncode == 130
    assert "Traceback" not in output
    assert not left_behind(folder)


def test_a_chart_that_cannot_be_drawn_is_refused_before_the_run(tmp_path: Path) -> None:
    for chart, message in ((tmp_path / "x.doc", ".png"), (tmp_path / "no" / "x.png", "folder")):
        done = subprocess.run(
            [COMMAND, "demo", "--plot", chart], capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 1
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
