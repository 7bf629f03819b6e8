"""The outbox in both databases: which notices are stored with a step, and how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec import structs
from sqlalchemy import select, update
from sqlalchemy.event import listen, remove

from metasched.config.settings import MailSettings
from metasched.core.calendar_events import CalendarEntrySet
from metasched.core.events import (
    ClusterUnreachable,
    DaemonStarted,
    DispatchAccepted,
    DispatchStarted,
    JobSubmitted,
    ListingReceived,
    Outcome,
    UserRequested,
)
from metasched.core.scheduler import Core
from metasched.daemon.limit_mails import LATEST, LimitMails
from metasched.daemon.notification_sender import NotificationSender
from metasched.daemon.notification_texts import job_message, occurrence_message
from metasched.db import outbox as outbox_rows
from metasched.db import reservations
from metasched.db.audit import AuditFilter
from metasched.db.ledger import Ledger, StoredJob
from metasched.db.outbox import (
    DELIVERED_KEPT_FOR,
    KEPT_FOR,
    MAX_OPEN_ROWS,
    Mail,
    NotificationRules,
    OutboxRow,
)
from metasched.db.pruning import PruningPass
from metasched.db.schema import attempt, outbox
from metasched.db.store import Database
from metasched.model.audit import AuditKind, AuditRecord
from metasched.model.calendar import CalendarEntry, Reserve
from metasched.model.cluster import Cluster
from metasched.model.job import Job, Payload, State
from metasched.model.listing import JobStatus
from metasched.model.mail import MailRequest
from metasched.model.notice import DIGEST, JOB_ENDED, MAIL, Notice, expand_kinds
from metasched.model.tags import tag_of
from metasched.policies.policy import Policy
from tests.unit.core_site import facts
from tests.unit.test_mail import BROKEN

NOW = 1_700_000_000.0
ALL = ("BEGIN", "END", "FAIL", "REQUEUE")
MAILS = NotificationRules(instance="cafe", mails_per_hour=10)
HOOKS = NotificationRules(
    instance="cafe",
    webhooks={"ops": frozenset({JOB_ENDED}), "alerts": expand_kinds(["alerts"])},
)


class Life:
    """A core and its ledger with a cluster that runs 8 tasks at a time."""

    def __init__(self, ledger: Ledger, rules: NotificationRules, cpus: int = 8) -> None:
        self.ledger, self.core, self.now = ledger, Core(), NOW
        self.wakes = 0
        ledger.on_notices = self._wake
        ledger.restore(self.core, 100)
        self.instance = ledger.identity(NOW).instance
        ledger.open_outbox(rules, NOW, restored=False)
        cluster = Cluster(name="left", adapter="local")
        self.step(DaemonStarted(NOW, self.instance, Policy(), (cluster,)))
        self.listed(info=facts(cpus))

    def _wake(self) -> None:
        self.wakes += 1

    def step(self, event: Any, *stored: StoredJob) -> Outcome:
        outcome = self.core.step(event)
        self.ledger.record([(event, outcome)], stored, {"s": "", "e": "{}"} if stored else None)
        for action in outcome.actions:
            if type(action).__name__ == "Dispatch":
                self.dispatched(action)
        return outcome

    def dispatched(self, action: Any) -> None:
        self.step(DispatchStarted(self.now, action.job, action.dispatch_id))
        native_ids = {index: str(1000 + index) for index in action.indices}
        self.step(DispatchAccepted(self.now, action.job, action.dispatch_id, native_ids))

    def submit(self, id: int = 1, *types: str, user: str = "ada", **fields: Any) -> None:
        mail = MailRequest(types=types, **fields.pop("mail", {})) if types else None
        job = Job(id=id, submitted=NOW, estimated=60.0, user=user, name="mesh", mail=mail, **fields)
        payload = Payload(script="", output="/o")
        stored = StoredJob(job=job, script="s", environment="e", payload=payload)
        self.step(JobSubmitted(self.now, job), stored)

    def listed(self, *rows: JobStatus, **fields: Any) -> None:
        self.now += 1.0
        listing = ListingReceived(self.now, "left", rows, **fields)
        self.step(listing)

    def row(self, state: State, id: int = 1, index: int = 0, **fields: Any) -> JobStatus:
        task = self.core.tasks[id, index]
        tag = tag_of(self.instance, id, task.live_attempt.dispatch_id)
        times = {"started": self.now - 5} if state is not State.PENDING else {}
        if state not in (State.PENDING, State.RUNNING):
            times["ended"] = self.now
        return JobStatus(tag, index, str(1000 + index), state, **{**times, **fields})

    def rows(self) -> list[Any]:
        with self.ledger._connect() as connection:
            return list(connection.execute(select(outbox).order_by(outbox.c.id)))

    def state(self) -> State:
        return self.core.tasks[1, 0].state

    def kinds(self) -> list[tuple[str, str, str]]:
        return [(row.receiver, row.kind, row.address) for row in self.rows()]

    def notices(self) -> list[Notice]:
        return [
            notice
            for row in self.rows()
            for notice in msgspec.convert(
                msgspec.json.decode(row.data)["notices"], tuple[Notice, ...]
            )
        ]


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    opened = Ledger(database.open())
    yield opened
    opened.close()


def test_a_job_begins_and_ends(ledger: Ledger) -> None:
    life = Life(ledger, MAILS)
    life.submit(1, *ALL, mail={"user": "ada@example.org"})
    life.submit(2)  # without mail
    life.listed(life.row(State.RUNNING), life.row(State.RUNNING, 2))
    assert life.kinds() == [("mail", "job_began", "ada@example.org")]
    life.listed(life.row(State.COMPLETED, exit_code=0), life.row(State.FAILED, 2, exit_code=1))
    assert life.kinds()[1:] == [("mail", "job_ended", "ada@example.org")]
    began, ended = life.notices()
    assert (began.started, began.cluster) == (NOW - 4, "left")
    assert (ended.state, ended.exit_code, ended.job, ended.user) == ("completed", 0, 1, "ada")
    assert [row.user for row in life.rows()] == ["ada", "ada"]
    assert life.wakes == 2


def test_without_an_address_mail_goes_to_the_owner(ledger: Ledger) -> None:
    life = Life(ledger, MAILS)
    life.submit(1, "FAIL")
    life.listed(life.row(State.FAILED, exit_code=3))
    assert life.kinds() == [("mail", "job_ended", "ada")]


def test_an_outage_is_no_second_beginning(ledger: Ledger) -> None:
    life = Life(ledger, MAILS)
    life.submit(1, "BEGIN")
    life.listed(life.row(State.RUNNING))
    running = life.row(State.RUNNING)
    life.step(ClusterUnreachable(life.now + 1, "left", "silent"))
    assert life.state() is State.UNKNOWN
    life.listed(running, full=True)
    assert life.state() is State.RUNNING
    assert len(life.rows()) == 1


def test_a_first_start_after_an_outage_is_mailed(ledger: Ledger) -> None:
    life = Life(ledger, MAILS)
    life.submit(1, "BEGIN")
    life.listed(life.row(State.PENDING))
    running = life.row(State.RUNNING)
    life.step(ClusterUnreachable(life.now + 1, "left", "silent"))
    life.listed(running, full=True)
    assert life.kinds() == [("mail", "job_began", "ada")]


def test_a_cancelled_job_that_never_ran_has_ended(ledger: Ledger) -> None:
    life = Life(ledger, MAILS)
    life.submit(1, "END", held=True)
    life.step(UserRequested(life.now, "cancel", 1, by="ada"))
    [notice] = life.notices()
    assert (notice.state, notice.started, notice.cluster) == ("cancelled", None, "")


def test_an_array_has_one_mail(ledger: Ledger) -> None:
    life = Life(ledger, MAILS)
    life.submit(1, *ALL, array="1-3")
    life.listed(*(life.row(State.RUNNING, 1, index) for index in (1, 2)))
    life.listed(life.row(State.RUNNING, 1, 3), life.row(State.COMPLETED, 1, 1))
    life.listed(life.row(State.COMPLETED, 1, 3))
    assert life.kinds() == [("mail", "job_began", "ada")]
    life.listed(life.row(State.FAILED, 1, 2, exit_code=1))
    _, ended = life.notices()
    assert (ended.task, ended.state, ended.counts) == (
        None,
        "failed",
        {"completed": 2, "failed": 1},
    )


def test_array_tasks_have_mails_of_their_own_if_asked(ledger: Ledger) -> None:
    life = Life(ledger, MAILS)
    life.submit(1, "FAIL", "ARRAY_TASKS", array="1-3")
    life.listed(life.row(State.FAILED, 1, 2, exit_code=1), life.row(State.COMPLETED, 1, 1))
    life.listed(life.row(State.TIMEOUT, 1, 3))
    assert [(notice.task, notice.state) for notice in life.notices()] == [
        (2, "failed"),
        (3, "timeout"),
    ]


def test_an_array_that_is_cancelled_in_its_remainder_has_ended(ledger: Ledger) -> None:
    life = Life(ledger, MAILS)
    life.submit(1, "END", array="1-2000")
    assert life.core.remainders
    life.step(UserRequested(life.now, "cancel", 1, by="ada"))
    open_tasks = sorted(index for _, index in life.core.tasks)
    assert life.rows() == []
    life.listed(*(life.row(State.CANCELLED, 1, index) for index in open_tasks))
    [notice] = life.notices()
    assert notice.counts == {"cancelled": 2000}


def test_an_array_that_is_cancelled_before_any_task_began_has_ended(ledger: Ledger) -> None:
    life = Life(ledger, MAILS)
    life.submit(1, "END", array="1-2000", held=True)
    life.step(UserRequested(NOW + 2, "cancel", 1, by="ada"))
    [notice] = life.notices()
    assert notice.counts == {"cancelled": 2000}


def test_a_flood_is_one_digest(ledger: Ledger) -> None:
    life = Life(ledger, MAILS, cpus=2000)
    life.submit(1, "END", "ARRAY_TASKS", array="1-500", mail={"user": "ada@example.org"})
    life.submit(2, "END", user="bob")
    tasks = [index for job, index in life.core.tasks if job == 1]
    assert len(tasks) == 500
    life.listed(
        *(life.row(State.COMPLETED, 1, i) for i in tasks[:300]), life.row(State.COMPLETED, 2)
    )
    life.listed(*(life.row(State.COMPLETED, 1, index) for index in tasks[300:]))
    rows = life.rows()
    assert len(rows) == 10 + 1 + 1
    [digest] = [row for row in rows if row.kind == DIGEST]
    assert (digest.user, digest.address) == ("ada", "ada@example.org")
    assert digest.due == digest.created + 3600.0
    [notice] = ledger.mark_sending(digest.id)
    ledger.commit_group()
    assert notice.counts == {JOB_ENDED: 490}
    assert ledger.mark_sending(digest.id) == ()  # it is being sent
    assert [row.user for row in rows if row.user == "bob"] == ["bob"]  # his own limit
    # an hour later there is room again
    life.now += 3601.0
    life.submit(3, "END")
    life.listed(life.row(State.COMPLETED, 3))
    assert life.rows()[-1].kind == JOB_ENDED


def test_a_digest_that_cannot_be_read_is_replaced(ledger: Ledger) -> None:
    life = Life(ledger, replace(MAILS, mails_per_hour=1))
    for id in (1, 2, 3):
        life.submit(id, "END")
        life.listed(life.row(State.COMPLETED, id))
        if id == 2:
            with ledger._write_transaction() as connection:
                damage = update(outbox).where(outbox.c.kind == DIGEST)
                connection.execute(damage.values(data="{"))
    assert states(life) == ["pending", "failed", "pending"]
    assert [row.kind for row in life.rows()] == [JOB_ENDED, DIGEST, DIGEST]
    assert ledger.mark_sending(life.rows()[2].id)[0].counts == {JOB_ENDED: 1}


def test_webhooks_get_whole_jobs_and_alerts_in_groups(ledger: Ledger) -> None:
    life = Life(ledger, HOOKS)
    for id in range(1, 9):
        life.submit(id)
    life.listed(*(life.row(State.COMPLETED, id) for id in range(1, 9)))
    life.submit(9, array="1-2")
    life.listed(life.row(State.COMPLETED, 9, 1), life.row(State.RUNNING, 9, 2))
    life.listed(life.row(State.COMPLETED, 9, 2))
    life.step(ClusterUnreachable(life.now, "left", "silent"))
    rows = life.rows()
    assert [row.receiver for row in rows] == ["ops", "ops", "alerts"]
    assert [row.user for row in rows] == [None] * 3
    notices = life.notices()
    assert [notice.job for notice in notices] == [*range(1, 10), None]
    assert notices[8].counts == {"completed": 2}
    assert (notices[9].kind, notices[9].severity) == ("cluster_unreachable", "warning")


def test_each_operator_gets_alerts_up_to_the_limit_of_each_kind_and_a_digest(
    ledger: Ledger,
) -> None:
    to = ("ops@example.org", "ada")
    rules = NotificationRules(instance="cafe", mails_per_hour=2, alerts_to=to)
    life = Life(ledger, rules)
    for _ in range(4):
        life.step(ClusterUnreachable(life.now, "left", "silent"))
        life.listed(full=True)
    defect = AuditRecord(time=life.now, kind=AuditKind.DEFECT, owner=None)
    ledger.record_notices([defect])
    ledger.commit_group()
    alerts = [(row.kind, row.address) for row in life.rows() if row.user is None]
    kinds = ["cluster_unreachable"] * 2 + [DIGEST, "defect"]
    for address in to:
        assert [kind for kind, receiver in alerts if receiver == address] == kinds
    assert len(alerts) == 8
    digests = [notice for notice in life.notices() if notice.kind == DIGEST]
    assert [digest.counts for digest in digests] == [{"cluster_unreachable": 2}] * 2


def test_what_concerns_one_user_is_no_alert(ledger: Ledger) -> None:
    rules = replace(HOOKS, mails_per_hour=5, alerts_to=("ops",))
    life = Life(ledger, rules)
    skipped = AuditRecord(time=life.now, kind=AuditKind.RESERVATION_SKIPPED, owner="eve")
    ledger.record_notices([skipped] * 20)
    ledger.commit_group()
    assert life.rows() == []


def test_the_owner_of_a_series_hears_of_each_skipped_or_moved_occurrence(ledger: Ledger) -> None:
    life = Life(ledger, MAILS)
    for id, address in ((7, "ada@example.org"), (8, "")):
        act = Reserve(least=1, most=1, duration=60.0, mail=address)
        series = CalendarEntry(
            id=id, act=act, rule="08:00", zone="UTC", owner="ada", created=NOW, grace=0.0
        )
        life.step(CalendarEntrySet(NOW, series, "ada"))
    records = [
        AuditRecord(
            time=NOW,
            kind=AuditKind.RESERVATION_SKIPPED,
            owner="ada",
            cause="not free",
            details={"series": id, "due": NOW},
        )
        for id in (7, 8)
    ]
    for kind in (AuditKind.RESERVATION_MOVED, AuditKind.RESERVATION_SKIPPED):
        records.append(AuditRecord(time=NOW, kind=kind, owner="ada", cause="of no series"))
    ledger.record_notices(records)
    ledger.commit_group()
    rows = life.rows()
    assert [(row.kind, row.user, row.address) for row in rows] == [
        ("reservation_skipped", "ada", "ada@example.org"),
        ("reservation_skipped", "ada", "ada"),
    ]
    mail = MailSettings(Path("/m"), is_sendmail=True, sender="", domains=(), per_hour=10)
    row = OutboxRow(1, "ada", rows[0].kind, rows[0].address, NOW, NOW, 0, "", "cafe", ())
    make_command = NotificationSender._command
    _, content = make_command(cast(Any, None), mail, row, life.notices()[0], None)
    subject, text = occurrence_message(life.notices()[0])
    assert subject.encode() in content
    assert subject == "metasched: a reservation of your series was skipped"
    assert "series 7, occurrence of 2023-11-14T" in text
    assert "not free" in text


def test_shares_of_a_time_limit_are_mailed_once(ledger: Ledger) -> None:
    life = Life(ledger, MAILS)
    types = ("TIME_LIMIT_50", "TIME_LIMIT_90")
    life.submit(1, *types, time_limit=100.0)
    life.submit(2, "TIME_LIMIT_80", time_limit=100.0, array="0-3")
    life.submit(3, "END", time_limit=100.0)
    life.submit(4, "TIME_LIMIT_80", time_limit=None)
    started = life.now - 5
    running = [life.row(State.RUNNING, id, started=started) for id in (1, 2, 3, 4)]
    running += [life.row(State.RUNNING, 2, index, started=started + index) for index in (1, 2, 3)]
    life.listed(*running, full=True)

    def watch() -> LimitMails:
        async def commit() -> None:
            ledger.commit_group()

        return LimitMails(cast(Any, life), commit)

    def look(watcher: LimitMails, seconds: float) -> list[tuple[int | None, str]]:
        """Look so many seconds after the start; return the new mails by job and kind."""
        before = len(life.rows())
        watcher.look(started + seconds)
        ledger.commit_group()
        return [(notice.job, notice.kind) for notice in life.notices()[before:]]

    watcher = watch()
    assert look(watcher, 49) == []
    assert look(watcher, 50) == [(1, "job_time_limit_50")]
    assert look(watch(), 60) == []  # after a restart
    assert look(watcher, 85) == [(2, "job_time_limit_80")]  # once for the array
    assert look(watch(), 89) == []
    # the limit is raised: the share comes later
    task = life.core.tasks[1, 0]
    task.job = structs.replace(task.job, time_limit=200.0)
    watcher.watch([task])
    assert look(watcher, 95) == []
    assert look(watcher, 180) == [(1, "job_time_limit_90")]
    notice = life.notices()[-1]
    subject, _ = job_message(notice)
    assert subject.endswith("Reached 90% time limit, Run time 00:03:00")
    life.listed(*(life.row(State.COMPLETED, id) for id in (1, 2, 3, 4)))
    watcher.check_outcome(life.core.state.outcome)
    assert look(watcher, 1000) == []


def test_a_share_is_mailed_once_whatever_became_of_its_mail(ledger: Ledger) -> None:
    """Of a task in a digest, and of an array whose mail was deleted; neither reads other rows."""
    life = Life(ledger, replace(MAILS, mails_per_hour=1))
    life.submit(1, "TIME_LIMIT_50", time_limit=100.0, array="0-3")
    life.submit(2, "TIME_LIMIT_50", "ARRAY_TASKS", time_limit=100.0, array="0-3")
    started = life.now - 5
    for id in (1, 2):
        life.listed(*(life.row(State.RUNNING, id, n, started=started) for n in range(4)))
    statements: list[str] = []

    def note(*arguments: Any) -> None:
        statements.append(arguments[2])

    def look(now: float) -> None:
        LimitMails(cast(Any, life), cast(Any, None)).look(now)
        ledger.commit_group()

    look(started + 50)
    [first, digest] = life.notices()
    assert (first.job, digest.kind) == (1, DIGEST)
    assert digest.counts == {"job_time_limit_50": 4}
    listen(ledger._engine, "before_cursor_execute", note)
    look(started + 60)  # after a restart
    remove(ledger._engine, "before_cursor_execute", note)
    assert statements
    assert not [text for text in statements if "FROM outbox" in text]
    assert life.notices() == [first, digest]
    ledger.give_up_notices(MAIL, life.now + 100, life.now)
    prune(ledger, life.now + KEPT_FOR + 100)
    assert life.rows() == []
    look(started + 70)
    assert life.rows() == []


def test_a_run_that_its_manager_repeats_has_its_mails_again(ledger: Ledger) -> None:
    life = Life(ledger, MAILS)
    life.submit(1, "TIME_LIMIT_50", time_limit=100.0)
    for _ in range(2):
        life.now += 1000
        life.listed(life.row(State.RUNNING), full=True)
        for seconds in (60, 70):
            LimitMails(cast(Any, life), cast(Any, None)).look(life.now + seconds)
            ledger.commit_group()
    assert len(life.rows()) == 2


def test_a_share_that_was_reached_long_ago_is_not_mailed(ledger: Ledger) -> None:
    life = Life(ledger, MAILS)
    life.submit(1, "TIME_LIMIT_50", time_limit=100.0)
    life.listed(life.row(State.RUNNING), full=True)
    LimitMails(cast(Any, life), cast(Any, None)).look(life.now + 45 + LATEST + 1)
    ledger.commit_group()
    assert life.rows() == []


def test_many_events_of_a_step_share_rows(ledger: Ledger) -> None:
    life = Life(ledger, HOOKS)
    notices = [Notice(kind=JOB_ENDED, time=NOW, job=id) for id in range(250)]
    with life.ledger._write_transaction() as connection:
        life.ledger._outbox.add_events(connection, notices)
    assert [len(row.data) > 2 for row in life.rows()] == [True] * 3
    assert [notice.job for notice in life.notices()] == list(range(250))


def test_events_that_wait_share_rows(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_rows, "EVENTS_PER_ROW", 3)
    life = Life(ledger, HOOKS)

    def end(id: int) -> None:
        with life.ledger._write_transaction() as connection:
            life.ledger._outbox.add_events(
                connection, [Notice(kind=JOB_ENDED, time=NOW + id, job=id)]
            )

    def jobs() -> list[list[int | None]]:
        rows = outbox_rows.next_rows
        with life.ledger._connect() as connection:
            return [[each.job for each in row.notices] for row in rows(connection, "ops", 99)]

    for id in range(6):
        end(id)
    assert jobs() == [[0], [1, 2, 3], [4, 5]]  # the first may be at the receiver
    first, second, third = (row.id for row in life.rows())
    ledger.mark_delivered(first, life.now)
    ledger.mark_delivered(second, life.now)
    end(6)  # the third may be at the receiver now
    assert jobs() == [[4, 5], [6]]
    ledger.open_outbox(HOOKS, life.now, restored=True)
    end(7)  # the original of a backup may have delivered the rows of before
    end(8)
    assert jobs() == [[4, 5], [6], [7, 8]]
    assert [row.created for row in life.rows()][-1] == NOW + 8
    assert third in [row.id for row in life.rows()]


def ends(
    ledger: Ledger, ids: Sequence[int], *, output: tuple[str, ...] = (), name: str = ""
) -> None:
    """Store the ends of jobs for webhooks in a transaction of their own."""
    notices = [
        Notice(kind=JOB_ENDED, time=NOW + id, job=id, output=output, name=name) for id in ids
    ]
    with ledger._write_transaction() as connection:
        ledger._outbox.add_events(connection, notices)


def test_long_events_make_more_rows(ledger: Ledger) -> None:
    """A proxy refuses a large body, and then all that waits behind it."""
    life = Life(ledger, HOOKS)
    for first in (0, 1, 100):  # the last row is filled up
        ends(ledger, range(first, first + 100), output=("/" + '"' * 4095,) * 2, name='"' * 200)
    assert len(life.notices()) == 300
    assert all(notice.output == () for notice in life.notices())
    assert max(len(row.data) for row in life.rows()) < outbox_rows.MAX_ROW_BYTES + 100
    assert len(life.rows()) < 6
    ends(ledger, [300, 301], name="x" * 2 * outbox_rows.MAX_ROW_BYTES)
    assert [notice.job for notice in life.notices()][-2:] == [300, 301]


def test_a_hundred_thousand_ends_wait_in_order_for_a_receiver_that_hangs(ledger: Ledger) -> None:
    """Nothing is lost, and the last commit asks the database no more than the second."""
    life = Life(ledger, HOOKS)
    statements: list[int] = []

    def count(*_: Any) -> None:
        statements[-1] += 1

    listen(ledger._engine, "before_cursor_execute", count)
    try:
        for first in range(0, 100_000, 1000):  # as the scheduler commits them
            statements.append(0)
            ends(ledger, range(first, first + 1000))
    finally:
        remove(ledger._engine, "before_cursor_execute", count)
    assert statements[-1] == statements[1]
    rows = life.rows()
    assert len(rows) == 1000
    assert {row.state for row in rows} == {"pending"}
    assert sum(len(row.data) for row in rows) < 20e6  # bytes
    assert [notice.job for notice in life.notices()] == list(range(100_000))
    row = ledger.next_notice("ops")
    assert row is not None
    assert [notice.job for notice in row.notices] == list(range(100))


def test_of_more_rows_than_may_wait_the_oldest_are_given_up(ledger: Ledger) -> None:
    """Rows as of 1,050,000 ends, made directly."""
    life = Life(ledger, HOOKS)
    ends(ledger, [0])
    [row] = life.rows()
    new = range(row.id + 1, row.id + outbox_rows.MAX_OPEN_ROWS + 500)
    copies = [{**row._mapping, "id": id} for id in new]
    with ledger._write_transaction() as connection:
        connection.execute(outbox.insert(), copies)
    ledger.give_up_notices("ops", 0.0, life.now)
    assert Counter(states(life)) == {"failed": 500, "pending": outbox_rows.MAX_OPEN_ROWS}
    assert [record[3] for record in records(ledger)] == [
        f"ops: more than {outbox_rows.MAX_OPEN_ROWS} wait"
    ]
    first = ledger.next_notice("ops")
    assert first is not None
    assert first.id == row.id + 500


def test_paths_of_usual_length_are_reported(ledger: Ledger) -> None:
    life = Life(ledger, HOOKS)
    ends(ledger, [1], output=("/o" * 127 + "/",))
    ends(ledger, [2], output=("/o" * 128, "/e"))
    assert [notice.output for notice in life.notices()] == [("/o" * 127 + "/",), ()]


def test_what_waits_is_not_read_to_add_an_event(ledger: Ledger) -> None:
    """While a receiver is away, each commit of the scheduler adds to its last row."""
    life = Life(ledger, HOOKS)
    ends(ledger, [0])
    ends(ledger, [1])
    statements: list[str] = []

    def note(*arguments: Any) -> None:
        statements.append(arguments[2])

    listen(ledger._engine, "before_cursor_execute", note)
    try:
        ends(ledger, [2], name="\N{SNOWMAN}\N{FIRE}\0'\\")
        ends(ledger, [3])
    finally:
        remove(ledger._engine, "before_cursor_execute", note)
    assert not [text for text in statements if text.startswith("SELECT") and "data" in text]
    assert [notice.job for notice in life.notices()] == [0, 1, 2, 3]
    assert life.notices()[2].name == "\N{SNOWMAN}\N{FIRE}\0'\\"
    assert len(life.rows()) == 2


def test_events_that_were_rolled_back_are_not_in_a_row(ledger: Ledger) -> None:
    life = Life(ledger, HOOKS)
    ends(ledger, [0])
    ends(ledger, [1])
    for id in (2, 3):
        with suppress(ZeroDivisionError), ledger._write_transaction() as connection:
            notice = Notice(kind=JOB_ENDED, time=NOW + id, job=id)
            ledger._outbox.add_events(connection, [notice] * 60)
            raise ZeroDivisionError
    ends(ledger, [4])
    ends(ledger, [5])
    assert [notice.job for notice in life.notices()] == [0, 1, 4, 5]
    assert len(life.rows()) == 3  # the last row was not what it should have been


def test_a_notice_does_not_hold_all_indices_of_an_array(ledger: Ledger) -> None:
    life = Life(ledger, MAILS)
    life.submit(1, "END", array=",".join(map(str, range(0, 400, 2))))
    life.step(UserRequested(life.now, "cancel", 1, by="ada"))
    life.listed(*(life.row(State.CANCELLED, 1, index) for _, index in life.core.tasks))
    [notice] = life.notices()
    assert notice.array is not None
    assert (len(notice.array), notice.array[:6]) == (200, "0,2,4,")


def test_nothing_is_stored_without_receivers(ledger: Ledger) -> None:
    life = Life(ledger, NotificationRules())
    life.submit(1, *ALL)
    life.listed(life.row(State.COMPLETED))
    assert (life.rows(), life.wakes) == ([], 0)


# Delivery


def records(ledger: Ledger) -> list[tuple[str, str | None, int, str]]:
    rows, _ = ledger.audit_page(AuditFilter(), 0, 1000)
    return [
        (row["kind"], row["owner"], row["count"], row["cause"])
        for row in rows
        if row["kind"] in ("notification_failed", "notification_uncertain")
    ]


def two_mails(ledger: Ledger) -> Life:
    life = Life(ledger, MAILS)
    life.submit(1, "END")
    life.submit(2, "END", user="bob")
    life.listed(life.row(State.COMPLETED), life.row(State.COMPLETED, 2))
    return life


def states(life: Life) -> list[str]:
    return [row.state for row in life.rows()]


def test_a_mail_that_was_being_sent_is_not_sent_again(ledger: Ledger) -> None:
    life = two_mails(ledger)
    first, second = ledger.due_notices(MAIL, life.now, 10)
    ledger.mark_sending(first.id)
    ledger.commit_group()
    assert [row.id for row in ledger.due_notices(MAIL, life.now, 10)] == [second.id]
    ledger.open_outbox(MAILS, life.now, restored=False)  # the next start
    assert states(life) == ["uncertain", "pending"]
    [record] = records(ledger)
    assert record == (
        *("notification_uncertain", "ada", 1),
        "mail: the daemon ended while it was sent",
    )


def test_mails_of_a_restored_backup_are_not_sent_again(ledger: Ledger) -> None:
    life = two_mails(ledger)
    ledger.open_outbox(MAILS, life.now, restored=True)
    assert states(life) == ["uncertain", "uncertain"]


def test_rows_of_a_receiver_that_is_gone_are_given_up(ledger: Ledger) -> None:
    life = two_mails(ledger)
    ledger.open_outbox(HOOKS, life.now, restored=False)
    assert states(life) == ["failed", "failed"]
    assert [record[1:3] for record in records(ledger)] == [("ada", 1), ("bob", 1)]


def test_tries_are_stored(ledger: Ledger) -> None:
    life = two_mails(ledger)
    first, second = ledger.due_notices(MAIL, life.now, 10)
    ledger.mark_sending(first.id)
    ledger.mark_tried(first.id, life.now + 5, "it failed")
    ledger.mark_delivered(second.id, life.now)
    ledger.commit_group()
    assert ledger.due_notices(MAIL, life.now, 10) == []
    assert ledger.next_notice_due(MAIL) == life.now + 5
    [again] = ledger.due_notices(MAIL, life.now + 5, 10)
    assert (again.id, again.tries) == (first.id, 1)
    [again] = ledger.due_notices(MAIL, life.now - 86400.0, 10)  # the clock was set back
    assert again.id == first.id
    assert ledger.open_notices() == {MAIL: (1, life.now)}
    shown = ledger.notices(None, 0, 10, delivered=False)
    assert [(row["id"], row["error"]) for row in shown] == [(first.id, "it failed")]
    assert [row["user"] for row in ledger.notices("bob", 0, 10, delivered=True)] == ["bob"]
    assert ledger.notices("bob", 0, 10, delivered=False) == []


def test_mails_to_recipients_that_are_paused_are_not_due(ledger: Ledger) -> None:
    life = two_mails(ledger)
    alert = Notice(kind="defect", time=life.now + 5, severity="error")
    with ledger._write_transaction() as connection:
        ledger._outbox.add_mails(connection, [Mail(None, "ops@example.org", alert)])

    def due(*paused: str) -> list[str]:
        return [row.recipient for row in ledger.due_notices(MAIL, life.now + 5, 10, paused)]

    assert due() == ["ada", "bob", "ops@example.org"]
    assert due("bob", "ops@example.org") == ["ada"]
    assert ledger.next_notice_due(MAIL, ("ada", "bob")) == life.now + 5
    assert ledger.next_notice_due(MAIL, ("ada", "bob", "ops@example.org")) is None


def prune(ledger: Ledger, now: float) -> None:
    pruning = PruningPass(0.0, now=now)
    while ledger.prune_portion(pruning):
        pass


def test_old_rows_are_given_up_and_those_that_are_too_many(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = two_mails(ledger)
    ledger.give_up_notices(MAIL, life.now, life.now)  # none is older
    assert states(life) == ["pending", "pending"]
    monkeypatch.setattr(outbox_rows, "MAX_OPEN_ROWS", 1)
    ledger.give_up_notices(MAIL, life.now, life.now)
    assert states(life) == ["failed", "pending"]
    ledger.give_up_notices(MAIL, life.now + 1, life.now)
    assert states(life) == ["failed", "failed"]
    assert [record[3] for record in records(ledger)] == [
        "mail: more than 1 wait",
        "mail: too old",
    ]
    assert MAX_OPEN_ROWS > 1
    prune(ledger, life.now + KEPT_FOR - 1)
    assert states(life) == ["failed", "failed"]
    prune(ledger, life.now + KEPT_FOR + 1)
    assert life.rows() == []


def test_ids_are_not_used_again(ledger: Ledger) -> None:
    life = two_mails(ledger)
    before = [row.id for row in life.rows()]
    for id in before:
        ledger.mark_delivered(id, life.now)
    ledger.commit_group()
    prune(ledger, life.now + DELIVERED_KEPT_FOR - 1)
    assert states(life) == ["delivered", "delivered"]
    prune(ledger, life.now + DELIVERED_KEPT_FOR + 1)
    assert life.rows() == []
    ledger.open_outbox(MAILS, life.now, restored=False)
    life.now += 1
    life.submit(3, "END")
    life.listed(life.row(State.COMPLETED, 3))
    assert min(row.id for row in life.rows()) > max(before)


def test_a_step_that_is_not_stored_has_no_notice(ledger: Ledger) -> None:
    life = Life(ledger, MAILS)
    life.submit(1, "END")
    listing = ListingReceived(life.now + 1, "left", (life.row(State.COMPLETED),))
    outcome = life.core.step(listing)
    ledger.add_to_group([(listing, outcome)])
    ledger._roll_back()  # as after an outage of the database
    assert life.rows() == []
    assert life.wakes == 0
    with ledger._connect() as connection:
        assert connection.execute(select(attempt.c.ended)).scalar() is None


@pytest.mark.parametrize("method", ["store", "add_records"])
def test_a_defect_of_the_outbox_does_not_stop_the_scheduler(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    life = Life(ledger, HOOKS)
    life.submit(1)

    def fail(*_: Any) -> bool:
        raise ValueError

    monkeypatch.setattr(ledger._outbox, method, fail)
    life.listed(life.row(State.COMPLETED))
    life.step(ClusterUnreachable(life.now, "left", "silent"))
    with ledger._connect() as connection:
        assert connection.execute(select(attempt.c.ended)).scalar() is not None
    assert [row.receiver for row in life.rows()] == [
        "alerts" if method == "store" else "ops",
    ]


def broken(life: Life, ids: Sequence[int]) -> None:
    for id in ids:
        reservation = structs.replace(BROKEN, id=id, known_to_manager=False, closed=NOW)
        with life.ledger._write_transaction() as connection:
            reservations.store(connection, [Outcome(reservations={id: reservation})])


def test_a_broken_reservation_has_one_mail(ledger: Ledger) -> None:
    life = Life(ledger, MAILS)
    broken(life, [3, 4])
    ledger.mark_notified(4, NOW)  # by the answer of the request
    for _ in range(2):
        ledger.queue_broken_reservations(NOW - 1, NOW + 1)
    [notice] = life.notices()
    assert (notice.kind, notice.reservation, notice.user) == ("reservation_broken", 3, "ada")


def test_many_broken_reservations_have_mails_up_to_the_limit(ledger: Ledger) -> None:
    life = Life(ledger, replace(MAILS, mails_per_hour=2))
    broken(life, range(3, 9))
    ledger.queue_broken_reservations(NOW - 1, NOW + 1)
    ledger.queue_broken_reservations(NOW - 1, NOW + 2)
    assert [row.kind for row in life.rows()] == ["reservation_broken"] * 2 + [DIGEST]
    assert life.notices()[-1].counts == {"reservation_broken": 4}


def test_the_database_refuses_other_states(ledger: Ledger) -> None:
    life = two_mails(ledger)
    for values in ({"state": "lost"}, {"state": "delivered"}, {"ended": 1.0}):
        with pytest.raises(Exception, match=r"ck_outbox|CHECK"), ledger._write_transaction() as c:
            c.execute(update(outbox).values(**values))
    assert states(life) == ["pending", "pending"]
