"""Gates that hold a queued task before placement. Pure.

In this order: its dependencies, its begin time, the limit of its array. The limit counts ready and
dispatched tasks over all clusters. No event costs a scan of all tasks: a change of a job reaches
its dependent jobs only, and a released slot admits the next task of its array.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

from metasched.core.dependency_status import (
    DependencyStatus,
    TargetProgress,
    TargetSummary,
    combine_statuses,
)
from metasched.core.tasks import StateChange, Task, TaskId
from metasched.core.transitions import FINAL, LIVE, UNSTARTED, TaskEvent
from metasched.model.dependencies import (
    SINGLETON,
    Dependency,
    DependencyTarget,
    DependencyTerm,
    parse_dependency,
)
from metasched.model.job import Job, Reason, State

JobName = tuple[str, str]  # user, name of the job
_TermStatus = tuple[DependencyStatus, float | None]  # and when the clock alone satisfies the term
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_GATE_REASONS = frozenset({Reason.DEPENDENCY, Reason.BEGIN_TIME, Reason.LIMIT_ARRAY})
_ALL_TASKS = -1  # index in `_timers`: all blocked tasks of a job
NEXT_STEP = 0.0  # time in `_timers`: due at the next step
MAX_RELEASED_PER_STEP = 1000  # tasks; a step must not block the daemon for seconds


class SchedulingGates:
    """Queued tasks by the gate that holds them; `ready` tasks wait for a cluster only."""

    def __init__(self) -> None:
        self.ready: dict[TaskId, Task] = {}
        self._released = 0  # number of tasks in this step
        self.changed_tasks: list[Task] = []  # in this step: tasks with a new reason
        self._newly_ready: dict[TaskId, Task] = {}
        self.recheck_requested = False  # since the last `take_newly_ready`
        self._delayed: dict[TaskId, Task] = {}  # until their begin time, or a later step
        self._timers: list[tuple[float, int, int]] = []  # heap of (time, job, index)
        # by job
        self._dependency_timers: dict[int, float] = {}  # latest timer for its dependencies
        self._slots: dict[int, set[int]] = {}  # indices of tasks that count for its limit
        self._waiting_for_slot: dict[int, dict[int, Task]] = {}
        self._next_indices: dict[int, list[int]] = {}  # heaps: all of `_waiting_for_slot`, and more
        self._blocked: dict[int, dict[int, Task]] = {}  # by unmet dependencies
        self._never_satisfied: dict[int, set[int]] = {}  # of the blocked tasks
        self._shared_statuses: dict[int, list[_TermStatus]] = {}  # of terms common to its tasks
        # by job that other jobs depend on
        self._progress: dict[int, dict[DependencyTarget, TargetProgress]] = {}
        self._dependents: dict[int, dict[int, Job]] = {}
        self._changed_targets: dict[int, set[int]] = {}  # indices of its changed tasks
        # by name of open jobs
        self._jobs_by_name: dict[JobName, set[int]] = {}
        self._singletons: dict[JobName, dict[int, Job]] = {}
        self._freed_names: set[JobName] = set()  # a job of that name was removed

    def begin_step(self) -> None:
        """Begin a step."""
        self._released, self.changed_tasks = 0, []

    # Jobs

    def add_job(self, job: Job) -> None:
        """Add a job that has open tasks."""
        self._jobs_by_name.setdefault((job.user, job.name), set()).add(job.id)

    def track_dependencies(
        self,
        job: Job,
        summaries: Collection[TargetSummary],
        open_tasks_of: Callable[[int], list[Task]],
    ) -> None:
        """Track the targets of a job's dependency.

        Progress starts from `summaries` of the targets and from their open tasks.
        """
        self._add_targets(job, summaries)
        for job_id in {summary.target.job for summary in summaries}:
            for task in open_tasks_of(job_id):
                self.update_progress(task)

    def _add_targets(self, job: Job, summaries: Iterable[TargetSummary]) -> None:
        for summary in summaries:
            progress_of_job = self._progress.setdefault(summary.target.job, {})
            progress_of_job.setdefault(summary.target, TargetProgress.from_summary(summary))
            self._dependents.setdefault(summary.target.job, {})[job.id] = job
        if any(term.dependency_type == SINGLETON for term in _dependency(job).terms):
            self._singletons.setdefault((job.user, job.name), {})[job.id] = job

    def replace_job(self, previous: Job, job: Job) -> None:
        """Replace a job with open tasks by its modified version; its name may differ."""
        self._remove_name(previous)
        self.add_job(job)
        if job.dependency is not None:
            self._add_targets(job, ())
            for target in _dependency(job).targets:
                if target.job in self._dependents:
                    self._dependents[target.job][job.id] = job

    def _remove_job(self, job: Job) -> None:
        """Remove a job whose last task has ended."""
        self._remove_name(job)
        self._slots.pop(job.id, None)
        self._next_indices.pop(job.id, None)
        self._dependency_timers.pop(job.id, None)
        self._shared_statuses.pop(job.id, None)
        if job.dependency is not None:
            self._untrack_dependencies(job)

    def _untrack_dependencies(self, job: Job) -> None:
        """Stop tracking the targets of a job."""
        for target in _dependency(job).targets:
            self._dependents.get(target.job, {}).pop(job.id, None)
            if not self._dependents.get(target.job):
                self._dependents.pop(target.job, None)
                self._progress.pop(target.job, None)
        _pop_item(self._singletons, (job.user, job.name), job.id)

    def _remove_name(self, job: Job) -> None:
        name = (job.user, job.name)
        jobs = self._jobs_by_name[name]
        jobs.discard(job.id)
        if not jobs:
            del self._jobs_by_name[name]
        if name in self._singletons:
            _pop_item(self._singletons, name, job.id)
            if name in self._singletons:
                self._freed_names.add(name)

    # Tasks

    def update_gates(self, change: StateChange, now: float, job_is_open: bool) -> str:
        """Update progress, slots and the queue after a task's change of state.

        Returns why the task has to be cancelled, or an empty string.
        """
        task, after = change.task, change.after
        if self._progress:
            self.update_progress(task)
        if after in LIVE:
            self._mark_dispatched(task)
        elif after in FINAL or after is State.HELD:
            self._release_slot(task, now)
            if not job_is_open:
                self._remove_job(task.job)
        elif change.follow_up is None:
            if change.event is TaskEvent.REQUEUE:
                self.add_job(task.job)
            return self.cancel_cause(task, self.enqueue(task, now), now)
        return ""

    def cancel_cause(self, task: Task, status: DependencyStatus, now: float) -> str:
        """Return why a queued task has to be cancelled, or an empty string.

        Its owner asked for that in case its dependency can never be met.
        """
        if status is DependencyStatus.NEVER_SATISFIED and task.job.kill_on_invalid_dep:
            return self.describe_dependencies(task, now)
        return ""

    def rebuild(self, tasks: Sequence[Task]) -> None:
        """Forget all queued tasks, which the caller enqueues again; `tasks` are all open tasks.

        Progress of targets is reduced to the state that a database would restore.
        """
        self.ready, self._newly_ready, self._delayed, self._timers = {}, {}, {}, []
        self._slots, self._waiting_for_slot, self._next_indices = {}, {}, {}
        self._blocked, self._never_satisfied = {}, {}
        self._shared_statuses, self._dependency_timers = {}, {}
        not_dispatched = {task.job.id for task in tasks if not task.attempts}
        tracked = {
            job.id: job
            for jobs_by_id in chain(self._dependents.values(), self._singletons.values())
            for job in jobs_by_id.values()
        }
        for job_id in tracked.keys() - not_dispatched:
            self._untrack_dependencies(tracked.pop(job_id))
        self._changed_targets, self._freed_names = {}, set()
        needed = {target for job in tracked.values() for target in _dependency(job).targets}
        for job_id, progress_of_job in self._progress.items():
            self._progress[job_id] = {
                target: target_progress
                for target, target_progress in progress_of_job.items()
                if target in needed
            }
            for progress in self._progress[job_id].values():
                progress.coarsen()
        for task in tasks:
            self.update_progress(task)
            if task.attempt is not None and _limit(task.job) is not None:
                self._slots.setdefault(task.job.id, set()).add(task.index)

    def enqueue(self, task: Task, now: float) -> DependencyStatus:
        """Put a queued task behind its gate and set its reason. Return its dependency's status.

        A task that was dispatched before depends on nothing any more.
        """
        previous_reason = task.reason
        status = self._choose_gate(task, now)
        if task.reason and task.reason != previous_reason:  # without a reason it will be placed
            self.changed_tasks.append(task)
        return status

    def _choose_gate(self, task: Task, now: float) -> DependencyStatus:
        job = task.job
        job_id, index = task_id = task.task_id
        status = DependencyStatus.SATISFIED
        if job.dependency is not None and not task.attempts:
            status, due = self._dependency_status(job, index, now)
            if status is not DependencyStatus.SATISFIED:
                task.reason = Reason.DEPENDENCY
                self._blocked.setdefault(job_id, {})[index] = task
                self._slots.get(job_id, set()).discard(index)
                if status is DependencyStatus.NEVER_SATISFIED:
                    self._never_satisfied.setdefault(job_id, set()).add(index)
                if due is not None and self._dependency_timers.get(job_id) != due:
                    self._dependency_timers[job_id] = due
                    heapq.heappush(self._timers, (due, job_id, _ALL_TASKS))
                return status
        if job.begin is not None and job.begin > now:
            task.reason = Reason.BEGIN_TIME
            self._delayed[task_id] = task
            heapq.heappush(self._timers, (job.begin, job_id, index))
        elif job.array is not None and not self._take_slot(task):
            task.reason = Reason.LIMIT_ARRAY
            self._waiting_for_slot.setdefault(job_id, {})[index] = task
            heapq.heappush(self._next_indices.setdefault(job_id, []), index)
        else:
            if task.reason in _GATE_REASONS:
                task.reason = ""
            if self._released < MAX_RELEASED_PER_STEP:
                self._released += 1
                self.ready[task_id] = self._newly_ready[task_id] = task
            else:
                self._delayed[task_id] = task
                heapq.heappush(self._timers, (NEXT_STEP, job_id, index))
        return status

    def _mark_dispatched(self, task: Task) -> None:
        """Remove a dispatched task from its gate; it takes a slot.

        The slots exceed the limit if a manager lists a lost attempt again.
        """
        self.remove(task)
        if task.job.array is not None and _limit(task.job) is not None:
            self._slots.setdefault(task.job.id, set()).add(task.index)

    def remove(self, task: Task) -> None:
        """Remove a task from its gate; it keeps its slot."""
        task_id = task.task_id
        if self.ready.pop(task_id, None) is not None:
            self._newly_ready.pop(task_id, None)
        elif self._delayed or self._waiting_for_slot or self._blocked:
            job_id, index = task_id
            self._delayed.pop(task_id, None)
            _pop_item(self._waiting_for_slot, job_id, index)
            if _pop_item(self._blocked, job_id, index) is not None:
                self._clear_never_satisfied(job_id, index)

    def _release_slot(self, task: Task, now: float) -> None:
        """Remove a held or ended task, and pass its slot to the next task."""
        self.remove(task)
        slots = self._slots.get(task.job.id)
        if slots is not None and task.index in slots:
            slots.discard(task.index)
            self._fill_slots(task.job.id, now)

    def update_progress(self, task: Task) -> None:
        """Update the progress of targets with a changed task."""
        tracked_targets = self._progress.get(task.job.id)
        if tracked_targets is None:
            return
        attempt_start = task.attempt.started if task.attempt is not None else None
        succeeded = (task.state is State.COMPLETED) if task.state in FINAL else None
        start_time = None
        if succeeded is not None:
            start_time = attempt_start if attempt_start is not None else task.ended
        elif task.state in LIVE - UNSTARTED:
            start_time = attempt_start
        for target, progress in tracked_targets.items():
            if target.index in (None, task.index):
                progress.update(task.index, succeeded, start_time)
        self._changed_targets.setdefault(task.job.id, set()).add(task.index)

    def _take_slot(self, task: Task) -> bool:
        limit = _limit(task.job)
        if limit is None:
            return True
        slots = self._slots.setdefault(task.job.id, set())
        if task.index not in slots and len(slots) >= limit:
            return False
        slots.add(task.index)
        return True

    def _fill_slots(self, job_id: int, now: float) -> None:
        """Admit the next tasks of an array to its free slots."""
        waiting = self._waiting_for_slot.get(job_id, {})
        indices = self._next_indices.get(job_id, [])
        while waiting and indices:
            task = waiting.get(indices[0])
            if task is not None and not self._take_slot(task):
                return
            index = heapq.heappop(indices)
            if task is not None:
                _pop_item(self._waiting_for_slot, job_id, index)
                self.enqueue(task, now)

    # Time and dependencies

    @property
    def next_due(self) -> float | None:
        """Time of the next timer (epoch seconds), or None."""
        return self._timers[0][0] if self._timers else None

    def pass_time(self, now: float) -> None:
        """Release tasks whose timers have expired, up to the limit of a step."""
        while self._timers and self._timers[0][0] <= now and self._released < MAX_RELEASED_PER_STEP:
            _, job_id, index = heapq.heappop(self._timers)
            if index == _ALL_TASKS:
                self._dependency_timers.pop(job_id, None)
                self._recheck_tasks(job_id, list(self._blocked.get(job_id, ())), now)
            elif (task := self._delayed.pop((job_id, index), None)) is not None:
                self.enqueue(task, now)

    @property
    def dependencies_changed(self) -> bool:
        """Whether any dependency needs a check."""
        return bool(self._changed_targets or self._freed_names)

    @property
    def settled(self) -> bool:
        """Whether no task has become ready and no dependency needs a check."""
        return not (self._changed_targets or self._freed_names or self._newly_ready)

    def resolve_dependencies(self, now: float) -> Iterator[tuple[Task, str]]:
        """Release tasks whose dependencies are met. Yield (task, cause) if they can never be met.

        Continues until the caller's reactions cause no further changes.
        """
        while self._changed_targets or self._freed_names:
            changed_targets, self._changed_targets = self._changed_targets, {}
            freed_names, self._freed_names = self._freed_names, set()
            for target, indices in changed_targets.items():
                # sorted: after a restart of the daemon their order differs
                for _, job in sorted(self._dependents.get(target, {}).items()):
                    yield from self._recheck_job(job, target, indices, now)
            for job_name in sorted(freed_names):
                first_job = self._singletons.get(job_name, {}).get(
                    min(self._jobs_by_name.get(job_name, {0}))
                )
                if first_job is not None:
                    yield from self._recheck_job(first_job, None, set(), now)

    def _recheck_job(
        self, job: Job, target: int | None, indices: set[int], now: float
    ) -> Iterator[tuple[Task, str]]:
        """Check a job's blocked tasks, after tasks `indices` of job `target` have changed."""
        blocked = self._blocked.get(job.id)
        if not blocked:
            return
        shared_statuses, paired, first_index = [], False, next(iter(blocked))
        for term in _dependency(job).terms:
            if self._is_paired(job, term):
                paired |= term.target is not None and term.target.job == target
            else:
                shared_statuses.append(self._term_status(job, term, first_index, now))
        if shared_statuses != self._shared_statuses.get(job.id):
            self._shared_statuses[job.id] = shared_statuses
            yield from self._recheck_tasks(job.id, list(blocked), now)
        elif paired:
            yield from self._recheck_tasks(job.id, sorted(blocked.keys() & indices), now)

    def _is_paired(self, job: Job, term: DependencyTerm) -> bool:
        """Whether each task of a job depends on the task with the same index in another."""
        if term.dependency_type != "aftercorr":
            return False
        if term.target is None or term.target.index is not None:
            return False
        return job.array is not None and self._progress[term.target.job][term.target].array

    def _recheck_tasks(
        self, job_id: int, indices: Iterable[int], now: float
    ) -> list[tuple[Task, str]]:
        """Enqueue blocked tasks again. Return (task, cause) if newly never satisfied."""
        newly_unsatisfiable = []
        for index in indices:
            task = _pop_item(self._blocked, job_id, index)
            if task is None:
                continue
            reported = self._clear_never_satisfied(job_id, index)
            if self.enqueue(task, now) is DependencyStatus.NEVER_SATISFIED and not reported:
                newly_unsatisfiable.append((task, self.describe_dependencies(task, now)))
        return newly_unsatisfiable

    def _clear_never_satisfied(self, job_id: int, index: int) -> bool:
        """Forget that a task's dependency can never be met. Return whether it was so."""
        never_satisfied = self._never_satisfied.get(job_id, set())
        was_never_satisfied = index in never_satisfied
        never_satisfied.discard(index)
        if was_never_satisfied and not never_satisfied:
            del self._never_satisfied[job_id]
        return was_never_satisfied

    def _dependency_status(self, job: Job, index: int, now: float) -> _TermStatus:
        """Return the status of a job's dependency for task `index`."""
        dependency = _dependency(job)
        statuses = [self._term_status(job, term, index, now) for term in dependency.terms]
        combined = combine_statuses((status for status, _ in statuses), dependency.any_term)
        return combined, min((due for _, due in statuses if due is not None), default=None)

    def _term_status(self, job: Job, term: DependencyTerm, index: int, now: float) -> _TermStatus:
        if term.target is None:
            is_first = min(self._jobs_by_name[job.user, job.name]) >= job.id
            return (DependencyStatus.SATISFIED if is_first else DependencyStatus.WAITING), None
        progress = self._progress[term.target.job][term.target]
        return progress.status_and_due(term, None if job.array is None else index, now)

    def describe_dependencies(self, task: Task, now: float) -> str:
        """Describe the unmet dependencies of a task."""
        job, dependency = task.job, _dependency(task.job)
        parts = []
        for term in dependency.terms:
            status, _ = self._term_status(job, term, task.index, now)
            if status is DependencyStatus.SATISFIED:
                continue
            if term.target is None:
                first_job = min(self._jobs_by_name[job.user, job.name])
                parts.append(f"{term} {status.value}: job {first_job} of that name has not ended")
            else:
                progress = self._progress[term.target.job][term.target]
                parts.append(f"{term} {status.value}: {progress.describe()}")
        return "; ".join(parts)

    def request_recheck(self) -> None:
        """Let `take_newly_ready` return all ready tasks: something changed for all of them."""
        self.recheck_requested = True

    def take_newly_ready(self) -> list[Task]:
        """Return the tasks that became ready since the last call, or all after a request."""
        tasks = self.ready if self.recheck_requested else self._newly_ready
        self._newly_ready, self.recheck_requested = {}, False
        return list(tasks.values())


def _pop_item(by_key: dict[K, dict[int, V]], key: K, index: int) -> V | None:
    """Remove and return an item; remove an emptied key, too."""
    items = by_key.get(key, {})
    item = items.pop(index, None)
    if item is not None and not items:
        del by_key[key]
    return item


def _limit(job: Job) -> int | None:
    if job.array is None or job.parsed_array is None:
        return None
    return job.parsed_array.limit


def _dependency(job: Job) -> Dependency:
    assert job.dependency is not None, job
    return parse_dependency(job.dependency)
