"""The core as a whole: unreachable managers, restarts and changed configurations."""

from __future__ import annotations

import copy

from metasched.core.events import (
    ClusterUnreachable,
    DaemonStarted,
    Dispatch,
    DispatchSkipped,
    DispatchStarted,
    JobSubmitted,
    UserRequested,
    Withdraw,
)
from metasched.core.recovered_state import RecoveredState
from metasched.core.scheduler import Core
from metasched.model.cluster import Cluster
from metasched.model.job import State
from metasched.policies.policy import Policy
from tests.unit.core_site import NOW, Site, facts, job


def test_silent_manager_makes_jobs_unknown_and_none_is_sent_again() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    assert site.step(ClusterUnreachable(NOW, "left", "no answer")) == []
    assert site.state() is State.UNKNOWN
    assert site.seen("left", facts(8), site.row(State.RUNNING, started=NOW), full=True) == []
    assert site.state() is State.RUNNING


def test_untried_sending_goes_elsewhere_when_its_cluster_falls_silent() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.step(ClusterUnreachable(NOW, "left", "no answer"))
    assert site.state() is State.DISPATCHING
    assert site.step(DispatchSkipped(NOW, ((1, 1),))) == [Dispatch(1, 2, "right", (0,))]


def test_lower_priorities_and_fewer_clusters_after_a_restart() -> None:
    site = Site()
    for id in (1, 2):
        site.step(JobSubmitted(NOW, job(id, owner_priority=3, deadline=NOW + 101, cpus=8)))
    site.sent(1)
    assert site.core.tasks[1, 0].priority > 3
    right = (Cluster(name="right", adapter="local"),)
    site.step(DaemonStarted(NOW, "cafe", Policy(max_priority=3), right))
    assert site.core.tasks[1, 0].priority == 3
    assert site.state(1) is State.UNKNOWN
    assert site.state(2) is State.QUEUED  # never dispatched: certainly not on the cluster
    assert site.step(UserRequested(NOW, "cancel", 1)) == []
    both = (*right, Cluster(name="left", adapter="local"))
    site.step(DaemonStarted(NOW, "cafe", Policy(max_priority=3), both))
    assert site.seen("left", facts(8), site.row(State.PENDING), full=True) == [
        Withdraw(1, 1, "left", {0: "7"}, only_pending=False),
        Dispatch(2, 2, "left", (0,)),
    ]


def test_restart_sends_the_untried_and_doubts_the_tried() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(1)))
    site.step(JobSubmitted(NOW, job(2)))
    site.step(DispatchStarted(NOW, 2, 1))
    again = Site.__new__(Site)
    again.core = Core()
    tasks, info = list(site.core.tasks.values()), {"right": facts(4)}
    again.core.restore(
        RecoveredState(tasks=tasks, last_dispatches={1: 1, 2: 1}, info=info, margins=[], drains=[])
    )
    clusters = tuple(Cluster(name=n, adapter="local") for n in ("left", "right"))
    actions = again.step(DaemonStarted(NOW + 60, "cafe", Policy(), clusters))
    assert actions == [Dispatch(1, 1, "left", (0,))]
    # a listing that ends before the restart proves nothing: the old process may have acted late
    assert again.seen("right", facts(4), at=NOW + 70, until=NOW + 50, full=True) == []
    assert again.seen("right", None, at=NOW + 90, until=NOW + 70) == [Dispatch(2, 2, "right", (0,))]


def test_a_cluster_taken_out_of_the_configuration_leaves_its_jobs_unknown() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    site.step(DaemonStarted(NOW, "cafe", Policy(), (Cluster(name="right", adapter="local"),)))
    assert site.state() is State.UNKNOWN


def test_what_a_backup_has_of_a_manager_proves_nothing() -> None:
    """A restored backup gets a new instance and does not contain later dispatches."""
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    clusters = tuple(site.core.clusters)
    site.step(DaemonStarted(NOW, "f00d", Policy(), clusters, restored=True))
    assert site.core.tasks[1, 0].live_attempt.dispatched == 0.0
    assert site.out.tasks.keys() == {(1, 0)}
    site.seen("left", facts(8), full=True, since=1.0)
    assert site.state() is State.UNKNOWN


def test_a_restart_gives_priorities_back_that_another_policy_had_cut() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(owner_priority=3, user_class="gold")))
    classified = site.core.tasks[1, 0].priority
    assert classified > 1
    for most in (1, 10):
        site.step(DaemonStarted(NOW, "cafe", Policy(max_priority=most), tuple(site.core.clusters)))
        assert site.core.tasks[1, 0].priority == min(classified, most)


def test_a_restored_core_has_the_story_of_a_replayed_core() -> None:
    site = Site()
    for id in (1, 2):
        site.step(JobSubmitted(NOW, job(id, clusters=("left",))))
        site.sent(id)
    site.seen("left", None, site.row(State.RUNNING, started=NOW), site.row(State.PENDING, 2))
    site.step(UserRequested(NOW, "requeue", 1))
    site.seen("left", None, site.row(State.COMPLETED, started=NOW, ended=NOW))
    assert list(site.core.tasks) == [(2, 0), (1, 0)]
    site.step(DispatchStarted(NOW, 1, 2))
    restored = Core()
    tasks = [copy.deepcopy(task) for _, task in sorted(site.core.tasks.items())]
    restored.restore(
        RecoveredState(tasks=tasks, last_dispatches={1: 2, 2: 1}, info={}, margins=[], drains=[])
    )
    clusters = (Cluster(name="left", adapter="local"),)
    for event in (
        DaemonStarted(NOW, "cafe", Policy(), clusters),
        ClusterUnreachable(NOW, "left", "no answer"),
    ):
        assert site.core.step(event).changes == restored.step(event).changes
