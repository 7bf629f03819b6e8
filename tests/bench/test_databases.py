"""The ledger on SQLite and on PostgreSQL in the same run; commits of both wait for the disk."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import pytest

from metasched.core.events import (
    CoreEvent,
    DaemonStarted,
    DispatchStarted,
    JobSubmitted,
    ListingReceived,
)
from metasched.core.scheduler import Core
from metasched.db.ledger import Ledger, StoredJob
from metasched.db.store import Database
from metasched.model.cluster import Cluster, ClusterInfo, NodeCapacity, Partition
from metasched.model.job import Job, Payload
from metasched.policies.policy import Policy
from tests.bench.conftest import Record
from tests.conftest import require
from tests.harness.databases import database_from_url
from tests.harness.postgresql import Server, missing

NOW = 1_000_000.0
ONE_BY_ONE, BATCH, OPEN, ROUNDS = 50, 500, 5_000, 2
FACTS = ClusterInfo(
    cpus=8, used_cpus=0, partitions=(Partition("p", (NodeCapacity(1, 8, 8),), default=True),)
)


def life(ledger: Ledger) -> Core:
    core = Core()
    ledger.restore(core, 100)
    clusters = (Cluster(name="left", adapter="local"),)
    for event in (
        DaemonStarted(NOW, ledger.identity(NOW).instance, Policy(), clusters),
        ListingReceived(NOW, "left", info=FACTS),
    ):
        ledger.record([(event, core.step(event))])
    return core


def submit(core: Core, ledger: Ledger, count: int) -> list[int]:
    """Accept jobs in one transaction, as an API call does; return their ids."""
    jobs = [Job(id=ledger.next_job(1), submitted=NOW, estimated=60.0) for _ in range(count)]
    events = [JobSubmitted(NOW, job) for job in jobs]
    stored = [
        StoredJob(job=job, script="s", environment="e", payload=Payload(script="")) for job in jobs
    ]
    texts = {"s": "#!/bin/sh\n", "e": "{}"}
    ledger.record([(event, core.step(event)) for event in events], stored, texts)
    return [job.id for job in jobs]


def measured(database: Database) -> dict[str, float]:
    """Return the seconds of each operation in one round."""
    with database.acquire_writer() as seat:
        ledger = Ledger(seat.engine, seat)
        core = life(ledger)
        begun = time.perf_counter()
        ids = [submit(core, ledger, 1)[0] for _ in range(ONE_BY_ONE)]
        alone = time.perf_counter()
        for id in ids:
            event: CoreEvent = DispatchStarted(NOW, id, 1)
            ledger.record([(event, core.step(event))])
        tried = time.perf_counter()
        submit(core, ledger, BATCH)
        batch = time.perf_counter()
        while len(core.tasks) < OPEN:
            submit(core, ledger, BATCH)
        before = time.perf_counter()
        again = Core()
        ledger.restore(again, 100)
        restored = time.perf_counter()
        assert again.tasks.keys() == core.tasks.keys()
    return {
        "submission": (alone - begun) / ONE_BY_ONE,
        "event": (tried - alone) / ONE_BY_ONE,
        "batch": batch - tried,
        "restore": restored - before,
    }


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_both_databases(common_folder: Path, tmp_path: Path, record: Record) -> None:
    if (reason := missing()) is not None:
        require("postgresql", reason)
    runs: dict[str, list[dict[str, float]]] = {"sqlite": [], "postgresql": []}
    with Server(common_folder / "pg-bench", settings=()) as server:
        for turn in range(ROUNDS):
            runs["sqlite"].append(measured(database_from_url(f"sqlite:///{turn}.db", tmp_path)))
            runs["postgresql"].append(measured(database_from_url(server.create(), tmp_path)))
    of = {
        backend: {key: median(run[key] for run in result) for key in result[0]}
        for backend, result in runs.items()
    }
    sqlite, postgresql = of["sqlite"], of["postgresql"]
    for name, key, count in (
        ("submissions one by one", "submission", 1),
        ("other events", "event", 1),
        (f"{BATCH} jobs in one transaction", "batch", BATCH),
    ):
        record(
            f"{name}, SQLite",
            count / sqlite[key],
            "/s",
            peers={"PostgreSQL": count / postgresql[key]},
        )
    record(
        f"recovery at a start, {OPEN:,} open jobs, SQLite",
        sqlite["restore"],
        "s",
        peers={"PostgreSQL": postgresql["restore"]},
    )
