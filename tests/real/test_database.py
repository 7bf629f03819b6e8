"""Real databases: migrations, constraints, locks, and files of other programs."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, insert, select, text, update
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.exc import IntegrityError

from metasched.config.settings import ConfigError
from metasched.core.events import (
    ClusterUnreachable,
    DaemonStarted,
    DispatchAccepted,
    DispatchRejected,
    DispatchStarted,
    JobSubmitted,
    ListingReceived,
    Outcome,
)
from metasched.core.scheduler import Core
from metasched.core.tasks import PastAttempt
from metasched.daemon.doctor.daemon_checks import tag_of_unknown
from metasched.db import postgresql
from metasched.db.downgrade import downgrade
from metasched.db.ledger import Ledger, StoredJob
from metasched.db.moving import move
from metasched.db.schema import REVISION, attempt, epoch, instance, metadata, task
from metasched.db.schema import event as event_table
from metasched.db.sqlite import Sqlite
from metasched.db.store import (
    Database,
    DatabaseInUse,
    StorageFailed,
    StorageUncertain,
    StoreError,
    migration_config,
)
from metasched.model.cluster import Cluster, ClusterInfo, NodeCapacity, Partition
from metasched.model.job import Job, Payload, State
from metasched.policies.policy import Policy
from tests.harness.databases import database_from_url
from tests.harness.postgresql import Server
from tests.harness.reflected_schema import schema_of

NOW = 1_000_000.0
FACTS = ClusterInfo(
    cpus=8, used_cpus=0, partitions=(Partition("p", (NodeCapacity(1, 8, 8),), default=True),)
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ms.db"


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    new_ledger = Ledger(database.open())
    yield new_ledger
    new_ledger.close()


def test_migrations_make_exactly_the_schema(database: Database) -> None:
    engine = database.open()
    with engine.begin() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, metadata) == []
        migrated = schema_of(connection)
        metadata.drop_all(connection)
        metadata.create_all(connection)
        assert schema_of(connection) == migrated
    engine.dispose()
    assert ScriptDirectory.from_config(migration_config()).get_current_head() == REVISION


def test_a_migration_that_is_cut_short_leaves_nothing(database: Database) -> None:
    """After a cut at any statement the database is empty; the next start makes the whole schema."""
    allowed, complete = 0, False

    def cut(_: object, __: object, statement: str, *_details: object) -> None:
        nonlocal allowed
        if statement.lstrip().startswith(("CREATE", "ALTER", "DROP", "INSERT", "UPDATE")):
            allowed -= 1
            if allowed < 0:
                raise Cut

    sqlalchemy_event.listen(Engine, "before_cursor_execute", cut)
    try:
        for statements in count(step=11):
            allowed = statements
            with suppress(Cut):
                database.open().dispose()
                complete = True
                break
            assert database.schema_revision() is None
    finally:
        sqlalchemy_event.remove(Engine, "before_cursor_execute", cut)
    assert complete
    assert statements > 0


class Cut(Exception):
    """Stands for the end of the process at this statement."""


def test_the_file_is_for_its_owner_and_keeps_what_is_committed(path: Path) -> None:
    engine = Sqlite(path).open()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with engine.connect() as connection:
        pragma = connection.exec_driver_sql
        assert pragma("PRAGMA journal_mode").scalar() == "wal"
        assert pragma("PRAGMA synchronous").scalar() == 2  # FULL
        assert pragma("PRAGMA foreign_keys").scalar() == 1


@pytest.mark.parametrize("name", ["a?b.db", "a%3Fb.db", "a%20b#c.db"])
def test_a_file_of_any_name(tmp_path: Path, name: str) -> None:
    database = Sqlite(tmp_path / name)
    engine = database.open()
    database.backup(tmp_path / f"{name}.copy")
    with database.snapshot() as connection:
        assert database.find_damage(connection) == []
    names = {path.name for path in tmp_path.iterdir()}
    engine.dispose()
    assert names >= {name, f"{name}.copy"}
    assert {each for each in names if not each.startswith(name)} == set()


def stored(core: Core, ledger: Ledger, id: int = 1, **fields: object) -> None:
    """Submit one job through core and ledger, as the daemon does."""
    job = Job(id=id, submitted=NOW, estimated=60.0, **fields)  # type: ignore[arg-type]
    event = JobSubmitted(NOW, job)
    ledger.record(
        [(event, core.step(event))],
        [StoredJob(job=job, script="s", environment="e", payload=Payload(script="", output="/o"))],
        {"s": "#!/bin/sh\n", "e": '{"A":"b"}'},
    )


def booted(ledger: Ledger) -> Core:
    core = Core()
    ledger.restore(core, 100)
    for event in (
        DaemonStarted(
            NOW, ledger.identity(NOW).instance, Policy(), (Cluster(name="left", adapter="local"),)
        ),
        ListingReceived(NOW, "left", info=FACTS),
    ):
        ledger.record([(event, core.step(event))])
    return core


def test_a_word_that_no_database_can_keep_is_kept_as_far_as_it_can(ledger: Ledger) -> None:
    """A NUL byte in a manager's message is replaced, and the daemon continues."""
    core = booted(ledger)
    stored(core, ledger)
    for event in (DispatchStarted(NOW, 1, 1), DispatchRejected(NOW, 1, 1, "no\0such account")):
        ledger.record([(event, core.step(event))])
    assert ledger.story(1)[-2]["cause"] == "no\N{REPLACEMENT CHARACTER}such account"


