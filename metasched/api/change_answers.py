"""Answers to requests that change jobs: a line for each task, or for equal tasks of a job.

Lines that differ in the index alone are encoded together, a portion at a time. The text stays in
memory until it is sent, since clients need its length.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from operator import attrgetter
from typing import NamedTuple

import msgspec
from fastapi.responses import Response, StreamingResponse

from metasched.api.selection import SelectedTasks
from metasched.client.job_answers import ChangedTask, FoldedChange
from metasched.core.array_remainder import common_indices, in_index_order
from metasched.core.events import Outcome
from metasched.core.scheduler import Core
from metasched.model.arrays import FoldedIndices
from metasched.model.job import State

PORTION = 10_000  # tasks; other requests are served in between
GROUP_SIZE = 1 << 18  # bytes sent at a time, at least
LINE_COST = 50  # tasks of a portion that encoding a line counts as
_TASK_0 = b'"task":0'
_START = attrgetter("start")  # of a range


@dataclass(frozen=True, slots=True)
class _Lines:
    """Tasks of a job whose lines differ in the index alone."""

    tasks: SelectedTasks
    indices: range  # never empty
    state: State  # after the request
    note: str

    def encode(self) -> bytes:
        """Return the lines with commas between them."""
        index = None if self.tasks.array is None else 0
        line = msgspec.json.encode(
            ChangedTask(
                job=self.tasks.job,
                task=index,
                was=self.tasks.state,
                state=self.state,
                note=self.note,
            )
        )
        if index is None:
            return line
        head, _, tail = line.partition(_TASK_0)
        head += b'"task":'
        between = (tail + b"," + head).decode()
        return head + between.join(map(str, self.indices)).encode() + tail


class ChangedStates:
    """The states of tasks after the steps of a request, which are not kept themselves."""

    def __init__(self, outcomes: Iterable[Outcome] = ()) -> None:
        self.single: defaultdict[int, dict[int, State]] = defaultdict(dict)  # by job and index
        self.cancelled: defaultdict[int, list[range]] = defaultdict(list)  # runs, by job
        self.add(outcomes)

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Add the steps that follow."""
        for outcome in outcomes:
            for change in outcome.changes:
                if change.run_last is None:
                    self.single[change.job][change.index] = change.after
            for job_id, (first, last, step) in outcome.cancelled_runs:
                self.cancelled[job_id].append(range(first, last + 1, step))


class AppliedChange(NamedTuple):
    """The changes of a request: the selected tasks by job, with a note each."""

    selected: Sequence[SelectedTasks]
    notes: Sequence[str]
    changed: ChangedStates


class ChangeCount(NamedTuple):
    """How many tasks a request took from a state to another, or left there, for a reason."""

    before: State
    after: State
    note: str
    tasks: int


class _Ranges:
    """Whether an index is in any of thousands of ranges: O(log n) if few of them overlap."""

    def __init__(self, ranges: Iterable[range]) -> None:
        self._ranges = sorted(ranges, key=_START)
        # last index of each and of all before it
        self._lasts = list(accumulate((own[-1] for own in self._ranges), max))

    def __contains__(self, index: int) -> bool:
        position = bisect_right(self._ranges, index, key=_START) - 1
        while position >= 0 and self._lasts[position] >= index:
            if index in self._ranges[position]:
                return True
            position -= 1
        return False


async def change_answer(
    core: Core,
    selected: Sequence[SelectedTasks],
    notes: Sequence[str],
    changed: ChangedStates,
    fold: bool = False,
) -> Response:
    """Return the state before and after a change, with a note, for each task.

    `selected` are by job, with a note each. `fold`: equal tasks of a job share a line.
    """
    if fold:
        rows = [row async for row in _folded(core, selected, notes, changed)]
        return Response(msgspec.json.encode({"folded": rows}), media_type="application/json")
    groups, group, cost = list[bytes](), bytearray(b'{"jobs":['), 0
    separator = b""
    for lines in _all_lines(core, selected, notes, changed):
        for first in range(0, len(lines.indices), PORTION):
            portion = lines.indices[first : first + PORTION]
            group += separator + replace(lines, indices=portion).encode()
            separator = b","
            if len(group) >= GROUP_SIZE:
                groups.append(bytes(group))
                group.clear()
            cost += LINE_COST + len(portion)
            if cost >= PORTION:
                cost = 0
                await asyncio.sleep(0)
    groups.append(bytes(group + b"]}"))
    length = {"Content-Length": str(sum(map(len, groups)))}
    return StreamingResponse(_each(groups), headers=length, media_type="application/json")


