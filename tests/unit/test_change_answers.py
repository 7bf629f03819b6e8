"""Answers to requests that change many tasks: the lines, and the memory that they take."""

from __future__ import annotations

import asyncio
import tracemalloc
import weakref
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from fastapi.responses import StreamingResponse
from hypothesis import given
from hypothesis import strategies as st

from metasched.api.change_answers import GROUP_SIZE, ChangedStates, change_answer
from metasched.api.selection import SelectedTasks
from metasched.client.changes import unfold
from metasched.core.events import Outcome
from metasched.core.scheduler import Core
from metasched.core.tasks import TaskChange
from metasched.core.transitions import TaskEvent
from metasched.model.job import State

JOBS, TASKS = 20, 1_000


class WatchedOutcome(Outcome):
    """An outcome to which there may be weak references."""


def cancelled(job: int, index: int) -> TaskChange:
    """A line of the story of a task that was queued."""
    event, before, after = TaskEvent.CANCEL, State.QUEUED, State.CANCELLED
    return TaskChange(job, index, 0, event, before, after, None, "", "cancelled by ada")


def selected_task(job: int, index: int) -> SelectedTasks:
    return SelectedTasks(job, "1-1000", range(index, index + 1), State.QUEUED, False, "ada")


def answer(selected: Sequence[SelectedTasks], changed: ChangedStates) -> list[bytes]:
    """Return the parts of the answer."""

    async def parts() -> list[bytes]:
        response = await change_answer(Core(), selected, [""] * len(selected), changed)
        assert isinstance(response, StreamingResponse)
        body: AsyncIterator[Any] = response.body_iterator  # type: ignore[assignment]
        return [part async for part in body]

    return asyncio.run(parts())


def test_a_line_for_each_task_by_job_and_index() -> None:
    outcome = Outcome(changes=[cancelled(2, 3)], cancelled_runs=[(2, (4, 9, 1))])
    selected = [
        selected_task(1, 5),
        selected_task(2, 3),
        SelectedTasks(2, "1-9", range(4, 10), State.QUEUED, True, "ada"),
        SelectedTasks(7, None, range(1), State.RUNNING, False, "ada"),
    ]
    rows = msgspec.json.decode(b"".join(answer(selected, ChangedStates([outcome]))))["jobs"]
    assert [(row["job"], row["task"], row["state"]) for row in rows] == [
        (1, 5, "queued"),
        *((2, index, "cancelled") for index in range(3, 10)),
        (7, None, "running"),
    ]


def test_a_row_for_equal_tasks_of_a_job() -> None:
    outcome = Outcome(changes=[cancelled(2, 3)], cancelled_runs=[(2, (4, 9, 1)), (2, (11, 19, 2))])
    selected = [
        SelectedTasks(1, None, range(1), State.QUEUED, False, "ada"),
        *(selected_task(2, index) for index in (1, 3, 21)),
        SelectedTasks(2, "1-29", range(4, 10), State.QUEUED, True, "ada"),
        SelectedTasks(2, "1-29", range(11, 20, 2), State.QUEUED, True, "ada"),
    ]
    notes = ["", "it has ended", *[""] * 4]
    changed = ChangedStates([outcome])
    response = asyncio.run(change_answer(Core(), selected, notes, changed, fold=True))
    rows = msgspec.json.decode(response.body)["folded"]
    assert [tuple(row.values()) for row in rows] == [
        (1, None, 1, "queued", "queued", ""),
        (2, "1", 1, "queued", "queued", "it has ended"),
        (2, "3-9,11-19:2", 12, "queued", "cancelled", ""),
        (2, "21", 1, "queued", "queued", ""),
    ]


@given(st.lists(st.sampled_from(["queued", "held", "running"]), min_size=1, max_size=40))
def test_folded_rows_are_unfolded_to_those_of_each_task(states: list[str]) -> None:
    selected = [
        SelectedTasks(1, "1-40", range(index, index + 1), State(state), False, "ada")
        for index, state in enumerate(states)
    ]
    rows = msgspec.json.decode(b"".join(answer(selected, ChangedStates())))["jobs"]
    response = asyncio.run(
        change_answer(Core(), selected, [""] * len(selected), ChangedStates(), fold=True)
    )
    folded = msgspec.json.decode(response.body)["folded"]
    assert len(folded) == len(set(states))
    assert unfold(folded) == rows


def test_the_steps_of_a_request_are_not_kept() -> None:
    """They hold each task, its attempts and the lines of its story."""
    changed, outcome = ChangedStates(), WatchedOutcome(changes=[cancelled(2, 3)])
    reference = weakref.ref(outcome)
    changed.add([outcome])
    del outcome
    assert reference() is None


def test_an_answer_takes_the_memory_of_its_text() -> None:
    selected = [selected_task(job, index) for job in range(JOBS) for index in range(TASKS)]
    changed = ChangedStates([Outcome(changes=[cancelled(t.job, t.indices[0]) for t in selected])])
    answer(selected[:1], changed)  # what is imported once
    tracemalloc.start()
    try:
        parts = answer(selected, changed)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    length = sum(map(len, parts))
    assert most < length + 4 * GROUP_SIZE + 500 * TASKS  # and the lines of a job
    assert length > 4 * GROUP_SIZE
