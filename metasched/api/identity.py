"""Who is calling, and what they may do."""

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
    """HTTP that notes the user id of whoever connected to a unix socket; None over TCP."""

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
    """An application of which no request is too long: it is read before its sender is known."""

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
    """Nobody can say who is calling: what, where; what to do."""


class ForbiddenError(Exception):
    """The caller may not do this: what, where; what to do."""


@dataclass(frozen=True)
class Caller:
    """An account, by the kernel's word, and its rights."""

    user: str
    operator: bool = False  # may see and change everybody's jobs
    sees_all: bool = False  # may list them
    by_token: bool = False

    def require_operator(self, action: str) -> None:
        """Forbidden if the caller is no operator."""
        if not self.operator:
            raise ForbiddenError(
                f"only operators may {action}, and you are {self.user}; ask one of them"
            )

    def require_owner(self, owners: Iterable[str]) -> None:
        """Forbidden if one of the jobs belongs to somebody else."""
        if not self.operator and (other_owners := set(owners) - {self.user}):
            raise ForbiddenError(
                f"a job of {min(other_owners)}, and you are {self.user}; ask its owner or an operator"
            )

    def require_visible(self, owners: Iterable[str]) -> None:
        """Forbidden if one of the jobs is somebody else's and those are not listed here."""
        if not self.sees_all:
            self.require_owner(owners)


async def authenticate(request: Request, settings: Settings, ledger: Ledger) -> Caller:
    """Who sent a request. Unknown, or Forbidden if they may not use this daemon at all.

    On a unix socket only the kernel is asked, over TCP only the header `Authorization`.
    """
    uid, by_token = request.scope["state"]["uid"], False
    if uid is None:
        uid, by_token = await _authenticate_remote(request, settings, ledger)
    return await asyncio.to_thread(_resolve_caller, uid, by_token, settings)


def _resolve_caller(uid: int, by_token: bool, settings: Settings) -> Caller:
    user = user_name_of(uid)
    if settings.site is None:
        if uid != os.geteuid():
            raise ForbiddenError(f"user id {uid} may not use this personal daemon; start your own")
        return Caller(user, operator=True, sees_all=True, by_token=by_token)
    if user == str(uid):
        raise ForbiddenError(
            f"there is no account with user id {uid} on the daemon's host; ask the site"
        )
    # a token is easily copied: it never carries more than what its user owns
    operator = settings.is_operator(user) and not by_token
    return Caller(user, operator, operator or settings.site.others_jobs == "listed", by_token)


async def _authenticate_remote(
    request: Request, settings: Settings, ledger: Ledger
) -> tuple[int, bool]:
    """The user id of a caller on another host, and whether a token said so."""
    assert settings.tcp is not None
    scheme, _, credential = request.headers.get("authorization", "").partition(" ")
    if scheme == "Bearer" and settings.tcp.tokens:
        user = await asyncio.to_thread(ledger.token_user, credential, time.time())
        if user is None:
            raise UnauthenticatedError("the token is unknown, expired or revoked; make a new one")
        try:
            return pwd.getpwnam(user).pw_uid, True
        except KeyError:
            raise UnauthenticatedError(
                f"there is no account {user} any more; ask the site"
            ) from None
    if scheme == "MUNGE" and settings.tcp.munge:
        target = request.scope["raw_path"].decode("ascii")
        if query := request.scope["query_string"]:
            target += "?" + query.decode("ascii")
        body = await request.body()
        names = await asyncio.to_thread(
            _accepted_daemon_names, settings.tcp, *request.scope["server"]
        )
        accepted_digests = {request_digest(name, request.method, target, body) for name in names}
        return await asyncio.to_thread(
            _decode_munge, credential, accepted_digests, names, settings.tcp
        ), False
    enabled_credentials = [
        scheme_name
        for scheme_name, enabled in (
            ("MUNGE", settings.tcp.munge),
            ("a token", settings.tcp.tokens),
        )
        if enabled
    ]
    raise UnauthenticatedError(
        f"no credential that is taken here; show {' or '.join(enabled_credentials)}"
    )


def _accepted_daemon_names(tcp: TcpTable, address: str, port: int) -> list[str]:
    """What its clients may call this daemon: what the site says, and where they have reached it.

    `localhost` is every host's, and so a name only of who was reached there.
    """
    reached = ipaddress.ip_address(address)
    reached = getattr(reached, "ipv4_mapped", None) or reached
    hosts = (*_host_names(), str(reached), *(["localhost"] if reached.is_loopback else []))
    local_names = (daemon_name(host, port) for host in hosts)
    return list(dict.fromkeys((*map(str.lower, tcp.names), *local_names)))


@cache  # it may ask a name server
def _host_names() -> list[str]:
    return [name for name in (socket.getfqdn(), socket.gethostname()) if name != "localhost"]


def _decode_munge(
    credential: str, accepted_digests: Container[str], names: Sequence[str], tcp: TcpTable
) -> int:
    """The user id that munged vouches for; it takes each credential once."""
    command = ["unmunge", "--numeric", "--keys=UID"]
    if tcp.munge_socket is not None:
        command.append(f"--socket={tcp.munge_socket}")
    try:
        process = subprocess.run(
            command,
            input=credential,
            capture_output=True,
            text=True,
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
            f"the MUNGE credential is for another request or daemon, this one is {names[0]}; call "
            "it so, or ask the site for more names, [tcp]"
        )
    return int(match[1])
