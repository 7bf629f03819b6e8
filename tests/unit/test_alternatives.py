"""Tasks with alternative licences: which they get, and by what they get it at last."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from msgspec import structs

from metasched.core.alternatives import request_ids
from metasched.core.events import (
    ClusterDrained,
    ClusterResumed,
    ClusterUnreachable,
    Dispatch,
    DispatchRejected,
    DispatchStarted,
    JobModified,
    JobSubmitted,
    LicenceSet,
    TimerExpired,
    UserRequested,
    Withdraw,
)
from metasched.core.leasing import LicenceLeasing
from metasched.core.placement import Placement
from metasched.core.tasks import Intent, Task
from metasched.model.cluster import ManagerLicences
from metasched.model.job import Job, Reason, State
from metasched.model.licence import LicencePool
from metasched.model.limits import LimitSettings, LimitTable
from tests.unit.core_site import NOW, Site, facts, job

TWO = tuple(LicencePool(name=name, total=1, linger=0.0) for name in ("a", "b"))
ON_LEFT = LicencePool(name="c", total=2, clusters=("left",), linger=0.0)
EITHER = ({"a": 1}, {"b": 1})


def either(id: int, *choices: dict[str, int], **fields: Any) -> Job:
    choices = choices or EITHER
    return job(id, licences=choices[0], licence_choices=choices, **fields)


def licences(task: Task) -> dict[str, int]:
    return dict(task.job.licences)


def ada_may_have(**counts: int) -> LimitSettings:
    return LimitSettings(users={"ada": LimitTable(licences=counts)})


def end(site: Site, id: int, cluster: str = "left", at: float = NOW + 1) -> list[Any]:
    """End a task that was sent to a cluster."""
    site.sent(id, cluster)
    return site.seen(cluster, None, site.row(State.COMPLETED, id=id, started=NOW), at=at)


def test_the_first_that_is_free_is_leased() -> None:
    site = Site(pools=TWO)
    for id, tokens in ((1, {"a": 1}), (2, {"b": 1})):
        site.step(JobSubmitted(NOW, either(id, clusters=("left",))))
        assert [lease.tokens for lease in site.out.leases] == [tokens]  # type: ignore[union-attr]
        task = site.core.tasks[id, 0]
        assert (licences(task), task.live_attempt.licence_choice) == (tokens, id - 1)
    assert site.step(JobSubmitted(NOW, either(3, clusters=("left",)))) == []
    waiting = site.core.tasks[3, 0]
    obstacle = site.core.licence_obstacle(waiting, NOW)
    assert obstacle is not None
    assert obstacle.text == "licence a: 1 wanted, 0 of 1 free; or licence b: 1 wanted, 0 of 1 free"
    assert (waiting.reason, licences(waiting)) == (Reason.LICENCE_BUSY, {"a": 1})
    assert [status.licence for status in site.core.missing_licences(waiting, NOW)] == ["a", "b"]
    assert [site.core.licences.status(name, NOW).requests for name in "ab"] == [1, 1]
    [send] = end(site, 2)
    assert (send.job, licences(waiting)) == (3, {"b": 1})
    assert [site.core.licences.status(name, NOW).requests for name in "ab"] == [0, 0]
    # a job that comes back asks for all of them again
    site.sent(3)
    site.step(UserRequested(NOW + 2, "hold", 3, by="ada"))
    site.seen("left", None, site.row(State.CANCELLED, id=3), at=NOW + 3)
    assert (waiting.state, waiting.job.licence_choice) == (State.HELD, 0)
    # unless an attempt of it has started after all: that uses what it had
    site.seen("left", None, site.row(State.RUNNING, id=3, started=NOW), at=NOW + 4)
    assert (waiting.state, licences(waiting)) == (State.RUNNING, {"b": 1})
    assert site.core.licences.leases[3, 0].tokens == {"b": 1}


def test_the_written_order_goes_before_the_size() -> None:
    site = Site(pools=(*TWO, ON_LEFT))
    site.step(LicenceSet(NOW, "a", 0, "op"))
    site.step(LicenceSet(NOW, "c", 0, "op"))
    site.step(JobSubmitted(NOW, either(1, {"a": 1}, {"c": 2})))
    site.step(LicenceSet(NOW, "c", 2, "op"))
    assert licences(site.core.tasks[1, 0]) == {"c": 2}
    site = Site(pools=(*TWO, ON_LEFT))
    site.step(JobSubmitted(NOW, either(1, {"a": 1}, {"c": 2})))
    assert licences(site.core.tasks[1, 0]) == {"a": 1}


def test_those_that_no_cluster_or_limit_admits_are_passed_over() -> None:
    limits = LimitSettings(
        users={"ada": LimitTable(licences={"c": 1}), "bob": LimitTable(licences={"b": 0})}
    )
    site = Site(pools=(*TWO, ON_LEFT), limits=limits)
    [send] = site.step(JobSubmitted(NOW, either(1, {"c": 1}, {"a": 1}, clusters=("right",))))
    assert isinstance(send, Dispatch)
    assert (send.cluster, licences(site.core.tasks[1, 0])) == ("right", {"a": 1})
    site.step(JobSubmitted(NOW, either(2, {"c": 2}, {"b": 1}, user="ada")))
    assert licences(site.core.tasks[2, 0]) == {"b": 1}
    reason = site.core.rejection_reason
    assert reason(either(3, {"b": 1}, {"d": 1})) == "no licence 'd' is known; known are: a, b, c"
    assert reason(either(3, {"c": 1}, {"a": 1}, clusters=("right",))) is None
    for never in (
        job(3, licences={"c": 1}, clusters=("right",)),
        # the limit bars one of them, the cluster the other
        either(3, {"b": 1}, {"c": 1}, clusters=("right",), user="bob"),
    ):
        assert "licence c cannot be used there" in str(reason(never))


@pytest.mark.parametrize("remainder_minimum", [2, 1000])
def test_tasks_of_a_dispatch_have_the_same_licences(remainder_minimum: int) -> None:
    pools = (LicencePool(name="a", total=2, linger=0.0), LicencePool(name="b", total=3))
    site = Site(pools=pools, remainder_minimum=remainder_minimum)
    sent = site.step(JobSubmitted(NOW, either(1, array="0-6", clusters=("left",))))
    assert sent == [Dispatch(1, 1, "left", (0, 1)), Dispatch(1, 2, "left", (2, 3, 4))]
    assert licences(site.core.tasks[1, 4]) == {"b": 1}
    assert site.core.count_open(1) == 7
    site.step(LicenceSet(NOW, "a", 3, "op"))
    assert site.out.actions == [Dispatch(1, 3, "left", (5,))]
    assert licences(site.core.tasks[1, 5]) == {"a": 1}


def test_without_leases_the_cluster_decides() -> None:
    site = Site(remainder_minimum=2)
    sent = site.step(JobSubmitted(NOW, either(1, array="0-2", clusters=("left",))))
    assert sent == [Dispatch(1, 1, "left", (0, 1, 2))]


def test_a_limit_is_tested_with_the_alternative_that_waits_for_it() -> None:
    """Before, `c` was set aside under the limit of `b`, which it needs not: steps had no end."""
    site = Site(pools=(*TWO, ON_LEFT), limits=ada_may_have(b=1))
    on_right: dict[str, Any] = {"user": "ada", "clusters": ("right",)}
    site.step(JobSubmitted(NOW, job(1, licences={"b": 1}, **on_right)))
    site.step(JobSubmitted(NOW, job(2, **on_right)))
    assert site.step(JobSubmitted(NOW, either(3, {"c": 1}, {"b": 1}, **on_right))) == []
    waiting = site.core.tasks[3, 0]
    assert waiting.reason == Reason.LIMIT_USER
    shortage = site.core.limit_shortage(waiting)
    assert shortage is not None
    assert "licence b" in shortage.text
    end(site, 2, "right")  # which releases the user's limits, but no `b`
    steps = 0
    while (due := site.core.next_due) is not None and due <= NOW + 1:
        site.step(TimerExpired(NOW + 1))
        steps += 1
        assert steps < 10
    [send] = end(site, 1, "right", NOW + 2)
    assert (send.job, licences(waiting)) == (3, {"b": 1})


def test_open_and_queued_tasks_with_alternatives_count_once() -> None:
    """One with two alternatives fills limits of one: queued, then open until it ends."""
    single = LimitSettings(users={"ada": LimitTable(open_tasks=1, queued=1)})
    site = Site(pools=TWO, limits=single)
    site.step(JobSubmitted(NOW, job(1, licences={"a": 1, "b": 1})))  # of another user
    limits, another = site.core.limits, job(3, user="ada")

    def uses() -> dict[str, int]:
        return {use.resource: use.used for use in limits.uses_of(limits.scopes())}

    assert limits.admission_refusal([(either(2, user="ada"), 1)]) is None
    site.step(JobSubmitted(NOW, either(2, user="ada")))
    assert uses() == {"open_tasks": 1, "queued": 1}
    assert limits.admission_refusal([(another, 1)]) is not None
    end(site, 1)
    assert site.state(2) is State.DISPATCHING
    assert uses() == {"open_tasks": 1, "queued": 0}
    assert limits.admission_refusal([(another, 1)]) is not None
    end(site, 2)
    assert uses() == {"open_tasks": 0, "queued": 0}
    assert limits.admission_refusal([(another, 1)]) is None


def test_an_alternative_whose_limit_opens_later_is_taken() -> None:
    site = Site(pools=(TWO[0], LicencePool(name="b", total=9)), limits=ada_may_have(b=1))
    site.step(JobSubmitted(NOW, job(1, licences={"a": 1}, clusters=("right",))))
    site.step(JobSubmitted(NOW, job(2, licences={"b": 1}, user="ada", clusters=("left",))))
    assert site.step(JobSubmitted(NOW, either(3, user="ada"))) == []
    waiting = site.core.tasks[3, 0]
    assert waiting.reason == Reason.LIMIT_USER
    assert site.core.licence_obstacle(waiting, NOW) is not None  # it waits for `a`, too
    [send] = end(site, 2)
    assert (send.job, licences(waiting)) == (3, {"b": 1})


def test_an_alternative_of_a_drained_cluster_is_taken_once_it_resumes() -> None:
    site = Site(pools=(*TWO, ON_LEFT))
    site.step(JobSubmitted(NOW, job(1, licences={"a": 1}, clusters=("right",))))
    site.step(ClusterDrained(NOW, "left", "op", "new kernel", False))
    assert site.step(JobSubmitted(NOW, either(2, {"a": 1}, {"c": 1}))) == []
    assert site.core.licence_obstacle(site.core.tasks[2, 0], NOW) is not None
    [send] = site.step(ClusterResumed(NOW, "left", "op"))
    assert (send.job, licences(site.core.tasks[2, 0])) == (2, {"c": 1})  # type: ignore[union-attr]


def test_an_alternative_of_a_full_cluster_is_taken_once_it_has_room() -> None:
    site = Site(pools=(*TWO, ON_LEFT))
    site.step(JobSubmitted(NOW, job(1, licences={"a": 1}, clusters=("right",))))
    site.step(JobSubmitted(NOW, job(2, clusters=("left",))))
    site.sent(2)
    site.step(JobSubmitted(NOW, job(3, clusters=("left",))))
    site.step(DispatchStarted(NOW, 3, 1))
    site.step(DispatchRejected(NOW, 3, 1, "limit", True, "user"))
    assert site.step(JobSubmitted(NOW, either(4, {"a": 1}, {"c": 1}))) == []
    waiting = site.core.tasks[4, 0]
    site.seen("left", None, site.row(State.COMPLETED, id=2, started=NOW), at=NOW + 1)
    for second in range(2, 400):  # the queue of the cluster is tried by and by
        if waiting.attempt is not None:
            break
        for action in site.seen("left", facts(8), at=NOW + second):
            assert isinstance(action, Dispatch)
            if action.job == 3:
                site.sent(3, sending=action.dispatch_id)
    assert licences(waiting) == {"c": 1}


def test_a_modification_looks_at_what_was_chosen() -> None:
    """Before, the task was recalled since its first alternative cannot be used there."""
    site = Site(pools=(*TWO, ON_LEFT))
    request = either(1, {"c": 1}, {"a": 1}, clusters=("right",))
    site.step(JobSubmitted(NOW, request))
    site.sent(1, "right")
    changed = either(1, {"c": 1}, {"a": 1}, clusters=("right",), name="new")
    site.step(JobModified(NOW, changed, "name new", False, by="ada"))
    task = site.core.tasks[1, 0]
    assert task.live_attempt.intent is not Intent.RECALL
    assert (task.job.name, licences(task)) == ("new", {"a": 1})


def test_a_rejected_task_ends_only_if_no_alternative_can_ever_go() -> None:
    site = Site(pools=(*TWO, ON_LEFT))
    site.step(JobSubmitted(NOW, either(1, {"c": 1}, {"a": 1})))
    for sending, cluster in ((1, "left"), (2, "right")):
        task = site.core.tasks[1, 0]
        assert task.live_attempt.cluster == cluster
        site.step(DispatchStarted(NOW, 1, sending))
        site.step(DispatchRejected(NOW, 1, sending, "no", False, "cluster"))
    assert task.state is State.REJECTED
    assert not any(request in site.core.licences for request in request_ids(task))


def test_a_recheck_makes_no_job_anew() -> None:
    site = Site(pools=TWO)
    for id in range(1, 9):
        site.step(JobSubmitted(NOW, either(id)))
    site.step(ClusterDrained(NOW, "left", "op", "new kernel", True))
    with patch.object(Job, "with_licences", side_effect=AssertionError):
        site.step(ClusterResumed(NOW, "left", "op"))


@pytest.mark.parametrize("choices", [EITHER, ()])
def test_a_recheck_costs_little_for_those_that_wait_for_licences(choices: Any) -> None:
    site = Site(pools=TWO)
    for id, token in ((1, "a"), (2, "b")):
        site.step(JobSubmitted(NOW, job(id, licences={token: 1})))
    for id in range(3, 9):
        site.step(JobSubmitted(NOW, job(id, licences={"a": 1}, licence_choices=choices)))
    site.step(ClusterDrained(NOW, "left", "op", "new kernel", True))
    with (
        patch.object(LicenceLeasing, "licence_obstacle", side_effect=AssertionError),
        patch.object(LicenceLeasing, "join", side_effect=AssertionError),
        patch.object(Placement, "_defer", side_effect=AssertionError),
    ):
        site.step(ClusterResumed(NOW, "left", "op"))
    assert site.core.tasks[8, 0].reason == Reason.LICENCE_BUSY


def test_a_story_names_the_licences_that_all_alternatives_lack() -> None:
    site = Site(pools=TWO)
    for id, token in ((1, "a"), (2, "b")):
        site.step(JobSubmitted(NOW, job(id, licences={token: 1})))
    site.step(ClusterDrained(NOW, "left", "op", "new kernel", True))
    site.step(ClusterDrained(NOW, "right", "op", "new kernel", True))
    site.step(JobSubmitted(NOW, either(3)))
    assert [change.cause for change in site.out.changes if change.job == 3][1:] == [
        "drained by op: new kernel"
    ]
    site.step(ClusterResumed(NOW, "left", "op"))
    assert [change.cause for change in site.out.changes if change.job == 3] == [
        "licence a: 1 wanted, 0 of 1 free; or licence b: 1 wanted, 0 of 1 free"
    ]


def test_one_is_moved_from_a_silent_cluster_to_where_another_can_be_had() -> None:
    """Before, only the licence that it had was looked at, which may be of that cluster alone."""
    pools = (ON_LEFT, LicencePool(name="d", total=1, clusters=("right",), linger=0.0))
    site = Site(pools=pools, pull=False, move_after=90.0)
    [send] = site.step(JobSubmitted(NOW, either(1, {"c": 1}, {"d": 1})))
    assert (send.cluster, licences(site.core.tasks[1, 0])) == ("left", {"c": 1})
    site.sent(1)
    site.seen("left", None, site.row(State.PENDING))
    site.step(ClusterUnreachable(NOW, "left", "no answer"))
    site.seen("right", facts(4), at=NOW + 60)
    moved = site.seen("left", None, site.row(State.PENDING), full=True, at=NOW + 100)
    assert moved == [Withdraw(1, 1, "left", {0: "7"}, only_pending=True)]
    gone = site.row(State.CANCELLED, ended=NOW)
    # `c` is free again, and goes first as written; but then it would wait on left anew
    assert site.seen("left", None, gone, at=NOW + 101) == [Dispatch(1, 2, "right", (0,))]
    assert licences(site.core.tasks[1, 0]) == {"d": 1}


FREE = LicencePool(name="d", total=1, linger=0.0)
C_OR_D = ({"c": 1}, {"d": 1})


def waiting_on_left(*pools: LicencePool, jobs: int = 1, **settings: Any) -> Site:
    """Jobs wait on left with licence c, which only left has; right has no room yet."""
    site = Site(pools=pools or None, pull_after=0.0, **settings)
    site.seen("right", facts(4, free=0))
    site.seen("left", facts(8, free=0, queue_head=(8, 1000.0)))
    for id in range(1, jobs + 1):
        site.step(JobSubmitted(NOW, either(id, *C_OR_D, user="ada")))
        assert site.core.tasks[id, 0].live_attempt.cluster == "left"
        assert licences(site.core.tasks[id, 0]) == {"c": 1}
        site.sent(id)
    site.seen("left", None, *(site.row(State.PENDING, id=id) for id in range(1, jobs + 1)))
    return site


def test_one_is_pulled_to_where_another_can_be_had() -> None:
    """Before, only the licence that it had was looked at."""
    site = waiting_on_left(ON_LEFT, FREE)
    assert site.seen("right", facts(4), at=NOW + 10) == [
        Withdraw(1, 1, "left", {0: "7"}, only_pending=True)
    ]
    gone = site.row(State.CANCELLED, ended=NOW + 11)
    assert site.seen("left", None, gone, at=NOW + 11) == [Dispatch(1, 2, "right", (0,))]
    assert licences(site.core.tasks[1, 0]) == {"d": 1}
    assert {id: lease.tokens for (id, _), lease in site.core.licences.leases.items()} == {
        1: {"d": 1}
    }


def test_a_pull_needs_a_licence_that_is_free_for_it() -> None:
    for counts in ([1], [2, 3]):  # a job has the only copy, or another waits for more than is free
        site = waiting_on_left(ON_LEFT, LicencePool(name="d", total=max(counts)))
        for id, count in enumerate(counts, 8):
            other = job(id, licences={"d": count}, clusters=("left",), user="bob")
            # so long that a short job could overtake
            site.step(JobSubmitted(NOW, structs.replace(other, estimated=9000.0)))
        assert site.seen("right", facts(4), at=NOW + 10) == []
    site = waiting_on_left(ON_LEFT, FREE, limits=ada_may_have(d=0))
    assert site.seen("right", facts(4), at=NOW + 10) == []


def test_no_two_are_pulled_for_the_same_copy() -> None:
    site = waiting_on_left(ON_LEFT, FREE, jobs=2)
    [withdrawal] = site.seen("right", facts(4), at=NOW + 10)
    assert isinstance(withdrawal, Withdraw)
    assert withdrawal.job == 1
    assert site.seen("right", facts(4), at=NOW + 20) == []  # its withdrawal is under way
    gone = site.row(State.CANCELLED, ended=NOW + 21)
    assert site.seen("left", None, gone, site.row(State.PENDING, id=2), at=NOW + 21) == [
        Dispatch(1, 2, "right", (0,))
    ]
    assert site.seen("right", facts(4), at=NOW + 30) == []


def test_managers_count_the_licences_for_which_a_task_is_pulled() -> None:
    """Before, a task that came back went by its first alternative, to the cluster it had left."""
    site = Site(pull_after=0.0)
    site.seen("right", facts(4, free=0, free_licences={"c": 0, "d": 0}))
    site.seen("left", facts(8, free=0, free_licences={"c": 1}, queue_head=(8, 1000.0)))
    site.step(JobSubmitted(NOW, either(1, *C_OR_D)))
    site.sent(1)
    site.seen("left", None, site.row(State.PENDING))
    assert site.core.tasks[1, 0].live_attempt.cluster == "left"
    right = facts(
        4,
        free_licences={"c": 0, "d": 1},
        licences={"c": ManagerLicences(1, 1), "d": ManagerLicences(1, 0)},
    )
    [withdrawal] = site.seen("right", right, at=NOW + 10)
    assert isinstance(withdrawal, Withdraw)
    gone = site.row(State.CANCELLED, ended=NOW + 11)
    assert site.seen("left", None, gone, at=NOW + 11) == [Dispatch(1, 2, "right", (0,))]
    assert licences(site.core.tasks[1, 0]) == {"d": 1}


@pytest.mark.parametrize(
    ("choices", "problem"),
    [
        ([{f"l{number}": 1} for number in range(5)], "5 alternatives of licences"),
        ([{"a": 1}], "1 alternatives of licences"),
        ([{"a": 1}, {"a": 1}], "an alternative is repeated"),
        ([{"a": 1}, {"b": 1, "c": 1}], "must name one licence"),
        ([{"a": 1}, {}], "must name one licence"),
        ([{"a": 1}, {"b": 0}], "licence b is 0"),
    ],
)
def test_requests_that_are_refused(choices: list[dict[str, int]], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        either(1, *choices)
    with pytest.raises(ValueError, match="none of their alternatives"):
        job(1, licences={"x": 1}, licence_choices=EITHER)
