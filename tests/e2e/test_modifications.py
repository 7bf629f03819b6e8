"""Jobs that are requeued, and jobs that are modified after submission."""

from __future__ import annotations

import signal
import sqlite3

from tests.e2e.conftest import Site
from tests.harness.slurm import SlurmSite


def test_an_ended_job_runs_again_as_one_more_attempt(running: Site) -> None:
    flag = running.folder / "flag"
    job = running.submit("--wrap", f"echo tried; test -e '{flag}'")
    assert running.until_ended(job)[0]["state"] == "failed"
    flag.touch()
    [row] = running.json("requeue", str(job))
    assert row["was"] == "failed"
    [ended] = running.until_ended(job)
    assert (ended["state"], ended["exit_code"]) == ("completed", 0)
    assert running.run("output", str(job)).stdout == "tried\n"
    events = running.json("story", str(job))
    assert [e["to"] for e in events if e["event"] == "requeue"] == ["queued"]
    assert max(e["attempt"] or 0 for e in events) == 2
    assert running.json("requeue", "--state", "failed") == []
    running.stop()
    running.replayed()


def test_a_running_job_that_is_requeued_is_ended_first_even_over_a_crash(running: Site) -> None:
    run_log = running.folder / "ran"
    job = running.submit("--wrap", f"echo x >> '{run_log}'; sleep 300")
    running.until(lambda: run_log.exists() and run_log.read_text() == "x\n")
    running.until(lambda: running.row(job)["state"] == "running")
    running.run("requeue", str(job))
    running.stop(signal.SIGKILL)
    running.start()
    running.until(lambda: run_log.read_text() == "x\nx\n")
    running.until(lambda: running.row(job)["state"] == "running")
    output = running.run("requeue", str(running.submit("--hold", "--wrap", "true"))).stdout
    assert "has not started" in output
    running.error("requeue", "99", code=5)
    running.run("cancel", str(job))
    running.until_ended(job)


def test_a_waiting_job_is_changed_at_once(running: Site) -> None:
    job = running.submit("--hold", "--wrap", "true", "--name", "a")
    before = running.row(job)
    running.run("modify", str(job), "--urgency", "3", "--name", "b", "--cluster", "right")
    row = running.row(job)
    assert (row["name"], row["state"]) == ("b", "held")
    assert row["priority"] > before["priority"]
    running.run("modify", str(job), "--priority", "2")
    assert running.row(job)["priority"] == 2
    running.stop(signal.SIGKILL)
    running.start()
    assert running.row(job)["priority"] == 2
    running.run("release", str(job))
    assert running.until_ended(job)[0]["cluster"] == "right"
    causes = [event["cause"] for event in running.json("story", str(job))]
    assert any(": clusters any -> right, name a -> b, owner priority 0 -> 3" in c for c in causes)
    running.stop()
    running.replayed()


def test_what_cannot_be_changed_is_refused_and_nothing_changes(running: Site) -> None:
    job = running.submit("--wrap", "sleep 300", "--name", "a")
    running.until(lambda: running.row(job)["state"] == "running")
    waiting = running.submit("--hold", "--wrap", "true")
    jobs = (str(waiting), str(job))
    message = running.error("modify", *jobs, "--time", "5", "--name", "c", code=3)
    assert f"job {job}: it is running" in message
    assert running.row(waiting)["name"] == "wrap"
    assert "running" in running.run("modify", "--state", "running", "--time", "5").stdout
    running.run("modify", str(job), "--name", "b", "--deadline", "+2h")
    assert running.row(job)["name"] == "b"
    for wrong, code in (
        (["--time", "soon"], 2),
        (["--urgency", "4"], 2),
        (["--priority", "11"], 2),
        (["--name", ""], 2),
        (["--name", "a\nb"], 2),
        ([], 2),
        (["--cluster", "middle"], 3),
        (["--partition", "nowhere"], 3),
    ):
        running.error("modify", str(waiting), *wrong, code=code)
    running.error("modify", "99", "--time", "5", code=5)
    running.error("modify", f"{waiting}_0", "--time", "5", code=2)
    assert len(running.json("story", str(waiting))) == 1
    running.run("cancel", str(job))
    assert running.until_ended(job)[0]["state"] == "cancelled"
    assert "has ended" in running.error("modify", str(job), "--time", "5", code=3)


