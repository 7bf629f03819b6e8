"""A live site is upgraded or rolled back while jobs run: none is lost or run twice.

The daemon of one release runs jobs on a real cluster and is stopped or killed. The daemon of the
other release starts with the same configuration, database and folders, and finishes these jobs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from metasched.db.schema import REVISION
from tests.conftest import require
from tests.e2e.conftest import ENDED, Site
from tests.e2e.two_releases import LICENCE, LOCAL, Jobs, UpgradedSite, lines
from tests.harness.daemons import BootError
from tests.harness.gridengine import Cell
from tests.harness.gridengine import missing as gridengine_missing
from tests.harness.next_release import NEXT_REVISION, NextRelease
from tests.harness.slurm import ClusterSpec, SlurmCluster, SlurmSite
from tests.harness.slurm import missing as slurm_missing

UPSILON = ClusterSpec("upsilon", "u", nodes=3, cpus=4)
ENTRY_POINTS = """
import json, metasched, sys
from importlib.metadata import entry_points
adapters = [e.load().__module__ for e in entry_points(group="metasched.adapters")]
print(json.dumps([metasched.__file__, *(sys.modules[name].__file__ for name in adapters)]))
"""


@dataclass(frozen=True)
class Manager:
    """A cluster to be taken over.

    Six processors are in use at the upgrade; a job of `waiting_cpus` has to wait for some of
    them. `reserve` has the arguments of a reservation; it is empty if the manager supports none.
    `reservations` returns the names of the manager's reservations.
    """

    table: str
    waiting_cpus: int
    reserve: tuple[str, ...] = ()
    reservations: Callable[[], set[str]] = set


@pytest.fixture(scope="module")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A Slurm cluster of its own, since reservations are made in it."""
    if (reason := slurm_missing()) is not None:
        require("slurm", reason)
    with SlurmSite(tmp_path_factory.mktemp("upsilon"), [UPSILON]) as site:
        yield site["upsilon"]


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """A Grid Engine cell of its own, since reservations are made in it."""
    if (reason := gridengine_missing()) is not None:
        require("gridengine", reason)
    with Cell(tmp_path_factory.mktemp("upgraded")) as new_cell:
        yield new_cell


@pytest.fixture
def site(tmp_path: Path, next_release: NextRelease) -> Iterator[UpgradedSite]:
    new_site = UpgradedSite(tmp_path, next_release)
    try:
        yield new_site
    finally:
        new_site.close()


