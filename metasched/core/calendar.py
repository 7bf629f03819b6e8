"""The calendar in the core: entries, and the exact place of each between two runs. Pure.

The shell computes times and reports runs. A run counts only if the entry waits for this run. So a
report that is repeated, stale or of another daemon changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from metasched.core.calendar_events import (
    CalendarEntryRemoved,
    CalendarEntrySet,
    CalendarRun,
)
from metasched.core.reservations.events import ReservationRequested
from metasched.core.state import SchedulerState
from metasched.model.calendar import MAX_REMEMBERED_RUNS, CalendarEntry, RunResult


class Calendar:
    """Entries by id. Changes go to the outcome of the step."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self.entries: dict[int, CalendarEntry] = {}

    def restore(self, entries: Iterable[CalendarEntry]) -> None:
        """Load stored entries, before the first event."""
        self.entries = {entry.id: entry for entry in entries}

    def apply_set(self, event: CalendarEntrySet) -> None:
        """Add or change an entry."""
        self._store(event.entry)

    def apply_removed(self, event: CalendarEntryRemoved) -> None:
        if self.entries.pop(event.id, None) is not None:
            self._state.outcome.calendar[event.id] = None

    def apply_run(self, event: CalendarRun) -> None:
        """Record a run, or the runs up to `last`, and go on to the next."""
        entry = self.entries.get(event.id)
        if entry is None or not is_awaited(entry, event):
            return
        if event.result is RunResult.STARTED:
            self._store(structs.replace(entry, next_run=event.next_run, running=event.due))
            return
        last_runs = entry.last_runs
        if event.result is not RunResult.SKIPPED:
            last_runs = (*last_runs, event.due)[-MAX_REMEMBERED_RUNS:]
        next_run = event.next_run if entry.running is None else entry.next_run
        self._store(structs.replace(entry, next_run=next_run, running=None, last_runs=last_runs))

    def awaits(self, event: ReservationRequested) -> bool:
        """Return whether a request is the next occurrence of its series, or belongs to none."""
        if event.series is None:
            return True
        entry = self.entries.get(event.series)
        return entry is not None and entry.next_run == event.request.ready

    def note_request(self, event: ReservationRequested) -> None:
        """Advance a series to its next occurrence, whether this request was granted or not."""
        if event.series is not None:
            entry = self.entries[event.series]
            self._store(structs.replace(entry, next_run=event.next_occurrence))

    def _store(self, entry: CalendarEntry) -> None:
        self.entries[entry.id] = self._state.outcome.calendar[entry.id] = entry


def is_awaited(entry: CalendarEntry, event: CalendarRun) -> bool:
    """Return whether an entry waits for the begin of a run, or for the end of a begun run."""
    return event.due == (entry.next_run if entry.running is None else entry.running)
