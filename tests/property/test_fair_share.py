"""Shares of a backlog in simulation: what each user gets is what the tree gives him."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.engine import Schedule, Simulation
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry
from metasched.model.fair_share import FairShareSettings, ShareAccount, ShareTree
from metasched.model.job import Job
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy
from tests.harness.examples import examples

RUN = 100.0  # seconds of each job on a processor of benchmark 1
UNEQUAL = (
    SimulatedCluster(name="large", cpus=8, queue_depth=4),
    SimulatedCluster(name="fast", cpus=3, benchmark=2.0, queue_depth=4),
)


def backlog(users: Mapping[str, int], cpus: Mapping[str, int] | None = None) -> Workload:
    """Return jobs of these users, all submitted at once, one user after the other."""
    owners = [user for user, number in users.items() for _ in range(number)]
    widths = cpus or {}
    jobs = [
        Job(id=id, submitted=0.0, estimated=RUN, cpus=widths.get(user, 1), user=user)
        for id, user in enumerate(owners, 1)
    ]
    return Workload("backlog", tuple(WorkloadEntry(job, RUN, job.id) for job in jobs))


def simulated(
    workload: Workload, tree: ShareTree, clusters: tuple[SimulatedCluster, ...] = UNEQUAL
) -> Schedule:
    return Simulation(
        workload,
        clusters,
        Policy(age=1e9),  # waiting raises no priority
        lambda cluster: make_policy("easy", licences=cluster.licences),
        fair_share=FairShareSettings(half_life=1e6, tree=tree),
    ).run()


def work_until(schedule: Schedule, time: float) -> Counter[str]:
    """Return the work (processor-seconds x benchmark) of each user until a time."""
    work: Counter[str] = Counter()
    for placed in schedule.jobs:
        seconds = max(min(placed.end, time) - placed.start, 0.0)
        speed = schedule.clusters[placed.cluster].benchmark
        work[placed.job.user] += seconds * placed.cpus * speed  # type: ignore[assignment]
    return work


def backlogged_until(schedule: Schedule) -> float:
    """Return when the first user has no job left to start."""
    last: dict[str, float] = {}
    for placed in schedule.jobs:
        last[placed.job.user] = max(last.get(placed.job.user, 0.0), placed.start)
    return min(last.values())


@pytest.mark.parametrize("widths", [{}, {"ada": 2}], ids=["equal", "ada wide"])
def test_two_users_at_two_to_one_over_two_unequal_clusters(widths: dict[str, int]) -> None:
    """Ada submits all of her jobs before bob."""
    workload = backlog({"ada": 300, "bob": 300}, widths)
    schedule = simulated(workload, ShareTree(users={"ada": 2.0, "bob": 1.0}))
    assert len(schedule.jobs) == 600
    work = work_until(schedule, backlogged_until(schedule))
    assert work["ada"] / work.total() == pytest.approx(2 / 3, rel=0.05)


def test_without_shares_users_are_equal() -> None:
    schedule = simulated(backlog({"ada": 200, "bob": 200, "eve": 200}), ShareTree())
    work = work_until(schedule, backlogged_until(schedule))
    assert all(part / work.total() == pytest.approx(1 / 3, rel=0.05) for part in work.values())


@st.composite
def trees(draw: st.DrawFn) -> tuple[ShareTree, dict[str, float]]:
    """Draw a tree of two levels, with the share of each user."""
    weights = st.integers(1, 4).map(float)
    accounts, shares = [], {}
    for name in range(draw(st.integers(1, 3))):
        users = {f"u{name}{user}": draw(weights) for user in range(draw(st.integers(1, 2)))}
        accounts.append(ShareAccount(name=f"a{name}", weight=draw(weights), users=users))
    total = sum(account.weight for account in accounts)
    for account in accounts:
        for user, weight in account.users.items():
            shares[user] = account.weight / total * weight / sum(account.users.values())
    return ShareTree(accounts=tuple(accounts)), shares


@examples(8)
@given(trees())
def test_a_backlog_is_shared_as_the_tree_says(drawn: tuple[ShareTree, dict[str, float]]) -> None:
    """Whoever submits first; what runs and waits in the clusters is the lag."""
    tree, shares = drawn
    # all of them compete until nearly all jobs have run
    users = {user: 10 + round(200 * share) for user, share in shares.items()}
    clusters = (
        SimulatedCluster(name="two", cpus=2, queue_depth=1),
        SimulatedCluster(name="one", cpus=1, benchmark=2.0, queue_depth=1),
    )
    schedule = simulated(backlog(users), tree, clusters)
    work = work_until(schedule, backlogged_until(schedule))
    for user, share in shares.items():
        assert abs(work[user] - share * work.total()) <= 0.05 * work.total(), user


def test_a_light_user_among_heavy_users_waits_for_one_depth() -> None:
    """A cluster that goes by arrival: not for as many depths as there are users."""
    depth, cpus = 20, 10
    cluster = SimulatedCluster(name="one", cpus=cpus, queue_depth=depth)
    waits = []
    for users in (2, 20):
        heavy = backlog({f"u{user}": 1000 // users for user in range(users)}).entries
        job = Job(id=9999, submitted=1000.0, estimated=RUN, cpus=1, user="light")
        workload = Workload("light", (*heavy, WorkloadEntry(job, RUN, job.id)))
        schedule = Simulation(
            workload, (cluster,), Policy(age=1e9), lambda _: make_policy("fcfs")
        ).run()
        [light] = [placed for placed in schedule.jobs if placed.job.user == "light"]
        waits.append(light.wait)
        # tasks of one depth, and a turn of each user
        assert light.wait <= RUN * (depth + users) / cpus
    assert max(waits) < RUN * 1000 / cpus / 2  # of the whole backlog
