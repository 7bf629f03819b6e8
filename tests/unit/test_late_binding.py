"""Late binding: one queue, EASY over all clusters, and nodes kept free for reservations."""

from __future__ import annotations

import pytest

from metasched.core.events import (
    CoreEvent,
    DaemonStarted,
    Dispatch,
    DispatchAccepted,
    DispatchStarted,
    JobSubmitted,
    LicenceSet,
    ListingReceived,
    Outcome,
    TimerExpired,
)
from metasched.core.recovered_state import RecoveredState
from metasched.core.reservations.events import (
    Bind,
    ReservationBound,
    ReservationRequested,
    SurveyCluster,
    SurveyReceived,
    Unbind,
)
from metasched.core.scheduler import Core
from metasched.model.cluster import Cluster, ClusterInfo, NodeCapacity, Partition
from metasched.model.job import Job, Reason, State
from metasched.model.licence import LicencePool
from metasched.model.listing import JobStatus
from metasched.model.reservation import ReservationState, manager_name
from metasched.model.reservation_request import ReservationRequest
from metasched.model.survey import ManagerReservation, NodeUsage, Survey
from metasched.model.tags import tag_of
from metasched.policies.policy import Policy

T = 1_000_000.0
GUARD = 10.0
NODES = ("n1", "n2", "n10")


class Site:
    """A core with late binding and clusters of three nodes with four processors each."""

    def __init__(
        self, *clusters: str, late: bool = True, pools: tuple[LicencePool, ...] | None = None
    ) -> None:
        self.core = Core()
        self.now = T
        self.clusters = clusters or ("alpha",)
        described = tuple(
            Cluster(
                name=c,
                adapter="slurm",
                supports_reservations=True,
                binds_late=late,
                granularity=60.0,
            )
            for c in self.clusters
        )
        self.step(DaemonStarted(T, "i", Policy(send="late"), described, pools=pools))
        for name in self.clusters:
            self.seen(name)

    def step(self, event: CoreEvent) -> Outcome:
        self.out = self.core.step(event)
        return self.out

    def sent(self) -> list[tuple[int, str]]:
        """Return (job, cluster) of each dispatch of the last step."""
        return [(a.job, a.cluster) for a in self.out.actions if isinstance(a, Dispatch)]

    def seen(
        self, cluster: str = "alpha", used: int = 0, *rows: JobStatus, **fields: object
    ) -> Outcome:
        nodes = [NodeCapacity(1, 4, min(max(12 - used - 4 * n, 0), 4)) for n in range(3)]
        partition = Partition("main", tuple(nodes), default=True)
        info = ClusterInfo(12, used, (partition,), **fields)  # type: ignore[arg-type]
        return self.step(ListingReceived(self.now, cluster, rows, info=info, until=self.now))

    def submit(
        self, id: int, limit: float, cpus: int = 4, **fields: object
    ) -> list[tuple[int, str]]:
        job = Job(id=id, submitted=T + id, estimated=limit, time_limit=limit, cpus=cpus, **fields)  # type: ignore[arg-type]
        self.step(JobSubmitted(self.now, job))
        return self.sent()

    def survey(self, **taken: tuple[float, float]) -> Outcome:
        """Report the busy time of nodes, as (start, end) in seconds after `T`."""
        nodes = tuple(
            NodeUsage((n,), 4, True, ((T + taken[n][0], T + taken[n][1]),) if n in taken else ())
            for n in NODES
        )
        book = self.core.reservations
        held = tuple(
            ManagerReservation(manager_name("i", r.id), r.start, r.end, r.bound_nodes)
            for r in book.by_id.values()
            if r.bound_nodes
        )
        return self.step(
            SurveyReceived(self.now, "alpha", Survey(self.now, nodes, held, guard=GUARD))
        )

    def reserve(self, id: int, start: float, end: float, size: int) -> ReservationState | None:
        request = ReservationRequest.fixed(size, T + start, T + end)
        requested = ReservationRequested(self.now, id, "ada", request, True, ("alpha",), T + 1e6)
        self.step(requested)
        made = self.core.reservations.by_id.get(id)
        return None if made is None else made.state

    def stage(self) -> ReservationState:
        return self.core.reservations.by_id[1].state

    def reason(self, id: int) -> str:
        return self.core.tasks[id, 0].reason


