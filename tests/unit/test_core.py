"""The core, event by event: whole lists of actions are compared. No network, no clock."""

from __future__ import annotations

import copy
from typing import Literal

import pytest

from metasched.core import Core
from metasched.events import (
    Accepted,
    Action,
    Again,
    Asked,
    Booted,
    ClockSet,
    CoreEvent,
    Declined,
    Drained,
    Due,
    LicencesCounted,
    Look,
    Modified,
    Outcome,
    Policy,
    Requeued,
    Resumed,
    Returned,
    Seen,
    Send,
    Silent,
    Submitted,
    Traced,
    Tried,
    Unsure,
    Wish,
    Withdraw,
)
from metasched.gates import AT_ONCE, NEXT_STEP
from metasched.licences import GivenBack, Lease, LicenceCount, LicencePool
from metasched.model import (
    Cluster,
    Copies,
    Facts,
    Job,
    Missing,
    Nodes,
    Partition,
    Reason,
    Row,
    State,
    tag_of,
)
from metasched.policies.eligible import Unfit, unfit

NOW = 1_000_000.0


def facts(cpus: int, free: int | None = None, **more: object) -> Facts:
    free = cpus if free is None else free
    partition = Partition("main", (Nodes(1, cpus, free),), default=True)
    return Facts(cpus=cpus, used=cpus - free, partitions=(partition,), **more)  # type: ignore[arg-type]


def job(id: int = 1, cpus: int = 1, **more: object) -> Job:
    return Job(id=id, submitted=NOW, estimated=100.0, cpus=cpus, **more)  # type: ignore[arg-type]


class Site:
    """A core with two clusters that have been heard from: left (8 processors), right (4)."""

    def __init__(
        self,
        seen: bool = True,
        move_after: float | None = None,
        fence_dir: str = "",
        pools: tuple[LicencePool, ...] | None = None,
        **policy: object,
    ) -> None:
        self.core = Core()
        self.out = Outcome()
        clusters = tuple(
            Cluster(name=n, adapter="local", move_after=move_after, fence_dir=fence_dir)
            for n in ("left", "right")
        )
        policy = {"pull_after": 5.0, **policy}
        booted = Booted(NOW, "cafe", Policy(**policy), clusters, pools=pools)  # type: ignore[arg-type]
        self.step(booted)
        if seen:
            self.seen("left", facts(8))
            self.seen("right", facts(4))

    def step(self, event: CoreEvent) -> list[Action]:
        self.out = self.core.step(event)
        return self.out.actions

    def seen(
        self, name: str, now: Facts | None = None, *rows: Row, at: float = NOW, **more: object
    ) -> list[Action]:
        more = {"since": 0.0, "until": at, **more}
        return self.step(Seen(at, name, rows, facts=now, **more))  # type: ignore[arg-type]

    def state(self, id: int = 1) -> State:
        return self.core.tasks[id, 0].state

    def sent(self, id: int = 1, cluster: str = "left", sending: int = 1, native: str = "7") -> None:
        self.step(Tried(NOW, id, sending))
        self.step(Accepted(NOW, id, sending, {0: native}))

    def row(self, state: State, id: int = 1, sending: int = 1, **more: object) -> Row:
        return Row(tag_of("cafe", id, sending), 0, "7", state, **more)  # type: ignore[arg-type]


def test_sent_at_once_to_the_first_empty_cluster() -> None:
    site = Site()
    assert site.step(Submitted(NOW, job())) == [Send(1, 1, "left", (0,))]
    assert site.state() is State.DISPATCHING


def test_waits_until_some_cluster_has_been_heard_from() -> None:
    site = Site(seen=False)
    assert site.step(Submitted(NOW, job())) == []
    assert site.core.tasks[1, 0].reason == Reason.CLUSTER_DOWN
    assert site.seen("right", facts(4)) == [Send(1, 1, "right", (0,))]


def test_only_where_it_fits() -> None:
    site = Site()
    assert site.step(Submitted(NOW, job(1, cpus=1))) == [Send(1, 1, "left", (0,))]
    assert site.step(Submitted(NOW, job(2, cpus=8))) == [Send(2, 1, "left", (0,))]
    assert site.core.refusal(job(3, cpus=9)) == (
        "no cluster has 9 processors, the largest is left with 8; ask for fewer"
    )
    assert site.core.refusal(job(3, cpus=5, clusters=("right",))) == (
        "no cluster of those named has 5 processors, the largest is right with 4; ask for fewer"
    )


def test_what_can_never_run_is_refused_before_any_cluster_has_been_heard_from() -> None:
    site = Site(seen=False, pools=(LicencePool(name="m", total=1, clusters=("right",)),))
    assert site.core.refusal(job(clusters=("left",), licences={"m": 1})) == (
        "no cluster can run the job (left: licence m cannot be used there); change what it asks for"
    )


def test_load_then_moves_to_the_other_cluster() -> None:
    site = Site()
    assert site.step(Submitted(NOW, job(1, cpus=8))) == [Send(1, 1, "left", (0,))]
    assert site.step(Submitted(NOW, job(2))) == [Send(2, 1, "right", (0,))]
    # left owes 800 s on 8 processors, right 100 s on 4
    assert site.step(Submitted(NOW, job(3))) == [Send(3, 1, "right", (0,))]


def test_tasks_of_one_job_share_a_sending_per_cluster() -> None:
    site = Site()
    three = job(1, cpus=4, array="1-3")
    # left takes the first, right is empty then, left owes less per processor after that
    assert site.step(Submitted(NOW, three)) == [
        Send(1, 1, "left", (1, 3)),
        Send(1, 2, "right", (2,)),
    ]
    assert [site.core.tasks[1, i].attempt.sending for i in (1, 2, 3)] == [1, 2, 1]  # type: ignore[union-attr]


def test_a_large_array_is_let_go_in_portions_and_others_go_between_them() -> None:
    site = Site()
    sent = [site.step(Submitted(NOW, job(1, array=f"1-{2 * AT_ONCE + 500}")))]
    assert site.core.next_due == NEXT_STEP
    [other] = site.step(Submitted(NOW, job(2)))
    assert isinstance(other, Send)
    assert other.job == 2
    # nor does a clock that is set back delay it
    sent.append(site.step(ClockSet(NOW - 3600, by=-3600.0)))
    while site.core.next_due is not None:
        assert len(sent) < 10
        sent.append(site.step(Due(NOW - 3600)))
    portions = [
        [index for what in some if isinstance(what, Send) for index in what.indices]
        for some in sent
    ]
    assert max(map(len, portions)) == AT_ONCE
    assert [sorted(some)[0] for some in portions if some] == [1, AT_ONCE + 1, 2 * AT_ONCE + 1]
    assert sorted(i for some in portions for i in some) == list(range(1, 2 * AT_ONCE + 501))


