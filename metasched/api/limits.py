"""Route that lists the limits of the site and their use."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from metasched.api.identity import ForbiddenError
from metasched.api.lookups import AccountLookups
from metasched.api.readers import CurrentReaders
from metasched.api.request import CurrentCaller, CurrentService
from metasched.api.whole_answers import live_answer
from metasched.model.limits import LimitScope, ScopeKind

router = APIRouter()


@router.get("/limits", response_model=list[dict[str, Any]])
async def limits(
    request: Request,
    caller: CurrentCaller,
    service: CurrentService,
    accounts: AccountLookups,
    readers: CurrentReaders,
    user: str | None = None,
) -> Response:
    """List the limits that count a user's tasks.

    None: all limits for those who may see all jobs, else the caller's own.
    """
    if user is not None:
        if user != caller.user and not caller.sees_all:
            raise ForbiddenError(
                f"limits of {user}, and you are {caller.user}; ask {user} or an operator"
            )
    elif not caller.sees_all:
        user = caller.user
    scopes: set[LimitScope] | None = None
    if user is not None:
        settings = service.settings
        user_class, groups = await accounts.run(
            ("class", user), partial(settings.memberships_of, user)
        )
        scopes = {
            LimitScope(ScopeKind.ALL, ""),
            LimitScope(ScopeKind.USER, user),
            LimitScope(ScopeKind.CLASS, user_class),
            *(LimitScope(ScopeKind.GROUP, group) for group in groups),
        }
    rows = (
        {
            "scope": use.scope.kind,
            "name": use.scope.name or None,
            "limit": use.resource,
            "used": use.used,
            "maximum": use.maximum,
        }
        for use in service.core.limits.uses_of(scopes)
    )
    return await live_answer(request, readers, rows)
