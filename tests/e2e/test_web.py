"""Pages for browsers: sign-in and its limits over HTTP, the views in a real Chromium."""

from __future__ import annotations

import getpass
import http.client
import json
import os
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from metasched.db.sessions import MAX_SIGN_INS
from tests.conftest import require
from tests.e2e.conftest import TWO_LOCAL, Site
from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite, running_site
from tests.harness import browser
from tests.harness.accounts import OPERATOR, A, B, as_
from tests.harness.http_calls import call
from tests.harness.ports import free_port

LICENCE = '[[licence]]\nname = "matlab"\ntotal = 2\n'
SCRIPT = "<script>document.title = 'harmed'</script>"
BACKWARDS = "gpj.\u202etxt.exe"  # shown as exe.txt.jpg by what obeys it
ARABIC = "محاكاة"
PRINTS = r"printf '<b>\033[31m\n'; sleep 600"
VIEWS = (
    *(
        "/web/",
        "/web/queue",
        "/web/licences",
        "/web/licences/matlab",
        "/web/events",
        "/web/use",
        "/web/use?kind=licences",
    ),
    *("/web/jobs/1", "/web/jobs/2"),
)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]  # names in lower case
    text: str


@dataclass
class Visitor:
    """A client over TCP that keeps no cookie by itself."""

    port: int
    host: str = ""  # the header; "": the address

    @property
    def authority(self) -> str:
        return self.host or f"127.0.0.1:{self.port}"

    def get(self, path: str, **headers: str) -> Reply:
        return self.send("GET", path, None, headers)

    def post(self, path: str, fields: dict[str, str], **headers: str) -> Reply:
        """Send a form as a page of this host would."""
        own = {"Origin": f"http://{self.authority}", "Sec-Fetch-Site": "same-origin"}
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.send("POST", path, urlencode(fields), own | form | headers)

    def send(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Reply:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = self.connect()
        try:
            connection.request(method, path, body, {"Host": self.authority} | names)
            response = connection.getresponse()
            text = response.read().decode()
            fields = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, fields, text)
        finally:
            connection.close()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def sign_in(self, secret: str) -> str:
        """Return the cookie of a new session."""
        reply = self.post("/web/sign-in", {"secret": secret})
        assert (reply.status, reply.headers["location"]) == (303, "/web/"), reply
        return reply.headers["set-cookie"].partition(";")[0]


def secret_of(link: str) -> str:
    return link.strip().rpartition("link=")[2]


def tables(port: int, more: str = "") -> str:
    return f'[tcp]\nlisten = "127.0.0.1:{port}"\n[web]\n{more}{LICENCE}'


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Visitor]]:
    """A personal site with pages, and jobs with hostile names."""
    site, port = Site(tmp_path_factory.mktemp("web")), free_port()
    site.configure(TWO_LOCAL, tables(port))
    try:
        site.start()
        site.submit("-J", SCRIPT, "-L", "matlab:2", "-t", "9", "--wrap", PRINTS)
        site.submit("-J", BACKWARDS, "-L", "matlab", "-t", "9", "--wrap", "true")
        site.submit("-J", ARABIC, "-t", "9", "--array", "1-3", "--hold", "--wrap", "true")
        site.until(lambda: site.row(1)["state"] == "running")
        site.run("cluster", "drain", "right", "--reason", SCRIPT)
        yield site, Visitor(port)
    finally:
        site.close()


def test_a_link_signs_in_once_by_its_button(web: tuple[Site, Visitor]) -> None:
    site, visitor = web
    link = site.json("web")
    secret = secret_of(link["url"])
    for _ in range(2):  # a program that looks at links uses up nothing
        shown = visitor.get(f"/web/sign-in?link={secret}")
        assert shown.status == 200
        assert "Sign in as" in shown.text
    reply = visitor.post("/web/sign-in", {"secret": secret})
    attributes = reply.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=strict", "Path=/web", "Max-Age=43200"} <= set(attributes)
    assert visitor.get("/web/", Cookie=attributes[0]).status == 200
    again = visitor.post("/web/sign-in", {"secret": secret})
    assert again.status == 403
    assert "set-cookie" not in again.headers
    stored = sqlite3.connect(site.database).execute("SELECT * FROM token").fetchall()
    for shown_once in (secret, attributes[0].partition("=")[2]):
        assert not any(shown_once in str(row) for row in stored)


