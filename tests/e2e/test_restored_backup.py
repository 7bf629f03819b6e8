"""A backup is restored after more has happened: on local, Slurm with and without records, and
Grid Engine. What the backup has of a manager is followed by its old tags, and nothing runs twice.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.e2e.conftest import ONE_LOCAL, Site
from tests.harness.slurm import ClusterSpec, SlurmSite, accounting_missing, missing


@dataclass
class Manager:
    """A cluster behind a site, empty at first."""

    table: str  # in metasched.toml
    unit: int  # a quarter of its processors
    has_forgotten: Callable[[], bool]  # whether it lists no ended job any more; True: it lists all
    inside: Sequence[str] = ()  # prefix of commands that reach it


def slurm(
    folder: Path, request: pytest.FixtureRequest, *settings: str, accounting: bool = False
) -> Manager:
    if (reason := missing() or (accounting_missing() if accounting else None)) is not None:
        require("slurm", reason)
    spec = ClusterSpec("gamma", "g", nodes=1, cpus=4, settings=settings)
    booted = SlurmSite(folder / "slurm", [spec], accounting=accounting)
    booted.__enter__()
    request.addfinalizer(booted.close)
    gamma = booted["gamma"]
    table = (
        f'[[cluster]]\nname = "gamma"\nadapter = "slurm"\nconfig = "{gamma.conf}"\n'
        "poll_interval = 0.5\nsettle = 1\n"
    )
    states = {"PENDING", "RUNNING"} if settings else set[str]()
    return Manager(
        table,
        1,
        lambda: (
            not states or set(gamma.run("squeue", "-h", "-t", "all", "-o", "%T").split()) <= states
        ),
        gamma.inside,
    )


def local(folder: Path, request: pytest.FixtureRequest) -> Manager:
    return Manager(ONE_LOCAL, 1, lambda: True)


def slurm_without_records(folder: Path, request: pytest.FixtureRequest) -> Manager:
    return slurm(folder, request)


def slurm_with_records(folder: Path, request: pytest.FixtureRequest) -> Manager:
    records = f"JobCompLoc={folder / 'completions'}"
    return slurm(folder, request, "MinJobAge=2", "JobCompType=jobcomp/filetxt", records)


def slurm_with_slurmdbd(folder: Path, request: pytest.FixtureRequest) -> Manager:
    return slurm(folder, request, "MinJobAge=2", accounting=True)


def gridengine(folder: Path, request: pytest.FixtureRequest) -> Manager:
    cell = request.getfixturevalue("gridengine_cell")
    cell.empty()
    table = cell.table(cell.python(folder / "python"), "poll_interval = 0.5\nsettle = 1\n")
    return Manager(table, 2, lambda: True)


class Jobs:
    """Jobs that record each start under their names, and end when the test says so."""

    def __init__(self, site: Site, unit: int) -> None:
        self.site, self.unit = site, unit
        self.ran = site.folder / "ran"
        self.ids: dict[str, int] = {}

    def submit(self, name: str, units: int, exit_code: int = 0, *options: str) -> int:
        script = (
            f"echo {name} >> '{self.ran}'; "
            f"until [ -e '{self.site.folder}/end-{name}' ]; do sleep 0.1; done; exit {exit_code}"
        )
        cpus = str(units * self.unit)
        arguments = ("-n", cpus, "-t", "10", "-o", "/dev/null", *options, "--wrap", script)
        self.ids[name] = self.site.submit(*arguments)
        return self.ids[name]

    def row(self, name: str) -> Any:
        return self.site.row(self.ids[name])

    def end(self, *names: str) -> None:
        for name in names:
            (self.site.folder / f"end-{name}").touch()

    def until(self, **states: str) -> None:
        """Wait until each job is in its state."""
        expected = {self.ids[name]: state for name, state in states.items()}

        def states_now() -> dict[int, str]:
            return {row["job"]: row["state"] for row in self.site.rows(*expected)}

        self.site.until(lambda: states_now() == expected)


@pytest.mark.slow("boots the manager; ten jobs run in turn, and its memory of some ends")
@pytest.mark.parametrize(
    "boot",
    [local, slurm_without_records, slurm_with_records, slurm_with_slurmdbd, gridengine],
    ids=lambda b: b.__name__,
)
def test_what_a_backup_has_of_a_manager_is_followed_by_its_old_tags(
    site: Site,
    boot: Callable[[Path, pytest.FixtureRequest], Manager],
    request: pytest.FixtureRequest,
) -> None:
    manager = boot(site.folder, request)
    site.before = manager.inside
    site.configure(manager.table)
    site.start()
    former = site.instance
    jobs = Jobs(site, manager.unit)
    jobs.submit("fails", 1, 3)
    jobs.submit("runs", 1, 4)
    jobs.submit("blocks", 2)
    jobs.until(fails="running", runs="running", blocks="running")
    jobs.submit("starts", 2, 5)
    jobs.submit("cancelled", 4)
    after = f"afterany:{jobs.ids['fails']}"
    jobs.submit("later", 1, 0, "--dependency", after)
    jobs.until(starts="pending", cancelled="pending", later="queued")
    backup = site.folder / "backup.db"
    site.run("db", "backup", str(backup))

    # the backup knows nothing of this
    site.run("cancel", str(jobs.ids["cancelled"]))
    jobs.end("blocks")
    jobs.until(blocks="completed", cancelled="cancelled", starts="running")
    jobs.end("fails")
    jobs.until(fails="failed", later="running")
    unknown = jobs.submit("unknown", 4)
    jobs.until(unknown="pending")
    native_ids = {name: jobs.row(name)["native_id"] for name in ("fails", "runs", "starts")}
    site.run("cancel", str(unknown))
    jobs.end("later", "unknown")
    jobs.until(later="completed", unknown="cancelled")
    site.until(manager.has_forgotten)
    site.stop()
    site.restore(backup)
    site.start()

    # its tag names a dispatch that the backup lacks: it is settled if the manager lists its end
    forgets = boot in (slurm_with_records, slurm_with_slurmdbd)
    held = ["later", "cancelled"] if forgets else ["cancelled"]
    jobs.until(
        fails="failed",
        blocks="completed",
        runs="running",
        starts="running",
        later="held" if forgets else "completed",
        cancelled="held",
    )
    assert jobs.row("fails")["exit_code"] == 3
    assert {name: jobs.row(name)["native_id"] for name in native_ids} == native_ids
    assert site.instance != former
    [advice] = [
        finding
        for finding in json.loads(site.run("doctor", "--json", code=1).stdout)
        if finding["check"] == "restored backup"
    ]
    assert f"{len(held)} task{'s are' if forgets else ' is'} held" in advice["text"]
    assert f"ms-{former}-JOB-*" in advice["mend"]
    assert "restored from a backup" in site.run("explain", str(jobs.ids["cancelled"])).stdout

    # no new job has the id of a job that the backup does not know: the mark beside it does
    assert jobs.submit("new", 1, 6) > unknown
    jobs.until(new="running")
    jobs.end("runs", "starts", "new")
    jobs.until(runs="failed", starts="failed", new="failed")
    assert [jobs.row(name)["exit_code"] for name in ("runs", "starts", "new")] == [4, 5, 6]
    site.run("cancel", *(str(jobs.ids[name]) for name in held))
    assert Counter(jobs.ran.read_text().split()) == Counter(
        ["fails", "runs", "blocks", "starts", "later", "new"]
    )
    assert site.stop() == 0
    site.replayed()


def test_a_backup_that_is_restored_twice_gets_two_names(site: Site) -> None:
    site.start()
    backup = site.folder / "backup.db"
    site.run("db", "backup", str(backup))
    names = [site.instance]
    for _ in range(2):
        site.stop()
        site.restore(backup)
        site.start()
        names.append(site.instance)
    assert len(set(names)) == 3
    site.stop()
    site.start()
    assert site.instance == names[-1]
    with sqlite3.connect(site.database) as database:
        [(stored,)] = database.execute("SELECT COUNT(*) FROM instance")
    database.close()
    assert stored == 2
