"""Withdrawals of pending tasks: pulls, and recalls from drained, shrunk and silent clusters."""

from __future__ import annotations

import pytest

from metasched.core.events import (
    ClusterDrained,
    ClusterResumed,
    ClusterUnreachable,
    DaemonStarted,
    Dispatch,
    DispatchAccepted,
    DispatchStarted,
    JobModified,
    JobSubmitted,
    UserRequested,
    Withdraw,
)
from metasched.model.cluster import Cluster, ClusterInfo, NodeCapacity, Partition
from metasched.model.job import Job, Reason, State
from metasched.policies.eligible import Ineligibility, find_ineligibility
from metasched.policies.policy import Policy
from tests.unit.core_site import NOW, Site, facts, job


def pending_on_left(site: Site, cpus: int = 4) -> None:
    """Job 1 is pending on left, which is full; right is empty."""
    site.step(ClusterUnreachable(NOW, "right", "no answer"))
    site.step(JobSubmitted(NOW, job(1, cpus=cpus)))
    site.sent()
    busy = facts(
        8, free=0, running_jobs=((NOW + 1000, 8),), pending_jobs=1, queue_head=(cpus, 100.0)
    )
    site.seen("left", busy, site.row(State.PENDING))


def test_pulled_to_where_it_starts_now() -> None:
    site = Site()
    pending_on_left(site)
    request = Withdraw(1, 1, "left", {0: "7"}, only_pending=True)
    assert site.seen("right", facts(4), at=NOW + 4, full=True) == []  # too soon after the dispatch
    assert site.seen("right", at=NOW + 6) == [request]
    gone = site.row(State.CANCELLED, ended=NOW + 7)
    assert site.seen("left", None, gone, at=NOW + 7) == [Dispatch(1, 2, "right", (0,))]
    assert site.core.tasks[1, 0].moves == 1


def test_a_pulled_task_that_began_meanwhile_stays() -> None:
    site = Site()
    pending_on_left(site)
    site.seen("right", facts(4), at=NOW + 6)
    assert site.seen("left", None, site.row(State.RUNNING, started=NOW + 6), at=NOW + 7) == []
    assert site.state() is State.RUNNING
    site.seen("left", None, site.row(State.CANCELLED, started=NOW + 6, ended=NOW + 8), at=NOW + 8)
    assert site.out.changes[-1].after is State.CANCELLED  # it had started: never dispatched again


def test_cancel_wins_over_a_pull_under_way() -> None:
    site = Site()
    pending_on_left(site)
    site.seen("right", facts(4), at=NOW + 6)
    assert site.step(UserRequested(NOW + 6, "cancel", 1)) == [
        Withdraw(1, 1, "left", {0: "7"}, only_pending=False)
    ]
    assert site.seen("left", None, site.row(State.CANCELLED, ended=NOW + 7), at=NOW + 7) == []
    assert not site.core.tasks


@pytest.mark.parametrize(
    ("there", "pulled"),
    [
        (facts(4, free=2), False),  # too few processors
        (
            facts(4, pending_jobs=1, queue_head=(4, 50.0)),
            False,
        ),  # would delay the head, which starts now
        # the head needs all 4 at +1000; job 1 ends at +106
        (
            facts(4, free=4, running_jobs=((NOW + 1000, 1),), pending_jobs=1, queue_head=(5, 50.0)),
            True,
        ),
    ],
)
def test_pull_delays_no_other_job(there: ClusterInfo, pulled: bool) -> None:
    site = Site()
    pending_on_left(site)
    assert bool(site.seen("right", there, at=NOW + 6)) is pulled


def test_those_who_ask_for_the_same_are_decided_once_while_a_cluster_keeps_its_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = []

    def counted(job: Job, cluster: Cluster, facts: ClusterInfo | None) -> Ineligibility | None:
        requests.append((job.time_limit, cluster.name))
        return find_ineligibility(job, cluster, facts)

    def right(hours: int, free: int) -> ClusterInfo:
        most = Partition("main", (NodeCapacity(1, 4, free),), default=True, max_time=hours * 3600.0)
        return ClusterInfo(cpus=4, used_cpus=4 - free, partitions=(most,))

    site = Site(pull_after=0.0)
    site.seen("right", right(1, 0))
    monkeypatch.setattr("metasched.core.cluster_view.find_ineligibility", counted)
    for id in range(1, 201):  # all exceed right's limit of 1 h, half also its later limit of 3 h
        site.step(JobSubmitted(NOW, job(id, time_limit=7200.0 if id % 2 else 14400.0)))
        site.sent(id)
    assert sorted(requests) == [
        (hours * 3600.0, name) for hours in (2, 4) for name in ("left", "right")
    ]
    waiting = [site.row(State.PENDING, id) for id in range(1, 201)]
    site.seen("left", facts(8, free=0), *waiting, at=NOW + 1)
    requests.clear()
    for free in (1, 4, 2):
        assert site.seen("right", right(1, free), at=NOW + 2) == []
    assert requests == []
    withdrawn = site.seen("right", right(3, 2), at=NOW + 3)
    assert [w.job for w in withdrawn if isinstance(w, Withdraw)] == [1, 3]
    assert sorted(requests) == [(7200.0, "right"), (14400.0, "right")]


