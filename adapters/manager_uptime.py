"""Since when a manager is up, followed from poll to poll by the start that it reports. Pure."""

from __future__ import annotations


class ManagerUptime:
    """Follows the starts of a manager that loses its last seconds at a restart.

    The manager's clock counts only for its uptime when a start is first seen.
    """

    def __init__(self) -> None:
        self._start: float | None = None  # by the manager's clock
        self._up_since = 0.0  # by the local monotonic clock
        self._last_listed: float | None = None  # the same

    def update(self, start: float, now: float, listed_at: float, queried_at: float) -> float:
        """Return since when the manager has certainly been up.

        `start` and `now` are its start and its time by its own clock, rounded down to seconds. All
        other times are seconds of the local monotonic clock: `listed_at` when its listing arrived,
        `queried_at` when its start did. The start is asked for after the listing. So a restart in
        between makes the listing prove less, never more.
        """
        if start != self._start:
            up_since = queried_at - max(now - start - 1, 0.0)
            if self._last_listed is not None:  # it may have had another start then
                up_since = max(up_since, self._last_listed)
            self._up_since, self._start = up_since, start
        self._last_listed = listed_at
        return self._up_since

    def skip(self, listed_at: float) -> None:
        """Record a listing of a manager that did not tell its start."""
        self._last_listed = listed_at
