"""Load and Ordering: the figures of Pasquali 2008, §3.1.2; begin reading the tests here."""

from __future__ import annotations

from typing import Any

import pytest

from metasched.model.job import Job
from metasched.policies.dispatch import LoadOrdering


def job(work: float = 1.0, number: int = 1, benchmark: float = 1.0) -> Job:
    return Job(id=number, submitted=0, estimated=work, benchmark=benchmark)


def queue(dispatch: LoadOrdering, cluster: str, *queued: tuple[float, int]) -> None:
    """Assign jobs, given as (work, priority), to a cluster."""
    for number, (work, priority) in enumerate(queued):
        dispatch.assigned(cluster, job(work, number), priority)


def test_figure_12_work_at_a_priority_and_above() -> None:
    dispatch = LoadOrdering(["left"])
    queue(dispatch, "left", (7, 4), (10, 5), (8, 5))
    assert dispatch.load("left") == [25, 25, 25, 25, 18, 0, 0, 0, 0, 0]


def test_figure_13_jobs_at_a_priority_and_above() -> None:
    dispatch = LoadOrdering(["left"])
    queue(dispatch, "left", *[(1, 4)] * 3, *[(1, 9)] * 6)
    assert dispatch.count("left") == [9, 9, 9, 9, 6, 6, 6, 6, 6, 0]


def test_work_is_the_estimate_times_the_benchmark() -> None:
    dispatch = LoadOrdering(["left"], max_priority=1)
    dispatch.assigned("left", job(20, benchmark=300), 1)
    assert dispatch.load("left") == [6000]


def test_first_idle_cluster_in_the_sites_order_is_taken() -> None:
    dispatch = LoadOrdering(["big", "mid", "small"])
    assert dispatch.choose(job(), 5) == "big"
    queue(dispatch, "big", (1, 5))
    assert dispatch.choose(job(), 5) == "mid"
    assert dispatch.choose(job(), 5, eligible=["small", "mid"]) == "mid"
    assert dispatch.choose(job(), 6) == "big"  # only less urgent work waits there


def test_least_load_of_the_priority_and_above_is_taken() -> None:
    dispatch = LoadOrdering(["left", "right"])
    queue(dispatch, "left", (10, 5), (90, 1))
    queue(dispatch, "right", (20, 5))
    assert dispatch.choose(job(), 5) == "left"
    assert dispatch.choose(job(), 1) == "right"
    assert dispatch.choose(job(), 5, eligible={"right"}) == "right"


def test_among_equal_loads_the_fewest_jobs() -> None:
    dispatch = LoadOrdering(["left", "right"])
    queue(dispatch, "left", (10, 5), (10, 5))
    queue(dispatch, "right", (20, 5))
    assert dispatch.choose(job(), 5) == "right"


def test_tolerance_defines_equality() -> None:
    queued: dict[str, list[tuple[float, int]]] = {
        "left": [(100, 5), (4.9, 5)],
        "right": [(50, 5), (25, 5), (25, 5)],
    }
    for tolerance, expected in ((0.0, "right"), (0.04, "right"), (0.05, "left")):
        dispatch = LoadOrdering(["left", "right"], tolerance=tolerance)
        for cluster, jobs in queued.items():
            queue(dispatch, cluster, *jobs)
        assert dispatch.choose(job(), 5) == expected


def test_ordering_may_count_equal_priorities_only() -> None:
    for ordering, expected in (("array", "right"), ("equal", "left")):
        dispatch = LoadOrdering(["left", "right"], ordering=ordering)
        queue(dispatch, "left", (5, 5), (3, 9), (2, 9))
        queue(dispatch, "right", (5, 5), (5, 5))
        queue(dispatch, "left", (5, 10))
        queue(dispatch, "right", (5, 5))
        assert dispatch.choose(job(), 5) == expected


def tied(seed: int) -> LoadOrdering:
    dispatch = LoadOrdering(["a", "b", "c"], seed=seed)
    for cluster in dispatch.clusters:
        queue(dispatch, cluster, (1, 5))
    return dispatch


def test_the_draw_depends_on_seed_and_job_alone() -> None:
    drawn = [tied(3).choose(job(number=n), 5) for n in range(300)]
    again = tied(3)
    assert [again.choose(job(number=n), 5) for n in reversed(range(300))] == drawn[::-1]
    assert [tied(4).choose(job(number=n), 5) for n in range(300)] != drawn


