"""Dependencies of jobs: progress of their targets, and the jobs that a change concerns. Pure.

A change of a job reaches its dependent jobs only: no event costs a scan of all tasks. Terms are
evaluated when their target has changed, once for all jobs that share them (`dependent_jobs`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence, Set

from metasched.core.dependency_status import (
    DependencyStatus,
    TargetProgress,
    TargetSummary,
    TermStatus,
)
from metasched.core.dependent_jobs import DependentJob, SharedTerm, TrackedTarget
from metasched.core.tasks import Task
from metasched.core.transitions import FINAL, LIVE, UNSTARTED
from metasched.model.dependencies import (
    SINGLETON,
    Dependency,
    parse_dependency,
)
from metasched.model.job import Job, State

JobName = tuple[str, str]  # user, name of the job


class DependencyTracker:
    """Progress of all targets of open jobs, and the targets that changed since the last check."""

    def __init__(self) -> None:
        # by job that other jobs depend on, and index of its task, None: the whole job
        self._targets: dict[int, dict[int | None, TrackedTarget]] = {}
        self._changed_targets: dict[int, set[int]] = {}  # indices of its changed tasks
        self._outdated: list[TrackedTarget] = []  # whose terms are to be evaluated
        self.changed = False  # whether any dependency needs a check
        # by dependent job
        self._dependents: dict[int, DependentJob] = {}
        self._to_check: set[int] = set()  # the status of its dependency may have changed
        self._first_changes: dict[int, int] = {}  # first of its target jobs with a changed term
        # by name of open jobs
        self._jobs_by_name: dict[JobName, list[int]] = {}  # ascending
        self._singletons: dict[JobName, dict[int, DependentJob]] = {}
        self._freed_names: set[JobName] = set()  # a job of that name was removed

    # Jobs

    def add_job(self, job: Job) -> None:
        """Add a job that has open tasks."""
        job_ids = self._jobs_by_name.setdefault((job.user, job.name), [])
        position = bisect_left(job_ids, job.id)
        if position == len(job_ids) or job_ids[position] != job.id:
            job_ids.insert(position, job.id)

    def track(
        self,
        job: Job,
        summaries: Collection[TargetSummary],
        open_tasks_of: Callable[[int], list[Task]],
    ) -> None:
        """Track the targets of a job's dependency.

        Progress starts from `summaries` of the targets and from their open tasks. A target of other
        jobs is tracked already.
        """
        new_targets: dict[int, list[TrackedTarget]] = {}
        for summary in summaries:
            targets = self._targets.setdefault(summary.target.job, {})
            new = new_targets.setdefault(summary.target.job, [])
            if summary.target.index not in targets:
                target = TrackedTarget(TargetProgress.from_summary(summary))
                targets[summary.target.index] = target
                new.append(target)
        for job_id, targets_of_job in new_targets.items():
            self._note_change(job_id)
            if targets_of_job:
                for task in open_tasks_of(job_id):
                    self.update_progress(task)
        if job.id not in self._dependents:
            self._add_dependent(job)

    def _add_dependent(self, job: Job) -> None:
        dependency = _dependency(job)
        is_singleton = any(term.dependency_type == SINGLETON for term in dependency.terms)
        # which alternative it takes changes with each dispatch
        dependent = DependentJob(job.with_licences(0), dependency.any_term, is_singleton)
        self._dependents[job.id] = dependent
        if is_singleton:
            self._singletons.setdefault((job.user, job.name), {})[job.id] = dependent
        for term in dependency.terms:
            if term.target is None:
                continue
            target = self._targets[term.target.job][term.target.index]
            shared = target.terms.get(term)
            if shared is None:
                shared = SharedTerm(term, target, target.progress.status_for(term, None))
                target.terms[term] = shared
            dependent.add(shared)

    def replace_job(self, previous: Job, job: Job) -> None:
        """Replace a job with open tasks by its modified version; its name may differ."""
        self._remove_name(previous)
        self.add_job(job)
        dependent = self._dependents.get(job.id)
        if dependent is not None:
            dependent.job = job.with_licences(0)
            if dependent.is_singleton:
                self._singletons.setdefault((job.user, job.name), {})[job.id] = dependent

    def remove_job(self, job: Job) -> None:
        """Remove a job whose last task has ended."""
        self._remove_name(job)
        self._untrack(job)

    def _untrack(self, job: Job) -> None:
        """Stop tracking the targets of a job, if it has any."""
        dependent = self._dependents.pop(job.id, None)
        if dependent is None:
            return
        self._to_check.discard(job.id)
        self._first_changes.pop(job.id, None)
        for shared in dependent.terms:
            shared.jobs.discard(job.id)
            if not shared.jobs:
                self._remove_term(shared)
        self._remove_singleton(job)

    def _remove_term(self, shared: SharedTerm) -> None:
        target = shared.target
        del target.terms[shared.term]
        if target.terms:
            return
        target_job, index = target.progress.target.job, target.progress.target.index
        del self._targets[target_job][index]
        if not self._targets[target_job]:
            del self._targets[target_job]

    def _remove_name(self, job: Job) -> None:
        name = (job.user, job.name)
        job_ids = self._jobs_by_name[name]
        position = bisect_left(job_ids, job.id)
        if position < len(job_ids) and job_ids[position] == job.id:
            del job_ids[position]
        if not job_ids:
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

    def rebuild(self, tasks: Sequence[Task], remainders: Collection[int]) -> None:
        """Reduce progress to the state that a database would restore; `tasks` are all open tasks.

        `remainders`: jobs with other open tasks. Jobs whose tasks were all dispatched depend on
        nothing any more.
        """
        not_dispatched = {task.job.id for task in tasks if not task.attempts}
        not_dispatched.update(remainders)
        for job_id in self._dependents.keys() - not_dispatched:
            self._untrack(self._dependents[job_id].job)
        self._changed_targets, self._freed_names, self.changed = {}, set(), False
        for targets_of_job in self._targets.values():
            for target in targets_of_job.values():
                target.progress.coarsen()
                self._outdate(target)
        for task in tasks:
            self.update_progress(task)
        self._evaluate_terms()
        self._to_check, self._first_changes = set(), {}  # all tasks are put behind gates anew

    # Tasks

    def update_progress(self, task: Task) -> None:
        """Update the progress of targets with a changed task."""
        job_id, index = task.task_id
        if job_id not in self._targets:
            return
        attempt_start = task.attempt.started if task.attempt is not None else None
        succeeded = (task.state is State.COMPLETED) if task.state in FINAL else None
        start_time = None
        if succeeded is not None:
            start_time = attempt_start if attempt_start is not None else task.ended
        elif task.state in LIVE - UNSTARTED:
            start_time = attempt_start
        self._note_change(job_id)
        self._update(job_id, index, succeeded, start_time)

    def end_unstarted(self, job_id: int, indices: range, ended: float) -> None:
        """Update the progress of targets with tasks that ended without a start (epoch seconds)."""
        targets_of_job = self._targets.get(job_id)
        if targets_of_job is None:
            return
        self._note_change(job_id)
        for index in indices if None in targets_of_job else targets_of_job.keys() & set(indices):
            assert index is not None
            self._update(job_id, index, False, ended)

    def _note_change(self, job_id: int) -> None:
        """Note that a target job may have changed; its dependent jobs are checked in this order."""
        self._changed_targets.setdefault(job_id, set())
        self.changed = True

    def _update(
        self, job_id: int, index: int, succeeded: bool | None, start_time: float | None
    ) -> None:
        """Update the targets that a task belongs to: its whole job, and the task alone."""
        targets_of_job = self._targets[job_id]
        for target in (targets_of_job.get(None), targets_of_job.get(index)):
            if target is not None and target.progress.update(index, succeeded, start_time):
                self._changed_targets[job_id].add(index)
                self._outdate(target)

    def _outdate(self, target: TrackedTarget) -> None:
        if not target.changed:
            target.changed = True
            self._outdated.append(target)

    def _evaluate_terms(self) -> None:
        """Evaluate the terms of changed targets, and count them anew in their jobs."""
        outdated, self._outdated = self._outdated, []
        for target in outdated:
            target.changed = False
            for shared in target.terms.values():
                before = shared.status
                shared.status = target.progress.status_for(shared.term, None)
                if shared.status == before:
                    continue
                for job_id in shared.jobs:
                    dependent = self._dependents[job_id]
                    if shared.pairs(dependent.job):
                        continue
                    self._first_changes.setdefault(job_id, target.progress.target.job)
                    if dependent.recount(before, shared.status):
                        self._to_check.add(job_id)

    # Changes

    def take_changes(self) -> Iterator[tuple[Job, bool, Set[int]]]:
        """Yield each job to check: whether all its tasks are concerned, and changed counterparts.

        The latter are indices of tasks in an array with which it is paired.
        """
        self._evaluate_terms()
        by_target: dict[int, list[int]] = {}
        for job_id in self._to_check:
            by_target.setdefault(self._first_changes[job_id], []).append(job_id)
        changed_targets, self._changed_targets = self._changed_targets, {}
        freed_names, self._freed_names = self._freed_names, set()
        self._to_check, self._first_changes, self.changed = set(), {}, False
        for target_job, indices in changed_targets.items():
            to_check = set(by_target.get(target_job, ()))
            paired = self._paired_with(target_job) if indices else set()
            # sorted: after a restart of the daemon their order differs
            for job_id in sorted(to_check | paired):
                if (dependent := self._dependents.get(job_id)) is not None:
                    counterparts = indices if job_id in paired else set[int]()
                    yield dependent.job, job_id in to_check, counterparts
        for job_name in sorted(freed_names):
            first_job = self._first_job_named(job_name)
            dependent = self._singletons.get(job_name, {}).get(first_job)
            if dependent is not None:
                yield dependent.job, True, set()

    def _paired_with(self, target_job: int) -> set[int]:
        """Return the jobs that are paired with an array."""
        target = self._targets.get(target_job, {}).get(None)  # terms on single tasks pair none
        return {
            job_id
            for shared in ([] if target is None else target.terms.values())
            for job_id in shared.jobs
            if shared.pairs(self._dependents[job_id].job)
        }

    def _first_job_named(self, name: JobName) -> int:
        """Return the first open job of a name, 0 if there is none."""
        job_ids = self._jobs_by_name.get(name)
        return job_ids[0] if job_ids else 0

    def may_be_range(self, job: Job) -> bool:
        """Return whether all tasks of a new array wait for the same, or for counterparts only."""
        dependent = self._dependents.get(job.id)
        return dependent is None or not dependent.paired or len(_dependency(job).terms) == 1

    def is_paired(self, job: Job) -> bool:
        """Return whether each task of a range waits only for the same index of another array."""
        dependent = self._dependents.get(job.id)
        return dependent is not None and bool(dependent.paired)

    def ended_counterparts(self, job: Job) -> tuple[Set[int], Set[int]]:
        """Return the indices of tasks in the array on which a paired job depends.

        The first set has those that succeeded, the second those that ended without success.
        """
        (pair,) = self._dependents[job.id].paired
        progress = pair.target.progress
        return progress.succeeded, progress.failed

    # Status

    def status_and_due(self, job: Job, index: int, now: float) -> TermStatus:
        """Return the status of a job's dependency for task `index`.

        The second value is the time (epoch seconds) at which the clock alone changes it, or None.
        """
        self._evaluate_terms()
        return self._dependents[job.id].status_and_due(index, self._is_first(job), now)

    def _is_first(self, job: Job) -> bool:
        """Return whether no earlier job of the same name is open."""
        return self._first_job_named((job.user, job.name)) >= job.id

    def describe(self, task: Task, now: float) -> str:
        """Describe the unmet dependencies of a task."""
        job = task.job
        parts = []
        for term in _dependency(job).terms:
            if term.target is None:
                if not self._is_first(job):
                    status = DependencyStatus.WAITING
                    first_job = self._first_job_named((job.user, job.name))
                    parts.append(
                        f"{term} {status.value}: job {first_job} of that name has not ended"
                    )
                continue
            progress = self._targets[term.target.job][term.target.index].progress
            index = None if job.array is None else task.index
            status, _ = progress.status_and_due(term, index, now)
            if status is not DependencyStatus.SATISFIED:
                parts.append(f"{term} {status.value}: {progress.describe()}")
        return "; ".join(parts)


def _dependency(job: Job) -> Dependency:
    assert job.dependency is not None, job
    return parse_dependency(job.dependency)
