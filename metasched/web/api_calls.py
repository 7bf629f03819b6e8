"""Calls of the API's routes by pages: with the rights of the caller, in the caller's turns."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response, StreamingResponse

from metasched.paths import NEXT_CURSOR_HEADER


@dataclass(frozen=True)
class Answer:
    """The decoded answer of a route."""

    content: Any  # as its JSON
    next_cursor: str | None  # None: there is no next page


@contextlib.asynccontextmanager
async def turn_of(request: Request) -> AsyncIterator[None]:
    """End the caller's turn after the block: a page that reads twice never holds two turns."""
    whole_request = request.state.until_answered
    async with contextlib.AsyncExitStack() as stack:
        request.state.until_answered = stack
        try:
            yield
        finally:
            request.state.until_answered = whole_request


async def answer_of(request: Request, call: Awaitable[Response]) -> Answer:
    """Await a route that was called with `request`, and decode its answer, in a turn of its own."""
    async with turn_of(request):
        response = await call
        content = msgspec.json.decode(await _body_of(response))
    return Answer(content, response.headers.get(NEXT_CURSOR_HEADER))


async def _body_of(response: Response) -> bytes:
    if not isinstance(response, StreamingResponse):
        return bytes(response.body)
    parts = [
        part.encode() if isinstance(part, str) else bytes(part)
        async for part in response.body_iterator
    ]
    return b"".join(parts)
