"""The order of tasks that wait for tokens: users take turns, or go by fair share. Pure.

Ranks change all the time, but they mostly rise: a turn or a lease of a user puts his tasks behind
those of others. So each group keeps its lines in a heap of ranks that may be too low. Its least
entry is ranked anew until it stands; then it is the first. What lets a rank fall is known: another
first task, a promise, a level that rises with time, use that is taken back, a new round of turns, a
turn at an earlier time than the last. Then the line is entered again, or all lines are ranked anew.

Times are seconds since the epoch, durations seconds.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from metasched.core.licences.groups import LineRank, OwnerLine, RequestGroup
from metasched.core.tasks import TaskId
from metasched.core.user_turns import FIRST_TURN, UserTurns

ROUNDING = 1e-3  # seconds; more than the time of a level's change may be off
MAX_STALE = 64  # stale entries of a heap, besides an entry for each line


class QueueOrder:
    """The ranks of queued tasks; the smallest goes first."""

    def __init__(self, turns: UserTurns | None = None, age: float = 0.0) -> None:
        """`age` (seconds): see `UserTurns`."""
        self._turns, self._age = turns or UserTurns(), age
        self._several_users = False
        self._now = 0.0  # epoch seconds; time of the levels
        self._resets = 0  # falls of ranks that no turn causes
        self._serial = 0  # entries of heaps so far
        self.ranking = 0  # number of the ranking; each computes ranks anew when they are needed
        self.promised: set[TaskId] = set()  # first of their levels: free tokens are kept for them

    # Changes

    def rank_anew(self, now: float) -> None:
        """Rank all tasks anew when they are needed: turns and levels may have changed."""
        if self._several_users:
            self._now = now
            self.ranking += 1

    def set_several_users(self, several: bool) -> bool:
        """Set whether users take turns; return whether that changes the order."""
        if several == self._several_users:
            return False
        self._several_users = several
        self._resets += 1
        self.ranking += 1
        return True

    def promise(self, lines: Iterable[OwnerLine]) -> list[RequestGroup]:
        """Let the first tasks of these lines be first of their levels, and no other tasks.

        Return the groups whose ranks may have fallen.
        """
        previous, self.promised, fallen = self.promised, set(), []
        for line in lines:
            task_id = line.head_key[3:]
            self.promised.add(task_id)
            if task_id not in previous:
                line.group.changed[line] = None
                fallen.append(line.group)
        return fallen if self._several_users else []

    def use_turn(self, line: OwnerLine) -> None:
        """Count a turn of the user of a line."""
        if self._several_users:
            self._turns.use_turn(-self._rank_of(line)[0], line.owner.user, self._now)

    # Queries

    @property
    def falls(self) -> tuple[int, float]:
        """Changes when any rank may have fallen, except by another first task or a promise."""
        levels_at = self._now if self._age and self._several_users else 0.0
        return self._resets + self._turns.falls, levels_at

    def rank(self, group: RequestGroup) -> LineRank:
        """Return the rank of the first task of a group; O(log n) in its lines, amortised."""
        if group.rank is None or group.ranking != self.ranking:
            group.rank, group.ranking = self._find_first(group), self.ranking
        return group.rank

    def next_rise(self, groups: Iterable[RequestGroup]) -> float:
        """Return when time alone may let a task of these groups go before others, or infinity."""
        if not (self._age and self._several_users):
            return math.inf
        return min(map(self._rises_at, groups), default=math.inf)

    def _rises_at(self, group: RequestGroup) -> float:
        """Return from when on the level of a task of the group is higher, not before its rise."""
        if len(group.lines) > 1:
            self.rank(group)
            return group.valid_until + 2 * ROUNDING
        (line,) = group.lines.values()
        return self._line_rises_at(line) + ROUNDING

    def _line_rises_at(self, line: OwnerLine) -> float:
        if line.job is None:
            return math.inf
        return self._turns.level_rises_at(
            line.owner.user, line.owner.priority, line.head_key[2], self._now, self._age
        )

    def _rank_of(self, line: OwnerLine) -> LineRank:
        """Return the rank of the first task of a line.

        A single user has the order of the queue. Tokens that are kept for a task stay kept while
        others get turns.
        """
        key = line.head_key
        if line.job is None or not self._several_users:
            return 0, (), key
        level, turn = self._turns.level_and_turn(
            line.job, line.owner.priority, key[2], self._now, self._age
        )
        return -level, FIRST_TURN if key[3:] in self.promised else turn, key

    def _find_first(self, group: RequestGroup) -> LineRank:
        """Rank the least entry of a group's heap anew until its rank stands."""
        if len(group.lines) == 1:
            group.falls = -1
            group.changed.clear()
            return self._rank_of(*group.lines.values())
        falls = self._resets + self._turns.falls
        valid = falls == group.falls and self._now < group.valid_until
        if not valid or len(group.entries) > 2 * len(group.lines) + MAX_STALE:
            group.falls, group.valid_until = falls, math.inf
            group.entries = [self._entry(line) for line in group.lines.values()]
            heapq.heapify(group.entries)
        else:
            for line in group.changed:
                heapq.heappush(group.entries, self._entry(line))
        group.changed.clear()
        while True:
            rank, _, line = group.entries[0]
            if rank != line.rank:  # stale
                heapq.heappop(group.entries)
            elif rank == self._rank_of(line):
                return rank
            else:
                heapq.heapreplace(group.entries, self._entry(line))

    def _entry(self, line: OwnerLine) -> tuple[LineRank, int, OwnerLine]:
        """Rank a line anew and return its entry for the heap of its group."""
        line.rank = self._rank_of(line)
        self._serial += 1
        if self._age and self._several_users:
            valid_until = self._line_rises_at(line) - ROUNDING
            line.group.valid_until = min(line.group.valid_until, valid_until)
        return line.rank, self._serial, line