def test_tasks_whose_portion_has_yet_to_come_are_held_and_cancelled_like_all() -> None:
    site = Site()
    last = AT_ONCE + 2
    site.step(Submitted(NOW, job(1, array=f"1-{last}")))
    site.step(Asked(NOW, "cancel", 1, (last,)))
    assert (1, last) not in site.core.tasks
    site.step(Asked(NOW, "hold", 1, (last - 1,)))
    assert site.core.tasks[1, last - 1].state is State.HELD
    assert site.step(Due(NOW)) == []
    [again] = site.step(Asked(NOW, "release", 1, (last - 1,)))
    assert isinstance(again, Send)
    assert again.indices == (last - 1,)


def test_other_peoples_work_counts() -> None:
    site = Site()
    site.seen("left", facts(8, owed=1e6, pending=9))
    assert site.step(Submitted(NOW, job())) == [Send(1, 1, "right", (0,))]


def test_begin_time_and_hold_wait_with_us() -> None:
    site = Site()
    assert site.step(Submitted(NOW, job(1, begin=NOW + 60))) == []
    assert site.core.next_due == NOW + 60
    assert site.step(Due(NOW + 59)) == []
    assert site.step(Due(NOW + 60)) == [Send(1, 1, "left", (0,))]
    assert site.step(Submitted(NOW, job(2, held=True))) == []
    assert site.state(2) is State.HELD
    assert site.step(Asked(NOW, "release", 2)) == [Send(2, 1, "right", (0,))]


def test_refused_by_one_cluster_tries_the_other_then_is_rejected() -> None:
    site = Site()
    site.step(Submitted(NOW, job()))
    site.step(Tried(NOW, 1, 1))
    assert site.step(Declined(NOW, 1, 1, "invalid account")) == [Send(1, 2, "right", (0,))]
    site.step(Tried(NOW, 1, 2))
    assert site.step(Declined(NOW, 1, 2, "invalid account")) == []
    assert site.out.changes[-1].after is State.REJECTED
    assert not site.core.tasks


def test_a_full_cluster_is_tried_again_later_with_one_task() -> None:
    site = Site()
    for id in (1, 2):
        site.step(Submitted(NOW, job(id, cpus=8)))
    site.step(Tried(NOW, 1, 1))
    assert site.step(Declined(NOW, 1, 1, "too many jobs", again=True)) == []
    assert site.core.tasks[1, 0].reason == Reason.CLUSTER_DRAINED
    site.step(Returned(NOW, ((2, 1),)))
    assert site.seen("left", at=NOW + 5) == []
    assert not site.core.expects("left", NOW + 5)
    assert site.core.expects("left", NOW + 10)
    assert site.seen("left", at=NOW + 10) == [Send(1, 2, "left", (0,))]
    site.step(Tried(NOW + 10, 1, 2))
    assert site.step(Declined(NOW + 10, 1, 2, "too many jobs", again=True)) == []
    assert site.seen("left", at=NOW + 20) == []  # twice as long
    assert site.seen("left", at=NOW + 30) == [Send(1, 3, "left", (0,))]
    site.step(Tried(NOW + 30, 1, 3))
    assert site.step(Accepted(NOW + 30, 1, 3, {0: "7"})) == [Send(2, 2, "left", (0,))]


def test_a_refused_chunk_of_tasks_is_one_refusal() -> None:
    site = Site()
    site.step(Submitted(NOW, job(array="0-49", clusters=("left",))))
    site.step(Tried(NOW, 1, 1))
    site.step(Declined(NOW, 1, 1, "too many jobs", again=True))
    assert site.core.expects("left", NOW + 10)


def test_silent_manager_makes_jobs_unknown_and_none_is_sent_again() -> None:
    site = Site()
    site.step(Submitted(NOW, job()))
    site.sent()
    assert site.step(Silent(NOW, "left", "no answer")) == []
    assert site.state() is State.UNKNOWN
    assert site.seen("left", facts(8), site.row(State.RUNNING, started=NOW), full=True) == []
    assert site.state() is State.RUNNING


def test_untried_sending_goes_elsewhere_when_its_cluster_falls_silent() -> None:
    site = Site()
    site.step(Submitted(NOW, job()))
    site.step(Silent(NOW, "left", "no answer"))
    assert site.state() is State.DISPATCHING
    assert site.step(Returned(NOW, ((1, 1),))) == [Send(1, 2, "right", (0,))]


@pytest.mark.parametrize(
    ("since", "until", "state", "again"),
    [
        (NOW - 1, NOW + 9, State.DISPATCHING, True),  # up since before the intent: proved absent
        (NOW + 1, NOW + 9, State.UNKNOWN, False),  # restarted since: it may have been lost there
        (NOW - 1, NOW + 4, State.DISPATCHING, False),  # our command may still arrive
    ],
)
def test_lost_answer(since: float, until: float, state: State, again: bool) -> None:
    site = Site()
    site.step(Submitted(NOW, job()))
    site.step(Tried(NOW, 1, 1))
    site.step(Unsure(NOW + 5, 1, 1, "time-out"))
    actions = site.seen("left", None, at=NOW + 10, since=since, until=until)
    assert actions == ([Send(1, 2, "left", (0,))] if again else [])
    assert site.state() is state


def test_lost_answer_but_listed_is_adopted() -> None:
    site = Site()
    site.step(Submitted(NOW, job()))
    site.step(Tried(NOW, 1, 1))
    site.step(Unsure(NOW + 5, 1, 1, "time-out"))
    assert site.seen("left", None, site.row(State.PENDING), at=NOW + 10) == []
    assert site.state() is State.PENDING
    assert site.core.tasks[1, 0].attempt.native_id == "7"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("since", "until", "before"),
    [
        (NOW + 1, NOW + 9, NOW),  # the manager restarted after the listing that held it
        (NOW - 1, NOW - 1, NOW),  # what ended just now may not be listed yet
        (NOW + 4, NOW + 9, NOW + 3),
    ],
)
def test_acknowledged_and_then_missing_is_unknown(
    since: float, until: float, before: float
) -> None:
    site = missed(since, until, before)
    assert site.state() is State.UNKNOWN


