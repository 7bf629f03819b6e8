"""The snapshot from which starts are forecast: jobs of others, and tasks that wait in metasched."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec import structs

from metasched.core.events import (
    ClusterUnreachable,
    DispatchAccepted,
    DispatchStarted,
    JobSubmitted,
)
from metasched.core.forecast_state import FOREIGN, TOO_MANY_QUEUED, ForecastState, forecast_state
from metasched.core.tasks import TaskId
from metasched.forecast.estimates import estimate_starts
from metasched.forecast.run_times import RunTimeModel
from metasched.forecast.snapshot import RunningTask
from metasched.model.job import Job, State
from metasched.model.licence import LicencePool
from metasched.model.listing import ListedQueue, PendingJob, StartedJob
from metasched.model.reservation import Reservation, ReservationState
from metasched.policies.local.orders import EASY
from tests.unit.core_site import NOW, Site, facts, job

POLICIES = {"left": EASY, "right": EASY}


def state_of(site: Site, queue: ListedQueue | None = None) -> ForecastState:
    """The state, if left lists this queue."""
    return forecast_state(site.core, POLICIES, {"left": queue} if queue else {}, NOW)


def medians(state: ForecastState) -> dict[TaskId, float]:
    """The start of each task in seconds from now, if all jobs run until their limits."""
    model = RunTimeModel()
    for _ in range(5):
        model.add("", "", 100.0, 100.0)
    estimates = estimate_starts(state.snapshot, model, 1, draws=1)
    assert estimates is not None
    return {
        task_id: start.median - NOW
        for ids, starts in zip(state.tasks, estimates.tasks, strict=True)
        for task_id, start in zip(ids, starts, strict=False)
    }


# Jobs of others


def pending_on_left(*numbers: int) -> Site:
    """These jobs, of 8 processors, are pending on left beside a job of others that uses them all.

    Their ids at the manager are their numbers.
    """
    site = Site(pull=False)
    for number in numbers:
        site.step(JobSubmitted(NOW, job(number, cpus=8)))
        site.sent(number, native=str(number))
    rows = [
        structs.replace(site.row(State.PENDING, number), native_id=str(number))
        for number in numbers
    ]
    site.seen("left", facts(8, 0, running_jobs=((NOW + 50, 8),), pending_jobs=9), *rows)
    return site


def test_tasks_have_their_place_among_jobs_of_others() -> None:
    site = pending_on_left(1, 2)
    queue = ListedQueue(
        (
            PendingJob("2", 8, 100.0),
            PendingJob("", 4, 60.0, tasks=3, owner="1001"),
            PendingJob("1", 8, 100.0),
        )
    )
    assert state_of(site).unknown == {"left": FOREIGN}
    state = state_of(site, queue)
    assert state.unknown == {}
    assert state.tasks == (((2, 0),), (), ((1, 0),))
    foreign = state.snapshot.waiting[1]
    assert (foreign.cpus, foreign.limits, foreign.tasks) == (4, {0: 60.0}, 3)
    assert foreign.user == "#1001"  # never the name of a user of ours
    # 2 runs in 50..150, then two of the three at a time
    assert medians(state) == {(2, 0): 50, (1, 0): 270}


def test_a_task_that_the_queue_lacks_cannot_start_there() -> None:
    """Such as one above a limit of the manager; without an estimate nobody is misled."""
    site = pending_on_left(1, 2)
    assert state_of(site, ListedQueue((PendingJob("2", 8, 100.0),))).tasks == (((2, 0),),)
    site.step(JobSubmitted(NOW, job(3, cpus=8)))
    site.sent(3, native="3")  # since the listing: it is last
    assert state_of(site, ListedQueue((PendingJob("2", 8, 100.0),))).tasks == (
        ((2, 0),),
        ((3, 0),),
    )
    long = ListedQueue((PendingJob("2", 8, 100.0),), complete=False)
    assert state_of(site, long).tasks == (((2, 0),),)


def test_running_jobs_of_others_have_run_for_a_while() -> None:
    """By now it has used most of its limit: what is left is not drawn anew at each refresh."""
    site = pending_on_left(1)
    queue = ListedQueue((), running=(StartedJob(NOW + 50, 8, 600.0, "1001"),))
    assert state_of(site, queue).snapshot.running == (RunningTask(0, 8, NOW - 550, 600.0, "#1001"),)
    late = ListedQueue((), running=(StartedJob(NOW + 51, 8, 600.0, "1001"),))  # of another listing
    assert state_of(site, late).snapshot.running == (RunningTask(0, 8, NOW, 50.0),)


def test_what_is_being_withdrawn_has_no_place() -> None:
    site = pending_on_left(1, 2)
    site.core.tasks[2, 0].held = True
    queue = ListedQueue((PendingJob("2", 8, 100.0), PendingJob("1", 8, 100.0)))
    assert medians(state_of(site, queue)) == {(1, 0): 50}


def test_an_array_has_one_place() -> None:
    site = Site(pull=False)
    site.step(JobSubmitted(NOW, job(1, cpus=8, array="1-2")))
    for index in (1, 2):
        site.core.tasks[1, index].live_attempt.state = State.PENDING
        site.core.tasks[1, index].live_attempt.native_id = f"7_{index}"
    queue = ListedQueue((PendingJob("", 1, 5.0), PendingJob("7", 8, 100.0, tasks=2)))
    assert state_of(site, queue).tasks == ((), ((1, 1), (1, 2)))


# Tasks that wait in metasched


def queued_site(**settings: object) -> Site:
    """All processors run jobs of others, left for 50 s, right for 70 s; a queue has one place."""
    site = Site(pull=False, queue_depth=1, **settings)  # type: ignore[arg-type]
    site.seen("left", facts(8, 0, running_jobs=((NOW + 50, 8),)))
    site.seen("right", facts(4, 0, running_jobs=((NOW + 70, 4),)))
    return site


def submit(site: Site, *jobs: Job) -> None:
    for submitted in jobs:
        site.step(JobSubmitted(NOW, submitted))


def mark_pending(site: Site) -> None:
    """All dispatched tasks are pending at their managers."""
    for task in site.core.tasks.values():
        if task.attempt is not None:
            task.attempt.state = State.PENDING


def queued_ids(site: Site) -> list[TaskId]:
    return sorted(task_id for task_id, task in site.core.tasks.items() if task.attempt is None)


def test_tasks_without_a_place_start_where_they_can_first() -> None:
    site = queued_site()
    submit(site, *(job(number, cpus=4, user="ann") for number in range(1, 6)))
    mark_pending(site)
    waiting = queued_ids(site)
    assert len(waiting) == 3
    state = state_of(site)
    queued = [entry for entry in state.snapshot.waiting if entry.queued]
    assert [entry.limits for entry in queued] == [{0: 100.0, 1: 100.0}] * 3
    # left starts two tasks after 50 s, of which one was queued; right one after 70 s
    starts = medians(state)
    assert sorted(starts.values()) == [50, 50, 70, 150, 150]
    assert [starts[task_id] for task_id in waiting] == [50, 150, 150]


def test_users_take_turns_in_the_order() -> None:
    """An array of one is no reason for the others to wait for all of it."""
    site = queued_site()
    submit(site, job(1, cpus=8, user="eve"), job(2, cpus=4, user="eve"))  # take the places
    submit(site, job(3, cpus=8, user="ann", array="1-3"), job(4, cpus=8, user="bob"))
    before = structs.asdict(site.core.tasks[4, 0])
    order = list(site.core.preview_order(NOW, site.core.policy.age))
    assert set(order) == {(3, 1), (3, 2), (3, 3), (4, 0)}
    assert order.index((4, 0)) <= 1
    assert order == list(site.core.preview_order(NOW, site.core.policy.age))  # nothing changed
    assert structs.asdict(site.core.tasks[4, 0]) == before


def test_a_remainder_counts_with_all_its_tasks() -> None:
    site = queued_site(remainder_minimum=3)
    submit(site, job(1, cpus=8), job(2, cpus=4))
    submit(site, job(3, cpus=8, array="1-9"))
    mark_pending(site)
    assert len(site.core.remainders[3]) == 8
    state = state_of(site)
    assert ((3, 1), *(((3, index)) for index in range(2, 10))) in state.tasks
    assert medians(state)[3, 9] == 50 + 9 * 100


def test_tasks_of_no_group_are_checked_so_often_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasched.core.forecast_state.MAX_CHECKS", 4)  # of two clusters
    site = Site(pull=False, pools=(LicencePool(name="m", total=1),))
    submit(site, *(job(n, licences={"m": 1}, user="ann") for n in range(1, 6)))
    mark_pending(site)
    assert len(queued_ids(site)) == 4
    queued = [ids for ids in state_of(site).tasks if ids and ids[0] in queued_ids(site)]
    assert queued == [((2, 0),), ((3, 0),)]


def test_the_last_task_of_a_remainder_has_no_others() -> None:
    """It still is the head when the others have been sent one by one."""
    site = queued_site(remainder_minimum=3)
    submit(site, job(1, cpus=8), job(2, cpus=4), job(3, cpus=8, array="1-4"))
    for number, index in ((1, 0), (3, 1), (3, 2)):  # each leaves its place on left to the next
        site.step(DispatchStarted(NOW, number, 1 + max(index - 1, 0)))
        site.step(DispatchAccepted(NOW, number, 1 + max(index - 1, 0), {index: str(number)}))
        ended = site.row(State.COMPLETED, number, 1 + max(index - 1, 0), started=NOW, ended=NOW)
        row = structs.replace(ended, task=index, native_id=str(number), exit_code=0)
        site.seen("left", facts(8, 0, running_jobs=((NOW + 50, 8),)), row)
    assert queued_ids(site) == [(3, 4)]
    assert 3 not in site.core.remainders
    assert [(3, 4)] in map(list, state_of(site).tasks)


def test_licences_count_with_the_leases_of_others() -> None:
    """One token is leased by a running task, one by a pending task; the next waits for both."""
    site = Site(pull=False, pools=(LicencePool(name="m", total=2),))
    submit(site, *(job(n, cpus=1, licences={"m": 1}) for n in (1, 2)))
    submit(site, job(3, cpus=1, licences={"m": 2}), job(4, cpus=1, licences={"m": 1}))
    assert queued_ids(site) == [(3, 0), (4, 0)]
    site.sent(1, site.core.tasks[1, 0].live_attempt.cluster, native="1")
    site.sent(2, site.core.tasks[2, 0].live_attempt.cluster, native="2")
    cluster = site.core.tasks[1, 0].live_attempt.cluster
    other = site.core.tasks[2, 0].live_attempt.cluster
    site.seen(
        cluster,
        facts(8, 7, running_jobs=((NOW + 100, 1),)),
        structs.replace(site.row(State.RUNNING, 1, started=NOW), native_id="1"),
    )
    if other != cluster:
        site.seen(other, facts(4, 4), structs.replace(site.row(State.PENDING, 2), native_id="2"))
    mark_running = site.core.tasks[2, 0].live_attempt
    mark_running.state = State.PENDING
    state = state_of(site)
    assert state.snapshot.site_resources == {"m": 0}
    assert state.snapshot.running[0] == RunningTask(
        state.clusters.index(cluster), 1, NOW, 100.0, "", "regular", {"m": 1}
    )
    starts = medians(state)
    # the pending task has its token already; the next token is kept for the first in line
    first, second = sorted([(3, 0), (4, 0)], key=list(site.core.preview_order(NOW, 0)).index)
    assert (starts[2, 0], starts[first], starts[second]) == (0, 100, 200)


def test_what_may_start_where_nothing_is_known_has_a_reason_instead() -> None:
    site = queued_site()
    submit(site, *(job(number, cpus=4) for number in range(1, 4)))
    info = facts(8, 0, running_jobs=((NOW + 50, 8),), pending_jobs=9)
    site.seen("left", info)
    mark_pending(site)
    [(number, _)] = queued_ids(site)
    state = state_of(site)
    assert state.unknown_jobs == {number: f"it may start on left: {FOREIGN}"}
    assert not any(entry.queued for entry in state.snapshot.waiting)
    site.step(ClusterUnreachable(NOW, "left", "no answer"))  # now only right is left
    assert state_of(site).unknown_jobs == {}


def test_a_gate_or_a_reservation_bars_a_forecast() -> None:
    site = queued_site()
    submit(site, job(1, cpus=8), job(2, cpus=4), job(3, cpus=4, begin=NOW + 1000))
    mark_pending(site)
    assert queued_ids(site) == [(3, 0)]
    assert not any(entry.queued for entry in state_of(site).snapshot.waiting)


def test_too_many_queued_tasks_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    site = queued_site()
    submit(site, *(job(number, cpus=4, user="ann") for number in range(1, 6)))
    mark_pending(site)
    monkeypatch.setattr("metasched.core.forecast_state.MAX_QUEUED", 2)
    assert sum(map(len, state_of(site).tasks)) == 2 + 2
    monkeypatch.setattr("metasched.core.forecast_state.MAX_READY", 2)
    state = state_of(site)
    assert state.unknown_queued == TOO_MANY_QUEUED
    assert sum(map(len, state.tasks)) == 2


# Reservations


def reserve(site: Site, cpus: int, start: float, end: float, **fields: object) -> None:
    fields = {"state": ReservationState.BOUND, "cluster": "left", **fields}
    site.core.reservations.by_id[1] = Reservation(
        **{"id": 1, "user": "eve", "size": cpus, "created": NOW, "nodes": (), **fields},  # type: ignore[arg-type]
        cpus=cpus,
        start=NOW + start,
        end=NOW + end,
    )


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({}, 300),  # the task would still run when the window begins
        ({"cluster": "right"}, 50),
        ({"state": ReservationState.CANCELLED}, 50),
    ],
)
def test_a_reservation_blocks_its_processors(fields: Mapping[str, object], start: float) -> None:
    site = pending_on_left(1)
    reserve(site, 1, 120, 300, **fields)
    assert medians(state_of(site, ListedQueue((PendingJob("1", 8, 100.0),)))) == {(1, 0): start}


def test_a_job_that_ends_before_a_reservation_is_not_kept_waiting() -> None:
    site = pending_on_left(1)
    reserve(site, 8, 150, 300)
    assert medians(state_of(site, ListedQueue((PendingJob("1", 8, 100.0),)))) == {(1, 0): 50}
