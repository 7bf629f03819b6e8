"""Refusals that only a second look has shown: strikes, held jobs, clusters that refuse."""

from __future__ import annotations

import itertools

import pytest
from msgspec import structs

from metasched.adapters.protocol import WorkerCall, WorkerReply
from metasched.adapters.worker import _has_lost_tasks
from metasched.core.events import (
    Action,
    ClockSet,
    ClusterUnreachable,
    Dispatch,
    DispatchAccepted,
    DispatchRejected,
    DispatchStarted,
    DispatchUncertain,
    JobSubmitted,
    UserRequested,
    Withdraw,
)
from metasched.core.refusals import MAX_SENTENCES
from metasched.core.strikes import Strike
from metasched.daemon import command_executor
from metasched.model.job import Job, Reason, State
from metasched.model.listing import JobStatus
from tests.unit.core_site import NOW, Site, facts, job

SAID = "Batch job submission failed: Unspecified error"
LOOK = 30.0  # seconds until a listing proves absence


class Refusing(Site):
    """A site whose clusters end each submission with words that prove nothing."""

    def __init__(self, **settings: object) -> None:
        super().__init__(queue_depth=None, **settings)  # type: ignore[arg-type]
        self.now = NOW
        self.tries: list[tuple[float, int, str]] = []  # time, job, cluster

    def submit(self, *jobs: Job) -> None:
        for submitted in jobs:
            self.look(self.step(JobSubmitted(self.now, submitted)))

    def look(self, actions: list[Action]) -> None:
        """Answer dispatches, and let listings prove that nothing came of them."""
        dispatches = [action for action in actions if isinstance(action, Dispatch)]
        for dispatch in dispatches:
            self.tries.append((self.now - NOW, dispatch.job, dispatch.cluster))
            self.step(DispatchStarted(self.now, dispatch.job, dispatch.dispatch_id))
            self.step(DispatchUncertain(self.now, dispatch.job, dispatch.dispatch_id, "?", SAID))
        if dispatches:
            self.now += LOOK
            for name in ("left", "right"):
                self.look(self.seen(name, None, at=self.now))

    def wait(self, until: float) -> None:
        """Poll every 20 s."""
        while self.now < NOW + until:
            self.now += 20.0
            for name in ("left", "right"):
                self.look(self.seen(name, None, at=self.now))

    def release(self, id: int) -> None:
        self.look(self.step(UserRequested(self.now, "release", id)))

    def strike(self, id: int = 1, cluster: str = "left") -> Strike | None:
        return self.core.state.strikes.find(id, cluster)


def test_three_strikes_hold_a_job_with_the_words() -> None:
    site = Refusing()
    site.submit(job(1, clusters=("left",)))
    task = site.core.tasks[1, 0]
    assert (task.state, task.reason) == (State.QUEUED, Reason.REFUSED)
    site.wait(3000.0)
    times = [time for time, _, _ in site.tries]
    assert len(times) == 3
    assert times[1] >= LOOK + 60.0
    assert times[2] >= times[1] + LOOK + 600.0
    assert (task.state, task.reason) == (State.HELD, f"manager:{SAID}")
    # a release begins anew
    site.release(1)
    assert len(site.tries) == 4
    site.wait(4000.0)
    assert len(site.tries) == 6
    assert task.state is State.HELD
    site.step(UserRequested(site.now, "cancel", 1))
    assert not site.core.state.strikes


def test_other_clusters_are_tried_first() -> None:
    site = Refusing()
    site.submit(job(1))
    assert {cluster for _, _, cluster in site.tries} == {"left", "right"}
    site.wait(3000.0)
    assert len(site.tries) == 6
    assert site.state() is State.HELD


def test_a_job_refused_by_proof_elsewhere_is_held() -> None:
    site = Refusing()
    actions = site.step(JobSubmitted(NOW, job(1)))
    (first,) = (action for action in actions if isinstance(action, Dispatch))
    site.step(DispatchStarted(NOW, 1, 1))
    site.look(site.step(DispatchRejected(NOW, 1, first.dispatch_id, "Invalid qos")))
    site.wait(3000.0)
    assert site.state() is State.HELD
    assert len(site.tries) == 3
    assert first.cluster not in {cluster for _, _, cluster in site.tries}


