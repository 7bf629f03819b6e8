"""Sizes of portions: short where rows take the time, large where statements do."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from metasched.db.portion_size import PORTION_SECONDS, SMALLEST, PortionSize

FULL = 200  # rows


def portions(fixed: float, per_row: float, number: int = 2000, noise: float = 0.0) -> list[int]:
    """Return the rows of portions; `fixed` seconds are those of their statements.

    `noise`: each takes up to so many times as long.
    """
    size, rng, rows = PortionSize(), random.Random(1), []
    for _ in range(number):
        rows.append(size.rows(FULL))
        size.note((fixed + per_row * rows[-1]) * (1 + noise * rng.random()))
    return rows


def test_quick_portions_are_full() -> None:
    assert portions(fixed=0.002, per_row=0.0001) == [FULL] * 2000


@pytest.mark.parametrize("per_row", [0.001, 0.003, 0.01])
def test_slow_rows_make_portions_of_the_allowed_time(per_row: float) -> None:
    rows = portions(fixed=0.005, per_row=per_row)
    seconds = [0.005 + per_row * count for count in rows[50:]]
    assert max(seconds) < 1.5 * PORTION_SECONDS
    assert sum(seconds) / len(seconds) > PORTION_SECONDS / 2


def test_a_portion_that_takes_much_too_long_is_halved_at_once() -> None:
    rows = portions(fixed=0.0, per_row=0.1, number=7)
    assert all(later <= earlier // 2 + 1 for earlier, later in pairwise(rows))
    assert portions(fixed=0.0, per_row=1.0)[-1] == max(int(FULL * SMALLEST), 1)


@pytest.mark.parametrize("fixed", [0.03, 0.06, 0.2])
@pytest.mark.parametrize("noise", [0.0, 1.0, 3.0])
def test_slow_statements_leave_portions_large(fixed: float, noise: float) -> None:
    """Else a pass over a backlog on a busy host takes the more portions the busier it is."""
    rows = portions(fixed=fixed, per_row=0.00005, noise=noise)
    assert sum(rows) / len(rows) > FULL / 4


def test_portions_grow_again_when_rows_are_quick() -> None:
    size = PortionSize()
    for _ in range(20):
        size.note(1.0 * size.rows(FULL) / FULL)
    assert size.rows(FULL) < FULL / 8
    for _ in range(100):
        size.note(0.01)
    assert size.rows(FULL) == FULL


def test_portions_are_full_soon_after_a_slow_disk() -> None:
    """Each checkpoint of a database is such a time; slow growth would cost the rest of a pass."""
    size = PortionSize()
    for _ in range(20):
        size.note(100.0 * size.rows(FULL) / FULL)
    assert size.rows(FULL) < FULL / 8
    rows = []
    for _ in range(30):
        rows.append(size.rows(FULL))
        size.note(0.004 + 0.00005 * rows[-1])
    assert rows[-1] == FULL
