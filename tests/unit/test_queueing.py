"""FCFS and EASY on cases worked by hand."""

from __future__ import annotations

import math

import pytest

from metasched.policies.queueing import EASY, FCFS, Free, Policy, Running, Waiting, earliest_fit


def job(number: int, cpus: int, estimated: float = 10.0, **counts: int) -> Waiting:
    return Waiting(number, cpus, estimated, counts)


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
def test_the_queue_starts_in_order_while_it_fits(policy: Policy) -> None:
    queue = [job(1, 2), job(2, 1), job(3, 1)]
    assert policy.starts(0.0, queue, [], Free(4)) == [1, 2, 3]
    assert policy.starts(0.0, queue, [], Free(3)) == [1, 2]
    assert policy.starts(0.0, [], [], Free(3)) == []


def test_fcfs_lets_nothing_past_a_blocked_head() -> None:
    assert FCFS().starts(0.0, [job(1, 4), job(2, 1, 1.0)], [Running(9, 2, 50.0)], Free(2)) == []


def easy(queue: list[Waiting], free: int, *running: Running) -> list[int]:
    return EASY().starts(100.0, queue, running, Free(free))


def test_easy_backfills_what_ends_by_the_shadow_time() -> None:
    """Of 4 processors 2 are free; the head gets its 4 when the others come back, at 150."""
    runs = Running(9, 2, 150.0)
    assert easy([job(1, 4), job(2, 2, 50.0)], 2, runs) == [2]
    assert easy([job(1, 4), job(2, 2, 50.1)], 2, runs) == []


def test_easy_backfills_what_the_head_leaves_over_and_uses_it_up() -> None:
    """At 150 there are 4, the head takes 3: one processor is extra, for one long job."""
    queue = [job(1, 3), job(2, 2, 99.0), job(3, 1, 99.0), job(4, 1, 99.0)]
    assert easy(queue, 2, Running(9, 2, 150.0)) == [3]


def test_a_job_that_ends_in_time_leaves_the_extra_to_others() -> None:
    queue = [job(1, 3), job(2, 1, 20.0), job(3, 1, 99.0)]
    assert easy(queue, 2, Running(9, 2, 150.0)) == [2, 3]


def test_jobs_started_in_the_same_pass_count_for_the_shadow() -> None:
    """Job 1 starts and ends at 130, which is when the head of 4 fits: 2 may run until then."""
    assert easy([job(1, 3, 30.0), job(2, 4), job(3, 1, 30.0)], 4) == [1, 3]
    assert easy([job(1, 3, 30.0), job(2, 4), job(3, 1, 31.0)], 4) == [1]


def test_easy_lets_everything_past_a_head_that_never_fits() -> None:
    assert easy([job(1, 9), job(2, 2, 1e9)], 2) == [2]


def test_a_job_waits_for_every_counted_resource() -> None:
    free = Free(8, {"memory": 100, "gpu": 1})
    assert FCFS().starts(0.0, [job(1, 1, memory=60), job(2, 1, memory=60)], [], free) == [1]
    assert FCFS().starts(0.0, [job(1, 1, gpu=2)], [], free) == []
    assert FCFS().starts(0.0, [job(1, 1, unlimited=10**9)], [], free) == [1]


def test_the_shadow_waits_for_all_that_the_head_needs() -> None:
    """Processors are there at 110, memory at 150: a job may use both until 150."""
    running = [Running(8, 2, 110.0), Running(9, 1, 150.0, {"memory": 80})]
    head = job(1, 3, memory=90)
    free = Free(1, {"memory": 20})
    assert EASY().starts(100.0, [head, job(2, 1, 50.0, memory=20)], running, free) == [2]
    assert EASY().starts(100.0, [head, job(2, 1, 51.0, memory=11)], running, free) == []
    assert EASY().starts(100.0, [head, job(2, 1, 51.0, memory=10)], running, free) == [2]
    assert EASY().starts(100.0, [head, job(2, 1, 51.0)], running, free) == [2]


def test_what_the_head_does_not_need_is_free_for_all() -> None:
    """The head waits for processors only; the one GPU may be taken for as long as you like."""
    running, free = [Running(9, 2, 150.0)], Free(2, {"gpu": 1})
    assert EASY().starts(100.0, [job(1, 3), job(2, 1, 999.0, gpu=1)], running, free) == [2]
