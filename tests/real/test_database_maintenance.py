"""Backups, checks and pruning of a database written by a core."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, select, update
from sqlalchemy import event as sql_events

from metasched.core.dependency_status import TargetSummary
from metasched.core.events import (
    CoreEvent,
    DaemonStarted,
    DispatchAccepted,
    DispatchStarted,
    JobRequeued,
    JobSubmitted,
    ListingReceived,
    UserRequested,
)
from metasched.core.scheduler import DECISION_VERSION, Core
from metasched.db import ledger as ledgers
from metasched.db import pruning
from metasched.db.integrity import CheckResult, check_database
from metasched.db.job_pages import TaskFilter
from metasched.db.ledger import Ledger, StoredJob
from metasched.db.pruning import PruningPass, prune
from metasched.db.schema import (
    attempt,
    change,
    checkpoint,
    content,
    event,
    job,
    limit_mail,
    metadata,
    task,
)
from metasched.db.sqlite import Sqlite
from metasched.db.store import Database, StoreError
from metasched.model.cluster import Cluster, ClusterInfo, NodeCapacity, Partition
from metasched.model.dependencies import DependencyTarget, parse_dependency
from metasched.model.job import Job, Payload, State
from metasched.model.job_usage import RunUsage
from metasched.model.listing import JobStatus
from metasched.model.tags import tag_of
from metasched.policies.policy import Policy
from tests.harness.databases import database_from_url

NOW = 1_000_000.0
FACTS = ClusterInfo(
    cpus=8, used_cpus=0, partitions=(Partition("p", (NodeCapacity(1, 8, 8),), default=True),)
)


class Life:
    """A daemon between two starts on the database, without its workers."""

    def __init__(self, database: Database, at: float = NOW) -> None:
        self.ledger = Ledger(database.open())
        self.core = Core()
        self.ledger.restore(self.core, 100)
        identity = self.ledger.identity(NOW)
        self.name, clusters = identity.instance, (Cluster(name="left", adapter="local"),)
        self.take(
            DaemonStarted(
                at,
                self.name,
                Policy(),
                clusters,
                first_dispatches=identity.first_dispatches,
                restored=identity.restored,
            ),
            ListingReceived(at, "left", info=FACTS),
        )

    def take(self, *events: CoreEvent) -> None:
        for core_event in events:
            self.ledger.record([(core_event, self.core.step(core_event))])

    def submit(self, id: int, at: float, **fields: object) -> None:
        new = Job(id=id, submitted=at, estimated=60.0, **fields)  # type: ignore[arg-type]
        targets = parse_dependency(new.dependency).targets if new.dependency else []
        summaries = self.ledger.target_summaries(targets)
        submitted = JobSubmitted(at, new, tuple(summaries.values()))
        row = StoredJob(job=new, script=f"s{id}", environment="e", payload=Payload(script=""))
        texts = {f"s{id}": f"#!/bin/sh\n# {id}\n", "e": "{}"}
        self.ledger.record([(submitted, self.core.step(submitted))], [row], texts)

    def run(self, id: int, at: float) -> None:
        row = JobStatus(tag_of(self.name, id, 1), 0, "7", State.COMPLETED, started=at, ended=at)
        self.take(
            DispatchStarted(at, id, 1),
            DispatchAccepted(at, id, 1, {0: "7"}),
            ListingReceived(at, "left", (row,)),
        )


@pytest.fixture
def life(database: Database) -> Iterator[Life]:
    new_life = Life(database)
    yield new_life
    new_life.ledger.close()


def counts(database: Database) -> dict[str, int]:
    engine = database.open_existing()
    with engine.connect() as connection:
        rows = {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar() or 0
            for table in metadata.sorted_tables
        }
    engine.dispose()
    return rows


def pruned(database: Database, before: float) -> dict[str, int]:
    engine = database.open_existing()
    try:
        return prune(engine, before)
    finally:
        engine.dispose()


def test_a_sound_database_passes_and_each_kind_of_damage_is_found(
    life: Life, database: Database, alter: Callable[[str], None], tmp_path: Path
) -> None:
    for id in (1, 2, 3):
        life.submit(id, NOW + id)
    life.run(1, NOW + 10)
    assert [(f.check, f.ok) for f in check_database(database)] == [
        ("integrity", True),
        ("counters", True),
        ("replay", True),
    ]
    for damage, result in (
        ("UPDATE task SET attempts = 7 WHERE job = 2", "counters"),
        ("UPDATE task SET state = 'completed', ended = 1 WHERE job = 3", "replay"),
        ("DELETE FROM content", "integrity"),
    ):
        alter(damage)
        wrong = {f.check: f.text for f in check_database(database) if not f.ok}
        assert result in wrong, (damage, wrong)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_backup_is_whole_calls_itself_otherwise_and_proves_nothing_absent(
    life: Life, database: Database, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    life.submit(1, NOW + 1)
    life.submit(2, NOW + 2)
    life.take(DispatchStarted(NOW + 3, 1, 1))
    file = tmp_path / "copy"
    assert database.backup(file) == file.stat().st_size
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    life.submit(3, NOW + 4)  # the daemon continues
    if isinstance(database, Sqlite):
        copy: Database = Sqlite(file)
    else:
        copy = database_from_url(
            request.getfixturevalue("postgresql_server").restore(file), tmp_path
        )
    assert all(finding.ok for finding in check_database(copy))
    again = Life(copy)
    try:
        assert again.name != life.name
        assert set(again.core.tasks) == {(1, 0), (2, 0)}
        again.take(
            ListingReceived(NOW + 9, "left", info=FACTS, full=True, since=NOW - 9, until=NOW + 9)
        )
        # both were with the manager, or on their way
        assert {task.state for task in again.core.tasks.values()} == {State.UNKNOWN}
    finally:
        again.ledger.close()
    with pytest.raises(StoreError, match="already"):
        database.backup(file)
    with pytest.raises(StoreError, match="name a file"):
        database.backup(tmp_path / "nowhere" / "copy.db")
    with pytest.raises(StoreError, match="no database"):
        Sqlite(tmp_path / "none.db").backup(tmp_path / "other.db")


def test_what_an_open_job_depends_on_is_kept_as_long_as_that(
    life: Life, database: Database
) -> None:
    for id in (1, 2, 3):
        life.submit(id, NOW + id)
        life.run(id, NOW + 10 * id)
    life.submit(4, NOW + 40, dependency="afterok:1,after:2_0", held=True)
    assert pruned(database, NOW + 100)["jobs"] == 1
    assert counts(database)["job"] == 3
    again = Life(database, NOW + 50)
    again.take(UserRequested(NOW + 60, "release", 4))
    again.run(4, NOW + 70)
    again.ledger.close()
    assert pruned(database, NOW + 100)["jobs"] == 2
    assert counts(database)["job"] == 1


def test_no_id_is_given_a_second_time_whatever_is_forgotten(life: Life, database: Database) -> None:
    for id in (1, 2):
        life.submit(id, NOW + id)
        life.run(id, NOW + 10 * id)
    assert pruned(database, NOW + 100)["jobs"] == 1
    again = Life(database, NOW + 200)
    assert again.ledger.next_job(1) == 3
    again.ledger.close()


def test_a_large_array_is_forgotten_in_portions_and_a_kept_job_examined_once(
    life: Life, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "TASKS_PER_PORTION", 3)
    monkeypatch.setattr(pruning, "CHANGES_PER_PORTION", 5)
    # jobs 1 to 4 are kept for job 5, and ended first
    for id in (1, 2, 3, 4):
        life.submit(id, NOW + id)
        life.run(id, NOW + 10)
    life.submit(5, NOW + 20, dependency="after:1,after:2,after:3,after:4", held=True)
    life.submit(6, NOW + 21, array="0-9")
    life.take(UserRequested(NOW + 30, "cancel", 6))
    life.submit(7, NOW + 40)
    life.run(7, NOW + 50)
    life.submit(8, NOW + 60)
    remember_limit_mails(database, (6, -1), *((6, index) for index in range(10)))
    engine = database.open_existing()
    one_pass, sizes = PruningPass(NOW + 100), []
    while one_pass.prune_portion(engine):
        sizes.append(counts(database)["task"])
        assert len(sizes) < 40
    engine.dispose()
    assert one_pass.deleted == {"jobs": 2, "reservations": 0, "events": 0}
    remaining = counts(database)
    assert (remaining["job"], remaining["task"], remaining["limit_mail"]) == (6, 6, 0)
    assert max(earlier - later for earlier, later in pairwise([16, *sizes])) <= 3
    assert {f.check for f in check_database(database) if not f.ok} == set()


def test_portions_of_pruning_have_a_time(
    life: Life, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are halved while they take much too long; see `PortionSize`."""
    monkeypatch.setattr(pruning, "TASKS_PER_PORTION", 8)
    for id in range(1, 31):
        life.submit(id, NOW + id)
        life.run(id, NOW + 100 + id)
    now, sizes = 0.0, list[int]()

    def clock() -> float:
        """Let the time pass that the rows of a portion take: ten seconds for a full one."""
        nonlocal now
        now += 10 * one_pass._size.part
        return now

    one_pass = PruningPass(NOW + 1000, clock=clock)
    engine = database.open_existing()
    while one_pass.prune_portion(engine):
        sizes.append(one_pass.deleted["jobs"] - sum(sizes))
    engine.dispose()
    assert sizes[:5] == [8, 4, 2, 1, 1]
    assert one_pass.deleted["jobs"] == 29  # the newest is kept


