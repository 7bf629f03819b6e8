"""One cluster's connection: its worker process, polls, dispatches, withdrawals."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import math
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from metasched.adapters.base import Submission, Withdrawal
from metasched.adapters.protocol import ListingDelta, WorkerBoot, WorkerCall, WorkerReply
from metasched.clock import ClockStepDetector
from metasched.config.settings import ClusterSettings
from metasched.core.events import (
    AccountingReceived,
    Action,
    ClaimsRevoked,
    ClusterUnreachable,
    CoreEvent,
    Dispatch,
    DispatchAccepted,
    DispatchRejected,
    DispatchSkipped,
    DispatchStarted,
    DispatchUncertain,
    ListingReceived,
    QueryAccounting,
    Revoke,
    Withdraw,
)
from metasched.daemon.circuit_breaker import CircuitBreaker
from metasched.daemon.manager_start_times import ManagerStartTimes
from metasched.daemon.reservation_sync import ReservationSync
from metasched.model.job import Payload
from metasched.model.listing import AccountingAnswer, TaskClaim
from metasched.model.reservation import manager_name
from metasched.model.tags import tag_of
from metasched.policies.eligible import UnmappedNameError, translate_job
from metasched.timeouts import reply_timeout

if TYPE_CHECKING:
    from metasched.daemon.service import SchedulerService

log = logging.getLogger("metasched")

# Polls slow down while nothing happens: an end is seen late by a tenth of the quiet before it.
POLL_BACKOFF_FACTOR = 1.1


MAX_POLL_INTERVAL = 10.0  # seconds between polls, at the most, while jobs of ours run


IDLE_POLL_INTERVAL = 60.0  # likewise while there are none; a submission makes them quick again


MAX_RETRY_DELAY = 60.0  # seconds between tries of a cluster that does not answer, at the most


UNREACHABLE_AFTER_FAILURES = 2  # failed polls in a row after which a cluster counts as silent


WORKER_RESTART_DELAY = 0.5  # seconds before a worker that died is started again, doubled each time


MAX_STARTUP_FACTOR = (
    4.0  # times `call_timeout` for the first answer, after deaths in a row, at the most
)


HEALTHY_AFTER = 60.0  # seconds of life after which the earlier deaths of a worker are forgotten


MAX_REPLY_BYTES = 1 << 28  # bytes of one answer of a worker


# Tasks with a worker at the least, if there are as many, before more are sent to it: under half a
# second of sbatch for a poll to wait for, and two transactions and turns of ours for 32 tasks.
DISPATCH_AHEAD_TASKS = 32


@dataclass(eq=False)
class _PendingWithdrawal:
    """A withdrawal that is told to a worker until it has been taken."""

    action: Withdraw
    breaker: CircuitBreaker


class ClusterConnection:
    """One cluster: its worker process, the actions waiting for it, and its polls."""

    def __init__(self, service: SchedulerService, settings: ClusterSettings) -> None:
        self.name, self.settings = settings.cluster.name, settings
        self.access = ""  # by what its worker speaks to it, once that is known
        self._service = service
        self._dispatches: list[tuple[float, int, int, Dispatch]] = []
        self._withdrawals: dict[tuple[int, int, bool], _PendingWithdrawal] = {}
        self._accounting_query: QueryAccounting | None = None
        self._claims_to_revoke: set[TaskClaim] = set()  # to be revoked
        self.start_times = ManagerStartTimes(self.name)
        self.reservation_sync = ReservationSync(settings.cluster, service, self.call)
        self.last_listed = 0.0  # when the listing was taken that news is relative to
        self._wake = asyncio.Event()
        self._worker: asyncio.subprocess.Process | None = None
        self._worker_started_at = 0.0
        self._worker_replied = False  # the worker, at least once
        self._worker_waiters: set[asyncio.Task[None]] = set()  # of workers, waited for
        self._full_poll = True
        self._next_poll = 0.0
        self._poll_delay = settings.poll_interval
        self.breaker = self._new_breaker()
        self.worker_breaker = CircuitBreaker(WORKER_RESTART_DELAY, MAX_RETRY_DELAY)

    def _new_breaker(self) -> CircuitBreaker:
        return CircuitBreaker(
            min(2 * self.settings.poll_interval, MAX_RETRY_DELAY), MAX_RETRY_DELAY
        )

    def poll_soon(self) -> None:
        """Something is going to happen: look soon."""
        self._poll_delay = self.settings.poll_interval
        self._wake.set()

    def enqueue(self, action: Action) -> None:
        """Queue an action: sends by the order of their tasks, all others before them."""
        match action:
            case Dispatch():
                tasks = self._service.core.tasks_of_dispatch(action.job, action.dispatch_id)
                earliest_key = min((task.queue_key for task in tasks), default=0.0)
                heapq.heappush(
                    self._dispatches, (earliest_key, action.job, action.dispatch_id, action)
                )
            case Withdraw():
                key = (action.job, action.dispatch_id, action.only_pending)
                earlier = self._withdrawals.pop(key, None)
                native_ids = (
                    {**earlier.action.native_ids, **action.native_ids}
                    if earlier
                    else action.native_ids
                )
                self._withdrawals[key] = _PendingWithdrawal(
                    replace(action, native_ids=native_ids), self._new_breaker()
                )
            case QueryAccounting():
                self._accounting_query = action
            case Revoke():
                self._claims_to_revoke.update(action.claims)
        self.poll_soon()

    async def run(self) -> None:
        """Do what goes first, else send, else wait."""
        try:
            while True:
                self._wake.clear()
                self._check_worker()
                urgent_step = self._select_urgent_step()
                if urgent_step is not None:
                    await urgent_step()
                elif self._dispatches:
                    await self._dispatch_queued()
                else:
                    next_withdrawal = min(
                        (
                            withdrawal.breaker.open_until
                            for withdrawal in self._withdrawals.values()
                        ),
                        default=math.inf,
                    )
                    await self._sleep_until(
                        min(self._next_poll, next_withdrawal, self.reservation_sync.next_due)
                    )
        finally:
            worker = self._worker
            self._kill_worker()
            if worker is not None:
                await worker.wait()

    def _select_urgent_step(self) -> Callable[[], Awaitable[None]] | None:
        """What goes before any sending now: a poll when it is time, else a wish."""
        now = time.monotonic()
        if self.worker_breaker.state(now) == "open":  # there is no worker yet
            return partial(self._sleep_until, self.worker_breaker.open_until)
        if now >= self._next_poll:
            return self._poll
        if self._claims_to_revoke:
            return self._revoke_claims
        if self.breaker.failures:
            return partial(self._sleep_until, self._next_poll)
        withdrawal = min(
            self._withdrawals.values(), key=lambda pending: pending.breaker.open_until, default=None
        )
        if withdrawal is not None and now >= withdrawal.breaker.open_until:
            return partial(self._withdraw, withdrawal)
        if now >= self.reservation_sync.next_due:
            return self.reservation_sync.run_next
        return None if self._accounting_query is None else self._query_accounting

    async def _sleep_until(self, until: float) -> None:
        """Wait for the time or for a new action; then poll soon, if all is well."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(until - time.monotonic(), 0.0)):
                await self._wake.wait()
            if not self.breaker.failures:
                self._schedule_poll(self.settings.poll_interval)

    def _schedule_poll(self, seconds: float) -> None:
        self._next_poll = min(self._next_poll, time.monotonic() + seconds)

    # Polls

    async def _poll(self) -> None:
        clock_detector = ClockStepDetector()
        criticality = self._service.core.licences.rho
        reply = await self.call(WorkerCall("poll", full=self._full_poll, criticality=criticality))
        if clock_step := clock_detector.detect_step():
            # its times are those of another clock, and what it told as news it tells no more
            log.warning(
                "cluster %s: the clock was set by %+.0f s during a poll", self.name, clock_step
            )
            self._full_poll, self._next_poll = True, 0.0
            return
        now, core = time.time(), self._service.core
        if reply.delta is None:
            self._poll_failed(reply.reason)
            return
        delta = self._drop_foreign_rows(reply.delta)
        _, unreachable = core.cluster_status(self.name)
        if unreachable or self.breaker.failures:
            log.info("cluster %s answers", self.name)
            for withdrawal in self._withdrawals.values():
                withdrawal.breaker.record_success()  # it was not for what they ask that they failed
        self.breaker.record_success()
        self._full_poll = False
        self.start_times.update(delta, core.instance)
        quiet = not (delta.rows or delta.vanished or delta.info or delta.full or unreachable)
        if not quiet or core.unchanged_listing_matters(self.name, now):
            self._service.apply_events(
                ListingReceived(
                    now,
                    self.name,
                    delta.rows,
                    tuple((tag, index) for tag, index, _ in delta.vanished),
                    delta.info,
                    delta.full,
                    delta.since,
                    delta.until,
                    self.last_listed,
                    delta.up_since,
                )
            )
        self.last_listed = delta.taken
        self._next_poll = time.monotonic() + self._poll_interval(bool(delta.rows or delta.vanished))

    def _poll_interval(self, has_changes: bool) -> float:
        """Seconds to the next poll: slower while nothing of ours is to begin, move or change."""
        core, shortest = self._service.core, self.settings.poll_interval
        busy = self._withdrawals or core.has_unstarted_tasks or core.licences.has_waiting
        if has_changes or busy or core.unchanged_listing_matters(self.name, time.time()):
            self._poll_delay = shortest
        else:
            longest = MAX_POLL_INTERVAL if core.tasks else IDLE_POLL_INTERVAL
            minimum = shortest if core.tasks_on(self.name) else MAX_POLL_INTERVAL
            self._poll_delay = max(
                min(max(self._poll_delay * POLL_BACKOFF_FACTOR, minimum), longest), shortest
            )
        return self._poll_delay

    def _drop_foreign_rows(self, delta: ListingDelta) -> ListingDelta:
        """Without what others than its owner have marked with a task's tag."""
        is_owner = self._service.is_owner
        return structs.replace(
            delta,
            rows=tuple(row for row in delta.rows if is_owner(row.tag, row.owner)),
            vanished=tuple(entry for entry in delta.vanished if is_owner(entry[0], entry[2])),
            expected_starts=tuple(
                start for start in delta.expected_starts if is_owner(start[0], start[2])
            ),
        )

    def _poll_failed(self, reason: str) -> None:
        """A poll failed: wait longer, and say so to the core once it lasts."""
        now = time.monotonic()
        delay = self.breaker.record_failure(
            reason, time.time(), now, minimum=self.worker_breaker.open_until - now
        )
        self._next_poll = self.breaker.open_until
        log.warning("cluster %s does not answer (%s); next try in %g s", self.name, reason, delay)
        if self.breaker.failures != UNREACHABLE_AFTER_FAILURES:
            return
        self._full_poll = True
        not_dispatched = tuple(
            (dispatch.job, dispatch.dispatch_id) for *_, dispatch in self._dispatches
        )
        self._dispatches.clear()
        skipped = [DispatchSkipped(time.time(), not_dispatched)] if not_dispatched else []
        self._service.apply_events(ClusterUnreachable(time.time(), self.name, reason), *skipped)

    # Actions

    async def _dispatch_queued(self) -> None:
        """Send what waits, until something goes before it or the manager takes no more for now.

        The worker has its next orders in hand while we store what it has answered, and one
        transaction stores the answers to half of them with the intents of as many more.
        """
        service = self._service
        in_flight: deque[tuple[Dispatch, WorkerCall]] = deque()
        events: list[CoreEvent] = []
        accepting = True
        while True:
            dispatches: list[Dispatch] = []
            if accepting and self._select_urgent_step() is None:
                dispatches = self._take_dispatches(
                    DISPATCH_AHEAD_TASKS - sum(len(dispatch.indices) for dispatch, _ in in_flight)
                )
            payloads = service.ledger.payloads(dispatch.job for dispatch in dispatches)
            calls: list[tuple[Dispatch, WorkerCall]] = []
            for dispatch in dispatches:
                now = time.time()
                try:
                    submission = self._build_submission(dispatch, payloads[dispatch.job])
                except UnmappedNameError as error:
                    events.append(
                        DispatchRejected(now, dispatch.job, dispatch.dispatch_id, str(error))
                    )
                    continue
                if submission is None:
                    events.append(DispatchSkipped(now, ((dispatch.job, dispatch.dispatch_id),)))
                    continue
                events.append(DispatchStarted(now, dispatch.job, dispatch.dispatch_id))
                calls.append(
                    (
                        dispatch,
                        WorkerCall(
                            "submit", submission=submission, chained=bool(in_flight or calls)
                        ),
                    )
                )
            if events:
                service.apply_events(*events)
                events.clear()
            for dispatch, call in calls:
                in_flight.append((dispatch, call))
                accepting = accepting and await self._write_call(call)
            if not in_flight:
                return
            # nobody waits for the answer to a single job, nor one of many for those to all
            max_in_flight = min(
                len(in_flight) - 1,
                DISPATCH_AHEAD_TASKS // 2 if self._dispatches else DISPATCH_AHEAD_TASKS,
            )
            while len(in_flight) > (max_in_flight if accepting else 0):
                dispatch, call = in_flight.popleft()
                reply = await self._read_reply(call)
                now, job_id, dispatch_id = time.time(), dispatch.job, dispatch.dispatch_id
                match reply.error:
                    case "":
                        events.append(
                            DispatchAccepted(
                                now, job_id, dispatch_id, reply.native_ids, reply.access
                            )
                        )
                    case "refused":
                        accepting = accepting and not reply.retry_later
                        events.append(
                            DispatchRejected(
                                now, job_id, dispatch_id, reply.reason, reply.retry_later
                            )
                        )
                    case "untried":
                        events.append(DispatchSkipped(now, ((job_id, dispatch_id),)))
                    case _:
                        accepting, self._next_poll = False, 0.0
                        events.append(DispatchUncertain(now, job_id, dispatch_id, reply.reason))

    def _take_dispatches(self, task_limit: int) -> list[Dispatch]:
        """The next sendings, until there are as many tasks."""
        dispatches: list[Dispatch] = []
        while self._dispatches and task_limit > 0:
            dispatches.append(heapq.heappop(self._dispatches)[-1])
            task_limit -= len(dispatches[-1].indices)
        return dispatches

    def _build_submission(self, dispatch: Dispatch, payload: Payload) -> Submission | None:
        """A sending as the worker is told it; None: not any more, or not now.

        NoMapping if the cluster has no word for something that the job asks for.
        """
        core = self._service.core
        tasks = core.tasks_of_dispatch(dispatch.job, dispatch.dispatch_id)
        full_since = core.full_since(self.name)
        attempts = [task.attempt for task in tasks if task.attempt and task.attempt.intent is None]
        if not attempts or (full_since is not None and attempts[0].dispatched <= full_since):
            return None
        info, _ = core.cluster_status(self.name)
        job = translate_job(tasks[0].job, self.settings.cluster, info)
        return Submission(
            tag=tag_of(core.instance, dispatch.job, dispatch.dispatch_id),
            job=job,
            payload=payload,
            indices=tuple(task.index for task in tasks),
            priority=tasks[0].priority,
            options=tuple(shlex.split(job.native.get(self.name, ""))),
            fence=attempts[0].fence,
            reservation=manager_name(core.instance, job.reservation) if job.reservation else "",
            leased_licences=tuple(tasks[0].job.licences),
        )

    async def _withdraw(self, first_withdrawal: _PendingWithdrawal) -> None:
        """Tell a wish, with others that can be told in the same call."""
        batch = self._batch_withdrawals(first_withdrawal)
        withdrawals = tuple(
            Withdrawal(
                tag=self._tag(withdrawal),
                user=self._service.owner_of(self._tag(withdrawal)),
                native_ids=withdrawal.action.native_ids,
                only_pending=withdrawal.action.only_pending,
            )
            for withdrawal in batch
        )
        reply = await self.call(WorkerCall("withdraw", withdrawals=withdrawals))
        if not reply.error or (reply.error == "refused" and len(batch) == 1):
            for withdrawal in batch:
                key = (
                    withdrawal.action.job,
                    withdrawal.action.dispatch_id,
                    withdrawal.action.only_pending,
                )
                if self._withdrawals.get(key) is withdrawal:
                    del self._withdrawals[key]
            self._schedule_poll(0.2)
        else:
            for withdrawal in batch:
                withdrawal.breaker.record_failure(reply.reason, time.time(), time.monotonic())
            others_suffix = f" and {len(batch) - 1} more" if len(batch) > 1 else ""
            description = f"{withdrawals[0].tag}{others_suffix}"
            log.warning("cluster %s: %s not withdrawn: %s", self.name, description, reply.reason)
            self._schedule_poll(0.0)

    def _batch_withdrawals(self, first_withdrawal: _PendingWithdrawal) -> list[_PendingWithdrawal]:
        """The wish and those like it, up to a chunk of tasks; what has failed is told alone."""
        if first_withdrawal.breaker.failures:
            return [first_withdrawal]
        owner = self._service.owner_of(self._tag(first_withdrawal))
        batch, remaining_tasks = (
            [first_withdrawal],
            self.settings.cluster.max_tasks_per_dispatch - len(first_withdrawal.action.native_ids),
        )
        for withdrawal in self._withdrawals.values():
            if (
                withdrawal is not first_withdrawal
                and not withdrawal.breaker.failures
                and withdrawal.action.only_pending == first_withdrawal.action.only_pending
                and self._service.owner_of(self._tag(withdrawal)) == owner
            ):
                remaining_tasks -= len(withdrawal.action.native_ids)
                if remaining_tasks < 0:
                    break
                batch.append(withdrawal)
        return batch

    def _tag(self, withdrawal: _PendingWithdrawal) -> str:
        return tag_of(
            self._service.core.instance, withdrawal.action.job, withdrawal.action.dispatch_id
        )

    async def _query_accounting(self) -> None:
        """What accounting does not tell now the core asks for again later."""
        query, self._accounting_query = self._accounting_query, None
        assert query is not None
        missing = tuple(
            structs.replace(task, user=self._service.owner_of(task.tag))
            for task in query.missing_tasks
        )
        reply = await self.call(WorkerCall("trace", missing=missing))
        if reply.accounting is None:
            log.warning("cluster %s: its accounting does not answer: %s", self.name, reply.reason)
        elif reply.accounting != AccountingAnswer():
            accounting = reply.accounting
            rows = tuple(
                row for row in accounting.rows if self._service.is_owner(row.tag, row.owner)
            )
            self._service.apply_events(
                AccountingReceived(time.time(), self.name, rows, accounting.never_started)
            )

    async def _revoke_claims(self) -> None:
        """What is not known now the core asks for again later."""
        claims = tuple(sorted(self._claims_to_revoke, key=lambda claim: (claim.tag, claim.task)))
        self._claims_to_revoke.clear()
        reply = await self.call(WorkerCall("revoke", claims=claims))
        if reply.reason:
            log.warning("cluster %s: claims not revoked: %s", self.name, reply.reason)
        results = [(revoked, claims[position]) for position, revoked in reply.revoked.items()]
        if results:
            revoked_tasks = tuple((claim.tag, claim.task) for revoked, claim in results if revoked)
            started_tasks = tuple(
                (claim.tag, claim.task) for revoked, claim in results if not revoked
            )
            self._service.apply_events(ClaimsRevoked(time.time(), revoked_tasks, started_tasks))

    # The worker process

    async def call(self, call: WorkerCall) -> WorkerReply:
        """One call to the worker; a worker that dies or hangs is killed, and may have done it."""
        await self._write_call(call)
        return await self._read_reply(call)

    @property
    def _reply_timeout(self) -> float:
        """Seconds for an answer; a busy host may keep a worker from its first one for longer."""
        if self._worker_replied:
            return self.settings.call_timeout
        return self.settings.call_timeout * min(
            2.0**self.worker_breaker.failures, MAX_STARTUP_FACTOR
        )

    async def _write_call(self, call: WorkerCall) -> bool:
        """Give a call to the worker; False: there is none, as `_hear` will say."""
        if self._worker is None and self.worker_breaker.state(time.monotonic()) == "open":
            return False
        timeout = self._reply_timeout
        try:
            worker = self._worker or await self._start_worker()
            assert worker.stdin is not None
            worker.stdin.write(msgspec.json.encode(call) + b"\n")
            async with reply_timeout(timeout):
                await worker.stdin.drain()
        except TimeoutError:
            self._discard_worker(f"it did not read in {timeout:g} s")
        except ConnectionError:
            self._discard_worker(f"its worker died{await self._describe_worker_exit(worker)}")
        except (OSError, ValueError) as error:
            self._discard_worker(f"its worker failed: {error}")
        return self._worker is not None

    async def _read_reply(self, call: WorkerCall) -> WorkerReply:
        """The answer to a call; they come in the order of the calls."""
        worker = self._worker
        if worker is None:
            return WorkerReply("unreachable", self.worker_breaker.last_error)
        assert worker.stdout is not None
        timeout = self._reply_timeout
        try:
            async with reply_timeout(timeout):
                line = await worker.stdout.readline()
        except TimeoutError:
            return self._discard_worker(f"no answer to {call.operation} in {timeout:g} s")
        except (OSError, ValueError) as error:
            return self._discard_worker(f"its worker failed: {error}")
        if not line.endswith(b"\n"):
            return self._discard_worker(
                f"its worker died{await self._describe_worker_exit(worker)}"
            )
        try:
            reply = msgspec.json.decode(line, type=WorkerReply)
        except msgspec.DecodeError as error:
            log.error("cluster %s: an answer that makes no sense: %s", self.name, error)
            return self._discard_worker(f"its worker's answer makes no sense ({error})")
        self._worker_replied, self.access = True, reply.access
        if reply.error == "defect":
            log.error("cluster %s: %s", self.name, reply.reason)
            return WorkerReply("unreachable", reply.reason.strip().rpartition("\n")[2])
        return reply

    async def _start_worker(self) -> asyncio.subprocess.Process:
        settings = self.settings
        self._worker_started_at = time.monotonic()
        clusters_folder = self._service.settings.state_folder
        folder = clusters_folder / self.name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._service.settings.launcher is not None:
            clusters_folder.chmod(0o711)  # to reach their own part users pass through this
        self._worker = await asyncio.create_subprocess_exec(
            settings.python or sys.executable,
            "-m",
            "metasched.adapters.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | settings.environment,
            limit=MAX_REPLY_BYTES,
        )
        self._full_poll, self._worker_replied = True, False
        waiter = asyncio.create_task(self._wake_at_end(self._worker))
        self._worker_waiters.add(waiter)
        waiter.add_done_callback(self._worker_waiters.discard)
        boot = WorkerBoot(
            settings.cluster.adapter,
            settings.cluster,
            settings.options,
            self._service.core.instance,
            str(folder),
            str(self._service.settings.launcher or ""),
        )
        assert self._worker.stdin is not None
        self._worker.stdin.write(msgspec.json.encode(boot) + b"\n")
        return self._worker

    async def _wake_at_end(self, worker: asyncio.subprocess.Process) -> None:
        await worker.wait()
        self._wake.set()

    def _check_worker(self) -> None:
        """A worker that dies while nothing is asked of it is told of, and another started soon."""
        if self._worker is not None and self._worker.returncode is not None:
            self._discard_worker(f"its worker died{_describe_exit(self._worker.returncode)}")
            self._next_poll = max(self.worker_breaker.open_until, self.breaker.open_until)

    @staticmethod
    async def _describe_worker_exit(worker: asyncio.subprocess.Process) -> str:
        """How a worker that closed its pipe has ended, if it tells at once."""
        try:
            async with asyncio.timeout(1.0):
                return _describe_exit(await worker.wait())
        except TimeoutError:
            return ""

    def _discard_worker(self, reason: str) -> WorkerReply:
        """A worker is of no use any more; one that dies again and again is started less often."""
        if self._worker is not None and self._worker.stdin is not None:
            # what it has not read breaks its pipe: asyncio logs that unless somebody asks for it
            close_waiter = asyncio.create_task(self._worker.stdin.wait_closed())
            close_waiter.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._kill_worker()
        now = time.monotonic()
        if now - self._worker_started_at > HEALTHY_AFTER:
            self.worker_breaker.record_success()
        repetition = (
            f", {self.worker_breaker.failures + 1} times in a row"
            if self.worker_breaker.failures
            else ""
        )
        delay = self.worker_breaker.record_failure(reason + repetition, time.time(), now)
        log.warning("cluster %s: %s%s; a new worker in %g s", self.name, reason, repetition, delay)
        return WorkerReply("unreachable", reason + repetition)

    def _kill_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None and worker.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                worker.kill()


def _describe_exit(code: int) -> str:
    return f" of signal {-code}" if code < 0 else f" with exit code {code}"