def test_a_lost_connection_is_no_strike() -> None:
    site = Refusing()
    site.step(JobSubmitted(NOW, job(1, clusters=("left",))))
    site.step(DispatchStarted(NOW, 1, 1))
    site.step(DispatchUncertain(NOW, 1, 1, "Socket timed out"))
    again = site.seen("left", None, at=NOW + LOOK)
    assert [action for action in again if isinstance(action, Dispatch)]
    assert not site.core.state.strikes


def test_the_tag_in_a_listing_is_the_answer() -> None:
    site = Refusing()
    site.step(JobSubmitted(NOW, job(1, clusters=("left",))))
    site.step(DispatchStarted(NOW, 1, 1))
    site.step(DispatchUncertain(NOW, 1, 1, "?", SAID))
    site.seen("left", None, site.row(State.PENDING), at=NOW + 30)
    assert site.state() is State.PENDING
    assert site.core.tasks[1, 0].live_attempt.sentence is None
    assert not site.core.state.strikes


def test_tasks_of_a_job_share_its_strikes() -> None:
    site = Refusing(remainder_minimum=10)
    site.submit(job(1, array="0-99", clusters=("left",)))
    assert len(site.tries) == 1
    strike = site.strike()
    assert strike is not None
    assert strike.count == 1
    site.wait(3000.0)
    assert len(site.tries) == 3
    assert {task.state for task in site.core.tasks_of(1)} == {State.HELD}
    remainder = site.core.remainders.get(1)
    assert remainder is None or remainder.held
    site.release(1)
    assert len(site.tries) == 4


def test_equal_words_to_jobs_of_two_owners_close_the_cluster() -> None:
    site = Refusing()
    site.submit(job(1, user="a", clusters=("left",)))
    site.submit(job(2, user="b", clusters=("left",)))
    view = site.core.state.views["left"]
    assert view.refusing
    assert [strike.count for strike in site.core.state.strikes] == [0, 0]
    site.submit(job(3, user="c"))  # goes elsewhere
    assert next(name for _, id, name in site.tries if id == 3) == "right"
    site.wait(8000.0)
    assert {site.state(1), site.state(2)} == {State.QUEUED}
    assert all(strike.count == 0 for strike in site.core.state.strikes if strike.cluster == "left")
    # the longer they are refused, the more others are tried before them
    assert min(strike.delay for strike in site.core.state.strikes) > 120.0
    times = [time for time, _, cluster in site.tries if cluster == "left"]
    # one job at a time
    assert all(second - first >= LOOK for first, second in itertools.pairwise(times))
    # a cluster that accepts one is open
    while not (
        sent := [a for a in site.seen("left", None, at=site.now) if isinstance(a, Dispatch)]
    ):
        site.now += 20.0
    assert len(sent) == 1
    site.step(DispatchStarted(site.now, sent[0].job, sent[0].dispatch_id))
    site.step(DispatchAccepted(site.now, sent[0].job, sent[0].dispatch_id, {0: "9"}))
    assert not view.refusing
    assert not view.full_reason


def test_good_jobs_get_past_bad_jobs_at_a_cluster_that_refuses() -> None:
    """Let jobs 1 and 2 be at fault themselves, though the cluster seems to refuse all."""
    site = Refusing()
    site.submit(job(1, user="a", clusters=("left",)))
    site.submit(job(2, user="b", clusters=("left",)))
    site.step(JobSubmitted(site.now, job(3, user="c", clusters=("left",))))
    while site.state(3) is State.QUEUED:
        assert site.now < NOW + 600.0
        site.now += 20.0
        for dispatch in site.seen("left", None, at=site.now):
            if isinstance(dispatch, Dispatch) and dispatch.job != 3:
                site.look([dispatch])


