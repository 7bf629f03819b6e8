"""Half requests, slow requests and huge bodies of an account: other accounts are served."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import Site
from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite
from tests.harness.accounts import A, B
from tests.harness.ports import free_port
from tests.harness.reaper import dying_with
from tests.harness.root_launcher import PYTHON

pytestmark = pytest.mark.root

HALF_REQUESTS = 1100
DESCRIPTORS = 1024  # of the daemon: fewer than the attacker has
MAX_LOG_BYTES = 100_000
CLUSTER = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 4\npoll_interval = 0.2\n'
NESTED_LISTS = b'{"jobs":[' + b"[]," * 2_700_000 + b"[]]}"  # 8.1 MB, below the limit
MAX_GROWTH = 120 << 20  # bytes of memory for such a body; decoding it took 367 MB


class Guarded(MultiUserSite):
    """A site with a TCP port, whose daemon has few descriptors."""

    def __init__(self, folder: Path, limits: str = "", tls: str = "") -> None:
        """`limits` are keys of [daemon], `tls` keys of [tcp]."""
        super().__init__(folder)
        self.before = ("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}", *self.before)
        self.port = free_port()
        self.socket = self.state / "ms.sock"
        tcp = f'[tcp]\nlisten = "127.0.0.1:{self.port}"\n{tls}'
        self.set_up(CLUSTER, f"[cluster.left]\n{SUPERVISE}", extra=tcp)
        head, table, settings = self.config.read_text().partition("[daemon]\n")
        self.config.write_text(head + table + limits + settings)

    def connect(self, family: str) -> socket.socket:
        """Connect to a listener of the daemon, as this process' account."""
        connection = socket.socket(getattr(socket, family), socket.SOCK_STREAM)
        connection.settimeout(60)
        connection.connect(str(self.socket) if family == "AF_UNIX" else ("127.0.0.1", self.port))
        return connection

    def address_of(self, family: str) -> list[str]:
        return [str(self.socket)] if family == "AF_UNIX" else ["127.0.0.1", str(self.port)]

    @contextmanager
    def flooded(
        self, family: str, account: str, start: str = "head"
    ) -> Iterator[subprocess.Popen[str]]:
        """Hold `HALF_REQUESTS` half requests of an account open for the time of the block."""
        script = (Path(__file__).parent / "flood.py").read_text()
        # root raises the limit before it switches to the account
        command = [
            *("prlimit", "--nofile=4096:4096"),
            *("setpriv", f"--reuid={account}", f"--regid={account}", "--init-groups"),
            *(PYTHON, "-c", script, str(HALF_REQUESTS), family, start, *self.address_of(family)),
        ]
        flood = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, preexec_fn=dying_with(os.getpid())
        )
        assert flood.stdout is not None
        try:
            assert int(flood.stdout.readline()) == HALF_REQUESTS
            yield flood
            assert flood.poll() is None
        finally:
            flood.kill()
            flood.communicate()

    def worker(self) -> psutil.Process:
        [worker] = [
            child
            for child in psutil.Process(self.pid).children(recursive=True)
            if "metasched.adapters.worker" in child.cmdline()
        ]
        return worker


@pytest.fixture(scope="module")
def site(common_folder: Path) -> Iterator[Guarded]:
    guarded = Guarded(common_folder / "connections", 'head_timeout = "2s"\nbody_timeout = "3s"\n')
    try:
        guarded.start()
        yield guarded
        guarded.stop()
    finally:
        guarded.close()


def check_service(site: Guarded) -> None:
    """An account's jobs run, and a worker that dies is replaced."""
    b = site.by(B)
    assert b.until_ended(b.submit("-o", "/dev/null", "--wrap", "true"))[0]["state"] == "completed"
    old = site.worker()
    old.send_signal(signal.SIGKILL)
    b.until(lambda: old not in psutil.Process(site.pid).children(recursive=True))
    assert b.until_ended(b.submit("-o", "/dev/null", "--wrap", "true"))[0]["state"] == "completed"
    assert site.worker().pid != old.pid


@pytest.mark.parametrize("family", ["AF_UNIX", "AF_INET"])
def test_half_requests_of_an_account_stop_no_other(site: Guarded, family: str) -> None:
    before = site.log.stat().st_size
    with site.flooded(family, A):
        check_service(site)
    assert site.log.stat().st_size - before < MAX_LOG_BYTES, site.log_tail()


