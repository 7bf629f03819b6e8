"""Listings in pages: the parameters `limit` and `cursor`, and the header with the next cursor.

A cursor is opaque to clients: it is the position after which the next page begins. It carries no
right: each page is read with the rights of its caller.
"""

from __future__ import annotations

import re
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Annotated, Any, NamedTuple

import msgspec
from fastapi import Depends, Query
from fastapi.responses import Response

from metasched.api.answers import encoded
from metasched.db.job_pages import MAX_EXAMINED
from metasched.errors import ApiError, quote_for_error
from metasched.paths import NEXT_CURSOR_HEADER

Row = Mapping[str, Any]
Key = tuple[str, ...]  # of a row: texts that order a listing
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

    def answer(self, rows: Sequence[Row], id_name: str) -> Response:
        """Encode the rows of the page, of up to `size + 1` rows; announce the next page."""
        answer = encoded(rows[: self.size])
        if len(rows) > self.size:
            answer.headers[NEXT_CURSOR_HEADER] = encode_cursor(rows[self.size - 1][id_name])
        return answer


async def _read_id_page(limit: PageLimit = None, cursor: PageCursor = None) -> IdPage:
    [after] = (0,) if cursor is None else decode_cursor(cursor, 1)
    return IdPage(after, limit or MAX_PAGE, limit is not None or cursor is not None)


RequestedPage = Annotated[IdPage, Depends(_read_id_page)]


class KeyPage(NamedTuple):
    """A page of a listing in the order of keys; its cursor is the last key of the page before."""

    after: Key | None  # None: the first page
    size: int  # rows
    requested: bool  # False: the request wants all rows in one answer

    def follows(self, key: Key) -> bool:
        """Return whether a row is on this page or on one after it."""
        return self.after is None or key > self.after

    def answer(self, rows: Iterable[tuple[Key, Row]]) -> Response:
        """Encode the rows of the page, of those of all pages; announce the next page."""
        later = ((key, row) for key, row in rows if self.follows(key))
        page = nsmallest(self.size + 1, later, key=lambda entry: entry[0])
        answer = encoded([row for _, row in islice(page, self.size)])
        if len(page) > self.size:
            answer.headers[NEXT_CURSOR_HEADER] = encode_key(page[self.size - 1][0])
        return answer


def key_page(length: int) -> Callable[..., Awaitable[KeyPage]]:
    """Return the reader of the page parameters of a listing by keys of so many texts."""

    async def read_key_page(limit: PageLimit = None, cursor: PageCursor = None) -> KeyPage:
        after = None if cursor is None else decode_key(cursor, length)
        return KeyPage(after, limit or MAX_PAGE, limit is not None or cursor is not None)

    return read_key_page


def encode_cursor(*numbers: int) -> str:
    """Write non-negative numbers as a cursor."""
    return ".".join(map(str, numbers))


def decode_cursor(text: str, count: int) -> tuple[int, ...]:
    """Read a cursor of so many numbers. ApiError for any other text.

    The last of several numbers may be -1: the position before the first of its parent.
    """
    last = r"(-1|\d{1,19})" if count > 1 else r"\d{1,19}"
    if re.fullmatch(rf"(\d{{1,19}}\.){{{count - 1}}}{last}", text, re.ASCII):
        numbers = tuple(map(int, text.split(".")))
        if max(numbers) <= MAX_NUMBER:
            return numbers
    raise _cursor_error(text)


def encode_key(key: Key) -> str:
    """Write a key as a cursor."""
    return urlsafe_b64encode(msgspec.json.encode(key)).rstrip(b"=").decode()


def decode_key(text: str, length: int) -> Key:
    """Read a cursor that is a key of so many texts. ApiError for any other text."""
    try:
        padded = text + "=" * (-len(text) % 4)
        key = msgspec.json.decode(b64decode(padded, b"-_", validate=True), type=tuple[str, ...])
    except ValueError:  # also of msgspec, and if the text is not ASCII
        raise _cursor_error(text) from None
    if len(key) != length:
        raise _cursor_error(text)
    return key


def _cursor_error(text: str) -> ApiError:
    return ApiError(
        422, f"{quote_for_error(text)} is no cursor of this listing; send that of a page"
    )
