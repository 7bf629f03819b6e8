"""Acts by pages: what each says before and after, who may, and what other sites cannot do."""

from __future__ import annotations

import html
import pkgutil
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from fastapi.routing import APIRoute
from playwright.sync_api import Browser, Page, expect

from metasched import web
from metasched.web.job_acts import ACTS
from tests.conftest import require
from tests.e2e.conftest import Site, reserve
from tests.e2e.multi_user_site import MultiUserSite, running_site
from tests.e2e.test_web import LEFT, PROGRAMS, SCRIPT, Reply, Visitor, secret_of, tables
from tests.harness import browser
from tests.harness.accounts import OPERATOR, A, B
from tests.harness.http_calls import call
from tests.harness.ports import free_port

pytestmark = pytest.mark.root
TAKES_BOTH = f'{LEFT}takes = "both"\n'  # a local cluster without max_time takes jobs alone
LATER = ("--begin", "+2h", "-t", "9", "-o", "/dev/null", "--wrap", "true")


@dataclass
class Session:
    """An account that is signed in, and fills in forms as a browser does."""

    site: Site  # by the account
    visitor: Visitor
    cookie: str

    def get(self, path: str, **query: object) -> Reply:
        address = f"{path}?{urlencode(query, doseq=True)}" if query else path
        return self.visitor.get(address, Cookie=self.cookie)

    def form(self, path: str, **query: object) -> tuple[str, dict[str, str]]:
        """Return the address and the hidden fields of the form that confirms an act."""
        reply = self.get(path, **query)
        assert reply.status == 200, reply
        [(action, body)] = re.findall(r'<form method="post" action="(/web/acts[^"]*)">(.*?)</form>',
                                      reply.text, re.DOTALL)  # fmt: skip
        fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', body)
        return html.unescape(action), {name: html.unescape(value) for name, value in fields}

    def post(self, action: str, fields: dict[str, str], **headers: str) -> Reply:
        return self.visitor.post(action, fields, **({"Cookie": self.cookie} | headers))

    def act(self, path: str, query: dict[str, object], **more: str) -> str:
        """Confirm an act, and return what the next page tells."""
        action, fields = self.form(path, **query)
        return self.told(self.post(action, fields | more))

    def told(self, reply: Reply) -> str:
        assert reply.status == 303, reply
        location = reply.headers["location"]
        [text] = parse_qs(urlsplit(location).query)["result"]
        shown = self.visitor.get(location, Cookie=self.cookie).text
        assert 'class="result"' in shown
        return text

    def state(self, job: int) -> str:
        return str(self.site.row(job)["state"])


@pytest.fixture(scope="module")
def site(common_folder: Path) -> Iterator[tuple[MultiUserSite, Visitor]]:
    port = free_port()
    with running_site(common_folder / "web-acts", tables(port) + TAKES_BOTH, PROGRAMS) as running:
        yield running, Visitor(port)


@pytest.fixture(scope="module")
def session(site: tuple[MultiUserSite, Visitor]) -> Callable[[str], Session]:
    """Return the session of an account; each has one."""
    running, visitor = site
    sessions: dict[str, Session] = {}

    def of(account: str) -> Session:
        if account not in sessions:
            view = running.by(account)
            sessions[account] = Session(
                view, visitor, visitor.sign_in(secret_of(view.run("web").stdout))
            )
        return sessions[account]

    return of


Sessions = Callable[[str], Session]


def test_an_owner_acts_on_jobs(session: Sessions) -> None:
    owner = session(A)
    job = owner.site.submit("-J", SCRIPT, *LATER)
    steps = (
        ("hold", "queued", "held", "was queued and is now held"),
        ("hold", "held", "held", "only jobs that have not started|is held until"),
        ("release", "held", "queued", "was held and is now queued"),
        ("cancel", "queued", "cancelled", "was queued and is now cancelled"),
        ("cancel", "cancelled", "cancelled", "it has ended (cancelled); nothing to cancel"),
        ("requeue", "cancelled", "queued", "was cancelled and is now queued"),
    )
    for act, before, after, message in steps:
        page = owner.get(f"/web/acts/jobs/{act}", job=job)
        assert (page.status, SCRIPT in page.text) == (200, False)
        assert owner.state(job) == before, act  # a page changes nothing
        text = owner.act(f"/web/acts/jobs/{act}", {"job": job})
        assert any(part in text for part in message.split("|")), (act, text)
        assert owner.state(job) == after, act
    events = owner.site.json("events", "--kind", "session_acted")
    assert [row["cause"] for row in events if row["job"] == job] == [
        f"{act} job {job}, by web session" for act, *_ in steps
    ]