def test_jobs_are_sent_only_where_they_start_at_once_and_none_delays_the_first() -> None:
    site = Site("alpha", "beta")
    assert site.submit(1, 600, cpus=12, tasks=3) == [(1, "alpha")]
    assert site.submit(2, 600, cpus=8, tasks=2) == [(2, "beta")]
    # job 3 is promised alpha in ten minutes; a job on beta does not delay it
    assert site.submit(3, 600, cpus=12, tasks=3) == []
    assert site.reason(3) == Reason.PRIORITY
    assert site.submit(4, 700) == [(4, "beta")]
    alone = Site()
    assert alone.submit(1, 600, cpus=8, tasks=2) == [(1, "alpha")]
    assert alone.submit(2, 600, cpus=12, tasks=3) == []
    assert alone.submit(3, 700) == [], "it would delay the second"
    assert alone.submit(4, 600) == [(4, "alpha")]


@pytest.mark.timeout(20)
def test_a_job_that_comes_while_all_processors_are_busy_does_not_go_first() -> None:
    """Kept processors are for the first job that was found blocked while some were free."""
    site = Site(late=False)
    site.seen(used=12)
    for id, user in enumerate("aaaabb", 1):
        assert site.submit(id, 100.0, user=user) == []
    started = []
    for _ in range(6):  # one node gets free at a time
        site.seen("alpha", 8)
        started += [id for id, _ in site.sent()]
        tag = tag_of("i", started[-1], 1)
        site.seen("alpha", 12, JobStatus(tag, 0, tag, State.RUNNING, T, None, None))
    assert started == [1, 5, 2, 6, 3, 4]


def test_who_has_its_licence_and_no_room_is_asked_once_and_goes_when_there_is_room() -> None:
    site = Site(pools=(LicencePool(name="matlab", total=2),))
    assert site.submit(1, 600, cpus=12, tasks=3) == [(1, "alpha")]
    for id in (2, 3):
        assert site.submit(id, 600, licences={"matlab": 1}) == []
        assert site.reason(id) == Reason.PRIORITY
    # no processor is free; more tokens make the core consider both jobs again
    site.step(LicenceSet(site.now, "matlab", 4, "root"))
    assert site.sent() == []
    site.now += 60
    site.seen("alpha", 0, JobStatus(tag_of("i", 1, 1), 0, "7", State.COMPLETED, exit_code=0))
    assert site.sent() == [(2, "alpha"), (3, "alpha")]
    assert site.core.licences.status("matlab", site.now).leased_tokens == 2


def test_no_job_may_be_where_a_reservation_begins_unless_enough_is_left() -> None:
    site = Site()
    site.survey()
    assert site.reserve(1, 1000, 2000, size=2) is ReservationState.CONFIRMED
    assert site.out.reservation_actions == []
    # one node is left; the manager counts 16:01 as 17 minutes, too long before the reservation
    assert site.submit(1, 961) == [(1, "alpha")]
    assert site.submit(2, 961) == []
    assert site.reason(2) == Reason.RESERVATION_NEAR
    assert site.submit(3, 960) == [(3, "alpha")]


def test_of_nodes_without_a_name_no_more_are_promised_than_there_are() -> None:
    site = Site()
    site.survey()
    assert site.reserve(1, 1000, 2000, size=2) is ReservationState.CONFIRMED
    assert site.reserve(2, 1999, 3000, size=2) is None
    assert site.reserve(3, 1999, 3000, size=1) is ReservationState.CONFIRMED
    assert site.reserve(4, 2000, 2100, size=2) is ReservationState.CONFIRMED
    assert site.reserve(5, 2099, 2200, size=1) is None


def test_a_job_of_several_tasks_may_have_a_node_for_each_until_a_survey_shows_it() -> None:
    site = Site()
    site.survey()
    site.reserve(1, 1000, 2000, size=1)
    assert site.submit(1, 3600, cpus=3, tasks=3) == []
    assert site.submit(2, 3600, cpus=2, tasks=2) == [(2, "alpha")]
    assert site.submit(3, 3600, cpus=2, tasks=2) == []
    site.step(DispatchStarted(T, 2, 1))
    site.step(DispatchAccepted(T, 2, 1, {0: "7"}))
    site.seen("alpha", 2, JobStatus(tag_of("i", 2, 1), 0, "7", State.RUNNING, T))
    assert site.sent() == []
    site.now = T + 5
    site.survey(n1=(0, 3600))
    assert site.sent() == [], "two more nodes are not left beside the reservation"
    assert site.submit(4, 3600, cpus=1) == [(4, "alpha")]


