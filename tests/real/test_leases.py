"""Leases in a real database: races never exceed the total, and no lease is lost."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator

import pytest
from msgspec import structs
from sqlalchemy import Engine, func, insert, select
from sqlalchemy.exc import IntegrityError

from metasched.core.events import (
    ClockSet,
    ClusterUnreachable,
    CoreEvent,
    DaemonStarted,
    DispatchAccepted,
    DispatchStarted,
    JobSubmitted,
    LicenceSet,
    LicencesReleased,
    ListingReceived,
    Outcome,
    TimerExpired,
)
from metasched.core.scheduler import Core
from metasched.db import leases
from metasched.db.ledger import Ledger, StoredJob
from metasched.db.schema import attempt, content, job, lease, licence, task
from metasched.db.store import Database
from metasched.model.cluster import Cluster, ClusterInfo, ManagerLicences, NodeCapacity, Partition
from metasched.model.job import Job, Payload, Reason, State
from metasched.model.licence import Lease, LicencePool, LicenceStatus, ReturnedLease
from metasched.model.listing import JobStatus
from metasched.policies.policy import Policy

NOW = 1_000_000.0
TOTAL, PROCESSES, TURNS = 5, 4, 60
POOLS = (LicencePool(name="matlab", total=TOTAL, linger=50.0),)
FACTS = ClusterInfo(
    cpus=8, used_cpus=0, partitions=(Partition("p", (NodeCapacity(1, 8, 8),), default=True),)
)


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    new_ledger = Ledger(database.open())
    yield new_ledger
    new_ledger.close()


def standing(name: str, total: int) -> LicenceStatus:
    return LicenceStatus(name, total, 0, 0, 0, total, 0, "", None, None)


def with_attempts(database: Database, jobs: int) -> Engine:
    """Create a database with licences and `jobs` jobs, each with a live attempt."""
    engine = database.open()
    with engine.begin() as connection:
        connection.execute(insert(content), {"digest": "d", "text": ""})
        for id in range(1, jobs + 1):
            texts = {
                "priority_parts": "[]",
                "spec": "{}",
                "script": "d",
                "environment": "d",
                "payload": "{}",
            }
            connection.execute(
                insert(job),
                {"id": id, "user": "u", "name": "", "submitted": NOW, "priority": 1} | texts,
            )
            connection.execute(
                insert(task),
                {"job": id, "task_index": 0, "state": "pending", "reason": "", "held": False}
                | {"attempts": 1, "moves": 0, "ignore_rejections_until": 0, "user": "u"},
            )
            connection.execute(
                insert(attempt),
                {"job": id, "task_index": 0, "number": 1, "dispatch_id": 1, "cluster": "left"}
                | {"state": "pending", "dispatched": NOW, "manager_reason": "", "node": ""}
                | {"restarts": 0, "fence": "", "rejected": False, "has_started": False}
                | {"revoking": False, "revoked": False, "lease_expired": False},
            )
        pools = {name: standing(name, TOTAL) for name in ("matlab", "ansys")}
        leases.store(connection, Outcome(licence_statuses=pools))
    return engine


def race(database: Database, id: int, refused: multiprocessing.Queue[int]) -> None:
    """Take and return random leases in one of several processes, without any other lock."""
    engine = database.open_existing()
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:  # the only connection of its pool
            connection.exec_driver_sql("PRAGMA busy_timeout = 60000")
    drawn = random.Random(id)
    denied = 0
    for turn in range(TURNS):
        tokens = {"matlab": drawn.randint(1, 4), "ansys": drawn.randint(1, 4)}
        new_lease = Lease(id, 0, 1, tokens, NOW + turn)
        try:
            with engine.begin() as connection:
                leases.store(connection, Outcome(leases=[new_lease]))
        except IntegrityError:
            denied += 1
            continue
        with engine.begin() as connection:
            leases.store(
                connection, Outcome(leases=[ReturnedLease(new_lease, NOW + turn, "ended")])
            )
    refused.put(denied)
    engine.dispose()


def test_processes_that_race_never_have_more_than_there_are(database: Database) -> None:
    engine = with_attempts(database, PROCESSES)
    spawn = multiprocessing.get_context("spawn")
    refused: multiprocessing.Queue[int] = spawn.Queue()
    racing = [
        spawn.Process(target=race, args=(database, id, refused)) for id in range(1, PROCESSES + 1)
    ]
    for process in racing:
        process.start()
    most = 0
    with engine.connect() as watching:
        while any(process.is_alive() for process in racing):
            with watching.begin():
                held = watching.execute(
                    select(func.sum(lease.c.tokens))
                    .where(lease.c.until.is_(None))
                    .group_by(lease.c.licence)
                ).scalars()
                most = max(most, *held, 0)
            racing[0].join(0.001)
            for process in racing:
                process.join(0)
    assert [process.exitcode for process in racing] == [0] * PROCESSES
    denied = sum(refused.get(timeout=30) for _ in racing)
    assert most <= TOTAL
    with engine.connect() as reading:
        assert [row.leased for row in reading.execute(select(licence))] == [0, 0]
        assert list(leases.find_mismatches(reading)) == []
        lease_count = reading.execute(select(func.count()).select_from(lease)).scalar()
    assert lease_count == 2 * (PROCESSES * TURNS - denied)  # refused leases left no rows
    engine.dispose()


def test_the_database_refuses_what_is_not_there(database: Database) -> None:
    engine = with_attempts(database, 3)
    first, second = (Lease(id, 0, 1, {"matlab": 3}, NOW) for id in (1, 2))
    with engine.begin() as connection:
        leases.store(connection, Outcome(leases=[first]))
    with pytest.raises(IntegrityError, match="within_total"), engine.begin() as connection:
        leases.store(connection, Outcome(leases=[second]))
    with pytest.raises(IntegrityError), engine.begin() as connection:  # same task again
        leases.store(connection, Outcome(leases=[Lease(1, 0, 1, {"matlab": 1}, NOW)]))
    with engine.begin() as connection:  # a forced lease is counted beyond the total
        forced = Lease(2, 0, 1, {"matlab": 3}, NOW, forced=True)
        leases.store(connection, Outcome(leases=[forced]))
        [row] = connection.execute(select(licence).where(licence.c.name == "matlab"))
        assert (row.total, row.leased, row.excess) == (5, 6, 1)
        assert leases.live_leases(connection) == [first, Lease(2, 0, 1, {"matlab": 3}, NOW)]
    with engine.begin() as connection:
        leases.store(connection, Outcome(leases=[ReturnedLease(first, NOW, "ended")]))
        [row] = connection.execute(select(licence).where(licence.c.name == "matlab"))
        assert (row.total, row.leased, row.excess) == (5, 3, 0)
        leases.store(connection, Outcome(licence_statuses={"matlab": standing("matlab", 1)}))
    with pytest.raises(IntegrityError, match="within_total"), engine.begin() as connection:
        leases.store(connection, Outcome(leases=[Lease(3, 0, 1, {"matlab": 1}, NOW)]))
    engine.dispose()


def boot() -> DaemonStarted:
    clusters = tuple(Cluster(name=name, adapter="local") for name in ("left", "right"))
    return DaemonStarted(NOW, "cafe", Policy(), clusters, pools=POOLS)


class Daemon:
    """Core and ledger, connected as in the daemon."""

    def __init__(self, ledger: Ledger) -> None:
        self.core, self.ledger = Core(), ledger
        ledger.restore(self.core, 100)
        self.take(boot())
        self.take(ListingReceived(NOW, "left", info=FACTS))

    def take(self, event: CoreEvent) -> None:
        stored = []
        if isinstance(event, JobSubmitted):
            payload = Payload(script="", output="/o")
            stored = [StoredJob(job=event.job, script="s", environment="e", payload=payload)]
        texts = {"s": "#!/bin/sh\n", "e": "{}"}
        self.ledger.record([(event, self.core.step(event))], stored, texts if stored else {})

    def submit(self, id: int, count: int) -> None:
        job = Job(id=id, submitted=NOW, estimated=60.0, licences={"matlab": count})
        self.take(JobSubmitted(NOW, job))

    @property
    def leased(self) -> int:
        return self.core.licences.status("matlab", NOW).leased_tokens


def test_leases_outlast_the_daemon_with_the_intents_that_they_were_stored_with(
    ledger: Ledger,
) -> None:
    daemon = Daemon(ledger)
    daemon.submit(1, 3)
    daemon.submit(2, 3)
    assert daemon.core.tasks[2, 0].reason == Reason.LICENCE_BUSY
    daemon.take(LicenceSet(NOW, "matlab", 4, "op"))
    again = Daemon(ledger)
    assert again.core.licences.leases == daemon.core.licences.leases
    assert again.core.licences.status("matlab", NOW).total == 4
    assert again.core.tasks[2, 0].reason == Reason.LICENCE_BUSY
    again.take(LicenceSet(NOW, "matlab", 6, "op"))
    assert (again.leased, again.core.tasks[2, 0].state) == (6, State.DISPATCHING)


def test_what_lingers_is_stored_anew_when_the_clock_is_set(ledger: Ledger) -> None:
    def lingering() -> int:
        again = Core()
        ledger.restore(again, 100)
        return again.licences.status("matlab", NOW).lingering

    daemon = Daemon(ledger)
    daemon.submit(1, 2)
    daemon.take(DispatchStarted(NOW, 1, 1))
    daemon.take(DispatchAccepted(NOW, 1, 1, {0: "7"}))
    row = JobStatus("ms-cafe-1-1", 0, "7", State.COMPLETED, started=NOW, ended=NOW + 10)
    daemon.take(ListingReceived(NOW + 10, "left", (row,), until=NOW + 10))
    daemon.take(ClockSet(NOW - 3590, step=-3600.0))
    assert lingering() == 2
    daemon.take(TimerExpired(NOW - 3541))
    assert lingering() == daemon.core.licences.status("matlab", NOW).lingering == 2
    daemon.take(ClockSet(NOW + 59, step=3600.0))
    assert lingering() == 2
    daemon.take(TimerExpired(NOW + 60))
    assert lingering() == daemon.core.licences.status("matlab", NOW).lingering == 0
    daemon.take(ClockSet(NOW - 3540, step=-3600.0))
    assert lingering() == daemon.core.licences.status("matlab", NOW).lingering == 0


def test_what_lingers_outlasts_later_events_from_before_its_return(ledger: Ledger) -> None:
    """The clock was set back while no daemon ran; the tokens came back after that."""
    daemon = Daemon(ledger)
    daemon.submit(1, 2)
    daemon.take(DispatchStarted(NOW, 1, 1))
    daemon.take(DispatchAccepted(NOW, 1, 1, {0: "7"}))
    daemon.take(TimerExpired(NOW + 100))
    row = JobStatus("ms-cafe-1-1", 0, "7", State.COMPLETED, started=NOW, ended=NOW + 10)
    for time, lingering in ((NOW + 10, 2), (NOW + 59, 2), (NOW + 60, 0), (NOW + 20, 0)):
        daemon.take(ListingReceived(time, "left", (row,), until=NOW + 10))
        again = Core()
        ledger.restore(again, 100)
        assert again.licences.status("matlab", time).lingering == lingering
        assert daemon.core.licences.status("matlab", time).lingering == lingering


def test_outside_use_counts_after_a_restart_until_the_manager_answers(
    ledger: Ledger,
) -> None:
    daemon = Daemon(ledger)
    daemon.take(
        ListingReceived(
            NOW,
            "right",
            info=structs.replace(FACTS, licences={"matlab": ManagerLicences(5, used=4)}),
        )
    )
    daemon = Daemon(ledger)  # has a listing of `left` only
    assert daemon.core.licences.status("matlab", NOW).free == 1
    daemon.submit(1, 2)
    assert daemon.core.tasks[1, 0].reason == Reason.LICENCE_BUSY
    daemon.take(ListingReceived(NOW, "right", info=FACTS))
    assert daemon.core.tasks[1, 0].state is State.DISPATCHING
    assert Daemon(ledger).core.licences.status("matlab", NOW).outside == 0


def test_what_is_unknown_keeps_its_licences_until_an_operator_takes_them(ledger: Ledger) -> None:
    daemon = Daemon(ledger)
    daemon.submit(1, 5)
    daemon.submit(2, 1)
    daemon.take(DispatchStarted(NOW, 1, 1))
    daemon.take(DispatchAccepted(NOW, 1, 1, {0: "7"}))
    daemon.take(LicencesReleased(NOW, 1, (0,), "op"))
    assert daemon.leased == 5  # only leases of unknown tasks are released
    daemon.take(ClusterUnreachable(NOW, "left", "no answer"))
    assert (daemon.core.tasks[1, 0].state, daemon.leased) == (State.UNKNOWN, 5)
    daemon = Daemon(ledger)
    assert daemon.leased == 5
    daemon.take(LicencesReleased(NOW, 1, (0,), "op"))
    assert daemon.core.licences.leases.keys() == {(2, 0)}
    assert Daemon(ledger).core.licences.leases.keys() == {(2, 0)}
