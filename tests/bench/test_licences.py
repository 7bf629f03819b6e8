"""Cost of a lease: the decision with 200 pools and 10,000 waiting tasks, and its storage."""

from __future__ import annotations

import multiprocessing
import random
import time
from pathlib import Path

import pytest
from sqlalchemy import select

from metasched.core.events import Outcome
from metasched.core.licences.queue import LicenceQueue
from metasched.core.tasks import TaskId
from metasched.db import leases
from metasched.db.schema import licence
from metasched.db.store import Database
from metasched.model.licence import Lease, LicencePool, ReturnedLease
from tests.bench.conftest import Record
from tests.conftest import require
from tests.harness.databases import database_from_url
from tests.harness.postgresql import Server, missing
from tests.real.test_leases import NOW, standing, with_attempts

POOLS, TASKS = 200, 10_000
STORED, PARTS = 1000, 4
CONNECTIONS, WARM = 4, 50


@pytest.mark.bench
@pytest.mark.cpu
@pytest.mark.parametrize(
    ("kinds", "ends", "target"),
    [(100, 5000, "at most 100 µs"), (0, 500, "at most 3,000 µs")],
    ids=["100", "0"],
)
def test_a_lease_decision(kinds: int, ends: int, target: str, record: Record) -> None:
    """A lease ends and waiting tasks start; another task joins the queue and starts if it can.

    `kinds` is the number of distinct requests, 0: every request is drawn anew.
    """
    drawn = random.Random(1)
    names = [f"l{n}" for n in range(POOLS)]
    line = LicenceQueue()
    line.configure([LicencePool(name=name, total=8) for name in names], 600.0)

    def draw() -> dict[str, int]:
        return {n: drawn.randint(1, 8) for n in drawn.sample(names, drawn.randint(1, 3))}

    distinct = [draw() for _ in range(kinds)]
    requests = [drawn.choice(distinct) if kinds else draw() for _ in range(TASKS + ends)]
    limits = [drawn.lognormvariate(7, 1.5) for _ in requests]
    held: list[TaskId] = []

    def settle(now: float) -> None:
        while (task_id := line.next_ready(now)) is not None:
            line.take(Lease(*task_id, 1, requests[task_id[0]], now), now + limits[task_id[0]])
            held.append(task_id)

    def join(job: int, now: float) -> None:
        line.join((job, 0), float(job), requests[job], limits[job])
        settle(now)

    for job in range(TASKS):
        line.join((job, 0), float(job), requests[job], limits[job])
    settle(0.0)
    spent = 0.0
    for turn in range(ends):
        task_id, now = held.pop(drawn.randrange(len(held))), float(turn)
        begun = time.process_time()
        line.return_lease(task_id, now, was_used=True)
        settle(now)
        join(TASKS + turn, now)
        spent += time.process_time() - begun
    record(
        f"a lease decision, {f'{kinds} kinds of requests' if kinds else 'all requests different'}",
        spent / (2 * ends) * 1e6,
        "µs of CPU",
        target=target,
    )


@pytest.mark.bench
def test_leases_stored_in_sqlite(tmp_path: Path, record: Record) -> None:
    """Take and return leases, a transaction each, synchronous FULL, with a growing history."""
    engine = with_attempts(database_from_url("sqlite:///ms.db", tmp_path), 1)
    rates = []
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        connection.rollback()
        for part in range(PARTS):
            begun = time.perf_counter()
            for turn in range(STORED // 2):
                now = NOW + part * STORED + turn
                new_lease = Lease(1, 0, 1, {"matlab": 2}, now)
                for change in (new_lease, ReturnedLease(new_lease, now, "ended")):
                    with connection.begin():
                        leases.store(connection, Outcome(leases=[change]))
            rates.append(STORED / (time.perf_counter() - begun))
        with connection.begin():
            assert connection.execute(select(licence.c.leased)).scalars().all() == [0, 0]
    record(
        f"leases stored in SQLite after {STORED * (PARTS - 1):,}, one writer",
        rates[-1],
        "/s",
        peers={"the first": rates[0]},
        target="at least 1,000/s",
    )
    engine.dispose()


def lease_and_give_back(
    database: Database, id: int, name: str, rates: multiprocessing.Queue[float]
) -> None:
    """Take and return leases in one of several processes, on its own connection."""
    engine = database.open_existing()
    with engine.connect() as connection:
        for turn in range(WARM + STORED // 2):
            if turn == WARM:
                begun = time.perf_counter()
            new_lease = Lease(id, 0, 1, {name: 1}, NOW + turn)
            for change in (new_lease, ReturnedLease(new_lease, NOW + turn, "ended")):
                with connection.begin():
                    leases.store(connection, Outcome(leases=[change]))
        rates.put(STORED / (time.perf_counter() - begun))
    engine.dispose()


@pytest.mark.bench
@pytest.mark.parametrize("licences", [CONNECTIONS, 1])
def test_leases_stored_in_postgresql(licences: int, common_folder: Path, record: Record) -> None:
    """Take and return leases, a transaction each, on four connections at once, with fsync."""
    if (reason := missing()) is not None:
        require("postgresql", reason)
    spawn = multiprocessing.get_context("spawn")
    with Server(common_folder / "pg-leases", settings=()) as server:
        database = database_from_url(server.create(), common_folder)
        engine = with_attempts(database, CONNECTIONS)
        assert server.sql("SHOW fsync") == "on"
        assert server.sql("SHOW synchronous_commit") == "on"
        with engine.begin() as connection:
            pools = {f"l{n}": standing(f"l{n}", CONNECTIONS) for n in range(licences)}
            leases.store(connection, Outcome(licence_statuses=pools))
        rates: multiprocessing.Queue[float] = spawn.Queue()
        several = [
            spawn.Process(
                target=lease_and_give_back, args=(database, id, f"l{id % licences}", rates)
            )
            for id in range(1, CONNECTIONS + 1)
        ]
        for process in several:
            process.start()
        measured_rates = [rates.get(timeout=120) for _ in several]
        for process in several:
            process.join()
        with engine.connect() as connection:
            assert list(leases.find_mismatches(connection)) == []
        engine.dispose()
    record(
        f"leases stored in PostgreSQL, {CONNECTIONS} connections, licences: {licences}",
        sum(measured_rates),
        "/s",
        target="at least 1,000/s",
    )
