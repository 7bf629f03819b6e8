"""The daemon that a command calls."""

from __future__ import annotations

from metasched.client.address import find_daemon
from metasched.client.client import Client


def connect(config: str | None) -> Client:
    """Return a client of the daemon that configuration, environment or default path name."""
    return Client(find_daemon(config))
