"""The state machine of tasks and attempts: the only code that changes a task's state. Pure.

It looks events up in the table of `transitions`. Each change is data, a `StateChange`: indexes,
leases and gates receive it from `Core.step`, so that they always agree with the states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import structs

from metasched.core.cluster_view import ClusterView
from metasched.core.events import Revoke, Withdraw
from metasched.core.leasing import LicenceLeasing
from metasched.core.state import SchedulerState
from metasched.core.tasks import (
    IF_PENDING_INTENTS,
    Attempt,
    Intent,
    PastAttempt,
    StateChange,
    Task,
)
from metasched.core.transitions import (
    FINAL,
    LIVE,
    STARTED,
    UNANSWERED,
    TaskEvent,
    event_for_listed_state,
    find_transition,
)
from metasched.model.host_lists import UNKNOWN_HOSTS, expand_hosts, name_nodes
from metasched.model.job import MANAGER_REASON, Reason, State
from metasched.model.listing import JobStatus, TaskClaim
from metasched.policies.eligible import PERMANENT_REASONS

WITHDRAWAL_RETRY_SECONDS = 60.0  # until a withdrawal without effect is requested again
# cause of the hold of a task whose first start may have come after its backup
HELD_AFTER_BACKUP = (
    "restored from a backup, after which it may have been dispatched; release it if it was not"
)
ACCOUNTING_RETRY_DELAY = (5.0, 600.0)  # seconds between queries of accounting: initial, maximum
MAX_OTHER_NODES = 2  # that a task goes to after a node that could not begin it
_BEGIN_SECONDS = 60.0  # from a manager's start of a job to the first act of its payload, at most
CANCELLED_AT_ONCE = "its node never began it, or somebody cancelled it at once"
START_TOLERANCE = 5.0  # seconds that a new start differs at least; managers round times


class TaskStateMachine:
    """Applies events (`apply`) and rows of listings (`apply_status`) to tasks.

    Whoever applies an event yields its change at once, before it looks at the task again.
    """

    def __init__(self, state: SchedulerState, leasing: LicenceLeasing) -> None:
        self._state, self._leasing = state, leasing

    # Events

    def apply(self, task: Task, event: TaskEvent, cause: str) -> StateChange:
        """Apply an event to a task. The caller yields the returned change to `Core.step`."""
        state, attempt, before = self._state, task.attempt, task.state
        transition = find_transition(before, event, task)
        after = transition.task
        if attempt is not None and transition.attempt is not None:
            attempt.state = transition.attempt
        if task.reason and task.reason != Reason.DUPLICATE:
            task.reason = ""
        if after is State.HELD:
            task.reason = task.reason or Reason.HELD
        task.state = after
        state.record_change(task, event, before, cause)
        if after in LIVE:
            return StateChange(task, event, before, after, attempt, None)
        if attempt is not None:
            self._close_attempt(task, attempt)
        if after in FINAL:
            task.ended = attempt.ended if attempt is not None else state.now
        follow_up = self._follow_up(task, attempt)
        last_dispatch = state.last_dispatch.get(task.job.id, 0) if follow_up is not None else 0
        return StateChange(task, event, before, after, attempt, follow_up, last_dispatch)

    def follow_up(self, change: StateChange, cancel_cause: str) -> Iterator[StateChange]:
        """Apply the event that a change calls for.

        `cancel_cause`: why the task has to be cancelled, or "".
        """
        task, attempt = change.task, change.attempt
        if cancel_cause:
            yield self.apply(task, TaskEvent.CANCEL, cancel_cause)
        match change.follow_up:
            case TaskEvent.REQUEUE:
                by_user = attempt is None or attempt.intent is Intent.REQUEUE
                cause = "requeued as requested" if by_user else "preempted, and it may run again"
                held = False
                if attempt is not None and attempt.intent is Intent.RECLAIM:
                    cause = "its cluster had requeued it, and it may run elsewhere"
                    held = task.held
                yield self.reopen(task, change.last_dispatch, cause, held=held)
            case TaskEvent.CANCEL:
                yield self.apply(task, TaskEvent.CANCEL, "cancelled as requested")
            case TaskEvent.HOLD:
                is_former = attempt is not None and self._is_former(attempt)
                cause = HELD_AFTER_BACKUP if is_former else "held as requested"
                yield self.apply(task, TaskEvent.HOLD, cause)
            case TaskEvent.ADOPT:
                assert attempt is not None
                assert attempt.yields_to is not None
                yield from self.adopt(task, attempt.yields_to, "it replaces the newer attempt")

    def _follow_up(self, task: Task, attempt: Attempt | None) -> TaskEvent | None:
        """Return what users requested, or an older attempt requires, now that an attempt has ended.

        A preempted task goes back to the queue if its owner allows that: its manager has ended it
        for certain. So does a task that its manager had requeued, if the withdrawal ended it before
        it ended otherwise. An attempt of a former instance is left alone: another daemon may
        requeue it.
        """
        if task.state in FINAL:
            if attempt is None:
                return None
            preempted = (
                attempt.state is State.PREEMPTED
                and attempt.intent in (None, Intent.RECLAIM)
                and task.job.requeue
                and not self._is_former(attempt)
            )
            reclaimed = (
                attempt.state is State.CANCELLED
                and attempt.intent is Intent.RECLAIM
                and attempt.withdrawal_requested is not None
            )
            is_requeued = preempted or reclaimed or attempt.intent is Intent.REQUEUE
            return TaskEvent.REQUEUE if is_requeued else None
        if task.state is State.HELD:
            return None
        if attempt is not None and attempt.intent is Intent.CANCEL:
            return TaskEvent.CANCEL
        if attempt is not None and attempt.yields_to in task.past_attempts:
            return TaskEvent.ADOPT
        return TaskEvent.HOLD if task.held else None

    def reject(self, task: Task, cause: str) -> StateChange:
        """Apply a refusal that is proved: its cluster will never take the task."""
        attempt = task.live_attempt
        if attempt.number > task.ignore_rejections_until:
            task.rejected_by |= {attempt.cluster}
            task.refusal = cause
        attempt.rejected, attempt.manager_reason = True, cause
        return self.apply(task, TaskEvent.REFUSE, cause)

    def report_never_met(self, task: Task, cause: str) -> Iterator[StateChange]:
        """Record a dependency that can never be met; cancel a task whose owner asked for that."""
        self._state.record_note(task, cause)
        if task.job.kill_on_invalid_dep:
            yield self.apply(task, TaskEvent.CANCEL, cause)

    def reopen(
        self, task: Task, last_dispatch: int, cause: str, *, held: bool = False
    ) -> StateChange:
        """Queue an ended task again, to be held if `held`, and forget rejections by clusters."""
        task.ended, task.attempt, task.target, task.held = None, None, None, held
        task.choose_licences(0)
        task.forget_failures()
        task.reason = ""
        for dispatch_id, past_attempt in task.past_attempts.items():
            if past_attempt.has_started and not past_attempt.requeued:
                past_attempt.requeued = True
                self._state.outcome.past_attempts[(*task.task_id, dispatch_id)] = past_attempt
        self._state.ended_tasks.pop(task.task_id, None)
        self._state.open_task(task)
        job_id = task.job.id
        if last_dispatch > self._state.last_dispatch.get(job_id, 0):
            self._state.last_dispatch[job_id] = last_dispatch
        return self.apply(task, TaskEvent.REQUEUE, cause)

    def _close_attempt(self, task: Task, attempt: Attempt) -> None:
        """Record the end of an attempt; the task continues without it or has ended, too."""
        if attempt.ended is None:
            attempt.ended = self._state.now
        self._state.outcome.closed_attempts.append((task, attempt))
        requeued = attempt.has_started and attempt.intent is Intent.REQUEUE
        task.past_attempts[attempt.dispatch_id] = PastAttempt(
            attempt.cluster,
            attempt.has_started,
            attempt.fence,
            attempt.revoked,
            requeued,
            attempt.gres_choice,
            attempt.licence_choice,
            attempt.started,
            attempt.unbegun_on if attempt.number > task.ignore_rejections_until else None,
        )
        view = self._state.views.get(attempt.cluster)
        maybe_submitted = attempt.tried is not None or attempt.accepted is not None
        if view is not None and maybe_submitted and not (attempt.revoked or attempt.rejected):
            self.revoke_claims(view, [task])  # its manager may list it again
        if task.state is State.QUEUED:
            task.attempt, task.target = None, attempt.target
            task.choose_licences(0)
            if task.target is not None:
                task.moves += 1
                target_view = self._state.views.get(task.target)
                if attempt.intent is Intent.PULL and target_view is not None:
                    target_view.pulls.record_withdrawal(task)

    # Listings

    def apply_status(self, task: Task, status: JobStatus) -> Iterator[StateChange]:
        """Apply a row of a listing to the live attempt of a task.

        Rows are deferred while the claim is being revoked: the payload may run only until it finds
        its claim taken.
        """
        attempt = task.live_attempt
        attempt.gone_first &= status.state is State.CANCELLED
        if attempt.revoking:
            if self._is_unbegun(attempt, status):
                attempt.unbegun_on = status.unbegun_on
                self._state.store(task)
            self._state.views[attempt.cluster].deferred_rows[task.task_id] = status
            self._ask_until_known(task)
            return
        if attempt.gone_first:
            self.drop_withdrawal(task)
        if _was_restarted(attempt, status):
            may_reclaim, requested = self._may_reclaim(task, status), attempt.withdrawal_requested
            held = attempt.intent is Intent.HOLD
            yield self._apply_restart(task, status)
            attempt = task.live_attempt
            if may_reclaim and attempt.intent is None:
                attempt.intent, task.held = Intent.RECLAIM, held
                if status.state is State.CANCELLED:  # by the request for the former attempt
                    attempt.withdrawal_requested = requested
                self._state.record_note(task, f"taken back from {attempt.cluster}")
        if self._is_unbegun(attempt, status) and self._claim_decides(attempt):
            # its manager's start is but that of the node
            attempt.unbegun_on, attempt.has_started = status.unbegun_on, False
            yield from self._ask_claim(task, status)
            return
        if shows_withdrawal(attempt, status) and self._claim_decides(attempt):
            yield from self._ask_claim(task, status)
            return
        was_listed = attempt.accepted is not None or attempt.native_id is not None
        if status.refused and not was_listed and attempt.state in UNANSWERED:
            sentence = attempt.sentence or status.manager_reason
            yield self.reject(task, sentence)
            return
        attempt.in_last_listing, attempt.missing, attempt.tried = True, False, None
        attempt.sentence = None
        attempt.gone_first = False
        attempt.lease_expired = False  # its change of state leases its licences again
        attempt.native_id = status.native_id
        if status.submitted is not None:
            attempt.submitted = status.submitted
        # a restarted attempt that is pending has no start yet
        if status.state is State.PENDING:
            attempt.started = None
        elif status.started is not None:
            attempt.record_start(status.started, self._state.now)
        attempt.has_started |= status.started is not None
        if self._leasing.licences.leases:
            self._leasing.update_expected_end(task)
        attempt.ended = status.ended
        attempt.exit_code, attempt.signal = status.exit_code, status.signal
        attempt.manager_reason, attempt.node = status.manager_reason, status.node
        attempt.cpu_seconds, attempt.max_memory = status.cpu_seconds, status.max_memory
        attempt.unbegun_on = self._hosts_without_begin(attempt, status) or None
        self._state.store(task)
        event = event_for_listed_state(attempt.state, status.state)
        if_pending = attempt.intent in IF_PENDING_INTENTS
        if task.held and attempt.has_started and self._is_former(attempt):
            task.held = False
        if (
            event is TaskEvent.KILL
            and status.started is None
            and (if_pending or self._is_former(attempt))
        ):
            event = TaskEvent.WITHDRAW
        if event is TaskEvent.KILL and attempt.intent is Intent.EXPIRE:
            event, attempt.manager_reason = TaskEvent.EXPIRE, "its reservation ended"
        if event is TaskEvent.WITHDRAW:
            yield self.apply(task, event, self._withdrawal_cause(attempt))
        elif event is TaskEvent.KILL and attempt.unbegun_on:
            yield self.apply_unbegun(task)
        elif event is not None:
            is_doubtful = attempt.intent is None and _may_be_unbegun(status)
            cause = attempt.manager_reason or (CANCELLED_AT_ONCE if is_doubtful else "")
            yield self.apply(task, event, cause)
        elif (
            attempt.state is State.PENDING
            and status.manager_reason
            and task.reason != Reason.DUPLICATE
        ):
            task.reason = MANAGER_REASON + status.manager_reason
        # pending in spite of a start that only the claim knows: the withdrawal goes on
        waits_there = status.state is State.PENDING and attempt.intent is not Intent.YIELD
        if if_pending and task.attempt is attempt and attempt.has_started and not waits_there:
            if attempt.intent is Intent.RECALL and attempt.state in STARTED:
                self._state.record_note(task, "it started before it could be recalled")
            if attempt.yields_to is not None:
                self.report_duplicate(task, attempt.yields_to)
            attempt.forget_withdrawal()
            attempt.yields_to, task.held = None, False
            self._state.store(task)
        if task.attempt is not None and task.attempt.intent is not None:
            self.request_withdrawal(task)

    def settle_unstarted(self, task: Task, event: TaskEvent, cause: str) -> Iterator[StateChange]:
        """Apply ABSENT or WITHDRAW to a task that by its manager's listings never started.

        Its claim is revoked before, if it has any: see `_claim_decides`.
        """
        if self._claim_decides(task.live_attempt):
            yield from self._ask_claim(task, None)
        elif event is TaskEvent.ABSENT:
            yield self.conclude_absence(task, cause)
        else:
            yield self.apply(task, event, cause)

    def conclude_absence(self, task: Task, cause: str) -> StateChange:
        """Apply what a proof of absence means: what the manager's program said was a refusal."""
        attempt = task.live_attempt
        if attempt.sentence and attempt.state in UNANSWERED:
            return self.apply(task, TaskEvent.REFUSE, attempt.sentence)
        return self.apply(task, TaskEvent.ABSENT, cause)

    def _claim_decides(self, attempt: Attempt) -> bool:
        """Whether an attempt counts as never started only once its claim is revoked.

        A killed manager forgets its last seconds, and with them a start. The claim remembers it.
        An attempt of a former instance is not asked for: the daemon that made it may still run.
        """
        asks = bool(attempt.fence) and not attempt.revoked and not self._is_former(attempt)
        return asks and attempt.cluster in self._state.views

    def _ask_claim(self, task: Task, status: JobStatus | None) -> Iterator[StateChange]:
        """Keep a task that its manager reports as never started until its claim has answered.

        So it is not dispatched again beside a start that its manager has forgotten. If the payload
        was first, the task is `unknown`: accounting and the claim are asked for its end.
        `status`: its row, or None if it is gone from the manager.
        """
        attempt = task.live_attempt
        view = self._state.views[attempt.cluster]
        self._ask_until_known(task)
        if not attempt.has_started:
            if not attempt.revoking:
                self.revoke_claims(view, [task])
            if status is not None:
                view.deferred_rows[task.task_id] = status
            return
        if attempt.yields_to is not None:
            self.report_duplicate(task, attempt.yields_to)
            attempt.yields_to = None
        if attempt.state is not State.UNKNOWN:
            cause = "it has started, and its manager has no record of that; how it ended is unknown"
            yield self.apply(task, TaskEvent.SILENCE, cause)

    def _ask_until_known(self, task: Task) -> None:
        """Let accounting and the claim of a task be asked repeatedly, after a first delay."""
        attempt, now = task.live_attempt, self._state.now
        if attempt.missing:
            return
        attempt.missing, attempt.missing_since = True, now
        attempt.accounting_queries = 0
        attempt.next_accounting_query = now + ACCOUNTING_RETRY_DELAY[0]
        self._state.views[attempt.cluster].needs_attention[task.task_id] = task

    def _is_unbegun(self, attempt: Attempt, status: JobStatus) -> bool:
        """Whether the row of an attempt that nobody withdraws shows that a node did not begin it.

        A withdrawal that leaves started tasks alone counts for nobody: it came too late.
        """
        return (
            status.state is State.CANCELLED
            and bool(status.unbegun_on)
            and attempt.intent in (None, Intent.HOLD, Intent.PULL, Intent.RECALL)
            and not self._is_former(attempt)
        )

    def _hosts_without_begin(self, attempt: Attempt, status: JobStatus) -> str | None:
        """Return the hosts that could not begin an attempt, by its row, after its claim if any.

        Of an attempt that its manager holds since then the end of its withdrawal is the proof.
        """
        if status.state is State.PENDING:
            # its node may be in service again, so that no listing names it any more
            is_known = status.unbegun_on == UNKNOWN_HOSTS and attempt.unbegun_on
            return attempt.unbegun_on if is_known else status.unbegun_on
        if attempt.intent is Intent.RECLAIM and status.state is State.CANCELLED:
            return attempt.unbegun_on if attempt.withdrawal_requested is not None else None
        is_proved = attempt.revoked or (not attempt.fence and _may_be_unbegun(status))
        return status.unbegun_on if is_proved and self._is_unbegun(attempt, status) else None

    def apply_unbegun(self, task: Task) -> StateChange:
        """End an attempt that its node could not begin: another node takes the task, or it fails.

        The caller knows that its payload did not begin. At most two other nodes are tried.
        """
        attempt = task.live_attempt
        failures = [
            (past.unbegun_on, past.cluster)
            for past in task.past_attempts.values()
            if past.unbegun_on
        ]
        failures.append((attempt.unbegun_on or "", attempt.cluster))
        causes = [f"{name_nodes(hosts)} of {cluster}" for hosts, cluster in failures]
        if len(failures) <= MAX_OTHER_NODES and self._has_other_nodes(task):
            cause = f"{causes[-1]} could not begin it; it goes to another node"
            return self.apply(task, TaskEvent.UNBEGUN, cause)
        cause = f"{', '.join(causes)} could not begin it, and no other node is tried"
        return self.apply(task, TaskEvent.LOSE_NODE, cause)

    def _has_other_nodes(self, task: Task) -> bool:
        """Return whether some cluster may run a task on nodes that have not failed to begin it."""
        attempt = task.live_attempt
        for view in self._state.views.values():
            obstacle = view.check_job(task.job)
            hosts = task.hosts_to_avoid(view.name)
            if view.name == attempt.cluster:
                hosts |= frozenset(expand_hosts(attempt.unbegun_on or ""))
            is_barred = view.name in task.rejected_by or (
                obstacle is not None and obstacle.reason in PERMANENT_REASONS
            )
            if not is_barred and view.fits_without(task.job, hosts):
                return True
        return False

    def _may_reclaim(self, task: Task, status: JobStatus) -> bool:
        """Whether a task that its manager has restarted may be queued in metasched instead.

        The manager must have counted the restart. A controller that lost its last seconds counts
        none, and the payload may still run. A withdrawal that was under way may have ended it.
        """
        attempt = task.live_attempt
        is_withdrawn = (
            status.state is State.CANCELLED
            and attempt.intent in IF_PENDING_INTENTS
            and attempt.withdrawal_requested is not None
            and attempt.yields_to is None
        )
        return (
            (status.state is State.PENDING or is_withdrawn)
            and status.restarts > attempt.restarts
            and not status.restart_stays
            and task.job.requeue is not False
            and not self._is_former(attempt)
        )

    def _apply_restart(self, task: Task, status: JobStatus) -> StateChange:
        """Close the attempt that the manager restarted by itself, and open a new attempt."""
        previous = task.live_attempt
        previous_state = previous.state
        previous.state = State.NODE_FAIL
        previous.ended = previous.ended or self._state.now
        previous.manager_reason = previous.manager_reason or status.manager_reason
        self._state.outcome.closed_attempts.append((task, previous))
        task.attempts += 1
        task.attempt = structs.replace(
            previous,
            number=task.attempts,
            state=State.PENDING,
            intent=None if previous.intent in IF_PENDING_INTENTS else previous.intent,
            target=None,
            yields_to=None,
            withdrawal_requested=None,
            gone_first=False,
            maybe_withdrawn=previous.maybe_withdrawn or previous.withdrawal_requested is not None,
            started=None,
            run_since=None,
            ended=None,
            manager_reason="",
            restarts=status.restarts,
        )
        task.state, task.held = find_transition(previous_state, TaskEvent.RESTART, task).task, False
        cause = f"the manager restarted it by itself (restart {status.restarts})"
        self._state.record_change(task, TaskEvent.RESTART, previous_state, cause)
        return StateChange(task, TaskEvent.RESTART, previous_state, task.state, task.attempt, None)

    def adopt(self, task: Task, dispatch_id: int, cause: str) -> Iterator[StateChange]:
        """Continue with an earlier dispatch as the new attempt of a queued or held task.

        An attempt that never started is only withdrawn: an earlier withdrawal may be under way.
        """
        past_attempt = task.past_attempts.pop(dispatch_id)
        task.attempts += 1
        task.choose_licences(past_attempt.licence_choice)
        task.held &= not past_attempt.has_started
        view = self._state.views.get(past_attempt.cluster)
        is_former = self._state.instances.is_former(dispatch_id)
        stale_attempt = (
            view.stale_attempts.pop((*task.task_id, dispatch_id), None) if view else None
        )
        task.attempt = Attempt(
            number=task.attempts,
            dispatch_id=dispatch_id,
            cluster=past_attempt.cluster,
            state=State.QUEUED,
            # no listing proves that a dispatch of before a restore never arrived
            dispatched=0.0 if is_former else self._state.now,
            accepted=self._state.now,
            has_started=past_attempt.has_started,
            fence=past_attempt.fence,
            gres_choice=past_attempt.gres_choice,
            licence_choice=past_attempt.licence_choice,
            restarts=stale_attempt.row.restarts if stale_attempt else 0,
            maybe_withdrawn=True,
        )
        if is_former:
            pass  # another daemon may still have it: nothing is withdrawn but by request
        elif not past_attempt.has_started:
            task.attempt.intent = Intent.HOLD if task.held else Intent.RECALL
        elif past_attempt.requeued:
            task.attempt.intent = Intent.REQUEUE
        yield self.apply(task, TaskEvent.ADOPT, cause)
        if stale_attempt is not None:
            yield from self.apply_status(task, stale_attempt.row)

    def report_duplicate(self, task: Task, dispatch_id: int) -> None:
        """Report two started attempts. Both continue; the newer decides the task's end."""
        task.reason = Reason.DUPLICATE
        for view in self._state.views.values():
            view.withdraw_pending_stale((*task.task_id, dispatch_id))
        cluster = task.past_attempts[dispatch_id].cluster
        cause = f"DUPLICATE: dispatch {dispatch_id} on {cluster} has started, too"
        self._state.record_note(task, cause)
        self._state.outcome.warnings.append(f"job {task.name}: {cause}")

    # Requests to managers

    def request_withdrawal(self, task: Task) -> None:
        """Request the intended withdrawal, once the manager certainly has the task."""
        attempt = task.attempt
        if attempt is None or attempt.intent is None or attempt.state not in LIVE:
            return
        if attempt.state is State.DISPATCHING or attempt.cluster not in self._state.views:
            return
        if (
            attempt.withdrawal_requested is not None
            and self._state.now - attempt.withdrawal_requested < WITHDRAWAL_RETRY_SECONDS
        ):
            return
        attempt.maybe_withdrawn |= attempt.withdrawal_requested is not None
        attempt.withdrawal_requested = self._state.now
        self._state.store(task)
        only_pending = attempt.intent in IF_PENDING_INTENTS
        key = (task.job.id, attempt.dispatch_id, only_pending)
        if key not in self._state.step_withdrawals:
            native_ids = self._state.step_withdrawals[key] = {}
            self._state.outcome.actions.append(
                Withdraw(
                    task.job.id, attempt.dispatch_id, attempt.cluster, native_ids, only_pending
                )
            )
        self._state.step_withdrawals[key][task.index] = attempt.native_id

    def recall(self, task: Task, view: ClusterView, cause: str) -> bool:
        """Withdraw a task, unless it has started or another withdrawal is intended.

        An attempt of a former instance stays: the daemon that made it may still run.
        """
        attempt = task.live_attempt
        if attempt.has_started or attempt.intent is not None or self._is_former(attempt):
            return False
        attempt.intent = Intent.RECALL
        self._state.record_note(task, f"recalled from {view.name}: {cause}")
        if view.up:
            self.request_withdrawal(task)
        return True

    def drop_withdrawal(self, task: Task) -> None:
        """Drop the withdrawal of a task that somebody else has cancelled before it was begun.

        Then its end counts as without a withdrawal. The caller knows that no earlier request may
        have ended it.
        """
        attempt = task.live_attempt
        moves = attempt.intent in (Intent.HOLD, Intent.PULL, Intent.RECALL, Intent.RECLAIM)
        if moves:
            self._state.record_note(task, f"cancelled on {attempt.cluster}, not by metasched")
            attempt.forget_withdrawal()

    def _is_former(self, attempt: Attempt) -> bool:
        return self._state.instances.is_former(attempt.dispatch_id)

    def _withdrawal_cause(self, attempt: Attempt) -> str:
        if attempt.intent is None:
            return "cancelled or moved after the backup, before its start"
        return f"withdrawn before its start ({attempt.intent})"

    def revoke_claims(self, view: ClusterView, tasks: Iterable[Task]) -> None:
        """Revoke the claims of tasks with a fence; if missing tasks have started, ask for ends."""
        claims = []
        for task in tasks:
            attempt = task.live_attempt
            if not attempt.fence or (attempt.has_started and not attempt.missing):
                continue
            # the daemon that made it may still wait for its start
            reads_only = attempt.state is State.UNKNOWN and self._is_former(attempt)
            if not (attempt.has_started or reads_only):
                attempt.revoking = True
                self._state.store(task)
            accepted = attempt.accepted is not None or attempt.native_id is not None
            tag = self._state.live_tag(task)
            started = attempt.has_started or reads_only
            claims.append(TaskClaim(attempt.fence, tag, task.index, accepted, started=started))
        if claims:
            self._state.outcome.actions.append(Revoke(view.name, tuple(claims)))


