"""The daemon over PostgreSQL: jobs are submitted while the daemon or the server dies."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import require
from tests.e2e.conftest import TWO_LOCAL, Site
from tests.e2e.test_metrics import Remote, metrics_token
from tests.harness.http_calls import call
from tests.harness.ports import free_port
from tests.harness.postgresql import LOCKED, PASSWORD, Server, missing


def site_over(server: Server, folder: Path) -> Site:
    """Configure a site over a new database."""
    new_site = Site(folder)
    new_site.url = server.create()
    new_site.configure()
    return new_site


@pytest.fixture
def pg(tmp_path: Path, postgresql_server: Server) -> Iterator[Site]:
    """A site over a new database; its daemon is not running yet."""
    with closing(site_over(postgresql_server, tmp_path)) as new_site:
        yield new_site


@pytest.fixture
def own_server(common_folder: Path) -> Iterator[Server]:
    """A server that tests may stop and kill; it syncs to disk as in production."""
    if (reason := missing()) is not None:
        require("postgresql", reason)
    with Server(common_folder / "pg-own", settings=()) as server:
        yield server


@pytest.fixture
def own_site(tmp_path: Path, own_server: Server) -> Iterator[Site]:
    """A site over a new database of that server; its daemon is not running yet."""
    with closing(site_over(own_server, tmp_path)) as new_site:
        yield new_site


@pytest.mark.slow("boots a PostgreSQL server, and runs doctor and db check")
def test_jobs_run_and_the_story_replays(pg: Site) -> None:
    pg.start()
    good, bad = pg.submit("--wrap", "true"), pg.submit("--wrap", "exit 3")
    array = pg.submit("--array", "1-3", "--wrap", "true")
    rows = pg.until_ended(good, bad, array)
    assert [row["exit_code"] for row in rows] == [0, 3, 0, 0, 0]
    findings = {f["check"]: f for f in json.loads(pg.run("doctor", "--json", code=1).stdout)}
    # doctor must report that the tests' server has fsync off
    assert [check for check, f in findings.items() if not f["ok"]] == ["database"]
    assert "fsync off" in findings["database"]["text"]
    assert {row["ok"] for row in pg.json("db", "check")} == {True}
    assert f"process {pg.pid}" in pg.error("serve", code=1)
    assert pg.stop() == 0
    pg.replayed()


@pytest.mark.slow("kills and starts a daemon four times")
def test_the_daemon_is_killed_at_random(pg: Site) -> None:
    """Every accepted job starts exactly once."""
    draw = random.Random(11)
    run_log = pg.folder / "ran"
    accepted = []
    pg.start()
    for _ in range(4):
        for _ in range(draw.randrange(2, 5)):
            accepted.append(pg.submit("--wrap", f"echo $METASCHED_JOB_ID >> '{run_log}'"))
        time.sleep(draw.random() * 0.3)
        pg.stop(signal.SIGKILL)
        pg.start()
    rows = pg.until_ended()
    assert {row["state"] for row in rows} == {"completed"}
    assert Counter(run_log.read_text().split()) == Counter(str(job) for job in accepted)
    pg.stop()
    pg.replayed()


@pytest.mark.slow("boots a server and stops it; a daemon tries every two seconds")
def test_health_reports_an_outage_though_nothing_is_to_be_stored(
    own_site: Site, own_server: Server
) -> None:
    """An idle scheduler checks its database every two seconds only, unless a request fails."""
    socket = own_site.folder / "ms.sock"
    own_site.start()
    assert call(socket, "GET", "/health").status == 200
    own_server.stop()
    submission: dict[str, object] = {"jobs": [], "scripts": {}, "environments": {}}
    failed = call(socket, "POST", "/jobs", submission, {"Idempotency-Key": "outage"})
    assert failed.status == 503
    health = call(socket, "GET", "/health")
    assert health.status == 503
    assert health.headers["retry-after"].isdecimal()
    assert "the database is away" in health.json["error"]
    own_server.start()
    own_site.until(lambda: call(socket, "GET", "/health").status == 200)
    assert own_site.until_ended(own_site.submit("--wrap", "true"))[0]["state"] == "completed"


@pytest.mark.slow("boots a server and stops it; a daemon tries every two seconds")
def test_metrics_are_there_while_the_database_is_not(own_site: Site, own_server: Server) -> None:
    port = free_port()
    own_site.configure(extra=f'[tcp]\nlisten = "127.0.0.1:{port}"\n')
    own_site.start()
    scraper, unused = (Remote(port, metrics_token(own_site)) for _ in range(2))
    user = Remote(port, own_site.run("token", "create").stdout.strip())
    assert scraper.get("/metrics")[0] == user.get("/metrics")[0] == 200
    own_server.stop()
    own_site.until(lambda: Remote(port, "").get("/ready")[0] == 503)
    # all callers share a look at the database each second, so the last one may be older
    own_site.until(lambda: "metasched_database_up 0.0" in scraper.get("/metrics")[1])
    assert scraper.get("/metrics")[0] == 200
    # what was never seen to be valid, and other rights, need the database
    assert unused.get("/metrics")[0] == user.get("/metrics")[0] == 503
    own_server.start()
    own_site.until(lambda: Remote(port, "").get("/ready")[0] == 200)
    own_site.until(lambda: "metasched_scheduler_running 1.0" in scraper.get("/metrics")[1])


@pytest.mark.slow("stops and starts a server three times")
def test_the_server_goes_away_while_jobs_stream(own_site: Site, own_server: Server) -> None:
    """The server is killed, stopped and restarted; no job is lost or starts twice."""
    run_log = own_site.folder / "ran"
    accepted = []
    own_site.start()
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGQUIT):
        for _ in range(3):
            accepted.append(own_site.submit("--wrap", f"echo $METASCHED_JOB_ID >> '{run_log}'"))
        own_server.stop(number)
        message = own_site.error("submit", "--wrap", f"echo refused >> '{run_log}'", code=4)
        assert "the database is away" in message
        assert "nothing changed, try again" in message
        # at once, while the service is still ending its tasks
        health = call(own_site.folder / "ms.sock", "GET", "/health")
        assert health.status == 503
        assert health.headers["retry-after"].isdecimal()
        own_server.start()
        own_site.until(own_site.cluster_rows)
    rows = own_site.until_ended()
    assert {row["state"] for row in rows} == {"completed"}
    assert sorted(row["job"] for row in rows) == accepted
    assert Counter(run_log.read_text().split()) == Counter(str(job) for job in accepted)
    log = own_site.log.read_text()
    assert "the database is away" in log
    assert "the database is back" in log
    own_site.stop()
    own_site.replayed()


@pytest.mark.slow("two daemons; the standby takes over once the first has hung")
def test_a_standby_takes_over_and_the_first_can_write_nothing_more(
    pg: Site, postgresql_server: Server
) -> None:
    """The first daemon hangs and its connections are cut; the standby takes over its job."""
    pg.start()
    job = pg.submit("--wrap", "sleep 2; exit 6")
    first = pg._daemon
    assert first is not None
    other = pg.folder / "other.toml"
    other.write_text(pg.config.read_text().replace("ms.sock", "other.sock"))
    pg.config = other
    pg.options = ["--standby"]
    pg.launch()
    pg.until(lambda: "standby: another daemon" in pg.log.read_text())
    first.send_signal(signal.SIGSTOP)
    postgresql_server.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE application_name LIKE 'metasched process {first.pid} %'"
    )
    pg.until(pg.cluster_rows)
    first.send_signal(signal.SIGCONT)
    assert first.wait(60) == 1
    assert "is active on postgresql" in pg.log.read_text()
    assert pg.until_ended(job)[0]["exit_code"] == 6
    pg.stop()
    pg.replayed()


@pytest.mark.slow("a daemon is started with each of seven wrong databases")
def test_a_database_fault_is_reported_in_one_line(pg: Site, postgresql_server: Server) -> None:
    server = postgresql_server
    name = pg.url.partition("/ms")[2].partition("?")[0]
    server.sql(
        "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C' OWNER metasched"
    )
    locked = server.url(f"ms{name}", LOCKED)
    for url, excerpts in (
        (server.url("absent"), ('"absent" does not exist', "create it")),
        (locked, ("no password supplied", ".pgpass")),
        (locked.replace("@", ":s3same@"), ("password authentication failed", ".pgpass")),
        (server.url("latin"), ("encoding is LATIN1", "UTF8")),
        ("postgresql:///x?colour=red", ('"colour"', "[daemon] database")),
        ("postgresql://db..example.org/x", ("no host name", "[daemon] database")),
    ):
        pg.url = url
        pg.configure()
        message = pg.error("serve", code=1)
        assert all(excerpt in message for excerpt in excerpts), message
        assert "s3same" not in message
    pg.url = locked.replace("@", f":{PASSWORD.replace(' ', '%20')}@")
    pg.configure(TWO_LOCAL)
    assert "may create tables" in pg.error("serve", code=1)


@pytest.mark.slow("starts daemons without each of three databases, and doctor beside them")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_that_waits_for_its_database_ends_at_a_signal(
    pg: Site, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")  # where no name server answers
    for url, excerpt in (
        (f"postgresql:///x?host={pg.folder}/nowhere", "No such file"),
        ("postgresql://127.0.0.1:1/x", "refused"),
        ("postgresql://no-such-host.invalid/x", "no-such-host.invalid"),
    ):
        pg.url = url
        pg.configure()
        pg.launch()
        pg.until((pg.folder / "ms.sock").exists)
        assert excerpt in pg.error("status", code=4)
        [database] = [
            row
            for row in json.loads(pg.run("doctor", "--json", code=1).stdout)
            if row["check"] == "database"
        ]
        assert excerpt in database["text"]
        assert "[daemon] database is right" in database["mend"]
        assert pg.stop(number) == 0
        line, *_ = [line for line in pg.log.read_text().splitlines() if excerpt in line]
        assert "retrying every 2 s" in line
        pg.log.write_text("")


@pytest.mark.slow("a daemon tries every two seconds; a server starts twice")
def test_a_daemon_waits_for_a_database_that_is_away_at_its_start(
    own_site: Site, own_server: Server
) -> None:
    """The daemon refuses requests with the cause and continues once the server is up."""
    socket = own_site.folder / "ms.sock"
    own_server.stop()
    own_site.launch()
    own_site.until(socket.exists)
    for method, target in (
        *(("GET", "/health"), ("GET", "/jobs?all=true"), ("GET", "/jobs/1/story")),
        *(("GET", "/reservations"), ("GET", "/tokens"), ("POST", "/tokens")),
    ):
        body = {"seconds": 1} if method == "POST" else None
        refused = call(socket, method, target, body)
        assert refused.status == 503, target
        assert refused.headers["retry-after"].isdecimal()
        assert "No such file" in refused.json["error"]
    assert "nothing changed, try again" in own_site.error("submit", "--wrap", "true", code=4)
    assert "the database is away" in own_site.log.read_text()
    own_server.start()
    own_site.until(own_site.cluster_rows)
    assert "the database is back" in own_site.log.read_text()
    assert own_site.until_ended(own_site.submit("--wrap", "true"))[0]["state"] == "completed"
    assert own_site.stop() == 0
    own_site.replayed()
    # a permanent fault is an error also after a wait
    own_server.stop()
    own_site.url = own_server.url("absent")
    own_site.configure()
    own_site.launch()
    own_site.until(socket.exists)
    daemon = own_site._daemon
    assert daemon is not None
    own_server.start()
    assert daemon.wait(60) == 1
    assert '"absent" does not exist; create it' in own_site.log.read_text()
    assert "Traceback" not in own_site.log.read_text()
    assert not socket.exists()


def test_a_session_of_a_hung_server_ends(own_server: Server) -> None:
    """Without the limit the statement waits for as long as the server hangs."""
    import psycopg

    from metasched.db.postgresql_connection import TimeoutConnection

    with TimeoutConnection.connect(own_server.create()) as session:
        session.silence_timeout = 1
        own_server.hang()
        try:
            with pytest.raises(psycopg.OperationalError, match="no answer in 1 s"):
                session.execute("SELECT 1")
        finally:
            own_server.wake()
        assert session.closed


@pytest.mark.slow("requests wait for a stopped server until their time limit")
def test_the_server_hangs_and_cuts_nothing(own_site: Site, own_server: Server) -> None:
    """The daemon detects and logs it, answers meanwhile, and continues with the server."""
    run_log = own_site.folder / "ran"
    payload = f"echo $METASCHED_JOB_ID >> '{run_log}'"
    own_site.start()
    accepted = [
        own_site.submit("--wrap", f"{payload}; sleep 3"),
        own_site.submit("--wrap", payload),
    ]
    own_server.hang()
    try:
        message = own_site.error("submit", "--wrap", f"echo refused >> '{run_log}'", code=4)
        assert "the database is away" in message
        assert "nothing changed, try again" in message
        own_site.until(lambda: "the database is away (" in own_site.log.read_text())
        # from now on requests fail at once, even without a query to the server
        assert call(own_site.folder / "ms.sock", "GET", "/health").status == 503
        assert "the database is away" in own_site.error("status", code=4)
    finally:
        own_server.wake()
    own_site.until(lambda: own_site.json("clusters"))
    accepted.append(own_site.submit("--wrap", payload))
    rows = own_site.until_ended()
    assert [(row["job"], row["state"]) for row in rows] == [(job, "completed") for job in accepted]
    assert Counter(run_log.read_text().split()) == Counter(str(job) for job in accepted)
    assert "the database is back" in own_site.log.read_text()
    own_site.stop()
    own_site.replayed()
