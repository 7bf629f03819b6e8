"""Forecast: run times learnt from ended jobs, one future, and the interval of many; by hand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import count
from typing import Any

import pytest

from metasched.forecast import run_times
from metasched.forecast.estimates import MIN_DRAWS, StartEstimate, estimate_starts, quantile
from metasched.forecast.forward_run import ForwardRun
from metasched.forecast.run_times import RunTimeModel
from metasched.forecast.snapshot import ForecastCluster, Probe, RunningTask, Snapshot, WaitingTasks
from metasched.policies.local.orders import EASY, FCFS
from metasched.policies.local.queueing import NEVER, JobStart, ReservedWindow


def learnt(*samples: tuple[str, str, float, float]) -> RunTimeModel:
    """A model that knows jobs of (user, class, limit, run time)."""
    model = RunTimeModel()
    for sample in samples:
        model.add(*sample)
    return model


def alone(cpus: int, running: tuple[RunningTask, ...], *waiting: WaitingTasks) -> Snapshot:
    """A cluster with EASY at time 0, of which `cpus` are free."""
    return Snapshot(0.0, (ForecastCluster(cpus, EASY),), running, waiting)


def starts(
    snapshot: Snapshot, run_seconds: Mapping[int, float], ends: tuple[float, ...] = ()
) -> list[list[float]]:
    """The starts of each entry, if its tasks run for so long."""
    run = ForwardRun(snapshot, lambda index: ends[index], lambda entry, _: run_seconds[entry])
    assert run.run()
    return run.starts


def test_nothing_is_known_of_a_far_future() -> None:
    """A user may queue more tasks of 68 years than there are dates."""
    long = WaitingTasks(cpus=1, limits={0: 2.0**31}, tasks=9000)
    snapshot = alone(1, (), long, WaitingTasks(cpus=1, limits={0: 60.0}))
    snapshot = snapshot._replace(probes=(Probe(0, 1, 60.0),))
    run = ForwardRun(snapshot, lambda index: 0.0, lambda index, limit: limit)
    assert run.run()
    assert run.starts == [[0.0], []]
    assert run.probe_starts == [NEVER]


# The run times


def test_the_narrowest_group_with_five_samples_decides() -> None:
    others = [("bob", "gold", 100, 90)] * 5
    of_ann = [("ann", "gold", 50, 5)] * 5
    model = learnt(*others, *of_ann, *[("ann", "gold", 100, 30)] * 4)
    assert model.ratio(0.5, "ann", "gold", 50) == 0.1  # the user's jobs with this limit
    # four jobs of this limit are too few; of the user's nine, the fifth is .1, the sixth .3
    assert model.ratio(0.5, "ann", "gold", 100) == 0.1
    assert model.ratio(0.6, "ann", "gold", 100) == 0.3
    assert model.ratio(0.99, "eve", "gold", 100) == 0.9  # unknown: all 14 jobs of the class
    assert model.ratio(0.99, "eve", "silver", 100) == 0.9  # of the site


def test_nothing_known_is_any_part_of_the_limit() -> None:
    assert RunTimeModel().ratio(0.25, "ann", "", 100) == 0.25
    assert RunTimeModel().ratio(0.5, "ann", "", 100, elapsed=50) == 0.75


def test_a_running_job_has_only_longer_samples() -> None:
    model = learnt(*[("ann", "", 100, 10)] * 5, *[("ann", "", 100, 80)] * 5)
    assert model.ratio(0.0, "ann", "", 100) == 0.1
    assert model.ratio(0.0, "ann", "", 100, elapsed=10) == 0.8  # one that ends now is over
    # none ran for longer than 80: the rest of the limit
    assert model.ratio(0.5, "ann", "", 100, elapsed=80) == pytest.approx(0.9)
    assert model.ratio(0.5, "ann", "", 100, elapsed=150) == 1.0


def test_strange_jobs_teach_nothing_false() -> None:
    model = learnt(
        ("ann", "", float("inf"), 10),
        ("ann", "", 0, 10),
        ("ann", "", float("nan"), 10),
        ("ann", "", 100, float("nan")),
        ("ann", "", 100, -5),
    )
    assert model.ratio(0.5, "ann", "", 100) == 0.5  # as if nothing were known
    model = learnt(*[("ann", "", 100, 1e9)] * 5)
    assert model.ratio(0.5, "ann", "", 100) == 1.0


def test_only_the_last_jobs_count() -> None:
    model = learnt(
        *[("ann", "", 100, 10)] * run_times.MAX_SAMPLES,
        *[("ann", "", 100, 70)] * run_times.MAX_SAMPLES,
    )
    assert model.ratio(0.0, "ann", "", 100) == 0.7


def test_users_without_end_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_times, "MAX_GROUPS", 10)
    model = learnt(*[("ann", "", 100, 40)] * 5)
    for number in range(1000):
        model.add(f"user{number}", f"class{number}", 100, 100)
    assert len(model._groups) == len(model._classes) == 10
    assert model.ratio(0.0, "ann", "none", 100) == 1.0  # forgotten: the site's last thousand


# One future


def test_the_head_starts_at_the_true_end() -> None:
    running = (RunningTask(0, 4, -10.0, 100.0),)
    snapshot = alone(0, running, WaitingTasks(4, {0: 100.0}), WaitingTasks(2, {0: 10.0}))
    assert starts(snapshot, {0: 10, 1: 10}, (50.0,)) == [[50.0], [60.0]]


def test_a_short_task_is_backfilled_by_limits_and_not_by_true_ends() -> None:
    running = (RunningTask(0, 2, 0.0, 100.0),)
    entries = WaitingTasks(4, {0: 100.0}), WaitingTasks(2, {0: 100.0}), WaitingTasks(2, {0: 101.0})
    # the head waits for 50; the second ends by 100, the head's reservation; the third would not
    assert starts(alone(2, running, *entries), {0: 5, 1: 20, 2: 5}, (50.0,)) == [[50], [0], [55]]
    # the head is delayed if the backfilled task runs as long as its limit
    assert starts(alone(2, running, *entries), {0: 5, 1: 90, 2: 5}, (50.0,))[0] == [90.0]


def test_a_task_that_starts_holds_its_processors_up_to_its_limit() -> None:
    entries = WaitingTasks(2, {0: 100.0}), WaitingTasks(4, {0: 100.0}), WaitingTasks(2, {0: 90.0})
    # the second waits for the limit of the first, 100; the third ends before that
    assert starts(alone(4, (), *entries), {0: 50, 1: 5, 2: 80}) == [[0], [80], [0]]


def test_an_array_starts_task_by_task() -> None:
    snapshot = alone(2, (), WaitingTasks(1, {0: 60.0}, tasks=5))
    assert starts(snapshot, {0: 10}) == [[0, 0, 10, 10, 20]]


def test_a_task_goes_to_the_cluster_that_can_start_it_first() -> None:
    clusters = ForecastCluster(0, EASY), ForecastCluster(0, FCFS)
    running = RunningTask(0, 4, 0.0, 100.0), RunningTask(1, 4, 0.0, 100.0)
    waiting = (
        WaitingTasks(4, {0: 60.0}),  # sent to the first cluster
        WaitingTasks(4, {0: 60.0, 1: 30.0}),  # can move; the second cluster is twice as fast
        WaitingTasks(4, {0: 60.0, 1: 30.0}),
    )
    run_limits = []

    def runs_to_its_limit(entry: int, limit: float) -> float:
        run_limits.append((entry, limit))
        return limit

    snapshot = Snapshot(0.0, clusters, running, waiting)
    run = ForwardRun(snapshot, lambda index: (20.0, 30.0)[index], runs_to_its_limit)
    assert run.run()
    assert run.starts == [[20.0], [30.0], [60.0]]
    assert run_limits == [(0, 60.0), (1, 30.0), (2, 30.0)]


def test_licences_of_the_site_and_of_a_cluster_are_waited_for() -> None:
    clusters = (
        ForecastCluster(4, EASY, {"gpu": 1}),
        ForecastCluster(4, EASY),
    )
    waiting = (
        WaitingTasks(1, {0: 60.0}, resources={"solver": 1, "gpu": 1}),
        WaitingTasks(1, {1: 60.0}, resources={"solver": 1}),  # its token comes back at 10
        WaitingTasks(1, {0: 60.0}, resources={"gpu": 1}),
        WaitingTasks(1, {1: 60.0}, resources={"gpu": 1}),  # not counted there
    )
    snapshot = Snapshot(0.0, clusters, (), waiting, {"solver": 1})
    assert starts(snapshot, {0: 10, 1: 10, 2: 10, 3: 10}) == [[0], [10], [10], [0]]


def test_reservations_take_processors() -> None:
    windows = ReservedWindow(-5.0, 10.0, 2), ReservedWindow(20.0, 50.0, 4)
    clusters = (ForecastCluster(2, EASY, windows=windows),)
    waiting = WaitingTasks(4, {0: 10.0}), WaitingTasks(4, {0: 10.0})
    snapshot = Snapshot(0.0, clusters, (), waiting)
    assert starts(snapshot, {0: 10, 1: 10}) == [[10.0], [50.0]]


def test_what_fits_nowhere_never_starts() -> None:
    snapshot = alone(2, (), WaitingTasks(3, {0: 10.0}), WaitingTasks(1, {}))
    assert starts(snapshot, {}) == [[], []]
    estimates = estimate_starts(snapshot, RunTimeModel(), 1)
    assert estimates is not None
    assert estimates.tasks == ((), ())


def test_a_run_ends_with_its_targets_and_its_bound() -> None:
    snapshot = alone(1, (), *[WaitingTasks(1, {0: 10.0}) for _ in range(5)])
    run = ForwardRun(snapshot, lambda _: 0.0, lambda *_: 10.0, targets=frozenset({1}))
    assert run.run()
    assert run.starts == [[0.0], [10.0], [], [], []]
    run = ForwardRun(snapshot, lambda _: 0.0, lambda *_: 10.0, max_starts=3)
    assert run.run()
    assert sum(map(len, run.starts)) == 3


def test_time_that_is_over_stops_a_run_of_a_million_tasks() -> None:
    snapshot = alone(1, (), WaitingTasks(1, {0: 10.0}, tasks=10**6))
    answers = count()
    assert (
        estimate_starts(
            snapshot, RunTimeModel(), 1, max_starts=10**6, may_continue=lambda: next(answers) < 3
        )
        is None
    )
    assert next(answers) == 4


def test_time_that_is_over_stops_a_run_before_the_next_pass() -> None:
    """A pass may take long, as that of a policy that plans the whole queue."""
    passes: list[float] = []

    class CountedEASY(EASY):
        def choose_starts(self, now: float, *rest: Any) -> list[JobStart]:
            passes.append(now)
            return super().choose_starts(now, *rest)

    clusters = ForecastCluster(1, CountedEASY), ForecastCluster(1, CountedEASY)
    waiting = WaitingTasks(1, {0: 10.0}, tasks=9), WaitingTasks(1, {1: 10.0}, tasks=9)
    for allowed in range(6):
        passes.clear()
        answers = iter([True] * allowed)
        run = ForwardRun(Snapshot(0.0, clusters, (), waiting), lambda _: 0.0, lambda *_: 10.0)
        assert not run.run(partial(next, answers, False))
        assert passes == [0.0, 0.0, 10.0, 10.0, 20.0][:allowed]


# Many futures


def test_quantiles_are_predictive() -> None:
    values = [float(number) for number in range(1, 40)]
    assert [quantile(values, share) for share in (0.1, 0.5, 0.9)] == [4, 20, 36]
    assert [quantile(values[:9], share) for share in (0.1, 0.5, 0.9)] == [1, 5, 9]
    assert [quantile([7.0], share) for share in (0.1, 0.5, 0.9)] == [7, 7, 7]
    assert quantile([1.0, NEVER, NEVER], 0.9) == NEVER


def test_known_run_times_leave_no_interval() -> None:
    model = learnt(*[("ann", "", 100, 40)] * 5)
    snapshot = alone(0, (RunningTask(0, 1, -10.0, 100.0, "ann"),), *_of_ann(2))
    estimates = estimate_starts(snapshot, model, seed=7)
    assert estimates is not None
    assert estimates.draws == 39
    assert estimates.tasks == ((StartEstimate(30, 30, 30),), (StartEstimate(70, 70, 70),))


def test_an_interval_is_that_of_the_samples() -> None:
    """One running job that has just begun: its end is the start of the next."""
    model = learnt(*[("ann", "", 100, seconds) for seconds in range(1, 51)])
    snapshot = alone(0, (RunningTask(0, 1, 0.0, 100.0, "ann"),), *_of_ann(1))
    estimates = estimate_starts(snapshot, model, seed=7, draws=999)
    assert estimates is not None
    early, median, late = estimates.tasks[0][0]
    assert 3 <= early <= 8
    assert 22 <= median <= 29
    assert 43 <= late <= 48
    assert estimates == estimate_starts(snapshot, model, seed=7, draws=999)
    assert estimates != estimate_starts(snapshot, model, seed=8, draws=999)


def test_the_jobs_of_a_user_are_long_or_short_together() -> None:
    """Twenty jobs in a row, each of 1 or 99 s: with independent draws the sum would hardly vary."""
    model = learnt(*[("ann", "", 100, 1)] * 25, *[("ann", "", 100, 99)] * 25)
    estimates = estimate_starts(alone(1, (), *_of_ann(21)), model, seed=7)
    assert estimates is not None
    assert estimates.tasks[20][0].early == 20
    assert estimates.tasks[20][0].late == 20 * 99


def test_too_few_futures_are_no_estimate() -> None:
    snapshot = alone(1, (), WaitingTasks(1, {0: 10.0}))  # a single pass
    for allowed, draws in ((8, None), (9, 9), (100, 39)):
        answers = iter([True] * allowed)
        estimates = estimate_starts(
            snapshot, RunTimeModel(), 1, may_continue=partial(next, answers, False)
        )
        assert (estimates and estimates.draws) == draws


def _of_ann(number: int) -> list[WaitingTasks]:
    return [WaitingTasks(1, {0: 100.0}, user="ann") for _ in range(number)]


# Licences that clusters share, and reservations


def sharing(tokens: int, *waiting: WaitingTasks, free: int = 8) -> Snapshot:
    """Two clusters with EASY; both are free. A task that runs there until 50 holds a token."""
    running = (RunningTask(0, 1, 0.0, 50.0, resources={"m": 1}),)
    clusters = (ForecastCluster(free, EASY), ForecastCluster(free, EASY))
    return Snapshot(0.0, clusters, running, waiting, {"m": tokens})


def asks(tokens: int, limit: float, *clusters: int, **fields: Any) -> WaitingTasks:
    return WaitingTasks(1, dict.fromkeys(clusters, limit), resources={"m": tokens}, **fields)


def test_a_task_that_lacks_tokens_blocks_nobody_else() -> None:
    snapshot = sharing(0, asks(1, 100, 0), WaitingTasks(8, {0: 100.0}, tasks=2))
    assert starts(snapshot, {0: 100, 1: 100}, (50.0,)) == [[50.0], [0.0, 100.0]]


def test_nobody_overtakes_in_the_line_for_tokens_whom_it_would_delay() -> None:
    """At 50 two tokens are free. Until then a task of 40 s may have one, on any cluster."""
    long = sharing(1, asks(2, 100, 0), asks(1, 100, 1))
    assert starts(long, {0: 100, 1: 100}, (50.0,)) == [[50.0], [150.0]]
    short = sharing(1, asks(2, 100, 0), asks(1, 40, 1))
    assert starts(short, {0: 100, 1: 40}, (50.0,)) == [[50.0], [0.0]]
    spare = sharing(2, asks(3, 100, 0), asks(1, 100, 1))  # of 3 tokens at 50 none is left
    assert starts(spare, {0: 100, 1: 100}, (50.0,)) == [[50.0], [150.0]]
    more = Snapshot(0.0, long.clusters, (*long.running, *long.running), long.waiting, {"m": 1})
    assert starts(more, {0: 100, 1: 100}, (50.0, 50.0)) == [[50.0], [0.0]]  # one of 3 is left


def test_a_leased_token_comes_back_at_the_end() -> None:
    snapshot = sharing(0, asks(1, 100, 0, leased=True), asks(2, 10, 1))
    assert starts(snapshot, {0: 80, 1: 10}, (50.0,)) == [[0.0], [80.0]]


def test_no_more_tasks_start_than_leave_a_reservation_its_processors() -> None:
    cluster = ForecastCluster(8, EASY, windows=(ReservedWindow(60.0, 90.0, 5),))
    snapshot = Snapshot(
        0.0, (cluster,), (), (WaitingTasks(1, {0: 100.0}, 6), WaitingTasks(5, {0: 50.0}))
    )
    # three may run into the window; the wide task ends before it; the others follow after it
    assert starts(snapshot, {0: 100, 1: 50}) == [[0.0] * 3 + [90.0] * 3, [0.0]]


def test_only_targets_have_estimates() -> None:
    snapshot = alone(1, (), WaitingTasks(1, {0: 10.0}), WaitingTasks(1, {0: 10.0}))
    estimates = estimate_starts(snapshot, RunTimeModel(), 1, targets=frozenset({1}))
    assert estimates is not None
    assert [len(tasks) for tasks in estimates.tasks] == [0, 1]


def test_the_fewest_runs_are_made_though_time_is_short() -> None:
    snapshot = alone(1, (), WaitingTasks(1, {0: 10.0}))
    estimates = estimate_starts(snapshot, RunTimeModel(), 1, may_begin=lambda: False)
    assert estimates is not None
    assert estimates.draws == MIN_DRAWS


# Tasks that might be submitted


def probed(snapshot: Snapshot, run_seconds: Mapping[int, float], *ends: float) -> list[float]:
    run = ForwardRun(snapshot, lambda index: ends[index], lambda entry, _: run_seconds[entry])
    assert run.run()
    return run.probe_starts


def test_probes_start_where_a_last_task_would_and_change_nothing() -> None:
    """Two of 4 processors run until 100. The head needs 4, so 2 are free for who ends by then."""
    probes = tuple(Probe(0, cpus, limit) for cpus in (1, 2, 4, 8) for limit in (50.0, 500.0))
    running = (RunningTask(0, 2, 0.0, 100.0),)
    bare = alone(2, running, WaitingTasks(4, {0: 100.0}))
    snapshot = bare._replace(probes=probes)
    expected = [0, 200, 0, 200, 200, 200, NEVER, NEVER]
    assert probed(snapshot, {0: 100}, 100.0) == expected
    assert starts(snapshot, {0: 100}, (100.0,)) == starts(bare, {0: 100}, (100.0,)) == [[100.0]]
    for index, probe in enumerate(probes):  # none is delayed by another; as a true last task is
        assert probed(snapshot._replace(probes=(probe,)), {0: 100}, 100.0) == [expected[index]]
        last = WaitingTasks(probe.cpus, {0: probe.limit})
        alike = starts(alone(2, running, bare.waiting[0], last), {0: 100, 1: 1}, (100.0,))
        assert alike[1] == ([] if probe.cpus == 8 else [expected[index]])


def test_a_probe_waits_for_a_reservation_to_pass() -> None:
    cluster = ForecastCluster(4, EASY, windows=(ReservedWindow(60.0, 90.0, 4),))
    snapshot = Snapshot(0.0, (cluster,), (), (), probes=(Probe(0, 1, 50.0), Probe(0, 1, 70.0)))
    assert probed(snapshot, {}) == [0, 90]
