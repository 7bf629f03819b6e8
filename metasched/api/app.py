"""The HTTP API, on the unix socket and over TCP: routes by resource, one module each.

    request      what each request has: the daemon, the engine that runs, who sent it
    choosing     which jobs a request is about
    submitting   jobs come
    changing     they are cancelled, held, released, requeued, resolved, modified
    jobs         how they are; waiting for them
    explaining   why one is where it is
    clusters, licences, reservations, tokens

Whatever is refused is one line, {"error": what, where; what to do}, and has changed nothing.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from metasched.api import changes as changing
from metasched.api import clusters, jobs, licences, reservations, tokens
from metasched.api import explanations as explaining
from metasched.api import submissions as submitting
from metasched.api.identity import Forbidden, Unknown
from metasched.api.request import Running, Who
from metasched.daemon.service import RESTART, Daemon
from metasched.db.store import StorageFailed, StorageUncertain
from metasched.errors import Wrong
from metasched.units import iso

AGAIN = {"Retry-After": f"{2 * RESTART:.0f}"}


def make_app(daemon: Daemon) -> FastAPI:
    """The application; what must last is the daemon's."""
    app = FastAPI(title="metasched", version=version("metasched"))
    app.state.daemon = daemon
    app.state.entering = defaultdict(asyncio.Lock)  # by user
    for part in (submitting, changing, jobs, explaining, clusters, licences, reservations, tokens):
        app.include_router(part.router)
    _tell_errors(app)

    @app.get("/health")
    async def health(who: Who, running: Running) -> dict[str, Any]:
        return {
            "instance": running.core.instance,
            "version": version("metasched"),
            "started": iso(daemon.started),
            "user": who.user,
            "operator": who.operator,
            "mail": running.mailer.trouble,
        }

    return app


def _tell_errors(app: FastAPI) -> None:
    """Each refusal is one line, under the status that says whether trying again helps."""

    @app.exception_handler(Wrong)
    async def _wrong(_: Request, error: Wrong) -> JSONResponse:
        return _refusal(error.status, str(error))

    @app.exception_handler(Unknown)
    async def _unknown(_: Request, error: Unknown) -> JSONResponse:
        return _refusal(401, str(error))

    @app.exception_handler(Forbidden)
    async def _forbidden(_: Request, error: Forbidden) -> JSONResponse:
        return _refusal(403, str(error))

    @app.exception_handler(UnicodeEncodeError)
    async def _no_text(_: Request, error: UnicodeEncodeError) -> JSONResponse:
        return _refusal(422, "half a character, in the request; leave it out")

    @app.exception_handler(StorageFailed)
    async def _storage(_: Request, error: StorageFailed) -> JSONResponse:
        told = f"the database is away or takes no write ({error}); nothing changed, try again soon"
        return _refusal(503, told)

    @app.exception_handler(StorageUncertain)
    async def _uncertain(_: Request, error: StorageUncertain) -> JSONResponse:
        told = f"the database was gone before it said whether it took this ({error})"
        mend = "look with `metasched status` or `metasched reservations` whether it is done"
        return _refusal(504, f"{told}; {mend}")

    @app.exception_handler(Exception)
    async def _defect(_: Request, error: Exception) -> JSONResponse:
        told = f"a defect in the daemon ({type(error).__name__}); its log tells more, report it"
        return _refusal(500, told)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        told = f"{error.detail}: {request.method} {request.scope['path']}; see /docs"
        return _refusal(error.status_code, told)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"] if step != "body")
        return _refusal(422, f"{first['msg']}, {place or 'body'}; see /docs")


def _refusal(status: int, told: str) -> JSONResponse:
    """It may quote what the caller sent, half characters and all, which no answer can carry."""
    text = told.encode(errors="backslashreplace").decode()
    return JSONResponse({"error": text}, status, AGAIN if status == 503 else None)