def test_a_restored_core_is_the_one_that_was(ledger: Ledger) -> None:
    core = booted(ledger)
    stored(core, ledger, 1, deadline=NOW + 100)
    stored(core, ledger, 2, held=True)
    stored(core, ledger, 3, array="1-2")
    for event in (DispatchStarted(NOW, 1, 1), DispatchAccepted(NOW, 1, 1, {0: "n7"})):
        ledger.record([(event, core.step(event))])
    again = Core()
    ledger.restore(again, 100)
    boot = DaemonStarted(
        NOW, ledger.identity(NOW).instance, Policy(), (Cluster(name="left", adapter="local"),)
    )
    again.step(boot)
    core.step(boot)
    assert again.tasks == core.tasks
    assert again.load_ordering.count("left") == core.load_ordering.count("left")
    probe = Job(id=9, submitted=NOW, estimated=60.0, deadline=NOW + 90)
    assert again.classifier.contributions(probe) == core.classifier.contributions(probe)
    assert again.cluster_status("left")[0] == FACTS.without_load


def test_payload_comes_back_with_its_texts(ledger: Ledger) -> None:
    stored(booted(ledger), ledger)
    payload = ledger.payloads([1])[1]
    assert (payload.script, payload.environment) == ("#!/bin/sh\n", {"A": "b"})


def test_the_tasks_of_an_array_are_stored_as_they_are_by_a_few_statements(
    ledger: Ledger, database: Database
) -> None:
    core, row_counts = Core(), {"INSERT INTO task": 0, "INSERT INTO change": 0}

    def count_rows(_: object, __: object, statement: str, parameters: Any, *details: Any) -> None:
        for prefix in row_counts:
            if statement.startswith(prefix):
                row_counts[prefix] += len(parameters) if details[-1] else 1

    sqlalchemy_event.listen(Engine, "before_cursor_execute", count_rows)
    try:
        job = Job(id=1, submitted=NOW, estimated=10.0, array="1-299:2,500,501,503,600-1399")
        stored = StoredJob(job=job, script="s", environment="e", payload=Payload(script=""))
        ledger.restore(core, 100)
        booted = DaemonStarted(
            NOW, ledger.identity(NOW).instance, Policy(), (Cluster(name="c", adapter="x"),)
        )
        ledger.record([(booted, core.step(booted))])
        submitted = JobSubmitted(NOW, job)
        out = core.step(submitted)
        ledger.record([(submitted, out)], [stored], {"s": "", "e": "{}"})
    finally:
        sqlalchemy_event.remove(Engine, "before_cursor_execute", count_rows)
    recorded = [(line["task_index"], line["after"], line["reason"]) for line in ledger.story(1)]
    assert recorded == [(c.index, c.after, c.reason) for c in out.changes]
    assert len(recorded) > len(job.indices)
    rows = {row["task_index"]: (row["state"], row["reason"]) for row in ledger.status()}
    assert rows == {t.index: (t.state, t.reason) for t in core.tasks_of(1)}
    assert max(row_counts.values()) < 100


def test_the_size_counts_what_is_written_at_once(ledger: Ledger, database: Database) -> None:
    before = ledger.measure(database)
    assert before >= 2**16
    with database.open_existing().begin() as connection:
        for id in range(1000, 1004):
            row = {"id": id, "time": NOW, "kind": "x", "data": token_hex(2**20)}
            connection.execute(insert(event_table).values(row))
    assert ledger.measure(database) > before + 4 * 2**20
    free = database.free_bytes()
    assert free is None or free > 0


