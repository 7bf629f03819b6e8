"""How far back a Slurm listing proves absence, whatever the clocks do meanwhile. Pure.

All durations are counted on our monotonic clock. The controller's clock is used for two things
only: how long it had been up when it was first seen with this boot, and that it was set forward,
since it then forgets early what has ended.
"""

from __future__ import annotations

import math

from metasched.adapters.slurm.listing import ControllerInfo

MIN_CLOCK_STEP = 2.5  # seconds; the controller tells its time in whole ones


class ListingHorizon:
    """Follows one controller from poll to poll."""

    def __init__(self) -> None:
        self._boot: float | None = None
        self._up_since = 0.0
        self._forgotten_before = -math.inf  # what ended before may have been forgotten early
        self._last_listed: float | None = None
        self._clock_offset = 0.0

    def update(
        self, controller: ControllerInfo, listed_at: float, queried_at: float
    ) -> tuple[float, float]:
        """(absence is proved since, up since), in seconds of our monotonic clock.

        `listed` is the time after the listing came, `asked` after `controller` answered; its
        times are whole seconds, rounded down.
        """
        if controller.boot != self._boot:
            up_since = queried_at - max(controller.now - controller.boot - 1, 0.0)
            # it was up, with another boot, when last looked at
            self._up_since = (
                up_since if self._last_listed is None else max(up_since, self._last_listed)
            )
            self._boot = controller.boot
        clock_offset = controller.now - queried_at
        if self._last_listed is not None and clock_offset > self._clock_offset + MIN_CLOCK_STEP:
            self._forgotten_before = self._last_listed
        self._clock_offset, self._last_listed = clock_offset, listed_at
        retained_since = (
            -math.inf if controller.min_job_age is None else listed_at - controller.min_job_age
        )
        return max(self._up_since, retained_since, self._forgotten_before), self._up_since
