"""Until when a command without an answer may have reached its manager, by the answered polls. Pure.

A manager that stands still keeps requests in its backlog, and later handles them in any order. So a
listing may overtake a submission whose command has ended without an answer. The time that passes
proves nothing. These facts do, for a command that ended before a poll began:

1. The poll was answered. So the manager runs again.
2. Since that answer the manager was free to handle what waits for `settle` seconds. Only the gaps
   between answered polls count. A gap counts as `settle` / 2 at most, and the longest does not
   count at all, since the manager may have stood still in it.
3. The listing began after that.

A poll that fails or is slow, or a change that gets no answer, begins all of that anew.
"""

from __future__ import annotations

import math
from collections import deque

_MAX_POLLS = 1000  # answered polls that are remembered
_DURATIONS = 20  # last polls among which the quickest shows how long a poll takes


class AnsweredCalls:
    """The polls that a manager has answered since it last gave no answer.

    Times are seconds of the monotonic clock, so steps of the wall clock play no part.
    """

    # TCP repeats a message at doubling intervals. So it comes at most as long after the end of a
    # silence as that lasted, and not at all after this many seconds.
    longest_repeat = 120.0

    def __init__(self, settle: float) -> None:
        """`settle`: running time in which the manager handles a request; 0: none ever waits."""
        self._settle = settle
        self._polls: deque[tuple[float, float]] = deque(maxlen=_MAX_POLLS)  # begin, answer
        self._durations: deque[float] = deque(maxlen=_DURATIONS)
        self._begun: float | None = None  # the poll that is under way
        self._last_answer: float | None = None  # of a poll; before it, begin of the first poll
        # Last answer before a silence, until TCP has delivered what was sent since then; before the
        # first answer, when the call began that got none.
        self._silent_since: float | None = None
        self._repeats_until = -math.inf  # when it has; inf: no call was answered since

    def begin_poll(self, now: float) -> None:
        """Record the begin of a poll; the one before has failed if it was not answered."""
        if self._last_answer is None:
            self._last_answer = now
        if self._begun is not None:
            self._restart()
        self._begun = now

    def end_poll(self, now: float) -> None:
        """Record the answer to the poll. A slow one shows that the manager stood still."""
        assert self._begun is not None
        begun, self._begun = self._begun, None
        duration = now - begun
        if duration > 2 * min(self._durations, default=duration) + self._settle / 2:
            self._restart()
        self._durations.append(duration)
        self._last_answer = now
        if self._silent_since is not None and self._repeats_until == math.inf:
            self._repeats_until = now + min(now - self._silent_since, self.longest_repeat)
        if begun >= self._repeats_until:
            self._silent_since = None
            self._polls.append((begun, now))

    def fail_change(self, begun: float, now: float) -> None:
        """Record a change without an answer. A quick one is an error, and the manager may run."""
        if now - begun > self._settle / 4:
            if self._last_answer is None:  # the first call of this worker is no poll
                self._last_answer = begun
            self._restart()

    def _restart(self) -> None:
        self._polls.clear()
        self._repeats_until = math.inf
        if self._silent_since is None:
            self._silent_since = self._last_answer

    def arrived_until(self, listed: float) -> float:
        """Return until when a command may have ended so that it cannot arrive after `listed`.

        It is the begin of a poll, or -inf if nothing is proved.
        """
        if not self._settle:
            return listed
        counted, longest, gap_end = 0.0, 0.0, listed
        for begun, answered in reversed(self._polls):
            if answered <= listed:
                gap = min(gap_end - answered, self._settle / 2)
                counted, longest = counted + gap, max(longest, gap)
                if counted - longest >= self._settle:
                    while self._polls[0][0] < begun:
                        self._polls.popleft()
                    return begun
            gap_end = min(gap_end, begun)
        return -math.inf
