"""GET /ready, for load balancers and probes: whether the daemon accepts work, without a credential.

It answers yes or no and nothing else, so every host that reaches the daemon may ask. `/health`
gives the reasons to callers.
"""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from metasched.daemon.service import Daemon
from metasched.db.store import StorageFailed

READY_PATH = "/ready"


class Readiness:
    """Middleware that answers `READY_PATH` with 200 or 503, and leaves all else to the next."""

    def __init__(self, app: ASGIApp, daemon: Daemon) -> None:
        self._app, self._daemon = app, daemon

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != READY_PATH or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        ready = await self._is_ready()
        await JSONResponse({"ready": ready}, 200 if ready else 503)(scope, receive, send)

    async def _is_ready(self) -> bool:
        if self._daemon.unavailable_reason is not None or self._daemon.stopping:
            return False
        try:
            await self._daemon.database_probe.check()  # shared by all who ask within a second
        except StorageFailed:
            return False
        return True
