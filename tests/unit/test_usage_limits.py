"""Limits of the site: who is refused, who waits, and who follows when something ends."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec import structs

from metasched.core.events import (
    ClusterUnreachable,
    DaemonStarted,
    Dispatch,
    JobModified,
    JobRequeued,
    JobSubmitted,
    RequeuedTask,
    TimerExpired,
    UserRequested,
)
from metasched.core.limit_lines import MAX_CANDIDATES_PER_STEP
from metasched.core.usage_limits import UsageLimits
from metasched.model.job import Job, Reason, State
from metasched.model.licence import LicencePool
from metasched.model.limits import LimitScope, LimitSettings, LimitTable, ScopeKind
from metasched.policies.policy import Policy
from tests.unit.core_site import NOW, Site, job

ADA = LimitScope(ScopeKind.USER, "ada")


def submit(site: Site, *jobs: Job) -> None:
    for submitted in jobs:
        site.step(JobSubmitted(NOW, submitted))


def end(site: Site, id: int) -> None:
    """End a dispatched job: its manager lists it as completed."""
    row = site.row(State.COMPLETED, id, started=NOW, ended=NOW + 1, exit_code=0)
    cluster = site.core.tasks[id, 0].live_attempt.cluster
    site.seen(cluster, None, row, at=NOW + 2)


def states(site: Site) -> Counter[str]:
    return Counter(
        task.reason if task.state is State.QUEUED else "dispatched"
        for task in site.core.tasks.values()
    )


def each_user(**maxima: int) -> LimitSettings:
    return LimitSettings(each_user=LimitTable(**maxima))  # type: ignore[arg-type]


@pytest.mark.parametrize("resource", ["dispatched", "running"])
def test_tasks_above_a_limit_of_their_user_wait_and_follow_in_order(resource: str) -> None:
    site = Site(limits=each_user(**{resource: 2}))
    submit(site, *(job(id, user="ada") for id in range(1, 6)), job(9, user="bob"))
    assert states(site) == {"dispatched": 3, Reason.LIMIT_USER: 3}
    assert site.state(9) is State.DISPATCHING
    end(site, 1)
    assert [site.state(id) for id in (3, 4, 5)] == [State.DISPATCHING, State.QUEUED, State.QUEUED]
    shortage = site.core.limit_shortage(site.core.tasks[4, 0])
    assert shortage is not None
    assert shortage.text.startswith("limit of user ada: 2 of 2 ")


def test_a_narrow_job_goes_where_a_wide_one_does_not_fit() -> None:
    site = Site(limits=each_user(processors=4))
    submit(site, job(1, cpus=3, user="ada"), job(2, cpus=2, user="ada"), job(3, user="ada"))
    assert [site.state(id) for id in (1, 2, 3)] == [
        State.DISPATCHING,
        State.QUEUED,
        State.DISPATCHING,
    ]
    end(site, 1)
    assert site.state(2) is State.DISPATCHING


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (LimitSettings(for_all=LimitTable(dispatched=1)), Reason.LIMIT_CLASS),
        (LimitSettings(groups={"aero": LimitTable(dispatched=1)}), Reason.LIMIT_CLASS),
        (LimitSettings(accounts={"cfd": LimitTable(dispatched=1)}), Reason.LIMIT_CLASS),
        (LimitSettings(classes={"regular": LimitTable(dispatched=1)}), Reason.LIMIT_CLASS),
        (LimitSettings(users={"ada": LimitTable(dispatched=1)}), Reason.LIMIT_USER),
    ],
    ids=["all", "group", "account", "class", "user"],
)
def test_every_kind_of_scope_counts_its_tasks(limits: LimitSettings, reason: Reason) -> None:
    site = Site(limits=limits)
    wide_open = {"account": {"*": "*"}}
    clusters = tuple(
        cluster.__class__(name=cluster.name, adapter="local", maps=wide_open)
        for cluster in site.core.clusters
    )
    site.step(DaemonStarted(NOW, "cafe", Policy(), clusters, limits=limits))
    for name in ("left", "right"):
        site.seen(name, full=True)
    members: dict[str, Any] = {"user": "ada", "account": "cfd", "groups": ("aero",)}
    submit(site, job(1, **members), job(2, **members))
    assert [site.core.tasks[id, 0].reason for id in (1, 2)] == ["", reason]
    if limits.for_all.dispatched is None:
        submit(site, job(3, user="eve", user_class="silver"))
        assert site.state(3) is State.DISPATCHING
    end(site, 1)
    assert site.state(2) is State.DISPATCHING


def test_a_user_without_groups_counts_for_no_group() -> None:
    site = Site(limits=LimitSettings(groups={"aero": LimitTable(dispatched=0)}))
    submit(site, job(1, user="ada"))
    assert site.state(1) is State.DISPATCHING


def test_the_strictest_of_contradicting_limits_holds() -> None:
    limits = LimitSettings(
        for_all=LimitTable(dispatched=1),
        each_user=LimitTable(dispatched=9, running=0),
        users={"ada": LimitTable(dispatched=50, running=60)},
    )
    site = Site(limits=limits)
    submit(site, job(1, user="ada"), job(2, user="ada"), job(3, user="bob"))
    assert [site.core.tasks[id, 0].reason for id in (1, 2, 3)] == [
        "",
        Reason.LIMIT_CLASS,
        Reason.LIMIT_USER,
    ]


def test_licences_are_limited_beside_their_pool() -> None:
    pools = (LicencePool(name="matlab", total=5),)
    limits = LimitSettings(each_user=LimitTable(licences={"matlab": 2}))
    site = Site(pools=pools, limits=limits)
    submit(site, *(job(id, user="ada", licences={"matlab": 1}) for id in (1, 2, 3)))
    submit(site, job(4, user="ada"), job(5, user="bob", licences={"matlab": 1}))
    assert states(site) == {"dispatched": 4, Reason.LIMIT_USER: 1}
    assert (3, 0) not in site.core.licences  # it keeps no tokens from others
    end(site, 1)
    assert site.state(3) is State.DISPATCHING


def test_admission_counts_open_and_queued_tasks_of_a_whole_request() -> None:
    site = Site(limits=each_user(open_tasks=4, queued=3, dispatched=1))
    limits = site.core.limits

    def refusal(*numbers: int) -> str:
        return limits.admission_refusal([(job(9, user="ada"), n) for n in numbers]) or ""

    assert not refusal(3)
    assert "limit of user ada: 0 of 3 queued tasks, 4 wanted" in refusal(2, 2)
    submit(site, job(1, user="ada", array="0-2"))  # one of them is dispatched
    assert not refusal(1)
    assert "3 of 4 open tasks, 2 wanted" in refusal(2)
    assert not limits.admission_refusal([(job(9, user="bob"), 3)])
    site.step(UserRequested(NOW, "cancel", 1, (1,)))
    assert not refusal(2)


def test_what_can_never_keep_within_a_limit_is_refused() -> None:
    limits = LimitSettings(
        each_user=LimitTable(processors=4, licences={"matlab": 1}),
        users={"eve": LimitTable(running=0)},
    )
    core = Site(limits=limits).core
    assert "limit of user ada: 4 processors, 5 wanted" in str(
        core.rejection_reason(job(cpus=5, user="ada"))
    )
    assert "tokens of licence matlab" in str(
        core.rejection_reason(job(user="ada", licences={"matlab": 2}))
    )
    assert "limit of user eve" in str(core.rejection_reason(job(user="eve")))
    assert core.rejection_reason(job(cpus=4, user="ada")) is None


def used(site: Site) -> dict[tuple[str, str], int]:
    return {
        (str(use.scope), use.resource): use.used
        for use in site.core.limits.uses_of(site.core.limits.scopes())
    }


def test_a_lowered_limit_loses_nothing_and_lets_nothing_in() -> None:
    site = Site()
    submit(site, *(job(id, user="ada") for id in range(1, 5)))
    lowered = each_user(dispatched=2, open_tasks=1)
    site.step(DaemonStarted(NOW, "cafe", Policy(), tuple(site.core.clusters), limits=lowered))
    assert used(site) == {("user ada", "dispatched"): 4, ("user ada", "open_tasks"): 4}
    for name in ("left", "right"):
        site.seen(name, full=True)
    submit(site, job(5, user="ada"))
    assert site.state(5) is State.QUEUED
    for id in (1, 2):
        end(site, id)
        assert site.state(5) is State.QUEUED
    end(site, 3)
    assert site.state(5) is State.DISPATCHING
    # without limits nothing waits for them
    site.step(DaemonStarted(NOW + 9, "cafe", Policy(), tuple(site.core.clusters)))
    assert used(site) == {}
    assert not site.core.limits.enabled


def test_a_job_charged_to_another_account_counts_there() -> None:
    limits = LimitSettings(
        accounts={"cfd": LimitTable(open_tasks=2), "ice": LimitTable(open_tasks=1)}
    )
    site = Site(limits=limits)
    submit(site, job(1, account="cfd", held=True))
    moved = job(1, account="ice", held=True)
    assert site.core.limits.admission_refusal([(moved, 1)], replaced=job(1)) is None
    site.step(JobModified(NOW, moved, "account", redispatch=False))
    assert used(site) == {("account cfd", "open_tasks"): 0, ("account ice", "open_tasks"): 1}
    other = job(2, account="cfd")
    assert site.core.limits.admission_refusal([(moved, 1)], replaced=other) is not None
    assert site.core.limits.admission_refusal([(moved, 1)], replaced=moved) is None


def test_a_requeued_task_counts_again() -> None:
    site = Site(limits=each_user(open_tasks=1, dispatched=1))
    submit(site, job(1, user="ada"))
    end(site, 1)
    assert set(used(site).values()) == {0}
    requeued = (RequeuedTask(0, State.COMPLETED, 1),)
    site.step(JobRequeued(NOW + 3, job(1, user="ada"), 1, 1, requeued))
    assert set(used(site).values()) == {1}


def settle(site: Site) -> None:
    """Let timers expire; there are few."""
    for _ in range(20):
        if site.core.next_due is None:
            return
        site.step(TimerExpired(NOW))
    raise AssertionError("the core asks for steps without end")


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts, by user, how often a task was compared with the limits."""
    count: Counter[str] = Counter()
    original = UsageLimits.shortage

    def shortage(limits: UsageLimits, job: Job) -> object:
        count[job.user] += 1
        return original(limits, job)

    monkeypatch.setattr(UsageLimits, "shortage", shortage)
    return count


