"""Clusters that are drained, stop answering or shrink, or whose worker dies."""

from __future__ import annotations

import signal
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import Site
from tests.harness.slurm import SlurmSite


def cluster(site: Site, name: str) -> dict[str, Any]:
    [row] = [row for row in site.cluster_rows() if row["cluster"] == name]
    assert isinstance(row, dict)
    return row


@pytest.mark.slow("kills and starts a daemon whose clusters are full and drained")
def test_a_drained_cluster_is_emptied_and_stays_drained_over_a_restart(running: Site) -> None:
    jobs = [running.submit("--wrap", "sleep 300", "-n", n) for n in ("8", "4")]
    running.until(lambda: all(running.row(job)["state"] == "running" for job in jobs))
    waiting = running.submit("--wrap", "true", "-n", "8")
    running.until(lambda: running.row(waiting)["state"] == "pending")
    row = running.json("cluster", "drain", "left", "--reason", "new kernel")
    assert (row["state"].partition(" by ")[0], row["drained"]["reason"]) == (
        "drained",
        "new kernel",
    )
    assert "new kernel" in running.run("clusters").stdout
    running.until(lambda: running.row(waiting)["reason"] == "cluster_drained")
    running.stop(signal.SIGKILL)
    running.start("drained")
    assert cluster(running, "left")["drained"]["by"] == row["drained"]["by"] != ""
    assert running.row(waiting)["state"] == "queued"
    running.until(lambda: running.row(jobs[0])["state"] == "running")
    small = running.submit("--wrap", "true", "-n", "1")
    assert running.row(small)["cluster"] == "right"
    running.run("cancel", *map(str, jobs))
    running.until_ended(small, *jobs)
    assert "up" in running.run("cluster", "resume", "left").stdout
    [ended] = running.until_ended(waiting)
    assert (ended["state"], ended["cluster"]) == ("completed", "left")
    history = [event["cause"] for event in running.json("story", str(waiting))]
    assert any(cause.startswith("recalled from left: drained by ") for cause in history)
    running.stop()
    running.replayed()


def test_what_waits_stays_if_asked_and_bad_input_changes_nothing(running: Site) -> None:
    full = running.submit("--wrap", "sleep 300", "-n", "8")
    running.until(lambda: running.row(full)["state"] == "running")
    waiting = running.submit("--wrap", "true", "-n", "8")
    running.until(lambda: running.row(waiting)["state"] == "pending")
    assert "left, right" in running.error("cluster", "drain", "middle", code=5)
    assert "reason" in running.error("cluster", "drain", "left", "--reason", "a\nb", code=2)
    assert "NAME" in running.error("cluster", "drain", code=2)
    assert cluster(running, "left")["drained"] is None
    running.run("cluster", "drain", "left", "--keep-pending")
    assert running.row(waiting)["state"] == "pending"
    running.run("cancel", str(full))
    assert running.until_ended(waiting)[0]["cluster"] == "left"


def test_a_worker_that_dies_repeatedly_is_started_less_often_and_logged(
    running: Site,
) -> None:
    def dies() -> Any:
        for worker in psutil.Process(running.pid).children():
            worker.kill()
        worker = cluster(running, "left")["worker"]
        return worker if worker["failures"] >= 3 else None

    worker = running.until(dies)
    assert "its worker died of signal 9" in worker["words"]
    assert "times in a row" in worker["words"]
    assert worker["since"] < worker["next_try"]
    job = running.submit("--wrap", "true")
    assert running.until_ended(job)[0]["state"] == "completed"
    running.until(lambda: cluster(running, "left")["breaker"]["state"] == "closed")


@pytest.mark.slow("three jobs wait on one Slurm cluster, are taken back and run on another")
def test_drained_slurm_gives_back_what_waits_and_the_other_cluster_runs_it(
    over_slurm: Site, slurm_site: SlurmSite
) -> None:
    full = over_slurm.submit("--wrap", "sleep 600", "-n", "64", "--cluster", "alpha", "-t", "20")
    over_slurm.until(lambda: over_slurm.row(full)["state"] == "running")
    mark = over_slurm.folder / "ran"
    waiting = [
        over_slurm.submit("--wrap", f"echo {n} >> '{mark}'", "-n", "20", "--hold", "-t", "5")
        for n in range(3)
    ]
    over_slurm.run("cluster", "drain", "beta")
    over_slurm.run("release", *map(str, waiting))
    over_slurm.until(lambda: all(over_slurm.row(j)["state"] == "pending" for j in waiting))
    over_slurm.run("cluster", "resume", "beta")
    over_slurm.run("cluster", "drain", "alpha", "--reason", "new kernel")
    rows = over_slurm.until_ended(*waiting)
    assert {(row["state"], row["cluster"]) for row in rows} == {("completed", "beta")}
    assert sorted(mark.read_text().split()) == ["0", "1", "2"]
    assert over_slurm.row(full)["state"] == "running"
    assert slurm_site["alpha"].run("squeue", "-h", "-t", "PD").strip() == ""
    over_slurm.stop()
    over_slurm.replayed()


@pytest.mark.slow("waits until calls to a stopped controller fail, and until it is back")
def test_a_stopped_controller_opens_the_breaker_and_its_jobs_come_back(
    over_slurm: Site, slurm_site: SlurmSite
) -> None:
    job = over_slurm.submit("--wrap", "sleep 600", "--cluster", "alpha", "-t", "20")
    over_slurm.until(lambda: over_slurm.row(job)["state"] == "running")
    slurm_site["alpha"].stop_controller()
    try:
        over_slurm.until(lambda: over_slurm.row(job)["state"] == "unknown")
        row = cluster(over_slurm, "alpha")
        assert row["state"].startswith("down: ")
        assert row["breaker"]["failures"] >= 2
        assert row["breaker"]["state"] in ("open", "half_open")
        assert row["breaker"]["words"] in row["state"]
        assert row["breaker"]["since"] < row["breaker"]["next_try"]
        other = over_slurm.submit("--wrap", "true", "-t", "5")
        assert over_slurm.until_ended(other)[0]["cluster"] == "beta"
    finally:
        slurm_site["alpha"].start_controller()
    over_slurm.until(lambda: over_slurm.row(job)["state"] == "running")
    assert cluster(over_slurm, "alpha")["breaker"] == {
        "state": "closed",
        "failures": 0,
        "since": None,
        "next_try": None,
        "words": "",
    }
    over_slurm.run("cancel", str(job))
    over_slurm.until_ended(job)


def test_a_partition_that_shrinks_sends_away_what_it_can_never_run(
    over_slurm: Site, slurm_site: SlurmSite
) -> None:
    def limit(time: str) -> None:
        slurm_site["alpha"].run("scontrol", "update", "PartitionName=main", f"MaxTime={time}")

    full = over_slurm.submit("--wrap", "sleep 600", "-n", "64", "--cluster", "alpha", "-t", "10")
    over_slurm.until(lambda: over_slurm.row(full)["state"] == "running")
    waiting = over_slurm.submit("--wrap", "true", "-n", "2", "-t", "120", "--cluster", "alpha")
    over_slurm.until(lambda: over_slurm.row(waiting)["state"] == "pending")
    try:
        limit("1:00:00")
        over_slurm.until(lambda: over_slurm.row(waiting)["reason"] == "no_cluster_fits")
        assert over_slurm.row(waiting)["state"] == "queued"
    finally:
        limit("1-00:00:00")
    over_slurm.run("cancel", str(full))
    assert over_slurm.until_ended(waiting)[0]["state"] == "completed"
