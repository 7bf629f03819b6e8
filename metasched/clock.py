"""Tells that the wall clock was set: it then goes another way than the monotonic one."""

from __future__ import annotations

import time

MIN_STEP = 1.0  # seconds; less is a clock that is being corrected, not set


class ClockStepDetector:
    """Compares the two clocks of this host since it was made, or last asked."""

    def __init__(self) -> None:
        self._offset = self.offset()

    @staticmethod
    def offset() -> float:
        """Seconds by which the wall clock is ahead of the monotonic one."""
        return time.time() - time.monotonic()

    def detect_step(self) -> float:
        """By how many seconds the wall clock was set since the last call; 0.0 if it was not."""
        offset = self.offset()
        step_seconds = offset - self._offset
        if abs(step_seconds) < MIN_STEP:
            return 0.0
        self._offset = offset
        return step_seconds
