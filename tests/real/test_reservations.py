"""Reservations in a real database: stored, restored after a crash, no node promised twice."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator

import pytest
from msgspec import structs
from sqlalchemy.exc import IntegrityError

from metasched.core.events import CoreEvent, DaemonStarted, LicenceSet, Outcome
from metasched.core.reservations.events import (
    Bind,
    ReservationBound,
    ReservationCancelled,
    ReservationRejected,
    ReservationReleased,
    ReservationRequested,
    SurveyReceived,
    Unbind,
)
from metasched.core.reservations.manager_answers import MAX_REJECTIONS
from metasched.core.scheduler import Core
from metasched.db import reservations
from metasched.db.ledger import Ledger
from metasched.db.pruning import PruningPass, lock_epoch
from metasched.db.reservations import Overbooked
from metasched.db.store import Database
from metasched.model.cluster import Cluster
from metasched.model.licence import LicencePool
from metasched.model.reservation import Reservation, ReservationState
from metasched.model.reservation_request import ReservationRequest
from metasched.model.survey import NodeUsage, Survey
from metasched.policies.policy import Policy

NOW = 1_000_000.0
PROCESSES, TURNS = 4, 40
SURVEYED, BESIDE = (
    SurveyReceived(NOW, name, Survey(NOW, (NodeUsage(("n1", "n2"), 4, True),)))
    for name in ("alpha", "beta")
)
CLUSTERS = tuple(
    Cluster(name=n, adapter="slurm", supports_reservations=True) for n in ("alpha", "beta")
)
POOLS = (LicencePool(name="matlab", total=4),)


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    new_ledger = Ledger(database.open())
    yield new_ledger
    new_ledger.close()


def step(core: Core, ledger: Ledger, event: CoreEvent) -> Outcome:
    out = core.step(event)
    ledger.record([(event, out)])
    return out


def life(ledger: Ledger) -> tuple[Core, Outcome]:
    """Start a daemon's core; return it and the outcome of the start."""
    core = Core()
    ledger.restore(core, 100)
    booted = DaemonStarted(NOW, ledger.identity(NOW).instance, Policy(), CLUSTERS, pools=POOLS)
    return core, step(core, ledger, booted)


def asked(
    ledger: Ledger, start: float = 100.0, size: int = 1, cluster: str = "alpha", **licences: int
) -> ReservationRequested:
    request = ReservationRequest.fixed(size, NOW + start, NOW + start + 50)
    id = ledger.next_reservation()
    return ReservationRequested(
        NOW, id, "ada", request, True, (cluster,), NOW + 1e6, licences=licences
    )


def test_a_crash_after_any_step_loses_nothing_and_repeats_requests(ledger: Ledger) -> None:
    core, _ = life(ledger)
    step(core, ledger, SURVEYED)
    step(core, ledger, asked(ledger))
    for event, expected, state in (
        (None, [Bind("alpha", 1)], ReservationState.REQUESTED),
        (
            ReservationBound(NOW, 1, core.reservations.by_id[1].nodes),
            [],
            ReservationState.BOUND,
        ),
        (ReservationCancelled(NOW, 1, "ada"), [Unbind("alpha", 1)], ReservationState.CANCELLED),
    ):
        if event is not None:
            step(core, ledger, event)
        core, out = life(ledger)  # the previous core is gone, as after a crash
        assert out.reservation_actions == expected
        assert core.reservations.by_id[1].state is state
        assert ledger.reservation(1) == core.reservations.by_id[1]
    step(core, ledger, ReservationReleased(NOW, 1))
    core, out = life(ledger)
    assert out.reservation_actions == []
    assert core.reservations.by_id == {}
    stored = ledger.reservation(1)
    assert stored is not None
    assert (stored.state, stored.known_to_manager) == (ReservationState.CANCELLED, False)
    assert ledger.next_reservation() == 2


def test_two_daemons_that_decide_alike_cannot_promise_a_node_twice(ledger: Ledger) -> None:
    """Two cores do not know of each other, like two daemons; the second is refused."""
    first, _ = life(ledger)
    second, _ = life(ledger)
    for core in (first, second):
        step(core, ledger, SURVEYED)
    step(first, ledger, asked(ledger, size=2))
    with pytest.raises(Overbooked, match="reservations 1 and 2 both want n1 of alpha"):
        step(second, ledger, asked(ledger, size=2))
    assert [reservation.id for reservation in ledger.reservations_open_since(0.0)] == [1]


def race(database: Database, first: int, refused: multiprocessing.Queue[int]) -> None:
    """Promise nodes in one of several processes, without regard to the others."""
    engine = database.open_existing()
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:  # the only connection of its pool
            connection.exec_driver_sql("PRAGMA busy_timeout = 60000")
    drawn = random.Random(first)
    denied = 0
    for id in range(first, first + TURNS):
        start = NOW + drawn.randrange(100)
        nodes = tuple(sorted(drawn.sample(("n1", "n2", "n3"), drawn.randint(1, 2))))
        reservation = Reservation(
            id=id,
            user="ada",
            cluster="alpha",
            start=start,
            end=start + 5,
            size=len(nodes),
            cpus=len(nodes),
            created=NOW,
            nodes=nodes,
            bound_nodes=nodes,  # as if bound, for `find_conflicts`
        )
        try:
            with engine.begin() as connection:
                lock_epoch(connection)
                reservations.store(connection, [Outcome(reservations={id: reservation})])
        except Overbooked:
            denied += 1
    refused.put(denied)
    engine.dispose()