def test_what_does_not_start_at_once_is_taken_back_before_it_runs_into_a_reservation() -> None:
    site = Site()
    site.survey()
    site.reserve(1, 1000, 2000, size=3)
    assert site.submit(1, 900) == [(1, "alpha")]
    site.step(DispatchStarted(T, 1, 1))
    site.step(DispatchAccepted(T, 1, 1, {0: "7"}))
    waiting = JobStatus(tag_of("i", 1, 1), 0, "7", State.PENDING)
    site.now = T + 90
    assert site.seen("alpha", 0, waiting).actions == []
    site.now = T + 91
    [withdrawn] = site.seen("alpha", 0, waiting).actions
    assert (withdrawn.cluster, getattr(withdrawn, "only_pending", None)) == ("alpha", True)


def test_shortly_before_its_start_the_lowest_nodes_that_will_be_free_are_bound() -> None:
    site = Site()
    site.survey()
    site.reserve(1, 1000, 2000, size=2)
    assert site.core.next_due == T + 940
    site.now = T + 940
    assert site.step(TimerExpired(site.now)).reservation_actions == [SurveyCluster("alpha")]
    assert site.core.next_due == T + 1000
    site.survey(n1=(0, 3600), n2=(0, 985))
    assert site.out.reservation_actions == [Bind("alpha", 1)]
    book = site.core.reservations
    assert book.by_id[1].nodes == ("n2", "n10")
    assert site.survey(n1=(0, 3600)).reservation_actions == []
    site.step(ReservationBound(site.now, 1, ("n2", "n10")))
    assert site.stage() is ReservationState.BOUND
    site.now = T + 1000
    site.step(TimerExpired(site.now))
    assert site.stage() is ReservationState.ACTIVE


def test_nodes_that_jobs_hold_past_their_limits_are_taken_only_for_want_of_others() -> None:
    for size, chosen in ((2, ("n2", "n10")), (3, NODES)):
        site = Site()
        site.survey()
        site.reserve(1, 1000, 2000, size=size)
        site.now = T + 950
        site.step(TimerExpired(site.now))
        site.survey(n1=(0, 995))
        assert site.core.reservations.by_id[1].nodes == chosen


def test_one_that_finds_too_few_nodes_is_tried_until_its_start_and_broken_at_it() -> None:
    site = Site()
    site.survey()
    site.reserve(1, 1000, 2000, size=3)
    site.now = T + 950
    site.step(TimerExpired(site.now))
    site.survey(n1=(0, 3600))  # another user's job
    book = site.core.reservations
    assert (book.by_id[1].state, book.by_id[1].cause) == (
        ReservationState.CONFIRMED,
        "too few nodes are free for it as yet",
    )
    site.now = T + 1000
    assert site.step(TimerExpired(site.now)).reservation_actions == [SurveyCluster("alpha")]
    assert site.survey(n1=(0, 3600)).reservation_actions == [Unbind("alpha", 1)]
    assert book.by_id[1].state is ReservationState.BROKEN


def test_after_a_restart_nothing_is_bound_too_early_and_nothing_sent_that_may_be_in_the_way() -> (
    None
):
    site = Site()
    site.survey()
    site.reserve(1, 1000, 2000, size=1)
    again = Site()
    reservations = list(site.core.reservations.by_id.values())
    again.core.restore(
        RecoveredState(
            tasks=[], last_dispatches={}, info={}, margins=[], drains=[], reservations=reservations
        )
    )
    described = (
        Cluster(name="alpha", adapter="slurm", supports_reservations=True, binds_late=True),
    )
    assert (
        again.step(DaemonStarted(T, "i", Policy(send="late"), described)).reservation_actions == []
    )
    again.seen()
    assert again.submit(1, 3600) == []
    assert again.submit(2, 900) == [(2, "alpha")]
    again.survey()
    assert again.sent() == [(1, "alpha")]


@pytest.mark.parametrize("guard", [None, 1e9])
def test_the_guard_is_the_managers_or_else_the_sites(guard: float | None) -> None:
    site = Site()
    nodes = (NodeUsage(NODES, 4, True),)
    site.step(SurveyReceived(T, "alpha", Survey(T, nodes, guard=guard)))
    site.reserve(1, 1000, 2000, size=3)
    sent = [site.submit(id, limit) for id, limit in ((1, 900), (2, 960))]
    assert sent == ([[(1, "alpha")], []] if guard is None else [[], []])
