"""Tasks that run at the end of their reservation's window are ended once, as out of time."""

from __future__ import annotations

import pytest
from msgspec import structs

from metasched.core.events import (
    ClaimsRevoked,
    ClusterResumed,
    ClusterUnreachable,
    CoreEvent,
    DaemonStarted,
    DispatchAccepted,
    DispatchStarted,
    JobSubmitted,
    ListingReceived,
    Outcome,
    Revoke,
    TimerExpired,
    UserRequested,
    Withdraw,
)
from metasched.core.reservations.events import (
    ReservationBound,
    ReservationCancelled,
    ReservationReleased,
    ReservationRequested,
    SurveyReceived,
)
from metasched.core.scheduler import Core
from metasched.model.cluster import Cluster, ClusterInfo, NodeCapacity, Partition
from metasched.model.job import Job, State
from metasched.model.listing import JobStatus
from metasched.model.reservation_request import ReservationRequest
from metasched.model.survey import NodeUsage, Survey
from metasched.model.tags import tag_of
from metasched.policies.policy import Policy

T = 1_000_000.0
START, END = T + 10, T + 110
ALPHA = Cluster(name="alpha", adapter="slurm", supports_reservations=True)


class Site:
    """A core with one cluster of two nodes; reservation 1 has one node."""

    def __init__(self, let_run: float = 0.0, fence_dir: str = "") -> None:
        self.core = Core()
        self.cluster = structs.replace(ALPHA, fence_dir=fence_dir)
        self.boot(T)
        nodes = NodeUsage(("n1", "n2"), 4, True)
        self.step(SurveyReceived(T, "alpha", Survey(T, (nodes,))))
        request = ReservationRequest.fixed(1, START, END)
        self.step(ReservationRequested(T, 1, "ada", request, True, ("alpha",), T + 1e6, let_run))
        self.step(ReservationBound(T, 1, self.core.reservations.by_id[1].nodes))

    def step(self, event: CoreEvent) -> Outcome:
        self.out = self.core.step(event)
        return self.out

    def boot(self, now: float) -> None:
        """Start the daemon and receive a listing of the cluster."""
        self.step(DaemonStarted(now, "i", Policy(), (self.cluster,)))
        self.seen(now)

    def seen(self, now: float, *rows: JobStatus) -> list[Withdraw]:
        partition = Partition("main", (NodeCapacity(2, 4, 4),), default=True)
        self.step(
            ListingReceived(now, "alpha", rows, info=ClusterInfo(8, 0, (partition,)), until=now)
        )
        return self.ended

    def submit(self, id: int = 1, array: str | None = None, within: int | None = 1) -> None:
        job = Job(id=id, submitted=T, estimated=100.0, array=array, reservation=within)
        self.step(JobSubmitted(T, job))
        [sent] = self.out.actions
        self.step(DispatchStarted(T, id, 1))
        natives = {index: f"{id}_{index}" for index in sent.indices}  # type: ignore[union-attr]
        self.step(DispatchAccepted(T, id, 1, natives))

    def row(self, state: State, id: int = 1, index: int = 0, **fields: object) -> JobStatus:
        started = None if state is State.PENDING else START
        row = JobStatus(tag_of("i", id, 1), index, f"{id}_{index}", state, started=started)
        return structs.replace(row, **fields)

    def due(self, now: float) -> list[Withdraw]:
        self.step(TimerExpired(now))
        return self.ended

    @property
    def ended(self) -> list[Withdraw]:
        """The unconditional withdrawals of the last step."""
        actions = (a for a in self.out.actions if isinstance(a, Withdraw))
        return [action for action in actions if not action.only_pending]

    @property
    def causes(self) -> list[str]:
        return [change.cause for change in self.out.changes]


def test_a_job_in_an_ended_window_is_ended_once_and_timed_out() -> None:
    site = Site()
    site.submit(1)
    site.submit(2, within=None)
    site.seen(START, site.row(State.RUNNING), site.row(State.RUNNING, 2))
    assert site.core.next_due == END
    assert site.due(END - 1) == []
    assert site.due(END) == [Withdraw(1, 1, "alpha", {0: "1_0"}, only_pending=False)]
    assert "reservation 1 is over: it is to end" in site.causes
    assert site.core.next_due is None
    assert site.due(END + 1) == site.seen(END + 2) == []
    site.seen(END + 3, site.row(State.CANCELLED, ended=END + 2, manager_reason="cancelled by 0"))
    [change] = site.out.changes
    assert (change.after, change.cause) == (State.TIMEOUT, "its reservation ended")
    [(_, attempt)] = site.out.closed_attempts
    assert (attempt.state, attempt.manager_reason) == (State.TIMEOUT, "its reservation ended")
    assert site.core.tasks[2, 0].state is State.RUNNING


@pytest.mark.parametrize("own", [State.COMPLETED, State.FAILED, State.NODE_FAIL])
def test_one_that_ends_by_itself_meanwhile_keeps_its_own_end(own: State) -> None:
    site = Site()
    site.submit()
    site.seen(START, site.row(State.RUNNING))
    assert site.due(END)
    site.seen(END + 1, site.row(own, ended=END, exit_code=0))
    [(_, attempt)] = site.out.closed_attempts
    assert attempt.state is own


def test_tasks_of_an_array_are_ended_together_and_those_that_wait_come_back() -> None:
    site = Site()
    site.submit(array="0-2")
    rows = (site.row(State.RUNNING, index=index) for index in (0, 2))
    site.seen(START, *rows, site.row(State.PENDING, index=1))
    assert site.due(END) == [Withdraw(1, 1, "alpha", {0: "1_0", 2: "1_2"}, only_pending=False)]
    withdrawal = Withdraw(1, 1, "alpha", {1: "1_1"}, only_pending=True)
    assert withdrawal in site.out.actions
    # task 1 started before the recall reached it, as a listing reports
    again = site.seen(END + 1, site.row(State.RUNNING, index=1, started=END - 1))
    assert again == [Withdraw(1, 1, "alpha", {1: "1_1"}, only_pending=False)]