def test_no_pull_when_the_policy_pushes() -> None:
    site = Site(pull=False)
    pending_on_left(site)
    assert site.seen("right", facts(4), at=NOW + 6) == []


def test_the_most_urgent_is_pulled_first() -> None:
    site = Site(pull_after=0.0)
    site.step(ClusterUnreachable(NOW, "right", "no answer"))
    for id, urgency in ((1, 0), (2, 3)):
        site.step(JobSubmitted(NOW, job(id, cpus=4, owner_priority=urgency)))
        site.sent(id)
    busy = facts(8, free=0, running_jobs=((NOW + 1000, 8),), pending_jobs=2, queue_head=(4, 100.0))
    rows = (site.row(State.PENDING, id=1), site.row(State.PENDING, id=2))
    site.seen("left", busy, *rows)
    actions = site.seen("right", facts(4), at=NOW + 6)
    assert actions == [Withdraw(2, 1, "left", {0: "7"}, only_pending=True)]


def test_a_drained_cluster_gets_nothing_new_and_gives_back_what_waits() -> None:
    site = Site(pull=False)
    for id in (1, 2):
        site.step(JobSubmitted(NOW, job(id, cpus=8)))
        site.sent(id)
    running = site.row(State.RUNNING, 1, started=NOW)
    site.seen("left", facts(8, 0), running, site.row(State.PENDING, 2))
    assert site.step(ClusterDrained(NOW, "left", "op", "new kernel")) == [
        Withdraw(2, 1, "left", {0: "7"}, only_pending=True)
    ]
    assert site.step(JobSubmitted(NOW, job(3, cpus=8))) == []
    assert site.core.tasks[3, 0].reason == Reason.CLUSTER_DRAINED
    assert site.out.changes[-1].cause == "drained by op: new kernel"
    assert site.step(JobSubmitted(NOW, job(4))) == [Dispatch(4, 1, "right", (0,))]
    site.seen("left", None, running, site.row(State.CANCELLED, 2, ended=NOW))
    assert (site.state(1), site.state(2)) == (State.RUNNING, State.QUEUED)
    assert site.core.tasks[2, 0].reason == Reason.CLUSTER_DRAINED
    assert site.step(ClusterResumed(NOW, "left", "op")) == [
        Dispatch(2, 2, "left", (0,)),
        Dispatch(3, 1, "left", (0,)),
    ]


def test_what_waits_may_stay_on_a_drained_cluster() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(1)))
    site.sent()
    assert site.step(ClusterDrained(NOW, "left", keep_pending=True)) == []
    assert site.seen("left", None, site.row(State.PENDING), at=NOW + 1) == []
    assert site.state() is State.PENDING


def test_a_silent_cluster_that_is_drained_gives_back_what_has_not_begun() -> None:
    site = Site()
    for id in (1, 2):
        site.step(JobSubmitted(NOW, job(id)))
    site.sent(1)
    site.step(ClusterUnreachable(NOW, "left", "no answer"))
    assert site.step(ClusterDrained(NOW, "left")) == []
    assert site.seen("left", None, site.row(State.PENDING), full=True) == [
        Withdraw(1, 1, "left", {0: "7"}, only_pending=True)
    ]


def test_an_undelivered_recall_is_forgotten_when_the_cluster_resumes() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(1)))
    site.sent(1)
    site.step(ClusterUnreachable(NOW, "left", "no answer"))
    site.step(ClusterDrained(NOW, "left"))
    site.step(ClusterResumed(NOW, "left"))
    assert site.seen("left", None, site.row(State.PENDING), full=True) == []