def test_a_link_expires(web: tuple[Site, Visitor]) -> None:
    site, visitor = web
    secret = secret_of(site.run("web").stdout)
    with sqlite3.connect(site.database, timeout=60) as database:
        expiry = "UPDATE token SET expires = created WHERE scope = 'link' AND revoked IS NULL"
        assert database.execute(expiry).rowcount >= 1
    assert visitor.post("/web/sign-in", {"secret": secret}).status == 403
    assert visitor.get(f"/web/sign-in?link={secret}").status == 400


def test_a_session_is_for_pages_of_its_host_alone(web: tuple[Site, Visitor]) -> None:
    site, visitor = web
    cookie = visitor.sign_in(secret_of(site.run("web").stdout))
    secret = cookie.partition("=")[2]
    localhost = Visitor(visitor.port, f"localhost:{visitor.port}")
    assert localhost.get("/web/sign-in").status == 200  # a name of this daemon, too
    elsewhere = localhost.get("/web/", Cookie=cookie)
    assert (elsewhere.status, elsewhere.headers["location"]) == (303, "/web/sign-in")
    for name in ("evil.example", f"evil.example:{visitor.port}", "127.0.0.1", "a b", ""):
        reply = visitor.get("/web/", Cookie=cookie, Host=name)
        assert reply.status in (400, 421), name
    # the cookie, and its secret as a token, open nothing of the API
    for credential in (secret, f"{secret} 127.0.0.1:{visitor.port}"):
        assert visitor.get("/clusters", Authorization=f"Bearer {credential}").status == 401
    assert visitor.get("/clusters", Cookie=cookie).status == 401
    assert visitor.get("/v1/web/", Cookie=cookie).status == 200  # the same page, as guarded
    assert visitor.get("/v1/web/", Cookie=cookie, Host="evil.example").status == 421
    link = secret_of(site.run("web").stdout)
    assert visitor.get("/clusters", Authorization=f"Bearer {link}").status == 401
    assert visitor.get("/web/", Cookie=f"{cookie.partition('=')[0]}={link}").status == 303


def test_forms_of_other_sites_change_nothing(web: tuple[Site, Visitor]) -> None:
    site, visitor = web
    cookie = visitor.sign_in(secret_of(site.run("web").stdout))
    page = visitor.get("/web/", Cookie=cookie)
    [token] = set(re.findall(r'name="form_token" value="(\w+)"', page.text))
    fields = {"form_token": token}
    other = visitor.sign_in(secret_of(site.run("web").stdout))
    hostile: tuple[tuple[dict[str, str], dict[str, str]], ...] = (
        (fields, {"Sec-Fetch-Site": "cross-site"}),
        (fields, {"Sec-Fetch-Site": "same-site"}),
        (fields, {"Origin": "https://evil.example"}),
        (fields, {"Origin": "null"}),
        ({}, {}),
        ({"form_token": token[::-1]}, {}),
        (fields, {"Cookie": other}),
    )
    for body, headers in hostile:
        reply = visitor.post("/web/sign-out", body, **({"Cookie": cookie} | headers))
        assert reply.status == 403, (body, headers)
    assert visitor.post("/web/sign-in", fields, Origin="https://evil.example").status == 403
    large = visitor.post("/web/sign-in", {"secret": "x" * 70_000})
    assert (large.status, "set-cookie" in large.headers) == (413, False)
    assert visitor.get("/web/", Cookie=cookie).status == 200
    ended = visitor.post("/web/sign-out", fields, Cookie=cookie)
    assert (ended.status, ended.headers["location"]) == (303, "/web/sign-in")
    assert visitor.get("/web/", Cookie=cookie).status == 303


