"""Cost of a poll of a Slurm cluster with 20,000 jobs of metasched."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import psutil
import pytest

from metasched.client.client import Client
from metasched.client.job_answers import JobRow
from tests.bench.conftest import Record
from tests.bench.test_daemon import submission
from tests.conftest import require
from tests.e2e.conftest import Site
from tests.harness.slurm import ALPHA, SlurmCluster, SlurmSite, missing

LISTED = 20_000
ARRAY = 1_000
CYCLES = 10


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_a_whole_cycle_with_twenty_thousand_jobs(
    site: Site, tmp_path_factory: pytest.TempPathFactory, record: Record
) -> None:
    """Measure from Slurm's commands to the core while nothing changes, without slurmctld.

    A hold split half of the jobs into separate records; the others wait in arrays.
    """
    if (reason := missing()) is not None:
        require("slurm", reason)
    with SlurmSite(tmp_path_factory.mktemp("slurm"), [ALPHA]) as slurm:
        alpha = slurm["alpha"]
        alpha.run("sbatch", "-N", "4", "--exclusive", "-t", "600", "--wrap", "sleep 6000")
        site.configure(alpha.table('access = "commands"\npoll_interval = 2.0\n'))
        site.start()
        client = Client(site.folder / "ms.sock", timeout=300)
        new = [submission(site.folder, array=f"0-{ARRAY - 1}") for _ in range(LISTED // ARRAY)]
        jobs = [str(client.submit(order)[0]["job"]) for order in new]
        site.until(lambda: not client.jobs(state="queued,dispatching"), 600)
        for native, tasks in _arrays(client.jobs(jobs[::2])).items():
            apart = f"{native}_[{','.join(tasks[:-1])}]"
            alpha.run("scontrol", "hold", apart)
            alpha.run("scontrol", "release", apart)
        assert len(alpha.run("squeue", "-h", "-t", "all", "-o", "%i").split()) > ARRAY
        _settled(site.pid)
        polls, before = _listings(alpha), _settled(site.pid)
        site.until(lambda: _listings(alpha) >= polls + CYCLES, 600)
        after = _settled(site.pid)
        cycles = _listings(alpha) - polls
        assert len(client.jobs(state="pending")) == LISTED
    spent = {part: (after[part] - before[part]) / cycles for part in after}
    record("a whole poll by commands", sum(spent.values()), "s of CPU", target="at most 1 s")
    for part, seconds in spent.items():
        record(f"{part} in it", seconds, "s of CPU")
    assert sum(spent.values()) < 1


def _arrays(rows: Sequence[JobRow]) -> dict[str, list[str]]:
    """Return the tasks of each Slurm array."""
    tags: dict[str, list[str]] = {}
    for row in rows:
        array, _, task = (row["native_id"] or "").partition("_")
        tags.setdefault(array, []).append(task)
    return tags


def _listings(cluster: SlurmCluster) -> int:
    """Return how often the controller was asked for its jobs."""
    match = re.search(r"REQUEST_JOB_INFO\s+\(\s*2003\) count:(\d+)", cluster.run("sdiag"))
    return int(match[1]) if match else 0


def _settled(daemon: int) -> dict[str, float]:
    """Return CPU seconds of the daemon, its worker and the worker's commands, between polls."""
    until = time.monotonic() + 60
    last: dict[str, float] = {}
    while time.monotonic() < until:
        now = _cpu(daemon)
        if now == last:
            return now
        last = now
        time.sleep(0.3)
    raise AssertionError(f"the daemon is never at rest: {last}")


def _cpu(daemon: int) -> dict[str, float]:
    serving = psutil.Process(daemon)
    [worker] = serving.children()
    times = worker.cpu_times()
    return {
        "daemon": sum(serving.cpu_times()[:2]),
        "worker": times.user + times.system,
        "commands": times.children_user + times.children_system,
    }