def test_ids_are_never_given_twice(ledger: Ledger, database: Database) -> None:
    core = booted(ledger)
    stored(core, ledger, ledger.next_job(1))
    other = Ledger(database.open())
    other.restore(Core(), 100)
    assert other.next_job(1) == 2
    other.close()


def test_a_task_cannot_have_two_live_attempts(ledger: Ledger, database: Database) -> None:
    stored(booted(ledger), ledger)
    engine = database.open()
    second = {
        "job": 1,
        "task_index": 0,
        "number": 2,
        "dispatch_id": 2,
        "cluster": "left",
        "state": State.PENDING,
        "dispatched": NOW,
        "manager_reason": "",
        "node": "",
        "rejected": False,
        "restarts": 0,
        "has_started": False,
        "fence": "",
        "revoking": False,
        "revoked": False,
        "lease_expired": False,
    }
    with pytest.raises(IntegrityError), engine.begin() as connection:
        connection.execute(insert(attempt).values(second))
    with engine.begin() as connection:
        connection.execute(insert(attempt).values(second | {"state": State.CANCELLED}))
    engine.dispose()


def test_the_last_report_of_a_past_attempt_in_a_transaction_is_stored(
    ledger: Ledger, database: Database
) -> None:
    """The attempt is reported as not started; then it is live again, then it ends."""
    core = booted(ledger)
    stored(core, ledger)
    for event in (DispatchStarted(NOW, 1, 1), DispatchAccepted(NOW, 1, 1, {0: "7"})):
        ledger.record([(event, core.step(event))])
    changed = core.tasks[1, 0]
    live = changed.live_attempt
    live.has_started = True
    live_again = Outcome(tasks={(1, 0): changed})
    ended = Outcome(closed_attempts=[(changed, live)])
    earlier = Outcome(past_attempts={(1, 0, 1): PastAttempt("left", False, "", False, True)})
    listing, engine = ListingReceived(NOW, "left"), database.open()
    for later in (live_again, ended):
        ledger.record([(listing, earlier), (listing, later)])
        with engine.begin() as connection:
            stored_values = connection.execute(
                select(attempt.c.has_started, attempt.c.intent)
            ).one()
        assert stored_values == (True, None)
    engine.dispose()


def test_the_doctor_names_the_tag_that_the_manager_has(ledger: Ledger, database: Database) -> None:
    """A restored database has a newer instance than the attempts in its backup."""
    core = booted(ledger)
    stored(core, ledger)
    for event in (
        DispatchStarted(NOW, 1, 1),
        DispatchAccepted(NOW, 1, 1, {0: "7"}),
        ClusterUnreachable(NOW + 1, "left", "silent"),
    ):
        ledger.record([(event, core.step(event))])
    row = {"job": 1, "task": None}
    tag = core.instances.tag_of(1, 1)
    assert tag_of_unknown(database, row) == tag
    engine = database.open()
    with engine.begin() as connection:  # as in a restored backup
        newer = {"name": "newer", "created": NOW + 5, "first_dispatch": 2}
        connection.execute(insert(instance).values(newer))
    engine.dispose()
    assert ledger.identity(NOW + 9).instance == "newer"
    assert tag_of_unknown(database, row) == tag
    assert tag_of_unknown(database, {"job": 2, "task": None}) == "ms-*-2-*"


def test_states_outside_the_table_are_refused(ledger: Ledger, database: Database) -> None:
    stored(booted(ledger), ledger)
    engine = database.open()
    for wrong in ({"state": "lost"}, {"state": "completed"}, {"ended": NOW}):
        with pytest.raises(IntegrityError), engine.begin() as connection:
            connection.execute(update(task).values(wrong))
    engine.dispose()


def _hold(database: Database, held: object, done: object) -> None:
    with database.acquire_writer():
        held.set()  # type: ignore[attr-defined]
        done.wait(300)  # type: ignore[attr-defined]


