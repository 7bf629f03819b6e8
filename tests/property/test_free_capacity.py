"""Free capacity under changing reservations, compared with a walk over all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.carts import carts as carts_module
from metasched.carts import tree
from metasched.carts.carts import Carts
from metasched.core.reservations.free_capacity import FreeCapacity, HeldNodes, Use
from metasched.model.reservation import OPEN_STATES, Reservation, ReservationState, manager_name
from metasched.model.survey import ManagerReservation, NodeUsage, ProcessorPool, Span, Survey
from tests.harness.examples import examples

NODES = ("n1", "n2", "n3")
GUARD = 2.0  # seconds
SPANS = st.tuples(st.integers(0, 30), st.integers(1, 12)).map(lambda s: (s[0], s[0] + s[1]))


@pytest.fixture(autouse=True, scope="module")
def _small_tree_nodes() -> Iterator[None]:
    """Make a few slots a tall tree."""
    with pytest.MonkeyPatch.context() as patch:
        for part in (carts_module, tree):
            patch.setattr(part, "NODE_MAX", 4)
        patch.setattr(tree, "NODE_MIN", 1)
        yield


@st.composite
def surveys(draw: st.DrawFn) -> Survey:
    """Draw nodes with jobs, or pools with uses and the reservations that are among these."""
    if draw(st.booleans()):
        groups = [
            NodeUsage((node,), 4, up, tuple(draw(st.lists(SPANS, max_size=2))))
            for node in NODES
            if (up := draw(st.sampled_from([True, True, True, False]))) or draw(st.booleans())
        ]
        return Survey(0.0, tuple(groups))
    pools = [
        ProcessorPool((node,), 3, tuple((*draw(SPANS), 1) for _ in range(draw(st.integers(0, 3)))))
        for node in NODES[:2]
    ]
    known = draw(st.sets(st.integers(1, 4), max_size=2))
    entries = tuple(ManagerReservation(manager_name("i", id), 0, 1, ()) for id in known)
    return Survey(0.0, (), entries, tuple(pools))


@st.composite
def versions(draw: st.DrawFn) -> Reservation:
    """Draw a version of a reservation; its nodes may be those of another, or not there."""
    start, end = draw(SPANS)
    return Reservation(
        id=draw(st.integers(1, 4)),
        user="ada",
        cluster="c",
        start=float(start),
        end=float(end),
        size=draw(st.integers(1, 2)),
        cpus=1,
        created=0.0,
        nodes=(),
        state=draw(st.sampled_from(ReservationState)),
        bound_nodes=tuple(sorted(draw(st.sets(st.sampled_from([*NODES, "gone"]), max_size=2)))),
    )


def plain_busy(
    survey: Survey, book: list[Reservation], now: float, guard: float
) -> dict[str, list[Span]]:
    busy = {}
    for group in survey.nodes:
        for node in group.nodes if group.up else ():
            here = [r for r in book if node in r.bound_nodes]
            spans = [(max(s, now), e + guard) for s, e in group.spans if e + guard > now]
            for r in here:
                before = [(s, min(e, r.start)) for s, e in spans]
                after = [(max(s, r.until), e) for s, e in spans]
                spans = [(s, e) for s, e in (*before, *after) if s < e]
            spans += [
                (max(r.start, now), r.until)
                for r in here
                if r.state is ReservationState.ACTIVE and r.until > now
            ]
            busy[node] = spans
    return busy


def plain_carts(
    survey: Survey, book: list[Reservation], now: float, together: bool
) -> list[list[tuple[float, int]]]:
    reported = {entry.name for entry in survey.reservations}
    reserved = [
        (r.start, r.until, r.size)
        for r in book
        if r.state is not ReservationState.ACTIVE
        and not (survey.pools and manager_name("i", r.id) in reported)
    ]
    if survey.pools and together:
        uses = [use for pool in survey.pools for use in pool.uses]
        return [plain_free(sum(p.size for p in survey.pools), [*uses, *reserved], now)]
    if survey.pools:
        return [plain_free(pool.size, [*pool.uses, *reserved], now) for pool in survey.pools]
    busy = plain_busy(survey, book, now, GUARD)
    seconds = [
        (time, time + 1, 1)
        for spans in busy.values()
        for time in range(64)
        if any(start <= time < end for start, end in spans)
    ]
    return [plain_free(len(busy), [*seconds, *reserved], now)] if busy else []


def plain_free(capacity: int, uses: list[Use], now: float) -> list[tuple[float, int]]:
    """Return the slots left by the uses, each of which gets what the others before it left."""
    carts = Carts(capacity, now)
    for start, end, amount in uses:
        if end > now and (size := min(amount, carts.free(max(start, now), end))):
            carts.reserve(max(start, now), end, size)
    return carts.slots()


@examples(300)
@given(surveys(), st.lists(versions() | st.integers(1, 9) | surveys(), max_size=12), st.booleans())
def test_free_capacity_is_that_of_a_walk_over_all_reservations(
    survey: Survey, steps: list[Reservation | int | Survey], together: bool
) -> None:
    """Each step is a new version of a reservation, another survey, or time that passes."""
    book, now = dict[int, Reservation](), 0.0

    def open_reservations() -> list[Reservation]:
        return [r for r in book.values() if r.state in OPEN_STATES]

    def capacity_by(survey: Survey) -> FreeCapacity:
        return FreeCapacity(
            survey, held, open_reservations, lambda id: manager_name("i", id), GUARD
        )

    held = HeldNodes(())
    capacity = capacity_by(survey)
    for step in steps:
        if isinstance(step, Reservation):
            before, book[step.id] = book.get(step.id), step
            held.update(before, step)
            capacity.update(before, step)
        elif isinstance(step, Survey):
            survey = step
            capacity = capacity_by(survey)
        else:
            now += step
        profiles = capacity.carts(now, together)
        expected = plain_carts(survey, open_reservations(), now, together)
        assert [carts.slots() for carts in profiles] == expected
        for carts in profiles:  # the caller may change them
            carts._check()
            if free := carts.free(now, now + 9):
                carts.reserve(now, now + 9, free)
        for guard in (None, 0.0):
            busy = capacity.busy_spans(now, guard)
            plain = plain_busy(survey, open_reservations(), now, GUARD if guard is None else guard)
            assert {n: sorted(spans) for n, spans in busy.items()} == {
                n: sorted(spans) for n, spans in plain.items()
            }
