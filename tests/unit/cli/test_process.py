"""The process of the command: imports, interrupts, closed pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.cli.fake_daemon import FakeDaemon, accepted, answer_paths, row, started


def test_submit_imports_nothing_slow(daemon: FakeDaemon, home: Path) -> None:
    daemon.answer("/jobs", accepted())
    (home / "job.sh").write_text("#!/bin/sh\n#SBATCH -n 2\n#MS -t 10m\n")
    source = "import sys; from metasched.cli import main; main(); print(*sys.modules)"
    command = [sys.executable, "-c", source, "submit", "--parsable", "job.sh"]
    # coverage imports modules itself
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_")}
    done = subprocess.run(command, capture_output=True, check=True, text=True, env=environment)
    loaded = done.stdout.split()
    assert loaded.pop(0) == "17"
    slow = "typer click rich msgspec pydantic fastapi starlette uvicorn sqlalchemy alembic asyncio"
    slow += " http ssl email tomllib logging psutil concurrent unittest"
    assert {module.partition(".")[0] for module in loaded}.isdisjoint(slow.split())


def test_a_listing_in_a_pipe_imports_no_rich(daemon: FakeDaemon) -> None:
    daemon.answer("/jobs/details", [row()])
    source = "import sys; from metasched.cli import main; main(); print(*sys.modules)"
    command = [sys.executable, "-c", source, "status"]
    loaded = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()
    assert {"rich", "fastapi", "sqlalchemy", "metasched.daemon.service", "argparse"}.isdisjoint(
        loaded
    )


@pytest.mark.parametrize("arguments", [["wait", "17"], ["submit", "--wrap", "x"]])
def test_an_interrupt_is_quiet(daemon: FakeDaemon, arguments: list[str]) -> None:
    daemon.answer("/jobs", None)
    daemon.answer("/jobs/wait", None)
    process = started(*arguments)
    while not daemon.requests:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == (b"", b"")
    assert process.returncode == 130


@pytest.mark.parametrize("arguments", [["status"], ["output", "17"]])
def test_a_closed_pipe_is_no_error(daemon: FakeDaemon, home: Path, arguments: list[str]) -> None:
    daemon.answer("/jobs/details", [row(i) for i in range(3000)])
    (home / "out").write_text("x\n" * 1_000_000)
    answer_paths(daemon, home / "out")
    process = started(*arguments)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=30) in (0, 1)
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b""


def test_output_that_cannot_be_written(daemon: FakeDaemon) -> None:
    daemon.answer("/jobs/details", [row()])
    source = "import sys; from metasched.cli import main; sys.exit(main())"
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", source, "status"], stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode != 0
    assert done.stderr.startswith(b"metasched: error: No space left on device, standard output; ")
    assert b"Traceback" not in done.stderr
