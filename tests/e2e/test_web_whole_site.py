"""The whole site in one browser: two Slurm clusters, a Grid Engine cell, 10,000 jobs.

All run in the network namespace of the cell, the browser too.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import require
from tests.e2e.multi_user_site import MultiUserSite, gridengine_tables, slurm_tables
from tests.e2e.test_web import tables
from tests.harness import browser, gridengine, slurm
from tests.harness.accounts import OPERATOR, A, B
from tests.harness.ports import free_port

pytestmark = pytest.mark.root
BACKLOG, ARRAYS = 10_000, 10
LASTS = ("-t", "30", "-o", "/dev/null", "--wrap", "sleep 600")
VIEWS = ("", "queue", "licences", "licences/matlab", "reservations", "policy", "events", "use")


@pytest.fixture
def whole(common_folder: Path) -> Iterator[tuple[MultiUserSite, gridengine.Cell, str]]:
    """A site in site mode; its pages have the address."""
    for reason in (browser.missing(), slurm.missing(), gridengine.missing()):
        if reason is not None:
            require("chromium", reason)
    folder, port = common_folder / "whole", free_port()
    folder.mkdir(mode=0o711)
    with gridengine.Cell(folder / "g") as cell:
        # Slurm resolves no address in a namespace without an address besides those of loopback
        address = ("ip", "address", "add", "10.99.0.1/32", "dev", "lo")
        subprocess.run([*cell.inside, *address], check=True)
        with slurm.SlurmSite(folder / "m", namespace=cell.inside) as managers:
            site = MultiUserSite(folder / "s", inside=cell.inside)
            each = [*(slurm_tables(cluster) for cluster in managers), gridengine_tables(cell)]
            site.set_up(
                tables(port) + "".join(cluster for cluster, _ in each),
                "".join(programs for _, programs in each),
            )
            try:
                site.start()
                yield site, cell, f"http://127.0.0.1:{port}"
            finally:
                site.close()


def signed_in(running: Browser, site: MultiUserSite, address: str, account: str) -> Page:
    page = running.new_context(base_url=address).new_page()
    page.goto(site.by(account).run("web").stdout.strip())
    page.get_by_role("button", name="Sign in as").click()
    expect(page.get_by_role("heading", name="Site", exact=True)).to_be_visible()
    return page


def has_state(site: MultiUserSite, job: int, state: str) -> bool:
    return bool(site.row(job)["state"] == state)


def answered(page: Page, path: str) -> int:
    response = page.goto(path)
    assert response is not None
    return response.status


@pytest.mark.slow("three browsers open each page over three clusters and 10,000 tasks")
def test_every_view_and_acts_of_all_over_real_clusters(
    whole: tuple[MultiUserSite, gridengine.Cell, str], tmp_path: Path
) -> None:
    site, cell, address = whole
    owner = site.by(A)
    names = ("alpha", "beta", cell.name)
    jobs = [owner.submit("-J", f"on-{name}", "--cluster", name, *LASTS) for name in names]
    held = owner.submit("-J", "mine", "--hold", *LASTS)
    for number in range(ARRAYS):
        size = f"1-{BACKLOG // ARRAYS}"
        owner.submit("-J", f"backlog-{number}", "--array", size, "--begin", "+9h", *LASTS)
    for job in jobs:
        owner.until(partial(has_state, owner, job, "running"))
    program = tmp_path / "chromium"
    program.write_text(f'#!/bin/sh\nexec {" ".join(cell.inside)} {shutil.which("chromium")} "$@"\n')
    program.chmod(0o755)
    with browser.chromium(program) as running:
        mine, others, all_of_them = (
            signed_in(running, site, address, account) for account in (A, B, OPERATOR)
        )
        for page in (mine, others, all_of_them):
            for view in VIEWS:
                assert answered(page, f"/web/{view}") == 200, view
        for job in jobs:
            assert answered(mine, f"/web/jobs/{job}") == 200
            assert answered(others, f"/web/jobs/{job}") == 404
            assert answered(all_of_them, f"/web/jobs/{job}") == 200
        mine.goto("/web/queue")
        expect(mine.locator("tbody")).to_contain_text("on-alpha")
        # a stranger may not, an owner may
        assert answered(others, f"/web/acts/jobs/cancel?job={jobs[0]}") in (403, 404)
        for act, job, state in (("cancel", jobs[0], "cancelled"), ("release", held, "running")):
            mine.goto(f"/web/acts/jobs/{act}?job={job}")
            mine.locator("main form[action^='/web/acts'] button").first.click()
            expect(mine.get_by_role("status")).to_contain_text(f"job {job}", ignore_case=True)
            owner.until(partial(has_state, owner, job, state))
        assert answered(mine, "/web/acts/drain?cluster=beta") == 403
        # the page of one follows the act of another, and outlives the daemon
        others.goto("/web/")
        all_of_them.goto("/web/acts/drain?cluster=beta")
        all_of_them.get_by_role("button", name="Drain cluster beta").click()
        expect(others.locator("#conditions")).to_contain_text("drained by", timeout=60_000)
        site.stop(signal.SIGKILL)
        expect(others.get_by_role("button", name="Not live")).to_be_visible(timeout=60_000)
        site.start("drained")
        all_of_them.goto("/web/acts/resume?cluster=beta")  # a session outlives the daemon, too
        all_of_them.get_by_role("button", name="Resume cluster beta").click()
        beta = others.locator("#clusters tbody tr").filter(has_text="beta")
        expect(beta).to_contain_text("up", timeout=120_000)
    assert [owner.row(job)["state"] for job in jobs] == ["cancelled", "running", "running"]
    owner.run("cancel", *map(str, (*jobs, held)))