def test_a_session_opened_by_a_token_ends_with_it(web: tuple[Site, Visitor]) -> None:
    site, visitor = web
    token = site.json("token", "create", "--expires", "3600")
    cookie = visitor.sign_in(token["token"])
    assert visitor.get("/web/", Cookie=cookie).status == 200
    [session] = [row for row in site.json("token", "list") if row["parent"] == token["id"]]
    assert session["scope"] == "user_session"
    assert session["expires"] <= token["expires"]
    site.run("token", "revoke", str(token["id"]))
    assert visitor.get("/web/", Cookie=cookie).status == 303
    metrics = site.json("token", "create", "--metrics", "--expires", "60")
    assert visitor.post("/web/sign-in", {"secret": metrics["token"]}).status == 403


def test_every_page_has_its_policy_and_errors_are_pages(web: tuple[Site, Visitor]) -> None:
    site, visitor = web
    cookie = visitor.sign_in(secret_of(site.run("web").stdout))
    paths = (*VIEWS, "/web/jobs/999", "/web/none", "/web/queue?cursor=x", "/web/sign-in")
    for path in (*paths, "/web/static/page.js", "/web/static/../gate.py", "/web/queue?state=%0a"):
        reply = visitor.get(path, Cookie=cookie)
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; "), path
        assert "unsafe" not in policy
        assert SCRIPT not in reply.text
        if "static" not in path:
            assert reply.headers["cache-control"] == "no-store"
            assert "<html" in reply.text, path
    assert visitor.get("/web/jobs/999", Cookie=cookie).status == 404
    # no spelling of a path leads from pages to the API, or out of the folder of static files
    for path in (
        *("/web/../clusters", "/web/%2e%2e/clusters", "/web/..%2fclusters", "/web//clusters"),
        *("/web/static/..%2fgate.py", "/web/static/%2e%2e%2fgate.py", "/web/static//etc/passwd"),
        *("/web;/clusters", "/web%00/", "/WEB/", "//web/queue", "/web/jobs/..%2f..%2fclusters"),
        *("/web/licences/..%2fqueue", "/web/licences/%3Cscript%3E", "/web/static/page.js%00.png"),
    ):
        reply = visitor.get(path, Cookie=cookie)
        assert reply.status in (303, 400, 401, 404, 422), (path, reply.status)
        assert "import" not in reply.text
        assert "root:" not in reply.text
        assert '"cluster"' not in reply.text
        assert "<script>" not in reply.text
    assert visitor.get("/", Cookie=cookie).headers["location"] == "/web/"
    for headers in ({}, {"X-Remote-User": "root"}):  # the header counts for the proxy alone
        assert visitor.get("/web/", **headers).status == 303
    socket = site.folder / "ms.sock"
    assert call(socket, "GET", "/web/", headers={"X-Remote-User": "root"}).status == 403


def test_sessions_count_only_where_tokens_do(tmp_path: Path) -> None:
    """An account has few of them. Without tokens only the socket of a proxy serves pages."""
    site, visitor, own = Site(tmp_path), Visitor(free_port()), getpass.getuser()

    def start(tokens: str) -> None:
        web = f'[web]\nproxy_socket = "{proxy}"\nproxy_user = "{own}"\n'
        tcp = f'[tcp]\nlisten = "127.0.0.1:{visitor.port}"\nmunge = true\ntokens = {tokens}\n'
        site.configure(TWO_LOCAL, tcp + web)
        site.start()

    proxy = tmp_path / "web.sock"
    try:
        start("true")
        token = site.json("token", "create", "--expires", "3600")["token"]
        first = visitor.sign_in(token)
        assert visitor.get("/web/", Cookie=first).status == 200
        again = [visitor.post("/web/sign-in", {"secret": token}) for _ in range(MAX_SIGN_INS)]
        assert [reply.status for reply in again] == [303] * (MAX_SIGN_INS - 1) + [429]
        assert visitor.get("/web/", Cookie=first).status == 303  # the oldest has ended
        cookie = visitor.sign_in(secret_of(site.run("web").stdout))
        link = secret_of(site.run("web").stdout)
        assert visitor.get("/web/", Cookie=cookie).status == 200
        site.stop()
        start("false")
        for path in ("/web/", "/web/queue", "/web/sign-in", f"/web/sign-in?link={link}", "/web"):
            assert visitor.get(path, Cookie=cookie).status == 403, path
        for secret in (token, link):
            assert visitor.post("/web/sign-in", {"secret": secret}).status == 403
        assert call(proxy, "GET", "/web/", headers={"X-Remote-User": own}).status == 200
    finally:
        site.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if (reason := browser.missing()) is not None:
        require("chromium", reason)
    with browser.chromium() as running:
        yield running


