"""A coroutine with the processor time that its steps take in the thread of the event loop."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any


class TimedCall:
    """Awaits a coroutine; tasks that the coroutine starts are not counted."""

    def __init__(self, awaited: Awaitable[None]) -> None:
        self._awaited = awaited
        self.seconds = 0.0  # of processor time until now

    def __await__(self) -> Generator[Any, Any, None]:
        steps: Any = self._awaited.__await__()
        step: Callable[[Any], Any] = steps.send
        argument: Any = None
        while True:
            begun = time.thread_time()
            try:
                awaited = step(argument)
            except StopIteration:
                return
            finally:
                self.seconds += time.thread_time() - begun
            try:
                step, argument = steps.send, (yield awaited)
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:  # also a cancellation: for the coroutine to handle
                step, argument = steps.throw, error
