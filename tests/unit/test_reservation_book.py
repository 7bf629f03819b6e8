"""Reservation book: granted windows, their nodes, and their later states."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Literal

import pytest
from msgspec import structs

from metasched.carts.assigned_nodes import AssignedNodes
from metasched.core.events import Outcome
from metasched.core.licences.queue import LicenceQueue
from metasched.core.reservations.book import ReservationBook
from metasched.core.reservations.events import (
    Bind,
    ReservationBound,
    ReservationCancelled,
    ReservationEvent,
    ReservationRejected,
    ReservationReleased,
    ReservationRequested,
    SurveyCluster,
    SurveyReceived,
    Unbind,
)
from metasched.core.reservations.manager_answers import MAX_REJECTIONS, MAX_REJECTIONS_CONFIRMED
from metasched.model.cluster import Cluster
from metasched.model.job import Job, Reason
from metasched.model.reservation import (
    FINAL_STATES,
    OPEN_STATES,
    TRANSITIONS,
    IllegalReservationTransition,
    Reservation,
    ReservationState,
    ReservationTransition,
    manager_name,
    next_state,
    reservation_id,
)
from metasched.model.reservation_request import Offer, ReservationRequest
from metasched.model.survey import ManagerReservation, NodeUsage, ProcessorPool, Survey
from metasched.policies.eligible import Ineligibility
from metasched.policies.policy import Policy

T = 1_000_000.0
ALPHA = Cluster(name="alpha", adapter="slurm", supports_reservations=True)
UP = NodeUsage(("n1", "n2"), 4, True)


class Desk:
    """A reservation book with one cluster; the test acts as its manager."""

    def __init__(self, *nodes: NodeUsage, cluster: Cluster = ALPHA) -> None:
        self.book = ReservationBook(LicenceQueue())
        self.book.start("i", Policy(), [cluster], Outcome())
        self.report(T, *nodes)

    def step(self, event: ReservationEvent) -> Outcome:
        out = Outcome()
        self.book.advance_time(event.time, out)
        self.book.handle(event, out)
        return out

    def report(
        self, now: float, *nodes: NodeUsage, held: tuple[ManagerReservation, ...] = ()
    ) -> Outcome:
        return self.step(SurveyReceived(now, "alpha", Survey(now, nodes, held)))

    def ask(self, id: int, start: float, end: float, **fields: float) -> Outcome:
        return self.step(self.asked(id, start, end, **fields))

    def asked(
        self, id: int, start: float, end: float, size: float = 1, now: float = T, let_run: float = 0
    ) -> ReservationRequested:
        request = ReservationRequest.fixed(int(size), T + start, T + end)
        return ReservationRequested(now, id, "ada", request, True, ("alpha",), T + 1e6, let_run)

    def bind(self, *ids: int, now: float = T) -> None:
        for id in ids:
            self.step(ReservationBound(now, id, self.book.by_id[id].nodes))

    def held(self) -> tuple[ManagerReservation, ...]:
        return tuple(
            ManagerReservation(manager_name("i", r.id), r.start, r.end, r.bound_nodes)
            for r in self.book.availability.open_on("alpha")
        )

    def state(self, id: int) -> ReservationState:
        return self[id].state

    def __getitem__(self, id: int) -> Reservation:
        return self.book.by_id[id]


def passed(desk: Desk, now: float) -> Outcome:
    out = Outcome()
    desk.book.advance_time(now, out)
    return out


def test_every_state_is_reached_and_none_that_is_over_is_left() -> None:
    assert set(TRANSITIONS.values()) | {ReservationState.REQUESTED} == set(ReservationState)
    assert not {stage for stage, _ in TRANSITIONS} & FINAL_STATES
    assert {stage for stage, _ in TRANSITIONS} == OPEN_STATES


def test_an_impossible_transition_is_a_defect() -> None:
    desk = Desk(UP)
    desk.ask(1, 10, 20)
    with pytest.raises(
        IllegalReservationTransition, match="reservation 1: end is impossible in state requested"
    ):
        next_state(desk[1], ReservationTransition.END)


def test_names_of_other_instances_are_foreign() -> None:
    assert reservation_id(manager_name("i", 7), "i") == 7
    assert reservation_id(manager_name("j", 7), "i") is None
    assert reservation_id("ms-i-rx", "i") is None


def test_a_promise_is_stored_with_the_intent_to_bind_it() -> None:
    desk = Desk(UP)
    out = desk.ask(1, 10, 20)
    assert out.reservation_actions == [Bind("alpha", 1)]
    assert out.reservations[1].state is ReservationState.REQUESTED
    desk.bind(1)
    assert desk.state(1) is ReservationState.BOUND
    passed(desk, T + 10)
    assert desk.state(1) is ReservationState.ACTIVE
    out = passed(desk, T + 20)
    assert (desk.state(1), desk[1].closed) == (ReservationState.ENDED, T + 20)
    assert out.reservation_actions == [Unbind("alpha", 1)]
    desk.step(ReservationReleased(T + 21, 1))
    assert desk.book.by_id == {}


BETA = Cluster(name="beta", adapter="drmaa", supports_reservations=True)
GONE = "cluster alpha is not configured"


def test_one_whose_cluster_is_gone_waits_for_it_until_it_would_begin() -> None:
    desk = Desk(UP)
    desk.ask(1, 10, 20)
    desk.ask(2, 30, 40)
    desk.ask(3, 50, 60)
    desk.bind(1, 2)
    passed(desk, T + 12)
    out = Outcome()
    desk.book.start("i", Policy(), [BETA], out)
    assert out.warnings == [
        f"reservation {id} of ada: {GONE}; put it back, or cancel the reservation"
        for id in (1, 2, 3)
    ]
    assert out.reservation_actions == []
    assert [(desk.state(id), desk[id].cause) for id in (1, 2, 3)] == [
        (ReservationState.ACTIVE, GONE),
        (ReservationState.BOUND, GONE),
        (ReservationState.REQUESTED, GONE),
    ]
    job = Job(id=1, submitted=T, estimated=1.0, reservation=2)
    unfit = Ineligibility(Reason.RESERVATION_WAIT, f"reservation 2: {GONE}")
    assert desk.book.check_job(job, "beta") == unfit
    assert desk.book.next_due == T + 20

    assert passed(desk, T + 20).reservation_actions == []
    assert desk.state(1) is ReservationState.ENDED
    desk.step(
        SurveyReceived(
            T + 25, "beta", Survey(T + 25, (), (), (ProcessorPool(("b1",), 4, ((T, T + 45, 1),)),))
        )
    )
    assert passed(desk, T + 29.9).reservations == {}
    out = passed(desk, T + 30)
    assert (desk.state(2), desk[2].cause, out.reservation_actions) == (
        ReservationState.BROKEN,
        GONE,
        [],
    )
    assert out.warnings == [f"reservation 2 of ada is broken: {GONE}"]
    # four processors, as many as the reservation had
    assert desk[2].offers == (Offer(T + 45, T + 55, 4, "beta"),)
    assert desk.step(ReservationCancelled(T + 31, 3, "ada")).reservation_actions == []
    assert desk.state(3) is ReservationState.CANCELLED

    out = Outcome()
    desk.book.start("i", Policy(), [ALPHA, BETA], out)
    assert out.reservation_actions == [Unbind("alpha", id) for id in (1, 2, 3)]


def test_a_cluster_that_is_put_back_in_time_costs_nothing() -> None:
    desk = Desk(UP)
    desk.ask(1, 10, 20)
    desk.ask(2, 10, 20)
    desk.bind(1)
    desk.book.start("i", Policy(), [BETA], Outcome())
    assert passed(desk, T + 9).reservations == {}
    out = Outcome()
    desk.book.start("i", Policy(), [ALPHA], out)
    assert out.reservation_actions == [Bind("alpha", 2)]
    assert (desk.state(1), desk[1].cause) == (
        ReservationState.BOUND,
        "cluster alpha is configured again",
    )
    passed(desk, T + 10)
    assert desk.state(1) is ReservationState.ACTIVE


def test_what_binds_late_is_broken_at_its_start_if_its_cluster_is_gone() -> None:
    late = Cluster(name="alpha", adapter="slurm", supports_reservations=True, binds_late=True)
    desk = Desk(UP, cluster=late)
    desk.ask(1, 100, 200)
    assert desk.state(1) is ReservationState.CONFIRMED
    desk.book.start("i", Policy(), [], Outcome())
    assert desk.book.next_due == T + 100
    passed(desk, T + 100)
    assert (desk.state(1), desk[1].offers) == (ReservationState.BROKEN, ())


def test_others_move_to_another_host_where_one_has_its_processors_on_one_host() -> None:
    desk = Desk()
    begun = (T, T + 50, 1)

    def report_hosts(*hosts: str) -> None:
        """Report the hosts that the manager has chosen for reservations 1 and 2."""
        held = tuple(
            ManagerReservation(manager_name("i", id), T + start, T + start + 100, (host,), 2)
            for (id, start), host in zip(((1, 100), (2, 200)), hosts, strict=True)
        )
        pools = tuple(
            ProcessorPool(
                (host,), 2, (begun, *((h.start, h.end, 2) for h in held if h.nodes == (host,)))
            )
            for host in ("h1", "h2")
        )
        desk.step(SurveyReceived(T, "alpha", Survey(T, (), held, pools)))

    def ask(id: int, start: float, end: float, size: int = 2) -> ReservationRequested:
        return structs.replace(desk.asked(id, start, end, size=size), by_node=False)

    desk.step(
        SurveyReceived(
            T, "alpha", Survey(T, (), (), tuple(ProcessorPool((h,), 2) for h in ("h1", "h2")))
        )
    )
    desk.step(ask(1, 100, 200))
    desk.step(ask(2, 200, 300))
    desk.bind(1, 2)
    report_hosts("h1", "h2")
    third = ask(3, 100, 300)
    assert desk.book.offer_finder.offers(third) == {"alpha": Offer(T + 100, T + 300, 2)}
    assert desk.book.offer_finder.possible_starts(third, "alpha", Offer(T + 100, T + 300, 2)) == [
        (T + 100, T + 100)
    ]
    assert desk.book.offer_finder.offers(ask(3, 100, 300, size=3)) == {}
    # until T + 50, one processor of each host is busy
    assert desk.book.offer_finder.offers(ask(3, 40, 300)) == {}
    out = desk.step(third)
    assert out.reservation_actions == [Bind("alpha", 3)]
    assert desk.book.offer_finder.offers(ask(4, 100, 300)) == {}


def test_dynamic_binding_admits_what_static_binding_must_refuse() -> None:
    """A[0,1), B[2,3), C[0,2) and X[1,3) fit on two nodes if B moves for X."""
    desk = Desk(UP)
    desk.ask(1, 10, 20)
    desk.ask(2, 30, 40)
    desk.ask(3, 10, 30)
    desk.bind(1, 2, 3)
    # with A and B on one node and C on the other, static binding has no node for X
    desk.book.restore(
        [
            structs.replace(desk[id], nodes=(node,), bound_nodes=(node,))
            for id, node in ((1, "n1"), (2, "n1"), (3, "n2"))
        ]
    )
    out = desk.ask(4, 20, 40)
    assert out.reservation_actions == [Bind("alpha", 2), Bind("alpha", 4)]
    assert [desk[id].nodes for id in (1, 2, 3, 4)] == [("n1",), ("n2",), ("n2",), ("n1",)]


def test_no_more_is_promised_than_there_is() -> None:
    desk = Desk(NodeUsage(("n1",), 4, True), NodeUsage(("n2",), 4, False))
    assert desk.ask(1, 10, 20, size=2).reservations == {}
    desk.ask(2, 10, 20)
    assert desk.ask(3, 19, 30).reservations == {}
    assert desk.ask(4, 20, 30).reservations[4].nodes == ("n1",)


def test_jobs_and_others_reservations_are_in_the_way() -> None:
    taken = NodeUsage(("n1",), 4, True, ((T - 5, T + 100), (T + 50, T + 200)))
    desk = Desk(taken)
    assert desk.ask(1, 150, 160).reservations == {}
    assert desk.ask(2, 200, 210).reservations[2].start == T + 200


def test_nothing_is_promised_by_an_old_survey() -> None:
    desk = Desk(UP)
    assert desk.ask(1, 1000, 2000, now=T + 61).reservations == {}


def test_a_node_that_fails_before_the_start_is_replaced() -> None:
    desk = Desk(UP)
    desk.ask(1, 10, 20)
    desk.bind(1)
    was = desk[1].bound_nodes[0]
    other = "n2" if was == "n1" else "n1"
    nodes = (NodeUsage((was,), 4, False), NodeUsage((other,), 4, True))
    out = desk.report(T + 1, *nodes, held=desk.held())
    assert out.reservation_actions == [Bind("alpha", 1)]
    assert desk[1].nodes == (other,)
    assert was in desk[1].cause
    desk.bind(1, now=T + 2)
    assert (desk.state(1), desk[1].cause) == (ReservationState.BOUND, f"moved to {other}")


def test_a_node_that_fails_after_the_start_is_replaced_if_another_is_free() -> None:
    desk = Desk(UP)
    desk.ask(1, 10, 30)
    desk.bind(1)
    passed(desk, T + 10)
    [was] = desk[1].bound_nodes
    other = "n2" if was == "n1" else "n1"
    broken = NodeUsage((was,), 4, False)
    out = desk.report(T + 11, broken, held=desk.held())
    assert (desk.state(1), out.reservation_actions) == (ReservationState.ACTIVE, [])
    expected = f"{was} cannot be used, and no other node is free"
    assert (desk[1].cause, out.warnings) == (expected, [f"reservation 1 of ada: {expected}"])
    desk.ask(2, 15, 20, now=T + 11)
    assert 2 not in desk.book.by_id
    out = desk.report(T + 12, broken, NodeUsage((other,), 4, True), held=desk.held())
    assert (desk[1].nodes, out.reservation_actions) == ((other,), [Bind("alpha", 1)])
    desk.bind(1, now=T + 13)
    assert (desk.state(1), desk[1].cause) == (ReservationState.ACTIVE, f"moved to {other}")
    desk.ask(2, 15, 20, now=T + 13)
    assert 2 not in desk.book.by_id


def test_a_request_binds_no_reservation_that_needs_none_of_the_nodes_that_move() -> None:
    desk = Desk(UP)
    desk.ask(1, 10, 20)
    out = desk.ask(2, 30, 40)
    assert out.reservation_actions == [Bind("alpha", 2)]
    assert list(out.reservations) == [2]


def test_a_reservation_is_bound_again_after_another_that_still_has_its_node() -> None:
    """Reservation 1 is to leave n1 for n3, then for n3 and n4; 2 waits for n1, 3 for nothing."""
    desk = Desk(NodeUsage(("n1", "n2", "n3", "n4"), 4, True))
    desk.ask(1, 10, 20, size=2)
    desk.bind(1)
    assert desk[1].nodes == ("n1", "n2")
    up = NodeUsage(("n2", "n3", "n4"), 4, True)
    desk.report(T + 1, NodeUsage(("n1",), 4, False), up, held=desk.held())
    desk.report(T + 2, NodeUsage(("n1", "n2", "n3", "n4"), 4, True), held=desk.held())
    desk.ask(2, 10, 20, now=T + 2)
    desk.ask(3, 30, 40, now=T + 2)
    assert (set(desk[1].nodes), desk[2].nodes) == ({"n2", "n3"}, ("n1",))
    up = NodeUsage(("n1", "n3", "n4"), 4, True)
    out = desk.report(T + 3, NodeUsage(("n2",), 4, False), up, held=desk.held())
    assert set(desk[1].nodes) == {"n3", "n4"}
    assert out.reservation_actions == [Bind("alpha", 1), Bind("alpha", 2)]


def test_those_that_wait_for_a_waiting_reservation_are_bound_after_it() -> None:
    """Reservation 1 leaves n1, for which 2 waits, which is to leave n3, for which 3 waits."""
    desk = Desk(NodeUsage(("n1", "n2", "n3", "n4", "n5"), 4, True))
    desk.ask(1, 10, 20, size=2)
    desk.ask(2, 10, 20)
    desk.bind(1, 2)
    for now, failed in ((T + 1, "n1"), (T + 3, "n3")):
        desk.report(now, *some_down(failed, of=5), held=desk.held())
        desk.report(now + 1, *some_down(of=5), held=desk.held())
    desk.ask(3, 10, 20, now=T + 4)
    assert [desk[id].nodes for id in (1, 2, 3)] == [("n2", "n4"), ("n1",), ("n3",)]
    out = desk.report(T + 5, *some_down("n2", of=5), held=desk.held())
    assert out.reservation_actions == [Bind("alpha", id) for id in (1, 2, 3)]


def test_one_that_lacks_a_node_hinders_none_in_another_window() -> None:
    desk = Desk(UP)
    desk.ask(1, 10, 20, size=2)
    desk.bind(1)
    nodes = (NodeUsage(("n1",), 4, False), NodeUsage(("n2",), 4, True))
    desk.report(T + 1, *nodes, held=desk.held())
    assert "no other node is free" in desk[1].cause
    for id, start, granted in ((2, 15, False), (3, 1000, True), (4, 1005, False)):
        out = desk.ask(id, start, start + 10, now=T + 2)
        assert (id in desk.book.by_id) is granted
        assert 1 not in out.reservations
    assert desk[3].nodes == ("n2",)


def test_nodes_that_fail_are_replaced_by_one_assignment_for_all() -> None:
    """A rack may take nodes of hundreds of reservations: each is bound once in a survey."""
    names = tuple(f"n{number}" for number in range(6))
    desk = Desk(NodeUsage(names, 4, True))
    for id in range(1, 41):
        desk.ask(id, 10 * id, 10 * id + 8, size=4)
        desk.bind(id)
    down = sorted({desk[id].nodes[id % 2] for id in range(1, 41)} & set(names[:2]))
    up = tuple(name for name in names if name not in down)
    survey = (NodeUsage(tuple(down), 4, False), NodeUsage(up, 4, True))
    failed = [id for id in range(1, 41) if not set(desk[id].nodes).isdisjoint(down)]
    assert len(failed) > 20
    out = desk.report(T + 1, *survey, held=desk.held())
    expected = [Bind("alpha", id) for id in failed]
    assert sorted(out.reservation_actions, key=str) == sorted(expected, key=str)
    for id in failed:
        assert set(desk[id].nodes) <= set(up)
        lost = ", ".join(node for node in desk[id].bound_nodes if node in down)
        assert desk[id].cause == f"{lost} cannot be used"


@pytest.mark.parametrize("crowded", [1, 2])
def test_a_failed_node_is_replaced_though_another_window_has_no_spare(crowded: int) -> None:
    """The other window may be the earlier or the later."""
    desk = Desk(NodeUsage(("n1", "n2", "n3"), 4, True))
    for id in (1, 2):
        desk.ask(id, 100 * id, 100 * id + 10, size=3 if id == crowded else 2)
        desk.bind(id)
    lone = 3 - crowded
    down = desk[lone].nodes[0]
    up = tuple(node for node in ("n1", "n2", "n3") if node != down)
    survey = (NodeUsage((down,), 4, False), NodeUsage(up, 4, True))
    out = desk.report(T + 1, *survey, held=desk.held())
    assert out.reservation_actions == [Bind("alpha", lone)]
    assert (set(desk[lone].nodes), desk[lone].cause) == (set(up), f"{down} cannot be used")
    assert desk[crowded].nodes == desk[crowded].bound_nodes
    assert desk[crowded].cause == f"{down} cannot be used, and no other node is free"
    desk.bind(lone, now=T + 2)
    passed(desk, T + 100)
    passed(desk, T + 200)
    states = {lone: ReservationState.ACTIVE, crowded: ReservationState.BROKEN}
    if lone == 1:
        states[lone] = ReservationState.ENDED
    assert {id: desk.state(id) for id in (1, 2)} == states


def test_too_few_spare_nodes_go_to_the_reservation_that_starts_first() -> None:
    desk = Desk(NodeUsage(("n1", "n2", "n3", "n4"), 4, True))
    desk.ask(1, 200, 500, size=2)
    desk.ask(2, 100, 400, size=1)
    desk.bind(1, 2)
    down = (desk[1].nodes[0], *desk[2].nodes)
    [spare] = {"n1", "n2", "n3", "n4"} - {*desk[1].nodes, *desk[2].nodes}
    up = (desk[1].nodes[1], spare)
    kept = desk[1].nodes
    nodes = (NodeUsage(down, 4, False), NodeUsage(up, 4, True))
    out = desk.report(T + 1, *nodes, held=desk.held())
    assert out.reservation_actions == [Bind("alpha", 2)]
    assert (desk[2].nodes, desk[1].nodes) == ((spare,), kept)


@pytest.mark.parametrize("checks", [5, 6])
def test_others_of_its_window_make_room_though_another_window_has_no_spare(
    checks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reservation 3 lacks a node in its window; 4 gets a node only if 5 or 6 moves.

    These three are sought on two nodes, if that is not too many checks.
    """
    monkeypatch.setattr("metasched.carts.assigned_nodes.MAX_CHECKS", checks)
    desk = Desk(NodeUsage(("n1", "n2", "n3"), 4, True))
    desk.ask(3, 1000, 1010, size=3)
    desk.bind(3)
    for id, start, end, node in ((4, 0, 30, "n1"), (5, 0, 10, "n2"), (6, 20, 30, "n3")):
        desk.ask(id, 100 + start, 100 + end)
        desk.step(ReservationBound(T, id, (node,)))
    for id in (4, 5, 6):
        desk.step(ReservationRejected(T, id, "it stays where it is"))
        assert desk[id].nodes == desk[id].bound_nodes
    nodes = (NodeUsage(("n1",), 4, False), NodeUsage(("n2", "n3"), 4, True))
    desk.report(T + 1, *nodes, held=desk.held())
    assert "no other node is free" in desk[3].cause
    if checks == 5:
        assert "no other node is free" in desk[4].cause
        assert all(desk[id].nodes == desk[id].bound_nodes for id in (4, 5, 6))
        return
    assert desk[4].cause == "n1 cannot be used"
    [node] = desk[4].nodes
    [other] = {"n2", "n3"} - {node}
    assert desk[5].nodes == desk[6].nodes == (other,)
    moved = 6 if node == "n3" else 5
    assert desk[moved].cause == "nodes of its cluster cannot be used"


