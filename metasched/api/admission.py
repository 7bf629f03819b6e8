"""Admission of a request: its caller, then its size, then its body; only then a route sees it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterator

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metasched.api.browsers import authenticate_browser, is_page, is_proxied
from metasched.api.connections import Connection, OpenConnections, Refusal
from metasched.api.identity import (
    BodyCheck,
    Caller,
    Callers,
    ForbiddenError,
    UnauthenticatedError,
    authenticate,
)
from metasched.api.job_tokens import JobTokens
from metasched.api.lookups import Lookups
from metasched.api.request import READING_METHODS
from metasched.api.throttle import WHOLE_REQUEST, Throttle
from metasched.api.timed_call import TimedCall
from metasched.daemon.service import RESTART_DELAY, Daemon
from metasched.db.store import StorageFailed
from metasched.errors import ApiError
from metasched.model.audit import OPERATORS_ONLY, AuditKind, AuditRecord

LARGE_BODY = 1 << 20  # bytes; a user has a single larger body in memory at a time
SMALL_BODY = 1 << 16  # bytes; the limit of all bodies together does not count smaller ones
BODY_MEMORY = 256 << 20  # bytes of all other bodies; of a user's bodies a quarter, or one body
MAX_OTHER_BODY = 4 << 20  # bytes of the body of any request but a submission
MAX_NESTED_VALUES = 1000  # lists and objects there; each costs far more memory than its text
PORTION = 1 << 20  # bytes of a response that are sent before the client has read the last portion
CONNECTION_SECONDS = 0.0005  # of the event loop, for what happens outside of the application
MAX_WAITING = 256  # readings of a user that are throttled; their clients may be gone
METRICS_PATH = "/metrics"  # all that a token for metrics reads
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})  # labels of metrics
RETRY_AFTER = {"Retry-After": f"{2 * RESTART_DELAY:.0f}"}


def error_response(status: int, message: str) -> JSONResponse:
    """Build an error response; escape lone surrogates that the message quotes from the request."""
    text = message.encode(errors="backslashreplace").decode()
    return JSONResponse({"error": text}, status, RETRY_AFTER if status == 503 else None)


class BodyMemory:
    """Memory for the bodies of requests. What does not fit is refused, not queued."""

    def __init__(self, limit: int, largest: int) -> None:
        """`limit` bytes in all; the largest body has `largest` bytes."""
        self._limit, self._user_limit = max(limit, 2 * largest), max(limit // 4, largest)
        self._used: Counter[str] = Counter()  # bytes by user

    @contextlib.contextmanager
    def taken(self, user: str, size: float) -> Iterator[None]:
        """Take `size` bytes for the time of the block. ApiError if too few are left."""
        if size <= SMALL_BODY:
            yield
            return
        taken = int(size)
        if self._used[user] + taken > self._user_limit or self._used.total() + taken > self._limit:
            raise ApiError(
                503, "too many large requests at the same time; nothing changed, try again soon"
            )
        self._used[user] += taken
        try:
            yield
        finally:
            self._used[user] -= taken
            if not self._used[user]:
                del self._used[user]


class Admission:
    """Middleware that authenticates callers, and reads the bodies of those that may call."""

    def __init__(self, app: ASGIApp, daemon: Daemon, throttle: Throttle, accounts: Lookups) -> None:
        self._app, self._daemon, self._throttle = app, daemon, throttle
        self._large_bodies: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by user
        self._waiting: Counter[str] = Counter()  # readings of a user that are throttled
        self._callers, self._job_tokens = Callers(daemon, accounts), JobTokens(daemon)
        self._memory = BodyMemory(BODY_MEMORY, daemon.settings.requests.max_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application with the whole body, or send an error response."""
        request = Request(scope, receive)
        async with contextlib.AsyncExitStack() as stack:
            scope["state"]["until_answered"] = stack
            try:
                caller, check = await self._authenticate(request)
                await self._wait_for_turn(request, caller)
                limit = self._check_size(request)
                size = min(_content_length(request), limit)
                if size > LARGE_BODY:
                    await stack.enter_async_context(self._large_bodies[caller.user])
                self._take_memory(request, stack, caller, size)
                body = await _read_body(request, limit)
                self._check_body(request, body, check)
            except ApiError as error:
                await error_response(error.status, str(error))(scope, receive, send)
            except ClientDisconnect:
                pass
            else:
                answer = _TimedResponse(_in_portions(send))
                try:
                    await self._answer(request, caller, _replay(body, receive), answer)
                finally:
                    self._daemon.metrics.observe_request(
                        _method_label(request), _route_label(request), answer.status, answer.seconds
                    )

    async def _answer(self, request: Request, caller: Caller, receive: Receive, send: Send) -> None:
        """Call the application; charge the caller with the time of a request that only reads."""
        call = TimedCall(self._app(request.scope, receive, send))
        try:
            await call
        finally:
            if request.method in READING_METHODS:
                seconds = call.seconds + CONNECTION_SECONDS
                self._throttle.charge((caller.user, WHOLE_REQUEST), seconds)

    async def _wait_for_turn(self, request: Request, caller: Caller) -> None:
        """Wait while the caller's readings take too much time. ApiError if too many wait."""
        if request.method not in READING_METHODS:
            return
        if self._waiting[caller.user] >= MAX_WAITING:
            raise ApiError(503, "too many requests of yours wait; nothing changed, try again soon")
        self._waiting[caller.user] += 1
        try:
            await self._throttle.wait((caller.user, WHOLE_REQUEST))
        finally:
            self._waiting[caller.user] -= 1
            if not self._waiting[caller.user]:
                del self._waiting[caller.user]
        if request.scope["state"]["connection"].is_closed:
            raise ApiError(503, "the client has gone; nothing changed")

    def _take_memory(
        self, request: Request, stack: contextlib.AsyncExitStack, caller: Caller, size: float
    ) -> None:
        """Take memory for a body until `stack` ends. ApiError if there is too little."""
        try:
            stack.enter_context(self._memory.taken(caller.user, size))
        except ApiError:
            _count(request, Refusal.MEMORY)
            raise

    async def _authenticate(self, request: Request) -> tuple[Caller, BodyCheck | None]:
        """Return the caller. ApiError if there is none, or has too many connections."""
        daemon, state = self._daemon, request.scope["state"]
        connection: Connection = state["connection"]
        settings, check = daemon.settings, None
        try:
            if settings.web is not None and is_page(request.scope["path"]):
                caller = await authenticate_browser(
                    request, settings, self._callers, lambda: daemon.ledger
                )
            elif is_proxied(request):
                raise ForbiddenError("this socket serves pages alone, below /web/; use another")
            else:
                caller, check = await authenticate(
                    request, settings, self._callers, lambda: daemon.ledger, self._job_tokens
                )
        except UnauthenticatedError as error:
            raise _refusal(request, 401, error) from None
        except ForbiddenError as error:
            raise _refusal(request, 403, error) from None
        except StorageFailed:  # its cause is not for unknown callers
            problem = "no token can be checked while the database is away"
            raise ApiError(503, f"{problem}; nothing changed, try again soon") from None
        is_shared = connection.uid is None or is_proxied(request)  # it has no peer of its own
        if is_shared and not state["connections"].assign(connection, caller.user):
            raise ApiError(503, "too many connections of yours; nothing changed, try again soon")
        if caller.scrapes_only and request.scope["path"] != METRICS_PATH:
            problem = f"a token for metrics reads {METRICS_PATH} alone; use a token of your own"
            raise _refusal(request, 403, ForbiddenError(problem))
        self._throttle.note_call(caller.user)
        state["caller"] = caller
        return caller, check

    def _check_size(self, request: Request) -> int:
        """Return how many bytes the body may have. ApiError if it says that it has more."""
        limit = self._daemon.settings.requests.max_bytes
        if not _is_submission(request):
            limit = min(limit, MAX_OTHER_BODY)
        if "content-length" in request.headers and _content_length(request) > limit:
            raise _too_large(request, limit)
        return limit

    def _check_body(self, request: Request, body: bytes, check: BodyCheck | None) -> None:
        """Raise ApiError if the credential is for another body, or the body is costly to decode."""
        if check is not None:
            try:
                check(body)
            except UnauthenticatedError as error:
                raise _refusal(request, 401, error) from None
        # the body of a submission is decoded to its type, which stops at the first wrong value
        if not _is_submission(request) and body.count(b"[") + body.count(b"{") > MAX_NESTED_VALUES:
            _count(request, Refusal.SIZE)
            raise ApiError(400, f"more than {MAX_NESTED_VALUES} lists and objects; see /docs")


