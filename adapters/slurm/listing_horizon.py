"""How far back a Slurm listing proves absence, whatever the clocks do meanwhile. Pure.

All durations are counted on our monotonic clock. The controller's clock is used for two things
only: how long it had been up when it was first seen with this boot, and that it was set forward,
since it then forgets early what has ended.
"""

from __future__ import annotations

import math

from metasched.adapters.slurm.listing import Controller

LEAST = 2.5  # seconds; the controller tells its time in whole ones


class Reach:
    """Follows one controller from poll to poll."""

    def __init__(self) -> None:
        self._boot: float | None = None
        self._up = 0.0
        self._forgot = -math.inf  # what ended before may have been forgotten early
        self._looked: float | None = None
        self._ahead = 0.0

    def look(self, controller: Controller, listed: float, asked: float) -> tuple[float, float]:
        """(absence is proved since, up since), in seconds of our monotonic clock.

        `listed` is the time after the listing came, `asked` after `controller` answered; its
        times are whole seconds, rounded down.
        """
        if controller.boot != self._boot:
            up = asked - max(controller.now - controller.boot - 1, 0.0)
            # it was up, with another boot, when last looked at
            self._up = up if self._looked is None else max(up, self._looked)
            self._boot = controller.boot
        ahead = controller.now - asked
        if self._looked is not None and ahead > self._ahead + LEAST:
            self._forgot = self._looked
        self._ahead, self._looked = ahead, listed
        kept = -math.inf if controller.min_job_age is None else listed - controller.min_job_age
        return max(self._up, kept, self._forgot), self._up
