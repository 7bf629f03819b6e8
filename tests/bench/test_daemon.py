"""How fast jobs are accepted, against sbatch in the same run; what the daemon costs when idle."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from metasched.client.client import Client
from metasched.client.schemas import JobRequest, SubmitRequest
from tests.e2e.conftest import COMMAND, Site
from tests.slurm import SlurmSite

SCRIPT = "#!/bin/sh\ntrue\n"
ENVIRONMENT = dict(os.environ)
ONE_BY_ONE, PROCESSES, BATCH, ROUNDS = 200, 20, 1000, 5


def submission(folder: Path, jobs: int = 1, **more: Any) -> SubmitRequest:
    request = JobRequest(
        script="s", environment="e", directory=str(folder), output="/dev/null", **more
    )
    return SubmitRequest(
        jobs=(request,) * jobs, scripts={"s": SCRIPT}, environments={"e": ENVIRONMENT}
    )


def seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def shown(capsys: pytest.CaptureFixture[str], **figures: object) -> None:
    with capsys.disabled():
        print(json.dumps({"machine": platform.processor() or platform.machine(), **figures}))


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_submissions_against_sbatch(
    running: Site, slurm_site: SlurmSite, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Client(running.folder / "ms.sock")
    slurm = slurm_site["alpha"]
    script = running.folder / "job.sh"
    script.write_text(SCRIPT)
    sbatch = ["sbatch", "-H", "-o", "/dev/null", str(script)]
    held = submission(running.folder, held=True)

    ours, theirs, command, their_command = [], [], [], []
    for _ in range(ROUNDS):
        ours.append(seconds(lambda: [client.submit(held) for _ in range(ONE_BY_ONE)]))
        theirs.append(seconds(lambda: [slurm.run(*sbatch) for _ in range(ONE_BY_ONE // 4)]) * 4)
    for _ in range(PROCESSES):
        command.append(
            seconds(
                lambda: subprocess.run(
                    [COMMAND, "submit", "--hold", str(script)],
                    env=running.environment,
                    cwd=running.folder,
                    check=True,
                    capture_output=True,
                )
            )
        )
        their_command.append(seconds(lambda: slurm.run(*sbatch)))
    shown(
        capsys,
        one_by_one_per_s=round(ONE_BY_ONE / median(ours)),
        sbatch_per_s=round(ONE_BY_ONE / median(theirs)),
        ratio=round(median(theirs) / median(ours), 2),
        command_ms=round(median(command) * 1e3),
        sbatch_ms=round(median(their_command) * 1e3),
        rows=len(client.jobs()),
    )
    slurm.empty()


@pytest.mark.bench
def test_a_thousand_jobs_in_one_call(running: Site, capsys: pytest.CaptureFixture[str]) -> None:
    client = Client(running.folder / "ms.sock")
    batch = submission(running.folder, BATCH, held=True)
    sent = submission(running.folder, BATCH)
    waiting = [seconds(lambda: client.submit(batch)) for _ in range(ROUNDS)]
    assigned = []
    for _ in range(ROUNDS):
        assigned.append(seconds(lambda: client.submit(sent)))
        client.change("cancel", [], state="dispatching,pending,running")
        running.until(lambda: not client.jobs(state="dispatching,pending,running"))
    shown(
        capsys,
        batch_held_per_s=round(BATCH / median(waiting)),
        batch_assigned_per_s=round(BATCH / median(assigned)),
    )


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_idle_daemon(running: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Two idle local clusters and 10,000 stored jobs, half of them waiting with us."""
    client = Client(running.folder / "ms.sock")
    for _ in range(5):
        client.submit(submission(running.folder, 1000, held=True))
        ended = client.submit(submission(running.folder, 1000, held=True))
        client.change("cancel", [str(row["job"]) for row in ended])
    daemon = psutil.Process(running.pid)
    processes = [daemon, *daemon.children(recursive=True)]
    time.sleep(12)
    before = sum(sum(p.cpu_times()[:2]) for p in processes)
    time.sleep(60)
    used = sum(sum(p.cpu_times()[:2]) for p in processes) - before
    pss = [p.memory_full_info().pss / 1e6 for p in processes]
    shown(
        capsys,
        idle_core_percent=round(used / 60 * 100, 2),
        stored_jobs=len(client.jobs(all="1")),
        pss_mb=round(sum(pss)),
        processes=len(pss),
    )
