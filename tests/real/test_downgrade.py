"""A database with rows of every kind goes back to the previous schema and up again."""

from __future__ import annotations

from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, MetaData, insert, select

from metasched.db.schema import PREVIOUS_REVISION, REVISION, metadata
from metasched.db.store import Database

WIDE = "zw\N{LATIN SMALL LETTER O WITH DIAERESIS}lf \N{ROCKET}"
_USE_KEY = {"day": 20260331, "cluster": "alpha", "user": WIDE, "account": WIDE}
_USE_KEY |= {"user_group": WIDE, "user_class": WIDE}
# A row of each table, in an order that foreign keys allow.
ROWS: dict[str, dict[str, Any]] = {
    "instance": {"name": "0a1b2c", "created": 1.5, "first_dispatch": 0},
    "epoch": {"number": 7, "holder": WIDE},
    "content": {"digest": "d" * 64, "text": f"#!/bin/sh\necho {WIDE}\n"},
    "job": {
        "id": 1 << 40,
        "user": WIDE,
        "name": WIDE,
        "submitted": 1.5,
        "margin": 0.25,
        "array": "1-4%2",
        "priority": 10,
        "parts": "{}",
        "job": "{}",
        "script": "d" * 64,
        "environment": "d" * 64,
        "payload": "{}",
        "changed": "{}",
        "policy": 2,
    },
    "task": {
        "job": 1 << 40,
        "task_index": 4,
        "state": "running",
        "reason": "",
        "held": False,
        "target": "alpha",
        "attempts": 1,
        "moves": 2,
        "ended": None,
        "forgiven": 1,
        "user": WIDE,
    },
    "attempt": {
        "job": 1 << 40,
        "task_index": 4,
        "number": 1,
        "sending": 3,
        "cluster": "alpha",
        "state": "running",
        "sent": 2.5,
        "accepted": 3.5,
        "tried": None,
        "native_id": "17_4",
        "intent": None,
        "target": None,
        "started": 4.5,
        "run_since": 4.5,
        "ended": None,
        "exit_code": None,
        "signal": None,
        "word": WIDE,
        "node": "n1",
        "cpu_seconds": 0.5,
        "max_memory": 64,
        "refused": False,
        "rival": None,
        "restarts": 1,
        "begun": True,
        "fence": "/claims/x",
        "gres_choice": 1,
        "licence_choice": 0,
        "revoking": False,
        "revoked": False,
        "lease_expired": False,
        "elapsed": 1.5,
        "alloc_cpus": 2,
        "account": WIDE,
    },
    "task_run": {
        "job": 1 << 40,
        "first_index": 5,
        "last_index": 11,
        "step": 3,
        "state": "held",
        "reason": "held",
        "ended": None,
        "user": WIDE,
    },
    "listing_cursor": {"cluster": "alpha", "cursor": WIDE},
    "licence": {
        "name": "solver",
        "total": 4,
        "leased": 2,
        "excess": 0,
        "chosen": 4,
        "outside": 1,
        "observed": 5.5,
        "past_us": '{"alpha": 1}',
    },
    "lease": {
        "id": 1,
        "licence": "solver",
        "job": 1 << 40,
        "task_index": 4,
        "attempt": 1,
        "tokens": 2,
        "since": 2.5,
        "until": None,
        "why": None,
        "lingers": None,
    },
    "limit_use": {
        "scope": "user",
        "name": WIDE,
        "resource": "open_tasks",
        "used": 3,
        "maximum": 2,
        "excess": 1,
    },
    "daily_use": {
        **_USE_KEY,
        **dict.fromkeys(("jobs", "completed", "failed", "timed_out", "cancelled", "starts"), 1),
        **dict.fromkeys(("deadlines", "met", "missed"), 1),
        **dict.fromkeys(("elapsed", "cpu_allocated", "cpu_used", "cpu_measured"), 0.5),
        **dict.fromkeys(("node_seconds", "gpu_seconds", "wait", "max_wait", "slowdown"), 0.5),
        **dict.fromkeys(("lateness", "max_lateness", "cpu_outside"), 0.5),
        "waits": '{"3":1}',
    },
    "period_use": {
        "key": "user",
        "period": 202603,
        "name": WIDE,
        "first_day": 20260301,
        **dict.fromkeys(("jobs", "completed", "failed", "timed_out", "cancelled"), 1),
        **dict.fromkeys(("deadlines", "met", "missed"), 1),
        **dict.fromkeys(("elapsed", "cpu_allocated", "cpu_used", "cpu_measured"), 0.5),
        **dict.fromkeys(("node_seconds", "gpu_seconds", "lateness", "max_lateness"), 0.5),
        "cpu_outside": 0.5,
    },
    "daily_licence_use": {
        **_USE_KEY,
        "licence": "matlab",
        "leases": 1,
        "token_seconds": 1.5,
        "wait": 0.5,
        "max_wait": 0.5,
    },
    "daily_licence_peak": {
        "day": 20260331,
        "licence": "matlab",
        "peak": 2,
        "last": 1,
        "total": 4,
    },
    "licence_sample": {
        "licence": "matlab",
        "time": 1.5,
        "total": 4,
        "leased": 1,
        "outside": 2,
        "free": None,
        "waiting": 3,
    },
    "share_use": {"account": WIDE, "user": WIDE, "used": 1.5, "as_of": 2.5},
    "tuning": {"parameter": "base", "state": "{}"},
    "tuning_change": {
        "id": 1,
        "event": 1,
        "time": 1.5,
        "job": 1 << 40,
        "parameter": "base",
        "change": "{}",
    },
    "policy_version": {
        "number": 2,
        "event": 1,
        "time": 1.5,
        "change": "undone",
        "by": WIDE,
        "reason": WIDE,
        "file": WIDE,
        "text": "[weights]\n",
        "site_digest": "0c0f",
        "previous": 1,
        "copy_of": 1,
    },
    "shadow": {
        "number": 1,
        "since": 1.5,
        "by": WIDE,
        "reason": WIDE,
        "file": WIDE,
        "text": "[weights]\n",
        "ended": 2.5,
        "end": WIDE,
    },
    "shadow_decision": {
        "id": 1,
        "shadow": 1,
        "time": 1.5,
        "job": 1 << 40,
        "task_index": 4,
        "user_class": WIDE,
        "deadline": True,
        "eligible": 2,
        "live_priority": 3,
        "priority": 4,
        "live_cluster": "alpha",
        "cluster": "beta",
    },
    "use_cursor": {"cluster": "alpha", "cursor": WIDE},
    "share_tree": {"cluster": "alpha", "tree": "{}"},
    "reservation": {
        "id": 1,
        "user": WIDE,
        "cluster": "alpha",
        "start": 10.0,
        "end": 20.0,
        "size": 1,
        "cpus": 4,
        "made": 1.0,
        "state": "bound",
        "cause": "",
        "nodes": "[]",
        "placed": "[]",
        "held": True,
        "tries": 1,
        "closed": None,
        "offers": "[]",
        "let_run": 60.0,
        "licences": '{"solver": 1}',
        "mail": "a@example.org",
        "told": None,
        "users": '["bob"]',
        "accounts": '["aero"]',
        "series": 3,
    },
    "dependency": {"job": 1 << 40, "target": 12},
    "event": {"id": 1, "time": 1.5, "kind": "JobSubmitted", "data": f'{{"name": "{WIDE}"}}'},
    "change": {
        "id": 1,
        "event": 1,
        "time": 1.5,
        "job": 1 << 40,
        "task_index": 4,
        "attempt": 1,
        "what": "start",
        "before": "pending",
        "after": "running",
        "cluster": "alpha",
        "reason": "",
        "cause": WIDE,
        "run_last": None,
        "run_step": None,
    },
    "cluster": {"name": "alpha", "facts": "{}", "time": 1.5},
    "token": {
        "id": 1,
        "user": WIDE,
        "digest": "e" * 64,
        "created": 1.5,
        "expires": 9.5,
        "revoked": None,
        "scope": "user",
        "parent": None,
    },
    "submission_key": {
        "user": WIDE,
        "key": "k1",
        "body": "f" * 64,
        "created": 1.5,
        "answer": "{}",
    },
    "drain": {
        "cluster": "alpha",
        "time": 1.5,
        "by": WIDE,
        "reason": WIDE,
        "keep_pending": True,
        "entry": "night",
    },
    "calendar": {
        "id": 3,
        "name": "night",
        "act": '{"type": "drain", "cluster": "alpha"}',
        "rule": "daily 20:00",
        "zone": "Europe/Berlin",
        "owner": "",
        "made_by": WIDE,
        "made": 1.5,
        "grace": 60.0,
        "lead": 0.0,
        "until": None,
        "next_run": 2.5,
        "ran": "[1.5]",
        "running": None,
    },
    "audit": {
        "id": 1 << 50,
        "time": 1.5,
        "kind": "cluster_drained",
        "actor": WIDE,
        "owner": None,
        "job": 1 << 40,
        "task_index": 4,
        "reservation": 1,
        "cluster": "alpha",
        "licence": "solver",
        "cause": WIDE,
        "count": 1,
        "details": "{}",
    },
    "outbox": {
        "id": 1 << 50,
        "receiver": "mail",
        "user": WIDE,
        "job": 1 << 40,
        "kind": "job_ended",
        "address": "a@example.org",
        "created": 1.5,
        "due": 2.5,
        "state": "pending",
        "tries": 1,
        "error": WIDE,
        "ended": None,
        "data": "{}",
    },
    "limit_mail": {"job": 1 << 40, "task_index": -1, "started": 0.0, "kind": "job_time_limit_50"},
    "audit_condition": {"subject": "cluster alpha", "value": "unreachable"},
    "checkpoint": {"event": 1, "time": 1.5, "data": b"\x00\xff", "decisions": 2},
}