def test_a_pending_slurm_job_is_sent_anew_with_the_new_values(
    over_slurm: Site, slurm_site: SlurmSite
) -> None:
    beta = slurm_site["beta"]

    def limits() -> list[str]:
        return beta.run("squeue", "-h", "-t", "PD", "-o", "%l %P").split("\n")[:-1]

    full = over_slurm.submit("--wrap", "sleep 600", "-n", "24", "--cluster", "beta", "-t", "20")
    over_slurm.until(lambda: over_slurm.row(full)["state"] == "running")
    run_log = over_slurm.folder / "ran"
    job = over_slurm.submit(
        "--wrap", f"echo x >> '{run_log}'", "-n", "8", "--cluster", "beta", "-t", "10"
    )
    over_slurm.until(lambda: limits() == ["10:00 main"])
    over_slurm.run("modify", str(job), "--time", "20", "--partition", "short")
    over_slurm.stop(signal.SIGKILL)
    over_slurm.start()
    over_slurm.until(lambda: limits() == ["20:00 short"])
    over_slurm.run("cancel", str(full))
    assert over_slurm.until_ended(job)[0]["state"] == "completed"
    assert run_log.read_text() == "x\n"
    over_slurm.stop()
    over_slurm.replayed()


def test_a_running_slurm_job_is_requeued_as_a_new_one(
    over_slurm: Site, slurm_site: SlurmSite
) -> None:
    run_log = over_slurm.folder / "ran"
    job = over_slurm.submit("--wrap", f"echo x >> '{run_log}'; sleep 600", "-t", "20")
    over_slurm.until(lambda: run_log.exists() and run_log.read_text() == "x\n")
    over_slurm.until(lambda: over_slurm.row(job)["state"] == "running")
    first = over_slurm.row(job)["native_id"]
    over_slurm.run("requeue", str(job))
    over_slurm.until(lambda: run_log.read_text() == "x\nx\n")
    over_slurm.until(lambda: over_slurm.row(job)["state"] == "running")
    row = over_slurm.row(job)
    assert row["native_id"] != first
    over_slurm.run("cancel", str(job))
    assert over_slurm.until_ended(job)[0]["state"] == "cancelled"


def test_a_job_whose_dependency_is_forgotten_cannot_be_requeued(running: Site) -> None:
    first = running.submit("--wrap", "true")
    running.until_ended(first)
    never = running.submit("--hold", "--dependency", f"afterok:{first}", "--wrap", "true")
    other = running.submit("--hold", "--wrap", "true")
    running.run("cancel", str(never))
    running.stop()
    with sqlite3.connect(running.database) as stored:
        stored.execute("UPDATE task SET ended = ended - 7200 WHERE job = ?", (first,))
    stored.close()
    running.start()
    assert running.json("db", "prune", "--older-than", "1h")["jobs"] == 1
    message = running.error("requeue", str(other), str(never), code=5)
    assert message == (
        f"job {never} cannot be requeued: no job {first} of yours to wait for; submit it anew"
    )
    assert running.row(never)["state"] == "cancelled"


def test_a_request_for_a_task_that_its_cluster_restarts_is_explained(
    over_slurm: Site, slurm_site: SlurmSite
) -> None:
    job = over_slurm.submit("--requeue", "--wrap", "sleep 600", "--cluster", "beta", "-t", "5")
    over_slurm.until(lambda: over_slurm.row(job)["state"] == "running")
    # held there, since metasched takes back a job that its cluster has requeued
    slurm_site["beta"].run("scontrol", "requeuehold", over_slurm.row(job)["native_id"])
    over_slurm.until(lambda: over_slurm.row(job)["state"] == "pending")
    for command in ("hold", "requeue"):
        [row] = over_slurm.json(command, str(job))
        assert row["note"].startswith("its cluster restarts it; ")
    assert over_slurm.row(job)["state"] == "pending"
    over_slurm.run("cancel", str(job))
    assert over_slurm.until_ended(job)[0]["state"] == "cancelled"
