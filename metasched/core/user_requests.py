"""Requests of users and operators: submit, cancel, hold, release, requeue, modify. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy

from metasched.core.dependency_status import DependencyStatus
from metasched.core.events import JobModified, JobRequeued, JobSubmitted, UserRequested
from metasched.core.gates import SchedulingGates
from metasched.core.leasing import LicenceLeasing
from metasched.core.placement import Placement
from metasched.core.remainders import Remainders
from metasched.core.stale_attempts import StaleAttempts
from metasched.core.state import SchedulerState
from metasched.core.task_state_machine import TaskStateMachine
from metasched.core.tasks import Intent, StateChange, Task
from metasched.core.transitions import STARTED, UNSTARTED, TaskEvent
from metasched.core.usage_limits import UsageLimits
from metasched.model.job import MANAGER_REASON, Reason, State
from metasched.policies.eligible import PERMANENT_REASONS
from metasched.policies.shadow import ObservedClassification


class UserRequests:
    """Applies the events of users and operators to tasks."""

    def __init__(
        self,
        state: SchedulerState,
        state_machine: TaskStateMachine,
        leasing: LicenceLeasing,
        gates: SchedulingGates,
        stale_attempts: StaleAttempts,
        placement: Placement,
        limits: UsageLimits,
        remainders: Remainders,
    ) -> None:
        self._state, self._state_machine, self._leasing = state, state_machine, leasing
        self._gates, self._stale_attempts, self._placement = gates, stale_attempts, placement
        self._limits, self._remainders = limits, remainders

    def apply_submission(self, event: JobSubmitted) -> Iterator[StateChange]:
        """Classify a new job, and queue or hold its tasks."""
        job, state = event.job, self._state
        priority, state.outcome.priority_parts = state.classifier.classify(job)
        state.outcome.priority = priority
        state.outcome.tuning_changes = state.classifier.remember(job)
        if state.observes:
            state.outcome.observed.append(ObservedClassification(job, is_new=True))
        if state.classifier.optimisers:
            state.store_tuning()
        state.remember_job(job)
        if job.dependency is not None:
            self._gates.dependencies.track(job, event.target_summaries, state.tasks_of)
        self._gates.dependencies.add_job(job)
        if self._limits.enabled:
            self._limits.add_job(job, len(job.indices))
        if self._remainders.takes(job):
            yield from self._remainders.add_array(job, priority, event.time)
            return
        key = state.queue_key(job, priority)
        tasks = [Task(job, index, priority, key, held=job.held) for index in job.indices]
        for task in tasks:  # all, before any of them may end
            state.open_task(task)
        for task in tasks:
            if job.held:
                task.state, task.reason = State.HELD, Reason.HELD
                state.record_change(task, None, None, "submitted")
                continue
            status = self._gates.enqueue(task, event.time)
            if status is DependencyStatus.SATISFIED:
                state.record_change(task, None, None, "submitted")
                continue
            waiting_for = self._gates.dependencies.describe(task, event.time)
            state.record_change(task, None, None, f"submitted; {waiting_for}")
            if cause := self._gates.cancel_cause(task, status, event.time):
                yield self._state_machine.apply(task, TaskEvent.CANCEL, cause)

    def apply_request(self, event: UserRequested) -> Iterator[StateChange]:
        """Apply a request to open tasks: at once if queued in metasched, else by their managers."""
        if event.action == "release":
            self._state.strikes.forget(event.job)
        yield from self._remainders.apply_to_runs(event)
        for task in self._state.tasks_of(event.job, event.indices):
            by_user = f"by {event.by}" if event.by else ""
            attempt = task.attempt
            untried = attempt is not None and attempt.untried
            match event.action:
                case "cancel" if attempt is None:
                    yield self._state_machine.apply(task, TaskEvent.CANCEL, f"cancelled {by_user}")
                case "cancel":
                    assert attempt is not None
                    attempt.forget_withdrawal()
                    attempt.intent = Intent.CANCEL
                    if not untried:
                        self._state.record_note(task, f"cancel requested {by_user}")
                    self._stale_attempts.withdraw_all(task)
                case "hold" if attempt is None:
                    task.held = True
                    if task.state is State.QUEUED:
                        yield self._state_machine.apply(task, TaskEvent.HOLD, f"held {by_user}")
                    elif task.reason.startswith(MANAGER_REASON):  # it may be released
                        task.reason = Reason.HELD
                        self._state.record_note(task, f"held {by_user}, too")
                case "hold" if attempt is not None and attempt.unstarted:
                    task.held = True
                    self._state.store(task)
                    if attempt.intent not in (Intent.CANCEL, Intent.YIELD):
                        attempt.intent, attempt.target = Intent.HOLD, None
                        if not untried:
                            self._state.record_note(task, f"hold requested {by_user}")
                case "release":
                    if task.state is State.HELD:
                        task.held = False
                        yield self._state_machine.apply(
                            task, TaskEvent.RELEASE, f"released {by_user}"
                        )
                    elif task.held:
                        task.held = False
                        self._state.record_note(task, f"release requested {by_user}")
                case "requeue" if task.state in STARTED:
                    assert attempt is not None
                    # a requeue overrides an earlier cancel
                    if attempt.intent in (None, Intent.CANCEL, Intent.EXPIRE):
                        attempt.intent = Intent.REQUEUE
                        self._state.record_note(task, f"requeue requested {by_user}")
                case "lost" if task.state is State.UNKNOWN:
                    task.live_attempt.started = None
                    yield self._state_machine.apply(
                        task, TaskEvent.WRITE_OFF, f"declared lost by {event.by}"
                    )
                case "ran" if task.state is State.UNKNOWN:
                    task.live_attempt.has_started = True
                    task.live_attempt.exit_code = event.exit_code
                    if event.exit_code:
                        cause = f"declared ended with exit code {event.exit_code} by {event.by}"
                        yield self._state_machine.apply(task, TaskEvent.FAIL, cause)
                    else:
                        cause = f"declared complete by {event.by}"
                        yield self._state_machine.apply(task, TaskEvent.VOUCH, cause)
            if untried and attempt is not None and attempt.intent is not None:
                yield self._state_machine.apply(task, TaskEvent.ABSENT, "never submitted")
            self._state_machine.request_withdrawal(task)

    def apply_requeue(self, event: JobRequeued) -> Iterator[StateChange]:
        """Requeue ended tasks."""
        job, priority = event.job, min(event.priority, self._state.policy.max_priority)
        by_user = f"by {event.by}" if event.by else ""
        if job.dependency is not None and not all(task.attempts for task in event.tasks):
            self._gates.dependencies.track(job, event.target_summaries, self._state.tasks_of)
        key = self._state.queue_key(job, priority)
        tasks = [
            Task(
                job, requeued.index, priority, key, state=requeued.state, attempts=requeued.attempts
            )
            for requeued in event.tasks
            if (job.id, requeued.index) not in self._state.tasks
        ]
        for task in tasks:  # all, before any of them may end again
            task.classified_priority = event.priority
            self._state.open_task(task)
        for task in tasks:
            if (ended_task := self._state.ended_tasks.get(task.task_id)) is not None:
                task.past_attempts = copy(ended_task.past_attempts)
            yield self._state_machine.reopen(task, event.last_dispatch, f"requeued {by_user}")

    def apply_modification(self, event: JobModified) -> Iterator[StateChange]:
        """Modify a job; recall pending tasks if the change requires a new dispatch."""
        job = event.job
        self._state.outcome.priority_parts = self._state.classifier.contributions(job)
        priority = event.priority or self._state.classifier.peek(job)
        by_user = f" by {event.by}" if event.by else ""
        self._state.outcome.priority = priority
        if self._state.observes:
            observed = ObservedClassification(job, is_new=False, given=event.priority)
            self._state.outcome.observed.append(observed)
        tasks = self._state.tasks_of(job.id)
        cause = f"changed{by_user}: {event.change_summary}"
        self._state.strikes.forget(job.id)
        previous_job = self._remainders.modify(job, priority, cause)
        if previous_job is None and tasks:
            previous_job = tasks[0].job
        if previous_job is not None:
            self._gates.dependencies.replace_job(previous_job, job)
        for task in tasks:
            attempt = task.attempt
            waits_in = None  # the cluster where it has not started
            if attempt is not None and attempt.state in UNSTARTED:
                waits_in = self._state.view_of(task)
            if waits_in is not None:
                self._state.count_unstarted(task, waits_in, -1)
            previous, task.job, task.priority = task.job, job, priority
            task.choose_licences(previous.licence_choice)
            if self._limits.enabled:
                self._limits.replace_job(task, previous)
            task.queue_key = self._state.queue_key(job, priority)
            task.classified_priority = priority
            task.forget_failures()
            if waits_in is not None:
                self._state.count_unstarted(task, waits_in, +1)
            self._state.record_note(task, cause)
            if task.state is State.QUEUED:
                task.reason = ""
                self._gates.remove(task)
                self._leasing.leave(task)
                status = self._gates.enqueue(task, event.time)
                if cancel_cause := self._gates.cancel_cause(task, status, event.time):
                    yield from self._remainders.cancel_queued(task, cancel_cause)
            elif attempt is not None and (view := self._state.view_of(task)) is not None:
                obstacle = self._placement.check_job(task.job, view)
                if event.redispatch or (
                    obstacle is not None and obstacle.reason in PERMANENT_REASONS
                ):
                    self._state_machine.recall(
                        task, view, f"to be dispatched with {event.change_summary}"
                    )
