"""Route that lists the tree of shares with the use of its accounts and users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from metasched.api.identity import ForbiddenError
from metasched.api.pages import Key, KeyPage, Row, key_page
from metasched.api.readers import CurrentReaders, ReadingKind
from metasched.api.request import CurrentCaller, CurrentService
from metasched.api.whole_answers import encoded_in_portions, joined, whole_answer
from metasched.client.site_answers import ShareRow
from metasched.core.share_standings import Standing

router = APIRouter()


@router.get("/shares", response_model=list[ShareRow])
async def shares(
    request: Request,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    page: Annotated[KeyPage, Depends(key_page(3))],
    user: str | None = None,
) -> Response:
    """List where a user stands in the tree of shares, with the accounts above him.

    None: the whole tree for those who may see all jobs, else the caller's part. Users are in the
    order of their turns; in pages, by account and name, since their places change.
    """
    if user is not None:
        if user != caller.user and not caller.sees_all:
            raise ForbiddenError(
                f"shares of {user}, and you are {caller.user}; ask {user} or an operator"
            )
    elif not caller.sees_all:
        user = caller.user
    standings = await readers.read_in_loop(request, service.core.fair_share.standings)

    def rows() -> Iterator[Standing]:
        return iter(standings) if user is None else standings.of_user(user)

    if page.requested:
        return await readers.run(
            request, ReadingKind.LISTING, lambda: page.answer(_keyed_rows(rows()))
        )

    def write() -> Iterator[bytes]:
        return joined(b"[", encoded_in_portions(map(standing_row, rows())), b"]")

    return await whole_answer(request, readers, ReadingKind.LISTING, write)


def _keyed_rows(standings: Iterable[Standing]) -> Iterator[tuple[Key, Row]]:
    """Yield rows with their keys: accounts in the order of the tree, then users."""
    for position, standing in enumerate(standings):
        if standing.user is None:
            key: Key = ("account", f"{position:08}", "")
        else:
            key = ("user", standing.account, standing.user)
        yield key, standing_row(standing)


def standing_row(standing: Standing) -> ShareRow:
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
