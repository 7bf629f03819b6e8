"""Backfill capacity: jobs that start at once and delay neither the queue nor a reservation."""

from __future__ import annotations

from metasched.model.cluster import ClusterInfo, NodeCapacity, Partition
from metasched.model.job import Job
from metasched.policies.pull import BackfillCapacity

NOW = 1000.0


def facts(used: int = 0, **fields: object) -> ClusterInfo:
    partition = Partition("p", (NodeCapacity(1, 8, 8 - used),), default=True)
    return ClusterInfo(**{"cpus": 8, "used_cpus": used, "partitions": (partition,), **fields})  # type: ignore[arg-type]


def job(cpus: int, limit: float) -> Job:
    return Job(id=1, submitted=0.0, estimated=limit, time_limit=limit, cpus=cpus)


def test_what_ends_before_a_window_begins_may_use_all_and_the_rest_what_it_leaves() -> None:
    room = BackfillCapacity(facts(upcoming_windows=((NOW + 100, 3), (NOW + 500, 0))), NOW)
    assert room.can_start(job(8, 100))
    assert not room.can_start(job(4, 101))
    assert room.can_start(job(3, 101))
    assert not room.can_start(job(1, 501))


def test_what_is_left_beside_a_window_is_given_once() -> None:
    room = BackfillCapacity(facts(upcoming_windows=((NOW + 100, 3),)), NOW)
    room.record_start(job(2, 200))
    assert room.can_start(job(1, 200))
    assert not room.can_start(job(2, 200))
    assert room.can_start(job(6, 100))


def test_the_head_of_the_queue_and_a_window_both_keep_what_they_need() -> None:
    fields = {
        "running_jobs": ((NOW + 50, 6),),
        "queue_head": (4, 60.0),
        "upcoming_windows": ((NOW + 80, 1),),
    }
    room = BackfillCapacity(facts(6, **fields), NOW)
    assert room.can_start(job(2, 50))  # ends before the head starts
    assert room.can_start(job(2, 80))  # runs beside the head, ends before the window
    assert not room.can_start(job(2, 81))
    assert room.can_start(job(1, 81))


def test_a_job_on_its_way_starts_before_the_head_and_uses_what_that_leaves() -> None:
    """The head of 6 processors starts in 50 s and leaves 2 of them."""
    fields = {"running_jobs": ((NOW + 50, 4),), "queue_head": (6, 60.0)}
    beside = BackfillCapacity(facts(4, **fields), NOW, [(2, 900.0)])
    assert beside.can_start(job(2, 50))
    assert not beside.can_start(job(1, 51))
    assert not beside.can_start(job(3, 50))
    ahead = BackfillCapacity(facts(4, **fields), NOW, [(3, 50.0)])
    assert ahead.can_start(job(1, 900))
    assert not ahead.can_start(job(2, 50))


def test_a_job_on_its_way_that_would_delay_the_head_queues_behind_it() -> None:
    fields = {"running_jobs": ((NOW + 50, 4),), "queue_head": (6, 60.0)}
    room = BackfillCapacity(facts(4, **fields), NOW, [(3, 900.0)])
    assert room.can_start(job(4, 50))
    assert room.can_start(job(2, 900))
