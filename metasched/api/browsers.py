"""Authentication of browsers, for pages alone: by a session in a cookie, or by a reverse proxy.

A cookie is sent with every request to its host, also if another site caused it. So it opens pages,
which check each form, and no route of the API. The hash of a session covers the `Host` of its
sign-in: the cookie is worth nothing at another. A proxy names its user in a header, which counts
only on its own socket and from its own account.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from functools import partial

from fastapi import Request

from metasched.api.connections import Connection, OpenConnections
from metasched.api.daemon_names import accepted_daemon_names
from metasched.api.identity import (
    Caller,
    Callers,
    ForbiddenError,
    UnauthenticatedError,
    find_token,
)
from metasched.api.lookups import Lookups
from metasched.config.settings import Settings, WebSettings
from metasched.daemon.service import Daemon
from metasched.db.ledger import Ledger
from metasched.errors import quote_for_error
from metasched.model.token_scope import OPENED_SESSIONS

PAGES = "/web"  # path of all pages
LINK_SECONDS = 300.0  # lifetime of a one-time link
SESSION_SECONDS = 12 * 3600.0  # for which a session lasts
MAX_SECRET = 200  # characters of a link, session or token
_AUTHORITY = re.compile(r"([a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::(\d{1,5}))?")
_SESSIONS = frozenset(OPENED_SESSIONS.values())


def is_page(path: str) -> bool:
    """Return whether a path leads to pages, not to the API."""
    return path == PAGES or path.startswith(f"{PAGES}/")


def is_proxied(request: Request) -> bool:
    """Return whether a request came by the socket of the reverse proxy."""
    connections: OpenConnections = request.state.connections
    return connections.is_proxy


def require_sessions(request: Request, settings: Settings) -> None:
    """Raise ForbiddenError if no session counts on this listener: a session is a token."""
    if not is_proxied(request) and (settings.tcp is None or not settings.tcp.tokens):
        raise ForbiddenError(
            "this address takes no tokens, so it serves no pages; use the site's reverse proxy"
        )


async def authenticate_browser(
    request: Request, settings: Settings, callers: Callers, get_ledger: Callable[[], Ledger]
) -> Caller:
    """Return the caller for whom a browser requests a page.

    UnauthenticatedError, or ForbiddenError for an account that may not use this daemon;
    StorageFailed if the database is away.
    """
    connection: Connection = request.state.connection
    web = settings.web
    assert web is not None
    if is_proxied(request):
        return await callers.resolve(await _proxied_uid(request, web, callers), None)
    if connection.uid is not None:
        raise ForbiddenError(
            "this socket serves no pages; open the link that `metasched web` prints"
        )
    require_sessions(request, settings)
    secret = session_secret(request, web)
    token = None
    if 0 < len(secret) <= MAX_SECRET:
        token = await find_token(session_key(secret, request, web), callers, get_ledger)
    if token is None or token.scope not in _SESSIONS:
        raise UnauthenticatedError("the session has ended; sign in again")
    return await callers.resolve(await callers.find_uid(token.user), token.scope)


async def _proxied_uid(request: Request, web: WebSettings, callers: Callers) -> int:
    """Return the user id of the account that the reverse proxy names."""
    if request.state.connection.uid != web.proxy_uid:
        raise ForbiddenError("only the reverse proxy of [web] may use this socket; use another")
    names = request.headers.getlist(web.user_header)
    if len(names) != 1 or not names[0]:
        raise UnauthenticatedError(
            f"the reverse proxy names no single user in {web.user_header}; ask the site"
        )
    try:
        uid = await callers.find_uid(names[0])
    except UnauthenticatedError:
        problem = f"there is no account {quote_for_error(names[0])}"
        raise UnauthenticatedError(f"{problem}; ask the site") from None
    if uid == 0:
        raise ForbiddenError("root uses no pages by a reverse proxy; use an account of your own")
    return uid


async def has_valid_host(request: Request, daemon: Daemon, lookups: Lookups) -> bool:
    """Return whether `Host` is a name of this daemon, and not a name that was bound to its address.

    The reverse proxy has names of its own, and checks them.
    """
    if is_proxied(request):
        return True
    settings = daemon.settings
    assert settings.tcp is not None
    assert settings.web is not None
    address, port = request.scope["server"]
    find_names = partial(accepted_daemon_names, settings.tcp, address, port)
    names = await lookups.run((address, port), find_names)
    url = settings.web.url.lower()
    own = _with_port(url.partition("://")[2], settings.web.is_private)
    return authority_of(request, settings.web) in {*names, own} - {""}


def authority_of(request: Request, web: WebSettings) -> str:
    """Return `Host` as `host:port`; "" if it is none."""
    return _with_port(request.headers.get("host", "").lower(), web.is_private)


def _with_port(authority: str, is_private: bool) -> str:
    match = _AUTHORITY.fullmatch(authority)
    return f"{match[1]}:{match[2] or (443 if is_private else 80)}" if match else ""


def cookie_name(request: Request, web: WebSettings) -> str:
    """Return the name of the cookie: browsers send it to all ports of a host.

    By TLS they take a name in `__Host-` from this host alone, and none from its neighbours.
    """
    prefix = "__Host-" if comes_by_tls(request, web) else ""
    return f"{prefix}metasched-{authority_of(request, web).rpartition(':')[2]}"


def cookie_path(request: Request, web: WebSettings) -> str:
    """Return the path of the cookie: that of names in `__Host-`, or of the pages alone."""
    return "/" if comes_by_tls(request, web) else PAGES


def comes_by_tls(request: Request, web: WebSettings) -> bool:
    """Return whether a browser asked by https. The reverse proxy says so in a header of its own."""
    if is_proxied(request):
        return request.headers.getlist("x-forwarded-proto") == ["https"]
    return web.is_private


def session_secret(request: Request, web: WebSettings) -> str:
    """Return the secret in the cookie of a browser; "" without one.

    Also if there are two: the other may be a neighbour's, which signs in as another user.
    """
    name = cookie_name(request, web)
    pairs = [pair for header in request.headers.getlist("cookie") for pair in header.split(";")]
    if sum(pair.partition("=")[0].strip() == name for pair in pairs) != 1:
        return ""
    return request.cookies.get(name, "")


def session_key(secret: str, request: Request, web: WebSettings) -> str:
    """Return the text of a session for the host of a request; its hash is stored."""
    return f"{secret} {authority_of(request, web)}"


def new_secret() -> str:
    """Return a new secret for a link or a session."""
    return secrets.token_urlsafe(32)


def open_session(request: Request, daemon: Daemon, opener: str) -> str | None:
    """Open a session by the secret of a one-time link or of a token; return its own secret.

    None if that is unknown, used, expired or revoked.
    """
    web, secret = daemon.settings.web, new_secret()
    assert web is not None
    key = session_key(secret, request, web)
    user = daemon.ledger.open_session(opener, key, time.time(), SESSION_SECONDS)
    return None if user is None else secret


def close_session(request: Request, daemon: Daemon) -> None:
    """End the session of a browser."""
    web = daemon.settings.web
    assert web is not None
    if secret := session_secret(request, web):
        daemon.ledger.close_session(session_key(secret, request, web), time.time())


async def find_opener(opener: str, daemon: Daemon, lookups: Lookups) -> str | None:
    """Return the user for whom a one-time link or a token would open a session, if it is valid."""
    if not 0 < len(opener) <= MAX_SECRET:
        return None
    look_up = partial(daemon.ledger.find_token, opener, time.time())
    token = await lookups.run(opener, look_up)
    return token.user if token is not None and token.scope in OPENED_SESSIONS else None