def test_ten_jobs_of_one_owner_close_it_for_him_alone() -> None:
    site = Refusing()
    for id in range(1, 11):
        site.submit(job(id, user="a", clusters=("left",)))
    view = site.core.state.views["left"]
    assert not view.refusing
    assert view.refused_owners == {"a": SAID}
    assert all(strike.count == 0 for strike in site.core.state.strikes)
    site.step(JobSubmitted(site.now, job(11, user="a", clusters=("left",))))
    assert site.state(11) is State.QUEUED
    site.step(JobSubmitted(site.now, job(12, user="b", clusters=("left",))))
    assert site.state(12) is State.DISPATCHING


def test_an_acceptance_ends_a_run_of_refusals() -> None:
    site = Refusing()
    site.submit(job(1, user="a", clusters=("left",)))
    site.step(JobSubmitted(site.now, job(2, user="b", clusters=("left",))))
    site.step(DispatchStarted(site.now, 2, 1))
    site.step(DispatchAccepted(site.now, 2, 1, {0: "7"}))
    site.submit(job(3, user="c", clusters=("left",)))
    assert not site.core.state.views["left"].refusing
    strike = site.strike(3)
    assert strike is not None
    assert strike.count == 1


def test_strikes_taken_back_release_their_job() -> None:
    site = Refusing()
    site.submit(job(1, user="a", clusters=("left",)))
    site.wait(3000.0)
    assert site.state() is State.HELD
    site.submit(job(2, user="b", clusters=("left",)))
    assert site.state() is State.QUEUED
    assert site.core.state.views["left"].refusing


@pytest.mark.parametrize("array", [None, "0-99"])
def test_strikes_taken_back_do_not_undo_a_hold_by_the_owner(array: str | None) -> None:
    site = Refusing(remainder_minimum=10)
    site.submit(job(1, user="a", array=array, clusters=("left",)))
    site.wait(3000.0)
    site.step(UserRequested(site.now, "hold", 1))
    site.submit(job(2, user="b", clusters=("left",)))
    assert site.core.state.views["left"].refusing
    assert {task.state for task in site.core.tasks_of(1)} == {State.HELD}
    remainder = site.core.remainders.get(1)
    assert remainder is None or remainder.held
    site.release(1)
    assert State.HELD not in {task.state for task in site.core.tasks_of(1)}


def test_a_start_keeps_the_strikes() -> None:
    site = Refusing()
    site.submit(job(1, clusters=("left",)))
    before = site.strike()
    site.step(site.started(site.now))
    assert site.strike() == before
    site.seen("left", facts(8), at=site.now)
    assert site.state() is State.QUEUED
    site.step(ClockSet(site.now + 3600.0, 3600.0))
    after = site.strike()
    assert after is not None
    assert before is not None
    assert after.retry_at == pytest.approx(NOW + LOOK + 60.0 + 3600.0)


def test_a_row_of_a_job_that_was_refused_is_the_refusal() -> None:
    site = Refusing()
    site.step(JobSubmitted(NOW, job(1, clusters=("left",))))
    site.step(DispatchStarted(NOW, 1, 1))
    site.step(DispatchUncertain(NOW, 1, 1, "?", SAID))
    row = site.row(State.FAILED, ended=NOW, manager_reason="BadConstraints", refused=True)
    site.seen("left", None, row, at=NOW + 1)
    assert (1, 0) not in site.core.tasks
    (ended,) = (task for task, _ in site.out.closed_attempts)
    assert ended.state is State.REJECTED
    assert site.out.changes[-2].cause == SAID
    # an attempt that was acknowledged has failed
    site.step(JobSubmitted(NOW, job(2, clusters=("left",))))
    site.sent(2)
    site.seen("left", None, site.row(State.FAILED, 2, ended=NOW, refused=True), at=NOW + 2)
    (ended,) = (task for task, _ in site.out.closed_attempts)
    assert ended.state is State.FAILED


