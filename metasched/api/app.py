"""The FastAPI application, served on the unix socket and over TCP.

An error response is {"error": "problem, place; remedy"}, in a single line. A refused request has
changed nothing.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from msgspec import structs
from starlette.exceptions import HTTPException

from metasched.api import (
    calendar,
    changes,
    clusters,
    events,
    explanations,
    jobs,
    licences,
    limits,
    metrics,
    notifications,
    partitions,
    policy,
    reference,
    reload,
    reports,
    reservations,
    shares,
    submissions,
    tokens,
)
from metasched.api.admission import Admission, error_response
from metasched.api.clusters import breaker_row
from metasched.api.connections import OpenConnections, Refusal
from metasched.api.identity import Caller, ForbiddenError
from metasched.api.lookups import Lookups
from metasched.api.readers import Readers
from metasched.api.readiness import Readiness
from metasched.api.request import CurrentCaller, CurrentService, request_source
from metasched.api.struct_body import HALF_A_CHARACTER
from metasched.api.throttle import Throttle
from metasched.api.version_exchange import PATHS, VersionExchange
from metasched.client.site_answers import AlteredRow, HealthRow
from metasched.daemon.alterations import describe_alteration
from metasched.daemon.descriptors import descriptor_use
from metasched.daemon.service import Daemon, SchedulerService, ServiceReplaced
from metasched.db.store import StorageFailed, StorageUncertain
from metasched.errors import ApiError
from metasched.model.units import iso
from metasched.version import COMMIT, VERSION

log = logging.getLogger("metasched")

MAX_LISTED = 50  # entries of the quarantine, and accounts with delays, in an answer


@dataclass(frozen=True)
class ErrorAnswer:
    """Body of every response that reports an error."""

    error: str  # "problem, place; remedy", in a single line


AddPages = Callable[[FastAPI, Daemon], None]  # adds pages to the application


def create_app(daemon: Daemon, add_pages: AddPages | None = None) -> FastAPI:
    """Create the application. All lasting state is in `daemon`."""
    app = FastAPI(
        title="metasched",
        version=VERSION,
        servers=[{"url": PATHS}],
        openapi_url=None,  # `reference` asks for a credential
        docs_url=None,
        redoc_url=None,
        responses={
            status: {"model": ErrorAnswer, "description": "Refused; nothing changed"}
            for status in (422, "4XX", "5XX")
        },
    )
    app.state.daemon = daemon
    throttle = Throttle()
    app.state.account_lookups = Lookups("account")
    app.add_middleware(
        Admission, daemon=daemon, throttle=throttle, accounts=app.state.account_lookups
    )
    app.add_middleware(Readiness, daemon=daemon)  # outside the former: it needs no caller
    app.state.readers = Readers(throttle, daemon.settings.requests.max_answers)
    app.state.listeners = []  # their open connections
    app.state.launcher_locks = defaultdict(asyncio.Lock)  # by user
    app.state.directory_checks = ThreadPoolExecutor(
        submissions.MAX_DIRECTORY_CHECKS, "directory-check"
    )
    job_modules = (submissions, changes, jobs, explanations)
    site_modules = (clusters, partitions, licences, limits, shares, reservations, calendar, tokens)
    admin_modules = (events, reports, notifications, metrics, policy, reload, reference)
    for module in (*job_modules, *site_modules, *admin_modules):
        app.include_router(module.router)
    _register_error_handlers(app)
    if add_pages is not None and daemon.settings.web is not None:
        add_pages(app, daemon)
    app.add_middleware(VersionExchange)  # outside all others

    @app.get("/health")
    async def health(caller: CurrentCaller, service: CurrentService) -> HealthRow:
        await daemon.database_probe.check()
        return {
            "instance": service.core.instance,
            "version": VERSION,
            "commit": COMMIT,
            "started": iso(daemon.started),
            "user": caller.user,
            "operator": caller.operator,
            "mail": service.notifications.mail_error,
            "idempotency_keys": True,
            "first_id": service.settings.first_id,
            "max_array_tasks": service.settings.max_array_tasks,
            "notifications": notifications.receiver_rows(service) if caller.operator else [],
            "quarantine": quarantine_rows(daemon) if caller.operator else [],
            "connections": connection_rows(app.state.listeners) if caller.operator else [],
            "descriptors": descriptor_use() if caller.operator else None,
            "configuration": configuration_row(daemon) if caller.operator else None,
            "withdrawals": withdrawal_rows(service) if caller.operator else [],
            "delayed": throttle.delay_rows(MAX_LISTED) if caller.operator else [],
            "altered": altered_rows(service) if caller.operator else [],
        }

    return app


def altered_rows(service: SchedulerService) -> list[AlteredRow]:
    """Return what managers list otherwise than it was sent, by cluster and kind."""
    return [
        {
            "cluster": name,
            "kind": first.kind,
            "jobs": first.jobs,
            "first": describe_alteration(first),
        }
        for name, connection in service.connections.items()
        for first in connection.alterations.first
    ]


def configuration_row(daemon: Daemon) -> dict[str, Any]:
    """Return the file of the configuration, and the digests of all files that were read."""
    path = daemon.settings.config_path
    return {
        "file": None if path is None else str(path),
        "digests": {str(name): digest for name, digest in daemon.settings.files.items()},
    }


def quarantine_rows(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the sources that failed and the rows that are set aside, at most `MAX_LISTED`."""
    sources = [
        {"source": source, **breaker_row(breaker)}
        for source, breaker in daemon.quarantine.paused_sources.items()
    ]
    connections = [] if daemon.service is None else daemon.service.connections.values()
    rows = [
        {"source": f"cluster {connection.name}", **structs.asdict(row)}
        for connection in connections
        for row in connection.row_filter.rows
    ]
    return [*sources, *rows][:MAX_LISTED]


