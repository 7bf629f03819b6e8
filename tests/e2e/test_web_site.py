"""Two Slurm clusters and a Grid Engine cell under one page, and two browsers that act at once.

With METASCHED_SCREENSHOTS it draws the pictures of docs/web.md: see `make pictures`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import product
from math import sin
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import create_engine

from metasched.db.daily_use import add
from metasched.db.licence_samples import store
from metasched.model.daily_use import UseKey, UseSums
from metasched.model.licence import LicenceSample
from tests.conftest import require
from tests.e2e.conftest import Site
from tests.e2e.test_web import Visitor, tables
from tests.harness import browser
from tests.harness.gridengine import Cell
from tests.harness.ports import free_port
from tests.harness.slurm import SlurmSite

POLLS = "poll_interval = 0.5\n"
RUNS = "sleep 600"
CLUSTERS = ("alpha", "beta", "cell")


def submit_jobs(site: Site) -> int:
    """Fill the clusters a little; return a job that waits for licences."""
    quiet = ("--chdir", "/tmp", "-o", "/dev/null", "-t", "30")
    for name, cpus, cluster in (
        *(("wing-mesh", "16", "alpha"), ("climate-7", "16", "alpha"), ("fluid", "8", "beta")),
        *(("genome", "2", "cell"), ("render", "1", "cell")),
    ):
        site.submit("-J", name, "-n", cpus, "--cluster", cluster, *quiet, "--wrap", RUNS)
    licensed = ("-L", "matlab:3", "--cluster", "alpha", *quiet, "--wrap", RUNS)
    holder = site.submit("-J", "crash-test", *licensed)
    site.until(lambda: site.row(holder)["state"] == "running")
    waiting = site.submit("-J", "crash-test-2", *licensed)
    site.submit(
        "-J", "sweep", "--array", "1-6", "-n", "8", "--cluster", "beta", *quiet, "--wrap", RUNS
    )
    site.submit("-J", "nightly", "--hold", *quiet, "--wrap", "true")
    site.until_ended(site.submit("-J", "failing", *quiet, "--wrap", "exit 3"))
    return waiting


def store_past(database: Path) -> None:
    """Store a month of use and a day of a licence, as if the daemon had counted them."""
    now = datetime.now().astimezone()
    uses = {}
    for ago in range(1, 29):
        day = now - timedelta(days=ago)
        for number, (user, cluster) in enumerate(product(("ada", "bob", "eve"), CLUSTERS)):
            if day.weekday() < 5 or number < 2:
                jobs = 3 + (ago * 7 + number * 5) % 11
                hours = jobs * (20 + 13 * sin(ago / 3 + number))
                key = UseKey(int(f"{day:%Y%m%d}"), cluster, user, "", "", "regular")
                uses[key] = UseSums(jobs=jobs, completed=jobs, cpu_allocated=3600 * hours)
    last = now.timestamp() // 600 * 600
    samples = []
    for ago in range(6, 140):
        leased, outside = round(3 + 2 * sin(ago / 12)), round(1.5 + 1.5 * sin(ago / 30))
        free, waiting = 8 - leased - outside, max(leased + outside - 6, 0) * 2
        samples.append(LicenceSample("ansys", last - 600 * ago, 8, leased, outside, free, waiting))
    engine = create_engine(f"sqlite:///{database}", connect_args={"timeout": 60})
    with engine.begin() as connection:
        add(connection, uses)
        store(connection, samples)
    engine.dispose()


def sign_in(page: Page, site: Site) -> None:
    page.goto(site.run("web").stdout.strip())
    page.get_by_role("button", name="Sign in as").click()
    expect(page.get_by_role("heading", name="Site", exact=True)).to_be_visible()


@pytest.mark.slow("boots two clusters and a cell; jobs run, and two browsers open pages")
def test_one_page_shows_all_clusters_to_two_browsers(
    slurm_site: SlurmSite, gridengine_cell: Cell, tmp_path: Path
) -> None:
    if (reason := browser.missing()) is not None:
        require("chromium", reason)
    site, visitor = Site(tmp_path), Visitor(free_port())
    cell = gridengine_cell.table(gridengine_cell.python(tmp_path / "python"), POLLS)
    clusters = "".join(cluster.table(POLLS) for cluster in slurm_site) + cell
    licence = '[[licence]]\nname = "ansys"\ntotal = 8\n'
    site.configure(clusters, tables(visitor.port).replace("total = 2", "total = 3") + licence)
    try:
        site.start()
        waiting = submit_jobs(site)
        store_past(site.database)
        with browser.chromium() as running:
            one, other = (
                running.new_page(
                    base_url=f"http://{visitor.authority}",
                    viewport={"width": 1280, "height": 720},
                )
                for _ in range(2)
            )
            for page in (one, other):
                sign_in(page, site)
            rows = one.locator("#clusters tbody tr")
            expect(rows).to_have_count(3)
            for name in ("alpha", "beta", gridengine_cell.name):
                expect(rows.filter(has_text=name)).to_contain_text("up")
            browser.draw(one, "site")
            for view in ("queue", f"jobs/{waiting}", "licences", "licences/ansys", "use"):
                one.goto(f"/web/{view}")
                if view != "licences":
                    browser.draw(one, view.replace("/ansys", "").partition("/")[0])
                one.set_viewport_size({"width": 2560, "height": 1440})
                assert one.evaluate("document.documentElement.scrollWidth") <= 2560, view
                one.set_viewport_size({"width": 1280, "height": 720})
            assert one.locator("svg.plot").count() == 1
            expect(one.locator(".keys")).to_contain_text("eve")
            # both look at the same page, and press its button
            for page in (one, other):
                page.goto("/web/acts/drain?cluster=beta")
            one.get_by_role("button", name="Drain cluster beta").click()
            expect(one.get_by_role("status")).to_contain_text("Cluster beta is drained by")
            other.get_by_role("button", name="Drain cluster beta").click()
            expect(other.locator("main")).to_contain_text("has changed since this page was opened")
            # what one does, the page of the other follows
            other.goto("/web/")
            expect(other.locator("#conditions")).to_contain_text("drained by")
            one.get_by_role("link", name="Resume beta").click()
            one.get_by_role("button", name="Resume cluster beta").click()
            beta = other.locator("#clusters tbody tr").filter(has_text="beta")
            expect(beta).to_contain_text("up", timeout=60_000)
    finally:
        site.close()
        for cluster in slurm_site:
            cluster.empty()
        gridengine_cell.empty()
