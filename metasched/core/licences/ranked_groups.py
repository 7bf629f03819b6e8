"""Groups of queued tasks by rank; only groups that are examined are sorted. Pure.

Ranks mostly rise, see `order`. So the heap may have ranks that are too low: its least entry is
ranked anew until it stands. What lets the rank of a group fall is noted by the queue, or counted by
the order.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator

from metasched.core.licences.groups import LineRank, RequestGroup
from metasched.core.licences.order import MAX_STALE, QueueOrder


class RankedGroups:
    """A set of groups, each with a task at least, that yields them by rank."""

    def __init__(self) -> None:
        self._numbers: dict[RequestGroup, int] = {}  # of the group's entry; others are stale
        self._entries: list[tuple[LineRank, int, RequestGroup]] = []  # a heap
        # groups whose rank may have fallen; the ranking that keeps their ranks of before, or -1
        self._fallen: dict[RequestGroup, int] = {}
        self._number = 0  # entries so far
        self._falls: tuple[int, float] | None = None  # `QueueOrder.falls` when all were ranked
        self._falls_ranking = -1  # and the ranking that showed it

    def __iter__(self) -> Iterator[RequestGroup]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, group: RequestGroup, order: QueueOrder) -> None:
        """Add a group, which may have no tasks as yet."""
        self._numbers.setdefault(group, -1)
        self.note_fall(group, order)

    def discard(self, group: RequestGroup) -> None:
        """Remove a group, if it is there."""
        self._numbers.pop(group, None)
        self._fallen.pop(group, None)

    def note_fall(self, group: RequestGroup, order: QueueOrder) -> None:
        """Have a group ranked anew, if it is there: its first task may go earlier."""
        if group in self._numbers:
            is_kept = group.rank is not None and group.ranking == order.ranking
            self._fallen[group] = order.ranking if is_kept else -1

    def in_order(self, order: QueueOrder) -> Generator[RequestGroup]:
        """Yield the groups by rank, O(log n) for each; some may be discarded meanwhile.

        The caller closes the iterator. Ranks are those of the present ranking, which must not
        change meanwhile.
        """
        self._rank_fallen(order)
        passed: list[tuple[LineRank, int, RequestGroup]] = []
        try:
            while self._entries:
                rank, number, group = self._entries[0]
                if self._numbers.get(group) != number:  # stale
                    heapq.heappop(self._entries)
                elif rank == (current := order.rank(group)):
                    passed.append(heapq.heappop(self._entries))
                    yield group
                else:
                    heapq.heapreplace(self._entries, self._entry(group, current))
        finally:
            if len(passed) > len(self._entries):
                self._entries += passed
                heapq.heapify(self._entries)
            else:
                for entry in passed:
                    heapq.heappush(self._entries, entry)

    def _rank_fallen(self, order: QueueOrder) -> None:
        """Enter the groups anew whose ranks may be lower than those of their entries."""
        falls = order.falls
        falls_again = falls != self._falls
        # ranks of before the last fall were perhaps kept then, until the next ranking
        is_due = falls_again or self._falls_ranking not in (-1, order.ranking)
        if is_due:
            self._falls, self._falls_ranking = falls, order.ranking if falls_again else -1
        if is_due or len(self._entries) + len(self._fallen) > 2 * len(self._numbers) + MAX_STALE:
            self._entries = [self._entry(group, order.rank(group)) for group in self._numbers]
            heapq.heapify(self._entries)
        else:
            for group in self._fallen:
                heapq.heappush(self._entries, self._entry(group, order.rank(group)))
        self._fallen = {g: at for g, at in self._fallen.items() if at == order.ranking}

    def _entry(self, group: RequestGroup, rank: LineRank) -> tuple[LineRank, int, RequestGroup]:
        """Return a new entry of a group, which replaces that of before."""
        self._number += 1
        self._numbers[group] = self._number
        return rank, self._number, group