def test_an_active_reservation_keeps_its_usable_nodes_when_others_make_room() -> None:
    """Jobs run there. Its failed node is replaced though another window has no spare."""
    desk = Desk(NodeUsage(("n1", "n2", "n3"), 4, True))
    desk.ask(1, 10, 100, size=2)
    desk.ask(2, 200, 300, size=3)
    desk.bind(1, 2)
    passed(desk, T + 10)
    down, usable = desk[1].bound_nodes
    [spare] = {"n1", "n2", "n3"} - {down, usable}
    nodes = (NodeUsage((down,), 4, False), NodeUsage(tuple(sorted((usable, spare))), 4, True))
    out = desk.report(T + 11, *nodes, held=desk.held())
    assert out.reservation_actions == [Bind("alpha", 1)]
    assert (desk.state(1), set(desk[1].nodes)) == (ReservationState.ACTIVE, {usable, spare})
    assert desk[2].nodes == desk[2].bound_nodes


@pytest.mark.parametrize("first", [1, 2])
def test_two_active_reservations_get_no_node_twice(first: int) -> None:
    """The spare node goes to the reservation that started first."""
    desk = Desk(NodeUsage(("n1", "n2", "n3"), 4, True))
    second = 3 - first
    desk.ask(1, 9 + first, 100)
    desk.ask(2, 9 + second, 100)
    desk.bind(1, 2)
    passed(desk, T + 11)
    down = (*desk[1].nodes, *desk[2].nodes)
    [spare] = {"n1", "n2", "n3"} - set(down)
    nodes = (NodeUsage(down, 4, False), NodeUsage((spare,), 4, True))
    out = desk.report(T + 12, *nodes, held=desk.held())
    assert out.reservation_actions == [Bind("alpha", first)]
    assert (desk[first].nodes, desk[second].nodes) == ((spare,), desk[second].bound_nodes)


