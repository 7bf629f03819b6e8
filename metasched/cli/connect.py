"""The daemon that a command calls."""

from __future__ import annotations

from metasched.client.address import check_daemon, find_daemon
from metasched.client.client import Client
from metasched.paths import personal_socket


def connect(config: str | None) -> Client:
    """Return a client of the daemon that configuration, environment or default path name.

    UserError under sudo if the environment names it, in a place that others may change.
    """
    return Client(daemon_address(config))


def daemon_address(config: str | None = None) -> str:
    """Return the address of that daemon; errors as `connect`."""
    address = find_daemon(config)
    # sudo permits a command line; of an address that is not there, the environment decides
    if not config or address == personal_socket():
        check_daemon(address)
    return address
