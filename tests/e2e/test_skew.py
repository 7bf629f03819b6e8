"""Client, daemon, launcher and worker of different releases work together or give one error."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metasched.adapters.protocol import WORKER_PROTOCOL
from metasched.launcher import PROTOCOL
from metasched.paths import API_PROTOCOL, PROTOCOL_HEADER
from metasched.version import RELEASE
from tests.e2e.conftest import ONE_LOCAL, Site
from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite
from tests.harness.accounts import KEEPER, A
from tests.harness.root_launcher import RootLauncher, launcher_of


def answer_to(site: Site, head: str) -> str:
    """Return the daemon's response to a request with this head."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(site.folder / "ms.sock"))
        connection.sendall(f"{head}\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()


def test_a_command_of_a_later_release_is_refused_in_one_line(running: Site) -> None:
    header = f"{PROTOCOL_HEADER}: {API_PROTOCOL}".lower()
    for path in ("/health", "/clusters"):
        response = answer_to(running, f"GET {path} HTTP/1.0\r\n{header}")
        assert response.startswith("HTTP/1.1 200 ")
        assert header in response.lower()
    response = answer_to(running, f"GET /health HTTP/1.0\r\n{PROTOCOL_HEADER}: {API_PROTOCOL + 1}")
    assert response.startswith("HTTP/1.1 400 ")
    assert "of a later release than the daemon (API 3, the daemon's 2); use the com" in response
    for invalid in ("x", "-1", "1" * 5000):
        response = answer_to(running, f"GET /health HTTP/1.0\r\n{PROTOCOL_HEADER}: {invalid}")
        assert response.startswith("HTTP/1.1 400 ")


@pytest.mark.parametrize("other", [WORKER_PROTOCOL - 1, WORKER_PROTOCOL + 1])
def test_a_worker_of_another_release_is_reported_with_the_remedy(
    site: Site, tmp_path: Path, other: int
) -> None:
    """A cluster may have a Python of its own, which needs the daemon's release."""
    python = tmp_path / "python"
    start = (
        "import runpy; from metasched.adapters import protocol; "
        f"protocol.WORKER_PROTOCOL = {other}; runpy.run_module('metasched.adapters.worker', "
        "run_name='__main__')"
    )
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -c "{start}"\n')
    python.chmod(0o755)
    site.configure(f'{ONE_LOCAL}python = "{python}"\n')
    site.launch()
    remedy = f" before its first answer; install metasched {RELEASE} for {python}"
    site.until(lambda: remedy in site.cluster_rows()[0]["state"])
    job = site.submit("--wrap", "true")
    assert site.row(job)["state"] == "queued"
    line = f"here: the daemon has protocol {WORKER_PROTOCOL}, this worker {other}"
    assert f"metasched: error: {line}; " in site.log.read_text()


@pytest.fixture
def multi_user(common_folder: Path) -> Iterator[MultiUserSite]:
    number = len(os.listdir(common_folder))
    new_site = MultiUserSite(common_folder / f"skewed-{number}")
    try:
        yield new_site
    finally:
        new_site.close()


@pytest.mark.root
@pytest.mark.parametrize("other", [PROTOCOL - 1, PROTOCOL + 1])
def test_a_launcher_of_another_protocol_closes_the_cluster(
    multi_user: MultiUserSite, other: int
) -> None:
    site = multi_user
    site.launcher.program = str(launcher_of(other, site.folder))
    site.set_up(ONE_LOCAL, f"[cluster.here]\n{SUPERVISE}")
    site.start("down:")
    line = (
        f"the launcher has protocol {other}, this daemon {PROTOCOL}; install the same release of "
        "both, then restart metasched-launcher.service and metasched.service"
    )
    site.until(lambda: line in site.cluster_rows()[0]["state"])
    a = site.by(A)
    assert line in a.error("submit", "--wrap", "true", code=4)
    findings = site.by(KEEPER).run("doctor", code=1).stdout
    assert line in " ".join(findings.split())
    refusal = f"the daemon has protocol {PROTOCOL}, this launcher {other}; install the same release"
    assert refusal in site.launcher.log.read_text()
    site.launcher.kill()
    site.launcher.program = RootLauncher.program
    site.launcher.start()
    site.until(lambda: site.cluster_rows()[0]["state"] == "up")
    job = a.submit("-t", "5", "-o", "/dev/null", "--wrap", "true")
    assert a.until_ended(job)[0]["state"] == "completed"
