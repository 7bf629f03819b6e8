"""Turns of users: within a priority, users who have tasks to place take turns. Pure.

This is deficit round robin by start-time fair queueing (Goyal, Vin and Cheng 1996): a heap of users
in place of a ring gives the same shares in O(log users) per task. Turns share out places in the
queues of managers and work of the daemon; both are the same for small and large tasks.

With fair share the rank in the tree of shares takes the place of turns: a task that was dispatched
is charged to its user at once, and its next rank follows from that.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from metasched.core.tasks import Task, TaskId
from metasched.model.job import Job

Turn = tuple[float, ...]  # the lowest goes first
# Rank of a task in a contest: level (negative), turn, last turn of the user, queue key, job, index
Rank = tuple[int, Turn, int, float, int, int]
FIRST_TURN: Turn = (-1.0,)  # before all turns
MAX_TURNS = 10_000  # levels of users that are remembered: waits make ever new levels


class ShareRanking(Protocol):
    """Ranks of jobs by fair share."""

    falls: int  # increases when any rank may have fallen

    def rank_of(self, job: Job) -> Turn:
        """Return the rank of a job's user; the lowest goes first."""


class UserTurns:
    """The turns that users have had since the start.

    The level of a task is its priority, plus a step for each `age` seconds that its user has waited
    for a turn. Higher levels go first; within a level users take turns; a user's tasks of equal
    priority keep their order. Turns count only while several users compete.

    A place that one user alone may have uses a turn of this user that may be ahead. That moves the
    clock, and makes the other users equal. Among equal users, the longest wait since the last
    turn goes first.
    """

    def __init__(self, shares: ShareRanking | None = None) -> None:
        """`shares` rank jobs by fair share; None: users take turns."""
        self._shares = shares
        self._next_turns: dict[tuple[int, str], float] = {}  # by level and user
        self._clocks: dict[int, float] = {}  # by level: the turn that was used last
        self._served_at: dict[str, float] = {}  # by user: epoch seconds of his last turn
        self._falls = 0  # new rounds, and waits that begin earlier
        self._turns = 0  # used by all users
        self._last_turns: dict[str, int] = {}  # by user: number of his last turn among these
        # first of its level, since processors are kept free for it until it starts
        self.reserved_head: TaskId | None = None

    def copy(self) -> UserTurns:
        """Return turns that go on from here by themselves."""
        copied = UserTurns(self._shares)
        copied._next_turns, copied._clocks = {**self._next_turns}, {**self._clocks}
        copied._served_at, copied._last_turns = {**self._served_at}, {**self._last_turns}
        copied._falls, copied._turns = self._falls, self._turns
        copied.reserved_head = self.reserved_head
        return copied

    def in_turns(
        self,
        queues: Iterable[Iterator[Task]],
        now: float,
        age: float,
        used_turn: Callable[[Task], bool],
    ) -> Iterator[Task]:
        """Yield the tasks of several users by turns.

        Each queue has tasks of one user, in his order. It is advanced only after the caller has
        handled its last task; `used_turn` returns whether that task used a turn of its user. `now`
        (epoch seconds) and `age` (seconds) give the levels.
        """

        def rank_of(task: Task) -> Rank:
            level, turn = self.level_and_turn(task.job, task.priority, task.queue_key, now, age)
            if task.task_id == self.reserved_head:
                turn = FIRST_TURN
            last_turn = self._last_turns.get(task.job.user, 0)
            return -level, turn, last_turn, task.queue_key, *task.task_id

        heap = []
        for order, queue in enumerate(queues):
            if (task := next(queue, None)) is not None:
                heap.append((rank_of(task), order, task, queue))
        heapq.heapify(heap)
        while heap:
            rank, order, task, queue = heap[0]
            current_rank = rank_of(task)
            if current_rank != rank:  # its user has had a turn since
                heapq.heapreplace(heap, (current_rank, order, task, queue))
                continue
            yield task
            if used_turn(task):
                self.use_turn(-rank[0], task.job.user, now)
            if (next_task := next(queue, None)) is not None:
                heapq.heapreplace(heap, (rank_of(next_task), order, next_task, queue))
            else:
                heapq.heappop(heap)

    def level_and_turn(
        self, job: Job, priority: int, queue_key: float, now: float, age: float
    ) -> tuple[int, Turn]:
        """Return the level of a job's task with this queue key, and the next turn of its user."""
        user, level = job.user, 0  # without `age`, any wait outweighs all priorities
        if age:
            waits_since = self._waits_since(user, priority, queue_key, age)
            level = priority + max(int((now - waits_since) // age), 0)
        if self._shares is not None:
            return level, self._shares.rank_of(job)
        return level, (self._next_turn(level, user),)

    def level_rises_at(
        self, user: str, priority: int, queue_key: float, now: float, age: float
    ) -> float:
        """Return when the level will be above that of `now`, if no turn is used before."""
        waits_since = self._waits_since(user, priority, queue_key, age)
        return waits_since + (max((now - waits_since) // age, 0.0) + 1.0) * age

    def _waits_since(self, user: str, priority: int, queue_key: float, age: float) -> float:
        """Return since when a task waits for a turn of its user (epoch seconds)."""
        # the queue key is the submission, earlier by `age` for each step above the first
        submitted = queue_key + age * (priority - 1)
        served_at = self._served_at.get(user)
        return submitted if served_at is None or served_at < submitted else served_at

    @property
    def falls(self) -> int:
        """A number that increases when any rank may have fallen at equal time; others rise."""
        return self._falls + (0 if self._shares is None else self._shares.falls)

    def _next_turn(self, level: int, user: str) -> float:
        """Return the next turn of a user; who did not compete for a while has no turns saved."""
        clock = self._clocks.get(level, 0.0)
        next_turn = self._next_turns.get((level, user), 0.0)
        return next_turn if next_turn > clock else clock

    def use_turn(self, level: int, user: str, now: float) -> None:
        """Count a turn of a user."""
        if self._served_at.get(user, now) > now:  # the clock was set back
            self._falls += 1
        self._served_at[user] = now
        if self._shares is not None:
            return
        if len(self._next_turns) >= MAX_TURNS:  # a new round
            self._falls += 1
            self._next_turns.clear()
            self._clocks.clear()
        self._turns += 1
        self._last_turns[user] = self._turns
        turn = self._next_turn(level, user)
        self._clocks[level] = turn
        self._next_turns[level, user] = turn + 1.0
