"""Route that lists the limits of the site and their use."""

from __future__ import annotations

from functools import partial
from heapq import nsmallest
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from metasched.api.identity import ForbiddenError
from metasched.api.lookups import AccountLookups
from metasched.api.pages import Key, KeyPage, key_page
from metasched.api.readers import CurrentReaders, ReadingKind
from metasched.api.request import CurrentCaller, CurrentService
from metasched.api.whole_answers import live_answer, live_page
from metasched.client.site_answers import LimitRow
from metasched.model.limits import LimitScope, LimitUse, ScopeKind

router = APIRouter()


@router.get("/limits", response_model=list[LimitRow])
async def limits(
    request: Request,
    caller: CurrentCaller,
    service: CurrentService,
    accounts: AccountLookups,
    readers: CurrentReaders,
    page: Annotated[KeyPage, Depends(key_page(3))],
    user: str | None = None,
) -> Response:
    """List the limits that count a user's tasks, by scope, name and limit.

    None: all limits for those who may see all jobs, else the caller's own.
    """
    if user is not None:
        if user != caller.user and not caller.sees_all:
            raise ForbiddenError(
                f"limits of {user}, and you are {caller.user}; ask {user} or an operator"
            )
    elif not caller.sees_all:
        user = caller.user
    limits = service.core.limits
    if user is None:
        scopes = await readers.read_in_loop(request, limits.scopes)
    else:
        settings = service.settings
        user_class, groups = await accounts.run(
            ("class", user), partial(settings.memberships_of, user)
        )
        scopes = [
            LimitScope(ScopeKind.ALL, ""),
            LimitScope(ScopeKind.USER, user),
            LimitScope(ScopeKind.CLASS, user_class),
            *(LimitScope(ScopeKind.GROUP, group) for group in set(groups)),
        ]

    def in_order() -> list[LimitScope]:
        # the scope of the cursor may have further limits; each other scope has at least one
        first = ("", "") if page.after is None else page.after[:2]
        return nsmallest(page.size + 2, (scope for scope in scopes if scope >= first))

    if page.requested:
        ordered = await readers.run(request, ReadingKind.LISTING, in_order, until_answered=False)
        uses = ((_key(use), _limit_row(use)) for use in limits.uses_of(ordered))
        rows = ((key, row) for key, row in uses if page.follows(key))
        return await live_page(request, readers, rows, page)
    ordered = await readers.run(
        request, ReadingKind.LISTING, lambda: sorted(scopes), until_answered=False
    )
    return await live_answer(request, readers, map(_limit_row, limits.uses_of(ordered)))


def _key(use: LimitUse) -> Key:
    return use.scope.kind, use.scope.name, use.resource


def _limit_row(use: LimitUse) -> LimitRow:
    return {
        "scope": use.scope.kind,
        "name": use.scope.name or None,
        "limit": use.resource,
        "used": use.used,
        "maximum": use.maximum,
    }
