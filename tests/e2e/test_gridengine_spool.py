"""A real qmaster that is restarted, also with an older spool: nothing is lost or told wrongly."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tests.e2e.conftest import ONE_LOCAL, Site
from tests.harness import gridengine
from tests.harness.gridengine import Cell
from tests.harness.payload_records import PayloadRecords

pytestmark = pytest.mark.slow("boots a cell, restarts its qmaster and awaits several listings")

SLOTS = 2
PENDING = 7
# the command of a daemon that remembers few ended tasks
FORGETFUL = f"""
import sys
from metasched.core import state
from metasched.db import recovery
state.MAX_ENDED_TASKS = recovery.MAX_ENDED_TASKS = {PENDING}
from metasched.cli import main
sys.argv = sys.argv[1:]
sys.exit(main())
"""


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    """A cell of each test: an execution host remembers jobs that its qmaster has lost."""
    if reason := gridengine.missing():
        require("gridengine", reason)
    with Cell(tmp_path / "cell", slots=SLOTS) as cell:
        yield cell


class Restored:
    """A site over the cell and the local cluster `here`."""

    def __init__(self, site: Site, cell: Cell, *, fence: bool = False) -> None:
        self.site, self.cell = site, cell
        self.records = PayloadRecords(site.folder)
        self.spool: Path = site.folder / "spool"
        self.last_job = 0  # highest number of a job in the cell
        extra = "poll_interval = 0.5\nsettle = 1\n"
        if fence:
            claims = site.folder / "claims"
            claims.mkdir()
            extra += f'fence_dir = "{claims}"\n'
        site.configure(ONE_LOCAL + cell.table(cell.python(site.folder / "python"), extra))
        site.start()

    def submit(self, number: int) -> list[int]:
        """Submit jobs to the cell that run until `records.let_end`."""
        return [
            self.site.submit("--cluster", "cell", "-t", "10", "--wrap", self.records.payload)
            for _ in range(number)
        ]

    def fill(self) -> tuple[list[int], list[int]]:
        """Return jobs that run, and jobs that wait behind them."""
        running = self.submit(SLOTS)
        self.until("running", running)
        pending = self.submit(PENDING)
        self.until("pending", pending)
        self.last_job = max(int(self.native_id(job)) for job in pending)
        return running, pending

    def states(self, jobs: list[int]) -> set[str]:
        return {self.site.row(job)["state"] for job in jobs}

    def until(self, state: str, jobs: list[int]) -> None:
        self.site.until(lambda: self.states(jobs) == {state})

    def native_id(self, job: int) -> str:
        native_id: str = self.site.row(job)["native_id"]
        return native_id

    def waiting(self) -> list[str]:
        """Return the numbers of the jobs that wait in the cell."""
        return re.findall(r"(?m)^ +(\d+) .* h?qw ", self.cell.run("qstat", "-u", "*"))

    def await_listings(self) -> None:
        """Run a job of 4 s on `here`: meanwhile the cell is listed several times."""
        self.site.until_ended(self.site.submit("--cluster", "here", "--wrap", "sleep 4"))

    def await_proof(self) -> None:
        """Wait until listings have proved that a job that waited after the restart is gone.

        So they would prove it of jobs that they have lacked for longer.
        """
        self.restart_execd()
        running = self.submit(SLOTS)
        self.until("running", running)
        [deleted] = self.submit(1)
        self.until("pending", [deleted])
        self.cell.run("qdel", self.native_id(deleted))
        self.until("cancelled", [deleted])

    def put_back(self) -> None:
        """Kill the qmaster, and start it again with the copy of its spool."""
        self.cell.kill_qmaster()
        self.cell.put_back_spool(self.spool, last_job=self.last_job)
        self.cell.start_qmaster()

    def restart_execd(self) -> None:
        """Let the only host report to a new qmaster at once: by itself it may take minutes."""
        self.cell.kill_execd()
        self.cell.start_execd()

    def replayed(self) -> None:
        assert self.site.stop() == 0
        self.site.replayed()


@pytest.fixture
def test(cell: Cell, site: Site) -> Restored:
    return Restored(site, cell)


@pytest.fixture
def fenced(cell: Cell, site: Site) -> Restored:
    """The site where payloads claim their attempts."""
    return Restored(site, cell, fence=True)


def test_jobs_that_an_older_spool_lacks_are_unknown(test: Restored) -> None:
    """Some run: their host goes on, and the qmaster knows nothing of them. Which is not proved."""
    test.cell.copy_spool(test.spool)
    running, pending = test.fill()
    test.put_back()
    test.await_proof()
    assert test.states(running + pending) == {"unknown"}
    test.replayed()


def test_jobs_that_were_lost_while_the_daemon_was_down_are_unknown(test: Restored) -> None:
    test.cell.copy_spool(test.spool)
    _, pending = test.fill()
    assert test.site.stop() == 0
    test.put_back()
    test.site.start()
    test.await_proof()
    assert test.states(pending) == {"unknown"}
    test.replayed()


def test_claims_let_lost_jobs_run_again(fenced: Restored) -> None:
    """Those that wait are sent again; those that run have made their claims, and go on."""
    fenced.cell.copy_spool(fenced.spool)
    running, pending = fenced.fill()
    fenced.put_back()
    fenced.restart_execd()
    fenced.site.until(lambda: [fenced.records.runs(job) for job in pending[:1]] == [["cell"]])
    fenced.records.let_end()
    rows = fenced.site.until_ended(*pending)
    assert {row["state"] for row in rows} == {"completed"}
    assert [fenced.records.runs(job) for job in running + pending] == [["cell"]] * 9
    fenced.replayed()


def test_a_killed_qmaster_with_its_present_spool_loses_nothing(test: Restored) -> None:
    running, pending = test.fill()
    native_ids = [test.native_id(job) for job in running + pending]
    test.cell.kill_qmaster()
    test.cell.start_qmaster()
    test.restart_execd()
    test.await_listings()
    test.until("running", running)
    test.until("pending", pending)
    test.records.let_end()
    rows = test.site.until_ended(*running, *pending)
    assert {row["state"] for row in rows} == {"completed"}
    assert [row["native_id"] for row in rows] == native_ids
    assert [test.records.runs(job) for job in running + pending] == [["cell"]] * 9
    test.replayed()


def test_a_pending_job_that_its_owner_deletes_is_cancelled(test: Restored) -> None:
    """Also after a restart, if a listing has shown it since."""
    _, pending = test.fill()
    test.cell.run("qdel", test.native_id(pending[0]))
    test.until("cancelled", pending[:1])
    test.cell.kill_qmaster()
    test.cell.start_qmaster()
    test.await_listings()
    test.until("pending", pending[1:])
    test.cell.run("qdel", test.native_id(pending[1]))
    test.until("cancelled", pending[1:2])
    assert test.states(pending[2:]) == {"pending"}
    test.replayed()


def test_accounting_knows_jobs_that_an_older_spool_lacks(test: Restored) -> None:
    """They ended while the daemon was down."""
    test.cell.copy_spool(test.spool)
    running, pending = test.fill()
    test.site.stop()
    test.records.let_end()
    test.site.until(lambda: test.cell.run("qstat", "-u", "*") == "")
    test.put_back()
    test.site.start()
    rows = test.site.until_ended(*running, *pending)
    assert {row["state"] for row in rows} == {"completed"}
    test.replayed()


def test_accounting_knows_the_end_of_a_job_that_an_older_spool_lists_as_waiting(
    test: Restored,
) -> None:
    """It does not run again: its end is told, and the job in the spool is withdrawn."""
    running, pending = test.fill()
    test.cell.copy_spool(test.spool)
    test.site.stop()
    test.records.let_end()
    test.site.until(lambda: test.cell.run("qstat", "-u", "*") == "")
    test.put_back()
    test.site.start()
    rows = test.site.until_ended(*pending)
    assert {row["state"] for row in rows} == {"completed"}
    test.site.until(lambda: not set(test.waiting()) & {test.native_id(job) for job in pending})
    test.restart_execd()
    test.await_listings()
    assert [test.records.runs(job) for job in running + pending] == [["cell"]] * 9
    test.replayed()


def test_a_job_that_ended_long_ago_is_withdrawn_from_an_older_spool(test: Restored) -> None:
    """The daemon remembers the last ended tasks alone, and finds others in its database."""
    test.site.stop()
    test.site.before = (sys.executable, "-c", FORGETFUL)
    test.site.start()
    running, pending = test.fill()
    test.cell.copy_spool(test.spool)
    test.records.let_end()
    rows = test.site.until_ended(*running, *pending)
    assert {row["state"] for row in rows} == {"completed"}
    test.site.until_ended(
        test.site.submit("--cluster", "here", "--array", f"1-{PENDING}", "--wrap", "true")
    )
    test.put_back()
    test.site.until(lambda: not set(test.waiting()) & {test.native_id(job) for job in pending})
    test.restart_execd()
    test.await_listings()
    assert [test.records.runs(job) for job in running + pending] == [["cell"]] * 9
    test.replayed()