def stored_rows(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of the present tables, as the database reports both."""
    present = MetaData()
    present.reflect(connection)
    rows = {
        table.name: [dict(row._mapping) for row in connection.execute(select(table))]
        for table in present.sorted_tables
        if table.name != "alembic_version"
    }
    connection.rollback()
    return rows


def cut_to(
    rows: dict[str, list[dict[str, Any]]], other: dict[str, list[dict[str, Any]]]
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows with the tables and columns of `other` alone."""
    return {
        name: [{column: row[column] for column in other[name][0]} for row in rows[name]]
        for name in other
    }


def test_each_table_has_a_row() -> None:
    assert {name: set(row) for name, row in ROWS.items()} == {
        name: set(table.columns.keys()) for name, table in metadata.tables.items()
    }


def insert_rows(database: Database, *other_rows: tuple[str, dict[str, Any]]) -> None:
    """Replace the rows of all tables, but for runs of tasks, and add others."""
    engine = database.open()
    with engine.begin() as connection:
        for name, row in ROWS.items():
            table = metadata.tables[name]
            connection.execute(table.delete())
            if name != "task_run":
                connection.execute(insert(table).values(row))
        for name, row in other_rows:
            connection.execute(insert(metadata.tables[name]).values(ROWS[name] | row))
    engine.dispose()


def test_a_downgrade_gives_each_task_in_a_run_rows_of_its_own(database: Database) -> None:
    cancelled = {"first_index": 20, "last_index": 21, "step": 1, "state": "cancelled"}
    insert_rows(
        database,
        ("task_run", {}),
        ("task_run", cancelled | {"ended": 7.5, "reason": ""}),
        ("change", {"id": 2, "task_index": 5, "run_last": 11, "run_step": 3, "cause": "run"}),
        ("change", {"id": 3, "task_index": 8, "cause": "single"}),
    )
    with database.acquire_writer() as writer_lock:
        connection = writer_lock.connection
        database.downgrade(connection)
        rows = stored_rows(connection)
    columns = ("task_index", "state", "held", "ended", "attempts")
    tasks = [tuple(row[column] for column in columns) for row in rows["task"]]
    assert sorted(tasks) == [
        (4, "running", False, None, 1),
        *((index, "held", True, None, 0) for index in (5, 8, 11)),
        *((index, "cancelled", False, 7.5, 0) for index in (20, 21)),
    ]
    story = sorted((row["id"], row["task_index"], row["cause"]) for row in rows["change"])
    assert [line[1:] for line in story] == [
        (4, WIDE),
        *((index, "run") for index in (5, 8, 11)),
        (8, "single"),
    ]
    upgraded = database.open()
    with upgraded.begin() as connection:  # ids go on
        table = metadata.tables["change"]
        new = ROWS["change"] | {"cause": "new"}
        del new["id"]
        connection.execute(insert(table).values(new))
        newest = select(table.c.id).where(table.c.cause == "new")
        assert connection.execute(newest).scalar_one() > story[-1][0]
    upgraded.dispose()


def test_a_downgrade_keeps_what_the_previous_release_stores(database: Database) -> None:
    database.open().dispose()
    insert_rows(database)
    for _ in range(2):
        with database.acquire_writer() as writer_lock:
            connection = writer_lock.connection
            assert database.read_revision(connection) == REVISION
            before = stored_rows(connection)
            database.downgrade(connection)
            assert database.read_revision(connection) == PREVIOUS_REVISION
            downgraded = stored_rows(connection)
            assert all(downgraded.values())
            assert downgraded == cut_to(before, downgraded)
        upgraded = database.open()
        with upgraded.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []
            after = stored_rows(connection)
        upgraded.dispose()
        assert cut_to(after, downgraded) == downgraded
