"""A local policy of another package, asked within a time: a pass that hangs stops no cluster.

Whatever goes wrong, the caller lets FCFS decide. A policy that did not answer is not asked again
before its suspension ends, which doubles, and before its last pass has ended. So at most one thread
of a cluster hangs. Code that never releases the interpreter's lock, or takes all memory, is beyond
this: it ends or blocks the worker of its cluster alone.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from metasched.policies.local.exclusion import read_starts
from metasched.policies.local.queueing import (
    FreeResources,
    JobStart,
    LocalPolicy,
    RunningJob,
    WaitingJob,
)

PASS_SECONDS: Final = 2.0  # for a pass
FIRST_SUSPENSION: Final = 5.0  # seconds; doubled by each pass without an answer
MAX_SUSPENSION: Final = 600.0  # seconds


class PolicyExcluded(Exception):
    """The policy does not decide this pass; the message says why."""


class TimedPolicy:
    """Asks a policy in a thread of its own; it has all other attributes of the policy."""

    def __init__(
        self,
        policy: LocalPolicy,
        seconds: float = PASS_SECONDS,
        first_suspension: float = FIRST_SUSPENSION,
    ) -> None:
        self._policy, self._seconds = policy, seconds
        self._delay, self._suspended_until = first_suspension, 0.0  # seconds; monotonic seconds
        self._thread: threading.Thread | None = None  # of the last pass
        self._planned_starts: dict[int, float] = {}  # of the last answer
        if hasattr(policy, "planned_starts"):
            self.planned_starts: Callable[[], dict[int, float]] = lambda: self._planned_starts

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._policy, attribute)

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        """Return what the policy chooses. PolicyExcluded without an answer; else what it raises."""
        if self._thread is not None and self._thread.is_alive():
            raise PolicyExcluded("an earlier pass has not ended")
        if (left := self._suspended_until - time.monotonic()) > 0:
            raise PolicyExcluded(f"it is asked again in {left:.0f} s")
        results: list[tuple[list[JobStart], dict[int, float]]] = []
        errors: list[BaseException] = []
        # it may still read when it is late: what the caller changes is copied
        free = free._replace(resources=dict(free.resources))

        def ask() -> None:  # all of its code runs here: an iterator, too, may hang or be endless
            try:
                chosen = self._policy.choose_starts(now, queue, running, free)
                results.append((read_starts(chosen, queue), self._ask_planned_starts()))
            except BaseException as error:  # such as SystemExit
                errors.append(error)

        self._thread = threading.Thread(target=ask, name="local policy", daemon=True)
        self._thread.start()
        self._thread.join(self._seconds)
        if errors:
            raise PolicyExcluded(f"{type(errors[0]).__name__}: {errors[0]}") from errors[0]
        if not results:
            self._suspended_until = time.monotonic() + self._delay
            self._delay = min(self._delay * 2, MAX_SUSPENSION)
            raise PolicyExcluded(f"no answer within {self._seconds:g} s")
        starts, self._planned_starts = results[0]
        return starts

    def _ask_planned_starts(self) -> dict[int, float]:
        planned: Mapping[Any, Any] = getattr(self._policy, "planned_starts", dict)()
        starts = {int(id): float(start) for id, start in planned.items()}
        return {id: start for id, start in starts.items() if math.isfinite(start)}
