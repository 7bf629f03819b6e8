"""Licence leases: taken at dispatch, returned and passed on; tokens used outside metasched."""

from __future__ import annotations

import pytest

from metasched.core.events import (
    ClusterUnreachable,
    DaemonStarted,
    Dispatch,
    DispatchAccepted,
    DispatchRejected,
    DispatchStarted,
    JobSubmitted,
    LicencesCounted,
    LicencesReleased,
    TimerExpired,
    UserRequested,
    Withdraw,
)
from metasched.core.lease_expiry import GRACE
from metasched.model.cluster import ManagerLicences
from metasched.model.job import Reason, State
from metasched.model.licence import Lease, LicenceCount, LicencePool, ReturnedLease
from metasched.model.tags import tag_of
from metasched.policies.policy import Policy
from tests.unit.core_site import NOW, Site, facts, job

MATLAB = (LicencePool(name="matlab", total=4, linger=30.0),)


def test_licences_are_leased_all_or_none_with_the_intent_to_send() -> None:
    site = Site(pools=MATLAB)
    assert site.step(JobSubmitted(NOW, job(1, licences={"matlab": 3}))) == [
        Dispatch(1, 1, "left", (0,))
    ]
    assert site.out.leases == [Lease(1, 0, 1, {"matlab": 3}, NOW)]
    assert site.step(JobSubmitted(NOW, job(2, licences={"matlab": 2}))) == []
    assert site.core.tasks[2, 0].reason == Reason.LICENCE_BUSY
    assert site.out.leases == []
    [send] = site.step(
        JobSubmitted(NOW, job(3, licences={"matlab": 1}))
    )  # job 3 takes the token that job 2 cannot use
    assert (send.job, send.dispatch_id) == (3, 1)  # type: ignore[union-attr]


def forgotten(time_limit: float | None) -> Site:
    """Return a site whose manager no longer lists job 1; job 2 waits for its licences."""
    site = Site(pools=(LicencePool(name="matlab", total=4, linger=0.0),))
    lost = job(1, licences={"matlab": 4}, clusters=("left",), time_limit=time_limit)
    site.step(JobSubmitted(NOW, lost))
    site.sent()
    site.seen("left", None, site.row(State.RUNNING, started=NOW), at=NOW + 1)
    site.step(JobSubmitted(NOW + 1, job(2, licences={"matlab": 4}, clusters=("right",))))
    site.seen("left", None, full=True, at=NOW + 10, since=NOW + 9, previous_taken=NOW + 1)
    assert site.state() is State.UNKNOWN
    return site


def test_licences_of_a_forgotten_task_are_free_after_its_time_limit() -> None:
    site, end = forgotten(time_limit=100.0), NOW + 110 + GRACE
    assert site.seen("left", at=end - 1, since=end - 2) == []
    assert site.core.unchanged_listing_matters("left", end)
    [send] = site.seen("left", at=end, since=end - 1)
    assert (send.job, site.state()) == (2, State.UNKNOWN)  # type: ignore[union-attr]
    [returned, lease] = site.out.leases
    assert isinstance(returned, ReturnedLease)
    assert isinstance(lease, Lease)
    assert (returned.lease.job, lease.job) == (1, 2)
    # job 1 still runs: its tokens count again, and no other job gets any
    site.seen("left", None, site.row(State.RUNNING, started=NOW), at=end + 1)
    assert [(lease.job, lease.forced) for lease in site.out.leases] == [(1, True)]  # type: ignore[union-attr]
    assert site.step(JobSubmitted(end + 2, job(3, licences={"matlab": 1}))) == []


def test_licences_stay_leased_without_a_limit_or_an_answer() -> None:
    site, end = forgotten(time_limit=None), NOW + 10 * GRACE
    assert site.seen("left", at=end, since=end - 1) == []
    site = forgotten(time_limit=100.0)
    site.step(ClusterUnreachable(NOW + 20, "left", "silent"))
    assert site.seen("left", facts(8), full=True, at=end, since=end - 1) == []
    assert site.seen("left", at=end + 99 + GRACE, since=end) == []
    [send] = site.seen("left", at=end + 100 + GRACE, since=end)
    assert send.job == 2  # type: ignore[union-attr]


