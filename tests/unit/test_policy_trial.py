"""Comparison of two policies on a recorded period: worked figures, groups and intervals."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metasched.errors import UserError
from metasched.laboratory.experiments.parallel_work import WorkFailed, run_at_once
from metasched.laboratory.experiments.policy_trial import (
    DAY,
    Comparison,
    Group,
    JobRun,
    PeriodRun,
    compare,
    run_policy,
)
from metasched.laboratory.experiments.policy_trial_page import render
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.recorded_workload import RecordedPeriod, RecordedTask
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry
from metasched.model.job import Job
from metasched.model.licence import LicencePool
from metasched.policies.policy import Policy

RUN = 100.0


def period(*jobs: Job) -> RecordedPeriod:
    """Two clusters of 4 processors, where each job started 5 s after its submission, on left."""
    return RecordedPeriod(
        workload=Workload("w", tuple(WorkloadEntry(job, RUN, job.id) for job in jobs)),
        tasks=tuple(
            RecordedTask(job.id, 0, "left", job.submitted, job.submitted + 5, job.submitted + 105)
            for job in jobs
        ),
        clusters=tuple(SimulatedCluster(name=name, cpus=4) for name in ("left", "right")),
        policy=Policy(),
        pools=(LicencePool(name="solver", total=2),),
        local_policies={"left": "easy", "right": "easy"},
    )


def a_job(id: int, user: str = "ada", **fields: Any) -> Job:
    fields = {"submitted": 0.0, "cpus": 2, **fields}
    return Job(id=id, estimated=RUN, user=user, **fields)


def trial(*rows: tuple[float, int, int]) -> PeriodRun:
    """Return placements of jobs 1, 2, ... as start, cluster and moves."""
    return PeriodRun(
        {
            id: JobRun(start, start + RUN, cluster, moves)
            for id, (start, cluster, moves) in enumerate(rows, 1)
        },
        {},
        0,
    )


FOUR = (
    a_job(1, deadline=150.0),
    a_job(2, "bob", licences={"solver": 2}),
    a_job(3, deadline=250.0, user_class="gold"),
    a_job(4, "bob", submitted=10.0),
)
BEFORE = trial((0.0, 0, 0), (100.0, 0, 0), (200.0, 1, 1), (10.0, 1, 0))
AFTER = trial((60.0, 0, 0), (0.0, 0, 0), (100.0, 1, 0), (10.0, 0, 1))


def compared(before: PeriodRun = BEFORE, after: PeriodRun = AFTER, *jobs: Job) -> Comparison:
    return compare(period(*(jobs or FOUR)), before, after)


def test_figures_of_the_whole_period() -> None:
    comparison = compared()
    rows = {each.figure: (each.recorded, each.before, each.after) for each in comparison.changes}
    assert rows["mean wait"] == (5.0, 75.0, 40.0)
    assert rows["longest wait"] == (5.0, 200.0, 100.0)
    assert rows["median wait"] == (5.0, 50.0, 30.0)
    assert rows["bounded slowdown"] == (1.05, 1.75, 1.4)
    assert rows["moves per job"] == (None, 0.25, 0.25)
    assert rows["missed deadlines"] == (0.0, 0.5, 0.5)  # job 3 before, job 1 after
    assert (comparison.jobs, comparison.elsewhere) == (4, 1)
    assert comparison.changes[0].change == -35.0


def test_groups_by_class_user_cluster_and_licence() -> None:
    groups = compared().groups

    def values(group: Group) -> tuple[object, ...]:
        return group.name, group.jobs, group.wait_before, group.wait_after, group.deadlines

    assert list(map(values, groups["class"])) == [
        ("regular", 3, 100 / 3, 20.0, 1),
        ("gold", 1, 200.0, 100.0, 1),
    ]
    assert list(map(values, groups["user"])) == [
        ("ada", 2, 100.0, 80.0, 2),
        ("bob", 2, 50.0, 0.0, 0),
    ]
    left, right = groups["cluster"]
    assert (left.jobs, left.jobs_after, left.wait_before, left.wait_after) == (2, 3, 50.0, 20.0)
    # 2 jobs of 2 processors for 100 s, of 4 processors until the last end at 300 s
    assert [left.use_before, left.use_after] == pytest.approx([1 / 3, 1 / 2])
    assert (left.missed_before, left.missed_after) == (0.0, 1.0)
    assert (right.jobs, right.jobs_after, right.recorded_wait) == (2, 1, None)
    [solver] = groups["licence"]
    assert values(solver) == ("solver", 1, 100.0, 0.0, 0)
    assert [solver.use_before, solver.use_after] == pytest.approx([1 / 3, 1 / 3])


def test_jobs_that_run_under_one_policy_only_are_left_out() -> None:
    before = PeriodRun({1: BEFORE.placements[1]}, {"refused by a limit": 3}, 0)
    assert compared(before).jobs == 1
    with pytest.raises(ValueError, match="no job runs under both"):
        compared(before, PeriodRun({2: AFTER.placements[2]}, {}, 0))


def test_intervals_are_over_days_and_wider_if_jobs_of_a_day_agree() -> None:
    """20 days of 10 jobs: the same 200 changes, by day or mixed."""
    arrivals = [day * DAY for day in range(20) for _ in range(10)]
    jobs = [a_job(id, submitted=arrival) for id, arrival in enumerate(arrivals, 1)]

    def interval(late: Callable[[int], bool]) -> list[float]:
        before = trial(*((arrival, 0, 0) for arrival in arrivals))
        after = trial(
            *((arrival + 100 * late(index), 0, 0) for index, arrival in enumerate(arrivals))
        )
        comparison = compared(before, after, *jobs)
        assert comparison.blocks == "20 days with arrivals"
        [mean, *_] = comparison.changes
        assert mean.change == 50.0
        assert mean.low is not None
        assert mean.high is not None
        return [mean.low, mean.high]

    by_day = interval(lambda index: index // 10 % 2 == 0)
    # each of 20 days has 0 or 100: the standard deviation of their mean is 11.2
    assert by_day == pytest.approx([50 - 22, 50 + 22], abs=4)
    assert interval(lambda index: index % 2 == 0) == [50.0, 50.0]


def test_few_days_are_divided_and_one_job_has_no_interval() -> None:
    comparison = compared()
    assert comparison.blocks == "4 parts of equally many jobs"
    gold = comparison.groups["class"][1]
    assert (gold.low, gold.high) == (None, None)
    assert compared().changes == comparison.changes  # the draws have a seed


def test_the_default_policy_runs() -> None:
    placements = run_policy(period(*FOUR), Policy()).placements
    assert sorted(placements) == [1, 2, 3, 4]
    assert all(each.end == each.start + RUN for each in placements.values())


def test_names_cannot_inject_into_the_page() -> None:
    pytest.importorskip("matplotlib")
    jobs = [a_job(1, "<script>alert(1)</script>"), a_job(2, "$x^")]
    before = trial((0.0, 0, 0), (100.0, 0, 0))
    page = render({"policy": "<b>"}, compared(before, before, *jobs), [], ["<i>note</i>"])
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<b>" not in page
    assert "<i>" not in page
    assert page.count("<img") >= 3


# Processes


def test_works_run_at_once_and_report_their_steps() -> None:
    seen: list[int] = []

    def work(progress: Callable[[int], None]) -> int:
        for _ in range(2500):
            progress(1)
        return os.getpid()

    first, second = run_at_once([work, work], seen.append)
    assert len({first, second, os.getpid()}) == 3
    assert sum(seen) == 5000
    assert run_at_once([work]) != [os.getpid()]


def test_errors_of_works_are_one_line_each() -> None:
    def refuse(_: object) -> None:
        raise UserError("no such thing; name another")

    def fail(_: object) -> None:
        raise KeyError("x")

    def die(_: object) -> None:
        os._exit(3)

    with pytest.raises(WorkFailed, match="no such thing; name another"):
        run_at_once([refuse])
    with pytest.raises(WorkFailed, match="KeyError: 'x'; please report it"):
        run_at_once([fail])
    with pytest.raises(WorkFailed, match="ended without a result"):
        run_at_once([die])


def test_an_interrupt_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    """Each child removes what it has made, as the copy of a database."""
    mark = tmp_path / "copy"

    def work(progress: Callable[[int], None]) -> None:
        mark.write_text(str(os.getpid()))
        try:
            progress(1000)
            time.sleep(600)
        finally:
            mark.unlink()

    def interrupt(_: int) -> None:
        interrupted.append(int(mark.read_text()))
        signal.raise_signal(signal.SIGINT)

    interrupted: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run_at_once([work], interrupt)
    assert not mark.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(interrupted[0], 0)