def test_tasks_in_runs_are_restored_requeued_summarised_and_forgotten(
    life: Life, database: Database
) -> None:
    life.submit(1, NOW, array="1-5000", held=True)
    life.submit(2, NOW + 1)
    assert pruned(database, NOW + 100)["jobs"] == 0
    life.take(UserRequested(NOW + 10, "cancel", 1, tuple(range(1001, 2001))))
    whole, single, absent = (
        DependencyTarget(1),
        DependencyTarget(1, 1500),
        DependencyTarget(1, 9000),
    )
    assert life.ledger.target_summaries([whole, single, absent]) == {
        whole: TargetSummary(whole, 5000, True, "", "1001-2000", NOW + 10),
        single: TargetSummary(single, 1, True, "", "1500", NOW + 10),
    }
    assert life.ledger.target_summaries([whole], owner="somebody else") == {}
    requeued, last_dispatch = life.ledger.ended_tasks(1, [5, 1500, 1501, 6000])
    assert [task.index for task in requeued] == [1500, 1501]
    spec, priority = life.ledger.current_job(1)
    life.take(JobRequeued(NOW + 20, spec, priority, last_dispatch, requeued, "ada"))
    assert {index for job_id, index in life.core.tasks if job_id == 1} == {1, 1500, 1501}
    states = Counter(row["state"] for row in life.ledger.status(TaskFilter([(1, None)])))
    assert states == {"held": 4000, "cancelled": 998, "dispatching": 2}
    assert life.ledger.missing_jobs([(1, 1400), (1, 3000), (1, 5001)]) == ["1_5001"]
    again = Core()
    life.ledger.restore(again, 100)
    assert (
        again.remainders[1].runs == life.core.remainders[1].runs == [(2, 1000, 1), (2001, 5000, 1)]
    )
    assert again.remainders[1].state == "held"
    assert {f.check for f in check_database(database) if not f.ok} == set()
    life.take(UserRequested(NOW + 30, "cancel", 1))
    life.submit(3, NOW + 40)
    assert pruned(database, NOW + 25)["jobs"] == 0
    assert pruned(database, NOW + 100)["jobs"] == 1
    remaining = counts(database)
    assert (remaining["job"], remaining["task_run"]) == (2, 0)
    assert {f.check for f in check_database(database) if not f.ok} == set()


