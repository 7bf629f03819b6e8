"""CARTS compared with plain arithmetic on whole seconds and on a list of reservations."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from metasched.carts import carts as module
from metasched.carts import tree
from metasched.carts.carts import Carts
from metasched.carts.sets import CartsSets
from tests.harness.examples import examples

END = 60
TIMES = st.integers(0, END)


class Naive:
    """Free amounts, computed from the list of all reservations."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.reserved: list[tuple[float, float, int]] = []

    def at(self, time: float) -> int:
        return self.capacity - sum(n for s, e, n in self.reserved if s <= time < e)

    def changes(self, start: float, end: float) -> list[float]:
        inside = {t for s, e, _ in self.reserved for t in (s, e) if start < t < end}
        return [start, *sorted(inside)]

    def free(self, start: float, end: float) -> int:
        return min(self.at(time) for time in self.changes(start, end))

    def earliest(self, size: int, duration: float, ready: float, end: float) -> float | None:
        for start in self.changes(ready, inf):
            if start + duration <= end and self.free(start, start + duration) >= size:
                return start
        return None


class CartsMachine(RuleBasedStateMachine):
    """After any reservations, releases and prunings every answer equals the naive model's."""

    @initialize(capacity=st.integers(1, 6))
    def begin(self, capacity: int) -> None:
        self.carts, self.naive = Carts(capacity), Naive(capacity)
        self.copies: list[tuple[Carts, list[tuple[float, int]]]] = []  # with their slots

    @rule(go_on_with_copy=st.booleans())
    def copy(self, go_on_with_copy: bool) -> None:
        other, slots = self.carts.copy(), self.carts.slots()
        if go_on_with_copy:
            self.carts, other = other, self.carts
        self.copies = [*self.copies[-2:], (other, slots)]

    @rule(start=TIMES, length=st.integers(1, 20), size=st.integers(1, 7))
    def reserve(self, start: int, length: int, size: int) -> None:
        window = (start, start + length)
        if start < self.carts.origin:
            return
        if self.naive.free(*window) >= size:
            self.carts.reserve(*window, size)
            self.naive.reserved.append((*window, size))
        else:
            with pytest.raises(ValueError, match="do not fit"):
                self.carts.reserve(*window, size)

    @precondition(lambda self: self.naive.reserved)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.naive.reserved) - 1))
        start, end, size = self.naive.reserved.pop(index)
        if end > self.carts.origin:
            self.carts.release(start, end, size)

    @rule(until=TIMES)
    def prune(self, until: int) -> None:
        self.carts.prune(until)

    @rule(start=TIMES, length=st.integers(1, 30))
    def free(self, start: int, length: int) -> None:
        start = max(start, int(self.carts.origin))
        assert self.carts.free(start, start + length) == self.naive.free(start, start + length)

    @rule(
        size=st.integers(1, 7),
        duration=st.integers(1, 30),
        ready=TIMES,
        slack=st.none() | st.integers(0, 40),
    )
    def search(self, size: int, duration: int, ready: int, slack: int | None) -> None:
        begin = max(ready, self.carts.origin)
        deadline = None if slack is None else ready + duration + slack
        end = inf if deadline is None else deadline
        earliest = self.carts.earliest_start(size, duration, ready, deadline)
        assert earliest == self.naive.earliest(size, duration, begin, end)
        if deadline is not None:
            possible = {
                start
                for first, last in self.carts.starts(size, duration, ready, deadline)
                for start in range(int(first), int(last) + 1)
            }
            assert possible == {
                start
                for start in range(int(begin), deadline - duration + 1)
                if self.naive.free(start, start + duration) >= size
            }

    @invariant()
    def whole(self) -> None:
        if hasattr(self, "carts"):
            self.carts._check()
            assert len(self.carts.slots()) <= 2 * len(self.naive.reserved) + 1
            for other, slots in self.copies:
                other._check()
                assert other.slots() == slots


