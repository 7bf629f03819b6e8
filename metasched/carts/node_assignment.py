"""Assignment of nodes to reservations, so that each has its nodes throughout. Pure."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from metasched.model.survey import Span


@dataclass(frozen=True)
class NodeDemand:
    """A reservation that needs `size` nodes for [start, end)."""

    id: int
    start: float
    end: float
    size: int
    current: tuple[str, ...] = ()  # nodes to keep if possible
    excluded: tuple[str, ...] = ()  # nodes not to use


def assign_nodes(
    busy: Mapping[str, Sequence[Span]],
    demands: Iterable[NodeDemand],
    group: Callable[[str], str] = lambda node: "",
) -> dict[int, tuple[str, ...]] | None:
    """Return nodes for all demands, or None if no assignment was found.

    `busy` lists the spans in which each node is not free. All nodes of a reservation are in the
    same group. First each demand keeps its current nodes that are free; if this fails, all are
    assigned anew. In order of their starts, each demand takes nodes from the group that is left
    with the fewest. It prefers nodes that were busy until the latest time and are needed again
    the soonest (best fit). With one group and no node busy in advance, this succeeds whenever the
    amounts allow it (Kurowski et al. 2011, Proposition 1); else it may fail although an assignment
    exists.
    """
    demands = list(demands)
    assignment = complete_nodes(busy, demands, group)
    if assignment is not None or not any(demand.current for demand in demands):
        return assignment
    return assign_nodes_anew(busy, demands, group)


def assign_nodes_anew(
    busy: Mapping[str, Sequence[Span]],
    demands: Iterable[NodeDemand],
    group: Callable[[str], str] = lambda node: "",
) -> dict[int, tuple[str, ...]] | None:
    """Return nodes for all demands as `assign_nodes`, without regard to their current nodes."""
    return complete_nodes(busy, (replace(demand, current=()) for demand in demands), group)


def complete_nodes(
    busy: Mapping[str, Sequence[Span]],
    demands: Iterable[NodeDemand],
    group: Callable[[str], str] = lambda node: "",
) -> dict[int, tuple[str, ...]] | None:
    """Return nodes for all demands as `assign_nodes`; each keeps its current nodes that are free.

    O(log n) for each node that a demand keeps, in n spans of the node. A demand that lacks nodes
    takes O(log n) for each node there is.
    """
    demands = sorted(demands, key=lambda demand: (demand.start, demand.id))
    spans = {node: list(merge_spans(node_spans)) for node, node_spans in busy.items()}
    assignment: dict[int, tuple[str, ...]] = {demand.id: () for demand in demands}
    for demand in demands:
        nodes = [
            node
            for node in demand.current
            if node in spans and idle_times(spans[node], demand) is not None
        ]
        assignment[demand.id] = tuple(nodes)
        for node in nodes:
            insort(spans[node], (demand.start, demand.end))
    for demand in demands:
        nodes = list(assignment[demand.id])
        missing = demand.size - len(nodes)
        if not missing:
            continue
        free: dict[str, list[tuple[tuple[float, float], int, str]]] = {}
        for index, (node, node_spans) in enumerate(spans.items()):
            fit = idle_times(node_spans, demand)
            if fit is not None and node not in nodes and node not in demand.excluded:
                free.setdefault(group(node), []).append((fit, index, node))
        groups = dict.fromkeys(group(node) for node in nodes) or free
        enough = [candidates for name in groups if len(candidates := free.get(name, [])) >= missing]
        if not enough:
            return None
        fewest = min(enough, key=lambda candidates: len(candidates))
        for _, _, node in sorted(fewest)[:missing]:
            nodes.append(node)
            insort(spans[node], (demand.start, demand.end))
        assignment[demand.id] = tuple(nodes)
    return assignment


def idle_times(
    spans: Sequence[tuple[float, ...]], demand: NodeDemand
) -> tuple[float, float] | None:
    """Return the idle times around the window on a node, less is better; None: it is busy.

    The spans (start, end, ...) are in order, and none overlaps another. O(log n).
    """
    before = after = inf
    following = bisect_left(spans, (demand.end, -inf))  # the first that begins after the window
    if following:
        previous_end = spans[following - 1][1]
        if previous_end > demand.start:
            return None
        before = demand.start - previous_end
    if following < len(spans):
        after = spans[following][0] - demand.end
    return before, after


def merge_spans(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the spans in order, merged where they overlap."""
    last: Span = (-inf, -inf)
    for start, end in sorted(spans):
        if start > last[1]:
            if last[1] > -inf:
                yield last
            last = (start, end)
        else:
            last = (last[0], max(last[1], end))
    if last[1] > -inf:
        yield last


def move_order(
    current: Mapping[int, NodeDemand], target: Mapping[int, Collection[str]]
) -> list[int]:
    """Return the order in which reservations move, so that each finds its nodes free.

    `current` is where they are, by id. If two would have to swap at once, one goes first all the
    same, and its manager will reject it.
    """
    blockers = _blockers(current, target)
    blocked: dict[int, list[int]] = {}  # by the id that blocks them
    for id, others in blockers.items():
        for other in others:
            blocked.setdefault(other, []).append(id)
    remaining, ready = sorted(target), [id for id in sorted(target) if not blockers[id]]
    moved: dict[int, None] = {}
    for candidate in remaining:
        while ready or candidate not in moved:
            chosen = heapq.heappop(ready) if ready else candidate
            if chosen in moved:
                continue
            moved[chosen] = None
            for id in blocked.get(chosen, ()):
                blockers[id].discard(chosen)
                if not blockers[id]:
                    heapq.heappush(ready, id)
    return list(moved)


def _blockers(
    current: Mapping[int, NodeDemand], target: Mapping[int, Collection[str]]
) -> dict[int, set[int]]:
    """Return by id the other reservations that still have nodes which it needs.

    O(log n) for each node of a target, in n reservations that have the node, and in those found.
    """
    windows: dict[str, list[tuple[float, float, int]]] = {}  # by node, in order
    for id in target:
        for node in current[id].current:
            windows.setdefault(node, []).append((current[id].start, current[id].end, id))
    latest_ends: dict[str, list[float]] = {}  # of each window and all before it
    for node, node_windows in windows.items():
        node_windows.sort()
        latest_ends[node] = list(accumulate((end for _, end, _ in node_windows), max))
    blockers: dict[int, set[int]] = {id: set() for id in target}
    for id, nodes in target.items():
        start, end = current[id].start, current[id].end
        for node in set(nodes) & windows.keys():
            index = bisect_left(windows[node], (end, -inf, 0)) - 1
            while index >= 0 and latest_ends[node][index] > start:
                _, other_end, other = windows[node][index]
                if other_end > start and other != id:
                    blockers[id].add(other)
                index -= 1
    return blockers
