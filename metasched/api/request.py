"""What each request has: the daemon that serves it, the engine that runs, and who sent it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from metasched.api.identity import Caller, caller
from metasched.daemon.service import Daemon, Engine
from metasched.errors import Wrong


async def _daemon(request: Request) -> Daemon:
    daemon: Daemon = request.app.state.daemon
    return daemon


Serving = Annotated[Daemon, Depends(_daemon)]


async def _engine(daemon: Serving) -> Engine:
    if daemon.engine is None:
        raise Wrong(503, f"{daemon.trouble}; nothing changed, try again soon")
    return daemon.engine


async def _caller(request: Request, daemon: Serving) -> Caller:
    return await caller(request, daemon.settings, daemon.ledger)


Running = Annotated[Engine, Depends(_engine)]
Who = Annotated[Caller, Depends(_caller)]
