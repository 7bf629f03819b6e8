"""Dependencies of routes: the daemon, its running scheduler service, the caller.

None depends on another: FastAPI resolves each anew for every request.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

from fastapi import Depends, Request

from metasched.api.identity import Caller
from metasched.daemon.service import Daemon, SchedulerService
from metasched.errors import ApiError
from metasched.model.units import iso

REPLACEMENT_TIME = 15.0  # seconds for which a request waits for a service with changed settings
READING_METHODS = ("GET", "HEAD")


async def _get_daemon(request: Request) -> Daemon:
    daemon: Daemon = request.app.state.daemon
    return daemon


CurrentDaemon = Annotated[Daemon, Depends(_get_daemon)]


async def _get_service(request: Request) -> SchedulerService:
    daemon: Daemon = request.app.state.daemon
    if daemon.is_replacing_service:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REPLACEMENT_TIME):
                await daemon.service_runs.wait()
    if (reason := daemon.unavailable_reason) is not None:
        raise ApiError(503, f"{reason}; nothing changed, try again soon")
    assert daemon.service is not None
    return daemon.service


async def _get_caller(request: Request) -> Caller:
    daemon: Daemon = request.app.state.daemon
    caller: Caller = request.state.caller
    if request.method not in READING_METHODS:
        pause = daemon.quarantine.pause_of(request_source(caller.user))
        if pause is not None:
            raise ApiError(
                503,
                f"requests of {caller.user} pause after {pause.last_error}; nothing changed, "
                f"try again after {iso(pause.next_retry)}",
            )
    return caller


def request_source(user: str) -> str:
    """Return the name in the quarantine of a user's requests that change something."""
    return f"requests of {user}"


CurrentCaller = Annotated[Caller, Depends(_get_caller)]


CurrentService = Annotated[SchedulerService, Depends(_get_service)]
