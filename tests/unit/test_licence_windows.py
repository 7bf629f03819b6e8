"""Licence tokens kept for reservations: which jobs get them before, during and after the window."""

from __future__ import annotations

from math import inf
from unittest.mock import patch

import pytest

from metasched.core.events import (
    ClusterUnreachable,
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
    Withdraw,
)
from metasched.core.licences import lookahead
from metasched.core.licences.queue import LicenceQueue
from metasched.core.licences.windows import (
    TokenWindow,
    earliest_start,
    min_tokens,
    tokens_over_time,
)
from metasched.core.reservations.events import (
    ReservationBound,
    ReservationCancelled,
    ReservationRequested,
    SurveyReceived,
)
from metasched.core.scheduler import Core
from metasched.model.calendar import CalendarEntry, CalendarLimit, LimitLicence
from metasched.model.cluster import Cluster, ClusterInfo, NodeCapacity, Partition
from metasched.model.job import Job, Reason, State
from metasched.model.licence import Lease, LicencePool
from metasched.model.listing import JobStatus
from metasched.model.reservation import ReservationState
from metasched.model.reservation_request import Offer, ReservationRequest
from metasched.model.survey import NodeUsage, Survey
from metasched.model.tags import tag_of
from metasched.policies.policy import Policy

T = 1_000_000.0
MATLAB = LicencePool(name="matlab", total=4)


def test_what_is_ahead_of_a_licence() -> None:
    first = TokenWindow(1, 10.0, 30.0, {"matlab": 3})
    second = TokenWindow(2, 20.0, 40.0, {"matlab": 1})
    returning = [(15.0, 2), (inf, 1)]
    slots = tokens_over_time(0.0, 1, returning, [(first, 3), (second, 1)])
    assert slots == [(0.0, 1), (10.0, -2), (15.0, 0), (20.0, -1), (30.0, 2), (40.0, 3)]
    assert [min_tokens(slots, *span) for span in ((0.0, 10.0), (0.0, 11.0), (15.0, 20.0))] == [
        1,
        -2,
        0,
    ]
    assert earliest_start(slots, 1, 0.0, 10.0, inf) == 0.0
    assert earliest_start(slots, 1, 0.5, 10.0, inf) == 30.0
    assert earliest_start(slots, 3, 0.0, 99.0, inf) == 40.0
    assert earliest_start(slots, 4, 0.0, 1.0, inf) == inf
    assert earliest_start(slots, 3, 0.0, 1.0, until=40.0) == inf


def test_of_too_few_for_all_windows_those_promised_first_have_theirs() -> None:
    claims = [(TokenWindow(id, 0.0, 9.0, {"matlab": 2}), 2) for id in (1, 2)]
    for own, count in ((1, 2), (2, 1), (None, -1)):
        assert tokens_over_time(0.0, 3, [], claims, own)[0] == (0.0, count)


