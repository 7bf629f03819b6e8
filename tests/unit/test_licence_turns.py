"""Users take turns for licences: nobody waits for the backlog of another, and heads keep theirs."""

from __future__ import annotations

import pytest

from metasched.core.events import JobSubmitted, TimerExpired, UserRequested
from metasched.core.transitions import LIVE
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.engine import Simulation
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry
from metasched.model.fair_share import FairShareSettings
from metasched.model.job import Job
from metasched.model.licence import LicencePool
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy
from tests.unit.core_site import NOW, Site, job

TOKENS, BACKLOG = 2, 60
FLOATING = (LicencePool(name="a", total=TOKENS),)


def wanting(id: int, user: str, tokens: int = 1, **fields: object) -> Job:
    return job(id, 1, user=user, licences={"a": tokens}, **{"time_limit": 1000.0, **fields})


def live(site: Site) -> list[int]:
    return sorted(id for (id, _), task in site.core.tasks.items() if task.state in LIVE)


def started_in_order(site: Site, steps: int) -> list[int]:
    """End the oldest task that has tokens, again and again; return the jobs that get tokens."""
    order: list[int] = []
    for _ in range(steps):
        before = live(site)
        site.step(UserRequested(NOW, "cancel", before[0]))
        order += [id for id in live(site) if id not in before]
    return order


def site_with_backlog(fair_share: FairShareSettings | None = None) -> Site:
    site = Site(pools=FLOATING, fair_share=fair_share)
    for id in range(1, BACKLOG + 1):
        site.step(JobSubmitted(NOW, wanting(id, "heavy")))
    assert live(site) == [1, 2]
    return site


@pytest.mark.parametrize("fair_share", [None, FairShareSettings()], ids=["turns", "shares"])
def test_a_light_user_does_not_wait_for_the_backlog_of_another(
    fair_share: FairShareSettings | None,
) -> None:
    site = site_with_backlog(fair_share)
    for id in (101, 102):
        site.step(JobSubmitted(NOW, wanting(id, "light")))
    order = started_in_order(site, 5)
    assert order.index(101) <= 1
    assert fair_share is not None or order.index(102) <= 3


def test_ranges_wait_for_licences_by_turns() -> None:
    site = Site(pools=FLOATING)
    for id, user in ((1, "heavy"), (2, "light")):
        site.step(JobSubmitted(NOW, wanting(id, user, array="1-2000")))
    for _ in range(10):
        task = next(task for task in site.core.tasks.values() if task.state in LIVE)
        site.step(UserRequested(NOW, "cancel", task.job.id, (task.index,)))
    assert len(site.core.tasks) == TOKENS + 2
    assert [2000 - site.core.count_open(id) for id in (1, 2)] == [6, 4]


def test_a_higher_priority_goes_first() -> None:
    site = site_with_backlog()
    site.step(JobSubmitted(NOW, wanting(101, "light")))
    site.step(JobSubmitted(NOW, wanting(102, "urgent", user_class="gold")))
    assert started_in_order(site, 1) == [102]


def test_tokens_kept_for_a_head_stay_kept_while_others_take_turns() -> None:
    """Else a job that needs all tokens would never start beside users of single tokens."""
    site = site_with_backlog()
    site.step(JobSubmitted(NOW, wanting(100, "wide", tokens=TOKENS)))
    assert started_in_order(site, 1) == []
    for id in range(101, 110):
        site.step(JobSubmitted(NOW, wanting(id, f"u{id}")))
    assert started_in_order(site, 1) == [100]


def test_one_user_has_the_order_of_the_queue() -> None:
    site = site_with_backlog()
    assert started_in_order(site, 5) == [3, 4, 5, 6, 7]


def test_in_simulation_a_light_user_waits_for_a_turn() -> None:
    backlog, run = 500, 100.0
    jobs = [
        Job(id=id, submitted=0.0, estimated=run, time_limit=run, user="heavy", licences={"a": 1})
        for id in range(1, backlog + 1)
    ]
    jobs.append(
        Job(id=999, submitted=50.0, estimated=run, time_limit=run, user="light", licences={"a": 1})
    )
    schedule = Simulation(
        Workload("two users", tuple(WorkloadEntry(job, run, job.id) for job in jobs)),
        (SimulatedCluster(name="one", cpus=backlog + 1),),
        Policy(),
        lambda _: make_policy("easy"),
        licence_pools=FLOATING,
    ).run()
    [light] = [placed for placed in schedule.jobs if placed.job.user == "light"]
    assert light.wait <= 2 * run


def test_a_user_who_has_waited_for_an_age_passes_a_head_although_nothing_else_changes() -> None:
    """Tokens stay free for the first task of its level only."""
    age = Policy().age
    site = Site(pools=(LicencePool(name="a", total=4),))
    site.step(JobSubmitted(NOW, wanting(1, "holder", 2, time_limit=3 * age)))
    site.step(JobSubmitted(NOW, wanting(2, "first", 4)))
    site.step(JobSubmitted(NOW, wanting(3, "second", 1, time_limit=9 * age)))
    # a short task of its user passes the first: its wait counts from then on
    served_at = NOW + 10
    site.step(JobSubmitted(served_at, wanting(4, "first", 1, time_limit=60.0)))
    site.step(UserRequested(served_at, "cancel", 4))
    assert live(site) == [1]
    site.step(TimerExpired(NOW + age - 1))
    assert live(site) == [1]
    due = site.core.next_due
    assert due is not None
    assert NOW + age <= due < NOW + age + 1
    site.step(TimerExpired(due))
    assert live(site) == [1, 3]
