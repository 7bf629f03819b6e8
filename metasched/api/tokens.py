"""Routes that create, list and revoke tokens for calls from other hosts."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response

from metasched.api.identity import ForbiddenError
from metasched.api.pages import RequestedPage
from metasched.api.readers import CurrentReaders, ReadingKind
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.errors import ApiError
from metasched.units import iso

MAX_LIFETIME = 366 * 86400.0  # seconds

router = APIRouter()


@dataclass(frozen=True)
class TokenLifetime:
    """Lifetime of a new token."""

    seconds: float


@router.post("/tokens")
async def create_token(
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    _: CurrentService,
    lifetime: Annotated[TokenLifetime, Body()],
) -> dict[str, Any]:
    if caller.by_token:
        raise ForbiddenError(
            "a token cannot create tokens; call with MUNGE or from the daemon's host"
        )
    if daemon.settings.tcp is None or not daemon.settings.tcp.tokens:
        raise ForbiddenError("tokens are not enabled; the site can enable them in [tcp]")
    if not 0 < lifetime.seconds <= MAX_LIFETIME:
        raise ApiError(
            422, f"a token is valid for at most {MAX_LIFETIME / 86400:g} days; request less"
        )
    secret, now = f"ms_{secrets.token_urlsafe(32)}", time.time()
    token_id = daemon.ledger.add_token(caller.user, secret, now, now + lifetime.seconds)
    return {"id": token_id, "token": secret, "expires": iso(now + lifetime.seconds)}


@router.get("/tokens")
async def tokens(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    readers: CurrentReaders,
    response: Response,
    page: RequestedPage,
) -> list[dict[str, Any]]:
    time_fields = ("created", "expires", "revoked")

    def list_tokens() -> list[dict[str, Any]]:
        user = None if caller.operator else caller.user
        limit = page.size + 1 if page.requested else None
        stored = daemon.ledger.tokens(user, page.after, limit)
        rows = [row | {name: iso(row[name]) for name in time_fields} for row in stored]
        return page.cut(rows, "id", response) if page.requested else rows

    return await readers.run(request, ReadingKind.LISTING, list_tokens)


@router.post("/tokens/{id}/revoke")
async def revoke_token(
    daemon: CurrentDaemon, caller: CurrentCaller, _: CurrentService, id: int
) -> dict[str, Any]:
    owner = daemon.ledger.token_owner(id)
    if owner is None or not (caller.operator or owner == caller.user):
        raise ApiError(404, f"you have no token {id}; see `metasched token list`")
    daemon.ledger.revoke_token(id, time.time())
    return {"id": id}
