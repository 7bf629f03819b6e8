"""Tokens by which users call from other hosts."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body

from metasched.api.identity import Forbidden
from metasched.api.request import Running, Serving, Who
from metasched.errors import Wrong
from metasched.units import iso

LONGEST_TOKEN = 366 * 86400.0  # seconds

router = APIRouter()


@dataclass(frozen=True)
class Lifetime:
    """How long a token is good for."""

    seconds: float


@router.post("/tokens")
async def create_token(
    daemon: Serving, who: Who, _: Running, wanted: Annotated[Lifetime, Body()]
) -> dict[str, Any]:
    if who.by_token:
        raise Forbidden("a token makes no tokens; call with MUNGE or from the daemon's host")
    if daemon.settings.tcp is None or not daemon.settings.tcp.tokens:
        raise Forbidden("no tokens are taken here; the site allows them in [tcp]")
    if not 0 < wanted.seconds <= LONGEST_TOKEN:
        raise Wrong(422, f"a token lasts up to {LONGEST_TOKEN / 86400:g} days; ask for that")
    secret, now = f"ms_{secrets.token_urlsafe(32)}", time.time()
    id = daemon.ledger.add_token(who.user, secret, now, now + wanted.seconds)
    return {"id": id, "token": secret, "expires": iso(now + wanted.seconds)}


@router.get("/tokens")
async def tokens(daemon: Serving, who: Who) -> list[dict[str, Any]]:
    rows = daemon.ledger.tokens(None if who.operator else who.user)
    times = ("created", "expires", "revoked")
    return [row | {name: iso(row[name]) for name in times} for row in rows]


@router.post("/tokens/{id}/revoke")
async def revoke_token(daemon: Serving, who: Who, _: Running, id: int) -> dict[str, Any]:
    rows = daemon.ledger.tokens(None if who.operator else who.user)
    if id not in {row["id"] for row in rows}:
        raise Wrong(404, f"you have no token {id}; see `metasched token list`")
    daemon.ledger.revoke_token(id, time.time())
    return {"id": id}
