"""The names of the daemon for clients of other hosts."""

from __future__ import annotations

import ipaddress
import socket
from functools import cache

from metasched.client.credentials import daemon_name
from metasched.config.tables import TcpTable


def accepted_daemon_names(tcp: TcpTable, address: str, port: int) -> list[str]:
    """Return the names that clients may use for this daemon.

    These are the configured names, the names of this host and the address of the connection.
    `localhost` is accepted only over a loopback connection, since every host has that name.
    """
    reached = ipaddress.ip_address(address)
    reached = getattr(reached, "ipv4_mapped", None) or reached
    hosts = (*_host_names(), str(reached), *(["localhost"] if reached.is_loopback else []))
    local_names = (daemon_name(host, port) for host in hosts)
    return list(dict.fromkeys((*map(str.lower, tcp.names), *local_names)))


@cache  # the call may query a name server
def _host_names() -> list[str]:
    return [name for name in (socket.getfqdn(), socket.gethostname()) if name != "localhost"]
