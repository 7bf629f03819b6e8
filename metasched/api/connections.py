"""Open connections of a listener, and whose is closed for a newcomer.

A peer is an account on the unix socket. Over TCP it is an address until a request is authenticated,
then the user. A client sends its request at once. So the oldest connection that still receives a
request is closed for a newcomer: first of the same peer, else of the peer with most connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct
from collections import defaultdict

PEER_SHARE = 4  # a peer may have a quarter of a listener's connections


class Connection:
    """An accepted connection."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.uid = _uid_of(accepted)  # of the process at the other end; None over TCP
        self.peer = _address_of(accepted) if self.uid is None else f"uid {self.uid}"
        self.is_receiving = True  # waits for the rest of a request
        self.transport: asyncio.Transport | None = None  # None during a TLS handshake

    def abort(self) -> None:
        """Close the connection; what is not sent yet is lost."""
        if self.transport is not None:
            self.transport.abort()
        else:
            with contextlib.suppress(OSError):  # closed by the other end
                self.socket.shutdown(socket.SHUT_RDWR)


def _uid_of(connection: socket.socket) -> int | None:
    if connection.family != socket.AF_UNIX:
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    uid: int = struct.unpack("iII", credentials)[1]
    return uid


def _address_of(connection: socket.socket) -> str:
    """Return the address of the other end; of IPv6 the network, since a host has many addresses."""
    try:
        address = ipaddress.ip_address(connection.getpeername()[0].partition("%")[0])
    except OSError:  # closed by the other end
        return "unknown address"
    address = getattr(address, "ipv4_mapped", None) or address
    if address.version == 4 or address.is_loopback:
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False))


class OpenConnections:
    """The open connections of a listener, at most `limit`, of a peer at most `peer_limit`."""

    def __init__(self, limit: int) -> None:
        self.limit, self.peer_limit = limit, max(limit // PEER_SHARE, 1)
        self._by_peer: defaultdict[str, dict[Connection, None]] = defaultdict(dict)  # oldest first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def admit(self, connection: Connection) -> bool:
        """Add a connection, if necessary in place of another. False if there is no room."""
        if not self._make_room_of(connection.peer):
            return False
        if self._count >= self.limit and not any(map(self._close_oldest, self._largest_first())):
            return False
        self._by_peer[connection.peer][connection] = None
        self._count += 1
        return True

    def assign(self, connection: Connection, peer: str) -> bool:
        """Count a connection for another peer from now on. False if that has no room."""
        if connection.peer == peer or connection not in self._by_peer.get(connection.peer, ()):
            return True
        if not self._make_room_of(peer):
            return False
        self.remove(connection)
        connection.peer = peer
        self._by_peer[peer][connection] = None
        self._count += 1
        return True

    def remove(self, connection: Connection) -> None:
        """Remove a connection that is closed. One that was removed already is ignored."""
        own = self._by_peer.get(connection.peer, {})
        if connection in own:
            del own[connection]
            self._count -= 1
            if not own:
                del self._by_peer[connection.peer]

    def _make_room_of(self, peer: str) -> bool:
        return len(self._by_peer.get(peer, ())) < self.peer_limit or self._close_oldest(peer)

    def _largest_first(self) -> list[str]:
        return sorted(self._by_peer, key=lambda peer: -len(self._by_peer[peer]))

    def _close_oldest(self, peer: str) -> bool:
        """Close the oldest connection of a peer that receives a request. False if none does."""
        oldest = next((c for c in self._by_peer[peer] if c.is_receiving), None)
        if oldest is None:
            return False
        self.remove(oldest)
        oldest.abort()
        return True
