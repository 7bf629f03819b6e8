"""Jobs that a real Grid Engine restarts, or whose host fails: none is lost, none runs twice."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.conftest import require
from tests.e2e.conftest import ONE_LOCAL, Site
from tests.harness import gridengine
from tests.harness.gridengine import Cell
from tests.harness.payload_records import PayloadRecords

RESCHEDULE_AFTER = "00:00:03"  # until jobs of a host that does not answer are restarted


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """A cell of this module: its execd is killed."""
    if reason := gridengine.missing():
        require("gridengine", reason)
    with Cell(tmp_path_factory.mktemp("cell"), slots=4) as cell:
        yield cell


class Restarts:
    """A site over the cell and the local cluster `here`, each of 4 processors."""

    def __init__(self, site: Site, cell: Cell, *, fence: bool = False) -> None:
        self.site, self.cell = site, cell
        self.records = PayloadRecords(site.folder)
        cell.empty()
        extra = "poll_interval = 0.5\nsettle = 1\n"
        if fence:
            claims = site.folder / "claims"
            claims.mkdir()
            extra += f'fence_dir = "{claims}"\n'
        site.configure(ONE_LOCAL + cell.table(cell.python(site.folder / "python"), extra))
        site.start()

    def run_on_cell(self, *options: str) -> int:
        """Return a job of 4 processors that has begun on the cell; `here` is then free."""
        sleep = ("--wrap", "sleep 300")
        filler = self.site.submit("--cluster", "here", "-n", "4", "-t", "10", *sleep)
        self.until_running(filler)
        job = self.site.submit("-n", "4", "-t", "10", *options, "--wrap", self.records.payload)
        self.until_running(job)
        self.site.until(lambda: self.records.runs(job) == ["cell"])
        self.site.run("cancel", str(filler))
        self.site.until_ended(filler)
        return job

    def until_running(self, job: int) -> None:
        self.site.until(lambda: self.site.row(job)["state"] == "running")

    def native_id(self, job: int) -> str:
        native_id: str = self.site.row(job)["native_id"]
        return native_id

    def await_listings(self) -> None:
        """Run a job of 3 s on `here`: meanwhile the cell is listed several times."""
        self.site.until_ended(self.site.submit("--cluster", "here", "--wrap", "sleep 3"))

    def events(self, job: int) -> list[str]:
        return [line["event"] for line in self.site.json("story", str(job))]

    def replayed(self) -> None:
        assert self.site.stop() == 0
        self.site.replayed()


@pytest.fixture
def test(site: Site, cell: Cell) -> Iterator[Restarts]:
    yield Restarts(site, cell)
    cell.empty()


@pytest.fixture
def fenced(site: Site, cell: Cell) -> Iterator[Restarts]:
    """The site where payloads claim their attempts."""
    yield Restarts(site, cell, fence=True)
    cell.empty()


@contextlib.contextmanager
def without_execd(cell: Cell, *, payloads: bool) -> Iterator[None]:
    """Kill the execd of the only host, with its jobs or without them; start it again at the end."""
    cell.kill_execd()
    if payloads:
        root = str(cell.root)
        for process in psutil.process_iter(["name", "environ"]):
            environ = process.info["environ"] or {}
            own = environ.get("SGE_ROOT") == root
            if own and ("METASCHED_TAG" in environ or process.name() == "sge_shepherd"):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
    try:
        yield
    finally:
        cell.start_execd()


@contextlib.contextmanager
def stopped_execd(cell: Cell) -> Iterator[None]:
    """Stop the execd of the only host: its jobs go on, and it ends none."""
    os.kill(cell.execd, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(cell.execd, signal.SIGCONT)


@pytest.mark.slow("boots a cell; a job runs twice in it, and a daemon is started again")
@pytest.mark.parametrize("kill", [False, True])
def test_a_job_that_is_rerun_by_force_runs_again_in_its_cell(test: Restarts, kill: bool) -> None:
    """Though it could run on another cluster: the cell does not show when the former run ended."""
    job = test.run_on_cell("--requeue", "--cluster", "cell,here")
    native = test.native_id(job)
    if kill:
        test.site.stop(signal.SIGKILL)
    test.cell.run("qmod", "-f", "-rj", native)
    if kill:
        test.site.start()
    test.site.until(lambda: len(test.records.runs(job)) >= 2)
    test.records.let_end()
    [row] = test.site.until_ended(job)
    assert (row["state"], row["native_id"]) == ("completed", native)
    assert test.records.runs(job) == ["cell", "cell"]
    assert test.events(job).count("restart") == 1
    assert test.cell.run("qstat", "-u", "*") == ""
    test.replayed()


@pytest.mark.slow("observes for three seconds that a job does not run again, then that it does")
def test_a_rerun_does_not_begin_while_the_former_run_lasts(test: Restarts, cell: Cell) -> None:
    job = test.run_on_cell("--requeue", "--cluster", "cell,here")
    with stopped_execd(cell):
        cell.run("qmod", "-f", "-rj", test.native_id(job))
        test.site.until(lambda: "restart" in test.events(job))
        test.await_listings()
        assert test.records.runs(job) == ["cell"]
        assert test.site.row(job)["state"] == "pending"
    test.site.until(lambda: test.records.runs(job) == ["cell", "cell"])
    test.records.let_end()
    [row] = test.site.until_ended(job)
    assert row["state"] == "completed"
    assert test.records.runs(job) == ["cell", "cell"]
    test.replayed()


def test_a_rerun_that_is_cancelled_is_unknown_while_its_former_run_may_last(
    test: Restarts, cell: Cell
) -> None:
    job = test.run_on_cell("--requeue", "--cluster", "cell,here")
    with stopped_execd(cell):
        cell.run("qmod", "-f", "-rj", test.native_id(job))
        test.site.until(lambda: "restart" in test.events(job))
        test.site.run("cancel", str(job))
        test.site.until(lambda: cell.run("qstat", "-u", "*") == "")
        test.site.until(lambda: test.site.row(job)["state"] != "pending")
        assert test.site.row(job)["state"] == "unknown"
    test.site.run("resolve", str(job), "lost")
    [row] = test.site.until_ended(job)
    assert row["state"] == "cancelled"
    assert test.records.runs(job) == ["cell"]
    test.replayed()


@pytest.mark.parametrize("requeue", ["--requeue", "--no-requeue"])
def test_a_job_is_not_rerun(test: Restarts, requeue: str) -> None:
    job = test.run_on_cell("--cluster", "cell,here", requeue)
    native = test.native_id(job)
    answer = test.cell.run("sh", "-c", f"qmod -rj {native} 2>&1 || true")
    assert "not restartable" in answer, answer
    test.records.let_end()
    [row] = test.site.until_ended(job)
    assert row["state"] == "completed"
    assert test.records.runs(job) == ["cell"]
    assert test.native_id(job) == native
    test.replayed()


@pytest.mark.slow("observes for three seconds that a job does not run again, then that it does")
def test_a_requeued_job_does_not_begin_while_its_former_run_lasts(
    test: Restarts, cell: Cell
) -> None:
    """Requeued by `metasched requeue`, which operators use in the place of `qmod -rj`."""
    job = test.run_on_cell("--cluster", "cell,here")
    with stopped_execd(cell):
        test.site.run("requeue", str(job))
        test.await_listings()
        assert test.records.runs(job) == ["cell"]
    test.site.until(lambda: len(test.records.runs(job)) == 2)
    test.records.let_end()
    [row] = test.site.until_ended(job)
    assert row["state"] == "completed"
    test.replayed()


def test_a_forced_rerun_is_an_attempt_of_its_own(test: Restarts) -> None:
    """Without a claim nothing keeps the payload from running again; it is followed."""
    job = test.run_on_cell("--cluster", "cell")
    native = test.native_id(job)
    test.cell.run("qmod", "-f", "-rj", native)
    test.site.until(lambda: test.records.runs(job) == ["cell", "cell"])
    test.records.let_end()
    [row] = test.site.until_ended(job)
    assert (row["state"], row["native_id"]) == ("completed", native)
    assert test.events(job).count("restart") == 1
    assert test.records.runs(job) == ["cell", "cell"]
    test.replayed()


def test_a_claim_keeps_a_job_from_a_forced_rerun(fenced: Restarts) -> None:
    job = fenced.run_on_cell("--cluster", "cell")
    fenced.cell.run("qmod", "-f", "-rj", fenced.native_id(job))
    [row] = fenced.site.until_ended(job)
    assert (row["state"], row["exit_code"]) == ("failed", 75)
    assert fenced.records.runs(job) == ["cell"]
    fenced.replayed()


@pytest.mark.slow("a daemon and an execd are started again")
def test_a_job_outlives_its_execd(test: Restarts, cell: Cell) -> None:
    job = test.run_on_cell("--requeue", "--cluster", "cell,here")
    native = test.native_id(job)
    with without_execd(cell, payloads=False):
        test.site.stop(signal.SIGKILL)
        test.site.launch()
        test.site.until(lambda: test.site.row(job)["state"] in ("running", "unknown"))
        test.records.let_end()
        test.site.until(lambda: "ended" in [line.event for line in test.records.lines])
    [row] = test.site.until_ended(job)
    assert (row["state"], row["native_id"]) == ("completed", native)
    assert test.records.runs(job) == ["cell"]
    test.replayed()


@pytest.mark.slow("a cell misses a host after 20 s; its execd is then started again")
def test_a_job_of_a_host_that_has_failed_runs_nowhere_until_somebody_decides(
    test: Restarts, cell: Cell
) -> None:
    """Also where `reschedule_unknown` is set, which affects no job of metasched."""
    configuration = cell.run("qconf", "-sconf")
    changed = re.sub(r"(?m)^(reschedule_unknown +).*", rf"\g<1>{RESCHEDULE_AFTER}", configuration)
    cell.load("-Mconf", changed, name="global")
    try:
        job = test.run_on_cell("--requeue", "--cluster", "cell,here")
        with without_execd(cell, payloads=True):
            test.site.until(lambda: not cell.hears_execd())
            test.await_listings()
            assert test.site.row(job)["state"] == "running"
        test.site.until(lambda: test.site.row(job)["state"] == "unknown")
        assert test.records.runs(job) == ["cell"]
        test.site.run("resolve", str(job), "lost")
        test.records.let_end()
        [row] = test.site.until_ended(job)
        assert row["state"] == "completed"
        assert test.records.runs(job) == ["cell", row["cluster"]]
        test.replayed()
    finally:
        cell.load("-Mconf", configuration, name="global")


@pytest.mark.slow("a cell misses a host after 20 s; its execd is then started again")
def test_an_operator_removes_a_requeued_job_of_a_host_that_is_gone(
    test: Restarts, cell: Cell
) -> None:
    job = test.run_on_cell("--cluster", "cell,here")
    with without_execd(cell, payloads=True):
        test.site.run("requeue", str(job))
        test.site.until(lambda: " dr " in cell.run("qstat", "-u", "*"))
        # until then `qdel -f` makes the qmaster signal the host, which may kill it (SGE 8.1.9)
        test.site.until(lambda: not cell.hears_execd())
        assert test.records.runs(job) == ["cell"]
        cell.run("qdel", "-f", test.native_id(job))
        test.records.let_end()
        [row] = test.site.until_ended(job)
        assert (row["state"], row["cluster"]) == ("completed", "here")
    assert test.records.runs(job) == ["cell", "here"]
    test.replayed()
