"""Limits in random simulations: kept at all times, and every accepted job runs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.engine import REFUSED, Simulation
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry
from metasched.model.job import Job
from metasched.model.limits import LimitSettings, LimitTable
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy
from tests.harness.examples import examples

CLUSTERS = (SimulatedCluster(name="a", cpus=4), SimulatedCluster(name="b", cpus=3))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    entries, submitted = [], 0.0
    for id in range(1, draw(st.integers(1, 25)) + 1):
        submitted += draw(st.sampled_from([0.0, 0.0, 5.0, 40.0]))
        job = Job(
            id=id,
            submitted=submitted,
            estimated=draw(st.sampled_from([10.0, 60.0])),
            cpus=draw(st.integers(1, 4)),
            user=draw(st.sampled_from("ab")),
        )
        entries.append(WorkloadEntry(job, job.estimated, id))
    return Workload("random", tuple(entries))


@examples(60)
@given(
    workloads(),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 6) | st.none(),
    st.sampled_from(["easy", "first-fit"]),
    st.sampled_from([Policy(), Policy(pull=False), Policy(send="late")]),
)
def test_limits_hold_at_all_times(
    workload: Workload,
    processors: int,
    running: int,
    open_tasks: int | None,
    local: str,
    policy: Policy,
) -> None:
    limits = LimitSettings(
        each_user=LimitTable(processors=processors, open_tasks=open_tasks),
        users={"b": LimitTable(running=running)},
    )
    schedule = Simulation(
        workload,
        CLUSTERS,
        policy,
        lambda _: make_policy(local),
        limits=limits,
    ).run()
    assert len(schedule.jobs) + schedule.dropped.get(REFUSED, 0) == len(workload.entries)
    for at in {time for placed in schedule.jobs for time in (placed.start, placed.job.submitted)}:
        for user in "ab":
            own = [placed for placed in schedule.jobs if placed.job.user == user]
            now_running = [placed for placed in own if placed.start <= at < placed.end]
            assert sum(placed.cpus for placed in now_running) <= processors
            assert user == "a" or len(now_running) <= running
            if open_tasks is not None:
                is_open = [placed for placed in own if placed.job.submitted <= at < placed.end]
                assert len(is_open) <= open_tasks