def test_a_job_is_modified_as_the_page_says(session: Sessions) -> None:
    owner, operator = session(A), session(OPERATOR)
    job = owner.site.submit("-J", "old", *LATER)
    path, values = "/web/acts/jobs/modify", {"job": job, "time_limit": "20", "name": "new"}
    page = owner.get(path, **values)
    assert "time limit 9:00 → 20:00" in page.text
    assert owner.site.row(job)["name"] == "old"
    text = owner.act(path, values)
    assert text == f"Modified job {job}: time limit 9:00 → 20:00; name old → new."
    assert owner.site.row(job)["name"] == "new"
    for name, value, problem in (
        ("time_limit", "soon", "Time limit"),
        ("deadline", "yesterday or so", "Deadline"),
        ("urgency", "x", "Urgency"),
    ):
        reply = owner.get(path, job=job, **{name: value})
        assert (reply.status, problem in reply.text) == (422, True)
    action, fields = owner.form(path, job=job, urgency="7")
    assert owner.post(action, fields).status == 422
    assert owner.get(path, job=job, priority="9").status == 403
    token = owner.form(path, job=job, name="mine")[1]["form_token"]
    action, fields = operator.form(path, job=job, priority="9")
    assert owner.post(action, fields | {"form_token": token}).status == 403
    assert "priority" in operator.act(path, {"job": job, "priority": "9"})
    assert owner.site.row(job)["priority"] == 9


def test_several_jobs_at_once(session: Sessions) -> None:
    owner = session(A)
    jobs = [owner.site.submit(*LATER) for _ in range(3)]
    owner.site.run("cancel", str(jobs[2]))
    text = owner.act("/web/acts/jobs/cancel", {"job": jobs})
    assert "2 tasks were queued and are now cancelled." in text
    assert "1 task: it has ended (cancelled); nothing to cancel." in text
    array = owner.site.submit("--array", "1-12", *LATER)
    assert "12 tasks were queued and are now held" in owner.act(
        "/web/acts/jobs/hold", {"job": array}
    )
    for references in ([], ["x"], [""], ["1"] * 101, ["9" * 65]):
        assert owner.get("/web/acts/jobs/cancel", job=references).status == 422
    assert owner.get("/web/acts/jobs/explode", job=array).status == 404


def test_only_owners_and_operators_act(session: Sessions) -> None:
    owner, stranger, operator = session(A), session(B), session(OPERATOR)
    job = owner.site.submit(*LATER)
    form_token = stranger.form("/web/acts/jobs/hold", job=stranger.site.submit(*LATER))[1]
    for act in ("cancel", "hold", "release", "requeue", "modify"):
        assert stranger.get(f"/web/acts/jobs/{act}", job=job).status == 404
        action, fields = owner.form(f"/web/acts/jobs/{act}", job=job, name="x")
        own_token = {"form_token": form_token["form_token"]}
        assert stranger.post(action, fields | own_token).status == 404
        assert stranger.post(action, fields).status == 403  # the token of another session
    for act in ("lost", "ran"):
        assert owner.get(f"/web/acts/jobs/{act}", job=job).status == 403
        action, fields = owner.form("/web/acts/jobs/hold", job=job)
        assert owner.post(f"/web/acts/jobs/{act}", fields).status == 403
    assert owner.state(job) == "queued"
    assert "Cancel" not in stranger.get(f"/web/jobs/{job}").text
    assert "only unknown jobs can be resolved" in operator.act(
        "/web/acts/jobs/ran", {"job": job}, exit_code="1"
    )
    assert "is now cancelled" in operator.act("/web/acts/jobs/cancel", {"job": job})
    [row] = [row for row in owner.site.json("events") if row["kind"] == "job_cancelled"
             and row["job"] == job]  # fmt: skip
    assert row["actor"] == OPERATOR


