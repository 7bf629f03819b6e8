"""Start times that managers expect for pending tasks. They are shown to users only.

They are not stored and are no part of the core: each listing reports them again, and a change of
an expected start alone is no event.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metasched.adapters.protocol import ListingDelta
from metasched.core.tasks import Attempt, TaskId
from metasched.model.job import State
from metasched.model.tags import Instances


@dataclass(frozen=True)
class ExpectedStart:
    """The start that a manager expects for a task."""

    start: float  # epoch seconds
    cluster: str
    reported_at: float  # epoch seconds


@dataclass
class ManagerStartTimes:
    """Expected starts of the tasks on a cluster, from its last listing."""

    cluster: str
    reported_at: float = 0.0  # epoch seconds
    # epoch seconds by job, task and dispatch
    _starts: dict[tuple[int, int, int], float] = field(default_factory=dict)

    def update(self, delta: ListingDelta, instances: Instances) -> None:
        """Apply the changes of a listing."""
        self.reported_at = delta.taken
        if delta.full:
            self._starts.clear()
        for tag, index, _, start in delta.expected_starts:
            if (dispatch := instances.parse_tag(tag)) is None:
                continue
            key = (dispatch[0], index, dispatch[1])
            if start is None:
                self._starts.pop(key, None)
            else:
                self._starts[key] = start

    def expected_start(self, task_id: TaskId, attempt: Attempt) -> ExpectedStart | None:
        """Return the expected start of an attempt; None if it is unknown or not pending."""
        if attempt.state is not State.PENDING:
            return None
        start = self._starts.get((*task_id, attempt.dispatch_id))
        return None if start is None else ExpectedStart(start, self.cluster, self.reported_at)
