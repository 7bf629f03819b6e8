"""Requests that change many tasks are applied in portions, between which others are served."""

from __future__ import annotations

import pytest

from metasched.api.changes import PORTION, _portions
from metasched.api.selection import SelectedTasks
from metasched.core.events import JobSubmitted, UserAction
from metasched.model.job import State
from tests.unit.core_site import NOW, Site, job

SIZE = 10_000


def run_of(indices: range, job: int = 1) -> SelectedTasks:
    return SelectedTasks(job, f"1-{SIZE}", indices, State.HELD, True, "ada")


def held_array() -> Site:
    site = Site()
    site.step(JobSubmitted(NOW, job(1, array=f"1-{SIZE}", held=True)))
    return site


@pytest.mark.parametrize("action", ["hold", "release"])
def test_a_part_of_a_range_becomes_single_tasks_in_portions(action: UserAction) -> None:
    every_second = run_of(range(2, SIZE + 1, 2))
    portions = list(_portions(held_array().core, action, [every_second]))
    pieces = [tasks.indices for portion in portions for part in portion for tasks in part]
    assert [index for piece in pieces for index in piece] == list(every_second.indices)
    for portion in portions:
        assert sum(len(tasks.indices) for part in portion for tasks in part) <= PORTION


@pytest.mark.parametrize("action", ["hold", "release", "cancel"])
def test_a_whole_range_counts_as_one_task(action: UserAction) -> None:
    [[[tasks]]] = _portions(held_array().core, action, [run_of(range(1, SIZE + 1))])
    assert len(tasks.indices) == SIZE


def test_a_cancelled_part_of_a_range_stays_a_range() -> None:
    [[[tasks]]] = _portions(held_array().core, "cancel", [run_of(range(2, SIZE + 1, 2))])
    assert len(tasks.indices) == SIZE // 2


def test_single_tasks_of_several_jobs_fill_a_portion() -> None:
    selected = [
        SelectedTasks(id, None, range(1), State.QUEUED, False, "ada") for id in range(PORTION + 1)
    ]
    first, second = _portions(Site().core, "cancel", selected)
    assert (len(first), len(second)) == (PORTION, 1)
