"""Pages for browsers: their cost to the daemon with many jobs, beside that of plain API calls."""

from __future__ import annotations

import http.client
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import psutil
import pytest
from sqlalchemy import create_engine, text

from metasched.web.live import UPDATE
from tests.bench.conftest import Record
from tests.bench.test_reports import FILL, sum_periods
from tests.conftest import require
from tests.e2e.conftest import TWO_LOCAL, Site
from tests.e2e.multi_user_site import running_site
from tests.e2e.test_web import LEFT, PROGRAMS, Visitor, secret_of, tables
from tests.harness import browser
from tests.harness.accounts import KEEPER, OPERATOR, A, B
from tests.harness.counted_history import count_history
from tests.harness.http_calls import call
from tests.harness.ports import free_port

STORED = int(os.environ.get("METASCHED_BENCH_JOBS", "1000000"))
FEW = 1000
OPEN = 10_000  # tasks that wait
CALLS = 10
STREAMS = 16  # of an account, at most
STREAM_SECONDS = 10.0
UPDATE_SECONDS = 40.0
MANY = 50  # followed pages, of several accounts
PAGES = (
    *("/web/", "/web/queue", "/web/queue?ended=1", "/web/queue?reason=licence_busy"),
    *("/web/queue?user=u7&ended=1", "/web/jobs/900", "/web/events", "/web/licences/matlab"),
    *("/web/reservations", "/web/use?since=2026-03-01&until=2026-04-01"),
)
PAINT = """() => new Promise((done) => new PerformanceObserver((list) => {
  for (const entry of list.getEntriesByName("first-contentful-paint")) done(entry.startTime)
}).observe({ type: "paint", buffered: true }))"""
PLAIN = ("/v1/health", "/v1/jobs?limit=100")  # of the API


def site_with(folder: Path, jobs: int) -> tuple[Site, Visitor]:
    """Start a site whose database has so many ended jobs, and an array that waits."""
    folder.mkdir()
    site, port = Site(folder), free_port()
    site.configure(TWO_LOCAL, tables(port))
    site.start()
    site.stop()
    engine = create_engine(f"sqlite:///{site.database}")
    with engine.begin() as connection:
        for statement in FILL.format(jobs=jobs).split(";\n"):
            if statement.strip():
                connection.execute(text(statement.replace(":", r"\:")))
        # pages decode it, reports do not
        payload = '{"script"\\:"","directory"\\:"/","output"\\:"/dev/null","error"\\:null}'
        connection.execute(text(f"UPDATE job SET payload = '{payload}'"))
        connection.execute(text("UPDATE content SET text = '{}' WHERE digest = 'd'"))
        count_history(connection)
        sum_periods(connection)
    engine.dispose()
    site.start()
    site.submit("--array", f"1-{OPEN}", "--begin", "+9h", "-t", "9", "--wrap", "true")
    return site, Visitor(port)


def cpu_of(site: Site, ask: Callable[[str], object], path: str) -> float:
    """Return the milliseconds of the daemon's CPU for a call, less what it uses meanwhile."""
    daemon = psutil.Process(site.pid)

    def used() -> float:
        return sum(daemon.cpu_times()[:2])

    ask(path)  # fills caches
    begun, before = time.monotonic(), used()
    for _ in range(CALLS):
        ask(path)
    took, spent = time.monotonic() - begun, used() - before
    time.sleep(took)
    idle = used() - before - spent
    return max(spent - idle, 0.0) / CALLS * 1000


def streams_cost(site: Site, visitor: Visitor, cookie: str) -> float:
    """Return the share of a core that followed pages cost while nothing changes, in percent."""
    opened = []
    for _ in range(STREAMS):
        connection = http.client.HTTPConnection("127.0.0.1", visitor.port, timeout=60)
        headers = {"Host": visitor.authority, "Cookie": cookie}
        connection.request("GET", "/web/changes", headers=headers)
        assert connection.getresponse().status == 200  # and it reads nothing of the stream
        opened.append(connection)
    daemon = psutil.Process(site.pid)
    shares = []
    for is_open in (True, False):
        if not is_open:
            for connection in opened:
                connection.close()
            time.sleep(1)
        before = sum(daemon.cpu_times()[:2])
        time.sleep(STREAM_SECONDS)
        shares.append((sum(daemon.cpu_times()[:2]) - before) / STREAM_SECONDS * 100)
    return max(shares[0] - shares[1], 0.0)