def some_down(*down: str, of: int) -> tuple[NodeUsage, NodeUsage]:
    """Return the nodes n1, n2, ... of a cluster, some of which are down."""
    up = (node for number in range(1, of + 1) if (node := f"n{number}") not in down)
    return NodeUsage(down, 4, False), NodeUsage(tuple(up), 4, True)


def test_an_active_reservation_awaits_no_node_that_another_has_got() -> None:
    """While the manager is to give n2 to 1, it gives n2 to 2, of which another node fails, too."""
    desk = Desk(NodeUsage(("n1", "n2", "n3", "n4"), 4, True))
    desk.ask(1, 10, 100)
    desk.bind(1)
    passed(desk, T + 10)
    desk.report(T + 11, *some_down("n1", of=4), held=desk.held())
    desk.ask(2, 30, 40, size=2, now=T + 12)
    desk.bind(2, now=T + 12)
    assert (desk[1].nodes, desk[2].bound_nodes) == (("n2",), ("n2", "n3"))
    out = desk.report(T + 13, *some_down("n1", "n3", of=4), held=desk.held())
    assert out.reservation_actions == [Bind("alpha", 1)]
    assert (desk[1].nodes, desk[2].nodes) == (("n4",), ("n2", "n3"))


def test_a_failed_node_is_replaced_by_no_node_that_two_others_have() -> None:
    """Reservation 1 is to leave n1, which 2 gets. Its manager refuses, so both have it."""
    desk = Desk(NodeUsage(("n1", "n2", "n3", "n4"), 4, True))
    desk.ask(1, 10, 20)
    desk.ask(3, 10, 20)
    desk.bind(1, 3)
    desk.report(T + 1, *some_down("n1", of=4), held=desk.held())
    desk.report(T + 2, *some_down(of=4), held=desk.held())
    desk.ask(2, 10, 20, now=T + 2)
    desk.step(ReservationRejected(T + 3, 1, "it stays where it is"))
    assert [desk[id].nodes for id in (1, 2, 3)] == [("n1",), ("n1",), ("n2",)]
    desk.report(T + 4, *some_down("n2", of=4), held=desk.held())
    assert [desk[id].nodes for id in (1, 2, 3)] == [("n1",), ("n1",), ("n3",)]


