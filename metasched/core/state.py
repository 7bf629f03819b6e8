"""State of the core: tasks with their indexes, clusters, the current step. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from msgspec import structs

from metasched.core.alternatives import owner_id
from metasched.core.array_remainder import MAX_RUNS, IndexRun, Remainder, RunChanges, range_of
from metasched.core.cluster_view import ClusterView, loads
from metasched.core.events import ClusterDrained, Outcome
from metasched.core.forecast_loads import ForecastLoads
from metasched.core.rechecks import Recheck
from metasched.core.scope_limits import Rechecks
from metasched.core.strikes import Strikes
from metasched.core.tasks import (
    Attempt,
    EndedTask,
    PastAttempt,
    StateChange,
    Task,
    TaskChange,
    TaskId,
)
from metasched.core.transitions import FINAL, LIVE, QUEUED_OR_HELD, UNSTARTED, TaskEvent
from metasched.core.unstarted_index import UnstartedIndex
from metasched.model.cluster import ClusterInfo
from metasched.model.job import Job, State
from metasched.model.listing import JobStatus
from metasched.model.tags import NO_KEY, Instances
from metasched.model.tuning import TuningState
from metasched.policies.classify import Classifier
from metasched.policies.dispatch import LoadOrdering
from metasched.policies.policy import MAX_WINDOW, Policy
from metasched.policies.shadow import MAX_OBSERVED_PER_STEP, ObservedPlacement

# remembered, in case a manager lists an attempt of them again; others are in the database
MAX_ENDED_TASKS = 20_000


class SchedulerState:
    """State shared by all parts of the core; keeps its indexes consistent."""

    def __init__(self) -> None:
        self.policy = Policy()
        self.instances = Instances({"": 0})  # names of the database in its tags
        # of the digests in tags; a replay has none, since no decision reads a digest
        self.tag_key = NO_KEY
        self.tasks: dict[TaskId, Task] = {}
        self.open_tasks: dict[int, dict[int, Task]] = {}  # by job and index
        self.remainders: dict[int, Remainder] = {}  # by job: its other open tasks
        # jobs whose remainder waits for licences: its present or last head is in their queue
        self.remainders_in_line: set[int] = set()
        # tasks with a live attempt, by (job, dispatch id) and index
        self.dispatches: dict[tuple[int, int], dict[int, Task]] = {}
        self.last_dispatch: dict[int, int] = {}  # highest dispatch id of each open job
        self.ended_tasks: OrderedDict[TaskId, EndedTask] = OrderedDict()  # oldest first
        self.strikes = Strikes()
        self.views: dict[str, ClusterView] = {}
        self.rechecks: Rechecks = {}  # of all clusters, see `take_rechecks`
        self.refills: set[str] = set()  # clusters that may have places in their queues again
        self.views_with_unstarted: dict[str, ClusterView] = {}  # clusters with unstarted tasks
        self.unstarted_index = UnstartedIndex()
        self.indexes_unstarted = False  # whether tasks can be pulled: else the index is empty
        self.drains: dict[str, ClusterDrained] = {}  # also of unconfigured clusters
        self.margin_jobs: list[Job] = []  # last jobs with a deadline that could be met
        self.tuning: dict[str, TuningState] = {}  # of the self-optimising classification
        self.cluster_info: dict[str, ClusterInfo] = {}  # last reports; also of removed clusters
        self.now = 0.0  # epoch seconds; time of the current event
        self.observed_seconds = 0.0  # since the start, while any cluster was up
        self.outcome = Outcome()  # of the current step
        # native ids of `Withdraw` actions of the current step, by (job, dispatch id, only_pending)
        self.step_withdrawals: dict[tuple[int, int, bool], dict[int, str | None]] = {}
        # row of a manager whose changes are being applied; a defect concerns this row only
        self.current_row: JobStatus | None = None
        # whether outcomes have what decisions were made from; it changes no decision
        self.observes = False
        self.classifier: Classifier
        self.load_ordering: LoadOrdering
        self.forecast_loads = ForecastLoads()  # of `load = "forecast"`

    def begin_step(self, now: float, clock_step: float) -> Outcome:
        """Begin a step at `now` (epoch seconds).

        `clock_step`: seconds by which the clock advanced more than time did.
        """
        elapsed = now - (self.now + clock_step)
        if elapsed > 0:
            for view in self.views.values():
                if view.up:
                    self.observed_seconds += elapsed
                    break
        self.now, self.outcome, self.step_withdrawals = now, Outcome(), {}
        self.strikes.changed = self.outcome.strikes
        self.current_row = None
        return self.outcome

    # Queries

    def tasks_of(self, job: int, indices: Iterable[int] | None = None) -> list[Task]:
        """Return the open tasks of a job: all, or those with `indices`."""
        tasks_of_job = self.open_tasks.get(job, {})
        return [
            tasks_of_job[index]
            for index in (tasks_of_job if indices is None else indices)
            if index in tasks_of_job
        ]

    def is_open(self, job: int, index: int | None = None) -> bool:
        """Return whether a task (None: any task of the job) is open."""
        remainder = self.remainders.get(job)
        if index is None:
            return job in self.open_tasks or remainder is not None
        return (job, index) in self.tasks or (remainder is not None and index in remainder)

    def count_open(self, job: int) -> int:
        """Return the number of open tasks of a job."""
        remainder = self.remainders.get(job)
        return len(self.open_tasks.get(job, ())) + (0 if remainder is None else len(remainder))

    def find_task(self, task_id: TaskId) -> Task | None:
        """Return an open task; for a task in a remainder, a copy as it would be."""
        if (task := self.tasks.get(task_id)) is not None:
            return task
        job_id, index = task_id
        remainder = self.remainders.get(job_id)
        return None if remainder is None or index not in remainder else _task_of(remainder, index)

    def tasks_of_dispatch(self, job: int, dispatch_id: int) -> list[Task]:
        """Return the tasks whose live attempt belongs to a dispatch."""
        return list(self.dispatches.get((job, dispatch_id), {}).values())

    def task_by_tag(self, tag: str, index: int) -> Task | None:
        """Return the task whose live attempt a manager lists under a tag."""
        dispatch = self.instances.parse_tag(tag)
        return self.dispatches.get(dispatch, {}).get(index) if dispatch else None

    def live_tag(self, task: Task) -> str:
        """Return the tag of a task's live attempt."""
        return self.instances.tag_of(task.job.id, task.live_attempt.dispatch_id)

    def past_attempts_of(self, job: int, index: int) -> dict[int, PastAttempt]:
        """Return the past attempts of a task by dispatch id; for an ended task, all attempts."""
        if (task := self.tasks.get((job, index))) is not None:
            return task.past_attempts
        ended = self.ended_tasks.get((job, index))
        return {} if ended is None else ended.past_attempts

    def view_of(self, task: Task) -> ClusterView | None:
        """Return the cluster of a task's live attempt, if it is configured."""
        return self.views.get(task.live_attempt.cluster)

    def queue_key(self, job: Job, priority: int) -> float:
        """Return the sort key of queued tasks (seconds); a priority step counts as `Policy.age`."""
        return job.submitted - self.policy.age * (priority - 1)

    def waits_since(self, task: Task) -> float:
        """Return from when the wait of a task counts: its submission, or later (epoch seconds)."""
        if task.queue_key == self.queue_key(task.job, task.priority):
            return task.job.submitted
        return task.queue_key + self.policy.age * (task.priority - 1)

    # Indexes

    def clear_open_tasks(self) -> None:
        """Forget all open tasks."""
        for index in (self.tasks, self.open_tasks, self.dispatches):
            index.clear()

    def open_task(self, task: Task) -> None:
        """Index a new, requeued or restored task."""
        self.tasks[task.task_id] = task
        self.open_tasks.setdefault(task.job.id, {})[task.index] = task
        if task.attempt is not None:
            self._add_live_attempt(task, task.attempt)

    def add_remainder(self, remainder: Remainder) -> None:
        """Add the remainder of a new array."""
        self.remainders[remainder.job.id] = remainder
        self.store_remainder(remainder, {run[0]: run for run in remainder.runs})

    def split(self, remainder: Remainder, indices: Iterable[int]) -> list[Task]:
        """Make tasks of a remainder single tasks; `indices` are ascending.

        Return these. If more than `MAX_RUNS` runs would remain, the tasks of short runs are among
        them; but not if the first task alone is split, which adds no run.
        """
        single, number = list(indices), len(remainder.runs)
        changes = remainder.remove(single)
        if len(remainder.runs) > MAX_RUNS and (len(remainder.runs) > number or not single):
            short, further_changes = remainder.drop_short_runs()
            single += [index for run in short for index in range_of(run)]
            single.sort()
            changes |= further_changes
        tasks = [_task_of(remainder, index) for index in single]
        for task in tasks:
            self.open_task(task)
            self.store(task)
            self.outcome.split_tasks.add(task.task_id)
        self.store_remainder(remainder, changes)
        return tasks

    def cancel_in_remainder(self, remainder: Remainder, runs: Sequence[IndexRun]) -> None:
        """Remove tasks of a remainder, which are cancelled."""
        job_id = remainder.job.id
        changes: RunChanges = {}
        if runs == remainder.runs:
            remainder.runs = []
        else:
            changes = remainder.remove(index for run in runs for index in range_of(run))
        self.outcome.cancelled_runs += [(job_id, run) for run in runs]
        self.store_remainder(remainder, changes)
        if not self.is_open(job_id):
            self.last_dispatch.pop(job_id, None)

    def update_indexes(self, change: StateChange) -> None:
        """Update the indexes of tasks, and the tasks and loads of clusters."""
        task, before, after, attempt = change.task, change.before, change.after, change.attempt
        if attempt is not None:
            view = self.views.get(attempt.cluster)
            if before in QUEUED_OR_HELD:  # sent or adopted
                self._add_live_attempt(task, attempt)
                if view is not None:
                    view.add_task(task)
            if view is not None:
                changes_answer = (before is State.DISPATCHING) != (after is State.DISPATCHING)
                if changes_answer and view.scope_limits.counts_tasks:
                    view.scope_limits.count_unanswered(
                        task, +1 if after is State.DISPATCHING else -1
                    )
                was_unstarted, is_unstarted = before in UNSTARTED, after in UNSTARTED
                # a restarted task moves to the end of its queue
                if was_unstarted and (not is_unstarted or change.event is TaskEvent.RESTART):
                    self.count_unstarted(task, view, -1)
                if is_unstarted and (not was_unstarted or change.event is TaskEvent.RESTART):
                    self.count_unstarted(task, view, +1)
        if after in LIVE:
            return
        if attempt is not None:
            self._remove_live_attempt(task, attempt)
            if view is not None:
                view.remove_task(task)
        if after in FINAL:
            self._remove_ended(task)

    def _add_live_attempt(self, task: Task, attempt: Attempt) -> None:
        self.dispatches.setdefault((task.job.id, attempt.dispatch_id), {})[task.index] = task

    def _remove_live_attempt(self, task: Task, attempt: Attempt) -> None:
        dispatch = (task.job.id, attempt.dispatch_id)
        tasks = self.dispatches[dispatch]
        del tasks[task.index]
        if not tasks:
            del self.dispatches[dispatch]

    def _remove_ended(self, task: Task) -> None:
        """Remember an ended task, in case a manager lists an attempt of it again."""
        job_id, index = task.task_id
        self._remember(task.task_id, EndedTask(task.state, task.attempts, task.past_attempts))
        del self.tasks[task.task_id]
        tasks_of_job = self.open_tasks[job_id]
        del tasks_of_job[index]
        if not tasks_of_job:
            del self.open_tasks[job_id]
            if job_id not in self.remainders:  # else later tasks need dispatch ids of their own
                self.last_dispatch.pop(job_id, None)

    def _remember(self, task_id: TaskId, ended: EndedTask) -> None:
        self.ended_tasks[task_id] = ended
        if len(self.ended_tasks) > MAX_ENDED_TASKS:
            self.ended_tasks.popitem(last=False)  # O(1), unlike removal of a dict's first key

    def has_forgotten(self, job: int, index: int, dispatch_id: int) -> bool:
        """Return whether nothing is remembered of an attempt, which may be in the database."""
        is_live = index in self.dispatches.get((job, dispatch_id), ())
        return not is_live and dispatch_id not in self.past_attempts_of(job, index)

    def recall_ended(self, task_id: TaskId, stored: EndedTask) -> None:
        """Remember attempts of a task again, which a manager lists after all.

        They are copied: the step changes them, and its event is stored as it was.
        """
        recalled = {id: structs.replace(past) for id, past in stored.past_attempts.items()}
        if (task := self.tasks.get(task_id)) is not None:
            for past in recalled.values():  # before its requeue: see `TaskStateMachine.reopen`
                past.requeued, past.unbegun_on = past.has_started, None
            task.past_attempts = recalled | task.past_attempts
            return
        ended = self.ended_tasks.pop(task_id, None)
        if ended is None:
            ended = EndedTask(stored.state, stored.last_attempt, {})
        ended.past_attempts = recalled | ended.past_attempts
        self._remember(task_id, ended)

    def count_unstarted(self, task: Task, view: ClusterView, direction: Literal[1, -1]) -> None:
        """Add (1) or remove (-1) an unstarted task in queue and load of its cluster."""
        job = task.job
        if view.scope_limits.counts_tasks:
            view.scope_limits.count_queued(job.user, direction)
        if direction > 0:
            view.unstarted_tasks[task.task_id] = task
            if self.indexes_unstarted:
                self.unstarted_index.add(task, view.name)
            self.views_with_unstarted[view.name] = view
            self.load_ordering.assigned(view.name, job, task.priority)
        else:
            del view.unstarted_tasks[task.task_id]
            if self.indexes_unstarted:
                self.unstarted_index.remove(task)
            if not view.unstarted_tasks:
                del self.views_with_unstarted[view.name]
            self.load_ordering.left_queue(view.name, job, task.priority)
        # exactly 0.0 for an empty queue: the load ordering compares with zero
        view.owed_by_own = (
            view.owed_by_own + direction * job.cpus * job.estimated if view.unstarted_tasks else 0.0
        )

    def take_refills(self) -> list[str]:
        """Return the clusters whose queues may have places that they had not before."""
        refills = sorted(self.refills)
        self.refills.clear()
        return refills

    def take_rechecks(self) -> list[Recheck]:
        """Return the jobs for which a cluster has room now that it had not before."""
        rechecks = list(self.rechecks.values())
        self.rechecks.clear()
        return rechecks

    def remember_job(self, job: Job) -> None:
        """Remember a submitted job if it has a deadline that can be met."""
        if job.deadline is not None and (margin := job.margin) is not None and margin >= 0:
            self.margin_jobs = [*self.margin_jobs[1 - MAX_WINDOW :], job]

    def store_tuning(self) -> None:
        """Store the state of the self-optimising classification with this step."""
        states = [optimiser.state for optimiser in self.classifier.optimisers]
        self.tuning = {state.parameter: state for state in states}
        self.outcome.tuning = states

    def observe_placement(self, task: Task, eligible: Sequence[str], cluster: str) -> None:
        """Add the inputs of the choice of a cluster to the outcome."""
        if len(self.outcome.observed) >= MAX_OBSERVED_PER_STEP:
            self.outcome.unobserved += 1
            return
        _, index = owner_id(task.task_id)
        loads = self.load_ordering.arrays() if len(eligible) > 1 else None
        self.outcome.observed.append(
            ObservedPlacement(
                self.now, task.job, index, task.priority, cluster, tuple(eligible), loads
            )
        )

    def observe_loads(
        self, job: Job | None = None, candidates: Collection[str] | None = None
    ) -> bool:
        """Pass current loads of all clusters to the load ordering, unless it sums up its own.

        With `load = "forecast"` these are the waits of a job on `candidates` (None: all), as far as
        they are known. Return whether they are such waits.
        """
        if self.policy.load == "paper":
            return False
        waits, views = None, self.views.values()
        if self.policy.load == "forecast" and job is not None:
            names = self.views.keys() if candidates is None else candidates
            waits = self.forecast_loads.waits(job, views, names, self.now)
        self.load_ordering.observe_all(loads(views, self.now) if waits is None else waits)
        return waits is not None

    def observe_load(self, view: ClusterView) -> None:
        """Pass the current load of a cluster to the load ordering, if it uses observed loads."""
        if self.policy.load == "observed":
            self.load_ordering.observe(view.name, *loads((view,), self.now))

    # Records of the step

    def store(self, task: Task) -> None:
        """Store a changed task with this step."""
        self.outcome.tasks[task.task_id] = task

    def store_remainder(self, remainder: Remainder, changes: RunChanges | None = None) -> None:
        """Store a changed remainder with this step; forget it if it has no task any more."""
        job_id = remainder.job.id
        if not remainder.runs:
            del self.remainders[job_id]
            self.remainders_in_line.discard(job_id)
        self.outcome.remainders[job_id] = remainder if remainder.runs else None
        if changes:
            self.outcome.run_changes.setdefault(job_id, {}).update(changes)

    def record_runs(
        self,
        remainder: Remainder,
        runs: Iterable[IndexRun],
        event: TaskEvent | None,
        before: State | None,
        cause: str,
        end: State | None = None,
    ) -> None:
        """Add a line to the stories of tasks in a remainder. `end`: their state, if they end."""
        job_id, after = remainder.job.id, end or remainder.state
        reason = "" if end else remainder.reason
        for first, last, step in runs:
            line = TaskChange(job_id, first, 0, event, before, after, None, reason, cause)
            line.run_last, line.run_step = last, step
            self.outcome.changes.append(line)

    def record_note(self, task: Task, cause: str) -> None:
        """Add a line to the story of a task whose state does not change."""
        self.record_change(task, None, task.state, cause)

    def record_change(
        self, task: Task, event: TaskEvent | None, before: State | None, cause: str
    ) -> None:
        """Add a line to the story of a task whose state changed from `before`."""
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


def _task_of(remainder: Remainder, index: int) -> Task:
    """Return a task of a remainder as a single task."""
    task = Task(
        remainder.job,
        index,
        remainder.priority,
        remainder.queue_key,
        state=remainder.state,
        reason=remainder.reason,
        held=remainder.held,
    )
    task.classified_priority = remainder.classified_priority
    return task
