"""Which nodes each of several reservations gets, so that all have theirs throughout. Pure."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from metasched.model.survey import Span


@dataclass(frozen=True)
class NodeDemand:
    """A reservation that needs `size` nodes for [start, end).

    It would rather keep those that it `has`, and can have none of those that it `leaves`.
    """

    id: int
    start: float
    end: float
    size: int
    current: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


def assign_nodes(
    busy: Mapping[str, Sequence[Span]],
    demands: Iterable[NodeDemand],
    group: Callable[[str], str] = lambda node: "",
) -> dict[int, tuple[str, ...]] | None:
    """Nodes for all needs, or None if none were found; `taken` says when each node is not free.

    All nodes of one are of the same group.

    First each keeps what it has, where that is still free; if this fails all are placed anew.
    In order of their starts each takes, of the group of which it leaves the least, the nodes that
    have been taken until the latest time and are wanted again the soonest (best fit). Where nothing
    is taken in advance and there is one group this succeeds whenever the amounts allow it (Kurowski
    et al. 2011, Proposition 1); else it may fail though an assignment exists.
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
    """How badly the window fits between what is taken: less is better; None: it does not."""
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
    """The order in which reservations move to their nodes, so that none needs one still taken.

    `now` is where they are, by id. Where two would have to change places at once one of them goes
    first all the same, and its manager will say no.
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
    demand = current[id]
    return any(
        other != id
        and set(targets[id]) & set(current[other].current)
        and current[other].start < demand.end
        and demand.start < current[other].end
        for other in targets
    )