def test_a_line_that_cannot_be_read_may_be_the_forgotten_task() -> None:
    site, end = forgotten(time_limit=100.0), NOW + 110 + GRACE
    row = (tag_of("cafe", 1, 1), 0)
    assert site.seen("left", at=end, since=end - 1, quarantined=(row,)) == []
    assert site.seen("left", at=end + 1, since=end, quarantined=(("", -1),)) == []
    assert site.out.leases == []


def test_a_line_that_cannot_be_read_leases_the_licences_of_its_task_again() -> None:
    """The task stays unknown: only what was returned changes."""
    site, end = forgotten(time_limit=100.0), NOW + 110 + GRACE
    site.seen("left", at=end, since=end - 1)
    site.seen("left", at=end + 1, since=end, quarantined=((tag_of("cafe", 1, 1), 0),))
    assert site.state() is State.UNKNOWN
    assert [(lease.job, lease.forced) for lease in site.out.leases] == [(1, True)]  # type: ignore[union-attr]
    assert site.step(JobSubmitted(end + 2, job(3, licences={"matlab": 1}))) == []


def test_the_array_slot_of_a_forgotten_task_is_free_after_its_time_limit() -> None:
    site, end = Site(), NOW + 110 + GRACE
    site.step(JobSubmitted(NOW, job(array="0-1%1", time_limit=100.0, clusters=("left",))))
    site.sent()
    site.seen("left", None, site.row(State.RUNNING, started=NOW), at=NOW + 1)
    site.seen("left", None, full=True, at=NOW + 10, since=NOW + 9, previous_taken=NOW + 1)
    assert site.seen("left", at=end - 1, since=end - 2) == []
    assert site.seen("left", at=end, since=end - 1) == [Dispatch(1, 2, "left", (1,))]
    # a restart of the daemon keeps the slot free
    clusters = tuple(site.core.clusters)
    site.step(DaemonStarted(end + 0.5, "cafe", Policy(), clusters))
    site.seen("left", facts(8), site.row(State.RUNNING, sending=2), full=True, at=end + 0.6)
    assert site.core.tasks[1, 0].live_attempt.lease_expired
    # task 0 is listed again: the array limit counts both tasks
    site.seen("left", None, site.row(State.RUNNING, started=NOW), at=end + 1)
    assert site.state() is State.RUNNING


@pytest.mark.parametrize(
    ("state", "lingers"), [(State.COMPLETED, {"matlab": NOW + 40}), (State.CANCELLED, {})]
)
def test_licences_come_back_with_the_end_of_an_attempt(
    state: State, lingers: dict[str, float]
) -> None:
    site = Site(pools=MATLAB)
    site.step(JobSubmitted(NOW, job(licences={"matlab": 4})))
    site.sent()
    begun = NOW if state is State.COMPLETED else None  # unused tokens do not linger
    ended = site.row(state, started=begun, ended=NOW + 10)
    site.seen("left", None, ended, at=NOW + 10)
    [returned] = site.out.leases
    assert isinstance(returned, ReturnedLease)
    assert (returned.reason, returned.lingering_until) == (state, lingers)
    site.step(JobSubmitted(NOW + 10, job(2, licences={"matlab": 4})))
    assert site.core.next_due == (NOW + 40 if lingers else None)
    assert ((2, 0) in site.core.licences) == bool(lingers)
    if lingers:
        assert [type(a) for a in site.step(TimerExpired(NOW + 40))] == [Dispatch]


def test_a_refusal_gives_licences_back_and_a_requeue_takes_them_anew() -> None:
    site = Site(pools=MATLAB)
    site.step(JobSubmitted(NOW, job(licences={"matlab": 4})))
    site.step(DispatchStarted(NOW, 1, 1))
    site.step(DispatchRejected(NOW, 1, 1, "no"))
    assert [type(change) for change in site.out.leases] == [
        ReturnedLease,
        Lease,
    ]  # dispatched to the other cluster
    site.sent(cluster="right", sending=2)
    site.seen("right", None, site.row(State.RUNNING, sending=2, started=NOW))
    site.step(UserRequested(NOW, "requeue", 1))
    site.seen("right", None, site.row(State.CANCELLED, sending=2, started=NOW, ended=NOW))
    [returned] = site.out.leases  # the used tokens linger
    assert isinstance(returned, ReturnedLease)
    site.step(TimerExpired(NOW + 30))
    [lease] = site.out.leases
    assert isinstance(lease, Lease)
    assert lease.attempt == 3


