"""The reservations of the book by id, by cluster and node, and by when they are due. Pure.

No event walks all reservations: those of years ahead, or of the past, cost it nothing.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

from metasched.carts.assigned_nodes import AssignedNodes
from metasched.carts.node_assignment import NodeDemand
from metasched.model.reservation import OPEN_STATES, Reservation, ReservationState

_SPARE_ENTRIES = 64  # outdated entries of a heap that are kept without rebuilding it


class ReservationIndex:
    """All reservations of the book. `by_id` is for reading; `store` and `remove` change it."""

    def __init__(self) -> None:
        self.by_id: dict[int, Reservation] = {}
        self._open: dict[str, dict[int, Reservation]] = {}  # by cluster and id
        self._counts: Counter[str] = Counter()  # of all, by cluster
        self._assigned: dict[str, AssignedNodes] = {}  # of those that may still move, by cluster
        self._starts: dict[str, DueTimes] = {}  # of those that may still move, by cluster

    def load(self, reservations: Iterable[Reservation]) -> None:
        """Replace all reservations; those on a cluster are listed in the given order."""
        self.by_id.clear()
        self._open.clear()
        self._counts.clear()
        self._assigned.clear()
        self._starts.clear()
        for reservation in reservations:
            self.store(reservation)

    def store(self, reservation: Reservation) -> None:
        """Add a reservation, or replace its version. O(log n) for each node that changes."""
        id, cluster = reservation.id, reservation.cluster
        if id not in self.by_id:
            self._counts[cluster] += 1
        self.by_id[id] = reservation
        if reservation.state in OPEN_STATES:
            self._open.setdefault(cluster, {})[id] = reservation
        elif cluster in self._open:
            self._open[cluster].pop(id, None)
        starts = self._starts.setdefault(cluster, DueTimes())
        if may_still_move(reservation):
            self.assigned_on(cluster).put(demand_of(reservation))
            starts.set(id, reservation.start)
        else:
            self.assigned_on(cluster).remove(id)
            starts.discard(id)

    def remove(self, reservation: Reservation) -> None:
        """Forget a reservation that is over. O(1)."""
        del self.by_id[reservation.id]
        self._counts[reservation.cluster] -= 1

    def open_on(self, cluster: str) -> list[Reservation]:
        """Return the open reservations of a cluster."""
        return list(self._open.get(cluster, {}).values())

    def assigned_on(self, cluster: str) -> AssignedNodes:
        """Return the nodes of the reservations of a cluster that may still move; for reading."""
        if cluster not in self._assigned:
            self._assigned[cluster] = AssignedNodes()
        return self._assigned[cluster]

    def first_start_on(self, cluster: str) -> float | None:
        """Return the earliest start of a reservation that may still move, or None. O(1)."""
        return self._starts[cluster].first if cluster in self._starts else None

    def has_any_on(self, cluster: str) -> bool:
        """Return whether a cluster's manager has, or is to have, any reservation. O(1)."""
        return self._counts[cluster] > 0


def may_still_move(reservation: Reservation) -> bool:
    """Return whether a reservation is open, and its window has not begun."""
    return reservation.state in OPEN_STATES and reservation.state is not ReservationState.ACTIVE


def demand_of(reservation: Reservation) -> NodeDemand:
    """Return what a reservation that may still move demands of its cluster."""
    return NodeDemand(
        reservation.id,
        reservation.start,
        reservation.until,
        reservation.size,
        reservation.nodes,
    )


class DueTimes:
    """A due time (epoch seconds) for each id: a heap, in which outdated entries are passed over.

    A change takes O(log n) in n ids; the earliest time is read in O(1).

    >>> due = DueTimes()
    >>> due.set(1, 10.0)
    >>> due.set(2, 20.0)
    >>> due.set(1, 30.0)
    >>> due.first, due.ids_until(25.0)
    (20.0, [2])
    """

    def __init__(self) -> None:
        self._times: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def set(self, id: int, time: float) -> None:
        """Set the time of an id."""
        if self._times.get(id) != time:
            self._times[id] = time
            heapq.heappush(self._heap, (time, id))
            self._drop_outdated()

    def discard(self, id: int) -> None:
        """Forget the time of an id, if it has one."""
        if self._times.pop(id, None) is not None:
            self._drop_outdated()

    @property
    def first(self) -> float | None:
        """The earliest time, or None."""
        return self._heap[0][0] if self._heap else None

    def ids_until(self, now: float) -> list[int]:
        """Return the ids whose time is `now` or earlier, in ascending order; they keep it."""
        entries = set[tuple[float, int]]()
        while self._heap and self._heap[0][0] <= now:
            entries.add(heapq.heappop(self._heap))
        current = [entry for entry in entries if self._times.get(entry[1]) == entry[0]]
        for entry in current:
            heapq.heappush(self._heap, entry)
        self._drop_outdated()
        return sorted(id for _, id in current)

    def _drop_outdated(self) -> None:
        """Keep the first entry valid, and outdated entries fewer than valid ones."""
        if len(self._heap) > 2 * len(self._times) + _SPARE_ENTRIES:
            self._heap = [(time, id) for id, time in self._times.items()]
            heapq.heapify(self._heap)
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
