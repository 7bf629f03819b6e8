"""A million ended jobs: a page of their list, their pruning, and what a client waits meanwhile."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Engine

from metasched.client.client import Client
from metasched.client.connection import Connection
from metasched.db.ledger import Ledger
from metasched.db.pruning import prune
from tests.bench.conftest import Record
from tests.bench.test_daemon import submission
from tests.bench.test_requests import cpu_seconds
from tests.conftest import require
from tests.e2e.conftest import ONE_LOCAL, Site
from tests.harness.databases import database_from_url
from tests.harness.postgresql import Server, missing

JOBS = int(os.environ.get("METASCHED_BENCH_JOBS", "1000000"))
POSTGRESQL_JOBS = (JOBS // 50, JOBS // 10)  # the cost of a job should be that of fewer jobs
PAGE, PAGES = 100, 200  # rows of a page, and how often it is listed
CALLS_FOR = 60.0  # seconds of calls, calm and during the pruning
# Each job has three events with two changes each, of a usual size. The first ids are of the site.
FILL = """
INSERT INTO content VALUES ('d', '#!/bin/sh');
CREATE TEMP TABLE number AS
  WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < %(jobs)d)
  SELECT n FROM r;
INSERT INTO job (id, user, name, submitted, priority, priority_parts, spec, script,
                 environment, payload)
  SELECT n, 'u' || (n %% 100), 'j', 1.7e9 + n, 5, '[]', '%(spec)s', 'd', 'd', '%(spec)s'
  FROM number;
INSERT INTO task (job, task_index, state, reason, held, attempts, moves, ended,
                  ignore_rejections_until, user)
  SELECT n, 0, 'completed', '', false, 1, 0, 1.7e9 + n, 0, 'u' || (n %% 100) FROM number;
INSERT INTO attempt (job, task_index, number, dispatch_id, cluster, state, dispatched, native_id,
                     started, ended, manager_reason, node, rejected, restarts, has_started, fence,
                     revoking, revoked, lease_expired)
  SELECT n, 0, 1, n, 'here', 'completed', 1.7e9 + n, '7', 1.7e9 + n, 1.7e9 + n, '', '', false, 0,
         true, '', false, false, false
  FROM number;
INSERT INTO event SELECT 1000 + 3 * n, 1.7e9 + n, 'JobSubmitted', '%(spec)s' FROM number;
INSERT INTO event SELECT 1000 + 3 * n + 1, 1.7e9 + n, 'DispatchStarted', '%(short)s' FROM number;
INSERT INTO event SELECT 1000 + 3 * n + 2, 1.7e9 + n, 'ListingReceived', '%(short)s' FROM number;
INSERT INTO change (event, time, job, task_index, attempt, after, reason, cause)
  SELECT 1000 + 3 * n + k / 2, 1.7e9 + n, n, 0, 1, 'running', '', 'its manager lists it as running'
  FROM number, (SELECT 0 AS k UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION
                SELECT 5);
"""
SPEC = '{"id": 1, "submitted": 1000000000.0, "estimated": 3600.0, "user": "ada", "tasks": 1}'.ljust(
    260
)
SHORT = '{"time": 1000000000.0, "job": 1, "dispatch": 1}'


def fill(database: Path) -> None:
    """Store ended jobs, each with a task, an attempt and the story of its life."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        statements = FILL % {"jobs": JOBS, "spec": SPEC, "short": SHORT}
        connection.executescript(f"BEGIN; {statements} COMMIT;")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@pytest.fixture
def with_history(site: Site) -> Site:
    """A site whose database has a million ended jobs; its daemon does not run."""
    site.configure(ONE_LOCAL)
    site.start()
    site.stop()
    fill(site.database)
    return site


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_prune_a_million_jobs(with_history: Site, record: Record) -> None:
    engine = database_from_url(with_history.url, with_history.folder).open_existing()
    begun, wall = time.process_time(), time.monotonic()
    try:
        deleted = prune(engine, 3e9)
    finally:
        engine.dispose()
    assert deleted["jobs"] == JOBS - 1
    seconds = time.process_time() - begun
    record("prune 1,000,000 jobs", seconds * 1e6 / JOBS, "s of CPU", target="under 120 s")
    record("the same by the clock", (time.monotonic() - wall) * 1e6 / JOBS, "s")


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_a_page_of_a_user_with_a_million_jobs(with_history: Site, record: Record) -> None:
    """Processor time of the daemon for a page of the jobs of one of 100 users."""
    site = with_history
    keep_all = site.config.read_text().replace("[daemon]\n", '[daemon]\nkeep = "3000d"\n')
    site.config.write_text(keep_all)
    site.start()
    connection, daemon = Connection(site.folder / "ms.sock"), psutil.Process(site.pid)
    page = {"user": "u7", "all": "1", "limit": PAGE}

    def rows() -> int:
        answer, _ = connection.request("GET", "/jobs", page)
        assert isinstance(answer, list)
        return len(answer)

    assert rows() == PAGE
    before = cpu_seconds(daemon)
    for _ in range(PAGES):
        rows()
    used = (cpu_seconds(daemon) - before) / PAGES
    name = f"`status` of a user, a page of {PAGE}, {JOBS:,} ended jobs"
    record(name, used * 1e3, "ms of CPU", target="at most 20 ms")


