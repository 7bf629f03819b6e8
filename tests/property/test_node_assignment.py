"""Nodes for reservations: none assigned twice, and always found where amounts allow it.

The plain definitions look at all spans of a node, and at all pairs of moves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.carts import assigned_nodes
from metasched.carts.assigned_nodes import AssignedNodes
from metasched.carts.node_assignment import NodeDemand, assign_nodes, move_order
from metasched.model.survey import Span
from tests.harness.examples import examples

NODES = [f"n{i}" for i in range(4)]


@st.composite
def needs(draw: st.DrawFn) -> list[NodeDemand]:
    requests = []
    for id in range(draw(st.integers(1, 8))):
        start = draw(st.integers(0, 10))
        end = start + draw(st.integers(1, 5))
        requests.append(NodeDemand(id, start, end, draw(st.integers(1, 3))))
    return requests


def most(demands: list[NodeDemand]) -> int:
    return max(sum(n.size for n in demands if n.start <= t < n.end) for t in range(16))


@given(needs())
def test_found_whenever_amounts_allow_it(demands: list[NodeDemand]) -> None:
    places = assign_nodes(dict.fromkeys(NODES, ()), demands)
    assert (places is not None) == (most(demands) <= len(NODES))


@given(needs(), st.dictionaries(st.sampled_from(NODES), st.integers(1, 12)))
def test_running_reservations_cost_only_their_nodes(
    demands: list[NodeDemand], running: dict[str, int]
) -> None:
    """Running uses all overlap now, so moving bound reservations admits as much as late binding."""
    taken = {node: [(0.0, float(running[node]))] if node in running else () for node in NODES}
    begun = [NodeDemand(-1, 0, end, 1) for end in running.values()]
    assert (assign_nodes(taken, demands) is not None) == (most([*demands, *begun]) <= len(NODES))


@given(needs(), st.dictionaries(st.sampled_from(NODES), st.just([(3, 6)])), st.data())
def test_no_node_twice_nor_where_it_is_taken(
    demands: list[NodeDemand], taken: dict[str, list[tuple[float, float]]], data: st.DataObject
) -> None:
    fixed = [
        NodeDemand(
            n.id,
            n.start,
            n.end,
            n.size,
            tuple(data.draw(st.sets(st.sampled_from(NODES), max_size=n.size))),
        )
        for n in demands
    ]
    places = assign_nodes({node: taken.get(node, ()) for node in NODES}, fixed)
    if places is None:
        return
    used = {node: list(taken.get(node, ())) for node in NODES}
    for need in fixed:
        assert len(set(places[need.id])) == need.size
        for node in places[need.id]:
            assert all(end <= need.start or need.end <= start for start, end in used[node])
            used[node].append((need.start, need.end))


def test_beyond_the_limit_only_reservations_near_the_request_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A[0,1), B[2,3), C[0,2) and X[1,3) fit on two nodes if B moves for X; D is far away."""
    assigned, far = AssignedNodes(), NodeDemand(4, 100, 110, 1, ("n1",))
    for id, start, end, node in ((1, 0, 1, "n0"), (2, 2, 3, "n0"), (3, 0, 2, "n1")):
        assigned.put(NodeDemand(id, start, end, 1, (node,)))
    assigned.put(far)
    busy: Windows = {"n0": [], "n1": []}
    new = NodeDemand(5, 1, 3, 1)
    found = {}
    for limit in (10, 9, 7):  # pairs of a demand and a node: all, those but D's, fewer
        monkeypatch.setattr(assigned_nodes, "MAX_CHECKS", limit)
        found[limit] = assigned.assign(busy, [new])
    assert found[10] == {1: ("n0",), 2: ("n1",), 3: ("n1",), 4: ("n0",), 5: ("n0",)}
    assert found[9] == {id: found[10][id] for id in (1, 2, 3, 5)}
    assert found[7] is None


def test_what_fits_stays_where_it_is() -> None:
    need = NodeDemand(1, 0, 1, 2, ("n2", "n3"))
    assert assign_nodes(dict.fromkeys(NODES, ()), [need]) == {1: ("n2", "n3")}


def test_who_leaves_a_node_goes_before_who_wants_it() -> None:
    now = {
        1: NodeDemand(1, 0, 5, 1),
        2: NodeDemand(2, 0, 5, 1, ("n1",)),
        3: NodeDemand(3, 0, 5, 1, ("n2",)),
    }
    assert move_order(now, {1: ("n1",), 2: ("n2",), 3: ("n3",)}) == [3, 2, 1]
    swap = {2: now[2], 3: now[3]}
    assert sorted(move_order(swap, {2: ("n2",), 3: ("n1",)})) == [2, 3]


Windows = Mapping[str, Sequence[Span]]  # by node
Assignment = dict[int, tuple[str, ...]]
Group = Callable[[str], str]


def plain_assignment(busy: Windows, demands: list[NodeDemand], group: Group) -> Assignment | None:
    ordered = sorted(demands, key=lambda demand: (demand.start, demand.id))
    assignment = plain_pass(busy, ordered, group, keep_current=True)
    if assignment is not None or not any(demand.current for demand in ordered):
        return assignment
    return plain_pass(busy, ordered, group, keep_current=False)


