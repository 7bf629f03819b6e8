"""Routes that create, list and revoke tokens for calls from other hosts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Body, Request
from fastapi.responses import Response

from metasched.api.browsers import LINK_SECONDS, PAGES, new_secret
from metasched.api.identity import BEARER_SCOPES, ForbiddenError
from metasched.api.pages import RequestedPage
from metasched.api.readers import CurrentReaders, ReadingKind
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.api.whole_answers import joined, whole_answer
from metasched.client.site_answers import NewLink, NewTokenRow, RevokedToken, TokenRow
from metasched.errors import ApiError
from metasched.model.token_scope import TokenScope
from metasched.model.units import iso

PORTION = 1_000  # tokens that are read at a time
TIME_FIELDS = ("created", "expires", "revoked")
MAX_LIFETIME = 366 * 86400.0  # seconds

router = APIRouter()


@dataclass(frozen=True)
class NewToken:
    """Lifetime and scope of a new token."""

    seconds: float
    scope: TokenScope = TokenScope.USER


@router.post("/tokens")
async def create_token(
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    _: CurrentService,
    requested: Annotated[NewToken, Body()],
) -> NewTokenRow:
    if caller.by_token:
        raise ForbiddenError(
            "a token cannot create tokens; call with MUNGE or from the daemon's host"
        )
    if daemon.settings.tcp is None or not daemon.settings.tcp.tokens:
        raise ForbiddenError("tokens are not enabled; the site can enable them in [tcp]")
    if requested.scope not in BEARER_SCOPES:
        raise ApiError(422, f"scope {requested.scope}; request user or metrics")
    if requested.scope is TokenScope.METRICS:
        caller.require_operator("create tokens for metrics")
    if not 0 < requested.seconds <= MAX_LIFETIME:
        raise ApiError(
            422, f"a token is valid for at most {MAX_LIFETIME / 86400:g} days; request less"
        )
    secret, now = f"ms_{secrets.token_urlsafe(32)}", time.time()
    expires = now + requested.seconds
    token_id = daemon.ledger.add_token(caller.user, secret, now, expires, requested.scope)
    return {"id": token_id, "token": secret, "expires": iso(expires), "scope": requested.scope}


@router.post("/tokens/link")
async def create_link(daemon: CurrentDaemon, caller: CurrentCaller, _: CurrentService) -> NewLink:
    """Make a link that signs a browser in once, for the caller."""
    if caller.by_token:
        raise ForbiddenError(
            "a token cannot make links; write it into the form of the page, or call with MUNGE or "
            "from the daemon's host"
        )
    web = daemon.settings.web
    if web is None or not web.url:
        raise ForbiddenError("pages are not enabled; the site can enable them by [web] and [tcp]")
    secret, now = new_secret(), time.time()
    expires = now + LINK_SECONDS
    daemon.ledger.add_token(caller.user, secret, now, expires, TokenScope.LINK)
    return {"url": f"{web.url}{PAGES}/sign-in?link={secret}", "expires": iso(expires)}


@router.get("/tokens", response_model=list[TokenRow])
async def tokens(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    readers: CurrentReaders,
    page: RequestedPage,
) -> Response:
    """List tokens by id, without their secrets: those of the caller; all to an operator."""
    user = None if caller.operator else caller.user

    def read(after: int, limit: int) -> list[dict[str, Any]]:
        stored = daemon.ledger.tokens(user, after, limit)
        return [row | {name: iso(row[name]) for name in TIME_FIELDS} for row in stored]

    def list_all() -> Iterator[bytes]:
        def portions() -> Iterator[bytes]:
            after = 0
            while rows := read(after, PORTION):
                yield msgspec.json.encode(rows)
                after = rows[-1]["id"]

        yield from joined(b"[", portions(), b"]")

    if page.requested:
        return await readers.run(
            request,
            ReadingKind.LISTING,
            lambda: page.answer(read(page.after, page.size + 1), "id"),
        )
    return await whole_answer(request, readers, ReadingKind.LISTING, list_all)


@router.post("/tokens/{id}/revoke")
async def revoke_token(
    daemon: CurrentDaemon, caller: CurrentCaller, _: CurrentService, id: int
) -> RevokedToken:
    owner = daemon.ledger.token_owner(id)
    if owner is None or not (caller.operator or owner == caller.user):
        raise ApiError(404, f"you have no token {id}; see `metasched token list`")
    daemon.ledger.revoke_token(id, time.time(), caller.user)
    return {"id": id}
