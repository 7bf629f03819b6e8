"""Reservations whose cluster is no longer configured."""

from __future__ import annotations

import time
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest

from metasched.core.events import Outcome
from metasched.db import reservations
from metasched.model.reservation import Reservation, ReservationState
from tests.e2e.conftest import Site
from tests.e2e.test_doctor import findings
from tests.harness.databases import database_from_url

GONE = "cluster gone is not configured"
ME = getuser()


def write(site: Site, *rows: Reservation) -> None:
    """Store reservations as an earlier run of the daemon left them."""
    engine = database_from_url(site.url, site.folder).open_existing()
    with engine.begin() as connection:
        reservations.store(connection, [Outcome(reservations={row.id: row for row in rows})])
    engine.dispose()


def on_gone(id: int, state: ReservationState, start: float) -> Reservation:
    return Reservation(
        id=id,
        user=ME,
        cluster="gone",
        start=start,
        end=start + 3600,
        size=1,
        cpus=4,
        created=start - 60,
        nodes=(f"n{id}",),
        bound_nodes=(f"n{id}",),
        state=state,
        cause=f"its manager keeps n{id}",
    )


def read_if_written(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def by_id(site: Site) -> dict[int, dict[str, Any]]:
    return {row["reservation"]: row for row in site.json("reservations")}


@pytest.mark.slow("waits until a reservation would begin, 20 s later")
def test_they_are_named_everywhere_and_broken_only_when_they_would_begin(site: Site) -> None:
    program = site.folder / "mail"
    program.write_text(f'#!/bin/sh\ncat >>"{site.folder}/letter"\n')
    program.chmod(0o755)
    site.configure(extra=f'mail_program = "{program}"\n')
    site.start()
    site.stop()
    now = time.time()
    write(
        site,
        on_gone(1, ReservationState.ACTIVE, now - 60),
        on_gone(2, ReservationState.BOUND, now + 20),
        on_gone(3, ReservationState.BOUND, now + 3600),
    )
    site.start()
    for id in (1, 2, 3):
        assert f"reservation {id} of {ME}: {GONE}; put it back, or cancel" in site.log.read_text()
    rows = by_id(site)
    assert [(rows[id]["state"], rows[id]["cause"]) for id in (1, 2, 3)] == [
        ("active", GONE),
        ("bound", GONE),
        ("bound", GONE),
    ]
    assert site.run("reservations").stdout.count(GONE) == 3
    assert not findings(site, 1)["reservation 3"]["ok"]
    shown = site.run("doctor", code=1).stdout
    assert "put gone back into the configuration and restart the daemon" in shown
    assert "`metasched reservation cancel 3`" in shown
    refused = site.error("submit", "--reservation", "3", "-t", "1", "--wrap", "true", code=3)
    assert "gone" in refused

    site.until(lambda: by_id(site)[2]["state"] == "broken")
    assert time.time() >= now + 10
    assert (by_id(site)[2]["cause"], by_id(site)[1]["state"]) == (
        GONE,
        "active",
    )
    # The shell creates the file before cat has written it: wait for the last line.
    site.until(lambda: "    metasched reserve" in read_if_written(site.folder / "letter"))
    letter = (site.folder / "letter").read_text()
    assert f"Cause: {GONE}\n" in letter
    assert "Free instead: 4 processors of " in letter
    site.run("reservation", "cancel", "3")
    assert by_id(site)[3]["state"] == "cancelled"
    assert "reservation 3" not in findings(site, 1)
    assert site.stop() == 0