def test_the_draw_is_even_and_never_changes() -> None:
    drawn = [tied(0).choose(job(number=n), 5) for n in range(600)]
    assert all(150 < drawn.count(cluster) < 250 for cluster in "abc")
    assert "".join(drawn[:12]) == "bcccbbacccbb"


def test_observed_seconds_stand_in_for_the_load() -> None:
    dispatch = LoadOrdering(["left", "right"], load="observed")
    dispatch.observe("left", 30)
    dispatch.observe("right", 20)
    queue(dispatch, "right", (1000, 5))
    assert dispatch.load("left") == [30] * 10
    assert dispatch.choose(job(), 5) == "right"
    dispatch.observe("right", 30)
    assert dispatch.choose(job(), 5) == "left"  # equal loads: fewest jobs of metasched
    dispatch.observe("right", 0)
    assert dispatch.choose(job(), 5) == "right"


def test_paper_load_is_blind_to_what_is_observed() -> None:
    dispatch = LoadOrdering(["left", "right"])
    dispatch.observe("left", 30)
    assert dispatch.choose(job(), 5) == "left"


def test_loads_and_orderings_can_be_read() -> None:
    dispatch = LoadOrdering(["left", "right"])
    queue(dispatch, "left", (10, 5), (8, 7))
    assert dispatch.cluster_loads(job(), 5) == {"left": (18, 2), "right": (0, 0)}
    assert dispatch.cluster_loads(job(), 6) == {"left": (8, 1), "right": (0, 0)}


def test_emptied_queue_leaves_no_residue() -> None:
    dispatch = LoadOrdering(["left", "right"])
    for work in (0.1, 0.2, 1e15):
        dispatch.assigned("left", job(work), 5)
    for work in (1e15, 0.1, 0.2):  # in floats 0.1 + 0.2 + 1e15 - 1e15 - 0.1 - 0.2 is 0.075
        dispatch.left_queue("left", job(work), 5)
    assert dispatch.load("left") == [0] * 10
    assert dispatch.choose(job(), 5) == "left"


@pytest.mark.parametrize(
    ("cluster", "work", "priority"),
    [("right", 10, 5), ("left", 10, 4), ("left", 10, 6), ("left", 99, 5), ("left", 9, 5)],
)
def test_a_job_never_assigned_cannot_leave(cluster: str, work: float, priority: int) -> None:
    dispatch = LoadOrdering(["left", "right"])
    queue(dispatch, "left", (10, 5), (3, 8))
    before = dispatch.load("left"), dispatch.count("left")
    with pytest.raises(ValueError, match="job 1 was never assigned"):
        dispatch.left_queue(cluster, job(work), priority)
    assert (dispatch.load("left"), dispatch.count("left")) == before


LEFT = LoadOrdering(["left"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LoadOrdering([]), "no clusters"),
        (lambda: LoadOrdering(["a", "a"]), "named twice"),
        (lambda: LoadOrdering(["a"], max_priority=0), "max_priority is 0"),
        (lambda: LoadOrdering(["a"], tolerance=-0.1), "tolerance is -0.1"),
        (lambda: LoadOrdering(["a"], load="plan"), "paper, observed"),
        (lambda: LoadOrdering(["a"], ordering="random"), "array, equal"),
        (lambda: LEFT.choose(job(), 5, eligible=[]), "no cluster is eligible"),
        (lambda: LEFT.choose(job(), 5, eligible=["rigth"]), "unknown cluster 'rigth'"),
        (lambda: LEFT.choose(job(), 0), "priority is 0"),
        (lambda: LEFT.choose(job(), 11), "priority is 11"),
        (lambda: LEFT.assigned("right", job(), 5), "unknown cluster"),
        (lambda: LEFT.assigned("left", job(), 11), "priority is 11"),
        (lambda: LEFT.left_queue("right", job(), 5), "unknown cluster"),
        (lambda: LEFT.observe("right", 1), "unknown cluster"),
        (lambda: LEFT.observe("left", -1), "observed load of left is -1"),
        (lambda: LEFT.observe("left", float("nan")), "observed load of left is nan"),
        (lambda: LEFT.load("right"), "unknown cluster"),
        (lambda: LEFT.count("right"), "unknown cluster"),
    ],
)
def test_senseless_calls_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