@pytest.mark.parametrize(
    ("since", "until", "before"),
    [
        (NOW - 1, NOW + 9, NOW),  # since before it was sent
        (NOW + 3, NOW + 9, NOW + 3),  # since the last listing that held it
    ],
)
def test_missing_but_what_began_would_be_listed_it_was_cancelled_there(
    since: float, until: float, before: float
) -> None:
    site = missed(since, until, before)
    assert site.out.changes[-1].after is State.CANCELLED
    assert not site.core.tasks


def test_withdrawn_without_a_record_it_is_sent_again() -> None:
    site = missed(NOW - 1, NOW + 9, NOW, wish="hold")
    assert site.state() is State.HELD
    assert site.step(Asked(NOW + 9, "release", 1)) == [Send(1, 2, "left", (0,))]


def test_missing_after_it_began_is_unknown_whatever_the_listing_proves() -> None:
    site = missed(NOW - 1, NOW + 9, NOW, row=State.RUNNING, started=NOW)
    assert site.state() is State.UNKNOWN


def missed(
    since: float,
    until: float,
    before: float,
    wish: Literal["hold"] | None = None,
    row: State = State.PENDING,
    records: str = "",
    **more: object,
) -> Site:
    """A task that was listed, and that the next listing lacks."""
    site = Site()
    site.step(Submitted(NOW, job()))
    site.sent()
    site.seen("left", facts(8, records=records), site.row(row, **more))  # type: ignore[arg-type]
    if wish is not None:
        site.step(Asked(NOW, wish, 1))
    gone = ((tag_of("cafe", 1, 1), 0),)
    site.step(Seen(NOW + 9, "left", vanished=gone, since=since, until=until, before=before))
    return site


def test_what_listings_lack_is_looked_for_in_accounting_later_and_later() -> None:
    site = missed(NOW + 5, NOW + 9, NOW, row=State.RUNNING, started=NOW, records="sacct")
    missing = Missing(tag_of("cafe", 1, 1), 0, "7", NOW, NOW)
    assert site.out.actions == [Look("left", (missing,))]
    asked = [NOW + 9]
    for second in range(10, 60):
        if site.core.expects("left", NOW + second):
            site.step(Seen(NOW + second, "left", since=NOW + second, until=NOW + second))
            assert site.out.actions == [Look("left", (missing,))]
            asked.append(NOW + second)
    assert asked == [NOW + 9, NOW + 14, NOW + 24, NOW + 44]
    assert site.state() is State.UNKNOWN
    ended = site.row(State.FAILED, started=NOW, ended=NOW + 2, exit_code=3)
    site.step(Traced(NOW + 61, "left", rows=(ended,)))
    assert [c.after for c in site.out.changes] == [State.UNKNOWN, State.FAILED]
    assert site.out.closed[0][1].exit_code == 3


def test_accounting_is_not_asked_where_there_is_none() -> None:
    assert missed(NOW + 5, NOW + 9, NOW, row=State.RUNNING, started=NOW).out.actions == []


def test_what_accounting_proves_never_to_have_arrived_is_sent_again() -> None:
    site = Site()
    site.seen("left", facts(8, records="sacct"))
    site.step(Submitted(NOW, job()))
    site.step(Tried(NOW, 1, 1))
    site.step(Unsure(NOW + 5, 1, 1, "time-out"))
    looks = site.seen("left", None, at=NOW + 400, since=NOW + 100, until=NOW + 380)
    assert looks == [Look("left", (Missing(tag_of("cafe", 1, 1), 0, None, NOW),))]
    sends = site.step(Traced(NOW + 401, "left", unstarted=((tag_of("cafe", 1, 1), 0),)))
    assert sends == [Send(1, 2, "left", (0,))]


def test_accounting_that_comes_after_the_listing_knows_again_changes_nothing() -> None:
    site = missed(NOW + 5, NOW + 9, NOW, row=State.RUNNING, started=NOW, records="sacct")
    site.seen("left", None, site.row(State.RUNNING, started=NOW), at=NOW + 10)
    ended = site.row(State.FAILED, started=NOW, ended=NOW + 2, exit_code=3)
    tag = tag_of("cafe", 1, 1)
    site.step(Traced(NOW + 11, "left", rows=(ended,), unstarted=((tag, 0),)))
    assert site.state() is State.RUNNING


def test_cancel_before_the_send_was_tried_needs_no_manager() -> None:
    site = Site()
    site.step(Submitted(NOW, job()))
    assert site.step(Asked(NOW, "cancel", 1)) == []
    assert site.out.changes[-1].after is State.CANCELLED
    assert not site.core.tasks
    assert site.step(Returned(NOW, ((1, 1),))) == []


def test_cancel_is_told_once_and_again_if_it_shows_no_effect() -> None:
    site = Site()
    site.step(Submitted(NOW, job()))
    site.sent()
    wish = Withdraw(1, 1, "left", {0: "7"}, unstarted=False)
    assert site.step(Asked(NOW, "cancel", 1)) == [wish]
    row = site.row(State.RUNNING, started=NOW)
    assert site.seen("left", None, row, at=NOW + 5) == []
    assert site.seen("left", None, row, at=NOW + 61) == [wish]
    ended = site.row(State.CANCELLED, started=NOW, ended=NOW + 70)
    site.seen("left", None, ended, at=NOW + 70)
    assert site.out.changes[-1].after is State.CANCELLED
    assert not site.core.tasks


def test_hold_recalls_a_pending_task_and_leaves_a_running_one() -> None:
    site = Site()
    site.step(Submitted(NOW, job()))
    site.sent()
    wish = Withdraw(1, 1, "left", {0: "7"}, unstarted=True)
    assert site.step(Asked(NOW, "hold", 1)) == [wish]
    assert site.seen("left", None, site.row(State.CANCELLED, ended=NOW)) == []
    assert site.state() is State.HELD
    assert site.step(Asked(NOW, "release", 1)) == [Send(1, 2, "left", (0,))]
    site.sent(sending=2)
    site.step(Asked(NOW, "hold", 1))
    site.seen("left", None, site.row(State.RUNNING, sending=2, started=NOW))
    assert site.state() is State.RUNNING
    site.seen("left", None, site.row(State.FAILED, sending=2, started=NOW, exit_code=3))
    assert site.out.changes[-1].after is State.FAILED