@pytest.mark.parametrize("different", [False, True], ids=["array", "jobs"])
def test_waiting_tasks_cost_nothing_until_their_limit_is_released(
    different: bool, examined: Counter[str]
) -> None:
    site = Site(limits=each_user(dispatched=2), pull=False)
    jobs = [job(1, user="ada", array="0-998")]  # of single tasks
    if different:
        jobs = [job(id, user="ada", time_limit=60.0 + id) for id in range(1, 301)]
    submit(site, *jobs)
    settle(site)
    waiting = sum(len(submitted.indices) for submitted in jobs) - 2
    assert states(site) == {"dispatched": 2, Reason.LIMIT_USER: waiting}
    examined.clear()
    submit(site, job(5000, user="bob"))
    assert examined["ada"] == 0
    for name in ("left", "right"):
        site.seen(name, at=NOW + 1)
    assert examined["ada"] == 0
    cluster = site.core.tasks[1, 0].live_attempt.cluster
    ended = site.row(State.COMPLETED, 1, started=NOW, ended=NOW + 1)
    site.seen(cluster, None, ended, at=NOW + 2)
    settle(site)
    assert states(site)[Reason.LIMIT_USER] == waiting - 1
    assert examined["ada"] <= 4


def test_a_step_examines_a_bounded_number_of_tasks(examined: Counter[str]) -> None:
    """The limit is released while no cluster accepts any of the waiting tasks."""
    site = Site(limits=each_user(dispatched=1))
    jobs = [job(id, user="ada", time_limit=60.0 + id) for id in range(2, 1002)]
    submit(site, job(1, user="ada"), *jobs)
    for name in ("left", "right"):
        site.step(ClusterUnreachable(NOW, name, "away"))
    examined.clear()
    site.step(UserRequested(NOW, "hold", 1))
    assert examined["ada"] <= MAX_CANDIDATES_PER_STEP + 1
    settle(site)
    assert states(site) == {"dispatched": 1, Reason.CLUSTER_DOWN: 1000}


