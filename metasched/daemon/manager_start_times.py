"""When managers expect what waits there to begin. No decision rests on it, and nothing stores it.

It is kept beside the core, since each listing tells it anew, and a change of it alone is no event.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metasched.adapters.protocol import ListingDelta
from metasched.core.tasks import Attempt, TaskId
from metasched.model.job import State
from metasched.model.tags import parse_tag


@dataclass(frozen=True)
class ExpectedStart:
    """`cluster` expects a task to begin at `start`, as it said at `told` (epoch seconds)."""

    start: float
    cluster: str
    reported_at: float


@dataclass
class ManagerStartTimes:
    """What one cluster expects of our tasks, by job, task and sending, as it last `told`."""

    cluster: str
    reported_at: float = 0.0
    _starts: dict[tuple[int, int, int], float] = field(default_factory=dict)

    def update(self, delta: ListingDelta, instance: str) -> None:
        """Take over what is new in a listing."""
        self.reported_at = delta.taken
        if delta.full:
            self._starts.clear()
        for tag, index, _, start in delta.expected_starts:
            if (dispatch := parse_tag(tag, instance)) is None:
                continue
            key = (dispatch[0], index, dispatch[1])
            if start is None:
                self._starts.pop(key, None)
            else:
                self._starts[key] = start

    def expected_start(self, task_id: TaskId, attempt: Attempt) -> ExpectedStart | None:
        """What is expected of an attempt there; None: nothing, or it does not wait."""
        if attempt.state is not State.PENDING:
            return None
        start = self._starts.get((*task_id, attempt.dispatch_id))
        return None if start is None else ExpectedStart(start, self.cluster, self.reported_at)
