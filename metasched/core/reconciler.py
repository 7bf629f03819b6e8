"""Listings against live attempts: missing attempts are proved absent, queried, or revoked. Pure."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping

from msgspec import structs

from metasched.core.cluster_view import ClusterView
from metasched.core.events import (
    AccountingReceived,
    ClaimsRevoked,
    ClusterUnreachable,
    ListingReceived,
    QueryAccounting,
)
from metasched.core.stale_attempts import StaleAttempts
from metasched.core.state import SchedulerState
from metasched.core.task_state_machine import (
    ACCOUNTING_RETRY_DELAY,
    TaskStateMachine,
    shows_withdrawal,
)
from metasched.core.tasks import IF_PENDING_INTENTS, StateChange, Task
from metasched.core.transitions import STARTED, TaskEvent
from metasched.model.job import State
from metasched.model.listing import JobStatus, MissingTask

_NO_TASKS: Mapping[int, Task] = {}


class Reconciler:
    """Applies listings and accounting to live attempts."""

    def __init__(
        self, state: SchedulerState, state_machine: TaskStateMachine, stale_attempts: StaleAttempts
    ) -> None:
        self._state, self._state_machine = state, state_machine
        self._stale_attempts = stale_attempts

    def apply_listing(self, view: ClusterView, event: ListingReceived) -> Iterator[StateChange]:
        """Apply the rows of a listing, then reconcile the tasks that it does not contain."""
        own_rows = yield from self._apply_rows(view, event)
        if not event.partial and (event.full or event.vanished or view.needs_attention):
            yield from self._check_unlisted_tasks(view, event, own_rows)

    def apply_unreachable(self, event: ClusterUnreachable) -> Iterator[StateChange]:
        """Set the tasks of a cluster whose manager does not answer to unknown."""
        view = self._state.views[event.cluster]
        view.mark_down(event.reason, self._state.observed_seconds)
        for task in list(view.live_tasks.values()):
            if task.live_attempt.state is not State.UNKNOWN and not task.live_attempt.untried:
                yield self._state_machine.apply(task, TaskEvent.SILENCE, event.reason)

    def _apply_rows(
        self, view: ClusterView, event: ListingReceived
    ) -> Generator[StateChange, None, list[tuple[tuple[int, int], int]]]:
        """Apply the rows of a listing. Return (job, dispatch id) and index of metasched's tasks."""
        state = self._state
        own_rows, parse_tag, dispatches = [], state.instances.parse_tag, state.dispatches
        if event.full:
            view.stale_attempts.clear()
            # with a cursor, an end was perhaps listed just before
            for id, row in list(view.deferred_rows.items()):
                if not event.cursor or row.ended is None:
                    del view.deferred_rows[id]
        for job, index, ended_task in event.looked_up:
            state.recall_ended((job, index), ended_task)
        not_withdrawn = set(event.not_withdrawn)
        for row in event.rows:
            dispatch = parse_tag(row.tag)
            if dispatch is None:
                continue
            state.current_row = row
            own_rows.append((dispatch, row.task))
            task = dispatches.get(dispatch, _NO_TASKS).get(row.task)
            if task is None:
                yield from self._stale_attempts.apply_unmatched_row(view, *dispatch, row)
            elif task.live_attempt.cluster == event.cluster:
                if (row.tag, row.task) in not_withdrawn and row.state is State.CANCELLED:
                    task.note_ended_first()
                yield from self._state_machine.apply_status(task, row)
        state.current_row = None
        for tag, index in event.quarantined:
            if index < 0 or (dispatch := parse_tag(tag)) is None:
                continue
            own_rows.append((dispatch, index))
            task = dispatches.get(dispatch, _NO_TASKS).get(index)
            if task is not None and task.live_attempt.cluster == event.cluster:
                yield from self._distrust(task, event)
        return own_rows

    def _distrust(self, task: Task, listing: ListingReceived) -> Iterator[StateChange]:
        """Record that a task is in its manager in an unknown state: it may have started.

        It may have started since it was listed with usable values, so `last_listed` stays then.
        While its claim is being revoked, the claim decides whether it can start.
        """
        attempt = task.live_attempt
        attempt.gone_first = False
        if attempt.revoking:
            return
        if attempt.in_last_listing and not attempt.missing:
            attempt.last_listed = listing.previous_taken
        if attempt.in_last_listing or attempt.missing or attempt.accepted is None:
            attempt.in_last_listing = attempt.missing = False
            attempt.accepted = attempt.accepted or self._state.now
            self._state.store(task)
        if attempt.state is not State.UNKNOWN:
            cause = "its manager lists it with values that cannot be used; it may have started"
            yield self._state_machine.apply(task, TaskEvent.SILENCE, cause)
        self._state_machine.request_withdrawal(task)

    def _check_unlisted_tasks(
        self, view: ClusterView, event: ListingReceived, own_rows: list[tuple[tuple[int, int], int]]
    ) -> Iterator[StateChange]:
        """Reconcile the tasks that are missing from a listing, or may be."""
        dispatches = self._state.dispatches
        listed_tasks = {  # evaluated after the rows: some tasks may just have been adopted
            task.task_id
            for dispatch, index in own_rows
            if (task := dispatches.get(dispatch, _NO_TASKS).get(index)) is not None
            and task.live_attempt.cluster == event.cluster
        }
        parse_tag = self._state.instances.parse_tag
        vanished = set()
        not_withdrawn = {(parse_tag(tag), index) for tag, index in event.not_withdrawn}
        for tag, index in event.vanished:
            if (dispatch := parse_tag(tag)) is not None:
                view.stale_attempts.pop((dispatch[0], index, dispatch[1]), None)
            if (task := self._state.task_by_tag(tag, index)) is not None:
                vanished.add(task.task_id)
                view.deferred_rows.pop(task.task_id, None)
        candidates = dict(view.live_tasks if event.full else view.needs_attention)
        for task_id in sorted(vanished):
            if task_id in view.live_tasks:
                candidates[task_id] = view.live_tasks[task_id]
        in_flight = set(event.in_flight)
        unreadable = {tag and parse_tag(tag) for tag, index in event.quarantined if index < 0}
        for task_id, task in candidates.items():
            attempt = task.live_attempt
            if attempt.settled:
                view.needs_attention.pop(task_id, None)
            if task_id in listed_tasks:
                continue
            gone = event.full or task_id in vanished
            if gone and attempt.in_last_listing and not attempt.missing:
                attempt.last_listed = event.previous_taken
            dispatch = task.job.id, attempt.dispatch_id
            if dispatch in in_flight:
                attempt.in_last_listing = False
                view.needs_attention[task_id] = task
                continue
            if not unreadable.isdisjoint(("", dispatch)):
                yield from self._defer(task, view)
                continue
            if gone or attempt.missing or not attempt.in_last_listing:
                if (dispatch, task.index) in not_withdrawn:
                    task.note_ended_first()
                yield from self._resolve_missing(task, event)
            self._state_machine.request_withdrawal(task)

    def _defer(self, task: Task, view: ClusterView) -> Iterator[StateChange]:
        """Conclude nothing about a missing task: a line that cannot be read may be it."""
        attempt = task.live_attempt
        attempt.in_last_listing = attempt.gone_first = False
        view.needs_attention[task.task_id] = task
        if attempt.state is not State.UNKNOWN and (attempt.accepted or attempt.native_id):
            cause = "its manager lists a line that cannot be read, which may be this task"
            yield self._state_machine.apply(task, TaskEvent.SILENCE, cause)
        self._state_machine.request_withdrawal(task)

    def _resolve_missing(self, task: Task, listing: ListingReceived) -> Iterator[StateChange]:
        """Handle a live attempt that is missing from a complete listing.

        Listings contain every attempt that started within the span for which they prove absence. So
        an attempt that was in the manager, unstarted, within that span never started. Managers
        drop such tasks without a record (Slurm: tasks of an array).

        While a dispatch without an answer may still arrive, each listing shows that it has not yet.
        So the listing that proves its absence need not reach back to the dispatch: a manager may
        stand still for longer than it keeps ended jobs.

        A manager that restarts may have forgotten attempts, and starts of them. So nothing before
        its last start is proved, also by an adapter that says so.
        """
        attempt, since = task.live_attempt, max(listing.since, listing.up_since)
        if attempt.unbegun_on and attempt.revoking:
            return  # it was listed as ended, and its claim decides whether it had begun
        if attempt.accepted is None and attempt.native_id is None:
            if attempt.tried is None:
                return  # not submitted yet
            may_arrive = attempt.tried > listing.until
            if since <= (attempt.absent_until or attempt.dispatched):
                if not may_arrive:
                    cause = "a complete listing proves that it never reached the manager"
                    yield from self._state_machine.settle_unstarted(task, TaskEvent.ABSENT, cause)
                    return
                attempt.absent_until = max(listing.previous_taken, attempt.dispatched)
            if may_arrive:
                return
        elif not attempt.has_started:
            earliest_start = attempt.dispatched
            last_present = attempt.accepted or attempt.dispatched
            if attempt.last_listed is not None:
                earliest_start = last_present = attempt.last_listed
            if since <= earliest_start and last_present <= listing.until:
                yield from self._resolve_never_started(task)
                return
        if not attempt.missing:
            attempt.missing, attempt.missing_since = True, self._state.now
            attempt.accounting_queries, attempt.next_accounting_query = 0, self._state.now
            if (view := self._state.view_of(task)) is not None:
                view.needs_attention[task.task_id] = task
        if attempt.state is not State.UNKNOWN and not attempt.revoking:
            cause = "the manager no longer lists it; how it ended is unknown"
            yield self._state_machine.apply(task, TaskEvent.SILENCE, cause)

    def _resolve_never_started(self, task: Task) -> Iterator[StateChange]:
        """Handle an attempt that is gone from its manager and never started.

        It was cancelled, or lost by a restart of the manager; then the task is dispatched again.
        """
        attempt = task.live_attempt
        last_present = attempt.last_listed or attempt.accepted or attempt.dispatched
        if last_present < self._state.views[attempt.cluster].up_since:
            cause = "lost by a restart of its manager; it never started"
            yield from self._state_machine.settle_unstarted(task, TaskEvent.ABSENT, cause)
            return
        is_former = self._state.instances.is_former(attempt.dispatch_id)
        cause = "gone from the manager; it never started"
        if attempt.gone_first:
            self._state_machine.drop_withdrawal(task)
        if attempt.intent in IF_PENDING_INTENTS or is_former:
            yield from self._state_machine.settle_unstarted(task, TaskEvent.WITHDRAW, cause)
        else:
            yield self._state_machine.apply(task, TaskEvent.KILL, cause)

    def query_accounting(self, view: ClusterView) -> None:
        """Query a manager's accounting about its missing tasks, and revoke their claims."""
        now = self._state.now
        due_tasks = [
            task
            for task in view.needs_attention.values()
            if task.live_attempt.accounting_query_due(now)
        ]
        if not due_tasks:
            return
        missing_tasks, to_revoke = [], []
        has_accounting = bool(view.info is not None and view.info.accounting_source)
        for task in due_tasks:
            attempt = task.live_attempt
            initial, maximum = ACCOUNTING_RETRY_DELAY
            attempt.next_accounting_query = now + min(
                initial * 2.0**attempt.accounting_queries, maximum
            )
            attempt.accounting_queries += 1
            # a first query may suffice
            if not has_accounting or attempt.accounting_queries > 1 or attempt.revoking:
                to_revoke.append(task)
            if task.awaits_claim:
                continue  # its records would wait for that answer
            tag = self._state.live_tag(task)
            accepted = attempt.accepted
            if accepted is None and attempt.native_id is None:
                # its command may have arrived just before a listing proved it to be missing
                accepted = attempt.missing_since
            missing_tasks.append(
                MissingTask(
                    *(tag, task.index, attempt.native_id, attempt.dispatched, accepted),
                    submitted=attempt.submitted,
                )
            )
        if has_accounting and missing_tasks:
            self._state.outcome.actions.append(QueryAccounting(view.name, tuple(missing_tasks)))
        self._state_machine.revoke_claims(view, to_revoke)

    def apply_accounting(self, event: AccountingReceived) -> Iterator[StateChange]:
        """Apply records of accounting to attempts that are still missing."""
        for row in event.rows:
            task = self._state.task_by_tag(row.tag, row.task)
            if task is None or not task.live_attempt.missing:
                continue
            attempt = task.live_attempt
            if attempt.has_started and shows_withdrawal(attempt, row):
                continue  # its claim knows better
            self._state.record_note(task, "found in the manager's accounting")
            yield from self._apply_row(task, row)
        for tag, index in event.never_started:
            task = self._state.task_by_tag(tag, index)
            if task is None or not task.live_attempt.missing or task.live_attempt.has_started:
                continue  # what was listed as started is not refuted by a missing record
            if task.live_attempt.native_id is None:
                cause = "accounting proves that it never reached the manager"
                yield from self._state_machine.settle_unstarted(task, TaskEvent.ABSENT, cause)
            else:
                yield from self._resolve_never_started(task)

    def apply_revocations(self, event: ClaimsRevoked) -> Iterator[StateChange]:
        """Apply revoked claims: the tasks can be dispatched again, unless they claimed before.

        A task whose claim was asked without a result is unknown until the claim answers.
        """
        for tag, index in event.tasks:
            if (task := self._state.task_by_tag(tag, index)) is not None:
                attempt = task.live_attempt
                attempt.revoking, attempt.revoked, attempt.has_started = False, True, False
                if (
                    attempt.state in STARTED and not attempt.unbegun_on
                ):  # it came back while it was being revoked
                    attempt.started = None
                    cause = "its manager lists it as started, but its payload cannot start"
                    yield self._state_machine.apply(task, TaskEvent.SILENCE, cause)
                row = self._state.views[attempt.cluster].deferred_rows.pop(task.task_id, None)
                if row is not None and shows_withdrawal(attempt, row):
                    yield from self._apply_row(task, row)
                elif attempt.unbegun_on and row is not None and row.state is State.CANCELLED:
                    # its node may be in service again
                    row = structs.replace(row, unbegun_on=attempt.unbegun_on)
                    yield from self._apply_row(task, row)
                elif attempt.unbegun_on:
                    yield self._state_machine.apply_unbegun(task)
                else:
                    cause = "its claim is revoked: it can never start"
                    yield self._state_machine.conclude_absence(task, cause)
            elif (dispatch := self._state.instances.parse_tag(tag)) is not None:
                past_attempt = self._state.past_attempts_of(dispatch[0], index).get(dispatch[1])
                if past_attempt is not None:
                    past_attempt.revoked = True
                    self._state.outcome.past_attempts[dispatch[0], index, dispatch[1]] = (
                        past_attempt
                    )
        for tag, index in event.already_started:
            if (task := self._state.task_by_tag(tag, index)) is not None:
                task.live_attempt.revoking, task.live_attempt.has_started = False, True
                self._state.record_note(task, "it has started: its payload made the claim")
                row = self._state.views[task.live_attempt.cluster].deferred_rows.pop(
                    task.task_id, None
                )
                task.live_attempt.unbegun_on = None
                if row is not None:
                    yield from self._apply_row(task, structs.replace(row, unbegun_on=""))
            elif (dispatch := self._state.instances.parse_tag(tag)) is not None:
                open_task = self._state.tasks.get((dispatch[0], index))
                if open_task is not None and dispatch[1] in open_task.past_attempts:
                    yield from self._stale_attempts.apply_start(
                        open_task, dispatch[1], is_live=False
                    )
        for tag, index, end in event.ends:
            task = self._state.task_by_tag(tag, index)
            if task is None or not task.live_attempt.missing:
                continue  # the manager knows more of it
            self._state.record_note(task, "its manager has forgotten it; its claim records the end")
            state = State.COMPLETED if end.exit_code == 0 else State.FAILED
            native_id = task.live_attempt.native_id or ""
            status = JobStatus(tag, index, native_id, state, end.started, end.ended, end.exit_code)
            yield from self._state_machine.apply_status(task, status)
        for tag, index in event.unanswered:
            if (task := self._state.task_by_tag(tag, index)) is not None and task.awaits_claim:
                cause = "the claim that shows whether it has started does not answer"
                yield self._state_machine.apply(task, TaskEvent.SILENCE, cause)

    def _apply_row(self, task: Task, row: JobStatus) -> Iterator[StateChange]:
        """Apply a row of accounting, or one that was deferred until a claim answered."""
        self._state.current_row = row
        yield from self._state_machine.apply_status(task, row)
        self._state.current_row = None
