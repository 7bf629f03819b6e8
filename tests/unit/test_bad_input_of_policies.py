"""What every local policy does with bad input: nothing queued, nothing that fits, bad estimates."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import pytest

from metasched.laboratory.simulate.cluster_specs import parse_clusters
from metasched.laboratory.simulate.clusters import ClusterError, Machine, SimulatedCluster
from metasched.laboratory.simulate.engine import Simulation
from metasched.laboratory.simulate.swf import read_trace
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry, from_trace
from metasched.model.job import Job
from metasched.policies.local.exclusion import check_starts
from metasched.policies.local.queueing import FreeResources, RunningJob, WaitingJob
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy
from tests.harness.local_policies import LOCAL_POLICIES

MACHINES = [Machine(4, 2.0), Machine(2, 1.0), Machine(2, 1.0)]
# these stop at the first job that does not fit: a reservation needs an end, which there is none
IN_ORDER = {"fcfs"}


def entries(factor: float) -> tuple[WorkloadEntry, ...]:
    """Return forty jobs, whose estimates are their run times times `factor` for two of three."""
    draw = Random(3)
    return tuple(
        WorkloadEntry(
            Job(
                id=number,
                submitted=number * 2.0,
                estimated=seconds * (factor if number % 3 else 1.0),
                cpus=draw.randint(1, 4),
                deadline=None if number % 4 == 0 else number * 2.0 + draw.uniform(1, 200),
                licences={"l": 1} if number % 5 == 0 else {},
            ),
            seconds,
            number,
        )
        for number, seconds in enumerate((draw.uniform(1, 40) for _ in range(40)), 1)
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("factor", [0.01, 100.0])
@pytest.mark.parametrize("name", LOCAL_POLICIES)
def test_estimates_wrong_by_a_hundred_lose_no_job_and_no_work(
    name: str, factor: float, shared: bool
) -> None:
    cluster = SimulatedCluster.of_machines("c", MACHINES, shared=shared, licences={"l": 1})
    jobs = entries(factor)
    schedule = Simulation(
        Workload("w", jobs),
        [cluster],
        Policy(load="paper", pull=False),
        lambda c: make_policy(name, licences=c.licences),
    ).run()
    assert {p.job.id for p in schedule.jobs} == {entry.job.id for entry in jobs}
    for placed, entry in zip(schedule.jobs, jobs, strict=True):
        done = sum((r.end - r.start) * cluster.machines[r.machine].benchmark for r in placed.runs)
        assert done == pytest.approx(entry.run_time)


@pytest.mark.parametrize("name", LOCAL_POLICIES)
def test_without_jobs_nothing_starts(name: str) -> None:
    for free in (FreeResources(4, {"l": 1}), FreeResources(4, {}, (2, 2), shared=False)):
        policy = make_policy(name, licences={"l": 1})
        assert list(policy.choose_starts(0.0, [], [], free)) == []
        assert list(policy.choose_starts(10.0, [], [], free)) == []


@pytest.mark.parametrize("name", LOCAL_POLICIES)
def test_of_jobs_that_fit_nowhere_only_strict_order_delays_others(name: str) -> None:
    """The daemon and the simulator place no such job; a cluster may shrink below a queued one."""
    policy = make_policy(name)
    queue = [WaitingJob(1, 99, 10.0), WaitingJob(2, 2, 10.0)]
    started = [start.id for start in policy.choose_starts(0.0, queue, [], FreeResources(4))]
    assert started == ([] if name in IN_ORDER else [2])


@pytest.mark.parametrize("name", LOCAL_POLICIES)
def test_a_resource_of_which_more_is_held_than_there_is_delays_no_other_job(name: str) -> None:
    """An operator has taken GPUs away from a cluster whose jobs have them."""
    policy = make_policy(name)
    queue, running = [WaitingJob(1, 1, 10.0)], [RunningJob(9, 1, 100.0, {"gpu": 2})]
    free = FreeResources(2, {"gpu": -1})
    starts = policy.choose_starts(0.0, queue, running, free)
    assert [start.id for start in starts] == [1]
    check_starts(starts, queue, free)


@pytest.mark.parametrize("name", ["easy", "edf", "tabu"])
def test_a_trace_without_estimates_takes_the_run_times(name: str, tmp_path: Path) -> None:
    trace = tmp_path / "t.swf"
    rows = [(number, number, 10 * number, 2, wanted) for number, wanted in enumerate((-1, 0, 25))]
    trace.write_text(
        "; MaxProcs: 4\n"
        + "".join(
            f"{number + 1} {submit} -1 {run} {cpus} -1 -1 {cpus} {wanted} -1 1 1 1 -1 -1 -1 -1 -1\n"
            for number, submit, run, cpus, wanted in rows
        )
    )
    workload = from_trace("t", read_trace(trace), False)
    assert [entry.job.estimated for entry in workload.entries[1:]] == [10.0, 25.0]
    assert workload.entries[0].job.estimated > 0
    schedule = Simulation(
        workload,
        [SimulatedCluster(name="c", cpus=4)],
        Policy(load="paper", pull=False),
        lambda c: make_policy(name),
    ).run()
    assert [p.run_time for p in schedule.jobs] == [0.0, 10.0, 20.0]


@pytest.mark.parametrize("benchmark", ["0", "-1.0", "nan", "inf"])
def test_a_machine_without_speed_is_refused(benchmark: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        f'[[cluster]]\nname = "a"\n[[cluster.machine]]\ncpus = 4\nbenchmark = {benchmark}\n'
    )
    with pytest.raises(ClusterError, match=r"benchmark = .*cluster 1, \[cluster.machine\]; write"):
        parse_clusters(str(path))


@pytest.mark.parametrize("name", ["fb-mod", "fb-unmod"])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"licence": -1.0}, "licence is -1.0; it must be 0 or more"),
        ({"boost": math.nan}, "boost is nan; it must be 0 or more"),
        ({"least": math.inf}, "least is inf; it must be 0 or more"),
        (
            dict.fromkeys(("age_factor", "least", "most", "licence", "boost"), 0.0),
            "all weights are 0",
        ),
    ],
)
def test_bad_weights_of_flexible_backfilling(
    name: str, weights: dict[str, float | str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_policy(name, weights)