def test_only_one_daemon_is_active_and_a_standby_waits(database: Database) -> None:
    spawn = multiprocessing.get_context("spawn")
    held, done = spawn.Event(), spawn.Event()
    other = spawn.Process(target=_hold, args=(database, held, done))
    other.start()
    assert held.wait(300)
    with (
        pytest.raises(DatabaseInUse, match=f"process {other.pid}.*--standby"),
        database.acquire_writer(),
    ):
        pass
    done.set()
    with database.acquire_writer(standby=True):
        other.join()
    with database.acquire_writer():
        pass


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"this is no database, it is a letter\n" * 100, "cannot be read"),
        (None, "of another program"),
    ],
)
def test_files_of_other_programs(path: Path, content: bytes | None, message: str) -> None:
    if content is None:
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE recipes (id)")
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=message):
        Sqlite(path).open()
    assert path.read_bytes() == before or content is None


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE alembic_version SET version_num = '0001'", "schema 0001 of a metasched before"),
        ("UPDATE alembic_version SET version_num = '0043'", "schema 0043 of a metasched before"),
        ("UPDATE alembic_version SET version_num = 's9999'", "schema s9999, newer than"),
        ("UPDATE alembic_version SET version_num = 's\n1'", r'schema "s\\n1", newer than'),
        ("DELETE FROM alembic_version", "has 0 schema revisions: a migration"),
        ("INSERT INTO alembic_version VALUES ('0043')", "has 2 schema revisions: a migration"),
        ("DROP TABLE lease", f"has schema {REVISION} without lease: a migration"),
        ("ALTER TABLE lease DROP COLUMN since", rf"has schema {REVISION} without lease\.since: a"),
        ("DROP TABLE alembic_version", "holds tables of another program"),
    ],
)
def test_a_schema_of_another_release_is_left_alone(
    database: Database, tmp_path: Path, statement: str, message: str
) -> None:
    engine = database.open()
    with engine.begin() as connection:
        connection.execute(text(statement))
        before = schema_of(connection)
    target = Sqlite(tmp_path / "target.db")
    refused: list[Callable[[], object]] = [
        database.open,
        lambda: move(database, target),
        database.open_existing,
        lambda: database.acquire_writer().__enter__(),
        lambda: downgrade(database, REVISION, lambda _: True),
    ]
    for open_database in refused:
        with pytest.raises(StoreError, match=message) as raised:
            open_database()
        assert "\n" not in str(raised.value)
        assert "; " in str(raised.value)
    assert not target.path.exists()
    with engine.connect() as connection:
        assert schema_of(connection) == before
    engine.dispose()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.access(closed, os.W_OK):
        pytest.skip("root may write anywhere")
    with (
        pytest.raises(StoreError, match="Permission denied"),
        Sqlite(closed / "ms.db").acquire_writer(),
    ):
        pass


@pytest.mark.parametrize(
    "url",
    [
        *("nonsense", "mysql://me:secret@host/x", "sqlite://", "postgresql://me:secret@h:port/x"),
        "sqlite://var/lib/ms.db",  # a slash is missing: lib/ms.db of the host var
    ],
)
def test_urls_that_we_cannot_open(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sqlite:////path.*postgresql://") as refused:
        database_from_url(url, tmp_path)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["a?b.db", "ms.db?timeout=5", "ms.db?"])
def test_a_question_mark_of_a_url_names_no_other_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="write %3F if it is part of the path"):
        database_from_url(f"sqlite:///{tmp_path}/{name}", tmp_path)
    url = f"sqlite:///{tmp_path}/{name.replace('?', '%3F')}"
    assert str(database_from_url(url, tmp_path)) == f"{tmp_path}/{name}"


def test_an_earlier_life_writes_nothing(ledger: Ledger, database: Database) -> None:
    """An earlier daemon epoch cannot write, whatever the state of its lock."""
    first = booted(ledger)
    other = Ledger(database.open())
    second = booted(other)
    with pytest.raises(StorageFailed, match="another daemon"):
        stored(first, ledger)
    with pytest.raises(StorageFailed, match="another daemon"):
        ledger.add_token("ada", "secret", NOW, NOW + 9)
    with pytest.raises(StorageFailed, match="another daemon"):
        ledger.check_active()
    assert other.status() == other.tokens(None, 0, 10) == []
    stored(second, other)
    other.check_active()
    other.close()


# Lost sessions, on PostgreSQL only.


@pytest.fixture
def served(postgresql_server: Server, tmp_path: Path) -> Database:
    return database_from_url(postgresql_server.create(), tmp_path)


def cut(server: Server) -> None:
    """End all sessions of metasched, as a network loss would, and wait until they are gone."""
    sessions = "FROM pg_stat_activity WHERE usename = 'metasched'"
    server.sql(f"SELECT pg_terminate_backend(pid, 30000) {sessions}")
    assert server.sql(f"SELECT count(*) {sessions}") == "0"


