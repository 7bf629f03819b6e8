"""HTTP with a deadline for each step of the client, which uvicorn lacks (its issue 157).

The daemon's own work, such as the long poll of `wait`, has no deadline here.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from metasched.api.connections import Connection, OpenConnections, Refusal
from metasched.config.settings import RequestLimits

log = logging.getLogger("metasched")


class DeadlineProtocol(H11Protocol):
    """The server's end of a connection. The state of a request holds its `connection`."""

    def __init__(
        self,
        connection: Connection,
        connections: OpenConnections,
        limits: RequestLimits,
        *uvicorn_arguments: *tuple[Config, ServerState, dict[str, Any]],
    ) -> None:
        super().__init__(*uvicorn_arguments)
        self.app_state = {**self.app_state, "connection": connection, "connections": connections}
        self._connection, self._connections = connection, connections
        self._seconds = {
            Refusal.HEAD: limits.head_timeout,
            Refusal.BODY: limits.body_timeout,
            Refusal.RESPONSE: limits.body_timeout,
        }
        self._step: Refusal | None = None  # the data that the client has to send or read now
        self._timer: asyncio.TimerHandle | None = None
        self._is_reader_slow = False  # the client has not read the sent data

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connection.transport = transport
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._connection.is_closed = True
        self._connections.remove(self._connection)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:  # refused by its head; its body is not read
            self.transport.close()
        self._set_deadline()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._is_reader_slow = True
        self._set_deadline()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_reader_slow = False
        if not self.transport.is_closing():
            self._set_deadline()

    def _set_deadline(self) -> None:
        """Start a deadline whenever the client's next step is another."""
        steps = {h11.IDLE: Refusal.HEAD, h11.SEND_BODY: Refusal.BODY}
        is_late = self._is_reader_slow or self.transport.is_closing()
        step = Refusal.RESPONSE if is_late else steps.get(self.conn.their_state)
        self._connection.is_receiving = step in (Refusal.HEAD, Refusal.BODY)
        if step == self._step:
            return
        self._step = step
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if step is not None:
            self._timer = self.loop.call_later(self._seconds[step], self._expire, step)

    def _expire(self, step: Refusal) -> None:
        self._connections.refusals[step] += 1
        log.info(
            "closed a connection of %s: no end of the %s in %g s",
            *(self._connection.peer, step, self._seconds[step]),
            extra={"repeat_key": f"expired {self._connection.peer}"},
        )
        self.transport.abort()