def withdrawal_rows(service: SchedulerService) -> list[dict[str, Any]]:
    """Return the withdrawals without effect, most requests first, at most `MAX_LISTED`."""
    futile = [
        withdrawal._asdict()
        for connection in service.connections.values()
        for withdrawal in connection.pending_actions.futile_withdrawals()
    ]
    return sorted(futile, key=lambda row: -row["tries"])[:MAX_LISTED]


def connection_rows(listeners: Sequence[OpenConnections]) -> list[dict[str, Any]]:
    """Return a row for each listener; refusals since the start of the daemon, by kind."""
    return [
        {
            "listener": connections.address,
            "open": len(connections),
            "limit": connections.limit,
            "waiting": connections.waiting_requests,
            "waiting_limit": connections.wait_limit,
            "refused": {kind.value: connections.refusals[kind] for kind in Refusal},
        }
        for connections in listeners
    ]


def _register_error_handlers(app: FastAPI) -> None:
    """Map exceptions to one-line error responses; status 503 means that a retry can succeed."""

    @app.exception_handler(ApiError)
    async def _request_error(_: Request, error: ApiError) -> JSONResponse:
        return error_response(error.status, str(error))

    @app.exception_handler(ForbiddenError)
    async def _forbidden(_: Request, error: ForbiddenError) -> JSONResponse:
        return error_response(403, str(error))

    @app.exception_handler(UnicodeEncodeError)
    async def _not_encodable(_: Request, error: UnicodeEncodeError) -> JSONResponse:
        return error_response(422, HALF_A_CHARACTER)

    @app.exception_handler(StorageFailed)
    async def _storage_failed(request: Request, error: StorageFailed) -> JSONResponse:
        if isinstance(error, ServiceReplaced):
            return error_response(503, f"{error}; nothing changed, try again soon")
        daemon: Daemon = request.app.state.daemon
        daemon.database_probe.forget_answer()
        if daemon.service is not None:
            daemon.service.check_database_soon()
        problem = f"the database is away or rejects writes ({error})"
        return error_response(503, f"{problem}; nothing changed, try again soon")

    @app.exception_handler(StorageUncertain)
    async def _storage_uncertain(_: Request, error: StorageUncertain) -> JSONResponse:
        message = f"the database failed before the commit was confirmed ({error})"
        remedy = "check with `metasched status` or `metasched reservations` whether it was done"
        return error_response(504, f"{message}; {remedy}")

    @app.exception_handler(Exception)
    async def _internal_error(request: Request, error: Exception) -> JSONResponse:
        daemon: Daemon = request.app.state.daemon
        caller: Caller | None = getattr(request.state, "caller", None)
        user = "" if caller is None else caller.user
        if daemon.service is not None and daemon.service.failure is error:
            error_id = daemon.quarantine.record(request_source(user), error)
        else:
            error_id = secrets.token_hex(4)
            log.error("error %s: in a request of %s", error_id, user or "nobody", exc_info=error)
        message = f"a defect in the daemon ({type(error).__name__}), error {error_id} in its log"
        return error_response(500, f"{message}; report it to the site")

    @app.exception_handler(HTTPException)
    async def _http_error(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{error.detail}: {request.method} {request.scope['path']}; see /docs"
        return error_response(error.status_code, message)

    @app.exception_handler(RequestValidationError)
    async def _validation_error(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        location = ".".join(str(step) for step in first["loc"] if step != "body")
        if first["type"] == "string_unicode":
            return error_response(422, HALF_A_CHARACTER)
        return error_response(422, f"{first['msg']}, {location or 'body'}; see /docs")
