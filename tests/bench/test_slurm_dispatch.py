"""Dispatch rate to two real Slurm clusters, compared with a bare loop of the same calls.

The loop calls sbatch, or pyslurm in the Python that METASCHED_PYSLURM_PYTHON names. A pyslurm
process knows one cluster only, so each cluster has its own; the start is not counted. Both
clusters are full, so that dispatched jobs wait and take no CPU time from the measurement. The
loops submit as many jobs as metasched, since a controller is slower with a longer queue.
"""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import median

import psutil
import pytest
from msgspec import to_builtins

from metasched.client.client import Client
from metasched.client.schemas import JobRequest, SubmitRequest
from tests.bench.conftest import Record
from tests.conftest import require
from tests.e2e.conftest import Site
from tests.harness import pyslurm
from tests.harness.slurm import SlurmCluster, SlurmSite

SCRIPT = "#!/bin/sh\ntrue\n"
JOBS, ROUNDS = 1000, 1
LOOP = """
import sys, time, pyslurm
script, jobs = sys.argv[1], int(sys.argv[2])
begun = time.perf_counter()
for _ in range(jobs):
    pyslurm.JobSubmitDescription(
        name="job", script=script, time_limit=5, standard_output="/dev/null"
    ).submit()
print(time.perf_counter() - begun)
"""
Bare = Callable[[Sequence[SlurmCluster], Path, int], float]


def full(slurm: SlurmSite) -> None:
    for cluster in slurm:
        cluster.empty()
        nodes = str(cluster.spec.nodes)
        cluster.run("sbatch", "-N", nodes, "--exclusive", "-t", "600", "--wrap", "sleep 6000")


def by_sbatch(clusters: Sequence[SlurmCluster], script: Path, jobs: int) -> float:
    """Return jobs per second of successive sbatch commands, to each cluster in turn."""
    begun = time.perf_counter()
    for number in range(jobs):
        cluster = clusters[number % len(clusters)]
        subprocess.run(
            ["sbatch", "--parsable", "-t", "5", "-o", "/dev/null", script],
            env=cluster.environment,
            check=True,
            capture_output=True,
        )
    return jobs / (time.perf_counter() - begun)


def by_pyslurm(clusters: Sequence[SlurmCluster], script: Path, jobs: int) -> float:
    """Return jobs per second of successive pyslurm calls, to one cluster after the other."""
    share, seconds = jobs // len(clusters), 0.0
    for cluster in clusters:
        loop = subprocess.run(
            [pyslurm.PYTHON, "-c", LOOP, script, str(share)],
            env=cluster.environment,
            check=True,
            capture_output=True,
            text=True,
        )
        seconds += float(loop.stdout)
    return jobs / seconds


def at_once(bare: Bare, clusters: Sequence[SlurmCluster], script: Path) -> float:
    """Return jobs per second of one such loop per cluster, all at once."""
    with ThreadPoolExecutor(len(clusters)) as loops:
        share = JOBS // len(clusters)
        return sum(loops.map(lambda cluster: bare([cluster], script, share), clusters))


def cpu(pid: int) -> float:
    """Return CPU seconds of the daemon, its workers and their commands."""
    daemon = psutil.Process(pid)
    return sum(sum(p.cpu_times()[:4]) for p in [daemon, *daemon.children(recursive=True)])


def request(folder: Path, array: str | None = None) -> JobRequest:
    return JobRequest(
        script="s",
        environment="e",
        directory=str(folder),
        output="/dev/null",
        time_limit=300.0,
        array=array,
    )


def taken(site: Site) -> int:
    """Count all accepted attempts in the database, since a query would cost the daemon time."""
    with closing(sqlite3.connect(f"file:{site.database}?mode=ro", uri=True)) as read:
        [[number]] = read.execute("SELECT count(native_id) FROM attempt")
    return int(number)


def ended(site: Site) -> int:
    with closing(sqlite3.connect(f"file:{site.database}?mode=ro", uri=True)) as read:
        [[number]] = read.execute("SELECT count(*) FROM task WHERE ended IS NOT NULL")
    return int(number)


def dispatched(site: Site, client: Client, *requests: JobRequest) -> tuple[float, float, float]:
    """Submit jobs; return jobs per second and CPU seconds per job until all are accepted.

    The third value is the seconds of a cancel of all jobs, until all have ended.
    """
    before, used, begun = taken(site), cpu(site.pid), time.perf_counter()
    submission = SubmitRequest(
        jobs=requests, scripts={"s": SCRIPT}, environments={"e": {"PATH": "/usr/bin:/bin"}}
    )
    client.submit(to_builtins(submission))
    while taken(site) - before < JOBS:
        time.sleep(0.02)
    seconds = time.perf_counter() - begun
    used = cpu(site.pid) - used
    already_ended, begun = ended(site), time.perf_counter()
    client.change("cancel", [], state="pending,unknown,queued,dispatching")
    while ended(site) < already_ended + JOBS:
        time.sleep(0.02)
    return JOBS / seconds, used / JOBS, time.perf_counter() - begun


@pytest.mark.bench
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("access", "bare"), [("commands", by_sbatch), ("pyslurm", by_pyslurm)])
def test_many_jobs_to_two_clusters(
    access: str,
    bare: Bare,
    site: Site,
    slurm_site: SlurmSite,
    record: Record,
) -> None:
    settings = ""
    if access == "pyslurm":
        if (reason := pyslurm.missing()) is not None:
            require("pyslurm", reason)
        path = f'environment = {{ PYTHONPATH = "{pyslurm.ROOT}" }}'
        settings = f'python = "{pyslurm.PYTHON}"\n{path}\n'
    site.configure("".join(c.table(f'access = "{access}"\n{settings}') for c in slurm_site))
    script = site.folder / "job.sh"
    script.write_text(SCRIPT)
    full(slurm_site)
    site.start()
    client = Client(site.folder / "ms.sock")
    ones, arrays, loops, together = [], [], [], []
    for _ in range(ROUNDS):
        loops.append(bare(list(slurm_site), script, JOBS))
        full(slurm_site)
        together.append(at_once(bare, list(slurm_site), script))
        full(slurm_site)
        ones.append(dispatched(site, client, *[request(site.folder)] * JOBS))
        arrays.append(dispatched(site, client, request(site.folder, array=f"1-{JOBS}")))
    for cluster in slurm_site:
        cluster.empty()
    loop, concurrent_loops = median(loops), median(together)
    (single, single_cpu, single_cancel), (array, array_cpu, array_cancel) = (
        map(median, zip(*rounds, strict=True)) for rounds in (ones, arrays)
    )
    peers = {"one loop": loop, "a loop per cluster, at once": concurrent_loops}
    lowest = {"commands": "0.7", "pyslurm": "0.5"}[access]
    record(
        f"one by one, {access}", single, "/s", peers=peers, target=f"at least {lowest} x one loop"
    )
    record(f"as an array, {access}", array, "/s", peers=peers, target="at least 10 x one loop")
    record(f"cancel of the 1,000 jobs, {access}", single_cancel, "s")
    record(f"cancel of the array, {access}", array_cancel, "s")
    record(f"our processes, a job one by one, {access}", single_cpu * 1e3, "ms of CPU")
    record(f"our processes, a task of the array, {access}", array_cpu * 1e3, "ms of CPU")
