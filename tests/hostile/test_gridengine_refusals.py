"""Grid Engine refuses one user's jobs: the user reads why, and jobs of other users go on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.multi_user_site import MultiUserSite, site_over_gridengine
from tests.harness.accounts import A, B
from tests.harness.gridengine import Cell

pytestmark = pytest.mark.root

LIMIT = 2
OPTIONS = ("-t", "5", "-o", "/dev/null")
PROJECT = "name physics\noticket 0\nfshare 0\nacl allowed\nxacl NONE\n"


@pytest.fixture(scope="module")
def cell(gridengine_cell: Cell) -> Iterator[Cell]:
    """The cell with access lists `denied` (account a) and `allowed` (account b)."""
    gridengine_cell.run("qconf", "-au", A, "denied")
    gridengine_cell.run("qconf", "-au", B, "allowed")
    try:
        yield gridengine_cell
    finally:
        gridengine_cell.run("qconf", "-dul", "denied,allowed")


@pytest.fixture(scope="module")
def site(common_folder: Path, cell: Cell) -> Iterator[MultiUserSite]:
    folder, accounts = common_folder / "refusing-gridengine", 'map.account = { "*" = "*" }\n'
    with site_over_gridengine(folder, cell, accounts) as running:
        yield running


@pytest.fixture
def closed_queue(cell: Cell) -> Iterator[None]:
    """The only queue is closed to account a."""
    cell.run("qconf", "-rattr", "queue", "xuser_lists", "denied", "all.q")
    yield
    cell.run("qconf", "-rattr", "queue", "xuser_lists", "NONE", "all.q")


@pytest.fixture
def project(cell: Cell) -> Iterator[str]:
    """A project that account b may use, and account a may not."""
    cell.load("-Aprj", PROJECT)
    yield "physics"
    cell.run("qconf", "-dprj", "physics")


@pytest.fixture
def limited(cell: Cell) -> Iterator[None]:
    """Each user may have `LIMIT` jobs in the cell."""
    whole = cell.run("qconf", "-sconf")
    cell.load("-Mconf", re.sub(r"(?m)^max_u_jobs .*", f"max_u_jobs {LIMIT}", whole), name="global")
    yield
    cell.load("-Mconf", whole, name="global")


def check_refused(site: MultiUserSite, job: int, cause: str) -> None:
    """The job was rejected for `cause`; its user reads that, and jobs of `b` go on."""
    a, b = site.by(A), site.by(B)
    [row] = a.until_ended(job)
    assert row["state"] == "rejected"
    assert cause in a.run("story", str(job)).stdout
    assert b.until_ended(b.submit(*OPTIONS, "--wrap", "true"))[0]["state"] == "completed"


@pytest.mark.usefixtures("closed_queue")
def test_an_access_list_of_a_queue_refuses_its_users_alone(site: MultiUserSite) -> None:
    check_refused(site, site.by(A).submit(*OPTIONS, "--wrap", "true"), "no suitable queues")


def test_a_project_refuses_those_who_may_not_use_it(site: MultiUserSite, project: str) -> None:
    a, b = site.by(A), site.by(B)
    in_project = (*OPTIONS, "--account", project, "--wrap", "true")
    check_refused(site, a.submit(*in_project), project)
    assert a.until_ended(a.submit(*OPTIONS, "--wrap", "true"))[0]["state"] == "completed"
    assert b.until_ended(b.submit(*in_project))[0]["state"] == "completed"


@pytest.mark.usefixtures("limited")
def test_a_limit_of_jobs_per_user_closes_the_cell_to_that_user_alone(site: MultiUserSite) -> None:
    a, b = site.by(A), site.by(B)
    go = site.folder / A / "go"
    wait = f"until test -e {go}; do sleep 0.1; done"
    jobs = [a.submit(*OPTIONS, "--wrap", wait) for _ in range(LIMIT + 2)]

    def limited_jobs() -> list[int]:
        """Return the jobs that wait for the limit, if they all do."""
        rows = {job: a.row(job) for job in jobs}
        waiting = [job for job, row in rows.items() if row["reason"] == "limit_manager"]
        running = [job for job, row in rows.items() if row["state"] == "running"]
        return waiting if (len(waiting), len(running)) == (2, LIMIT) else []

    last = a.until(limited_jobs)[-1]
    assert f"only {LIMIT} jobs are allowed per user" in a.json("explain", str(last))["text"]
    assert b.until_ended(b.submit(*OPTIONS, "--wrap", "true"))[0]["state"] == "completed"
    go.touch()
    go.chmod(0o644)
    assert {row["state"] for row in a.until_ended(*jobs)} == {"completed"}