def test_a_reservation_that_is_not_bound_yet_gets_another_node_as_well() -> None:
    desk = Desk(UP)
    desk.ask(1, 10, 20)
    desk.bind(1)
    desk.ask(2, 30, 40)
    assert desk[1].nodes == desk[2].nodes == ("n1",)
    out = desk.report(T + 1, *some_down("n1", of=2), held=desk.held())
    assert desk[1].nodes == desk[2].nodes == ("n2",)
    assert out.reservation_actions == [Bind("alpha", 1), Bind("alpha", 2)]


def test_a_rejected_reservation_breaks_by_no_other_that_lacks_nodes() -> None:
    desk = Desk(NodeUsage(("n1", "n2"), 4, True))
    desk.ask(1, 100, 110, size=2)
    desk.bind(1)
    desk.ask(2, 10, 20)
    nodes = (NodeUsage(("n1",), 4, False), NodeUsage(("n2",), 4, True))
    desk.report(T + 1, *nodes, held=desk.held())
    assert "no other node is free" in desk[1].cause
    desk.step(ReservationRejected(T + 2, 2, "no"))
    out = desk.report(T + 3, *nodes, held=desk.held())
    assert desk.state(2) is ReservationState.REQUESTED
    assert (desk[2].nodes, out.reservation_actions) == (("n2",), [Bind("alpha", 2)])