def pending_on_left(site: Site, cpus: int = 4) -> None:
    """Job 1 waits in the queue of left, which is full; right is empty."""
    site.step(Silent(NOW, "right", "no answer"))
    site.step(Submitted(NOW, job(1, cpus=cpus)))
    site.sent()
    busy = facts(8, free=0, running=((NOW + 1000, 8),), pending=1, head=(cpus, 100.0))
    site.seen("left", busy, site.row(State.PENDING))


def test_pulled_to_where_it_starts_now() -> None:
    site = Site()
    pending_on_left(site)
    wish = Withdraw(1, 1, "left", {0: "7"}, unstarted=True)
    assert site.seen("right", facts(4), at=NOW + 4, full=True) == []  # it has just arrived
    assert site.seen("right", at=NOW + 6) == [wish]
    gone = site.row(State.CANCELLED, ended=NOW + 7)
    assert site.seen("left", None, gone, at=NOW + 7) == [Send(1, 2, "right", (0,))]
    assert site.core.tasks[1, 0].moves == 1


def test_a_pulled_task_that_began_meanwhile_stays() -> None:
    site = Site()
    pending_on_left(site)
    site.seen("right", facts(4), at=NOW + 6)
    assert site.seen("left", None, site.row(State.RUNNING, started=NOW + 6), at=NOW + 7) == []
    assert site.state() is State.RUNNING
    site.seen("left", None, site.row(State.CANCELLED, started=NOW + 6, ended=NOW + 8), at=NOW + 8)
    assert site.out.changes[-1].after is State.CANCELLED  # it had begun: never sent again


def test_cancel_wins_over_a_pull_under_way() -> None:
    site = Site()
    pending_on_left(site)
    site.seen("right", facts(4), at=NOW + 6)
    assert site.step(Asked(NOW + 6, "cancel", 1)) == [
        Withdraw(1, 1, "left", {0: "7"}, unstarted=False)
    ]
    assert site.seen("left", None, site.row(State.CANCELLED, ended=NOW + 7), at=NOW + 7) == []
    assert not site.core.tasks


@pytest.mark.parametrize(
    ("there", "pulled"),
    [
        (facts(4, free=2), False),  # too few processors
        (facts(4, pending=1, head=(4, 50.0)), False),  # would delay the head, which starts now
        # the head needs all 4 at +1000; we end at +106
        (facts(4, free=4, running=((NOW + 1000, 1),), pending=1, head=(5, 50.0)), True),
    ],
)
def test_pull_delays_nobody(there: Facts, pulled: bool) -> None:
    site = Site()
    pending_on_left(site)
    assert bool(site.seen("right", there, at=NOW + 6)) is pulled


def test_those_who_ask_for_the_same_are_decided_once_while_a_cluster_keeps_its_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def counted(job: Job, cluster: Cluster, facts: Facts | None) -> Unfit | None:
        asked.append((job.time_limit, cluster.name))
        return unfit(job, cluster, facts)

    def right(hours: int, free: int) -> Facts:
        most = Partition("main", (Nodes(1, 4, free),), default=True, max_time=hours * 3600.0)
        return Facts(cpus=4, used=4 - free, partitions=(most,))

    site = Site(pull_after=0.0)
    site.seen("right", right(1, 0))
    monkeypatch.setattr("metasched.cluster_view.unfit", counted)
    for id in range(1, 201):  # half of them longer than right allows, half longer than it will
        site.step(Submitted(NOW, job(id, time_limit=7200.0 if id % 2 else 14400.0)))
        site.sent(id)
    assert sorted(asked) == [
        (hours * 3600.0, name) for hours in (2, 4) for name in ("left", "right")
    ]
    waiting = [site.row(State.PENDING, id) for id in range(1, 201)]
    site.seen("left", facts(8, free=0), *waiting, at=NOW + 1)
    asked.clear()
    for free in (1, 4, 2):
        assert site.seen("right", right(1, free), at=NOW + 2) == []
    assert asked == []
    withdrawn = site.seen("right", right(3, 2), at=NOW + 3)
    assert [w.job for w in withdrawn if isinstance(w, Withdraw)] == [1, 3]
    assert sorted(asked) == [(7200.0, "right"), (14400.0, "right")]


def test_no_pull_when_the_policy_pushes() -> None:
    site = Site(pull=False)
    pending_on_left(site)
    assert site.seen("right", facts(4), at=NOW + 6) == []


def test_the_most_urgent_is_pulled_first() -> None:
    site = Site(pull_after=0.0)
    site.step(Silent(NOW, "right", "no answer"))
    for id, urgency in ((1, 0), (2, 3)):
        site.step(Submitted(NOW, job(id, cpus=4, owner_priority=urgency)))
        site.sent(id)
    busy = facts(8, free=0, running=((NOW + 1000, 8),), pending=2, head=(4, 100.0))
    rows = (site.row(State.PENDING, id=1), site.row(State.PENDING, id=2))
    site.seen("left", busy, *rows)
    actions = site.seen("right", facts(4), at=NOW + 6)
    assert actions == [Withdraw(2, 1, "left", {0: "7"}, unstarted=True)]


def test_observed_load_decays_as_running_jobs_near_their_limits() -> None:
    site = Site()
    site.seen("left", facts(8, free=0, running=((NOW + 1000, 8),)))
    assert site.step(Submitted(NOW, job(1))) == [Send(1, 1, "right", (0,))]
    # right owes 100 s on 4 processors; left 1000 - 990 s on 8
    assert site.step(Submitted(NOW + 990, job(2))) == [Send(2, 1, "left", (0,))]


def test_what_is_acknowledged_and_in_no_listing_is_expected_ever_later() -> None:
    site = Site()
    site.step(Submitted(NOW, job()))
    site.sent()
    assert site.core.expects("left", NOW)
    site.seen("left", since=NOW + 1)
    assert site.state() is State.UNKNOWN
    site.step(Asked(NOW, "cancel", 1))
    assert not site.core.expects("left", NOW + 1)
    assert site.core.expects("left", NOW + 5)


@pytest.mark.parametrize(("word", "after"), [("lost", State.QUEUED), ("ran", State.COMPLETED)])
def test_an_operator_resolves_what_is_unknown(word: str, after: State) -> None:
    site = Site()
    site.step(Submitted(NOW, job()))
    site.sent()
    assert site.step(Asked(NOW, word, 1, by="root")) == []  # type: ignore[arg-type]
    assert site.state() is State.PENDING
    site.seen("left", since=NOW + 1)
    actions = site.step(Asked(NOW, word, 1, by="root"))  # type: ignore[arg-type]
    assert site.out.changes[0].after is after
    assert "root" in site.out.changes[0].cause
    assert actions == ([Send(1, 2, "left", (0,))] if word == "lost" else [])


