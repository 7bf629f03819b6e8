"""Remainders of arrays: tasks that wait untouched, as runs of indices. Pure.

mypyc does not compile this module: checkpoints of the database decode remainders by their
annotations.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from metasched.model.job import Job, State

IndexRun = tuple[int, int, int]  # first index, last index, step
# by first index: the run that begins there now; None: none does any more
RunChanges = dict[int, IndexRun | None]

REMAINDER_MINIMUM: Final = 1_000  # tasks of an array; smaller arrays have none
# of a remainder: a story line is stored for each of them. Of more runs those of fewer than
# `SHORT_RUN` tasks become single: a request that names n tasks makes at most `SHORT_RUN` * n single
MAX_RUNS: Final = 1_024
SHORT_RUN: Final = 16  # tasks
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
        position = self._position_of(index)
        return position >= 0 and index in range_of(self.runs[position])

    @property
    def state(self) -> State:
        return State.HELD if self.held else State.QUEUED

    @property
    def first(self) -> int:
        """Its lowest index."""
        return self.runs[0][0]

    def _position_of(self, index: int) -> int:
        """Return the position of the last run that begins at or before an index, or -1."""
        return bisect_right(self.runs, index, key=_FIRST) - 1

    def members(self, indices: Sequence[int]) -> Iterator[range]:
        """Yield its tasks among `indices`, which are ascending."""
        if not indices:
            return
        for position in range(max(self._position_of(indices[0]), 0), len(self.runs)):
            own = range_of(self.runs[position])
            if own[0] > indices[-1]:
                return
            near = indices[bisect_left(indices, own[0]) : bisect_right(indices, own[-1])]
            if isinstance(near, range) and near and near.step == own.step and near[0] in own:
                yield near
            else:
                yield from map(range_of, runs_of(index for index in near if index in own))

    def remove(self, indices: Iterable[int]) -> RunChanges:
        """Remove tasks by index; `indices` are ascending and in the remainder.

        O(log runs) for each run that changes, but for the copy of the list.
        """
        changes: RunChanges = {}
        runs, remaining, position = self.runs, list[IndexRun](), 0
        removed = iter(indices)
        index = next(removed, None)
        while index is not None:
            changed = self._position_of(index)
            first, last, step = runs[changed]
            remaining += runs[position:changed]
            position = changed + 1
            changes[first] = None
            pieces = list[IndexRun]()
            while index is not None and index <= last:
                if index > first:
                    pieces.append((first, index - step, step))
                first = index + step
                index = next(removed, None)
            if first <= last:
                pieces.append((first, last, step))
            pieces = joined(pieces)
            remaining += pieces
            changes.update((piece[0], piece) for piece in pieces)
        self.runs = remaining + runs[position:]
        return changes

    def drop_short_runs(self) -> tuple[list[IndexRun], RunChanges]:
        """Remove the shortest runs above `MAX_RUNS`, but none of `SHORT_RUN` tasks; return them."""
        before, runs = self.runs, joined(self.runs)
        short = [run for run in runs if run_length(run) < SHORT_RUN]
        short.sort(key=run_length)
        dropped = short[: max(len(runs) - MAX_RUNS, 0)]
        self.runs = sorted(set(runs).difference(dropped))
        changes: RunChanges = dict.fromkeys(map(_FIRST, set(before).difference(self.runs)))
        changes.update((run[0], run) for run in set(self.runs).difference(before))
        return dropped, changes


class RemainderPart(NamedTuple):
    """Tasks of a remainder."""

    remainder: Remainder
    runs: list[IndexRun]


_FIRST = itemgetter(0)  # index of a run


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


def common_indices(own: range, indices: Sequence[int]) -> list[int]:
    """Return those of ascending indices that are in a range; O(log n) if none is near it."""
    near = indices[bisect_left(indices, own[0]) : bisect_right(indices, own[-1])]
    return [index for index in near if index in own]


def joined(runs: Iterable[IndexRun]) -> list[IndexRun]:
    """Return ascending runs; join runs that continue each other."""
    joined_runs: list[IndexRun] = []
    for first, last, step in runs:
        if joined_runs:
            first_before, last_before, step_before = joined_runs[-1]
            gap = first - last_before
            continues = first_before == last_before or step_before == gap
            if continues and (first == last or step == gap):
                joined_runs[-1] = first_before, last, gap
                continue
        joined_runs.append((first, last, step))
    return joined_runs


def in_index_order(runs: Iterable[tuple[int, range]]) -> Iterator[tuple[int, range]]:
    """Yield the position and indices of runs (job, indices) by job and index, each task once.

    Runs are cut where others lie within; none is empty. A task in several is that of the first.
    """
    heap = [(job, indices[0], position, indices) for position, (job, indices) in enumerate(runs)]
    heapify(heap)
    previous: tuple[int, int] | None = None
    while heap:
        job, first, position, indices = heappop(heap)
        if (job, first) == previous:
            rest = indices[1:]
        else:
            end = len(indices)
            if heap and heap[0][0] == job:
                end = max(bisect_left(indices, heap[0][1]), 1)
            previous = job, indices[end - 1]
            yield position, indices[:end]
            rest = indices[end:]
        if rest:
            heappush(heap, (job, rest[0], position, rest))
