"""Size of portions of work that exclude other writers: as large as others can wait for. Pure.

A portion costs a time for its statements and commit, and a time for its rows. Half the rows help
only against the latter. So a size that is not quicker by much was too small. Single durations are
noise on a busy host: the quickest of a few counts.
"""

from __future__ import annotations

import math

PORTION_SECONDS = 0.05  # for which a portion may exclude other writers
MUCH_TOO_LONG = 8 * PORTION_SECONDS  # a single portion of that time is evidence
SMALLEST = 1 / 64  # of a full portion
WINDOW = 4  # portions
QUICKER = 0.75  # of the time of the portion of twice the size, if the rows take the time
FAST_GROWTH = 2.0  # of portions that take less than half the time
GROWTH = 1.25  # of portions that leave less


class PortionSize:
    """Part of a full portion, adapted to the seconds that portions take."""

    def __init__(self) -> None:
        self.part = 1.0
        self._durations: list[float] = []  # of portions of this size
        self._before_halving = math.inf  # seconds of portions of twice the size, just before

    def rows(self, full: int) -> int:
        """Return the rows of the next portion, where a full portion has `full`."""
        return max(int(full * self.part), 1)

    def note(self, seconds: float) -> None:
        """Adapt to the duration of a portion."""
        self._durations.append(seconds)
        if len(self._durations) < WINDOW and seconds < MUCH_TOO_LONG:
            return
        quickest = min(self._durations)
        self._durations.clear()
        before, self._before_halving = self._before_halving, math.inf
        if quickest <= PORTION_SECONDS:
            for growth in (FAST_GROWTH, GROWTH):
                if quickest * growth < PORTION_SECONDS:
                    self.part = min(self.part * growth, 1.0)
                    break
        elif quickest > QUICKER * before:
            self.part = min(self.part * 4, 1.0)
        else:
            self._before_halving = quickest
            self.part = max(self.part / 2, SMALLEST)
