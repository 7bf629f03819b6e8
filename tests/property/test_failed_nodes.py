"""Failed nodes of reservations, compared with trying every node.

A survey replaces them wherever nodes are free beside those of the others. None has a node that
another has at the time, and a reservation whose nodes are all well stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from metasched.core.events import Outcome
from metasched.core.licences.queue import LicenceQueue
from metasched.core.reservations.book import ReservationBook
from metasched.core.reservations.events import (
    Bind,
    ReservationBound,
    ReservationEvent,
    ReservationRequested,
)
from metasched.model.reservation import BOUND_STATES, Reservation, ReservationState
from metasched.model.reservation_request import ReservationRequest
from metasched.model.survey import Span
from metasched.policies.policy import Policy
from tests.harness.examples import examples
from tests.harness.reserved_nodes import CLUSTER, INSTANCE, NODES, survey

JOBS = st.dictionaries(st.sampled_from(NODES), st.integers(1, 12), max_size=2)  # until when
T = 1000.0


class Manager:
    """A book with one cluster, whose manager does what it is asked to."""

    def __init__(self, jobs: dict[str, int]) -> None:
        self.now, self.jobs = T, jobs
        self.book = ReservationBook(LicenceQueue())
        self.book.start(INSTANCE, Policy(), [CLUSTER], Outcome())
        self.survey(frozenset())

    def step(self, event: ReservationEvent) -> Outcome:
        out = Outcome()
        self.book.advance_time(self.now, out)
        self.book.handle(event, out)
        return out

    def request(self, id: int, window: Span, size: int) -> Outcome:
        start, end = window
        request = ReservationRequest.fixed(size, T + start, T + end)
        return self.step(
            ReservationRequested(self.now, id, "ada", request, True, ("alpha",), T + 1e4)
        )

    def bind(self, out: Outcome) -> None:
        for action in dict.fromkeys(out.reservation_actions):
            if isinstance(action, Bind):
                nodes = self.book.by_id[action.id].nodes
                self.step(ReservationBound(self.now, action.id, nodes))

    def survey(self, down: frozenset[str]) -> Outcome:
        jobs = {node: self.job_spans(node) for node in NODES}
        return self.step(survey(self.now, down, self.open_reservations(), jobs))

    def job_spans(self, node: str) -> tuple[Span, ...]:
        return ((T, T + self.jobs[node]),) if node in self.jobs else ()

    def open_reservations(self) -> list[Reservation]:
        return self.book.availability.open_on("alpha")


def overlap(first: Reservation, second: Reservation) -> bool:
    return first.start < second.end and second.start < first.end


def connected(reservation: Reservation, others: Iterable[Reservation]) -> list[Reservation]:
    """Return the reservations whose windows join that of a reservation, perhaps by others."""
    remaining, joined = list(others), [reservation]
    for member in joined:
        near = [r for r in remaining if r.start <= member.end and member.start <= r.end]
        joined += near
        remaining = [r for r in remaining if r not in near]
    return joined


@examples(300)
@given(JOBS, st.data())
def test_every_failed_node_is_replaced_for_which_there_is_another(
    jobs: dict[str, int], data: st.DataObject
) -> None:
    manager = Manager(jobs)
    for id in range(1, data.draw(st.integers(1, 6)) + 1):
        start, length = data.draw(st.integers(0, 20)), data.draw(st.integers(1, 8))
        size = data.draw(st.integers(1, len(NODES)))
        out = manager.request(id, (start, start + length), size)
        if data.draw(st.booleans()):
            manager.bind(out)
    for _ in range(data.draw(st.integers(1, 3))):
        manager.now += data.draw(st.integers(0, 4))
        manager.book.advance_time(manager.now, Outcome())
        before = {r.id: r for r in manager.open_reservations()}
        down = data.draw(st.frozensets(st.sampled_from(NODES), max_size=3))
        out = manager.survey(down)
        check(manager, before, down)
        manager.bind(out)


def check(manager: Manager, before: dict[int, Reservation], down: frozenset[str]) -> None:
    reservations = manager.open_reservations()
    assert [r.id for r in reservations] == list(before)
    for first, second in combinations(reservations, 2):
        assert not (overlap(first, second) and set(first.nodes) & set(second.nodes))
    for reservation in reservations:
        assert len(set(reservation.nodes)) == reservation.size
        was = before[reservation.id]
        own = set(was.nodes)
        lacks = bool(down & set(reservation.nodes))
        if lacks:
            assert reservation.nodes == was.nodes
        if lacks and reservation.state in BOUND_STATES:
            assert free_nodes(manager, reservation, reservations, down) < reservation.size
        elif not down & own and own != set(reservation.nodes):
            assert reservation.state is not ReservationState.ACTIVE
            members = connected(reservation, [r for r in reservations if r != reservation])
            assert not any(down & set(member.nodes) for member in members)
            failed = [before[r.id] for r in members if down & set(before[r.id].nodes)]
            assert failed
            if len(failed) == 1:  # it had no room
                assert free_nodes(manager, failed[0], before.values(), down) < failed[0].size
        if reservation.state is ReservationState.ACTIVE:
            assert set(was.bound_nodes) - down <= set(reservation.nodes)


def free_nodes(
    manager: Manager,
    reservation: Reservation,
    reservations: Iterable[Reservation],
    down: frozenset[str],
) -> int:
    """Return how many nodes a reservation could have while all others have theirs."""
    others = [r for r in reservations if r.id != reservation.id and overlap(reservation, r)]
    taken = {node for other in others for node in other.nodes}
    begins = max(reservation.start, manager.now)
    free = [
        node
        for node in NODES
        if node not in down | taken
        and not (node not in reservation.bound_nodes and job_remains(manager, node, begins))
    ]
    return len(free)


def job_remains(manager: Manager, node: str, moment: float) -> bool:
    """Return whether a job that is in no reservation has a node at a time."""
    windows = [r for r in manager.open_reservations() if node in r.bound_nodes]
    return any(
        moment < end and not any(r.start <= moment < r.end for r in windows)
        for _, end in manager.job_spans(node)
    )