def test_other_sites_and_other_sessions_cause_nothing(session: Sessions) -> None:
    owner, other = session(A), session(B)
    job = owner.site.submit(*LATER)
    action, fields = owner.form("/web/acts/jobs/cancel", job=job)
    foreign = other.form("/web/acts/jobs/cancel", job=other.site.submit(*LATER))[1]
    no_token = {name: value for name, value in fields.items() if name != "form_token"}
    for hostile, headers in (
        (fields, {"Sec-Fetch-Site": "cross-site"}),
        (fields, {"Sec-Fetch-Site": "same-site"}),
        (fields, {"Origin": "https://evil.example"}),
        (fields, {"Origin": "null"}),
        (no_token, {}),
        (fields | {"form_token": foreign["form_token"]}, {}),
    ):
        assert owner.post(action, hostile, **headers).status == 403, headers
    reply = owner.get(action, **fields)  # a form sent as a link
    assert reply.status in (200, 422)
    assert owner.state(job) == "queued"
    # nor does a link of theirs say something
    page = owner.get(f"/web/jobs/{job}", result="all is lost", result_digest="0" * 64)
    assert "all is lost" not in page.text
    location = owner.post(action, fields).headers["location"]
    assert "all is lost" not in owner.get(f"{location.replace('Cancel', 'all+is+lost')}").text


def test_of_two_browsers_one_wins_and_the_other_is_told(session: Sessions) -> None:
    owner, operator = session(A), session(OPERATOR)
    job = owner.site.submit("-J", "first", *LATER)
    path = "/web/acts/jobs/modify"
    forms = [
        (by, *by.form(path, job=job, name=name))
        for by, name in ((owner, "second"), (operator, "third"))
    ]
    with ThreadPoolExecutor() as threads:
        replies = list(threads.map(lambda form: form[0].post(*form[1:]), forms))
    assert sorted(reply.status for reply in replies) == [303, 409]
    [refused] = [reply for reply in replies if reply.status == 409]
    assert "has changed since this page was opened" in refused.text
    winner = replies.index(next(reply for reply in replies if reply.status == 303))
    assert owner.site.row(job)["name"] == ("second", "third")[winner]
    # a page that is old: the job ended meanwhile
    action, fields = owner.form("/web/acts/jobs/hold", job=job)
    owner.site.run("cancel", str(job))
    text = owner.told(owner.post(action, fields))
    assert "it has ended (cancelled); nothing to hold" in text
    assert f"Since the page was opened, {job} was queued and became cancelled." in text


def test_operators_act_on_the_site(session: Sessions) -> None:
    """Users get 403 for each page and form; of two operators' forms the later is told."""
    owner, operator = session(A), session(OPERATOR)
    token = owner.form("/web/acts/jobs/hold", job=owner.site.submit(*LATER))[1]["form_token"]

    def cluster_state() -> str:
        return str(operator.site.json("clusters")[0]["state"])

    def total() -> int:
        return int(operator.site.json("licences")[0]["total"])

    def refused(path: str, **query: object) -> tuple[str, dict[str, str]]:
        assert owner.get(path, **query).status == 403
        action, fields = operator.form(path, **query)
        assert owner.post(action, fields | {"form_token": token}).status == 403
        for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
            assert operator.post(action, fields, **headers).status == 403
        assert operator.post(action, fields | {"form_token": "x"}).status == 403
        operator.get(action, **fields)  # a form sent as a link
        return action, fields

    action, fields = refused("/web/acts/drain", cluster="left")
    assert cluster_state() == "up"
    message = operator.told(operator.post(action, fields | {"reason": SCRIPT}))
    assert message == f"Cluster left is drained by {OPERATOR}: {SCRIPT}."
    assert cluster_state().startswith("drained by")
    late = operator.post(action, fields | {"reason": "mine"})
    assert (late.status, "has changed since this page" in late.text) == (409, True)
    action, fields = refused("/web/acts/resume", cluster="left")
    assert operator.told(operator.post(action, fields)) == "Cluster left is up."
    assert operator.post(action, fields).status == 409
    assert operator.get("/web/acts/resume", cluster="left").status == 409

    action, fields = refused("/web/acts/licence-total", licence="matlab")
    assert total() == 2
    assert operator.post(action, fields | {"total": "-1"}).status == 422
    assert "total of 5 tokens." in operator.told(operator.post(action, fields | {"total": "5"}))
    assert total() == 5
    assert operator.post(action, fields | {"total": "7"}).status == 409
    path, query = "/web/acts/licence-total", {"licence": "matlab"}
    assert "2 tokens as configured" in operator.act(path, dict(query), total="")
    assert total() == 2
    for path, query in (
        ("/web/acts/drain", {"cluster": "none"}),
        ("/web/acts/licence-total", {"licence": "none"}),
        ("/web/acts/cancel-reservation", {"reservation": "7"}),
    ):
        assert operator.get(path, **query).status == 404
    assert operator.get("/web/acts/cancel-reservation", reservation="x").status == 422
    [record] = operator.site.json("events", "--kind", "session_acted", "--cluster", "left")[:1]
    assert (record["actor"], record["cause"]) == (OPERATOR, "drain, by web session")
    assert owner.site.json("events", "--kind", "session_acted", "--cluster", "left") == []


