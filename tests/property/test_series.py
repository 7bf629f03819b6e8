"""Series of reservations under crashes and outages: each occurrence is decided exactly once.

The real planner and the real core run by a clock that the test sets; surveys are the test's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from metasched.core.calendar_events import CalendarEntryRemoved, CalendarEntrySet, CalendarRun
from metasched.core.reservations.events import (
    ReservationCancelled,
    ReservationRequested,
    SurveyReceived,
)
from metasched.daemon import series
from metasched.daemon.calendar_runner import recurrence_of
from metasched.daemon.reservation_requests import NoClusterNow, ReservationTerms
from metasched.daemon.series import SeriesPlanner, cancel_series
from metasched.errors import ApiError
from metasched.model.calendar import CalendarEntry, Reserve, RunResult
from metasched.model.cluster import Cluster
from metasched.model.reservation import OPEN_STATES
from metasched.model.reservation_request import ReservationQuota, ReservationRequest
from metasched.model.survey import NodeUsage, Survey
from tests.harness.examples import examples
from tests.property.killed_daemon import Crash, KilledDaemon

NOW = 1_900_000_800.0
HOUR, DAY = 3600.0, 86400.0
MAX_PROMISED = 6  # occurrences of a user that are reserved at a time
ALPHA = Cluster(name="alpha", adapter="slurm", supports_reservations=True)


class Series(KilledDaemon, RuleBasedStateMachine):
    """A daemon with series of two users, killed between any two steps."""

    @initialize(sizes=st.tuples(st.integers(1, 3), st.integers(1, 2)))
    def boot(self, sizes: tuple[int, int]) -> None:
        self.begin(NOW)
        self.monotonic = 0.0
        self.answer = ""  # what a request meets: "", "503", "no cluster", "403"
        self.horizon = 30 * DAY  # of all users
        self.settings = SimpleNamespace(quota_of=lambda _: ReservationQuota(self.horizon))
        self.restart()
        for owner, size, rule_text in (
            ("ada", sizes[0], "0 */6 * * *"),
            ("bob", sizes[1], "daily 12:00"),
        ):
            recurrence = recurrence_of(rule_text, "UTC")
            entry = CalendarEntry(
                id=next(self.numbers),
                act=Reserve(least=size, most=size, duration=2 * HOUR, by_node=True),
                rule=rule_text,
                zone="UTC",
                owner=owner,
                requested_by=owner,
                created=NOW,
                grace=0.0,
                lead=2 * DAY,
                until=NOW + 6 * DAY,
                next_run=recurrence.next_after(NOW),
            )
            self.store(CalendarEntrySet(NOW, entry, owner))

    def restart(self) -> None:
        self.replay(ALPHA)
        self.planner = SeriesPlanner(cast(Any, self))

    async def survey_and_check(
        self, _: Any, user: str, terms: ReservationTerms, next_id: Any, series_id: int
    ) -> ReservationRequested:
        self.crash_here()
        nodes = (NodeUsage(("n1", "n2"), 4, True),)
        self.store(SurveyReceived(self.now, "alpha", Survey(self.now, nodes)))
        self.crash_here()
        if self.answer == "no cluster":
            raise NoClusterNow(403, "no cluster takes reservations now")
        if self.answer:
            raise ApiError(int(self.answer), "refused")
        assert terms.ready is not None
        assert terms.deadline is not None
        assert terms.deadline <= self.now + self.horizon
        request = ReservationRequest.fixed(terms.least, terms.ready, terms.deadline)
        clusters = ("alpha",)
        horizon = self.now + self.horizon
        return ReservationRequested(self.now, next_id(), user, request, True, clusters, horizon)

    def look(self) -> None:
        """Reserve all that is due."""

        async def reserve_due() -> None:
            while due := self.planner._due_entries():
                for entry in due:
                    await self.planner._reserve_next(entry)
            await self.planner._close_finished()

        with (
            patch("time.time", lambda: self.now),
            patch("time.monotonic", lambda: self.monotonic),
            patch.object(series, "MAX_PROMISED", MAX_PROMISED),
            patch.object(series, "survey_and_check", self.survey_and_check),
        ):
            asyncio.run(reserve_due())

    @rule(hours=st.integers(1, 40), answer=st.sampled_from(["", "", "503", "no cluster", "403"]))
    def time_passes(self, hours: int, answer: str) -> None:
        self.answer = answer
        for _ in range(hours):
            self.now += HOUR
            self.monotonic += HOUR
            self.look()
        self.answer = ""

    @rule(hours=st.integers(0, 100), steps=st.integers(0, 20))
    def it_is_killed_between_two_steps(self, hours: int, steps: int) -> None:
        self.now += hours * HOUR
        self.steps_left = steps
        with suppress(Crash):
            self.look()
        self.steps_left = None
        self.restart()
        self.look()

    @rule(hours=st.integers(3, 80))
    def a_reload_sets_the_horizon(self, hours: int) -> None:
        self.horizon = hours * HOUR

    @precondition(lambda self: self.core.reservations.by_id)
    @rule(data=st.data())
    def an_occurrence_is_cancelled(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.core.reservations.by_id)))
        self.store(ReservationCancelled(self.now, id, "ada"))

    @precondition(lambda self: self.core.calendar.entries)
    @rule(data=st.data())
    def a_request_is_repeated(self, data: st.DataObject) -> None:
        """A daemon that lost its place sends an earlier request again."""
        requests = [e for e, _ in self.stored if isinstance(e, ReservationRequested)]
        if requests:
            before = dict(self.core.reservations.by_id)
            assert not self.store(data.draw(st.sampled_from(requests))).calendar
            assert self.core.reservations.by_id == before
            self.stored.pop()

    @precondition(lambda self: len(self.core.calendar.entries) == 2)
    @rule()
    def a_series_is_cancelled(self) -> None:
        entry = next(iter(self.core.calendar.entries.values()))
        with patch("time.time", lambda: self.now):
            asyncio.run(cancel_series(cast(Any, self), entry, entry.owner))
        open_ones = self.core.reservations.by_id.values()
        assert not [r for r in open_ones if r.series == entry.id and r.state in OPEN_STATES]

    @invariant()
    def each_occurrence_is_reserved_once(self) -> None:
        ids = {
            id: (reservation.series, reservation.start)
            for _, outcome in self.stored
            for id, reservation in outcome.reservations.items()
        }
        assert max(Counter(ids.values()).values(), default=1) == 1

    @invariant()
    def few_are_reserved_at_a_time(self) -> None:
        reserved = Counter(
            reservation.user
            for reservation in self.core.reservations.by_id.values()
            if reservation.state in OPEN_STATES
        )
        assert max(reserved.values(), default=0) <= MAX_PROMISED

    @invariant()
    def every_occurrence_that_is_due_is_decided(self) -> None:
        removed = {e.id for e, _ in self.stored if isinstance(e, CalendarEntryRemoved)}
        for id, entry in self.core.calendar.entries.items():
            assert id not in removed
            recurrence = recurrence_of(entry.rule, entry.zone)
            first = recurrence.next_after(NOW)
            assert first is not None
            assert entry.until is not None
            end = entry.next_run if entry.next_run is not None else entry.until + 1
            expected = recurrence.count(first, end - 1, 1000) if end > first else 0
            assert self.decided(id) == expected

    def decided(self, id: int) -> int:
        """Return the number of occurrences that were reserved or skipped."""
        number = 0
        for event, outcome in self.stored:
            if id not in outcome.calendar:
                continue
            if isinstance(event, CalendarRun):
                assert event.result is RunResult.SKIPPED
                number += event.count
            elif isinstance(event, ReservationRequested):
                number += 1
        return number


TestSeries = pytest.mark.slow("forty lives of series over days")(Series.TestCase)
TestSeries.settings = examples(40, steps=12)
