"""The Slurm of the tests boots fast and leaves no process behind, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests import conftest
from tests.harness import slurm
from tests.harness.daemons import BootError
from tests.harness.slurm import ALPHA, ClusterSpec, SlurmSite

ROOT = Path(__file__).parents[2]
BOOT = """
import sys, time
from pathlib import Path
from tests.harness.slurm import SlurmSite
with SlurmSite(Path(sys.argv[1])) as site:
    script = "#!/bin/sh\\nsetsid sleep 1001 & exec sleep 1002\\n"
    site["beta"].run("sbatch", "--output=/dev/null", stdin=script)
    while "RUNNING" not in site["beta"].run("squeue", "-h", "-o", "%T"):
        time.sleep(0.02)
    print("up", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _slurm() -> None:
    reason = slurm.missing()
    if reason is not None:
        conftest.require("slurm", reason)


def processes_of(folder: Path) -> list[str]:
    """Return the processes that name the folder in their arguments or environment."""
    processes = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command_line = (process / "cmdline").read_bytes()
            variables = (process / "environ").read_bytes()
        except OSError:
            continue
        if process.name != str(os.getpid()) and os.fsencode(folder) in command_line + variables:
            processes.append(command_line.replace(b"\0", b" ").decode(errors="replace"))
    return processes


def is_running(argument: str, folder: Path) -> bool:
    return any(argument in process for process in processes_of(folder))


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_two_clusters_boot_and_go(tmp_path: Path) -> None:
    with SlurmSite(tmp_path / "site") as site:
        assert site["alpha"].run("sinfo", "-h", "-o", "%D %c").split() == ["4", "16"]
        assert site["beta"].run("sinfo", "-h", "-o", "%D %c").split() == ["3", "8"]
        assert len(processes_of(tmp_path)) >= 11  # 2 controllers, 7 nodes, 2 of munge
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_survives_a_killed_test_run(tmp_path: Path, number: signal.Signals) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", BOOT, str(tmp_path / "site")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        # squeue reports RUNNING before the node has started anything
        for argument in ("slurmstepd", "sleep 1001", "sleep 1002"):
            assert wait_for(partial(is_running, argument, tmp_path), 30), processes_of(tmp_path)
    finally:
        os.kill(run.pid, number)
        run.wait()
    assert wait_for(lambda: processes_of(tmp_path) == []), processes_of(tmp_path)


def test_nothing_survives_a_boot_that_fails(tmp_path: Path) -> None:
    broken = ClusterSpec("broken", "x", nodes=1, cpus=1, settings=("SelectType=select/none",))
    with pytest.raises(BootError, match="slurmctld of broken has ended"):
        SlurmSite(tmp_path / "site", [ALPHA, broken]).__enter__()
    assert processes_of(tmp_path) == []


def test_nothing_survives_a_failing_test(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), SlurmSite(tmp_path / "site", [ALPHA]):
        raise ZeroDivisionError
    assert processes_of(tmp_path) == []


def test_a_missing_component_is_skipped_or_fails_as_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("METASCHED_REQUIRE", "postgresql,slurm")
    with pytest.raises(pytest.fail.Exception, match="no sbatch"):
        conftest.require("slurm", "no sbatch")
    with pytest.raises(pytest.skip.Exception, match="no browser"):
        conftest.require("chromium", "no browser")
