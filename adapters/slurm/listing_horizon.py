"""The start of the time span for which a Slurm listing proves absence. Pure.

All durations are measured by the local monotonic clock. The controller's clock serves two purposes:
its uptime (`ManagerUptime`), and the detection of a forward step, after which the controller
forgets ended jobs early.
"""

from __future__ import annotations

import math

from metasched.adapters.manager_uptime import ManagerUptime
from metasched.adapters.slurm.listing import ControllerInfo

MIN_CLOCK_STEP = 2.5  # seconds; the controller reports its time in whole seconds


class ListingHorizon:
    """Follows a controller from poll to poll."""

    def __init__(self) -> None:
        self._uptime = ManagerUptime()
        self._forgotten_before = -math.inf  # jobs that ended earlier may be forgotten already
        self._last_listed: float | None = None
        self._clock_offset = 0.0

    def update(
        self, controller: ControllerInfo, listed_at: float, queried_at: float
    ) -> tuple[float, float]:
        """Return the times (absence proved since, controller up since) after a listing.

        All times are seconds of the local monotonic clock: `listed_at` when the listing arrived,
        `queried_at` when `controller` did. The controller's times are rounded down to seconds.
        """
        up_since = self._uptime.update(controller.boot, controller.now, listed_at, queried_at)
        clock_offset = controller.now - queried_at
        if self._last_listed is not None and clock_offset > self._clock_offset + MIN_CLOCK_STEP:
            self._forgotten_before = self._last_listed
        self._clock_offset, self._last_listed = clock_offset, listed_at
        age = math.inf if controller.min_job_age is None else controller.min_job_age
        return max(up_since, listed_at - age, self._forgotten_before), up_since
