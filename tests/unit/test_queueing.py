"""FCFS and EASY on cases worked by hand."""

from __future__ import annotations

import math

import pytest

from metasched.policies.local.capacity import earliest_fit
from metasched.policies.local.orders import (
    EASY,
    EDF,
    FCFS,
    LSF,
    SJF,
    BoundedEDF,
    BoundedSJF,
    FairShare,
    FirstFit,
    Priority,
)
from metasched.policies.local.queueing import (
    FreeResources,
    JobStart,
    LocalPolicy,
    RunningJob,
    WaitingJob,
)


def job(number: int, cpus: int, estimated: float = 10.0, **counts: int) -> WaitingJob:
    return WaitingJob(number, cpus, estimated, counts)


def started(
    policy: LocalPolicy,
    now: float,
    queue: list[WaitingJob],
    running: list[RunningJob],
    free: FreeResources,
) -> list[int]:
    return [start.id for start in policy.choose_starts(now, queue, running, free)]


def test_what_fits_fits_now() -> None:
    assert earliest_fit(3, 5, [(20.0, 4)], now=7.0) == (7.0, 2)


def test_the_shadow_is_the_end_that_frees_enough() -> None:
    assert earliest_fit(4, 1, [(30.0, 2), (20.0, 1), (10.0, 1)], now=0.0) == (30.0, 1)


def test_all_that_end_at_the_shadow_time_are_counted() -> None:
    assert earliest_fit(2, 0, [(10.0, 2), (10.0, 3), (11.0, 8)], now=0.0) == (10.0, 3)


@pytest.mark.parametrize("end", [50.0, 99.0, 100.0])
def test_what_is_past_its_estimate_ends_in_a_second(end: float) -> None:
    assert earliest_fit(2, 1, [(end, 1), (100.5, 0), (200.0, 5)], now=100.0) == (101.0, 0)


def test_what_never_fits() -> None:
    assert earliest_fit(9, 1, [(10.0, 2)], now=0.0) == (math.inf, 0)


@pytest.mark.parametrize("policy", [FCFS(), EASY()])
def test_the_queue_starts_in_order_while_it_fits(policy: LocalPolicy) -> None:
    queue = [job(1, 2), job(2, 1), job(3, 1)]
    assert started(policy, 0.0, queue, [], FreeResources(4)) == [1, 2, 3]
    assert started(policy, 0.0, queue, [], FreeResources(3)) == [1, 2]
    assert started(policy, 0.0, [], [], FreeResources(3)) == []


def test_fcfs_lets_nothing_past_a_blocked_head() -> None:
    assert (
        started(
            FCFS(), 0.0, [job(1, 4), job(2, 1, 1.0)], [RunningJob(9, 2, 50.0)], FreeResources(2)
        )
        == []
    )


def easy(queue: list[WaitingJob], free: int, *running: RunningJob) -> list[int]:
    return started(EASY(), 100.0, queue, list(running), FreeResources(free))


def test_easy_backfills_what_ends_by_the_shadow_time() -> None:
    """2 of 4 processors are free; the head gets all 4 when job 9 ends, at 150."""
    runs = RunningJob(9, 2, 150.0)
    assert easy([job(1, 4), job(2, 2, 50.0)], 2, runs) == [2]
    assert easy([job(1, 4), job(2, 2, 50.1)], 2, runs) == []


def test_easy_backfills_what_the_head_leaves_over_and_uses_it_up() -> None:
    """At 150 the head takes 3 of 4 processors: one extra processor is left for one long job."""
    queue = [job(1, 3), job(2, 2, 99.0), job(3, 1, 99.0), job(4, 1, 99.0)]
    assert easy(queue, 2, RunningJob(9, 2, 150.0)) == [3]


def test_a_job_that_ends_in_time_leaves_the_extra_to_others() -> None:
    queue = [job(1, 3), job(2, 1, 20.0), job(3, 1, 99.0)]
    assert easy(queue, 2, RunningJob(9, 2, 150.0)) == [2, 3]


def test_jobs_started_in_the_same_pass_count_for_the_shadow() -> None:
    """Job 1 starts and ends at 130, when the head of 4 fits: job 3 may run until then."""
    assert easy([job(1, 3, 30.0), job(2, 4), job(3, 1, 30.0)], 4) == [1, 3]
    assert easy([job(1, 3, 30.0), job(2, 4), job(3, 1, 31.0)], 4) == [1]