def test_a_refusal_without_proof_stops_no_further_dispatches() -> None:
    """A connection that is lost does: the next would only wait."""
    dispatch = Dispatch(1, 1, "left", (0,))
    for sentence in (SAID, ""):
        reply = WorkerReply("unreachable", "?", sentence=sentence)
        event = command_executor._result(dispatch, reply, only_user=True)
        assert isinstance(event, DispatchUncertain)
        assert event.sentence == sentence
        assert command_executor._has_failed(dispatch, reply) is not bool(sentence)
        assert _has_lost_tasks(WorkerCall("submit"), reply) is not bool(sentence)


def test_other_tasks_of_a_job_wait_for_the_look() -> None:
    """Without an array of the manager each task is a submission of its own."""
    site = Refusing()
    site.step(JobSubmitted(NOW, job(1, array="0-4", clusters=("left",))))
    site.step(DispatchStarted(NOW, 1, 1))
    # the first task got words, the others were not tried
    actions = site.step(
        DispatchAccepted(NOW + 1, 1, 1, {}, untried=(1, 2, 3, 4), uncertain=(0,), sentence=SAID)
    )
    assert not [action for action in actions if isinstance(action, Dispatch)]
    assert {task.state for task in site.core.tasks_of(1)} == {State.QUEUED, State.DISPATCHING}
    # it is there: the others follow
    row = site.row(State.PENDING)
    actions = site.seen("left", None, row, at=NOW + 5)
    [dispatch] = [action for action in actions if isinstance(action, Dispatch)]
    assert dispatch.indices == (1, 2, 3, 4)
    assert not site.core.state.strikes


class Slow(Refusing):
    """A site that answers at once, and whose listings prove absence only after `LOOK`."""

    def __init__(self, *, said_by_cluster: bool = False) -> None:
        super().__init__()
        self._said_by_cluster = said_by_cluster

    def send(self, *jobs: Job, said: str = SAID) -> None:
        for submitted in jobs:
            self.answer(self.step(JobSubmitted(self.now, submitted)), said)

    def answer(self, actions: list[Action], said: str = SAID) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                self.tries.append((self.now - NOW, action.job, action.cluster))
                self.step(DispatchStarted(self.now, action.job, action.dispatch_id))
                words = said + action.cluster * self._said_by_cluster
                self.step(DispatchUncertain(self.now, action.job, action.dispatch_id, "?", words))

    def poll(self, after: float = LOOK + 1.0) -> None:
        self.now += after
        until = self.now - LOOK
        for name in ("left", "right"):
            self.answer(self.seen(name, None, at=self.now, until=until))

    def accept(self, actions: list[Action]) -> list[JobStatus]:
        """Answer dispatches with an acceptance. Return the rows of the pending jobs."""
        rows = []
        for action in actions:
            if isinstance(action, Dispatch):
                native = str(action.job)
                self.step(DispatchStarted(self.now, action.job, action.dispatch_id))
                event = DispatchAccepted(self.now, action.job, action.dispatch_id, {0: native})
                self.step(event)
                row = self.row(State.PENDING, action.job, action.dispatch_id)
                rows.append(structs.replace(row, native_id=native))
        return rows

    def has_pulled(self, rows: list[JobStatus]) -> bool:
        """Return whether pending jobs on the full right cluster go to the left, which is empty."""
        for _ in range(30):
            self.now += 10.0
            actions = self.seen("right", facts(4, 0), *rows, at=self.now)
            actions += self.seen("left", facts(8), at=self.now)
            if any(isinstance(action, Withdraw) for action in actions):
                return True
        return False


def test_refusals_of_jobs_under_way_do_not_delay_the_next_try() -> None:
    site = Slow()
    site.send(*(job(id, user=f"u{id}", clusters=("left",)) for id in range(1, 13)))
    assert len(site.tries) == 12
    site.poll()
    view = site.core.state.views["left"]
    assert (view.refusing, view.retry_delay) == (True, 1.0)