def test_what_is_let_run_is_ended_when_that_time_is_over() -> None:
    site = Site(let_run=60.0)
    site.submit()
    site.seen(START, site.row(State.RUNNING))
    assert site.due(END) == site.seen(END + 30) == site.due(END + 59) == []
    assert site.core.next_due == END + 60
    assert len(site.due(END + 60)) == 1


def test_it_is_done_at_the_start_if_no_daemon_was_there_and_again_if_one_died_of_it() -> None:
    site = Site()
    site.submit()
    site.seen(START, site.row(State.RUNNING))
    request = Withdraw(1, 1, "alpha", {0: "1_0"}, only_pending=False)
    for later in (60, 61):  # the first request was stored, and perhaps never sent
        site.boot(END + later)
        assert site.ended == [request]
        assert site.seen(END + later, site.row(State.RUNNING)) == []
    assert site.core.next_due is None


def test_tasks_last_listed_as_running_are_ended_on_a_silent_manager() -> None:
    site = Site()
    site.submit(1)
    site.submit(2)
    site.seen(START, site.row(State.RUNNING, 1), site.row(State.PENDING, 2))
    site.step(ClusterUnreachable(END - 5, "alpha", "it is down"))
    assert site.due(END) == [Withdraw(1, 1, "alpha", {0: "1_0"}, only_pending=False)]
    assert site.core.tasks[2, 0].live_attempt.intent == "recall"
    rows = (site.row(State.RUNNING, 1), site.row(State.PENDING, 2))
    site.seen(END + 61, *rows)
    assert {(a.job, a.only_pending) for a in site.out.actions if isinstance(a, Withdraw)} == {
        (1, False),
        (2, True),
    }


def test_a_user_request_has_precedence_before_and_after() -> None:
    site = Site()
    for id in (1, 2, 3):
        site.submit(id)
    site.seen(START, *(site.row(State.RUNNING, id) for id in (1, 2, 3)))
    site.step(UserRequested(END - 1, "cancel", 1, by="ada"))
    assert [action.job for action in site.due(END)] == [2, 3]
    site.step(UserRequested(END + 1, "requeue", 2, by="ada"))
    site.seen(END + 2, *(site.row(State.CANCELLED, id, ended=END + 2) for id in (1, 2, 3)))
    ends = {task.job.id: attempt.state for task, attempt in site.out.closed_attempts}
    assert ends == {1: State.CANCELLED, 2: State.CANCELLED, 3: State.TIMEOUT}
    assert site.core.tasks[2, 0].state is State.QUEUED


def test_one_that_is_cancelled_lets_run_until_its_end_and_nothing_is_ended_for_one_forgotten() -> (
    None
):
    for forgotten, ended in ((False, 1), (True, 0)):
        site = Site()
        site.submit()
        site.seen(START, site.row(State.RUNNING))
        site.step(ReservationCancelled(START + 1, 1, "ada"))
        assert site.ended == []
        if forgotten:
            site.step(ReservationReleased(START + 2, 1))
        assert len(site.due(END)) == ended


def test_a_claim_proves_a_start_that_no_listing_showed() -> None:
    """Grid Engine keeps no record of jobs that it kills at the end of a reservation."""
    site = Site(fence_dir="/claims")
    site.submit()
    site.seen(START - 1, site.row(State.PENDING))
    site.due(END)
    site.seen(END + 1, site.row(State.CANCELLED, started=None, ended=END))
    assert site.out.closed_attempts == []
    [revoke] = [action for action in site.out.actions if isinstance(action, Revoke)]
    begun = tuple((claim.tag, claim.task) for claim in revoke.claims)
    site.step(ClaimsRevoked(END + 2, already_started=begun))
    assert site.core.tasks[1, 0].state is State.UNKNOWN


def test_what_waits_in_one_that_was_over_while_its_cluster_was_left_out_comes_back() -> None:
    for over in (ReservationCancelled(T + 3, 1, "ada"), TimerExpired(START), TimerExpired(END)):
        site = Site()
        site.submit()
        site.seen(T + 1, site.row(State.PENDING))
        if over.time == END:
            site.seen(START, site.row(State.PENDING))
        site.step(DaemonStarted(T + 2, "i", Policy(), (structs.replace(ALPHA, name="beta"),)))
        site.step(over)
        site.step(DaemonStarted(over.time + 1, "i", Policy(), (ALPHA,)))
        site.seen(over.time + 2, site.row(State.PENDING))
        [withdrawal] = [action for action in site.out.actions if isinstance(action, Withdraw)]
        assert withdrawal == Withdraw(1, 1, "alpha", {0: "1_0"}, only_pending=True)


def test_what_waits_in_one_that_was_over_while_its_manager_was_silent_comes_back_all_the_same() -> (
    None
):
    site = Site()
    site.submit()
    site.seen(START, site.row(State.PENDING))
    site.step(ClusterUnreachable(END - 5, "alpha", "down"))
    site.step(TimerExpired(END))
    site.step(ClusterResumed(END + 1, "alpha"))  # a resume must not end this recall
    site.seen(END + 2, site.row(State.PENDING))
    [withdrawal] = [action for action in site.out.actions if isinstance(action, Withdraw)]
    assert withdrawal == Withdraw(1, 1, "alpha", {0: "1_0"}, only_pending=True)
