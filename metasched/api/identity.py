"""Authentication of callers, and their rights."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import pwd
import re
import socket
import struct
import subprocess
import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from metasched.adapters.launcher_client import user_name_of
from metasched.client.credentials import MUNGE_TIMEOUT, daemon_name, request_digest
from metasched.config.settings import Settings
from metasched.config.tables import TcpTable
from metasched.db.ledger import Ledger
from metasched.paths import MAX_REQUEST_BYTES


class PeerProtocol(H11Protocol):
    """HTTP that records the user id of the peer on a unix socket; None over TCP."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection.family != socket.AF_UNIX:
            self.app_state = {**self.app_state, "uid": None}
            return
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _, uid, _ = struct.unpack("iII", credentials)
        self.app_state = {**self.app_state, "uid": uid}


def limit_request_size(app: ASGIApp) -> ASGIApp:
    """Wrap an application to limit the size of requests, which are read before authentication."""

    async def limited_app(scope: Scope, receive: Receive, send: Send) -> None:
        remaining = MAX_REQUEST_BYTES

        async def limited_receive() -> Message:
            nonlocal remaining
            message = await receive()
            remaining -= len(message.get("body", b""))
            if remaining < 0:
                raise HTTPException(413, f"more than {MAX_REQUEST_BYTES} bytes")
            return message

        await app(scope, limited_receive, send)

    return limited_app


class UnauthenticatedError(Exception):
    """The caller cannot be identified. The message gives problem and remedy."""


class ForbiddenError(Exception):
    """The caller may not do this. The message gives problem and remedy."""


@dataclass(frozen=True)
class Caller:
    """An authenticated account and its rights."""

    user: str
    operator: bool = False  # may see and change the jobs of all users
    sees_all: bool = False  # may list the jobs of all users
    by_token: bool = False  # authenticated by a token

    def require_operator(self, action: str) -> None:
        """ForbiddenError unless the caller is an operator."""
        if not self.operator:
            raise ForbiddenError(
                f"only operators may {action}, and you are {self.user}; ask one of them"
            )

    def require_owner(self, owners: Iterable[str]) -> None:
        """ForbiddenError if a job belongs to another user, unless the caller is an operator."""
        if not self.operator and (other_owners := set(owners) - {self.user}):
            owner = min(other_owners)
            raise ForbiddenError(
                f"a job of {owner}, and you are {self.user}; ask its owner or an operator"
            )

    def require_visible(self, owners: Iterable[str]) -> None:
        """ForbiddenError if a job belongs to another user and the site hides those."""
        if not self.sees_all:
            self.require_owner(owners)


async def authenticate(request: Request, settings: Settings, ledger: Ledger) -> Caller:
    """Return the sender of a request.

    On a unix socket the kernel reports the account; over TCP the header `Authorization` does.
    UnauthenticatedError, or ForbiddenError for an account that may not use this daemon.
    """
    uid, by_token = request.scope["state"]["uid"], False
    if uid is None:
        uid, by_token = await _authenticate_remote(request, settings, ledger)
    return await asyncio.to_thread(_resolve_caller, uid, by_token, settings)


def _resolve_caller(uid: int, by_token: bool, settings: Settings) -> Caller:
    """Return the caller with a user id. ForbiddenError if it may not use this daemon."""
    user = user_name_of(uid)
    if settings.site is None:
        if uid != os.geteuid():
            raise ForbiddenError(f"user id {uid} may not use this personal daemon; start your own")
        return Caller(user, operator=True, sees_all=True, by_token=by_token)
    if user == str(uid):
        raise ForbiddenError(
            f"there is no account with user id {uid} on the daemon's host; ask the site"
        )
    # a token is easily copied: it gives no rights on the jobs of other users
    operator = settings.is_operator(user) and not by_token
    return Caller(user, operator, operator or settings.site.others_jobs == "listed", by_token)


async def _authenticate_remote(
    request: Request, settings: Settings, ledger: Ledger
) -> tuple[int, bool]:
    """Return the user id of a caller on another host, and whether a token proved it."""
    assert settings.tcp is not None
    scheme, _, credential = request.headers.get("authorization", "").partition(" ")
    if scheme == "Bearer" and settings.tcp.tokens:
        user = await asyncio.to_thread(ledger.token_user, credential, time.time())
        if user is None:
            raise UnauthenticatedError("the token is unknown, expired or revoked; make a new one")
        try:
            return pwd.getpwnam(user).pw_uid, True
        except KeyError:
            problem = f"there is no account {user} any more"
            raise UnauthenticatedError(f"{problem}; ask the site") from None
    if scheme == "MUNGE" and settings.tcp.munge:
        target = request.scope["raw_path"].decode("ascii")
        if query := request.scope["query_string"]:
            target += "?" + query.decode("ascii")
        body = await request.body()
        address, port = request.scope["server"]
        names = await asyncio.to_thread(_accepted_daemon_names, settings.tcp, address, port)
        digests = {request_digest(name, request.method, target, body) for name in names}
        uid = await asyncio.to_thread(_decode_munge, credential, digests, names, settings.tcp)
        return uid, False
    schemes = (("MUNGE", settings.tcp.munge), ("a token", settings.tcp.tokens))
    accepted = " or ".join(scheme for scheme, enabled in schemes if enabled)
    raise UnauthenticatedError(f"no credential that this daemon accepts; show {accepted}")


def _accepted_daemon_names(tcp: TcpTable, address: str, port: int) -> list[str]:
    """Return the names by which clients may address this daemon.

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


def _decode_munge(
    credential: str, accepted_digests: Container[str], names: Sequence[str], tcp: TcpTable
) -> int:
    """Return the user id of a MUNGE credential; munged accepts each credential once."""
    command = ["unmunge", "--numeric", "--keys=UID"]
    if tcp.munge_socket is not None:
        command.append(f"--socket={tcp.munge_socket}")
    try:
        process = subprocess.run(
            command,
            input=credential,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # the payload is any bytes; a strange one matches no digest
            timeout=MUNGE_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnauthenticatedError(
            f"munge does not work on the daemon's host ({error}); ask the site"
        ) from None
    if process.returncode != 0:
        raise UnauthenticatedError(
            f"{process.stderr.strip() or 'MUNGE credential replayed or expired'}; try again"
        )
    match = re.fullmatch(r"UID:\s+(\d+)\s+(\w+)\s*", process.stdout)
    if match is None or match[2] not in accepted_digests:
        raise UnauthenticatedError(
            f"the MUNGE credential is for another request or daemon, this one is {names[0]}; use "
            "that name, or ask the site for more names, [tcp]"
        )
    return int(match[1])
