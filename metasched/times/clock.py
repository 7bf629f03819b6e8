"""Detects that the wall clock was set, by comparison with the monotonic clock."""

from __future__ import annotations

import time

MIN_STEP = 1.0  # seconds; smaller differences are gradual corrections


class ClockStepDetector:
    """Compares the two clocks of this host since its creation or the last detected step."""

    def __init__(self) -> None:
        self._offset = self.offset()

    @staticmethod
    def offset() -> float:
        """Return the seconds that the wall clock is ahead of the monotonic clock."""
        return time.time() - time.monotonic()

    def detect_step(self) -> float:
        """Return the seconds by which the wall clock was set since the last call, else 0.0."""
        offset = self.offset()
        step_seconds = offset - self._offset
        if abs(step_seconds) < MIN_STEP:
            return 0.0
        self._offset = offset
        return step_seconds
