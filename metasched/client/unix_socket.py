"""A connection to a daemon on this host."""

from __future__ import annotations

import socket
import struct


def connect_unix(path: str, timeout: float) -> socket.socket:
    """Connect to a unix socket; `timeout` is in seconds. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    seconds, fraction = divmod(timeout, 1)
    limit = struct.pack("@ll", int(seconds), int(fraction * 1e6))
    try:
        # a socket with a timeout would not wait for a daemon that has many callers
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        connection.connect(path)
        connection.settimeout(timeout)
    except OSError:
        connection.close()
        raise
    return connection


def peer_uid(connection: socket.socket) -> int:
    """Return the user id of the listener of a unix socket, as the kernel reports it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("iII", credentials)[1])
