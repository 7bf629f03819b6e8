"""The view of licences: their tokens, who holds them, and what waits for them."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from metasched.api.licences import licence_servers, licences
from metasched.api.pages import KeyPage, PageCursor, decode_key
from metasched.api.readers import CurrentReaders
from metasched.api.request import CurrentCaller, CurrentService
from metasched.web.api_calls import answer_of
from metasched.web.rendering import page

ROWS = 50  # licences of a page, each with its holders

router = APIRouter()


@router.get("/licences")
async def show_licences(
    request: Request,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    cursor: PageCursor = None,
) -> Response:
    after = None if cursor is None else decode_key(cursor, 1)
    listed = await answer_of(
        request, licences(request, caller, service, readers, KeyPage(after, ROWS, True))
    )
    return page(
        request,
        "licences.html",
        licences=listed.content,
        servers=await licence_servers(caller, service),
        cursor=cursor,
        next_cursor=listed.next_cursor,
    )