class Site:
    """A core with licence pools and one cluster of two nodes with four processors each."""

    def __init__(self, *pools: LicencePool) -> None:
        self.core = Core()
        cluster = Cluster(name="alpha", adapter="slurm", supports_reservations=True)
        self.step(
            DaemonStarted(T, "cafe", Policy(pull=False), (cluster,), pools=pools or (MATLAB,))
        )
        self.seen(T)
        nodes = NodeUsage(("n1", "n2"), 4, True)
        self.step(SurveyReceived(T, "alpha", Survey(T, (nodes,))))

    def step(self, event: CoreEvent) -> Outcome:
        return self.core.step(event)

    def seen(self, at: float, *rows: JobStatus) -> Outcome:
        facts = ClusterInfo(
            cpus=8, used_cpus=0, partitions=(Partition("main", (NodeCapacity(2, 4, 8),), True),)
        )
        return self.step(ListingReceived(at, "alpha", rows, info=facts, since=0.0, until=at))

    def event(
        self, id: int, request: ReservationRequest, now: float = 0.0, **licences: int
    ) -> ReservationRequested:
        return ReservationRequested(
            T + now, id, "ada", request, True, ("alpha",), T + 5000, licences=licences
        )

    def reserve(
        self, id: int, start: float, end: float, now: float = 0.0, **licences: int
    ) -> ReservationState | None:
        """Request a node and licences for that window; return the reservation's state."""
        self.step(self.event(id, ReservationRequest.fixed(1, T + start, T + end), now, **licences))
        reservation = self.core.reservations.by_id.get(id)
        if reservation is not None:
            self.step(ReservationBound(T + now, id, reservation.nodes))
        return None if reservation is None else self.core.reservations.by_id[id].state

    def submit(
        self, id: int, count: int, limit: float | None, at: float = 0.0, **fields: int
    ) -> bool:
        """Submit a job with `count` tokens; return whether it is dispatched at once."""
        job = Job(
            id=id,
            submitted=T + at,
            estimated=limit or 100.0,
            time_limit=limit,
            licences={"matlab": count},
            **fields,  # type: ignore[arg-type]
        )
        return any(isinstance(a, Dispatch) for a in self.step(JobSubmitted(T + at, job)).actions)

    def sends(self, at: float) -> list[int]:
        return [a.job for a in self.step(TimerExpired(T + at)).actions if isinstance(a, Dispatch)]

    def why(self, id: int, at: float) -> str:
        lacking = self.core.licence_obstacle(self.core.tasks[id, 0], T + at)
        return "" if lacking is None else lacking.text

    def ended(self, id: int, at: float) -> list[int]:
        row = JobStatus(tag_of("cafe", id, 1), 0, str(id), State.COMPLETED, started=T, ended=T + at)
        return [a.job for a in self.seen(T + at, row).actions if isinstance(a, Dispatch)]


def test_a_window_is_kept_from_those_who_would_not_give_back_before_it() -> None:
    site = Site()
    assert site.reserve(1, 1000, 2000, matlab=3) is ReservationState.BOUND
    assert site.submit(1, 2, 512.0)  # returns its tokens before the window
    assert not site.submit(2, 2, 2048.0)
    assert site.why(2, 0) == "licence matlab: 2 wanted, and 2 free, kept for reservation 1"
    assert site.submit(3, 1, 2048.0)  # the window leaves one token
    assert not site.submit(4, 1, None)
    expected = "; the job has no time limit, and might not end before"
    assert site.why(4, 0).endswith(f"kept for reservation 1{expected}")
    assert site.core.tasks[4, 0].reason == Reason.LICENCE_BUSY


def test_jobs_of_a_reservation_have_its_licences_from_its_start_and_others_after_it() -> None:
    site = Site()
    site.reserve(1, 1000, 2000, matlab=3)
    assert not site.submit(1, 3, 900.0, reservation=1)  # too early, though the tokens are free
    assert site.core.tasks[1, 0].reason == Reason.RESERVATION_WAIT
    assert not site.submit(4, 4, 900.0, reservation=1)  # the window's three tokens and a free one
    assert site.submit(2, 4, 512.0)
    assert site.ended(2, 512) == []
    assert not site.submit(3, 4, 1000.0, at=512)
    assert sorted(site.sends(1000)) == [4]
    assert site.core.licences.status("matlab", T + 1000).reserved == 0
    assert site.ended(4, 1500) == [1]
    assert site.submit(5, 1, 256.0, at=1500)  # ends before the head could start
    assert site.core.licences.status("matlab", T + 1500).free == 0
    assert site.ended(1, 1800) == []
    counts = site.core.licences.status("matlab", T + 1800)
    assert (counts.leased_tokens, counts.reserved, counts.free) == (1, 3, 0)
    assert site.ended(5, 1900) == []
    assert site.why(3, 1900) == "licence matlab: 4 wanted, and 4 free, kept for reservation 1"
    assert site.sends(2000) == [3]


