"""Route that lists the tree of shares with the use of its accounts and users."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from metasched.api.identity import ForbiddenError
from metasched.api.readers import CurrentReaders
from metasched.api.request import CurrentCaller, CurrentService
from metasched.api.whole_answers import live_answer
from metasched.core.fair_share import Standing

router = APIRouter()


@router.get("/shares", response_model=list[dict[str, Any]])
async def shares(
    request: Request,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    user: str | None = None,
) -> Response:
    """List where a user stands in the tree of shares, with the accounts above him.

    None: the whole tree for those who may see all jobs, else where the caller stands.
    """
    if user is not None:
        if user != caller.user and not caller.sees_all:
            raise ForbiddenError(
                f"shares of {user}, and you are {caller.user}; ask {user} or an operator"
            )
    elif not caller.sees_all:
        user = caller.user
    fair_share = service.core.fair_share
    rows = fair_share.standings() if user is None else fair_share.standings_of(user)
    return await live_answer(request, readers, map(standing_row, rows))


def standing_row(standing: Standing) -> dict[str, Any]:
    """Return the JSON of an account or user of the tree."""
    return {
        "account": standing.account or None,
        "user": standing.user,
        "parent": standing.parent or None,
        "weight": standing.weight,
        "share": standing.share,
        "used": standing.used,
        "used_share": standing.used_share,
        "place": standing.place,
    }
