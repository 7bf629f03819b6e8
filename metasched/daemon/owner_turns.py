"""Whose commands run now on a cluster: turns of the jobs' owners, side by side, round robin."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from metasched.daemon.circuit_breaker import CircuitBreaker

FAILURE_DELAY = 2.0  # seconds without a turn after a command without an answer; doubles each time


class OwnerTurns:
    """At most `limit` owners have a turn at a time; the others follow in the order of their wait.

    An owner whose command did not answer pauses, since only that owner may have stalled it.
    """

    def __init__(self, limit: int, max_pause: float) -> None:
        self._limit, self._max_pause = limit, max_pause
        self._running: set[str] = set()
        self._last_turns: dict[str, int] = {}  # number of the last turn by owner
        self._turn_count = 0
        self._breakers: dict[str, CircuitBreaker] = {}

    def begin_next(self, due: Mapping[str, float]) -> list[str]:
        """Begin turns of owners whose actions are due; return these owners.

        `due` are monotonic seconds by owner.
        """
        chosen = self._candidates(due)[: self._limit - len(self._running)]
        for owner in chosen:
            self._turn_count += 1
            self._last_turns[owner] = self._turn_count
        self._running.update(chosen)
        return chosen

    def _candidates(self, due: Mapping[str, float]) -> list[str]:
        """Return the owners who may have a turn now, the longest without a turn first."""
        now = time.monotonic()
        candidates = [owner for owner in due if self._may_begin_at(owner, due[owner]) <= now]
        return sorted(candidates, key=lambda owner: (self._last_turns.get(owner, 0), owner))

    def _may_begin_at(self, owner: str, due: float) -> float:
        if owner in self._running:
            return math.inf
        breaker = self._breakers.get(owner)
        return due if breaker is None else max(due, breaker.open_until)

    def must_yield(self, due: Mapping[str, float]) -> bool:
        """Return whether a turn should end, since every turn is taken and another owner waits."""
        return len(self._running) >= self._limit and bool(self._candidates(due))

    def next_due(self, due: Mapping[str, float]) -> float:
        """Return when the next turn can begin (monotonic seconds); inf: after the end of a turn."""
        if len(self._running) >= self._limit:
            return math.inf
        return min((self._may_begin_at(*owner_due) for owner_due in due.items()), default=math.inf)

    def end(self, owner: str, error: str = "") -> float:
        """End a turn; after an error, begin a pause. Return the seconds of the pause."""
        self._running.discard(owner)
        if not error:
            self._breakers.pop(owner, None)
            return 0.0
        breaker = self._breakers.setdefault(owner, CircuitBreaker(FAILURE_DELAY, self._max_pause))
        return breaker.record_failure(error, time.time(), time.monotonic())

    def forget_pauses(self) -> None:
        """End all pauses: the cluster was unreachable, which was no owner's fault."""
        self._breakers.clear()
