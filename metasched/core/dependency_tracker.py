"""Dependencies of jobs: progress of their targets, and the jobs that a change concerns. Pure.

A change of a job reaches its dependent jobs only: no event costs a scan of all tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from itertools import chain

from metasched.core.dependency_status import (
    DependencyStatus,
    TargetProgress,
    TargetSummary,
    combine_statuses,
)
from metasched.core.tasks import Task
from metasched.core.transitions import FINAL, LIVE, UNSTARTED
from metasched.model.dependencies import (
    SINGLETON,
    Dependency,
    DependencyTarget,
    DependencyTerm,
    parse_dependency,
)
from metasched.model.job import Job, State

JobName = tuple[str, str]  # user, name of the job
_TermStatus = tuple[DependencyStatus, float | None]  # and when the clock alone satisfies the term


class DependencyTracker:
    """Progress of all targets of open jobs, and the targets that changed since the last check."""

    def __init__(self) -> None:
        # by job that other jobs depend on
        self._progress: dict[int, dict[DependencyTarget, TargetProgress]] = {}
        self._dependents: dict[int, dict[int, Job]] = {}
        self._changed_targets: dict[int, set[int]] = {}  # indices of its changed tasks
        self.changed = False  # whether any dependency needs a check
        # by dependent job
        self._shared_statuses: dict[int, list[_TermStatus]] = {}  # of terms common to its tasks
        # by name of open jobs
        self._jobs_by_name: dict[JobName, set[int]] = {}
        self._singletons: dict[JobName, dict[int, Job]] = {}
        self._freed_names: set[JobName] = set()  # a job of that name was removed

    # Jobs

    def add_job(self, job: Job) -> None:
        """Add a job that has open tasks."""
        self._jobs_by_name.setdefault((job.user, job.name), set()).add(job.id)

    def track(
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
        job = job.with_licences(0)  # which alternative it takes changes with each dispatch
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
                    self._dependents[target.job][job.id] = job.with_licences(0)

    def remove_job(self, job: Job) -> None:
        """Remove a job whose last task has ended."""
        self._remove_name(job)
        self._shared_statuses.pop(job.id, None)
        if job.dependency is not None:
            self._untrack(job)

    def _untrack(self, job: Job) -> None:
        """Stop tracking the targets of a job."""
        for target in _dependency(job).targets:
            self._dependents.get(target.job, {}).pop(job.id, None)
            if not self._dependents.get(target.job):
                self._dependents.pop(target.job, None)
                self._progress.pop(target.job, None)
        self._remove_singleton(job)

    def _remove_name(self, job: Job) -> None:
        name = (job.user, job.name)
        jobs = self._jobs_by_name[name]
        jobs.discard(job.id)
        if not jobs:
            del self._jobs_by_name[name]
        self._remove_singleton(job)
        if name in self._singletons:
            self._freed_names.add(name)
            self.changed = True

    def _remove_singleton(self, job: Job) -> None:
        name = (job.user, job.name)
        if name in self._singletons:
            self._singletons[name].pop(job.id, None)
            if not self._singletons[name]:
                del self._singletons[name]

    def rebuild(self, tasks: Sequence[Task], remainders: Iterable[int]) -> None:
        """Reduce progress to the state that a database would restore; `tasks` are all open tasks.

        `remainders`: jobs with other open tasks. Jobs whose tasks were all dispatched depend on
        nothing any more.
        """
        self._shared_statuses = {}
        not_dispatched = {task.job.id for task in tasks if not task.attempts}
        not_dispatched.update(remainders)
        tracked = {
            job.id: job
            for jobs_by_id in chain(self._dependents.values(), self._singletons.values())
            for job in jobs_by_id.values()
        }
        for job_id in tracked.keys() - not_dispatched:
            self._untrack(tracked.pop(job_id))
        self._changed_targets, self._freed_names, self.changed = {}, set(), False
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

    # Tasks

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
        self.changed = True

    def end_unstarted(self, job_id: int, indices: range, ended: float) -> None:
        """Update the progress of targets with tasks that ended without a start (epoch seconds)."""
        tracked_targets = self._progress.get(job_id)
        if tracked_targets is None:
            return
        for target, progress in tracked_targets.items():
            for index in indices if target.index is None else (target.index,):
                if index in indices:
                    progress.update(index, False, ended)
        self._changed_targets.setdefault(job_id, set()).update(indices)
        self.changed = True

    # Changes

    def take_changes(self) -> Iterator[tuple[Job, int | None, set[int]]]:
        """Yield each job to check, with the target job and the indices of its changed tasks.

        The target is None if a job of the same name was removed.
        """
        changed_targets, self._changed_targets = self._changed_targets, {}
        freed_names, self._freed_names = self._freed_names, set()
        self.changed = False
        for target, indices in changed_targets.items():
            # sorted: after a restart of the daemon their order differs
            for _, job in sorted(self._dependents.get(target, {}).items()):
                yield job, target, indices
        for job_name in sorted(freed_names):
            first_job = self._singletons.get(job_name, {}).get(
                min(self._jobs_by_name.get(job_name, {0}))
            )
            if first_job is not None:
                yield first_job, None, set()

    def indices_to_recheck(
        self, job: Job, blocked: dict[int, Task], target: int | None, indices: set[int], now: float
    ) -> list[int]:
        """Return which of a job's blocked tasks a change of tasks `indices` of `target` concerns.

        Statuses of terms common to all its tasks are computed once, not for each task.
        """
        shared_statuses, paired, first_index = [], False, next(iter(blocked))
        for term in _dependency(job).terms:
            if self._is_paired(job, term):
                paired |= term.target is not None and term.target.job == target
            else:
                shared_statuses.append(self._term_status(job, term, first_index, now))
        if shared_statuses != self._shared_statuses.get(job.id):
            self._shared_statuses[job.id] = shared_statuses
            return list(blocked)
        return sorted(blocked.keys() & indices) if paired else []

    def _is_paired(self, job: Job, term: DependencyTerm) -> bool:
        """Return whether each task of a job depends on the task with the same index in another."""
        if term.dependency_type != "aftercorr":
            return False
        if term.target is None or term.target.index is not None:
            return False
        return job.array is not None and self._progress[term.target.job][term.target].array

    def may_be_range(self, job: Job) -> bool:
        """Return whether all tasks of a new array wait for the same, or for counterparts only."""
        terms = () if job.dependency is None else _dependency(job).terms
        return len(terms) <= 1 or not any(self._is_paired(job, term) for term in terms)

    def is_paired(self, job: Job) -> bool:
        """Return whether each task of a range waits only for the same index of another array."""
        return job.dependency is not None and self._is_paired(job, _dependency(job).terms[0])

    def ended_counterparts(self, job: Job) -> tuple[Set[int], Set[int]]:
        """Return the indices of tasks in the array on which a paired job depends.

        The first set has those that succeeded, the second those that ended without success.
        """
        (target,) = _dependency(job).targets
        progress = self._progress[target.job][target]
        return progress.succeeded, progress.failed

    # Status

    def status_and_due(self, job: Job, index: int, now: float) -> _TermStatus:
        """Return the status of a job's dependency for task `index`.

        The second value is the time (epoch seconds) at which the clock alone changes it, or None.
        """
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

    def describe(self, task: Task, now: float) -> str:
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


def _dependency(job: Job) -> Dependency:
    assert job.dependency is not None, job
    return parse_dependency(job.dependency)
