"""Passes over groups of tasks that wait: none is examined twice, none without end, none whole."""

from __future__ import annotations

import pytest

from metasched.core.events import (
    ClusterDrained,
    ClusterResumed,
    DispatchAccepted,
    JobSubmitted,
    ListingReceived,
    TimerExpired,
)
from metasched.model.job import State
from metasched.model.licence import LicencePool
from metasched.model.limits import LimitSettings, LimitTable
from metasched.model.listing import JobStatus
from metasched.model.tags import tag_of
from tests.unit.core_site import NOW, Site, facts, job

SINGLE = 10**9  # more tasks than an array may have: none is stored as a range


def waiting_at_limit(running: int, tasks: int, **values: object) -> Site:
    """A site whose tasks waited for drained clusters, and wait for a limit now."""
    limits = LimitSettings(each_user=LimitTable(running=running))
    site = Site(limits=limits, remainder_minimum=SINGLE, **values)  # type: ignore[arg-type]
    for cluster in ("left", "right"):
        site.step(ClusterDrained(NOW, cluster))
    site.step(JobSubmitted(NOW, job(1, user="ada", array=f"0-{tasks - 1}")))
    for _ in range(4):
        site.step(TimerExpired(NOW))
    site.step(ClusterResumed(NOW + 1, "left"))
    return site


@pytest.mark.parametrize("ended", [1, 2])
def test_a_task_of_a_group_that_leaves_its_limit_starts_once(ended: int) -> None:
    """The reasons of the others were not updated yet, so the group was examined for these, too."""
    site = waiting_at_limit(2, 1_500)
    [attempt] = {t.attempt.dispatch_id for t in site.core.tasks.values() if t.attempt}
    site.step(DispatchAccepted(NOW + 1, 1, attempt, {0: "7", 1: "8"}))
    tag = tag_of("cafe", 1, attempt)
    rows = [
        JobStatus(tag, i, str(7 + i), State.COMPLETED, started=NOW + 1, ended=NOW + 1.5)
        for i in range(ended)
    ]
    rows += [JobStatus(tag, i, str(7 + i), State.RUNNING, started=NOW + 1) for i in range(ended, 2)]
    site.step(
        ListingReceived(NOW + 2, "left", tuple(rows), info=facts(8), since=0.0, until=NOW + 1)
    )
    live = {task.index for task in site.core.tasks.values() if task.attempt}
    assert live == set(range(ended, 2)) | set(range(2, 2 + ended))
    waiting = site.core._gates.ineligible
    assert not [index for index in live if (1, index) in waiting]


def test_late_binding_ends_its_work_on_groups_at_a_limit() -> None:
    site = waiting_at_limit(1, 700, send="late")
    for _ in range(4):
        site.step(TimerExpired(NOW + 2))
    assert site.core.next_due is None
    assert {task.reason for task in site.core.tasks.values() if not task.attempt} == {"limit_user"}


def test_a_range_that_waits_for_a_licence_is_not_split_whole_in_a_step() -> None:
    site = Site(queue_depth=2, pools=(LicencePool(name="m", total=1),), pull=False)
    site.seen("left", facts(8, 0))
    site.seen("right", facts(4, 0))
    for number in range(1, 5):  # they fill the places
        site.step(JobSubmitted(NOW, job(number, user="bob")))
    array = job(10, user="ada", array="0-19999", licences={"m": 1})
    site.step(JobSubmitted(NOW, array))
    [first, *_] = [task for task in site.core.tasks.values() if task.attempt]
    assert first.attempt is not None
    cluster, dispatch = first.attempt.cluster, first.attempt.dispatch_id
    site.step(DispatchAccepted(NOW, first.job.id, dispatch, {0: "1"}))
    tag = tag_of("cafe", first.job.id, dispatch)
    row = JobStatus(tag, 0, "1", State.RUNNING, started=NOW + 1)
    site.step(ListingReceived(NOW + 1, cluster, (row,), info=facts(8, 0), since=0.0, until=NOW - 1))
    assert len(site.core.tasks) < 1_000
