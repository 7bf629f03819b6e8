"""Jobs that a node could not begin: what a listing of Slurm shows, and what the core decides."""

from __future__ import annotations

from typing import Any

import pytest

from metasched.adapters.slurm import statuses
from metasched.adapters.slurm.launch_failures import Drain, LaunchFailures, parse_drains
from metasched.adapters.slurm.listing import QueueLine, QueueListing
from metasched.core.events import (
    ClaimsRevoked,
    Dispatch,
    DispatchStarted,
    DispatchUncertain,
    JobSubmitted,
    Revoke,
    Withdraw,
)
from metasched.model.cluster import ClusterInfo, NodeCapacity, Partition
from metasched.model.host_lists import UNKNOWN_HOSTS
from metasched.model.job import State
from metasched.model.listing import JobStatus
from metasched.model.manager_options import MAX_NAMED_HOSTS, ManagerOptions
from metasched.model.row_checks import clean_row
from metasched.model.tags import tag_of
from tests.unit.core_site import NOW, Site, job

SLURM, ADMIN = 64030, 1000
INSTANCE = "abcd1234"
AT_ONCE = "its node never began it, or somebody cancelled it at once"


def line(**changed: str) -> QueueLine:
    """Return the line of a job that a1 could not begin at 110 s; `changed` overrides its fields."""
    usual = QueueLine(
        *("7", "1000", "CANCELLED", "main", "1", "1:00", "100", "100", "110", "110"),
        *("0", "0", "99", "a1", "None", f"ms-{INSTANCE}-1-1"),
    )
    return usual._replace(**changed)


HELD = {
    "state": "PENDING",
    "nodes": "",
    "restarts": "1",
    "priority": "0",
    "submitted": "110",
    "start": "231",
    "end": "291",
    "reason": "launch failed requeued held",
}


def row(
    changed: dict[str, str], drains: dict[str, Drain], now: float = 120, later: bool = False
) -> JobStatus:
    failures, listed = LaunchFailures(), line(**changed)
    failures.judge(failures.unjudged([listed]), drains, {SLURM, 0}, now)
    if later:  # the node is in service again
        assert failures.unjudged([listed]) == []
    listing = QueueListing([listed])
    tasks = statuses.job_statuses(listing, frozenset({INSTANCE}), 1000, verdict=failures.verdict)
    [status] = tasks.tagged
    return status


@pytest.mark.parametrize(
    ("changed", "drain", "hosts"),
    [
        ({}, Drain(110, SLURM), "a1"),
        ({}, Drain(119, 0), "a1"),
        ({}, Drain(110, ADMIN), ""),  # an operator's act is no sign of a fault
        ({}, Drain(109, SLURM), ""),  # before the start
        ({}, Drain(121, SLURM), ""),  # long after the end, as "Kill task failed"
        ({"status": "15"}, Drain(110, SLURM), ""),
        ({"status": "0:15"}, Drain(110, SLURM), ""),
        ({"status": "0:0"}, Drain(110, SLURM), "a1"),
        ({"nodes": "a[1-2]"}, Drain(110, SLURM), "a1"),
        ({"nodes": "a2"}, Drain(110, SLURM), ""),
        ({"nodes": "", "start": "110"}, Drain(110, SLURM), ""),  # cancelled while it was pending
        ({"nodes": "a[1"}, Drain(110, SLURM), ""),
        ({"state": "COMPLETED"}, Drain(110, SLURM), ""),
        ({"state": "FAILED", "status": "4021"}, Drain(110, SLURM), ""),
        (HELD, Drain(110, SLURM), "a1"),
        (HELD, Drain(90, SLURM), "Unknown"),
        (HELD | {"reason": "launch_failed_requeued_held"}, Drain(110, SLURM), "a1"),
        (HELD | {"reason": "JobHeldAdmin"}, Drain(110, SLURM), ""),
        (HELD | {"priority": "7"}, Drain(110, SLURM), ""),
    ],
)
def test_only_a_drain_by_slurm_itself_while_a_job_began_is_a_sign(
    changed: dict[str, str], drain: Drain, hosts: str
) -> None:
    assert row(changed, {"a1": drain}).unbegun_on == hosts


def test_a_job_that_slurm_holds_is_taken_back_and_another_stays() -> None:
    assert not row(HELD, {}).restart_stays
    assert row(HELD | {"reason": "JobHeldAdmin"}, {}).restart_stays


@pytest.mark.parametrize("changed", [{}, HELD])
def test_a_doubtful_job_still_ends_until_the_drain_of_its_node_may_be_seen(
    changed: dict[str, str],
) -> None:
    undecided = row(changed, {}, now=112)
    assert (undecided.state, undecided.restarts, undecided.ended) == (State.RUNNING, 0, None)
    assert row(changed, {}, now=113).state is not State.RUNNING


def test_a_verdict_stays_when_the_node_is_in_service_again_and_is_forgotten_with_the_job() -> None:
    assert row({}, {"a1": Drain(110, SLURM)}, later=True).unbegun_on == "a1"
    failures = LaunchFailures()
    failures.judge([line()], {"a1": Drain(110, SLURM)}, {SLURM}, 120)
    failures.unjudged([])
    assert failures.unjudged([line()]) == [line()]
    assert failures.verdict(line(id="8")) is None


