"""Events of the calendar; times are seconds since the epoch."""

from __future__ import annotations

import msgspec

from metasched.model.calendar import CalendarEntry, RunResult


class CalendarEntrySet(msgspec.Struct, frozen=True):
    """An entry was added or changed, by the site's file or a user's request."""

    time: float
    entry: CalendarEntry
    by: str = ""  # account; "": the site's file
    cause: str = ""  # what changed


class CalendarEntryRemoved(msgspec.Struct, frozen=True):
    """An entry was removed from the site's file, or a series was cancelled or is over."""

    time: float
    id: int
    by: str = ""  # account; "": the site's file, or time
    cause: str = ""


class CalendarRun(msgspec.Struct, frozen=True):
    """A run began, ended, or was skipped."""

    time: float
    id: int
    due: float  # nominal time of the run; of the first, if several were skipped
    result: RunResult
    next_run: float | None = None  # nominal time of the next; None: there is none
    cause: str = ""
    last: float | None = None  # nominal time of the last of several skipped runs
    count: int = 1  # runs that this stands for


CalendarEvent = CalendarEntrySet | CalendarEntryRemoved | CalendarRun
