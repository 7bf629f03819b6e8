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
from metasched.api.identity import ForbiddenError, UnauthenticatedError
from metasched.api.request import CurrentCaller, CurrentService
from metasched.daemon.service import RESTART_DELAY, Daemon
from metasched.db.store import StorageFailed, StorageUncertain
from metasched.errors import ApiError
from metasched.units import iso

RETRY_AFTER = {"Retry-After": f"{2 * RESTART_DELAY:.0f}"}


def create_app(daemon: Daemon) -> FastAPI:
    """The application; what must last is the daemon's."""
    app = FastAPI(title="metasched", version=version("metasched"))
    app.state.daemon = daemon
    app.state.entering = defaultdict(asyncio.Lock)  # by user
    for module in (
        submitting,
        changing,
        jobs,
        explaining,
        clusters,
        licences,
        reservations,
        tokens,
    ):
        app.include_router(module.router)
    _register_error_handlers(app)

    @app.get("/health")
    async def health(caller: CurrentCaller, service: CurrentService) -> dict[str, Any]:
        return {
            "instance": service.core.instance,
            "version": version("metasched"),
            "started": iso(daemon.started),
            "user": caller.user,
            "operator": caller.operator,
            "mail": service.mailer.last_error,
        }

    return app


def _register_error_handlers(app: FastAPI) -> None:
    """Each refusal is one line, under the status that says whether trying again helps."""

    @app.exception_handler(ApiError)
    async def _request_error(_: Request, error: ApiError) -> JSONResponse:
        return _error_response(error.status, str(error))

    @app.exception_handler(UnauthenticatedError)
    async def _unauthenticated(_: Request, error: UnauthenticatedError) -> JSONResponse:
        return _error_response(401, str(error))

    @app.exception_handler(ForbiddenError)
    async def _forbidden(_: Request, error: ForbiddenError) -> JSONResponse:
        return _error_response(403, str(error))

    @app.exception_handler(UnicodeEncodeError)
    async def _not_encodable(_: Request, error: UnicodeEncodeError) -> JSONResponse:
        return _error_response(422, "half a character, in the request; leave it out")

    @app.exception_handler(StorageFailed)
    async def _storage_failed(_: Request, error: StorageFailed) -> JSONResponse:
        message = (
            f"the database is away or takes no write ({error}); nothing changed, try again soon"
        )
        return _error_response(503, message)

    @app.exception_handler(StorageUncertain)
    async def _storage_uncertain(_: Request, error: StorageUncertain) -> JSONResponse:
        message = f"the database was gone before it said whether it took this ({error})"
        remedy = "look with `metasched status` or `metasched reservations` whether it is done"
        return _error_response(504, f"{message}; {remedy}")

    @app.exception_handler(Exception)
    async def _internal_error(_: Request, error: Exception) -> JSONResponse:
        message = f"a defect in the daemon ({type(error).__name__}); its log tells more, report it"
        return _error_response(500, message)

    @app.exception_handler(HTTPException)
    async def _http_error(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{error.detail}: {request.method} {request.scope['path']}; see /docs"
        return _error_response(error.status_code, message)

    @app.exception_handler(RequestValidationError)
    async def _validation_error(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        location = ".".join(str(step) for step in first["loc"] if step != "body")
        return _error_response(422, f"{first['msg']}, {location or 'body'}; see /docs")


def _error_response(status: int, message: str) -> JSONResponse:
    """It may quote what the caller sent, half characters and all, which no answer can carry."""
    text = message.encode(errors="backslashreplace").decode()
    return JSONResponse({"error": text}, status, RETRY_AFTER if status == 503 else None)
