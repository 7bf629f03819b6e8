"""Reservations between the book and one cluster's worker: surveys, and what is kept and forgotten.

An action is a name only; what the manager is told is read from the book when it is told. Each is
idempotent, and is told again until it is answered for certain; after a crash the book gives all
again that may be lacking (`ReservationBook.booted`). What nobody has is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from metasched.adapters.protocol import Answer, Call
from metasched.core.reservations.events import (
    Bind,
    LookAround,
    ReservationAction,
    ReservationBound,
    ReservationDeclined,
    ReservationReleased,
    Surveyed,
    Unbind,
)
from metasched.daemon.circuit_breaker import Breaker
from metasched.model.cluster import Cluster
from metasched.model.reservation import OPEN, name_of
from metasched.model.survey import Window

if TYPE_CHECKING:
    from metasched.daemon.service import Engine

log = logging.getLogger("metasched")

LOOK_EVERY = 5.0  # seconds between surveys while there are reservations
AGAIN = (1.0, 30.0)  # seconds until what was not answered is told again: first, at the most


class ReservationLink:
    """What one cluster's manager is to be told of reservations, and asked."""

    def __init__(
        self, cluster: Cluster, engine: Engine, call: Callable[[Call], Awaitable[Answer]]
    ) -> None:
        self._cluster, self._engine, self._call = cluster, engine, call
        self._todo: dict[int, Bind | Unbind] = {}
        self._breakers: dict[int, Breaker] = {}
        # what a crash of the daemon or of the manager has left behind is found by the first
        self._next_look = 0.0 if cluster.reserves else math.inf
        self._waiting: list[asyncio.Future[None]] = []
        self._told: object = None

    def add(self, action: ReservationAction) -> None:
        if isinstance(action, LookAround):
            self._next_look = 0.0
        else:
            self._todo.pop(action.id, None)  # in the order in which they were decided
            self._todo[action.id] = action
            self._next_look = min(self._next_look, time.monotonic() + LOOK_EVERY)

    async def look(self) -> None:
        """Have a survey from now on before one decides; it may not come if nobody answers."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._engine.links[self._cluster.name].stir()
        await waiting

    @property
    def due(self) -> float:
        """When there is something to do (monotonic)."""
        if self._waiting:
            return 0.0
        told = (self._until(id) for id in self._todo)
        return min(self._next_look, min(told, default=math.inf))

    def _until(self, id: int) -> float:
        breaker = self._breakers.get(id)
        return 0.0 if breaker is None else breaker.until

    async def act(self) -> None:
        """Do what is due, one thing; what was decided goes before what is asked."""
        now = time.monotonic()
        ready = next((todo for id, todo in self._todo.items() if self._until(id) <= now), None)
        if isinstance(ready, Bind):
            await self._bind(ready)
        elif ready is not None:
            await self._unbind(ready)
        else:
            await self._survey()

    async def _bind(self, todo: Bind) -> None:
        one = self._engine.core.reservations.known.get(todo.id)
        if one is None or one.state not in OPEN:
            self._done(todo)
            return
        name = name_of(self._engine.core.instance, one.id)
        licences = {self._cluster.licence(word): many for word, many in one.licences.items()}
        window = Window(name, one.user, one.start, one.until, one.nodes, one.size, licences)
        answer = await self._call(Call("reserve", window=window))
        now = time.time()
        if answer.error == "":
            self._done(todo)
            self._engine.take(ReservationBound(now, one.id, window.nodes))
        elif answer.error == "refused":
            self._done(todo)
            self._engine.take(ReservationDeclined(now, one.id, answer.reason))
        else:
            self._failed(todo, answer.reason)

    async def _unbind(self, todo: Unbind) -> None:
        name = name_of(self._engine.core.instance, todo.id)
        answer = await self._call(Call("unreserve", name=name))
        if answer.error == "":
            self._done(todo)
            self._engine.take(ReservationReleased(time.time(), todo.id))
        else:
            self._failed(todo, answer.reason)

    def _done(self, todo: Bind | Unbind) -> None:
        if self._todo.get(todo.id) is todo:
            del self._todo[todo.id]
        self._breakers.pop(todo.id, None)

    def _failed(self, todo: Bind | Unbind, reason: str) -> None:
        breaker = self._breakers.setdefault(todo.id, Breaker(*AGAIN))
        delay = breaker.fail(reason, time.time(), time.monotonic())
        if isinstance(todo, Bind):
            told = f"reservation {todo.id} not kept yet: {reason}; again in {delay:g} s"
            log.warning("cluster %s: %s", self._cluster.name, told)
        elif breaker.failures == 1:  # jobs may be let run in it for hours
            told = f"reservation {todo.id} not forgotten yet: {reason}; it is tried again"
            log.info("cluster %s: %s", self._cluster.name, told)

    async def _survey(self) -> None:
        waiting, self._waiting = self._waiting, []
        answer = await self._call(Call("survey"))
        concerned = self._engine.core.reservations.concerns(self._cluster.name)
        wanted = bool(waiting) or self._next_look == 0.0
        self._next_look = time.monotonic() + LOOK_EVERY if concerned else math.inf
        if answer.survey is None:
            log.warning("cluster %s tells no windows: %s", self._cluster.name, answer.reason)
            self._next_look = time.monotonic() + (LOOK_EVERY if concerned else AGAIN[1])
        else:
            survey = answer.survey
            # where our sending keeps the promises it must know where all that runs is
            told = (survey.held, survey.nodes if self._cluster.binds_late else survey.up)
            wanted |= self._engine.core.reservations.lacks(self._cluster.name)
            if wanted or self._told != told:
                self._told = told
                self._engine.take(Surveyed(time.time(), self._cluster.name, survey))
        for future in waiting:
            if not future.done():
                future.set_result(None)
