"""The demonstration, whole: it ends by itself, loses no job and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import COMMAND

JOBS = 12


def left_behind() -> list[str]:
    words = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    return [line for line in words if "metasched-demo-" in line]


@pytest.mark.slow
def test_demo_completes_every_job_and_draws_the_chart(tmp_path: Path) -> None:
    chart = tmp_path / "gantt.png"
    done = subprocess.run(
        [COMMAND, "demo", "--jobs", str(JOBS), "--seed", "3", "--json", "--plot", chart],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done
    summary = json.loads(done.stdout)
    assert (summary["jobs"], summary["completed"], summary["lost"]) == (JOBS, JOBS, 0)
    assert 0 <= summary["deadlines_met"] <= summary["deadlines"] <= JOBS
    assert sum(summary["load_share"].values()) == pytest.approx(1)
    assert set(summary["load_share"]) == {"left", "right"}
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert not left_behind()


def test_ctrl_c_ends_the_demo_its_daemon_and_its_jobs() -> None:
    demo = subprocess.Popen(
        [COMMAND, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(6)
    assert left_behind()
    demo.send_signal(signal.SIGINT)
    _, told = demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert "Traceback" not in told
    assert not left_behind()


def test_a_chart_that_cannot_be_drawn_is_told_before_the_run(tmp_path: Path) -> None:
    for chart, told in ((tmp_path / "x.doc", ".png"), (tmp_path / "no" / "x.png", "folder")):
        done = subprocess.run(
            [COMMAND, "demo", "--plot", chart], capture_output=True, text=True, timeout=20
        )
        assert done.returncode == 1
        assert told in done.stderr
        assert done.stderr.count("\n") == 1
