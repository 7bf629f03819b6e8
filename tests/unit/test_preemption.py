"""Policies that suspend jobs: worked schedules, what a suspended job keeps, and refusals."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest

from metasched.adapters.local.options import LocalOptions
from metasched.laboratory.simulate import metrics
from metasched.laboratory.simulate.clusters import ClusterError, Machine, SimulatedCluster
from metasched.laboratory.simulate.engine import Run, Schedule, Simulation
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry
from metasched.model.job import Job
from metasched.model.licence import LicencePool
from metasched.policies.local.preemption import PreemptibleJob, PreemptivePolicy
from metasched.policies.local.queueing import FreeResources, RunningJob, WaitingJob
from metasched.policies.local.registry import (
    POLICIES,
    WITHOUT_PREEMPTION,
    check_suspends_none,
    make_policy,
)
from metasched.policies.policy import Policy
from tests.harness.local_policies import HAS_SCIPY, PREEMPTIVE

PUSH = Policy(load="paper", pull=False)


def entry(
    number: int,
    submitted: float,
    seconds: float,
    *,
    cpus: int = 1,
    deadline: float | None = None,
    licences: Mapping[str, int] | None = None,
    true_seconds: float | None = None,
) -> WorkloadEntry:
    job = Job(
        id=number,
        submitted=submitted,
        estimated=seconds,
        cpus=cpus,
        deadline=deadline,
        licences=licences or {},
    )
    return WorkloadEntry(job, seconds if true_seconds is None else true_seconds, number)


def run(
    policy: str,
    *entries: WorkloadEntry,
    cluster: SimulatedCluster | None = None,
    parameters: Mapping[str, float | str] | None = None,
) -> Schedule:
    cluster = cluster or SimulatedCluster.of_machines("c", [Machine(1)])
    return Simulation(
        Workload("w", entries),
        [cluster],
        PUSH,
        lambda c: make_policy(policy, parameters, c.licences),
    ).run()


def spans(schedule: Schedule) -> list[list[tuple[float, float, int]]]:
    """Return (start, end, machine) of each run of each job."""
    return [[(r.start, r.end, r.machine) for r in placed.runs] for placed in schedule.jobs]


def test_a_displaced_job_goes_on_where_it_was() -> None:
    """Job 2 has a deadline and displaces job 1 after 10 s; job 1 needs 20 s more."""
    schedule = run("edf-p", entry(1, 0, 30), entry(2, 10, 5, deadline=20.0))
    assert spans(schedule) == [[(0, 10, 0), (15, 35, 0)], [(10, 15, 0)]]
    first = schedule.jobs[0]
    assert (first.start, first.end, first.wait, first.flow, first.run_time) == (0, 35, 5, 35, 30)
    without = run("edf", entry(1, 0, 30), entry(2, 10, 5, deadline=20.0))
    assert spans(without) == [[(0, 30, 0)], [(30, 35, 0)]]


def test_the_rest_of_a_job_takes_longer_on_a_slower_machine() -> None:
    """Job 1 has done half of its work on the fast machine, which only job 2 could use as well."""
    cluster = SimulatedCluster.of_machines("c", [Machine(2, 2.0), Machine(1, 1.0)])
    schedule = run(
        "edf-p", entry(1, 0, 40), entry(2, 10, 6, cpus=2, deadline=20.0), cluster=cluster
    )
    assert spans(schedule) == [[(0, 10, 0), (10, 30, 1)], [(10, 13, 0)]]


def test_a_suspended_job_returns_its_licence() -> None:
    """There are free processors, but a single copy: job 3 is given that of job 1 for 5 s.

    Job 1 resumes before job 2, which has never run.
    """
    cluster = SimulatedCluster.of_machines("c", [Machine(1), Machine(1)], licences={"l": 1})
    schedule = run(
        "edf-p",
        entry(1, 0, 30, licences={"l": 1}),
        entry(2, 5, 1, licences={"l": 1}),
        entry(3, 10, 5, deadline=20.0, licences={"l": 1}),
        cluster=cluster,
    )
    assert [[span[:2] for span in job] for job in spans(schedule)] == [
        [(0, 10), (15, 35)],
        [(35, 36)],
        [(10, 15)],
    ]
    assert metrics.licence_usage(schedule) == pytest.approx(1.0)


def test_a_job_past_its_estimate_keeps_its_progress() -> None:
    schedule = run("edf-p", entry(1, 0, 5, true_seconds=30.0), entry(2, 10, 5, deadline=20.0))
    assert spans(schedule) == [[(0, 10, 0), (15, 35, 0)], [(10, 15, 0)]]


@pytest.mark.parametrize("machines", [{}, {0: 50.0, 1: 100.0}])
def test_a_suspended_job_is_queued_with_the_time_that_is_left(machines: dict[int, float]) -> None:
    """A quarter of job 1 is left: of its estimate, and of its time on each machine."""
    seconds = machines.get(0, 100.0)
    job = WaitingJob(1, 1, 100.0, machines=machines, on_fastest=40.0)
    preemptible = PreemptibleJob(job, RunningJob(1, 1, seconds))
    left = preemptible.suspended(0.75 * seconds)
    assert (left.estimated, left.on_fastest) == (25.0, 10.0)
    assert left.machines == {machine: time / 4 for machine, time in machines.items()}


@pytest.mark.parametrize("policy", ["priority-p", "edf-p", "sjf-p", "lsf-p"])
def test_equal_jobs_do_not_displace_each_other(policy: str) -> None:
    schedule = run(policy, *[entry(n, 0.0, 10.0, deadline=50.0) for n in range(1, 5)])
    assert spans(schedule) == [[(10.0 * n, 10.0 * n + 10, 0)] for n in range(4)]


@pytest.mark.parametrize(
    ("policy", "displaced"), [("priority-p", [2]), ("edf-p", [3]), ("sjf-p", [1]), ("lsf-p", [])]
)
def test_the_last_job_of_the_order_is_displaced(policy: str, displaced: list[int]) -> None:
    """Of three running jobs, as few as it takes; the last has used its estimate up to a tenth."""
    values = [(100.0, 30.0, 5), (50.0, 40.0, 1), (60.0, 90.0, 5)]  # estimate, deadline, priority
    running = [
        PreemptibleJob(
            WaitingJob(number, 1, estimated, deadline=deadline, priority=priority),
            RunningJob(number, 1, estimated),
        )
        for number, (estimated, deadline, priority) in enumerate(values, 1)
    ]
    arrived = WaitingJob(4, 1, 20.0, deadline=20.0, priority=9)
    chosen = make_preemptive(policy).choose_changes(0.0, [arrived], running, FreeResources(0))
    assert chosen.suspended == displaced
    assert [start.id for start in chosen.starts] == ([4] if displaced else [])


def make_preemptive(name: str) -> PreemptivePolicy:
    policy = make_policy(name)
    assert isinstance(policy, PreemptivePolicy)
    return policy


def test_nothing_is_displaced_in_vain() -> None:
    """Both running jobs together do not give the processors that job 3 needs."""
    running = [PreemptibleJob(WaitingJob(n, 1, 100.0), RunningJob(n, 1, 100.0)) for n in (1, 2)]
    arrived = WaitingJob(3, 3, 20.0, deadline=20.0)
    chosen = make_preemptive("edf-p").choose_changes(0.0, [arrived], running, FreeResources(0))
    assert chosen == ([], [])


@pytest.mark.parametrize("name", PREEMPTIVE)
def test_every_preemptive_policy_starts_into_free_resources_alone(name: str) -> None:
    """Where nothing can be suspended it is a policy like the others."""
    queue = [WaitingJob(1, 2, 10.0), WaitingJob(2, 1, 10.0), WaitingJob(3, 1, 10.0)]
    starts = make_policy(name).choose_starts(0.0, queue, [RunningJob(9, 2, 50.0)], FreeResources(2))
    assert sum(queue[start.id - 1].cpus for start in starts) == 2


@pytest.mark.skipif(not HAS_SCIPY, reason="needs SciPy")
@pytest.mark.parametrize("name", ["cs-i-p", "cs-ni-p"])
def test_convergent_suspends_a_job_for_an_urgent_one(name: str) -> None:
    """Job 2 can just meet its deadline at once. The constant of running jobs prevents that."""
    entries = entry(1, 0, 100), entry(2, 10, 20, deadline=31.0)
    moderate = run(name, *entries, parameters={"overhead": 1.0})
    assert spans(moderate) == [[(0, 10, 0), (30, 120, 0)], [(10, 30, 0)]]
    fixed = run(name, *entries, parameters={"overhead": 800.0})
    assert spans(fixed) == [[(0, 100, 0)], [(100, 120, 0)]]


@pytest.mark.skipif(not HAS_SCIPY, reason="needs SciPy")
def test_the_progress_of_a_job_counts_in_the_matrix() -> None:
    """The shorter job is preferred: job 1 only after most of its work is done."""
    for arrival, suspended in ((1.0, True), (90.0, False)):
        schedule = run(
            "cs-ni-p",
            entry(1, 0, 100),
            entry(2, arrival, 50),
            parameters={"overhead": 0.0, "age_factor": 0.0},
        )
        assert bool(schedule.jobs[0].suspended_runs) == suspended


def test_usage_counts_the_runs_of_a_suspended_job() -> None:
    schedule = run("edf-p", entry(1, 0, 30), entry(2, 10, 5, deadline=20.0))
    samples = [tuple(sample)[:4] for sample in metrics.usage_over_time(schedule.jobs)]
    assert samples == [(0, 1, 1, 0), (10, 1, 1, 1), (15, 1, 1, 0), (35, 0, 0, 0)]
    figures = metrics.summary(schedule, "edf-p", 1.0)
    assert (figures["utilisation"], figures["mean_wait"]) == (1.0, 2.5)
    assert figures["mean_slowdown"] == pytest.approx((35 / 30 + 1) / 2)
    assert metrics.system_usage(schedule) == 1.0
    assert schedule.jobs[0].runs[0] == Run(0, 10, 1, 0)


def test_preemptive_policies_are_refused_where_nothing_is_suspended() -> None:
    for name, substitute in WITHOUT_PREEMPTION.items():
        assert substitute in POLICIES
        with pytest.raises(ValueError, match=f'{name} suspends running jobs.*"{substitute}"'):
            check_suspends_none(name)
    check_suspends_none("easy")
    with pytest.raises(ValueError, match="only simulated clusters can"):
        LocalOptions(cpus=1, policy="priority-p")


def test_leased_licences_are_not_suspended() -> None:
    cluster = SimulatedCluster(name="c", cpus=1)
    with pytest.raises(ClusterError, match='edf-p suspends jobs, cluster "c", but leased'):
        Simulation(
            Workload("w", (entry(1, 0, 1),)),
            [cluster],
            PUSH,
            lambda _: make_policy("edf-p"),
            licence_pools=[LicencePool(name="l", total=1)],
        )


def test_a_schedule_has_a_row_for_each_run(tmp_path: Path) -> None:
    from metasched.cli.simulate import _write_schedule

    schedule = run("edf-p", entry(1, 0, 30), entry(2, 10, 5, deadline=20.0))
    _write_schedule(tmp_path / "out.csv", schedule)
    with open(tmp_path / "out.csv", newline="") as file:
        rows = [(row["job"], row["start"], row["end"]) for row in csv.DictReader(file)]
    assert rows == [("1", "0", "10"), ("1", "15", "35"), ("2", "10", "15")]
