"""Audit records in both databases: pages, visibility, plans, pruning, failed commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, delete, event, insert, select, text
from sqlalchemy.exc import OperationalError

from metasched.core.audit_trail import AuditTrail
from metasched.core.events import (
    ClusterDrained,
    ClusterResumed,
    ClusterUnreachable,
    CoreEvent,
    DaemonStarted,
)
from metasched.core.scheduler import Core
from metasched.db import audit as audit_rows
from metasched.db.audit import AuditFilter, first_id, last_id, read_page
from metasched.db.ledger import Ledger
from metasched.db.pruning import PruningPass
from metasched.db.queries import Queries
from metasched.db.schema import audit
from metasched.db.store import Database, StorageFailed
from metasched.model.audit import OPERATORS_ONLY, PUBLIC, AuditKind, AuditRecord
from metasched.model.cluster import Cluster
from metasched.policies.policy import Policy

NOW = 1_700_000_000.0
USERS = ("ada", "bob")
KINDS = (AuditKind.CLUSTER_DRAINED, AuditKind.JOB_UNKNOWN, AuditKind.DEFECT)
EVERYTHING = (0, 2**62)


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    engine = database.open()
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    opened = Ledger(database.open())
    yield opened
    opened.close()


def start(ledger: Ledger, at: float = NOW) -> Core:
    core = Core()
    ledger.restore(core, 100)
    started = DaemonStarted(at, "cafe", Policy(), (Cluster(name="alpha", adapter="local"),))
    ledger.record([(started, core.step(started))])
    return core


def rows_of(ledger: Ledger, **filters: Any) -> list[dict[str, Any]]:
    return ledger.audit_page(AuditFilter(**filters), 0, 10_000)[0]


def kinds_of(ledger: Ledger, **filters: Any) -> list[str]:
    return [row["kind"] for row in rows_of(ledger, **filters)]


# Pages

records = st.builds(
    AuditRecord,
    time=st.sampled_from([NOW, NOW + 1, NOW + 1.5, NOW + 60, NOW - 30]),
    kind=st.sampled_from(KINDS),
    actor=st.sampled_from(["", "root", *USERS]),
    owner=st.sampled_from([PUBLIC, OPERATORS_ONLY, *USERS]),
    job=st.none() | st.integers(1, 3),
    cluster=st.sampled_from(["", "alpha", "beta"]),
)
filters = st.builds(
    AuditFilter,
    since=st.none() | st.sampled_from([NOW - 30, NOW, NOW + 1, NOW + 100]),
    until=st.none() | st.sampled_from([NOW - 30, NOW, NOW + 1, NOW + 100]),
    user=st.none() | st.sampled_from(USERS),
    cluster=st.none() | st.sampled_from(["alpha", "beta"]),
    job=st.none() | st.integers(1, 3),
    kind=st.none() | st.sampled_from(KINDS),
)


def passes(record: AuditRecord, wanted: AuditFilter) -> bool:
    me = wanted.visible_to
    if me is not None and record.owner not in (me, PUBLIC):
        return False
    if me is not None and record.owner == PUBLIC and (wanted.user or wanted.job):
        return False  # who acted is hidden, and public records have no job
    return all(
        (
            wanted.since is None or record.time >= wanted.since,
            wanted.until is None or record.time < wanted.until,
            wanted.user is None or wanted.user in (record.owner, record.actor),
            wanted.cluster in (None, record.cluster),
            wanted.job in (None, record.job),
            wanted.kind in (None, record.kind),
        )
    )


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    stored=st.lists(records, max_size=25),
    audit_filter=filters,
    me=st.none() | st.sampled_from(USERS),
    size=st.integers(1, 4),
)
def test_pages_have_each_record_that_passes_once(
    connection: Connection,
    stored: Sequence[AuditRecord],
    audit_filter: AuditFilter,
    me: str | None,
    size: int,
) -> None:
    if me is not None and audit_filter.user is not None:
        audit_filter = replace(audit_filter, user=me)  # the API refuses others
    audit_filter = replace(audit_filter, visible_to=me)
    connection.execute(delete(audit))
    audit_rows.store(connection, stored, 0)
    ids = list(connection.execute(select(audit.c.id).order_by(audit.c.id)).scalars())
    expected = [id for id, record in zip(ids, stored, strict=True) if passes(record, audit_filter)]
    read, after = list[int](), 0
    while page := read_page(connection, audit_filter, (after, EVERYTHING[1]), size):
        read += [row["id"] for row in page]
        after = read[-1]
    newest = read_page(connection, audit_filter, EVERYTHING, size, newest=True)
    connection.rollback()
    assert read == expected
    assert [row["id"] for row in newest] == expected[-size:]


@pytest.mark.parametrize("me", [None, "a\0b"])
@pytest.mark.parametrize("job", [None, 2**63 - 1])
def test_any_text_and_number_may_be_asked_for(
    connection: Connection, me: str | None, job: int | None
) -> None:
    text = "a\0b'%\\"
    audit_filter = AuditFilter(
        user=text, cluster=text, job=job, kind=text, visible_to=me, since=0.0
    )
    assert read_page(connection, audit_filter, EVERYTHING, 10) == []


def test_ids_grow_though_the_clock_is_set_back(connection: Connection) -> None:
    record = AuditRecord(time=NOW, kind=AuditKind.DEFECT)
    earlier = replace(record, time=NOW - 1000)
    last = audit_rows.store(connection, [record, record, earlier], 0)
    assert last == first_id(NOW) + 2
    assert last_id(connection) == last
    assert last_id(connection, "ada") == last


def test_a_user_learns_nothing_of_the_position_of_others(ledger: Ledger) -> None:
    start(ledger)
    secret = AuditRecord(
        time=NOW + 5, kind=AuditKind.CREDENTIAL_REFUSED, owner=OPERATORS_ONLY, cause="x"
    )
    ledger.record_notices([secret])
    ledger.commit_group()
    _, position = ledger.audit_page(AuditFilter(visible_to="ada"), 0, 10)
    assert position < first_id(NOW + 5)
    _, position = ledger.audit_page(AuditFilter(), 0, 10)
    assert position >= first_id(NOW + 5)


# Transactions


def test_records_are_stored_with_their_event_and_not_twice(ledger: Ledger) -> None:
    core = start(ledger)
    drained = ClusterDrained(NOW, "alpha", "root", "disk\0full\nforged")
    silent = ClusterUnreachable(NOW + 1, "alpha", "no route")
    ledger.record([(event, core.step(event)) for event in (drained, silent)])
    expected = ["policy_changed", "cluster_drained", "cluster_unreachable"]
    assert kinds_of(ledger) == expected
    assert rows_of(ledger)[1]["cause"].isprintable()
    for _ in range(2):  # restarts of the daemon
        core = start(ledger, NOW + 2)
        ledger.record([(silent, core.step(silent))])
        assert kinds_of(ledger) == expected
    resumed = ClusterResumed(NOW + 3, "alpha", "eve")
    ledger.record([(resumed, core.step(resumed))])
    row = rows_of(ledger)[-1]
    assert (row["actor"], row["cause"][:15]) == ("eve", "drained by root")
    assert rows_of(ledger, kind="cluster_drained")[0]["actor"] == "root"


def test_a_failed_commit_stores_neither_event_nor_record(ledger: Ledger) -> None:
    core = start(ledger)
    logged: list[AuditRecord] = []
    ledger.on_audit = logged.extend

    def fail(_: object) -> None:
        raise OperationalError("COMMIT", {}, Exception("disk I/O error"))

    drained = ClusterDrained(NOW, "alpha", "root")
    event.listen(Engine, "commit", fail)
    try:
        with pytest.raises(StorageFailed):
            ledger.record([(drained, core.step(drained))])
    finally:
        event.remove(Engine, "commit", fail)
    assert logged == []
    core = start(ledger, NOW + 1)
    assert kinds_of(ledger) == ["policy_changed"]
    ledger.record([(drained, core.step(drained))])
    assert kinds_of(ledger) == ["policy_changed", "cluster_drained"]
    assert [record.kind for record in logged] == [AuditKind.CLUSTER_DRAINED]


def test_a_replay_of_the_stored_events_gives_the_stored_records(ledger: Ledger) -> None:
    core = start(ledger)
    events: tuple[CoreEvent, ...] = (
        ClusterDrained(NOW + 1, "alpha", "root", "a"),
        ClusterUnreachable(NOW + 2, "alpha", "b"),
        ClusterUnreachable(NOW + 3, "alpha", "c"),
        ClusterResumed(NOW + 4, "alpha", "eve"),
    )
    for at, stored in enumerate(events):
        if at == 2:
            core = start(ledger, NOW + 2.5)
        ledger.record([(stored, core.step(stored))])
    trail, replayed = AuditTrail(), Core()
    kinds = [
        record.kind.value
        for recorded in ledger.events()
        for record in trail.records(recorded, replayed.step(recorded))
    ]
    assert kinds == kinds_of(ledger)


def test_conditions_are_recorded_when_they_change(ledger: Ledger) -> None:
    start(ledger)
    silent = AuditRecord(time=NOW, kind=AuditKind.LICENCE_SERVER_SILENT, cause="timeout")
    answers = AuditRecord(time=NOW + 9, kind=AuditKind.LICENCE_SERVER_ANSWERS)
    for record, value in ((silent, "silent"), (silent, "silent"), (answers, ""), (answers, "")):
        start(ledger)
        ledger.record_notices([], [(record, "licence server lm", value)])
        ledger.commit_group()
    assert kinds_of(ledger)[1:] == ["licence_server_silent", "licence_server_answers"]


def test_tokens_are_recorded_with_who_made_and_revoked_them(ledger: Ledger) -> None:
    start(ledger)
    token_id = ledger.add_token("ada", "secret", NOW, NOW + 60)
    for _ in range(2):  # the second changes nothing
        ledger.revoke_token(token_id, NOW + 1, "root")
    created, revoked = rows_of(ledger)[1:]
    assert (created["kind"], created["actor"], created["owner"]) == ("token_created", "ada", "ada")
    assert (revoked["kind"], revoked["actor"], revoked["owner"]) == ("token_revoked", "root", "ada")
    assert "secret" not in str(rows_of(ledger))
    assert len(rows_of(ledger, visible_to="bob")) == 0


def test_records_have_a_retention_of_their_own(ledger: Ledger) -> None:
    start(ledger)
    refused = AuditRecord(time=NOW, kind=AuditKind.CREDENTIAL_REFUSED, owner=OPERATORS_ONLY)
    ledger.record_notices([replace(refused, time=NOW + 1 + i) for i in range(5000)])
    ledger.commit_group()
    for before, remaining in ((NOW + 4001, 1000), (NOW + 99_999, 1)):
        pruning = PruningPass(NOW + 99_999, audit_before=before)
        portions = 0
        while ledger.prune_portion(pruning):
            portions += 1
        assert portions >= 1
        assert len(rows_of(ledger)) == remaining
    last = rows_of(ledger)[-1]["id"]
    start(ledger)  # ids continue from the newest
    ledger.record_notices([refused])
    ledger.commit_group()
    assert rows_of(ledger)[-1]["id"] == last + 1


def test_without_a_time_no_record_is_pruned(ledger: Ledger) -> None:
    start(ledger)
    pruning = PruningPass(NOW + 99_999)
    while ledger.prune_portion(pruning):
        pass
    assert kinds_of(ledger) == ["policy_changed"]


# Plans

MANY = """
INSERT INTO audit (id, time, kind, actor, owner, job, task_index, reservation, cluster, licence,
                   cause, count, details)