def test_operators_change_the_policy(session: Sessions) -> None:
    """The page of an act shows the keys that change; of two operators' forms the later is told."""
    owner, operator = session(A), session(OPERATOR)
    site = operator.site
    folder = site.folder / OPERATOR
    for seconds in (60, 120):
        file = folder / f"age-{seconds}.toml"
        file.write_text(f"age = {seconds}\n")
        site.run("policy", "activate", file, "--reason", SCRIPT)

    def age() -> Any:
        return site.json("policy", "show")["values"]["age"]

    assert age() == 120
    action, fields = operator.form("/web/acts/policy-undo")
    page = operator.get("/web/acts/policy-undo").text
    keys = re.findall(r'<th scope="row" class="code">(\w+)</th>', page)
    assert keys == ["age"]
    token = owner.form("/web/acts/jobs/hold", job=owner.site.submit(*LATER))[1]["form_token"]
    for path, query in (
        ("/web/acts/policy-undo", {}),
        ("/web/acts/policy-activate", {"version": 1}),
    ):
        assert owner.get(path, **query).status == 403
        assert owner.post(path, fields | {"form_token": token}).status == 403
        assert operator.post(path, fields | {"form_token": token}).status == 403
        assert operator.post(path, fields, Origin="https://evil.example").status == 403
    assert age() == 120
    assert "in force, as version 2." in operator.told(operator.post(action, fields))
    assert age() == 60
    late = operator.post(action, fields)
    assert (late.status, "has changed since this page" in late.text) == (409, True)
    activate = {"version": 3}
    text = operator.act("/web/acts/policy-activate", dict(activate), reason="again")
    assert text == "Policy version 5 is in force."
    assert age() == 120
    same = operator.get("/web/acts/policy-activate", **activate)
    assert (same.status, "there is nothing to change" in same.text) == (409, True)
    assert operator.get("/web/acts/policy-activate", version=99).status == 404
    assert operator.get("/web/acts/policy-activate", version="x").status == 422
    acts = [row["cause"] for row in site.json("events", "--kind", "session_acted")]
    assert "undo policy version 3, by web session" in acts
    assert "activate policy version 3, by web session" in acts
    listed = operator.get("/web/policy").text
    assert SCRIPT not in listed
    assert "Undo<span" in listed
    assert "Undo<span" not in owner.get("/web/policy").text


def test_nobody_reserves_for_others_or_ends_their_series(session: Sessions) -> None:
    owner, operator = session(A), session(OPERATOR)
    terms = {"size": "1", "duration": "1h", "owner": B, "start": "+1h"}
    assert owner.get("/web/acts/reserve", **terms).status == 403
    token = owner.form("/web/acts/jobs/hold", job=owner.site.submit(*LATER))[1]["form_token"]
    assert owner.post("/web/acts/reserve", {**terms, "form_token": token}).status == 403
    assert owner.post("/web/acts/reserve", {"size": "1"}).status == 403
    series = terms | {"every": "daily 08:00", "until": "2030-01-31", "start": ""}
    for refused in (
        owner.get("/web/acts/reserve", **series),
        owner.post("/web/acts/reserve", {**series, "form_token": token}),
    ):
        assert (refused.status, "reserve for others" in refused.text) == (403, True)
    assert "For <input" not in owner.get("/web/acts/reserve").text
    assert "For <input" in operator.get("/web/acts/reserve").text
    for by in (owner, operator):
        assert by.get("/web/acts/cancel-series", series=7).status == 404


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if (reason := browser.missing()) is not None:
        require("chromium", reason)
    with browser.chromium() as running:
        yield running


Signed = Callable[[str], Page]


@pytest.fixture
def signed(chromium: Browser, site: tuple[MultiUserSite, Visitor]) -> Iterator[Signed]:
    """Open a page in a browser of an account."""
    running, visitor = site
    opened = []

    def of(account: str) -> Page:
        context = chromium.new_context(base_url=f"http://{visitor.authority}")
        opened.append(context)
        page = context.new_page()
        page.goto(running.by(account).run("web").stdout.strip())
        page.get_by_role("button", name="Sign in as").click()
        expect(page.get_by_role("heading", name="Site", exact=True)).to_be_visible()
        return page

    yield of
    for context in opened:
        context.close()


