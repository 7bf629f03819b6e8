"""Synchronises reservations with a cluster's manager: surveys, creation and deletion.

A queued action names a reservation; its specification is read from the core when the call is
made. Actions are idempotent and repeated until the manager confirms or refuses them. After a crash
the core issues every action again that may be missing at the manager.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable

from metasched.adapters.protocol import WorkerCall, WorkerReply
from metasched.core.reservations.events import (
    Bind,
    ReservationAction,
    ReservationBound,
    ReservationRejected,
    ReservationReleased,
    SurveyCluster,
    SurveyReceived,
    Unbind,
)
from metasched.daemon.circuit_breaker import CircuitBreaker
from metasched.daemon.host import SchedulerHost
from metasched.model.cluster import Cluster
from metasched.model.reservation import OPEN_STATES, manager_name
from metasched.model.survey import ReservationSpec

log = logging.getLogger("metasched")

SURVEY_INTERVAL = 5.0  # seconds between surveys while the cluster has reservations
MAX_SENTENCES = 3  # equal words without proof, after which a reservation counts as refused
RETRY_DELAYS = (1.0, 30.0)  # seconds before a failed call is repeated: initial, maximum


class ReservationSync:
    """Pending actions on the reservations of a cluster, and its surveys."""

    def __init__(
        self,
        cluster: Cluster,
        host: SchedulerHost,
        call: Callable[[WorkerCall], Awaitable[WorkerReply]],
        wake: Callable[[], None],
    ) -> None:
        """`call` executes a call of the worker; `wake` has the connection run the next step."""
        self._cluster, self._host, self._call, self._wake = cluster, host, call, wake
        self._pending: dict[int, Bind | Unbind] = {}
        self._breakers: dict[int, CircuitBreaker] = {}
        # by reservation: what the program that was to create it said last, and how many times
        self._sentences: dict[int, tuple[str, int]] = {}
        # monotonic seconds; the first survey finds reservations that a crash left at the manager
        self._next_survey = 0.0 if cluster.supports_reservations else math.inf
        self._survey_waiters: list[asyncio.Future[None]] = []
        self._last_survey: object = None  # the last survey that the core received

    def enqueue(self, action: ReservationAction) -> None:
        """Add an action. It replaces an earlier action on the same reservation."""
        if isinstance(action, SurveyCluster):
            self._next_survey = 0.0
        else:
            self._pending.pop(action.id, None)  # keep the order of decisions
            self._pending[action.id] = action
            self._next_survey = min(self._next_survey, time.monotonic() + SURVEY_INTERVAL)

    async def request_survey(self) -> None:
        """Wait for a survey that starts after this call; its call may fail."""
        survey_done = asyncio.get_running_loop().create_future()
        self._survey_waiters.append(survey_done)
        self._wake()
        await survey_done

    @property
    def next_due(self) -> float:
        """Monotonic seconds at which `run_next` has a call to make."""
        if self._survey_waiters:
            return 0.0
        retry_times = (self._retry_at(id) for id in self._pending)
        return min(self._next_survey, min(retry_times, default=math.inf))

    def _retry_at(self, id: int) -> float:
        breaker = self._breakers.get(id)
        return 0.0 if breaker is None else breaker.open_until

    async def run_next(self) -> None:
        """Make the next call that is due; pending actions precede surveys."""
        now = time.monotonic()
        ready_action = next(
            (action for id, action in self._pending.items() if self._retry_at(id) <= now), None
        )
        if isinstance(ready_action, Bind):
            await self._bind(ready_action)
        elif ready_action is not None:
            await self._unbind(ready_action)
        else:
            await self._survey()

    async def _bind(self, action: Bind) -> None:
        reservation = self._host.core.reservations.by_id.get(action.id)
        if reservation is None or reservation.state not in OPEN_STATES:
            self._complete(action)
            return
        name = manager_name(self._host.core.instance, reservation.id)
        licences = {
            self._cluster.manager_licence_name(licence): count
            for licence, count in reservation.licences.items()
        }
        spec = ReservationSpec(
            name,
            ",".join((reservation.user, *reservation.users)),
            reservation.start,
            reservation.until,
            reservation.nodes,
            reservation.size,
            licences,
            tuple(
                dict.fromkeys(
                    native
                    for account in reservation.accounts
                    for native in self._cluster.manager_accounts(account) or (account,)
                )
            ),
        )
        reply = await self._call(WorkerCall("reserve", reservation=spec))
        now = time.time()
        if reply.error == "":
            self._complete(action)
            await self._host.apply_events(ReservationBound(now, reservation.id, spec.nodes))
        elif reply.error == "refused" or self._is_repeated(action, reply.sentence):
            self._complete(action)
            await self._host.apply_events(ReservationRejected(now, reservation.id, reply.reason))
        else:
            self._record_failure(action, reply.reason)

    async def _unbind(self, action: Unbind) -> None:
        name = manager_name(self._host.core.instance, action.id)
        reply = await self._call(WorkerCall("unreserve", reservation_name=name))
        if reply.error == "":
            self._complete(action)
            await self._host.apply_events(ReservationReleased(time.time(), action.id))
        else:
            self._record_failure(action, reply.reason)

    def _is_repeated(self, action: Bind, sentence: str) -> bool:
        """Return whether the manager's program has said the same for the third time.

        Each call looks for the reservation first, so these words were a refusal.
        """
        before, times = self._sentences.get(action.id, ("", 0))
        times = times + 1 if sentence == before else 1
        self._sentences[action.id] = sentence, times
        return bool(sentence) and times >= MAX_SENTENCES

    def _complete(self, action: Bind | Unbind) -> None:
        if self._pending.get(action.id) is action:
            del self._pending[action.id]
        self._breakers.pop(action.id, None)
        self._sentences.pop(action.id, None)

    def _record_failure(self, action: Bind | Unbind, reason: str) -> None:
        breaker = self._breakers.setdefault(action.id, CircuitBreaker(*RETRY_DELAYS))
        delay = breaker.record_failure(reason, time.time(), time.monotonic())
        if isinstance(action, Bind):
            message = f"reservation {action.id} not created: {reason}; retrying in {delay:g} s"
            log.warning("cluster %s: %s", self._cluster.name, message)
        elif breaker.failures == 1:  # logged once: its jobs may run on for hours
            message = f"reservation {action.id} not deleted: {reason}; retrying"
            log.info("cluster %s: %s", self._cluster.name, message)

    async def _survey(self) -> None:
        waiters, self._survey_waiters = self._survey_waiters, []
        reply = await self._call(WorkerCall("survey"))
        has_reservations = self._host.core.reservations.has_reservations_on(self._cluster.name)
        must_record = bool(waiters) or self._next_survey == 0.0
        self._next_survey = time.monotonic() + SURVEY_INTERVAL if has_reservations else math.inf
        if reply.survey is None:
            log.warning(
                "cluster %s: its reservations are unknown: %s", self._cluster.name, reply.reason
            )
            self._next_survey = time.monotonic() + (
                SURVEY_INTERVAL if has_reservations else RETRY_DELAYS[1]
            )
        else:
            survey = reply.survey
            # with late binding metasched itself keeps nodes free and needs the load of each
            relevant_state = (
                survey.reservations,
                survey.nodes if self._cluster.binds_late else survey.usable_nodes,
            )
            must_record |= self._host.core.reservations.needs_nodes_on(self._cluster.name)
            if must_record or self._last_survey != relevant_state:
                self._last_survey = relevant_state
                await self._host.apply_events(
                    SurveyReceived(time.time(), self._cluster.name, survey)
                )
        for future in waiters:
            if not future.done():
                future.set_result(None)
