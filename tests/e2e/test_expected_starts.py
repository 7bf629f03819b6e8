"""The expected start of a job that waits, as its user is told."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from tests.e2e.conftest import ONE_LOCAL, Site
from tests.harness.gridengine import Cell
from tests.harness.slurm import SlurmSite


def test_status_and_explain_have_an_interval(site: Site) -> None:
    """Of 100 ended tasks none took more than a part of its limit; nor will the running job."""
    site.configure(f'{ONE_LOCAL}policy = "easy"\n')
    site.start()
    ended = site.submit("-n", "1", "--array", "1-100", "--time", "60", "--wrap", "true")
    site.until_ended(ended)
    first = site.submit("-n", "4", "--time", "60", "--wrap", "exec sleep 600")
    begun = datetime.fromisoformat(site.until(lambda: site.row(first)["started"]))
    second = site.submit("-n", "4", "--time", "5", "--wrap", "true")
    row = site.until(lambda: (row := site.row(second))["expected_late"] and row)
    early, median, late = (
        datetime.fromisoformat(row[key])
        for key in ("expected_early", "expected_start", "expected_late")
    )
    assert begun <= early <= median <= late
    # no known task has run for so long: any part of the limit of an hour
    assert (late - begun).total_seconds() > 600
    assert (late - begun).total_seconds() <= 3600 + 2
    explanation = site.json("explain", str(second))
    assert explanation["expected_early"] <= explanation["expected_start"]
    assert "with 80% probability between" in explanation["text"]
    request = ("submit", "--dry-run", "--json", "-n", "4", "--time", "5", "--deadline", "+305s")
    dry_run = site.run(*request, "--wrap", "true")  # behind the second
    assert json.loads(dry_run.stdout)["expected_early"]
    assert "can hardly be met" in dry_run.stderr
    site.run("cancel", str(first))
    [row] = site.until_ended(second)
    assert (row["expected_start"], row["expected_late"]) == (None, None)
    assert "not estimated" not in site.json("explain", str(second))["text"]


@pytest.mark.slow("a hundred tasks run first; then two jobs wait on a full cluster")
def test_jobs_of_others_do_not_hide_the_start_on_slurm(site: Site, slurm_site: SlurmSite) -> None:
    """One job of others runs for up to 30 min, another is pending before ours."""
    beta = slurm_site["beta"]
    beta.empty()
    wide = ONE_LOCAL.replace("cpus = 4", "cpus = 50")  # the known tasks end soon
    site.configure(wide + beta.table("poll_interval = 1\n"))
    site.start()
    beta.run("sbatch", "-t", "30", "-N3", "--exclusive", "--wrap", "sleep 600")
    options = ("-n", "1", "--array", "1-100", "--time", "60", "--cluster", "here")
    site.until_ended(site.submit(*options, "--wrap", "true"))
    beta.run("sbatch", "-t", "20", "-N3", "--exclusive", "--wrap", "sleep 600")
    begun = datetime.now(UTC)
    job = site.submit("-n", "24", "--time", "5", "--cluster", "beta", "--wrap", "true")
    row = site.until(lambda: (row := site.row(job))["expected_late"] and row)
    assert row["state"] == "pending"
    early, median, late = (
        datetime.fromisoformat(row[key])
        for key in ("expected_early", "expected_start", "expected_late")
    )
    assert early <= median <= late
    # no known task has run for so long: the job that runs ends at any part of its limit
    assert 600 < (late - begun).total_seconds() <= 3000 + 2
    beta.run("scancel", "--name=wrap")
    site.until_ended(job)


@pytest.mark.slow("a hundred tasks run first; then a cell is filled")
def test_jobs_of_others_do_not_hide_the_start_on_grid_engine(
    site: Site, gridengine_cell: Cell
) -> None:
    """A job of others fills the cell for up to 30 min, another is pending before ours."""
    gridengine_cell.empty()
    wide = ONE_LOCAL.replace("cpus = 4", "cpus = 50")  # the known tasks end soon
    python = gridengine_cell.python(site.folder / "python")
    site.configure(wide + gridengine_cell.table(python, "poll_interval = 1\nsettle = 1\n"))
    site.start()
    arguments = ("-n", "1", "--array", "1-100", "--time", "60", "--cluster", "here")
    site.until_ended(site.submit(*arguments, "--wrap", "true"))
    options = ("-terse", "-b", "y", "-pe", "smp", "8", "-o", "/dev/null", "-j", "y")
    others = []
    for seconds in ("1800", "1200"):
        command = ("qsub", *options, "-l", f"h_rt={seconds}", "sleep", "600")
        others.append(gridengine_cell.run(*command).strip())
    site.until(lambda: site.cluster_rows()[-1]["pending"] >= 1)
    begun = datetime.now(UTC)
    job = site.submit("-n", "8", "--time", "5", "--cluster", "cell", "--wrap", "true")
    row = site.until(lambda: (row := site.row(job))["expected_late"] and row)
    assert row["state"] == "pending"
    early, median, late = (
        datetime.fromisoformat(row[key])
        for key in ("expected_early", "expected_start", "expected_late")
    )
    assert early <= median <= late
    assert 600 < (late - begun).total_seconds() <= 3000 + 2
    gridengine_cell.run("qdel", *others)
    site.until_ended(job)


@pytest.mark.slow("a hundred tasks run first; then a cell is filled and a job overtakes another")
def test_a_grid_engine_cell_is_forecast_by_first_fit(site: Site, gridengine_cell: Cell) -> None:
    """Half of the cell is free, but the first pending job needs all of it.

    A cell lets a job that fits overtake it, whatever that delays. EASY would let it wait for both.
    """
    gridengine_cell.empty()
    wide = ONE_LOCAL.replace("cpus = 4", "cpus = 50")  # the known tasks end soon
    python = gridengine_cell.python(site.folder / "python")
    site.configure(wide + gridengine_cell.table(python, "poll_interval = 1\nsettle = 1\n"))
    site.start()
    arguments = ("-n", "1", "--array", "1-100", "--time", "60", "--cluster", "here")
    site.until_ended(site.submit(*arguments, "--wrap", "true"))
    options = ("-terse", "-b", "y", "-pe", "smp", "4", "-o", "/dev/null", "-j", "y")
    other = gridengine_cell.run("qsub", *options, "-l", "h_rt=1800", "sleep", "600").strip()
    site.until(lambda: site.cluster_rows()[-1]["used"] == 4)
    begun = datetime.now(UTC)
    head = site.submit("-n", "8", "--time", "20", "--cluster", "cell", "--wrap", "true")

    def seconds_until(moment: str) -> float:
        return (datetime.fromisoformat(moment) - begun).total_seconds()

    moment = site.until(lambda: site.row(head)["expected_start"])
    assert seconds_until(moment) > 600  # no known task has run for so long
    job = ("-n", "4", "--time", "50", "--cluster", "cell", "--wrap", "true")
    answer = json.loads(site.run("submit", "--dry-run", "--json", *job).stdout)
    assert seconds_until(answer["expected_start"]) < 600
    [row] = site.until_ended(site.submit(*job))  # and so it is
    assert row["state"] == "completed"
    assert site.row(head)["state"] == "pending"
    gridengine_cell.run("qdel", other)
    site.until_ended(head)


@pytest.mark.slow("a hundred tasks run first; the forecast of what follows is awaited")
def test_jobs_are_placed_where_they_are_expected_to_start_first(site: Site) -> None:
    """Right owes far more by limits; but its pending job will end as soon as all known ones did."""
    right = ONE_LOCAL.replace('"here"', '"right"')
    (site.folder / "policy.toml").write_text('load = "forecast"\npull = false\n')
    site.configure(f"{ONE_LOCAL}{right}", '[policy]\nfile = "policy.toml"\n')
    site.start()
    ended = site.submit("-n", "1", "--array", "1-100", "--time", "60", "--wrap", "true")
    site.until_ended(ended)
    held = [
        site.submit("-n", "4", "--time", minutes, "--cluster", cluster, "--wrap", "exec sleep 600")
        for cluster, minutes in (("here", "20"), ("right", "2"), ("right", "60"))
    ]
    asked = ("submit", "--json", "-n", "4", "--time", "5", "--wrap", "true")

    def chosen() -> bool:
        return bool(json.loads(site.run(*asked, "--dry-run").stdout)["cluster"] == "right")

    site.until(chosen)
    job = json.loads(site.run(*asked).stdout)["job"]
    assert site.until(lambda: site.row(job)["cluster"]) == "right"
    assert site.json("explain", str(job))["policy"]["load"] == "forecast"
    assert "by the forecast" in site.run("story", str(job)).stdout
    site.run("cancel", *map(str, (*held, job)))
    site.stop()
    site.run("db", "check")
