"""The calendar in both databases: what a restart reads, ids, the check of a replay, failures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from metasched.core.calendar_events import CalendarEntryRemoved, CalendarEntrySet, CalendarRun
from metasched.core.events import ClusterDrained, CoreEvent, DaemonStarted
from metasched.core.scheduler import Core
from metasched.daemon.backups import write_backup
from metasched.db.integrity import check_database
from metasched.db.ledger import Ledger
from metasched.db.schema import calendar
from metasched.db.store import Database, StorageFailed
from metasched.model.calendar import (
    BackUpDatabase,
    CalendarEntry,
    DrainCluster,
    PruneDatabase,
    Reserve,
    ResumeCluster,
    RunResult,
)
from metasched.model.cluster import Cluster
from metasched.policies.policy import Policy

NOW = 1_900_000_000.0
ACTS = (
    DrainCluster("alpha", "z\N{LATIN SMALL LETTER O WITH DIAERESIS}lf", True),
    ResumeCluster("alpha"),
    BackUpDatabase("/var/backups", 3),
    PruneDatabase(),
    Reserve(
        least=1, most=4, duration=60.0, licences={"matlab": 2}, users=("bob",), accounts=("x",)
    ),
)


def entry(id: int) -> CalendarEntry:
    act = ACTS[id - 1]
    return CalendarEntry(
        id=id,
        name="" if isinstance(act, Reserve) else f"entry{id}",
        act=act,
        rule="daily 02:30",
        zone="Europe/Berlin",
        owner="ada" if isinstance(act, Reserve) else "",
        requested_by="root",
        created=NOW,
        grace=60.0,
        lead=5.5,
        until=NOW + 1e6,
        next_run=NOW + 100,
    )


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    opened = Ledger(database.open())
    yield opened
    opened.close()


def start(ledger: Ledger) -> Core:
    """Start a daemon on what is stored."""
    core = Core()
    ledger.restore(core, 100)
    started = DaemonStarted(NOW, "cafe", Policy(), (Cluster(name="alpha", adapter="local"),))
    ledger.record([(started, core.step(started))])
    return core


def record(ledger: Ledger, core: Core, *events: CoreEvent) -> None:
    """Store events in one transaction."""
    ledger.record([(event, core.step(event)) for event in events])


def test_a_restart_reads_what_was_stored(ledger: Ledger, database: Database) -> None:
    core = start(ledger)
    record(ledger, core, *(CalendarEntrySet(NOW, entry(id)) for id in range(1, 6)))
    record(
        ledger,
        core,
        CalendarRun(NOW + 100, 1, NOW + 100, RunResult.DONE, NOW + 200),
        ClusterDrained(NOW + 100, "alpha", "", "night", True, entry="entry1"),
        CalendarRun(NOW + 100, 3, NOW + 100, RunResult.STARTED, NOW + 200),
        CalendarRun(NOW + 100, 4, NOW + 100, RunResult.SKIPPED, NOW + 300, count=2),
        CalendarEntryRemoved(NOW + 101, 2),
    )
    again = start(ledger)
    assert again.calendar.entries == core.calendar.entries
    assert sorted(again.calendar.entries) == [1, 3, 4, 5]
    assert again.calendar.entries[1].last_runs == (NOW + 100,)
    assert again.calendar.entries[3].running == NOW + 100
    drain = again.find_drain("alpha")
    assert drain is not None
    assert drain.entry == "entry1"
    assert ledger.next_reservation() == 6
    assert {result.ok for result in check_database(database)} == {True}


def test_a_replay_that_differs_is_found(ledger: Ledger, database: Database) -> None:
    record(ledger, start(ledger), CalendarEntrySet(NOW, entry(1)))
    with database.open_existing().begin() as connection:
        connection.execute(update(calendar).values(next_run=NOW + 7))
    texts = {result.check: result.text for result in check_database(database) if not result.ok}
    assert texts == {"replay": "calendar entry 1 (entry1) is stored otherwise than it is replayed"}


def test_a_drain_is_not_stored_without_its_run(ledger: Ledger, database: Database) -> None:
    core = start(ledger)
    record(ledger, core, CalendarEntrySet(NOW, entry(1)))
    newer = Ledger(database.open_existing())
    newer.restore(Core(), 100)  # a daemon that took over
    run = CalendarRun(NOW + 100, 1, NOW + 100, RunResult.DONE, NOW + 200)
    with pytest.raises(StorageFailed):
        record(ledger, core, run, ClusterDrained(NOW + 100, "alpha", entry="entry1"))
    stored = Core()
    newer.restore(stored, 100)
    newer.close()
    assert stored.calendar.entries[1].next_run == NOW + 100
    assert stored.find_drain("alpha") is None


def test_a_copy_of_each_database(ledger: Ledger, database: Database, tmp_path: Path) -> None:
    start(ledger)
    folder = tmp_path / "copies"
    write_backup(database, folder, "copy", NOW, 2)
    write_backup(database, folder, "copy", NOW, 2)
    [copy] = folder.iterdir()
    assert copy.name == f"metasched-copy-20300317T174640Z{database.backup_suffix}"
    assert copy.stat().st_size > 1000
