"""Fair share: the tree, decay, charges of live tasks, reported use, steps of the clock."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from metasched.core.events import (
    AccountingReceived,
    ClockSet,
    ClusterDrained,
    ClusterResumed,
    DaemonStarted,
    Dispatch,
    DispatchAccepted,
    JobSubmitted,
    SharesReported,
    TimerExpired,
    UseReported,
)
from metasched.core.own_accounts import OwnAccounts
from metasched.core.placement import AWAITS_PLACE
from metasched.core.scheduler import Core
from metasched.model.cluster import Cluster
from metasched.model.fair_share import FairShareSettings, ForeignUse, ShareAccount, ShareTree
from metasched.model.job import Job, State
from metasched.model.listing import JobStatus
from metasched.policies.policy import Policy
from tests.unit.core_site import NOW, Site, facts, job

HALF_LIFE = 1000.0
DAY = 86400.0
# physics 3 : chemistry 1; in physics ada 2 : bob 1, others may not charge it
SCIENCE = ShareTree(
    accounts=(
        ShareAccount(name="physics", weight=3.0, users={"ada": 2.0, "bob": 1.0}),
        ShareAccount(name="chemistry", weight=1.0, users={"ada": 1.0}, other_users=1.0),
    )
)


def settings(tree: ShareTree = SCIENCE, half_life: float = HALF_LIFE) -> FairShareSettings:
    return FairShareSettings(half_life=half_life, tree=tree)


def site_with(tree: ShareTree = SCIENCE) -> Site:
    return Site(fair_share=settings(tree))


def report(site: Site, user: str, seconds: float, ended: float, account: str = "") -> None:
    """Report use at the time of its end."""
    use = ForeignUse(user=user, account=account, processor_seconds=seconds, ended=ended)
    site.step(UseReported(site.core.state.now, "left", "1", (use,)))


def used(site: Site, now: float | None = None) -> dict[tuple[str, str], float]:
    """Return the use that is stored, decayed to a time."""
    now = site.core.state.now if now is None else now
    return {
        key: use.used * 2 ** ((use.as_of - now) / HALF_LIFE)
        for key, use in site.core.fair_share.uses.items()
    }


def rank(site: Site, user: str, account: str | None = None) -> tuple[float, ...]:
    """Return the rank of a user; comparable to others at the same time."""
    return site.core.fair_share.rank_of(job(99, user=user, account=account))


# The tree


@pytest.mark.parametrize(
    ("tree", "problem"),
    [
        ({"accounts": (ShareAccount(name="a"), ShareAccount(name="a"))}, '"a" is there twice'),
        ({"accounts": (ShareAccount(name="a", parent="b"),)}, 'parent "b", which is no account'),
        ({"accounts": (ShareAccount(name="a", parent="a"),)}, "cycle, a below a; change"),
        (
            {
                "accounts": (
                    ShareAccount(name="a", parent="b"),
                    ShareAccount(name="b", parent="c"),
                    ShareAccount(name="c", parent="b"),
                )
            },
            "cycle, b below c below b; change a parent",
        ),
        ({"accounts": (ShareAccount(name="a", weight=0.0),)}, 'weight 0, weight of account "a"'),
        ({"accounts": (ShareAccount(name="a", users={"u": -1.0}),)}, 'weight -1, user "u" of acc'),
        ({"accounts": (ShareAccount(name="a", other_users=math.inf),)}, "weight inf, other_users"),
        ({"users": {"ada": math.nan}}, 'weight nan, user "ada"; write a number above 0'),
        ({"default": 0.0}, "weight 0, default; write a number above 0"),
        ({"accounts": (ShareAccount(name=""),)}, "an account without a name"),
    ],
)
def test_what_is_no_tree_is_refused(tree: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ShareTree(**tree)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("user", "account", "charged"),
    [
        ("ada", None, "physics"),  # the first account that lists him
        ("ada", "chemistry", "chemistry"),
        ("bob", "chemistry", "chemistry"),  # it admits everybody
        ("eve", "physics", "chemistry"),  # not a member: as without an account
        ("eve", None, "chemistry"),  # listed nowhere: the first account open to all
        ("ada", "invented", "physics"),
    ],
)
def test_a_job_is_charged_to_an_account_that_admits_its_user(
    user: str, account: str | None, charged: str
) -> None:
    site = site_with()
    report(site, user, 10.0, NOW, account or "")
    assert list(site.core.fair_share.uses) == [(charged, user)]


def test_users_of_no_account_are_below_the_root() -> None:
    tree = ShareTree(accounts=SCIENCE.accounts[:1], users={"root": 4.0}, default=2.0)
    site = site_with(tree)
    for user in ("root", "eve", "ada"):
        report(site, user, 12.0, NOW)
    assert rank(site, "root") == (3.0,)
    assert rank(site, "eve") == (6.0,)
    assert rank(site, "ada") == (4.0, 6.0)


def test_invented_accounts_take_no_memory() -> None:
    site = site_with()
    for number in range(1000):
        rank(site, "eve", f"account{number}")
        report(site, "eve", 1.0, NOW, f"account{number}")
    assert list(site.core.fair_share.uses) == [("chemistry", "eve")]
    assert len(site.core.fair_share._leaves) == 1


def test_siblings_are_compared_level_by_level() -> None:
    """As in Fair Tree: all of physics goes before chemistry while it has used less per weight."""
    site = site_with()
    report(site, "ada", 20.0, NOW)
    report(site, "bob", 1.0, NOW)
    report(site, "eve", 8.0, NOW)
    assert rank(site, "bob") == (7.0, 1.0)
    assert rank(site, "ada") == (7.0, 10.0)
    assert rank(site, "eve") == (8.0, 8.0)
    assert rank(site, "new") == (8.0, 0.0)
    assert rank(site, "bob") < rank(site, "ada") < rank(site, "new") < rank(site, "eve")


# Decay


def test_use_halves_with_each_half_life() -> None:
    site = site_with()
    report(site, "bob", 64.0, NOW)
    site.step(TimerExpired(NOW + 2 * HALF_LIFE))
    report(site, "bob", 10.0, NOW + 2 * HALF_LIFE)
    # 64 / 4 + 10
    assert used(site)["physics", "bob"] == 26.0
    # reported late: it had ended three half-lives before now
    report(site, "ada", 80.0, NOW - HALF_LIFE)
    assert used(site)["physics", "ada"] == 10.0
    # reported late, to older use
    report(site, "bob", 4.0, NOW + HALF_LIFE)
    assert used(site)["physics", "bob"] == 28.0


def test_decay_alone_changes_no_order() -> None:
    site = site_with()
    report(site, "ada", 20.0, NOW)
    report(site, "bob", 11.0, NOW)
    before = rank(site, "ada"), rank(site, "bob")
    site.step(TimerExpired(NOW + 50 * HALF_LIFE))
    assert (rank(site, "ada"), rank(site, "bob")) == before


def test_after_very_many_half_lives_sums_begin_anew() -> None:
    site = site_with()
    report(site, "ada", 20.0, NOW)
    later = NOW
    for _ in range(5):
        later += 300 * HALF_LIFE
        site.step(TimerExpired(later))
        report(site, "bob", 6.0, later)
        assert rank(site, "bob")[1] > rank(site, "ada")[1]
        assert math.isfinite(rank(site, "bob")[0])
    site.step(TimerExpired(later + 1e6 * HALF_LIFE))
    report(site, "ada", 6.0, later + 1e6 * HALF_LIFE)
    assert rank(site, "bob")[1] < rank(site, "ada")[1] == 3.0


@pytest.mark.parametrize("amount", [0.0, -5.0, math.nan, math.inf, 1e300])
def test_a_defective_report_counts_nothing(amount: float) -> None:
    site = site_with()
    report(site, "ada", amount, NOW)
    report(site, "bob", 1.0, math.nan)
    assert site.core.fair_share.uses == {}
    report(site, "bob", 1.0, NOW + 1e12)  # the future: it has ended now
    assert used(site) == {("physics", "bob"): 1.0}


# Clocks


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_nothing_decays_by_a_step_of_the_clock(step: float) -> None:
    site = site_with()
    report(site, "bob", 64.0, NOW)
    before = rank(site, "bob")
    site.step(ClockSet(NOW + step, step))
    assert used(site)["physics", "bob"] == pytest.approx(64.0)
    assert rank(site, "bob") == before
    stored = site.out.share_uses["physics", "bob"]
    assert stored is not None
    assert stored.as_of == NOW + step
    site.step(TimerExpired(NOW + step + HALF_LIFE))
    report(site, "ada", 32.0, NOW + step + HALF_LIFE)
    assert used(site)["physics", "bob"] == pytest.approx(32.0)
    assert 2 * rank(site, "ada")[1] == pytest.approx(rank(site, "bob")[1])


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_an_hour_within_the_half_life_changes_no_order_of_live_tasks(step: float) -> None:
    """As without the step: what ended before it and after it, and what runs within its charge."""
    observed = []
    for set_by in (step, 0.0):
        site = Site(fair_share=settings(half_life=DAY))
        report(site, "ada", 64.0, NOW)
        long_job = replace(job(user="bob", clusters=("left",)), estimated=7200.0)
        site.step(JobSubmitted(NOW, long_job))
        site.sent()
        listed(site, State.RUNNING, NOW + 1, started=NOW)
        now = NOW + 10 + set_by
        site.step(ClockSet(now, set_by))
        report(site, "ada", 10.0, now)
        stored = site.core.fair_share.uses["physics", "ada"]
        assert stored.as_of == now
        observed.append((stored.used, *rank(site, "ada"), *rank(site, "bob")))
    assert observed[0] == pytest.approx(observed[1], rel=1e-9)
    assert observed[0][0] == pytest.approx(64.0 * 2 ** (-10 / DAY) + 10.0)


@pytest.mark.parametrize("step", [3600.0, -3600.0])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_step_of_the_clock_is_no_run_time_of_a_running_task(step: float, restarts: bool) -> None:
    """Its charge of 100 s doubles after 100 s, also if the daemon starts again after the step."""
    chosen = settings(half_life=1e6 * DAY)
    site = Site(fair_share=chosen)
    site.step(JobSubmitted(NOW, job(user="bob", clusters=("left",))))
    site.sent()
    listed(site, State.RUNNING, NOW + 10, started=NOW)
    site.step(ClockSet(NOW + 20 + step, step))
    if restarts:
        start(site, NOW + 30 + step, chosen)
        listed(site, State.RUNNING, NOW + 31 + step, started=NOW)
    site.step(TimerExpired(NOW + 99 + step))
    assert rank(site, "bob")[1] == pytest.approx(100.0)
    site.step(TimerExpired(NOW + 101 + step))
    assert rank(site, "bob")[1] == pytest.approx(202.0)


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_start_that_is_listed_after_a_step_of_the_clock_counts_from_the_step(step: float) -> None:
    """Its manager may have noted the start by the clock as it was."""
    site = Site(fair_share=settings(half_life=1e6 * DAY))
    site.step(JobSubmitted(NOW, job(user="bob", clusters=("left",))))
    site.sent()
    set_to = NOW + 20 + step
    site.step(ClockSet(set_to, step))
    listed(site, State.RUNNING, set_to + 5, started=NOW + 15)
    site.step(TimerExpired(set_to + 94))
    assert rank(site, "bob")[1] == pytest.approx(100.0)
    site.step(TimerExpired(set_to + 106))
    assert 200.0 < rank(site, "bob")[1] <= 212.1


def test_a_restart_by_the_manager_after_a_step_of_the_clock_runs_anew() -> None:
    site = Site(fair_share=settings(half_life=1e6 * DAY))
    site.step(JobSubmitted(NOW, job(user="bob", clusters=("left",))))
    site.sent()
    listed(site, State.RUNNING, NOW + 10, started=NOW)
    site.step(ClockSet(NOW + 3620, 3600.0))
    listed(site, State.PENDING, NOW + 3630, restarts=1)
    listed(site, State.RUNNING, NOW + 3641, started=NOW + 3640, restarts=1)
    before = rank(site, "bob")[1]
    site.step(TimerExpired(NOW + 3739))
    assert rank(site, "bob")[1] == before
    site.step(TimerExpired(NOW + 3741))
    assert rank(site, "bob")[1] == pytest.approx(before + 102.0)


def test_a_clock_set_back_while_no_daemon_ran_lets_nothing_grow() -> None:
    site = site_with()
    report(site, "bob", 64.0, NOW)
    years_ago = NOW - 9 * 366 * DAY
    start(site, years_ago)
    assert rank(site, "bob") == (64.0 / 3, 64.0)
    report(site, "bob", 1.0, years_ago)
    assert math.isfinite(rank(site, "bob")[0])


# Tasks of metasched


def start(site: Site, now: float, chosen: FairShareSettings | None = None) -> None:
    """Start the daemon again."""
    clusters = tuple(site.core.clusters)
    fair_share = chosen or settings()
    site.step(DaemonStarted(now, "cafe", Policy(), clusters, fair_share=fair_share))


def listed(site: Site, state: State, now: float, **fields: Any) -> None:
    site.seen("left", None, site.row(state, **fields), at=now)


def test_a_task_is_charged_its_estimate_and_then_what_it_used() -> None:
    site = site_with()
    site.step(JobSubmitted(NOW, job(user="bob", cpus=4, clusters=("left",))))
    assert rank(site, "bob")[1] == 400.0  # 4 processors x 100 s
    assert site.core.fair_share.uses == {}
    site.sent()
    listed(site, State.RUNNING, NOW + 1, started=NOW)
    assert rank(site, "bob")[1] == 400.0
    listed(site, State.COMPLETED, NOW + 20, started=NOW, ended=NOW + 10.0, exit_code=0)
    assert used(site, NOW + 10.0)["physics", "bob"] == pytest.approx(40.0)
    assert rank(site, "bob")[1] == pytest.approx(40.0 * 2 ** (10.0 / HALF_LIFE))


@pytest.mark.parametrize("ended", [NOW + 5.0, NOW + 7000.0])
def test_accounting_that_disagrees_with_the_ledger_changes_no_use(ended: float) -> None:
    site = site_with()
    site.step(JobSubmitted(NOW, job(user="bob", cpus=4, clusters=("left",))))
    site.sent()
    listed(site, State.COMPLETED, NOW + 20, started=NOW, ended=NOW + 10.0, exit_code=0)
    assert used(site, NOW + 10.0)["physics", "bob"] == pytest.approx(40.0)
    row = site.row(State.FAILED, started=NOW, ended=ended, exit_code=1)
    site.step(AccountingReceived(NOW + 30, "left", (row,)))
    assert used(site, NOW + 10.0)["physics", "bob"] == pytest.approx(40.0)
    assert site.out.share_uses == {}


def test_what_never_started_costs_nothing() -> None:
    site = site_with()
    site.step(JobSubmitted(NOW, job(user="bob", clusters=("left",))))
    site.sent()
    listed(site, State.CANCELLED, NOW + 20, started=None, ended=NOW + 10.0)
    assert site.core.fair_share.uses == {}
    assert rank(site, "bob") == (0.0, 0.0)


def test_the_speed_of_the_cluster_counts() -> None:
    core = Core()
    fast = Cluster(name="fast", adapter="local", benchmark=2.5)
    core.step(DaemonStarted(NOW, "cafe", Policy(), (fast,), fair_share=settings()))
    use = ForeignUse(user="bob", processor_seconds=10.0, ended=NOW)
    core.step(UseReported(NOW, "fast", "1", (use,)))
    assert core.fair_share.uses["physics", "bob"].used == 25.0


def test_a_tiny_estimate_is_corrected_while_the_task_runs() -> None:
    """A job without a time limit may run for days: its charge doubles as often as it is short."""
    site = site_with()
    short = Job(id=1, submitted=NOW, estimated=1e-9, user="bob", clusters=("left",))
    site.step(JobSubmitted(NOW, short))
    assert rank(site, "bob")[1] < 1e-6
    site.sent()
    listed(site, State.RUNNING, NOW, started=NOW)
    for elapsed in (10.0, 100.0, 500.0):
        site.step(TimerExpired(NOW + elapsed))
        charged = rank(site, "bob")[1] / 2 ** (elapsed / HALF_LIFE)
        assert 0.7 * elapsed <= charged <= 4 * elapsed
    listed(site, State.COMPLETED, NOW + 600, started=NOW, ended=NOW + 600, exit_code=0)
    assert used(site)["physics", "bob"] == pytest.approx(600.0)


def test_a_restart_by_the_manager_counts_both_runs() -> None:
    site = site_with()
    site.step(JobSubmitted(NOW, job(user="bob", clusters=("left",))))
    site.sent()
    listed(site, State.RUNNING, NOW + 1, started=NOW)
    listed(site, State.PENDING, NOW + 50, restarts=1)
    assert used(site, NOW + 50)["physics", "bob"] == pytest.approx(50.0)
    listed(site, State.RUNNING, NOW + 61, started=NOW + 60, restarts=1)
    listed(site, State.COMPLETED, NOW + 90, started=NOW + 60, ended=NOW + 90, restarts=1)
    assert used(site)["physics", "bob"] == pytest.approx(50 * 2**-0.04 + 30)


# Starts of the daemon


def test_a_start_keeps_use_and_charges_live_tasks_again() -> None:
    site = site_with()
    report(site, "bob", 64.0, NOW)
    report(site, "ada", 1e-4, NOW)
    site.step(JobSubmitted(NOW, job(user="eve", clusters=("left",))))
    start(site, NOW + HALF_LIFE)
    assert used(site) == {("physics", "bob"): 32.0}
    assert site.out.share_uses == {("physics", "ada"): None}
    assert rank(site, "bob") == (32.0 / 3, 32.0)
    assert rank(site, "eve") == (100.0, 100.0)


def test_a_changed_tree_counts_use_where_it_charges_now() -> None:
    """Use of an account that is gone goes to the user's account, or to the root."""
    site = site_with()
    report(site, "bob", 10.0, NOW)
    report(site, "eve", 6.0, NOW)
    start(site, NOW, settings(ShareTree(users={"bob": 2.0})))
    assert rank(site, "bob") == (5.0,)
    assert rank(site, "eve") == (6.0,)
    # nothing is lost if the site takes the change back
    start(site, NOW)
    assert rank(site, "eve") == (6.0, 6.0)