def test_a_pull_passes_licences_on_before_anybody_else() -> None:
    site = Site(pools=MATLAB, pull_after=0.0)
    site.step(JobSubmitted(NOW, job(1, cpus=4, licences={"matlab": 4})))
    site.sent()
    site.step(JobSubmitted(NOW, job(2, licences={"matlab": 1}, owner_priority=3)))
    site.seen("left", None, site.row(State.PENDING), at=NOW + 1)
    [withdraw] = site.seen("right", facts(4), at=NOW + 2)
    assert isinstance(withdraw, Withdraw)
    gone = site.row(State.CANCELLED, ended=NOW + 3)
    assert site.seen("left", None, gone, at=NOW + 3) == [Dispatch(1, 2, "right", (0,))]
    returned, lease = site.out.leases
    assert isinstance(returned, ReturnedLease)
    assert returned.reason == "passed on"
    assert lease == Lease(1, 0, 2, {"matlab": 4}, NOW + 3, forced=True)
    assert site.core.tasks[2, 0].reason == Reason.LICENCE_BUSY


def test_what_does_not_begin_gives_way_after_patience_to_those_whom_that_serves() -> None:
    site = Site(pools=MATLAB, pull=False, patience=60.0)
    site.step(JobSubmitted(NOW, job(1, licences={"matlab": 3})))
    site.sent()
    site.seen("left", None, site.row(State.PENDING))
    site.step(JobSubmitted(NOW, job(2, licences={"matlab": 4})))
    assert site.core.unchanged_listing_matters("left", NOW + 1)
    assert site.seen("left", None, site.row(State.PENDING), at=NOW + 59) == []
    [withdraw] = site.seen("left", None, site.row(State.PENDING), at=NOW + 60)
    assert isinstance(withdraw, Withdraw)
    assert withdraw.only_pending
    gone = site.row(State.CANCELLED, ended=NOW + 61)
    [send] = site.seen("left", None, gone, at=NOW + 61)
    assert isinstance(send, Dispatch)
    assert (send.job, site.core.tasks[1, 0].reason) == (2, Reason.LICENCE_BUSY)


def test_no_task_is_recalled_if_tokens_that_came_back_let_the_waiting_task_go() -> None:
    site = Site(pools=(LicencePool(name="matlab", total=4),), pull=False, patience=60.0)
    for id in (1, 2):
        site.step(JobSubmitted(NOW, job(id, licences={"matlab": 2}, clusters=("left",))))
        site.sent(id)
    site.step(JobSubmitted(NOW, job(3, licences={"matlab": 2}, clusters=("left",))))
    pending = site.row(State.PENDING, 2)
    site.seen("left", None, site.row(State.RUNNING, started=NOW), pending, at=NOW + 1)
    ended = site.row(State.COMPLETED, started=NOW, ended=NOW + 60)
    assert site.seen("left", None, ended, pending, at=NOW + 60) == [Dispatch(3, 1, "left", (0,))]


@pytest.mark.parametrize("ids", [(1, 2), (2, 1)])
def test_of_tasks_with_equal_keys_that_of_the_highest_id_is_recalled(ids: tuple[int, ...]) -> None:
    """The order of leases differs between a daemon, a restarted daemon and a replay."""
    site = Site(pools=MATLAB, pull=False, patience=60.0)
    for id in ids:
        site.step(JobSubmitted(NOW, job(id, licences={"matlab": 2}, clusters=("left",))))
        site.sent(id)
    site.step(JobSubmitted(NOW, job(3, licences={"matlab": 2})))
    pending = [site.row(State.PENDING, id) for id in ids]
    [withdraw] = site.seen("left", None, *pending, at=NOW + 60)
    assert isinstance(withdraw, Withdraw)
    assert withdraw.job == 2