async def count_changes(
    core: Core, selected: Sequence[SelectedTasks], notes: Sequence[str], changed: ChangedStates
) -> list[ChangeCount]:
    """Return the changes of `change_answer` in short: equal changes are counted."""
    counts: Counter[tuple[State, State, str]] = Counter()
    for position, lines in enumerate(_all_lines(core, selected, notes, changed)):
        counts[lines.tasks.state, lines.state, lines.note] += len(lines.indices)
        if position % (PORTION // LINE_COST) == 0:
            await asyncio.sleep(0)
    return [ChangeCount(*change, tasks) for change, tasks in counts.items()]


async def _folded(
    core: Core, selected: Sequence[SelectedTasks], notes: Sequence[str], changed: ChangedStates
) -> AsyncIterator[FoldedChange]:
    """Yield the changes of `change_answer` by job; equal changes share a row, in order of tasks."""
    lines_read = 0
    all_lines = _all_lines(core, selected, notes, changed)
    for job_id, of_job in groupby(all_lines, key=lambda lines: lines.tasks.job):
        equal: dict[tuple[State, State, str], FoldedIndices] = {}
        is_array = False
        for lines in of_job:
            change = lines.tasks.state, lines.state, lines.note
            equal.setdefault(change, FoldedIndices()).add(lines.indices)
            is_array = lines.tasks.array is not None
            lines_read += 1
            if lines_read % (PORTION // LINE_COST) == 0:
                await asyncio.sleep(0)
        for (before, after, note), indices in equal.items():
            tasks = str(indices) if is_array else None
            yield FoldedChange(
                job=job_id, tasks=tasks, count=indices.count, was=before, state=after, note=note
            )


async def _each(groups: Iterable[bytes]) -> AsyncIterator[bytes]:
    for group in groups:
        yield group


def _all_lines(
    core: Core, selected: Sequence[SelectedTasks], notes: Sequence[str], changed: ChangedStates
) -> Iterator[_Lines]:
    """Yield the lines of selected tasks in order, those of each task once."""
    with_notes = zip(selected, notes, strict=True)
    for _, of_job in groupby(with_notes, key=lambda pair: pair[0].job):
        lines = list(_lines_of_job(core, of_job, changed))
        for position, indices in in_index_order((each.tasks.job, each.indices) for each in lines):
            yield replace(lines[position], indices=indices)


def _lines_of_job(
    core: Core, selected: Iterable[tuple[SelectedTasks, str]], changed: ChangedStates
) -> Iterator[_Lines]:
    """Yield the lines of selected tasks of a job, those of each task once, in no order.

    O(n log n) in its runs and single tasks.
    """
    single: dict[int, State] | None = None  # states by index, once there is a run
    ordered, cancelled = list[int](), _Ranges(())  # indices of `single`; runs
    for tasks, note in selected:
        present, after = core.open_tasks.get(tasks.job, {}), changed.single.get(tasks.job, {})
        state = tasks.state
        if not tasks.is_run:
            index = tasks.indices[0]
            state = after.get(index, state)
            state = present[index].state if index in present else state
            yield _Lines(tasks, tasks.indices, state, note)
            continue
        if single is None:
            single = after | {index: task.state for index, task in present.items()}
            ordered, cancelled = sorted(single), _Ranges(changed.cancelled.get(tasks.job, ()))
        if tasks.indices[0] in cancelled:
            state = State.CANCELLED
        elif (remainder := core.remainders.get(tasks.job)) is not None:
            state = remainder.state
        rest = tasks.indices
        for index in common_indices(tasks.indices, ordered):
            position = rest.index(index)
            if position:
                yield _Lines(tasks, rest[:position], state, note)
            yield _Lines(tasks, rest[position : position + 1], single[index], note)
            rest = rest[position + 1 :]
        if rest:
            yield _Lines(tasks, rest, state, note)