def test_without_configuration_nothing_is_counted() -> None:
    site = Site()
    report(site, "bob", 64.0, NOW)
    site.step(JobSubmitted(NOW, job(user="bob")))
    assert site.core.fair_share.uses == {}
    assert site.core.fair_share._charges == {}


def test_a_reported_tree_is_in_force_if_the_site_says_so() -> None:
    site = Site(fair_share=FairShareSettings(half_life=HALF_LIFE, shares_from="left"))
    report(site, "bob", 12.0, NOW)
    site.step(JobSubmitted(NOW, job(user="ada", clusters=("left",))))
    assert (rank(site, "bob"), rank(site, "ada")) == ((12.0,), (100.0,))
    site.step(SharesReported(NOW, "right", ShareTree(users={"bob": 3.0})))
    assert rank(site, "bob") == (12.0,)
    site.step(SharesReported(NOW, "left", SCIENCE))
    assert (rank(site, "bob"), rank(site, "ada")) == ((112.0 / 3, 12.0), (112.0 / 3, 50.0))


def test_accounts_of_a_manager_have_its_names() -> None:
    core = Core()
    mapped = Cluster(
        name="left", adapter="local", maps={"account": {"chemistry": "chem", "*": "*"}}
    )
    core.step(DaemonStarted(NOW, "cafe", Policy(), (mapped,), fair_share=settings()))
    uses = [
        ForeignUse(user="ada", account=account, processor_seconds=1.0, ended=NOW)
        for account in ("chem", "physics")
    ]
    core.step(UseReported(NOW, "left", "1", tuple(uses)))
    assert list(core.fair_share.uses) == [("chemistry", "ada"), ("physics", "ada")]