@contextmanager
def counted_writes(table: str) -> Iterator[Counter[str]]:
    """Count the rows of a table that are written, by statement."""
    rows = Counter[str]()

    def count(_: object, cursor: Any, statement: str, *others: object) -> None:
        kind, tokens = statement.split()[0], statement.split()
        if kind in ("INSERT", "UPDATE", "DELETE") and table in tokens[1:3]:
            rows[kind] += cursor.rowcount

    sql_events.listen(Engine, "after_cursor_execute", count)
    try:
        yield rows
    finally:
        sql_events.remove(Engine, "after_cursor_execute", count)


def test_a_task_that_leaves_one_of_many_runs_changes_few_rows(
    life: Life, database: Database
) -> None:
    def restored() -> Core:
        core = Core()
        life.ledger.restore(core, 100)
        return core

    spread = tuple(index + index % 7 for index in range(100, 5000, 25))  # no run themselves
    life.submit(1, NOW, array="1-5000", held=True)
    with counted_writes("task_run") as rows:
        life.take(UserRequested(NOW + 10, "cancel", 1, spread))
    assert rows == {"DELETE": 1, "INSERT": len(spread) + 1}
    assert counts(database)["task"] == 1 + len(spread)
    with counted_writes("task_run") as rows:
        life.take(UserRequested(NOW + 20, "cancel", 1, (7, 8, 2510)))
    assert rows == {"DELETE": 2, "INSERT": 4}
    assert restored().remainders[1].runs == life.core.remainders[1].runs
    # a run that is cancelled whole, and the rest of another
    with counted_writes("task_run") as rows:
        life.take(UserRequested(NOW + 30, "cancel", 1, (*range(2, 7), *range(4901, 4920))))
    assert rows == {"DELETE": 2, "INSERT": 1}
    with counted_writes("task_run") as rows:
        life.take(UserRequested(NOW + 40, "release", 1))
    runs = life.core.remainders[1].runs
    assert rows["UPDATE"] + rows["INSERT"] == len(runs)
    assert rows["INSERT"] <= 2
    again = restored()
    assert again.remainders[1].runs == runs
    assert (again.remainders[1].state, len(again.tasks)) == ("queued", len(life.core.tasks))
    assert {f.check for f in check_database(database) if not f.ok} == set()
    life.take(UserRequested(NOW + 50, "hold", 1, with_remainder=True))
    assert restored().remainders[1].state == "held"
    life.take(UserRequested(NOW + 60, "cancel", 1))
    assert 1 not in restored().remainders
    assert {f.check for f in check_database(database) if not f.ok} == set()