def test_a_pending_task_leaves_a_cluster_that_has_shrunk_below_it() -> None:
    site = Site(pull=False)
    for id, cpus in ((1, 8), (2, 4)):
        site.step(JobSubmitted(NOW, job(id, cpus=cpus, clusters=("left",))))
        site.sent(id)
    rows = [site.row(State.PENDING, 1), site.row(State.PENDING, 2)]
    assert site.seen("left", facts(8, 0), *rows) == []
    assert site.seen("left", facts(4, 0)) == [Withdraw(1, 1, "left", {0: "7"}, only_pending=True)]
    assert site.out.changes[0].cause == (
        "recalled from left: the partition has 4 processors, the job requests 8"
    )
    assert site.seen("left", None, site.row(State.CANCELLED, 1, ended=NOW)) == []
    assert (site.state(), site.core.tasks[1, 0].reason) == (State.QUEUED, Reason.NO_CLUSTER_FITS)
    assert site.seen("left", facts(8, 0)) == [Dispatch(1, 2, "left", (0,))]


def test_nodes_that_are_down_for_a_while_send_nothing_away() -> None:
    site = Site(pull=False)
    site.step(JobSubmitted(NOW, job(1, cpus=8, tasks=8)))
    site.sent()
    site.seen("left", facts(8, 0), site.row(State.PENDING))
    half = (NodeCapacity(1, 4, 0), NodeCapacity(1, 4, 0, up=False))
    down = ClusterInfo(cpus=4, used_cpus=4, partitions=(Partition("main", half, default=True),))
    assert site.seen("left", down) == []


def silent_site(move_after: float | None) -> Site:
    """One task is pending and one runs on left, which then becomes unreachable."""
    site = Site(pull=False, move_after=move_after)
    for id in (1, 2):
        site.step(JobSubmitted(NOW, job(id, cpus=4, clusters=("left",))))
        site.sent(id)
        site.step(JobModified(NOW, job(id, cpus=4), "clusters", False))
    site.seen("left", None, site.row(State.PENDING, 1), site.row(State.RUNNING, 2, started=NOW))
    site.step(ClusterUnreachable(NOW, "left", "no answer"))
    return site


@pytest.mark.parametrize(("move_after", "moves"), [(None, False), (90.0, True), (101.0, False)])
def test_what_has_not_begun_leaves_a_cluster_that_was_silent_for_long(
    move_after: float | None, moves: bool
) -> None:
    site = silent_site(move_after)
    site.seen("right", facts(4), at=NOW + 60)
    listed = [site.row(State.PENDING, 1), site.row(State.RUNNING, 2, started=NOW)]
    away = site.seen("left", None, *listed, full=True, at=NOW + 100)
    assert away == ([Withdraw(1, 1, "left", {0: "7"}, only_pending=True)] if moves else [])
    if moves:
        gone = site.row(State.CANCELLED, 1, ended=NOW)
        assert site.seen("left", None, gone, at=NOW + 101) == [Dispatch(1, 2, "right", (0,))]


def test_a_silence_of_all_clusters_does_not_count() -> None:
    site = silent_site(90.0)
    site.step(ClusterUnreachable(NOW, "right", "no answer"))
    listed = [site.row(State.PENDING, 1), site.row(State.RUNNING, 2, started=NOW)]
    assert site.seen("left", None, *listed, full=True, at=NOW + 1000) == []


def test_patience_stands_still_while_a_cluster_is_silent() -> None:
    site = Site(pull_after=5.0)
    site.step(JobSubmitted(NOW, job(1, cpus=4)))
    site.sent(1)
    site.seen("left", facts(8, 0), site.row(State.PENDING), at=NOW + 1)
    site.step(ClusterUnreachable(NOW + 2, "left", "no answer"))
    pending = site.row(State.PENDING)
    site.seen("left", facts(8, 0), pending, full=True, at=NOW + 500)
    assert site.seen("right", facts(4), at=NOW + 501) == []
    assert site.seen("right", facts(4), at=NOW + 504) == [
        Withdraw(1, 1, "left", {0: "7"}, only_pending=True)
    ]


def test_the_wait_before_a_pull_counts_anew_after_a_restart() -> None:
    """A core that is restored from the database knows no earlier waits."""
    site = Site(pull_after=5.0)
    site.seen("left", facts(8), at=NOW + 100)
    site.step(ClusterUnreachable(NOW + 100, "right", "no answer"))
    site.step(JobSubmitted(NOW + 100, job(1, cpus=4)))
    site.step(DispatchStarted(NOW + 100, 1, 1))
    site.step(DispatchAccepted(NOW + 100, 1, 1, {0: "7"}))
    policy = Policy(pull_after=5.0)
    site.step(DaemonStarted(NOW + 101, "cafe", policy, tuple(site.core.clusters)))
    pending = site.row(State.PENDING)
    site.seen("left", facts(8, 0), pending, full=True, at=NOW + 102)
    assert site.seen("right", facts(4), full=True, at=NOW + 103) == []
    assert site.seen("right", at=NOW + 108) == [Withdraw(1, 1, "left", {0: "7"}, only_pending=True)]
