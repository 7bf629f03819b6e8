"""Totals of licences by time of day: who gets tokens before, during and after."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from msgspec import structs

from metasched.api.licences import _reserved_windows
from metasched.config.reading import load_settings
from metasched.config.settings import CalendarSettings, ConfigError
from metasched.core.calendar_events import CalendarEntrySet
from metasched.core.events import (
    CoreEvent,
    DaemonStarted,
    Dispatch,
    DispatchAccepted,
    DispatchStarted,
    JobSubmitted,
    LicenceSet,
    Outcome,
    TimerExpired,
)
from metasched.core.recovered_state import RecoveredState
from metasched.core.scheduler import Core
from metasched.core.tasks import Intent
from metasched.daemon.calendar_runner import CalendarRunner
from metasched.model.calendar import LimitLicence
from metasched.model.cluster import Cluster
from metasched.model.job import Job, State
from metasched.model.licence import LicencePool
from metasched.model.reservation import Reservation
from metasched.policies.policy import Policy
from metasched.times.recurrence import parse_recurrence
from tests.unit.core_site import Site

CONFIG = """
[daemon]
zone = "UTC"
[[cluster]]
name = "left"
adapter = "local"
cpus = 8
[[licence]]
name = "matlab"
total = 4
[[calendar]]
name = "day"
"""
LINES = {"do": '"licence"', "at": '"08:00"', "licence": '"matlab"', "total": "1", "lasts": '"10h"'}
DAY = CalendarSettings("day", LimitLicence("matlab", 1, 36000.0), "08:00", "UTC", 36000.0)


def at(text: str) -> float:
    return datetime.fromisoformat(f"2030-01-{text}+00:00").timestamp()


def read(folder: Path, changes: Mapping[str, str]) -> tuple[CalendarSettings, ...]:
    path = folder / "metasched.toml"
    lines = "".join(f"{key} = {value}\n" for key, value in {**LINES, **changes}.items() if value)
    path.write_text(CONFIG + lines)
    return load_settings(path).calendar


def test_the_file(tmp_path: Path) -> None:
    limit = structs.replace(cast(LimitLicence, DAY.act), longest_gap=50400.0)
    assert read(tmp_path, {}) == (replace(DAY, act=limit),)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"licence": '"matlap"'}, 'no licence "matlap", .*write "matlab"'),
        ({"licence": ""}, 'no licence "", .*name one of matlab'),
        ({"total": ""}, "no total, .*calendar"),
        ({"lasts": ""}, "no lasts, .*calendar"),
        ({"total": "-1"}, "total = -1, .*whole number from 0"),
        ({"lasts": '"10s"'}, 'lasts = "10s", .*from 60'),
        ({"cluster": '"left"'}, 'cluster beside do = "licence"'),
        ({"grace": '"1h"'}, 'grace beside do = "licence"'),
        ({"do": '"prune"'}, 'licence beside do = "prune"'),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, changes: Mapping[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as error:
        read(tmp_path, changes)
    assert "\n" not in str(error.value)


class Licences:
    """A core with four tokens, of which the calendar leaves one from 08:00 to 18:00."""

    def __init__(self, *entries: CalendarSettings) -> None:
        self.site = Site(pools=(LicencePool(name="matlab", total=4),))
        self.core = self.site.core
        self.settings = SimpleNamespace(calendar=entries or (DAY,))
        self.ledger = SimpleNamespace(next_reservation=lambda: 3)
        self.job = 0
        self.started: list[int] = []

    async def apply_events(self, *events: CoreEvent) -> list[Outcome]:
        return [self.step(event) for event in events]

    def step(self, event: CoreEvent) -> Outcome:
        outcome = self.core.step(event)
        for action in outcome.actions:
            if isinstance(action, Dispatch):
                self.started.append(action.job)
        return outcome

    def look(self, now: str) -> None:
        """Let the daemon look at the calendar, and raise the timer of the core if it is due."""
        runner = CalendarRunner(cast(Any, self), cast(Any, None), cast(Any, None))

        async def parts() -> None:
            await runner.take_over_file()
            await runner.start_due_runs()

        with patch("time.time", lambda: at(now)):
            asyncio.run(parts())
        if self.core.next_due is not None and self.core.next_due <= at(now):
            self.step(TimerExpired(at(now)))

    def submit(self, now: str, tokens: int, hours: float | None) -> int:
        """Submit a job with a limit in hours; return its id."""
        self.job += 1
        limit = None if hours is None else hours * 3600
        job = Job(
            id=self.job,
            submitted=at(now),
            estimated=limit or 60.0,
            cpus=1,
            time_limit=limit,
            licences={"matlab": tokens},
        )
        self.step(JobSubmitted(at(now), job))
        return self.job

    def obstacle(self, job: int, now: str) -> str:
        obstacle = self.core.licence_obstacle(self.core.tasks[job, 0], at(now))
        return "" if obstacle is None else obstacle.text


def test_before_the_total_falls_only_tasks_that_end_by_then_get_the_tokens() -> None:
    licences = Licences()
    licences.look("02T05:00")
    short = licences.submit("02T05:00", 2, hours=1)
    assert licences.started == [short]
    over = licences.submit("02T05:00", 2, hours=4)
    endless = licences.submit("02T05:00", 2, hours=None)
    assert licences.started == [short]
    assert "kept for calendar entry day" in licences.obstacle(over, "02T05:00")
    assert "has no time limit" in licences.obstacle(endless, "02T05:00")


def test_tokens_that_are_there_by_day_go_to_long_tasks() -> None:
    licences = Licences()
    licences.look("02T05:00")
    first, second = (licences.submit("02T05:00", 1, hours=20) for _ in range(2))
    assert licences.started == [first]
    assert "kept for calendar entry day" in licences.obstacle(second, "02T05:00")


def test_the_total_rises_again_without_another_event() -> None:
    licences = Licences()
    licences.look("02T05:00")
    licences.look("02T08:00")
    job = licences.submit("02T09:00", 3, hours=1)
    [status] = licences.core.licences.statuses(at("02T09:00"))
    assert (status.total, status.free, status.reserved) == (4, 1, 3)
    licences.look("02T17:59")
    assert licences.started == []
    assert licences.core.next_due == at("02T18:00")
    licences.look("02T18:00")
    assert licences.started == [job]


def test_an_entry_that_is_new_or_late_holds_for_the_rest_of_its_time() -> None:
    for begin in ("02T10:00", "03T10:00"):
        licences = Licences()
        licences.look(begin)  # of the first it is new; the second has missed two days
        licences.look("03T12:00")
        job = licences.submit("03T12:00", 2, hours=1)
        assert licences.started == []
        licences.look("03T18:00")
        assert licences.started == [job]


def test_a_changed_rule_holds_today_and_the_old_one_no_longer() -> None:
    licences = Licences(replace(DAY, rule="01:00"))
    licences.look("02T05:00")
    licences.settings.calendar = (DAY,)
    licences.look("02T12:00")
    job = licences.submit("02T12:00", 2, hours=1)
    assert licences.started == []
    [entry] = licences.core.calendar.entries.values()
    assert (entry.last_runs, entry.next_run) == ((at("02T08:00"),), at("03T08:00"))
    licences.settings.calendar = (replace(DAY, rule="wed,thu 08:00"),)  # the 2nd is a Wednesday
    licences.look("02T12:30")
    [entry] = licences.core.calendar.entries.values()
    assert (entry.last_runs, entry.next_run) == ((at("02T08:00"),), at("03T08:00"))  # not again
    assert licences.started == []
    licences.settings.calendar = (replace(DAY, rule="20:00"),)
    licences.look("02T13:00")
    assert licences.started == [job]


def test_after_the_clock_was_set_back_the_limit_of_that_day_holds() -> None:
    licences = Licences()
    for day in ("04", "05"):  # by mistake
        licences.look(f"{day}T09:00")
    runner = CalendarRunner(cast(Any, licences), cast(Any, None), cast(Any, None))
    with patch("time.time", lambda: at("02T09:00")):
        asyncio.run(runner.correct_for_clock())
    licences.look("02T09:00")
    licences.submit("02T09:00", 2, hours=1)
    assert licences.started == []
    [entry] = licences.core.calendar.entries.values()
    assert entry.next_run == at("03T08:00")
    with patch("time.time", lambda: at("02T09:30")):
        asyncio.run(runner.correct_for_clock())  # changes nothing further
    assert licences.core.calendar.entries[entry.id] is entry
    licences.look("02T18:00")
    assert licences.started == [1]
    for day in ("04", "05"):
        licences.look(f"{day}T08:00")
        [status] = licences.core.licences.statuses(at(f"{day}T09:00"))
        assert status.reserved == 3


def test_the_limit_follows_the_total_and_ends_with_the_entry() -> None:
    licences = Licences()
    licences.look("02T09:00")
    licences.step(LicenceSet(at("02T09:00"), "matlab", 1, "root"))  # below that of the calendar
    [status] = licences.core.licences.statuses(at("02T09:00"))
    assert (status.total, status.reserved) == (1, 0)
    licences.step(LicenceSet(at("02T09:00"), "matlab", None, "root"))
    job = licences.submit("02T09:00", 4, hours=1)
    assert licences.started == []
    licences.settings.calendar = ()
    licences.look("02T09:01")
    assert licences.started == [job]


def test_a_restart_keeps_it() -> None:
    licences = Licences()
    licences.look("02T09:00")
    entries = list(licences.core.calendar.entries.values())
    again = Licences()
    again.core = Core()
    again.core.restore(
        RecoveredState(
            tasks=[], last_dispatches={}, info={}, margins=[], drains=[], calendar=entries
        )
    )
    clusters = (Cluster(name="left", adapter="local"),)
    pools = (LicencePool(name="matlab", total=4),)
    again.step(DaemonStarted(at("02T09:00"), "cafe", Policy(), clusters, pools=pools))
    [status] = again.core.licences.statuses(at("02T09:00"))
    assert (status.free, status.reserved) == (1, 3)


def test_a_task_that_has_not_started_gives_its_tokens_back_before() -> None:
    licences = Licences()
    licences.look("02T06:00")
    job = licences.submit("02T06:00", 2, hours=1)
    licences.site.step(DispatchStarted(at("02T06:00"), job, 1))
    licences.site.step(DispatchAccepted(at("02T06:00"), job, 1, {0: "7"}))
    row = licences.site.row(State.PENDING)
    licences.site.seen("left", None, row, at=at("02T06:10"))
    assert licences.core.tasks[job, 0].live_attempt.intent is None
    licences.site.seen("left", None, row, at=at("02T07:30"))
    assert licences.core.tasks[job, 0].live_attempt.intent is Intent.RECALL


def test_the_record_of_an_entry_names_reservations_that_it_takes_tokens_from() -> None:
    licences = Licences()
    terms = {"user": "ada", "cluster": "left", "size": 1, "cpus": 1, "created": 0.0, "nodes": ()}
    for id, begin, tokens in ((8, "04T07:00", 1), (9, "04T16:00", 1)):
        window = Reservation(
            id=id,
            start=at(begin),
            end=at(begin) + 7200.0,
            licences={"matlab": tokens},
            **cast(Any, terms),
        )
        licences.core.reservations.by_id[id] = window
    events: list[CoreEvent] = []
    apply = licences.apply_events

    async def record(*given: CoreEvent) -> list[Outcome]:
        events.extend(given)
        return await apply(*given)

    with patch.object(licences, "apply_events", record):
        licences.look("02T05:00")  # it leaves one token, as much as each of them has
        window = structs.replace(window, id=10)
        licences.core.reservations.by_id[10] = window
        licences.settings.calendar = (replace(DAY, rule="08:30"),)
        licences.look("02T05:01")
    causes = [event.cause for event in events if isinstance(event, CalendarEntrySet)]
    conflict = "changed; reservations 9, 10 had the promise of 2 then, at 2030-01-04T16:00:00"
    assert causes[0] == "new"
    assert causes[1].startswith(conflict)


@pytest.mark.parametrize(
    ("rule", "gap"),
    [
        ("08:00", 14 * 3600.0),
        ("mon-fri 08:00", (14 + 48) * 3600.0),
        ("0 8 1 * *", (31 * 24 - 10) * 3600.0),
        ("*/5 8-17 * * mon-fri", None),  # the first 400 runs would not show the week-end
        ("0 * * * *", None),
    ],
)
def test_the_longest_gap_is_never_taken_for_shorter(rule: str, gap: float | None) -> None:
    assert parse_recurrence(rule, "UTC").longest_gap(36000.0) == gap


def with_gap(gap: float) -> CalendarSettings:
    return replace(DAY, act=structs.replace(cast(LimitLicence, DAY.act), longest_gap=gap))


def test_what_no_gap_of_the_calendar_has_room_for_is_refused() -> None:
    licences = Licences(with_gap(14 * 3600.0))
    licences.look("02T05:00")
    hint = "ask for at most 1 or give a time limit of at most 32768 s"
    leaves = f"but calendar entry day leaves 1, every time after 50400 s at most; {hint}"
    for tokens, limit, problem in (
        (2, 15 * 3600.0, f"2 of licence matlab for 54000 s, {leaves}"),
        (2, None, f"2 of licence matlab without a time limit, {leaves}"),
        (2, 32768.0, None),
        (1, 15 * 3600.0, None),
    ):
        job = Job(
            id=9,
            submitted=at("02T05:00"),
            estimated=limit or 60.0,
            cpus=1,
            time_limit=limit,
            licences={"matlab": tokens},
        )
        assert licences.core.rejection_reason(job) == problem
        other = structs.replace(job, licences={}, licence_choices=())
        assert licences.core.rejection_reason(other) is None


def test_a_task_that_never_starts_keeps_no_tokens_from_others() -> None:
    licences = Licences(with_gap(14 * 3600.0))
    licences.settings.calendar = ()
    running = licences.submit("02T18:00", 3, hours=5)
    never = licences.submit("02T18:00", 4, hours=15)
    licences.settings.calendar = (with_gap(14 * 3600.0),)
    licences.look("02T18:01")
    assert licences.obstacle(never, "02T18:01").endswith("at most 32768 s")
    assert "it never starts" in licences.obstacle(never, "02T18:01")
    second = licences.submit("02T18:02", 1, hours=20)
    assert licences.started == [running, second]


def test_operators_see_it() -> None:
    licences = Licences()
    licences.look("02T09:00")
    with patch("time.time", lambda: at("02T09:00")):
        windows = list(_reserved_windows(licences.core, "matlab"))
    assert [(w["reservation"], w["entry"], w["count"]) for w in windows] == [(None, "day", 3)] * 2
    with patch("time.time", lambda: at("02T19:00")):
        [following] = _reserved_windows(licences.core, "matlab")
    assert following["start"] == windows[1]["start"]
    [entry] = licences.core.calendar.entries.values()
    assert entry.describe() == "have 1 of licence matlab for 36000 s"