def test_the_begin_of_a_window_lets_others_overtake_a_first_task_that_has_to_wait_for_its_end() -> (
    None
):
    """A lease held past its time limit keeps the first task from starting before the window."""
    line = LicenceQueue()
    line.configure([LicencePool(name="matlab", total=5)], 0.0)
    window = TokenWindow(9, T + 50, T + 100, {"matlab": 2})
    line.keep_tokens_for_window(window)
    line.take(Lease(1, 0, 1, {"matlab": 2}, T), T + 40)
    line.join((2, 0), 0.0, {"matlab": 5}, 8.0)
    line.join((3, 0), 1.0, {"matlab": 1}, 32.0)
    assert line.next_ready(T + 20) is None
    line.keep_tokens_for_window(window)
    assert line.next_ready(T + 50) == (3, 0)


def test_a_cancelled_window_lets_go_those_who_waited_for_it() -> None:
    site = Site()
    site.reserve(1, 10, 2000, matlab=4)
    assert not site.submit(1, 4, 512.0)
    out = site.step(ReservationCancelled(T, 1, "ada"))
    assert [a.job for a in out.actions if isinstance(a, Dispatch)] == [1]


def test_windows_are_promised_where_all_their_licences_are_free() -> None:
    site = Site(MATLAB, LicencePool(name="nx", total=1, clusters=("beta",)))
    site.submit(1, 2, 1000.0)
    assert site.reserve(1, 500, 600, matlab=3) is None  # job 1 may hold two tokens until 1000
    assert site.reserve(2, 1000, 1100, matlab=3) is ReservationState.BOUND
    assert site.reserve(3, 1050, 1150, matlab=2) is None
    assert site.reserve(4, 1100, 1200, matlab=3) is ReservationState.BOUND
    assert site.reserve(5, 1000, 1100, nx=1) is None  # alpha cannot use nx
    assert site.submit(2, 1, None)
    assert site.reserve(6, 3000, 3100, matlab=4) is None  # job 2 has no time limit
    assert site.reserve(7, 3000, 3100, matlab=3) is ReservationState.BOUND
    requested = site.event(8, ReservationRequest.flexible(1, 50, T, T + 4000), matlab=2)
    book = site.core.reservations
    assert book.offer_finder.offers(requested) == {"alpha": Offer(T + 1200, T + 1250, 1)}
    assert book.offer_finder.possible_starts(requested, "alpha", Offer(T + 1200, T + 1250, 1)) == [
        (T + 1200, T + 2950),
        (T + 3100, T + 3950),
    ]


def test_what_lingers_is_not_promised() -> None:
    site = Site(LicencePool(name="matlab", total=4, linger=30.0))
    assert site.reserve(1, 1000, 2000, matlab=4) is ReservationState.BOUND
    assert site.reserve(2, 2029, 3000, matlab=1) is None
    assert site.reserve(3, 900, 971, matlab=1) is None
    assert site.reserve(4, 2030, 3000, matlab=1) is ReservationState.BOUND
    assert site.reserve(5, 900, 970, matlab=1) is ReservationState.BOUND
    assert not site.submit(1, 1, 512.0, at=460)  # ends at 972, and its token lingers
    assert site.submit(2, 1, 256.0, at=460)


def test_what_has_not_begun_is_taken_back_in_time() -> None:
    site = Site()
    site.reserve(1, 1000, 2000, matlab=2)
    for id in (1, 2):
        assert site.submit(id, 2, 512.0)
        site.step(DispatchStarted(T, id, 1))
        site.step(DispatchAccepted(T, id, 1, {0: str(id)}))
    rows = [JobStatus(tag_of("cafe", id, 1), 0, str(id), State.PENDING) for id in (1, 2)]
    assert site.seen(T + 100, *rows).actions == []
    assert site.core.unchanged_listing_matters("alpha", T + 100)
    [withdrawal] = site.seen(T + 500, *rows).actions  # the window leaves tokens for one job
    assert isinstance(withdrawal, Withdraw)
    assert withdrawal.job == 2
    assert site.seen(T + 501, *rows).actions == []
    gone = JobStatus(tag_of("cafe", 2, 1), 0, "2", State.CANCELLED, ended=T + 502)
    site.seen(T + 502, gone)
    assert "kept for reservation 1" in site.why(2, 502)


