"""Pulls: what a failure bars, and that pulled jobs start at once where the plan is known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from metasched.core.events import CoreEvent, Outcome, Withdraw
from metasched.core.promising_groups import PromisingGroups
from metasched.core.tasks import Task
from metasched.core.unstarted_index import UnstartedIndex
from metasched.laboratory.simulate.engine import Simulation
from metasched.laboratory.simulate.manager import SimulatedManager
from metasched.laboratory.simulate.synthetic import TWO_LEVEL
from metasched.model.cluster import ClusterInfo, HeadPlan, NodeCapacity, Partition
from metasched.model.job import Job
from metasched.policies.eligible import fits_partition, take_nodes
from metasched.policies.local.queueing import WaitingJob
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy
from metasched.policies.pull import PullCapacity
from metasched.policies.pull_evidence import PullEvidence, needs_at_least
from tests.harness.examples import examples

amounts = st.sampled_from([None, 1, 2, 3])
jobs = st.builds(
    lambda tasks, cpus_per_task, **fields: Job(
        id=1, submitted=0.0, tasks=tasks, cpus=tasks * cpus_per_task, **fields
    ),
    tasks=st.integers(1, 4),
    cpus_per_task=st.integers(1, 3),
    estimated=st.sampled_from([10.0, 20.0, 40.0]),
    memory=amounts,
    memory_per_cpu=amounts,
    exclusive=st.booleans(),
    licences=st.dictionaries(st.sampled_from("ab"), st.integers(1, 2)),
    gres=st.dictionaries(st.sampled_from(["gpu"]), st.integers(1, 2)),
    constraint=st.sampled_from([None, "fast"]),
    partition=st.sampled_from([None, "long"]),
)
nodes = st.builds(
    lambda count, cpus, used, memory, taken, gpus, features: NodeCapacity(
        count, cpus, max(cpus - used, 0), memory, memory and max(memory - taken, 0),
        {"gpu": gpus}, {"gpu": gpus}, features,
    ),
    count=st.integers(1, 3),
    cpus=st.integers(1, 6),
    used=st.integers(0, 3),
    memory=st.sampled_from([None, 3, 9]),
    taken=st.integers(0, 3),
    gpus=st.integers(0, 2),
    features=st.sampled_from([(), ("fast",)]),
)  # fmt: skip
partitions = st.lists(nodes, min_size=1, max_size=4).map(
    lambda groups: Partition("main", tuple(groups), default=True)
)

head_plans = st.none() | st.builds(
    lambda start, partition, copies: HeadPlan(start, (partition,), {"a": copies}),
    start=st.sampled_from([0.0, 20.0, 30.0]),
    partition=partitions,
    copies=st.integers(0, 2),
)


@examples(300)
@given(jobs, jobs, partitions)
def test_where_a_job_fits_a_job_that_needs_less_fits(
    more: Job, less: Job, partition: Partition
) -> None:
    more, less = (structs.replace(job, partition=None) for job in (more, less))
    if needs_at_least(more, less) and fits_partition(more, partition, only_free=True):
        assert fits_partition(less, partition, only_free=True)


@examples(300)
@given(jobs, jobs, jobs)
def test_a_bar_covers_what_a_covered_job_is_covered_by(first: Job, second: Job, third: Job) -> None:
    assert needs_at_least(first, first)
    if needs_at_least(third, second) and needs_at_least(second, first):
        assert needs_at_least(third, first)


@examples(300)
@given(jobs, jobs, jobs)
def test_a_failure_bars_larger_requests_until_such_a_job_ends(
    failed: Job, other: Job, ended: Job
) -> None:
    evidence = PullEvidence()
    evidence.record_failure(failed, "", 4, 0.0, [])
    assert evidence.bars_job(failed)
    if needs_at_least(other, failed) and other.estimated >= failed.estimated:
        assert evidence.bars_job(other)
    evidence.record_end(ended)
    assert evidence.bars_job(failed) is not needs_at_least(ended, failed)


@examples(300)
@given(st.lists(jobs, min_size=1, max_size=6), partitions)
def test_jobs_that_are_placed_one_after_another_use_no_node_twice(
    placed: list[Job], partition: Partition
) -> None:
    """Counted per group of equal nodes: processors and memory never go below zero."""
    size = sum(group.count for group in partition.nodes)
    for job in placed:
        if not fits_partition(job, partition, only_free=True):
            continue
        remaining = take_nodes(job, partition)
        taken = partition.free_cpus - remaining.free_cpus
        assert taken == job.cpus or (job.exclusive and taken >= job.cpus)
        assert sum(group.count for group in remaining.nodes) == size
        for group in remaining.nodes:
            assert group.free_cpus >= 0
            assert group.free_memory is None or group.free_memory >= 0
            assert min(group.free_gres.values(), default=0) >= 0
        partition = remaining


@pytest.mark.parametrize(
    ("policy", "failures"), [("easy", 0), ("fb-unmod", 1), ("fcfs", 2), ("conservative", 2)]
)
def test_pulls_between_machines_with_licences_start_at_once(policy: str, failures: int) -> None:
    """Pasquali 2008, Table 6, with a tenth of its machines."""
    small = replace(TWO_LEVEL, machines=(12, 6, 3, 2), jobs=300, inter_arrival=40)
    workload, clusters = small.generate("table6", 1)
    schedule = Simulation(workload, clusters, Policy(), lambda _: make_policy(policy)).run()
    assert 20 < schedule.pulls_started <= schedule.pulls
    assert schedule.pulls <= sum(job.moves for job in schedule.jobs)
    assert schedule.pulls - schedule.pulls_started <= failures


def test_no_simulated_listing_pulls_a_task_that_has_started() -> None:
    """Its start is reported before that listing."""
    small = replace(TWO_LEVEL, machines=(12, 6, 3, 2), jobs=300, inter_arrival=20)
    workload, clusters = small.generate("table6", 3)
    simulation = Simulation(workload, clusters, Policy(), lambda _: make_policy("easy"))
    step, withdrawals = simulation.core.step, 0

    def count_withdrawals(event: CoreEvent) -> Outcome:
        nonlocal withdrawals
        outcome = step(event)
        withdrawals += sum(isinstance(action, Withdraw) for action in outcome.actions)
        return outcome

    simulation.core.step = count_withdrawals  # type: ignore[method-assign]
    schedule = simulation.run()
    assert 20 < withdrawals == sum(job.moves for job in schedule.jobs)


@pytest.mark.parametrize("policy", ["easy", "fair-share", "fb-mod", "fb-unmod"])
def test_the_reservation_of_a_policy_is_the_plan_that_a_new_pass_would_make(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = Counter[bool]()

    class Manager(SimulatedManager):
        def _plan_head(self, head: WaitingJob, now: float) -> HeadPlan:
            plan, reservation = super()._plan_head(head, now), self._reservation
            plans[reservation is not None] += 1
            self._reservation = None
            assert super()._plan_head(head, now) == plan
            self._reservation = reservation
            return plan

    monkeypatch.setattr("metasched.laboratory.simulate.engine.SimulatedManager", Manager)
    small = replace(TWO_LEVEL, machines=(12, 6, 3, 2), jobs=200, inter_arrival=40)
    workload, clusters = small.generate("table6", 1)
    Simulation(workload, clusters, Policy(), lambda _: make_policy(policy)).run()
    assert plans[True] > 10


@examples(200)
@given(
    st.lists(
        st.tuples(
            st.lists(jobs, max_size=3),  # pending elsewhere from now on
            st.integers(0, 3),  # of all, how many of the oldest have left
            st.one_of(
                st.none(), st.tuples(partitions, st.integers(0, 3), st.booleans(), head_plans)
            ),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_a_check_of_what_has_changed_finds_what_a_check_of_all_groups_finds(
    steps: list[tuple[list[Job], int, tuple[Partition, int, bool, HeadPlan | None] | None]],
) -> None:
    """None: a listing without changes."""
    index, promising, waiting = UnstartedIndex(), PromisingGroups("here"), list[Task]()
    info = ClusterInfo(0, 0, ())
    for number, (added, removed, listing) in enumerate(steps):
        for job in added:
            job = structs.replace(job, id=len(waiting) + 100 * number, partition=None)
            waiting.append(Task(job, 0, 1, 0.0))
            index.add(waiting[-1], "there")
        for task in waiting[:removed]:
            index.remove(task)
        del waiting[:removed]
        if listing is not None:
            partition, copies, blocked, plan = listing
            cpus = sum(group.count * group.cpus for group in partition.nodes)
            info = ClusterInfo(
                cpus,
                cpus - partition.free_cpus,
                (partition,),
                queue_head=(cpus, 100.0) if blocked else None,
                running_jobs=((15.0, cpus - partition.free_cpus),),
                free_licences={"a": copies},
                head_plan=plan,
            )
        for group in index.groups:
            limits = [task.job.time_limit or task.job.estimated for _, _, _, task in group.tasks]
            assert group.shortest == min(limits)
        capacity = PullCapacity(info, 0.0)
        expected = [g for g in index.groups if capacity.can_start(g.job, g.shortest)]
        planned = promising.plan_check(info, index)
        pulled = [] if planned is None else promising.check(planned, capacity)
        assert {id(group) for group in pulled} == {id(group) for group in expected}
