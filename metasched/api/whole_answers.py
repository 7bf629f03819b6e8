"""Whole answers of any size: their text goes to a file, which is sent as the client reads.

So few rows are in memory, a slow client holds neither a thread nor the database, and a failure of
the database comes before the first byte. Clients need the length of an answer. The files have no
name, so they vanish with the daemon, and all of them together have an `AnswerRoom`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec
from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from metasched.api.answer_room import AnswerRoom
from metasched.api.pages import IdPage, Key, KeyPage, Row, encode_cursor, encode_key
from metasched.api.readers import Readers, ReadingKind
from metasched.errors import ApiError
from metasched.paths import NEXT_CURSOR_HEADER

MEMORY = 1 << 20  # bytes of an answer that stay in memory; a longer answer is in a temporary file
PORTION = 1 << 18  # bytes sent at a time
LIVE_SECONDS = 0.005  # for which rows of the scheduler's state are read before others are served
_JSON = "application/json"


class AnswerFile:
    """The text of an answer: in memory, or in a file without a name if it is long."""

    def __init__(self, room: AnswerRoom, user: str) -> None:
        self._room, self._user = room, user
        self._text = tempfile.SpooledTemporaryFile(max_size=MEMORY)  # noqa: SIM115 - see `close`
        self._taken = 0  # bytes of the room
        self.length = 0  # bytes

    def write(self, part: bytes) -> None:
        """Append a part. ApiError if there is no room."""
        length = self.length + len(part)
        if length > MEMORY:
            self._room.take(self._user, length - self._taken)
            self._taken = length
        try:
            self._text.write(part)
        except OSError as error:
            raise ApiError(
                503,
                f"no room for the answer ({error.strerror}), {tempfile.gettempdir()}; "
                "request pages by limit and cursor, or free space there",
            ) from None
        self.length = length

    def answer(self, media_type: str = _JSON) -> Response:
        """Return the response that sends the text."""
        self._text.seek(0)
        if self.length <= MEMORY:
            return Response(self._text.read(), media_type=media_type)
        headers = {"Content-Length": str(self.length)}
        return StreamingResponse(self._portions(), headers=headers, media_type=media_type)

    def _portions(self) -> Iterator[bytes]:
        """Yield the file in portions; the server calls this in a thread for each."""
        while portion := self._text.read(PORTION):
            yield portion

    def close(self) -> None:
        """Remove the file and give back its room."""
        self._text.close()
        self._room.give_back(self._user, self._taken)
        self._taken = 0


async def whole_answer(
    request: Request, readers: Readers, kind: ReadingKind, write: Callable[[], Iterable[bytes]]
) -> Response:
    """Answer with the JSON text whose parts `write` yields in threads of readers.

    ApiError if there is no room for the file.
    """
    file = _new_file(request, readers)

    def store() -> Iterator[bool]:
        for part in write():
            file.write(part)
            yield True

    await readers.run_portions(request, kind, store())
    return file.answer()


async def live_answer(
    request: Request, readers: Readers, rows: Iterable[object], page: IdPage | None = None
) -> Response:
    """Answer with rows of the scheduler's state, which its own thread reads a few at a time.

    A page is a part of the rows by their positions; so these must not change.
    """
    file, later_rows = _new_file(request, readers), iter(rows)
    if page is not None and page.requested:
        rows = islice(islice(later_rows, page.after, None), page.size)
    else:
        rows, later_rows = later_rows, iter(())

    def store() -> Iterator[bool]:
        for part in joined(b"[", encoded_in_portions(rows), b"]"):
            file.write(part)
            yield True

    await readers.run_in_loop(request, store())
    answer = file.answer()
    if page is not None and next(later_rows, None) is not None:
        answer.headers[NEXT_CURSOR_HEADER] = encode_cursor(page.after + page.size)
    return answer


async def live_page(
    request: Request, readers: Readers, rows: Iterable[tuple[Key, Row]], page: KeyPage
) -> Response:
    """Answer with a page of the scheduler's state, read as by `live_answer`.

    `rows`, in order, begin with the first row of the page.
    """
    file, remaining, last = _new_file(request, readers), iter(rows), page.after

    def rows_of_page() -> Iterator[Row]:
        nonlocal last
        for key, row in islice(remaining, page.size):
            last = key
            yield row

    def store() -> Iterator[bool]:
        for part in joined(b"[", encoded_in_portions(rows_of_page()), b"]"):
            file.write(part)
            yield True

    await readers.run_in_loop(request, store())
    answer = file.answer()
    if last is not None and next(remaining, None) is not None:
        answer.headers[NEXT_CURSOR_HEADER] = encode_key(last)
    return answer


def encoded_in_portions(rows: Iterable[object]) -> Iterator[bytes]:
    """Yield lists of rows; each took the time of a portion."""
    portion: list[object] = []
    until = time.perf_counter() + LIVE_SECONDS
    for row in rows:
        portion.append(row)
        if time.perf_counter() > until:
            yield msgspec.json.encode(portion)
            portion, until = [], time.perf_counter() + LIVE_SECONDS
    yield msgspec.json.encode(portion)


def _new_file(request: Request, readers: Readers) -> AnswerFile:
    """Return a file that is closed when the request is answered."""
    file = AnswerFile(readers.answer_room, request.state.caller.user)
    request.state.until_answered.callback(file.close)
    return file


def joined(head: bytes, lists: Iterable[bytes], tail: bytes) -> Iterator[bytes]:
    """Yield the parts of a JSON text that joins several encoded lists."""
    text, separator = head, b""
    for encoded in lists:
        if encoded == b"[]":
            continue
        if separator:
            yield text
            text = b""
        text += separator + encoded[1:-1]
        separator = b","
    yield text + tail