WITH RECURSIVE n(i) AS (SELECT CAST(1 AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
SELECT 1700000000000000 + i * 1000000, 1700000000 + i,
       CASE i % 100 WHEN 0 THEN 'cluster_drained' ELSE 'job_unknown' END,
       CASE i % 50 WHEN 0 THEN 'root' ELSE '' END,
       CASE i % 100 WHEN 0 THEN '' ELSE 'u' || (i % 40) END,
       i / 2, NULL, NULL, CASE i % 3 WHEN 0 THEN 'alpha' ELSE 'beta' END, '', 'no answer', 1, '{}'
FROM n
"""
FILTERS = {
    "nothing": AuditFilter(),
    "time": AuditFilter(since=NOW + 9_000, until=NOW + 9_100),
    "user": AuditFilter(user="u7"),
    "cluster": AuditFilter(cluster="alpha"),
    "job": AuditFilter(job=500),
    "kind": AuditFilter(kind="cluster_drained"),
    "kind and cluster": AuditFilter(kind="cluster_drained", cluster="alpha"),
    "mine": AuditFilter(visible_to="u7"),
    "mine of a cluster": AuditFilter(visible_to="u7", cluster="alpha"),
    "mine of a job": AuditFilter(visible_to="u1", job=500),
}


@pytest.fixture
def many(database: Database) -> Iterator[Engine]:
    engine = database.open()
    with engine.begin() as connection:
        connection.execute(text(MANY))
    if engine.dialect.name == "postgresql":
        with engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("ANALYZE"))
    yield engine
    engine.dispose()


def _unordered_parts(cursor: Any, dialect: str, statement: str, parameters: Any) -> list[str]:
    """Return the parts of a plan that read a whole table or index, or sort what they read."""
    if dialect == "sqlite":
        cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
        steps = [str(row[3]) for row in cursor.fetchall()]
        return [step for step in steps if not step.startswith("SEARCH audit")]
    cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
    [[[plan]]] = cursor.fetchall()
    return list(_unordered_nodes(plan["Plan"]))


def _unordered_nodes(node: dict[str, Any]) -> Iterator[str]:
    kind = node["Node Type"]
    if kind not in ("Limit", "Result", "Aggregate") and not (
        kind in ("Index Scan", "Index Only Scan") and "Index Cond" in node
    ):
        yield kind
    for part in node.get("Plans", ()):
        yield from _unordered_nodes(part)


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("name", FILTERS)
def test_each_filter_reads_a_range_of_an_index(many: Engine, name: str, newest: bool) -> None:
    """In the order of the page: a page costs what it shows, whatever the number of records."""
    queries, found = Queries(many), list[str]()

    def add_parts(_: object, cursor: Any, statement: str, parameters: Any, *_more: object) -> None:
        if statement.startswith("SELECT") and "audit" in statement:
            found.extend(
                f"{part}: {statement}"
                for part in _unordered_parts(
                    cursor.connection.cursor(), many.dialect.name, statement, parameters
                )
            )

    event.listen(many, "before_cursor_execute", add_parts)
    try:
        rows, _ = queries.audit_page(FILTERS[name], 0, 50, newest=newest)
    finally:
        event.remove(many, "before_cursor_execute", add_parts)
    assert rows
    assert found == []


def test_the_plan_test_finds_scans(many: Engine) -> None:
    unindexed = select(audit).where(audit.c.licence == "x").order_by(audit.c.time)
    with many.connect() as connection:
        compiled = str(unindexed.compile(connection, compile_kwargs={"literal_binds": True}))
        cursor = connection.connection.cursor()
        assert _unordered_parts(cursor, many.dialect.name, compiled, ())


def test_a_count_of_no_event_is_refused(connection: Connection) -> None:
    """The constraint holds even if the code is wrong."""
    values = {"id": 1, "time": NOW, "kind": "defect", "actor": "", "cluster": "", "licence": ""}
    with pytest.raises(Exception, match="ck_audit_count"):
        connection.execute(insert(audit).values(**values, cause="", details="{}", count=0))