@pytest.fixture(params=["local", "slurm", "gridengine"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    claims = tmp_path / "claims"
    claims.mkdir(mode=0o700)
    extra = f'poll_interval = 0.5\nsettle = 1\nfence_dir = "{claims}"\n'
    if request.param == "local":
        yield Manager(LOCAL, waiting_cpus=4)
    elif request.param == "slurm":
        cluster: SlurmCluster = request.getfixturevalue("slurm_cluster")
        table = cluster.table(extra)

        def reservations() -> set[str]:
            text = cluster.run("scontrol", "--oneliner", "show", "reservation")
            return set(re.findall(r"ReservationName=(\S+)", text))

        yield Manager(table, 8, ("--nodes", "--size", "1"), reservations)
        cluster.empty()
        for name in reservations():
            with contextlib.suppress(BootError):  # it has just ended
                cluster.run("scontrol", "delete", f"ReservationName={name}")
    else:
        cell: Cell = request.getfixturevalue("cell")
        table = cell.table(cell.python(tmp_path / "python"), extra)

        def advance_reservations() -> dict[str, str]:
            text = cell.run("qrstat", "-xml", "-u", "*")
            return dict(re.findall(r"<id>(\d+)</id>\s*<name>([^<]*)</name>", text))

        def names() -> set[str]:
            return set(advance_reservations().values())

        yield Manager(table, 4, ("--size", "2"), names)
        cell.empty()
        for id in advance_reservations():
            cell.run("qrdel", id)


def reservation(site: Site, id: int) -> dict[str, Any]:
    [row] = [r for r in site.json("reservations", "--all") if r["reservation"] == id]
    assert isinstance(row, dict)
    return row


def licence(site: Site) -> dict[str, Any]:
    [row] = site.json("licences")
    assert isinstance(row, dict)
    return row


def test_the_next_release_runs_its_own_modules_and_entry_points(
    site: UpgradedSite, next_release: NextRelease
) -> None:
    done = subprocess.run(
        [next_release.command[0], "-c", ENTRY_POINTS],
        env=next_release.environment(site.environment),
        cwd=site.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    packages = json.loads(done.stdout)
    assert packages
    assert {Path(file).parts[: len(next_release.folder.parts)] for file in packages} == {
        next_release.folder.parts
    }


def on_terminal(site: UpgradedSite, answer: str) -> tuple[int, str]:
    """Take the database back on a terminal, with this answer; return exit code and output."""
    terminal, of_command = os.openpty()
    with subprocess.Popen(
        [*site.next_release.command, "db", "downgrade", "--to", REVISION],
        env=site.next_release.environment(site.environment),
        cwd=site.folder,
        stdin=of_command,
        stdout=of_command,
        stderr=of_command,
    ) as process:
        os.close(of_command)
        os.write(terminal, f"{answer}\n".encode())
        output = b""
        with contextlib.suppress(OSError):  # the command has ended
            while part := os.read(terminal, 1 << 16):
                output += part
    os.close(terminal)
    return process.returncode, output.decode()


@pytest.mark.slow("makes the next release, and starts it for each of twelve commands")
def test_the_database_goes_up_and_back_by_command(site: UpgradedSite) -> None:
    site.configure(LOCAL)
    site.start()
    held = site.submit("--hold", "--wrap", "true")
    site.stop()
    site.upgraded = True
    announced = " ".join(site.run("serve", "--check").stdout.split())
    assert f"has schema {REVISION}; the next start upgrades it to {NEXT_REVISION}" in announced
    assert "run `metasched db upgrade`" in site.error("db", "check", code=1)
    upgraded = site.json("db", "upgrade")
    assert (upgraded["from"], upgraded["to"]) == (REVISION, NEXT_REVISION)
    downgrade = ("db", "downgrade", "--to")
    for answer in ((), ("--yes",)):  # nobody is told to agree to what cannot be done
        assert f"name one of t0001, {REVISION}" in site.error(*downgrade, "0015", *answer, code=2)
    assert "add --yes" in site.error(*downgrade, REVISION, code=2)
    code, output = on_terminal(site, "n")
    assert code == 1
    assert output.rstrip().endswith("nothing was changed")
    assert "remark" in output
    assert "(whole table)" in output
    assert site.json("db", "upgrade")["from"] == NEXT_REVISION
    code, output = on_terminal(site, "y")
    assert code == 0
    assert f"to {REVISION}" in output
    site.upgraded = False
    site.start()
    assert site.row(held)["state"] == "held"


# each manager once: how the daemon ends is no matter of the manager
@pytest.mark.slow("two daemons serve jobs of seconds, one after the other")
@pytest.mark.parametrize(
    ("manager", "number"),
    [("local", signal.SIGTERM), ("slurm", signal.SIGKILL), ("gridengine", signal.SIGTERM)],
    indirect=["manager"],
)
def test_jobs_outlive_the_upgrade_and_run_exactly_once(
    site: UpgradedSite, manager: Manager, number: signal.Signals
) -> None:
    site.configure(LICENCE + manager.table)
    site.start()
    jobs = Jobs(site)
    reserved: dict[str, Any] = {}
    if manager.reserve:
        reserved = site.json("reserve", *manager.reserve, "--start", "+20s", "--duration", "1h")
        assert reserved["state"] == "bound"
        inside = jobs.submit("inside", 9, "--reservation", str(reserved["reservation"]), until="go")

    before = jobs.submit("before", 3)
    site.until_ended(before)
    running = jobs.submit("running", 5, until="go")
    unobserved = jobs.submit("unobserved", 6, until="end")
    licensed = jobs.submit("licensed", 7, "-L", "solver:2", until="go")
    cancelled = site.submit("-t", "10", "--wrap", "sleep 600")
    array = jobs.submit("array", 10, "--array=1-4%2", until="go", tasks=(1, 2, 3, 4))
    for job in (running, unobserved, licensed, cancelled):
        site.until(lambda job=job: site.row(job)["state"] == "running")  # type: ignore[misc]
    site.until(lambda: jobs.states(array)["running", ""] == 2)
    dependent = jobs.submit("dependent", 0, "-d", f"afterany:{array}")
    on_failure = jobs.submit("failure", 0, "-d", f"afternotok:{running}")
    unlicensed = jobs.submit("unlicensed", 8, "-L", "solver:1")
    held = jobs.submit("held", 4, "--hold")
    waiting = jobs.submit("waiting", 2, "-n", str(manager.waiting_cpus))
    site.until(lambda: site.row(waiting)["state"] == "pending")
    assert jobs.states(array)["queued", "limit_array"] == 2
    for job, state in (
        (dependent, ("queued", "dependency")),
        (on_failure, ("queued", "dependency")),
        (unlicensed, ("queued", "licence_busy")),
        (held, ("held", "held")),
    ):
        assert jobs.states(job) == {state: 1}
    assert (licence(site)["ours"], licence(site)["free"]) == (2, 0)
    open_jobs = dict.fromkeys(job for job, _ in jobs.exit_codes)
    stories = {job: jobs.story(job) for job in open_jobs}
    promised = manager.reservations()
    site.until(lambda: site.run("output", str(running)).stdout == "hello\n")

    # submissions and cancellations do not reach the manager before the daemon ends
    for worker in psutil.Process(site.pid).children():
        worker.suspend()
    undelivered = jobs.submit("undelivered", 20, "--array=0-7", tasks=tuple(range(8)))
    site.run("cancel", str(cancelled))
    site.until(lambda: jobs.states(undelivered)["dispatching", ""] == 8)
    assert site.row(cancelled)["state"] == "running"
    assert site.stop(number) == (0 if number is signal.SIGTERM else -signal.SIGKILL)
    (site.folder / "end").touch()
    site.until(lambda: "unobserved" in lines(jobs.ended))
    site.upgrade()

    assert site.until_ended(cancelled)[0]["state"] == "cancelled"
    [row] = site.until_ended(unobserved)
    assert (row["state"], row["exit_code"]) == ("failed", 6)
    assert site.row(running)["state"] == "running"
    assert jobs.states(unlicensed) == {("queued", "licence_busy"): 1}
    assert jobs.states(dependent) == {("queued", "dependency"): 1}
    assert jobs.states(array)["queued", "limit_array"] == 2
    assert jobs.states(held) == {("held", "held"): 1}
    assert (licence(site)["ours"], licence(site)["free"]) == (2, 0)
    if reserved:
        upgraded = reservation(site, reserved["reservation"])
        assert upgraded["state"] in ("bound", "active")
        unchanged = ("reservation", "cluster", "start", "end", "size", "nodes")
        assert [upgraded[key] for key in unchanged] == [reserved[key] for key in unchanged]
        assert manager.reservations() == promised != set()
        site.until(lambda: site.row(inside)["state"] == "running")
        assert reservation(site, reserved["reservation"])["state"] == "active"

    site.run("release", str(held))
    (site.folder / "go").touch()
    rows = site.until_ended(*open_jobs, undelivered)
    assert {(row["job"], row["task"]): row["exit_code"] for row in rows} == jobs.exit_codes
    assert Counter(lines(jobs.started)) == Counter(jobs.names)
    assert Counter(lines(jobs.ended)) == Counter(jobs.names)
    for job in (*open_jobs, undelivered):
        story = jobs.story(job)
        earlier = stories.get(job, [])
        assert story[: len(earlier)] == earlier
        ends = Counter(line["task"] for line in story if line["to"] in ENDED and line["event"])
        assert ends == {index: 1 for id, index in jobs.exit_codes if id == job}
        assert len(site.run("story", str(job)).stdout.splitlines()) == len(story)
    assert site.run("output", str(running)).stdout == "hello\n"
    assert (licence(site)["ours"], licence(site)["free"]) == (0, 2)
    # commands of this release, which a host may still have, print the same
    for command in (("licences",), ("story", str(array))):
        text = site.run_former(*command, "--json").stdout
        assert json.loads(text) == site.json(*command)
    assert json.loads(site.run_former("status", "--all", "--json").stdout) == site.json(
        "status", "--all"
    )
    if reserved:
        site.run("reservation", "cancel", str(reserved["reservation"]))
        site.until(lambda: manager.reservations() == set())
    assert {row["ok"] for row in site.json("db", "check")} == {True}
    assert site.stop() == 0


@pytest.mark.slow("two daemons serve jobs of seconds, one after the other")
def test_jobs_outlive_a_rollback_and_run_exactly_once(site: UpgradedSite, manager: Manager) -> None:
    site.configure(LICENCE + manager.table)
    site.upgrade()
    jobs = Jobs(site)
    before = jobs.submit("before", 3)
    site.until_ended(before)
    running = jobs.submit("running", 5, until="go")
    unobserved = jobs.submit("unobserved", 6, until="end")
    licensed = jobs.submit("licensed", 7, "-L", "solver:2", until="go")
    array = jobs.submit("array", 10, "--array=1-4%2", until="go", tasks=(1, 2, 3, 4))
    for job in (running, unobserved, licensed):
        site.until(lambda job=job: site.row(job)["state"] == "running")  # type: ignore[misc]
    site.until(lambda: jobs.states(array)["running", ""] == 2)
    dependent = jobs.submit("dependent", 0, "-d", f"afterany:{array}")
    unlicensed = jobs.submit("unlicensed", 8, "-L", "solver:1")
    held = jobs.submit("held", 4, "--hold")
    waiting = jobs.submit("waiting", 2, "-n", str(manager.waiting_cpus))
    site.until(lambda: site.row(waiting)["state"] == "pending")

    downgrade = ("db", "downgrade", "--to", REVISION)
    for answer in ((), ("--yes",)):
        assert "is active on" in site.error(*downgrade, *answer, code=1)
    assert site.stop(signal.SIGKILL) == -signal.SIGKILL
    (site.folder / "end").touch()
    site.until(lambda: "unobserved" in lines(jobs.ended))
    site.roll_back()

    [row] = site.until_ended(unobserved)
    assert (row["state"], row["exit_code"]) == ("failed", 6)
    assert site.row(running)["state"] == "running"
    assert jobs.states(unlicensed) == {("queued", "licence_busy"): 1}
    assert (licence(site)["ours"], licence(site)["free"]) == (2, 0)
    site.run("release", str(held))
    (site.folder / "go").touch()
    queued = (array, dependent, unlicensed, held, waiting)
    rows = site.until_ended(before, running, unobserved, licensed, *queued)
    assert {(row["job"], row["task"]): row["exit_code"] for row in rows} == jobs.exit_codes
    assert Counter(lines(jobs.started)) == Counter(jobs.names)
    assert Counter(lines(jobs.ended)) == Counter(jobs.names)
    assert {row["ok"] for row in site.json("db", "check")} == {True}
    assert site.stop() == 0
