"""Whether dependencies are met: what has become of the jobs that others depend on. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from metasched.model.arrays import parse_array
from metasched.model.dependencies import DependencyTarget, DependencyTerm
from metasched.model.stored_names import STORED_FIELDS


class DependencyStatus(Enum):
    """Of a term, or of a whole dependency."""

    WAITING = "has not come yet"
    SATISFIED = "has come"
    NEVER_SATISFIED = "can never come"


class TargetSummary(msgspec.Struct, rename=STORED_FIELDS["TargetSummary"], frozen=True):
    """What had become of a target's tasks, as ranges; "" for none.

    `ok` and `bad` are those that had ended, with and without success; `size` counts all,
    `begun` is the last time at which one of the ended began, or ended without having begun.
    """

    target: DependencyTarget
    size: int
    array: bool = False
    succeeded: str = ""
    failed: str = ""
    last_start: float = 0.0


@dataclass
class TargetProgress:
    """How far the tasks of one target are."""

    target: DependencyTarget
    size: int
    array: bool = False
    succeeded: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    start_times: dict[int, float] = field(default_factory=dict)

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
        """Know as much as `since` would: of the ended only when the last of them began."""
        ended = self.succeeded | self.failed
        last_start = max((self.start_times[index] for index in ended), default=0.0)
        self.start_times = dict.fromkeys(ended, last_start)

    def update(self, index: int, succeeded: bool | None, start_time: float | None) -> None:
        """What became of a task: it ended well, badly or not yet (None), and began when. O(1)."""
        for indices, included in (
            (self.succeeded, succeeded is True),
            (self.failed, succeeded is False),
        ):
            indices.add(index) if included else indices.discard(index)
        if start_time is None:
            self.start_times.pop(index, None)
        else:
            self.start_times[index] = start_time

    def status_of(
        self, term: DependencyTerm, index: int | None, now: float
    ) -> tuple[DependencyStatus, float | None]:
        """Whether the term has come for the task `index` (None: of no array), at `now` seconds.

        And when it will have come, where the clock alone decides that.
        """
        ended = len(self.succeeded) + len(self.failed) == self.size
        match term.dependency_type:
            case "after" if len(self.start_times) < self.size:
                return DependencyStatus.WAITING, None
            case "after":
                due = max(self.start_times.values()) + term.delay
                return (
                    (DependencyStatus.SATISFIED, None)
                    if now >= due
                    else (DependencyStatus.WAITING, due)
                )
            case "afterany":
                return (DependencyStatus.SATISFIED if ended else DependencyStatus.WAITING), None
            case "afternotok":
                final_status = (
                    DependencyStatus.SATISFIED if self.failed else DependencyStatus.NEVER_SATISFIED
                )
                return (final_status if ended else DependencyStatus.WAITING), None
            case "aftercorr" if index is not None and self.target.index is None and self.array:
                failed, succeeded = index in self.failed, index in self.succeeded
            case _:
                failed, succeeded = bool(self.failed), ended
        return (
            DependencyStatus.NEVER_SATISFIED
            if failed
            else DependencyStatus.SATISFIED
            if succeeded
            else DependencyStatus.WAITING
        ), None

    def describe(self) -> str:
        """How far it is, in words. O(1): each of many tasks may be told so."""
        if self.size == 1:
            result = (
                "completed" if self.succeeded else "ended without success" if self.failed else ""
            )
            return (
                f"{self.target} {result or ('has begun' if self.start_times else 'has not begun')}"
            )
        failed_text = f", {len(self.failed)} without success" if self.failed else ""
        ended = len(self.succeeded) + len(self.failed)
        return f"of {self.size} tasks {len(self.start_times)} have begun and {ended} ended{failed_text}"


def combine_statuses(statuses: Iterable[DependencyStatus], any_of: bool) -> DependencyStatus:
    """What the prospects on all terms come to."""
    distinct = set(statuses)
    decisive, otherwise = (
        (DependencyStatus.SATISFIED, DependencyStatus.NEVER_SATISFIED)
        if any_of
        else (DependencyStatus.NEVER_SATISFIED, DependencyStatus.SATISFIED)
    )
    if decisive in distinct:
        return decisive
    return DependencyStatus.WAITING if DependencyStatus.WAITING in distinct else otherwise
