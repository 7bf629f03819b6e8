"""The sender of notifications, if the daemon dies between any two of its steps.

A mail is taken by the mail program at most once, and exactly once if it counts as delivered. A
webhook gets all events, in order, each once or several times in a row.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from email import message_from_bytes, policy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import create_engine, func, insert, select, update
from sqlalchemy.pool import StaticPool

from metasched.config.reading import load_settings
from metasched.config.settings import MailSettings, Settings, WebhookSettings
from metasched.core.scheduler import Core
from metasched.daemon import notification_sender
from metasched.daemon.mail import MailFailed, MailUncertain, UnknownAddress, command_for
from metasched.daemon.mail_pauses import MailPauses
from metasched.daemon.notification_sender import NotificationSender
from metasched.daemon.notification_texts import job_message
from metasched.daemon.webhook import BodyTooLarge, DeliveryFailed, DeliveryThread
from metasched.db import outbox as outbox_rows
from metasched.db.ledger import Ledger
from metasched.db.outbox import Mail
from metasched.db.schema import epoch, metadata, outbox
from metasched.model.audit import one_line
from metasched.model.notice import JOB_ENDED, MAIL, Notice
from tests.harness.examples import examples

NOW = 1_700_000_000.0
HOOK = WebhookSettings("ops", "https://h/", Path("/s"), frozenset({JOB_ENDED}), False)
WRITES = ("mark_sending", "mark_delivered", "mark_tried", "mark_uncertain", "give_up_notices")
Fate = Literal["done", "refused", "taken, then lost", "lost"]


def id_in(content: bytes) -> int:
    """Return the row of a mail from its Message-ID."""
    id: str = message_from_bytes(content, policy=policy.default)["Message-ID"]
    return int(id.removesuffix("@metasched.invalid>").rpartition("-")[2])


class Died(Exception):
    """Stands for the end of the daemon."""


def sender_settings() -> Settings:
    mail = MailSettings(Path("/m"), is_sendmail=True, sender="", domains=(), per_hour=10_000)
    return replace(load_settings(None), mail=mail, webhooks=(HOOK,))


SETTINGS = sender_settings()


class World:
    """A database, a mail program, a receiver, and daemons that die."""

    def __init__(self, deaths: list[int], fates: list[Fate]) -> None:
        self.engine = create_engine("sqlite://", poolclass=StaticPool)
        metadata.create_all(self.engine)
        with self.engine.begin() as connection:
            connection.execute(insert(epoch).values(number=0, holder=""))
        self.deaths, self.fates = iter(deaths), iter(fates)
        self.steps_to_death = next(self.deaths, None)
        self.taken: list[int] = []  # mails
        self.addresses: list[str] = []  # of these
        self.received: list[int] = []  # rows of the webhook, as often as they arrive
        self.bodies: dict[int, list[int]] = {}  # jobs by row of the webhook
        self.jobs = 0
        self.start()

    def start(self) -> None:
        self.ledger = Ledger(self.engine)
        self.ledger.restore(Core(), 100)
        self.sender = NotificationSender(SETTINGS, self.ledger, self.commit)
        self.ledger.open_outbox(self.sender.rules("cafe"), NOW, restored=False)
        for name in WRITES:
            setattr(self.ledger, name, self.mortal(getattr(self.ledger, name)))

    async def commit(self) -> None:
        self.step()
        self.ledger.commit_group()
        self.step()

    def step(self) -> None:
        if self.steps_to_death is None:
            return
        self.steps_to_death -= 1
        if self.steps_to_death < 0:
            self.steps_to_death = next(self.deaths, None)
            raise Died

    def mortal(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def written(*arguments: Any) -> Any:
            self.step()
            result = write(*arguments)
            self.step()
            return result

        return written

    async def send_mail(self, *arguments: Any) -> None:
        self.step()
        fate, id = next(self.fates, "done"), id_in(arguments[1])
        if fate == "refused":
            raise MailFailed("exit code 75")
        if fate != "lost":
            self.taken.append(id)
            self.addresses.append(arguments[0][-1])
        self.step()
        if fate != "done":
            raise MailUncertain("killed")

    async def deliver(self, hook: WebhookSettings, id: str, time: int, body: bytes) -> None:
        self.step()
        fate = next(self.fates, "done")
        if fate in ("done", "taken, then lost"):
            row, jobs = int(id.partition("-")[2]), [e["job"] for e in json.loads(body)["data"]]
            self.received.append(row)
            assert self.bodies.setdefault(row, jobs) == jobs  # a repetition is the same
        self.step()
        if fate != "done":
            raise DeliveryFailed(fate)

    def add(self) -> None:
        self.jobs += 1
        notice = Notice(kind=JOB_ENDED, time=NOW, user="ada", job=self.jobs)
        with self.ledger._write_transaction() as connection:
            self.ledger._outbox.add_mails(connection, [Mail("ada", "ada", notice)])
            self.ledger._outbox.add_events(connection, [notice])

    def send(self) -> bool:
        """Send one mail and one row of the webhook; return whether there was any."""
        mails = self.ledger.due_notices(MAIL, NOW + 1e9, 1)
        row = self.ledger.next_notice(HOOK.name)
        try:
            for mail in mails:
                asyncio.run(self.sender._mail(SETTINGS.mail, mail))  # type: ignore[arg-type]
            if row is not None:
                asyncio.run(self.sender._deliver(HOOK, row, InPlace()))
        except Died:
            self.ledger._roll_back()  # what was not committed is gone
            self.start()
        return bool(mails) or row is not None


class InPlace(DeliveryThread):
    """Runs a delivery where it is awaited."""

    def __init__(self) -> None:
        pass

    async def run(self, work: Any) -> Any:
        return await work


def rows_of(world: World) -> Iterator[Any]:
    with world.ledger._connect() as connection:
        yield from connection.execute(select(outbox)).all()


@examples(40)
@given(
    script=st.lists(st.sampled_from(["add", "send"]), max_size=12),
    deaths=st.lists(st.integers(0, 9), max_size=6),
    fates=st.lists(st.sampled_from(["done", "refused", "taken, then lost", "lost"]), max_size=12),
)
@example(script=["add", "send", "add"], deaths=[], fates=["done", "taken, then lost"])
def test_mails_arrive_at_most_once_and_events_at_least_once_in_order(
    script: list[str], deaths: list[int], fates: list[Fate]
) -> None:
    world = World(deaths, fates)
    with (
        patch.object(notification_sender, "send_mail", world.send_mail),
        patch.object(notification_sender, "deliver", world.deliver),
        patch.object(notification_sender, "MAIL_GIVEN_UP_AFTER", 1e12),
        patch.object(notification_sender, "EVENTS_GIVEN_UP_AFTER", 1e12),
    ):
        for act in script:
            if act == "add":
                world.add()
            else:
                world.send()
        while world.send():
            pass
    states: dict[str, dict[int, str]] = {MAIL: {}, HOOK.name: {}}
    for row in rows_of(world):
        states[row.receiver][row.id] = row.state
    assert len(world.taken) == len(set(world.taken))
    for id, state in states[MAIL].items():
        assert state in ("delivered", "uncertain")
        assert state == "uncertain" or id in world.taken
    assert world.received == sorted(world.received)
    assert set(world.received) == states[HOOK.name].keys()
    events = [job for row in sorted(world.bodies) for job in world.bodies[row]]
    assert events == list(range(1, world.jobs + 1))
    assert set(states[HOOK.name].values()) <= {"delivered"}
    world.ledger.close()


def test_events_that_are_too_large_together_arrive_in_parts() -> None:
    """A proxy has a lower limit than that of a row; a failure repeats parts under their ids."""
    world = World([], [])
    notices = [Notice(kind=JOB_ENDED, time=NOW, job=id) for id in range(7)]
    with world.ledger._write_transaction() as connection:
        world.ledger._outbox.add_events(connection, notices)
    requests: list[tuple[str, list[int]]] = []
    failures = iter([False, False, True])

    async def deliver(hook: WebhookSettings, id: str, time: int, body: bytes) -> None:
        jobs = [event["job"] for event in json.loads(body)["data"]]
        if len(jobs) > limit:
            raise BodyTooLarge("it answered 413")
        requests.append((id, jobs))
        if next(failures, False):
            raise DeliveryFailed("it answered 500")

    limit = 3
    with patch.object(notification_sender, "deliver", deliver):
        while world.send():
            pass
        id = f"cafe-{world.ledger.notices(None, 0, 9, delivered=True)[0]['id']}"
        parts = [(f"{id}-0-3", [0, 1, 2]), (f"{id}-3-3", [3, 4, 5]), (f"{id}-6-1", [6])]
        assert requests == parts * 2  # the third part failed first
        [row] = rows_of(world)
        assert (row.state, row.tries) == ("delivered", 1)
        limit = 0
        world.add()
        row = world.ledger.next_notice(HOOK.name)
        assert row is not None
        asyncio.run(world.sender._deliver(HOOK, row, InPlace()))  # it does not try for ever
    assert world.sender.statuses[HOOK.name].last_error == "it answered 413"
    world.ledger.close()


def test_a_restart_does_not_hide_that_a_webhook_fails() -> None:
    world = World([], ["refused", "refused"])
    world.add()
    row = world.ledger.next_notice(HOOK.name)
    assert row is not None
    with patch.object(notification_sender, "deliver", world.deliver):
        for _ in range(2):
            asyncio.run(world.sender._deliver(HOOK, row, InPlace()))
    before = world.sender.statuses[HOOK.name]
    world.start()

    async def read(query: Callable[..., Any], *arguments: object) -> Any:
        return query(*arguments)

    async def sleep(*_: object) -> None:
        raise Died

    with (
        patch.object(world.sender, "_read", read),
        patch.object(world.sender, "_sleep", sleep),
        patch.object(notification_sender, "EVENTS_GIVEN_UP_AFTER", 1e12),
        pytest.raises(Died),
    ):
        asyncio.run(world.sender.run_webhook(HOOK))
    after = world.sender.statuses[HOOK.name]
    assert (after.failures, after.last_error) == (2, "refused")
    assert (before.failures, before.next_try) == (after.failures, after.next_try)
    world.ledger.close()


def test_too_many_rows_of_a_slow_receiver_are_given_up() -> None:
    world = World([], [])
    for _ in range(5):
        world.add()
        world.start()  # the rows of earlier runs are not filled up

    async def read(query: Callable[..., Any]) -> Any:
        return query()

    with (
        patch.object(outbox_rows, "MAX_OPEN_ROWS", 2),
        patch.object(world.sender, "_read", read),
    ):
        asyncio.run(world.sender._bound_rows(HOOK.name, 1e12))
    states = [row.state for row in rows_of(world) if row.receiver == HOOK.name]
    assert states == ["failed"] * 3 + ["pending"] * 2
    world.ledger.close()


class MailDay:
    """A sender of mails whose clock runs by its waits, and a program that obeys `fails`."""

    def __init__(self, fails: Callable[[str], Exception | None]) -> None:
        self.world, self.fails = World([], []), fails
        self.sender, self.ledger = self.world.sender, self.world.ledger
        self.now = NOW
        self.clock = SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now - NOW)
        self.tried: list[str] = []  # addresses
        self.taken: list[str] = []

    def add(self, user: str | None, count: int, address: str = "") -> None:
        notice = Notice(kind=JOB_ENDED, time=self.now, user=user, job=1)
        with self.ledger._write_transaction() as connection:
            mails = [Mail(user, address or user or "", notice)] * count
            self.ledger._outbox.add_mails(connection, mails)

    async def _send(self, command: list[str], content: bytes) -> None:
        self.tried.append(command[-1])
        error = self.fails(command[-1])
        if error is not None:
            raise error
        self.taken.append(command[-1])

    def mail_error(self) -> str:
        with patch.object(notification_sender, "time", self.clock):
            return self.sender.mail_error

    def run(self, seconds: float) -> None:
        """Send for a time, or until no row waits."""

        async def read(query: Callable[..., Any], *arguments: Any) -> Any:
            return query(*arguments)

        async def run() -> None:
            end, looks = self.now + seconds, 0
            while self.now < end:
                due = await self.sender._send_due_mails(SETTINGS.mail)  # type: ignore[arg-type]
                if due is None:
                    return
                looks = looks + 1 if due <= self.now else 0
                assert looks < 1000, "it looks again without a pause"
                self.now = max(due, self.now)

        with (
            patch.object(notification_sender, "time", self.clock),
            patch.object(notification_sender, "send_mail", self._send),
            patch.object(self.sender, "_read", read),
            patch.object(self.sender, "_may_be_broken", False),
        ):
            asyncio.run(run())


def test_a_program_that_fails_is_called_at_growing_intervals() -> None:
    day = MailDay(lambda _: MailFailed("exit code 75"))
    for number in range(40):
        day.add(f"user{number}", 10)
    with patch.object(day.ledger, "give_up_notices", wraps=day.ledger.give_up_notices) as given_up:
        day.run(3600.0)
    # one call for each pause: 5, 10, 20 ... 300 s
    assert 10 < len(day.tried) < 25
    assert len(given_up.mock_calls) <= 61
    day.fails = lambda _: None
    before = len(day.tried)
    day.run(2 * 3600.0)
    assert len(day.taken) == 400
    assert len(day.tried) == before + 400
    assert day.ledger.open_notices() == {}
    day.world.ledger.close()


def test_addresses_that_are_refused_delay_no_other_user() -> None:
    def fails(address: str) -> Exception | None:
        if address == "eve":
            return MailFailed("exit code 75")
        return UnknownAddress("exit code 67") if address == "ops@old.example.org" else None

    day = MailDay(fails)
    day.add("eve", 60)
    day.add(None, 60, "ops@old.example.org")
    day.add("ada", 60)
    day.add(None, 60, "ops@example.org")
    begin = day.now
    day.run(1.0)
    assert day.taken == ["ada"] * 60 + ["ops@example.org"] * 60
    day.run(3600.0)
    assert day.now > begin + 3000.0
    # two recipients, each at intervals that grow to 300 s; before, each row at intervals of its own
    assert len(day.tried) - len(day.taken) < 50
    day.world.ledger.close()


def test_one_account_does_not_turn_on_the_alarm_about_mail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(address: str) -> Exception | None:
        if address == "bob":
            return UnknownAddress("exit code 67")
        return next(refusals) if address == "eve" else None

    refusals = itertools.cycle([MailFailed("exit code 65"), None])
    day = MailDay(fails)
    errors = set()
    for _ in range(30):
        day.add("eve", 2)
        day.run(6.0)
        errors.add(day.mail_error())
    begin = day.now
    assert len(day.tried) >= 90  # of which each other one failed
    assert 1 <= len(caplog.records) <= (begin - NOW) / 60 + 1
    for _ in range(8):
        day.add("bob", 1)
        day.add("ada", 1)
        day.run(300.0)
        errors.add(day.mail_error())
    assert day.now - begin > 2000.0
    assert set(day.tried) == {"eve", "bob", "ada"}
    assert errors == {""}
    day.world.ledger.close()


def test_a_program_that_fails_turns_on_the_alarm_about_mail() -> None:
    day = MailDay(lambda _: MailFailed("exit code 75"))
    day.add("ada", 1)
    day.run(300.0)
    assert day.mail_error() == ""  # it may be due to the address
    day.run(310.0)
    assert day.mail_error() == "exit code 75"
    errors = iter([None, *[MailFailed("exit code 1")] * 2])
    day.fails = lambda _: next(errors, None)
    day.run(3600.0)
    assert day.mail_error() == ""
    day.add("bob", 1)
    day.add("cyd", 1)
    day.run(1.0)
    assert day.mail_error() == "exit code 1"
    day.world.ledger.close()


def test_mails_of_a_user_who_was_refused_go_on() -> None:
    errors = iter([MailFailed("exit code 75")])
    day = MailDay(lambda _: next(errors, None))
    day.add("ada", 30)
    day.run(60.0)
    assert day.taken == ["ada"] * 30
    assert day.ledger.open_notices() == {}
    day.world.ledger.close()


def test_pauses_grow_and_a_mail_that_was_taken_ends_them() -> None:
    pauses = MailPauses()
    for user in ("ada", "bob"):
        pauses.note_failure(user, "no", NOW, 0.0, blames_address=False)
    assert pauses.seconds_until_tried(1.0) == 4.0
    pauses.note_failure("ada", "no", NOW, 5.0, blames_address=False)
    assert pauses.seconds_until_tried(6.0) == 9.0
    assert pauses.next_end(6.0) == 9.0
    pauses.note_success("bob")
    assert pauses.seconds_until_tried(6.0) == 0.0
    assert pauses.paused(6.0) == ["ada"]
    pauses.note_failure("cyd", "no", NOW, 1000.0, blames_address=True)
    assert list(pauses._recipients) == ["cyd"]  # ada had no mail for long


def test_mail_goes_to_the_owner_if_the_site_no_longer_allows_the_address() -> None:
    world = World([], [])
    notice = Notice(kind=JOB_ENDED, time=NOW, user="ada", job=1)
    mails = [Mail("ada", "eve@example.org", notice), Mail(None, "ops@example.org", notice)]
    with world.ledger._write_transaction() as connection:
        world.ledger._outbox.add_mails(connection, mails)
    with patch.object(notification_sender, "send_mail", world.send_mail):
        while world.send():
            pass
    assert world.addresses == ["ada", "ops@example.org"]
    world.ledger.close()


NAMES = st.lists(
    st.sampled_from(
        ["=?utf-8?q?=ff?=", "=?", "?=", "utf-8?q?", "=ff", "_", '"', "<a@b>", ",", "\xe9", " "]
    )
    | st.text(max_size=9),
    max_size=12,
).map(lambda parts: one_line("".join(parts)))


@examples(300)
@given(name=NAMES, path=NAMES)
def test_each_name_makes_a_mail_in_which_it_is_literal(name: str, path: str) -> None:
    notice = Notice(kind=JOB_ENDED, time=NOW, user="ada", job=1, name=name, output=(path,))
    assert SETTINGS.mail is not None
    subject, text = job_message(notice)
    _, content = command_for(SETTINGS.mail, "cafe-1", "ada", subject, text)
    message = message_from_bytes(content, policy=policy.default)
    assert message.keys()[:2] == ["To", "Subject"]
    assert message["To"] == "ada"
    shown, literal = message["Subject"], subject.replace("=?", "= ?")
    assert "".join(shown.split()) == "".join(literal.split())
    assert message.get_content() == text


@pytest.mark.parametrize("data", ['{"sou', '{"source": "cafe", "notices": []}', '{"source": 1}'])
def test_a_row_that_cannot_be_read_stops_no_other(data: str) -> None:
    world = World([], [])
    world.add()
    world.add()
    with world.ledger._write_transaction() as connection:
        first = select(func.min(outbox.c.id)).group_by(outbox.c.receiver)
        connection.execute(update(outbox).where(outbox.c.id.in_(first)).values(data=data))
    with (
        patch.object(notification_sender, "send_mail", world.send_mail),
        patch.object(notification_sender, "deliver", world.deliver),
    ):
        assert len(world.ledger.due_notices(MAIL, NOW + 1e9, 20)) == 2
        while world.send():
            pass
    for receiver in (MAIL, HOOK.name):
        states = [row.state for row in rows_of(world) if row.receiver == receiver]
        assert states == ["failed", "delivered"]
    assert len(world.taken) == len(world.received) == 1
    world.ledger.close()


@pytest.mark.parametrize("where", ["command_for", "send_mail"])
def test_a_mail_with_a_defect_does_not_stop_the_next(where: str) -> None:
    world = World([], [])
    world.add()
    world.add()
    defects = iter([UnicodeEncodeError("ascii", "x", 0, 1, "no")])

    def make(*arguments: Any) -> Any:
        for defect in defects:
            raise defect
        return command_for(*arguments)

    async def send(*arguments: Any) -> None:
        for defect in defects:
            raise defect
        await world.send_mail(*arguments)

    with (
        patch.object(notification_sender, "send_mail", world.send_mail),
        patch.object(notification_sender, "deliver", world.deliver),
        patch.object(notification_sender, where, make if where == "command_for" else send),
    ):
        while world.send():
            pass
    mails = [row.state for row in rows_of(world) if row.receiver == MAIL]
    assert mails == ["failed" if where == "command_for" else "uncertain", "delivered"]
    assert len(world.taken) == 1
    world.ledger.close()
