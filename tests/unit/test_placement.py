"""Placement of queued tasks: eligible clusters, loads, refusals and full clusters."""

from __future__ import annotations

from metasched.core.events import (
    DaemonStarted,
    Dispatch,
    DispatchAccepted,
    DispatchRejected,
    DispatchSkipped,
    DispatchStarted,
    JobSubmitted,
    UserRequested,
)
from metasched.model.cluster import Cluster
from metasched.model.job import Reason, State
from metasched.model.licence import LicencePool
from metasched.model.listing import JobStatus
from metasched.policies.policy import Policy
from tests.unit.core_site import NOW, Site, facts, job


def test_sent_at_once_to_the_first_empty_cluster() -> None:
    site = Site()
    assert site.step(JobSubmitted(NOW, job())) == [Dispatch(1, 1, "left", (0,))]
    assert site.state() is State.DISPATCHING


def test_waits_until_some_cluster_has_been_heard_from() -> None:
    site = Site(listed=False)
    assert site.step(JobSubmitted(NOW, job())) == []
    assert site.core.tasks[1, 0].reason == Reason.CLUSTER_DOWN
    assert site.seen("right", facts(4)) == [Dispatch(1, 1, "right", (0,))]


def test_only_where_it_fits() -> None:
    site = Site()
    assert site.step(JobSubmitted(NOW, job(1, cpus=1))) == [Dispatch(1, 1, "left", (0,))]
    assert site.step(JobSubmitted(NOW, job(2, cpus=8))) == [Dispatch(2, 1, "left", (0,))]
    assert site.core.rejection_reason(job(3, cpus=9)) == (
        "no cluster has 9 processors, the largest is left with 8; ask for fewer"
    )
    assert site.core.rejection_reason(job(3, cpus=5, clusters=("right",))) == (
        "no cluster of those named has 5 processors, the largest is right with 4; ask for fewer"
    )


def test_what_can_never_run_is_refused_before_any_cluster_has_been_heard_from() -> None:
    site = Site(listed=False, pools=(LicencePool(name="m", total=1, clusters=("right",)),))
    assert site.core.rejection_reason(job(clusters=("left",), licences={"m": 1})) == (
        "no cluster can run the job (left: licence m cannot be used there); change what it asks for"
    )


def test_load_then_moves_to_the_other_cluster() -> None:
    site = Site()
    assert site.step(JobSubmitted(NOW, job(1, cpus=8))) == [Dispatch(1, 1, "left", (0,))]
    assert site.step(JobSubmitted(NOW, job(2))) == [Dispatch(2, 1, "right", (0,))]
    # left owes 800 s on 8 processors, right 100 s on 4
    assert site.step(JobSubmitted(NOW, job(3))) == [Dispatch(3, 1, "right", (0,))]


def test_tasks_of_one_job_share_a_sending_per_cluster() -> None:
    site = Site()
    three = job(1, cpus=4, array="1-3")
    # task 1 goes to left, task 2 to the empty right; then left owes less per processor
    assert site.step(JobSubmitted(NOW, three)) == [
        Dispatch(1, 1, "left", (1, 3)),
        Dispatch(1, 2, "right", (2,)),
    ]
    assert [site.core.tasks[1, i].attempt.dispatch_id for i in (1, 2, 3)] == [1, 2, 1]  # type: ignore[union-attr]


def test_other_peoples_work_counts() -> None:
    site = Site()
    site.seen("left", facts(8, owed_by_others=1e6, pending_jobs=9))
    assert site.step(JobSubmitted(NOW, job())) == [Dispatch(1, 1, "right", (0,))]


def test_refused_by_one_cluster_tries_the_other_then_is_rejected() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.step(DispatchStarted(NOW, 1, 1))
    assert site.step(DispatchRejected(NOW, 1, 1, "invalid account")) == [
        Dispatch(1, 2, "right", (0,))
    ]
    site.step(DispatchStarted(NOW, 1, 2))
    assert site.step(DispatchRejected(NOW, 1, 2, "invalid account")) == []
    assert site.out.changes[-1].after is State.REJECTED
    assert not site.core.tasks


