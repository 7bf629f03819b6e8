"""The calendar: the site's file, the plan of missed runs, copies, and drains beside operators."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from msgspec import structs

from metasched.api.calendar import calendar as list_calendar
from metasched.config.database_url import sqlite_url
from metasched.config.reading import load_settings, scheduled_policy_mistakes
from metasched.config.settings import CalendarSettings, ConfigError
from metasched.core.calendar_events import CalendarRun
from metasched.core.events import ClusterDrained, ClusterResumed, CoreEvent, Outcome
from metasched.daemon import backup_threads, calendar_runner
from metasched.daemon.backup_threads import BackupThreads, EntryRun
from metasched.daemon.backups import write_backup
from metasched.daemon.calendar_runner import (
    CalendarRunner,
    RunsOutside,
    next_unrepeated,
    plan_runs,
)
from metasched.daemon.scheduled_policies import ScheduledPolicies
from metasched.db.sqlite import Sqlite
from metasched.db.store import StorageFailed, StoreError
from metasched.model.audit import AuditKind, AuditRecord
from metasched.model.calendar import (
    MAX_REMEMBERED_RUNS,
    ActivatePolicy,
    BackUpDatabase,
    CalendarEntry,
    DrainCluster,
    PruneDatabase,
    ResumeCluster,
)
from tests.unit.core_site import Site

CLUSTER = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 4\n'
DAY, HOUR = 86400.0, 3600.0
NO_POLICIES = ScheduledPolicies(cast(Any, None))


def at(text: str) -> float:
    return datetime.fromisoformat(f"{text}+00:00").timestamp()


def entry(next_run: str, rule: str = "daily 02:00", **fields: Any) -> CalendarEntry:
    return CalendarEntry(
        id=1,
        name="copy",
        act=DrainCluster("left"),
        rule=rule,
        zone="UTC",
        created=0.0,
        next_run=at(next_run),
        **{"grace": HOUR, **fields},
    )


def read(folder: Path, text: str, daemon: str = "") -> tuple[CalendarSettings, ...]:
    path = folder / "metasched.toml"
    path.write_text(f"[daemon]\n{daemon}\n{CLUSTER}{text}")
    return load_settings(path).calendar


# The site's file


def test_the_file(tmp_path: Path) -> None:
    text = """
    [[calendar]]
    name = "night"
    at = "mon-fri 20:00"
    do = "drain"
    cluster = "left"
    reason = "power"
    [[calendar]]
    name = "copy"
    at = "30 2 * * *"
    do = "backup"
    folder = "copies"
    copies = 3
    zone = "Asia/Tokyo"
    grace = "2h"
    """
    assert read(tmp_path, text, 'zone = "Europe/Berlin"') == (
        CalendarSettings(
            "night", DrainCluster("left", "power"), "mon-fri 20:00", "Europe/Berlin", HOUR
        ),
        CalendarSettings(
            "copy", BackUpDatabase(f"{tmp_path}/copies", 3), "30 2 * * *", "Asia/Tokyo", 2 * HOUR
        ),
    )


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ('at = "sometimes"\ndo = "prune"', '"sometimes" is no rule'),
        ('at = "0 0 1 * mon"\ndo = "prune"', "write two rules"),
        ('at = "08:00"\ndo = "prune"\nzone = "Europe/Atlantis"', "is no time zone"),
        ('at = "08:00"\ndo = "drain"', "no cluster"),
        ('at = "08:00"\ndo = "drain"\ncluster = "lift"', 'write "left"'),
        ('at = "08:00"\ndo = "resume"\ncluster = "left"\nreason = "x"', "leave it out"),
        ('at = "08:00"\ndo = "backup"', "no folder"),
        ('at = "08:00"\ndo = "prune"\ncopies = 3', 'copies beside do = "prune"'),
        ('at = "08:00"\ndo = "reboot"', "do"),
        ('at = "08:00"\ndo = "policy"', "no file, "),
        ('at = "08:00"\ndo = "prune"\nfile = "bad.toml"', "leave it out"),
        ('at = "08:00"\ndo = "prune"\ngrace = 1', "grace"),
    ],
)
def test_mistakes_in_the_file_are_one_line(tmp_path: Path, keys: str, problem: str) -> None:
    (tmp_path / "bad.toml").write_text("pull = 3\n")
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, f'[[calendar]]\nname = "x"\n{keys}\n')
    assert problem in str(refused.value)
    assert 'calendar "x"' in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("file", "problem"), [("gone.toml", "gone.toml; create it"), ("bad.toml", "pull")]
)
def test_a_mistake_in_a_policy_file_is_told_and_refuses_no_start(
    tmp_path: Path, file: str, problem: str
) -> None:
    (tmp_path / "bad.toml").write_text("pull = 3\n")
    entry = f'[[calendar]]\nname = "x"\nat = "08:00"\ndo = "policy"\nfile = "{file}"\n'
    assert len(read(tmp_path, entry)) == 1
    [mistake] = scheduled_policy_mistakes(load_settings(tmp_path / "metasched.toml"))
    assert problem in str(mistake)
    assert 'calendar "x"' in str(mistake)
    assert "\n" not in str(mistake)


def test_a_name_is_there_once_and_the_zone_of_the_site_exists(tmp_path: Path) -> None:
    table = '[[calendar]]\nname = "x"\nat = "08:00"\ndo = "prune"\n'
    with pytest.raises(ConfigError, match='calendar "x" is there twice'):
        read(tmp_path, table * 2)
    with pytest.raises(ConfigError, match=r"is no time zone, zone, .*\[daemon\]"):
        read(tmp_path, table, 'zone = "../etc/passwd"')
    many = "".join(table.replace('"x"', f'"x{n}"') for n in range(201))
    with pytest.raises(ConfigError, match="201 calendar tables"):
        read(tmp_path, many)


# Missed runs


def test_of_missed_runs_the_last_one_happens_within_its_grace() -> None:
    plan = plan_runs(entry("2030-01-02T02:00"), at("2030-01-05T02:59"))
    assert plan.run == at("2030-01-05T02:00")
    assert (plan.skipped, plan.next_run) == (3, at("2030-01-06T02:00"))
    plan = plan_runs(entry("2030-01-02T02:00"), at("2030-01-05T03:01"))
    assert plan.run is None
    assert (plan.first, plan.last_skipped) == (at("2030-01-02T02:00"), at("2030-01-05T02:00"))
    assert (plan.skipped, plan.next_run) == (4, at("2030-01-06T02:00"))


def test_a_run_that_happened_is_not_the_last_one_that_was_missed() -> None:
    """The clock was ahead, an entry ran, and the clock was set back."""
    early = entry("2030-01-02T02:00", last_runs=(at("2030-01-03T02:00"),))
    plan = plan_runs(early, at("2030-01-03T02:30"))
    assert plan.run is None  # that of the day before is too late
    assert plan.next_run == at("2030-01-04T02:00")


def test_after_the_clock_was_set_back_only_what_has_not_happened_runs() -> None:
    ahead = entry("2031-01-01T02:00", last_runs=(at("2030-01-03T02:00"), at("2030-12-31T02:00")))
    assert next_unrepeated(ahead, at("2030-01-01T12:00")) == at("2030-01-02T02:00")
    assert next_unrepeated(ahead, at("2030-01-02T12:00")) == at("2030-01-04T02:00")


def test_runs_that_are_not_remembered_are_not_repeated() -> None:
    ran = tuple(at("2030-03-01T02:00") + DAY * n for n in range(MAX_REMEMBERED_RUNS))
    ahead = entry("2030-05-01T02:00", last_runs=ran)
    after_all = ran[-1] + DAY
    assert next_unrepeated(ahead, at("2030-01-01T00:00")) == after_all


def test_years_without_the_daemon_cost_little() -> None:
    plan = plan_runs(entry("2010-01-01T00:00", rule="* * * * *"), at("2030-01-01T00:00"))
    assert plan.skipped == 999  # counted up to a bound
    assert plan.run == at("2030-01-01T00:00")


# Drains


class Host:
    """What the runner needs of the service, with a core of two clusters."""

    def __init__(self, *entries: CalendarSettings) -> None:
        self.core = Site().core
        self.settings = SimpleNamespace(calendar=entries, database_url=sqlite_url(Path("/b.db")))
        self.ledger = SimpleNamespace(next_reservation=self.next_id)
        self.events: list[CoreEvent] = []
        self.conditions: list[tuple[str, AuditRecord]] = []
        self._id = 0

    def note_condition(self, record: AuditRecord, subject: str, _: str) -> None:
        self.conditions.append((subject, record))

    def next_id(self) -> int:
        self._id += 1
        return self._id

    async def apply_events(self, *events: CoreEvent) -> list[Outcome]:
        self.events += events
        return [self.core.step(event) for event in events]

    def look(self, now: str) -> None:
        """Let the runner look at the clock."""
        runner = CalendarRunner(
            cast(Any, self), cast(Any, None), RunsOutside(BackupThreads(), NO_POLICIES)
        )

        async def parts() -> None:
            await runner.take_over_file()
            await runner.start_due_runs()

        with patch("time.time", lambda: at(now)):
            asyncio.run(parts())

    def remarks(self) -> list[str]:
        return [event.cause for event in self.events if isinstance(event, CalendarRun)]


NIGHT = CalendarSettings("night", DrainCluster("left", "power"), "20:00", "UTC", 14 * HOUR)
MORNING = CalendarSettings("morning", ResumeCluster("left"), "06:00", "UTC", 14 * HOUR)


def test_a_drain_and_its_end() -> None:
    host = Host(NIGHT, MORNING)
    host.look("2030-01-02T12:00")
    host.look("2030-01-02T20:00")
    assert str(host.core.find_drain("left")) == "drained by calendar entry night: power"
    host.look("2030-01-02T20:05")
    host.look("2030-01-03T06:00")
    assert host.core.find_drain("left") is None
    assert host.remarks() == ["", ""]


def test_a_drain_of_an_operator_stays() -> None:
    host = Host(NIGHT, MORNING)
    host.look("2030-01-02T12:00")
    host.core.step(ClusterDrained(at("2030-01-02T19:00"), "left", "root", "fan broken"))
    host.look("2030-01-02T20:00")
    host.look("2030-01-03T06:00")
    drain = host.core.find_drain("left")
    assert drain is not None
    assert drain.by == "root"
    assert host.remarks() == [
        "it is drained by root: fan broken already",
        "it stays drained by root: fan broken",
    ]


def test_an_operator_may_take_over_a_drain_or_end_it() -> None:
    host = Host(NIGHT, MORNING)
    host.look("2030-01-02T12:00")
    host.look("2030-01-02T20:00")
    host.core.step(ClusterDrained(at("2030-01-02T23:00"), "left", "root", "fan broken"))
    host.look("2030-01-03T06:00")
    assert host.core.find_drain("left") is not None
    host.core.step(ClusterResumed(at("2030-01-03T07:00"), "left", "root"))
    host.look("2030-01-03T20:00")
    host.core.step(ClusterResumed(at("2030-01-03T21:00"), "left", "root"))
    host.look("2030-01-04T06:00")
    assert host.remarks()[-1] == "it was not drained"


def test_a_drain_and_its_end_that_were_missed_come_in_their_order() -> None:
    host = Host(MORNING, NIGHT)
    host.look("2030-01-02T12:00")
    host.look("2030-01-03T07:00")
    assert host.core.find_drain("left") is None
    assert host.remarks() == ["39600 s late", "3600 s late"]


def test_a_changed_file_keeps_what_was_missed_unless_the_rule_changed() -> None:
    host = Host(NIGHT)
    host.look("2030-01-02T12:00")
    host.settings.calendar = (replace(NIGHT, act=DrainCluster("right")),)
    host.look("2030-01-02T20:30")
    assert host.core.find_drain("right") is not None
    host.settings.calendar = (replace(NIGHT, rule="21:00"),)
    host.look("2030-01-04T12:00")
    [stored] = host.core.calendar.entries.values()
    assert stored.next_run == at("2030-01-04T21:00")
    host.settings.calendar = ()
    host.look("2030-01-04T12:01")
    assert not host.core.calendar.entries


def test_a_listing_leaves_the_event_loop_to_others() -> None:
    """There may be tens of thousands of series, of which the caller sees few."""
    threads: set[threading.Thread] = set()

    class Watched(SimpleNamespace):
        @property
        def owner(self) -> str:
            threads.add(threading.current_thread())
            return "" if self.id % 2 else "bob"

    class Readers:
        async def run(self, _: object, __: object, work: Any) -> Any:
            return await asyncio.to_thread(work)

    entries = {id: Watched(id=id) for id in (5, 4, 3, 2, 1)}
    service = SimpleNamespace(core=SimpleNamespace(calendar=SimpleNamespace(entries=entries)))
    caller = SimpleNamespace(user="ada", may_list=lambda owner: owner == "ada", operator=False)
    page = SimpleNamespace(after=0, requested=True, size=1, answer=lambda rows, _: rows)
    with patch("metasched.api.calendar.calendar_row", lambda entry, *_: entry.id):
        listing = list_calendar(
            cast(Any, None),
            cast(Any, caller),
            cast(Any, service),
            cast(Any, Readers()),
            cast(Any, page),
        )
        assert asyncio.run(cast(Any, listing)) == [1, 3]
    assert threads
    assert threading.main_thread() not in threads


def test_a_report_of_another_run_changes_nothing() -> None:
    host = Host(NIGHT)
    host.look("2030-01-02T12:00")
    host.look("2030-01-02T20:00")
    [run] = [event for event in host.events if isinstance(event, CalendarRun)]
    before = dict(host.core.calendar.entries)
    for stale in (run, structs.replace(run, id=99), structs.replace(run, due=run.due + 60)):
        assert not host.core.step(stale).calendar
    assert host.core.calendar.entries == before


def test_users_do_not_see_where_files_of_the_site_are() -> None:
    for act in (ActivatePolicy("/srv/site/night.toml"), BackUpDatabase("/srv/site/copies", 3)):
        described = structs.replace(entry("2030-01-02T02:00"), act=act)
        assert "/srv" not in described.describe()


# Copies


RUN = EntryRun(1, at("2030-01-02T02:30"))


def test_the_daemon_ends_while_a_copy_hangs() -> None:
    may_end = threading.Event()
    threading.Timer(20.0, may_end.set).start()  # else a daemon that waits for it hangs for good

    async def stopped_daemon() -> None:
        copies = BackupThreads()
        copying = asyncio.create_task(copies.write(RUN, lambda: str(may_end.wait())))
        await asyncio.sleep(0.01)
        copying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await copying

    asyncio.run(stopped_daemon())
    assert not may_end.is_set()
    may_end.set()


def test_errors_of_a_copy_are_raised_where_it_is_awaited() -> None:
    def fail() -> str:
        raise StoreError("disk full")

    with pytest.raises(StoreError, match="disk full"):
        asyncio.run(BackupThreads().write(RUN, fail))
    assert asyncio.run(BackupThreads().write(RUN, lambda: "done")) == "done"


def begun_copy(host: Host) -> CalendarEntry:
    """Return an entry of a backup that has begun."""
    host.look("2030-01-02T02:00")
    host.look("2030-01-02T02:30")
    [entry] = host.core.calendar.entries.values()
    assert entry.running is not None
    return entry


COPY = CalendarSettings("copy", BackUpDatabase("/b", 3), "daily 02:30", "UTC", HOUR)


def test_services_that_end_and_start_share_the_copy_that_is_written() -> None:
    host, copies, may_end = Host(COPY), BackupThreads(), threading.Event()
    entry = begun_copy(host)
    calls: list[float] = []

    def write(_: Any, folder: Path, name: str, due: float, count: int) -> str:
        calls.append(due)
        may_end.wait(60)
        return "/b/1"

    async def services() -> None:
        for _ in range(3):
            runner = CalendarRunner(
                cast(Any, host), cast(Any, None), RunsOutside(copies, NO_POLICIES)
            )
            service = asyncio.create_task(runner.finish_run(entry))
            while not calls:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
            service.cancel()  # as after an outage of the database
            await asyncio.gather(service, return_exceptions=True)
        may_end.set()
        await CalendarRunner(
            cast(Any, host), cast(Any, None), RunsOutside(copies, NO_POLICIES)
        ).finish_run(entry)

    with patch.object(calendar_runner, "write_backup", write):
        asyncio.run(services())
    assert calls == [entry.running]
    assert host.remarks()[-1] == "/b/1"
    [entry] = host.core.calendar.entries.values()
    assert entry.running is None
    assert copies._copies == {}


def test_a_copy_that_failed_is_not_begun_again_at_each_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host, copies, calls = Host(COPY), BackupThreads(), 0
    entry = begun_copy(host)

    def write(*_: Any) -> str:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise StoreError("the database is away")
        return "/b/1"

    async def lost(*_: Any) -> Any:
        raise StorageFailed("the result cannot be stored: the service ends")

    def start() -> asyncio.Future[None]:
        runner = CalendarRunner(cast(Any, host), cast(Any, None), RunsOutside(copies, NO_POLICIES))
        return asyncio.ensure_future(runner.finish_run(entry))

    async def services() -> None:
        with patch.object(host, "apply_events", lost), pytest.raises(StorageFailed):
            await start()
        assert calls == 1
        for _ in range(3):
            service = start()
            await asyncio.wait([service], timeout=0.02)
            service.cancel()
            await asyncio.gather(service, return_exceptions=True)
        assert calls == 1
        monkeypatch.setattr(backup_threads, "RETRY_PAUSE", 0.0)
        with patch.object(host, "apply_events", lost), pytest.raises(StorageFailed):
            await start()
        await start()

    with patch.object(calendar_runner, "write_backup", write):
        asyncio.run(services())
    assert calls == 3
    assert host.remarks()[-1] == "/b/1"


HANGING = CalendarSettings("hanging", BackUpDatabase("/dead", 3), "daily 02:30", "UTC", HOUR)
PRUNE = CalendarSettings("prune", PruneDatabase(), "daily 02:30", "UTC", HOUR)


def test_a_folder_that_hangs_stops_no_other_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calendar_runner, "SLOW_AFTER", 0.01)
    host, may_end, written = Host(HANGING, COPY, PRUNE), threading.Event(), list[str]()
    host.look("2030-01-02T02:00")
    host.look("2030-01-02T02:30")

    def write(_: Any, folder: Path, name: str, *others: Any) -> str:
        written.append(name)
        if name == "hanging":
            may_end.wait(60)
        return f"{folder}/1"

    async def prune() -> str:
        return "2 jobs"

    def running() -> list[str]:
        return [e.name for e in host.core.calendar.entries.values() if e.running is not None]

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.001)

    async def service() -> None:
        runner = CalendarRunner(cast(Any, host), prune, RunsOutside(BackupThreads(), NO_POLICIES))
        running_outside = asyncio.create_task(runner.run_outside())
        await until(lambda: running() == ["hanging"] and bool(host.conditions))
        for _ in range(3):
            runner.wake()
            await asyncio.sleep(0.001)
        may_end.set()
        await until(lambda: not running())
        running_outside.cancel()
        await asyncio.gather(running_outside, return_exceptions=True)

    with patch.object(calendar_runner, "write_backup", write):
        asyncio.run(service())
    assert sorted(written) == ["copy", "hanging"]
    assert {"/b/1", "/dead/1", "2 jobs"} <= set(host.remarks())
    slow = {subject: record for subject, record in host.conditions if "hanging" in subject}
    assert slow["calendar hanging"].kind is AuditKind.CALENDAR_SLOW
    assert slow["calendar hanging"].details["entry"] == "hanging"


def test_a_result_that_cannot_be_stored_ends_the_service() -> None:
    host, may_end = Host(HANGING, COPY), threading.Event()
    host.look("2030-01-02T02:00")
    host.look("2030-01-02T02:30")

    def write(_: Any, folder: Path, name: str, *others: Any) -> str:
        return str(name == "hanging" and may_end.wait(60))

    async def lost(*_: Any) -> Any:
        raise StorageFailed("the database is away")

    async def service() -> int:
        runner = CalendarRunner(
            cast(Any, host), cast(Any, None), RunsOutside(BackupThreads(), NO_POLICIES)
        )
        with pytest.raises(StorageFailed):
            async with asyncio.timeout(30):
                await runner.run_outside()
        return len(asyncio.all_tasks())

    with (
        patch.object(calendar_runner, "write_backup", write),
        patch.object(host, "apply_events", lost),
    ):
        assert asyncio.run(service()) == 1
    may_end.set()


@pytest.fixture
def database(tmp_path: Path) -> Sqlite:
    database = Sqlite(tmp_path / "ms.db")
    database.open().dispose()
    return database


def test_copies_are_whole_private_and_few(tmp_path: Path, database: Sqlite) -> None:
    folder = tmp_path / "copies"
    for day in range(1, 5):
        write_backup(database, folder, "copy", at(f"2030-01-0{day}T02:30"), 2)
    (folder / "metasched-other-20300101T023000Z.db").touch()
    write_backup(database, folder, "copy", at("2030-01-05T02:30"), 2)
    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        "metasched-copy-20300104T023000Z.db",
        "metasched-copy-20300105T023000Z.db",
        "metasched-other-20300101T023000Z.db",
    ]
    assert folder.stat().st_mode & 0o777 == 0o700
    copy = folder / names[0]
    assert copy.stat().st_mode & 0o777 == 0o600
    assert Sqlite(copy).schema_revision() == database.schema_revision()


def test_a_copy_that_was_made_before_a_crash_stays(tmp_path: Path, database: Sqlite) -> None:
    due, folder = at("2030-01-01T02:30"), tmp_path / "copies"
    write_backup(database, folder, "copy", due, 2)
    [copy] = folder.iterdir()
    before = copy.stat()
    write_backup(database, folder, "copy", due, 2)
    assert copy.stat().st_ino == before.st_ino
    assert [path.name for path in folder.iterdir()] == [copy.name]


def test_a_copy_that_fails_leaves_nothing_and_keeps_the_others(
    tmp_path: Path, database: Sqlite
) -> None:
    folder = tmp_path / "copies"
    write_backup(database, folder, "copy", at("2030-01-01T02:30"), 1)
    with (
        patch.object(Sqlite, "backup", side_effect=StoreError("disk full")),
        pytest.raises(StoreError, match="disk full"),
    ):
        write_backup(database, folder, "copy", at("2030-01-02T02:30"), 1)
    assert [path.name for path in folder.iterdir()] == ["metasched-copy-20300101T023000Z.db"]
    with pytest.raises(StoreError, match="No such file"):
        write_backup(database, tmp_path / "a/b", "copy", 0.0, 1)