@pytest.fixture
def context(chromium: Browser, web: tuple[Site, Visitor]) -> Iterator[BrowserContext]:
    """A browser that is signed in, in the zone of a reader far away."""
    site, visitor = web
    base = f"http://127.0.0.1:{visitor.port}"
    with chromium.new_context(base_url=base, timezone_id="Asia/Kolkata") as opened:
        page = opened.new_page()
        page.goto(site.run("web").stdout.strip())
        page.get_by_role("button", name="Sign in as").click()
        expect(page.get_by_role("heading", name="Site", exact=True)).to_be_visible()
        page.close()
        yield opened


def watched(context: BrowserContext) -> tuple[Page, list[str]]:
    """Return a new page, and a list of the complaints of the browser."""
    page, complaints = context.new_page(), list[str]()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text))
    return page, complaints


@pytest.mark.slow("each view is examined in 2 colours and 5 widths")
def test_views_are_for_everybody(context: BrowserContext) -> None:
    """axe finds nothing, and nothing is wider than the window."""
    page, complaints = watched(context)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for path in (*VIEWS, "/web/jobs/999"):
            page.goto(path)
            for width in (1440, 360):
                page.set_viewport_size({"width": width, "height": 900})
                assert browser.barriers(page) == [], (path, scheme, width)
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, (path, width)
                name = path.strip("/").replace("/", "-")
                browser.draw(page, f"{name}-{scheme}-{width}")
    for path in VIEWS:
        page.goto(path)
        for width in (641, 1024, 2560):  # above the break of the style, and the widest
            page.set_viewport_size({"width": width, "height": 1440})
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, (path, width)
    assert [text for text in complaints if "404" not in text] == []


def test_use_is_plotted_as_reported(context: BrowserContext, web: tuple[Site, Visitor]) -> None:
    site, visitor = web
    job = site.submit("-t", "1", "-o", "/dev/null", "--wrap", "sleep 1")
    site.until_ended(job)
    page, complaints = watched(context)
    page.goto("/web/use")
    page.get_by_label("Rows by").select_option("class")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("svg.plot title")).to_contain_text([", regular: "])
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="regular"))
    [reported] = site.json("report", "use", "--by", "class", "--since", "2d")["rows"]
    expect(row.locator("td").nth(1)).to_have_text(str(reported["jobs"]))
    assert complaints == []
    cookie = visitor.sign_in(secret_of(site.run("web").stdout))
    for query in ("kind=x", "by=x", "since=x", "since=2026-03-02&until=2026-03-01", "user=a%0ab"):
        assert visitor.get(f"/web/use?{query}", Cookie=cookie).status == 422, query


def test_hostile_names_show_as_text(context: BrowserContext) -> None:
    page, complaints = watched(context)
    for path in VIEWS:
        page.goto(path)
        assert "harmed" not in page.title(), path
        assert page.locator("main script").count() == 0
    page.goto("/web/queue")
    expect(page.get_by_title(SCRIPT)).to_have_text(SCRIPT)
    expect(page.get_by_title("gpj.", exact=False)).to_have_text(r"gpj.\u202etxt.exe")
    expect(page.get_by_title(ARABIC).first).to_have_text(ARABIC)
    page.goto("/web/jobs/1")
    expect(page.locator("pre")).to_contain_text(r"<b>\x1b[31m")
    assert complaints == []


