"""The time until which a daemon is certainly active, in memory that its workers read.

A standby takes over from a daemon that is silent. The workers of that daemon may still hold calls
that it wrote before. They change nothing in their managers once a standby may have taken over.
"""

from __future__ import annotations

import os
import struct
import time

# Seconds for which a daemon that its database answered is certainly active. A standby waits longer,
# see `db.postgresql.SILENT_HOLDER`; but a restarted server lets it take over at once.
ACTIVE_SECONDS = 6.0
CHECK_INTERVAL = 0.1  # seconds
_TIME = struct.Struct("d")


def boot_time() -> float:
    """Return the seconds since this host booted; a suspended host goes on counting."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ActiveUntil:
    """The end of the time for which a daemon is certainly active, in seconds of `boot_time`.

    Processes that inherit `descriptor` share it.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def create(cls) -> ActiveUntil:
        """Return a time that has passed."""
        shared = cls(os.memfd_create("metasched-active-until"))
        shared.extend(0.0)
        return shared

    def extend(self, until: float) -> None:
        """Set the time."""
        os.pwrite(self.descriptor, _TIME.pack(until), 0)

    @property
    def has_passed(self) -> bool:
        """Whether another daemon may be active by now."""
        until: float = _TIME.unpack(os.pread(self.descriptor, _TIME.size, 0))[0]
        return boot_time() >= until

    def wait(self) -> None:
        """Wait until the daemon is certainly active; the worker ends with its daemon."""
        while self.has_passed:
            time.sleep(CHECK_INTERVAL)