def test_a_task_goes_when_a_second_lease_is_past_its_expected_end() -> None:
    """Job 3 needs the tokens of job 1, which overran; those of job 2 are extra from its end on."""
    site = Site(pools=(LicencePool(name="matlab", total=4),), pull=False)
    for id, seconds in ((1, 10.0), (2, 80.0)):
        site.step(JobSubmitted(NOW, job(id, licences={"matlab": 1}, time_limit=seconds)))
    site.step(JobSubmitted(NOW, job(3, licences={"matlab": 3}, time_limit=10.0)))
    site.step(JobSubmitted(NOW, job(4, licences={"matlab": 1}, time_limit=500.0)))
    assert site.step(TimerExpired(NOW + 79)) == []
    assert site.core.next_due == NOW + 80
    assert site.step(TimerExpired(NOW + 80)) == [Dispatch(4, 1, "left", (0,))]
    assert site.core.next_due is None


def test_jobs_that_cannot_start_pass_licences_on_less_and_less_often() -> None:
    site = Site(pools=MATLAB, pull=False, patience=0.0)
    for id in (1, 2):
        site.step(JobSubmitted(NOW, job(id, licences={"matlab": 4})))
    (holder, number), now, recalls = (1, 1), NOW, 0
    dispatches = {1: 1, 2: 0}
    site.sent()
    for _ in range(600):
        now += 1
        pending = site.row(State.PENDING, holder, number)
        if not any(isinstance(a, Withdraw) for a in site.seen("left", None, pending, at=now)):
            continue
        recalls += 1
        gone = site.row(State.CANCELLED, holder, number, ended=now)
        [send] = site.seen("left", None, gone, at=now)
        assert isinstance(send, Dispatch)
        dispatches[send.job] += 1
        holder, number = send.job, dispatches[send.job]
        site.step(DispatchStarted(now, holder, number))
        site.step(DispatchAccepted(now, holder, number, {0: "7"}))
    assert dispatches[2] >= 1
    assert 4 <= recalls <= 18  # each job is recalled after 1, 2, 4 ... seconds


def test_a_cancelled_job_that_runs_again_is_recalled_as_soon_as_at_first() -> None:
    site = Site(pools=MATLAB, pull=False, patience=60.0)
    site.step(JobSubmitted(NOW, job(1, licences={"matlab": 3})))
    site.sent()
    site.step(JobSubmitted(NOW, job(2, licences={"matlab": 4})))
    site.seen("left", None, site.row(State.PENDING), at=NOW + 60)
    site.seen("left", None, site.row(State.CANCELLED, ended=NOW + 61), at=NOW + 61)
    task = site.core.tasks[1, 0]
    assert site.core.recall_wait(task) == 120.0
    site.step(UserRequested(NOW + 62, "cancel", 1))
    assert task.state is State.CANCELLED
    assert site.core.recall_wait(task) == 60.0


def test_no_task_gives_way_to_a_job_that_can_never_run() -> None:
    site = Site(pools=(*MATLAB, LicencePool(name="none", total=0)), pull=False, patience=60.0)
    site.step(JobSubmitted(NOW, job(1, licences={"matlab": 3})))
    site.sent()
    site.seen("left", None, site.row(State.PENDING))
    site.step(JobSubmitted(NOW, job(2, licences={"matlab": 4, "none": 1})))
    assert site.seen("left", None, site.row(State.PENDING), at=NOW + 1000) == []