def fill_postgresql(engine: Engine, jobs: int) -> None:
    """Store the rows of `fill` in PostgreSQL, with statistics as autovacuum would collect them."""
    numbers = f"CREATE TEMP TABLE number AS SELECT n FROM generate_series(1, {jobs}) AS n;"
    start, end = FILL.index("CREATE TEMP TABLE"), FILL.index("INSERT INTO job")
    statements = FILL[:start] + numbers + FILL[end:]
    statements %= {"jobs": jobs, "spec": SPEC, "short": SHORT}
    statements = re.sub(r"\buser\b", '"user"', statements)
    statements = statements.replace("5);", "5) AS ks;")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(statements.replace("%", "%%"))
        connection.exec_driver_sql("ANALYZE")


def seconds_on_postgresql(server: Server, folder: Path, jobs: int) -> tuple[float, float]:
    """Prune so many jobs of a new database; return seconds of our CPU, and by the clock."""
    database = database_from_url(server.create(), folder)
    with database.acquire_writer() as writer:
        Ledger(writer.engine, writer).identity(1e9)
    engine = database.open_existing()
    fill_postgresql(engine, jobs)
    begun, wall = time.process_time(), time.monotonic()
    deleted = prune(engine, 3e9)
    seconds, wall = time.process_time() - begun, time.monotonic() - wall
    engine.dispose()
    assert deleted["jobs"] == jobs - 1
    return seconds, wall


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_prune_on_postgresql(common_folder: Path, tmp_path: Path, record: Record) -> None:
    if (reason := missing()) is not None:
        require("postgresql", reason)
    with Server(common_folder / "pg-prune", settings=()) as server:
        few, many = (seconds_on_postgresql(server, tmp_path, n) for n in POSTGRESQL_JOBS)
    for name, index in (("CPU of metasched", 0), ("the clock", 1)):
        of_few, of_many = (
            spent[index] / jobs * 1e3
            for spent, jobs in zip((few, many), POSTGRESQL_JOBS, strict=True)
        )
        record(
            f"prune a job of {POSTGRESQL_JOBS[1]:,}, PostgreSQL, by {name}",
            of_many,
            "ms",
            peers={f"of {POSTGRESQL_JOBS[0]:,}": of_few},
            target="at most 1.5 x peer",
        )


def worst_calls(client: Client, folder: Path) -> dict[str, float]:
    """Return the worst latency in seconds of each call, repeated for `CALLS_FOR` seconds."""
    held = submission(folder, held=True)
    [job] = client.submit(held)
    calls: dict[str, Callable[[], object]] = {
        "submit": lambda: client.submit(held),
        "status": lambda: client.jobs([str(job["job"])]),
        "clusters": client.clusters,
    }
    worst = dict.fromkeys(calls, 0.0)
    until = time.monotonic() + CALLS_FOR
    while time.monotonic() < until:
        for name, call in calls.items():
            begun = time.monotonic()
            call()
            worst[name] = max(worst[name], time.monotonic() - begun)
        time.sleep(0.02)
    return worst


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_calls_while_a_million_jobs_are_pruned(with_history: Site, record: Record) -> None:
    site = with_history
    client = Client(site.folder / "ms.sock")
    keep_all = site.config.read_text().replace("[daemon]\n", '[daemon]\nkeep = "3000d"\n')
    site.config.write_text(keep_all)
    site.start()
    calm = worst_calls(client, site.folder)
    site.stop()
    site.config.write_text(keep_all.replace("3000d", "1d"))
    site.start()
    pruning = worst_calls(client, site.folder)
    assert client.jobs(["500000"] if JOBS > 500_000 else [str(JOBS - 1)])  # it is not over
    for name, seconds in pruning.items():
        record(
            f"worst {name} during pruning",
            seconds * 1e3,
            "ms",
            peers={"calm": calm[name] * 1e3},
            target="at most 3 x peer",
        )
    record(
        "worst call of another client during pruning",
        max(pruning.values()) * 1e3,
        "ms",
        peers={"calm": max(calm.values()) * 1e3},
        target="at most 3 x peer",
    )
