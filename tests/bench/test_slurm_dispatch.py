"""Dispatch rate to two real Slurm clusters, compared with a bare loop of the same calls.

The loop calls sbatch, or pyslurm in the Python that METASCHED_PYSLURM_PYTHON names. A pyslurm
process knows one cluster only, so each cluster has its own; the start is not counted. Both
clusters are full, so that dispatched jobs wait and take no CPU time from the measurement. The
loops submit as many jobs as metasched to each, since a controller is slower with a longer queue:
the clusters have the same size, so metasched gives each the same number of jobs. The rate of
metasched is that of sustained dispatch: from the first job that a cluster accepts to the last.
"""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
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
from tests.harness.slurm import ClusterSpec, SlurmCluster, SlurmSite, missing

TWINS = tuple(ClusterSpec(name, name[0], nodes=4, cpus=16) for name in ("alpha", "beta"))
SCRIPT = "#!/bin/sh\ntrue\n"
JOBS = 1000
PAIRS = 10  # of a bare loop and metasched, in turn
ARRAYS = 3
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


def count(site: Site, condition: str) -> int:
    """Count attempts in the database, since a query would cost the daemon time."""
    with closing(sqlite3.connect(f"file:{site.database}?mode=ro", uri=True)) as read:
        [[number]] = read.execute(f"SELECT count(*) FROM attempt WHERE {condition}")
    return int(number)


def until_count(site: Site, condition: str, number: int) -> float:
    """Wait for so many attempts; return the time (`perf_counter`)."""
    while count(site, condition) < number:
        time.sleep(0.02)
    return time.perf_counter()


@dataclass(frozen=True)
class Dispatched:
    """A backlog of `JOBS` tasks that metasched has sent to the clusters."""

    rate: float  # per second, from the first accepted task to the last
    whole_rate: float  # per second, from the submission to the last accepted task
    cpu: float  # seconds of our processes, per task
    cancelling: float  # seconds of a cancel of all tasks, until all have ended


def dispatch(site: Site, client: Client, *requests: JobRequest) -> Dispatched:
    submission = SubmitRequest(
        jobs=requests, scripts={"s": SCRIPT}, environments={"e": {"PATH": "/usr/bin:/bin"}}
    )
    used, submitted = cpu(site.pid), time.perf_counter()
    first = min(row["job"] or 0 for row in client.submit(to_builtins(submission)))
    accepted = f"job >= {first} AND native_id IS NOT NULL"
    ended = f"job >= {first} AND ended IS NOT NULL"
    begun = until_count(site, accepted, 1)
    before = count(site, accepted)
    end = until_count(site, accepted, JOBS)
    used = (cpu(site.pid) - used) / JOBS
    cancelled = time.perf_counter()
    client.change("cancel", [], state="pending,unknown,queued,dispatching")
    cancelling = until_count(site, ended, JOBS) - cancelled
    return Dispatched(
        (JOBS - before) / max(end - begun, 1e-9), JOBS / (end - submitted), used, cancelling
    )


@pytest.fixture(scope="module")
def twins(common_folder: Path) -> Iterator[SlurmSite]:
    """Two Slurm clusters of the same size."""
    if (reason := missing()) is not None:
        require("slurm", reason)
    with SlurmSite(common_folder / "twins", TWINS) as slurm:
        yield slurm


@pytest.fixture(params=[("commands", by_sbatch), ("pyslurm", by_pyslurm)], ids=lambda way: way[0])
def way(request: pytest.FixtureRequest) -> tuple[str, Bare]:
    """An access to Slurm and the bare loop of the same calls."""
    access, bare = request.param
    if access == "pyslurm" and (reason := pyslurm.missing()) is not None:
        require("pyslurm", reason)
    return access, bare


@pytest.fixture
def client(way: tuple[str, Bare], site: Site, twins: SlurmSite) -> Client:
    """A client of a daemon over two full clusters."""
    settings, (access, _) = "", way
    if access == "pyslurm":
        path = f'environment = {{ PYTHONPATH = "{pyslurm.ROOT}" }}'
        settings = f'python = "{pyslurm.PYTHON}"\n{path}\n'
    site.configure("".join(c.table(f'access = "{access}"\n{settings}') for c in twins))
    full(twins)
    site.start()
    site.until(lambda: {row["state"] for row in site.cluster_rows()} == {"up"})
    return Client(site.folder / "ms.sock")


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_jobs_one_by_one(
    way: tuple[str, Bare], client: Client, site: Site, twins: SlurmSite, record: Record
) -> None:
    access, bare = way
    script = site.folder / "job.sh"
    script.write_text(SCRIPT)
    loops, dispatches = [], []
    for _ in range(PAIRS):
        loops.append(bare(list(twins), script, JOBS))
        full(twins)
        dispatches.append(dispatch(site, client, *[request(site.folder)] * JOBS))
    for cluster in twins:
        cluster.empty()
    ratios = [of_us.rate / of_loop for of_us, of_loop in zip(dispatches, loops, strict=True)]
    asked = {"commands": 0.95, "pyslurm": 0.8}[access]
    record(
        f"one by one, {access}, median of {PAIRS} pairs",
        median(ratios),
        "of one loop",
        target=f"at least {asked:g}",
    )
    record(f"the lowest of the pairs, {access}", min(ratios), "of one loop")
    rate = median(dispatched.rate for dispatched in dispatches)
    record(f"one by one, {access}", rate, "/s", peers={"one loop": median(loops)})
    cancelling = median(dispatched.cancelling for dispatched in dispatches)
    record(f"cancel of the 1,000 jobs, {access}", cancelling, "s")
    of_a_job = median(dispatched.cpu for dispatched in dispatches)
    record(f"our processes, a job one by one, {access}", of_a_job * 1e3, "ms of CPU")


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_tasks_of_an_array(
    way: tuple[str, Bare], client: Client, site: Site, twins: SlurmSite, record: Record
) -> None:
    """The rate counts from the submission, since an array is sent in few calls."""
    access, bare = way
    script = site.folder / "job.sh"
    script.write_text(SCRIPT)
    loops, together, dispatches = [], [], []
    for _ in range(ARRAYS):
        loops.append(bare(list(twins), script, JOBS))
        full(twins)
        together.append(at_once(bare, list(twins), script))
        full(twins)
        dispatches.append(dispatch(site, client, request(site.folder, array=f"1-{JOBS}")))
    for cluster in twins:
        cluster.empty()
    record(
        f"as an array, {access}",
        median(dispatched.whole_rate for dispatched in dispatches),
        "/s",
        peers={"one loop": median(loops), "a loop per cluster, at once": median(together)},
        target="at least 10 x one loop",
    )
    cancelling = median(dispatched.cancelling for dispatched in dispatches)
    record(f"cancel of the array, {access}", cancelling, "s")
    of_a_task = median(dispatched.cpu for dispatched in dispatches)
    record(f"our processes, a task of the array, {access}", of_a_task * 1e3, "ms of CPU")
