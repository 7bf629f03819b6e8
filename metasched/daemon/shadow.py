"""A candidate policy beside the policy in force: fed from the core's decisions, never executed.

The scheduler's thread appends the observations of the core to a queue of bounded length. A process
(`shadow_process`) decides anew, and a thread stores its decisions. What does not fit into the
queue, or is lost with the process, is counted and not compared. Nothing here is part of a decision.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import NamedTuple

from metasched.config.policy_file import parse_policy
from metasched.config.reading import with_policy
from metasched.config.settings import ConfigError, Settings
from metasched.core.events import Outcome
from metasched.core.scheduler import Core
from metasched.daemon.shadow_process import MODULE, ObservedBatch, ShadowReply, ShadowStart
from metasched.db.ledger import Ledger
from metasched.db.store import StorageFailed
from metasched.model.shadow import Shadow
from metasched.policies.policy import Policy
from metasched.policies.shadow import (
    Observation,
    ObservedPlacement,
    comparison_obstacle,
    place_obstacle,
)
from metasched.processes.pickled_process import PickledProcess, ProcessLost

log = logging.getLogger("metasched")

MAX_WAITING = 10_000  # observations in the queue; each refers to its job
PORTION = 500  # observations of a request, and decisions of a transaction
PAUSE = 0.5  # seconds between two requests: tasks are stored together
TIME_LIMIT = 60.0  # seconds until the process is ended; a portion takes 50 ms
FIRST_DELAY, MAX_DELAY = 1.0, 600.0  # seconds until a lost process is started again


class ShadowState(NamedTuple):
    """How the comparison gets on, since the present policy and candidate are together."""

    obstacle: str  # why nothing is compared; "": it is
    place_obstacle: str  # why clusters are not compared; "": they are
    problem: str  # the last failure, while it lasts; ""
    waiting: int  # observations that the process has not seen
    dropped: int  # placements that were not compared


class ShadowTotals(NamedTuple):
    """Placements since the service started, of all candidates."""

    compared: int = 0
    differing: int = 0  # of these: another priority or cluster
    dropped: int = 0  # not compared


NOT_RUNNING = ShadowState("", "", "", 0, 0)


class ShadowRunner:
    """Runs the candidate of a service. Only for the loop of the scheduler."""

    def __init__(
        self, core: Core, settings: Settings, ledger: Ledger, shadow: Shadow | None = None
    ) -> None:
        self._core, self._settings, self._ledger = core, settings, ledger
        self._process = PickledProcess[ObservedBatch, ShadowReply](MODULE)
        self._queue = deque[Observation]()
        self._changed = asyncio.Event()
        self._start: ShadowStart | None = None  # for the next request
        self._candidate: Policy | None = None
        self._state = NOT_RUNNING
        self._delay = FIRST_DELAY
        self.totals = ShadowTotals()
        self.shadow: Shadow | None = None  # that runs
        if shadow is not None and shadow.ended is None:
            self.begin(shadow)

    @property
    def state(self) -> ShadowState:
        """How the comparison gets on."""
        return self._state._replace(waiting=len(self._queue))

    def begin(self, shadow: Shadow) -> None:
        """Run a candidate from now on."""
        self.end()
        self.shadow = shadow
        self._state = NOT_RUNNING
        try:
            candidate = candidate_policy(self._settings, shadow.text, shadow.file)
        except ConfigError as error:  # the site's configuration has changed since
            self._state = self._state._replace(obstacle=str(error))
            return
        live = self._settings.policy
        self._candidate = candidate
        self._state = self._state._replace(
            obstacle=comparison_obstacle(live, candidate),
            place_obstacle=place_obstacle(live, candidate),
        )
        if not self._state.obstacle:
            self._delay = FIRST_DELAY
            self._begin_anew()
            self._core.state.observes = True

    def end(self) -> None:
        """Run no candidate any more."""
        self.shadow = self._candidate = self._start = None
        self._core.state.observes = False
        self._queue.clear()
        self._changed.set()  # the process is ended

    def observe(self, outcome: Outcome) -> None:
        """Queue the observations of a stored step."""
        if not self._core.state.observes:
            return
        dropped = outcome.unobserved
        for observed in outcome.observed:
            if len(self._queue) < MAX_WAITING:
                self._queue.append(observed)
            else:
                dropped += isinstance(observed, ObservedPlacement)
        if dropped:
            self._count_dropped(dropped)
        if outcome.observed:
            self._changed.set()

    async def run(self) -> None:
        """Ask the process, and store its decisions, until cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                while self._queue:
                    if not await self._exchange():
                        await asyncio.sleep(self._delay)
                        self._delay = min(2 * self._delay, MAX_DELAY)
                    else:
                        await asyncio.sleep(PAUSE)
                if self.shadow is None:
                    await self._process.close()
        finally:
            await self._process.close()

    async def _exchange(self) -> bool:
        """Let the process decide on a portion, and store that. Return whether it did."""
        shadow = self.shadow
        portion = [self._queue.popleft() for _ in range(min(PORTION, len(self._queue)))]
        placements = sum(isinstance(each, ObservedPlacement) for each in portion)
        request, self._start = ObservedBatch(self._start, tuple(portion)), None
        try:
            reply = await self._process.ask(request, TIME_LIMIT)
        except ProcessLost as error:
            if self.shadow is shadow is not None:
                self._note_problem("the process of the candidate did not answer", error)
                self._count_dropped(placements)
                self._begin_anew()
            return False
        if self.shadow is not shadow or shadow is None:
            return True
        try:
            await asyncio.to_thread(
                self._ledger.add_shadow_decisions, shadow.number, reply.decisions
            )
        except StorageFailed as error:  # the service finds out by itself whether it can go on
            self._note_problem("the decisions of the candidate are not stored", error)
            self._count_dropped(placements)
            return False
        self._delay = FIRST_DELAY
        self.totals = self.totals._replace(
            compared=self.totals.compared + len(reply.decisions),
            differing=self.totals.differing + sum(each.differs for each in reply.decisions),
        )
        if self._state.problem:
            self._state = self._state._replace(problem="")
        return True

    def _begin_anew(self) -> None:
        """Let the next request start the candidate, from the present state of the core.

        Queued observations are dropped: the margins of their jobs are part of that state.
        """
        assert self._candidate is not None
        self._count_dropped(sum(isinstance(each, ObservedPlacement) for each in self._queue))
        self._queue.clear()
        self._start = ShadowStart(
            self._candidate,
            tuple(self._core.state.views),
            len(self._settings.licences),
            tuple(self._core.state.margin_jobs[-self._candidate.window :]),
            not self._state.place_obstacle,
        )

    def _note_problem(self, problem: str, error: Exception) -> None:
        text = f"{problem} ({error})" if str(error) else problem
        self._state = self._state._replace(problem=f"{text}; again in {self._delay:g} s")
        log.warning("policy shadow: %s", self._state.problem)

    def _count_dropped(self, number: int) -> None:
        self._state = self._state._replace(dropped=self._state.dropped + number)
        self.totals = self.totals._replace(dropped=self.totals.dropped + number)


def candidate_policy(settings: Settings, text: str, file: str) -> Policy:
    """Return the policy of a text. ConfigError if the site's configuration does not allow it."""
    return with_policy(settings, parse_policy(text, file)).policy
