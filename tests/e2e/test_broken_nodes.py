"""Real Slurm nodes that begin no job: their prologs fail, or their spool is full."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import ONE_LOCAL, Site
from tests.e2e.multi_user_site import site_over_slurm
from tests.harness import accounts
from tests.harness.accounts import KEEPER, A, B
from tests.harness.slurm import ClusterSpec, SlurmCluster, SlurmSite

pytestmark = pytest.mark.slow("waits until Slurm has drained nodes, one after another")

CLAIMS = ("", "claims")
AT_ONCE = "its node never began it, or somebody cancelled it at once"


@pytest.fixture(scope="module")
def cluster(common_folder: Path) -> Iterator[SlurmCluster]:
    """A cluster whose nodes can each begin all jobs of a test; Slurm fills the first one first."""
    spec = ClusterSpec("alpha", "a", nodes=4, cpus=8, prolog=True)
    with SlurmSite(common_folder / "broken", [spec]) as slurm:
        yield slurm["alpha"]


@pytest.fixture
def nodes(cluster: SlurmCluster) -> Iterator[list[str]]:
    """The cluster's nodes; those that a test has broken are repaired after it."""
    cluster.empty()
    yield cluster.nodes
    cluster.repair_all()
    cluster.empty()


def start(site: Site, cluster: SlurmCluster, claims: str = "", options: str = "") -> None:
    if claims:
        fence = site.folder / claims
        fence.mkdir()
        options += f'fence_dir = "{fence}"\n'
    site.configure(cluster.table(f"poll_interval = 0.5\n{options}"))
    site.start()


def runs(site: Site) -> list[str]:
    log = site.folder / "ran"
    return sorted(log.read_text().split()) if log.exists() else []


def submit(site: Site, *options: str, wrap: str = "") -> int:
    script = wrap or f"echo $METASCHED_TASK >>'{site.folder}/ran'; sleep 1"
    return site.submit(*options, "-t", "5", "--wrap", script)


def story(site: Site, job: int) -> str:
    return site.run("story", str(job)).stdout


@pytest.mark.parametrize("claims", CLAIMS)
@pytest.mark.parametrize("requeue", ["--no-requeue", "--requeue"])
def test_jobs_that_a_node_could_not_begin_run_once_on_another(
    site: Site, cluster: SlurmCluster, nodes: list[str], requeue: str, claims: str
) -> None:
    cluster.break_prolog(nodes[0])
    start(site, cluster, claims)
    job = submit(site, requeue, "--array", "1-5")
    rows = site.until_ended(job)
    assert [row["state"] for row in rows] == ["completed"] * 5
    assert runs(site) == ["1", "2", "3", "4", "5"]
    assert story(site, job).count("node a1 of alpha could not begin it; it goes to another") == 5
    findings = json.loads(site.run("doctor", "--json").stdout)
    [text] = [each["text"] for each in findings if each["id"] == "node-begins-no-jobs"]
    assert text == "node a1 of cluster alpha could not begin 5 jobs in the last hour"
    events = site.json("events", "--kind", "job_unbegun")
    assert {(event["job"], event["details"]["nodes"]) for event in events} == {(job, "a1")}
    assert site.stop() == 0
    site.replayed()


@pytest.mark.parametrize("claims", CLAIMS)
@pytest.mark.parametrize("requeue", ["--no-requeue", "--requeue"])
def test_after_three_nodes_a_job_has_failed_and_the_nodes_are_named(
    site: Site, cluster: SlurmCluster, nodes: list[str], requeue: str, claims: str
) -> None:
    cluster.break_prolog(*nodes)
    start(site, cluster, claims)
    job = submit(site, requeue)
    site.until(lambda: "node a1 of alpha could not begin it; it goes to ano" in story(site, job))
    site.stop(signal.SIGKILL)
    site.start()
    [row] = site.until_ended(job)
    assert row["state"] == "failed"
    causes = "node a1 of alpha, node a2 of alpha, node a3 of alpha could not begin it"
    assert causes in story(site, job)
    assert causes in site.run("explain", str(job)).stdout
    assert runs(site) == []
    cluster.repair_all()
    site.run("requeue", str(job))
    [row] = site.until_ended(job)
    assert row["state"] == "completed"
    assert runs(site) == ["0"]
    assert site.stop() == 0
    site.replayed()


@pytest.mark.parametrize("claims", CLAIMS)
def test_what_its_owner_cancels_at_once_is_cancelled(
    site: Site, cluster: SlurmCluster, nodes: list[str], claims: str
) -> None:
    cluster.break_prolog(*nodes, act="sleep 4")
    start(site, cluster, claims)
    job = submit(site, "--no-requeue")
    site.until(lambda: cluster.run("squeue", "-h", "-t", "R", "-o", "%i"))
    cluster.run("scancel", "--state=RUNNING", "--user", str(os.geteuid()))
    [row] = site.until_ended(job)
    assert (row["state"], row["exit_code"]) == ("cancelled", 0)
    assert AT_ONCE in story(site, job)
    assert AT_ONCE in site.run("explain", str(job)).stdout
    assert runs(site) == []
    assert site.json("events", "--kind", "job_unbegun") == []
    assert site.stop() == 0
    site.replayed()


def test_a_job_that_claimed_does_not_move_though_its_node_is_drained_as_it_is_cancelled(
    site: Site, cluster: SlurmCluster, nodes: list[str]
) -> None:
    start(site, cluster, "claims")
    waits = f"trap 'exit 0' TERM; echo $METASCHED_TASK >>'{site.folder}/ran'; sleep 60 & wait"
    job = submit(site, "--no-requeue", wrap=waits)
    site.until(lambda: runs(site) == ["0"])
    cluster.run("scontrol", "update", "nodename=a1", "state=drain", "reason=repair")
    cluster.run("scancel", "--user", str(os.geteuid()))
    [row] = site.until_ended(job)
    assert (row["state"], row["exit_code"]) == ("cancelled", 0)
    assert runs(site) == ["0"]
    assert site.stop() == 0
    site.replayed()


