"""Real controllers that lose the last seconds of their state, reuse job ids and restart jobs."""

from __future__ import annotations

import re
import subprocess
from functools import partial
from pathlib import Path

import pytest

import metasched
from tests.e2e.conftest import Site
from tests.harness.slurm import SlurmCluster, SlurmSite

pytestmark = pytest.mark.slow("kills controllers and waits until they serve again")

DROP_IN_SBATCH = Path(metasched.__file__).parent / "drop_in/slurm/sbatch"


@pytest.fixture(scope="module")
def slurm_site(slurm_site_for_faults: SlurmSite) -> SlurmSite:
    return slurm_site_for_faults


@pytest.fixture
def beta(over_slurm: Site, slurm_site: SlurmSite) -> SlurmCluster:
    """A real cluster behind a running daemon, filled by a job from outside metasched."""
    cluster = slurm_site["beta"]
    fill = ("sbatch", "--job-name=others", "-N3", "--exclusive", "--wrap", "sleep 600")

    def is_full() -> bool:
        # a slurmd remembers jobs that its controller has forgotten, and refuses one of the same id
        if "launch failed" in cluster.run("squeue", "-h", "--name=others", "-o", "%r"):
            nodes = cluster.run("sinfo", "-h", "-p", "main", "-t", "drain", "-o", "%N").strip()
            if not nodes:  # the controller drains it a moment later
                return False
            cluster.run("scancel", "--name=others")
            cluster.run("scontrol", "update", f"nodename={nodes}", "state=resume")
            cluster.run(*fill)
        return "RUNNING" in state(cluster, "--name=others")

    cluster.run(*fill)
    over_slurm.until(is_full)
    return cluster


def native_id(site: Site, job: int) -> str:
    return site.row(job)["native_id"] or ""


def state(cluster: SlurmCluster, *which: str) -> str:
    return cluster.run("squeue", "-h", "-t", "all", *which, "-o", "%T").strip()


def waiting(site: Site) -> tuple[int, str, Path]:
    """Submit a job to the full cluster; return it, its native id and the file that it writes."""
    run_log = site.folder / "ran"
    job = site.submit("--wrap", f"echo x >> '{run_log}'", "--cluster", "beta", "-t", "5")
    site.until(lambda: site.row(job)["reason"].startswith("manager:"))
    return job, site.row(job)["native_id"], run_log


def until_explained(site: Site, job: int, text: str) -> None:
    site.until(lambda: any(text in line["cause"] for line in site.json("story", str(job))))


def ended_once(site: Site, cluster: SlurmCluster, job: int, run_log: Path) -> None:
    """Free the cluster; assert that the job starts once and completes, and that it replays."""
    cluster.run("scancel", "--name=others")
    assert site.until_ended(job)[0]["state"] == "completed"
    assert run_log.read_text() == "x\n"
    assert site.stop() == 0
    site.replayed()


def test_a_withdrawal_that_the_controller_forgot_is_repeated(
    over_slurm: Site, beta: SlurmCluster
) -> None:
    job, native, run_log = waiting(over_slurm)
    with beta.forgetting():
        over_slurm.run("hold", str(job))
        over_slurm.until(lambda: over_slurm.row(job)["state"] == "held")
    until_explained(over_slurm, job, "it was considered lost, but its manager lists it again")
    over_slurm.until(lambda: over_slurm.row(job)["state"] == "held")
    assert state(beta, "-j", native) == "CANCELLED"
    over_slurm.run("release", str(job))
    over_slurm.until(lambda: over_slurm.row(job)["state"] == "pending")
    ended_once(over_slurm, beta, job, run_log)


def test_a_cancelled_job_that_comes_back_is_cancelled_again(
    over_slurm: Site, beta: SlurmCluster
) -> None:
    job, native, _ = waiting(over_slurm)
    with beta.forgetting():
        over_slurm.run("cancel", str(job))
        over_slurm.until_ended(job)
    until_explained(over_slurm, job, "dispatch 1 on beta is listed again: withdrawing it")
    over_slurm.until(lambda: state(beta, "-j", native) == "CANCELLED")
    assert over_slurm.row(job)["state"] == "cancelled"
    assert over_slurm.stop() == 0
    over_slurm.replayed()