class _TimedResponse:
    """A `send` that notes the status of a response, and the seconds until it began.

    The time that a client takes to read its response says nothing about the daemon.
    """

    def __init__(self, send: Send) -> None:
        self._send, self._begun = send, time.monotonic()
        self.status, self.seconds = 500, 0.0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.seconds = message["status"], time.monotonic() - self._begun
        await self._send(message)


def _method_label(request: Request) -> str:
    return request.method if request.method in METHODS else "other"


def _route_label(request: Request) -> str:
    """Return the pattern of the request's path; paths themselves name users and jobs."""
    route = request.scope.get("route")
    return "none" if route is None else str(route.path)


def _count(request: Request, refusal: Refusal) -> None:
    connections: OpenConnections = request.state.connections
    connections.refusals[refusal] += 1


def _refusal(request: Request, status: int, error: Exception) -> ApiError:
    """Record that a caller was refused, and return the answer."""
    _count(request, Refusal.CREDENTIAL)
    peer = request.state.connection.peer
    daemon: Daemon = request.app.state.daemon
    record = AuditRecord(
        time=time.time(),
        kind=AuditKind.CREDENTIAL_REFUSED,
        owner=OPERATORS_ONLY,
        cause=str(error),
        details={"peer": peer},
    )
    daemon.quarantine.notices.add(record, f"{peer}: {error}")
    return ApiError(status, str(error))


def _is_submission(request: Request) -> bool:
    return request.method == "POST" and request.scope["path"] == "/jobs"


def _content_length(request: Request) -> float:
    """Return the length of the body in bytes; infinite if it comes in chunks."""
    if "transfer-encoding" in request.headers:
        return float("inf")
    return int(request.headers.get("content-length", 0))


def _too_large(request: Request, limit: int) -> ApiError:
    _count(request, Refusal.SIZE)
    return ApiError(413, f"more than {limit} bytes, the request; submit fewer jobs at once")


async def _read_body(request: Request, limit: int) -> bytes:
    """Return the body. ApiError if it has more than `limit` bytes, ClientDisconnect if cut off."""
    parts, length = [], 0
    async for part in request.stream():
        length += len(part)
        if length > limit:
            raise _too_large(request, limit)
        parts.append(part)
    return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields a body that was read."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def _in_portions(send: Send) -> Send:
    """Return a `send` that waits while the client does not read, in the midst of a response too."""

    async def send_in_portions(message: Message) -> None:
        body = message.get("body", b"")
        last = max(len(body) - 1, 0) // PORTION * PORTION
        for first in range(0, last, PORTION):
            portion = body[first : first + PORTION]
            await send({**message, "body": portion, "more_body": True})
        await send({**message, "body": body[last:]} if last else message)

    return send_in_portions
