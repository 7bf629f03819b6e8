"""Stale attempts: a manager lists attempts that were considered lost or ended. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from metasched.core.cluster_view import ClusterView, StaleAttempt
from metasched.core.events import Withdraw
from metasched.core.state import SchedulerState
from metasched.core.task_state_machine import (
    START_TOLERANCE,
    WITHDRAWAL_RETRY_SECONDS,
    TaskStateMachine,
)
from metasched.core.tasks import Intent, PastAttempt, StateChange, Task, TaskChange, WithdrawalMode
from metasched.core.transitions import LIVE
from metasched.model.job import Reason, State
from metasched.model.listing import JobStatus

_LISTED_AGAIN = "it was considered lost, but its manager lists it again"
_REQUEUED = "cancelling it, since the task was requeued"
# Warnings of a listing: the owner of a job can write any number of tags, and change them each time
_MAX_UNKNOWN = 10


class StaleAttempts:
    """Decides which attempt of a task continues, and withdraws the others.

    A manager that lost its last seconds lists cancelled attempts again; an operator may have
    declared a live attempt lost. A pending stale attempt is withdrawn. A started stale attempt
    replaces a newer attempt that has not started. If both have started, both continue, and the
    duplicate is reported.
    """

    def __init__(self, state: SchedulerState, state_machine: TaskStateMachine) -> None:
        self._state, self._state_machine = state, state_machine

    def apply_unmatched_row(
        self, view: ClusterView, job: int, dispatch_id: int, row: JobStatus
    ) -> Iterator[StateChange]:
        """Apply a row of a listing that matches no live attempt."""
        key = (job, row.task, dispatch_id)
        cached = view.stale_attempts.pop(key, None)
        started = row.started is not None or row.state in (State.RUNNING, State.SUSPENDED)
        if not started and row.state is not State.PENDING:
            return
        stale_attempt = cached or StaleAttempt(row)
        stale_attempt.row = row
        past_attempt = self._state.past_attempts_of(job, row.task).get(dispatch_id)
        task = self._state.tasks.get((job, row.task))
        if (
            past_attempt is None
            and task is not None
            and self._state.instances.is_former(dispatch_id)
        ):
            # dispatched after the state to which the database went back
            past_attempt = PastAttempt(view.name, has_started=False)
            task.past_attempts[dispatch_id] = past_attempt
        if past_attempt is None:
            if row.state in LIVE and len(self._state.outcome.warnings) < _MAX_UNKNOWN:
                self._state.outcome.warnings.append(
                    f"{view.name} lists {row.tag}, which is unknown to metasched"
                )
            return
        if past_attempt.revoked:
            if not started:  # else its payload finds the claim taken and exits
                stale_attempt.withdrawal = WithdrawalMode.IF_PENDING
                view.stale_attempts[key] = stale_attempt
            return
        if task is None:
            self._apply_to_ended_task(view, key, stale_attempt, started)
            return
        view.stale_attempts[key] = stale_attempt
        if started:
            yield from self.apply_start(task, dispatch_id, row.state in LIVE)
            if task.attempt is not None and task.attempt.has_started:
                view.withdraw_pending_stale(key)
        elif task.attempt is None:
            yield from self._state_machine.adopt(task, dispatch_id, _LISTED_AGAIN)
        elif stale_attempt.withdrawal is WithdrawalMode.NONE:
            stale_attempt.withdrawal = WithdrawalMode.IF_PENDING
            cause = (
                f"dispatch {dispatch_id} on {past_attempt.cluster} is listed again: withdrawing it"
            )
            self._state.record_note(task, cause)

    def apply_start(self, task: Task, dispatch_id: int, is_live: bool) -> Iterator[StateChange]:
        """Record that an earlier dispatch of a task has started, and resolve the conflict.

        Does nothing if the start was known and the attempt has ended (not `is_live`). A known start
        is possible: of an attempt that an operator declared lost, or that its manager restarted.
        """
        past_attempt, attempt = task.past_attempts[dispatch_id], task.attempt
        is_new, past_attempt.has_started = not past_attempt.has_started, True
        if is_new:
            self._state.outcome.past_attempts[(*task.task_id, dispatch_id)] = past_attempt
        elif not is_live:
            return
        description = f"dispatch {dispatch_id} on {past_attempt.cluster} is listed again"
        if attempt is None:
            yield from self._state_machine.adopt(task, dispatch_id, _LISTED_AGAIN)
        elif attempt.intent is Intent.CANCEL:
            if self.withdraw_all(task):
                self._state.record_note(task, f"{description}: cancelling it")
        elif attempt.has_started and past_attempt.requeued:
            if self.withdraw_all(task, dispatch_id):
                self._state.record_note(task, f"{description}: {_REQUEUED}")
        elif not attempt.has_started:
            if attempt.intent is Intent.YIELD:
                return
            attempt.forget_withdrawal()
            attempt.intent, attempt.yields_to = Intent.YIELD, dispatch_id
            self._state.record_note(
                task, f"{description} and has started: it replaces the newer attempt"
            )
            self._state_machine.request_withdrawal(task)
        elif is_new or task.reason != Reason.DUPLICATE:
            self._state_machine.report_duplicate(task, dispatch_id)

    def withdraw_all(self, task: Task, only_dispatch: int | None = None) -> bool:
        """Withdraw all stale attempts of a task or dispatch. Return whether a withdrawal is new."""
        returned_attempts = [
            stale_attempt
            for view in self._state.views.values()
            for (job, index, dispatch_id), stale_attempt in view.stale_attempts.items()
            if (job, index) == task.task_id
            and only_dispatch in (None, dispatch_id)
            and stale_attempt.withdrawal is not WithdrawalMode.FORCE
        ]
        for stale_attempt in returned_attempts:
            stale_attempt.withdrawal = WithdrawalMode.FORCE
            stale_attempt.withdrawal_requested = 0.0
        return bool(returned_attempts)

    def _apply_to_ended_task(
        self,
        view: ClusterView,
        key: tuple[int, int, int],
        stale_attempt: StaleAttempt,
        started: bool,
    ) -> None:
        """Handle an attempt of an ended task that is listed as live, or as started."""
        job, index, dispatch_id = key
        ended_task, is_live = self._state.ended_tasks[job, index], stale_attempt.row.state in LIVE
        past_attempt = ended_task.past_attempts[dispatch_id]
        was_known = past_attempt.has_started
        if was_known and _is_another_run(past_attempt, stale_attempt.row):
            past_attempt.started, was_known = stale_attempt.row.started, False
        if was_known and not is_live:
            return
        if started and not was_known:
            # its end must not be taken for that of a new attempt, if the task is requeued
            past_attempt.has_started = True
            self._state.outcome.past_attempts[key] = past_attempt
        description = f"dispatch {dispatch_id} on {view.name}"
        view.stale_attempts[key] = stale_attempt
        if stale_attempt.row.state is State.PENDING:
            withdrawal = WithdrawalMode.FORCE if started else WithdrawalMode.IF_PENDING
            cause = f"{description} is listed again: withdrawing it"
        elif is_live and ended_task.state is State.CANCELLED:
            withdrawal = WithdrawalMode.FORCE
            cause = f"{description} is listed again: cancelling it again"
        elif is_live and past_attempt.requeued:
            withdrawal = WithdrawalMode.FORCE
            cause = f"{description} is listed again: {_REQUEUED}"
        elif was_known:
            return
        else:
            withdrawal = WithdrawalMode.NONE
            cause = f"DUPLICATE: {description} has started, too"
            self._state.outcome.warnings.append(f"job {job}: {cause}")
        if withdrawal is not WithdrawalMode.NONE and withdrawal is stale_attempt.withdrawal:
            return
        stale_attempt.withdrawal, stale_attempt.withdrawal_requested = withdrawal, 0.0
        self._state.outcome.changes.append(
            TaskChange(
                job=job,
                index=index,
                attempt=ended_task.last_attempt,
                event=None,
                before=ended_task.state,
                after=ended_task.state,
                cluster=view.name,
                reason="",
                cause=cause,
            )
        )

    def request_withdrawals(self, view: ClusterView) -> None:
        """Request the withdrawals of stale attempts on a cluster; repeat them if without effect."""
        now = self._state.now
        for (job, index, dispatch_id), stale_attempt in view.stale_attempts.items():
            if self._state.instances.is_former(dispatch_id):
                continue  # the daemon that made it may still run
            if stale_attempt.withdrawal is WithdrawalMode.NONE or (
                stale_attempt.withdrawal_requested
                and now - stale_attempt.withdrawal_requested < WITHDRAWAL_RETRY_SECONDS
            ):
                continue
            stale_attempt.withdrawal_requested = now
            native_ids: dict[int, str | None] = {index: stale_attempt.row.native_id}
            self._state.outcome.actions.append(
                Withdraw(
                    job=job,
                    dispatch_id=dispatch_id,
                    cluster=view.name,
                    native_ids=native_ids,
                    only_pending=stale_attempt.withdrawal is WithdrawalMode.IF_PENDING,
                )
            )


def _is_another_run(past_attempt: PastAttempt, row: JobStatus) -> bool:
    """Return whether a manager lists a later start of an attempt than it did before its end."""
    if past_attempt.started is None or row.started is None:
        return False
    return row.started > past_attempt.started + START_TOLERANCE
