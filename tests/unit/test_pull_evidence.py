"""Evidence of pulls that did not start at once: bars, and what lifts them."""

from __future__ import annotations

from typing import Any

import pytest

from metasched.core.events import (
    ClaimsRevoked,
    ClusterDrained,
    ClusterUnreachable,
    DaemonStarted,
    Dispatch,
    DispatchAccepted,
    DispatchStarted,
    JobSubmitted,
    UserRequested,
    Withdraw,
)
from metasched.model.cluster import Cluster, ClusterInfo, NodeCapacity, Partition
from metasched.model.job import Job, State
from metasched.model.listing import JobStatus
from metasched.model.tags import tag_of
from metasched.policies.policy import Policy
from metasched.policies.pull_evidence import (
    BAR_SECONDS,
    FIRST_WINDOW,
    MAX_BAR_SECONDS,
    MAX_BARS,
    MAX_OWN_BARS,
    PullEvidence,
    Trust,
    needs_at_least,
)
from tests.unit.core_site import NOW, Site, facts, job

DELAY = 30.0  # seconds: `Cluster.start_delay` of the site


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ({"cpus": 3}, {"cpus": 2}),
        ({"memory": 200}, {"memory": 100}),
        ({"licences": {"a": 2, "b": 1}}, {"licences": {"a": 1}}),
        ({"gres": {"gpu": 1}}, {}),
        ({"constraint": "fast"}, {}),
        ({"exclusive": True}, {}),
        ({"cpus": 4, "tasks": 1}, {"cpus": 4, "tasks": 4}),  # on a node, or on any nodes
    ],
)
def test_a_larger_request_needs_at_least_as_much(more: Any, less: Any) -> None:
    assert needs_at_least(job(1, **more), job(2, **less))
    assert not needs_at_least(job(1, **less), job(2, **more))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"cpus": 2, "memory": 100}, {"cpus": 1, "memory": 200}),
        ({"memory": 100}, {}),  # the manager's default may be more, or less
        ({"partition": "a"}, {"partition": "b"}),
        ({"constraint": "fast"}, {"constraint": "big"}),
        ({"licences": {"a": 1}}, {"licences": {"b": 1}}),
    ],
)
def test_requests_that_cannot_be_compared(first: Any, second: Any) -> None:
    assert not needs_at_least(job(1, **first), job(2, **second))
    assert not needs_at_least(job(1, **second), job(2, **first))


def barred(evidence: PullEvidence, **fields: Any) -> bool:
    return evidence.bars_job(job(9, **fields))


def failed(cpus: int = 2, reason: str = "Resources", **fields: Any) -> PullEvidence:
    """Evidence of one failure, seen with 4 free processors."""
    evidence = PullEvidence()
    evidence.record_failure(job(1, cpus, **fields), reason, 4, NOW, [])
    return evidence


def test_a_failure_bars_what_needs_at_least_as_much_and_nothing_else() -> None:
    evidence = failed()
    assert barred(evidence, cpus=2)
    assert barred(evidence, cpus=8, memory=None, licences={"a": 1})
    assert not barred(evidence, cpus=1)
    short = job(9, 2)
    assert not evidence.bars_job(Job(id=9, submitted=NOW, estimated=short.estimated / 2, cpus=2))


def test_an_own_job_that_ends_there_lifts_the_bars_for_which_it_leaves_room() -> None:
    evidence = failed(licences={"a": 1})
    evidence.record_end(job(5, cpus=8))
    assert barred(evidence, cpus=2, licences={"a": 1})
    evidence.record_end(job(5, cpus=2, licences={"a": 1}))
    assert not barred(evidence, cpus=2, licences={"a": 1})


def test_ends_of_other_jobs_and_time_lift_a_bar() -> None:
    for lifted, now, free in (
        (False, NOW + 5, 5),
        (True, NOW + 5, 6),  # two more than at the failure
        (True, NOW + BAR_SECONDS, 0),
    ):
        evidence = failed()
        evidence.pass_time(now, free)
        assert barred(evidence, cpus=2) is not lifted