def test_a_cluster_that_refuses_is_tried_by_one_job_until_the_look() -> None:
    site = Slow()
    site.send(*(job(id, user=f"u{id}", clusters=("left",)) for id in (1, 2)))
    site.poll()
    site.send(*(job(id, user=f"u{id}", clusters=("left",)) for id in range(3, 20)))
    for _ in range(20):
        site.poll(after=1.0)
    assert len(site.tries) == 3
    for _ in range(20):
        site.poll(after=1.0)
    assert len(site.tries) == 4


def test_a_cluster_that_is_full_then_refuses_until_it_accepts() -> None:
    """Operators are told of the end of its refusals, too."""
    site = Slow()
    site.accept(site.step(JobSubmitted(site.now, job(9, clusters=("left",)))))
    site.send(*(job(id, user=f"u{id}", clusters=("left",)) for id in (1, 2)))
    site.poll()
    assert site.core.state.views["left"].refusing
    site.now += 2.0
    site.step(JobSubmitted(site.now, job(3, user="c", clusters=("left",))))
    site.step(DispatchStarted(site.now, 3, 1))
    site.step(DispatchRejected(site.now, 3, 1, "MaxJobCount limit reached", retry_later=True))
    site.now += 20.0
    site.accept(site.seen("left", None, at=site.now))
    assert site.out.refusing == {"left": ""}


def test_a_cluster_that_refuses_attracts_no_job() -> None:
    site = Slow()
    site.send(*(job(id, user=f"u{id}", clusters=("left",)) for id in (1, 2)))
    site.poll()
    for id in (1, 2):
        site.step(UserRequested(site.now, "cancel", id))
    rows = []
    for id in range(3, 8):
        rows += site.accept(site.step(JobSubmitted(site.now, job(id, cpus=4))))
    assert len(rows) == 5
    assert not site.has_pulled(rows)


def test_a_job_is_not_pulled_to_a_cluster_that_refused_it() -> None:
    site = Slow()
    site.send(job(1, cpus=4))
    assert site.tries[0][2] == "left"
    site.now += LOOK
    rows = site.accept(site.seen("left", None, at=site.now))
    assert site.core.tasks[1, 0].live_attempt.cluster == "right"
    assert not site.has_pulled(rows)


def test_strikes_taken_back_release_a_job_held_with_words_of_another_cluster() -> None:
    site = Slow(said_by_cluster=True)
    site.send(job(1, user="a"))
    while site.state() is not State.HELD:
        assert site.now < NOW + 3000.0
        site.poll()
    other = "right" if "left" in site.core.tasks[1, 0].reason else "left"
    site.send(job(2, user="b", clusters=(other,)))
    site.poll()
    assert site.core.state.views[other].refusing
    assert site.state() is State.QUEUED


def test_words_of_one_owner_do_not_hide_refusals_of_others() -> None:
    site = Slow()
    site.send(job(1, user="a", clusters=("left",)))
    site.poll()
    for id in range(10, 35):  # what he passes to sbatch may be in its words
        site.send(job(id, user="c", clusters=("left",)), said=f"invalid option {id}")
    site.poll()
    view = site.core.state.views["left"]
    assert len(view.refusal_runs) == 1 + MAX_SENTENCES
    site.send(job(2, user="b", clusters=("left",)))
    site.poll()
    assert view.refusing


def test_a_listed_job_that_can_never_start_has_failed() -> None:
    """It had no answer, but was listed: it was accepted, whatever its state was meanwhile."""
    site = Refusing()
    site.step(JobSubmitted(NOW, job(1, clusters=("left",))))
    site.step(DispatchStarted(NOW, 1, 1))
    site.step(DispatchUncertain(NOW, 1, 1, "?"))
    site.seen("left", None, site.row(State.PENDING), at=NOW + 1)
    site.step(ClusterUnreachable(NOW + 2, "left", "no answer"))
    assert site.state() is State.UNKNOWN
    row = site.row(State.FAILED, ended=NOW, manager_reason="BadConstraints", refused=True)
    site.seen("left", None, row, at=NOW + 3)
    (ended,) = (task for task, _ in site.out.closed_attempts)
    assert ended.state is State.FAILED