def check(page: Page, name: str) -> None:
    """Axe finds nothing, and nothing is wider than the window."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (1440, 360):
            page.set_viewport_size({"width": width, "height": 900})
            assert browser.barriers(page) == [], (name, scheme, width)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
            browser.draw(page, f"web-{name}-{scheme}-{width}")
    page.set_viewport_size({"width": 1440, "height": 900})


@pytest.mark.slow("axe examines five pages in two schemes and widths")
def test_a_browser_ticks_tasks_and_confirms(signed: Signed, session: Sessions) -> None:
    owner = session(A)
    jobs = [owner.site.submit("-J", f"tick-{SCRIPT}", *LATER) for _ in range(2)]
    page = signed(A)
    page.goto("/web/queue")
    for job in jobs:
        page.get_by_role("checkbox", name=f"Tick {job}", exact=True).check()
    check(page, "queue-acts")
    # ticks outlive the update of the page
    last = owner.site.submit("-J", "meanwhile", *LATER)
    expect(page.get_by_role("checkbox", name=f"Tick {last}", exact=True)).to_be_visible(
        timeout=60_000
    )
    page.get_by_role("button", name="Hold").click()
    expect(page.get_by_role("heading")).to_have_text(f"Hold jobs {jobs[0]}, {jobs[1]}?")
    check(page, "act-hold")
    assert [owner.state(job) for job in jobs] == ["queued", "queued"]
    page.get_by_role("button", name="Hold 2 jobs").click()
    expect(page.get_by_role("status")).to_contain_text("2 tasks were queued and are now held.")
    assert [owner.state(job) for job in [*jobs, last]] == ["held", "held", "queued"]
    page.goto(f"/web/jobs/{jobs[0]}")
    page.get_by_role("link", name="Modify").click()
    check(page, "act-modify")
    page.get_by_label("Time limit").fill("30")
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_role("listitem").filter(has_text="time limit")).to_have_text(
        "time limit 9:00 → 30:00"
    )
    check(page, "act-modify-confirm")
    page.get_by_role("button", name="Modify job").click()
    expect(page.get_by_role("status")).to_contain_text("time limit 9:00 → 30:00")
    check(page, "job-told")
    stranger = signed(B)
    stranger.goto("/web/queue")
    for job in jobs:
        assert stranger.get_by_role("checkbox", name=f"Tick {job}", exact=True).count() == 0


def test_the_pages_of_operators_are_for_everybody(signed: Signed) -> None:
    page = signed(OPERATOR)
    check(page, "site-operator")
    page.get_by_role("link", name="Drain left").click()
    check(page, "act-drain")
    page.get_by_role("button", name="Drain cluster left").click()
    expect(page.get_by_role("status")).to_contain_text("Cluster left is drained by")
    page.get_by_role("link", name="Resume left").click()
    page.get_by_role("button", name="Resume cluster left").click()
    expect(page.get_by_role("status")).to_have_text("Cluster left is up.")
    page.goto("/web/licences")
    page.get_by_role("link", name="Set the total of matlab").click()
    check(page, "act-total")


def test_the_policy_is_explained_to_everybody(signed: Signed, session: Sessions) -> None:
    page, shown = signed(OPERATOR), session(OPERATOR).site.json("policy", "show", "--explain")
    page.goto("/web/policy")
    check(page, "policy")
    expect(page.locator("#policy tbody th")).to_have_text(list(shown["values"]))
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="max_priority"))
    [effect] = [key["effect"] for key in shown["keys"] if key["name"] == "max_priority"]
    expect(row).to_contain_text(effect)
    assert session(A).get("/web/policy").status == 200


def pages_of_routes() -> set[str]:
    """Return the patterns of all pages that a browser gets, as the modules declare them."""
    routers = [
        router
        for module in pkgutil.iter_modules(web.__path__)
        if (router := getattr(import_module(f"{web.__name__}.{module.name}"), "router", None))
    ]
    assert len(routers) > 10
    patterns = {
        route.path
        for router in routers
        for route in router.routes
        if isinstance(route, APIRoute) and "GET" in (route.methods or ())
    }
    return patterns - {"/changes"}  # an event stream


@pytest.mark.slow("axe examines 30 pages in two schemes and widths")
def test_every_page_and_act_is_for_everybody(signed: Signed, session: Sessions) -> None:
    """A page without an address here, or an act on jobs, fails."""
    operator = session(OPERATOR)
    policy = operator.site.folder / "other.toml"
    policy.write_text("seed = 11\n")
    operator.site.run("policy", "activate", str(policy))  # version 1 is not in force then
    first, second = operator.site.submit("-J", SCRIPT, *LATER), operator.site.submit(*LATER)
    operator.site.run("hold", str(second))
    window = ("--size", "1", "--duration", "10m")
    reservation = reserve(operator.site, *window, "--start", "+1h")["reservation"]
    until = (date.today() + timedelta(days=3)).isoformat()
    every = ("--every", "daily 08:00", "--until", until)
    operator.site.run("reserve", *window, *every)
    [series] = [row["entry"] for row in operator.site.json("calendar") if row["owner"]]
    terms = "size=1&duration=10m"
    on_jobs = [f"/acts/jobs/{act}?job={second if act == 'release' else first}" for act in ACTS]
    addresses = {
        "/": ["/"],
        "/queue": ["/queue"],
        "/jobs/{job}": [f"/jobs/{first}"],
        "/licences": ["/licences"],
        "/licences/{name}": ["/licences/matlab"],
        "/reservations": ["/reservations"],
        "/use": ["/use"],
        "/policy": ["/policy"],
        "/events": ["/events"],
        "/acts/jobs/{act}": [*on_jobs, f"/acts/jobs/modify?job={first}&time_limit=30"],
        "/acts/drain": ["/acts/drain?cluster=left"],
        "/acts/licence-total": ["/acts/licence-total?licence=matlab&total=3"],
        "/acts/cancel-reservation": [f"/acts/cancel-reservation?reservation={reservation}"],
        "/acts/cancel-series": [f"/acts/cancel-series?series={series}"],
        "/acts/policy-undo": ["/acts/policy-undo"],
        "/acts/policy-activate": ["/acts/policy-activate?version=1"],
        "/acts/reserve": [
            "/acts/reserve",
            f"/acts/reserve?{terms}&start=%2B3h",
            f"/acts/reserve?{terms}&every=daily+08:00&until={until}",
        ],
        "/acts/resume": ["/acts/resume?cluster=left"],
    }
    assert set(addresses) == pages_of_routes()
    page = signed(OPERATOR)
    page.set_viewport_size({"width": 360, "height": 900})
    refused = []
    for address in (each for group in addresses.values() for each in group):
        if address.startswith("/acts/resume"):
            operator.site.run("cluster", "drain", "left")
        answer = page.goto(f"/web{address}")
        assert answer is not None
        if answer.status != 200:
            refused.append(address)
        assert browser.barriers(page) == [], address
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, address
    operator.site.run("cluster", "resume", "left")
    # no task is unknown, or has started; such an answer is a page, too
    assert set(refused) <= {f"/acts/jobs/{act}?job={first}" for act in ("lost", "ran", "requeue")}
    operator.site.run("reservation", "cancel", str(reservation))
    operator.act("/web/acts/cancel-series", {"series": series})


def test_operators_see_how_a_candidate_differs(signed: Signed, session: Sessions) -> None:
    operator, user = session(OPERATOR), session(A)
    candidate = operator.site.folder / "candidate.toml"
    candidate.write_text("[weights]\nuser = 9\ndeadline = 0\nlicence = 0\n")
    reason = f"less for deadlines {SCRIPT}"
    operator.site.run("policy", "shadow", str(candidate), "--reason", reason)
    try:
        job = user.site.submit("--wrap", "true", "-t", "10", "--deadline", "+11m")

        def compared() -> dict[str, Any] | None:
            row: dict[str, Any] = operator.site.json("policy", "shadow")
            return row if row["all"]["tasks"] else None

        row = operator.site.until(compared, patience=60)
        assert [each["job"] for each in row["differences"]] == [job], (row, user.site.row(job))
        page = signed(OPERATOR)
        page.goto("/web/policy")
        shown = page.locator("#shadow")
        expect(shown).to_contain_text("Of 1 dispatched tasks 1 differ, 100.0%: 1 in their priority")
        expect(shown).to_contain_text(reason)
        expect(shown.get_by_role("rowheader")).to_have_text(str(job))
        check(page, "policy-candidate")
        assert 'id="shadow"' not in user.get("/web/policy").text
        scraped = call(operator.site.folder / "state/ms.sock", "GET", "/metrics").content.decode()
        for line in ("compared_total 1.0", "differing_total 1.0", "failing 0.0", "waiting 0.0"):
            assert f"\nmetasched_shadow_{line}\n" in scraped
    finally:
        operator.site.run("policy", "shadow", "--stop")
    page.reload()
    expect(shown).to_contain_text("It ended at")