def test_lower_priorities_and_fewer_clusters_after_a_restart() -> None:
    site = Site()
    for id in (1, 2):
        site.step(Submitted(NOW, job(id, owner_priority=3, deadline=NOW + 101, cpus=8)))
    site.sent(1)
    assert site.core.tasks[1, 0].priority > 3
    right = (Cluster(name="right", adapter="local"),)
    site.step(Booted(NOW, "cafe", Policy(max_priority=3), right))
    assert site.core.tasks[1, 0].priority == 3
    assert site.state(1) is State.UNKNOWN
    assert site.state(2) is State.QUEUED  # never tried: certainly not there
    assert site.step(Asked(NOW, "cancel", 1)) == []
    both = (*right, Cluster(name="left", adapter="local"))
    site.step(Booted(NOW, "cafe", Policy(max_priority=3), both))
    assert site.seen("left", facts(8), site.row(State.PENDING), full=True) == [
        Withdraw(1, 1, "left", {0: "7"}, unstarted=False),
        Send(2, 2, "left", (0,)),
    ]


def test_only_managers_reject() -> None:
    site = Site()
    site.step(Submitted(NOW, job(1, held=True, clusters=("right",))))
    site.step(Booted(NOW, "cafe", Policy(), (Cluster(name="left", adapter="local"),)))
    site.seen("left", facts(8))
    assert site.step(Asked(NOW, "release", 1)) == []
    assert site.core.tasks[1, 0].reason == Reason.NO_CLUSTER_FITS
    site.step(Booted(NOW, "cafe", Policy(), (Cluster(name="right", adapter="local"),)))
    assert site.seen("right", facts(4)) == [Send(1, 1, "right", (0,))]


