"""Uses of limits in a real database: the constraint holds whatever the core decides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import select, update

from metasched.core.events import CoreEvent, DaemonStarted, JobSubmitted, UserRequested
from metasched.core.scheduler import Core
from metasched.db import limit_uses
from metasched.db.integrity import check_database
from metasched.db.ledger import Ledger, StoredJob
from metasched.db.schema import limit_use
from metasched.db.store import Database, RowsRejected
from metasched.model.cluster import Cluster
from metasched.model.job import Job, Payload
from metasched.model.limits import LimitSettings, LimitTable
from metasched.policies.policy import Policy

NOW = 1_000_000.0
TEXTS = {"s": "#!/bin/sh\n", "e": "{}"}
LIMITS = LimitSettings(
    for_all=LimitTable(open_tasks=4),
    each_user=LimitTable(open_tasks=3, running=2),
    groups={"aero": LimitTable(queued=9)},
)


class Daemon:
    """Core and ledger, connected as in the daemon."""

    def __init__(self, ledger: Ledger, limits: LimitSettings = LIMITS) -> None:
        self.core, self.ledger = Core(), ledger
        ledger.restore(self.core, 100)
        clusters = (Cluster(name="left", adapter="local"),)
        self.take(DaemonStarted(NOW, "cafe", Policy(), clusters, limits=limits))

    def take(self, event: CoreEvent) -> None:
        new_jobs = []
        if isinstance(event, JobSubmitted):
            payload = Payload(script="", output="/o")
            new_jobs = [StoredJob(job=event.job, script="s", environment="e", payload=payload)]
        texts = TEXTS if new_jobs else {}
        self.ledger.record([(event, self.core.step(event))], new_jobs, texts)

    def submit(
        self, id: int, array: str | None = None, user: str = "ada", stored_bytes: int = 0
    ) -> None:
        job = Job(
            id=id,
            submitted=NOW,
            estimated=60.0,
            user=user,
            groups=("aero",),
            array=array,
            stored_bytes=stored_bytes,
        )
        self.take(JobSubmitted(NOW, job))

    @property
    def rows(self) -> dict[tuple[str, str], tuple[int, int, int]]:
        with self.ledger._engine.connect() as connection:
            assert list(limit_uses.find_mismatches(connection)) == []
            return {
                (row.scope + row.name, row.resource): (row.used, row.maximum, row.excess)
                for row in connection.execute(select(limit_use))
            }


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    new_ledger = Ledger(database.open())
    yield new_ledger
    new_ledger.close()


def test_uses_follow_the_tasks_and_are_counted_again_at_a_start(ledger: Ledger) -> None:
    daemon = Daemon(ledger)
    assert daemon.rows == {("all", "open_tasks"): (0, 4, 0), ("groupaero", "queued"): (0, 9, 0)}
    daemon.submit(1, "0-2")
    counted = {
        ("all", "open_tasks"): (3, 4, 0),
        ("groupaero", "queued"): (3, 9, 0),
        ("userada", "open_tasks"): (3, 3, 0),
        ("userada", "running"): (0, 2, 0),
    }
    # no cluster is up: no task is dispatched
    assert daemon.rows == {key: use for key, use in counted.items() if key[1] != "running"}
    daemon.take(UserRequested(NOW, "cancel", 1, (1,)))
    assert daemon.rows["all", "open_tasks"] == (2, 4, 0)
    daemon = Daemon(ledger)
    assert daemon.rows["userada", "open_tasks"] == (2, 3, 0)
    lowered = Daemon(ledger, LimitSettings(for_all=LimitTable(open_tasks=1)))
    assert lowered.rows == {("all", "open_tasks"): (2, 1, 1)}
    lowered.take(UserRequested(NOW, "cancel", 1))
    assert lowered.rows == {("all", "open_tasks"): (0, 1, 0)}
    assert Daemon(ledger, LimitSettings()).rows == {}


def test_the_database_refuses_what_the_core_should_have_refused(ledger: Ledger) -> None:
    """A submission that nobody checked is stored neither whole nor in part."""
    daemon = Daemon(ledger)
    daemon.submit(1, "0-1")
    before = daemon.rows
    with pytest.raises(RowsRejected, match="within_limit"):
        daemon.submit(2, "0-1")
    again = Daemon(ledger)
    assert again.rows.items() >= before.items()
    assert {task.job.id for task in again.core.tasks.values()} == {1}
    with pytest.raises(RowsRejected, match="within_limit"):
        again.submit(2, "0-4", user="bob")  # his first tasks


@pytest.mark.parametrize("array", ["0-2", "0-1999"], ids=["tasks", "runs"])
def test_bytes_count_once_for_each_open_job(ledger: Ledger, array: str) -> None:
    """An array counts as a single job, until its last task has ended; also after a restart."""
    limits = LimitSettings(
        for_all=LimitTable(stored_bytes=150), each_user=LimitTable(stored_bytes=100)
    )
    daemon = Daemon(ledger, limits)
    daemon.submit(1, array, stored_bytes=70)
    daemon.submit(2, user="bob", stored_bytes=60)
    counted = {
        ("all", "stored_bytes"): (130, 150, 0),
        ("userada", "stored_bytes"): (70, 100, 0),
        ("userbob", "stored_bytes"): (60, 100, 0),
    }
    assert daemon.rows == counted
    daemon.take(UserRequested(NOW, "cancel", 1, (1,)))
    assert daemon.rows == counted
    daemon = Daemon(ledger, limits)
    assert daemon.rows == counted
    with pytest.raises(RowsRejected, match="within_limit"):
        daemon.submit(3000, stored_bytes=31)
    daemon = Daemon(ledger, limits)
    daemon.take(UserRequested(NOW, "cancel", 1))
    assert daemon.rows["userada", "stored_bytes"] == (0, 100, 0)
    assert daemon.rows["all", "stored_bytes"] == (60, 150, 0)


def test_a_check_of_the_database_finds_a_wrong_use(database: Database, ledger: Ledger) -> None:
    Daemon(ledger).submit(1)
    [counters] = [result for result in check_database(database) if result.check == "counters"]
    assert counters.ok, counters
    with ledger._engine.begin() as connection:
        connection.execute(update(limit_use).where(limit_use.c.scope == "all").values(used=2))
    [counters] = [result for result in check_database(database) if result.check == "counters"]
    assert counters.text == "limit of all users counts 2 open_tasks, there are 1"