def test_easy_lets_everything_past_a_head_that_never_fits() -> None:
    assert easy([job(1, 9), job(2, 2, 1e9)], 2) == [2]


def test_a_job_waits_for_every_counted_resource() -> None:
    free = FreeResources(8, {"memory": 100, "gpu": 1})
    assert started(FCFS(), 0.0, [job(1, 1, memory=60), job(2, 1, memory=60)], [], free) == [1]
    assert started(FCFS(), 0.0, [job(1, 1, gpu=2)], [], free) == []
    assert started(FCFS(), 0.0, [job(1, 1, unlimited=10**9)], [], free) == [1]


def test_the_shadow_waits_for_all_that_the_head_needs() -> None:
    """The head gets its processors at 110 and its memory at 150: a job may use both until 150."""
    running = [RunningJob(8, 2, 110.0), RunningJob(9, 1, 150.0, {"memory": 80})]
    head = job(1, 3, memory=90)
    free = FreeResources(1, {"memory": 20})
    assert started(EASY(), 100.0, [head, job(2, 1, 50.0, memory=20)], running, free) == [2]
    assert started(EASY(), 100.0, [head, job(2, 1, 51.0, memory=11)], running, free) == []
    assert started(EASY(), 100.0, [head, job(2, 1, 51.0, memory=10)], running, free) == [2]
    assert started(EASY(), 100.0, [head, job(2, 1, 51.0)], running, free) == [2]


def test_what_the_head_does_not_need_is_free_for_all() -> None:
    """The head waits for processors only; another job may take the GPU for any time."""
    running, free = [RunningJob(9, 2, 150.0)], FreeResources(2, {"gpu": 1})
    assert started(EASY(), 100.0, [job(1, 3), job(2, 1, 999.0, gpu=1)], running, free) == [2]


def test_first_fit_keeps_nothing_for_the_head() -> None:
    queue = [job(1, 4), job(2, 1, 999.0), job(3, 2), job(4, 1, 999.0)]
    assert started(FirstFit(), 0.0, queue, [RunningJob(9, 2, 50.0)], FreeResources(2)) == [2, 4]


def test_sorted_queues_start_what_fits_in_their_order() -> None:
    queue = [
        WaitingJob(1, 1, 30.0),
        WaitingJob(2, 3, 20.0, deadline=90.0),
        WaitingJob(3, 2, 10.0, deadline=80.0),
    ]
    assert started(LSF(), 0.0, queue, [], FreeResources(4)) == [2, 1]
    assert started(SJF(), 0.0, queue, [], FreeResources(4)) == [3, 1]
    assert started(EDF(), 0.0, queue, [], FreeResources(3)) == [3, 1]


def test_a_starving_job_goes_first_and_has_the_reservation() -> None:
    """2 of 4 processors are free until 150; job 1 needs all 4 and starves from 60 on."""
    queue = [
        WaitingJob(1, 4, 10.0, waiting_since=0.0, deadline=9e9),
        WaitingJob(2, 2, 99.0, waiting_since=50.0, deadline=500.0),
        WaitingJob(3, 2, 40.0, waiting_since=50.0, deadline=900.0),
    ]
    running, free = [RunningJob(9, 2, 150.0)], FreeResources(2)
    bounded = BoundedEDF(starving_after=60.0)
    assert started(bounded, 59.0, queue, running, free) == [2]
    assert bounded.reservation is None
    assert started(bounded, 60.0, queue, running, free) == [3]
    assert bounded.reservation is not None
    assert (bounded.reservation.head.id, bounded.reservation.shadow_time) == (1, 150.0)
    assert started(bounded, 111.0, queue, running, free) == []
    assert started(BoundedSJF(60.0), 59.0, queue, running, free) == [3]


def test_starving_jobs_start_in_the_order_of_arrival() -> None:
    queue = [
        WaitingJob(1, 2, 30.0, waiting_since=0.0, deadline=900.0),
        WaitingJob(2, 2, 20.0, waiting_since=1.0, deadline=90.0),
        WaitingJob(3, 2, 10.0, waiting_since=2.0, deadline=50.0),
    ]
    assert started(BoundedEDF(99.0), 100.0, queue, [], FreeResources(4)) == [1, 2]
    assert started(BoundedEDF(99.5), 100.0, queue, [], FreeResources(4)) == [1, 3]
    assert started(BoundedSJF(0.0), 2.0, queue, [], FreeResources(6)) == [1, 2, 3]


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan])
def test_bounds_of_waits_make_sense(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"starving_after is .*; it must be 0 or more seconds"):
        BoundedEDF(seconds)


