"""A daemon that is killed between any two steps: what `apply_events` stored survives, nothing else.

The next daemon replays that with a fresh core.
"""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

from metasched.core.events import CoreEvent, DaemonStarted, Outcome
from metasched.core.scheduler import Core
from metasched.model.cluster import Cluster
from metasched.policies.policy import Policy


class Crash(Exception):
    """The daemon was killed."""


class KilledDaemon:
    """The part of the scheduler service that parts of the daemon depend on, over a real core."""

    core: Core
    now: float  # epoch seconds

    def begin(self, now: float) -> None:
        """Begin with an empty database."""
        self.now = now
        self.stored: list[tuple[CoreEvent, Outcome]] = []
        self.steps_left: int | None = None  # until the crash; None: there is none
        self.numbers = count(1)

    def replay(self, cluster: Cluster) -> None:
        """Start a daemon on what is stored."""
        self.core = Core()
        for event, _ in self.stored:
            self.core.step(event)
        self.store(DaemonStarted(self.now, "cafe", Policy(), (cluster,)))

    def store(self, event: CoreEvent) -> Outcome:
        outcome = self.core.step(event)
        self.stored.append((event, outcome))
        return outcome

    def crash_here(self) -> None:
        """Die if it is time."""
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                raise Crash

    async def apply_events(self, *events: CoreEvent) -> list[Outcome]:
        self.crash_here()
        outcomes = [self.store(event) for event in events]  # one transaction
        self.crash_here()
        return outcomes

    @property
    def ledger(self) -> Any:
        return SimpleNamespace(next_reservation=lambda: next(self.numbers))
