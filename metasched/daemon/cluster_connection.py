"""The connection to a cluster: polls it, and executes the core's actions on it.

In site mode the commands of different owners run side by side, beside the polls. Otherwise, and
with adapters that cannot do so, everything runs in sequence.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial

from msgspec import structs

from metasched.adapters.protocol import FIRST_CURSOR, ListingDelta, WorkerCall
from metasched.config.settings import ClusterSettings
from metasched.core.events import (
    AccountingReceived,
    Action,
    ClaimsRevoked,
    ClusterUnreachable,
    DispatchSkipped,
    ListingReceived,
)
from metasched.daemon.alterations import Alterations
from metasched.daemon.circuit_breaker import CircuitBreaker
from metasched.daemon.command_executor import CommandExecutor
from metasched.daemon.dispatches_in_flight import DispatchesInFlight
from metasched.daemon.forgotten_attempts import ForgottenAttempts
from metasched.daemon.host import SchedulerHost
from metasched.daemon.lost_dispatches import LostDispatches
from metasched.daemon.manager_start_times import ManagerStartTimes
from metasched.daemon.owner_turns import OwnerTurns
from metasched.daemon.pending_actions import PendingActions
from metasched.daemon.quarantine import RowFilter, first_error
from metasched.daemon.reservation_sync import ReservationSync
from metasched.daemon.usage_collector import UsageCollector
from metasched.daemon.use_monitor import UseMonitor
from metasched.daemon.worker_process import WorkerProcess
from metasched.db.store import StorageFailed
from metasched.model.audit import OPERATORS_ONLY, AuditKind, AuditRecord
from metasched.model.job import State
from metasched.model.listing import AccountingAnswer, ListedQueue, PolicyExclusions
from metasched.model.row_checks import is_time
from metasched.times.clock import ClockStepDetector

log = logging.getLogger("metasched")

# Polls slow down while nothing changes: the end of a job is noticed late by at most a tenth of
# the quiet time before it.
POLL_BACKOFF_FACTOR = 1.1
MAX_POLL_INTERVAL = 10.0  # seconds between polls while tasks of metasched are open
IDLE_POLL_INTERVAL = 60.0  # seconds between polls without open tasks; a submission resets it
MAX_RETRY_DELAY = 60.0  # seconds between polls of an unreachable cluster
UNREACHABLE_AFTER_FAILURES = 2  # consecutive failed polls after which the core is notified
MAX_DEFECTS = 10  # rows of a listing whose defects its event has


class ClusterConnection:
    """One cluster: its worker process, its pending actions and its polls."""

    def __init__(
        self,
        host: SchedulerHost,
        settings: ClusterSettings,
        cursor: str = FIRST_CURSOR,
        use_cursor: str = "",
    ) -> None:
        """The cursors are the stored positions in the ends and the use that the manager reports."""
        self.name, self.settings = settings.cluster.name, settings
        self._host = host
        self._wake = asyncio.Event()
        self.worker = WorkerProcess(host, settings, on_exit=self._wake.set)
        side_by_side = settings.owner_calls > 0
        self.pending_actions = PendingActions(host, settings, MAX_RETRY_DELAY, side_by_side)
        self._forget_calls()
        self.use_monitor = UseMonitor(
            host, settings, self.worker, use_cursor, is_up=lambda: not self.breaker.failures
        )
        self.usage_collector = UsageCollector(
            host, settings, self.worker, is_up=lambda: not self.breaker.failures
        )
        self.row_filter = RowFilter(self.name, host.quarantine)
        self._forgotten = ForgottenAttempts(host)
        self._lost_dispatches = LostDispatches(host, self.name)
        self.start_times = ManagerStartTimes(self.name)
        self.queue: ListedQueue | None = None  # as last listed; None: its order is unknown
        self.reservation_sync = ReservationSync(
            settings.cluster, host, self.worker.call, self.poll_soon
        )
        self.last_listed = 0.0  # epoch seconds of the listing that the next delta refers to
        self._full_poll = True  # the next poll requests the whole listing
        self._cursor = cursor  # the ends before it are applied for good
        self.alterations = Alterations(self.name)
        self.excluded_passes = 0  # of its local policy, as listed since the start of the service
        self._passes_listed = 0  # the same, of the present worker
        self._next_poll = 0.0  # monotonic seconds
        self._poll_delay = settings.poll_interval  # seconds, grows while nothing changes
        self.breaker = CircuitBreaker(  # of polls
            min(2 * settings.poll_interval, MAX_RETRY_DELAY), MAX_RETRY_DELAY
        )

    def _forget_calls(self) -> None:
        """Begin without calls under way."""
        limit = self.settings.owner_calls
        self._turns = OwnerTurns(limit, MAX_RETRY_DELAY) if limit > 0 else None
        self._in_flight = DispatchesInFlight()
        self._commands = CommandExecutor(
            self._host,
            self.settings,
            self.worker,
            self.pending_actions,
            self._in_flight,
            on_site_fault=self._close_for_site_fault,
        )

    def poll_soon(self) -> None:
        """Return to the shortest poll interval, since a change is expected."""
        self._poll_delay = self.settings.poll_interval
        self._wake.set()

    def enqueue(self, action: Action) -> None:
        """Queue an action of the core."""
        self.pending_actions.enqueue(action)
        self.poll_soon()

    @property
    def has_dispatches_in_flight(self) -> bool:
        """Whether a dispatch was begun whose result is not recorded."""
        return bool(self._in_flight)

    async def run(self) -> None:
        """Poll and execute actions until cancelled; dispatches yield to all other steps."""
        try:
            while True:
                pause = self._host.quarantine.pause_of(self._source)
                if pause is not None:
                    await self._close_for_defect(pause.last_error)
                    await asyncio.sleep(pause.open_until - time.monotonic())
                try:
                    await self._run_until_defect()
                except* StorageFailed as errors:
                    self._host.fail(first_error(errors))  # the worker may take seconds to end
                    raise
                except* Exception as errors:
                    self._host.quarantine.record(self._source, first_error(errors), self.name)
                    if self._host.failure is not None:
                        raise
                await self.worker.stop()  # its next replies would match no call
                self._forget_calls()
        finally:
            await self.worker.stop()

    async def _run_until_defect(self) -> None:
        """Poll and execute actions; an exception concerns this cluster only."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.use_monitor.run(), name=f"{self.name}: use")
            group.create_task(self.usage_collector.run(), name=f"{self.name}: usage")
            while True:
                self._wake.clear()
                if self.worker.discard_if_dead():
                    self._next_poll = max(self.worker.breaker.open_until, self.breaker.open_until)
                urgent_step = self._select_urgent_step()
                if urgent_step is not None:
                    await urgent_step()
                elif self._turns is not None:
                    self._begin_turns(group, self._turns)
                    next_turn = self._turns.next_due(self.pending_actions.due_by_owner())
                    await self._sleep_until(min(self._next_due, next_turn))
                elif self.pending_actions.has_dispatches(""):
                    await self._dispatch_in_sequence()
                else:
                    await self._sleep_until(self._next_due)

    @property
    def _source(self) -> str:
        """The name of this cluster in the quarantine."""
        return f"cluster {self.name}"

    async def _close_for_defect(self, reason: str) -> None:
        """Report the cluster as unreachable."""
        self.breaker.record_failure(reason, time.time(), time.monotonic())
        self._next_poll = 0.0
        await self._report_unreachable(reason)

    @property
    def _next_due(self) -> float:
        """Monotonic seconds of the next step, besides the turns of owners."""
        due = min(
            self._next_poll, self.reservation_sync.next_due, self.pending_actions.next_claims_due
        )
        if self._turns is None:
            due = min(due, self.pending_actions.next_withdrawal_due())
        return due

    def _select_urgent_step(self) -> Callable[[], Awaitable[None]] | None:
        """Return the step that precedes any dispatch now, or None."""
        now = time.monotonic()
        if self.worker.is_paused:
            return partial(self._sleep_until, self.worker.breaker.open_until)
        if now >= self._next_poll:
            return self._poll
        claims_due = self.pending_actions.next_claims_due
        if now >= claims_due or (claims_due < math.inf and not self._has_other_work(now)):
            return self._revoke_claims
        if self.breaker.failures:
            return partial(self._sleep_until, min(self._next_poll, claims_due))
        if self._turns is None and now >= self.pending_actions.next_withdrawal_due():
            return self._withdraw_in_sequence
        if now >= self.reservation_sync.next_due:
            return self.reservation_sync.run_next
        return self._query_accounting if self.pending_actions.has_accounting_query else None

    def _has_other_work(self, now: float) -> bool:
        """Return whether something else than a poll or claims waits for this cluster."""
        due = min(self.pending_actions.due_by_owner().values(), default=math.inf)
        is_due = now >= min(due, self.reservation_sync.next_due)
        return is_due or self.pending_actions.has_accounting_query

    async def _sleep_until(self, until: float) -> None:
        """Sleep until a monotonic time or a new action; after a new action poll soon."""
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
        criticality = self._host.core.licences.rho
        known = tuple(
            job
            for job in self._host.core.known_jobs(self.name, all=self._full_poll)
            if job.native_id
            or not self._in_flight.has(self._host.core.instances.parse_tag(job.tag))
        )
        if self._host.settings.launcher is None:
            known = tuple(structs.replace(job, owner="") for job in known)
        call = WorkerCall(
            "poll",
            full=self._full_poll,
            cursor=self._cursor,
            criticality=criticality,
            known=known,
        )
        self._in_flight.begin_poll()
        reply = await self.worker.call(call)
        if step := clock_detector.detect_step():
            # The times of this delta refer to the old clock, and the worker does not repeat it.
            log.warning("cluster %s: the clock was set by %+.0f s during a poll", self.name, step)
            self._full_poll, self._next_poll = True, 0.0
            return
        now, core = time.time(), self._host.core
        if reply.delta is None:
            await self._record_poll_failure(reply.reason)
            return
        set_aside = set(self.row_filter.rows)
        rows = self._lost_dispatches.sift(reply.delta.rows)
        delta = structs.replace(reply.delta, rows=rows)
        delta = self.row_filter.filter(self._drop_foreign_rows(delta))
        self._advance_cursor(delta)
        if delta.partial:
            await self._apply_partial(delta, now)
            return
        _, unreachable = core.cluster_status(self.name)
        if not self.last_listed:  # later answers after a silence are audit records
            log.info("cluster %s answers", self.name)
        if unreachable or self.breaker.failures:
            self.pending_actions.retry_withdrawals_now()
            if self._turns is not None:
                self._turns.forget_pauses()
        self.breaker.record_success()
        self._note_breaker(AuditKind.BREAKER_CLOSED, "")
        self._note_exclusions(reply.exclusions)
        self.alterations.add(delta.alterations)
        self._full_poll = False
        delta, looked_up = self._forgotten.look_up(delta)
        self.start_times.update(delta, core.instances)
        if delta.queue is not None or delta.full:
            self.queue = delta.queue
        # a row that is set aside changes the state of its task once
        newly_set_aside = [row for row in delta.quarantined if row not in set_aside]
        has_changes = bool(delta.rows or delta.vanished or newly_set_aside)
        must_store = has_changes or delta.info or delta.full or unreachable
        unusable = tuple((row.tag, row.task) for row in delta.quarantined)
        if must_store or core.unchanged_listing_matters(self.name, now, unusable):
            listing = ListingReceived(
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
                self._in_flight.since_poll(),
                unusable,
                self._cursor if delta.cursor else "",
                defects=tuple(
                    (row.tag, row.task, row.defect) for row in newly_set_aside[:MAX_DEFECTS]
                ),
                not_withdrawn=self._cancelled_by_others(delta),
                looked_up=looked_up,
            )
            await self._host.apply_events(listing)
        self.last_listed = delta.taken
        self._next_poll = time.monotonic() + self._poll_interval(has_changes, unusable)

    def _cancelled_by_others(self, delta: ListingDelta) -> tuple[tuple[str, int], ...]:
        """Return (tag, index) of tasks that are cancelled, or gone, though no command was begun.

        A command that begins after the listing cannot be the cause of its contents.
        """
        ended = [(row.tag, row.task) for row in delta.rows if row.state is State.CANCELLED]
        ended += [(tag, index) for tag, index, _ in delta.vanished]
        if not ended:
            return ()
        waiting = self.pending_actions.waiting_withdrawals()
        return tuple(key for key in ended if key in waiting)

    def _advance_cursor(self, delta: ListingDelta) -> None:
        """Let a later whole listing begin after this listing, unless that may lose an end.

        A row that is set aside, or deferred until a claim is revoked, is not applied for good.
        """
        if not delta.cursor or delta.quarantined:
            return
        if not self._host.core.defers_rows(self.name, delta.rows):
            self._cursor = delta.cursor

    async def _apply_partial(self, delta: ListingDelta, now: float) -> None:
        """Apply the first ends of a listing, and poll for the rest at once."""
        unusable = tuple((row.tag, row.task) for row in delta.quarantined)
        listing = ListingReceived(
            now,
            self.name,
            delta.rows,
            quarantined=unusable,
            cursor=self._cursor,
            partial=True,
            not_withdrawn=self._cancelled_by_others(delta),
        )
        await self._host.apply_events(listing)
        self._full_poll, self._next_poll = False, 0.0

    def _poll_interval(self, has_changes: bool, unusable: Collection[tuple[str, int]]) -> float:
        """Return the seconds to the next poll: more while no task is to start, move or change."""
        core, shortest = self._host.core, self.settings.poll_interval
        busy = (
            has_changes
            or self.pending_actions.has_withdrawals
            or core.has_unstarted_tasks
            or core.licences.has_waiting
            or core.unchanged_listing_matters(self.name, time.time(), unusable)
        )
        if busy:
            self._poll_delay = shortest
        else:
            longest = MAX_POLL_INTERVAL if core.tasks else IDLE_POLL_INTERVAL
            minimum = shortest if core.tasks_on(self.name) else MAX_POLL_INTERVAL
            slower = max(self._poll_delay * POLL_BACKOFF_FACTOR, minimum)
            self._poll_delay = max(min(slower, longest), shortest)
        return self._poll_delay

    def _drop_foreign_rows(self, delta: ListingDelta) -> ListingDelta:
        """Remove rows that other accounts have marked with the tag of a task."""
        is_owner = self._host.is_owner
        return structs.replace(
            delta,
            rows=tuple(row for row in delta.rows if is_owner(row.tag, row.owner)),
            vanished=tuple(entry for entry in delta.vanished if is_owner(entry[0], entry[2])),
            expected_starts=tuple(
                start
                for start in delta.expected_starts
                if is_owner(start[0], start[2]) and is_time(start[3])
            ),
            quarantined=tuple(
                row for row in delta.quarantined if not row.owner or is_owner(row.tag, row.owner)
            ),
        )

    async def _record_poll_failure(self, reason: str) -> None:
        """Delay the next poll; notify the core when failures last."""
        now = time.monotonic()
        worker_pause = self.worker.breaker.open_until - now
        delay = self.breaker.record_failure(reason, time.time(), now, minimum=worker_pause)
        self._next_poll = self.breaker.open_until
        self._note_breaker(AuditKind.BREAKER_OPEN, f"{reason}; next try in {delay:g} s")
        if self.breaker.failures == UNREACHABLE_AFTER_FAILURES:
            await self._report_unreachable(reason)
        elif self.breaker.failures > UNREACHABLE_AFTER_FAILURES:
            message = "cluster %s does not answer yet (%s); next try in %g s"
            log.warning(message, self.name, reason, delay)

    def _note_breaker(self, kind: AuditKind, cause: str) -> None:
        """Record whether the breaker of polls is open; `cause` "": it is closed."""
        record = AuditRecord(time=time.time(), kind=kind, cluster=self.name, cause=cause)
        subject = f"breaker of cluster {self.name}"
        self._host.note_condition(record, subject, "open" if cause else "")

    def _note_exclusions(self, exclusions: PolicyExclusions | None) -> None:
        """Record since when, and for how many passes, FCFS decides in place of the local policy."""
        if exclusions is None:
            return
        # a new worker counts from 0
        before = self._passes_listed if exclusions.passes >= self._passes_listed else 0
        self._passes_listed, passes = exclusions.passes, exclusions.passes - before
        self.excluded_passes += passes
        is_excluded = exclusions.excluded or passes > 0
        kind = AuditKind.LOCAL_POLICY_EXCLUDED if is_excluded else AuditKind.LOCAL_POLICY_DECIDES
        record = AuditRecord(
            time=time.time(),
            kind=kind,
            owner=OPERATORS_ONLY,
            cluster=self.name,
            cause=exclusions.reason if is_excluded else "",
            details={"passes": self.excluded_passes},
        )
        subject = f"local policy of cluster {self.name}"
        self._host.note_condition(record, subject, "excluded" if is_excluded else "")

    async def _close_for_site_fault(self, reason: str) -> None:
        """Close the cluster at once: it would refuse the jobs of all users until a repair."""
        self.breaker.record_failure(reason, time.time(), time.monotonic())
        self._next_poll = self.breaker.open_until
        await self._report_unreachable(f"a fault of the site: {reason}")

    async def _report_unreachable(self, reason: str) -> None:
        """Notify the core; dispatch elsewhere what did not leave yet."""
        self._full_poll = True
        self.pending_actions.clear_dispatches()
        # from the core: a dispatch that is not stored yet is no pending action
        untried = {
            (task.job.id, task.live_attempt.dispatch_id)
            for task in self._host.core.tasks_on(self.name)
            if task.live_attempt.untried
        }
        skipped = [DispatchSkipped(time.time(), tuple(sorted(untried)))] if untried else []
        unreachable = ClusterUnreachable(time.time(), self.name, reason)
        await self._host.apply_events(unreachable, *skipped)

    # Actions

    async def _dispatch_in_sequence(self) -> None:
        """Dispatch until an urgent step is due or the manager accepts no more for now."""
        if await self._commands.dispatch("", lambda: self._select_urgent_step() is None):
            self._next_poll = 0.0

    async def _withdraw_in_sequence(self) -> None:
        """Withdraw the next batch of tasks."""
        self._schedule_poll(0.0 if await self._commands.withdraw("") else 0.2)

    # Turns of owners

    def _begin_turns(self, group: asyncio.TaskGroup, turns: OwnerTurns) -> None:
        """Begin turns of owners whose actions are due."""
        for owner in turns.begin_next(self.pending_actions.due_by_owner()):
            group.create_task(self._run_turn(turns, owner), name=f"{self.name}: {owner}")

    async def _run_turn(self, turns: OwnerTurns, owner: str) -> None:
        """Execute actions of an owner until none is due, an action fails, or other owners wait."""
        actions, commands, error = self.pending_actions, self._commands, ""
        yields = False  # not before the first action

        def withdrawal_is_due() -> bool:
            return actions.next_withdrawal_due(owner) <= time.monotonic()

        def may_continue() -> bool:
            nonlocal yields
            if self.worker.is_paused or self.breaker.failures:
                return False
            if yields and turns.must_yield(actions.due_by_owner()):
                return False
            yields = True
            return True

        while not error and may_continue():
            if withdrawal_is_due():
                error = await commands.withdraw(owner)
                self._schedule_poll(0.2)
            elif actions.has_dispatches(owner):
                yields = False
                error = await commands.dispatch(
                    owner, lambda: not withdrawal_is_due() and may_continue()
                )
            else:
                break
        if error:
            self._schedule_poll(0.0)
        if pause := turns.end(owner, error):
            problem = f"cluster {self.name}: a command of {owner} got no answer"
            log.warning("%s (%s); the next in %g s", problem, error, pause)
        self._wake.set()

    # Queries and claims

    async def _query_accounting(self) -> None:
        """Query the accounting for missing tasks; the core repeats what stays unanswered."""
        query = self.pending_actions.take_accounting_query()
        assert query is not None
        owner_of, is_owner = self._host.owner_of, self._host.is_owner
        missing = tuple(
            structs.replace(task, user=owner_of(task.tag)) for task in query.missing_tasks
        )
        reply = await self.worker.call(WorkerCall("accounting", missing=missing))
        if reply.accounting is None:
            log.warning("cluster %s: its accounting does not answer: %s", self.name, reply.reason)
        elif reply.accounting != AccountingAnswer():
            rows = self.row_filter.usable(
                row for row in reply.accounting.rows if is_owner(row.tag, row.owner)
            )
            queried = {(task.tag, task.task) for task in query.missing_tasks}
            never_started = tuple(
                task for task in reply.accounting.never_started if task in queried
            )
            event = AccountingReceived(time.time(), self.name, rows, never_started)
            await self._host.apply_events(event)

    async def _revoke_claims(self) -> None:
        """Revoke claims of tasks, or read their ends; the core repeats those without a result.

        Claims that wait in metasched have not been asked yet. So this reports to the core which of
        them do not answer: a time limit of the core would not show it.
        """
        claims = self.pending_actions.take_claims()
        if self._host.settings.launcher is not None:
            owner_of = self._host.owner_of
            claims = tuple(replace(claim, user=owner_of(claim.tag)) for claim in claims)
        begun = time.monotonic()
        reply = await self.worker.call(WorkerCall("revoke", claims=claims))
        self.pending_actions.record_claims_call(begun, time.monotonic())
        if reply.reason:
            log.warning("cluster %s: claims not revoked: %s", self.name, reply.reason)
        revoked_claims = [
            (revoked, claims[position]) for position, revoked in reply.revoked.items()
        ]
        ends = tuple((claims[i].tag, claims[i].task, end) for i, end in reply.ends.items())
        # a task that is unknown already is not reported again: a folder may hang for days
        unanswered = tuple(
            (claim.tag, claim.task)
            for position, claim in enumerate(claims)
            if position not in reply.revoked
            and not claim.started
            and self._host.core.awaits_claim(claim.tag, claim.task)
        )
        if revoked_claims or ends or unanswered:
            revoked_tasks = tuple(
                (claim.tag, claim.task) for revoked, claim in revoked_claims if revoked
            )
            started = tuple(
                (claim.tag, claim.task) for revoked, claim in revoked_claims if not revoked
            )
            event = ClaimsRevoked(time.time(), revoked_tasks, started, ends, unanswered)
            await self._host.apply_events(event)
