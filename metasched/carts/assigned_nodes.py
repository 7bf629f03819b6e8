"""The nodes of a cluster's reservations over time, kept as they change. Pure.

A request looks at the nodes and at what keeps them busy, not at all reservations.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import inf

from metasched.carts.node_assignment import (
    NodeDemand,
    assign_nodes_anew,
    complete_nodes,
    idle_times,
    merge_spans,
)
from metasched.model.survey import Span

MAX_CHECKS = 300_000  # windows sought on a node when all are assigned anew: about 0.3 s

_Taken = tuple[float, float, int]  # start, end, id
Assignment = dict[int, tuple[str, ...]]  # nodes by reservation


class AssignedNodes:
    """Demands with their current nodes. A change takes O(log n) for each node of the demand.

    >>> assigned = AssignedNodes()
    >>> assigned.put(NodeDemand(1, 0.0, 10.0, 1, ("n1",)))
    >>> assigned.assign({"n1": [], "n2": []}, [NodeDemand(2, 5.0, 15.0, 1)])
    {2: ('n2',)}
    """

    def __init__(self) -> None:
        self._demands: dict[int, NodeDemand] = {}
        self._taken: dict[str, list[_Taken]] = {}  # by node, in order; no list is empty
        self._incomplete: set[int] = set()  # demands with fewer nodes than their size
        self._overlaps = 0  # neighbours in `_taken` that overlap; none: nothing overlaps

    def put(self, demand: NodeDemand) -> None:
        """Add a demand, or replace it."""
        if self._demands.get(demand.id) == demand:
            return
        self.remove(demand.id)
        self._demands[demand.id] = demand
        if len(demand.current) < demand.size:
            self._incomplete.add(demand.id)
        entry = (demand.start, demand.end, demand.id)
        for node in demand.current:
            taken = self._taken.setdefault(node, [])
            position = bisect_left(taken, entry)
            self._overlaps += _overlaps([*taken[max(position - 1, 0) : position], entry])
            self._overlaps += _overlaps([entry, *taken[position : position + 1]])
            self._overlaps -= _overlaps(taken[max(position - 1, 0) : position + 1])
            taken.insert(position, entry)

    def remove(self, id: int) -> None:
        """Forget a demand, if it is there."""
        if (demand := self._demands.pop(id, None)) is None:
            return
        self._incomplete.discard(id)
        entry = (demand.start, demand.end, id)
        for node in demand.current:
            taken = self._taken[node]
            position = bisect_left(taken, entry)
            self._overlaps -= _overlaps(taken[max(position - 1, 0) : position + 2])
            del taken[position]
            self._overlaps += _overlaps(taken[max(position - 1, 0) : position + 1])
            if not taken:
                del self._taken[node]

    def ids_on(self, node: str, start: float, end: float) -> Iterator[int]:
        """Yield the demands that have a node in [start, end). O(log n), and O(1) for each."""
        return _ids_within(self._taken.get(node, ()), start, end)

    def assign(
        self,
        busy: Mapping[str, Sequence[Span]],
        new: Collection[NodeDemand],
        without: Collection[int] = (),
    ) -> Assignment | None:
        """Return the nodes of new demands, and of others that lack nodes or move; None: no room.

        `new` replace the demands with their ids; those in `without` are left out. The result is
        that of `assign_nodes` for all of them, without those that keep all of their nodes. If all
        would have to be assigned anew and that took more than `MAX_CHECKS`, only those move that
        are connected with an unmet demand by overlapping windows; beyond that none moves.
        """
        replaced = {*without, *(demand.id for demand in new)}
        use = self._use_beside(busy, replaced)
        unmet = self._release_lost(use, replaced)
        kept, lacks_taken = use.keep(new)
        if self._overlaps or lacks_taken:  # which of two keeps a node depends on the order of all
            assignment = complete_nodes(busy, self._others(replaced, new))
        else:
            assignment = use.complete([*unmet, *kept])
        if assignment is None:
            unmet_ids = {demand.id for demand in (*unmet, *new)}
            return _assign_anew(busy, self._others(replaced, new), unmet_ids)
        return assignment

    def place(
        self,
        busy: Mapping[str, Sequence[Span]],
        new: Collection[NodeDemand],
        without: Collection[int] = (),
    ) -> Assignment | None:
        """Return the nodes of new demands beside all others, none of which moves; None: no room.

        Others may lack nodes for which there is no room in their windows. `new` and `without` are
        as in `assign`.
        """
        if self._overlaps:
            return None
        use = self._use_beside(busy, {*without, *(demand.id for demand in new)})
        kept, lacks_taken = use.keep(new)
        return None if lacks_taken else use.complete(kept)

    def replace_lost(
        self, busy: Mapping[str, Sequence[Span]], failed: Collection[NodeDemand]
    ) -> Assignment:
        """Return nodes of failed demands, and of others that lack nodes, where there is room.

        `failed` replace the demands with their ids. First all keep their usable nodes. Then each
        gets its missing nodes beside all others, the earliest start first, then the least id. A
        demand without room hinders no other. The demands connected with it by overlapping windows
        are assigned anew, if all of them have their nodes then: within `MAX_CHECKS` altogether.
        """
        replaced = {demand.id for demand in failed}
        if self._overlaps:  # nodes are sought among windows that do not overlap
            use, unmet = _NodeUse(self._busy_beside(busy, replaced), {}), []
        else:
            use = self._use_beside(busy, replaced)
            unmet = self._release_lost(use, replaced)
        # first those whose nodes no other may have
        kept, _ = use.keep(sorted(failed, key=lambda demand: demand.id not in self._demands))
        assignment, short_ids = Assignment(), set[int]()
        for demand in sorted([*unmet, *kept], key=lambda demand: (demand.start, demand.id)):
            completed = use.complete([demand])
            if completed is None:
                short_ids.add(demand.id)
            else:
                assignment |= completed
        checks = 0
        for demands in _connected(self._others(replaced, failed), short_ids):
            needed = len(demands) * len(busy)
            if checks + needed <= MAX_CHECKS:
                checks += needed
                assignment |= _assign_by_amounts(busy, demands) or {}
        return assignment

    def _use_beside(self, busy: Mapping[str, Sequence[Span]], replaced: Iterable[int]) -> _NodeUse:
        """Return the use of nodes by all demands that are not replaced."""
        use = _NodeUse(busy, self._taken)
        for id in replaced:
            if id in self._demands:
                use.release(self._demands[id], self._demands[id].current)
        return use

    def _release_lost(self, use: _NodeUse, replaced: Collection[int]) -> list[NodeDemand]:
        """Release nodes that demands cannot keep; return the demands that lack nodes."""
        lost: dict[int, set[str]] = {}
        for node in self._taken:
            for id in use.obstructed_on(node):
                lost.setdefault(id, set()).add(node)
        unmet = []
        for id in (self._incomplete | lost.keys()).difference(replaced):
            demand, lost_nodes = self._demands[id], lost.get(id, set())
            use.release(demand, lost_nodes)
            kept = tuple(node for node in demand.current if node not in lost_nodes)
            unmet.append(replace(demand, current=kept))
        return unmet

    def _busy_beside(
        self, busy: Mapping[str, Sequence[Span]], replaced: Collection[int]
    ) -> dict[str, list[Span]]:
        """Return when nodes are busy, or taken by demands that are not replaced."""
        return {
            node: [
                *spans,
                *(
                    (start, end)
                    for start, end, id in self._taken.get(node, ())
                    if id not in replaced
                ),
            ]
            for node, spans in busy.items()
        }

    def _others(self, replaced: Collection[int], new: Iterable[NodeDemand]) -> list[NodeDemand]:
        """Return the demands that are not replaced, and new demands."""
        return [*(demand for id, demand in self._demands.items() if id not in replaced), *new]

    def _check(self, demands: Iterable[NodeDemand]) -> None:
        """Raise AssertionError unless it has these demands and all invariants hold."""
        assert self._demands == {demand.id: demand for demand in demands}
        incomplete = {id for id, d in self._demands.items() if len(d.current) < d.size}
        assert self._incomplete == incomplete
        taken: dict[str, list[_Taken]] = {}
        for demand in self._demands.values():
            for node in demand.current:
                insort(taken.setdefault(node, []), (demand.start, demand.end, demand.id))
        assert self._taken == taken
        assert self._overlaps == sum(map(_overlaps, taken.values()))


def _overlaps(entries: Sequence[_Taken]) -> int:
    """Return how many neighbours overlap."""
    return sum(later[0] < earlier[1] for earlier, later in pairwise(entries))


def _ids_within(taken: Sequence[_Taken], start: float, end: float) -> Iterator[int]:
    """Yield the ids of entries that overlap [start, end), the last first."""
    position = bisect_left(taken, (end, -inf, 0)) - 1
    while position >= 0 and taken[position][1] > start:
        yield taken[position][2]
        position -= 1


def _assign_anew(
    busy: Mapping[str, Sequence[Span]], demands: list[NodeDemand], unmet: Collection[int]
) -> Assignment | None:
    """Assign all demands anew, or those that matter to the unmet, within `MAX_CHECKS`."""
    if not any(demand.current for demand in demands):
        return None
    if len(demands) * len(busy) > MAX_CHECKS:
        demands = [demand for period in _connected(demands, unmet) for demand in period]
        if len(demands) * len(busy) > MAX_CHECKS:
            return None
    return _assign_by_amounts(busy, demands)


def _assign_by_amounts(
    busy: Mapping[str, Sequence[Span]], demands: Sequence[NodeDemand]
) -> Assignment | None:
    """Assign all demands anew, unless amounts forbid it: that takes less time to see."""
    changes = [(demand.start, demand.size) for demand in demands]
    changes += [(demand.end, -demand.size) for demand in demands]
    for node_spans in busy.values():
        for start, end in merge_spans(node_spans):
            changes += ((start, 1), (end, -1))
    changes.sort()  # at each moment what ends comes first
    most = max(accumulate(change for _, change in changes), default=0)
    return assign_nodes_anew(busy, demands) if most <= len(busy) else None


def _connected(demands: Iterable[NodeDemand], ids: Collection[int]) -> list[list[NodeDemand]]:
    """Return the demands of each period in which one of `ids` is, in order of time.

    A period is a row of windows that overlap or touch.
    """
    if not ids:
        return []
    demands = list(demands)
    periods = list(merge_spans((demand.start, demand.end) for demand in demands))
    members: list[list[NodeDemand]] = [[] for _ in periods]
    for demand in demands:
        members[bisect_right(periods, (demand.start, inf)) - 1].append(demand)
    return [period for period in members if any(demand.id in ids for demand in period)]


class _NodeUse:
    """When nodes are busy, and taken by demands. Changes do not reach what it was made of."""

    def __init__(
        self, busy: Mapping[str, Sequence[Span]], taken: Mapping[str, list[_Taken]]
    ) -> None:
        self._busy = {node: list(merge_spans(spans)) for node, spans in busy.items()}
        self._taken = taken
        self._changed: dict[str, list[_Taken]] = {}

    def _taken_on(self, node: str) -> list[_Taken]:
        changed = self._changed.get(node)
        return self._taken.get(node, []) if changed is None else changed

    def _changing(self, node: str) -> list[_Taken]:
        if node not in self._changed:
            self._changed[node] = self._taken.get(node, []).copy()
        return self._changed[node]

    def obstructed_on(self, node: str) -> Iterator[int]:
        """Yield demands that cannot keep a node: it is not there, or busy in their windows."""
        taken = self._taken_on(node)
        if node not in self._busy:
            yield from (id for _, _, id in taken)
        for start, end in self._busy.get(node, ()):
            yield from _ids_within(taken, start, end)

    def release(self, demand: NodeDemand, nodes: Iterable[str]) -> None:
        """Take nodes from a demand that has them."""
        entry = (demand.start, demand.end, demand.id)
        for node in nodes:
            taken = self._changing(node)
            del taken[bisect_left(taken, entry)]

    def _take(self, demand: NodeDemand, node: str) -> None:
        insort(self._changing(node), (demand.start, demand.end, demand.id))

    def keep(self, demands: Iterable[NodeDemand]) -> tuple[list[NodeDemand], bool]:
        """Give demands their current nodes that are free; return whether another has any of them.

        The demands are returned with the nodes that they keep.
        """
        kept, lacks_taken = [], False
        for demand in demands:
            nodes = []
            for node in demand.current:
                if node not in self._busy or idle_times(self._busy[node], demand) is None:
                    continue
                if idle_times(self._taken_on(node), demand) is None:
                    lacks_taken = True
                    continue
                self._take(demand, node)
                nodes.append(node)
            kept.append(replace(demand, current=tuple(nodes)))
        return kept, lacks_taken

    def complete(self, demands: Iterable[NodeDemand]) -> Assignment | None:
        """Give demands the nodes that they lack, by best fit; None: there are too few."""
        assignment = {}
        for demand in sorted(demands, key=lambda demand: (demand.start, demand.id)):
            nodes = list(demand.current)
            if missing := demand.size - len(nodes):
                free = []
                for index, node in enumerate(self._busy):
                    if (fit := self._fit(node, demand)) is not None:
                        free.append((fit, index, node))
                if len(free) < missing:
                    return None
                for _, _, node in sorted(free)[:missing]:
                    self._take(demand, node)
                    nodes.append(node)
            assignment[demand.id] = tuple(nodes)
        return assignment

    def _fit(self, node: str, demand: NodeDemand) -> tuple[float, float] | None:
        """Return the idle times around the window on a node; None: it is not free."""
        beside_taken = idle_times(self._taken_on(node), demand)
        if beside_taken is None or not self._busy[node]:
            return beside_taken
        beside_busy = idle_times(self._busy[node], demand)
        if beside_busy is None:
            return None
        return min(beside_busy[0], beside_taken[0]), min(beside_busy[1], beside_taken[1])
