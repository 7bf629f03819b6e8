"""Sums of ended runs: what a run counts, deadlines, quantiles of waits, local days."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from metasched.db.daily_use import day_of, find_missing
from metasched.model.daily_use import (
    MAX_NAME,
    UseKey,
    UseSums,
    correct_run,
    count_deadline,
    count_run,
    merge,
    quantile,
    wait_range,
)
from metasched.model.job import Job, State

SUBMITTED = 1_000.0
JOB = Job(id=1, submitted=SUBMITTED, estimated=60.0, cpus=4, user="ada")


def run(job: Job = JOB, **fields: object) -> UseSums:
    values = {"state": State.COMPLETED, "started": 1_100.0, "ended": 1_400.0, "node": "n[1-2]"}
    values |= {"cpu_seconds": None, "first_start": True}
    return count_run(job, **(values | fields))  # type: ignore[arg-type]


def test_a_run() -> None:
    job = structs.replace(JOB, gres={"gpu:a100": 2, "shard": 7})
    assert run(job, cpu_seconds=900.0) == UseSums(
        jobs=1,
        completed=1,
        elapsed=300.0,
        cpu_allocated=1200.0,
        cpu_used=900.0,
        cpu_measured=1200.0,
        node_seconds=600.0,
        gpu_seconds=1200.0,  # two on each of two nodes
        starts=1,
        wait=100.0,
        max_wait=100.0,
        slowdown=4 / 3,
        waits={wait_range(100.0): 1},
    )
    assert run(first_start=False).starts == 0


@pytest.mark.parametrize(
    ("state", "figure"),
    [
        *((State.COMPLETED, "completed"), (State.TIMEOUT, "timed_out")),
        *((State.CANCELLED, "cancelled"), (State.FAILED, "failed"), (State.NODE_FAIL, "failed")),
        *((State.PREEMPTED, "failed"), (State.OUT_OF_MEMORY, "failed")),
    ],
)
def test_each_state_counts_once(state: State, figure: str) -> None:
    sums = run(state=state)
    figures = ("completed", "failed", "timed_out", "cancelled")
    assert [name for name in figures if getattr(sums, name)] == [figure]


def test_the_wait_begins_at_the_begin_time_and_is_never_negative() -> None:
    assert run(structs.replace(JOB, begin=1_090.0)).wait == 10.0
    assert run(structs.replace(JOB, begin=5_000.0)).wait == 0.0
    assert run(started=900.0).wait == 0.0  # the clocks differ
    assert run(ended=1_000.0).elapsed == 0.0


def test_a_short_run_has_a_bounded_slowdown() -> None:
    assert run(started=1_020.0, ended=1_021.0).slowdown == 2.1
    assert run(started=1_000.0, ended=1_000.0).slowdown == 1.0


def test_accounting_corrects_a_run_and_nothing_else() -> None:
    before = run(first_start=False)
    after = run(first_start=False, cpu_seconds=70.0, elapsed=200.0, cpus=16)
    counted = merge((run(), correct_run(before, after)))
    assert (counted.jobs, counted.completed, counted.starts) == (1, 1, 1)
    assert (counted.elapsed, counted.cpu_allocated) == (200.0, 3200.0)
    assert (counted.cpu_used, counted.cpu_measured) == (70.0, 3200.0)
    assert counted.wait == 100.0


def test_deadlines() -> None:
    assert count_deadline(500.0, State.COMPLETED, 500.0) == UseSums(deadlines=1, met=1)
    late = UseSums(deadlines=1, missed=1, lateness=20.0, max_lateness=20.0)
    assert count_deadline(500.0, State.COMPLETED, 520.0) == late
    assert count_deadline(500.0, State.CANCELLED, 520.0) == late
    # neither met nor missed: who fails or is cancelled before it has time left
    assert count_deadline(500.0, State.FAILED, 400.0) == UseSums(deadlines=1)


def test_sums_add_up_and_the_largest_remains() -> None:
    both = merge((run(started=1_100.0), run(started=1_300.0)))
    assert (both.jobs, both.wait, both.max_wait) == (2, 400.0, 300.0)
    assert both.waits == {wait_range(100.0): 1, wait_range(300.0): 1}
    assert merge(()) == UseSums()


@given(st.lists(st.floats(0, 1e8), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 1.0]))
def test_a_quantile_is_wrong_by_a_fortieth_at_most(waits: list[float], part: float) -> None:
    counts: dict[int, int] = {}
    for wait in waits:
        counts[wait_range(wait)] = counts.get(wait_range(wait), 0) + 1
    exact = sorted(waits)[math.ceil(part * len(waits)) - 1]
    estimate = quantile(counts, part)
    assert estimate is not None
    assert estimate == 0.0 if exact <= 1.0 else estimate == pytest.approx(exact, rel=0.0251)


def test_no_quantile_without_waits() -> None:
    assert quantile({}, 0.5) is None


def test_names_of_a_key_are_cut() -> None:
    key = UseKey.of(structs.replace(JOB, account="a" * 1000), "alpha", 20260331)
    assert key == (20260331, "alpha", "ada", "a" * MAX_NAME, "", "regular")


@pytest.fixture(params=["Europe/Berlin", "Asia/Kathmandu", "America/New_York"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def test_days_are_those_of_the_zone_also_when_they_have_23_or_25_hours(zone: str) -> None:
    for year, month, day in ((2026, 3, 29), (2026, 10, 25), (2026, 3, 8), (2026, 11, 1)):
        midnight = time.mktime((year, month, day, 0, 0, 0, 0, 0, -1))
        next_midnight = time.mktime((year, month, day + 1, 0, 0, 0, 0, 0, -1))
        number = year * 10000 + month * 100 + day
        assert day_of(midnight) == day_of(next_midnight - 1) == number
        assert day_of(midnight - 1) != number != day_of(next_midnight)


@pytest.mark.parametrize("moment", [-5.0, 0.0, 1e12, 1e300, math.inf])
def test_every_time_has_a_day(moment: float) -> None:
    assert 19691231 <= day_of(moment) <= 41480101


FIRST = 20260330


def assigned(runs: list[tuple[int, int]], capacity: dict[int, int]) -> int:
    """Return how many runs find a day, by trying each day for each run."""
    if not runs:
        return 0
    (first, last), *others = runs
    best = assigned(others, capacity)
    for day in range(first, last + 1):
        if capacity.get(day):
            capacity[day] -= 1
            best = max(best, 1 + assigned(others, capacity))
            capacity[day] += 1
    return best


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=5),
    st.dictionaries(st.integers(0, 4), st.integers(0, 3)),
)
def test_missing_runs_are_those_that_no_assignment_stores(
    runs: list[tuple[int, int]], capacity: dict[int, int]
) -> None:
    days = [(FIRST + first, FIRST + first + length) for first, length in runs]
    supply = {FIRST + day: amount for day, amount in capacity.items()}
    demands = {pair: float(days.count(pair)) for pair in days}
    missing = sum(amount for *_, amount in find_missing(demands, supply, 0.5))
    assert missing == len(days) - assigned(days, supply)
