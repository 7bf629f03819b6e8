"""The calendar under crashes, restarts and steps of the clock: each run happens at most once.

The real runner and the real core run by a clock that the test sets.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from metasched.config.database_url import sqlite_url
from metasched.config.settings import CalendarSettings
from metasched.core.calendar_events import CalendarRun
from metasched.core.events import ClusterDrained, ClusterResumed, CoreEvent
from metasched.daemon import calendar_runner
from metasched.daemon.backup_threads import BackupThreads
from metasched.daemon.calendar_runner import CalendarRunner, RunsOutside, recurrence_of
from metasched.daemon.scheduled_policies import ScheduledPolicies
from metasched.model.calendar import (
    BackUpDatabase,
    CalendarEntry,
    DrainCluster,
    PruneDatabase,
    ResumeCluster,
    RunResult,
)
from metasched.model.cluster import Cluster
from tests.harness.examples import examples
from tests.property.killed_daemon import Crash, KilledDaemon

NOW = 1_806_188_400.0  # 2027-03-28T00:00 in Berlin, two hours before its clocks are changed
GRACE = 3600.0
FILE = (
    CalendarSettings("night", DrainCluster("left", "power"), "daily 22:00", "Europe/Berlin", GRACE),
    CalendarSettings("morning", ResumeCluster("left"), "daily 06:00", "Europe/Berlin", GRACE),
    CalendarSettings("copy", BackUpDatabase("/b", 3), "daily 02:30", "Europe/Berlin", 2 * GRACE),
    CalendarSettings("often", PruneDatabase(), "*/20 * * * *", "UTC", 60.0),
)


STEPS = st.one_of(
    st.integers(1, 180), st.integers(1, 180), st.integers(1, 10_000)
)  # minutes; of the clock


class Calendars(KilledDaemon, RuleBasedStateMachine):
    """A daemon with its calendar, killed between any two steps."""

    @initialize()
    def boot(self) -> None:
        self.begin(NOW)
        self.copies: set[float] = set()  # files of backups, by the nominal time of their runs
        self.is_monotonic = True  # the clock was never set back
        self.restart()

    # The daemon

    def restart(self) -> None:
        """Start a daemon on what is stored."""
        self.replay(Cluster(name="left", adapter="local"))
        self.runner = CalendarRunner(
            cast(Any, self),
            self.prune,
            RunsOutside(BackupThreads(), ScheduledPolicies(cast(Any, None))),
        )
        self.run(self.runner.take_over_file, self.runner.correct_for_clock)

    @property
    def settings(self) -> Any:
        return SimpleNamespace(calendar=FILE, database_url=sqlite_url(Path("/b.db")))

    def write_backup(self, _: Any, folder: Path, name: str, due: float, copies: int) -> str:
        self.crash_here()
        self.copies.add(due)
        self.crash_here()
        return f"{folder}/{name}"

    async def prune(self) -> str:
        self.crash_here()
        return "0 jobs"

    def run(self, *parts: Callable[[], Any]) -> None:
        async def run_parts() -> None:
            for part in parts:
                await part()

        with self.at_the_time():
            asyncio.run(run_parts())

    @contextmanager
    def at_the_time(self) -> Iterator[None]:
        with (
            patch("time.time", lambda: self.now),
            patch.object(calendar_runner, "write_backup", self.write_backup),
        ):
            yield

    async def finish_begun_runs(self) -> None:
        for entry in list(self.core.calendar.entries.values()):
            if entry.running is not None:
                await self.runner.finish_run(entry)

    def look(self) -> None:
        parts = (self.runner.start_due_runs, self.finish_begun_runs)
        self.run(*parts, *parts)  # what was under way before a crash delays the next

    # What happens

    @rule(minutes=st.integers(1, 90))
    def time_passes(self, minutes: int) -> None:
        self.let_pass(minutes)

    def let_pass(self, minutes: int) -> None:
        """Let the daemon look at the clock whenever something is due."""
        end = self.now + minutes * 60.0
        while self.now < end:
            runs = (entry.next_run for entry in self.core.calendar.entries.values())
            self.now = min(end, *(moment for moment in runs if moment is not None))
            self.look()

    @rule(hours=st.integers(1, 60))
    def the_daemon_is_down(self, hours: int) -> None:
        self.now += hours * 3600.0
        self.restart()
        self.look()

    @rule(steps=st.integers(0, 12), minutes=st.integers(0, 600))
    def it_is_killed_between_two_steps(self, steps: int, minutes: int) -> None:
        self.now += minutes * 60.0
        self.steps_left = steps
        with suppress(Crash):
            self.look()
        self.steps_left = None
        self.restart()
        self.look()

    @rule(minutes=STEPS)
    def the_clock_jumps_ahead(self, minutes: int) -> None:
        self.now += minutes * 60.0
        self.look()

    @rule(minutes=STEPS, restarted=st.booleans(), then=st.integers(0, 240))
    def the_clock_is_set_back(self, minutes: int, restarted: bool, then: int) -> None:
        self.now = max(self.now - minutes * 60.0, NOW - 86400.0)
        self.is_monotonic = False
        if restarted:
            self.restart()
        self.run(self.runner.correct_for_clock)
        self.look()
        self.let_pass(then)

    @rule()
    def a_report_is_repeated(self) -> None:
        """An earlier run is reported again, as by a daemon that lost its place."""
        runs = [event for event, _ in self.stored if isinstance(event, CalendarRun)]
        for event in runs[-3:]:
            before = dict(self.core.calendar.entries)
            entry = before[event.id]
            if event.due not in (entry.next_run, entry.running):
                assert not self.store(event).calendar
                assert self.core.calendar.entries == before
                self.stored.pop()

    # What must hold

    def runs(self, *results: RunResult) -> list[CalendarRun]:
        """Return the runs that counted."""
        return [
            event
            for event, outcome in self.stored
            if isinstance(event, CalendarRun) and outcome.calendar and event.result in results
        ]

    @invariant()
    def each_run_happens_once(self) -> None:
        done = Counter((run.id, run.due) for run in self.runs(RunResult.DONE, RunResult.FAILED))
        assert max(done.values(), default=1) == 1

    @invariant()
    def copies_are_of_runs(self) -> None:
        ids = [entry.id for entry in self.core.calendar.entries.values() if entry.name == "copy"]
        runs = self.runs(RunResult.DONE, RunResult.STARTED)
        assert self.copies <= {run.due for run in runs if run.id in ids}

    @invariant()
    def drains_have_their_runs(self) -> None:
        """Each drain and resume was stored beside its run, in one transaction."""
        before: CoreEvent | None = None
        for event, _ in self.stored:
            if isinstance(event, ClusterDrained | ClusterResumed):
                assert isinstance(before, CalendarRun)
                assert before.result is RunResult.DONE
            before = event

    @invariant()
    def nothing_due_waits(self) -> None:
        for entry in self.core.calendar.entries.values():
            assert entry.running is None
            assert entry.next_run is not None
            assert entry.next_run > self.now

    @precondition(lambda self: self.is_monotonic)
    @invariant()
    def every_time_is_done_or_skipped(self) -> None:
        for entry in self.core.calendar.entries.values():
            counted = sum(
                run.count
                for run in self.runs(RunResult.DONE, RunResult.FAILED, RunResult.SKIPPED)
                if run.id == entry.id
            )
            assert counted == self.times_until_now(entry)

    def times_until_now(self, entry: CalendarEntry) -> int:
        recurrence = recurrence_of(entry.rule, entry.zone)
        first = recurrence.next_after(NOW)
        assert first is not None
        if first > self.now:
            return 0
        last = recurrence.last_until(first, self.now)
        return recurrence.count(first, last, 10_000)


TestCalendars = pytest.mark.slow("sixty lives, whose runs are counted one by one")(
    Calendars.TestCase
)
TestCalendars.settings = examples(60, steps=15)