def test_views_show_what_the_commands_tell(
    context: BrowserContext, web: tuple[Site, Visitor]
) -> None:
    site, _ = web
    page, _ = watched(context)
    page.goto("/web/")
    expect(page.locator("#clusters tbody tr")).to_have_count(2)
    expect(page.locator("#conditions")).to_contain_text("drained by")
    expect(page.locator("#licences tbody")).to_contain_text("2 + 0 / 2")
    page.goto("/web/queue")
    expect(page.locator("tbody tr")).to_have_count(len(site.json("status")))
    page.locator("select[name=licence]").select_option("matlab")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("tbody th")).to_have_text(["1", "2"])
    page.locator("select[name=reason]").select_option("licence_busy")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("tbody th")).to_have_text(["2"])
    page.get_by_role("link", name="2", exact=True).click()
    expect(page.locator(".explanation")).to_contain_text("It waits for its licences")
    expect(page.locator("#missing")).to_contain_text("2 with 1 of")
    page.goto("/web/licences")
    expect(page.locator("#holders tbody tr")).to_have_count(1)
    page.goto("/web/events?kind=cluster_drained")
    expect(page.locator("tbody tr")).to_have_count(1)
    # the zone of the reader: India has no whole hours
    moment = page.locator("tbody time").first
    text, stated = moment.inner_text(), moment.get_attribute("datetime") or ""
    minutes = (int(stated[11:13]) * 60 + int(stated[14:16]) + 330) % 1440
    assert f"{minutes // 60:02}:{minutes % 60:02}" in text


def test_a_page_follows_changes_and_outlives_the_daemon(
    context: BrowserContext, web: tuple[Site, Visitor]
) -> None:
    site, _ = web
    page, _ = watched(context)
    page.goto("/web/queue?licence=matlab")
    live = page.get_by_role("button", name="Live")
    expect(live).to_be_visible()
    page.locator("tbody a").first.focus()
    job = site.submit("-J", "followed", "-L", "matlab", "-t", "9", "--wrap", "true")
    row = page.get_by_role("row").filter(has_text="followed")
    expect(row).to_contain_text("queued", timeout=60_000)
    assert page.evaluate("document.activeElement.textContent") == "1"  # where it was
    site.stop(signal.SIGKILL)
    expect(page.get_by_role("button", name="Not live")).to_be_visible(timeout=60_000)
    site.start("drained")
    site.run("cancel", str(job))
    expect(row).to_contain_text("cancelled", timeout=120_000)
    expect(live).to_be_visible(timeout=60_000)


PROGRAMS = f"[cluster.left]\n{SUPERVISE}"
LEFT = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 4\npoll_interval = 0.2\n'


@pytest.fixture(scope="module")
def shared_web(common_folder: Path) -> Iterator[tuple[MultiUserSite, Visitor]]:
    """A site of several users, with a socket for a proxy that runs as the operator's account."""
    port = free_port()
    proxy = f'proxy_socket = "state/web.sock"\nproxy_user = "{OPERATOR}"\n'
    with running_site(common_folder / "shared-web", tables(port, proxy) + LEFT, PROGRAMS) as site:
        yield site, Visitor(port)


@pytest.mark.root
def test_users_see_what_the_api_lets_them_see(shared_web: tuple[MultiUserSite, Visitor]) -> None:
    site, visitor = shared_web
    owner = site.by(A)
    name = ("-J", "secret-name", "-L", "matlab:2", "-t", "9")
    job = owner.submit(*name, "-o", "out-%j", "--wrap", "echo secret-line; sleep 600")
    owner.until(lambda: owner.row(job)["state"] == "running")
    owner.until_ended(owner.submit("-t", "1", "-o", "/dev/null", "--wrap", "true"))
    pages = {}
    for account in (A, B, OPERATOR):
        cookie = visitor.sign_in(secret_of(site.by(account).run("web").stdout))
        views = ("/web/", "/web/queue", "/web/licences", "/web/events", "/web/use")
        paths = (*views, "/web/licences/matlab", f"/web/jobs/{job}")
        pages[account] = [visitor.get(path, Cookie=cookie) for path in paths]
    # the launcher reads output as its owner, and for the owner alone
    assert ["secret-line" in pages[by][-1].text for by in (A, OPERATOR)] == [True, False]
    for account in (A, OPERATOR):
        _, queue, licences, _, use, _, details = pages[account]
        assert A in use.text.partition("<main")[2]
        assert "secret-name" in queue.text
        assert f"/web/jobs/{job}" in licences.text
        assert (details.status, "secret-name" in details.text) == (200, True)
    assert [reply.status for reply in pages[B]] == [200, 200, 200, 200, 200, 200, 404]
    cookie = visitor.sign_in(secret_of(site.by(B).run("web").stdout))
    assert visitor.get(f"/web/use?user={A}", Cookie=cookie).status == 403
    for reply in pages[B]:
        assert "secret-name" not in reply.text
        assert A not in reply.text
    assert "another user" in pages[B][2].text
    assert "svg" in pages[B][5].text  # tokens over time: totals are for all
    assert visitor.get("/web/licences/none", Cookie=cookie).status == 404
    assert "operator</span>" in pages[OPERATOR][0].text
    # a token gives an operator the rights of an ordinary user
    token = json.loads(site.by(OPERATOR).run("token", "create", "--json").stdout)["token"]
    by_token = visitor.get("/web/queue", Cookie=visitor.sign_in(token))
    assert "secret-name" not in by_token.text
    refused = visitor.get(f"/web/queue?user={A}", Cookie=visitor.sign_in(token))
    assert refused.status == 403


