"""What users and operators wish of jobs: asked of open tasks, requeued, modified. Pure."""

from __future__ import annotations

from copy import copy

from metasched.core.events import Asked, Modified, Requeued
from metasched.core.gates import Gates
from metasched.core.leasing import Leasing
from metasched.core.placement import Placing
from metasched.core.stale_attempts import Comebacks
from metasched.core.state import Books
from metasched.core.task_state_machine import Attempts
from metasched.core.tasks import Intent, Task
from metasched.core.transitions import BEGUN, Event
from metasched.model.job import State
from metasched.policies.eligible import PERMANENT


class Wishes:
    """Applies the events of users and operators to tasks."""

    def __init__(
        self,
        books: Books,
        attempts: Attempts,
        leasing: Leasing,
        gates: Gates,
        comebacks: Comebacks,
        placing: Placing,
    ) -> None:
        self._books, self._attempts, self._leasing = books, attempts, leasing
        self._gates, self._comebacks, self._placing = gates, comebacks, placing

    def asked(self, event: Asked) -> None:
        """A wish for open tasks: at once for what waits with us, else told to the manager."""
        for task in self._books.tasks_of(event.job, event.indices):
            by = f"by {event.by}" if event.by else ""
            attempt = task.attempt
            untried = attempt is not None and attempt.untried
            match event.wish:
                case "cancel" if attempt is None:
                    self._attempts.advance(task, Event.CANCEL, f"cancelled {by}")
                case "cancel":
                    assert attempt is not None
                    attempt.intent, attempt.target, attempt.asked = Intent.CANCEL, None, None
                    if not untried:
                        self._books.note(task, f"cancel asked for {by}")
                    self._comebacks.end(task)
                case "hold" if attempt is None:
                    task.held = True
                    if task.state is State.QUEUED:
                        self._attempts.advance(task, Event.HOLD, f"held {by}")
                case "hold" if attempt is not None and attempt.unstarted:
                    task.held = True
                    self._books.store(task)
                    if attempt.intent not in (Intent.CANCEL, Intent.YIELD):
                        attempt.intent, attempt.target = Intent.HOLD, None
                        if not untried:
                            self._books.note(task, f"hold asked for {by}")
                case "release":
                    if task.state is State.HELD:
                        task.held = False
                        self._attempts.advance(task, Event.RELEASE, f"released {by}")
                    elif task.held:
                        task.held = False
                        self._books.note(task, f"release asked for {by}")
                case "requeue" if task.state in BEGUN:
                    assert attempt is not None
                    if attempt.intent in (None, Intent.CANCEL, Intent.EXPIRE):  # the last counts
                        attempt.intent = Intent.REQUEUE
                        self._books.note(task, f"requeue asked for {by}")
                case "lost" if task.state is State.UNKNOWN:
                    task.live.started = None
                    self._attempts.advance(task, Event.WRITE_OFF, f"lost, says {event.by}")
                case "ran" if task.state is State.UNKNOWN:
                    task.live.begun = True
                    self._attempts.advance(task, Event.VOUCH, f"it ran, says {event.by}")
            if untried and attempt is not None and attempt.intent is not None:
                self._attempts.advance(task, Event.ABSENT, "never tried")
            self._attempts.pursue(task)
        self._gates.pass_time(event.time)

    def requeued(self, event: Requeued) -> None:
        """Ended tasks run again."""
        job, priority = event.job, min(event.priority, self._books.policy.max_priority)
        by = f"by {event.by}" if event.by else ""
        if job.dependency is not None and not all(task.attempts for task in event.tasks):
            self._attempts.depend(job, event.fates)
        key = self._books.key(job, priority)
        tasks = [
            Task(job, t.index, priority, key, state=t.state, attempts=t.attempts)
            for t in event.tasks
            if (job.id, t.index) not in self._books.tasks
        ]
        for task in tasks:  # all, before one of them may end again
            task.classified = event.priority
            self._attempts.open(task)
        for task in tasks:
            if (ended := self._books.ended.get(task.place)) is not None:
                task.past = copy(ended.past)
            self._attempts.reopen(task, event.last_sending, f"requeued {by}")
        self._gates.pass_time(event.time)

    def modified(self, event: Modified) -> None:
        """A job asks for something else: what waits in a manager comes back, to be sent anew."""
        job = event.job
        self._books.out.parts = self._books.classifier.parts(job)
        priority = event.priority or self._books.classifier.peek(job)
        by = f" by {event.by}" if event.by else ""
        tasks = self._books.tasks_of(job.id)
        if tasks:
            self._gates.changed(tasks[0].job, job)
        for task in tasks:
            attempt = task.attempt
            if attempt is not None:
                self._books.count(task, attempt, attempt.state, -1)
            task.job, task.priority, task.key = job, priority, self._books.key(job, priority)
            task.classified = priority
            task.forgiven, task.refused = task.attempts, set()
            if attempt is not None:
                self._books.count(task, attempt, attempt.state, +1)
            self._books.note(task, f"changed{by}: {event.what}")
            if task.state is State.QUEUED:
                task.reason = ""
                self._gates.forget(task)
                self._leasing.leave(task)
                self._attempts.wait(task)
            elif attempt is not None and (view := self._books.view_of(task)) is not None:
                never = self._placing.against(job, view)
                if event.resend or (never is not None and never.reason in PERMANENT):
                    self._attempts.want_back(task, view, f"to be sent {event.what}")
        self._gates.pass_time(event.time)
