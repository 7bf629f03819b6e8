"""Answers to requests that change jobs: a line for each task, as many as an array has.

Lines that differ in the index alone are encoded together, a portion at a time. The text stays in
memory until it is sent, since clients need its length.
"""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
from fastapi.responses import Response, StreamingResponse

from metasched.api.answers import ChangedTask
from metasched.api.selection import SelectedTasks
from metasched.core.events import Outcome
from metasched.core.scheduler import Core
from metasched.model.job import State

PORTION = 10_000  # tasks; other requests are served in between
GROUP_SIZE = 1 << 18  # bytes sent at a time
LINE_COST = 50  # tasks of a portion that encoding a line counts as
_TASK_0 = b'"task":0'


@dataclass(frozen=True, slots=True)
class _Lines:
    """Tasks of a job whose lines differ in the index alone."""

    tasks: SelectedTasks
    indices: range  # at least one
    state: State  # after the request
    note: str

    def __lt__(self, other: _Lines) -> bool:
        return (self.tasks.job, self.indices[0]) < (other.tasks.job, other.indices[0])

    def encode(self) -> bytes:
        """Return the lines with commas between them."""
        index = None if self.tasks.array is None else 0
        line = msgspec.json.encode(
            ChangedTask(self.tasks.job, index, self.tasks.state, self.state, self.note)
        )
        if index is None:
            return line
        head, _, tail = line.partition(_TASK_0)
        head += b'"task":'
        between = (tail + b"," + head).decode()
        return head + between.join(map(str, self.indices)).encode() + tail


async def change_answer(
    core: Core,
    selected: Sequence[SelectedTasks],
    notes: Sequence[str],
    outcomes: Sequence[Outcome],
) -> Response:
    """Return the state before and after a change, with a note, for each task."""
    parts, cost = [b'{"jobs":['], 0
    for lines in _in_order(_all_lines(core, selected, notes, outcomes)):
        for first in range(0, len(lines.indices), PORTION):
            portion = lines.indices[first : first + PORTION]
            parts += [replace(lines, indices=portion).encode(), b","]
            cost += LINE_COST + len(portion)
            if cost >= PORTION:
                cost = 0
                await asyncio.sleep(0)
    if len(parts) > 1:
        parts.pop()
    parts.append(b"]}")
    length = {"Content-Length": str(sum(map(len, parts)))}
    return StreamingResponse(_grouped(parts), headers=length, media_type="application/json")


async def _grouped(parts: Sequence[bytes]) -> AsyncIterator[bytes]:
    """Yield the parts of an answer, short ones together."""
    group: list[bytes] = []
    size = 0
    for part in parts:
        group.append(part)
        size += len(part)
        if size >= GROUP_SIZE:
            yield b"".join(group)
            group, size = [], 0
    yield b"".join(group)


def _all_lines(
    core: Core,
    selected: Sequence[SelectedTasks],
    notes: Sequence[str],
    outcomes: Sequence[Outcome],
) -> Iterator[_Lines]:
    """Yield the lines of selected tasks, those of each task once, in no order."""
    after: defaultdict[int, dict[int, State]] = defaultdict(dict)  # of changed tasks, by job
    cancelled: defaultdict[int, list[range]] = defaultdict(list)  # by job
    for outcome in outcomes:
        for change in outcome.changes:
            if change.run_last is None:
                after[change.job][change.index] = change.after
        for job_id, (first, last, step) in outcome.cancelled_runs:
            cancelled[job_id].append(range(first, last + 1, step))
    for tasks, note in zip(selected, notes, strict=True):
        present = core.open_tasks.get(tasks.job, {})
        state = tasks.state
        if not tasks.is_run:
            index = tasks.indices[0]
            state = after[tasks.job].get(index, state)
            state = present[index].state if index in present else state
            yield _Lines(tasks, tasks.indices, state, note)
            continue
        if any(tasks.indices[0] in run for run in cancelled[tasks.job]):
            state = State.CANCELLED
        elif (remainder := core.remainders.get(tasks.job)) is not None:
            state = remainder.state
        single = after[tasks.job] | {index: task.state for index, task in present.items()}
        rest = tasks.indices
        for index in sorted(index for index in single if index in tasks.indices):
            position = rest.index(index)
            if position:
                yield _Lines(tasks, rest[:position], state, note)
            yield _Lines(tasks, rest[position : position + 1], single[index], note)
            rest = rest[position + 1 :]
        if rest:
            yield _Lines(tasks, rest, state, note)


def _in_order(all_lines: Iterable[_Lines]) -> Iterator[_Lines]:
    """Yield lines by job and index; where they overlap, they are cut."""
    heap = list(all_lines)
    heapq.heapify(heap)
    while heap:
        lines = heapq.heappop(heap)
        if heap and heap[0].tasks.job == lines.tasks.job:
            next_index = heap[0].indices[0]
            if lines.indices[-1] > next_index:
                position = bisect_left(lines.indices, next_index)
                heapq.heappush(heap, replace(lines, indices=lines.indices[position:]))
                lines = replace(lines, indices=lines.indices[:position])
        yield lines
