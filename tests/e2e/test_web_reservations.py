"""The page of reservations over a real Slurm cluster: its chart, and its acts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.conftest import require
from tests.e2e.conftest import Site, reserve
from tests.e2e.reservable_clusters import BOOTS, ReservableCluster
from tests.e2e.test_web import SCRIPT, Visitor, secret_of, tables
from tests.e2e.test_web_acts import Session, check
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
    window = ("--size", "2", "--start", "+1h", "--duration", "10m")
    try:
        site.start()
        job = site.submit("-J", SCRIPT, "-t", "9", "--wrap", "sleep 600")
        site.until(lambda: site.row(job)["state"] == "running")
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
        check_reserving(Session(site, visitor, cookie))
        check_series(Session(site, visitor, cookie))
    finally:
        site.close()
        reserving.tidy()


def check_reserving(session: Session) -> None:
    """A window is shown, then reserved; the form sent twice reserves once."""
    terms = {"size": "2", "duration": "10m", "start": "+3h"}
    page = session.get("/web/acts/reserve", **terms)
    assert (page.status, "These windows are free now" in page.text) == (200, True)
    before = session.site.json("reservations")
    action, fields = session.form("/web/acts/reserve", **terms)
    assert session.site.json("reservations") == before
    assert "2 processors on" in session.told(session.post(action, fields))
    [made] = [row for row in session.site.json("reservations") if row not in before]
    assert (made["size"], made["start"]) == (2, fields["start"])
    again = session.post(action, fields)
    assert (again.status, "has changed since this page" in again.text) == (409, True)
    for terms, problem in (
        ({"size": "2"}, "no duration"),
        ({"size": "x", "duration": "1h"}, "Size"),
        ({"size": "2", "duration": "1h", "start": "+1h", "deadline": "+9h"}, "End at the latest"),
        ({"size": "2", "duration": "1h", "owner": "no-such-account"}, "no account"),
        ({"size": "2", "duration": "1h", "cluster": "x" * 256}, "over 255 characters"),
        ({"size": "2000", "duration": "1h"}, ""),
    ):
        refused = session.get("/web/acts/reserve", **terms)
        assert refused.status in (403, 404, 422), terms
        assert problem in refused.text, terms
    assert session.post(action, {**fields, "start": "", "form_token": "x"}).status == 403
    assert session.post(action, {**fields, "start": ""}).status == 422


def check_series(session: Session) -> None:
    """A series ends with its open reservations; an occurrence may be skipped alone."""
    site = session.site
    day = date.today() + timedelta(days=2)
    until = day.isoformat()
    terms = {"size": "1", "duration": "10m", "every": "daily 08:00", "until": until}
    planned = session.get("/web/acts/reserve", **terms)
    assert "<bdi>daily 08:00</bdi>" in planned.text
    assert not [row for row in site.json("calendar") if row["owner"]]
    action, fields = session.form("/web/acts/reserve", **terms)
    assert " occurrences from " in session.told(session.post(action, fields))
    assert session.post(action, fields).status == 409  # sent twice
    for more, problem in (
        ({"until": ""}, "no last day"),
        ({"every": ""}, "a last day without a rule"),
        ({"every": "daily at tea"}, ""),
        ({"start": "+1h"}, "beside a rule"),
        ({"until": "2001-01-01"}, "the last day has passed"),
        ({"accounts": "aero", "users": "nobody"}, "accounts beside users"),
    ):
        refused = session.get("/web/acts/reserve", **(terms | more))
        assert (refused.status, problem in refused.text) == (422, True), more
    [entry] = [row["entry"] for row in site.json("calendar") if row["owner"]]

    def occurrences() -> list[dict[str, Any]]:
        rows = site.json("reservations", "--all")
        return [row for row in rows if row["series"] == entry and row["closed"] is None]

    site.until(lambda: len(occurrences()) >= 2)
    skipped, *others = occurrences()
    path = "/web/acts/cancel-reservation"
    page = session.get(path, reservation=skipped["reservation"])
    assert f"an occurrence of series {entry}; the others stay" in page.text
    session.act(path, {"reservation": skipped["reservation"]})
    assert [row["reservation"] for row in occurrences()] == [row["reservation"] for row in others]
    action, fields = session.form("/web/acts/cancel-series", series=entry)
    told = session.told(session.post(action, fields))
    assert told == f"Series {entry} is cancelled, with {len(others)} open reservations."
    assert occurrences() == []
    assert session.post(action, fields).status == 404
    assert session.get("/web/acts/cancel-series", series=entry).status == 404