@pytest.mark.parametrize(
    ("reason", "others_of_the_qos", "others"),
    [
        ("Resources", True, True),
        ("QOSGrpCpuLimit", True, False),
        ("QOSMaxCpuPerUserLimit", False, False),
        ("AssocGrpCpuLimit", False, False),
    ],
)
def test_a_limit_bars_only_the_jobs_that_share_it(
    reason: str, others_of_the_qos: bool, others: bool
) -> None:
    evidence = failed(reason=reason, user="ada", qos="long")
    assert barred(evidence, cpus=2, user="ada", qos="long")
    assert barred(evidence, cpus=2, user="bob", qos="long") is others_of_the_qos
    assert barred(evidence, cpus=2, user="bob", qos="short") is others


@pytest.mark.parametrize(
    ("reason", "ended", "barred_cpus"),
    [
        ("QOSMaxCpuPerUserLimit", [], [1, 2, 4]),
        ("QOSMaxCpuPerUserLimit", [2], [4]),  # a job of 2 processors has ended
        ("QOSMaxJobsPerUserLimit", [], [1, 2, 4]),
        ("QOSMaxJobsPerUserLimit", [2], []),  # a job of any size takes its place
        ("QOSMaxJobsPerUserLimit", [2, 2], []),
        ("QOSMaxNodePerUserLimit", [2], [4]),  # neither is known to be limited
    ],
)
def test_jobs_that_share_a_limit_take_only_what_its_jobs_leave(
    reason: str, ended: list[int], barred_cpus: list[int]
) -> None:
    started = [job(number, 2, user="ada") for number in range(3)]
    evidence = PullEvidence()
    evidence.record_failure(job(9, 1, user="ada"), reason, 4, NOW, started)
    there = started[len(ended) :]
    evidence.set_use([*there, job(10, 4, user="bob")])
    assert [n for n in (1, 2, 4) if barred(evidence, cpus=n, user="ada")] == barred_cpus
    if ended:
        evidence.add_use(job(11, 2, user="ada"))
        assert barred(evidence, cpus=1, user="ada") is (len(ended) == 1)


def test_a_bar_lasts_a_day_at_most() -> None:
    evidence = failed()
    for hour in range(1, 50):
        evidence.record_failure(job(1, cpus=1), "Resources", 4, NOW + hour, [])
        evidence.shared.bars.clear()
    evidence.record_failure(job(1, cpus=1), "Resources", 4, NOW, [])
    evidence.pass_time(NOW + MAX_BAR_SECONDS - 1, 4)
    assert barred(evidence, cpus=1)
    evidence.pass_time(NOW + MAX_BAR_SECONDS, 4)
    assert not barred(evidence, cpus=1)


def test_a_limit_is_tried_again_after_an_hour() -> None:
    evidence = failed(reason="QOSMaxJobsPerUserLimit", user="ada")
    evidence.pass_time(NOW + BAR_SECONDS - 1, 100)
    assert barred(evidence, cpus=2, user="ada")
    evidence.pass_time(NOW + BAR_SECONDS, 0)
    assert not barred(evidence, cpus=2, user="ada")


def test_native_options_of_a_user_bar_nobody_else() -> None:
    """With them anybody could keep a job of one processor pending."""
    evidence = failed(cpus=1, user="eve", native={"right": "--hold"})
    assert barred(evidence, cpus=2, user="eve")
    assert not barred(evidence, cpus=2, user="bob")
    assert evidence.trust == Trust()


