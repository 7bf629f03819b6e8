"""How fast jobs reach two real Slurm clusters, against a bare loop of sbatch in the same run.

Both clusters are full, so that what is sent only waits: no job takes processors from the sending.
The loops send as many jobs as we do, since the longer its queue the slower is the controller.
"""

from __future__ import annotations

import json
import platform
import sqlite3
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import median

import psutil
import pytest

from metasched.client import Client
from metasched.submit import Request, Submission
from tests.e2e.conftest import Site
from tests.slurm import SlurmCluster, SlurmSite

SCRIPT = "#!/bin/sh\ntrue\n"
JOBS, ROUNDS = 1000, 1


def full(slurm: SlurmSite) -> None:
    for cluster in slurm:
        cluster.empty()
        nodes = str(cluster.spec.nodes)
        cluster.run("sbatch", "-N", nodes, "--exclusive", "-t", "600", "--wrap", "sleep 6000")


def bare(clusters: Sequence[SlurmCluster], script: Path, jobs: int) -> float:
    """Jobs per second of sbatch after sbatch, to each cluster in turn."""
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


def bare_at_once(clusters: Sequence[SlurmCluster], script: Path) -> float:
    """Jobs per second of such a loop for each cluster, all at once."""
    with ThreadPoolExecutor(len(clusters)) as loops:
        each = JOBS // len(clusters)
        return sum(loops.map(lambda cluster: bare([cluster], script, each), clusters))


def cpu(pid: int) -> float:
    """Seconds of the daemon, its workers, and the commands that they ran."""
    daemon = psutil.Process(pid)
    return sum(sum(p.cpu_times()[:4]) for p in [daemon, *daemon.children(recursive=True)])


def request(folder: Path, array: str | None = None) -> Request:
    return Request(
        script="s",
        environment="e",
        directory=str(folder),
        output="/dev/null",
        time_limit=300.0,
        array=array,
    )


def taken(site: Site) -> int:
    """Attempts that a cluster has ever taken: a question to the daemon would cost it something."""
    with closing(sqlite3.connect(f"file:{site.database}?mode=ro", uri=True)) as read:
        [[number]] = read.execute("SELECT count(native_id) FROM attempt")
    return int(number)


def ended(site: Site) -> int:
    with closing(sqlite3.connect(f"file:{site.database}?mode=ro", uri=True)) as read:
        [[number]] = read.execute("SELECT count(*) FROM task WHERE ended IS NOT NULL")
    return int(number)


def dispatched(site: Site, client: Client, *requests: Request) -> tuple[float, float, float]:
    """From their submission until all are taken: jobs per second, cpu seconds per job.

    And the seconds of `metasched cancel` of all of them, until they are seen to be gone.
    """
    before, used, begun = taken(site), cpu(site.pid), time.perf_counter()
    client.submit(
        Submission(
            jobs=requests, scripts={"s": SCRIPT}, environments={"e": {"PATH": "/usr/bin:/bin"}}
        )
    )
    while taken(site) - before < JOBS:
        time.sleep(0.02)
    seconds = time.perf_counter() - begun
    used = cpu(site.pid) - used
    gone, begun = ended(site), time.perf_counter()
    client.change("cancel", [], state="pending,unknown,queued,dispatching")
    while ended(site) < gone + JOBS:
        time.sleep(0.02)
    return JOBS / seconds, used / JOBS, time.perf_counter() - begun


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_many_jobs_to_two_clusters(
    site: Site, slurm_site: SlurmSite, capsys: pytest.CaptureFixture[str]
) -> None:
    site.configure(
        "".join(
            f'[[cluster]]\nname = "{c.name}"\nadapter = "slurm"\nconfig = "{c.conf}"\n'
            'access = "commands"\n'
            for c in slurm_site
        )
    )
    script = site.folder / "job.sh"
    script.write_text(SCRIPT)
    full(slurm_site)
    site.start()
    client = Client(site.folder / "ms.sock")
    ones, arrays, loops, at_once = [], [], [], []
    for _ in range(ROUNDS):
        loops.append(bare(list(slurm_site), script, JOBS))
        full(slurm_site)
        at_once.append(bare_at_once(list(slurm_site), script))
        full(slurm_site)
        ones.append(dispatched(site, client, *[request(site.folder)] * JOBS))
        arrays.append(dispatched(site, client, request(site.folder, array=f"1-{JOBS}")))
    for cluster in slurm_site:
        cluster.empty()
    loop, both = median(loops), median(at_once)
    (one, one_cpu, one_cancel), (array, array_cpu, array_cancel) = (
        map(median, zip(*rounds, strict=True)) for rounds in (ones, arrays)
    )
    figures = {
        "bench": "slurm, commands",
        "bare_loop_per_s": round(loop),
        "bare_loops_at_once_per_s": round(both),
        "one_by_one_per_s": round(one),
        "ratio": round(one / loop, 2),
        "ratio_at_once": round(one / both, 2),
        "cpu_ms_per_job": round(one_cpu * 1e3, 2),
        "cancelled_s": round(one_cancel, 1),
        "array_per_s": round(array),
        "array_ratio": round(array / loop, 1),
        "array_cpu_ms_per_job": round(array_cpu * 1e3, 2),
        "array_cancelled_s": round(array_cancel, 1),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    with capsys.disabled():
        print(f"\n{json.dumps(figures)}")
