"""Depths of queues in random simulations: kept at each step, and no task waits beside a place."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from metasched.core.events import CoreEvent, Outcome
from metasched.core.scheduler import Core
from metasched.core.transitions import UNSTARTED
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.engine import Simulation
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry
from metasched.model.job import Job, State
from metasched.model.limits import LimitSettings, LimitTable
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy
from tests.harness.examples import examples

USERS = "abc"


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    entries, submitted = [], 0.0
    for id in range(1, draw(st.integers(1, 40)) + 1):
        submitted += draw(st.sampled_from([0.0, 0.0, 0.0, 5.0, 40.0]))
        job = Job(
            id=id,
            submitted=submitted,
            estimated=draw(st.sampled_from([10.0, 60.0])),
            cpus=draw(st.integers(1, 4)),
            user=draw(st.sampled_from(USERS)),
        )
        entries.append(WorkloadEntry(job, job.estimated, id))
    return Workload("random", tuple(entries))


def waiting_on(core: Core, cluster: str) -> Counter[str]:
    """Return the number of tasks of each user that wait on a cluster."""
    tasks = core.state.views[cluster].live_tasks.values()
    return Counter(task.job.user for task in tasks if task.state in UNSTARTED)


def check_places(core: Core, cluster: str, depth: int, before: int) -> int:
    """Check the number of waiting tasks: only idle processors let it grow beyond the depth.

    Then each user but one may have an even part, of two users or more.
    """
    waiting, info = waiting_on(core, cluster).total(), core.state.views[cluster].info
    idle = 1 if info is None else info.cpus - info.used_cpus
    assert waiting <= depth + (len(USERS) - 1) * max(depth // 2, 1), (cluster, waiting)
    assert idle > 0 or waiting <= max(depth, before), (cluster, waiting, before)
    return waiting


def check_idle_places(core: Core) -> None:
    """No task is queued that a cluster accepts, has a place for, and no limit bars."""
    for task in core.tasks.values():
        if task.state is not State.QUEUED or core.limits.shortage(task.job) is not None:
            continue
        for assessment in core.assess_clusters(task):
            assert assessment.obstacle is not None, (task.task_id, assessment)


@examples(80)
@given(
    workload=workloads(),
    depths=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    local=st.sampled_from(["fcfs", "easy", "first-fit"]),
    pull=st.booleans(),
    processors=st.integers(4, 9) | st.none(),
)
def test_places_are_kept_and_used(
    workload: Workload, depths: tuple[int, int], local: str, pull: bool, processors: int | None
) -> None:
    clusters = [
        SimulatedCluster(name="a", cpus=4, queue_depth=depths[0]),
        SimulatedCluster(name="b", cpus=3, queue_depth=depths[1]),
    ]
    simulation = Simulation(
        workload,
        clusters,
        Policy(pull=pull),
        lambda _: make_policy(local),
        limits=LimitSettings(each_user=LimitTable(processors=processors)),
    )
    core, step = simulation.core, simulation.core.step
    waiting = dict.fromkeys("ab", 0)

    def checked_step(event: CoreEvent) -> Outcome:
        outcome = step(event)
        if core.state.views:
            for name, depth in zip("ab", depths, strict=True):
                if not pull:  # a pulled task has a place beyond the depth
                    waiting[name] = check_places(core, name, depth, waiting[name])
            check_idle_places(core)
        return outcome

    setattr(core, "step", checked_step)  # noqa: B010 (a method)
    assert len(simulation.run().jobs) == len(workload.entries)
