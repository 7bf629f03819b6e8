"""The size of the database, while scrapes are many and the database is slow."""

from __future__ import annotations

import asyncio
import threading
from unittest.mock import patch

from metasched.daemon import database_size
from metasched.daemon.database_size import DatabaseSize, Size
from metasched.db.store import StorageFailed


class Disk:
    """A database that counts its measurements."""

    def __init__(self) -> None:
        self.calls = 0
        self.error: Exception | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()

    def measure(self) -> Size:
        self.calls += 1
        self.may_answer.wait(60)
        if self.error is not None:
            raise self.error
        return Size(self.calls, None)


def test_many_readers_measure_once_a_minute() -> None:
    disk = Disk()

    async def run() -> None:
        size = DatabaseSize(disk.measure)
        assert await asyncio.gather(*(size.read() for _ in range(50))) == [Size(1, None)] * 50
        assert await size.read() == Size(1, None)
        with patch.object(database_size, "LIFETIME", 0.0):
            assert await size.read() == Size(2, None)
        assert await size.read() == Size(2, None)

    asyncio.run(run())
    assert disk.calls == 2


def test_a_failed_measurement_is_not_repeated_by_each_reader() -> None:
    disk = Disk()

    async def run() -> None:
        size = DatabaseSize(disk.measure)
        for error in (StorageFailed("away"), OSError("gone")):
            disk.error = error
            with patch.object(database_size, "LIFETIME", 0.0):
                assert await size.read() is None
            assert await size.read() is None

    asyncio.run(run())
    assert disk.calls == 2


def test_a_database_that_hangs_is_asked_once_and_the_last_size_stays() -> None:
    disk = Disk()

    async def run() -> None:
        size = DatabaseSize(disk.measure)
        await size.read()
        disk.may_answer.clear()
        with (
            patch.object(database_size, "LIFETIME", 0.0),
            patch.object(database_size, "PATIENCE", 0.01),
        ):
            assert [await size.read() for _ in range(3)] == [Size(1, None)] * 3
        disk.may_answer.set()
        assert await size.read() == Size(2, None)

    asyncio.run(run())
    assert disk.calls == 2
