"""Time of a dispatch decision among 50 clusters, with short and long queues."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import process_time

import pytest

from metasched.model.job import MAX_PRIORITY, Job
from metasched.policies.dispatch import LoadOrdering
from tests.bench.conftest import Record

CLUSTERS = [f"c{i}" for i in range(50)]
DECISIONS, ROUNDS = 500, 9


def filled(queued: int, spread: float) -> LoadOrdering:
    """Return 50 clusters with `queued` jobs each; estimates grow by `spread` per cluster."""
    dispatch = LoadOrdering(CLUSTERS, tolerance=0.05)
    for column, cluster in enumerate(CLUSTERS):
        for number in range(queued):
            job = Job(id=number, submitted=0, estimated=1000 * (1 + spread * column))
            dispatch.assigned(cluster, job, 1 + number % MAX_PRIORITY)
    return dispatch


def microseconds(call: Callable[[Job], object]) -> float:
    """Return the processor time of a call: mean of a round, median over rounds."""
    jobs = [Job(id=number, submitted=0, estimated=1000) for number in range(DECISIONS)]
    rounds = []
    for _ in range(ROUNDS):
        begun = process_time()
        for job in jobs:
            call(job)
        rounds.append((process_time() - begun) / DECISIONS * 1e6)
    return median(rounds)


def book(dispatch: LoadOrdering) -> Callable[[Job], None]:
    """Return a call that does all work on a job: choose, assign, and leave the queue."""

    def call(job: Job) -> None:
        cluster = dispatch.choose(job, 5)
        dispatch.assigned(cluster, job, 5)
        dispatch.left_queue(cluster, job, 5)

    return call


@pytest.mark.bench
@pytest.mark.cpu
def test_one_decision_among_fifty_clusters(record: Record) -> None:
    short_queues, long_queues, drawn = filled(20, 0.1), filled(2000, 0.1), filled(20, 0)
    eligible = frozenset(CLUSTERS)
    figures = {
        "a decision": microseconds(lambda job: short_queues.choose(job, 5)),
        "the same with 100 times the queue": microseconds(lambda job: long_queues.choose(job, 5)),
        "the same for a job that names its clusters": microseconds(
            lambda job: short_queues.choose(job, 5, eligible)
        ),
        "the same, drawn among equal loads": microseconds(lambda job: drawn.choose(job, 5)),
        "a job chosen, assigned and gone again": microseconds(book(short_queues)),
    }
    for name, figure in figures.items():
        record(name, figure, "µs of CPU", target="" if "chosen" in name else "at most 50 µs")
    assert max(figures["a decision"], figures["the same for a job that names its clusters"]) < 50
    assert figures["the same, drawn among equal loads"] < 50
    assert figures["the same with 100 times the queue"] < 2 * figures["a decision"]