def test_a_step_costs_the_same_however_many_wait_in_clusters() -> None:
    """Counted, not timed: what one submission looks at does not grow with the queue."""
    import sys

    def calls(queued: int) -> int:
        site = Site()
        for id in range(1, queued + 1):
            site.step(Submitted(NOW, job(id)))
        count = 0

        def counting(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(counting)
        try:
            site.core.step(Submitted(NOW, job(queued + 1)))
        finally:
            sys.setprofile(None)
        return count

    assert calls(400) <= calls(20) * 1.1


def test_restart_sends_the_untried_and_doubts_the_tried() -> None:
    site = Site()
    site.step(Submitted(NOW, job(1)))
    site.step(Submitted(NOW, job(2)))
    site.step(Tried(NOW, 2, 1))
    again = Site.__new__(Site)
    again.core = Core()
    again.core.restore(site.core.tasks.values(), {1: 1, 2: 1}, {"right": facts(4)}, [])
    clusters = tuple(Cluster(name=n, adapter="local") for n in ("left", "right"))
    actions = again.step(Booted(NOW + 60, "cafe", Policy(), clusters))
    assert actions == [Send(1, 1, "left", (0,))]
    # a listing that ends before the restart proves nothing: the old process may have acted late
    assert again.seen("right", facts(4), at=NOW + 70, until=NOW + 50, full=True) == []
    assert again.seen("right", None, at=NOW + 90, until=NOW + 70) == [Send(2, 2, "right", (0,))]


def test_a_cluster_taken_out_of_the_configuration_leaves_its_jobs_unknown() -> None:
    site = Site()
    site.step(Submitted(NOW, job()))
    site.sent()
    site.step(Booted(NOW, "cafe", Policy(), (Cluster(name="right", adapter="local"),)))
    assert site.state() is State.UNKNOWN


def test_a_drained_cluster_gets_nothing_new_and_gives_back_what_waits() -> None:
    site = Site(pull=False)
    for id in (1, 2):
        site.step(Submitted(NOW, job(id, cpus=8)))
        site.sent(id)
    running = site.row(State.RUNNING, 1, started=NOW)
    site.seen("left", facts(8, 0), running, site.row(State.PENDING, 2))
    assert site.step(Drained(NOW, "left", "op", "new kernel")) == [
        Withdraw(2, 1, "left", {0: "7"}, unstarted=True)
    ]
    assert site.step(Submitted(NOW, job(3, cpus=8))) == []
    assert site.core.tasks[3, 0].reason == Reason.CLUSTER_DRAINED
    assert site.out.changes[-1].cause == "drained by op: new kernel"
    assert site.step(Submitted(NOW, job(4))) == [Send(4, 1, "right", (0,))]
    site.seen("left", None, running, site.row(State.CANCELLED, 2, ended=NOW))
    assert (site.state(1), site.state(2)) == (State.RUNNING, State.QUEUED)
    assert site.core.tasks[2, 0].reason == Reason.CLUSTER_DRAINED
    assert site.step(Resumed(NOW, "left", "op")) == [
        Send(2, 2, "left", (0,)),
        Send(3, 1, "left", (0,)),
    ]


def test_what_waits_may_stay_on_a_drained_cluster() -> None:
    site = Site()
    site.step(Submitted(NOW, job(1)))
    site.sent()
    assert site.step(Drained(NOW, "left", keep_pending=True)) == []
    assert site.seen("left", None, site.row(State.PENDING), at=NOW + 1) == []
    assert site.state() is State.PENDING


def test_a_silent_cluster_that_is_drained_gives_back_what_has_not_begun() -> None:
    site = Site()
    for id in (1, 2):
        site.step(Submitted(NOW, job(id)))
    site.sent(1)
    site.step(Silent(NOW, "left", "no answer"))
    assert site.step(Drained(NOW, "left")) == []
    assert site.seen("left", None, site.row(State.PENDING), full=True) == [
        Withdraw(1, 1, "left", {0: "7"}, unstarted=True)
    ]


def test_a_recall_that_nobody_was_told_of_is_forgotten_when_the_cluster_resumes() -> None:
    site = Site()
    site.step(Submitted(NOW, job(1)))
    site.sent(1)
    site.step(Silent(NOW, "left", "no answer"))
    site.step(Drained(NOW, "left"))
    site.step(Resumed(NOW, "left"))
    assert site.seen("left", None, site.row(State.PENDING), full=True) == []


def test_a_pending_task_leaves_a_cluster_that_has_shrunk_below_it() -> None:
    site = Site(pull=False)
    for id, cpus in ((1, 8), (2, 4)):
        site.step(Submitted(NOW, job(id, cpus=cpus, clusters=("left",))))
        site.sent(id)
    rows = [site.row(State.PENDING, 1), site.row(State.PENDING, 2)]
    assert site.seen("left", facts(8, 0), *rows) == []
    assert site.seen("left", facts(4, 0)) == [Withdraw(1, 1, "left", {0: "7"}, unstarted=True)]
    assert site.out.changes[0].cause == (
        "recalled from left: it has 4 processors, the job asks for 8"
    )
    assert site.seen("left", None, site.row(State.CANCELLED, 1, ended=NOW)) == []
    assert (site.state(), site.core.tasks[1, 0].reason) == (State.QUEUED, Reason.NO_CLUSTER_FITS)
    assert site.seen("left", facts(8, 0)) == [Send(1, 2, "left", (0,))]


def test_nodes_that_are_down_for_a_while_send_nothing_away() -> None:
    site = Site(pull=False)
    site.step(Submitted(NOW, job(1, cpus=8, tasks=8)))
    site.sent()
    site.seen("left", facts(8, 0), site.row(State.PENDING))
    half = (Nodes(1, 4, 0), Nodes(1, 4, 0, up=False))
    down = Facts(cpus=4, used=4, partitions=(Partition("main", half, default=True),))
    assert site.seen("left", down) == []


def test_a_running_task_that_is_requeued_is_ended_and_begins_again() -> None:
    site = Site()
    site.step(Submitted(NOW, job()))
    site.sent()
    site.seen("left", None, site.row(State.RUNNING, started=NOW))
    assert site.step(Asked(NOW, "requeue", 1, by="ada")) == [
        Withdraw(1, 1, "left", {0: "7"}, unstarted=False)
    ]
    ended = site.row(State.CANCELLED, started=NOW, ended=NOW + 1)
    assert site.seen("left", None, ended) == [Send(1, 2, "left", (0,))]
    assert [c.event for c in site.out.changes] == ["kill", "requeue", "send"]
    [(_, attempt)] = site.out.closed
    assert attempt.state is State.CANCELLED


def test_an_ended_task_is_requeued_with_a_sending_never_used() -> None:
    site = Site()
    site.step(Submitted(NOW, job()))
    site.sent()
    site.seen("left", None, site.row(State.FAILED, started=NOW, ended=NOW, exit_code=1))
    again = Requeued(NOW, job(), 5, 1, (Again(0, State.FAILED, 1),), "ada")
    assert site.step(again) == [Send(1, 2, "left", (0,))]
    assert site.core.tasks[1, 0].attempts == 2
    assert site.out.changes[0].cause == "requeued by ada"
    assert site.step(again) == []


def test_what_has_not_begun_is_not_requeued() -> None:
    site = Site()
    site.step(Submitted(NOW, job()))
    site.sent()
    assert site.step(Asked(NOW, "requeue", 1)) == []
    assert site.core.tasks[1, 0].live.intent is None


def test_of_a_cancel_and_a_requeue_the_last_counts_though_the_first_is_under_way() -> None:
    orders: tuple[tuple[tuple[Wish, Wish], list[Action]], ...] = (
        (("cancel", "requeue"), [Send(1, 2, "left", (0,))]),
        (("requeue", "cancel"), []),
    )
    for wishes, sent in orders:
        site = Site()
        site.step(Submitted(NOW, job()))
        site.sent()
        site.seen("left", None, site.row(State.RUNNING, started=NOW))
        for wish in wishes:
            site.step(Asked(NOW, wish, 1))
        ended = site.row(State.CANCELLED, started=NOW, ended=NOW)
        assert site.seen("left", None, ended) == sent


def test_a_rejected_job_that_is_requeued_is_refused_by_nobody_yet() -> None:
    site = Site()
    site.step(Submitted(NOW, job(clusters=("left",))))
    site.step(Tried(NOW, 1, 1))
    site.step(Declined(NOW, 1, 1, "invalid account"))
    assert not site.core.tasks
    again = Requeued(NOW, job(clusters=("left",)), 5, 1, (Again(0, State.REJECTED, 1),))
    assert site.step(again) == [Send(1, 2, "left", (0,))]


def test_a_waiting_job_is_changed_at_once_and_a_pending_one_sent_anew() -> None:
    site = Site(pull=False)
    site.step(Submitted(NOW, job(1, begin=NOW + 60)))
    assert site.step(Modified(NOW, job(1), "begin", True, by="ada")) == [Send(1, 1, "left", (0,))]
    site.sent()
    loads = site.core.dispatch.load("left")
    limited = job(1, time_limit=50.0, clusters=("left",))
    assert site.step(Modified(NOW, limited, "time limit none -> 50", True, by="ada")) == [
        Withdraw(1, 1, "left", {0: "7"}, unstarted=True)
    ]
    assert site.out.changes[0].cause == "changed by ada: time limit none -> 50"
    assert site.core.dispatch.load("left") == loads
    assert site.seen("left", None, site.row(State.CANCELLED, ended=NOW)) == [
        Send(1, 2, "left", (0,))
    ]
    assert site.core.tasks[1, 0].job == limited


def test_what_only_we_need_to_know_is_changed_in_place_even_while_it_runs() -> None:
    site = Site()
    site.step(Submitted(NOW, job()))
    site.sent()
    before = site.core.tasks[1, 0].priority
    assert site.step(Modified(NOW, job(owner_priority=3), "owner priority", False)) == []
    assert site.core.tasks[1, 0].priority > before
    assert site.core.dispatch.count("left")[before] == 1
    site.step(Modified(NOW, job(), "priority 9", False, priority=9))
    assert site.core.dispatch.count("left")[8] == 1
    site.seen("left", None, site.row(State.RUNNING, started=NOW))
    assert site.step(Modified(NOW, job(name="b"), "name", False)) == []
    assert site.core.dispatch.count("left") == [0] * 10


def test_a_job_that_leaves_a_cluster_by_its_owners_wish() -> None:
    site = Site(pull=False)
    site.step(Submitted(NOW, job()))
    site.sent()
    away = job(clusters=("right",))
    assert site.step(Modified(NOW, away, "clusters", False)) == [
        Withdraw(1, 1, "left", {0: "7"}, unstarted=True)
    ]
    assert site.seen("left", None, site.row(State.RUNNING, started=NOW)) == []
    assert "had begun" in site.out.changes[-1].cause
    assert site.core.tasks[1, 0].attempt.intent is None  # type: ignore[union-attr]


def silent_site(move_after: float | None) -> Site:
    """One task waits and one runs on left, which then falls silent."""
    site = Site(pull=False, move_after=move_after)
    for id in (1, 2):
        site.step(Submitted(NOW, job(id, cpus=4, clusters=("left",))))
        site.sent(id)
        site.step(Modified(NOW, job(id, cpus=4), "clusters", False))
    site.seen("left", None, site.row(State.PENDING, 1), site.row(State.RUNNING, 2, started=NOW))
    site.step(Silent(NOW, "left", "no answer"))
    return site


@pytest.mark.parametrize(("move_after", "moves"), [(None, False), (90.0, True), (101.0, False)])
def test_what_has_not_begun_leaves_a_cluster_that_was_silent_for_long(
    move_after: float | None, moves: bool
) -> None:
    site = silent_site(move_after)
    site.seen("right", facts(4), at=NOW + 60)
    back = [site.row(State.PENDING, 1), site.row(State.RUNNING, 2, started=NOW)]
    away = site.seen("left", None, *back, full=True, at=NOW + 100)
    assert away == ([Withdraw(1, 1, "left", {0: "7"}, unstarted=True)] if moves else [])
    if moves:
        gone = site.row(State.CANCELLED, 1, ended=NOW)
        assert site.seen("left", None, gone, at=NOW + 101) == [Send(1, 2, "right", (0,))]


def test_a_silence_of_all_clusters_is_ours_and_does_not_count() -> None:
    site = silent_site(90.0)
    site.step(Silent(NOW, "right", "no answer"))
    back = [site.row(State.PENDING, 1), site.row(State.RUNNING, 2, started=NOW)]
    assert site.seen("left", None, *back, full=True, at=NOW + 1000) == []


def test_patience_stands_still_while_a_cluster_is_silent() -> None:
    site = Site(pull_after=5.0)
    site.step(Submitted(NOW, job(1, cpus=4)))
    site.sent(1)
    site.seen("left", facts(8, 0), site.row(State.PENDING), at=NOW + 1)
    site.step(Silent(NOW + 2, "left", "no answer"))
    pending = site.row(State.PENDING)
    site.seen("left", facts(8, 0), pending, full=True, at=NOW + 500)
    assert site.seen("right", facts(4), at=NOW + 501) == []
    assert site.seen("right", facts(4), at=NOW + 504) == [
        Withdraw(1, 1, "left", {0: "7"}, unstarted=True)
    ]


def test_a_restored_core_tells_the_story_that_one_replayed_tells() -> None:
    site = Site()
    for id in (1, 2):
        site.step(Submitted(NOW, job(id, clusters=("left",))))
        site.sent(id)
    site.seen("left", None, site.row(State.RUNNING, started=NOW), site.row(State.PENDING, 2))
    site.step(Asked(NOW, "requeue", 1))
    site.seen("left", None, site.row(State.COMPLETED, started=NOW, ended=NOW))
    assert list(site.core.tasks) == [(2, 0), (1, 0)]
    site.step(Tried(NOW, 1, 2))
    restored = Core()
    tasks = [copy.deepcopy(task) for _, task in sorted(site.core.tasks.items())]
    restored.restore(tasks, {1: 2, 2: 1}, {}, [])
    clusters = (Cluster(name="left", adapter="local"),)
    for event in (Booted(NOW, "cafe", Policy(), clusters), Silent(NOW, "left", "no answer")):
        assert site.core.step(event).changes == restored.step(event).changes


MATLAB = (LicencePool(name="matlab", total=4, linger=30.0),)


def test_licences_are_leased_all_or_none_with_the_intent_to_send() -> None:
    site = Site(pools=MATLAB)
    assert site.step(Submitted(NOW, job(1, licences={"matlab": 3}))) == [Send(1, 1, "left", (0,))]
    assert site.out.leases == [Lease(1, 0, 1, {"matlab": 3}, NOW)]
    assert site.step(Submitted(NOW, job(2, licences={"matlab": 2}))) == []
    assert site.core.tasks[2, 0].reason == Reason.LICENCE_BUSY
    assert site.out.leases == []
    [send] = site.step(Submitted(NOW, job(3, licences={"matlab": 1})))  # it takes what 2 cannot use
    assert (send.job, send.sending) == (3, 1)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("state", "lingers"), [(State.COMPLETED, {"matlab": NOW + 40}), (State.CANCELLED, {})]
)
def test_licences_come_back_with_the_end_of_an_attempt(
    state: State, lingers: dict[str, float]
) -> None:
    site = Site(pools=MATLAB)
    site.step(Submitted(NOW, job(licences={"matlab": 4})))
    site.sent()
    begun = NOW if state is State.COMPLETED else None  # what never began has used none
    ended = site.row(state, started=begun, ended=NOW + 10)
    site.seen("left", None, ended, at=NOW + 10)
    [back] = site.out.leases
    assert isinstance(back, GivenBack)
    assert (back.why, back.lingers) == (state, lingers)
    site.step(Submitted(NOW + 10, job(2, licences={"matlab": 4})))
    assert site.core.next_due == (NOW + 40 if lingers else None)
    assert ((2, 0) in site.core.licences) == bool(lingers)
    if lingers:
        assert [type(a) for a in site.step(Due(NOW + 40))] == [Send]


