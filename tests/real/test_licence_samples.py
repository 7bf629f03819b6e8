"""Figures of licences over time in real databases: periods, what held, gaps, deletion."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import func, select

from metasched.db.ledger import Ledger
from metasched.db.licence_samples import KEPT, MAX_HOLD
from metasched.db.pruning import PruningPass
from metasched.db.schema import licence_sample
from metasched.db.store import Database, StorageFailed
from metasched.model.licence import MAX_TOKENS, LicencePeriod, LicenceSample

BEGIN = 1_000_000.0
MINUTE = 60.0


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    new_ledger = Ledger(database.open())
    yield new_ledger
    new_ledger.close()


def sample(
    minute: float, leased: int, outside: int = 0, waiting: int = 0, *, name: str = "matlab"
) -> LicenceSample:
    free = 10 - leased - outside
    return LicenceSample(name, BEGIN + minute * MINUTE, 10, leased, outside, free, waiting)


def test_a_period_has_its_extremes_and_what_held_before(ledger: Ledger) -> None:
    ledger.add_licence_samples([sample(-3, 2, 1), sample(-2, 9, name="ansys")])
    # the busiest moment, the fewest free and the most waited for are three samples
    ledger.add_licence_samples(
        [sample(10.5, 4, 4, 1), sample(11, 5, 2, 7), sample(19.99, 1, 0, 3), sample(30, 0)]
    )
    periods = ledger.licence_periods("matlab", BEGIN, 10 * MINUTE, 4)
    starts = [BEGIN + n * 10 * MINUTE for n in range(4)]
    assert periods == [
        LicencePeriod(starts[0], 10, 2, 1, 7, 0),
        LicencePeriod(starts[1], 10, 4, 4, 2, 7),
        LicencePeriod(starts[2], 10, 1, 0, 9, 3),
        # its begin is the time of a sample, and what was before has an end there
        LicencePeriod(starts[3], 10, 1, 0, 9, 3),
    ]
    assert ledger.licence_periods("none", BEGIN, 10 * MINUTE, 2) == [None, None]


def test_nothing_is_known_of_a_gap(ledger: Ledger) -> None:
    hold = MAX_HOLD / MINUTE
    ledger.add_licence_samples([sample(0, 3), sample(3 * hold, 5)])
    periods = ledger.licence_periods("matlab", BEGIN, MAX_HOLD, 4)
    assert [None if period is None else period.leased for period in periods] == [3, 3, None, 5]
    # a sample that is too old does not hold for the first period
    assert ledger.licence_periods("matlab", BEGIN + MAX_HOLD + 1, MINUTE, 1) == [None]


def test_the_largest_numbers_of_tokens_are_told_apart(ledger: Ledger) -> None:
    most = MAX_TOKENS
    ledger.add_licence_samples(
        [
            LicenceSample("matlab", BEGIN, most, most - 1, most, 0, 0),
            LicenceSample("matlab", BEGIN + 1, most, most, most - 2, 0, 0),
        ]
    )
    [period] = ledger.licence_periods("matlab", BEGIN, MINUTE, 1)
    assert period == LicencePeriod(BEGIN, most, most - 1, most, 0, 0)


def test_unknown_totals_stay_unknown(ledger: Ledger) -> None:
    ledger.add_licence_samples([LicenceSample("matlab", BEGIN, None, 3, 0, None, 2)])
    assert ledger.licence_periods("matlab", BEGIN, MINUTE, 1) == [
        LicencePeriod(BEGIN, None, 3, 0, None, 2)
    ]


def test_a_sample_that_is_refused_leaves_the_scheduler_s_transactions_alone(ledger: Ledger) -> None:
    ledger.add_licence_samples([sample(0, 3)])
    with pytest.raises(StorageFailed):
        ledger.add_licence_samples([sample(1, 1), sample(0, 4)])  # the second has a time twice
    ledger.check_active()
    ledger.add_licence_samples([sample(2, 2)])
    periods = ledger.licence_periods("matlab", BEGIN, MINUTE, 3)
    assert [period and period.leased for period in periods] == [3, 3, 3]


def test_old_figures_are_deleted_in_portions(ledger: Ledger, database: Database) -> None:
    now = BEGIN + KEPT
    ledger.add_licence_samples([sample(-n - 1, 1) for n in range(5000)])
    ledger.add_licence_samples([sample(0, 2), sample(1, 3)])
    pruning = PruningPass(0.0, now=now)  # jobs stay for ever
    while ledger.prune_portion(pruning):
        pass
    engine = database.open()
    try:
        with engine.connect() as connection:
            assert connection.execute(select(func.count(licence_sample.c.time))).scalar() == 2
    finally:
        engine.dispose()
