"""Series of reservations: what one user may ask of the planner, and who else notices it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from metasched.core.calendar_events import CalendarEntrySet, CalendarRun
from metasched.core.events import CoreEvent, DaemonStarted, Outcome
from metasched.core.reservations.events import ReservationRequested, SurveyReceived
from metasched.core.scheduler import Core
from metasched.daemon import series
from metasched.daemon.calendar_runner import recurrence_of
from metasched.daemon.reservation_requests import ReservationTerms
from metasched.daemon.series import (
    MAX_RECORDS,
    MAX_REFUSED,
    MAX_RUN,
    REFUSED_PAUSE,
    SeriesPlanner,
    _check_occurrences,
)
from metasched.errors import ApiError, ParseError
from metasched.model.calendar import MIN_INTERVAL, CalendarEntry, Reserve
from metasched.model.cluster import Cluster
from metasched.model.reservation_request import ReservationQuota, ReservationRequest
from metasched.model.survey import NodeUsage, Survey
from metasched.policies.policy import Policy
from metasched.times.recurrence import Recurrence, parse_recurrence

NOW = 1_900_000_800.0
HOUR, DAY = 3600.0, 86400.0
ALPHA = Cluster(name="alpha", adapter="slurm", supports_reservations=True)
TOO_LARGE = 3  # nodes; the cluster has two


class Desk:
    """A planner with a real core, by a clock that the test sets."""

    def __init__(self) -> None:
        self.now, self.numbers = NOW, count(1)
        self.core = Core()
        self.core.step(DaemonStarted(NOW, "cafe", Policy(), (ALPHA,)))
        self.ledger = SimpleNamespace(next_reservation=lambda: next(self.numbers))
        self.tries: list[float] = []  # starts
        self.refused: set[float] = set()  # starts that are beyond a quota
        self.skipped: list[CalendarRun] = []
        self.reserved: list[ReservationRequested] = []
        self.horizon = 30 * DAY  # of all owners
        self.settings = SimpleNamespace(quota_of=lambda _: ReservationQuota(self.horizon))
        self.planner = SeriesPlanner(cast(Any, self))

    async def apply_events(self, *events: CoreEvent) -> list[Outcome]:
        self.skipped += [event for event in events if isinstance(event, CalendarRun)]
        self.reserved += [event for event in events if isinstance(event, ReservationRequested)]
        return [self.core.step(event) for event in events]

    def add(self, rule: str, until: float, owner: str = "ada", **terms: Any) -> int:
        entry = CalendarEntry(
            id=next(self.numbers),
            act=Reserve(**{"least": 1, "most": 1, "duration": 300.0, "by_node": True, **terms}),
            rule=rule,
            zone="UTC",
            owner=owner,
            created=NOW,
            grace=0.0,
            lead=28 * DAY,
            until=until,
            next_run=recurrence_of(rule, "UTC").next_after(NOW),
        )
        self.core.step(CalendarEntrySet(NOW, entry, owner))
        return entry.id

    async def survey_and_check(
        self, _: Any, user: str, terms: ReservationTerms, next_id: Any, __: int
    ) -> ReservationRequested:
        nodes = (NodeUsage(("n1", "n2"), 4, True),)
        self.core.step(SurveyReceived(self.now, "alpha", Survey(self.now, nodes)))
        assert terms.ready is not None
        assert terms.deadline is not None
        self.tries.append(terms.ready)
        if terms.ready in self.refused:
            raise ApiError(403, "that is more than you may reserve")
        if terms.deadline > self.now + self.horizon:
            raise ApiError(403, "that lies beyond the horizon")
        request = ReservationRequest.fixed(terms.least, terms.ready, terms.deadline)
        horizon = self.now + self.horizon
        return ReservationRequested(self.now, next_id(), user, request, True, ("alpha",), horizon)

    @contextmanager
    def clock(self) -> Iterator[None]:
        with (
            patch("time.time", lambda: self.now),
            patch("time.monotonic", lambda: self.now - NOW),
            patch.object(series, "survey_and_check", self.survey_and_check),
        ):
            yield

    def look(self, after: float = 0.0) -> None:
        """Let the planner do all that is due, `after` seconds later."""
        self.now += after

        async def pass_once() -> None:
            while due := self.planner._due_entries():
                for entry in due:
                    await self.planner._reserve_next(entry)

        with self.clock():
            self.planner._forget_closed()
            asyncio.run(pass_once())


def test_series_that_are_always_refused_make_few_records_and_tries() -> None:
    desk = Desk()
    for _ in range(50):
        desk.add("*/15 * * * *", NOW + 10 * DAY, least=TOO_LARGE, most=TOO_LARGE)
    other = desk.add("daily 12:00", NOW + 3 * DAY, "bob")
    desk.look()
    assert [event.series for event in desk.reserved] == [other] * 3  # bob does not wait
    assert len(desk.tries) == MAX_REFUSED + 3
    assert desk.skipped == []
    for _ in range(24):
        tries, records = len(desk.tries), len(desk.skipped)
        desk.look(HOUR)
        assert len(desk.tries) - tries <= MAX_REFUSED
        assert len(desk.skipped) - records <= MAX_RECORDS
    assert desk.skipped


def test_refused_occurrences_are_skipped_when_their_time_comes_by_one_record() -> None:
    desk = Desk()
    desk.add("*/15 * * * *", NOW + 6 * HOUR, least=TOO_LARGE, most=TOO_LARGE)
    desk.look()
    assert desk.skipped == []  # all were tried
    assert len(desk.tries) == 24
    desk.look(HOUR)
    [event] = desk.skipped
    assert event.cause == "that is not free on any cluster"
    assert (event.due, event.last, event.count) == (desk.tries[0], desk.tries[3], 4)
    for _ in range(6):
        desk.look(HOUR)
    assert sum(event.count for event in desk.skipped) == 24
    assert len(desk.skipped) <= 7
    [entry] = desk.core.calendar.entries.values()
    assert entry.next_run is None


def test_refused_ones_before_one_that_is_granted_are_skipped_by_one_record() -> None:
    desk = Desk()
    desk.add("0 * * * *", NOW + 8 * HOUR)
    first = recurrence_of("0 * * * *", "UTC").next_after(NOW)
    assert first is not None
    desk.refused = {first + hours * HOUR for hours in (1, 2, 3)}
    desk.look()
    [event] = desk.skipped
    assert (event.due, event.last, event.count) == (first + HOUR, first + 3 * HOUR, 3)
    assert event.cause == "that is more than you may reserve"
    starts = [event.request.ready for event in desk.reserved]
    assert starts == [first + hours * HOUR for hours in (0, 4, 5, 6, 7)]


def test_a_long_run_of_refused_ones_is_skipped_so_that_the_later_ones_are_reached() -> None:
    desk = Desk()
    desk.add("0 * * * *", NOW + 70 * HOUR)
    first = recurrence_of("0 * * * *", "UTC").next_after(NOW)
    assert first is not None
    desk.refused = {first + hours * HOUR for hours in range(60)}
    desk.look()
    assert [event.count for event in desk.skipped] == [MAX_RUN, 10]
    assert next(event.request.ready for event in desk.reserved) == first + 60 * HOUR


def test_a_shorter_horizon_loses_no_occurrence() -> None:
    """Those beyond it are not due yet: they are neither tried nor skipped."""
    desk = Desk()
    desk.add("0 * * * *", NOW + 4 * DAY)
    desk.horizon = DAY
    desk.look()
    assert len(desk.tries) == len(desk.reserved) == 24 - 1  # a whole one fits no longer
    desk.horizon = DAY / 2
    desk.look(HOUR)
    assert len(desk.tries) == 23
    for _ in range(4 * 24):
        desk.look(HOUR)
    starts = [event.request.ready for event in desk.reserved]
    assert len(starts) == len(set(starts)) == 4 * 24
    assert desk.tries == starts
    assert desk.skipped == []


def test_a_horizon_that_is_cut_during_a_run_of_refused_ones_ends_the_run() -> None:
    desk = Desk()
    desk.add("0 * * * *", NOW + 4 * DAY)
    first = recurrence_of("0 * * * *", "UTC").next_after(NOW)
    assert first is not None
    desk.refused = {first + hours * HOUR for hours in range(200)}
    [entry] = desk.core.calendar.entries.values()
    with desk.clock():
        for _ in range(5):
            asyncio.run(desk.planner._reserve_next(entry))
        desk.horizon = 3 * HOUR
        asyncio.run(desk.planner._reserve_next(entry))
    assert desk.tries == [first + hours * HOUR for hours in range(5)]
    desk.refused = set()
    desk.look(REFUSED_PAUSE)
    assert desk.skipped == [] or desk.skipped[0].last is None


def test_a_duration_beyond_the_horizon_is_refused_shortly_before_its_start() -> None:
    desk = Desk()
    desk.add("0 * * * *", NOW + 4 * HOUR, duration=2000.0)
    desk.horizon = 1000.0
    first = recurrence_of("0 * * * *", "UTC").next_after(NOW)
    assert first is not None
    desk.look()
    assert desk.tries == []
    desk.look(first - 30.0 - NOW)
    assert desk.tries == [first]
    desk.look(HOUR)
    assert [(event.due, event.cause) for event in desk.skipped] == [
        (first, "that lies beyond the horizon")
    ]


def test_a_refused_occurrence_is_reserved_once_it_is_free() -> None:
    desk = Desk()
    desk.add("daily 12:00", NOW + DAY)
    start = recurrence_of("daily 12:00", "UTC").next_after(NOW)
    assert start is not None
    desk.refused = {start}
    desk.look()
    desk.look(REFUSED_PAUSE / 2)
    assert desk.tries == [start]
    desk.refused = set()
    desk.look(REFUSED_PAUSE / 2)
    assert [event.request.ready for event in desk.reserved] == [start]
    assert desk.skipped == []


def test_a_zone_that_is_gone_ends_one_series_only() -> None:
    desk = Desk()
    id = desk.add("daily 12:00", NOW + 5 * DAY)
    start = desk.core.calendar.entries[id].next_run
    other = desk.add("daily 13:00", NOW + 5 * DAY, "bob")

    def find(rule: str, zone: str) -> Recurrence:
        if rule == "daily 12:00":
            raise ParseError("'UTC' is no time zone", "write another")
        return recurrence_of(rule, zone)

    with patch.object(series, "recurrence_of", find):
        desk.look()
        assert {event.series for event in desk.reserved} == {other}
        assert desk.skipped == []  # an update may bring it back
        desk.look(DAY)
    [event] = desk.skipped
    assert (event.id, event.due, event.next_run) == (id, start, None)
    assert event.cause == "'UTC' is no time zone on this host; make the series anew if it stays so"


def test_times_are_computed_beside_the_event_loop() -> None:
    desk = Desk()
    desk.add("0 * * * *", NOW + 8 * HOUR)
    threads: set[threading.Thread] = set()

    def find(rule: str, zone: str) -> Recurrence:
        threads.add(threading.current_thread())
        return recurrence_of(rule, zone)

    with patch.object(series, "recurrence_of", find):
        desk.look()
        desk.planner = SeriesPlanner(cast(Any, desk))
        desk.add("0 * * * *", NOW + 8 * HOUR, least=TOO_LARGE, most=TOO_LARGE)
        desk.look(4 * HOUR)
    assert desk.skipped
    assert threads
    assert threading.main_thread() not in threads


def test_occurrences_are_not_close_together() -> None:
    rule = parse_recurrence("*/15 * * * *", "UTC")
    assert _check_occurrences(rule, NOW, NOW + HOUR, 60.0).number == HOUR / MIN_INTERVAL
    with pytest.raises(ApiError, match=r"occurrences are 900 s apart or more, but 2030\S+ comes"):
        _check_occurrences(parse_recurrence("*/14 * * * *", "UTC"), NOW, NOW + HOUR, 60.0)