def test_a_refusal_gives_licences_back_and_a_requeue_takes_them_anew() -> None:
    site = Site(pools=MATLAB)
    site.step(Submitted(NOW, job(licences={"matlab": 4})))
    site.step(Tried(NOW, 1, 1))
    site.step(Declined(NOW, 1, 1, "no"))
    assert [type(change) for change in site.out.leases] == [GivenBack, Lease]  # sent to the other
    site.sent(cluster="right", sending=2)
    site.seen("right", None, site.row(State.RUNNING, sending=2, started=NOW))
    site.step(Asked(NOW, "requeue", 1))
    site.seen("right", None, site.row(State.CANCELLED, sending=2, started=NOW, ended=NOW))
    [back] = site.out.leases  # what it has used lingers
    assert isinstance(back, GivenBack)
    site.step(Due(NOW + 30))
    [lease] = site.out.leases
    assert isinstance(lease, Lease)
    assert lease.attempt == 3


def test_a_pull_passes_licences_on_before_anybody_else() -> None:
    site = Site(pools=MATLAB, pull_after=0.0)
    site.step(Submitted(NOW, job(1, cpus=4, licences={"matlab": 4})))
    site.sent()
    site.step(Submitted(NOW, job(2, licences={"matlab": 1}, owner_priority=3)))
    site.seen("left", None, site.row(State.PENDING), at=NOW + 1)
    [withdraw] = site.seen("right", facts(4), at=NOW + 2)
    assert isinstance(withdraw, Withdraw)
    gone = site.row(State.CANCELLED, ended=NOW + 3)
    assert site.seen("left", None, gone, at=NOW + 3) == [Send(1, 2, "right", (0,))]
    back, lease = site.out.leases
    assert isinstance(back, GivenBack)
    assert back.why == "passed on"
    assert lease == Lease(1, 0, 2, {"matlab": 4}, NOW + 3, forced=True)
    assert site.core.tasks[2, 0].reason == Reason.LICENCE_BUSY


