"""Pages of `events` over a month with a million jobs, each of which made a record."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from metasched.db.audit import AuditFilter
from metasched.db.ledger import Ledger
from metasched.db.queries import Queries
from tests.bench.conftest import Record
from tests.conftest import require
from tests.harness.databases import database_from_url
from tests.harness.postgresql import Server, missing

RECORDS = 1_000_000
FIRST = 1_772_323_200  # epoch seconds: 2026-03-01 in UTC
STEP = 31 * 86400 * 1_000_000 // RECORDS  # microseconds from a record to the next
PAGE = 1_000  # records
REPEATS = 3
FILL = f"""
WITH RECURSIVE number(n) AS (
  SELECT CAST(1 AS BIGINT) UNION ALL SELECT n + 1 FROM number WHERE n < {RECORDS}
)
INSERT INTO audit (id, time, kind, actor, owner, job, task_index, cluster, licence, cause, count,
                   details)
SELECT {FIRST * 1_000_000} + n * {STEP}, {FIRST} + n * {STEP / 1e6}, 'kind' || (n % 10), '',
       'user' || (n % 300), n, 0, 'cluster' || (n % 3), '', 'a cause', 1, '{{}}'
FROM number
"""
DAY = (FIRST + 10 * 86400.0, FIRST + 11 * 86400.0)
FILTERS = {
    "a day": AuditFilter(since=DAY[0], until=DAY[1]),
    "a user": AuditFilter(since=FIRST, user="user7"),
    "a job": AuditFilter(since=FIRST, job=RECORDS // 2),
    "a kind on a cluster": AuditFilter(since=FIRST, kind="kind3", cluster="cluster1"),
    "no record of the month": AuditFilter(since=FIRST, kind="none", user="user7"),
    "what a user may see": AuditFilter(since=FIRST, visible_to="user7"),
}


def measure(engine: Engine, name: str, record: Record) -> None:
    with engine.begin() as connection:
        connection.execute(text(FILL))
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")
    queries = Queries(engine)
    for title, audit_filter in FILTERS.items():
        seconds = []
        for _ in range(REPEATS):
            begun = time.monotonic()
            rows, _ = queries.audit_page(audit_filter, 0, PAGE, newest=False)
            seconds.append(time.monotonic() - begun)
        assert bool(rows) == (title != "no record of the month")
        record(f"{name}: {title}", min(seconds) * 1e3, "ms", target="under 2,000 ms")
    engine.dispose()


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_events_from_sqlite(tmp_path: Path, record: Record) -> None:
    database = database_from_url("sqlite:///ms.db", tmp_path)
    Ledger(database.open()).close()
    measure(database.open_existing(), "SQLite", record)


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_events_from_postgresql(common_folder: Path, tmp_path: Path, record: Record) -> None:
    if (reason := missing()) is not None:
        require("postgresql", reason)
    with Server(common_folder / "pg-events", settings=()) as server:
        database = database_from_url(server.create(), tmp_path)
        Ledger(database.open()).close()
        measure(database.open_existing(), "PostgreSQL", record)
