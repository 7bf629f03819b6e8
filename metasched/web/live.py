"""The event stream of an open page. It reports that something was stored, and nothing of it.

All streams share a clock, which ticks after a change, at most every 2 seconds. Pages that load
after a tick are charged to a budget: the dearer they are, the later is the next tick. A browser
that reads slowly misses ticks, and the next tick stands for them. A stream takes a place among the
waiting requests (`OpenConnections.waiting`), so each account has a share of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Message, Send

from metasched.api.connections import OpenConnections
from metasched.api.request import CurrentCaller
from metasched.daemon.service import Daemon
from metasched.errors import ApiError

UPDATE = "X-Metasched-Update"  # the header of a load that follows a tick; the script sets it
SHARE = 0.03  # of a core, for loads of all followed pages; about a third more is not charged
INTERVAL = 2.0  # seconds between two ticks, at least
MAX_INTERVAL = 60.0  # seconds between two ticks after changes, whatever loads cost
REFRESH = 30.0  # seconds without a change until a tick all the same: times of listings go on
STOP_CHECK = 0.25  # seconds between looks whether the daemon stops
SILENCE = 20.0  # seconds after which a stream shows that it is alive
MAX_LIFE = 300.0  # seconds after which a browser asks again, and is authenticated again
MAX_STREAMS = 16  # of an account
RETRY = 3000  # milliseconds after which a browser asks again

router = APIRouter()


class ChangeClock:
    """Ticks after changes, as long as there are streams."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._streams: Counter[str] = Counter()  # by user
        self._count = 0
        self._loads: Counter[str] = Counter()  # by user, charged since the last tick
        self._spent = 0.0  # seconds of CPU of these loads
        self._charged = 0.0  # seconds of the process's CPU up to the last charge
        self._task: asyncio.Task[None] | None = None
        self.ticked = asyncio.Event()  # set, and replaced, with each tick

    @property
    def version(self) -> str:
        """What stands for the present state; a restart of the daemon changes it, too."""
        return f"{self._daemon.started:.3f}-{self._count}"

    @property
    def pause(self) -> float:
        """Seconds from the last tick to the next, at least."""
        return min(max(INTERVAL, self._spent / SHARE), MAX_INTERVAL)

    def charging(self, request: Request, send: Send) -> Send:
        """Return a `send` that charges a load once its page is made, before a browser reads it."""
        begun = time.process_time()

        async def charge_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                caller = request.scope["state"].get("caller")
                if caller is not None:
                    self.charge(caller.user, begun)
            await send(message)

        return charge_and_send

    def charge(self, user: str, begun: float) -> None:
        """Charge the process's CPU since `begun`, of concurrent loads once.

        It counts threads that read the database, and what else the daemon does meanwhile: a busy
        daemon updates pages less often. An account is charged a load for each of its streams, so
        that no other program of it delays the pages of all.
        """
        if self._loads[user] >= self._streams[user]:
            return
        self._loads[user] += 1
        now = time.process_time()
        self._spent += now - max(begun, self._charged)
        self._charged = now

    @contextlib.contextmanager
    def followed(self, user: str) -> Iterator[None]:
        """Count a stream of an account for the time of the block. ApiError if it has too many."""
        if self._streams[user] >= MAX_STREAMS:
            raise ApiError(503, f"{MAX_STREAMS} pages of yours are followed already; close some")
        self._streams[user] += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._streams[user] -= 1
            if not self._streams[user]:
                del self._streams[user]
            if not self._streams and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _run(self) -> None:
        while not self._daemon.stopping:
            service = self._daemon.service
            # taken before the pause: a change within it counts
            changed = self._daemon.service_runs if service is None else service.state_changed
            self._tick()
            ticked = time.monotonic()
            # loads that end within the pause make it longer
            while time.monotonic() < ticked + self.pause and not self._daemon.stopping:
                await asyncio.sleep(STOP_CHECK)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH):
                    await changed.wait()
        self._tick()

    def _tick(self) -> None:
        self._count += 1
        self._spent = 0.0
        self._loads.clear()
        previous, self.ticked = self.ticked, asyncio.Event()
        previous.set()


@router.get("/changes")
async def changes(request: Request, caller: CurrentCaller) -> Response:
    """Send a version at once, then after changes."""
    clock: ChangeClock = request.app.state.change_clock
    connections: OpenConnections = request.state.connections
    stack: contextlib.AsyncExitStack = request.state.until_answered
    stack.enter_context(clock.followed(caller.user))
    room = stack.enter_context(connections.waiting(caller.user))
    daemon: Daemon = request.app.state.daemon

    async def stream() -> AsyncIterator[bytes]:
        until = time.monotonic() + MAX_LIFE
        yield b"retry: %d\n\n" % RETRY
        while not (room.is_over or daemon.stopping or time.monotonic() > until):
            ticked = clock.ticked
            yield b"event: version\ndata: %s\n\n" % clock.version.encode()
            while not (ticked.is_set() or room.is_over or time.monotonic() > until):
                try:
                    async with asyncio.timeout(SILENCE) as room.timeout:
                        await ticked.wait()
                except TimeoutError:
                    yield b": alive\n\n"

    return StreamingResponse(
        stream(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
    )
