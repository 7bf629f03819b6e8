"""Batch jobs and reservations on providers: worked and random cases, published strategies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from metasched.laboratory.experiments.admission import AdmissionCase
from metasched.laboratory.experiments.catalogue import EXPERIMENTS
from metasched.laboratory.experiments.kurowski2011 import ReservedCase
from metasched.laboratory.experiments.reserved_providers import ProviderStrategy, simulate_providers
from metasched.laboratory.experiments.static_binding import ProcessorBinding
from metasched.laboratory.simulate.cluster_specs import parse_clusters
from metasched.laboratory.simulate.engine import Schedule
from metasched.laboratory.simulate.workload import WindowRequest, Workload, WorkloadEntry
from metasched.model.job import Job
from metasched.model.reservation_request import ReservationRequest as Reservation
from tests.harness.examples import examples
from tests.harness.traces import trace


def task(id: int, submitted: float, cpus: int, estimated: float, ran: float) -> WorkloadEntry:
    limit = max(estimated, ran)  # if the log let it run longer
    return WorkloadEntry(Job(id=id, submitted=submitted, estimated=limit, cpus=cpus), ran, id)


def with_windows(
    tasks: Sequence[WorkloadEntry], windows: dict[int, Reservation]
) -> Iterator[WorkloadEntry]:
    for entry in tasks:
        if (wanted := windows.get(entry.job.id)) is not None:
            duration = wanted.min_duration
            slack = wanted.deadline - wanted.ready - duration
            wish = WindowRequest(
                entry.job.submitted, wanted.ready, duration, entry.job.cpus, slack, or_later=True
            )
            entry = entry._replace(window=wish)
        yield entry


def run(
    tasks: Sequence[WorkloadEntry],
    windows: dict[int, Reservation],
    clusters: str = "4",
    seed: int = 0,
    reserve: Literal["earliest", "first"] = "first",
    **options: Any,
) -> Schedule:
    workload = Workload("by hand", tuple(with_windows(tasks, windows)))
    strategy = ProviderStrategy(reserve=reserve, **options)
    return simulate_providers(workload, parse_clusters(clusters), strategy, seed)


def starts(run: Schedule) -> list[tuple[float, int]]:
    return [(placed.start, placed.cluster) for placed in run.jobs]


def test_a_batch_job_never_runs_into_a_reservation_by_its_limit() -> None:
    tasks = [
        task(1, 0, 3, 10, 10),
        task(2, 1, 2, 30, 5),
        task(3, 1, 2, 19, 5),
        task(4, 1, 1, 99, 9),
    ]
    windows = {1: Reservation.fixed(3, 20, 30)}
    # job 2 would overlap the window and waits for its end; 3 ends before it; 4 fits beside it
    assert starts(run(tasks, windows)) == [(20, 0), (30, 0), (1, 0), (1, 0)]


def test_what_ends_before_its_limit_makes_room_at_once() -> None:
    tasks = [task(1, 0, 4, 100, 7), task(2, 1, 4, 10, 10)]
    assert starts(run(tasks, {})) == [(0, 0), (7, 0)]


def test_a_window_that_is_taken_is_late_and_not_refused() -> None:
    tasks = [task(1, 0, 4, 50, 50), task(2, 1, 1, 10, 10)]
    windows = {2: Reservation.fixed(1, 20, 30)}
    assert starts(run(tasks, windows)) == [(0, 0), (50, 0)]


def test_batch_goes_where_the_fewest_wait_and_a_partition_is_kept() -> None:
    tasks = [task(id, 0, 2, 10, 10) for id in range(1, 6)]
    assert starts(run(tasks, {}, "2,2")) == [(0, 0), (0, 1), (10, 0), (10, 1), (20, 0)]
    tasks = [
        entry._replace(job=structs.replace(entry.job, clusters=(f"c{1 if number == 0 else 2}",)))
        for number, entry in enumerate(tasks)
    ]
    static = starts(run(tasks, {1: Reservation.fixed(2, 5, 15)}, "2,2"))
    assert static == [(5, 0), (0, 1), (10, 1), (20, 1), (30, 1)]


def test_what_arrives_in_a_period_is_decided_at_its_end_reservations_first_or_in_turn() -> None:
    tasks = [task(1, 0, 4, 5, 5), task(2, 1, 4, 20, 20), task(3, 2, 4, 10, 10)]
    windows = {3: Reservation.fixed(4, 12, 22)}
    # at 0 only job 1 is decided; at 10 job 2 would overlap the window of job 3
    assert starts(run(tasks, windows, period=10)) == [(0, 0), (22, 0), (12, 0)]
    in_turn = starts(run(tasks, windows, period=10, reserved_first=False))
    assert in_turn == [(0, 0), (10, 0), (30, 0)]


def test_the_largest_has_its_turn_first_and_goes_round_a_reservation_too() -> None:
    tasks = [
        task(1, 0, 4, 10, 10),
        task(2, 1, 1, 5, 5),
        task(3, 2, 2, 9, 9),
        task(4, 3, 3, 5, 5),
        task(5, 4, 3, 10, 10),
    ]
    windows = {5: Reservation.fixed(3, 20, 30)}
    # at 10 jobs 2 and 3 fit, or 4 and 2; the remaining job would overlap the window at 20
    assert [start for start, _ in starts(run(tasks, windows))] == [0, 10, 10, 30, 20]
    largest = run(tasks, windows, largest_first=True)
    assert [start for start, _ in starts(largest)] == [0, 10, 30, 10, 20]


def test_a_window_that_has_passed_when_it_is_decided_is_late() -> None:
    tasks = [task(1, 0, 1, 5, 5), task(2, 1, 4, 5, 5)]
    for windows, start in (
        (Reservation.fixed(4, 3, 8), 10),
        (Reservation.flexible(4, 5, 3, 20), 10),
        (Reservation.flexible(4, 5, 12, 20), 12),
    ):
        assert starts(run(tasks, {2: windows}, period=10)) == [(0, 0), (start, 0)]


def windows_begin(
    tasks: list[WorkloadEntry], requested: dict[int, tuple[float, float]]
) -> list[list[float]]:
    """Return the starts of tasks on two processors, for each binding."""
    windows = {id: Reservation.fixed(1, *window) for id, window in requested.items()}
    return [
        [start for start, _ in starts(run(tasks, windows, "2", binding=binding))]
        for binding in get_args(ProcessorBinding)
    ]


def test_a_window_that_names_leave_no_room_for_and_amounts_do() -> None:
    requested = {1: (0.0, 1.0), 2: (2.0, 3.0), 3: (0.0, 2.0), 4: (1.0, 3.0)}
    tasks = [task(id, 0, 1, end - start, end - start) for id, (start, end) in requested.items()]
    # with fixed processors, neither is free for all of window 4: the first two windows share one
    assert windows_begin(tasks, requested) == [[0, 2, 0, 1], [0, 2, 0, 2], [0, 2, 0, 2]]


def test_batch_jobs_apart_take_the_processors_that_reservations_want_last() -> None:
    tasks = [task(1, 0, 1, 10, 10), task(2, 0, 1, 10, 10), task(3, 1, 1, 10, 10)]
    # kept apart, the batch job and task 2 occupy both processors, though they could share one
    result = windows_begin(tasks, {2: (10.0, 20.0), 3: (5.0, 15.0)})
    assert result == [[0, 10, 5], [0, 10, 5], [0, 10, 10]]


def test_what_ends_before_its_limit_gives_its_own_processors_back() -> None:
    tasks = [task(1, 0, 1, 50, 4), task(2, 0, 1, 50, 50), task(3, 1, 1, 9, 9), task(4, 5, 1, 9, 9)]
    for binding in get_args(ProcessorBinding):
        result = run(tasks, {4: Reservation.fixed(1, 20, 29)}, "2", binding=binding)
        assert [start for start, _ in starts(result)] == [0, 0, 4, 20]


@st.composite
def days(draw: st.DrawFn) -> tuple[list[WorkloadEntry], dict[int, Reservation]]:
    tasks, windows, now = [], {}, 0
    for id in range(1, draw(st.integers(1, 25)) + 1):
        now += draw(st.integers(0, 10))
        cpus, estimated = draw(st.integers(1, 4)), draw(st.integers(1, 30))
        tasks.append(task(id, now, cpus, estimated, draw(st.integers(1, 40))))
        if draw(st.booleans()):
            ready, slack = now + draw(st.integers(0, 40)), draw(st.integers(0, 20))
            ran = tasks[-1].run_time
            windows[id] = Reservation.flexible(cpus, ran, ready, ready + ran + slack)
    return tasks, windows


@examples(200)
@given(
    day=days(),
    seed=st.integers(0, 9),
    period=st.sampled_from([0, 7]),
    first=st.booleans(),
    binding=st.sampled_from(get_args(ProcessorBinding)),
)
def test_never_more_than_there_is_and_each_reservation_is_kept(
    day: tuple[list[WorkloadEntry], dict[int, Reservation]],
    seed: int,
    period: float,
    first: bool,
    binding: ProcessorBinding,
) -> None:
    tasks, windows = day
    result = run(
        tasks,
        windows,
        "4,4",
        seed,
        "earliest",
        period=period,
        reserved_first=first,
        binding=binding,
    )
    assert [placed.job.id for placed in result.jobs] == [t.job.id for t in tasks]
    for provider in (0, 1):
        on_provider = [placed for placed in result.jobs if placed.cluster == provider]
        for moment in {placed.start for placed in on_provider}:
            assert sum(p.cpus for p in on_provider if p.start <= moment < p.end) <= 4
    for placed in result.jobs:
        window = windows.get(placed.job.id)
        assert placed.end - placed.start == placed.entry.run_time
        assert placed.start >= (placed.job.submitted if window is None else window.ready)


# The published experiments


def test_every_row_compares_its_strategies_on_the_same_reservations() -> None:
    for name in (
        "reservation-shares",
        "reservation-strategies",
        "reservation-windows",
        "reservation-periods",
        "reservation-orders",
        "reservation-binding",
        "reservation-admission",
    ):
        experiment = EXPERIMENTS[name]
        cases = experiment.cases()
        assert {case.column for case in cases} >= {experiment.baseline}
        for case in cases:
            assert set(case.published) <= set(experiment.figures)


def test_more_hours_are_booked_where_units_are_chosen_late() -> None:
    """Measured with 16 units and a demand of 80% of the hours, for each of three seeds."""
    experiment = EXPERIMENTS["reservation-admission"]
    late, early = (
        AdmissionCase("", binding, 16, 0.8) for binding in get_args(ProcessorBinding)[:2]
    )
    assert late.scenario(1) == early.scenario(1) != late.scenario(2)
    booked = [[experiment.figures["booked"](c.run(s)) for s in range(1, 4)] for c in (late, early)]
    assert all(larger > smaller for larger, smaller in zip(*booked, strict=True))
    refused = [experiment.figures["refused"](case.run(1)) for case in (late, early)]
    assert [round(share, 3) for share in refused] == [0.216, 0.227]


@pytest.mark.slow("simulates the whole log for its waits, then 36 schedules")
@pytest.mark.no_cover
@pytest.mark.timeout(900)  # simulates the whole log for its waits
def test_static_is_the_worst_and_priority_beats_the_earliest_in_the_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The robust orderings of Kurowski et al. 2011, Table 6, on 12 sets of reservations."""
    monkeypatch.setenv("METASCHED_TRACES", str(trace("SDSC-SP2.swf.gz").parent))
    experiment = EXPERIMENTS["reservation-strategies"]
    flow = {
        column: [
            experiment.figures["F"](ReservedCase("", column, "68000-69000", 0.3).run(seed))
            for seed in range(1, 13)
        ]
        for column in ("priority", "MCT", "static")
    }
    means = [sum(values) / len(values) for values in flow.values()]
    assert all(better < worse for better, worse in pairwise(means)), means
