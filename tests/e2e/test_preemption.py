"""Jobs that a real Slurm preempts: with --requeue they run again, perhaps elsewhere."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.conftest import require
from tests.e2e.conftest import ONE_LOCAL, Site
from tests.harness import slurm
from tests.harness.slurm import ClusterSpec, SlurmSite

PREEMPTING = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=CANCEL",
    "PartitionName=urgent Nodes=ALL PriorityTier=10 Default=NO",
)


REQUEUEING = (PREEMPTING[0], "PreemptMode=REQUEUE", PREEMPTING[2])


@pytest.fixture(scope="module")
def requeueing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    if reason := slurm.missing():
        require("slurm", reason)
    spec = ClusterSpec("alpha", "a", nodes=1, cpus=4, settings=REQUEUEING)
    with SlurmSite(tmp_path_factory.mktemp("requeue"), [spec]) as site:
        yield site


@pytest.fixture(scope="module")
def preempting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    if reason := slurm.missing():
        require("slurm", reason)
    spec = ClusterSpec("alpha", "a", nodes=1, cpus=4, settings=PREEMPTING)
    with SlurmSite(tmp_path_factory.mktemp("preemption"), [spec]) as site:
        yield site


@pytest.fixture
def over_both(site: Site, preempting: SlurmSite) -> Site:
    preempting["alpha"].empty()
    site.configure(preempting["alpha"].table("poll_interval = 0.5\n") + ONE_LOCAL)
    site.start()
    return site


def preempt(site: Site, slurm: SlurmSite, *options: str) -> int:
    """Return a job that runs on alpha, after a native job has asked for its processors."""
    runs = site.folder / "runs"
    command = f"echo $METASCHED_CLUSTER >>{runs}; [ $METASCHED_CLUSTER != alpha ] || sleep 300"
    job = site.submit("-n", "4", "-t", "10", *options, "--wrap", command)
    site.until(lambda: site.row(job)["state"] == "running" and runs.exists())
    assert runs.read_text() == "alpha\n"
    slurm["alpha"].run("sbatch", "-p", "urgent", "-n4", "-t5", "--wrap", "sleep 300")
    return job


def test_a_preempted_job_that_may_run_again_runs_elsewhere(
    over_both: Site, preempting: SlurmSite
) -> None:
    site = over_both
    filler = site.submit("--cluster", "here", "-n", "4", "-t", "10", "--wrap", "sleep 300")
    site.until(lambda: site.row(filler)["state"] == "running")
    job = preempt(site, preempting, "--requeue")
    site.until(lambda: site.row(job)["state"] in ("queued", "pending"))
    site.run("cancel", str(filler))
    [row] = site.until_ended(job)
    assert (row["state"], row["cluster"]) == ("completed", "here")
    assert (site.folder / "runs").read_text() == "alpha\nhere\n"
    assert "preempted, and it may run again" in site.run("story", str(job)).stdout
    assert site.stop() == 0
    site.replayed()


def test_a_preempted_job_that_must_not_run_again_has_failed(
    over_both: Site, preempting: SlurmSite
) -> None:
    job = preempt(over_both, preempting, "--cluster", "alpha")
    [row] = over_both.until_ended(job)
    assert row["state"] == "failed"
    assert (over_both.folder / "runs").read_text() == "alpha\n"


def test_a_job_that_slurm_has_requeued_runs_elsewhere(site: Site, requeueing: SlurmSite) -> None:
    requeueing["alpha"].empty()
    site.configure(requeueing["alpha"].table("poll_interval = 0.5\n") + ONE_LOCAL)
    site.start()
    filler = site.submit("--cluster", "here", "-n", "4", "-t", "10", "--wrap", "sleep 300")
    site.until(lambda: site.row(filler)["state"] == "running")
    job = preempt(site, requeueing, "--requeue")
    native = site.row(job)["native_id"]
    site.until(lambda: site.row(job)["state"] == "queued" or site.row(job)["native_id"] != native)
    site.stop(signal.SIGKILL)
    site.start()
    site.run("cancel", str(filler))
    [row] = site.until_ended(job)
    assert (row["state"], row["cluster"]) == ("completed", "here")
    assert (site.folder / "runs").read_text() == "alpha\nhere\n"
    story = site.run("story", str(job)).stdout
    assert "its cluster had requeued it, and it may run elsewhere" in story
    listed = requeueing["alpha"].run("squeue", "-h", "-t", "all", "-j", str(native), "-o", "%T")
    assert listed.strip() == "CANCELLED"
    assert site.stop() == 0
    site.replayed()