@pytest.mark.parametrize("fails", [False, True])
def test_a_rejected_reservation_that_is_bound_before_the_survey_stays(fails: bool) -> None:
    """Request 3 lets 2 move to n1, and has 1 bound there again after its rejection."""
    desk = Desk(UP)
    desk.ask(1, 100, 110)
    desk.ask(2, 120, 130)
    desk.step(ReservationBound(T, 2, ("n2",)))
    desk.step(ReservationRejected(T, 2, "it stays where it is"))
    desk.step(ReservationRejected(T, 1, "no"))
    assert Bind("alpha", 1) in desk.ask(3, 105, 125).reservation_actions
    desk.bind(1, 2, 3)
    nodes = {id: desk[id].nodes for id in (1, 2, 3)}
    assert nodes == {1: ("n1",), 2: ("n1",), 3: ("n2",)}
    n1, n2 = NodeUsage(("n1",), 4, not fails), NodeUsage(("n2",), 4, True)
    out = desk.report(T + 1, n1, n2, held=desk.held())
    assert out.reservation_actions == []
    assert {id: desk[id].nodes for id in (1, 2, 3)} == nodes
    assert {desk.state(id) for id in (1, 2, 3)} == {ReservationState.BOUND}
    assert desk[1].cause.endswith("no other node is free") == fails


