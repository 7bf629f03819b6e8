"""Jobs that wait for others: the statuses of their terms, counted. Pure.

Jobs with equal terms share them. So the end of a task costs an evaluation of each different term,
and a count in each job whose term changed, however many terms that job has.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field

from metasched.core.dependency_status import (
    DependencyStatus,
    TargetProgress,
    TermStatus,
    combine_statuses,
)
from metasched.model.dependencies import DependencyTerm
from metasched.model.job import Job


@dataclass(slots=True)
class TrackedTarget:
    """A target, and the terms that refer to it."""

    progress: TargetProgress
    terms: dict[DependencyTerm, SharedTerm] = field(default_factory=dict)
    changed: bool = False  # whether it has changed since its terms were evaluated


@dataclass(slots=True)
class SharedTerm:
    """A term with the jobs that have it in their dependencies."""

    term: DependencyTerm
    target: TrackedTarget
    status: TermStatus  # when it was last evaluated
    jobs: set[int] = field(default_factory=set)

    def pairs(self, job: Job) -> bool:
        """Return whether each task of a job depends on the task with the same index in another."""
        progress = self.target.progress
        if self.term.dependency_type != "aftercorr" or progress.target.index is not None:
            return False
        return job.array is not None and progress.array


class DependentJob:
    """A job with its terms: paired with tasks of arrays, and counts of the others by status."""

    def __init__(self, job: Job, any_term: bool, is_singleton: bool) -> None:
        self.job = job  # with its first choice of licences
        self.any_term = any_term  # True: any satisfied term is enough
        self.is_singleton = is_singleton  # whether it also waits for jobs of its name
        self.terms: list[SharedTerm] = []
        self.paired: list[SharedTerm] = []  # those of them that pair its tasks
        # numbers of the other terms
        self._satisfied = self._waiting = self._never_satisfied = 0
        self._due: list[float] = []  # epoch seconds at which further terms are met, ascending

    def add(self, shared: SharedTerm) -> None:
        """Add a term."""
        shared.jobs.add(self.job.id)
        self.terms.append(shared)
        if shared.pairs(self.job):
            self.paired.append(shared)
        else:
            self._count(shared.status, +1)

    def recount(self, before: TermStatus, after: TermStatus) -> bool:
        """Count a term whose status has changed. Return whether the status of the job may have."""
        kinds = self._kinds
        self._count(before, -1)
        self._count(after, +1)
        return before[1] is not None or after[1] is not None or kinds != self._kinds

    def _count(self, term_status: TermStatus, number: int) -> None:
        status, due = term_status
        if due is not None:
            if number > 0:
                insort(self._due, due)
            else:
                del self._due[bisect_left(self._due, due)]
        elif status is DependencyStatus.SATISFIED:
            self._satisfied += number
        elif status is DependencyStatus.WAITING:
            self._waiting += number
        else:
            self._never_satisfied += number

    @property
    def _kinds(self) -> tuple[bool, bool, bool]:
        return self._satisfied > 0, self._waiting > 0, self._never_satisfied > 0

    def status_and_due(self, index: int, is_first: bool, now: float) -> TermStatus:
        """Return the status of the dependency for task `index`.

        `is_first`: whether no earlier job of its name is open. The second value is the time (epoch
        seconds) at which the clock alone changes the status, or None.
        """
        passed = bisect_right(self._due, now)
        due = self._due[passed] if passed < len(self._due) else None
        combined = {pair.target.progress.status_for(pair.term, index)[0] for pair in self.paired}
        if self._satisfied or passed or (self.is_singleton and is_first):
            combined.add(DependencyStatus.SATISFIED)
        if self._waiting or due is not None or (self.is_singleton and not is_first):
            combined.add(DependencyStatus.WAITING)
        if self._never_satisfied:
            combined.add(DependencyStatus.NEVER_SATISFIED)
        return combine_statuses(combined, self.any_term), due