def test_the_order_of_priority_is_that_of_the_meta_scheduler() -> None:
    queue = [WaitingJob(1, 2, 9.0, priority=3), WaitingJob(2, 2, 9.0, priority=8)]
    assert started(Priority(), 0.0, queue, [], FreeResources(2)) == [2]


def test_fair_share_serves_who_has_consumed_less_and_forgets() -> None:
    policy = FairShare(half_life=100.0)
    ada = [WaitingJob(1, 2, 50.0, user="ada"), WaitingJob(3, 2, 50.0, user="ada")]
    bob = [WaitingJob(2, 2, 50.0, user="bob")]
    assert started(policy, 0.0, [ada[0], *bob], [], FreeResources(2)) == [1]
    assert started(policy, 50.0, [ada[1], *bob], [], FreeResources(2)) == [2]  # ada has used 100 s
    assert started(
        policy, 100.0, [ada[1], WaitingJob(4, 2, 50.0, user="bob")], [], FreeResources(2)
    ) == [3]


@pytest.mark.parametrize("period", [-1.0, math.inf, math.nan])
def test_periods_make_sense(period: float) -> None:
    with pytest.raises(ValueError, match="period"):
        LSF(period)


def on(number: int, cpus: int, *machines: float, **counts: int) -> WaitingJob:
    """Build a job that takes these seconds on machines 0, 1, ... (0: it cannot run there)."""
    able = {m: seconds for m, seconds in enumerate(machines) if seconds}
    return WaitingJob(number, cpus, 10.0, counts, able)


def machines(*free: int, shared: bool = True, **counts: int) -> FreeResources:
    return FreeResources(sum(free), counts, free, shared)


def test_a_job_takes_the_most_powerful_machine_that_can_run_it() -> None:
    queue = [on(1, 2, 5.0, 9.0), on(2, 3, 0, 9.0), on(3, 2, 5.0, 9.0)]
    assert FirstFit().choose_starts(0.0, queue, [], machines(2, 4)) == [
        JobStart(1, 0),
        JobStart(2, 1),
    ]


def test_a_machine_that_is_not_shared_runs_one_job() -> None:
    queue = [on(1, 1, 5.0, 9.0), on(2, 1, 5.0, 9.0), on(3, 1, 5.0, 9.0)]
    assert FCFS().choose_starts(0.0, queue, [], machines(4, 4, shared=False)) == [
        JobStart(1, 0),
        JobStart(2, 1),
    ]


def test_the_head_is_promised_one_machine_and_others_are_not_its_concern() -> None:
    """Machine 0 is promised to job 1 at 150; job 2 would delay it there, but not on machine 1."""
    running = [RunningJob(9, 3, 150.0, machine=0)]
    head = on(1, 4, 20.0)
    assert EASY().choose_starts(100.0, [head, on(2, 1, 60.0, 70.0)], running, machines(1, 1)) == [
        JobStart(2, 1)
    ]
    assert EASY().choose_starts(100.0, [head, on(2, 1, 60.0)], running, machines(1, 1)) == []
    assert EASY().choose_starts(100.0, [head, on(2, 1, 50.0)], running, machines(1, 1)) == [
        JobStart(2, 0)
    ]


def test_licences_of_the_head_are_spared_on_every_machine() -> None:
    running = [RunningJob(9, 4, 150.0, {"l1": 1}, machine=0)]
    head = on(1, 1, 20.0, 20.0, l1=2)
    free = machines(0, 4, l1=1)
    assert EASY().choose_starts(100.0, [head, on(2, 1, 0, 60.0, l1=1)], running, free) == []
    assert EASY().choose_starts(100.0, [head, on(2, 1, 0, 50.0, l1=1)], running, free) == [
        JobStart(2, 1)
    ]
    assert EASY().choose_starts(100.0, [head, on(2, 1, 0, 60.0)], running, free) == [JobStart(2, 1)]