@pytest.mark.parametrize("reason", ["Priority", "QOSMaxJobsPerUserLimit", "AssocGrpCpuLimit"])
def test_a_failure_of_a_user_costs_no_trust_in_the_jobs_of_others(reason: str) -> None:
    evidence = failed(reason=reason, user="eve")
    assert barred(evidence, cpus=2, user="eve")
    assert not barred(evidence, cpus=2, user="bob")
    assert evidence.trust == Trust()
    assert evidence.allows_pull("bob", 1000)
    assert evidence.allows_pull("eve", 0)
    assert not evidence.allows_pull("eve", 1)
    for _ in range(20):
        evidence.record_success("eve")
    assert list(evidence.of_users) == ["eve"]  # a bar of hers is left
    evidence.pass_time(NOW + MAX_BAR_SECONDS, 4)
    assert evidence.of_users == {}


def test_a_user_crowds_out_no_bars_of_others() -> None:
    evidence = failed(cpus=2, user="ada")
    evidence.record_failure(job(2, user="bob"), "QOSMaxJobsPerUserLimit", 4, NOW, [])
    for number in range(2 * MAX_BARS):
        licences = {f"l{number}": 1}
        for reason in ("Priority", "AssocGrpCpuLimit"):
            request = job(number, user="eve", licences=licences)
            evidence.record_failure(request, reason, 4, NOW, [])
    assert barred(evidence, cpus=2, user="ada")
    assert barred(evidence, cpus=1, user="bob")
    assert len(evidence.of_users["eve"].bars) == MAX_OWN_BARS
    assert len(evidence.limits) == MAX_OWN_BARS + 1


