"""Progress of the scheduler, as reported to the watchdog of systemd.

A process that only answers requests would not do: each part must have come round.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Progress:
    """Which parts of the scheduler have come round since the last look."""

    timers: bool = False  # due events were raised
    database: bool = False  # the ledger accepts writes

    def note_retry(self) -> None:
        """The database is away and was tried again: a new process could do no more."""
        self.timers = self.database = True

    def take(self) -> bool:
        """Return whether all parts have come round since the last call that returned True."""
        if not (self.timers and self.database):
            return False
        self.timers = self.database = False
        return True
