"""Flexible Backfilling: its four heuristics worked by hand, and its two variants."""

from __future__ import annotations

import pytest

from metasched.laboratory.simulate.clusters import Machine, SimulatedCluster
from metasched.laboratory.simulate.manager import SimulatedManager
from metasched.model.job import Job
from metasched.policies.local.flexible_backfilling import (
    FlexibleBackfilling,
    UnmodifiedFlexibleBackfilling,
)
from metasched.policies.local.presets import expand_preset
from metasched.policies.local.queueing import FreeResources, RunningJob, WaitingJob
from metasched.policies.local.registry import make_policy
from metasched.policies.local.weights import UNMODIFIED, Weights, make_weights
from tests.harness.local_policies import CONVERGENT, LOCAL_POLICIES

NONE = {"age_factor": 0.0, "least": 0.0, "most": 0.0, "licence": 0.0, "boost": 0.0}


def ranks(  # type: ignore[no-untyped-def]
    now: float, *queue: WaitingJob, licences: dict[str, int] | None = None, **weights: object
):
    policy = FlexibleBackfilling(Weights(**{**NONE, **weights}), licences)  # type: ignore[arg-type]
    return policy.priorities(now, queue)


def test_waiting_counts_by_the_second() -> None:
    queue = [WaitingJob(1, 1, 10.0, waiting_since=0.0), WaitingJob(2, 1, 10.0, waiting_since=40.0)]
    assert ranks(100.0, *queue, age_factor=0.01) == pytest.approx([1.0, 0.6])


def test_the_shortest_job_gets_the_whole_boost() -> None:
    queue = [WaitingJob(1, 1, 10.0), WaitingJob(2, 1, 40.0)]
    assert ranks(0.0, *queue, boost=2.0) == [2.0, 0.5]


def test_a_deadline_presses_from_lead_run_times_before_it() -> None:
    """Run 100, deadline 1000, k 1.4: T = 860. A start by 760 ends by T; after 900 it is late."""
    job = WaitingJob(1, 1, 100.0, deadline=1000.0)
    urgencies = [
        ranks(now, job, least=0.1, most=20.0, lead=1.4)[0] for now in (0, 760, 830, 900, 900.1)
    ]
    assert urgencies == pytest.approx([0.1, 0.1, 10.05, 20.0, 0.0])
    assert ranks(901.0, job, least=0.1, most=20.0, late="least") == [0.1]
    assert ranks(901.0, WaitingJob(1, 1, 100.0), least=0.1, most=20.0) == [0.0]


def test_the_deadline_counts_the_run_on_the_best_machine_or_the_estimate() -> None:
    job = WaitingJob(1, 1, 100.0, {}, {0: 50.0, 1: 200.0}, deadline=1000.0)
    assert ranks(900.0, job, least=0.1, most=20.0)[0] == pytest.approx(0.1 + 19.9 * 20 / 70)
    assert ranks(900.0, job, least=0.1, most=20.0, run="estimate") == pytest.approx([20.0])


def test_critical_licences_count_more() -> None:
    """Rho is requests over copies: a 2/1 (critical), b 1/2, c 1/4."""
    queue = [
        WaitingJob(1, 1, 10.0, {"a": 1}),
        WaitingJob(2, 1, 10.0, {"a": 1, "b": 1}),
        WaitingJob(3, 1, 10.0, {"c": 1, "memory": 99}),
        WaitingJob(4, 1, 10.0),
    ]
    copies = {"a": 1, "b": 2, "c": 4, "d": 1}
    # d = 2: b and c are requested and not critical
    assert ranks(0.0, *queue, licences=copies, licence=1.0) == [4.0, 4.5, 0.25, 0.0]


def test_the_licences_of_the_whole_site_have_a_criticality() -> None:
    """a is critical, b and own are not: d = 2. The cluster's count of `own` overrides its rho."""
    policy = FlexibleBackfilling(Weights(**{**NONE, "licence": 1.0}), {"own": 1})  # type: ignore[arg-type]
    queue = [
        WaitingJob(1, 1, 10.0, licences=("a",)),
        WaitingJob(2, 1, 10.0, licences=("b", "a")),
        WaitingJob(3, 1, 10.0, {"own": 1}, licences=("c",)),
    ]
    weights = {"a": 3.0, "b": 0.5, "own": 9.0, "elsewhere": 0.1}
    assert policy.priorities(0.0, queue, weights) == [6.0, 6.5, 1.0]
    begun = policy.choose_starts(0.0, queue, [], FreeResources(1, rho=weights))
    assert [start.id for start in begun] == [2]


def test_who_has_left_the_queue_asks_for_nothing() -> None:
    policy = FlexibleBackfilling(Weights(**{**NONE, "licence": 1.0}), {"a": 1})  # type: ignore[arg-type]
    first, second = WaitingJob(1, 1, 10.0, {"a": 1}), WaitingJob(2, 1, 10.0, {"a": 1})
    assert policy.priorities(0.0, [first, second])[0] == 2.0
    assert policy.priorities(0.0, [first])[0] == 1.0


def started(
    policy: FlexibleBackfilling, now: float, queue: list[WaitingJob], free: int
) -> list[int]:
    running = [RunningJob(9, 4 - free, 200.0)] if free < 4 else []
    return [start.id for start in policy.choose_starts(now, queue, running, FreeResources(free))]


