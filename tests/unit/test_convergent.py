"""Convergent Scheduling: worked values, brute force on tiny cases, bad input."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from random import Random

import numpy as np
import pytest

pytest.importorskip("scipy")

from metasched.config.reading import load_settings
from metasched.config.settings import ConfigError
from metasched.policies.local.capacity import OVERRUN_SECONDS
from metasched.policies.local.convergent.heuristics import (
    DeadlineUrgency,
    InputTransfer,
    LicenceDemand,
    MatrixHeuristic,
    WaitMinimisation,
)
from metasched.policies.local.convergent.knapsack import (
    choose_exact,
    choose_greedy,
    choose_greedy_printed,
    choose_jobs,
    cluster_by_licence,
)
from metasched.policies.local.convergent.matching import (
    match_greedy,
    match_incremental,
    match_optimal,
)
from metasched.policies.local.convergent.policies import (
    VARIANTS,
    IncrementalConvergent,
    OptimalConvergent,
    PreemptiveOptimalConvergent,
)
from metasched.policies.local.convergent.table import (
    NONE,
    FloatArray,
    JobMachineTable,
    JobMachineView,
)
from metasched.policies.local.convergent.weights import OPTIMAL, ConvergentWeights
from metasched.policies.local.preemption import PreemptibleJob
from metasched.policies.local.queueing import FreeResources, JobStart, RunningJob, WaitingJob
from metasched.policies.local.registry import make_policy

IMPOSSIBLE = -math.inf


def view(
    run_times: list[list[float]],
    *,
    now: float = 0.0,
    deadlines: list[float] | None = None,
    requests: list[list[float]] | None = None,
    rho: list[float] | None = None,
) -> JobMachineView:
    """Return a view of all jobs and machines."""
    times = np.array(run_times)
    count, machines = times.shape
    possible = np.where(times < math.inf, times, 0.0)
    return JobMachineView(
        now=now,
        rows=np.arange(count),
        machines=np.arange(machines),
        longest=possible.max(axis=1),
        shortest=times.min(axis=1),
        submitted=np.zeros(count),
        deadlines=np.array([math.inf] * count if deadlines is None else deadlines),
        current=np.full(count, NONE),
        rho=np.array(rho or []),
        left=np.ones(count),
        queue_run_times=times,
        queue_nearness=None,
        queue_requests=np.zeros((count, 0)) if requests is None else np.array(requests),
        longest_of_queue=float(possible.max()),
    )


# Heuristics


def naive_urgency(run_time: float, now: float, deadline: float, w: ConvergentWeights) -> float:
    """Return f1 of the thesis, as printed."""
    end, threshold = now + run_time, deadline - w.lead * run_time
    if end <= threshold or end > deadline:
        return w.least
    slope = (w.most - w.least) / (deadline - threshold)
    return slope * (end - threshold) + w.least


@pytest.mark.parametrize("late", ["none", "printed"])
def test_deadline_shares_the_urgency_among_machines(late: str) -> None:
    weights = ConvergentWeights(late=late)  # type: ignore[arg-type]
    random = Random(1)
    for _ in range(300):
        times = [random.choice([math.inf, random.uniform(10, 100)]) for _ in range(4)] + [50.0]
        deadline = random.uniform(0, 300)
        got = (
            DeadlineUrgency(weights).contribution(view([times], deadlines=[deadline])).dense((1, 5))
        )
        f = [naive_urgency(t, 0.0, deadline, weights) for t in times]
        affine = [m for m, t in enumerate(times) if t < math.inf]
        meets = [m for m in affine if times[m] <= deadline]
        sharing = meets if late == "none" and meets else affine
        shares = {m: weights.most - f[m] for m in sharing}
        total, divisor = sum(f[m] for m in affine), sum(shares.values())
        for m in affine:
            part = shares.get(m, 0.0) / divisor if divisor else (m in sharing) / len(sharing)
            assert got[0, m] == pytest.approx(total * part)


def test_deadline_worked_value() -> None:
    # now 0, deadline 100, lead 1.3: f(80) = .1 + 9.9 * (80 - (100 - 104)) / 104, f(40) = .1
    contribution = DeadlineUrgency(ConvergentWeights()).contribution(
        view([[80.0, 40.0]], deadlines=[100.0])
    )
    urgency = 0.1 + 9.9 * 84 / 104
    total = urgency + 0.1
    shares = [10 - urgency, 9.9]
    assert contribution.dense((1, 2))[0].tolist() == pytest.approx(
        [total * s / sum(shares) for s in shares]
    )


def test_a_deadline_that_is_just_met_has_an_urgency() -> None:
    # 49 * (1 / 49) is less than 1: no machine seems to meet it
    got = DeadlineUrgency(ConvergentWeights()).contribution(view([[49.0, 98.0]], deadlines=[49.0]))
    assert got.dense((1, 2))[0].tolist() == pytest.approx([0.1, 0.1])


def test_no_deadline_has_no_urgency() -> None:
    contribution = DeadlineUrgency(ConvergentWeights()).contribution(view([[1.0, 2.0]]))
    assert contribution.dense((1, 2)).tolist() == [[0.0, 0.0]]


def test_licences_in_demand_are_preferred() -> None:
    # |L| = 2, rho = 1.5 (critical) and 0.5: w = 3 + .5, 3, .5
    seen = view(
        [[1.0], [1.0], [1.0]], requests=[[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]], rho=[1.5, 0.5]
    )
    contribution = LicenceDemand(ConvergentWeights()).contribution(seen)
    assert contribution[:, 0].tolist() == pytest.approx([2.5, 2.5 * 3 / 3.5, 2.5 * 0.5 / 3.5])


def test_input_counts_by_the_share_of_all_transfers() -> None:
    table = JobMachineTable(4)
    machines = {0: 10.0, 1: 20.0, 3: 5.0}
    table.update(
        [
            WaitingJob(1, 1, 5.0, machines=machines, transfers={0: 0.0, 1: 30.0, 3: 10.0}),
            WaitingJob(2, 1, 5.0, machines=machines),
        ]
    )
    seen = replace(view([[10.0, 20.0, math.inf, 5.0]] * 2), queue_nearness=table.nearness)
    contribution = InputTransfer(ConvergentWeights()).contribution(seen)
    assert contribution[0, [0, 1, 3]].tolist() == [3.0, 0.75, 2.25]
    assert contribution[1].tolist() == [0.0] * 4  # no input
    assert not InputTransfer(ConvergentWeights()).contribution(view([[10.0, 20.0]])).any()


def test_shortness() -> None:
    shortness = WaitMinimisation(ConvergentWeights()).contribution(view([[10.0, 40.0], [20.0, 5]]))
    assert shortness.tolist() == [[3.0, 0.0], [2.0, 3.5]]


def test_shortness_as_printed_favours_no_short_job() -> None:
    """Worked by hand: 4 (1 - nxt / longest nxt of the job); a longer job alike has the same."""
    weights = ConvergentWeights(longest="job")
    run_times = [[10.0, 40.0], [100.0, 400.0], [20.0, math.inf]]
    shortness = WaitMinimisation(weights).contribution(view(run_times))
    assert shortness.tolist() == [[3.0, 0.0], [3.0, 0.0], [0.0, -math.inf]]


class Broken(MatrixHeuristic):
    name = "broken"

    def contribution(self, view: JobMachineView) -> FloatArray:
        return np.full((1, 1), math.nan)


def test_a_heuristic_without_a_number_is_named() -> None:
    policy = OptimalConvergent(heuristics=[Broken()])
    with pytest.raises(ValueError, match="NaN from heuristic broken"):
        policy.choose_starts(0.0, [WaitingJob(1, 1, 1.0)], [], FreeResources(1))


# Matching


def quality(preferences: FloatArray, pairs: dict[int, int]) -> tuple[int, float]:
    """Return the number of pairs and their sum; check that they are a matching."""
    assert len(set(pairs.values())) == len(pairs)
    total = sum(preferences[row, column] for row, column in pairs.items())
    assert total > IMPOSSIBLE
    return len(pairs), round(float(total), 6)


def brute_force(preferences: FloatArray) -> tuple[int, float]:
    """Return the greatest quality, by trying all matchings."""
    rows, columns = preferences.shape
    slots = [*range(columns), *[None] * rows]
    best = (0, 0.0)
    for choice in set(permutations(slots, rows)):
        pairs = {
            row: column
            for row, column in enumerate(choice)
            if column is not None and preferences[row, column] > IMPOSSIBLE
        }
        best = max(best, quality(preferences, pairs))
    return best


def draw_preferences(random: Random, rows: int, columns: int) -> FloatArray:
    return np.array(
        [
            [
                IMPOSSIBLE if random.random() < 0.4 else random.choice([random.uniform(-5, 20), 8])
                for _ in range(columns)
            ]
            for _ in range(rows)
        ],
        dtype=float,
    )


def test_optimal_and_incremental_matching_equal_brute_force() -> None:
    random = Random(2)
    for _ in range(60):
        preferences = draw_preferences(random, random.randint(1, 4), random.randint(1, 3))
        best = brute_force(preferences)
        assert quality(preferences, match_optimal(preferences, {})) == best
        assert quality(preferences, match_incremental(preferences, {})) == best
        greedy = quality(preferences, match_greedy(preferences, {}))
        assert greedy <= best
        assert 2 * greedy[0] >= best[0]  # a maximal matching has half of the pairs


def test_repaired_matchings_stay_optimal() -> None:
    random = Random(3)
    for _ in range(20):
        preferences = draw_preferences(random, 40, 24)
        pairs = match_optimal(preferences, {})
        for _ in range(10):  # a job leaves, its row is another job's now; preferences drift
            row = random.randrange(40)
            pairs.pop(row, None)
            preferences[row] = draw_preferences(random, 1, 24)[0]
            preferences += np.array([[random.uniform(0, 0.2)] for _ in range(40)])
            pairs = match_incremental(preferences, pairs)
            best = quality(preferences, match_optimal(preferences, {}))
            assert quality(preferences, pairs) == pytest.approx(best)


def test_jobs_that_run_change_their_machines_if_that_is_better() -> None:
    # no job waits and no machine is free: only a cycle of exchanges improves
    preferences = np.array([[1.0, 5.0], [5.0, 1.0]])
    assert match_incremental(preferences, {0: 0, 1: 1}) == {0: 1, 1: 0}
    # a job takes a free machine, which empties its own
    assert match_incremental(np.array([[1.0, 5.0]]), {0: 0}) == {0: 1}


def test_jobs_that_shared_a_machine_do_not_all_keep_it() -> None:
    # what is left of the machine is matched again: together they may no longer fit beside others
    preferences = np.array([[5.0], [4.0], [9.0]])
    assert match_incremental(preferences, {0: 0, 1: 0}) == {2: 0}


def test_greedy_may_have_fewer_pairs() -> None:
    preferences = np.array([[9.0, 8.0], [8.0, IMPOSSIBLE]])
    assert match_greedy(preferences, {}) == {0: 0}
    assert match_optimal(preferences, {}) == {0: 1, 1: 0}


# Knapsack


def best_choice(values: FloatArray, amounts: FloatArray, capacities: FloatArray) -> float:
    sums = [0.0]
    for size in range(1, len(values) + 1):
        for chosen in combinations(range(len(values)), size):
            if (amounts[list(chosen)].sum(axis=0) <= capacities).all():
                sums.append(float(values[list(chosen)].sum()))
    return max(sums)


def test_knapsacks() -> None:
    random = np.random.default_rng(4)
    for _ in range(40):
        count, licences = int(random.integers(1, 9)), int(random.integers(1, 4))
        values = random.uniform(0.1, 20, count)
        amounts = random.integers(0, 2, (count, licences)).astype(float)
        capacities = random.integers(1, 4, licences).astype(float)
        best = best_choice(values, amounts, capacities)
        exact = choose_exact(values, amounts, capacities)
        assert values[exact].sum() == pytest.approx(best)
        greedy = choose_greedy(values, amounts, capacities)
        assert (amounts[greedy].sum(axis=0) <= capacities).all()
        # none that was left out would fit
        left = capacities - amounts[greedy].sum(axis=0)
        assert not (amounts[~greedy] <= left).all(axis=1).any()
        clustered = choose_jobs(values, amounts, capacities, choose_exact)
        assert values[clustered].sum() == pytest.approx(best)


def test_discarding_a_job_changes_the_weights() -> None:
    """The third job goes first, and l2 is no longer scarce: the first then weighs 1, not 2.

    By the weights of the beginning the first job, with a ratio of 2.5, would go next.
    """
    values = np.array([5.0, 4.0, 1.0])
    amounts = np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    chosen = choose_greedy(values, amounts, np.array([1.0, 1.0]))
    assert chosen.tolist() == [True, False, False]


def test_a_discarded_job_that_fits_in_the_end_returns_but_not_as_printed() -> None:
    """The third job goes first (ratio 0.1), then the first (1); the second licence stays free."""
    values = np.array([1.0, 5.0, 0.1])
    amounts = np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    capacities = np.array([1.0, 1.0])
    assert choose_greedy(values, amounts, capacities).tolist() == [False, True, True]
    assert choose_greedy_printed(values, amounts, capacities).tolist() == [False, True, False]


def test_jobs_with_common_licences_are_a_cluster() -> None:
    requests = np.array([[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    first, second, third, fourth, fifth = cluster_by_licence(requests > 0)
    assert first == second == fifth
    assert len({int(first), int(third), int(fourth)}) == 3


# The table and the policies


def test_table_follows_the_queue() -> None:
    random = Random(5)
    table = JobMachineTable(3)
    queue: list[WaitingJob] = []
    for number in range(200):
        queue = [job for job in queue if random.random() < 0.8]
        machines = {m: random.uniform(1, 9) for m in range(3) if random.random() < 0.7}
        names = [name for name in ("l1", "l2", f"l{number}") if random.random() < 0.3]
        job = WaitingJob(number, 1, 5.0, dict.fromkeys(names, 1), machines or {0: 5.0}, number)
        if random.random() < 0.3:
            job = job._replace(transfers=dict.fromkeys(job.machines, 4.0), deadline=9.0)
        queue.append(job)
        if random.random() < 0.1:
            random.shuffle(queue)
        table.update(queue)
        fresh = JobMachineTable(3)
        fresh.update(queue)
        assert table.jobs == queue
        assert (table.run_times == fresh.run_times).all()
        assert (table.deadlines == fresh.deadlines).all()
        assert (table.longest == fresh.longest).all()
        for name, column in fresh.resource_columns.items():
            here = table.amounts[:, table.resource_columns[name]]
            assert (here == fresh.amounts[:, column]).all()
        if fresh.nearness is not None:
            assert table.nearness is not None
            assert (table.nearness == fresh.nearness).all()


def on_machines(*free: int, **licences: int) -> FreeResources:
    return FreeResources(sum(free), licences, free, shared=False)


def aged(number: int, age: float, **licences: int) -> WaitingJob:
    """Return a job whose only preference is its age in seconds at 10."""
    return WaitingJob(number, 1, 5.0, licences, {0: 5.0, 1: 5.0, 2: 5.0}, 10.0 - age)


@pytest.mark.parametrize(("discarded", "started"), [("return", {2, 3}), ("wait", {2})])
def test_a_discarded_job_may_wait_for_the_next_plan(discarded: str, started: set[int]) -> None:
    age_alone = dict.fromkeys(("least", "licence", "input", "shortness", "overhead"), 0.0)
    weights = ConvergentWeights(age_factor=1.0, discarded=discarded, **age_alone)  # type: ignore[arg-type]
    policy = OptimalConvergent(weights, {"a": 1, "b": 1})
    queue = [aged(1, 1.0, a=1, b=1), aged(2, 5.0, a=1), aged(3, 0.1, b=1)]
    starts = policy.choose_starts(10.0, queue, [], on_machines(1, 1, 1, a=1, b=1))
    assert {start.id for start in starts} == started


def test_an_urgent_job_gets_the_machine_that_meets_its_deadline() -> None:
    policy = OptimalConvergent()
    urgent = WaitingJob(1, 1, 10.0, machines={0: 10.0, 1: 30.0}, deadline=15.0)
    other = WaitingJob(2, 1, 10.0, machines={0: 10.0, 1: 30.0})
    starts = policy.choose_starts(0.0, [other, urgent], [], on_machines(1, 1))
    assert sorted(starts) == [JobStart(1, 0), JobStart(2, 1)]


def test_scarce_licences_are_never_exceeded() -> None:
    for variant in VARIANTS.values():
        policy = variant(licences={"l1": 2})
        queue = [WaitingJob(n, 1, 10.0, {"l1": 1}, {0: 5.0, 1: 5.0, 2: 5.0}) for n in range(5)]
        starts = policy.choose_starts(0.0, queue, [], on_machines(1, 1, 1, l1=2))
        assert len(starts) == 2


def test_shared_machines_take_several_jobs_and_no_job_fits_then() -> None:
    queue = [WaitingJob(n, n, 10.0, machines={0: 5.0, 1: 5.0}) for n in range(1, 6)]
    for variant in VARIANTS.values():
        starts = variant().choose_starts(0.0, queue, [], FreeResources(9, {}, (5, 4)))
        used = [sum(start.id for start in starts if start.machine == m) for m in range(2)]
        assert used[0] <= 5
        assert used[1] <= 4
        waiting = {job.cpus for job in queue} - {start.id for start in starts}
        assert min(waiting, default=9) > max(5 - used[0], 4 - used[1])


def test_counted_processors_are_one_shared_machine() -> None:
    queue = [WaitingJob(n, 2, 10.0 * n) for n in range(1, 6)]
    starts = OptimalConvergent().choose_starts(0.0, queue, [], FreeResources(7))
    assert [start.id for start in starts] == [1, 2, 3]  # the shortest


def test_a_job_that_fits_nowhere_waits_and_hinders_no_other() -> None:
    queue = [WaitingJob(1, 64, 10.0, machines={}), WaitingJob(2, 1, 10.0, machines={0: 5.0})]
    for variant in VARIANTS.values():
        assert variant().choose_starts(0.0, queue, [], on_machines(4)) == [JobStart(2, 0)]
        assert variant().choose_starts(0.0, [], [], on_machines(4)) == []


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_estimates_that_are_wrong_by_a_hundred_only_change_the_order(factor: float) -> None:
    queue = [
        WaitingJob(n, 1, 10.0, machines={0: 10.0 * (factor if n == 1 else 1)}, deadline=500.0)
        for n in (1, 2)
    ]
    starts = IncrementalConvergent().choose_starts(0.0, queue, [], on_machines(1))
    assert len(starts) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"most": -1.0}, "most is -1.0; it must be 0 or more"),
        ({"input": math.nan}, "input is nan; it must be 0 or more"),
        ({"lead": 1.0}, "it must be more than 1"),
        ({"least": 11.0}, "it must be at most"),
        ({"late": "never"}, 'it must be "none" or "printed"'),
        ({"knapsack": "quick"}, 'it must be "greedy" or "exact"'),
        ({"discarded": "lost"}, 'discarded is "lost"; it must be "return" or "wait"'),
        ({"longest": "day"}, 'longest is "day"; it must be "queue" or "job"'),
        ({"preset": "paper"}, 'preset is "paper"; it must be "thesis"'),
        (
            dict.fromkeys(
                ("age_factor", "least", "most", "licence", "input", "shortness", "overhead"), 0.0
            ),
            "all weights are 0",
        ),
    ],
)
def test_bad_weights(wrong: dict[str, float | str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_policy(OPTIMAL, wrong)


def test_without_scipy_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ValueError, match=r"install it with pip install 'metasched\[lab\]'"):
        make_policy(OPTIMAL)


def test_without_scipy_a_local_cluster_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metasched.toml"
    path.write_text(
        f'[daemon]\ndatabase = "sqlite:///{tmp_path}/ms.db"\n'
        '[[cluster]]\nname = "alpha"\nadapter = "local"\ncpus = 4\npolicy = "cs-ni-np"\n'
    )
    load_settings(path)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(
        ConfigError,
        match=r'policy cs-ni-np needs SciPy, .*metasched\.toml, cluster "alpha"; install it',
    ):
        load_settings(path)


def test_preferences_do_not_depend_on_past_queues() -> None:
    """Critical licences count as often as the cluster has licences, whoever has asked for them."""
    licences = {"a": 1, "b": 4, "c": 4}
    free = FreeResources(4, licences)
    queue = [WaitingJob(2, 1, 10.0, {"a": 1}), WaitingJob(3, 1, 10.0, {"a": 1})]
    queue.append(WaitingJob(4, 1, 10.0, {"b": 1}))
    policies = [IncrementalConvergent(licences=licences) for _ in range(2)]
    past = [WaitingJob(1, 1, 10.0, {"c": 1})]
    policies[0].preferences(0.0, past, free)
    kept, fresh = (policy.preferences(0.0, queue, free) for policy in policies)
    assert kept.tolist() == fresh.tolist()
    mixed = [WaitingJob(5, 1, 10.0, {"a": 2}), WaitingJob(6, 1, 10.0, {"gpu": 1})]
    assert policies[0].preferences(0.0, mixed, free).shape == (2, 1)


class SharesLeft(MatrixHeuristic):
    """Keeps the shares of the jobs that are left."""

    name = "shares-left"

    def contribution(self, view: JobMachineView) -> FloatArray:
        self.left = view.left.tolist()
        return np.zeros((1, 1))


@pytest.mark.parametrize("machines", [{}, {0: 100.0, 1: 50.0}], ids=["counted", "machines"])
def test_heuristics_see_the_share_that_is_left_of_running_jobs(machines: dict[int, float]) -> None:
    """The second job runs longer than its estimate."""
    machine = 1 if machines else 0
    running = [
        PreemptibleJob(
            WaitingJob(number, 1, 50.0, machines=machines),
            RunningJob(number, 1, end, machine=machine),
        )
        for number, end in [(1, 140.0), (2, 90.0)]
    ]
    seen = SharesLeft()
    policy = PreemptiveOptimalConvergent(heuristics=[seen])
    free = FreeResources(6, machines=[4, 2] if machines else None)
    policy.choose_changes(100.0, [WaitingJob(3, 1, 5.0, machines=machines)], running, free)
    assert seen.left == [each.left(100.0) for each in running] + [1.0]
    assert seen.left == [0.8, OVERRUN_SECONDS / 50, 1.0]