def test_accounts_that_depend_on_the_user_are_known_by_both() -> None:
    by_user = {
        "physics": {"ada": "grp1", "*": "grp3"},
        "chemistry": {"bob": "grp1", "eve": "grp1", "*": "grp3"},
        "biology": {"*": "grp1"},
    }
    left = Cluster(
        name="left",
        adapter="local",
        maps={"account": {"history": "grp1", "art": "grp4"}},
        user_accounts=by_user,
    )
    own = OwnAccounts(left)
    expected = {
        ("grp1", "ada"): "physics",
        ("grp1", "bob"): "chemistry",
        ("grp1", "mia"): "biology",
        ("grp3", "ada"): "chemistry",
        ("grp3", "eve"): "physics",
        ("grp4", "ada"): "art",
        ("other", "ada"): "other",
    }
    assert {pair: own.name_of(*pair) for pair in expected} == expected
    core = Core()
    tree = ShareTree(
        accounts=tuple(
            ShareAccount(name=name, weight=1.0, users={"ada": 1.0, "bob": 1.0})
            for name in ("physics", "chemistry")
        )
    )
    core.step(DaemonStarted(NOW, "cafe", Policy(), (left,), fair_share=settings(tree)))
    uses = tuple(
        ForeignUse(user=user, account="grp1", processor_seconds=1.0, ended=NOW)
        for user in ("ada", "bob")
    )
    outcome = core.step(UseReported(NOW, "left", "1", uses))
    assert list(core.fair_share.uses) == [("physics", "ada"), ("chemistry", "bob")]
    assert [use.account for use in outcome.foreign_uses] == ["physics", "chemistry"]


