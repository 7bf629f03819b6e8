"""Attempts that come back: a manager lists what had been given up, or had ended. Pure."""

from __future__ import annotations

from metasched.core.cluster_view import ClusterView, StaleAttempt
from metasched.core.events import Withdraw
from metasched.core.state import SchedulerState
from metasched.core.task_state_machine import WITHDRAWAL_RETRY_SECONDS, TaskStateMachine
from metasched.core.tasks import Intent, Task, TaskChange
from metasched.core.transitions import LIVE
from metasched.model.job import Reason, State
from metasched.model.listing import JobStatus


class StaleAttempts:
    """Decides which attempt of a task goes on, and has the others ended.

    A manager that lost its last seconds brings back what was cancelled; an operator may have
    called lost what was not. One that waits is withdrawn; one that began goes before a newer one
    that has not; two that began are both left alone, and told.
    """

    def __init__(self, state: SchedulerState, state_machine: TaskStateMachine) -> None:
        self._state, self._state_machine = state, state_machine

    def apply_row(self, view: ClusterView, job: int, dispatch_id: int, row: JobStatus) -> None:
        """A manager lists an attempt that is nobody's live one."""
        key = (job, row.task, dispatch_id)
        cached = view.stale_attempts.pop(key, None)
        started = row.started is not None or row.state in (State.RUNNING, State.SUSPENDED)
        if not started and row.state is not State.PENDING:
            return
        stale_attempt = cached or StaleAttempt(row)
        stale_attempt.row = row
        past_attempt = self._state.past_attempts_of(job, row.task).get(dispatch_id)
        task = self._state.tasks.get((job, row.task))
        if past_attempt is None:
            if row.state in LIVE:
                self._state.outcome.warnings.append(
                    f"{view.name} lists {row.tag}, and nobody knows why"
                )
            return
        if past_attempt.revoked:
            if not started:  # else it has found its claim taken
                stale_attempt.withdrawal = True
                view.stale_attempts[key] = stale_attempt
            return
        if task is None:
            self._apply_to_ended_task(view, key, stale_attempt, started)
            return
        view.stale_attempts[key] = stale_attempt
        if started:
            self.record_start(task, dispatch_id, row.state in LIVE)
            if task.attempt is not None and task.attempt.has_started:
                view.withdraw_pending_stale(key)
        elif task.attempt is None:
            self._state_machine.adopt(task, dispatch_id, "it was given up, and is there after all")
        elif stale_attempt.withdrawal is None:
            stale_attempt.withdrawal = True
            cause = f"sending {dispatch_id} on {past_attempt.cluster} is back: it is withdrawn"
            self._state.record_note(task, cause)

    def record_start(self, task: Task, dispatch_id: int, is_live: bool) -> None:
        """An earlier sending of a task has begun, which was not known, or is not over (`live`).

        What an operator called lost may have been known to have begun; what had ended its
        manager may begin anew.
        """
        past_attempt, attempt = task.past_attempts[dispatch_id], task.attempt
        is_new, past_attempt.has_started = not past_attempt.has_started, True
        if is_new:
            self._state.outcome.past_attempts[(*task.task_id, dispatch_id)] = past_attempt
        elif not is_live:
            return
        description = f"sending {dispatch_id} on {past_attempt.cluster} is back"
        if attempt is None:
            self._state_machine.adopt(task, dispatch_id, "it was given up, and is there after all")
        elif attempt.intent is Intent.CANCEL:
            if self.withdraw_all(task):
                self._state.record_note(task, f"{description}: it is cancelled")
        elif attempt.has_started and past_attempt.requeued:
            if self.withdraw_all(task, dispatch_id):
                self._state.record_note(task, f"{description}: it was requeued, and is ended again")
        elif not attempt.has_started:
            if attempt.intent is Intent.YIELD:
                return
            attempt.intent, attempt.yields_to = Intent.YIELD, dispatch_id
            attempt.target = attempt.withdrawal_requested = None
            self._state.record_note(task, f"{description} and has begun: it goes before")
            self._state_machine.request_withdrawal(task)
        elif is_new or task.reason != Reason.DUPLICATE:
            self._state_machine.report_duplicate(task, dispatch_id)

    def withdraw_all(self, task: Task, only_dispatch: int | None = None) -> bool:
        """Wish for the end of whatever is back of a task, or of one sending; was any wish new?"""
        returned_attempts = [
            stale_attempt
            for view in self._state.views.values()
            for (job, index, dispatch_id), stale_attempt in view.stale_attempts.items()
            if (job, index) == task.task_id
            and only_dispatch in (None, dispatch_id)
            and stale_attempt.withdrawal is not False
        ]
        for stale_attempt in returned_attempts:
            stale_attempt.withdrawal, stale_attempt.withdrawal_requested = False, 0.0
        return bool(returned_attempts)

    def _apply_to_ended_task(
        self,
        view: ClusterView,
        key: tuple[int, int, int],
        stale_attempt: StaleAttempt,
        started: bool,
    ) -> None:
        """An attempt of a task that has ended is listed as live, or as having begun."""
        job, index, dispatch_id = key
        ended_task, is_live = self._state.ended_tasks[job, index], stale_attempt.row.state in LIVE
        past_attempt = ended_task.past_attempts[dispatch_id]
        if past_attempt.has_started and not is_live:
            return
        description = f"sending {dispatch_id} on {view.name}"
        view.stale_attempts[key] = stale_attempt
        if stale_attempt.row.state is State.PENDING:
            withdrawal, cause = not started, f"{description} is back: it is withdrawn"
        elif is_live and ended_task.state is State.CANCELLED:
            withdrawal, cause = False, f"{description} is back: it is cancelled again"
        elif is_live and past_attempt.requeued:
            withdrawal, cause = False, f"{description} is back: it was requeued, and is ended again"
        elif past_attempt.has_started:
            return
        else:
            withdrawal, cause = None, f"DUPLICATE: {description} has begun, too"
            past_attempt.has_started = True
            self._state.outcome.past_attempts[key] = past_attempt
            self._state.outcome.warnings.append(f"job {job}: {cause}")
        if withdrawal is not None and withdrawal == stale_attempt.withdrawal:
            return
        stale_attempt.withdrawal, stale_attempt.withdrawal_requested = withdrawal, 0.0
        self._state.outcome.changes.append(
            TaskChange(
                *(job, index, ended_task.last_attempt, None, ended_task.state, ended_task.state),
                *(view.name, "", cause),
            )
        )

    def request_withdrawals(self, view: ClusterView) -> None:
        """Ask for the ends of those that must not go on, again if that shows no effect."""
        now = self._state.now
        for (job, index, dispatch_id), stale_attempt in view.stale_attempts.items():
            if stale_attempt.withdrawal is None or (
                stale_attempt.withdrawal_requested
                and now - stale_attempt.withdrawal_requested < WITHDRAWAL_RETRY_SECONDS
            ):
                continue
            stale_attempt.withdrawal_requested = now
            native_ids: dict[int, str | None] = {index: stale_attempt.row.native_id}
            self._state.outcome.actions.append(
                Withdraw(job, dispatch_id, view.name, native_ids, stale_attempt.withdrawal)
            )
