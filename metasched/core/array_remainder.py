"""Remainders of arrays: tasks that wait untouched, as runs of indices. Pure.

mypyc does not compile this module: checkpoints of the database decode remainders by their
annotations.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from metasched.model.job import Job, State

IndexRun = tuple[int, int, int]  # first index, last index, step

REMAINDER_MINIMUM: Final = 1_000  # tasks of an array; smaller arrays have none
# of a remainder: each of its changes stores all of them. Tasks of further, shorter runs are single
MAX_RUNS: Final = 64
# tasks per run that a request cancels; of shorter runs the tasks become single, since a page of a
# listing reads all runs of a job
MIN_MEAN_RUN: Final = 100


class Remainder(msgspec.Struct):
    """Tasks of an array that are queued or held, and that no cluster or request has singled out.

    They agree in all but their indices. A queued remainder is represented by its head: the queued
    task before it in the array. All wait as it does: behind a gate, or for a cluster with room.
    """

    job: Job
    runs: list[IndexRun]  # ascending and disjoint, never empty
    priority: int
    queue_key: float  # order of queued tasks: see `SchedulerState.queue_key`
    held: bool = False  # HELD, else QUEUED
    reason: str = ""  # as of its head
    classified_priority: int = 0  # `priority` before the limit of the current policy

    def __post_init__(self) -> None:
        self.classified_priority = self.classified_priority or self.priority

    def __len__(self) -> int:
        return sum(map(run_length, self.runs))

    def __contains__(self, index: int) -> bool:
        return any(index in range_of(run) for run in self.runs)

    @property
    def state(self) -> State:
        return State.HELD if self.held else State.QUEUED

    @property
    def first(self) -> int:
        """Its lowest index."""
        return self.runs[0][0]

    def members(self, indices: Sequence[int]) -> Iterator[range]:
        """Yield its tasks among `indices`, which are ascending."""
        if not indices:
            return
        for run in self.runs:
            own = range_of(run)
            near = indices[bisect_left(indices, own[0]) : bisect_right(indices, own[-1])]
            if isinstance(near, range) and near and near.step == own.step and near[0] in own:
                yield near
            else:
                yield from map(range_of, runs_of(index for index in near if index in own))

    def remove(self, indices: Iterable[int]) -> None:
        """Remove tasks by index; `indices` are ascending and in the remainder."""
        remaining: list[IndexRun] = []
        removed = iter(indices)
        index = next(removed, None)
        for first, last, step in self.runs:
            while index is not None and index <= last:
                if index > first:
                    remaining.append((first, index - step, step))
                first = index + step
                index = next(removed, None)
            if first <= last:
                remaining.append((first, last, step))
        if len(remaining) > 2 * MAX_RUNS:  # every second index may be a run
            remaining = list(runs_of(index for run in remaining for index in range_of(run)))
        self.runs = remaining

    def keep_longest(self) -> list[IndexRun]:
        """Remove all but the `MAX_RUNS` longest runs; return the others."""
        by_length = sorted(self.runs, key=run_length, reverse=True)
        self.runs = sorted(by_length[:MAX_RUNS])
        return by_length[MAX_RUNS:]


class RemainderPart(NamedTuple):
    """Tasks of a remainder."""

    remainder: Remainder
    runs: list[IndexRun]


def range_of(run: IndexRun) -> range:
    """Return the indices of a run."""
    first, last, step = run
    return range(first, last + 1, step)


def run_length(run: IndexRun) -> int:
    """Return the number of indices of a run."""
    first, last, step = run
    return (last - first) // step + 1


def runs_of(indices: Iterable[int]) -> Iterator[IndexRun]:
    """Yield the runs of ascending indices, each as long as possible."""
    ascending = iter(indices)
    first = next(ascending, None)
    if first is None:
        return
    last, step = first, 0  # step 0: the run has a single index so far
    for index in ascending:
        if step in (0, index - last):
            last, step = index, index - last
            continue
        yield first, last, step
        first, last, step = index, index, 0
    yield first, last, step or 1