# The order of dispatch


def drained_site(tree: ShareTree, *jobs: Job) -> Site:
    """A site whose clusters are drained while the jobs are submitted."""
    site = Site(fair_share=settings(tree), maps={"account": {"*": "*"}})
    for name in ("left", "right"):
        site.step(ClusterDrained(NOW, name))
    for submitted in jobs:
        assert site.step(JobSubmitted(NOW, submitted)) == []
    return site


def sent(site: Site) -> list[int]:
    """Return the jobs that the last step dispatched, in order."""
    return [change.job for change in site.out.changes if change.after is State.DISPATCHING]


def test_each_dispatch_changes_the_order() -> None:
    jobs = [job(number, user="ada") for number in range(1, 8)]
    jobs += [job(number, user="bob") for number in range(11, 15)]
    site = drained_site(ShareTree(users={"ada": 2.0, "bob": 1.0}), *jobs)
    site.step(ClusterResumed(NOW, "left"))
    assert sent(site) == [1, 11, 2, 3, 12, 4, 5, 13, 6, 7, 14]


def test_the_size_of_tasks_counts() -> None:
    jobs = [job(number, user="ada", cpus=4) for number in (1, 2)]
    jobs += [job(number, user="bob") for number in range(11, 17)]
    site = drained_site(ShareTree(), *jobs)
    site.step(ClusterResumed(NOW, "left"))
    assert sent(site) == [1, 11, 12, 13, 14, 2, 15, 16]


