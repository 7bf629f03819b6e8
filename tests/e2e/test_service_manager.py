"""A real daemon tells a service manager what it does, and hides the manager from its jobs."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Site


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of the manager of the daemons that this test starts."""
    address = f"\0metasched-{os.getpid()}-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{address[1:]}")
        monkeypatch.setenv("WATCHDOG_USEC", "4000000")
        yield receiver


def received_until(manager: socket.socket, line: str) -> list[str]:
    """Return the lines received up to one."""
    lines: list[str] = []
    while line not in lines:
        lines += manager.recv(65536).decode().split("\n")
    return lines


def test_a_daemon_reports_to_its_manager(manager: socket.socket, site: Site) -> None:
    site.launch()
    started = received_until(manager, "READY=1")
    assert started[0] == "STATUS=waits for the database"
    assert site.json("clusters")  # the socket serves
    if "WATCHDOG=1" not in received_until(manager, "STATUS=2 of 2 clusters are up"):
        received_until(manager, "WATCHDOG=1")
    inherited = [worker.environ() for worker in site.workers]
    assert len(inherited) == 2
    assert not any({"NOTIFY_SOCKET", "WATCHDOG_USEC"} & set(names) for names in inherited)

    os.kill(site.pid, signal.SIGHUP)
    reloading = received_until(manager, "STATUS=reloaded")
    position = reloading.index("RELOADING=1")
    assert int(reloading[position + 1].removeprefix("MONOTONIC_USEC=")) > 0
    assert "READY=1" in reloading[position:]

    site.config.write_text(site.config.read_text() + "[nonsense]\n")
    os.kill(site.pid, signal.SIGHUP)
    refused = received_until(manager, "READY=1")
    assert any(line.startswith("STATUS=reload refused: unknown") for line in refused), refused
    assert site.stop() == 0
    assert "STOPPING=1" in received_until(manager, "STOPPING=1")