def test_that_no_node_is_left_is_found_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(NodeUsage(("n1", "n2", "n3"), 4, True))
    for id in range(1, 31):
        desk.ask(id, 10 * id, 10 * id + 8, size=3)
        desk.bind(id)
    assignments: list[AssignedNodes] = []
    replace_lost = AssignedNodes.replace_lost

    def counted(nodes: AssignedNodes, *details: Any) -> Any:
        assignments.append(nodes)
        return replace_lost(nodes, *details)

    monkeypatch.setattr(AssignedNodes, "replace_lost", counted)
    nodes = (NodeUsage(("n1",), 4, False), NodeUsage(("n2", "n3"), 4, True))
    out = desk.report(T + 1, *nodes, held=desk.held())
    assert (len(assignments), len(out.warnings)) == (1, 30)
    assert {desk[id].cause for id in range(1, 31)} == {
        "n1 cannot be used, and no other node is free"
    }


def test_while_its_jobs_may_go_on_its_nodes_are_promised_to_no_other() -> None:
    desk = Desk(NodeUsage(("n1",), 4, True))
    assert desk.ask(1, 10, 20, let_run=5).reservations[1].end == T + 20
    assert desk.ask(2, 24, 30).reservations == {}
    assert desk.ask(2, 5, 9, let_run=2).reservations == {}
    event = desk.asked(2, 24, 30)
    [offer] = desk.book.offer_finder.alternatives(event)["alpha"]
    assert offer == Offer(T + 25, T + 31, 1)
    desk.bind(1)
    for id, start, end, granted in ((2, 24, 30, False), (3, 25, 30, True)):
        assert (id in desk.ask(id, start, end).reservations) == granted
    passed(desk, T + 12)
    assert desk.ask(4, 24, 25, now=T + 12).reservations == {}


def test_one_without_its_nodes_at_its_start_is_broken_and_another_window_offered() -> None:
    desk = Desk(UP)
    desk.ask(1, 10, 20, size=2)
    desk.bind(1)
    nodes = (NodeUsage(("n1",), 4, False), NodeUsage(("n2",), 4, True))
    desk.report(T + 1, *nodes, held=desk.held())
    assert desk.state(1) is ReservationState.BOUND
    assert "n1 cannot be used" in desk[1].cause
    out = passed(desk, T + 10)
    assert desk.state(1) is ReservationState.BROKEN
    assert desk[1].offers == ()  # only one node is usable
    assert out.warnings == [
        "reservation 1 of ada is broken: n1 cannot be used, and no other node is free"
    ]
    assert out.reservation_actions == [Unbind("alpha", 1)]


def test_a_node_that_comes_back_before_the_start_breaks_nothing() -> None:
    desk = Desk(UP)
    desk.ask(1, 10, 20, size=2)
    desk.bind(1)
    nodes = (NodeUsage(("n1",), 4, False), NodeUsage(("n2",), 4, True))
    desk.report(T + 1, *nodes, held=desk.held())
    assert desk.book.needs_nodes_on("alpha")  # any survey may report another node
    desk.report(T + 2, UP, held=desk.held())
    assert not desk.book.needs_nodes_on("alpha")
    assert desk[1].cause == "its nodes can be used again"
    passed(desk, T + 10)
    assert desk.state(1) is ReservationState.ACTIVE


def test_what_its_manager_lost_is_bound_again() -> None:
    desk = Desk(UP)
    desk.ask(1, 10, 20)
    desk.bind(1)
    out = desk.report(T + 1, UP)
    assert (desk.state(1), out.reservation_actions) == (
        ReservationState.CONFIRMED,
        [Bind("alpha", 1)],
    )
    desk.bind(1)
    assert desk.state(1) is ReservationState.BOUND


def test_an_unknown_reservation_of_the_instance_is_deleted() -> None:
    desk = Desk(UP)
    lost = ManagerReservation(manager_name("i", 9), T, T + 5, ("n1",))
    foreign = ManagerReservation(manager_name("j", 9), T, T + 5, ("n1",))
    assert desk.report(T, UP, held=(lost, foreign)).reservation_actions == [Unbind("alpha", 9)]
    assert desk.step(ReservationReleased(T, 9)).reservations == {}


def test_a_deletion_that_its_manager_forgot_is_repeated() -> None:
    desk = Desk(UP)
    desk.ask(1, 10, 20)
    desk.bind(1)
    held = desk.held()
    desk.step(ReservationCancelled(T, 1, "ada"))
    assert desk.state(1) is ReservationState.CANCELLED
    assert desk.step(ReservationCancelled(T, 1, "ada")).reservation_actions == []
    desk.step(ReservationReleased(T, 1))
    assert desk.report(T + 1, UP, held=held).reservation_actions == [Unbind("alpha", 1)]