def test_earlier_use_elsewhere_comes_first() -> None:
    jobs = [job(number, user="ada") for number in (1, 2, 3)]
    jobs += [job(number, user="bob") for number in (11, 12, 13)]
    site = drained_site(ShareTree(), *jobs)
    report(site, "ada", 250.0, NOW)
    site.step(ClusterResumed(NOW, "left"))
    assert sent(site) == [11, 12, 13, 1, 2, 3]


def test_a_user_goes_by_the_account_that_is_next() -> None:
    """The tasks that he submitted first do not block those of his other account."""
    jobs = [job(number, user="ada", account="physics") for number in (1, 2)]
    jobs += [job(number, user="ada", account="chemistry") for number in (3, 4)]
    jobs += [job(number, user="bob") for number in (11, 12)]
    site = drained_site(SCIENCE, *jobs)
    report(site, "bob", 1000.0, NOW)
    site.step(ClusterResumed(NOW, "left"))
    assert sent(site) == [3, 4, 1, 2, 11, 12]


def test_a_priority_outweighs_shares() -> None:
    jobs = [job(1, user="ada"), job(2, user="bob", user_class="gold")]
    site = drained_site(ShareTree(), *jobs)
    report(site, "bob", 1e6, NOW)
    site.step(ClusterResumed(NOW, "left"))
    assert sent(site) == [2, 1]


