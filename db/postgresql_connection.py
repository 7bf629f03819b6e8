"""A PostgreSQL connection with a limit on the server's silence.

A stopped server, or a server on a suspended host, cuts no connection: TCP still acknowledges,
and no time-out of the server runs. Only the client can notice. Separate from `postgresql`, since
it cannot be imported without the driver.
"""

from __future__ import annotations

import time
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

T = TypeVar("T")


class TimeoutConnection(psycopg.Connection[Any]):
    """A connection that closes itself if the server is silent for too long, as if cut."""

    silence_timeout: float | None = None  # seconds; None: no limit

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        """Wait for an answer. OperationalError after the limit: the result is unknown."""
        return super().wait(self._check_silence(gen), *args, **options)

    def _check_silence(self, gen: PQGen[T]) -> PQGen[T]:
        """Relay the driver's generator; the driver sends 0 while nothing comes."""
        last_answer = time.monotonic()
        try:
            wait_request = next(gen)
            while True:
                ready = yield wait_request
                now = time.monotonic()
                if ready:
                    last_answer = now
                elif self.silence_timeout is not None and now - last_answer > self.silence_timeout:
                    gen.close()
                    self.close()
                    raise psycopg.OperationalError(f"no answer in {self.silence_timeout:g} s")
                wait_request = gen.send(ready)
        except StopIteration as done:
            value: T = done.value
            return value