def test_the_node_of_a_held_job_is_the_one_drained_nearest_to_its_requeueing() -> None:
    drains = {"a1": Drain(103, SLURM), "a2": Drain(109, SLURM), "a3": Drain(111, SLURM)}
    assert row(HELD, drains).unbegun_on == "a[2-3]"


def test_drains_are_read_from_states_times_and_accounts_not_from_words() -> None:
    text = (
        "a1~idle+drain~110~slurm(64030)~\na2~idle~Unknown~Unknown~\na3~down~110~root(0)~\n"
        "a4~MIXED+DRAIN~110~root(0)~\na5~idle+drain~x~root(0)~\na6~idle+drain~110~eve(0) x~\n"
    )
    assert parse_drains(text, "~") == {"a1": Drain(110, 64030), "a4": Drain(110, 0)}


# The core


def named(cpus: int, *names: str) -> ClusterInfo:
    capacity = NodeCapacity(1, cpus, cpus)
    partition = Partition(
        "main",
        tuple(capacity for _ in names),
        default=True,
        named_nodes=Partition.name_nodes((name, capacity) for name in names),
    )
    return ClusterInfo(cpus=cpus * len(names), used_cpus=0, partitions=(partition,))


def begun(
    fence: str = "", names: tuple[str, ...] = ("n1", "n2", "n3", "n4"), **fields: Any
) -> Site:
    """Return a site whose job 1 is listed as running on n1 of left; right has not reported."""
    site = Site(listed=False, fence_dir="/claims" if fence else "")
    site.seen("left", named(8, *names))
    site.step(JobSubmitted(NOW, job(**fields)))
    site.step(DispatchStarted(NOW, 1, 1, fence=fence))
    site.seen("left", None, site.row(State.RUNNING, started=NOW, node="n1"))
    return site


def unbegun(site: Site, sending: int = 1, **changed: Any) -> JobStatus:
    fields: dict[str, Any] = {
        "started": NOW,
        "ended": NOW + 1,
        "exit_code": 0,
        "node": f"n{sending}",
        "unbegun_on": f"n{sending}",
        **changed,
    }
    return site.row(State.CANCELLED, sending=sending, **fields)


def causes(site: Site) -> list[str]:
    return [change.cause for change in site.out.changes if change.before is not change.after]


def test_a_job_goes_to_two_other_nodes_and_fails_then() -> None:
    site = begun()
    for sending in (1, 2):
        assert site.seen("left", None, unbegun(site, sending)) == [
            Dispatch(1, sending + 1, "left", (0,))
        ]
        assert causes(site)[0].startswith(f"node n{sending} of left could not begin it; it goes")
        hosts = {f"n{number}" for number in range(1, sending + 1)}
        assert site.core.tasks[1, 0].hosts_to_avoid("left") == hosts
        assert site.core.tasks[1, 0].hosts_to_avoid("right") == set()
        site.step(DispatchStarted(NOW, 1, sending + 1))
        site.seen("left", None, site.row(State.RUNNING, sending=sending + 1, started=NOW))
        # the row of the former attempt is listed as long as its manager remembers it
        assert site.seen("left", None, unbegun(site, sending, unbegun_on="")) == []
    site.seen("left", None, unbegun(site, 3))
    [(before, after)] = [(c.before, c.after) for c in site.out.changes]
    assert (before, after) == (State.RUNNING, State.FAILED)
    [cause] = causes(site)
    assert cause.startswith("node n1 of left, node n2 of left, node n3 of left could not begin it")


def test_a_job_fails_at_once_if_no_other_node_can_hold_it() -> None:
    site = begun(names=("n1",), clusters=("left",))
    assert site.seen("left", None, unbegun(site)) == []
    assert causes(site) == ["node n1 of left could not begin it, and no other node is tried"]


def test_a_job_goes_to_another_cluster_if_that_alone_has_other_nodes() -> None:
    site = begun(names=("n1",))
    site.seen("right", named(4, "r1"))
    assert site.seen("left", None, unbegun(site)) == [Dispatch(1, 2, "right", (0,))]


def test_tasks_that_avoid_different_nodes_share_no_dispatch() -> None:
    site = Site(listed=False)
    site.seen("left", named(8, "n1", "n2", "n3"))
    site.step(JobSubmitted(NOW, job(array="1-3")))
    site.step(DispatchStarted(NOW, 1, 1))
    rows = [
        JobStatus(
            tag_of("cafe", 1, 1),
            index,
            f"7_{index}",
            State.CANCELLED,
            started=NOW,
            ended=NOW + 1,
            exit_code=0,
            node=node,
            unbegun_on=node,
        )
        for index, node in ((1, "n1"), (2, "n2"), (3, "n1"))
    ]
    assert site.seen("left", None, *rows) == [
        Dispatch(1, 2, "left", (1, 3)),
        Dispatch(1, 3, "left", (2,)),
    ]


