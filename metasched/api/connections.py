"""Open connections of a listener, and whose is closed for a newcomer.

A peer is an account on the unix socket. Over TCP it is an address until a request is authenticated,
then the user. A client sends its request at once. So the oldest connection that still receives a
request is closed for a newcomer: first of the same peer, else of the peer with most connections.

A request that waits for the end of jobs takes nothing but its connection, for a minute. So half of
the connections are kept for other requests, and users share the other half.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from enum import StrEnum

from metasched.errors import ApiError

PEER_SHARE = 4  # a peer may have a quarter of a listener's connections
WAITING_SHARE = 2  # half of a listener's connections may wait for the end of jobs
MIN_LIMIT = 8  # connections of a listener that is short of file descriptors


class Refusal(StrEnum):
    """Why a connection was closed or a request refused; the daemon counts each kind."""

    PEER_FULL = "peer_full"  # the peer has its share of connections, and all are served
    LISTENER_FULL = "listener_full"  # all connections are served
    REPLACED = "replaced"  # closed for a newer connection before its request was complete
    NO_DESCRIPTOR = "no_descriptor"  # the process or the host had no file descriptor left
    HANDSHAKE = "handshake"  # TLS failed, or took too long
    HEAD = "head"  # the head of the request took too long
    BODY = "body"  # so did its body
    RESPONSE = "response"  # the client did not read its response in time
    CREDENTIAL = "credential"  # no valid credential, or an account that may not call
    SIZE = "size"  # the body was too large or too deep
    MEMORY = "memory"  # too many large bodies at the same time
    WAITING = "waiting"  # too many requests wait for the end of jobs


class Connection:
    """An accepted connection."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.uid = _uid_of(accepted)  # of the process at the other end; None over TCP
        self.peer = _address_of(accepted) if self.uid is None else f"uid {self.uid}"
        self.is_receiving = True  # waits for the rest of a request
        self.is_closed = False
        self.transport: asyncio.Transport | None = None  # None during a TLS handshake

    def abort(self) -> None:
        """Close the connection; unsent data are lost."""
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


class Wait:
    """A request that waits for the end of jobs."""

    def __init__(self) -> None:
        self.is_over = False  # it is to be answered now: another user has fewer of them
        self.timeout: asyncio.Timeout | None = None  # of the present or last pause

    def end(self) -> None:
        """Make the request be answered at once."""
        self.is_over = True
        if self.timeout is not None:
            with contextlib.suppress(RuntimeError):  # the pause has ended by itself
                self.timeout.reschedule(0)


class OpenConnections:
    """The open connections of a listener, at most `limit`, of a peer at most `peer_limit`."""

    def __init__(self, address: str, limit: int, *, is_proxy: bool = False) -> None:
        self.address = address  # of the listener, for reports
        self.is_proxy = is_proxy  # whether the listener is for a reverse proxy, which names users
        self.refusals: Counter[Refusal] = Counter()  # since the start of the daemon
        self._by_peer: defaultdict[str, dict[Connection, None]] = defaultdict(dict)  # oldest first
        self._count = 0
        self._waits: defaultdict[str, dict[Wait, None]] = defaultdict(dict)  # by user, oldest first
        self._set_limit(limit)

    def _set_limit(self, limit: int) -> None:
        self.limit, self.peer_limit = limit, max(limit // PEER_SHARE, 1)
        self.wait_limit = max(limit // WAITING_SHARE, 1)

    def __len__(self) -> int:
        return self._count

    def admit(self, connection: Connection) -> bool:
        """Add a connection, if necessary in place of another. False if there is no room."""
        if not self._make_room_of(connection.peer):
            return False
        if self._count >= self.limit and not self._close_one():
            self.refusals[Refusal.LISTENER_FULL] += 1
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

    def shrink(self) -> None:
        """Give back a quarter of the connections, since the process has no descriptor left."""
        self._set_limit(max(min(self.limit, self._count) * 3 // 4, MIN_LIMIT))
        while self._count > self.limit and self._close_one():
            pass

    @property
    def waiting_requests(self) -> int:
        """Number of requests that wait for the end of jobs."""
        return sum(map(len, self._waits.values()))

    @contextlib.contextmanager
    def waiting(self, user: str) -> Iterator[Wait]:
        """Count a request that waits, for the time of the block. ApiError if there is no room.

        The oldest wait of the user with most waits ends for that of a user with fewer.
        """
        own = len(self._waits.get(user, ()))
        has_room = own < max(self.peer_limit * 3 // 4, 1)  # the rest is for the user's other calls
        if has_room and self.waiting_requests >= self.wait_limit:
            largest = max(self._waits, key=lambda name: len(self._waits[name]))
            replaced = next((wait for wait in self._waits[largest] if not wait.is_over), None)
            has_room = replaced is not None and len(self._waits[largest]) > own + 1
            if replaced is not None and has_room:
                replaced.end()
        if not has_room:
            self.refusals[Refusal.WAITING] += 1
            raise ApiError(503, "too many requests wait for jobs; nothing changed, try again soon")
        wait = Wait()
        self._waits[user][wait] = None
        try:
            yield wait
        finally:
            del self._waits[user][wait]
            if not self._waits[user]:
                del self._waits[user]

    def _make_room_of(self, peer: str) -> bool:
        if len(self._by_peer.get(peer, ())) < self.peer_limit or self._close_oldest(peer):
            return True
        self.refusals[Refusal.PEER_FULL] += 1
        return False

    def _close_one(self) -> bool:
        """Close a connection that receives a request, of the peer with most. False if none does."""
        largest_first = sorted(self._by_peer, key=lambda peer: -len(self._by_peer[peer]))
        return any(map(self._close_oldest, largest_first))

    def _close_oldest(self, peer: str) -> bool:
        """Close the oldest connection of a peer that receives a request. False if none does."""
        oldest = next((c for c in self._by_peer[peer] if c.is_receiving), None)
        if oldest is None:
            return False
        self.remove(oldest)
        self.refusals[Refusal.REPLACED] += 1
        oldest.abort()
        return True
