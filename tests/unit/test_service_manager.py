"""What systemd is told: readiness, progress, reloads; and an environment that is hostile."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metasched.api import server
from metasched.daemon.progress import Progress
from metasched.launcher import ServiceManager


class Receiver:
    """The socket of a service manager; `lines()` are those received since the last call."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0", 1))
        self.socket.setblocking(False)

    def lines(self) -> list[str]:
        received: list[str] = []
        while True:
            try:
                received += self.socket.recv(65536).decode().split("\n")
            except BlockingIOError:
                return received


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    made = Receiver(str(tmp_path / "notify"))
    with made.socket:
        yield made


def test_variables_are_taken_out_of_the_environment() -> None:
    environment = {
        "NOTIFY_SOCKET": "/run/n",
        "WATCHDOG_USEC": "30000000",
        "WATCHDOG_PID": str(os.getpid()),
        "PATH": "/bin",
    }
    assert ServiceManager.from_environment(environment) == ServiceManager("/run/n", 30.0)
    assert environment == {"PATH": "/bin"}
    assert ServiceManager.from_environment(environment) == ServiceManager()


@pytest.mark.parametrize("address", ["", "relative", "vsock:2:1234", "/" + "a" * 107, "http://x"])
def test_addresses_that_are_none(address: str) -> None:
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"}
    assert ServiceManager.from_environment(environment) == ServiceManager()


@pytest.mark.parametrize("number", ["", "0", "-5", "1e9", "abc", "9" * 30])
def test_times_that_are_none(number: str) -> None:
    environment = {"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": number}
    assert ServiceManager.from_environment(environment).watchdog is None


def test_the_watchdog_of_another_process_is_not_ours() -> None:
    environment = {"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
    assert ServiceManager.from_environment(environment).watchdog is None


@pytest.mark.parametrize("is_abstract", [False, True])
def test_messages(tmp_path: Path, is_abstract: bool) -> None:
    address = f"@metasched-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    receiver = Receiver(address)
    with receiver.socket:
        ServiceManager(address).notify(READY="1", STATUS="well")
        assert receiver.lines() == ["READY=1", "STATUS=well"]


def test_a_text_adds_no_variable(receiver: Receiver) -> None:
    text = "away (bad\nMAINPID=1\r\n\0\u2028)" + "x" * 5000
    ServiceManager(receiver.address).notify(STATUS=text)
    (line,) = receiver.lines()
    assert line.startswith("STATUS=away (bad MAINPID=1")
    assert len(line) < 1100


def test_a_manager_that_does_not_read_never_blocks(receiver: Receiver) -> None:
    manager = ServiceManager(receiver.address)
    for _ in range(5000):  # more than its queue holds
        manager.notify(WATCHDOG="1")
    assert set(receiver.lines()) == {"WATCHDOG=1"}


def test_a_manager_that_is_gone_does_no_harm(tmp_path: Path) -> None:
    ServiceManager(str(tmp_path / "none")).notify(READY="1")
    (tmp_path / "file").touch()
    ServiceManager(str(tmp_path / "file")).notify(READY="1")
    ServiceManager().notify(READY="1")


def test_progress_needs_every_part() -> None:
    progress = Progress()
    assert not progress.take()
    progress.timers = True
    assert not progress.take()
    progress.database = True
    assert progress.take()
    assert not progress.take()
    progress.note_retry()
    assert progress.take()


class FakeDaemon:
    """As much of a daemon as is reported."""

    def __init__(self) -> None:
        self.service_runs, self.database_unavailable = asyncio.Event(), False
        self.progress, self.status_line = Progress(), "1 of 1 clusters are up"


def reported(
    receiver: Receiver, test: Callable[[FakeDaemon, SimpleNamespace], Any], watchdog: float = 0.04
) -> None:
    """Run a test beside the reports of a fake daemon with one server."""

    async def run() -> None:
        daemon, listening = FakeDaemon(), SimpleNamespace(started=False)
        manager = ServiceManager(receiver.address, watchdog)
        task = asyncio.create_task(
            server._report_to_manager(cast(Any, daemon), [cast(Any, listening)], manager)
        )
        try:
            await test(daemon, listening)
        finally:
            task.cancel()

    asyncio.run(run())


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_true():
            await asyncio.sleep(0.01)


def test_ready_once_requests_are_answered(receiver: Receiver) -> None:
    async def test(daemon: FakeDaemon, listening: SimpleNamespace) -> None:
        await asyncio.sleep(0.15)
        listening.started = True
        await asyncio.sleep(0.15)
        assert receiver.lines() == []
        daemon.service_runs.set()
        seen: list[str] = []
        while "READY=1" not in seen:
            seen += receiver.lines()
            await asyncio.sleep(0.01)
        assert seen[:2] == ["READY=1", "STATUS=1 of 1 clusters are up"]

    reported(receiver, test)


def test_ready_though_the_database_is_away(receiver: Receiver) -> None:
    async def test(daemon: FakeDaemon, listening: SimpleNamespace) -> None:
        listening.started = daemon.database_unavailable = True
        await until(lambda: "READY=1" in receiver.lines())

    reported(receiver, test)


def test_the_watchdog_hears_of_progress_alone(receiver: Receiver) -> None:
    async def test(daemon: FakeDaemon, listening: SimpleNamespace) -> None:
        listening.started = True
        daemon.service_runs.set()
        await until(lambda: "READY=1" in receiver.lines())
        daemon.progress.timers = True  # the database is not checked any more
        for _ in range(3):  # rounds
            await until(lambda: bool(receiver.lines()))
            await asyncio.sleep(0.05)
            assert "WATCHDOG=1" not in receiver.lines()
        daemon.progress.database = True
        await until(lambda: "WATCHDOG=1" in receiver.lines())

    reported(receiver, test)