def test_who_is_cut_and_comes_back_first_goes_on(
    served: Database, postgresql_server: Server
) -> None:
    with served.acquire_writer() as seat:
        ledger = Ledger(seat.engine, seat)
        core = booted(ledger)
        cut(postgresql_server)
        with pytest.raises(StorageFailed):
            stored(core, ledger)
        assert not seat.held
        with pytest.raises(StorageFailed):
            stored(core, ledger, 2)  # nothing is written until `restore`
        ledger.acquire_lock()
        stored(booted(ledger), ledger)
        assert len(ledger.status()) == 1
        with pytest.raises(DatabaseInUse), served.acquire_writer():
            pass


def test_a_daemon_acts_only_while_no_standby_can_be_active(
    served: Database, postgresql_server: Server
) -> None:
    with served.acquire_writer() as seat:
        assert seat.active_until is not None
        ledger = Ledger(seat.engine, seat)
        stored(booted(ledger), ledger)
        assert seat.active_until.has_passed
        ledger.check_active()
        assert not seat.active_until.has_passed
        seat.active_until.extend(0.0)
        cut(postgresql_server)
        with pytest.raises(StorageFailed):
            ledger.check_active()
        assert seat.active_until.has_passed


@pytest.mark.parametrize(
    ("pid", "host", "may_act"),
    [
        (os.getpid, "", False),  # an earlier start
        (lambda: 2**22, "", False),  # no process has that number
        (os.getppid, "", True),
        (os.getpid, "elsewhere", True),
    ],
    ids=["itself", "dead", "alive", "elsewhere"],
)
def test_who_replaces_a_daemon_that_may_still_run_knows_it(
    served: Database, pid: Callable[[], int], host: str, may_act: bool
) -> None:
    former = f"process {pid()} on {host or socket.gethostname()[:40]}"
    with served.acquire_writer() as seat:
        with seat.engine.begin() as connection:
            connection.execute(update(epoch).values(holder=former))
        ledger = Ledger(seat.engine, seat)
        booted(ledger)
        assert bool(ledger.taken_over) == may_act
        taken_over = ledger.taken_over
        booted(ledger)  # after a failure of the service
        assert ledger.taken_over == taken_over


def test_who_is_cut_and_comes_back_second_ends(served: Database, postgresql_server: Server) -> None:
    with served.acquire_writer() as seat:
        ledger = Ledger(seat.engine, seat)
        core = booted(ledger)
        cut(postgresql_server)
        with served.acquire_writer() as second_lock:
            other = Ledger(second_lock.engine, second_lock)
            second = booted(other)
            with pytest.raises(StorageFailed):
                stored(core, ledger)
            with pytest.raises(DatabaseInUse, match=f"process {os.getpid()}"):
                ledger.acquire_lock()
            stored(second, other)
            assert len(other.status()) == 1


def test_a_silent_server_is_away_and_its_request_is_not_done(
    served: Database, postgresql_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "SILENCE_TIMEOUT", 1.0)
    with served.acquire_writer() as seat:
        ledger = Ledger(seat.engine, seat)
        core = booted(ledger)
        postgresql_server.hang()
        try:
            with pytest.raises(StorageFailed, match="no answer in 1 s"):
                stored(core, ledger)
            assert not seat.held
        finally:
            postgresql_server.wake()
        end = time.monotonic() + 30
        while not seat.held:  # the server must notice that the earlier session is gone
            assert time.monotonic() < end
            with suppress(StorageFailed):
                ledger.acquire_lock()
        assert ledger.status() == []
        stored(booted(ledger), ledger)
        assert len(ledger.status()) == 1


def test_a_commit_whose_answer_is_lost_is_reported_as_such(
    served: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    with served.acquire_writer() as seat:
        ledger = Ledger(seat.engine, seat)
        core = booted(ledger)

        def lose(connection: Any) -> None:
            connection.commit()
            connection.dbapi_connection.close()
            raise psycopg.OperationalError("the connection is closed")

        with monkeypatch.context() as patched:
            patched.setattr(seat.engine.dialect, "do_commit", lose)
            with pytest.raises(StorageUncertain):
                stored(core, ledger)
        ledger.acquire_lock()
        again = Core()
        ledger.restore(again, 100)
        assert set(again.tasks) == {(1, 0)}


def test_a_server_that_is_too_old(served: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "OLDEST_VERSION", 990000)
    with pytest.raises(StoreError, match="use 99 or newer"), served.acquire_writer():
        pass


def test_a_driver_that_is_missing(served: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"metasched\[postgres\]"), served.acquire_writer():
        pass
