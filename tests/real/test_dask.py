"""Experiments on a real Dask scheduler and worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from metasched.cli import main
from metasched.laboratory.experiments import catalogue as experiments
from metasched.laboratory.experiments.catalogue import EXPERIMENTS, run_experiment
from tests.harness.traces import trace

LIMIT = 120.0  # seconds for scheduler or worker to start on a busy host


def wait_for(condition: Callable[[], bool], *processes: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert all(process.poll() is None for process in processes), "it ended"
        assert time.monotonic() < end, "not there in time"
        time.sleep(0.1)


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[str]:
    """Start a scheduler with one worker; yield its address."""
    file = tmp_path / "scheduler.json"
    traces = os.fspath(trace("S1-jobs-0-1000.swf").parent)
    processes: list[subprocess.Popen[bytes]] = []

    def start(module: str, *arguments: object) -> None:
        command = [sys.executable, "-m", f"distributed.cli.{module}", *map(str, arguments)]
        with open(tmp_path / f"{module}.log", "wb") as log:
            processes.append(
                subprocess.Popen(
                    [*command, "--host", "127.0.0.1", "--scheduler-file", os.fspath(file)],
                    cwd=tmp_path,
                    env={
                        **os.environ,
                        "METASCHED_TRACES": traces,
                        "DASK_TEMPORARY_DIRECTORY": os.fspath(tmp_path),
                    },
                    stdout=log,
                    stderr=log,
                )
            )

    def registered() -> bool:
        return "Registered" in (tmp_path / "dask_worker.log").read_text()

    try:
        start("dask_scheduler", "--port", 0, "--no-dashboard")
        wait_for(file.exists, *processes)
        start("dask_worker", "--nthreads", 1, "--no-nanny", "--no-dashboard")
        wait_for(registered, *processes)
        yield json.loads(file.read_text())["address"]
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


@pytest.mark.slow("an experiment runs twice, by Dask and here")
def test_an_experiment_on_dask_gives_the_same_figures(
    scheduler: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("METASCHED_TRACES", os.fspath(trace("S1-jobs-0-1000.swf").parent))
    arguments = ["experiment", "local-periods", "--dask", scheduler, "--json"]
    monkeypatch.setattr("sys.argv", ["metasched", *arguments])
    monkeypatch.setattr(experiments, "DASK_TIMEOUT", LIMIT)
    monkeypatch.setattr(experiments, "ProcessPoolExecutor", None)  # fail without Dask
    assert main() == 0
    rows = json.loads(capsys.readouterr().out)
    there = {(row["policy"], row["figure"]): row["values"] for row in rows}
    monkeypatch.undo()
    monkeypatch.setenv("METASCHED_TRACES", os.fspath(trace("S1-jobs-0-1000.swf").parent))
    environment = {
        (r.column, r.figure): list(r.values)
        for r in run_experiment(EXPERIMENTS["local-periods"], 1)
    }
    assert there == environment


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nonsense", "ftp://x:3"])
def test_a_scheduler_that_does_not_answer_is_reported_in_one_line(
    address: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(experiments, "DASK_TIMEOUT", 1.0)
    arguments = ["experiment", "contention", "--runs", "1", "--dask", address]
    monkeypatch.setattr("sys.argv", ["metasched", *arguments])
    assert main() == 2
    out, err = capfd.readouterr()
    assert f"no Dask scheduler answers at {address}" in err
    assert (out, err.count("\n")) == ("", 1)


def test_without_dask_the_message_names_the_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setattr("sys.argv", ["metasched", "experiment", "contention", "--dask", "x"])
    assert main() == 2
    assert "pip install 'metasched[dask]'" in capsys.readouterr().err
