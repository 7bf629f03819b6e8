"""The probe of the database that health reports: one read for all callers, none for too long."""

from __future__ import annotations

import asyncio
import threading

import pytest

from metasched.daemon import database_probe
from metasched.daemon.database_probe import DatabaseProbe
from metasched.db.store import StorageFailed


class FakeDatabase:
    """Counts its reads; they fail, or wait until `answers` is set."""

    def __init__(self) -> None:
        self.reads = 0
        self.error: StorageFailed | None = None
        self.answers = threading.Event()
        self.answers.set()

    def read(self) -> None:
        self.reads += 1
        assert self.answers.wait(60)
        if self.error is not None:
            raise self.error


def test_callers_share_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_probe, "PROBE_LIFETIME", 3600.0)
    database = FakeDatabase()

    async def check_often() -> None:
        probe = DatabaseProbe(database.read)
        await asyncio.gather(*(probe.check() for _ in range(100)))
        await probe.check()

    asyncio.run(check_often())
    assert database.reads == 1


def test_an_answer_counts_for_a_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_probe, "PROBE_LIFETIME", -1.0)
    database = FakeDatabase()

    async def check_twice() -> None:
        probe = DatabaseProbe(database.read)
        await probe.check()
        database.error = StorageFailed("connection refused")
        with pytest.raises(StorageFailed, match="connection refused"):
            await probe.check()

    asyncio.run(check_twice())


def test_no_earlier_answer_counts_after_a_request_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_probe, "PROBE_LIFETIME", 3600.0)
    database = FakeDatabase()

    async def check_after_failure() -> None:
        probe = DatabaseProbe(database.read)
        await probe.check()
        database.error = StorageFailed("connection refused")
        await probe.check()
        probe.forget_answer()
        for _ in range(2):
            with pytest.raises(StorageFailed, match="connection refused"):
                await probe.check()

    asyncio.run(check_after_failure())
    assert database.reads == 2


def test_a_hung_database_is_reported_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that fail meanwhile start no further read."""
    monkeypatch.setattr(database_probe, "PROBE_TIMEOUT", 0.05)
    monkeypatch.setattr(database_probe, "PROBE_LIFETIME", -1.0)
    database = FakeDatabase()

    async def check_hung() -> None:
        probe = DatabaseProbe(database.read)
        database.answers.clear()
        for _ in range(3):
            with pytest.raises(StorageFailed, match=r"no answer in 0\.05 s"):
                await probe.check()
            probe.forget_answer()
        assert database.reads == 1
        database.answers.set()
        monkeypatch.setattr(database_probe, "PROBE_TIMEOUT", 60.0)
        await probe.check()

    asyncio.run(check_hung())
