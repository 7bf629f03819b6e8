"""When managers expect what waits there to begin. No decision rests on it, and nothing stores it.

It is kept beside the core, since each listing tells it anew, and a change of it alone is no event.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metasched.adapters.protocol import News
from metasched.core.tasks import Attempt, Place
from metasched.model.job import State
from metasched.model.tags import parse_tag


@dataclass(frozen=True)
class Expectation:
    """`cluster` expects a task to begin at `start`, as it said at `told` (epoch seconds)."""

    start: float
    cluster: str
    told: float


@dataclass
class Expectations:
    """What one cluster expects of our tasks, by job, task and sending, as it last `told`."""

    cluster: str
    told: float = 0.0
    _starts: dict[tuple[int, int, int], float] = field(default_factory=dict)

    def learn(self, news: News, instance: str) -> None:
        """Take over what is new in a listing."""
        self.told = news.taken
        if news.full:
            self._starts.clear()
        for tag, index, _, start in news.expected:
            if (sending := parse_tag(tag, instance)) is None:
                continue
            key = (sending[0], index, sending[1])
            if start is None:
                self._starts.pop(key, None)
            else:
                self._starts[key] = start

    def of(self, place: Place, attempt: Attempt) -> Expectation | None:
        """What is expected of an attempt there; None: nothing, or it does not wait."""
        if attempt.state is not State.PENDING:
            return None
        start = self._starts.get((*place, attempt.sending))
        return None if start is None else Expectation(start, self.cluster, self.told)