def test_a_refusal_is_looked_into_and_other_nodes_are_tried() -> None:
    desk = Desk(UP)
    desk.ask(1, 10, 20)
    first = desk[1].nodes[0]
    out = desk.step(ReservationRejected(T, 1, "Requested nodes are busy"))
    assert out.reservation_actions == [SurveyCluster("alpha")]
    other = "n2" if first == "n1" else "n1"
    busy = NodeUsage((first,), 4, True, ((T, T + 50),))
    out = desk.report(T, busy, NodeUsage((other,), 4, True))
    assert out.reservation_actions == [Bind("alpha", 1)]
    assert desk[1].nodes == (other,)
    for _ in range(MAX_REJECTIONS - 1):
        desk.step(ReservationRejected(T, 1, "no"))
    assert (desk.state(1), desk[1].cause) == (ReservationState.BROKEN, "its manager refused: no")


def test_one_that_was_not_bound_by_its_start_is_broken() -> None:
    desk = Desk(UP)
    desk.ask(1, 30, 40)
    passed(desk, T + 29)
    assert desk.state(1) is ReservationState.REQUESTED
    passed(desk, T + 30)
    assert desk.state(1) is ReservationState.BROKEN


def test_one_that_begins_at_once_may_be_bound_a_little_later() -> None:
    desk = Desk(UP)
    desk.ask(1, 1, 100)
    desk.ask(2, 1, 100)
    passed(desk, T + 19)
    desk.bind(1, now=T + 19)
    passed(desk, T + 20)
    assert (desk.state(1), desk.state(2)) == (ReservationState.ACTIVE, ReservationState.BROKEN)
    desk.ask(3, 1, 10)
    passed(desk, T + 10)
    assert desk.state(3) is ReservationState.BROKEN


def test_a_broken_one_is_offered_the_next_window_that_is_free() -> None:
    desk = Desk(NodeUsage(("n1",), 4, True, ((T + 300, T + 305),)))
    desk.ask(1, 290, 299)
    for _ in range(MAX_REJECTIONS):
        desk.step(ReservationRejected(T + 100, 1, "no"))
    assert desk[1].offers == (Offer(T + 290, T + 299, 1),)
    desk.ask(2, 200, 295)
    passed(desk, T + 200)  # the manager never confirmed it
    assert desk.state(2) is ReservationState.BROKEN
    assert [offer.start - T for offer in desk[2].offers] == [200]


def test_after_a_restart_each_manager_is_sent_its_unconfirmed_requests() -> None:
    desk = Desk(UP)
    for id in (1, 2, 3):
        desk.ask(id, 10 * id, 10 * id + 10)
    desk.bind(1, 2)
    desk.step(ReservationCancelled(T, 2, "ada"))
    again, out = ReservationBook(LicenceQueue()), Outcome()
    again.restore(desk.book.by_id.values())
    again.start("i", Policy(), [ALPHA], out)
    assert out.reservation_actions == [Unbind("alpha", 2), Bind("alpha", 3)]
    assert again.next_due == T + 10


def pooled(
    *pools: ProcessorPool, held: tuple[ManagerReservation, ...] = (), now: float = T
) -> SurveyReceived:
    return SurveyReceived(now, "alpha", Survey(now, (), held, pools))


def ask_processors(desk: Desk, id: int, size: int, by_node: bool = False) -> Outcome:
    request = ReservationRequest.fixed(size, T + 10, T + 20)
    return desk.step(ReservationRequested(T, id, "ada", request, by_node, ("alpha",), T + 100))


def test_processors_are_promised_where_one_pool_has_them_and_its_manager_chooses() -> None:
    desk = Desk()
    desk.step(
        pooled(
            ProcessorPool(("a",), 4, ((T, T + 15, 1),)), ProcessorPool(("b",), 4, ((T, T + 12, 2),))
        )
    )
    assert ask_processors(desk, 1, 4).reservations == {}  # five are free, but not on one host
    assert ask_processors(desk, 1, 1, by_node=True).reservations == {}
    out = ask_processors(desk, 1, 3)
    assert out.reservation_actions == [Bind("alpha", 1)]
    assert (desk[1].size, desk[1].cpus, desk[1].nodes) == (3, 3, ())
    assert ask_processors(desk, 2, 2).reservations == {}  # the pool of reservation 1 is not known
    desk.bind(1)
    held = (ManagerReservation(manager_name("i", 1), T + 10, T + 20, ("a",)),)
    full = ProcessorPool(("a",), 4, ((T, T + 15, 1), (T + 10, T + 20, 3)))
    desk.step(pooled(full, ProcessorPool(("b",), 4, ((T, T + 12, 2),)), held=held))
    assert desk.state(1) is ReservationState.BOUND
    assert ask_processors(desk, 2, 2).reservation_actions == [Bind("alpha", 2)]
    assert desk.book.availability.largest_capacity(["alpha"], by_node=False) == (4, "alpha")


def test_what_the_manager_of_a_pool_refuses_is_tried_again_as_nodes_are() -> None:
    desk = Desk()
    whole = pooled(ProcessorPool(("a", "b"), 8))
    desk.step(whole)
    ask_processors(desk, 1, 8)
    for _ in range(MAX_REJECTIONS - 1):
        out = desk.step(ReservationRejected(T, 1, "no suitable queues"))
        assert (desk.state(1), out.reservation_actions) == (
            ReservationState.REQUESTED,
            [SurveyCluster("alpha")],
        )
        assert desk.step(whole).reservation_actions == [Bind("alpha", 1)]
    desk.step(ReservationRejected(T, 1, "no suitable queues"))
    assert desk.state(1) is ReservationState.BROKEN
    assert desk[1].offers == (Offer(T + 10, T + 20, 8),)
    desk.book.handle(ReservationReleased(T, 1), Outcome())

    ask_processors(desk, 2, 8)
    desk.step(ReservationRejected(T, 2, "no suitable queues"))
    desk.step(whole)
    desk.bind(2)
    assert (desk.state(2), desk[2].rejections) == (ReservationState.BOUND, 0)


