"""Reports of a month with a million ended jobs, in both databases."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, text

from metasched.db.daily_use import day_of
from metasched.db.ledger import Ledger
from metasched.db.period_use import PeriodPass
from metasched.db.queries import Queries
from metasched.db.reports import ReportKey, ReportKind, ReportQuery
from tests.bench.conftest import Record
from tests.conftest import require
from tests.harness.counted_history import count_history
from tests.harness.databases import database_from_url
from tests.harness.postgresql import Server, missing

JOBS = int(os.environ.get("METASCHED_BENCH_JOBS", "1000000"))
REPEATS = 5
# Jobs end evenly over March 2026; each has one attempt, after waits of up to 100,000 s.
FILL = """
INSERT INTO content VALUES ('d', '#!/bin/sh');
CREATE TEMP TABLE number AS
  WITH RECURSIVE r(n) AS (SELECT CAST(1 AS BIGINT) UNION ALL SELECT n + 1 FROM r WHERE n < {jobs})
  SELECT n, 1772452800.0 + n * 2505600.0 / {jobs} AS e, 'u' || (n * 7 % 300) AS u,
         (n * 7919) % 100000 AS w FROM r;
INSERT INTO job (id, "user", name, submitted, priority, priority_parts, spec, script,
                 environment, payload)
  SELECT n, u, 'j', e - 600 - w, 5, '[]',
         '{{"id":' || n || ',"submitted":' || (e - 600 - w) || ',"estimated":3600.0,"cpus":' ||
         (1 + n % 64) || ',"user":"' || u || '","account":"a' || (n * 7 % 10) ||
         '","group":"g' || (n * 7 % 20) || '","licences":{{}}}}', 'd', 'd', '{{}}'
  FROM number;
INSERT INTO task (job, task_index, state, reason, held, attempts, moves, ended,
                  ignore_rejections_until, "user")
  SELECT n, 0, 'completed', '', false, 1, 0, e, 0, u FROM number;
INSERT INTO attempt (job, task_index, number, dispatch_id, cluster, state, dispatched, native_id,
                     started, ended, manager_reason, node, rejected, cpu_seconds, restarts,
                     has_started, fence, revoking, revoked, lease_expired)
  SELECT n, 0, 1, n, 'cluster' || (n / 300 % 3), 'completed', e - 600, '7', e - 600, e, '', 'n1',
         false, 300, 0, false, '', false, false, false
  FROM number;
INSERT INTO licence (name, total, leased, excess, outside, used_outside)
  SELECT 'l' || n, 100000, 0, 0, 0, '{{}}' FROM number WHERE n <= 10;
INSERT INTO lease (id, licence, job, task_index, attempt, tokens, since, until, reason)
  SELECT n, 'l' || (1 + n % 10), n, 0, 1, 1 + n % 4, e - 600, e, '' FROM number;
"""
OF_JOBS = """
SELECT job."user", count(*), sum(attempt.ended - attempt.started), sum(cpu_seconds)
FROM attempt JOIN job ON job.id = attempt.job
WHERE attempt.ended >= 1772452800 AND attempt.started IS NOT NULL GROUP BY job."user"
"""
REPORTS = {
    "use by user": (ReportKind.USE, (ReportKey.USER,)),
    "use by account, class, cluster, day": (
        ReportKind.USE,
        (ReportKey.ACCOUNT, ReportKey.CLASS, ReportKey.CLUSTER, ReportKey.DAY),
    ),
    "waits by group": (ReportKind.WAITS, (ReportKey.GROUP,)),
    "waits by user, cluster": (ReportKind.WAITS, (ReportKey.USER, ReportKey.CLUSTER)),
    "deadlines by account": (ReportKind.DEADLINES, (ReportKey.ACCOUNT,)),
    "licences by user": (ReportKind.LICENCES, (ReportKey.USER,)),
}


def sum_periods(connection: Connection) -> None:
    """Sum the days and months that are over, as the daemon does within an hour."""
    periods = PeriodPass(day_of(time.time()))
    while periods.sum_portion(connection):
        pass


def fill(connection: Connection) -> None:
    for statement in FILL.format(jobs=JOBS).split(";\n"):
        if statement.strip():
            connection.execute(text(statement.replace(":", r"\:")))


def measure(engine: Engine, name: str, record: Record) -> None:
    with engine.begin() as connection:
        fill(connection)
        count_history(connection)
        begun = time.process_time()
        sum_periods(connection)
        record(f"{name}: sum the days of a month, once", time.process_time() - begun, "s of CPU")
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")
    queries = Queries(engine)

    def by_the_clock(read: Callable[[], object]) -> float:
        begun = time.monotonic()
        read()
        return time.monotonic() - begun

    def read_jobs() -> None:
        with engine.connect() as connection:
            assert len(connection.execute(text(OF_JOBS)).all()) == 300

    peer = min(by_the_clock(read_jobs) for _ in range(2))
    for title, (kind, by) in REPORTS.items():
        query = ReportQuery(kind=kind, first=20260301, last=20260331, by=by)
        seconds, cpu = [], []
        for _ in range(REPEATS):
            begun = time.process_time()
            seconds.append(by_the_clock(lambda query=query: queries.report(query)))  # type: ignore[misc]
            cpu.append(time.process_time() - begun)
        record(
            f"{name}: {title}, by the clock",
            min(seconds) * 1e3,
            "ms",
            peers={"from the jobs": peer * 1e3} if title == "use by user" else {},
            target="under 2,000 ms",
        )
        record(f"{name}: {title}", min(cpu) * 1e3, "ms of CPU")
    rows, total = queries.report(
        ReportQuery(kind=ReportKind.USE, first=20260301, last=20260331, by=(ReportKey.USER,))
    )
    assert (len(rows), total["jobs"]) == (300, JOBS)
    engine.dispose()


@pytest.mark.bench
@pytest.mark.cpu
@pytest.mark.timeout(3600)
def test_reports_from_sqlite(
    tmp_path: Path, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    database = database_from_url("sqlite:///ms.db", tmp_path)
    Ledger(database.open()).close()
    measure(database.open_existing(), "SQLite", record)


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_reports_from_postgresql(
    common_folder: Path, tmp_path: Path, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (reason := missing()) is not None:
        require("postgresql", reason)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    with Server(common_folder / "pg-reports", settings=()) as server:
        database = database_from_url(server.create(), tmp_path)
        Ledger(database.open()).close()
        measure(database.open_existing(), "PostgreSQL", record)