@pytest.mark.parametrize("name", sorted({*LOCAL_POLICIES} - {*CONVERGENT}))
def test_jobs_start_on_a_host_that_has_lost_what_a_running_job_uses(name: str) -> None:
    policy = make_policy(name)
    running = [RunningJob(9, 1, 200.0, {"gpu": 1})]
    for id, resources in ((1, {}), (2, {"gpu": 1}), (3, {})):
        queue = [WaitingJob(id, 1, 10.0, resources)]
        free = FreeResources(3, {"gpu": -1})
        started = [start.id for start in policy.choose_starts(0.0, queue, running, free)]
        assert started == ([] if resources else [id])


def test_the_reservation_is_kept_or_goes_to_who_comes_first() -> None:
    """Job 1 was the head and is blocked; the shorter job 2 is the head now and is blocked, too."""
    first, second = WaitingJob(1, 2, 100.0), WaitingJob(2, 3, 10.0)
    three = WaitingJob(3, 1, 201.0)
    weights = Weights(**{**NONE, "boost": 2.0})  # type: ignore[arg-type]
    keeping, releasing = UnmodifiedFlexibleBackfilling(weights), FlexibleBackfilling(weights)
    for policy in (keeping, releasing):
        assert started(policy, 0.0, [first], 1) == []
    assert keeping.head_id == 1
    assert started(keeping, 100.0, [first, second, three], 1) == [3]
    assert started(releasing, 100.0, [first, second, three], 1) == [3]
    assert keeping.head_id == 1
    assert started(keeping, 200.0, [first, second], 4) == [1]
    assert started(releasing, 200.0, [first, second], 4) == [2]


def test_a_promise_is_made_anew_when_another_job_runs_in_place_of_what_ended_early() -> None:
    """Job 1 needs three of four processors, and job 2 would delay it."""
    policy = UnmodifiedFlexibleBackfilling(Weights(**NONE))  # type: ignore[arg-type]
    queue = [WaitingJob(1, 3, 10.0), WaitingJob(2, 2, 160.0)]
    stays = RunningJob(9, 1, 100.0)
    assert policy.choose_starts(0.0, queue, [stays, RunningJob(8, 1, 50.0)], FreeResources(2)) == []
    queue.append(WaitingJob(3, 1, 60.0))
    begun = policy.choose_starts(10.0, queue, [stays, RunningJob(7, 1, 200.0)], FreeResources(2))
    assert [start.id for start in begun] == [3]  # job 1 begins at 100, not at 50


def test_a_promise_is_made_anew_when_what_was_late_has_ended() -> None:
    """Job 8 was expected to end at 21; now that it has ended, job 1 starts at 20.8."""
    policy = UnmodifiedFlexibleBackfilling(Weights(**NONE))  # type: ignore[arg-type]
    queue = [WaitingJob(1, 4, 10.0), WaitingJob(2, 2, 60.0)]
    punctual = RunningJob(9, 1, 20.8)
    assert (
        policy.choose_starts(20.0, queue, [punctual, RunningJob(8, 1, 10.0)], FreeResources(2))
        == []
    )
    queue.append(WaitingJob(3, 1, 0.4))
    assert policy.choose_starts(20.5, queue, [punctual], FreeResources(3)) == []


@pytest.mark.parametrize(
    "wrong",
    [{"age_factor": -1.0}, {"lead": 1.0}, {"run": "slow"}, {"late": "never"}],
)
def test_weights_make_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        make_weights(wrong)


@pytest.mark.parametrize(
    ("arguments", "values"),
    [  # seconds and the value of a deadline at 300; nxt is 100, 40 and 50 seconds
        ({"preset": "thesis"}, {50: 0.1, 100: 0.1 + 19.9 * 40 / 140, 200: 20.0, 201: 0.0}),
        ({"preset": "paper"}, {204: 0.1, 220: 0.1 + 19.9 * 16 / 56, 260: 20.0, 261: 0.1}),
        ({}, {180: 0.1, 200: 0.1 + 19.9 * 20 / 70, 250: 20.0, 251: 0.0}),
        ({"preset": "thesis", "late": "least"}, {200: 20.0, 201: 0.1}),
    ],
)
def test_each_source_has_its_formula(arguments: dict[str, str], values: dict[float, float]) -> None:
    others_zero = {"age_factor": 0.0, "licence": 0.0, "boost": 0.0}
    policy = FlexibleBackfilling(
        make_weights({**expand_preset(UNMODIFIED, arguments), **others_zero})
    )
    job = WaitingJob(1, 1, 100.0, machines={1: 50.0}, deadline=300.0, on_fastest=40.0)
    for now, value in values.items():
        assert policy.priorities(now, [job]) == pytest.approx([value])


def test_the_fastest_machine_counts_even_where_the_job_is_too_large_for_it() -> None:
    cluster = SimulatedCluster.of_machines("c1", [Machine(8, 2.0), Machine(1, 4.0)])
    manager = SimulatedManager(cluster, make_policy("easy"))
    manager.submit(Job(id=1, submitted=0.0, estimated=100.0, cpus=8), 1, 100.0)
    (waiting,) = manager.queue.values()
    assert waiting.machines == {1: 50.0}
    assert waiting.on_fastest == 25.0


def test_policies_have_names() -> None:
    for name in LOCAL_POLICIES:
        assert make_policy(name).name == name  # type: ignore[attr-defined]
        assert make_policy(name) is not make_policy(name)
    with pytest.raises(ValueError, match='write "conservative"'):
        make_policy("conservativ")
    with pytest.raises(ValueError, match="it has none"):
        make_policy("easy", {"period": 1.0})