def shows_withdrawal(attempt: Attempt, status: JobStatus) -> bool:
    """Whether a row shows that metasched withdrew an attempt before its manager started it."""
    is_unstarted = status.state is State.CANCELLED and status.started is None
    return is_unstarted and attempt.intent in IF_PENDING_INTENTS


def _may_be_unbegun(status: JobStatus) -> bool:
    """Whether a row is that of a job that its node did not begin, or that was cancelled at once."""
    return (
        status.state is State.CANCELLED
        and status.node != ""
        and (status.exit_code, status.signal) == (0, None)
        and status.started is not None
        and status.ended is not None
        and status.ended - status.started <= _BEGIN_SECONDS
    )


def _was_restarted(attempt: Attempt, status: JobStatus) -> bool:
    """Whether the manager restarted the payload since the last listing of the attempt.

    Evidence is the manager's count, a started attempt that is pending, or a later start: a
    controller that lost its last seconds counts no restart. A manager may count the restart while
    the first run still ends; then the start has not changed yet.
    """
    if status.restarts > attempt.restarts:
        return status.state is State.PENDING or status.started != attempt.started
    if attempt.started is None:
        return False
    if status.state is State.PENDING:
        return True
    started_later = (
        status.started is not None and status.started > attempt.started + START_TOLERANCE
    )
    return started_later and status.state is State.RUNNING