# Places in the queue of a manager


def answered(site: Site) -> list[str]:
    """Let managers accept what was dispatched; return the users of these tasks."""
    users = []
    for action in list(site.out.actions):
        if isinstance(action, Dispatch):
            users += [site.core.tasks[action.job, 0].job.user] * len(action.indices)
            natives = dict.fromkeys(action.indices, "7")
            site.step(DispatchAccepted(NOW, action.job, action.dispatch_id, natives))
    return users


def start_first(site: Site, now: float) -> str:
    """Let the manager start its oldest task; return the user."""
    task = next(iter(site.core.state.views["left"].unstarted_tasks.values()))
    tag = site.core.state.live_tag(task)
    row = JobStatus(tag, task.index, "7", State.RUNNING, started=now)
    site.seen("left", None, row, at=now, partial=True)  # it proves nothing about other tasks
    return task.job.user


def test_a_manager_in_order_of_dispatch_starts_tasks_by_shares() -> None:
    """Each place that a start frees goes to whose turn it is, not to the user of that task."""
    site = Site(fair_share=settings(ShareTree(users={"ada": 2.0})), queue_depth=6)
    site.seen("left", facts(8, 0))
    for number in range(200):
        user = "ada" if number < 100 else "bob"
        site.step(JobSubmitted(NOW, job(number + 1, user=user, clusters=("left",))))
        answered(site)
    view = site.core.state.views["left"]
    assert len(view.unstarted_tasks) == 6
    started = []
    for second in range(1, 91):
        started.append(start_first(site, NOW + second / 100))
        answered(site)
        assert len(view.unstarted_tasks) == 6
    assert started[:6] == ["ada"] * 6
    assert started[:90].count("ada") == 60