def test_users_of_a_host_are_served_while_it_is_flooding(site: Guarded) -> None:
    """A complete request with a token takes the place of half requests."""
    token = site.folder / B / "token"
    site.by(B).run("token", "create", "--file", token)
    remote = {
        "METASCHED_CONFIG": "",
        "METASCHED_SOCKET": f"http://127.0.0.1:{site.port}",
        "METASCHED_TOKEN_FILE": str(token),
    }
    with site.flooded("AF_INET", A):
        arguments = ("submit", "--parsable", "-o", "/dev/null", "--wrap", "true")
        job = int(site.by(B).run(*arguments, env=remote).stdout)
        site.by(B).run("wait", str(job), env=remote)
    assert site.by(B).row(job)["state"] == "completed"


@pytest.mark.parametrize("family", ["AF_UNIX", "AF_INET"])
@pytest.mark.parametrize(
    "part",
    [
        pytest.param(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Padding: ", id="head"),
        pytest.param(b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", id="body"),
    ],
)
def test_a_request_that_comes_byte_by_byte_is_cut(site: Guarded, family: str, part: bytes) -> None:
    with site.connect(family) as connection:
        connection.sendall(part)
        connection.settimeout(0.2)
        for _ in range(150):  # thirty seconds, ten times the deadline
            try:
                connection.sendall(b"x")
                if not connection.recv(1 << 16):
                    break
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                break
        else:
            pytest.fail("the connection is still open")


def test_a_long_poll_outlives_the_deadlines_of_requests(site: Guarded) -> None:
    b = site.by(B)
    job = b.submit("-o", "/dev/null", "--wrap", "sleep 6")
    b.run("wait", str(job))
    assert b.row(job)["state"] == "completed"


def request(path: str, length: int, credential: str = "") -> bytes:
    return (
        f"POST {path} HTTP/1.0\r\nContent-Type: application/json\r\n{credential}"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def answer_of(connection: socket.socket) -> tuple[int, Any]:
    answer = bytearray()
    with contextlib.suppress(ConnectionResetError):  # the daemon did not read all of the request
        while part := connection.recv(1 << 16):
            answer += part
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(content)


def test_a_body_without_credential_is_not_read(site: Guarded) -> None:
    with site.connect("AF_INET") as connection:
        connection.sendall(request("/jobs", len(NESTED_LISTS)))
        status, answer = answer_of(connection)  # though nothing of the body was sent
    assert (status, "no credential" in answer["error"]) == (401, True)
    forged = "Authorization: Bearer forged\r\n"
    before = memory_peak(site.pid)
    with site.connect("AF_INET") as connection:
        connection.sendall(request("/jobs", len(NESTED_LISTS), forged))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(NESTED_LISTS)
        assert answer_of(connection)[0] == 401
    assert memory_peak(site.pid) - before < 4 << 20
    log = site.log.read_text()
    assert 'credential_refused cause="no credential' in log
    assert 'credential_refused cause="the token is unknown' in log
    assert log.count("peer=127.0.0.1") == 2


def memory_peak(pid: int) -> int:
    """Return the peak memory of a process, bytes."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) << 10


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/jobs", NESTED_LISTS, 422),
        ("/jobs", b"[" * 5_000_000, 422),
        ("/jobs", b'{"environments":' + b'{"a":' * 1_600_000, 422),
        ("/jobs", b'{"unknown":' * 700_000, 422),
        ("/jobs/cancel", NESTED_LISTS[: 1 << 20], 400),
        ("/jobs/cancel", b"[" * 900, 422),
        ("/jobs/cancel", NESTED_LISTS, 413),
        ("/reservations", b"[" * 2_000_000, 400),
    ],
    ids=["wide", "deep", "deep object", "unknown", "other", "brackets", "large", "reservation"],
)
def test_a_nested_body_is_refused_at_little_cost(
    site: Guarded, path: str, body: bytes, status: int
) -> None:
    before = memory_peak(site.pid)
    with site.connect("AF_UNIX") as connection:
        connection.sendall(request(path, len(body)))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(body)
        answer_status, answer = answer_of(connection)
    assert answer_status == status, answer
    assert answer["error"].count("\n") == 0
    assert memory_peak(site.pid) - before < MAX_GROWTH


def test_jobs_have_the_limit_with_which_the_daemon_was_started(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.before = ("prlimit", "--nofile=1000:4000")
    site.configure(CLUSTER)
    try:
        site.start()
        output = tmp_path / "limits"
        job = site.submit("-o", output, "--wrap", "ulimit -Sn; ulimit -Hn")
        assert site.until_ended(job)[0]["state"] == "completed"
        assert psutil.Process(site.pid).rlimit(psutil.RLIMIT_NOFILE) == (1288, 4000)
        assert output.read_text() == "1000\n4000\n"
        site.stop()
    finally:
        site.close()
