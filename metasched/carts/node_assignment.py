"""Assignment of nodes to reservations, so that each has its nodes throughout. Pure."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    ordered = sorted(demands, key=lambda demand: (demand.start, demand.id))
    assignment = _assign_in_order(busy, ordered, group, keep_current=True)
    if assignment is not None or not any(demand.current for demand in ordered):
        return assignment
    return _assign_in_order(busy, ordered, group, keep_current=False)


def _assign_in_order(
    busy: Mapping[str, Sequence[Span]],
    demands: Sequence[NodeDemand],
    group: Callable[[str], str],
    keep_current: bool,
) -> dict[int, tuple[str, ...]] | None:
    spans = {node: sorted(node_spans) for node, node_spans in busy.items()}
    assignment: dict[int, tuple[str, ...]] = {}
    for demand in demands:
        if keep_current and demand.current:
            nodes = [
                node
                for node in demand.current
                if node in spans and _fit(spans[node], demand) is not None
            ]
            assignment[demand.id] = tuple(nodes)
            for node in nodes:
                insort(spans[node], (demand.start, demand.end))
    for demand in demands:
        nodes = list(assignment.get(demand.id, ()))
        free: dict[str, list[tuple[tuple[float, float], int, str]]] = {}
        for index, (node, node_spans) in enumerate(spans.items()):
            allowed = node not in nodes and node not in demand.excluded
            if allowed and (fit := _fit(node_spans, demand)) is not None:
                free.setdefault(group(node), []).append((fit, index, node))
        missing = demand.size - len(nodes)
        groups = dict.fromkeys(group(node) for node in nodes) or free
        enough = [candidates for name in groups if len(candidates := free.get(name, [])) >= missing]
        if missing and not enough:
            return None
        fewest = min(enough, key=lambda candidates: len(candidates)) if missing else []
        for _, _, node in sorted(fewest)[:missing]:
            nodes.append(node)
            insort(spans[node], (demand.start, demand.end))
        assignment[demand.id] = tuple(nodes)
    return assignment


def _fit(spans: Sequence[Span], demand: NodeDemand) -> tuple[float, float] | None:
    """Return the idle times around the window on a node, less is better; None: it is busy."""
    before, after = inf, inf
    for start, end in spans:
        if start < demand.end and demand.start < end:
            return None
        if end <= demand.start:
            before = min(before, demand.start - end)
        else:
            after = min(after, start - demand.end)
    return before, after


def move_order(
    current: Mapping[int, NodeDemand], target: Mapping[int, Collection[str]]
) -> list[int]:
    """Return the order in which reservations move, so that each finds its nodes free.

    `current` is where they are, by id. If two would have to swap at once, one goes first all the
    same, and its manager will reject it.
    """
    remaining, order = dict(target), []
    while remaining:
        ready = [id for id in remaining if not _blocked(id, remaining, current)]
        chosen = min(ready or remaining)
        order.append(chosen)
        del remaining[chosen]
    return order


def _blocked(
    id: int, targets: Mapping[int, Collection[str]], current: Mapping[int, NodeDemand]
) -> bool:
    """Return whether a move needs nodes that another reservation still has."""
    demand = current[id]
    return any(
        other != id
        and set(targets[id]) & set(current[other].current)
        and current[other].start < demand.end
        and demand.start < current[other].end
        for other in targets
    )
