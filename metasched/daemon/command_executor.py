"""Executes the dispatches and withdrawals of a cluster, for an owner at a time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

from msgspec import structs

from metasched.adapters.claims import new_claim_folder
from metasched.adapters.protocol import WorkerCall, WorkerReply
from metasched.config.settings import ClusterSettings
from metasched.core.events import (
    CoreEvent,
    Dispatch,
    DispatchAccepted,
    DispatchRejected,
    DispatchSkipped,
    DispatchStarted,
    DispatchUncertain,
)
from metasched.daemon.dispatches_in_flight import DispatchesInFlight, DispatchKey
from metasched.daemon.host import SchedulerHost
from metasched.daemon.pending_actions import PendingActions
from metasched.daemon.worker_process import WorkerProcess
from metasched.model.refusal_scope import scope_of_user
from metasched.model.row_checks import clean_text
from metasched.model.tags import is_claim_folder
from metasched.policies.eligible import UnmappedNameError

log = logging.getLogger("metasched")

# Dispatches are written to the worker until it holds this many tasks. A poll, or another owner,
# then waits less than half a second for sbatch, and 32 tasks need two transactions.
DISPATCH_AHEAD_TASKS = 32
# Of `call_timeout`: how long a call waits for commands. The rest is for the manager's library, so
# that the worker answers in time and need not be killed: that would leave all tasks uncertain.
COMMAND_SHARE = 0.5


class CommandExecutor:
    """Executes the pending dispatches and withdrawals of an owner; "" stands for all owners.

    Each method returns why the last call got no answer, "" if all were answered.
    """

    def __init__(
        self,
        host: SchedulerHost,
        settings: ClusterSettings,
        worker: WorkerProcess,
        pending_actions: PendingActions,
        in_flight: DispatchesInFlight,
        on_site_fault: Callable[[str], Awaitable[None]],
    ) -> None:
        """`on_site_fault` is awaited with the cause when a fault of the site prevents changes."""
        self._on_site_fault = on_site_fault
        self._host, self._settings, self._worker = host, settings, worker
        self._pending_actions, self._in_flight = pending_actions, in_flight

    async def dispatch(self, owner: str, may_continue: Callable[[], bool]) -> str:
        """Dispatch until `may_continue` is false or the manager accepts no more for now.

        Calls are pipelined: the worker holds the next calls while the daemon stores its replies.
        One transaction stores the replies to half of them and the start of as many more.
        """
        actions, worker = self._pending_actions, self._worker
        written: deque[tuple[Dispatch, WorkerCall]] = deque()
        events: list[CoreEvent] = []
        accepting, error, site_fault = True, "", ""
        while True:
            dispatches: list[Dispatch] = []
            if accepting and may_continue():
                tasks_written = sum(len(dispatch.indices) for dispatch, _ in written)
                dispatches = actions.take_dispatches(owner, DISPATCH_AHEAD_TASKS - tasks_written)
            calls = self._prepare_calls(owner, dispatches, events, chained=bool(written))
            await self._store(events)
            for dispatch, call in calls:
                written.append((dispatch, call))
                accepting = accepting and await worker.write_call(call)
            if not written:
                await asyncio.sleep(0)  # nothing was written: let requests of users go between
                if site_fault:
                    await self._on_site_fault(site_fault)
                return error
            # read at least one reply; with more dispatches queued, keep half of the calls
            stored_later = DISPATCH_AHEAD_TASKS
            if actions.has_dispatches(owner):
                stored_later //= 2
            max_written = min(len(written) - 1, stored_later)
            while len(written) > (max_written if accepting else 0):
                dispatch, call = written.popleft()
                reply = await worker.read_reply(call)
                events.append(_result(dispatch, reply, only_user=bool(owner)))
                if reply.error == "refused":
                    accepting = accepting and not reply.retry_later
                elif _has_failed(dispatch, reply):
                    accepting, error = False, reply.reason or "no answer"
                    if reply.site_fault:
                        site_fault = error

    async def _store(self, events: list[CoreEvent]) -> None:
        """Apply and clear the events; keep account of the dispatches in flight."""
        if not events:
            return
        started: list[DispatchKey] = []
        ended: list[DispatchKey] = []
        for event in events:
            match event:
                case DispatchStarted():
                    started.append((event.job, event.dispatch_id))
                case DispatchSkipped():
                    ended += event.dispatches
                case DispatchAccepted() | DispatchRejected() | DispatchUncertain():
                    ended.append((event.job, event.dispatch_id))
        self._in_flight.start(started)
        await self._host.apply_events(*events)
        self._in_flight.end(ended)
        events.clear()

    def _prepare_calls(
        self, owner: str, dispatches: list[Dispatch], events: list[CoreEvent], chained: bool
    ) -> list[tuple[Dispatch, WorkerCall]]:
        """Return the calls of dispatches; append the events to store before they are written."""
        payloads = self._host.ledger.payloads(dispatch.job for dispatch in dispatches)
        calls: list[tuple[Dispatch, WorkerCall]] = []
        for dispatch in dispatches:
            now, job_id, dispatch_id = time.time(), dispatch.job, dispatch.dispatch_id
            try:
                submission = self._pending_actions.build_submission(dispatch, payloads[job_id])
            except UnmappedNameError as error:
                events.append(DispatchRejected(now, job_id, dispatch_id, str(error)))
                continue
            except Exception as error:  # of this job only
                log.exception("job %d cannot be dispatched", job_id)
                reason = f"a defect of metasched: {clean_text(repr(error))}"
                events.append(DispatchRejected(now, job_id, dispatch_id, reason))
                continue
            if submission is None:
                events.append(DispatchSkipped(now, ((job_id, dispatch_id),)))
                continue
            if submission.fence and not is_claim_folder(submission.fence):
                folder = new_claim_folder(submission.fence, job_id)
                submission = structs.replace(submission, fence=folder)
            events.append(DispatchStarted(now, job_id, dispatch_id, submission.fence))
            call = WorkerCall(
                "submit",
                submission=submission,
                chained=chained or bool(calls),
                owner=owner,
                time_limit=self._time_limit,
            )
            calls.append((dispatch, call))
        return calls

    @property
    def _time_limit(self) -> float:
        return COMMAND_SHARE * self._settings.call_timeout

    async def withdraw(self, owner: str) -> str:
        """Withdraw the next batch of tasks."""
        batch = self._pending_actions.next_withdrawals(owner)
        requests = tuple(self._pending_actions.withdrawal_request(pending) for pending in batch)
        call = WorkerCall(
            "withdraw", withdrawals=requests, owner=owner, time_limit=self._time_limit
        )
        for pending in batch:
            pending.begun = True
        reply = await self._worker.call(call)
        refused_for_good = reply.error == "refused" and not reply.retry_later
        if not reply.error or (refused_for_good and len(batch) == 1):
            self._pending_actions.remove_withdrawals(batch, reply.reason)
            return ""
        self._pending_actions.delay_withdrawals(batch, reply.reason)
        tags = requests[0].tag + (f" and {len(batch) - 1} more" if len(batch) > 1 else "")
        name = self._settings.cluster.name
        log.warning("cluster %s: %s not withdrawn: %s", name, tags, reply.reason)
        if reply.site_fault:
            await self._on_site_fault(reply.reason)
        return reply.reason or "no answer"


def _result(dispatch: Dispatch, reply: WorkerReply, only_user: bool) -> CoreEvent:
    """Return the event for the reply to a dispatch.

    With `only_user` a command of the owner has reported it, and may have been made to lie. So a
    refusal counts for the owner's jobs alone; others get their own refusals.
    """
    now, job_id, dispatch_id = time.time(), dispatch.job, dispatch.dispatch_id
    match reply.error:
        case "":
            return DispatchAccepted(now, job_id, dispatch_id, reply.native_ids, reply.access)
        case "refused":
            scope = scope_of_user(reply.scope) if only_user else reply.scope
            return DispatchRejected(
                now, job_id, dispatch_id, reply.reason, reply.retry_later, scope
            )
        case "partial" if reply.native_ids or _uncertain(dispatch, reply):
            return DispatchAccepted(
                *(now, job_id, dispatch_id, reply.native_ids, reply.access),
                untried=reply.untried,
                uncertain=_uncertain(dispatch, reply),
                reason=reply.reason,
                sentence=reply.sentence,
            )
        case _ if reply.error in ("untried", "partial") or reply.site_fault:
            return DispatchSkipped(now, ((job_id, dispatch_id),))
        case _:
            return DispatchUncertain(now, job_id, dispatch_id, reply.reason, reply.sentence)


def _uncertain(dispatch: Dispatch, reply: WorkerReply) -> tuple[int, ...]:
    """Return the tasks of a dispatch that a "partial" reply leaves uncertain."""
    answered = {*reply.native_ids, *reply.untried}
    return tuple(index for index in dispatch.indices if index not in answered)


def _has_failed(dispatch: Dispatch, reply: WorkerReply) -> bool:
    """Return whether a failure stops further dispatches for now.

    A lack of time is no failure, nor is a program that ended by itself: the next may be accepted.
    """
    if reply.sentence:
        return False
    if reply.error == "partial":
        return not reply.native_ids or bool(_uncertain(dispatch, reply))
    return reply.error not in ("", "untried")
