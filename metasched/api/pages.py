"""Listings in pages: the parameters `limit` and `cursor`, and the header with the next cursor.

A cursor is opaque to clients: it is the position after which the next page begins. It carries no
right: each page is read with the rights of its caller.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, NamedTuple

from fastapi import Depends, Query
from fastapi.responses import Response

from metasched.api.answers import encoded
from metasched.db.job_pages import MAX_EXAMINED
from metasched.errors import ApiError, quote_for_error
from metasched.paths import NEXT_CURSOR_HEADER

Row = dict[str, Any]
MAX_PAGE = MAX_EXAMINED  # rows
MAX_NUMBER = 2**63 - 1  # in a cursor: the largest integer of both databases

PageLimit = Annotated[int | None, Query(ge=1, le=MAX_PAGE, description="rows of a page")]
PageCursor = Annotated[
    str | None, Query(description="the header Metasched-Next-Cursor of the page before")
]


class IdPage(NamedTuple):
    """A page of a listing in the order of ids; its cursor is the last id of the page before."""

    after: int  # id
    size: int  # rows
    requested: bool  # False: the request wants all rows in one answer

    def answer(self, rows: list[Row], id_name: str) -> Response:
        """Encode the rows of the page, of up to `size + 1` rows; announce the next page."""
        answer = encoded(rows[: self.size])
        if len(rows) > self.size:
            answer.headers[NEXT_CURSOR_HEADER] = encode_cursor(rows[self.size - 1][id_name])
        return answer


async def _read_id_page(limit: PageLimit = None, cursor: PageCursor = None) -> IdPage:
    [after] = (0,) if cursor is None else decode_cursor(cursor, 1)
    return IdPage(after, limit or MAX_PAGE, limit is not None or cursor is not None)


RequestedPage = Annotated[IdPage, Depends(_read_id_page)]


def encode_cursor(*numbers: int) -> str:
    """Write non-negative numbers as a cursor."""
    return ".".join(map(str, numbers))


def decode_cursor(text: str, count: int) -> tuple[int, ...]:
    """Read a cursor of so many numbers. ApiError for any other text."""
    if re.fullmatch(rf"\d{{1,19}}(\.\d{{1,19}}){{{count - 1}}}", text, re.ASCII):
        numbers = tuple(map(int, text.split(".")))
        if max(numbers) <= MAX_NUMBER:
            return numbers
    raise ApiError(
        422, f"{quote_for_error(text)} is no cursor of this listing; send that of a page"
    )
