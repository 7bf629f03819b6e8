"""Managers that stand still: a listing overtakes a submission whose command got no answer."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread

import psutil
import pytest

from tests.conftest import require
from tests.e2e.conftest import Site
from tests.harness import slurm
from tests.harness.gridengine import Cell
from tests.harness.looks import looks
from tests.harness.slurm import SEARCH_PATH, ClusterSpec, SlurmSite

pytestmark = pytest.mark.slow("stops managers for half a minute, as long as commands wait")

TASKS = 8
SILENCES = (31, 33, 38)  # seconds, by cluster
RPC_QUEUES = ("SlurmctldParameters=enable_rpc_queue",)  # submissions have a queue of their own


@pytest.fixture(scope="module", params=[(), RPC_QUEUES], ids=["threads", "queues"])
def clusters(request: pytest.FixtureRequest, common_folder: Path) -> Iterator[SlurmSite]:
    if (reason := slurm.missing()) is not None:
        require("slurm", reason)
    specs = [
        ClusterSpec(f"stopped{silence}", f"s{silence}n", 1, 8, settings=request.param)
        for silence in SILENCES
    ]
    with SlurmSite(common_folder / f"stopped-{len(request.param)}", specs) as site:
        yield site


def noting_folder(folder: Path, listing: str) -> Path:
    """Return a folder of the manager's commands whose `listing` notes each of its begins."""
    folder.mkdir()
    for command in ("squeue", "sinfo", "sbatch", "scontrol", "scancel", "sacct", "sacctmgr"):
        if (path := shutil.which(command, path=SEARCH_PATH)) is not None:
            note = f"touch '{folder}/begun'\n" if command == listing else ""
            (folder / command).write_text(f'#!/bin/sh\n{note}exec {path} "$@"\n')
            (folder / command).chmod(0o755)
    return folder


def stand_still(pid: int, seconds: float, begun: Path) -> None:
    """Stop a manager; continue it just after a listing has begun."""
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
        begun.unlink(missing_ok=True)
        while not begun.exists():
            time.sleep(0.01)
        time.sleep(0.2)  # it has connected
    finally:
        os.kill(pid, signal.SIGCONT)


def run_beside(acts: Sequence[Callable[[], None]], submit: Callable[[], None]) -> None:
    """Submit just after `acts` have begun; wait for their ends."""
    threads = [Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    submit()
    for thread in threads:
        thread.join()


def assert_run_once(site: Site, jobs: list[int], run_log: Path) -> None:
    rows = site.until_ended(*jobs)
    assert {row["state"] for row in rows} == {"completed"}, rows
    runs = Counter(run_log.read_text().splitlines())
    assert runs == Counter({f"{job} {n}": 1 for job in jobs for n in range(1, TASKS + 1)})
    stories = [site.run("story", f"{job}_1").stdout for job in jobs]
    assert any("no answer" in story for story in stories), stories
    assert site.stop() == 0
    site.replayed()


PAYLOAD = "echo $METASCHED_JOB_ID $METASCHED_TASK >> '{}'"


@pytest.mark.timeout(600)
def test_a_submission_that_a_listing_overtakes_runs_once(site: Site, clusters: SlurmSite) -> None:
    run_log, jobs = site.folder / "ran", list[int]()
    folders = {c.name: noting_folder(site.folder / f"bin-{c.name}", "squeue") for c in clusters}
    site.configure("".join(c.table(f'bin_dir = "{folders[c.name]}"\n') for c in clusters))
    site.start()

    def submit() -> None:
        for cluster in clusters:
            options = ("--array", f"1-{TASKS}", "--cluster", cluster.name)
            jobs.append(site.submit(*options, "--wrap", PAYLOAD.format(run_log)))

    acts = [
        partial(stand_still, cluster.controller, silence, folders[cluster.name] / "begun")
        for cluster, silence in zip(clusters, SILENCES, strict=True)
    ]
    run_beside(acts, submit)
    assert_run_once(site, jobs, run_log)


@pytest.mark.timeout(600)
def test_a_submission_that_qstat_overtakes_runs_once(site: Site, gridengine_cell: Cell) -> None:
    run_log, jobs, cell = site.folder / "ran", list[int](), gridengine_cell
    cell.empty()
    site.configure(cell.table(cell.python(site.folder / "python")))
    site.start()
    # without a line in the accounting file a listing proves nothing
    site.until_ended(site.submit("--wrap", "true"))

    def submit() -> None:
        jobs.append(site.submit("--array", f"1-{TASKS}", "--wrap", PAYLOAD.format(run_log)))

    def stand_still() -> None:
        process = psutil.Process(cell.qmaster)
        process.suspend()
        try:
            time.sleep(SILENCES[0])
            await_command(site, "qstat", "qconf")  # by which a poll begins
            time.sleep(0.2)  # it has connected
        finally:
            process.resume()

    run_beside([stand_still], submit)
    assert_run_once(site, jobs, run_log)


def await_command(site: Site, *names: str) -> None:
    """Wait until a worker begins a command of these; look often, since it may end soon."""
    begun = time.time()
    for _ in looks(120.0, shortest=0.01, longest=0.01):
        with suppress(psutil.Error):
            children = [c for worker in site.workers for c in worker.children(recursive=True)]
            if any(c.name() in names and c.create_time() > begun for c in children):
                return