@pytest.fixture(autouse=True, params=[4, 64], ids=["split-often", "as-built"])
def _width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also run with small tree nodes, so that a few slots make a tall tree."""
    for part in (module, tree):
        monkeypatch.setattr(part, "NODE_MAX", request.param)
    monkeypatch.setattr(tree, "NODE_MIN", request.param // 4)
    monkeypatch.setattr(
        module, "_LINEAR_SEARCHES", 0 if request.param == 4 else module._LINEAR_SEARCHES
    )


def test_every_answer_is_that_of_the_naive_model() -> None:
    run_state_machine_as_test(CartsMachine, settings=examples(60))


@pytest.mark.parametrize("seed", range(4))
def test_copies_of_tall_trees_keep_their_slots(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree grows and shrinks again, and goes on as its copy or as the original."""
    if tree.NODE_MAX == 64:  # nodes of 4 never join
        for part in (module, tree):
            monkeypatch.setattr(part, "NODE_MAX", 8)
        monkeypatch.setattr(tree, "NODE_MIN", 2)
    random, carts, reserved = Random(seed), Carts(3), list[tuple[int, int]]()
    copies: list[tuple[Carts, list[tuple[float, int]]]] = []
    for step in range(400):
        window = (begin := random.randint(0, 600), begin + random.randint(1, 40))
        if step < 200 and carts.free(*window):
            carts.reserve(*window, 1)
            reserved.append(window)
        elif step >= 200 and reserved:
            carts.release(*reserved.pop(random.randrange(len(reserved))), 1)
        if step % 7 == 0:
            other, slots = carts.copy(), carts.slots()
            if random.random() < 0.5:
                carts, other = other, carts
            copies.append((other, slots))
    for other, slots in copies:
        other._check()
        assert other.slots() == slots


UNITS = st.sampled_from([1, 0.1, 1 / 3, 1e-7, 1e9 + 0.1])  # floats whose sums are rounded
START, LENGTH, SIZE = st.integers(0, 20), st.integers(1, 8), st.integers(1, 8)


@examples(400)
@given(
    capacity=SIZE,
    unit=UNITS,
    requests=st.lists(st.tuples(START, LENGTH, SIZE), min_size=1, max_size=20),
    queries=st.lists(st.tuples(SIZE, LENGTH, START, st.integers(8, 40)), max_size=10),
    releases=st.randoms(use_true_random=False),
)
def test_searches_are_exact_where_windows_touch_and_times_are_rounded(
    capacity: int,
    unit: float,
    requests: list[tuple[int, int, int]],
    queries: list[tuple[int, int, int, int]],
    releases: Random,
) -> None:
    naive, carts = Naive(capacity), Carts(capacity)
    for begin, length, size in requests:
        window = (begin * unit, begin * unit + length * unit)
        if size <= capacity and naive.free(*window) >= size:
            carts.reserve(*window, size)
            naive.reserved.append((*window, size))
    carts._check()
    assert Carts.of(capacity, naive.reserved).slots() == carts.slots()
    for size, length, begin, end in queries:
        size, duration = min(size, capacity), length * unit
        ready, deadline = begin * unit, end * unit
        start = carts.earliest_start(size, duration, ready, deadline)
        assert start == naive.earliest(size, duration, ready, deadline)
        for first, last in carts.starts(size, duration, ready, deadline):
            assert ready <= first <= last
            assert last + duration <= deadline
            assert naive.free(last, last + duration) >= size
            assert naive.free(first, first + duration) >= size
    releases.shuffle(naive.reserved)
    for reservation in naive.reserved:
        carts.release(*reservation)
    assert carts.slots() == [(0.0, capacity)]


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 15), st.integers(1, 8), st.integers(1, 5)), max_size=12),
    st.tuples(st.integers(1, 5), st.integers(1, 8), st.integers(0, 15), st.integers(0, 40)),
)
def test_sets_never_give_one_processor_twice_and_admit_no_more_than_amounts(
    processors: int,
    requests: list[tuple[int, int, int]],
    query: tuple[int, int, int, int],
) -> None:
    sets, amounts = CartsSets(processors), Carts(processors)
    held: list[tuple[int, int, frozenset[int]]] = []
    for start, length, size in requests:
        window = (start, start + length)
        overlapping = [taken for s, e, taken in held if s < window[1] and window[0] < e]
        usable = frozenset(range(processors)) - frozenset().union(*overlapping)
        assert sets.free(*window) == usable
        if len(usable) < size:
            with pytest.raises(ValueError, match="do not fit"):
                sets.reserve(*window, size)
            continue
        taken = sets.reserve(*window, size)
        assert taken == frozenset(sorted(usable)[:size])
        amounts.reserve(*window, size)
        held.append((*window, taken))
    assert [(t, len(free)) for t, free in sets.slots() if (t, len(free)) in amounts.slots()] == (
        amounts.slots()
    )
    size, duration, ready, deadline = query
    expected = next(
        (
            start
            for start in range(ready, deadline - duration + 1)
            if len(sets.free(start, start + duration)) >= size
        ),
        None,
    )
    assert sets.earliest_start(size, duration, ready, deadline) == expected
    for start, end, taken in held:
        sets.release(start, end, taken)
    assert sets.slots() == [(0.0, frozenset(range(processors)))]
