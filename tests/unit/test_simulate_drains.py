"""Drains in simulations: worked examples."""

from __future__ import annotations

from metasched.core.events import ClusterDrained, ClusterResumed
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.engine import NEVER_STARTED, Schedule, Simulation
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry
from metasched.model.job import Job
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy

RUN = 100.0  # seconds of each job
ORIGIN = 1_000.0


def run(
    *drains: ClusterDrained | ClusterResumed, clusters: int = 2, jobs: int = 4, **fields: object
) -> Schedule:
    """Run jobs that fill a cluster each, a second apart, on equal clusters."""
    entries = [
        WorkloadEntry(
            Job(id=id, submitted=ORIGIN + id, estimated=RUN, cpus=4, **fields),  # type: ignore[arg-type]
            RUN,
            id,
        )
        for id in range(1, jobs + 1)
    ]
    return Simulation(
        Workload("drained", tuple(entries)),
        [SimulatedCluster(name=f"c{number}", cpus=4) for number in range(clusters)],
        Policy(),
        lambda cluster: make_policy("easy", licences=cluster.licences),
        drains=drains,
    ).run()


def places(schedule: Schedule) -> dict[int, tuple[int, float]]:
    return {each.job.id: (each.cluster, each.start - ORIGIN) for each in schedule.jobs}


def test_nothing_starts_on_a_drained_cluster() -> None:
    """Its running job ends; what is pending there goes behind the queue of the other one."""
    assert places(run()) == {1: (0, 1.0), 2: (1, 2.0), 3: (0, 101.0), 4: (1, 102.0)}
    drained = ClusterDrained(ORIGIN + 50, "c0")
    assert places(run(drained)) == {1: (0, 1.0), 2: (1, 2.0), 3: (1, 202.0), 4: (1, 102.0)}


def test_a_drain_before_the_first_job_and_its_end() -> None:
    """A job that is pending elsewhere is pulled as soon as it may be."""
    acts = ClusterDrained(0.0, "c0"), ClusterResumed(ORIGIN + 150, "c0")
    assert places(run(*acts)) == {1: (1, 1.0), 2: (1, 101.0), 3: (0, 150.0), 4: (1, 201.0)}


def test_the_only_cluster_is_drained_for_a_time() -> None:
    acts = ClusterDrained(ORIGIN + 50, "c0"), ClusterResumed(ORIGIN + 150, "c0")
    assert places(run(*acts, clusters=1, jobs=2)) == {1: (0, 1.0), 2: (0, 150.0)}


def test_a_drain_without_end_keeps_jobs_waiting() -> None:
    schedule = run(ClusterDrained(ORIGIN + 50, "c0"), clusters=1, jobs=3)
    assert places(schedule) == {1: (0, 1.0)}
    assert schedule.dropped == {NEVER_STARTED: 2}
