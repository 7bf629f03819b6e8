"""Reports from both databases: counted with their cause, once, and kept when jobs are pruned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import Connection, Engine, delete, insert, select, text, update
from sqlalchemy.event import listen, remove

from metasched.core.events import (
    CoreEvent,
    DaemonStarted,
    DispatchAccepted,
    DispatchStarted,
    JobModified,
    JobRequeued,
    JobSubmitted,
    ListingReceived,
    RequeuedTask,
    UseReported,
    UserRequested,
)
from metasched.core.scheduler import Core
from metasched.db import reports
from metasched.db.daily_use import MAX_ACCOUNTS, day_of
from metasched.db.integrity import check_database
from metasched.db.ledger import Ledger, StoredJob
from metasched.db.period_use import PeriodPass
from metasched.db.pruning import PruningPass
from metasched.db.queries import Queries
from metasched.db.reports import (
    ReportKey,
    ReportKind,
    ReportQuery,
    ReportTooLarge,
    read_report,
)
from metasched.db.schema import daily_licence_peak, daily_licence_use, daily_use, period_use
from metasched.db.store import Database, RowsRejected
from metasched.model.cluster import Cluster, ClusterInfo, NodeCapacity, Partition
from metasched.model.daily_use import OTHER
from metasched.model.fair_share import ForeignUse
from metasched.model.job import Job, Payload, State
from metasched.model.job_usage import RunUsage
from metasched.model.licence import LicencePool
from metasched.model.listing import JobStatus
from metasched.model.tags import tag_of
from metasched.policies.policy import Policy
from tests.harness.counted_history import count_history

NOW = time.mktime((2026, 3, 30, 12, 0, 0, 0, 0, -1))
DAY = 86400.0
FACTS = ClusterInfo(
    cpus=64, used_cpus=0, partitions=(Partition("p", (NodeCapacity(1, 64, 64),), default=True),)
)
LEFT = Cluster(name="left", adapter="local", maps={"account": {"*": "*"}})
POOL = LicencePool(name="matlab", total=4)
Row = dict[str, Any]


class Site:
    """Core and ledger, connected as in the daemon, over one cluster that runs what it is sent."""

    def __init__(self, database: Database) -> None:
        self.database, self.ledger, self.core = database, Ledger(database.open()), Core()
        self.engine = database.open_existing()
        self.ledger.restore(self.core, 100)
        self.name = self.ledger.identity(NOW).instance
        started = DaemonStarted(NOW, self.name, Policy(), (LEFT,), pools=(POOL,))
        self.take(started, ListingReceived(NOW, "left", info=FACTS))

    def take(self, *events: CoreEvent) -> None:
        for event in events:
            self.ledger.record([(event, self.core.step(event))])

    def submit(self, id: int, at: float, user: str = "ada", **fields: Any) -> None:
        job = Job(id=id, submitted=at, estimated=60.0, user=user, **fields)
        row = StoredJob(job=job, script=f"s{id}", environment="e", payload=Payload(script=""))
        submitted = JobSubmitted(at, job)
        texts = {f"s{id}": f"# {id}", "e": "{}"}
        self.ledger.record([(submitted, self.core.step(submitted))], [row], texts)

    def send(self, id: int, at: float, dispatch_id: int = 1) -> None:
        self.take(
            DispatchStarted(at, id, dispatch_id),
            DispatchAccepted(at, id, dispatch_id, {0: str(id)}),
        )

    def end(
        self,
        id: int,
        started: float,
        ended: float,
        state: State = State.COMPLETED,
        dispatch_id: int = 1,
        cpu_seconds: float | None = None,
    ) -> None:
        row = JobStatus(
            *(tag_of(self.name, id, dispatch_id), 0, str(id), state),
            started=started,
            ended=ended,
            cpu_seconds=cpu_seconds,
            node="n1",
        )
        self.take(ListingReceived(ended, "left", (row,)))

    def run(
        self, id: int, at: float, seconds: float = 60.0, user: str = "ada", **fields: Any
    ) -> None:
        """Let a job wait for 10 s and run."""
        self.submit(id, at - 10.0, user, **fields)
        self.send(id, at)
        self.end(id, at, at + seconds)

    def report(
        self, kind: ReportKind, *by: ReportKey, first: int = 0, last: int = 99991231, **filters: Any
    ) -> tuple[list[Row], Row]:
        with self.engine.connect() as connection:
            query = ReportQuery(kind=kind, first=first, last=last, by=by, **filters)
            return read_report(connection, query)

    def tables(self) -> list[list[tuple[Any, ...]]]:
        with self.engine.connect() as connection:
            return [
                sorted(tuple(row) for row in connection.execute(select(table)))
                for table in (daily_use, daily_licence_use)
            ]

    def write(self, change: Callable[[Connection], object]) -> None:
        with self.engine.begin() as connection:
            change(connection)


@pytest.fixture
def site(database: Database) -> Iterator[Site]:
    new_site = Site(database)
    yield new_site
    new_site.engine.dispose()
    new_site.ledger.close()


def key_values(rows: list[Row], *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in names) for row in rows)


def test_use_by_each_key(site: Site) -> None:
    site.run(1, NOW, 100.0, "ada", account="physics", group="staff", user_class="gold", cpus=2)
    site.run(2, NOW + DAY, 50.0, "ada", account="physics", group="staff")
    site.run(3, NOW + 2 * DAY, 10.0, "bob", account="", group="guests")
    expected = {
        ReportKey.USER: [("ada", 2, 250.0), ("bob", 1, 10.0)],
        ReportKey.GROUP: [("guests", 1, 10.0), ("staff", 2, 250.0)],
        ReportKey.ACCOUNT: [("", 1, 10.0), ("physics", 2, 250.0)],
        ReportKey.CLASS: [("gold", 1, 200.0), ("regular", 2, 60.0)],
        ReportKey.CLUSTER: [("left", 3, 260.0)],
        ReportKey.MONTH: [(202603, 2, 250.0), (202604, 1, 10.0)],
        ReportKey.DAY: [(20260330, 1, 200.0), (20260331, 1, 50.0), (20260401, 1, 10.0)],
    }
    assert set(expected) == set(ReportKey)
    for key, rows in expected.items():
        by_key, total = site.report(ReportKind.USE, key)
        assert key_values(by_key, key.value, "jobs", "cpu_allocated") == rows, key
        assert (total["jobs"], total["elapsed"]) == (3, 160.0)
    march, _ = site.report(ReportKind.USE, first=20260301, last=20260331)
    assert key_values(march, "jobs", "cpu_allocated") == [(2, 250.0)]
    both, _ = site.report(ReportKind.USE, ReportKey.MONTH, ReportKey.USER, account="physics")
    assert key_values(both, "month", "user", "jobs") == [(202603, "ada", 2)]
    rows, total = site.report(ReportKind.USE, ReportKey.USER, user="eve")
    assert rows == []
    assert set(total.values()) == {0}
    assert_sound(site)


def assert_sound(site: Site) -> None:
    assert [check.text for check in check_database(site.database) if not check.ok] == []


def test_waits_count_the_first_start_alone(site: Site) -> None:
    site.submit(1, NOW)
    site.send(1, NOW + 30)
    site.end(1, NOW + 30, NOW + 40, State.FAILED)
    rows, _ = site.report(ReportKind.WAITS, ReportKey.USER)
    assert key_values(rows, "user", "starts", "wait", "slowdown") == [("ada", 1, 30.0, 4.0)]
    assert rows[0]["median"] == rows[0]["p90"] == pytest.approx(30.0, rel=0.026)
    requeued = RequeuedTask(0, State.FAILED, 1)
    job = site.ledger.current_job(1)[0]
    site.take(JobRequeued(NOW + 41, job, 5, 1, (requeued,)))
    site.send(1, NOW + 100, 2)
    site.end(1, NOW + 100, NOW + 120, dispatch_id=2)
    again, _ = site.report(ReportKind.WAITS, ReportKey.USER)
    assert again == rows
    assert site.report(ReportKind.USE)[1]["jobs"] == 2
    assert_sound(site)


def test_deadlines(site: Site) -> None:
    site.run(1, NOW + 100, 50.0, deadline=NOW + 150)
    site.run(2, NOW + 200, 50.0, deadline=NOW + 210)
    site.submit(3, NOW + 300, deadline=NOW + 400, held=True)  # it never starts
    site.take(UserRequested(NOW + 500, "cancel", 3))
    site.submit(4, NOW + 300, deadline=NOW + 4000, held=True)
    site.take(UserRequested(NOW + 500, "cancel", 4))
    site.run(5, NOW + 600)
    rows, total = site.report(ReportKind.DEADLINES, ReportKey.CLUSTER)
    assert key_values(rows, "cluster", "deadlines", "met", "missed", "lateness") == [
        ("", 2, 0, 1, 100.0),
        ("left", 2, 1, 1, 40.0),
    ]
    assert (total["deadlines"], total["max_lateness"]) == (4, 100.0)


def test_licences(site: Site) -> None:
    site.submit(1, NOW, "ada", licences={"matlab": 1})
    site.submit(2, NOW + 5, "bob", licences={"matlab": 2})
    for id in (1, 2):
        site.send(id, NOW + 10)
    site.end(1, NOW + 10, NOW + 100)
    site.end(2, NOW + 10, NOW + 205)
    rows, total = site.report(ReportKind.LICENCES, ReportKey.USER)
    assert key_values(rows, "licence", "user", "leases", "token_seconds", "wait") == [
        ("matlab", "ada", 1, 100.0, 0.0),
        ("matlab", "bob", 1, 400.0, 0.0),
    ]
    assert total == {"leases": 2, "token_seconds": 500.0, "wait": 0.0, "max_wait": 0.0}
    [row], _ = site.report(ReportKind.LICENCES)
    assert (row["peak"], row["total"]) == (3, 4)
    # what some users used says nothing of the most that all used at a time
    assert "peak" not in site.report(ReportKind.LICENCES, user="ada")[0][0]
    assert site.report(ReportKind.LICENCES, licence="none")[0] == []
    assert_sound(site)


def test_the_most_tokens_at_a_time_include_those_of_the_day_before(site: Site) -> None:
    site.submit(1, NOW, licences={"matlab": 3})
    site.send(1, NOW)
    days = [int(time.strftime("%Y%m%d", time.localtime(NOW + day * DAY))) for day in range(4)]

    def peak(first: int, last: int) -> int | None:
        rows, _ = site.report(ReportKind.LICENCES, first=first, last=last)
        return rows[0]["peak"] if rows else None

    assert [peak(day, day) for day in days] == [3, 3, 3, 3]  # it is held still
    site.end(1, NOW + 10, NOW + 2 * DAY)
    assert [peak(day, day) for day in days] == [3, 3, 3, None]
    by_day, _ = site.report(ReportKind.LICENCES, ReportKey.DAY)
    assert key_values(by_day, "day", "peak", "token_seconds") == [
        (days[0], 3, 0),
        (days[2], 3, 3 * 2 * DAY),
    ]


def test_history_gives_the_same_sums(site: Site) -> None:
    for id in range(1, 20):
        at, limit = NOW + id * DAY / 7, NOW + id * DAY / 7 + 40.0
        site.run(
            *(id, at, 7.0 * id, f"user{id % 3}"),
            account=f"a{id % 2}",
            deadline=limit if id % 4 else None,
            licences={"matlab": 2} if id % 5 == 0 else {},
            gres={"gpu": 1} if id % 3 == 0 else {},
        )
    runs = site.ledger.ended_runs("left", 0.0, 100)
    site.ledger.store_usage({run: RunUsage(5.0, 7, 3.0, 8) for run in runs[::2]})
    before = site.tables()

    def recount(connection: Connection) -> None:
        for table in (daily_use, daily_licence_use):
            connection.execute(delete(table))
        count_history(connection)

    site.write(recount)
    assert approximately(site.tables()) == approximately(before)
    assert_sound(site)


def approximately(tables: list[list[tuple[Any, ...]]]) -> list[list[tuple[Any, ...]]]:
    return [
        [tuple(round(v, 6) if isinstance(v, float) else v for v in row) for row in rows]
        for rows in tables
    ]


def test_accounting_corrects_what_was_counted_once(site: Site) -> None:
    site.run(1, NOW, 100.0, cpus=2)
    [run] = site.ledger.ended_runs("left", 0.0, 10)
    for used in (RunUsage(None, 70, 1.0, 1), RunUsage(50.0, 70, 90.0, 4), RunUsage(9.0, 7, 9.0, 9)):
        site.ledger.store_usage({run: used})
    _, total = site.report(ReportKind.USE)
    assert (total["elapsed"], total["cpu_allocated"]) == (90.0, 360.0)
    assert (total["cpu_used"], total["cpu_measured"], total["jobs"]) == (50.0, 360.0, 1)
    assert_sound(site)


def test_sums_of_past_days_are_corrected_late(site: Site) -> None:
    """In both databases, and by accounting as well as by jobs that are listed late."""
    for id, user in enumerate(["ada", "bob", "ada"], 1):
        site.run(id, NOW - id * DAY, 100.0, user, cpus=2)
    today = day_of(NOW + 3 * DAY)

    def sum_periods() -> None:
        periods = PeriodPass(today)
        while site.ledger.sum_period(periods):
            pass

    def marks() -> int:
        with site.engine.connect() as connection:
            is_mark = period_use.c.key == ""
            return len(connection.execute(select(period_use).where(is_mark)).all())

    def use_of_march() -> list[tuple[Any, ...]]:
        by = ReportKey.USER
        rows, total = site.report(ReportKind.USE, by, first=20260301, last=20260331)
        assert sum(row["cpu_allocated"] for row in rows) == total["cpu_allocated"]
        return key_values(rows, "user", "jobs", "cpu_allocated")

    before = use_of_march()
    sum_periods()
    assert marks() == 5  # three days, the last part of March, and March
    assert use_of_march() == before == [("ada", 2, 400.0), ("bob", 1, 200.0)]
    runs = site.ledger.ended_runs("left", 0.0, 10)
    site.ledger.store_usage({runs[0]: RunUsage(50.0, 70, 90.0, 4)})
    assert marks() == 2  # of the two other days
    corrected = use_of_march()
    assert sum(seconds for _, _, seconds in corrected) == 760.0
    sum_periods()
    assert (marks(), use_of_march()) == (5, corrected)
    site.run(4, NOW - DAY, 50.0, "ada")
    assert marks() == 2
    assert sum(jobs for _, jobs, _ in use_of_march()) == 4
    sum_periods()
    assert_sound(site)
    site.write(lambda connection: connection.execute(update(period_use).values(jobs=7)))
    assert any("is not the sum of its days" in each.text for each in check_database(site.database))


@pytest.mark.parametrize("largest", [None, 1])
def test_a_report_is_of_a_single_moment(site: Site, largest: int | None) -> None:
    """A correction between its statements removes no period from its sums."""
    for id, user in enumerate(["ada", "bob", "ada"], 1):
        site.run(id, NOW - id * DAY, 100.0, user)
    periods = PeriodPass(day_of(NOW + 3 * DAY))
    while site.ledger.sum_period(periods):
        pass
    by = () if largest is None else (ReportKey.USER,)
    before = site.report(ReportKind.USE, *by, largest=largest)
    jobs = iter(range(4, 10))

    def count_job(_: Connection, __: object, statement: str, *others: object) -> None:
        if "cpu_allocated" in statement:  # the marks were read
            site.run(next(jobs), NOW - DAY, 50.0, "zoe")

    listen(site.engine, "before_cursor_execute", count_job)
    try:
        assert site.report(ReportKind.USE, *by, largest=largest) == before
    finally:
        remove(site.engine, "before_cursor_execute", count_job)
    assert next(jobs) > 4
    _, total = site.report(ReportKind.USE)
    assert total["jobs"] > 3


def test_many_runs_are_corrected_by_few_queries(site: Site) -> None:
    site.submit(1, NOW, array="0-39", account="grant")
    ids = {index: f"1_{index}" for index in range(40)}
    site.take(DispatchStarted(NOW, 1, 1), DispatchAccepted(NOW, 1, 1, ids))
    tag = tag_of(site.name, 1, 1)
    rows = tuple(
        JobStatus(tag, index, id, State.COMPLETED, started=NOW, ended=NOW + 10)
        for index, id in ids.items()
    )
    site.take(ListingReceived(NOW + 10, "left", rows[:20]))
    modified = structs.replace(site.ledger.current_job(1)[0], account="other")
    site.take(JobModified(NOW + 20, modified, "account", redispatch=False))
    site.take(ListingReceived(NOW + 30, "left", rows[20:]))
    for id in (2, 3):
        site.run(id, NOW, 10.0, user="bob")
    runs = site.ledger.ended_runs("left", 0.0, 100)
    assert len(runs) == 42
    usage = {run: RunUsage(5.0, 7, 8.0, 2) for run in runs}
    few, many = runs[:2] + runs[-2:], runs[2:-2]
    counts = []
    for portion in (few, many, many):
        statements: list[tuple[str, Any]] = []

        def note(*arguments: Any, executed: list[tuple[str, Any]] = statements) -> None:
            if arguments[2].startswith("SELECT"):
                executed.append(arguments[2:4])

        listen(site.ledger._engine, "before_cursor_execute", note)
        try:
            site.ledger.store_usage({run: usage[run] for run in portion})
        finally:
            remove(site.ledger._engine, "before_cursor_execute", note)
        counts.append(len(statements))
        if site.engine.name == "sqlite":
            with site.engine.connect() as connection:
                plans = [
                    row[3]
                    for text, values in statements
                    for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values)
                ]
            assert [plan for plan in plans if plan.startswith("SCAN attempt")] == []
    assert counts[1] <= counts[0] < 12
    by_account, _ = site.report(ReportKind.USE, ReportKey.USER, ReportKey.ACCOUNT)
    assert key_values(by_account, "user", "account", "jobs", "elapsed", "cpu_used") == [
        ("ada", "grant", 40, 320.0, 200.0),
        ("bob", "", 2, 16.0, 10.0),
    ]
    assert_sound(site)


def test_all_runs_that_ended_are_corrected_but_those_that_the_manager_restarted(
    site: Site,
) -> None:
    site.submit(1, NOW)
    site.send(1, NOW)
    site.end(1, NOW, NOW + 10, State.FAILED)
    job = site.ledger.current_job(1)[0]
    site.take(JobRequeued(NOW + 11, job, 5, 1, (RequeuedTask(0, State.FAILED, 1),)))
    again = DispatchAccepted(NOW + 12, 1, 2, {0: "1002"})
    site.take(DispatchStarted(NOW + 12, 1, 2), again)
    # accounting has one record of both runs
    tag = tag_of(site.name, 1, 2)
    for restarts, started in enumerate((NOW + 20, NOW + 90)):
        row = JobStatus(tag, 0, "1002", State.RUNNING, started=started, restarts=restarts)
        site.take(ListingReceived(started, "left", (row,)))
    assert [run.attempt for run in site.ledger.ended_runs("left", 0.0, 10)] == [1]
    row = structs.replace(row, state=State.COMPLETED, ended=NOW + 100)
    site.take(ListingReceived(NOW + 100, "left", (row,)))
    runs = site.ledger.ended_runs("left", 0.0, 10)
    assert [(run.attempt, run.native_id, run.ended) for run in runs] == [
        (1, "1", NOW + 10),
        (3, "1002", NOW + 100),
    ]
    site.ledger.store_usage(dict.fromkeys(runs, RunUsage(5.0, 7, 8.0, 2)))
    _, total = site.report(ReportKind.USE)
    assert (total["jobs"], total["elapsed"], total["cpu_used"]) == (3, 8.0 + 70.0 + 8.0, 10.0)
    assert_sound(site)


def test_runs_that_lack_their_use_are_found_by_an_index(site: Site) -> None:
    statements: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, values: Any, *___: object) -> None:
        if "attempt" in statement:
            statements.append((statement, values))

    for id in (1, 2):
        site.run(id, NOW + id)
    queries, dialect = Queries(site.engine), site.engine.dialect.name
    listen(site.engine, "before_cursor_execute", note)
    [first] = queries.ended_runs("left", 0.0, 1)
    queries.ended_runs("left", 0.0, 1, first)
    remove(site.engine, "before_cursor_execute", note)
    assert len(statements) == 2
    with site.engine.connect() as connection:
        explain = "EXPLAIN QUERY PLAN" if dialect == "sqlite" else "EXPLAIN"
        if dialect == "postgresql":  # the tables are small
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
            connection.exec_driver_sql("SET LOCAL enable_bitmapscan = off")
        for statement, values in statements:
            rows = connection.exec_driver_sql(f"{explain} {statement}", values).all()
            plan = "\n".join(map(str, rows))
            assert "ix_attempt_lacks_use" in plan, plan
            assert "B-TREE" not in plan, plan  # they are in order
            assert "Sort" not in plan, plan


def test_what_is_not_stored_is_not_counted(site: Site) -> None:
    site.submit(1, NOW)
    site.send(1, NOW)
    row = JobStatus(tag_of(site.name, 1, 1), 0, "1", State.COMPLETED, started=NOW, ended=NOW + 5)
    event = ListingReceived(NOW + 5, "left", (row,))
    outcome = site.core.step(event)
    outcome.changes[0].job = None  # type: ignore[assignment]  # the database refuses it
    with pytest.raises(RowsRejected):
        site.ledger.record([(event, outcome)])
    assert site.report(ReportKind.USE)[1]["jobs"] == 0
    # a start restores the state of before; the listing comes again
    again = Core()
    site.ledger.restore(again, 100)
    site.core = again
    site.take(DaemonStarted(NOW + 6, site.name, Policy(), (LEFT,), pools=(POOL,)), event)
    assert site.report(ReportKind.USE)[1]["jobs"] == 1
    assert_sound(site)


def test_pruned_jobs_count_still(site: Site) -> None:
    for id in (1, 2, 3):
        site.run(id, NOW + id)
    before = site.tables()
    pruning = PruningPass(NOW + DAY)
    while pruning.prune_portion(site.engine):
        pass
    assert pruning.deleted["jobs"] == 2  # the newest is kept
    assert site.tables() == before
    assert_sound(site)


def test_a_check_finds_a_run_that_is_not_counted(site: Site) -> None:
    site.run(1, NOW)
    site.write(lambda connection: connection.execute(text("UPDATE daily_use SET jobs = 0")))
    [problem] = [check.text for check in check_database(site.database) if not check.ok]
    assert "lacks 1 jobs: all days have 0, all attempts 1" in problem
    assert problem.startswith("use of ada on left from 202603")


@pytest.mark.parametrize(("jobs", "elapsed"), [(1, 59.0), (1, 61.0), (0, 60.0)])
def test_a_check_finds_wrong_sums_of_a_day_among_others(
    site: Site, jobs: int, elapsed: float
) -> None:
    for day in range(5):
        site.run(day + 1, NOW + day * DAY)
    assert_sound(site)
    wrong = (
        update(daily_use)
        .where(daily_use.c.day == day_of(NOW + 2 * DAY + 60))
        .values(jobs=jobs, elapsed=elapsed)
    )
    site.write(lambda connection: connection.execute(wrong))
    assert [check.check for check in check_database(site.database) if not check.ok] == ["counters"]


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/Los_Angeles", "Etc/GMT+12"])
def test_a_check_in_another_time_zone_finds_nothing(
    site: Site, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 60):  # at all hours, over days on which clocks change
        site.run(number, NOW - 3 * DAY + number * 7000.0, seconds=6000.0)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert_sound(site)
        site.run(61, NOW + 5 * DAY)  # the zone of the daemon changes
        monkeypatch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        assert_sound(site)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_user_who_invents_accounts_fills_no_table(site: Site) -> None:
    for id in range(1, MAX_ACCOUNTS + 10):
        site.run(id, NOW, account=f"invented{id}")
    site.run(200, NOW, account="invented1")
    site.run(201, NOW, user="bob", account="physics")
    rows, total = site.report(ReportKind.USE, ReportKey.ACCOUNT, ReportKey.USER)
    counts = {row["account"]: row["jobs"] for row in rows}
    assert len(counts) == MAX_ACCOUNTS + 2
    assert (counts[OTHER], counts["invented1"], counts["physics"]) == (9, 2, 1)
    assert total["jobs"] == MAX_ACCOUNTS + 11
    assert_sound(site)


HOSTILE = "'; DROP TABLE daily_use; --\0\U0001f680"


def test_a_run_counts_for_the_account_of_its_dispatch(site: Site) -> None:
    site.submit(1, NOW, array="0-3", account="grant", licences={"matlab": 1})
    ids = {index: f"1_{index}" for index in range(4)}
    site.take(DispatchStarted(NOW, 1, 1), DispatchAccepted(NOW, 1, 1, ids))

    def listed(at: float, index: int, state: State, dispatch: int = 1, **fields: Any) -> None:
        tag = tag_of(site.name, 1, dispatch)
        site.take(
            ListingReceived(at, "left", (JobStatus(tag, index, ids[index], state, **fields),))
        )

    def modify(at: float, account: str | None) -> None:
        modified = structs.replace(site.ledger.current_job(1)[0], account=account)
        site.take(JobModified(at, modified, "account", redispatch=True))

    listed(NOW + 10, 1, State.RUNNING, started=NOW)
    listed(NOW + 10, 0, State.COMPLETED, started=NOW, ended=NOW + 10)
    [run] = site.ledger.ended_runs("left", 0.0, 10)
    modify(NOW + 20, "other")
    site.ledger.store_usage({run: RunUsage(5.0, 7, 8.0, 1)})
    # the manager restarts what it has
    listed(NOW + 30, 1, State.RUNNING, started=NOW + 30, restarts=1)
    modify(NOW + 40, None)
    listed(NOW + 100, 1, State.COMPLETED, started=NOW + 30, ended=NOW + 100, restarts=1)
    # one starts before it is withdrawn, the other does not
    listed(NOW + 100, 2, State.COMPLETED, started=NOW + 15, ended=NOW + 100)
    listed(NOW + 100, 3, State.CANCELLED, ended=NOW + 100)
    site.take(DispatchStarted(NOW + 110, 1, 2), DispatchAccepted(NOW + 110, 1, 2, {3: "9"}))
    ids[3] = "9"
    listed(NOW + 150, 3, State.COMPLETED, 2, started=NOW + 110, ended=NOW + 150)
    rows, _ = site.report(ReportKind.USE, ReportKey.ACCOUNT)
    assert key_values(rows, "account", "jobs", "elapsed") == [
        ("", 1, 40.0),
        ("grant", 4, 8.0 + 30.0 + 70.0 + 85.0),
    ]
    rows, _ = site.report(ReportKind.LICENCES, ReportKey.ACCOUNT)
    assert key_values(rows, "account", "leases") == [("", 1), ("grant", 4)]
    assert_sound(site)


def test_names_are_values_and_no_sql(site: Site) -> None:
    site.run(1, NOW, account=HOSTILE)
    rows, _ = site.report(ReportKind.USE, ReportKey.ACCOUNT)
    [stored] = [row["account"] for row in rows]
    assert stored == HOSTILE.replace("\0", "\N{REPLACEMENT CHARACTER}")
    assert len(site.report(ReportKind.USE, ReportKey.ACCOUNT, account=HOSTILE)[0]) == 1
    site.run(2, NOW, account=HOSTILE)  # the row of the same key
    assert site.report(ReportKind.USE)[1]["jobs"] == 2


def test_use_of_others_counts_as_accounting_reports_it(site: Site) -> None:
    uses = (
        ForeignUse(user="eve", account="physics", processor_seconds=90.0, ended=NOW - DAY),
        ForeignUse(user="eve", account="", processor_seconds=1.0, ended=NOW - DAY),
    )
    site.take(UseReported(NOW, "left", "1 2 x", uses))
    site.run(1, NOW)
    rows, _ = site.report(ReportKind.USE, ReportKey.USER, ReportKey.DAY)
    assert key_values(rows, "user", "day", "jobs", "cpu_outside") == [
        ("ada", 20260330, 1, 0.0),
        ("eve", 20260329, 0, 91.0),
    ]
    rows, _ = site.report(ReportKind.USE, ReportKey.ACCOUNT, cluster="left", user="eve")
    assert key_values(rows, "account", "cpu_outside") == [("", 1.0), ("physics", 90.0)]
    assert_sound(site)


def test_accounts_of_others_have_the_names_of_own_runs(site: Site) -> None:
    maps = {"account": {"physics": "phys", "*": "*"}}
    mapped = structs.replace(LEFT, maps=maps, user_accounts={"grant": {"ada": "grp1"}})
    started = DaemonStarted(NOW, site.name, Policy(), (mapped,), pools=(POOL,))
    site.take(started, ListingReceived(NOW, "left", info=FACTS))
    site.run(1, NOW, account="physics")
    site.run(2, NOW, account="grant")
    uses = tuple(
        ForeignUse(user="ada", account=account, processor_seconds=9.0, ended=NOW)
        for account in ("phys", "grp1")
    )
    site.take(UseReported(NOW, "left", "1 2 x", uses))
    rows, _ = site.report(ReportKind.USE, ReportKey.ACCOUNT)
    assert key_values(rows, "account", "jobs", "cpu_outside") == [
        ("grant", 1, 9.0),
        ("physics", 1, 9.0),
    ]


# Bounds


def fill(engine: Engine, rows: int) -> None:
    columns = [column.name for column in daily_use.c]
    numbers = dict.fromkeys(columns, 1) | {"waits": '{"3":1}', "day": 20260330}
    names = ("cluster", "account", "user_group", "user_class")
    with engine.begin() as connection:
        connection.execute(
            insert(daily_use),
            [numbers | dict.fromkeys(names, "x") | {"user": f"u{n}"} for n in range(rows)],
        )


def test_rounding_makes_no_row_of_others(site: Site) -> None:
    numbers: dict[str, Any] = dict.fromkeys((column.name for column in daily_use.c), 0)
    keys = {"cluster": "left", "user_group": "", "user_class": "", "waits": "{}"}
    rows = [
        numbers
        | keys
        | {"day": 20260301 + day, "user": f"u{user}", "account": f"a{account}"}
        | {"cpu_outside": 1000.0 / (7 * day + 3 * user + account + 3)}
        for day in range(5)
        for user in range(5)
        for account in range(3)
    ]
    site.write(lambda connection: connection.execute(insert(daily_use), rows))
    by = (ReportKey.DAY, ReportKey.USER)
    answered, _ = site.report(ReportKind.USE, *by, largest=8)
    assert len(answered) == 25
    assert {row["user"] for row in answered} == {f"u{user}" for user in range(5)}


def test_the_largest_have_rows_of_their_own(site: Site) -> None:
    """The others are together what they are one by one, at each time."""
    for id, (user, seconds) in enumerate(
        [("ann", 60.0), ("bob", 600.0), ("others", 30.0), ("zoe", 20.0), ("bob", 5.0)], 1
    ):
        site.run(id, NOW + DAY * (id // 3), seconds, user=user)
    by = (ReportKey.DAY, ReportKey.USER)
    whole, total = site.report(ReportKind.USE, *by)
    rows, same_total = site.report(ReportKind.USE, *by, largest=2)
    assert same_total == pytest.approx(total)
    own = [row for row in rows if row["user"] is not None]
    assert {row["user"] for row in own} == {"ann", "bob"}
    assert all(row in whole for row in own)
    together = {row["day"]: row for row in rows if row["user"] is None}
    for day in {row["day"] for row in whole}:
        small = [row for row in whole if row["day"] == day and row["user"] in ("others", "zoe")]
        assert (day in together) == bool(small)
        for name in ("jobs", "completed", "elapsed", "cpu_allocated") if small else ():
            assert together[day][name] == pytest.approx(sum(row[name] for row in small))
    assert site.report(ReportKind.USE, ReportKey.DAY, largest=2) == site.report(
        ReportKind.USE, ReportKey.DAY
    )


def test_a_report_has_bounded_rows(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(site.engine, 30)
    monkeypatch.setattr(reports, "MAX_ROWS", 29)
    with pytest.raises(ReportTooLarge, match="more than 29 rows"):
        site.report(ReportKind.USE, ReportKey.USER)
    assert len(site.report(ReportKind.USE, ReportKey.CLUSTER)[0]) == 1


@pytest.mark.parametrize("kind", [ReportKind.USE, ReportKind.WAITS])
def test_a_report_has_bounded_time(
    site: Site, monkeypatch: pytest.MonkeyPatch, kind: ReportKind
) -> None:
    fill(site.engine, 30_000)
    monkeypatch.setattr(reports, "MAX_SECONDS", 0.001)
    monkeypatch.setattr(reports, "_STEPS", 100)
    with pytest.raises(ReportTooLarge, match="takes longer"):
        site.report(kind, ReportKey.DAY, ReportKey.CLUSTER)
    monkeypatch.undo()
    assert len(site.report(kind, ReportKey.DAY)[0]) == 1


def test_a_report_of_a_user_reads_an_index_or_the_days_of_the_period(site: Site) -> None:
    fill(site.engine, 3_000)
    with site.engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            query = "EXPLAIN QUERY PLAN SELECT sum(jobs) FROM daily_use WHERE {}"
        else:
            connection.execute(text("ANALYZE daily_use"))
            query = "EXPLAIN SELECT sum(jobs) FROM daily_use WHERE {}"
        of_user = "\"user\" = 'u7' AND day >= 20260301 AND day <= 20260331"
        plan = " ".join(str(row) for row in connection.execute(text(query.format(of_user))))
    assert "ix_daily_use_user" in plan, plan


def test_no_peaks_without_licences(site: Site) -> None:
    with site.engine.connect() as connection:
        assert connection.execute(select(daily_licence_peak)).all() == []
    assert site.report(ReportKind.LICENCES)[0] == []