def test_only_the_bars_of_everybody_and_of_its_user_are_looked_at_for_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Failures of 50 users, ten bars each, cost others nothing when their jobs end or move."""
    evidence = failed(cpus=4)
    for number in range(500):
        request = job(number, user=f"user{number % 50}", licences={f"l{number // 50}": 1})
        evidence.record_failure(request, "Priority", 4, NOW, [])
    compared = []

    def count(job: Job, other: Job) -> bool:
        compared.append(other)
        return needs_at_least(job, other)

    monkeypatch.setattr("metasched.policies.pull_evidence.needs_at_least", count)
    assert not barred(evidence, cpus=2, user="bob")
    evidence.record_end(job(9, cpus=2, user="bob"))
    assert len(compared) == 2
    evidence.record_end(job(9, cpus=2, user="user7"))
    assert len(compared) == 2 + 1 + MAX_OWN_BARS


def test_the_bars_are_the_least_requests_and_their_number_is_bounded() -> None:
    evidence = failed(cpus=8)
    evidence.record_failure(job(2, cpus=3), "Resources", 4, NOW, [])
    evidence.record_failure(job(3, cpus=5), "Resources", 4, NOW, [])
    assert [bar.job.id for bar in evidence.shared.bars] == [2]
    for number in range(2 * MAX_BARS):
        licences = {f"l{number}": 1}
        evidence.record_failure(job(number, cpus=1, licences=licences), "Licenses", 4, NOW, [])
    assert len(evidence.shared.bars) == MAX_BARS


def test_the_window_doubles_with_each_start_and_closes_with_a_failure() -> None:
    evidence = failed()
    assert evidence.trust.window == 1
    for window in (2, 4, 8):
        evidence.record_success("ada")
        assert evidence.trust.window == window


def test_repeated_failures_need_more_ends_until_pulls_start_again() -> None:
    evidence = failed()
    evidence.record_end(job(5, cpus=2))
    for ends in (2, 4):
        evidence.record_failure(job(1, cpus=2), "Resources", 4, NOW, [])
        for _ in range(ends):
            assert barred(evidence, cpus=2)
            evidence.record_end(job(5, cpus=2))
        assert not barred(evidence, cpus=2)
    for _ in range(30):
        evidence.record_success("ada")
    evidence.record_failure(job(1, cpus=2), "Resources", 4, NOW, [])
    evidence.record_end(job(5, cpus=2))
    assert not barred(evidence, cpus=2)


# In the core


def pend_on_left(site: Site, count: int, cpus: int = 1, **fields: Any) -> None:
    """Jobs 1 to `count` are pending on left, which is full; right is empty."""
    site.step(ClusterUnreachable(NOW, "right", "no answer"))
    rows = []
    for number in range(1, count + 1):
        site.step(JobSubmitted(NOW, job(number, cpus, **fields)))
        site.sent(number, native=str(number))
        rows.append(site.row(State.PENDING, number))
    full = facts(8, free=0, running_jobs=((NOW + 9000, 8),), pending_jobs=count, queue_head=(8, 99))
    site.seen("left", full, *rows)


def pulled(site: Site, at: float, info: ClusterInfo | None = None, *rows: Any) -> list[int]:
    """Jobs whose withdrawal a listing of right requests."""
    actions = site.seen("right", info, *rows, at=at)
    return [action.job for action in actions if isinstance(action, Withdraw)]


def move(site: Site, number: int, at: float) -> None:
    """The withdrawn job has gone, and right accepts it."""
    site.seen("left", None, site.row(State.CANCELLED, number, ended=at), at=at)
    site.step(DispatchStarted(at, number, 2))
    site.step(DispatchAccepted(at, number, 2, {0: f"r{number}"}))


def end_on_right(site: Site, number: int, at: float) -> JobStatus:
    """The row of a job that was pulled to right and has ended there."""
    return site.row(State.COMPLETED, number, 2, started=NOW + 7, ended=at, exit_code=0)


def test_a_pulled_job_that_starts_counts_as_started_at_once() -> None:
    site = Site()
    pend_on_left(site, 1)
    assert pulled(site, NOW + 6, facts(4)) == [1]
    move(site, 1, NOW + 7)
    assert site.core.pull_counts("right") == (1, 0)
    running = site.row(State.RUNNING, 1, 2, started=NOW + 8)
    site.seen("right", facts(4, free=3), running, at=NOW + 9)
    assert site.core.pull_counts("right") == (1, 1)
    assert site.core.pull_counts("left") == (0, 0)


def fail_pull(site: Site) -> float:
    """Job 1 is pulled and still pending after the delay of the manager; return the time."""
    assert pulled(site, NOW + 6, facts(4, free=1)) == [1]
    move(site, 1, NOW + 7)
    later = NOW + 7 + DELAY
    stuck = site.row(State.PENDING, 1, 2, manager_reason="Resources")
    assert pulled(site, later, facts(4, free=1, pending_jobs=1), stuck) == []
    return later


def test_a_pull_that_does_not_start_bars_the_others_until_an_own_job_ends_there() -> None:
    site = Site()
    pend_on_left(site, 3)
    later = fail_pull(site)
    assert site.core.pull_counts("right") == (1, 0)
    idle = facts(4, free=1)
    assert pulled(site, later + 5, idle) == []
    started = site.row(State.RUNNING, 1, 2, started=later + 6)
    assert pulled(site, later + 6, idle, started) == []
    ended = site.row(State.COMPLETED, 1, 2, started=later + 6, ended=later + 8, exit_code=0)
    assert pulled(site, later + 8, facts(4, free=1), ended) == [2]  # one at a time


def test_a_limit_that_the_manager_names_is_learnt_at_once() -> None:
    """Jobs 1 and 2 take all of it in turn; job 3 is pulled when neither needs it any more."""
    site = Site()
    pend_on_left(site, 3)
    assert pulled(site, NOW + 6, facts(4, free=2)) == [1, 2]
    for number in (1, 2):
        move(site, number, NOW + 7)
    first = site.row(State.RUNNING, 1, 2, started=NOW + 7)
    stuck = site.row(State.PENDING, 2, 2, manager_reason="QOSMaxJobsPerUserLimit")
    assert pulled(site, NOW + 8, facts(4, free=3), first, stuck) == []
    assert site.core.pull_counts("right") == (2, 1)
    assert pulled(site, NOW + 9, facts(4, free=4)) == []  # others' ends do not matter
    ended = site.row(State.COMPLETED, 1, 2, started=NOW + 7, ended=NOW + 10, exit_code=0)
    second = site.row(State.RUNNING, 2, 2, started=NOW + 10)
    assert pulled(site, NOW + 10, facts(4, free=3), ended, second) == []
    ended = site.row(State.COMPLETED, 2, 2, started=NOW + 10, ended=NOW + 12, exit_code=0)
    assert pulled(site, NOW + 12, facts(4, free=4), ended) == [3]


def test_a_listing_pulls_no_more_jobs_than_a_known_limit_leaves_room_for() -> None:
    """Two jobs of a user may run; when the last two end together, two others are pulled."""
    site = Site()
    pend_on_left(site, 9)
    idle = facts(8)
    assert pulled(site, NOW + 6, facts(8, free=3)) == [1, 2, 3]
    for number in (1, 2, 3):
        move(site, number, NOW + 7)
    running = [site.row(State.RUNNING, number, 2, started=NOW + 7) for number in (1, 2)]
    stuck = site.row(State.PENDING, 3, 2, manager_reason="QOSMaxJobsPerUserLimit")
    assert pulled(site, NOW + 8, idle, *running, stuck) == []
    third = site.row(State.RUNNING, 3, 2, started=NOW + 9)
    assert pulled(site, NOW + 9, idle, end_on_right(site, 1, NOW + 9), third) == []
    for ended, number in ((2, 4), (3, 5)):
        at = NOW + 10 * number
        assert pulled(site, at, idle, end_on_right(site, ended, at)) == [number]
        move(site, number, at + 1)
        started = site.row(State.RUNNING, number, 2, started=at + 1)
        assert pulled(site, at + 2, idle, started) == []
    ends = [end_on_right(site, number, NOW + 60) for number in (4, 5)]
    assert pulled(site, NOW + 60, idle, *ends) == [6, 7]


def test_a_user_of_low_priority_keeps_nobody_else_from_being_pulled() -> None:
    """Jobs 1 and 2 are of eve, whose jobs have less priority there; jobs 3 to 5 are of bob."""
    site = Site()
    pend_on_left(site, 2, user="eve")
    idle = facts(8)
    assert pulled(site, NOW + 6, facts(8, free=1)) == [1]
    move(site, 1, NOW + 7)
    later = NOW + 7 + DELAY
    stuck = site.row(State.PENDING, 1, 2, manager_reason="Priority")
    assert pulled(site, later, idle, stuck) == []
    rows = []
    site.step(ClusterUnreachable(later, "right", "no answer"))
    for number in (3, 4, 5):
        site.step(JobSubmitted(later, job(number, user="bob")))
        site.sent(number, native=str(number))
        rows.append(site.row(State.PENDING, number))
    site.seen("left", None, *rows, at=later + 1)
    assert pulled(site, later + 10, idle) == [3, 4, 5]


def test_changed_facts_lift_the_bars() -> None:
    site = Site()
    pend_on_left(site, 2)
    later = fail_pull(site)
    assert pulled(site, later + 5, facts(5, free=1)) == [2]  # a node with more processors


def test_a_pulled_job_that_may_still_start_keeps_its_place() -> None:
    """It is listed as pending: the next job may not take the same processor."""
    site = Site()
    pend_on_left(site, 2)
    assert pulled(site, NOW + 6, facts(4, free=1)) == [1]
    move(site, 1, NOW + 7)
    waiting = site.row(State.PENDING, 1, 2)
    assert pulled(site, NOW + 8, facts(4, free=1), waiting) == []


def test_a_job_that_is_pulled_while_another_is_on_its_way_is_counted_by_node_and_memory() -> None:
    from metasched.model.cluster import NodeCapacity, Partition

    site = Site()
    pend_on_left(site, 3, memory=600)
    nodes = (NodeCapacity(2, 4, 4, memory=1000, free_memory=1000),)
    info = ClusterInfo(8, 0, (Partition("main", nodes, default=True),))
    assert pulled(site, NOW + 6, info) == [1, 2]


def test_at_first_a_window_of_pulls_is_tried() -> None:
    site = Site()
    pend_on_left(site, FIRST_WINDOW + 5)
    assert len(pulled(site, NOW + 6, facts(100))) == FIRST_WINDOW


@pytest.mark.parametrize("has_started", [True, False])
def test_pulls_whose_claims_show_a_start_or_nothing_take_no_room(has_started: bool) -> None:
    """They come only once their claims allow it, perhaps never; others are pulled meanwhile."""
    site = Site(fence_dir="/fence")
    pend_on_left(site, FIRST_WINDOW + 1)
    withdrawn = pulled(site, NOW + 6, facts(100))
    assert len(withdrawn) == FIRST_WINDOW
    rows = [site.row(State.CANCELLED, number, ended=NOW + 7) for number in withdrawn]
    site.seen("left", None, *rows, at=NOW + 7)
    assert pulled(site, NOW + 8, facts(100)) == []
    if has_started:
        started = tuple((tag_of("cafe", number, 1), 0) for number in withdrawn)
        site.step(ClaimsRevoked(NOW + 8, already_started=started))
    else:
        unanswered = tuple((tag_of("cafe", number, 1), 0) for number in withdrawn)
        site.step(ClaimsRevoked(NOW + 8, unanswered=unanswered))
    assert [site.state(number) for number in withdrawn] == [State.UNKNOWN] * FIRST_WINDOW
    assert pulled(site, NOW + 20, facts(100)) == [FIRST_WINDOW + 1]


def test_a_restarted_daemon_begins_without_evidence() -> None:
    site = Site()
    pend_on_left(site, 2)
    later = fail_pull(site)
    policy = Policy(pull_after=5.0)
    clusters = tuple(site.core.clusters)
    site.step(DaemonStarted(later + 1, "cafe", policy, clusters))
    assert site.core.pull_counts("right") == (0, 0)
    full = facts(8, free=0, running_jobs=((NOW + 9000, 8),), pending_jobs=1, queue_head=(8, 99))
    site.seen("left", full, site.row(State.PENDING, 2), at=later + 2, full=True)
    stuck = site.row(State.PENDING, 1, 2)
    right = facts(4, free=1)
    assert site.seen("right", right, stuck, at=later + 10, full=True) == [
        Withdraw(2, 1, "left", {0: "7"}, only_pending=True)
    ]


@pytest.mark.parametrize("names", [{"partition": "main"}, {"constraint": "fast"}])
def test_a_task_whose_names_the_cluster_does_not_have_is_not_pulled(names: dict[str, Any]) -> None:
    """The others are, although nothing says how that cluster would name what the first requests."""
    nodes = (NodeCapacity(1, 8, 8, features=("fast",)),)
    site = Site()
    site.seen("left", ClusterInfo(8, 0, (Partition("main", nodes, default=True),)))
    pend_on_left(site, 1, **names)
    site.step(JobSubmitted(NOW, job(2, 1, clusters=("left", "right"))))
    site.sent(2, native="2")
    site.seen("left", None, site.row(State.PENDING, 2))
    idle = Partition("batch", (NodeCapacity(1, 4, 4),), default=True)
    assert pulled(site, NOW + 6, ClusterInfo(4, 0, (idle,))) == [2]


@pytest.mark.parametrize(
    ("in_order", "pending", "withdrawn"), [(True, 1, []), (True, 0, [1]), (False, 1, [1])]
)
def test_no_job_is_pulled_behind_a_job_that_no_other_may_overtake(
    in_order: bool, pending: int, withdrawn: list[int]
) -> None:
    site = Site()
    pend_on_left(site, 1)
    head = (4, 9000.0) if pending else None
    fields: dict[str, Any] = {"running_jobs": ((NOW + 9000, 3),), "queue_head": head}
    info = facts(4, free=1, in_order=in_order, pending_jobs=pending, **fields)
    assert pulled(site, NOW + 6, info) == withdrawn


def small_site(*others: int) -> Site:
    """Job 3 of left and others were pulled to right; that is stored, but they have not left yet.

    Each cluster takes two dispatches without answer, and two jobs that wait. Job 1 is held.
    """
    site = Site()
    clusters = tuple(
        Cluster(name=name, adapter="local", max_unanswered=2, queue_depth=2)
        for name in ("left", "right")
    )
    site.step(DaemonStarted(NOW, "cafe", Policy(pull_after=5.0), clusters))
    site.seen("left", facts(8))
    site.step(JobSubmitted(NOW, job(1, held=True)))
    site.step(ClusterUnreachable(NOW, "right", "no answer"))
    pulled_jobs = [3, *others]
    for number in pulled_jobs:
        site.step(JobSubmitted(NOW, job(number)))
        site.sent(number, native=str(number))
    full = facts(8, free=0, running_jobs=((NOW + 9000, 8),), pending_jobs=1, queue_head=(1, 99))
    site.seen("left", full, *(site.row(State.PENDING, number) for number in pulled_jobs))
    assert pulled(site, NOW + 6, facts(4)) == pulled_jobs
    return site


def test_a_pulled_task_keeps_its_place_before_an_equal_task_without_one() -> None:
    """Jobs 4 and 5 take both places on right; their answers let job 3 follow, but not job 1."""
    site = small_site()
    site.step(ClusterDrained(NOW + 6, "left", keep_pending=True))
    for number in (4, 5):
        assert len(site.step(JobSubmitted(NOW + 6, job(number)))) == 1
    site.step(UserRequested(NOW + 6, "release", 1))
    gone = site.row(State.CANCELLED, 3, ended=NOW + 7)
    assert site.seen("left", None, gone, at=NOW + 7) == []
    dispatched = []
    for number in (4, 5):
        site.step(DispatchStarted(NOW + 8, number, 1))
        dispatched += site.step(DispatchAccepted(NOW + 8, number, 1, {0: f"r{number}"}))
    assert dispatched == [Dispatch(3, 2, "right", (0,))]


def test_a_pulled_task_that_goes_elsewhere_is_no_pull_when_it_returns() -> None:
    """Right has no answers left for job 3, so left takes it again."""
    site = small_site()
    for number in (4, 5):
        job_there = job(number, clusters=("right",))
        assert len(site.step(JobSubmitted(NOW + 6, job_there))) == 1
    gone = site.row(State.CANCELLED, 3, ended=NOW + 7)
    assert site.seen("left", None, gone, at=NOW + 7) == [Dispatch(3, 2, "left", (0,))]
    right = site.core.state.views["right"].pulls
    right.record_dispatch(site.core.tasks[3, 0], site.core.tasks[3, 0].live_attempt)
    assert site.core.pull_counts("right") == (0, 0)


def test_each_pulled_task_keeps_its_place_before_an_equal_task_without_one() -> None:
    """As above with two pulled jobs. Each answer lets only a single job follow."""
    site = small_site(6)
    site.step(ClusterDrained(NOW + 6, "left", keep_pending=True))
    for number in (4, 5):
        assert len(site.step(JobSubmitted(NOW + 6, job(number)))) == 1
    site.step(UserRequested(NOW + 6, "release", 1))
    gone = [site.row(State.CANCELLED, number, ended=NOW + 7) for number in (3, 6)]
    assert site.seen("left", None, *gone, at=NOW + 7) == []
    dispatched = []
    for number in (4, 5):
        site.step(DispatchStarted(NOW + 8, number, 1))
        dispatched += site.step(DispatchAccepted(NOW + 8, number, 1, {0: f"r{number}"}))
    assert sorted(dispatched, key=str) == [Dispatch(number, 2, "right", (0,)) for number in (3, 6)]
