"""Routes that create, list and revoke tokens for calls from other hosts."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body

from metasched.api.identity import ForbiddenError
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
async def tokens(daemon: CurrentDaemon, caller: CurrentCaller) -> list[dict[str, Any]]:
    rows = daemon.ledger.tokens(None if caller.operator else caller.user)
    time_fields = ("created", "expires", "revoked")
    return [row | {name: iso(row[name]) for name in time_fields} for row in rows]


@router.post("/tokens/{id}/revoke")
async def revoke_token(
    daemon: CurrentDaemon, caller: CurrentCaller, _: CurrentService, id: int
) -> dict[str, Any]:
    rows = daemon.ledger.tokens(None if caller.operator else caller.user)
    if id not in {row["id"] for row in rows}:
        raise ApiError(404, f"you have no token {id}; see `metasched token list`")
    daemon.ledger.revoke_token(id, time.time())
    return {"id": id}
