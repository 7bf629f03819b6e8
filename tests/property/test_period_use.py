"""Sums of closed periods: reports agree with the sums by day, also after late corrections."""

from __future__ import annotations

import time
from datetime import date, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, delete, func, select
from sqlalchemy.pool import StaticPool

from metasched.core.events import Outcome, UseReported
from metasched.db import daily_use as sums_by_day
from metasched.db.period_use import PeriodPass, cover, days_of, find_mismatches, periods_of
from metasched.db.reports import ReportKey, ReportKind, ReportQuery, Row, read_report
from metasched.db.schema import daily_licence_use, daily_use, metadata, period_use
from metasched.model.fair_share import ForeignUse
from tests.harness.examples import examples

FIRST = date(2026, 1, 25)
DAYS = 70  # January to April: whole months, and February of 28 days
TODAY = 60  # of these; later days are not over


def number_of(day: int) -> int:
    moment = FIRST + timedelta(days=day)
    return moment.year * 10000 + moment.month * 100 + moment.day


days = st.integers(0, DAYS - 1)
users = st.sampled_from(["ann", "bob", "", "others"])


@given(st.sets(days), st.sets(days), days, days)
@examples(200)
def test_each_day_is_covered_once(by_day: set[int], larger: set[int], a: int, b: int) -> None:
    summed = {number_of(day) for day in by_day}
    summed |= {period for day in larger for period in periods_of(number_of(day))[:2]}
    first, last = number_of(min(a, b)), number_of(max(a, b))
    periods, gaps = cover(summed, (first, last))
    assert set(periods) <= summed
    spans = sorted([*map(days_of, periods), *gaps])
    assert (spans[0][0], spans[-1][1]) == (first, last)
    for (_, end), (start, _) in pairwise(spans):
        assert date.fromisoformat(str(end)) + timedelta(days=1) == date.fromisoformat(str(start))


@given(days, st.integers(0, 30))
def test_a_month_has_few_periods(day: int, length: int) -> None:
    summed = {period for n in range(DAYS + 62) for period in periods_of(number_of(n))}
    periods, gaps = cover(summed, (number_of(day), number_of(day + length)))
    assert gaps == []
    assert len(periods) <= 20


class Database:
    """Tables in memory, to which use of other jobs is reported."""

    def __init__(self) -> None:
        self.engine: Engine = create_engine("sqlite://", poolclass=StaticPool)
        metadata.create_all(self.engine, [daily_use, daily_licence_use, period_use])

    def report_use(self, day: int, cluster: str, user: str, account: str, seconds: int) -> None:
        noon = FIRST + timedelta(days=day)
        ended = time.mktime((noon.year, noon.month, noon.day, 12, 0, 0, 0, 0, -1))
        use = ForeignUse(user=user, account=account, processor_seconds=seconds, ended=ended)
        step = (UseReported(ended, cluster, "c", (use,)), Outcome(foreign_uses=(use,)))
        with self.engine.begin() as connection:
            sums_by_day.store(connection, [step])

    def sum_periods(self) -> None:
        periods = PeriodPass(number_of(TODAY))
        has_more = True
        while has_more:
            with self.engine.begin() as connection:
                has_more = periods.sum_portion(connection)

    def marks(self) -> int:
        with self.engine.connect() as connection:
            return connection.execute(
                select(func.count()).select_from(period_use).where(period_use.c.key == "")
            ).scalar_one()

    def reports(self, queries: list[ReportQuery]) -> list[tuple[list[Row], Row]]:
        answers: list[tuple[list[Row], Row]] = []
        with self.engine.connect() as connection:
            assert list(find_mismatches(connection)) == []
        for query in queries:
            with self.engine.connect() as connection:
                rows, total = read_report(connection, query)
            answers.append((sorted(rows, key=repr), total))
        return answers


KEYS = [
    (),
    (ReportKey.USER,),
    (ReportKey.ACCOUNT,),
    (ReportKey.CLUSTER, ReportKey.MONTH),
    (ReportKey.DAY, ReportKey.USER),
    (ReportKey.DAY,),
    (ReportKey.USER, ReportKey.CLUSTER),
]


@pytest.mark.slow("each example has a database of its own, on disk")
@given(
    first=st.lists(
        st.tuples(
            days,
            st.sampled_from(["left", "right"]),
            users,
            st.sampled_from(["", "grant"]),
            st.integers(1, 9),
        ),
        min_size=1,
        max_size=12,
    ),
    late=st.lists(st.tuples(days, users, st.integers(1, 9)), max_size=3),
    period=st.tuples(days, days).map(sorted),
    sums_again=st.booleans(),
)
@examples(12)
def test_reports_are_those_of_the_days(
    first: list[tuple[int, str, str, str, int]],
    late: list[tuple[int, str, int]],
    period: list[int],
    sums_again: bool,
) -> None:
    database = Database()
    try:
        for use in first:
            database.report_use(*use)
        database.sum_periods()
        assert (database.marks() > 0) == any(day < TODAY for day, *_ in first)
        for day, user, seconds in late:
            database.report_use(day, "left", user, "grant", seconds)
        if sums_again:
            database.sum_periods()
        queries = [
            ReportQuery(
                ReportKind.USE, number_of(period[0]), number_of(period[1]), by, largest=largest
            )
            for by in KEYS
            for largest in (None, 1)
        ]
        queries += [
            ReportQuery(ReportKind.USE, 0, 99991231, (ReportKey.MONTH,), user="ann"),
            ReportQuery(ReportKind.USE, 0, 99991231, (ReportKey.USER,), user="ann"),
        ]
        answers = database.reports(queries)
        with database.engine.begin() as connection:
            connection.execute(delete(period_use))
        assert database.reports(queries) == answers
    finally:
        database.engine.dispose()


@pytest.mark.parametrize(("most", "marks"), [(12, 3), (11, 0)])
def test_a_period_is_summed_from_few_rows(
    monkeypatch: pytest.MonkeyPatch, most: int, marks: int
) -> None:
    """The rows of all keys count together: writers wait for all of them."""
    monkeypatch.setattr("metasched.db.period_use.MAX_ROWS", most)
    database = Database()
    try:
        for user in ("ann", "bob"):
            database.report_use(0, "left", user, "", 5)
        database.sum_periods()
        assert database.marks() == marks
        rows, _ = database.reports([ReportQuery(ReportKind.USE, 0, 99991231, ())])[0]
        assert rows[0]["cpu_outside"] == 10.0
    finally:
        database.engine.dispose()
