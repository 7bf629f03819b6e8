"""Version exchange: each response names the API's version; clients of later versions are refused.

Paths begin with /v1, which stays as it is documented. Commands of metasched leave it out: they send
a header with their own version, since they may be upgraded apart from the daemon.
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metasched.api.admission import error_response
from metasched.paths import API_PROTOCOL, PROTOCOL_HEADER

PATHS = "/v1"  # where the documented routes are
_OTHER_PATHS = re.compile(r"/v\d+(/|$)")
_NAME, _VALUE = PROTOCOL_HEADER.lower().encode(), str(API_PROTOCOL).encode()


class VersionExchange:
    """ASGI middleware around the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_version(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (_NAME, _VALUE)]
            await send(message)

        app = self._app
        if scope["type"] == "http":
            path: str = scope["path"]
            if path.startswith(f"{PATHS}/"):
                # the raw path stays: credentials are for the path as sent
                scope = {**scope, "path": path.removeprefix(PATHS)}
            elif _OTHER_PATHS.match(path):
                app = error_response(404, f"no such version of the API, {path[:20]}; use {PATHS}/")
            if refusal := _refusal(Headers(scope=scope)):
                app = error_response(400, refusal)
        await app(scope, receive, send_with_version)


def _refusal(headers: Headers) -> str:
    """Return why a client of this version cannot be served; "" if it can."""
    version = headers.get(PROTOCOL_HEADER, "1")
    if not (version.isascii() and version.isdecimal() and len(version) <= 9):
        return f"no version of the API, {PROTOCOL_HEADER}: {version[:20]!r}; send a number"
    if int(version) > API_PROTOCOL:
        return (
            f"this command is of a later release than the daemon (API {int(version)}, the daemon's "
            f"{API_PROTOCOL}); use the commands of the daemon's release, or upgrade the daemon"
        )
    return ""