@pytest.mark.parametrize("requeue", ["--no-requeue", "--requeue"])
def test_faults_of_the_owner_fail_and_do_not_travel(
    site: Site, cluster: SlurmCluster, nodes: list[str], requeue: str
) -> None:
    start(site, cluster)
    gone = site.folder / "gone"
    gone.mkdir()
    jobs = {
        submit(site, requeue, "--chdir", str(gone), "--begin", "now+3"): "JobLaunchFailure",
        submit(site, requeue, "--output", "/proc/output"): "JobLaunchFailure",
        site.submit(requeue, "-t", "5", str(script(site, "#!/no/such/interpreter\n"))): "",
        site.submit(requeue, "-t", "5", str(script(site, "#!/etc/passwd\n"))): "",
    }
    gone.rmdir()
    for row in site.until_ended(*jobs):
        assert row["state"] == "failed", row
        text = story(site, row["job"])
        assert "attempt 2" not in text
        assert jobs[row["job"]] in text
    assert cluster.run("sinfo", "-h", "-p", "main", "-t", "drain", "-o", "%N").strip() == ""
    assert site.json("events", "--kind", "job_unbegun") == []
    assert site.stop() == 0


def script(site: Site, text: str) -> Path:
    path = site.folder / "job.sh"
    path.write_text(text)
    return path


@pytest.mark.root
@pytest.mark.parametrize("requeue", ["--no-requeue", "--requeue"])
def test_a_node_whose_spool_is_full_begins_nothing_and_costs_no_job(
    site: Site, cluster: SlurmCluster, nodes: list[str], requeue: str
) -> None:
    start(site, cluster)
    with cluster.full_spool("a1"):
        job = submit(site, requeue, "--array", "1-3")
        rows = site.until_ended(job)
    assert [row["state"] for row in rows] == ["completed"] * 3
    assert runs(site) == ["1", "2", "3"]
    assert "node a1 of alpha could not begin it" in story(site, job)
    assert site.stop() == 0
    site.replayed()


@pytest.mark.root
@pytest.mark.parametrize("claims", CLAIMS)
def test_a_disk_that_is_full_before_the_script_is_written_is_not_the_jobs_failure(
    site: Site, claims: str
) -> None:
    """The lines before a script are those of claims, and of the site."""
    full = site.folder / "full"
    full.mkdir()
    (site.folder / "claims").mkdir()
    extra = (
        f'fence_dir = "{site.folder}/{claims}"\n' if claims else '[cluster.job]\nprologue = ":"\n'
    )
    site.configure(ONE_LOCAL + extra)
    site.start()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", full], check=True)
    try:
        (full / "filler").write_bytes(bytes(4096))
        wrap = f"echo $METASCHED_TASK >>'{site.folder}/ran'"
        submitted = site.run("submit", "--parsable", "--wrap", wrap, env={"TMPDIR": str(full)})
        [row] = site.until_ended(int(submitted.stdout))
    finally:
        subprocess.run(["umount", full], check=True)
    assert row["state"] == "completed"
    assert runs(site) == ["0"]


@pytest.mark.root
@pytest.mark.parametrize("claims", CLAIMS)
def test_owners_share_neither_the_failures_nor_the_cancels_of_others(
    common_folder: Path, cluster: SlurmCluster, nodes: list[str], claims: str
) -> None:
    """B copies the tag of A's job into a job of his own, and cancels it as if a node had failed."""
    folder = common_folder / f"owners-{claims}"
    options = ""
    if claims:
        fence = common_folder / "fence"
        fence.mkdir(mode=0o711)
        shutil.chown(fence, KEEPER)
        options = f'fence_dir = "{fence}"\n'
    with site_over_slurm(folder, cluster, options) as site:
        cluster.break_prolog("a1")
        script = "echo x >>ran; while [ ! -e end ]; do sleep 1; done"
        arguments = ("-t", "5", "-o", "/dev/null", "--wrap", script)
        jobs = {account: site.by(account).submit(*arguments) for account in (A, B)}
        for account in jobs:
            site.until((folder / account / "ran").exists)
        a = site.by(A)
        native = a.row(jobs[A])["native_id"]
        tag = cluster.run("squeue", "-h", "-j", native, "-O", "comment:80").strip()
        forged = native_job(cluster, B, "sbatch", "--parsable", f"--comment={tag}", "-D/tmp")
        site.until(lambda: "R" in cluster.run("squeue", "-h", "-j", forged, "-o", "%t"))
        node = cluster.run("squeue", "-h", "-j", forged, "-o", "%N").strip()
        cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=x")
        native_job(cluster, B, "scancel", forged)
        site.until(lambda: not cluster.run("squeue", "-h", "-j", forged))
        for account, job in jobs.items():
            (folder / account / "end").touch()
            [row] = site.by(account).until_ended(job)
            assert row["state"] == "completed"
            assert (folder / account / "ran").read_text() == "x\n"
        assert {event["owner"] for event in a.json("events", "--kind", "job_unbegun")} <= {A}


def native_job(cluster: SlurmCluster, account: str, *command: str) -> str:
    """Run a native command as an account; a job traps the signal of its end."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command,
        env=cluster.environment,
        input="#!/bin/sh\ntrap 'exit 0' TERM\nsleep 60 & wait\n",
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
        **accounts.as_(account),
    )
    return done.stdout.strip()
