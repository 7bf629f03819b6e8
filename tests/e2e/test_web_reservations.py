"""The page of reservations over a real Slurm cluster: its chart, and its acts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.conftest import require
from tests.e2e.conftest import Site, reserve
from tests.e2e.multi_user_site import MultiUserSite, gridengine_tables, running_site
from tests.e2e.reservable_clusters import BOOTS, ReservableCluster
from tests.e2e.test_web import SCRIPT, Reply, Visitor, secret_of, tables
from tests.e2e.test_web_acts import Session, check
from tests.harness import browser
from tests.harness.accounts import KEEPER, OPERATOR, A, B
from tests.harness.gridengine import Cell
from tests.harness.http_calls import UnixConnection
from tests.harness.ports import free_port


@pytest.fixture(scope="module")
def reserving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReservableCluster]:
    with BOOTS["slurm-processors"](tmp_path_factory.mktemp("kept")) as cluster:
        yield cluster


@pytest.mark.slow("boots a Slurm cluster, and a browser that goes through the pages")
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


@dataclass
class Proxied(Visitor):
    """A browser behind a reverse proxy, whose socket leads into the network of a cell."""

    socket: Path = Path()
    user: str = ""

    def connect(self) -> HTTPConnection:
        return UnixConnection(self.socket, timeout=60)

    def send(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Reply:
        return super().send(method, path, body, {"X-Remote-User": self.user} | headers)


@pytest.mark.root
def test_strangers_end_neither_reservations_nor_series(
    gridengine_cell: Cell, common_folder: Path
) -> None:
    cluster, programs = gridengine_tables(gridengine_cell)
    pages = '[web]\nproxy_socket = "state/web.sock"\nproxy_user = "root"\n'
    folder, inside = common_folder / "web-reservations", gridengine_cell.inside

    def session(site: MultiUserSite, account: str) -> Session:
        visitor = Proxied(80, "site.example", folder / "state/web.sock", account)
        cookie = visitor.get("/web/").headers["set-cookie"].partition(";")[0]
        return Session(site.by(account), visitor, cookie)

    gridengine_cell.run("qconf", "-au", KEEPER, "arusers")
    try:
        with running_site(folder, pages + cluster, programs, inside=inside) as site:
            owner, stranger, operator = (session(site, who) for who in (A, B, OPERATOR))
            terms = {"size": "1", "duration": "10m", "every": "daily 08:00", "until": "+2d"}
            series = int(owner.act("/web/acts/reserve", dict(terms)).split()[1])
            window = ("reserve", "--size", "1", "--start", "+3h", "--duration", "10m")
            reservation = owner.site.json(*window)["reservation"]
            token = stranger.form("/web/acts/reserve", **terms)[1]["form_token"]
            for act, ended in (
                ("cancel-series", {"series": series}),
                ("cancel-reservation", {"reservation": reservation}),
            ):
                path = f"/web/acts/{act}"
                action, fields = operator.form(path, **ended)
                assert stranger.get(path, **ended).status == 404
                assert stranger.post(action, fields | {"form_token": token}).status == 404
                assert A not in stranger.get("/web/reservations").text
                assert "cancelled" in operator.told(operator.post(action, fields))
            assert owner.site.json("calendar") == []
            assert owner.site.reservation(reservation)["state"] == "cancelled"
    finally:
        gridengine_cell.run("qconf", "-du", KEEPER, "arusers")
        gridengine_cell.empty()
