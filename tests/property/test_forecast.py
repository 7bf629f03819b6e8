"""A forward run with the true run times gives the schedule of the simulator."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from metasched.forecast.estimates import estimate_starts
from metasched.forecast.forward_run import ForwardRun
from metasched.forecast.run_times import RunTimeModel
from metasched.forecast.snapshot import ForecastCluster, RunningTask, Snapshot, WaitingTasks
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.engine import ScheduledJob
from metasched.laboratory.simulate.settings import SimulationSettings, simulate
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry
from metasched.model.job import Job
from metasched.policies.local.registry import POLICIES
from tests.harness.examples import examples

CPUS = 8
NOW = 30.0625  # after all submissions; starts and ends are multiples of an eighth
Plan = tuple[int, int, int, float]  # submission, processors, limit, run time over limit
# policies without a memory of earlier passes
NAMES = ("easy", "fcfs", "first-fit", "sjf", "edf", "lsf", "priority")
JOBS = st.lists(
    st.tuples(
        st.integers(0, 30),  # submission
        st.integers(1, CPUS),
        st.integers(1, 40),  # limit
        st.floats(0.05, 1.0),  # of the limit
    ),
    min_size=1,
    max_size=25,
)


def snapshot_at(jobs: tuple[ScheduledJob, ...], policy: str) -> Snapshot:
    """What runs and waits at NOW, when no job starts or ends."""
    running = [job for job in jobs if job.start < NOW < job.end]
    return Snapshot(
        NOW,
        (ForecastCluster(CPUS - sum(job.cpus for job in running), POLICIES[policy]),),
        tuple(RunningTask(0, job.cpus, job.start, job.job.estimated) for job in running),
        tuple(
            WaitingTasks(
                job.cpus,
                {0: job.job.estimated},
                waiting_since=job.job.submitted,
                priority=job.priority,
            )
            for job in jobs
            if job.start > NOW
        ),
    )


def schedule_of(jobs: list[Plan], policy: str) -> tuple[ScheduledJob, ...]:
    entries = tuple(
        WorkloadEntry(
            Job(id=number, submitted=submitted, estimated=limit, cpus=cpus), limit * share, number
        )
        for number, (submitted, cpus, limit, share) in enumerate(sorted(jobs), 1)
    )
    cluster = SimulatedCluster(name="alone", cpus=CPUS)
    return simulate(Workload("jobs", entries), (cluster,), SimulationSettings(policy=policy)).jobs


@examples(150)
@given(JOBS, st.sampled_from(NAMES))
def test_true_run_times_give_the_true_starts(jobs: list[Plan], policy: str) -> None:
    scheduled = schedule_of(
        [(s, c, limit, math.ceil(share * 8) / 8) for s, c, limit, share in jobs], policy
    )
    running = [job for job in scheduled if job.start < NOW < job.end]
    waiting = [job for job in scheduled if job.start > NOW]
    run = ForwardRun(
        snapshot_at(scheduled, policy),
        lambda index: running[index].end,
        lambda entry, _: waiting[entry].run_time,
    )
    assert run.run()
    assert run.starts == [[job.start] for job in waiting]


@examples(60)
@given(JOBS, st.sampled_from(NAMES), st.sampled_from([0.25, 0.5, 1.0]))
def test_a_model_that_knows_all_gives_the_true_start_and_no_interval(
    jobs: list[Plan], policy: str, share: float
) -> None:
    """All jobs run for the same share of their limits, as all jobs before."""
    scheduled = schedule_of([(s, c, limit, share) for s, c, limit, _ in jobs], policy)
    model = RunTimeModel()
    for _ in range(10):
        model.add("", "", 1.0, share)
    estimates = estimate_starts(snapshot_at(scheduled, policy), model, 1, draws=9)
    assert estimates is not None
    true_starts = [job.start for job in scheduled if job.start > NOW]
    assert estimates.tasks == tuple(((start, start, start),) for start in true_starts)