def test_what_was_promised_and_is_lost_is_asked_for_a_minute_long() -> None:
    """A restarted controller refuses every reservation until its nodes have registered."""
    desk = Desk()
    whole = pooled(ProcessorPool(("a", "b"), 8))
    desk.step(whole)
    ask_processors(desk, 1, 8)
    desk.bind(1)
    assert desk.step(whole).reservation_actions == [Bind("alpha", 1)]  # the manager has lost it
    for n in range(1, MAX_REJECTIONS_CONFIRMED):
        out = desk.step(ReservationRejected(T, 1, "Requested nodes are busy"))
        assert desk.state(1) is ReservationState.CONFIRMED
        assert out.reservation_actions == ([SurveyCluster("alpha")] if n < MAX_REJECTIONS else [])
        assert desk.book.needs_nodes_on("alpha")  # even an unchanged survey is evaluated
        assert desk.step(whole).reservation_actions == [Bind("alpha", 1)]
    desk.step(ReservationRejected(T, 1, "Requested nodes are busy"))
    assert desk.state(1) is ReservationState.BROKEN


def test_a_pool_of_cores_with_two_processors_rounds_up_to_cores() -> None:
    desk = Desk()
    desk.step(pooled(ProcessorPool(("a", "b"), 8, cpus=2)))
    assert desk.book.availability.largest_capacity(["alpha"], by_node=False) == (16, "alpha")
    ask_processors(desk, 1, 5)
    assert (desk[1].size, desk[1].cpus) == (3, 6)
    assert ask_processors(desk, 2, 11).reservations == {}
    ask_processors(desk, 3, 10)
    assert (desk[3].size, desk[3].cpus) == (5, 10)


def test_a_reservation_that_an_admin_made_smaller_is_requested_again() -> None:
    desk = Desk()
    pool = ProcessorPool(("a",), 4)
    desk.step(pooled(pool))
    ask_processors(desk, 1, 3)
    desk.bind(1)
    for size, expected in ((2, [Bind("alpha", 1)]), (3, []), (None, [])):
        held = ManagerReservation(manager_name("i", 1), T + 10, T + 20, ("a",), size)
        assert desk.step(pooled(pool, held=(held,))).reservation_actions == expected
        assert desk.state(1) is ReservationState.BOUND


def test_one_of_a_pool_whose_host_is_down_is_asked_for_again_and_breaks_at_its_start() -> None:
    desk = Desk()
    desk.step(pooled(ProcessorPool(("a",), 4), ProcessorPool(("b",), 4)))
    for id in (1, 2):
        ask_processors(desk, id, 4)
    held = ManagerReservation(manager_name("i", 1), T + 10, T + 20, ("a",))
    desk.bind(1)
    out = desk.step(pooled(ProcessorPool(("b",), 4), held=(held,)))
    assert out.reservation_actions == [Bind("alpha", 1)]
    desk.step(ReservationRejected(T, 1, "no suitable queues"))
    assert (desk.state(1), desk[1].cause) == (
        ReservationState.BOUND,
        "a cannot be used, and no other node is free",
    )
    desk.step(pooled(ProcessorPool(("a",), 4), ProcessorPool(("b",), 4), held=(held,)))
    assert desk[1].cause == "its nodes can be used again"
    desk.step(pooled(ProcessorPool(("b",), 4), held=(held,)))
    passed(desk, T + 10)
    assert desk.state(1) is ReservationState.BROKEN


@pytest.mark.parametrize(("reserve", "chosen"), [("earliest", "beta"), ("first", "alpha")])
def test_which_cluster_has_a_reservation(
    reserve: Literal["earliest", "first"], chosen: str
) -> None:
    """Alpha has larger nodes and is free later; unrequested processors are no reason to wait."""
    book, out = ReservationBook(LicenceQueue()), Outcome()
    clusters = [ALPHA, structs.replace(ALPHA, name="beta")]
    book.start("i", Policy(reserve=reserve), clusters, out)
    book.handle(
        SurveyReceived(T, "alpha", Survey(T, (NodeUsage(("a",), 16, True, ((T, T + 30),)),))), out
    )
    book.handle(SurveyReceived(T, "beta", Survey(T, (), (), (ProcessorPool(("b",), 8),))), out)
    event = ReservationRequested(
        time=T,
        id=1,
        user="ada",
        request=ReservationRequest.flexible(8, 10, T + 10, T + 100),
        by_node=False,
        clusters=("alpha", "beta"),
        horizon=T + 100,
    )
    assert list(book.offer_finder.offers(event)) == ["beta", "alpha"]
    book.handle(event, out)
    assert book.by_id[1].cluster == chosen


def test_time_passes_at_the_same_cost_beside_many_reservations() -> None:
    """Count the lines run while nothing is due, and while a window begins."""

    def bound(id: int) -> Reservation:
        return Reservation(
            id=id,
            user="ada",
            cluster="alpha",
            start=T + 1000 * id,
            end=T + 1000 * id + 10,
            size=1,
            cpus=4,
            created=T,
            nodes=("n1",),
            bound_nodes=("n1",),
            state=ReservationState.BOUND,
        )

    def lines_with(far: int) -> tuple[int, int]:
        desk = Desk(UP)
        desk.book.restore(map(bound, range(1, far + 1)))
        desk.book.start("i", Policy(), [ALPHA], Outcome())
        return lines_of(desk, T + 1), lines_of(desk, T + 1000)

    def lines_of(desk: Desk, now: float) -> int:
        counted = 0

        def count(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal counted
            counted += event == "line"
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            desk.book.advance_time(now, out := Outcome())
            expired = desk.book.collect_expired(now)
            due, held = desk.book.next_due, desk.book.has_reservations_on("alpha")
        finally:
            sys.settrace(before)
        assert (expired, held) == ([], True)
        assert list(out.reservations) == ([1] if now == T + 1000 else [])
        assert due == (T + 1010 if out.reservations else T + 1000)
        return counted

    assert lines_with(400) == lines_with(4)