def test_a_reused_id_is_not_taken_for_a_task_and_a_lost_task_runs_once(
    over_slurm: Site, beta: SlurmCluster
) -> None:
    with beta.forgetting():
        job, native, run_log = waiting(over_slurm)
    other = beta.run("sbatch", "--parsable", "--job-name=another", "--wrap", "sleep 600").strip()
    assert other == native
    until_explained(over_slurm, job, "the manager no longer lists it")
    assert over_slurm.row(job)["state"] == "unknown"
    over_slurm.run("resolve", str(job), "lost")
    over_slurm.until(lambda: over_slurm.row(job)["state"] == "pending")
    ended_once(over_slurm, beta, job, run_log)
    assert state(beta, "-j", other) in ("PENDING", "RUNNING")


def test_a_restart_by_the_manager_is_an_attempt_of_its_own(
    over_slurm: Site, slurm_site: SlurmSite
) -> None:
    run_log, go = over_slurm.folder / "ran", over_slurm.folder / "go"
    payload = f"echo x >> '{run_log}'; while [ ! -e '{go}' ]; do sleep 0.1; done; exit 3"
    job = over_slurm.submit("--wrap", payload, "--requeue", "--cluster", "beta", "-t", "5")
    over_slurm.until(lambda: run_log.exists() and run_log.read_text() == "x\n")
    over_slurm.until(lambda: over_slurm.row(job)["state"] == "running")
    native = over_slurm.row(job)["native_id"]
    beta = slurm_site["beta"]
    beta.run("scontrol", "requeuehold", native)  # held there, it is not taken back
    until_explained(over_slurm, job, "the manager restarted it by itself (restart 1)")
    over_slurm.until(lambda: state(beta, "-j", native) == "PENDING")
    beta.run("scontrol", "release", native)
    beta.run("scontrol", "update", f"JobId={native}", "StartTime=now+3")  # instead of in a minute
    over_slurm.until(lambda: run_log.read_text() == "x\nx\n")
    go.touch()
    assert over_slurm.until_ended(job)[0]["exit_code"] == 3
    story = over_slurm.json("story", str(job))
    assert [line["to"] for line in story if line["event"] == "restart"] == ["pending"]
    assert [line["attempt"] for line in story][-1] == 2
    assert over_slurm.stop() == 0
    over_slurm.replayed()


def test_a_job_that_may_run_on_one_cluster_alone_goes_back_there(
    over_slurm: Site, slurm_site: SlurmSite
) -> None:
    run_log, go, beta = over_slurm.folder / "ran", over_slurm.folder / "go", slurm_site["beta"]
    payload = f"echo x >> '{run_log}'; while [ ! -e '{go}' ]; do sleep 0.1; done; exit 3"
    job = over_slurm.submit("--wrap", payload, "--requeue", "--cluster", "beta", "-t", "5")
    over_slurm.until(lambda: run_log.exists() and over_slurm.row(job)["state"] == "running")
    native = over_slurm.row(job)["native_id"]
    beta.run("scontrol", "requeue", native)
    until_explained(over_slurm, job, "its cluster had requeued it, and it may run elsewhere")
    over_slurm.until(lambda: run_log.read_text() == "x\nx\n")
    assert state(beta, "-j", native) == "CANCELLED"
    go.touch()
    assert over_slurm.until_ended(job)[0]["exit_code"] == 3
    assert over_slurm.row(job)["native_id"] != native
    assert run_log.read_text() == "x\nx\n"
    assert over_slurm.stop() == 0
    over_slurm.replayed()


