"""Bodies of POST requests of pages, safe against requests that other sites cause."""

from __future__ import annotations

import hmac
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, Request

from metasched.api.identity import ForbiddenError
from metasched.errors import ApiError

MAX_FORM = 1 << 16  # bytes
MAX_FIELDS = 100
TOKEN_FIELD = "form_token"
_CONTENT_TYPE = "application/x-www-form-urlencoded"


def form_token(request: Request) -> str:
    """Return the token that forms carry. It reveals nothing of the secret in the cookie."""
    secret: str = getattr(request.state, "form_secret", "")
    return hmac.digest(secret.encode(), b"forms of metasched", "sha256").hex() if secret else ""


def require_same_origin(request: Request) -> None:
    """Raise ForbiddenError unless a page of this host has sent the request.

    All browsers of the last years send `Sec-Fetch-Site` or `Origin` with a POST.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    host = request.headers.get("host", "").lower()
    is_own = site == "same-origin" if site is not None else origin is not None
    if origin is not None and _authority(origin) != host:
        is_own = False
    if not is_own:
        raise ForbiddenError("the form was sent by another site; open the page here and try again")


def _authority(origin: str) -> str | None:
    """Return the host and port of an origin; None if it is no URL."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # as for http://[
        return None


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form, the last of each name. ApiError if it is none, or too large."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != _CONTENT_TYPE:
        raise ApiError(415, f"no form, the body of the request; send {_CONTENT_TYPE}")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM:
            raise ApiError(413, f"more than {MAX_FORM} bytes, the form; write less")
    try:
        fields = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
        )
    except ValueError:
        raise ApiError(422, "the form cannot be read; send it from its page") from None
    return dict(fields)


async def _checked_form(request: Request) -> dict[str, str]:
    """Return the fields of a form that the caller's own page has sent, without its token."""
    require_same_origin(request)
    fields = await read_form(request)
    expected, shown = form_token(request), fields.pop(TOKEN_FIELD, "")
    if not expected or not hmac.compare_digest(expected.encode(), shown.encode()):
        raise ForbiddenError("the form is of another session; open its page again")
    return fields


# every POST of a page depends on it
CheckedForm = Annotated[dict[str, str], Depends(_checked_form)]