def test_a_lowered_total_leaves_windows_what_is_there() -> None:
    site = Site()
    site.reserve(1, 100, 2000, matlab=3)
    site.step(LicenceSet(T, "matlab", 2, "root"))
    assert not site.submit(1, 1, 2048.0)
    assert site.submit(2, 1, 64.0)
    assert site.ended(2, 50) == []
    assert not site.submit(3, 2, 512.0, at=60, reservation=1)
    assert site.sends(100) == [3]
    assert site.reserve(2, 3000, 3100, now=50, matlab=3) is None


def test_a_restart_keeps_what_was_kept() -> None:
    """A restart also keeps which leases belong to the window."""
    line = LicenceQueue()
    window = TokenWindow(1, T, T + 100, {"matlab": 3})
    lease = Lease(1, 0, 1, {"matlab": 2}, T)
    for again in (False, True):
        if again:
            line = LicenceQueue()
            line.restore([lease], [], {}, {})
        line.configure([MATLAB], 0.0)
        line.keep_tokens_for_window(window)
        if again:
            line.expect_end((1, 0), T + 50, True, 1)
        else:
            line.take(lease, T + 50, True, 1)
        counts = line.status("matlab", T)
        assert (counts.leased_tokens, counts.reserved, counts.free) == (2, 1, 1)


@pytest.mark.parametrize(("limit", "window"), [(40.0, None), (1000.0, 1)])
def test_a_window_ends_what_is_in_it(limit: float, window: int | None) -> None:
    """The next window relies on that, whatever the job's time limit is."""
    line = LicenceQueue()
    line.configure([MATLAB], 0.0)
    for id, start in ((1, T), (2, T + 50)):
        line.keep_tokens_for_window(TokenWindow(id, start, start + 50, {"matlab": 4}))
    line.join((1, 0), T, {"matlab": 4}, limit, True, window)
    assert line.next_ready(T) == (None if window is None else (1, 0))


def test_the_first_in_line_does_not_keep_a_window_from_its_own() -> None:
    line = LicenceQueue()
    line.configure([MATLAB], 0.0)
    line.keep_tokens_for_window(TokenWindow(1, T, T + 1000, {"matlab": 3}))
    line.take(Lease(1, 0, 1, {"matlab": 1}, T), T + 100)
    line.join((2, 0), T, {"matlab": 1}, 64.0)  # the head waits for job 1's token
    line.join((3, 0), T + 1, {"matlab": 4}, 512.0, True, 1)
    line.join((4, 0), T + 2, {"matlab": 3}, 512.0, True, 1)
    assert line.next_ready(T + 2) == (4, 0)
    line.leave((4, 0))
    assert line.next_ready(T + 2) is None


def test_a_window_ahead_has_the_queue_checked_when_it_matters_and_not_before() -> None:
    line = LicenceQueue()
    line.configure([MATLAB], 0.0)
    line.keep_tokens_for_window(TokenWindow(1, T + 1000, T + 2000, {"matlab": 3}))
    line.take(Lease(1, 0, 1, {"matlab": 2}, T), T + 5000, False)
    line.join((2, 0), T, {"matlab": 2}, 512.0, False)  # the head: it might reach into the window
    line.join((3, 0), T + 1, {"matlab": 1}, 256.0)  # it would delay the head, until that waits
    assert line.next_ready(T + 2) is None
    assert line.next_change == T + 488  # 512 s before the window
    assert line.settled(T + 487)
    assert line.next_ready(T + 488) is None
    assert line.next_change is not None
    assert T + 488 < line.next_change < T + 488.01
    assert line.next_ready(line.next_change) == (3, 0)