def test_a_group_moves_between_limits() -> None:
    """A task that keeps within its user's limit again waits for that of all."""
    limits = LimitSettings(for_all=LimitTable(dispatched=2), each_user=LimitTable(dispatched=1))
    site = Site(limits=limits)
    submit(site, job(1, user="ada"), job(2, user="ada"), job(3, user="bob"), job(4, user="eve"))
    assert [site.core.tasks[id, 0].reason for id in (2, 4)] == [
        Reason.LIMIT_USER,
        Reason.LIMIT_CLASS,
    ]
    end(site, 1)  # ada's next is first in the queue
    assert [site.state(id) for id in (2, 4)] == [State.DISPATCHING, State.QUEUED]
    end(site, 3)
    assert site.state(4) is State.DISPATCHING


def test_a_waiting_task_can_be_cancelled_held_and_released() -> None:
    site = Site(limits=each_user(dispatched=1))
    submit(site, *(job(id, user="ada") for id in range(1, 5)))
    site.step(UserRequested(NOW, "cancel", 2))
    site.step(UserRequested(NOW, "hold", 3))
    end(site, 1)
    assert [site.state(id) for id in (3, 4)] == [State.HELD, State.DISPATCHING]
    site.step(UserRequested(NOW, "release", 3))
    assert site.core.tasks[3, 0].reason == Reason.LIMIT_USER
    end(site, 4)
    assert site.state(3) is State.DISPATCHING


