"""Nodes for reservations: none assigned twice, and always found where amounts allow it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metasched.carts.node_assignment import NodeDemand, assign_nodes, move_order

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
