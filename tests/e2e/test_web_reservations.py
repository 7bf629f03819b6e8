"""The page of reservations over a real Slurm cluster: its chart, and the act that cancels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.conftest import require
from tests.e2e.conftest import Site, reserve
from tests.e2e.reservable_clusters import BOOTS, ReservableCluster
from tests.e2e.test_web import SCRIPT, Visitor, secret_of, tables
from tests.e2e.test_web_acts import check
from tests.harness import browser
from tests.harness.ports import free_port


@pytest.fixture(scope="module")
def reserving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReservableCluster]:
    with BOOTS["slurm-processors"](tmp_path_factory.mktemp("kept")) as cluster:
        yield cluster


def test_reservations_are_charted_and_cancelled(
    reserving: ReservableCluster, tmp_path: Path
) -> None:
    if (reason := browser.missing()) is not None:
        require("chromium", reason)
    site, visitor = Site(tmp_path), Visitor(free_port())
    site.configure(reserving.table(site.folder), tables(visitor.port))
    try:
        site.start()
        job = site.submit("-J", SCRIPT, "-t", "9", "--wrap", "sleep 600")
        site.until(lambda: site.row(job)["state"] == "running")
        window = ("--size", "2", "--start", "+1h", "--duration", "10m")
        first, second = (reserve(site, *window)["reservation"] for _ in range(2))
        with browser.chromium() as running:
            page = running.new_page(base_url=f"http://{visitor.authority}")
            page.goto(site.run("web").stdout.strip())
            page.get_by_role("button", name="Sign in as").click()
            page.get_by_role("link", name="Reservations").click()
            expect(page.locator("svg .reserved")).to_have_count(2)
            titles = page.locator("svg title").all_text_contents()
            assert titles[0].startswith(f"job {job} of ")
            assert SCRIPT in titles[0]
            assert "2 processors for 10:00" in titles[1]
            check(page, "reservations")
            page.get_by_role("link", name=f"Cancel reservation {first}").click()
            check(page, "act-cancel-reservation")
            assert site.reservation(first)["state"] == "bound"
            page.get_by_role("button", name=f"Cancel reservation {first}").click()
            expect(page.get_by_role("status")).to_contain_text(f"Reservation {first} is ")
        assert site.reservation(first)["state"] == "cancelled"
        assert site.reservation(second)["state"] == "bound"
        cookie = visitor.sign_in(secret_of(site.run("web").stdout))
        late = visitor.get(f"/web/acts/cancel-reservation?reservation={first}", Cookie=cookie)
        assert (late.status, "cancelled already" in late.text) == (409, True)
    finally:
        site.close()
        reserving.tidy()
