"""The worker of `metasched doctor --probe`, without a launcher: a job as this account."""

from __future__ import annotations

import os
import pwd
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from metasched.config.reading import load_settings
from metasched.config.settings import ClusterSettings, Settings
from metasched.daemon.doctor.probe_jobs import ProbeFailed, _worker
from metasched.model.job import State

SITE = """
[daemon]
database = "sqlite:///ms.db"
[[cluster]]
name = "here"
adapter = "local"
cpus = 1
"""


@pytest.fixture
def site(tmp_path: Path) -> tuple[ClusterSettings, Settings]:
    path = tmp_path / "metasched.toml"
    path.write_text(SITE)
    settings = load_settings(path)
    settings.state_folder.mkdir(parents=True, exist_ok=True)
    return settings.clusters[0], settings


def test_a_job_runs_to_its_end(site: tuple[ClusterSettings, Settings]) -> None:
    with _worker(*site) as worker:
        row = worker.run_job(pwd.getpwuid(os.geteuid()), threading.Event())
    assert row.state in (State.COMPLETED, State.FAILED)
    assert row.exit_code is not None
    assert row.exit_code & ~15 == 32  # what it has checked
    assert list(site[1].state_folder.glob("probe-*")) == []


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exec sleep 2", "no answer to poll of its worker"),
        ("exit 3", "its worker died"),
        (
            r"dd bs=65536 count=1 >/dev/null 2>&1; printf '\0\0\0\011half'; exit 3",
            "its worker died",
        ),
        (r"printf '\0\0\0\2[]'; exec sleep 2", "its worker sent an invalid reply"),
        ("echo nonsense; exec sleep 2", "its worker sent an invalid reply"),
    ],
)
def test_a_worker_that_fails_is_reported(
    site: tuple[ClusterSettings, Settings], tmp_path: Path, script: str, reason: str
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    entry = replace(site[0], python=str(program), call_timeout=0.5)
    started = time.monotonic()
    with pytest.raises(ProbeFailed, match=reason), _worker(entry, site[1]) as worker:
        worker.run_job(pwd.getpwuid(os.geteuid()), threading.Event())
    assert time.monotonic() - started < 30
