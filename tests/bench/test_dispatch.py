"""How long one dispatch decision takes among 50 clusters, and whether the queue matters."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from statistics import median
from time import perf_counter

import pytest

from metasched.model.job import MAX_PRIORITY, Job
from metasched.policies.dispatch import LoadOrdering

CLUSTERS = [f"c{i}" for i in range(50)]
DECISIONS, ROUNDS = 500, 9


def filled(queued: int, spread: float) -> LoadOrdering:
    """50 clusters with that many jobs each, each cluster's larger by `spread` than the first's."""
    dispatch = LoadOrdering(CLUSTERS, tolerance=0.05)
    for column, cluster in enumerate(CLUSTERS):
        for number in range(queued):
            job = Job(id=number, submitted=0, estimated=1000 * (1 + spread * column))
            dispatch.assigned(cluster, job, 1 + number % MAX_PRIORITY)
    return dispatch


def microseconds(call: Callable[[Job], object]) -> float:
    """The median over rounds of the mean time of one call."""
    jobs = [Job(id=number, submitted=0, estimated=1000) for number in range(DECISIONS)]
    rounds = []
    for _ in range(ROUNDS):
        begun = perf_counter()
        for each in jobs:
            call(each)
        rounds.append((perf_counter() - begun) / DECISIONS * 1e6)
    return median(rounds)


def book(dispatch: LoadOrdering) -> Callable[[Job], None]:
    """Everything one job costs dispatch: chosen, assigned, and gone from the queue again."""

    def call(each: Job) -> None:
        cluster = dispatch.choose(each, 5)
        dispatch.assigned(cluster, each, 5)
        dispatch.left_queue(cluster, each, 5)

    return call


@pytest.mark.bench
def test_one_decision_among_fifty_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    few, many, drawn = filled(20, 0.1), filled(2000, 0.1), filled(20, 0)
    eligible = frozenset(CLUSTERS)
    figures = {
        "decision": microseconds(lambda each: few.choose(each, 5)),
        "decision_queue_100_times": microseconds(lambda each: many.choose(each, 5)),
        "decision_of_named_clusters": microseconds(lambda each: few.choose(each, 5, eligible)),
        "decision_drawn": microseconds(lambda each: drawn.choose(each, 5)),
        "job_booked_in_and_out": microseconds(book(few)),
    }
    with capsys.disabled():
        print(
            "\n"
            + json.dumps(
                {
                    "bench": "dispatch",
                    "unit": "microseconds",
                    "clusters": len(CLUSTERS),
                    "python": platform.python_version(),
                    **{name: round(value, 2) for name, value in figures.items()},
                }
            )
        )
    assert max(figures["decision"], figures["decision_of_named_clusters"]) < 50
    assert figures["decision_drawn"] < 50
    assert figures["decision_queue_100_times"] < 2 * figures["decision"]
