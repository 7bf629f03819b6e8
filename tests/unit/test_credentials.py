"""Credentials of a client on another host."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from metasched.adapters.base import Submission
from metasched.client.client import Client
from metasched.client.credentials import NoCredential, credentials, is_loopback
from metasched.client.job_daemon import JobDaemon, job_variables
from metasched.model.job import Job, Payload
from metasched.paths import JOB_TOKEN_VARIABLE

SECRET = "a-token"


@pytest.fixture
def token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(SECRET)
    monkeypatch.setenv("METASCHED_TOKEN_FILE", str(path))
    return path


@pytest.mark.parametrize("host", ["daemon.example.org", "127.example.org", "10.127.0.1"])
def test_a_token_is_not_sent_in_clear_text(
    host: str, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: object) -> None:
        pytest.fail("the client connected, although it may not send its token")

    monkeypatch.setattr("socket.create_connection", connect)
    with pytest.raises(NoCredential) as error:
        Client(f"http://{host}:7410").jobs()
    assert host in str(error.value)
    assert "https" in str(error.value)
    assert str(token_file) in str(error.value)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("127.0.0.1.example.org", False),
        ("localhost.example.org", False),
        ("0.0.0.0", False),
    ],
)
def test_only_names_of_this_host_are_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_a_fifo_in_the_place_of_a_token_keeps_no_command_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    os.mkfifo(path, 0o600)
    monkeypatch.setenv("METASCHED_TOKEN_FILE", str(path))
    with pytest.raises(NoCredential, match="no regular file"):
        next(credentials("daemon:7410", "GET", "/", b"", private=True, in_job=False))


def test_a_job_has_not_the_token_of_the_job_that_submitted_it() -> None:
    submission = Submission(
        tag="ms-cafe-17-1",
        job=Job(id=17, submitted=0.0, estimated=1.0),
        payload=Payload(script="", environment={JOB_TOKEN_VARIABLE: "/tmp/metasched.x/token"}),
        daemon_variables=job_variables("https://daemon:7410", "", 17, "/run/ms.sock"),
    )
    assert submission.environment(0, "north")[JOB_TOKEN_VARIABLE] == ""


def test_a_listener_of_another_account_keeps_no_command_waiting(tmp_path: Path) -> None:
    """Its queue of connections is full, and it accepts none."""
    path = tmp_path / "ms.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(path))
        listener.listen(0)
        waiting.connect(str(path))
        begun = time.monotonic()
        assert JobDaemon("", os.getuid() + 1, str(path)).connect(timeout=20.0) is None
        assert time.monotonic() - begun < 10.0
        listener.accept()[0].close()
        own = JobDaemon("", os.getuid(), str(path)).connect(timeout=20.0)
        assert own is not None
        own.close()
    assert JobDaemon("", os.getuid(), str(tmp_path / "none")).connect(timeout=20.0) is None
