"""Reading requests: in threads, a few at a time; each user has one of a kind, and is throttled.

An answer may have a million rows. It stays in memory until its client has read it. So the turn of a
request lasts until it is answered, and a user who reads slowly, or floods the daemon with listings,
waits for himself alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import islice
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from metasched.api.answer_room import AnswerRoom
from metasched.api.connections import Connection
from metasched.api.identity import Caller
from metasched.api.throttle import WHOLE_REQUEST, Reader, Throttle
from metasched.config.settings import RequestLimits
from metasched.errors import ApiError

MAX_READERS = 3  # of a kind at a time, over all users: each has a thread and a database connection
MAX_QUEUED = 64  # reading requests of a user that run or wait; their clients may be gone

Result = TypeVar("Result")


class ReadingKind(StrEnum):
    """Kinds of reading requests. One of a user waits for none of another kind."""

    LISTING = "listing"  # of any number of jobs or reservations
    NAMED = "named"  # of jobs that the request names
    SELECTION = "selection"  # of the tasks to change
    LIVE = "live"  # of the scheduler's state, in its thread


class Readers:
    """Turns of all users."""

    def __init__(self, throttle: Throttle, max_answers: int = RequestLimits.max_answers) -> None:
        """`max_answers`: most bytes of answers in files."""
        self._throttle = throttle
        self.answer_room = AnswerRoom(max_answers)
        self._turns: defaultdict[tuple[ReadingKind, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._holders: dict[tuple[ReadingKind, str], Request] = {}  # whose turn it is
        self._readers = {kind: asyncio.Semaphore(MAX_READERS) for kind in ReadingKind}
        self._queued: Counter[str] = Counter()  # by user

    async def run(
        self,
        request: Request,
        kind: ReadingKind,
        read: Callable[[], Result],
        *,
        until_answered: bool = True,
    ) -> Result:
        """Call `read` in a thread when it is the turn of the caller.

        `until_answered` False: the turn ends with the call; for small results.
        ApiError if too many requests of the caller wait.
        """
        async with contextlib.AsyncExitStack() as brief:
            stack = request.state.until_answered if until_answered else brief
            await self._take_turn(request, kind, stack)
            return await self._read(request, kind, read)

    async def run_portions(
        self, request: Request, kind: ReadingKind, portions: Iterator[Result]
    ) -> list[Result]:
        """Iterate over `portions` in threads, within a turn of the caller, and return them.

        Others read, and the caller may have to wait, between two portions. ApiError as of `run`.
        """
        await self._take_turn(request, kind, request.state.until_answered)
        read = []
        while portion := await self._read(request, kind, lambda: list(islice(portions, 1))):
            read += portion
        return read

    async def run_in_loop(self, request: Request, portions: Iterator[object]) -> None:
        """Iterate over `portions` in this thread, within a turn of the caller; others go between.

        `Throttle` counts the time of the whole request.
        """
        await self._take_turn(request, ReadingKind.LIVE, request.state.until_answered)
        for _ in portions:
            await asyncio.sleep(0)
            _check_connected(request)

    async def read_in_loop(self, request: Request, read: Callable[[], Result]) -> Result:
        """Call `read`, which must be short, in this thread, within a turn as of `run_in_loop`."""
        await self._take_turn(request, ReadingKind.LIVE, request.state.until_answered)
        return read()

    async def _read(
        self, request: Request, kind: ReadingKind, read: Callable[[], Result]
    ) -> Result:
        """Call `read` in a thread once the caller's use of time allows it.

        A selection has waited at the begin of its turn: its client, which changes something, must
        get an answer in time.
        """
        reader = _reader(request, kind)
        if kind is not ReadingKind.SELECTION:
            await self._throttle.wait(reader)
        _check_connected(request)
        seconds = 0.0

        def timed_read() -> Result:
            nonlocal seconds
            begun = time.thread_time()
            try:
                return read()
            finally:
                seconds = time.thread_time() - begun

        async with self._readers[kind]:
            try:
                return await run_in_threadpool(timed_read)
            finally:
                self._throttle.charge(reader, seconds)

    async def _take_turn(
        self, request: Request, kind: ReadingKind, stack: contextlib.AsyncExitStack
    ) -> None:
        """Wait for the turn of the caller, unless the request has it; it ends with `stack`."""
        caller: Caller = request.state.caller
        turn = kind, caller.user
        if self._holders.get(turn) is request:
            return
        if self._queued[caller.user] >= MAX_QUEUED:
            raise ApiError(503, "too many requests of yours wait; nothing changed, try again soon")
        self._queued[caller.user] += 1
        stack.callback(self._leave, caller.user)
        await stack.enter_async_context(self._turns[turn])
        self._holders[turn] = request
        stack.callback(self._holders.pop, turn)
        await self._throttle.wait(_reader(request, kind))
        _check_connected(request)

    def _leave(self, user: str) -> None:
        self._queued[user] -= 1
        if not self._queued[user]:
            del self._queued[user]


def _reader(request: Request, kind: ReadingKind) -> Reader:
    """Return whose use of time counts a reading: short ones count with their whole requests."""
    is_short = kind in (ReadingKind.NAMED, ReadingKind.LIVE)
    return request.state.caller.user, WHOLE_REQUEST if is_short else kind.value


def _check_connected(request: Request) -> None:
    """Raise ApiError if the client has gone; no client reads it."""
    connection: Connection = request.state.connection
    if connection.is_closed:
        raise ApiError(503, "the client has gone; nothing changed")


async def _get_readers(request: Request) -> Readers:
    readers: Readers = request.app.state.readers
    return readers


CurrentReaders = Annotated[Readers, Depends(_get_readers)]