def plain_pass(
    busy: Windows, demands: list[NodeDemand], group: Group, keep_current: bool
) -> Assignment | None:
    spans = {node: list(node_spans) for node, node_spans in busy.items()}
    assignment: Assignment = {}
    for demand in demands:
        if keep_current and demand.current:
            nodes = [
                node
                for node in demand.current
                if node in spans and plain_fit(spans[node], demand) is not None
            ]
            assignment[demand.id] = tuple(nodes)
            for node in nodes:
                spans[node].append((demand.start, demand.end))
    for demand in demands:
        nodes = list(assignment.get(demand.id, ()))
        free: dict[str, list[tuple[tuple[float, float], int, str]]] = {}
        for index, (node, node_spans) in enumerate(spans.items()):
            allowed = node not in nodes and node not in demand.excluded
            if allowed and (fit := plain_fit(node_spans, demand)) is not None:
                free.setdefault(group(node), []).append((fit, index, node))
        missing = demand.size - len(nodes)
        groups = dict.fromkeys(group(node) for node in nodes) or free
        enough = [candidates for name in groups if len(candidates := free.get(name, [])) >= missing]
        if missing and not enough:
            return None
        fewest = min(enough, key=len) if missing else []
        for _, _, node in sorted(fewest)[:missing]:
            nodes.append(node)
            spans[node].append((demand.start, demand.end))
        assignment[demand.id] = tuple(nodes)
    return assignment


def plain_fit(spans: Sequence[Span], demand: NodeDemand) -> tuple[float, float] | None:
    before, after = inf, inf
    for start, end in spans:
        if start < demand.end and demand.start < end:
            return None
        if end <= demand.start:
            before = min(before, demand.start - end)
        else:
            after = min(after, start - demand.end)
    return before, after


def plain_order(
    current: Mapping[int, NodeDemand], target: Mapping[int, Collection[str]]
) -> list[int]:
    def blocked(id: int) -> bool:
        return any(
            other != id
            and set(target[id]) & set(current[other].current)
            and current[other].start < current[id].end
            and current[id].start < current[other].end
            for other in remaining
        )

    remaining, order = dict(target), list[int]()
    while remaining:
        ready = [id for id in remaining if not blocked(id)]
        order.append(min(ready or remaining))
        del remaining[order[-1]]
    return order


SPANS = st.tuples(st.integers(0, 12), st.integers(1, 6)).map(lambda s: (s[0], s[0] + s[1]))
NODE_SETS = st.lists(st.sampled_from([*NODES, "gone"]), unique=True, max_size=3).map(tuple)

BUSY = st.dictionaries(st.sampled_from(NODES), st.lists(SPANS, max_size=3))


@st.composite
def placed(draw: st.DrawFn) -> list[NodeDemand]:
    """Draw demands with nodes, which may be too few, not there, or those of another demand."""
    demands = []
    for id in range(draw(st.integers(1, 7))):
        (start, end), current = draw(SPANS), draw(NODE_SETS)
        size = draw(st.integers(max(1, len(current)), 3))
        demands.append(NodeDemand(id, start, end, size, current, draw(NODE_SETS)))
    return demands


@given(
    BUSY,
    placed(),
    st.sampled_from([lambda node: "", lambda node: "low" if node in NODES[:2] else "high"]),
)
def test_nodes_are_those_of_the_plain_definition(
    busy: Windows, demands: list[NodeDemand], group: Group
) -> None:
    assert assign_nodes(busy, demands, group) == plain_assignment(busy, demands, group)


@examples(200)
@given(st.lists(BUSY, min_size=1, max_size=2), st.data())
def test_nodes_that_are_kept_as_they_change_are_those_of_the_plain_definition(
    surveys: list[Windows], data: st.DataObject
) -> None:
    """Demands come and go; some get nodes that are busy, not there, or those of another."""
    assigned, current = AssignedNodes(), dict[int, NodeDemand]()
    for id in range(data.draw(st.integers(2, 9))):
        busy, (start, end) = data.draw(st.sampled_from(surveys)), data.draw(SPANS)
        new = NodeDemand(id, start, end, data.draw(st.integers(1, 2)))
        without = set[int]()
        match data.draw(st.sampled_from(["request", "request", "request", "fail", "move", "end"])):
            case "fail" if current:  # with some of its nodes
                failed = current[data.draw(st.sampled_from(sorted(current)))]
                new = replace(failed, current=failed.current[:-1])
                without = data.draw(st.sets(st.sampled_from(sorted(current)), max_size=1))
            case "move" if current:
                moved = current[data.draw(st.sampled_from(sorted(current)))]
                nodes = data.draw(NODE_SETS)[: moved.size]
                current[moved.id] = replace(moved, current=nodes)
                assigned.put(current[moved.id])
            case "end" if current:
                ended = data.draw(st.sampled_from(sorted(current)))
                assigned.remove(ended)
                del current[ended]
        asked = {other: demand for other, demand in current.items() if other not in without}
        asked[new.id] = new
        assigned._check(current.values())
        expected = plain_assignment(busy, list(asked.values()), lambda node: "")
        found = assigned.assign(busy, [new], without - {new.id})
        if expected is None or found is None:
            assert found is expected
            continue
        assert {other: demand.current for other, demand in asked.items()} | found == expected
        for other, nodes in found.items():
            current[other] = replace(asked[other], current=nodes)
            assigned.put(current[other])


@given(placed(), st.data())
def test_moves_go_in_the_order_of_the_plain_definition(
    demands: list[NodeDemand], data: st.DataObject
) -> None:
    current = {demand.id: demand for demand in demands}
    target = {id: data.draw(NODE_SETS) for id in data.draw(st.permutations(sorted(current)))}
    assert move_order(current, target) == plain_order(current, target)
