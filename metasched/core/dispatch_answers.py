"""Answers to dispatches: started, accepted, rejected, uncertain, skipped. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from metasched.core.events import (
    DispatchAccepted,
    DispatchRejected,
    DispatchSkipped,
    DispatchStarted,
    DispatchUncertain,
)
from metasched.core.gates import SchedulingGates
from metasched.core.placement import Placement
from metasched.core.state import SchedulerState
from metasched.core.strikes import STRIKE_DELAYS
from metasched.core.task_state_machine import TaskStateMachine
from metasched.core.tasks import StateChange, Task
from metasched.core.transitions import UNANSWERED, TaskEvent
from metasched.model.refusal_scope import jobs_in_scope

NO_ANSWER = "no answer: "  # begin of the note of a dispatch without an answer


class DispatchAnswers:
    """Applies the progress of dispatches to their tasks."""

    def __init__(
        self,
        state: SchedulerState,
        state_machine: TaskStateMachine,
        gates: SchedulingGates,
        placement: Placement,
    ) -> None:
        self._state, self._state_machine = state, state_machine
        self._gates, self._placement = gates, placement

    def apply_started(self, event: DispatchStarted) -> None:
        """Record that a dispatch may reach its manager from now on."""
        for task in self._state.tasks_of_dispatch(event.job, event.dispatch_id):
            task.live_attempt.tried = event.time
            task.live_attempt.fence = event.fence or task.live_attempt.fence
            self._state.store(task)

    def apply_uncertain(self, event: DispatchUncertain) -> None:
        """Record that the result of a dispatch is unknown; listings will show it."""
        for task in self._state.tasks_of_dispatch(event.job, event.dispatch_id):
            task.live_attempt.tried = event.time
            self._record_sentence(task, event.sentence)
            self._state.record_note(task, NO_ANSWER + event.reason)

    def _record_sentence(self, task: Task, sentence: str) -> None:
        """Keep what a program said that ended by itself, until a look decides what it means."""
        attempt, now = task.live_attempt, self._state.now
        attempt.sentence = sentence or None
        view = self._state.views.get(attempt.cluster)
        if sentence and attempt.state in UNANSWERED and view is not None:
            self._state.strikes.doubt(task.job.id, view.name, sentence, now)
            if view.refusing:  # it is tried by one job at a time
                view.retry_at = max(view.retry_at, now + STRIKE_DELAYS[0])
            self._placement.clear_cache()

    def apply_skipped(self, event: DispatchSkipped) -> Iterator[StateChange]:
        """Queue the tasks of dispatches that were never submitted again."""
        skipped = [self._state.tasks_of_dispatch(*dispatch) for dispatch in event.dispatches]
        for tasks in skipped:
            for task in tasks:
                yield self._state_machine.apply(task, TaskEvent.ABSENT, "never submitted")

    def apply_accepted(self, event: DispatchAccepted) -> Iterator[StateChange]:
        """Record that a manager has the tasks of a dispatch; request withdrawals that waited.

        Tasks that did not reach it are queued again.
        """
        tasks = self._state.tasks_of_dispatch(event.job, event.dispatch_id)
        for task in tasks:
            attempt = task.live_attempt
            if task.index in event.uncertain:
                attempt.tried = event.time
                self._record_sentence(task, event.sentence)
                self._state.record_note(task, NO_ANSWER + event.reason)
                continue
            if task.index in event.untried:
                if attempt.state in UNANSWERED:
                    cause = f"never submitted: {event.reason}"
                    yield self._state_machine.apply(task, TaskEvent.ABSENT, cause)
                continue
            attempt.native_id = event.native_ids.get(task.index)
            attempt.accepted = event.time
            attempt.tried = attempt.sentence = None
            cause = "the manager accepted it" + (f", by {event.access}" if event.access else "")
            if attempt.state in UNANSWERED:
                yield self._state_machine.apply(task, TaskEvent.ACCEPT, cause)
            else:  # a listing came before the answer
                self._state.record_note(task, cause)
            self._state_machine.request_withdrawal(task)
        any_accepted = bool(tasks and (event.native_ids or not event.reason))
        if any_accepted and (view := self._state.view_of(tasks[0])) is not None:
            view.scope_limits.accept(tasks[0].job)

    def apply_rejected(self, event: DispatchRejected) -> Iterator[StateChange]:
        """Queue rejected tasks again, for other clusters, or until a full cluster has room."""
        tasks = [
            task
            for task in self._state.tasks_of_dispatch(event.job, event.dispatch_id)
            if task.state in UNANSWERED  # else the manager has listed it
        ]
        view = self._state.view_of(tasks[0]) if tasks and event.retry_later else None
        if view is not None:
            if event.scope == "cluster":
                view.mark_full(event.reason, event.time)
            else:
                jobs = jobs_in_scope(event.scope, tasks[0].job)
                live_tasks = view.live_tasks.values()
                view.scope_limits.refuse(jobs, len(tasks), live_tasks, event.reason, event.time)
            self._placement.clear_cache()
        for task in tasks:
            task.live_attempt.sentence = None
            if view is None:
                yield self._state_machine.reject(task, event.reason)
            else:
                yield self._state_machine.apply(task, TaskEvent.REFUSE, event.reason)