@pytest.mark.parametrize(
    "changed",
    [
        {"unbegun_on": ""},
        {"ended": NOW + 61},  # it ran for longer than a node takes to begin a job
        {"exit_code": 1},
        {"exit_code": None, "signal": 15},
    ],
)
def test_without_proof_a_job_is_cancelled(changed: dict[str, Any]) -> None:
    site = begun()
    assert site.seen("left", None, unbegun(site, **changed)) == []
    assert [change.after for change in site.out.changes] == [State.CANCELLED]
    assert causes(site) == [AT_ONCE if "unbegun_on" in changed else ""]


@pytest.mark.parametrize("changed", [{}, {"ended": NOW + 3600}, {"exit_code": None, "signal": 15}])
def test_with_claims_the_claim_decides(changed: dict[str, Any]) -> None:
    for was_claimed in (False, True):
        site = begun("/claims/jobs-0/claims-x")
        ended = unbegun(site, **changed)
        [revoke] = site.seen("left", None, ended)
        assert isinstance(revoke, Revoke)
        assert site.state() is State.RUNNING
        # forgotten by its manager, or its node is in service again, before the claim answers
        assert site.seen("left", None, full=True) == []
        assert site.seen("left", None, unbegun(site, **{**changed, "unbegun_on": ""})) == []
        key = ((ended.tag, 0),)
        if was_claimed:
            assert site.step(ClaimsRevoked(NOW, (), already_started=key)) == []
            assert [c.after for c in site.out.changes][-1] is State.CANCELLED
        else:
            assert site.step(ClaimsRevoked(NOW, key)) == [Dispatch(1, 2, "left", (0,))]
            assert site.core.tasks[1, 0].hosts_to_avoid("left") == {"n1"}


def test_a_job_that_is_listed_while_its_claim_is_revoked_avoids_its_node() -> None:
    site = Site(listed=False, fence_dir="/claims")
    site.seen("left", named(8, "n1", "n2"))
    site.step(JobSubmitted(NOW, job(clusters=("left",))))
    site.step(DispatchStarted(NOW, 1, 1, fence="/claims/jobs-0/claims-x"))
    site.step(DispatchUncertain(NOW, 1, 1, "?"))
    [revoke] = site.seen("left", None, full=True)
    assert isinstance(revoke, Revoke)
    ended = unbegun(site)
    assert site.seen("left", None, ended) == []
    assert site.step(ClaimsRevoked(NOW, ((ended.tag, 0),))) == [Dispatch(1, 2, "left", (0,))]
    assert site.core.tasks[1, 0].hosts_to_avoid("left") == {"n1"}


def held(site: Site, sending: int = 1, **changed: Any) -> JobStatus:
    fields: dict[str, Any] = {"started": NOW, "restarts": 1, "unbegun_on": f"n{sending}", **changed}
    return site.row(State.PENDING, sending=sending, **fields)


def test_a_job_that_its_manager_requeued_and_holds_is_withdrawn_and_goes_elsewhere() -> None:
    site = begun(requeue=True)
    for sending in (1, 2, 3):
        [withdraw] = site.seen("left", None, held(site, sending))
        assert isinstance(withdraw, Withdraw)
        assert not withdraw.only_pending
        # a worker that starts anew finds the node in service again
        site.seen("left", None, held(site, sending, unbegun_on=UNKNOWN_HOSTS))
        gone = site.row(State.CANCELLED, sending=sending, started=NOW, restarts=1, ended=NOW + 1)
        actions = site.seen("left", None, gone)
        if sending < 3:
            assert actions == [Dispatch(1, sending + 1, "left", (0,))]
            assert f"n{sending}" in site.core.tasks[1, 0].hosts_to_avoid("left")
            site.step(DispatchStarted(NOW, 1, sending + 1))
            site.seen("left", None, site.row(State.RUNNING, sending=sending + 1, started=NOW))
    assert [change.after for change in site.out.changes] == [State.FAILED]


def test_what_its_owner_cancels_before_it_is_withdrawn_is_cancelled() -> None:
    site = begun(requeue=True)
    site.seen("left", None, held(site))
    gone = site.row(State.CANCELLED, started=NOW, restarts=1, ended=NOW + 1)
    site.seen("left", None, gone, not_withdrawn=((gone.tag, 0),))
    assert [change.after for change in site.out.changes][-1] is State.CANCELLED


def test_a_list_of_hosts_that_cannot_be_read_names_none() -> None:
    status = JobStatus("ms-cafe-1-1", 0, "7", State.CANCELLED, unbegun_on="n[1")
    assert clean_row(status).unbegun_on == "Unknown"
    status.unbegun_on = f"n[1-{MAX_NAMED_HOSTS + 1}]"
    assert clean_row(status).unbegun_on == "Unknown"


def test_hosts_to_avoid_join_those_of_the_owner_if_the_list_has_room() -> None:
    assert ManagerOptions(exclude="n1").without_hosts({"n2"}).exclude == "n[1-2]"
    full = ManagerOptions(exclude=f"n[1-{MAX_NAMED_HOSTS}]")
    assert full.without_hosts({"m1"}) is full
