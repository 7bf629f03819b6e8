"""Credentials of a client on another host."""

from __future__ import annotations

from pathlib import Path

import pytest

from metasched.client.client import Client
from metasched.client.credentials import NoCredential, is_loopback

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
