"""CARTS: cases worked by hand, and invalid requests."""

from __future__ import annotations

import doctest
from math import inf, nan

import pytest

from metasched.carts import carts as module
from metasched.carts.carts import Carts
from metasched.carts.sets import CartsSets


def test_the_examples_of_the_module_are_true() -> None:
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


def test_dynamic_binding_admits_what_static_binding_refuses() -> None:
    """algorithms.md, section 4: two processors, A[0,1) B[2,3) C[0,2) X[1,3)."""
    amounts, sets = Carts(2), CartsSets(2)
    for start, end in ((0, 1), (2, 3), (0, 2)):
        amounts.reserve(start, end, 1)
        sets.reserve(start, end, 1)
    assert amounts.earliest_start(1, 2, ready=1, deadline=3) == 1
    amounts.reserve(1, 3, 1)
    assert sets.earliest_start(1, 2, ready=1, deadline=3) is None
    with pytest.raises(ValueError, match=r"1 processors do not fit into \[1, 3\): 0 are free"):
        sets.reserve(1, 3, 1)


def test_sets_take_the_lowest_numbers_and_give_them_back() -> None:
    sets = CartsSets(4)
    assert sets.reserve(0, 10, 2) == {0, 1}
    assert sets.reserve(5, 15, 2) == {2, 3}
    assert sets.free(10, 20) == {0, 1}
    assert sets.earliest_start(3, 1, ready=0) == 15
    with pytest.raises(ValueError, match="not all of \\[1, 2\\] are reserved"):
        sets.release(0, 10, {1, 2})
    sets.release(0, 10, {0, 1})
    sets.release(5, 15, {2, 3})
    assert sets.slots() == [(0.0, frozenset(range(4)))]


def test_the_first_slot_may_begin_before_the_job_is_ready() -> None:
    carts = Carts(4)
    carts.reserve(10, 20, 4)
    assert carts.earliest_start(4, 5, ready=3) == 3
    assert carts.earliest_start(4, 8, ready=3) == 20
    assert carts.earliest_start(4, 8, ready=15) == 20
    assert carts.earliest_start(4, 8, ready=99) == 99


def test_a_start_is_never_so_late_that_the_deadline_passes() -> None:
    carts = Carts(4)
    carts.reserve(10, 20, 4)
    assert carts.earliest_start(1, 10, ready=5, deadline=30) == 20
    assert carts.earliest_start(1, 10, ready=5, deadline=29) is None
    assert carts.starts(1, 10, ready=0, deadline=29) == [(0, 0)]
    assert carts.starts(5, 10, ready=0, deadline=29) == []


def test_pruned_time_is_forgotten_and_what_reaches_over_it_can_be_released() -> None:
    carts = Carts(4)
    carts.reserve(0, 10, 1)
    carts.reserve(5, 30, 2)
    carts.prune(7)
    assert carts.slots() == [(7, 1), (10, 2), (30, 4)]
    carts.release(5, 30, 2)
    assert carts.slots() == [(7, 3), (10, 4)]
    carts.prune(3)
    assert carts.origin == 7


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.reserve(0, 10, 5), r"5 processors do not fit into \[0, 10\): 4 are free"),
        (lambda c: c.reserve(0, 10, 0), "size must be a whole number of processors"),
        (lambda c: c.reserve(0, 10, 1.5), "size must be a whole number"),
        (lambda c: c.reserve(0, 10, True), "size must be a whole number"),
        (lambda c: c.reserve(10, 10, 1), r"\[10, 10\) is empty"),
        (lambda c: c.reserve(-1, 10, 1), "-1 lies before the origin 0"),
        (lambda c: c.reserve(0, inf, 1), "end must be a finite time"),
        (lambda c: c.reserve(nan, 1, 1), "start must be a finite time"),
        (lambda c: c.release(0, 10, 1), "fewer than 1 processors are reserved at 0"),
        (lambda c: c.release(10, 10, 1), r"\[10, 10\) is empty"),
        (lambda c: c.free(5, 4), r"\[5, 4\) is empty"),
        (lambda c: c.earliest_start(1, 0, 0), "duration must be positive, not 0"),
        (lambda c: c.earliest_start(1, nan, 0), "duration must be a finite time"),
        (lambda c: c.earliest_start(0, 1, 0), "size must be a whole number"),
        (lambda c: c.starts(1, 1, 0, nan), "deadline must be a finite time"),
        (lambda c: c.prune(inf), "until must be a finite time"),
    ],
)
def test_nonsense_is_refused_in_words_and_changes_nothing(call, message) -> None:  # type: ignore[no-untyped-def]
    carts = Carts(4)
    with pytest.raises(ValueError, match=message):
        call(carts)
    assert carts.slots() == [(0.0, 4)]


def test_a_list_that_does_not_fit_names_the_time() -> None:
    with pytest.raises(ValueError, match="2 processors too many are reserved at 5"):
        Carts.of(4, [(0, 10, 3), (5, 6, 3)])
    with pytest.raises(ValueError, match="capacity must be"):
        Carts(0)