def test_a_native_cancel_of_a_requeued_job_ends_it(over_slurm: Site, slurm_site: SlurmSite) -> None:
    """Nothing was to be taken back yet, so nobody but the owner has cancelled it."""
    run_log, beta = over_slurm.folder / "ran", slurm_site["beta"]
    payload = f"echo x >> '{run_log}'; sleep 600"
    job = over_slurm.submit("--wrap", payload, "--requeue", "--cluster", "beta", "-t", "15")
    over_slurm.until(lambda: run_log.exists() and over_slurm.row(job)["state"] == "running")
    native = over_slurm.row(job)["native_id"]
    over_slurm.stop()  # so that no listing comes between
    beta.run("scontrol", "requeue", native)
    over_slurm.until(lambda: state(beta, "-j", native) == "PENDING")
    beta.run("scancel", native)
    over_slurm.start()
    assert over_slurm.until_ended(job)[0]["state"] == "cancelled"
    causes = [line["cause"] for line in over_slurm.json("story", str(job))]
    assert not [cause for cause in causes if "taken back" in cause], causes
    assert run_log.read_text() == "x\n"
    assert over_slurm.stop() == 0
    over_slurm.replayed()


# With a fence, uncertain attempts are revoked and dispatched again without an operator.


@pytest.fixture
def behind_fence(over_slurm: Site) -> Site:
    """The site over two Slurm clusters with a fence: payloads claim their attempts."""
    over_slurm.stop()
    fence = over_slurm.folder / "claims"
    fence.mkdir()
    whole = over_slurm.config.read_text()
    poll = "poll_interval = 1\n"
    over_slurm.config.write_text(whole.replace(poll, f'{poll}fence_dir = "{fence}"\n'))
    over_slurm.start()
    return over_slurm


def test_what_the_controller_lost_is_sent_again_and_can_never_begin_twice(
    behind_fence: Site, beta: SlurmCluster
) -> None:
    with beta.forgetting():
        job, _, run_log = waiting(behind_fence)
        script = beta.run(
            "scontrol", "write", "batch_script", behind_fence.row(job)["native_id"], "-"
        )
    until_explained(behind_fence, job, "its claim is revoked: it can never start")
    behind_fence.until(lambda: behind_fence.row(job)["state"] == "pending")
    variables = "--export=ALL,METASCHED_TASK=0"
    beta.run("sbatch", "--job-name=again", "-o", "again.out", variables, stdin=script)
    ended_once(behind_fence, beta, job, run_log)
    behind_fence.until(lambda: state(beta, "--name=again") == "FAILED")
    assert "this attempt must not start" in (beta.folder / "again.out").read_text()
    assert run_log.read_text() == "x\n"


