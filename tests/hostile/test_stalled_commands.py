"""A user stalls the commands that act for this user; jobs of other users start meanwhile."""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.multi_user_site import (
    SUPERVISE,
    MultiUserSite,
    running_site,
    site_over_gridengine,
    site_over_slurm,
)
from tests.harness.accounts import A, B
from tests.harness.gridengine import Cell
from tests.harness.slurm import SlurmSite

pytestmark = pytest.mark.root

# The stalled command gets no answer for this long: far longer than another user's job takes.
STALL = 50  # seconds
PATIENCE = f"timeout = {STALL}\ncall_timeout = {4 * STALL}\n"


@pytest.fixture(scope="module")
def over_slurm(common_folder: Path, slurm_site: SlurmSite) -> Iterator[MultiUserSite]:
    folder = common_folder / "stalled-slurm"
    with site_over_slurm(folder, slurm_site["beta"], PATIENCE) as site:
        yield site


@pytest.fixture
def over_gridengine(common_folder: Path, gridengine_cell: Cell) -> Iterator[MultiUserSite]:
    folder = common_folder / "stalled-gridengine"
    with site_over_gridengine(folder, gridengine_cell, PATIENCE) as site:
        yield site


@pytest.fixture
def impatient(common_folder: Path, gridengine_cell: Cell) -> Iterator[MultiUserSite]:
    """A site over Grid Engine that soon kills a command that hangs."""
    folder = common_folder / "impatient-gridengine"
    with site_over_gridengine(folder, gridengine_cell, "timeout = 3\n") as site:
        yield site


@pytest.fixture(scope="module")
def local(common_folder: Path) -> Iterator[MultiUserSite]:
    table = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 4\npoll_interval = 0.2\n'
    folder = common_folder / "stalled-local"
    with running_site(folder, table, f"[cluster.left]\n{SUPERVISE}") as site:
        yield site


def make_fifo(path: Path) -> None:
    os.mkfifo(path)
    owner = pwd.getpwnam(A)
    os.chown(path, owner.pw_uid, owner.pw_gid)


def check_stall(site: MultiUserSite, stalled: int, end_stall: Callable[[], None], end: str) -> None:
    """`b`'s jobs run while a dispatch of `a` hangs; the late answer to it is accepted."""
    a, b = site.by(A), site.by(B)
    a.until(lambda: a.row(stalled)["state"] == "dispatching")
    first = b.submit("-t", "5", "-o", "/dev/null", "--wrap", "true")
    assert b.until_ended(first)[0]["state"] == "completed"
    running = b.submit("-t", "5", "-o", "/dev/null", "--wrap", "sleep 600")
    b.until(lambda: b.row(running)["state"] == "running")
    b.run("cancel", str(running))  # withdrawals and the ends of jobs are still processed
    assert b.until_ended(running)[0]["state"] == "cancelled"
    assert a.row(stalled)["state"] == "dispatching", a.run("story", str(stalled)).stdout
    assert "no answer" not in a.run("story", str(stalled)).stdout
    end_stall()
    [row] = a.until_ended(stalled)
    assert row["state"] == end, a.run("story", str(stalled)).stdout


def test_a_command_that_waits_for_a_file_on_slurm(over_slurm: MultiUserSite) -> None:
    a = over_slurm.by(A)
    fifo = over_slurm.folder / A / "fifo"
    make_fifo(fifo)
    options = ("--native", f"beta:--bbf={fifo}", "-t", "5", "-o", "/dev/null")
    stalled = a.submit(*options, "--wrap", "true")

    def end_stall() -> None:
        with fifo.open("w"):  # an empty file, which is refused
            pass

    check_stall(over_slurm, stalled, end_stall, "rejected")


@pytest.mark.slow("boots a site over Grid Engine; four jobs run while a command hangs")
def test_a_command_that_waits_for_a_file_on_gridengine(over_gridengine: MultiUserSite) -> None:
    """qsub reads default options from the directory in which it is started."""
    a = over_gridengine.by(A)
    fifo = over_gridengine.folder / A / ".sge_request"
    make_fifo(fifo)
    runs = fifo.parent / "runs"
    stalled = a.submit("-t", "5", "-o", "/dev/null", "--wrap", f"echo once >> {runs}")

    def end_stall() -> None:
        with fifo.open("w"):
            fifo.unlink()

    check_stall(over_gridengine, stalled, end_stall, "completed")
    assert runs.read_text() == "once\n"


@pytest.mark.slow("a command hangs until its time limit, and listings prove that it did nothing")
def test_a_killed_command_is_repeated_only_after_proof(impatient: MultiUserSite) -> None:
    """A killed submission is uncertain until a listing proves that it never arrived."""
    a = impatient.by(A)
    fifo, runs = impatient.folder / A / ".sge_request", impatient.folder / A / "runs"
    make_fifo(fifo)
    job = a.submit("-t", "5", "-o", "/dev/null", "--wrap", f"echo once >> {runs}")
    a.until(lambda: "no answer" in a.run("story", str(job)).stdout)
    fifo.unlink()
    [row] = a.until_ended(job)
    story = a.run("story", str(job)).stdout
    assert row["state"] == "completed", story
    assert runs.read_text() == "once\n", story
    assert "proves that it never reached the manager" in story


def supervisors_of(account: str) -> list[int]:
    """Return the fork servers of an account."""
    uid, pids = pwd.getpwnam(account).pw_uid, []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (
                folder.stat().st_uid == uid
                and b"supervisor.py" in (folder / "cmdline").read_bytes()
            ):
                pids.append(int(folder.name))
        except OSError:
            continue
    return pids


def test_a_stopped_supervisor_on_local(local: MultiUserSite) -> None:
    a, b = local.by(A), local.by(B)
    options = ("-t", "5", "-o", "/dev/null", "--wrap")
    running = a.submit(*options, "sleep 600")
    a.until(lambda: a.row(running)["state"] == "running")
    stopped = supervisors_of(A)
    assert stopped
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        stalled = [a.submit(*options, "true") for _ in range(2)]
        a.run("cancel", str(running))
        jobs = [b.submit(*options, "true") for _ in range(3)]
        assert {row["state"] for row in b.until_ended(*jobs)} == {"completed"}
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    a.until_ended(running, *stalled)
