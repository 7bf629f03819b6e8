"""Arrays that wait for clusters with room stay remainders."""

from __future__ import annotations

from collections import Counter

import pytest

from metasched.core.events import (
    ClusterDrained,
    ClusterResumed,
    Dispatch,
    JobSubmitted,
    TimerExpired,
)
from metasched.core.gates import MAX_RELEASED_PER_STEP
from metasched.core.transitions import LIVE
from metasched.model.job import Reason, State
from tests.unit.core_site import NOW, Site, job

DEPTH = 10  # tasks of a user that may wait in a cluster's queue
SIZE = 5_000  # tasks


@pytest.mark.parametrize("limit", ["", f"%{MAX_RELEASED_PER_STEP + 1}", f"%{SIZE}"])
def test_a_released_array_has_few_tasks_while_clusters_are_full(limit: str) -> None:
    site = Site(queue_depth=DEPTH)
    dispatches = site.step(JobSubmitted(NOW, job(1, array=f"1-{SIZE}{limit}")))
    assert all(isinstance(dispatch, Dispatch) for dispatch in dispatches)
    assert len(site.core.tasks) == 2 * DEPTH + 1  # the last waits for all others
    assert sum(task.state in LIVE for task in site.core.tasks.values()) == 2 * DEPTH
    assert site.core.count_open(1) == SIZE
    waiting = site.core.find_task((1, SIZE))
    assert waiting is not None
    assert (waiting.state, waiting.reason) == (State.QUEUED, Reason.PRIORITY)
    assert site.core.next_due is None  # nothing is left to release


def test_the_reason_of_a_waiting_array_is_one_line_of_its_story() -> None:
    site = Site(queue_depth=DEPTH)
    for name in ("left", "right"):
        site.step(ClusterDrained(NOW, name, "op", "new kernel", False))
    site.step(JobSubmitted(NOW, job(1, array=f"1-{SIZE}")))
    lines = [(line.index, line.run_last, line.reason) for line in site.out.changes]
    drained = Reason.CLUSTER_DRAINED
    assert lines == [(1, None, ""), (2, SIZE, ""), (1, None, drained), (2, SIZE, drained)]


def test_a_resumed_cluster_gets_tasks_of_a_waiting_array_in_the_same_step() -> None:
    site = Site(queue_depth=DEPTH)
    for name in ("left", "right"):
        site.step(ClusterDrained(NOW, name, "op", "new kernel", False))
    site.step(JobSubmitted(NOW, job(1, array=f"1-{SIZE}")))
    [dispatch] = site.step(ClusterResumed(NOW, "left", "op"))
    assert dispatch == Dispatch(1, 1, "left", tuple(range(1, DEPTH + 1)))


def test_single_tasks_of_another_user_leave_a_large_array_its_turns() -> None:
    """The single tasks alone fill the portion of a step."""
    site = Site(queue_depth=100)
    later = NOW + 10
    for id, user, size in ((1, "a", SIZE), (2, "b", 2 * MAX_RELEASED_PER_STEP)):
        site.step(JobSubmitted(NOW, job(id, user=user, array=f"1-{size}", begin=later)))
    places = Counter[int]()
    for dispatch in site.step(TimerExpired(later)):
        assert isinstance(dispatch, Dispatch)
        places[dispatch.job] += len(dispatch.indices)
    assert places.total() == 200
    assert abs(places[1] - places[2]) <= 2
