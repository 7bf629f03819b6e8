"""A site whose Slurm hides the jobs of others: `PrivateData=jobs`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import metasched
from tests.conftest import require
from tests.e2e.multi_user_site import MultiUserSite, slurm_tables
from tests.harness import slurm
from tests.harness.accounts import KEEPER, A, B, become
from tests.harness.slurm import ClusterSpec, SlurmCluster, SlurmSite

pytestmark = pytest.mark.root
COMMANDS = Path(metasched.__file__).parent / "drop_in/slurm"
PRIVATE = ("PrivateData=jobs,usage", "AccountingStorageEnforce=associations")


@pytest.fixture(scope="module")
def cluster(common_folder: Path) -> Iterator[SlurmCluster]:
    if reason := slurm.missing() or slurm.accounting_missing():
        require("slurm", reason)
    spec = ClusterSpec("alpha", "a", nodes=1, cpus=8, settings=PRIVATE)
    with SlurmSite(common_folder / "private", [spec], accounting=True) as booted:
        alpha = booted["alpha"]
        alpha.run("sacctmgr", "-i", "add", "account", "physics")
        for user in (KEEPER, A, B):
            alpha.run("sacctmgr", "-i", "add", "user", user, "account=physics")
        yield alpha


@pytest.fixture
def site(
    common_folder: Path, cluster: SlurmCluster, request: pytest.FixtureRequest
) -> Iterator[MultiUserSite]:
    """A site over the cluster whose daemon is not running yet."""
    new_site = MultiUserSite(common_folder / request.node.name[:16], cluster.inside)
    new_site.set_up(*slurm_tables(cluster), daemon="first_id = 100000001\n")
    yield new_site
    new_site.close()
    for user in (A, B):
        cluster.run("scancel", "--user", user)


def set_level(cluster: SlurmCluster, level: str) -> None:
    cluster.run("sacctmgr", "-i", "modify", "user", KEEPER, "set", f"adminlevel={level}")


def call(
    site: MultiUserSite, cluster: SlurmCluster, account: str, *command: str
) -> subprocess.CompletedProcess[str]:
    """Call a drop-in command as an account."""
    name, *arguments = command
    return subprocess.run(
        [*cluster.inside, *become(account), COMMANDS / name, *arguments],
        env=site.environment | cluster.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )


@pytest.mark.slow("boots a cluster with slurmdbd; its jobs are hidden until it is down")
def test_no_job_runs_twice_for_a_daemon_that_sees_none(
    site: MultiUserSite, cluster: SlurmCluster
) -> None:
    """An incomplete listing proves nothing: jobs are not taken for lost, and none is sent."""
    set_level(cluster, "operator")
    site.start()
    b = site.by(B)
    runs = site.folder / B / "runs"
    job = b.submit("--wrap", f"echo x >>{runs}; sleep 300")
    site.until(lambda: site.row(job)["state"] == "running" and runs.exists())
    waiting = b.submit("-n", "8", "--wrap", f"echo x >>{runs}; sleep 300")
    site.until(lambda: site.row(waiting)["state"] == "pending")
    set_level(cluster, "none")
    site.until(lambda: site.json("clusters")[0]["state"].startswith("down"))
    shown = site.run("clusters").stdout
    assert "PrivateData=jobs" in shown, shown
    later = b.submit("-t", "1", "--wrap", f"echo x >>{runs}")
    set_level(cluster, "operator")
    site.until(lambda: site.row(later)["state"] == "completed")
    assert runs.read_text() == "x\nx\n"  # of `job` and of `later`
    assert site.row(job)["state"] == "running"
    assert site.row(waiting)["state"] == "pending"
    events = [line["event"] for line in site.json("story", str(waiting))]
    assert events.count("send") == 1, events


def test_users_see_their_own_jobs_alone(site: MultiUserSite, cluster: SlurmCluster) -> None:
    set_level(cluster, "operator")
    site.start()
    job = site.by(B).submit("-J", "secret", "-o", "/dev/null", "--wrap", "srun sleep 300")
    site.until(lambda: site.row(job)["state"] == "running")
    native = site.row(job)["native_id"]
    own = call(site, cluster, B, "squeue", "-h", "-o", "%i %j")
    assert own.stdout == f"{job} secret\n", own
    for command in (
        ("squeue", "-h", "-o", "%i %j"),
        ("squeue", "-h", "-o", "%i %j", "-u", B),
        ("squeue", "-h", "-o", "%i %j", "-j", str(job)),
        ("squeue", "-h", "-o", "%i %j", "-M", "alpha"),
        ("sacct", "-a", "-n", "-P", "-o", "jobid,jobname"),
        ("sacct", "-n", "-P", "-o", "jobid,jobname", "-j", str(job)),
        ("sacct", "-n", "-P", "-o", "jobid,jobname", "-u", B),
        ("scontrol", "show", "job", str(job)),
        ("scontrol", "show", "job", native),
        ("sstat", "-n", "-P", "-a", "-j", str(job)),
        ("sattach", f"{job}.0"),
        ("seff", str(job)),
        ("srun", f"--jobid={job}", "--overlap", "id"),
        ("srun", f"--jobid={native}", "--overlap", "id"),
        ("scancel", str(job)),
        ("scancel", native),
    ):
        answer = call(site, cluster, A, *command)
        assert "secret" not in answer.stdout + answer.stderr, answer
        assert "Traceback" not in answer.stderr, answer
        assert answer.stdout == "" or command[0] == "sacct", answer
        if command[0] not in ("squeue", "sacct", "scancel"):  # which take an unknown id for ended
            assert answer.returncode != 0, answer
    assert site.row(job)["state"] == "running"
