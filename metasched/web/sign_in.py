"""Pages without a caller: the form that signs in, and static files."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from metasched.api.admission import error_response
from metasched.api.browsers import (
    PAGES,
    SESSION_SECONDS,
    comes_by_tls,
    cookie_name,
    cookie_path,
    find_opener,
    open_session,
)
from metasched.api.identity import ForbiddenError
from metasched.api.lookups import Lookups
from metasched.daemon.service import Daemon
from metasched.db.sessions import TooManySignIns
from metasched.db.store import StorageFailed, StorageUncertain
from metasched.errors import ApiError
from metasched.web.forms import read_form, require_same_origin
from metasched.web.rendering import page

STATIC = Path(__file__).with_name("static")
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = {
    path.name: (path.read_bytes(), _TYPES[path.suffix])
    for path in STATIC.iterdir()
    if path.suffix in _TYPES
}
SIGN_IN = f"{PAGES}/sign-in"
_PROBLEM = "This link or token is unknown, used, expired or revoked."


async def _static(request: Request) -> Response:
    """Send a file of this package. A new release may have others, so browsers ask again."""
    content, media_type = _FILES.get(request.path_params["name"], (b"", ""))
    if not media_type:
        return Response("no such file", 404, media_type="text/plain")
    return Response(content, media_type=media_type, headers={"Cache-Control": "no-cache"})


async def _show(request: Request) -> Response:
    """Show the form. A link is used up by its button alone: programs open links, too."""
    link, problem, user = request.query_params.get("link", ""), "", None
    if link:
        user = await _find_user(request, link)
        problem = "" if user is not None else _PROBLEM
    # a browser leaves out the cookie when another site leads here
    is_led_here = request.headers.get("sec-fetch-site") == "cross-site"
    return page(
        request,
        "sign_in.html",
        400 if problem else 200,
        link_secret=link if user else "",
        user=user,
        problem=problem,
        is_led_here=is_led_here,
    )


async def _sign_in(request: Request) -> Response:
    """Open a session with a one-time link or a token, and set its cookie."""
    require_same_origin(request)
    daemon: Daemon = request.app.state.daemon
    web = daemon.settings.web
    assert web is not None
    opener = (await read_form(request)).get("secret", "").strip()
    secret = None
    if await _find_user(request, opener) is not None:
        try:
            secret = open_session(request, daemon, opener)
        except TooManySignIns:
            raise ApiError(429, "too many sign-ins of this account; try again in an hour") from None
        except (StorageFailed, StorageUncertain):
            raise _away() from None
    if secret is None:
        return page(
            request,
            "sign_in.html",
            403,
            link_secret="",
            user=None,
            problem=_PROBLEM,
            is_led_here=False,
        )
    response = RedirectResponse(f"{PAGES}/", 303)
    response.set_cookie(
        cookie_name(request, web),
        secret,
        max_age=int(SESSION_SECONDS),
        path=cookie_path(request, web),
        secure=comes_by_tls(request, web),
        httponly=True,
        samesite="strict",
    )
    return response


async def _find_user(request: Request, opener: str) -> str | None:
    daemon: Daemon = request.app.state.daemon
    lookups: Lookups = request.app.state.openers
    if (reason := daemon.unavailable_reason) is not None:
        raise ApiError(503, f"{reason}; try again soon")
    try:
        return await find_opener(opener, daemon, lookups)
    except StorageFailed:
        raise _away() from None


def _away() -> ApiError:
    return ApiError(503, "nobody can sign in while the database is away; try again soon")


async def _error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error.status, str(error))


async def _forbidden(_: Request, error: Exception) -> Response:
    return error_response(403, str(error))


def public_pages(daemon: Daemon) -> Starlette:
    """Return the application of the pages without a caller."""
    app = Starlette(
        exception_handlers={ApiError: _error, ForbiddenError: _forbidden},
        routes=[
            Route(f"{PAGES}/static/{{name}}", _static),
            Route(SIGN_IN, _show),
            Route(SIGN_IN, _sign_in, methods=["POST"]),
        ],
    )
    app.state.daemon, app.state.openers = daemon, Lookups("sign-in")
    return app
