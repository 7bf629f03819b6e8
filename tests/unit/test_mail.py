"""Mail to the owners of broken reservations, and failures of the mail program."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import cast

import pytest
from msgspec import structs

from metasched.core.events import Outcome
from metasched.daemon import mail
from metasched.db.ledger import Ledger
from metasched.model.reservation import Reservation, ReservationState
from metasched.model.reservation_request import Offer

BROKEN = Reservation(
    id=3,
    user="ada",
    cluster="alpha",
    start=1_000_000.0,
    end=1_003_600.0,
    size=2,
    cpus=8,
    created=0.0,
    nodes=("n1", "n2"),
    state=ReservationState.BROKEN,
    cause="n1 cannot be used,\n~ and no other node is free",
    offers=(Offer(1_007_200.0, 1_010_800.0, 2),),
)


def test_the_owner_is_notified_of_the_break_its_cause_and_free_windows() -> None:
    subject, text = mail.message_for(BROKEN)
    assert subject == "metasched: reservation 3 is broken"
    assert text.splitlines() == [
        "Your reservation 3 on alpha cannot be kept.",
        "Window: 2 nodes from 1970-01-12T13:46:40.000+00:00 to 1970-01-12T14:46:40.000+00:00",
        "Cause: n1 cannot be used, ~ and no other node is free",
        "Jobs that wait for it stay queued in metasched until you cancel them.",
        "Free instead: 2 nodes of alpha from 1970-01-12T15:46:40.000+00:00"
        " to 1970-01-12T16:46:40.000+00:00. To reserve it:",
        "    metasched reserve --cluster alpha --size 2 --nodes"
        " --start 1970-01-12T15:46:40.000+00:00 --end 1970-01-12T16:46:40.000+00:00",
    ]


def test_reservations_without_nodes_are_given_in_processors() -> None:
    _, text = mail.message_for(structs.replace(BROKEN, nodes=(), offers=()))
    assert "Window: 8 processors from" in text
    assert "No other window was found" in text
    assert "--size 8 --start" in mail.message_for(structs.replace(BROKEN, nodes=()))[1]


def test_a_window_of_another_cluster_is_offered_in_processors_with_its_name() -> None:
    offer = Offer(1_007_200.0, 1_010_800.0, 8, "beta")
    _, text = mail.message_for(structs.replace(BROKEN, offers=(offer,)))
    assert "Free instead: 8 processors of beta from" in text
    assert "metasched reserve --cluster beta --size 8 --start" in text


@pytest.mark.parametrize("address", ["ada", "ada@example.org", "a.b+c@mail-1.example.org", "_x"])
def test_addresses(address: str) -> None:
    assert mail.ADDRESS.fullmatch(address)


@pytest.mark.parametrize(
    "text", ["", "-v", "|rm", "/etc/passwd", "a/b", "a b", "a\nb", "a@b@c", "a@-b", "x" * 99, "é"]
)
def test_texts_that_a_mail_program_might_interpret_are_no_addresses(text: str) -> None:
    assert not mail.ADDRESS.fullmatch(text)


class FakeLedger:
    """The part of a ledger that a mailer uses."""

    def __init__(self) -> None:
        self.times: dict[int, float] = {}

    def unnotified_reservations(self, since: float) -> list[Reservation]:
        return [] if self.times else [BROKEN]

    def mark_notified(self, id: int, now: float) -> None:
        self.times[id] = now


def test_a_program_that_hangs_is_killed_and_does_not_block_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail, "MAIL_TIMEOUT", 1.0)
    monkeypatch.setattr(mail, "REPLY_GRACE", 0.0)
    monkeypatch.setattr(mail, "RETRY_DELAYS", (0.01, 0.01))
    program, pid_file = tmp_path / "mail", tmp_path / "pid"
    program.write_text(
        f"#!/bin/sh\n[ -e {pid_file} ] && exit 0\necho $$ >{pid_file}\nsleep 600 &\nwait\n"
    )
    program.chmod(0o755)
    ledger = FakeLedger()

    def hangs() -> bool:
        pid = pid_file.read_text().strip() if pid_file.exists() else ""
        return pid != "" and Path(f"/proc/{pid}").exists()

    async def scenario() -> int:
        """Count how often the loop runs while the program hangs."""
        mailer = mail.Mailer(program, cast(Ledger, ledger))
        running = asyncio.create_task(mailer.run())
        turns = 0
        async with asyncio.timeout(60):
            while not ledger.times:
                await asyncio.sleep(0.01)
                turns += hangs()
        assert mailer.last_error == ""
        running.cancel()
        return turns

    assert asyncio.run(scenario()) > 1
    assert not hangs()


def test_without_a_program_nothing_is_sent_or_read() -> None:
    async def scenario() -> None:
        mailer = mail.Mailer(None, cast(Ledger, None))
        mailer.check_outcome(Outcome(reservations={3: BROKEN}))
        async with asyncio.timeout(1):
            await mailer.run()

    asyncio.run(scenario())


class ExpiringLedger(FakeLedger):
    """A ledger whose reservation is too old from the third query on."""

    queries = 0

    def unnotified_reservations(self, since: float) -> list[Reservation]:
        assert time.time() - mail.GIVE_UP_AFTER - 60 < since < time.time() - mail.GIVE_UP_AFTER + 60
        self.queries += 1
        return [BROKEN] if self.queries < 3 else []


def test_a_mail_that_failed_for_a_day_is_given_up_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mail, "REPLY_GRACE", 0.0)
    monkeypatch.setattr(mail, "RETRY_DELAYS", (0.01, 0.01))
    ledger = ExpiringLedger()

    async def scenario() -> None:
        running = asyncio.create_task(mail.Mailer(tmp_path / "none", cast(Ledger, ledger)).run())
        async with asyncio.timeout(60):
            while ledger.queries < 3:
                await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(scenario())
    why = f"{tmp_path}/none: No such file or directory"
    assert [record.getMessage() for record in caplog.records] == [
        *[f"reservation 3: ada not notified: {why}; retrying in 0.01 s"] * 2,
        f"giving up the mail to the owner of reservation 3: {why}",
    ]
    assert ledger.times == {}