def test_a_limit_is_released_after_the_last_waiting_task_has_left() -> None:
    """Before, the core requested a step at once, again and again."""
    site = Site(limits=each_user(dispatched=1))
    submit(site, job(1, user="ada"), job(2, user="ada"))
    site.step(UserRequested(NOW, "cancel", 2))
    end(site, 1)
    assert site.core.next_due is None


def test_without_limits_nothing_is_counted() -> None:
    site = Site()
    submit(site, job(1, user="ada"))
    assert isinstance(site.out.actions[0], Dispatch)
    assert not site.out.limit_changes
    assert list(site.core.limits.uses_of(site.core.limits.scopes())) == []


# Stored bytes


def test_bytes_of_open_jobs_are_bounded() -> None:
    """Each job counts once, however many tasks it has, until its last task has ended."""
    site = Site(limits=each_user(stored_bytes=100))
    limits = site.core.limits
    site.step(JobSubmitted(NOW, job(1, user="ada", array="0-4", stored_bytes=60)))
    assert used(site) == {("user ada", "stored_bytes"): 60}
    larger, smaller = (job(2, user="ada", stored_bytes=size) for size in (41, 40))
    refusal = limits.admission_refusal([(larger, 3)])
    assert refusal == (
        "limit of user ada: 60 of 100 bytes stored for open jobs, 41 wanted; "
        "wait until some have ended, or submit fewer"
    )
    assert limits.admission_refusal([(smaller, 3)]) is None
    assert limits.admission_refusal([(job(2, user="bob", stored_bytes=100), 1)]) is None
    site.step(UserRequested(NOW, "cancel", 1, (0,)))
    # tasks that are requeued while others of the job are open add nothing
    assert limits.admission_refusal([(job(1, user="ada", stored_bytes=60), 1)]) is None
    site.step(JobSubmitted(NOW, smaller))
    assert used(site)["user ada", "stored_bytes"] == 100


def test_bytes_follow_a_job_to_another_account() -> None:
    limits = LimitSettings(accounts={"cfd": LimitTable(stored_bytes=50)})
    site = Site(limits=limits, maps={"account": {"*": "*"}}, listed=False)
    mine = job(1, user="ada", stored_bytes=40)
    site.step(JobSubmitted(NOW, mine))
    assert used(site) == {("account cfd", "stored_bytes"): 0}
    charged = structs.replace(mine, account="cfd")
    assert site.core.limits.admission_refusal([(charged, 1)], replaced=mine) is None
    too_large = structs.replace(charged, stored_bytes=51)
    assert site.core.limits.admission_refusal([(too_large, 1)], replaced=mine) is not None
    site.step(JobModified(NOW, charged, "account", False, None, "ada"))
    assert used(site) == {("account cfd", "stored_bytes"): 40}
    site.step(UserRequested(NOW, "cancel", 1))
    assert used(site) == {("account cfd", "stored_bytes"): 0}