@pytest.mark.parametrize(("state", "outside"), [(State.RUNNING, 1), (State.PENDING, 3)])
def test_tokens_given_by_a_manager_itself_are_outside_use(state: State, outside: int) -> None:
    """The manager's count does not yet include a pending job of metasched."""
    site = Site(pools=MATLAB, pull=False)
    site.step(JobSubmitted(NOW, job(1, licences={"matlab": 2})))
    site.sent()
    info = facts(8, licences={"matlab": ManagerLicences(total=9, used=3)})
    row = site.row(state, started=NOW if state is State.RUNNING else None)
    site.seen("left", info, row)
    standing = site.out.licence_statuses["matlab"]
    assert (standing.leased_tokens, standing.outside, standing.observed) == (2, outside, NOW)
    assert standing.free == 2 - outside
    site.step(JobSubmitted(NOW, job(2, licences={"matlab": 2})))
    assert site.core.tasks[2, 0].reason == Reason.LICENCE_BUSY
    site.step(ClusterUnreachable(NOW + 1, "left", "no answer"))
    assert site.core.licences.status("matlab", NOW + 1).outside == outside
    sent = site.seen("left", facts(8, licences={"matlab": ManagerLicences(9, 2)}), row, at=NOW + 2)
    assert len(sent) == (state is State.RUNNING)


def test_the_end_of_an_own_job_makes_no_outside_use() -> None:
    site = Site(pools=(LicencePool(name="matlab", total=4),))
    site.step(JobSubmitted(NOW, job(licences={"matlab": 2})))
    site.sent()
    site.seen("left", facts(8, licences={"matlab": ManagerLicences(4, 2)}), site.row(State.RUNNING))
    site.seen("left", facts(8, licences={"matlab": ManagerLicences(4)}), site.row(State.COMPLETED))
    assert site.core.licences.status("matlab", NOW).free == 4


def test_outside_use_outlasts_a_restart_until_the_cluster_reports_again() -> None:
    site = Site(pools=MATLAB)
    site.seen("left", facts(8, licences={"matlab": ManagerLicences(4, 3)}))
    clusters = tuple(view.cluster for view in site.core.state.views.values())
    site.step(DaemonStarted(NOW + 1, "cafe", Policy(), clusters, pools=MATLAB))
    assert site.out.licence_statuses["matlab"].outside == 3
    site.seen("left", facts(8), at=NOW + 2)
    assert site.out.licence_statuses["matlab"].outside == 0


def test_use_that_a_server_reports_too_counts_once() -> None:
    pool = LicencePool(name="matlab", total=9, server="s", clusters=("left",))
    site = Site(pools=(pool,))
    site.seen("left", facts(8, licences={"matlab": ManagerLicences(9, 3)}))
    site.seen("right", facts(4, licences={"matlab": ManagerLicences(5, 5)}))  # outside the pool
    for outside, expected in ((2, 3), (4, 4), (0, 3)):
        site.step(LicencesCounted(NOW, (LicenceCount("matlab", 9, outside, NOW),)))
        assert site.out.licence_statuses["matlab"].outside == expected


def test_only_where_its_licences_can_be_used() -> None:
    site = Site(pools=(LicencePool(name="m", total=1, clusters=("right",)),))
    assert site.step(JobSubmitted(NOW, job(licences={"m": 1}))) == [Dispatch(1, 1, "right", (0,))]
    reason = site.core.rejection_reason(job(2, licences={"m": 1}, clusters=("left",)))
    assert reason == (
        "no cluster can run the job (left: licence m cannot be used there); change what it asks for"
    )


@pytest.mark.parametrize(("total", "urgency"), [(2, 10), (20, 2)])
def test_the_licence_heuristic_knows_how_many_licences_there_are(total: int, urgency: int) -> None:
    site = Site(pools=tuple(LicencePool(name=f"l{n}", total=1) for n in range(total)))
    parts = site.core.classifier.contributions(job(licences={"l0": 1, "l1": 1}))
    assert [p.contribution for p in parts if p.heuristic == "licence"] == [urgency]


def test_a_restarted_attempt_leases_its_licences_again_after_an_operator_released_them() -> None:
    site = Site(pools=MATLAB)
    site.step(JobSubmitted(NOW, job(licences={"matlab": 4})))
    site.sent()
    site.seen("left", None, site.row(State.RUNNING, started=NOW))
    site.step(ClusterUnreachable(NOW, "left", "no answer"))
    site.step(LicencesReleased(NOW, 1, by="root"))
    assert [type(change) for change in site.out.leases] == [ReturnedLease]
    site.seen("left", None, site.row(State.PENDING, restarts=1))
    assert site.state() is State.PENDING
    assert site.out.leases == [Lease(1, 0, 2, {"matlab": 4}, NOW, True)]
