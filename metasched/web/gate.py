"""The middleware around pages: checks the host, sets headers, signs in, shows errors as pages.

Requests that pass it are admitted as any request of the API.
"""

from __future__ import annotations

from http.cookies import SimpleCookie
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metasched.api.admission import error_response
from metasched.api.browsers import (
    PAGES,
    close_session,
    comes_by_tls,
    cookie_name,
    cookie_path,
    has_valid_host,
    is_page,
    is_proxied,
    new_secret,
    require_sessions,
    session_secret,
)
from metasched.api.identity import ForbiddenError
from metasched.api.lookups import Lookups
from metasched.daemon.service import Daemon
from metasched.web import (
    events,
    gantt,
    job,
    job_acts,
    licences,
    live,
    policy,
    policy_acts,
    queue,
    reserve,
    site,
    site_acts,
    use,
)
from metasched.web.forms import CheckedForm
from metasched.web.output import OutputReader
from metasched.web.rendering import page
from metasched.web.sign_in import SIGN_IN, public_pages

MAX_ERROR = 1 << 16  # bytes of an error of the API
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # no address leaves this host; with `no-referrer` a browser would not send the origin of a form
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def add_pages(app: FastAPI, daemon: Daemon) -> None:
    """Add the pages to the application of the API."""
    app.state.change_clock = live.ChangeClock(daemon)
    app.state.output_reader = OutputReader()
    for module in (
        *(site, queue, job, licences, gantt, use, policy, events, live),
        *(job_acts, site_acts, reserve, policy_acts),
    ):
        app.include_router(module.router, prefix=PAGES, include_in_schema=False)
    app.add_api_route(f"{PAGES}/sign-out", _sign_out, methods=["POST"], include_in_schema=False)
    app.add_middleware(Gate, daemon=daemon, pages=app)


async def _sign_out(request: Request, _: CheckedForm) -> Response:
    """End the session, and forget its cookie."""
    daemon: Daemon = request.app.state.daemon
    web = daemon.settings.web
    assert web is not None
    close_session(request, daemon)
    response = RedirectResponse(SIGN_IN, 303)
    response.delete_cookie(
        cookie_name(request, web), path=cookie_path(request, web), secure=comes_by_tls(request, web)
    )
    return response


class Gate:
    """Middleware that lets other paths pass."""

    def __init__(self, app: ASGIApp, daemon: Daemon, pages: FastAPI) -> None:
        """`pages` is the application with the routes; `app` is the next middleware to it."""
        self._app, self._daemon, self._pages = app, daemon, pages
        self._public, self._host_lookups = public_pages(daemon), Lookups("host-names")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_page(scope["path"]):
            app: ASGIApp = self._app
            if scope["path"] == "/" and scope["method"] == "GET" and _is_for_browsers(scope):
                app = RedirectResponse(f"{PAGES}/", 303)
            await app(scope, receive, send)
            return
        scope.setdefault("app", self._pages)  # for answers made here
        request, is_static = Request(scope, receive), scope["path"].startswith(f"{PAGES}/static/")
        answer: Send = _PageSender(request, send, is_static)
        if live.UPDATE in request.headers:
            clock: live.ChangeClock = self._pages.state.change_clock
            answer = clock.charging(request, answer)
        await (await self._next(request))(scope, receive, answer)

    async def _next(self, request: Request) -> ASGIApp:
        """Return what answers a request for a page."""
        scope, web = request.scope, self._daemon.settings.web
        assert web is not None
        if not _is_for_browsers(scope):
            return self._app  # it refuses the caller
        try:
            require_sessions(request, self._daemon.settings)
        except ForbiddenError as error:
            return error_response(403, str(error))
        if not await has_valid_host(request, self._daemon, self._host_lookups):
            return error_response(
                421, "this daemon has another name, header Host; use the link of `metasched web`"
            )
        secret = session_secret(request, web)
        if is_proxied(request) and not secret:
            secret = scope["state"]["new_form_secret"] = new_secret()
        scope["state"]["form_secret"] = secret
        if scope["path"] == PAGES:
            return RedirectResponse(f"{PAGES}/", 303)
        if scope["path"] == SIGN_IN or scope["path"].startswith(f"{PAGES}/static/"):
            return self._public
        if not secret:
            return RedirectResponse(SIGN_IN, 303)
        return self._app


def _is_for_browsers(scope: Scope) -> bool:
    """Return whether the listener of a request is for browsers: TCP, or that of a proxy."""
    state = scope["state"]
    return state["connections"].is_proxy or state["connection"].uid is None


class _PageSender:
    """A `send` that sets the headers of pages, and sends errors of the API as pages."""

    def __init__(self, request: Request, send: Send, is_static: bool) -> None:
        self._request, self._send, self._is_static = request, send, is_static
        self._start: Message | None = None  # of an error whose body is not complete
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = Headers(raw=message["headers"])
            is_json = headers.get("content-type", "").startswith("application/json")
            if message["status"] >= 400 and is_json:
                self._start = message
                return
            await self._send(self._with_headers(message))
        elif self._start is None:
            await self._send(message)
        else:
            self._body = (self._body + message.get("body", b""))[:MAX_ERROR]
            if not message.get("more_body", False):
                await self._send_error(self._start["status"], Headers(raw=self._start["headers"]))

    def _with_headers(self, message: Message) -> Message:
        headers = MutableHeaders(raw=list(message["headers"]))
        headers.update(_HEADERS)
        if not self._is_static:
            headers["Cache-Control"] = "no-store"
        state: dict[str, Any] = self._request.scope["state"]
        if secret := state.get("new_form_secret"):
            headers.append("set-cookie", self._cookie(secret))
        return {**message, "headers": headers.raw}

    def _cookie(self, secret: str) -> str:
        """Return the cookie of a browser behind the proxy, for its forms alone."""
        daemon: Daemon = self._request.app.state.daemon
        web = daemon.settings.web
        assert web is not None
        name = cookie_name(self._request, web)
        cookie: SimpleCookie = SimpleCookie({name: secret})
        cookie[name] |= {"path": cookie_path(self._request, web), "httponly": True}
        cookie[name] |= {"samesite": "strict", "secure": comes_by_tls(self._request, web)}
        return cookie[name].OutputString()

    async def _send_error(self, status: int, headers: Headers) -> None:
        """Send an error of the API as a page; lead to the sign-in if the session has ended."""
        try:
            message = str(msgspec.json.decode(self._body)["error"])
        except (ValueError, KeyError, TypeError):
            message = "the daemon gives no reason; try again"
        request = self._request
        answer: Response
        if status == 401 and request.method == "GET" and not is_proxied(request):
            answer = RedirectResponse(SIGN_IN, 303)
        else:
            answer = page(request, "error.html", status, message=message)
        if "retry-after" in headers:
            answer.headers["Retry-After"] = headers["retry-after"]
        start: Message = {"type": "http.response.start", "status": answer.status_code}
        await self._send(self._with_headers({**start, "headers": answer.raw_headers}))
        body = b"" if request.method == "HEAD" else bytes(answer.body)
        await self._send({"type": "http.response.body", "body": body})