def test_the_daemon_writes_while_a_thread_prunes(life: Life, database: Database) -> None:
    for id in range(1, 60):
        life.submit(id, NOW + id)
        life.run(id, NOW + 100 + id)
    life.submit(60, NOW + 260)  # the newest job is kept
    one_pass = PruningPass(NOW + 1000)
    with ThreadPoolExecutor(1) as pool:
        deleting = pool.submit(lambda: [*iter(lambda: life.ledger.prune_portion(one_pass), False)])
        for id in range(61, 90):
            life.submit(id, NOW + 200 + id)
        deleting.result(60)
    assert one_pass.deleted["jobs"] == 59
    assert counts(database)["job"] == 30


def test_recent_runs_are_those_of_the_last_attempts(life: Life, database: Database) -> None:
    for id in (1, 2, 3, 4):
        life.submit(id, NOW + id)
    life.run(2, NOW + 10)
    life.run(1, NOW + 20)
    runs = life.ledger.recent_runs(10)
    assert [job.id for job, _ in runs] == [1, 2]  # the others have not run
    engine = database.open_existing()
    with engine.connect() as connection:
        query = select(attempt.c.ended - attempt.c.started).order_by(attempt.c.job).limit(2)
        assert [seconds for _, seconds in runs] == list(connection.scalars(query))
    # jobs 3 and 4 have attempts, too
    assert [job.id for job, _ in life.ledger.recent_runs(3)] == [2]
    assert life.ledger.recent_runs(2) == []


def test_use_of_ended_tasks_is_stored_once_and_passes_the_checks(
    life: Life, database: Database
) -> None:
    for id in (1, 2):
        life.submit(id, NOW + id)
    life.run(1, NOW + 10)
    life.run(2, NOW + 20)
    first, second = life.ledger.ended_runs("left", NOW, 10)
    assert (first.job, first.task, first.attempt, first.native_id) == (1, 0, 1, "7")
    assert life.ledger.ended_runs("left", NOW, 1) == [first]
    assert life.ledger.ended_runs("left", NOW, 1, first) == [second]
    assert life.ledger.ended_runs("left", NOW + 30, 10) == []
    assert life.ledger.ended_runs("right", NOW, 10) == []
    life.ledger.store_usage({first: RunUsage(5.0, 70)})
    life.ledger.store_usage({first: RunUsage(6.0, 80), second: RunUsage(7.0)})
    assert life.ledger.ended_runs("left", NOW, 10) == []
    engine = database.open_existing()
    with engine.connect() as connection:
        query = select(attempt.c.cpu_seconds, attempt.c.max_memory).order_by(attempt.c.job)
        assert [tuple(row) for row in connection.execute(query)] == [(5.0, 70), (7.0, None)]
    engine.dispose()
    assert [check.check for check in check_database(database) if not check.ok] == []


def remember_limit_mails(database: Database, *tasks: tuple[int, int]) -> None:
    """Store that a share of the time limit of tasks (job, index) was mailed."""
    engine = database.open_existing()
    with engine.begin() as connection:
        for id, index in tasks:
            row = {"job": id, "task_index": index, "started": NOW, "kind": "job_time_limit_50"}
            connection.execute(insert(limit_mail), [row])
    engine.dispose()


