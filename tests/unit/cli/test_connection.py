"""Answers of the daemon that are errors, broken, late or missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from metasched.client.client import Client
from metasched.client.connection import DaemonUnreachable, PermissionDenied, ResponseLost
from metasched.paths import personal_socket
from tests.unit.cli.fake_daemon import FakeDaemon, Run


@pytest.mark.parametrize(
    ("status", "code"), [(400, 2), (422, 2), (403, 3), (404, 5), (409, 1), (503, 4), (500, 1)]
)
def test_exit_code_by_http_status(daemon: FakeDaemon, run: Run, status: int, code: int) -> None:
    for path in ("/jobs", "/jobs/details"):
        daemon.answer(path, (status, {"error": "problem, place; remedy"}))
    for arguments in (["status"], ["submit", "--wrap", "x"]):
        done = run(*arguments)
        assert (done.code, done.out) == (code, "")
        assert done.err == "metasched: error: problem, place; remedy\n"


@pytest.mark.parametrize("protocol", ["1", "", "x"])
def test_an_error_of_an_earlier_daemon_names_the_remedy(
    daemon: FakeDaemon, run: Run, protocol: str
) -> None:
    daemon.protocol = protocol
    remedy = ", by a daemon of an earlier release; use the commands of its release"
    for status, problem in (
        (422, "unknown field, body"),
        (405, "Method Not Allowed: GET /jobs"),
        (404, "Not Found: GET /jobs"),
    ):
        daemon.answer("/jobs/details", (status, {"error": f"{problem}; see /docs"}))
        assert run("status").err == f"metasched: error: {problem}{remedy}\n"
    daemon.answer("/jobs/details", (404, {"error": "no job 7; see status"}))
    assert run("status").err == "metasched: error: no job 7; see status\n"


def test_an_error_response_without_a_message(daemon: FakeDaemon, run: Run) -> None:
    daemon.answer("/jobs/details", (502, ["?"]))
    done = run("status")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "status 502" in done.err


def test_no_daemon(run: Run) -> None:
    for arguments in (["status"], ["submit", "--wrap", "x"]):
        done = run(*arguments)
        assert (done.code, done.out) == (4, "")
        assert str(personal_socket()) in done.err
        assert "start it with `metasched serve`" in done.err


def test_a_socket_without_a_daemon(home: Path) -> None:
    (home / "file").touch()
    with pytest.raises(DaemonUnreachable, match="no daemon answers"):
        Client(home / "file").health()


@pytest.mark.skipif(os.getuid() == 0, reason="root may connect to every socket")
def test_a_socket_of_another_user(daemon: FakeDaemon) -> None:
    daemon.path.chmod(0)
    with pytest.raises(PermissionDenied, match="belongs to another user"):
        Client(daemon.path).health()


def test_a_path_too_long_for_a_socket(daemon: FakeDaemon, run: Run) -> None:
    os.environ["METASCHED_SOCKET"] = "/tmp/" + "x" * 103
    done = run("status")
    assert (done.code, done.err.count("\n")) == (4, 1)
    assert "more than 107 bytes" in done.err
    Client("/tmp/" + "x" * 102)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[}",
        b"SSH-2.0-OpenSSH\r\n",
        {"rows": 1},
        [1],
    ],
)
def test_an_incomplete_response(daemon: FakeDaemon, run: Run, answer: object) -> None:
    for path in ("/jobs", "/jobs/details"):
        daemon.answer(path, answer)
    for arguments in (["status"], ["submit", "--wrap", "x"]):
        done = run(*arguments)
        assert (done.code, done.out) == (1, "")
        assert done.err.count("\n") == 1
        assert "Traceback" not in done.err


def test_a_response_that_times_out(daemon: FakeDaemon) -> None:
    daemon.answer("/health", None)
    with pytest.raises(ResponseLost, match=r"no answer in 0\.1 s"):
        Client(daemon.path, timeout=0.1).health()
