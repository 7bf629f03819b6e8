"""What the core knows: its open tasks by every name they go by, the clusters, the step at hand."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable
from typing import Literal

from metasched.core.cluster_view import ClusterView, loads
from metasched.core.events import ClusterDrained, Outcome
from metasched.core.tasks import Attempt, EndedTask, PastAttempt, Task, TaskChange, TaskId
from metasched.core.transitions import UNSTARTED, TaskEvent
from metasched.model.job import Job, State
from metasched.model.tags import parse_tag, tag_of
from metasched.policies.classify import Classifier
from metasched.policies.dispatch import LoadOrdering
from metasched.policies.policy import Policy

MAX_ENDED_TASKS = 20_000  # ended tasks that are remembered, in case an attempt of theirs comes back


class SchedulerState:
    """The state that all parts of the core share, and what keeps its indexes in step.

    `now` is the time of the event that is being applied, `out` what has come of it so far.
    """

    def __init__(self) -> None:
        self.policy = Policy()
        self.instance = ""
        self.tasks: dict[TaskId, Task] = {}
        self.open_tasks: dict[int, dict[int, Task]] = {}  # by job and index
        self.dispatches: dict[tuple[int, int], dict[int, Task]] = {}  # by job, sending and index
        self.last_dispatch: dict[int, int] = {}  # by open job
        self.ended_tasks: OrderedDict[TaskId, EndedTask] = OrderedDict()  # the oldest first
        self.views: dict[str, ClusterView] = {}
        self.views_with_unstarted: dict[
            str, ClusterView
        ] = {}  # those where something of ours waits unstarted
        self.unstarted_by_key: list[
            tuple[float, TaskId, Task]
        ] = []  # all of that, by key and place
        self.drains: dict[str, ClusterDrained] = {}  # also of clusters that are not configured now
        self.now = 0.0
        self.observed_seconds = (
            0.0  # seconds for which some cluster has answered us, since the start
        )
        self.outcome = Outcome()
        self.step_withdrawals: dict[
            tuple[int, int, bool], dict[int, str | None]
        ] = {}  # of this step
        self.classifier: Classifier
        self.load_ordering: LoadOrdering

    def begin_step(self, now: float, clock_step: float) -> Outcome:
        """Begin a step: time passes, but not while no cluster answers.

        `clock_set`: seconds that the clock went, and time did not.
        """
        elapsed = now - (self.now + clock_step)
        if elapsed > 0 and any(view.up for view in self.views.values()):
            self.observed_seconds += elapsed
        self.now, self.outcome, self.step_withdrawals = now, Outcome(), {}
        return self.outcome

    # Looking things up

    def tasks_of(self, job: int, indices: Iterable[int] | None = None) -> list[Task]:
        """The open tasks of a job: all, or those of `indices`."""
        tasks_of_job = self.open_tasks.get(job, {})
        return [
            tasks_of_job[index]
            for index in (tasks_of_job if indices is None else indices)
            if index in tasks_of_job
        ]

    def is_open(self, job: int, index: int | None = None) -> bool:
        """Whether a task (None: any of the job) has not ended."""
        return job in self.open_tasks if index is None else (job, index) in self.tasks

    def tasks_of_dispatch(self, job: int, dispatch_id: int) -> list[Task]:
        """The tasks whose live attempt is this sending."""
        return list(self.dispatches.get((job, dispatch_id), {}).values())

    def task_by_tag(self, tag: str, index: int) -> Task | None:
        """The task whose live attempt a manager lists under a tag."""
        dispatch = parse_tag(tag, self.instance)
        return self.dispatches.get(dispatch, {}).get(index) if dispatch else None

    def live_tag(self, task: Task) -> str:
        """The tag under which a manager lists its live attempt."""
        return tag_of(self.instance, task.job.id, task.live_attempt.dispatch_id)

    def past_attempts_of(self, job: int, index: int) -> dict[int, PastAttempt]:
        """The earlier sendings of a task: of one that has ended, all."""
        if (task := self.tasks.get((job, index))) is not None:
            return task.past_attempts
        ended = self.ended_tasks.get((job, index))
        return {} if ended is None else ended.past_attempts

    def view_of(self, task: Task) -> ClusterView | None:
        """The cluster of its live attempt, if that is configured."""
        return self.views.get(task.live_attempt.cluster)

    def queue_key(self, job: Job, priority: int) -> float:
        """What orders the tasks that wait: seconds; a step of priority is worth `age` of them."""
        return job.submitted - self.policy.age * (priority - 1)

    # Keeping them

    def clear_open_tasks(self) -> None:
        for index in (self.tasks, self.open_tasks, self.dispatches):
            index.clear()

    def add_live_attempt(self, task: Task, attempt: Attempt) -> None:
        """It has a live attempt."""
        self.dispatches.setdefault((task.job.id, attempt.dispatch_id), {})[task.index] = task

    def remove_live_attempt(self, task: Task, attempt: Attempt) -> None:
        """Its attempt has ended."""
        dispatch = (task.job.id, attempt.dispatch_id)
        tasks = self.dispatches[dispatch]
        del tasks[task.index]
        if not tasks:
            del self.dispatches[dispatch]

    def remember_ended(self, task: Task) -> None:
        """Keep what matters if an attempt of a task that has ended comes back."""
        self.ended_tasks[task.task_id] = EndedTask(task.state, task.attempts, task.past_attempts)
        if len(self.ended_tasks) > MAX_ENDED_TASKS:
            self.ended_tasks.popitem(
                last=False
            )  # of a dict the first is found past all that have gone

    def count_unstarted(
        self, task: Task, attempt: Attempt, state: State, direction: Literal[1, -1]
    ) -> None:
        """Keep the loads of a cluster in step with what waits there unstarted."""
        view, job = self.views.get(attempt.cluster), task.job
        if state not in UNSTARTED or view is None:
            return
        if direction > 0:
            view.unstarted_tasks[task.task_id] = task
            insort(self.unstarted_by_key, (task.queue_key, task.task_id, task))
            self.views_with_unstarted[view.name] = view
            self.load_ordering.assigned(view.name, job, task.priority)
        else:
            del view.unstarted_tasks[task.task_id]
            del self.unstarted_by_key[
                bisect_left(self.unstarted_by_key, (task.queue_key, task.task_id))
            ]
            if not view.unstarted_tasks:
                del self.views_with_unstarted[view.name]
            self.load_ordering.left_queue(view.name, job, task.priority)
        # an empty queue owes nothing: no residue of floats may hide the zero that Load looks for
        view.owed_by_own = (
            view.owed_by_own + direction * job.cpus * job.estimated if view.unstarted_tasks else 0.0
        )

    def observe_loads(self) -> None:
        """Before clusters are compared: their observed loads, as they are now."""
        if self.policy.load == "observed":
            self.load_ordering.observe_all(loads(self.views.values(), self.now))

    def observe_load(self, view: ClusterView) -> None:
        """The same of one cluster, on which alone something has changed in this step."""
        if self.policy.load == "observed":
            self.load_ordering.observe(view.name, *loads((view,), self.now))

    # Telling the story

    def store(self, task: Task) -> None:
        """Something of it has changed that a start of ours must find again."""
        self.outcome.tasks[task.task_id] = task

    def record_note(self, task: Task, cause: str) -> None:
        """Tell what happened to a task, without a change of its state."""
        self.record_change(task, None, task.state, cause)

    def record_change(
        self, task: Task, event: TaskEvent | None, before: State | None, cause: str
    ) -> None:
        """Tell of a task that it went from `before` to its state."""
        attempt, task_id, outcome = task.attempt, task.task_id, self.outcome
        job, index = task_id
        attempt_number, cluster = 0, None
        if attempt is not None:
            attempt_number, cluster = attempt.number, attempt.cluster
            if not attempt.settled:
                view = self.views.get(cluster)
                if view is not None and task_id in view.live_tasks:
                    view.needs_attention[task_id] = task
        outcome.tasks[task_id] = task
        outcome.changes.append(
            TaskChange(
                job, index, attempt_number, event, before, task.state, cluster, task.reason, cause
            )
        )
