"""Licences and array slots of tasks that can no longer run, though their end is unknown. Pure.

A manager that answers without a task has forgotten it: it starts the task no more, and ends what
still runs at the time limit. So the limit and a grace period after the first such listing, the
licences and the slot are returned. The task stays unknown. If it is listed again, it leases its
licences again, even above the total: then no other task gets any until it ends.
"""

from __future__ import annotations

from metasched.core.cluster_view import ClusterView
from metasched.core.gates import SchedulingGates
from metasched.core.leasing import LicenceLeasing
from metasched.core.state import SchedulerState
from metasched.core.tasks import Task
from metasched.core.usage_limits import UsageLimits

GRACE = 600.0  # seconds after the time limit, until managers have ended a job and counted licences


class LeaseExpiry:
    """Returns what such tasks hold, and takes it again if they are present after all."""

    def __init__(
        self,
        state: SchedulerState,
        leasing: LicenceLeasing,
        gates: SchedulingGates,
        limits: UsageLimits,
    ) -> None:
        self._state, self._leasing, self._gates, self._limits = state, leasing, gates, limits

    def is_due(self, task: Task, view: ClusterView, now: float) -> bool:
        """Return whether a task is missing for too long to run, so that its leases are due."""
        attempt, time_limit = task.live_attempt, task.job.time_limit
        if not attempt.missing or attempt.lease_expired or time_limit is None:
            return False
        # a manager that was down may have ended nothing meanwhile
        return now >= max(attempt.missing_since, view.up_since) + time_limit + GRACE

    def update(self, view: ClusterView, was_up: bool) -> None:
        """Apply a listing of a cluster; `was_up`: so did the last query of it."""
        now = self._state.now
        for task in list(view.needs_attention.values()):
            attempt = task.live_attempt
            if attempt.missing and not was_up:
                attempt.missing_since = now
            if attempt.lease_expired and not attempt.missing:
                attempt.lease_expired = False
                self._state.store(task)
                self._leasing.take_again(task)
                self._gates.take_slot_again(task)
                self._limits.update_dispatched(task, forced=True)
            elif self.is_due(task, view, now):
                attempt.lease_expired = True
                cause = "its manager has forgotten it, and its time limit is over"
                self._state.record_note(task, f"{cause}: its licences and array slot are free")
                self._leasing.return_lease(task, cause, attempt)
                self._gates.release_slot(task, now)
                self._limits.update_dispatched(task, forced=True)