def test_pruning_forgets_ended_jobs_whole_and_nothing_else(life: Life, database: Database) -> None:
    for id in (1, 2, 3, 4):
        life.submit(id, NOW + id, deadline=NOW + 1000 if id == 2 else None)
    for id in (1, 2, 3):
        life.run(id, NOW + 100 * id)
    remember_limit_mails(database, (1, 0), (3, 0))
    assert pruned(database, NOW + 250) == {"jobs": 1, "reservations": 0, "events": 0}
    engine = database.open_existing()
    with engine.connect() as connection:
        for table, column in ((job, job.c.id), (task, task.c.job), (attempt, attempt.c.job)):
            ids = connection.execute(select(column).select_from(table).distinct()).scalars()
            # job 2 has a deadline: priorities of later jobs depend on it
            assert set(ids) == {2, 3, 4}, table.name
        assert list(connection.execute(select(limit_mail.c.job)).scalars()) == [3]
        assert 1 not in set(connection.execute(select(change.c.job)).scalars())
        texts = set(connection.execute(select(content.c.digest)).scalars())
    engine.dispose()
    assert texts == {"s2", "s3", "s4", "e"}
    assert pruned(database, NOW + 250) == {"jobs": 0, "reservations": 0, "events": 0}
    assert {f.check for f in check_database(database) if not f.ok} == set()


def test_events_go_up_to_a_checkpoint_from_which_they_are_replayed(
    life: Life, database: Database, alter: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for id in (1, 2):
        life.submit(id, NOW + id)
    life.run(1, NOW + 10)
    monkeypatch.setattr(ledgers, "CHECKPOINT_AFTER", 3)
    second = Life(database, NOW + 15)
    second.submit(5, NOW + 20)
    monkeypatch.setattr(ledgers, "CHECKPOINT_AFTER", 1000)
    third = Life(database, NOW + 25)
    third.run(2, NOW + 30)
    assert pruned(database, NOW + 15) == {"jobs": 1, "reservations": 0, "events": 0}
    before = counts(database)["event"]
    deleted = pruned(database, NOW + 16)["events"]
    assert 0 < deleted == before - counts(database)["event"]
    engine = database.open_existing()
    with engine.connect() as connection:
        start = connection.execute(select(checkpoint.c.event)).scalar()
        assert start is not None
        of_stories = select(change.c.event).where(change.c.event < start)
        remaining = connection.execute(select(event.c.id).where(event.c.id < start)).scalars()
        # job 2 was open then, so the events of its story are kept
        assert set(remaining) == set(connection.execute(of_stories).scalars()) != set()
    engine.dispose()
    findings = {finding.check: finding for finding in check_database(database)}
    assert all(finding.ok for finding in findings.values()), findings
    assert "from the checkpoint" in findings["replay"].text
    alter("UPDATE task SET state = 'held' WHERE job = 5")
    assert (
        "task 5_0 is stored held" in {f.check: f.text for f in check_database(database)}["replay"]
    )
    second.ledger.close()
    third.ledger.close()


def test_events_decided_by_another_release_are_not_replayed(
    database: Database, alter: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def replay_result() -> CheckResult:
        return next(check for check in check_database(database) if check.check == "replay")

    with monkeypatch.context() as other_release:
        other_release.setattr(ledgers, "DECISION_VERSION", DECISION_VERSION - 1)
        older = Life(database, NOW)
        older.submit(1, NOW + 1)
        older.submit(2, NOW + 1)
        older.run(1, NOW + 2)
        older.ledger.close()
    # as if that release had decided to hold the job
    alter("UPDATE task SET state = 'held', held = true WHERE job = 2")
    assert replay_result().ok
    assert "none was replayed" in replay_result().text
    younger = Life(database, NOW + 10)
    younger.submit(3, NOW + 11)
    assert replay_result().ok
    assert "older events were not replayed" in replay_result().text
    alter("UPDATE task SET state = 'held' WHERE job = 3")
    assert "task 3_0 is stored held" in replay_result().text
    younger.ledger.close()


def test_what_only_looks_creates_nothing(database: Database) -> None:
    with pytest.raises(StoreError, match=r"no database|is empty"):
        database.open_existing()


def test_a_task_cancelled_when_its_attempt_ended_has_not_started_with_it(
    life: Life, database: Database
) -> None:
    """The attempt was requeued, and the task cancelled in metasched, at the very same time."""
    life.submit(1, NOW)
    life.run(1, NOW + 100)
    engine = database.open_existing()

    def last_start(state: State) -> float:
        with engine.begin() as connection:
            connection.execute(update(task).values(state=state))
            connection.execute(update(attempt).values(started=NOW + 50))
        target = DependencyTarget(1)
        return life.ledger.target_summaries([target])[target].last_start

    assert last_start(State.COMPLETED) == NOW + 50
    assert last_start(State.CANCELLED) == NOW + 100
    engine.dispose()