def test_jobs_of_the_drop_in_sbatch_have_the_default_of_their_cluster(
    behind_fence: Site, slurm_site: SlurmSite
) -> None:
    """Slurm's JobRequeue is 1 unless its slurm.conf has another."""
    requeued = {}
    for option in ((), ("--no-requeue",), ("--requeue",)):
        done = subprocess.run(
            [DROP_IN_SBATCH, "--parsable", "-M", "beta", "-t", "5", *option, "--wrap", "sleep 60"],
            env=behind_fence.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        job = int(done.stdout)
        native = behind_fence.until(partial(native_id, behind_fence, job))
        shown = slurm_site["beta"].run("scontrol", "show", "job", native)
        requeued[option] = re.findall(r"Requeue=(\d)", shown)
        behind_fence.run("cancel", str(job))
    assert requeued == {(): ["1"], ("--no-requeue",): ["0"], ("--requeue",): ["1"]}


def test_a_rerun_against_a_request_does_not_begin_again(
    behind_fence: Site, slurm_site: SlurmSite
) -> None:
    run_log, go = behind_fence.folder / "ran", behind_fence.folder / "go"
    payload = f"echo x >> '{run_log}'; while [ ! -e '{go}' ]; do sleep 0.1; done"
    job = behind_fence.submit("--wrap", payload, "--cluster", "beta", "-t", "5")
    behind_fence.until(lambda: run_log.exists() and run_log.read_text() == "x\n")
    behind_fence.until(lambda: behind_fence.row(job)["state"] == "running")
    native, beta = behind_fence.row(job)["native_id"], slurm_site["beta"]
    beta.run("scontrol", "update", f"JobId={native}", "Requeue=1")
    beta.run("scontrol", "requeue", native)
    behind_fence.until(lambda: state(beta, "-j", native) == "PENDING")
    beta.run("scontrol", "update", f"JobId={native}", "StartTime=now+3")  # instead of in a minute
    [row] = behind_fence.until_ended(job)
    assert (row["state"], row["exit_code"]) == ("failed", 75), behind_fence.json("story", str(job))
    assert run_log.read_text() == "x\n"


def test_what_ended_before_its_controller_forgot_it_is_settled_by_its_claim(
    behind_fence: Site, slurm_site: SlurmSite
) -> None:
    beta, folder = slurm_site["beta"], behind_fence.folder
    run_log, go, caught = (folder / name for name in ("ran", "go", "caught"))
    payload = f"trap 'echo x >> {caught}' USR1; echo x >> {run_log}\n"
    payload += f"until [ -e {go} ]; do sleep 0.1; done; exit 6"
    with beta.forgetting():
        job = behind_fence.submit("--wrap", payload, "--cluster", "beta", "-t", "5")
        behind_fence.until(run_log.exists)
        behind_fence.until(lambda: behind_fence.row(job)["state"] == "running")
        # as `--signal=B:USR1@...` does before the time limit
        beta.run("scancel", "--batch", "--signal=USR1", behind_fence.row(job)["native_id"])
        behind_fence.until(caught.exists)
        behind_fence.stop()
        go.touch()
        [claim] = (folder / "claims").rglob("task.0")
        behind_fence.until(lambda: "ended 6" in claim.read_text())
    behind_fence.start()
    [row] = behind_fence.until_ended(job)
    assert (row["state"], row["exit_code"]) == ("failed", 6)
    assert row["ended"]
    until_explained(behind_fence, job, "its manager has forgotten it; its claim records the end")
    assert run_log.read_text() == "x\n"
    assert behind_fence.stop() == 0
    behind_fence.replayed()


def test_a_start_that_the_controller_forgot_is_not_repeated_elsewhere(
    behind_fence: Site, beta: SlurmCluster
) -> None:
    """It is listed as pending again, withdrawn, and the other cluster has room."""
    behind_fence.run("cluster", "drain", "alpha", "--reason", "full")
    run_log = behind_fence.folder / "ran"
    job = behind_fence.submit("--wrap", f"echo x >> '{run_log}'; exit 6", "-t", "5")
    behind_fence.until(lambda: behind_fence.row(job)["reason"].startswith("manager:"))
    native = behind_fence.row(job)["native_id"]
    beta.run("scontrol", "hold", native)  # so that it stays pending when it is listed again
    beta.run("scancel", "--name=others")
    behind_fence.until(lambda: "RUNNING" not in state(beta, "--name=others"))
    behind_fence.stop()
    with beta.forgetting():
        beta.run("scontrol", "release", native)
        [folder] = (behind_fence.folder / "claims").glob("jobs-*/claims-*")
        claim = folder / "task.0"
        behind_fence.until(lambda: claim.exists() and "ended 6" in claim.read_text())
    assert state(beta, "-j", native) == "PENDING"
    behind_fence.start("drained")
    behind_fence.run("cluster", "resume", "alpha")
    behind_fence.run("cluster", "drain", "beta", "--reason", "new kernel")
    [row] = behind_fence.until_ended(job)
    assert (row["state"], row["exit_code"], row["cluster"]) == ("failed", 6, "beta")
    assert state(beta, "-j", native) == "CANCELLED"
    assert run_log.read_text() == "x\n"
    story = behind_fence.json("story", str(job))
    assert [line["cluster"] for line in story if line["event"] == "send"] == ["beta"], story
    assert behind_fence.stop() == 0
    behind_fence.replayed()
