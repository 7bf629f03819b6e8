"""The order in which a manager is asked to bind reservations, compared with looking at all pairs.

A reservation is bound after those that still have its nodes, unless these wait for it as well.
None that lacks its nodes at the manager is forgotten.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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
    Unbind,
)
from metasched.model.reservation import OPEN_STATES, Reservation, ReservationState
from metasched.model.reservation_request import ReservationRequest
from metasched.policies.policy import Policy
from tests.harness.examples import examples
from tests.harness.reserved_nodes import CLUSTER, INSTANCE, NODES, survey


class QueueOfBinds(RuleBasedStateMachine):
    """A book, and the queue of actions of its daemon; the manager answers later."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.newest = 1000.0, 0
        self.queue: dict[int, Bind | Unbind] = {}
        self.rejected: set[int] = set()  # they wait for a survey
        self.book = ReservationBook(LicenceQueue())
        self.book.start(INSTANCE, Policy(), [CLUSTER], Outcome())

    @initialize()
    def begin(self) -> None:
        self.survey(frozenset())

    def step(self, event: ReservationEvent) -> None:
        out = Outcome()
        self.book.advance_time(self.now, out)
        self.book.handle(event, out)
        for action in out.reservation_actions:
            if not isinstance(action, SurveyCluster):
                self.queue.pop(action.id, None)
                self.queue[action.id] = action

    @rule(start=st.integers(0, 12), length=st.integers(1, 8), size=st.integers(1, 3))
    def request(self, start: int, length: int, size: int) -> None:
        self.newest += 1
        window = (self.now + 30 + start, self.now + 30 + start + length)
        request = ReservationRequest.fixed(size, *window)
        self.step(
            ReservationRequested(
                self.now, self.newest, "ada", request, True, ("alpha",), self.now + 1e4
            )
        )

    @rule(down=st.frozensets(st.sampled_from(NODES), max_size=2), seconds=st.integers(0, 3))
    def survey(self, down: frozenset[str], seconds: int = 0) -> None:
        self.now += seconds
        self.rejected.clear()
        self.step(survey(self.now, down, self.book.by_id.values()))

    @precondition(lambda self: self.queue)
    @rule(refuses=st.booleans())
    def answer(self, refuses: bool) -> None:
        """Answer the first action; refuse nodes that another reservation has."""
        id = next(iter(self.queue))
        action = self.queue.pop(id)
        reservation = self.book.by_id.get(id)
        if isinstance(action, Unbind):
            self.step(ReservationReleased(self.now, id))
        elif reservation is not None and reservation.state in OPEN_STATES:
            if refuses or any(self.needs(reservation, other) for other in self.book.by_id.values()):
                if reservation.state is ReservationState.REQUESTED:
                    self.rejected.add(id)
                self.step(ReservationRejected(self.now, id, "no"))
            else:
                self.step(ReservationBound(self.now, id, reservation.nodes))

    @precondition(lambda self: self.book.by_id)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.book.by_id)))
        self.step(ReservationCancelled(self.now, id, "ada"))

    @staticmethod
    def needs(reservation: Reservation, other: Reservation) -> bool:
        return (
            reservation.id != other.id
            and reservation.start < other.until
            and other.start < reservation.until
            and not set(reservation.nodes).isdisjoint(other.bound_nodes)
        )

    def binds(self) -> list[Reservation]:
        """Return the open reservations that are to be bound, in the order of the queue."""
        return [
            self.book.by_id[id]
            for id, action in self.queue.items()
            if isinstance(action, Bind)
            and id in self.book.by_id
            and self.book.by_id[id].state in OPEN_STATES
        ]

    @invariant()
    def each_is_bound_after_those_that_have_its_nodes(self) -> None:
        binds = self.binds()
        for position, reservation in enumerate(binds):
            for other in binds[position + 1 :]:
                if self.needs(reservation, other):
                    assert reservation in self.awaited_by(other, binds)

    def awaited_by(self, reservation: Reservation, binds: list[Reservation]) -> list[Reservation]:
        """Return the reservations that must be bound before one, also by way of others."""
        awaited = [reservation]
        for waiting in awaited:
            awaited += [r for r in binds if self.needs(waiting, r) and r not in awaited]
        return awaited

    @invariant()
    def none_is_forgotten(self) -> None:
        bound = {reservation.id for reservation in self.binds()}
        for reservation in self.book.by_id.values():
            is_confirmed = set(reservation.nodes) == set(reservation.bound_nodes)
            if reservation.state in OPEN_STATES and not is_confirmed:
                assert reservation.id in bound | self.rejected


TestQueueOfBinds = QueueOfBinds.TestCase
TestQueueOfBinds.settings = examples(150, steps=40)