def test_processes_that_race_never_promise_a_node_twice(database: Database, ledger: Ledger) -> None:
    life(ledger)
    spawn = multiprocessing.get_context("spawn")
    refused: multiprocessing.Queue[int] = spawn.Queue()
    firsts = range(1, PROCESSES * TURNS, TURNS)
    racing = [spawn.Process(target=race, args=(database, first, refused)) for first in firsts]
    for process in racing:
        process.start()
    denied = sum(refused.get(timeout=120) for _ in racing)
    for process in racing:
        process.join()
    assert [process.exitcode for process in racing] == [0] * PROCESSES
    engine = database.open_existing()
    with engine.connect() as reading:
        assert list(reservations.find_conflicts(reading)) == []
        open_reservations = reservations.open_since(reading, 0.0)
    engine.dispose()
    assert len(open_reservations) == PROCESSES * TURNS - denied
    assert open_reservations
    assert denied


def test_nor_can_they_promise_a_licence_twice_for_two_clusters(ledger: Ledger) -> None:
    first, _ = life(ledger)
    second, _ = life(ledger)
    step(first, ledger, SURVEYED)
    step(second, ledger, BESIDE)
    step(first, ledger, asked(ledger, matlab=3))
    step(second, ledger, asked(ledger, cluster="beta", matlab=1))
    with pytest.raises(Overbooked, match="reservations 1, 2, 3 want 5 of licence matlab, not 4"):
        step(second, ledger, asked(ledger, start=149.0, cluster="beta", matlab=1))
    third, _ = life(ledger)
    step(third, ledger, BESIDE)
    step(third, ledger, asked(ledger, start=150.0, cluster="beta", matlab=1))
    third, _ = life(ledger)
    assert [reservation.licences for reservation in third.reservations.by_id.values()] == [
        {"matlab": 3},
        {"matlab": 1},
        {"matlab": 1},
    ]
    assert third.licences.windows("matlab")[0].licences == {"matlab": 3}


def test_a_window_is_checked_against_the_total_of_its_moment(ledger: Ledger) -> None:
    """Events of one batch are stored together; here an operator lowers the total just after."""
    core, _ = life(ledger)
    step(core, ledger, SURVEYED)
    events = (asked(ledger, matlab=4), LicenceSet(NOW, "matlab", 1, "root"))
    ledger.record([(event, core.step(event)) for event in events])
    stored = ledger.reservation(1)
    assert stored is not None
    assert stored.licences == {"matlab": 4}


def test_a_window_or_a_state_that_makes_no_sense_is_not_stored(
    database: Database, ledger: Ledger
) -> None:
    core, _ = life(ledger)
    step(core, ledger, SURVEYED)
    reservation = step(core, ledger, asked(ledger)).reservations[1]
    for wrong in (
        structs.replace(reservation, id=2, end=reservation.start),
        structs.replace(reservation, id=2, size=0),
        structs.replace(reservation, id=2, closed=NOW),
        structs.replace(reservation, id=2, state=ReservationState.ENDED),
    ):
        out = Outcome(reservations={2: wrong})
        engine = database.open()
        with pytest.raises(IntegrityError), engine.begin() as connection:
            reservations.store(connection, [out])
        engine.dispose()


def test_pruning_forgets_what_is_over_but_not_what_its_manager_may_know(ledger: Ledger) -> None:
    core, _ = life(ledger)
    step(core, ledger, SURVEYED)
    for number in range(4):
        step(core, ledger, asked(ledger, start=100.0 * number + 100))
    for id in (1, 2, 4):
        step(core, ledger, ReservationCancelled(NOW + id, id, "ada"))
    for id in (1, 4):
        step(core, ledger, ReservationReleased(NOW + 5, id))
    pruning = PruningPass(NOW + 10)
    while ledger.prune_portion(pruning):
        pass
    assert [reservation.id for reservation in ledger.reservations_open_since(0.0)] == [2, 3, 4]
    assert ledger.next_reservation() == 5


def test_pages_have_each_reservation_of_a_user_once(ledger: Ledger) -> None:
    core, _ = life(ledger)
    step(core, ledger, SURVEYED)
    for number in range(4):  # the later, the earlier
        step(core, ledger, asked(ledger, start=500.0 - 100.0 * number))
    step(core, ledger, ReservationCancelled(NOW + 1, 2, "ada"))

    def page(since: float, user: str | None, after: int) -> list[int]:
        rows = ledger.reservation_page(since, user, after, 2)
        return [reservation.id for reservation in rows]

    assert [page(0.0, None, after) for after in (0, 2, 4)] == [[1, 2], [3, 4], []]
    assert [page(NOW + 2, "ada", after) for after in (0, 3)] == [[1, 3], [4]]
    assert page(0.0, "bob", 0) == []


def test_pending_notifications_survive_a_crash_until_delivery_is_stored(
    ledger: Ledger,
) -> None:
    core, _ = life(ledger)
    step(core, ledger, SURVEYED)
    for start in (100.0, 200.0, 300.0):
        step(core, ledger, structs.replace(asked(ledger, start), mail="ada@example.org"))
    for id, refusals in ((1, MAX_REJECTIONS), (2, MAX_REJECTIONS), (3, MAX_REJECTIONS - 1)):
        for _ in range(refusals):
            step(core, ledger, ReservationRejected(NOW + id, id, "busy"))
    step(core, ledger, ReservationCancelled(NOW + 3, 3, "ada"))
    assert [
        (reservation.id, reservation.mail) for reservation in ledger.unnotified_reservations(NOW)
    ] == [
        (1, "ada@example.org"),
        (2, "ada@example.org"),
    ]
    assert [reservation.id for reservation in ledger.unnotified_reservations(NOW + 2)] == [2]
    core, _ = life(ledger)
    ledger.mark_notified(1, NOW + 5)
    step(core, ledger, ReservationReleased(NOW + 6, 1))  # writes the row again
    assert [reservation.id for reservation in ledger.unnotified_reservations(NOW)] == [2]
