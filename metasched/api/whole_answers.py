"""Whole answers of any size: readers write the text to a file, which is sent as the client reads.

So few rows are in memory, a slow client holds neither a thread nor the database, and a failure of
the database comes before the first byte. Clients need the length of an answer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from metasched.api.readers import Readers, ReadingKind
from metasched.errors import ApiError

MEMORY = 1 << 20  # bytes of an answer that stay in memory; a longer one is in a temporary file
PORTION = 1 << 18  # bytes sent at a time
_JSON = "application/json"


async def whole_answer(
    request: Request, readers: Readers, kind: ReadingKind, write: Callable[[], Iterable[bytes]]
) -> Response:
    """Answer with the JSON text whose parts `write` yields in threads of readers.

    ApiError if there is no room for the file.
    """
    text = tempfile.SpooledTemporaryFile(max_size=MEMORY)  # noqa: SIM115 - closed when it is sent
    request.state.until_answered.callback(text.close)

    def store() -> Iterator[int]:
        for part in write():
            yield _store(text, part)

    length = sum(await readers.run_portions(request, kind, store()))
    text.seek(0)
    if length <= MEMORY:
        return Response(text.read(), media_type=_JSON)
    headers = {"Content-Length": str(length)}
    return StreamingResponse(_portions(text), headers=headers, media_type=_JSON)


def joined(head: bytes, lists: Iterable[bytes], tail: bytes) -> Iterator[bytes]:
    """Yield the parts of a JSON text with one list of the elements of several encoded lists."""
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


def _store(text: IO[bytes], part: bytes) -> int:
    """Write a part of an answer; return its length."""
    try:
        return text.write(part)
    except OSError as error:
        raise ApiError(
            503,
            f"no room for the answer ({error.strerror}), {tempfile.gettempdir()}; request pages, "
            "or free space there",
        ) from None


def _portions(text: IO[bytes]) -> Iterator[bytes]:
    """Yield a file in portions; the server calls this in a thread for each."""
    while portion := text.read(PORTION):
        yield portion