def test_while_processors_are_idle_each_user_has_a_place() -> None:
    site = Site(fair_share=settings(ShareTree()), queue_depth=3)
    for number in range(1, 31):
        site.step(JobSubmitted(NOW, job(number, user="ada", clusters=("left",))))
        answered(site)
    view = site.core.state.views["left"]
    assert len(view.unstarted_tasks) == 3
    for number in range(31, 51):
        user = f"u{number % 4}"
        site.step(JobSubmitted(NOW, job(number, user=user, clusters=("left",))))
        answered(site)
    assert len(view.unstarted_tasks) == 7
    waiting = site.core.tasks[50, 0]
    obstacles = {a.cluster: a.obstacle for a in site.core.assess_clusters(waiting)}
    assert obstacles["left"] == AWAITS_PLACE
    view.update_info(facts(8, 0))
    site.step(JobSubmitted(NOW, job(61, user="newer", clusters=("left",))))
    assert sent(site) == []
    view.update_info(facts(8, 1))
    site.step(TimerExpired(NOW))
    assert sent(site) == [61]


# Standings


def test_standings_of_the_whole_tree_and_of_a_user() -> None:
    site = site_with()
    report(site, "ada", 30.0, NOW)
    report(site, "eve", 20.0, NOW)
    rows = {(row.account, row.user): row for row in site.core.fair_share.standings()}
    assert {key: (row.share, row.used, row.used_share) for key, row in rows.items()} == {
        ("physics", None): (0.75, 30.0, 0.6),
        ("chemistry", None): (0.25, 20.0, 0.4),
        ("physics", "ada"): (0.5, 30.0, 0.6),
        ("physics", "bob"): (0.25, 0.0, 0.0),
        ("chemistry", "ada"): (0.125, 0.0, 0.0),
        ("chemistry", "eve"): (0.125, 20.0, 0.4),
    }
    assert [row.place for row in rows.values()] == [None, None, 1, 2, 3, 4]
    own = [(row.account, row.user) for row in site.core.fair_share.standings().of_user("eve")]
    assert own == [("chemistry", None), ("chemistry", "eve")]
    # use decays, parts of it do not
    site.step(TimerExpired(NOW + HALF_LIFE))
    [eve] = [row for row in site.core.fair_share.standings().of_user("eve") if row.user]
    assert (eve.used, eve.used_share, eve.place) == (10.0, 0.4, 4)
    waiting = site.core.fair_share.standing_of(job(user="new"))
    assert waiting is not None
    assert (waiting.account, waiting.user, waiting.place) == ("chemistry", "new", 4)


def test_accounts_above_a_user_are_shown_to_him() -> None:
    tree = ShareTree(
        accounts=(
            ShareAccount(name="theory", parent="physics", users={"eve": 1.0}),
            ShareAccount(name="physics", users={"bob": 1.0}),
            ShareAccount(name="chemistry"),
        )
    )
    site = site_with(tree)
    own = site.core.fair_share.standings().of_user("eve")
    assert [(row.account, row.user, row.parent, row.share) for row in own] == [
        ("theory", None, "physics", 0.25),
        ("physics", None, "", 0.5),
        ("theory", "eve", None, 0.25),
    ]


def test_without_configuration_nobody_stands_anywhere() -> None:
    fair_share = Site().core.fair_share
    assert (list(fair_share.standings()), fair_share.standing_of(job())) == ([], None)
