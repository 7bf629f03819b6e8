"""A real daemon notifies owners of broken reservations, with a failing mail program."""

from __future__ import annotations

import signal
import time

import pytest

from metasched.core.events import Outcome
from metasched.db import reservations
from metasched.db.backends import database_from_url
from metasched.db.ledger import Ledger
from metasched.model.reservation import Reservation, ReservationState
from tests.e2e.conftest import Site
from tests.e2e.test_doctor import findings

# It fails twice. The third call writes the mail, then kills the daemon.
PROGRAM = """#!/bin/sh
cd {folder}
echo "$@" >>calls
case $(wc -l <calls) in
1|2) exit 75 ;;
3) cat >>text; kill -9 $PPID ;;
*) cat >>text ;;
esac
"""


def broken(site: Site, id: int, *, closed: float, mail: str = "") -> None:
    """Store a broken reservation, as a daemon does just before it is killed."""
    reservation = Reservation(
        id=id,
        user="ada",
        cluster="left",
        start=closed,
        end=closed + 60,
        size=1,
        cpus=4,
        created=closed - 60,
        nodes=("n1",),
        state=ReservationState.BROKEN,
        cause="n1 cannot be used",
        known_to_manager=False,
        closed=closed,
        mail=mail,
    )
    engine = database_from_url(site.url, site.folder).open_existing()
    with engine.begin() as connection:
        reservations.store(connection, [Outcome(reservations={id: reservation})])
    engine.dispose()


def notified(site: Site) -> list[int]:
    """Return the stored reservations whose owners have been notified."""
    ledger = Ledger(database_from_url(site.url, site.folder).open_existing())
    try:
        unnotified = {reservation.id for reservation in ledger.unnotified_reservations(0.0)}
        return [
            reservation.id
            for reservation in ledger.reservations_open_since(0.0)
            if reservation.id not in unnotified
        ]
    finally:
        ledger.close()


def calls(site: Site) -> list[str]:
    path = site.folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.slow
def test_an_owner_is_notified_at_least_once_over_failures_and_a_crash(
    site: Site,
) -> None:
    program = site.folder / "mail"
    site.config.write_text(
        site.config.read_text().replace("[daemon]", '[daemon]\nmail_program = "mail"')
    )
    site.start()
    assert "no program" in findings(site, 1)["mail program"]["text"]
    site.stop()
    broken(site, 1, closed=time.time(), mail="ada@example.org")
    broken(site, 2, closed=time.time() - 2 * 86400.0)  # too old for a mail
    program.write_text(PROGRAM.format(folder=site.folder))
    program.chmod(0o755)
    site.start()
    site.until(lambda: len(calls(site)) == 1)
    trouble = site.until(lambda: findings(site, 1)["mail"])
    assert "an owner was not notified: " in trouble["text"]
    assert "/mail ended with exit code 75" in trouble["text"]
    assert notified(site) == []
    written = site.folder / "text"
    site.until(lambda: written.exists() and written.read_text().endswith("--dry-run.\n"))
    assert site.stop(signal.SIGKILL) == -signal.SIGKILL  # killed by the program
    site.start()
    site.until(lambda: notified(site) == [1])
    site.stop()
    site.start()
    time.sleep(2)
    assert calls(site) == ["-s metasched: reservation 1 is broken ada@example.org"] * 4
    text = written.read_text()
    assert text.count("Your reservation 1 on left cannot be kept.\n") == 2
    assert "mail" not in findings(site, 0)
    log = site.log.read_text()
    assert log.count("ada@example.org not notified") == 2
    assert "reservation 1: notified ada@example.org that it is broken" in log


def test_without_a_program_no_mail_is_promised(running: Site) -> None:
    reserve = ("reserve", "--size", "1", "--duration", "1h")
    message = running.error(*reserve, "--mail", "ada", code=3)
    assert "this site has no mail program to notify you by, --mail; leave it out" in message
    message = running.error(*reserve, "--mail", "|sh", code=2)
    assert message == "'|sh' is no address, --mail; write an address as ada@example.org"
