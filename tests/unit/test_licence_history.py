"""The figures of licences over time: what is stored, and how much of it at most."""

from __future__ import annotations

import asyncio
from typing import cast

from metasched.core.events import LicencesCounted
from metasched.daemon.licence_history import INTERVAL, MAX_SAMPLES, UNCHANGED, LicenceHistory
from metasched.db.ledger import Ledger
from metasched.db.store import StorageFailed
from metasched.model.cluster import ManagerLicences
from metasched.model.licence import MAX_TOKENS, LicenceCount, LicencePool, LicenceSample
from tests.unit.core_site import NOW, Site, facts


class Stored:
    """A ledger that remembers samples, or fails."""

    def __init__(self) -> None:
        self.looks: list[list[LicenceSample]] = []
        self.fails = False

    def add_licence_samples(self, samples: list[LicenceSample]) -> None:
        if self.fails:
            raise StorageFailed("full")
        self.looks.append(list(samples))


def history_of(*names: str) -> tuple[Site, Stored, LicenceHistory]:
    pools = tuple(LicencePool(name=name, total=5, server="main") for name in names)
    site, stored = Site(pools=pools), Stored()
    return site, stored, LicenceHistory(site.core, cast(Ledger, stored))


def count(site: Site, name: str, outside: int, at: float) -> None:
    site.step(LicencesCounted(at, (LicenceCount(name, 5, outside, at),)))


def test_changes_are_stored_and_what_stays_now_and_then() -> None:
    site, stored, history = history_of("matlab")
    count(site, "matlab", 2, NOW)
    for minute in range(4):
        if minute == 2:
            count(site, "matlab", 4, NOW + 90)
        asyncio.run(history.look(NOW + minute * INTERVAL))
    expected = [
        LicenceSample("matlab", NOW, 5, 0, 2, 3, 0),
        LicenceSample("matlab", NOW + 120, 5, 0, 4, 1, 0),
    ]
    assert [sample for samples in stored.looks for sample in samples] == expected
    count(site, "matlab", 4, NOW + UNCHANGED + 120)
    asyncio.run(history.look(NOW + UNCHANGED + 120))
    assert stored.looks[-1] == [expected[-1]._replace(time=NOW + UNCHANGED + 120)]
    asyncio.run(history.look(NOW))  # the clock was set back
    assert len(stored.looks) == 4


def test_a_silent_server_makes_free_tokens_unknown() -> None:
    site, stored, history = history_of("matlab")
    count(site, "matlab", 2, NOW)
    asyncio.run(history.look(NOW))
    asyncio.run(history.look(NOW + 400))  # `stale_after` is 300 s
    assert [samples[0].free for samples in stored.looks] == [3, None]


def test_many_licences_take_turns() -> None:
    names = [f"l{number:03}" for number in range(2 * MAX_SAMPLES + 50)]
    site, stored, history = history_of(*names)
    for minute in range(3):
        site.step(
            LicencesCounted(
                NOW + minute, tuple(LicenceCount(n, 5, minute, NOW + minute) for n in names)
            )
        )
        asyncio.run(history.look(NOW + minute * INTERVAL))
    assert [len(samples) for samples in stored.looks] == [MAX_SAMPLES] * 3
    assert {sample.licence for samples in stored.looks for sample in samples} == set(names)


def test_what_was_not_stored_is_stored_later() -> None:
    site, stored, history = history_of("matlab")
    count(site, "matlab", 2, NOW)
    stored.fails = True
    asyncio.run(history.look(NOW))
    stored.fails = False
    asyncio.run(history.look(NOW + INTERVAL))
    [[sample]] = stored.looks
    assert (sample.time, sample.outside) == (NOW + INTERVAL, 2)


def test_managers_that_report_too_many_tokens_leave_figures_that_can_be_ordered() -> None:
    """`licence_samples` orders samples by a number of 64 bits made of their tokens."""
    site, stored, history = history_of("matlab")
    used = {"matlab": ManagerLicences(total=MAX_TOKENS, used=2**63)}
    for cluster in ("left", "right"):
        site.seen(cluster, facts(8, licences=used))
    assert site.core.licences.status("matlab", NOW).outside == 2 * MAX_TOKENS
    asyncio.run(history.look(NOW))
    [[sample]] = stored.looks
    assert sample.outside == MAX_TOKENS