def test_a_task_that_ends_before_all_windows_is_not_looked_at() -> None:
    line = LicenceQueue()
    line.configure([MATLAB], 0.0)
    line.keep_tokens_for_window(TokenWindow(1, T + 1000, T + 2000, {"matlab": 4}))
    line.take(Lease(1, 0, 1, {"matlab": 1}, T), T + 100)
    line.take(Lease(2, 0, 1, {"matlab": 1}, T), T + 1100)
    with patch.object(lookahead, "tokens_over_time", wraps=tokens_over_time) as find:
        assert line.lookahead.delayed_window((1, 0), {}, T) is None
        assert find.call_count == 0
        for _ in range(3):
            delayed = line.lookahead.delayed_window((2, 0), {}, T)
            assert delayed is not None
            assert delayed.id == 1
        assert line.lookahead.delayed_window((2, 0), {"matlab": 1}, T) is None
        assert find.call_count == 1


def test_what_the_calendar_takes_away_later_is_not_promised() -> None:
    line = LicenceQueue()
    line.configure([MATLAB], 0.0)
    runs = [T + day * 1000.0 for day in range(3)]
    act = LimitLicence("matlab", 1, 400.0)
    entry = CalendarEntry(
        id=1,
        name="day",
        act=act,
        rule="daily",
        zone="UTC",
        created=T,
        grace=400.0,
        next_run=runs[0],
    )
    line.limit_by_calendar(1, entry)
    spans = tuple((start, start + 400.0) for start in runs)
    limits = (CalendarLimit(1, "day", "matlab", 1, spans),)
    line.keep_tokens_for_window(TokenWindow(9, T + 900.0, T + 1100.0, {"matlab": 1}))
    find = line.lookahead.unavailable_spans
    assert list(find({"matlab": 2}, T, 0.0, limits)) == [
        (T, T + 400.0),
        (T + 1000.0, T + 1100.0),
        (T + 1100.0, T + 1400.0),
        (T + 2000.0, T + 2400.0),
    ]
    later = CalendarLimit(1, "day", "matlab", 1, spans[:1])
    assert list(find({"matlab": 4}, T, 0.0, (later,))) == list(find({"matlab": 4}, T))
    assert list(find({"matlab": 1}, T, 0.0, limits)) == [(T + 1000.0, T + 1100.0)]


def test_what_may_run_beyond_its_limit_has_its_licences_so_long_but_not_beyond_its_window() -> None:
    line = LicenceQueue()
    line.configure([MATLAB], 0.0)
    line.take(Lease(1, 0, 1, {"matlab": 2}, T), T + 100, True)
    assert list(line.lookahead.unavailable_spans({"matlab": 3}, T)) == [(T, T + 100)]
    assert list(line.lookahead.unavailable_spans({"matlab": 3}, T, 60.0)) == [(T, T + 160)]
    line.keep_tokens_for_window(TokenWindow(1, T, T + 200, {"matlab": 2}))
    line.take(Lease(2, 0, 1, {"matlab": 2}, T), T + 200, True, 1)
    assert list(line.lookahead.unavailable_spans({"matlab": 3}, T, 60.0)) == [
        (T, T + 160),
        (T + 160, T + 200),
    ]


def test_after_an_outage_the_limit_of_a_running_job_counts_again() -> None:
    site = Site()
    assert site.submit(1, 4, 500.0)
    running = JobStatus(tag_of("cafe", 1, 1), 0, "1", State.RUNNING, started=T)
    site.seen(T + 10, running)
    site.step(ClusterUnreachable(T + 20, "alpha", "it is down"))
    assert site.reserve(1, 1000, 2000, now=20, matlab=4) is not ReservationState.BOUND
    site.seen(T + 30, running)
    assert site.core.tasks[1, 0].state is State.RUNNING
    assert site.reserve(2, 1000, 2000, now=40, matlab=4) is ReservationState.BOUND
