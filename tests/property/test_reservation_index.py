"""Indexes of reservations, compared with looking at each reservation."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from metasched.core.events import Outcome
from metasched.core.licences.queue import LicenceQueue
from metasched.core.reservations.book import ReservationBook
from metasched.core.reservations.events import (
    ReservationBound,
    ReservationCancelled,
    ReservationEvent,
    ReservationRejected,
    ReservationReleased,
    ReservationRequested,
    SurveyReceived,
)
from metasched.core.reservations.index import DueTimes
from metasched.core.reservations.timer import BIND_TIMEOUT
from metasched.model.cluster import Cluster
from metasched.model.reservation import (
    FINAL_STATES,
    OPEN_STATES,
    Reservation,
    ReservationState,
    manager_name,
)
from metasched.model.reservation_request import ReservationRequest
from metasched.model.survey import ManagerReservation, NodeUsage, Survey
from metasched.policies.policy import Policy
from tests.harness.examples import examples

CLUSTERS = (
    Cluster(name="early", adapter="slurm", supports_reservations=True),
    Cluster(name="late", adapter="slurm", supports_reservations=True, binds_late=True, lead=30.0),
)
NODES = tuple(f"n{number}" for number in range(1, 5))
NAMES = st.sampled_from([cluster.name for cluster in CLUSTERS])


@examples(200)
@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 9)), max_size=200))
def test_the_first_due_time_is_the_least(changes: list[tuple[int, int | None]]) -> None:
    due, times = DueTimes(), dict[int, float]()
    for id, time in changes:
        if time is None:
            due.discard(id)
            times.pop(id, None)
        else:
            due.set(id, time)
            times[id] = time
        assert due.first == min(times.values(), default=None)
        now = float(len(times))
        assert due.ids_until(now) == sorted(id for id in times if times[id] <= now)
        assert due.first == min(times.values(), default=None)


class IndexedBook(RuleBasedStateMachine):
    """A book under random events. What it does next is found by a walk over all reservations."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.newest = 1000.0, 0
        self.book = ReservationBook(LicenceQueue())
        self.book.start("i", Policy(), CLUSTERS, Outcome())
        self.surveys_due: dict[int, float] = {}  # late binding: when a survey was requested
        self.collected: set[int] = set()

    @initialize()
    def begin(self) -> None:
        for cluster in CLUSTERS:
            self.survey(cluster.name, set(), lost=False)

    def step(self, event: ReservationEvent) -> None:
        self.pass_time(0.0)
        self.book.handle(event, Outcome())
        self.collect()

    def collect(self) -> None:
        expected = [
            reservation
            for reservation in self.book.by_id.values()
            if reservation.state in FINAL_STATES
            and reservation.until <= self.now
            and reservation.id not in self.collected
        ]
        assert self.book.collect_expired(self.now) == expected
        self.collected.update(reservation.id for reservation in expected)

    @rule(seconds=st.sampled_from([0.0, 1.0, 7.0, 20.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        due = {id for id in self.book.by_id if self.due_time(self.book.by_id[id]) <= self.now}
        for id in due:
            if self.awaits_choice(self.book.by_id[id]):
                self.surveys_due[id] = self.now
        out = Outcome()
        self.book.advance_time(self.now, out)
        assert due >= out.reservations.keys()
        assert not [
            reservation
            for reservation in self.book.by_id.values()
            if self.due_time(reservation) <= self.now and reservation.state in OPEN_STATES
        ]

    @rule(start=st.integers(0, 60), length=st.integers(1, 60), size=st.integers(1, 4), on=NAMES)
    def request(self, start: int, length: int, size: int, on: str) -> None:
        self.newest += 1
        begin = self.now + start
        request = ReservationRequest.fixed(size, begin, begin + length)
        self.step(
            ReservationRequested(self.now, self.newest, "ada", request, True, (on,), self.now + 1e4)
        )

    def some_id(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.book.by_id)))

    @precondition(lambda self: self.book.by_id)
    @rule(data=st.data(), answer=st.sampled_from(["bound", "rejected", "released", "cancelled"]))
    def answer(self, data: st.DataObject, answer: str) -> None:
        id = self.some_id(data)
        self.pass_time(0.0)
        if id not in self.book.by_id:
            return
        nodes = self.book.by_id[id].nodes
        if answer == "bound" and not self.awaits_choice(self.book.by_id[id]):
            self.step(ReservationBound(self.now, id, nodes))
        elif answer == "rejected":
            self.step(ReservationRejected(self.now, id, "no"))
        elif answer == "released":
            self.step(ReservationReleased(self.now, id))
        elif answer == "cancelled":
            self.step(ReservationCancelled(self.now, id, "ada"))

    @rule(on=NAMES, down=st.sets(st.sampled_from(NODES), max_size=3), lost=st.booleans())
    def survey(self, on: str, down: set[str], lost: bool) -> None:
        held = tuple(
            ManagerReservation(manager_name("i", r.id), r.start, r.end, r.bound_nodes)
            for r in self.book.by_id.values()
            if r.cluster == on and r.known_to_manager and not lost
        )
        up = tuple(node for node in NODES if node not in down)
        usage = (NodeUsage(up, 4, True), NodeUsage(tuple(sorted(down)), 4, False))
        self.step(SurveyReceived(self.now, on, Survey(self.now, usage, held)))

    @rule()
    def restart(self) -> None:
        stored = list(self.book.by_id.values())
        self.book = ReservationBook(LicenceQueue())
        self.book.restore(stored)
        self.book.start("i", Policy(), CLUSTERS, Outcome())
        self.surveys_due, self.collected = {}, set()

    def awaits_choice(self, reservation: Reservation) -> bool:
        return self.book._binding.awaits_choice(reservation)

    def due_time(self, reservation: Reservation) -> float:
        """Return when time alone changes a reservation; as before there was an index."""
        if reservation.state in FINAL_STATES:
            return inf if reservation.id in self.collected else reservation.until
        if self.awaits_choice(reservation):
            requested = self.surveys_due.get(reservation.id, -inf)
            times = (reservation.start - 30.0, reservation.start, reservation.end)
            return next(time for time in times if time > requested or time == reservation.end)
        if reservation.state is ReservationState.REQUESTED:
            limit = max(reservation.start, reservation.created + BIND_TIMEOUT)
            return min(limit, reservation.end)
        return reservation.start if reservation.state is ReservationState.BOUND else reservation.end

    @invariant()
    def indexes_agree_with_the_reservations(self) -> None:
        reservations = self.book.by_id.values()
        due = min(map(self.due_time, reservations), default=inf)
        assert self.book.next_due == (None if due == inf else due)
        for cluster in CLUSTERS:
            here = [r for r in reservations if r.cluster == cluster.name]
            assert self.book.has_reservations_on(cluster.name) == bool(here)
            open_here = [r for r in here if r.state in OPEN_STATES]
            availability = self.book.availability
            assert availability.open_on(cluster.name) == open_here
            availability.assigned_on(cluster.name)._check(availability.needs(cluster.name))


TestIndexedBook = IndexedBook.TestCase
TestIndexedBook.settings = examples(60, steps=40)
