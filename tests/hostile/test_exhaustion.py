"""Clients that take all of something: descriptors, handshakes, waits, memory of answers."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import require
from tests.harness import accounts
from tests.harness.accounts import OPERATOR, A, B
from tests.hostile.test_connections import Guarded, answer_of, check_service, memory_peak

pytestmark = pytest.mark.root

DEADLINES = 'head_timeout = "2s"\nbody_timeout = "3s"\n'
FREE_DESCRIPTORS = 40  # of the daemon when the flood begins
ARRAY = 10_000  # tasks of an array; a listing of them has 3 MB
LISTINGS = 40  # of them that are requested and not read
MAX_GROWTH = 60 << 20  # bytes; without a limit they took 140 MB
ATTACKERS = (A, "metasched-test-e", "metasched-test-f", "metasched-test-g")
CONNECTIONS = 64  # of a listener; a peer has 16
MAX_WAITS = 32


@contextlib.contextmanager
def started(site: Guarded) -> Iterator[Guarded]:
    try:
        site.start()
        yield site
        site.stop()
    finally:
        site.close()


@contextlib.contextmanager
def connected(site: Guarded, account: str) -> Iterator[socket.socket]:
    """Yield a connection to the unix socket, which the kernel reports as that account's."""
    os.seteuid(pwd.getpwnam(account).pw_uid)
    try:
        connection = site.connect("AF_UNIX")
    finally:
        os.seteuid(0)
    with connection:
        yield connection


def socket_row(site: Guarded) -> dict[str, Any]:
    """Return the unix socket's row of the connections, as an operator sees them."""
    with connected(site, OPERATOR) as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        status, answer = answer_of(connection)
    assert status == 200, answer
    row: dict[str, Any] = answer["connections"][0]
    return row


def test_a_daemon_without_descriptors_serves_and_starts_workers(common_folder: Path) -> None:
    with started(Guarded(common_folder / "descriptors", DEADLINES)) as site:
        limit = psutil.Process(site.pid).num_fds() + FREE_DESCRIPTORS
        lower = ("prlimit", f"--pid={site.pid}", f"--nofile={limit}:{limit}")
        subprocess.run([*accounts.become(accounts.KEEPER), *lower], check=True)
        with site.flooded("AF_INET", A), site.flooded("AF_UNIX", A):
            site.until(lambda: "no connection can be accepted" in site.log.read_text())
            check_service(site)


def test_half_handshakes_stop_nobody(common_folder: Path) -> None:
    if shutil.which("openssl") is None:
        require("openssl", "it makes the certificate")
    folder = common_folder / "handshakes"
    site = Guarded(folder, DEADLINES, 'certificate = "cert.pem"\nkey = "state/key.pem"\n')
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    names = ("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "state/key.pem")
    subprocess.run(
        [*command.split(), *names, "-out", "cert.pem"], cwd=folder, check=True, capture_output=True
    )
    os.chown(site.state / "key.pem", pwd.getpwnam(accounts.KEEPER).pw_uid, -1)
    with started(site):
        b = site.by(B)
        token = folder / B / "token"
        b.run("token", "create", "--file", token)
        remote = {
            "METASCHED_CONFIG": "",
            "METASCHED_SOCKET": f"https://127.0.0.1:{site.port}",
            "METASCHED_TOKEN_FILE": str(token),
            "SSL_CERT_FILE": str(folder / "cert.pem"),
        }
        with site.flooded("AF_INET", A, "hello"):
            job = b.submit("-o", "/dev/null", "--wrap", "true")
            assert b.until_ended(job)[0]["state"] == "completed"
            # of the many that shake hands from the same address the oldest make room
            site.until(lambda: b.run("status", str(job), env=remote).stdout)


def test_answers_that_nobody_reads_are_bounded(common_folder: Path) -> None:
    with started(Guarded(common_folder / "unread", DEADLINES)) as site:
        options = ("--hold", "--array", f"1-{ARRAY}", "-o", "/dev/null", "--wrap", "true")
        site.by(A).submit(*options)
        before = memory_peak(site.pid)
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(connected(site, A)) for _ in range(LISTINGS)]
            for client in clients:
                client.sendall(b"GET /jobs HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
            b = site.by(B)
            job = b.submit("-o", "/dev/null", "--wrap", "true")
            assert b.until_ended(job)[0]["state"] == "completed"
            expired = f"uid {pwd.getpwnam(A).pw_uid}: no end of the response in 3 s"
            site.until(lambda: site.log.read_text().count(expired) >= 2)
        assert memory_peak(site.pid) - before < MAX_GROWTH


def test_four_accounts_that_wait_leave_room_for_others(common_folder: Path) -> None:
    accounts.make(*ATTACKERS)
    site = Guarded(common_folder / "waits", f"connections = {CONNECTIONS}\n")
    with started(site), contextlib.ExitStack() as stack:
        for account in ATTACKERS:
            job = site.by(account).submit("--hold", "-o", "/dev/null", "--wrap", "true")
            for _ in range(CONNECTIONS // len(ATTACKERS)):
                client = stack.enter_context(connected(site, account))
                client.sendall(
                    f"GET /jobs/wait?job={job}&timeout=60 HTTP/1.1\r\nHost: x\r\n\r\n".encode()
                )
        b = site.by(B)
        assert b.run("clusters").stdout
        job = b.submit("-o", "/dev/null", "--wrap", "sleep 2")
        b.run("wait", str(job))
        assert b.row(job)["state"] == "completed"
        row = socket_row(site)
        assert row["refused"]["waiting"] > 0
        assert row["waiting"] <= row["waiting_limit"] == MAX_WAITS