def test_a_full_cluster_is_tried_again_later_with_one_task() -> None:
    site = Site()
    for id in (1, 2):
        site.step(JobSubmitted(NOW, job(id, cpus=8)))
    site.step(DispatchStarted(NOW, 1, 1))
    assert site.step(DispatchRejected(NOW, 1, 1, "too many jobs", retry_later=True)) == []
    assert site.core.tasks[1, 0].reason == Reason.LIMIT_MANAGER
    site.step(DispatchSkipped(NOW, ((2, 1),)))
    assert site.seen("left", at=NOW + 5) == []
    assert not site.core.unchanged_listing_matters("left", NOW + 5)
    assert site.core.unchanged_listing_matters("left", NOW + 10)
    assert site.seen("left", at=NOW + 10) == [Dispatch(1, 2, "left", (0,))]
    site.step(DispatchStarted(NOW + 10, 1, 2))
    assert site.step(DispatchRejected(NOW + 10, 1, 2, "too many jobs", retry_later=True)) == []
    assert site.seen("left", at=NOW + 20) == []  # the delay has doubled
    assert site.seen("left", at=NOW + 30) == [Dispatch(1, 3, "left", (0,))]
    site.step(DispatchStarted(NOW + 30, 1, 3))
    assert site.step(DispatchAccepted(NOW + 30, 1, 3, {0: "7"})) == [Dispatch(2, 2, "left", (0,))]


def test_a_refused_chunk_of_tasks_is_one_refusal() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(array="0-49", clusters=("left",))))
    site.step(DispatchStarted(NOW, 1, 1))
    site.step(DispatchRejected(NOW, 1, 1, "too many jobs", retry_later=True))
    assert site.core.unchanged_listing_matters("left", NOW + 10)


def test_observed_load_decays_as_running_jobs_near_their_limits() -> None:
    site = Site()
    site.seen("left", facts(8, free=0, running_jobs=((NOW + 1000, 8),)))
    assert site.step(JobSubmitted(NOW, job(1))) == [Dispatch(1, 1, "right", (0,))]
    # right owes 100 s on 4 processors; left 1000 - 990 s on 8
    assert site.step(JobSubmitted(NOW + 990, job(2))) == [Dispatch(2, 1, "left", (0,))]


def test_only_managers_reject() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(1, held=True, clusters=("right",))))
    site.step(DaemonStarted(NOW, "cafe", Policy(), (Cluster(name="left", adapter="local"),)))
    site.seen("left", facts(8))
    assert site.step(UserRequested(NOW, "release", 1)) == []
    assert site.core.tasks[1, 0].reason == Reason.NO_CLUSTER_FITS
    site.step(DaemonStarted(NOW, "cafe", Policy(), (Cluster(name="right", adapter="local"),)))
    assert site.seen("right", facts(4)) == [Dispatch(1, 1, "right", (0,))]


def test_a_step_costs_the_same_however_many_wait_in_clusters() -> None:
    """The number of calls of one submission does not grow with the queue."""
    import sys

    def calls(queued: int) -> int:
        site = Site()
        for id in range(1, queued + 1):
            site.step(JobSubmitted(NOW, job(id)))
        count = 0

        def counting(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(counting)
        try:
            site.core.step(JobSubmitted(NOW, job(queued + 1)))
        finally:
            sys.setprofile(None)
        return count

    assert calls(400) <= calls(20) * 1.1


def test_who_is_granted_licences_goes_where_least_is_owed_by_then() -> None:
    site = Site(pools=(LicencePool(name="a", total=1),), pull=False)
    site.step(JobSubmitted(NOW, job(1, licences={"a": 1})))
    site.sent()
    assert site.step(JobSubmitted(NOW, job(2, licences={"a": 1}))) == []
    site.seen("right", facts(4, owed_by_others=1e6))
    ended = JobStatus("ms-cafe-1-1", 0, "7", State.COMPLETED, started=NOW, ended=NOW)
    assert site.seen("left", facts(8), ended) == [Dispatch(2, 1, "left", (0,))]