def updates_cost(
    site: Site, owner: Site, visitor: Visitor, cookies: Sequence[str]
) -> tuple[float, int]:
    """Return percent of a core, and loads, of followed queues while a task changes each second.

    There is a page for each of `cookies`. `owner` submits. The same changes without a followed page
    are subtracted.
    """
    loads = []

    def follow(cookie: str, stop: threading.Event) -> None:
        headers = {"Host": visitor.authority, "Cookie": cookie}
        connection = http.client.HTTPConnection("127.0.0.1", visitor.port, timeout=90)
        connection.request("GET", "/web/changes", headers=headers)
        stream = connection.getresponse()
        assert stream.status == 200
        is_first = True
        while not stop.is_set() and (line := stream.readline()):
            if line.startswith(b"data:") and not is_first:
                assert visitor.get("/web/queue", Cookie=cookie, **{UPDATE: "1"}).status == 200
                loads.append(time.monotonic())
            is_first = is_first and not line.startswith(b"data:")
        stream.close()
        connection.close()

    daemon = psutil.Process(site.pid)
    shares = []
    for pages in (cookies, ()):
        stop = threading.Event()
        threads = [
            threading.Thread(target=follow, args=(cookie, stop), daemon=True) for cookie in pages
        ]
        for thread in threads:
            thread.start()
        before, until = sum(daemon.cpu_times()[:2]), time.monotonic() + UPDATE_SECONDS
        while time.monotonic() < until:
            owner.submit("--begin", "+9h", "-t", "9", "--wrap", "true")
            time.sleep(1)
        shares.append((sum(daemon.cpu_times()[:2]) - before) / UPDATE_SECONDS * 100)
        stop.set()
        for thread in threads:
            thread.join(90)
    return max(shares[0] - shares[1], 0.0), len(loads)


def first_paint(site: Site, visitor: Visitor) -> float:
    """Return the milliseconds until Chromium has painted the queue, the median of five."""
    if (reason := browser.missing()) is not None:
        require("chromium", reason)
    with browser.chromium() as running:
        page = running.new_page(base_url=f"http://{visitor.authority}")
        page.goto(site.run("web").stdout.strip())
        page.get_by_role("button", name="Sign in as").click()
        paints = []
        for _ in range(5):
            page.goto("/web/queue")
            paints.append(page.evaluate(PAINT))
    return float(sorted(paints)[2])


@pytest.mark.bench
def test_pages_with_many_jobs(tmp_path: Path, record: Record) -> None:
    """A million stored jobs beside a thousand; 10,000 tasks wait in both."""
    costs: dict[int, dict[str, float]] = {}
    for jobs in (FEW, STORED):
        site, visitor = site_with(tmp_path / str(jobs), jobs)
        try:
            cookie = visitor.sign_in(secret_of(site.run("web").stdout))
            for path in PAGES:
                assert visitor.get(path, Cookie=cookie).status == 200, path
            see = partial(visitor.get, Cookie=cookie)
            ask = partial(call, site.folder / "ms.sock", "GET")
            costs[jobs] = {
                **{path: cpu_of(site, see, path) for path in PAGES},
                **{path: cpu_of(site, ask, path) for path in PLAIN},
            }
            if jobs == STORED:
                record("first paint of the queue", first_paint(site, visitor), "ms")
                share, loads = updates_cost(site, site, visitor, [cookie] * STREAMS)
                assert loads >= STREAMS  # each page was updated
                record(f"{STREAMS} followed queues, changes each second", share, "% of a core")
                share = streams_cost(site, visitor, cookie)
                record(f"{STREAMS} followed pages, nothing changes", share, "% of a core")
        finally:
            site.close()
    for path in PAGES:
        record(
            f"{path}, {STORED:,} stored jobs",
            costs[STORED][path],
            "ms of CPU",
            peers={
                f"{FEW:,} stored jobs": costs[FEW][path],
                **{f"GET {plain}": costs[STORED][plain] for plain in PLAIN},
            },
        )


@pytest.mark.bench
@pytest.mark.root
def test_fifty_followed_pages(common_folder: Path, record: Record) -> None:
    """Of four accounts, at a site where 10,000 tasks wait and a job is submitted each second."""
    port = free_port()
    visitor = Visitor(port)
    with running_site(common_folder / "fifty", tables(port) + LEFT, PROGRAMS) as site:
        owner = site.by(A)
        owner.submit("--array", f"1-{OPEN}", "--begin", "+9h", "-t", "9", "--wrap", "true")
        cookies = [
            visitor.sign_in(secret_of(site.by(account).run("web").stdout))
            for account in (A, B, OPERATOR, KEEPER)
        ]
        share, loads = updates_cost(site, owner, visitor, (cookies * MANY)[:MANY])
        assert loads >= MANY  # each page was updated
        record(f"{MANY} followed queues, changes each second", share, "% of a core", target="5%")
