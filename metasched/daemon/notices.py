"""Audit records that no event of the core causes: refused credentials, defects, breakers.

They wait here until the scheduler service stores them, at most a second. Equal notices are counted,
so that a flood of them makes few rows and lines: the first is recorded at once, the others once
`WINDOW` seconds later. Conditions, such as "open" of a breaker, are recorded when they change.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace

from metasched.daemon.audit_log import log_record
from metasched.model.audit import AuditKind, AuditRecord, cleaned

WINDOW = 600.0  # seconds for which equal records are counted
MAX_SUBJECTS = 20  # of a kind in a window; all others count as a single subject
OTHERS = "others"
MAX_WAITING = 1000  # records while the database is away; more are in the log only
CONDITION_INTERVAL = 60.0  # seconds between records that a condition has become bad


@dataclass
class _Window:
    """Equal records since the first, which is recorded."""

    until: float  # monotonic seconds
    last: AuditRecord
    repeated: int = 0


@dataclass
class Notices:
    """Records to be stored. They outlive the scheduler service."""

    added: asyncio.Event = field(default_factory=asyncio.Event)
    _waiting: list[AuditRecord] = field(default_factory=list)
    _windows: dict[tuple[AuditKind, str], _Window] = field(default_factory=dict)
    _conditions: dict[str, tuple[AuditRecord, str]] = field(default_factory=dict)  # by subject
    _turned_bad: dict[str, float] = field(default_factory=dict)  # monotonic seconds, by subject

    def add(self, record: AuditRecord, subject: str, error: BaseException | None = None) -> None:
        """Record that something happened; records of a kind and subject are equal.

        The line of the log is written now: the database may be away. Each `error` has a line: the
        affected caller has received its id.
        """
        record, now = cleaned(record), time.monotonic()
        self._close_windows(now)
        subjects = sum(kind is record.kind for kind, _ in self._windows)
        if (record.kind, subject) not in self._windows and subjects >= MAX_SUBJECTS:
            subject = OTHERS
        window = self._windows.get((record.kind, subject))
        if window is not None:
            window.repeated, window.last = window.repeated + 1, record
            self.added.set()  # its end is to be waited for
            if error is not None:
                log_record(record, error)
            return
        self._windows[record.kind, subject] = _Window(now + WINDOW, record)
        self._record(record, error)

    def set_condition(self, record: AuditRecord, subject: str, value: str) -> None:
        """Record a condition of a subject once the service stores it, if it is another then.

        `value` "": the subject is well. The latest condition of a subject counts.
        """
        now = time.monotonic()
        if value and now - self._turned_bad.get(subject, -CONDITION_INTERVAL) < CONDITION_INTERVAL:
            return
        self._conditions[subject] = record, value
        if value:
            self._turned_bad[subject] = now
        self.added.set()

    def has_condition(self, subject: str) -> bool:
        """Return whether a condition of a subject waits to be stored."""
        return subject in self._conditions

    def take(self) -> tuple[list[AuditRecord], list[tuple[AuditRecord, str, str]]]:
        """Return the records to store, and those that depend on a condition."""
        self._close_windows(time.monotonic())
        records, self._waiting = self._waiting, []
        conditions = [(record, subject, v) for subject, (record, v) in self._conditions.items()]
        self._conditions = {}
        self.added.clear()
        return records, conditions

    def put_back(self, records: list[AuditRecord]) -> None:
        """Keep records that could not be stored."""
        self._waiting = records + self._waiting

    @property
    def next_due(self) -> float | None:
        """Monotonic seconds at which a window ends that has something to record, or None."""
        ends = (window.until for window in self._windows.values() if window.repeated)
        return min(ends, default=None)

    def close(self) -> None:
        """End all windows, since the daemon stops."""
        self._close_windows(float("inf"))

    def _close_windows(self, now: float) -> None:
        for key, window in list(self._windows.items()):
            if window.until > now:
                continue
            del self._windows[key]
            if window.repeated:
                cause = f"repeated; the last: {window.last.cause}"
                record = replace(window.last, cause=cause, count=window.repeated)
                if key[1] == OTHERS:
                    record = replace(record, details={"subjects": "several"})
                self._record(cleaned(record), None)

    def _record(self, record: AuditRecord, error: BaseException | None) -> None:
        log_record(record, error)
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(record)
        self.added.set()
