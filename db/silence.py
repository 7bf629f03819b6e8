"""A session with PostgreSQL that does not wait for ever.

A server whose host stands still, or that was stopped, cuts nothing: TCP goes on to acknowledge
what nobody reads, and no time-out of the server's own runs. Only the client can tell.
"""

from __future__ import annotations

import time
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

T = TypeVar("T")


class TimeoutConnection(psycopg.Connection[Any]):
    """A session that ends itself when the server is silent for too long, as if it had been cut."""

    silence_timeout: float | None = None  # seconds; None: as long as it takes

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        """OperationalError if nothing came for that long: nobody knows what the server has done."""
        return super().wait(self._check_silence(gen), *args, **options)

    def _check_silence(self, gen: PQGen[T]) -> PQGen[T]:
        """The same conversation, listened to: the driver sends 0 while nothing comes."""
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
