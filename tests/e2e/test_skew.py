"""Client, daemon, launcher and worker of different releases work together or give one error."""

from __future__ import annotations

import socket

from metasched.paths import API_PROTOCOL, PROTOCOL_HEADER
from tests.e2e.conftest import Site


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
