"""Submission rate, compared with sbatch in the same run, and cost of an idle daemon."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest
from msgspec import to_builtins

from metasched.client.client import Client
from metasched.client.schemas import JobRequest, SubmitRequest
from tests.bench.conftest import Record
from tests.e2e.conftest import COMMAND, Site
from tests.harness.slurm import SlurmSite

SCRIPT = "#!/bin/sh\ntrue\n"
ENVIRONMENT = dict(os.environ)
ONE_BY_ONE, PROCESSES, BATCH, ROUNDS = 200, 20, 1000, 5


def submission(folder: Path, jobs: int = 1, **fields: Any) -> dict[str, Any]:
    request = JobRequest(
        script="s", environment="e", directory=str(folder), output="/dev/null", **fields
    )
    body: dict[str, Any] = to_builtins(
        SubmitRequest(
            jobs=(request,) * jobs, scripts={"s": SCRIPT}, environments={"e": ENVIRONMENT}
        )
    )
    return body


def seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_submissions_against_sbatch(running: Site, slurm_site: SlurmSite, record: Record) -> None:
    client = Client(running.folder / "ms.sock")
    slurm = slurm_site["alpha"]
    script = running.folder / "job.sh"
    script.write_text(SCRIPT)
    sbatch = ["sbatch", "-H", "-o", "/dev/null", str(script)]
    held = submission(running.folder, held=True)

    in_process, sbatch_times, command, sbatch_command = [], [], [], []
    for _ in range(ROUNDS):
        in_process.append(seconds(lambda: [client.submit(held) for _ in range(ONE_BY_ONE)]))
        sbatch_times.append(
            seconds(lambda: [slurm.run(*sbatch) for _ in range(ONE_BY_ONE // 4)]) * 4
        )
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
        sbatch_command.append(seconds(lambda: slurm.run(*sbatch)))
    record(
        "submissions one by one",
        ONE_BY_ONE / median(in_process),
        "/s",
        peers={"`sbatch -H`": ONE_BY_ONE / median(sbatch_times)},
        target="at least 2 x peer",
    )
    record(
        "one `metasched submit` process",
        median(command) * 1e3,
        "ms",
        peers={"`sbatch -H`": median(sbatch_command) * 1e3},
        target="at most 150 ms",
    )
    slurm.empty()


@pytest.mark.bench
def test_a_thousand_jobs_in_one_call(running: Site, record: Record) -> None:
    client = Client(running.folder / "ms.sock")
    batch = submission(running.folder, BATCH, held=True)
    request = submission(running.folder, BATCH)
    waiting = [seconds(lambda: client.submit(batch)) for _ in range(ROUNDS)]
    assigned = []
    for _ in range(ROUNDS):
        assigned.append(seconds(lambda: client.submit(request)))
        client.change("cancel", [], state="dispatching,pending,running")
        running.until(lambda: not client.jobs(state="dispatching,pending,running"))
    record("1,000 jobs in one call, held", BATCH / median(waiting), "/s")
    record(
        "1,000 jobs in one call, being dispatched",
        BATCH / median(assigned),
        "/s",
        target="at least 2,000/s",
    )


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_idle_daemon(running: Site, record: Record) -> None:
    """Two idle local clusters and 10,000 stored jobs, half of them held in metasched."""
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
    assert len(client.jobs(all="1")) == 10_000
    record("idle daemon with two workers", used / 60 * 100, "% of a core", target="at most 1%")
    record("its memory (PSS), 10,000 stored jobs", sum(pss), "MB", target="at most 250 MB")