def test_what_does_not_begin_gives_way_after_patience_to_those_whom_that_serves() -> None:
    site = Site(pools=MATLAB, pull=False, patience=60.0)
    site.step(Submitted(NOW, job(1, licences={"matlab": 3})))
    site.sent()
    site.seen("left", None, site.row(State.PENDING))
    site.step(Submitted(NOW, job(2, licences={"matlab": 4})))
    assert site.core.expects("left", NOW + 1)
    assert site.seen("left", None, site.row(State.PENDING), at=NOW + 59) == []
    [withdraw] = site.seen("left", None, site.row(State.PENDING), at=NOW + 60)
    assert isinstance(withdraw, Withdraw)
    assert withdraw.unstarted
    gone = site.row(State.CANCELLED, ended=NOW + 61)
    [send] = site.seen("left", None, gone, at=NOW + 61)
    assert isinstance(send, Send)
    assert (send.job, site.core.tasks[1, 0].reason) == (2, Reason.LICENCE_BUSY)


def test_nothing_gives_way_if_that_serves_nobody() -> None:
    site = Site(pools=(*MATLAB, LicencePool(name="none", total=0)), pull=False, patience=60.0)
    site.step(Submitted(NOW, job(1, licences={"matlab": 3})))
    site.sent()
    site.seen("left", None, site.row(State.PENDING))
    site.step(Submitted(NOW, job(2, licences={"matlab": 4, "none": 1})))
    assert site.seen("left", None, site.row(State.PENDING), at=NOW + 1000) == []


@pytest.mark.parametrize(("state", "others"), [(State.RUNNING, 1), (State.PENDING, 3)])
def test_what_a_manager_has_given_past_us_is_outside_use(state: State, others: int) -> None:
    """A job of ours that waits there is not in its manager's count yet."""
    site = Site(pools=MATLAB, pull=False)
    site.step(Submitted(NOW, job(1, licences={"matlab": 2})))
    site.sent()
    told = facts(8, licences={"matlab": Copies(total=9, used=3)})
    row = site.row(state, started=NOW if state is State.RUNNING else None)
    site.seen("left", told, row)
    standing = site.out.standings["matlab"]
    assert (standing.ours, standing.outside, standing.observed) == (2, others, NOW)
    assert standing.free == 2 - others
    site.step(Submitted(NOW, job(2, licences={"matlab": 2})))
    assert site.core.tasks[2, 0].reason == Reason.LICENCE_BUSY
    site.step(Silent(NOW + 1, "left", "no answer"))
    assert site.core.licences.standing("matlab", NOW + 1).outside == others
    sent = site.seen("left", facts(8, licences={"matlab": Copies(9, 2)}), row, at=NOW + 2)
    assert len(sent) == (state is State.RUNNING)


def test_the_end_of_a_job_of_ours_makes_no_outside_use() -> None:
    site = Site(pools=(LicencePool(name="matlab", total=4),))
    site.step(Submitted(NOW, job(licences={"matlab": 2})))
    site.sent()
    site.seen("left", facts(8, licences={"matlab": Copies(4, 2)}), site.row(State.RUNNING))
    site.seen("left", facts(8, licences={"matlab": Copies(4)}), site.row(State.COMPLETED))
    assert site.core.licences.standing("matlab", NOW).free == 4


def test_use_past_us_outlasts_a_restart_until_the_cluster_tells_anew() -> None:
    site = Site(pools=MATLAB)
    site.seen("left", facts(8, licences={"matlab": Copies(4, 3)}))
    clusters = tuple(view.cluster for view in site.core.books.views.values())
    site.step(Booted(NOW + 1, "cafe", Policy(), clusters, pools=MATLAB))
    assert site.out.standings["matlab"].outside == 3
    site.seen("left", facts(8), at=NOW + 2)
    assert site.out.standings["matlab"].outside == 0


def test_what_a_server_tells_as_well_counts_once() -> None:
    pool = LicencePool(name="matlab", total=9, server="s", clusters=("left",))
    site = Site(pools=(pool,))
    site.seen("left", facts(8, licences={"matlab": Copies(9, 3)}))
    site.seen("right", facts(4, licences={"matlab": Copies(5, 5)}))  # some other pool
    for outside, told in ((2, 3), (4, 4), (0, 3)):
        site.step(LicencesCounted(NOW, (LicenceCount("matlab", 9, outside, NOW),)))
        assert site.out.standings["matlab"].outside == told


def test_only_where_its_licences_can_be_used() -> None:
    site = Site(pools=(LicencePool(name="m", total=1, clusters=("right",)),))
    assert site.step(Submitted(NOW, job(licences={"m": 1}))) == [Send(1, 1, "right", (0,))]
    told = site.core.refusal(job(2, licences={"m": 1}, clusters=("left",)))
    assert told == (
        "no cluster can run the job (left: licence m cannot be used there); change what it asks for"
    )


@pytest.mark.parametrize(("known", "urgency"), [(2, 10), (20, 2)])
def test_the_licence_heuristic_knows_how_many_licences_there_are(known: int, urgency: int) -> None:
    site = Site(pools=tuple(LicencePool(name=f"l{n}", total=1) for n in range(known)))
    parts = site.core.classifier.parts(job(licences={"l0": 1, "l1": 1}))
    assert [p.contribution for p in parts if p.heuristic == "licence"] == [urgency]
