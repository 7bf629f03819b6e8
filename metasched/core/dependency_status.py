"""Status of dependencies: progress of the jobs that other jobs depend on. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from metasched.model.arrays import parse_array
from metasched.model.dependencies import DependencyTarget, DependencyTerm


class DependencyStatus(Enum):
    """Status of a term or of a whole dependency; the value completes a message."""

    WAITING = "is not met yet"
    SATISFIED = "is met"
    NEVER_SATISFIED = "can never be met"


# The status of a term; and when the clock alone satisfies it (epoch seconds), if nothing else does
TermStatus = tuple[DependencyStatus, float | None]


class TargetSummary(msgspec.Struct, frozen=True):
    """Ended tasks of a target, as stored in an event."""

    target: DependencyTarget
    size: int  # number of its tasks
    array: bool = False  # whether its job is an array
    succeeded: str = ""  # range of indices; "": none
    failed: str = ""  # range of indices that ended without success
    last_start: float = 0.0  # epoch seconds; latest start (end, if never started) of ended tasks


@dataclass
class TargetProgress:
    """Progress of the tasks of a target."""

    target: DependencyTarget
    size: int  # number of its tasks
    array: bool = False  # whether its job is an array
    succeeded: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)  # ended without success
    start_times: dict[int, float] = field(default_factory=dict)  # epoch seconds, by index
    _last_start: float | None = field(default=None, compare=False)  # None: to be computed

    @classmethod
    def from_summary(cls, summary: TargetSummary) -> TargetProgress:
        succeeded, failed = (
            set(parse_array(indices).indices) if indices else set()
            for indices in (summary.succeeded, summary.failed)
        )
        return cls(
            summary.target,
            summary.size,
            summary.array,
            succeeded,
            failed,
            dict.fromkeys(succeeded | failed, summary.last_start),
        )

    def coarsen(self) -> None:
        """Reduce start times of ended tasks to those that `from_summary` would restore."""
        ended = self.succeeded | self.failed
        last_start = max((self.start_times[index] for index in ended), default=0.0)
        self.start_times, self._last_start = dict.fromkeys(ended, last_start), None

    def update(self, index: int, succeeded: bool | None, start_time: float | None) -> bool:
        """Record the result of a task (None: it has not ended) and its start time. O(1).

        Return whether anything changed.
        """
        previous_start = self.start_times.get(index)
        if (
            (index in self.succeeded) is (succeeded is True)
            and (index in self.failed) is (succeeded is False)
            and previous_start == start_time
        ):
            return False
        for indices, included in (
            (self.succeeded, succeeded is True),
            (self.failed, succeeded is False),
        ):
            indices.add(index) if included else indices.discard(index)
        if start_time is None:
            self.start_times.pop(index, None)
        else:
            self.start_times[index] = start_time
        if self._last_start is not None and previous_start != start_time:
            if start_time is not None and start_time >= self._last_start:
                self._last_start = start_time
            elif previous_start == self._last_start:
                self._last_start = None
        return True

    @property
    def last_start(self) -> float:
        """Latest start of its tasks (epoch seconds)."""
        if self._last_start is None:
            self._last_start = max(self.start_times.values())
        return self._last_start

    def status_for(self, term: DependencyTerm, index: int | None) -> TermStatus:
        """Return the status of a term for task `index` (None: the job is not an array).

        With a due time the term waits until then, and is met afterwards.
        """
        ended = len(self.succeeded) + len(self.failed) == self.size
        match term.dependency_type:
            case "after" if len(self.start_times) < self.size:
                return DependencyStatus.WAITING, None
            case "after":
                return DependencyStatus.WAITING, self.last_start + term.delay
            case "afterany":
                return (DependencyStatus.SATISFIED if ended else DependencyStatus.WAITING), None
            case "afternotok":
                if not ended:
                    return DependencyStatus.WAITING, None
                if self.failed:
                    return DependencyStatus.SATISFIED, None
                return DependencyStatus.NEVER_SATISFIED, None
            case "aftercorr" if index is not None and self.target.index is None and self.array:
                failed, succeeded = index in self.failed, index in self.succeeded
            case _:
                failed, succeeded = bool(self.failed), ended
        if failed:
            return DependencyStatus.NEVER_SATISFIED, None
        return (DependencyStatus.SATISFIED if succeeded else DependencyStatus.WAITING), None

    def status_and_due(self, term: DependencyTerm, index: int | None, now: float) -> TermStatus:
        """Return the status of a term now, as `status_for`."""
        status, due = self.status_for(term, index)
        return (
            (DependencyStatus.SATISFIED, None) if due is not None and now >= due else (status, due)
        )

    def describe(self) -> str:
        """Describe the progress. O(1): called for each of many dependent tasks."""
        if self.size == 1:
            if self.succeeded:
                return f"{self.target} completed"
            if self.failed:
                return f"{self.target} ended without success"
            return f"{self.target} has {'started' if self.start_times else 'not started'}"
        ended = len(self.succeeded) + len(self.failed)
        failed = f", {len(self.failed)} without success" if self.failed else ""
        return (
            f"of {self.size} tasks {len(self.start_times)} have started and {ended} ended{failed}"
        )


def combine_statuses(statuses: Iterable[DependencyStatus], any_of: bool) -> DependencyStatus:
    """Return the status of a dependency from those of its terms."""
    distinct = set(statuses)
    decisive, otherwise = (
        (DependencyStatus.SATISFIED, DependencyStatus.NEVER_SATISFIED)
        if any_of
        else (DependencyStatus.NEVER_SATISFIED, DependencyStatus.SATISFIED)
    )
    if decisive in distinct:
        return decisive
    return DependencyStatus.WAITING if DependencyStatus.WAITING in distinct else otherwise