@pytest.mark.slow("what the launcher has read serves a page for five seconds, five times")
@pytest.mark.root
def test_nobody_reads_files_of_others_as_output(shared_web: tuple[MultiUserSite, Visitor]) -> None:
    """An owner may replace his output by a link, a FIFO or a device; he sees no more by that."""
    site, visitor = shared_web
    owner, thief = site.by(A), site.by(B)
    secret, out = owner.folder / A / "secret", thief.folder / B / "out"
    secret.write_text("of-the-other")
    secret.chmod(0o600)
    job = thief.submit("-t", "1", "-o", "out", "--wrap", "echo of-mine")
    thief.until_ended(job)
    cookie = visitor.sign_in(secret_of(thief.run("web").stdout))

    def shown() -> str:
        page = visitor.get(f"/web/jobs/{job}", Cookie=cookie)
        assert page.status == 200
        return page.text

    assert "of-mine" in shown()
    for target, problem in (
        (secret, "Permission denied"),
        (Path("/etc/shadow"), "Permission denied"),
        (site.database, "Permission denied"),
        (Path("/dev/zero"), "it is no regular file"),
        (None, "it is no regular file"),
    ):
        out.unlink()
        if target is None:
            os.mkfifo(out, 0o666)
        else:
            out.symlink_to(target)
        deadline = time.monotonic() + 60  # what was read serves for some seconds
        while problem not in (text := shown()):
            assert time.monotonic() < deadline, text
            time.sleep(0.5)
        assert "of-the-other" not in text


@pytest.mark.root
def test_only_the_proxy_names_users(shared_web: tuple[MultiUserSite, Visitor]) -> None:
    site, visitor = shared_web
    path = site.folder / "state/web.sock"

    def asked(account: str, target: str, *headers: str) -> tuple[int, str]:
        fields = [argument for header in headers for argument in ("-H", header)]
        done = subprocess.run(
            ["curl", "-s", "-w", "\n%{http_code}", "--unix-socket", path, *fields,
             f"http://portal.example{target}"],
            capture_output=True, text=True, check=True, **as_(account),
        )  # fmt: skip
        text, _, status = done.stdout.rpartition("\n")
        return int(status), text

    named = f"X-Remote-User: {A}"
    status, text = asked(OPERATOR, "/web/", named)
    assert (status, A in text) == (200, True)
    assert "operator</span>" not in text
    assert asked(OPERATOR, "/web/", f"X-Remote-User: {OPERATOR}")[0] == 200
    for headers in ((), (named, named), ("X-Remote-User: nobody-at-all",), ("X-Remote-User;",)):
        assert asked(OPERATOR, "/web/", *headers)[0] == 401, headers
    assert asked(OPERATOR, "/web/", "X-Remote-User: root")[0] == 403
    assert asked(OPERATOR, "/jobs", named)[0] == 403  # pages alone
    for account in (A, B):
        assert asked(account, "/web/", f"X-Remote-User: {OPERATOR}")[0] == 403
    # nor does the header count on the other listeners
    assert visitor.get("/web/", X_Remote_User=OPERATOR).status == 303
