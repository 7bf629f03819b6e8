"""Moving slot reservations: each always keeps its number of slots, and the new one then fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from metasched.carts.node_assignment import NodeDemand
from metasched.carts.relocation import PoolMap, SlotCounts, SlotUse

SIZES = {"h1": 2, "h2": 2, "h3": 1}
TIMES = range(12)


def anywhere(queue: str) -> str:
    return ""


def one_host(queue: str) -> str:
    return queue


GROUPS = st.sampled_from((anywhere, one_host))


def free(uses: list[SlotUse], queue: str, window: SlotUse | NodeDemand) -> int:
    """Return the slots of a host that are free throughout a window."""
    times = [t for t in TIMES if window.start <= t < window.end]
    taken = [sum(u.slots.get(queue, 0) for u in uses if u.start <= t < u.end) for t in times]
    return SIZES[queue] - max(taken)


def fits(uses: list[SlotUse], need: NodeDemand, group: Callable[[str], str]) -> bool:
    remaining: dict[str, int] = {}
    for queue in SIZES:
        remaining[group(queue)] = remaining.get(group(queue), 0) + free(uses, queue, need)
    return max(remaining.values()) >= need.size


def choices(
    uses: list[SlotUse], need: NodeDemand, group: Callable[[str], str]
) -> Iterator[SlotCounts]:
    """Yield every choice of slots for a reservation."""
    for counts in product(*(range(free(uses, queue, need) + 1) for queue in SIZES)):
        slots = {queue: n for queue, n in zip(SIZES, counts, strict=True) if n}
        if sum(counts) == need.size and len({group(queue) for queue in slots}) == 1:
            yield slots


@st.composite
def needs(draw: st.DrawFn) -> NodeDemand:
    start = draw(st.integers(1, 8))
    return NodeDemand(99, start, start + draw(st.integers(1, 3)), draw(st.integers(1, 2)))


@st.composite
def cells(draw: st.DrawFn) -> PoolMap:
    """Draw running jobs, and reservations that a manager granted on random slots."""
    group = draw(GROUPS)
    fixed = []
    for queue in draw(st.sets(st.sampled_from([*SIZES]))):
        fixed.append(SlotUse(0, draw(st.integers(1, 10)), {queue: 1}))
    movable: dict[int, SlotUse] = {}
    for need in draw(st.lists(needs(), max_size=5)):
        ways = [*choices([*fixed, *movable.values()], need, group)]
        if ways:
            slots = draw(st.sampled_from(ways))
            movable[len(movable)] = SlotUse(need.start, need.end, slots)
    return PoolMap(SIZES, fixed, movable, group)


@given(cells(), needs())
def test_who_moves_has_its_new_slots_beside_the_old_and_there_is_room_then(
    cell: PoolMap, new: NodeDemand
) -> None:
    moves = cell.find_moves(new)
    if moves is None:
        assert not fits([*cell.fixed, *cell.movable.values()], new, cell.group)
        return
    where = dict(cell.movable)
    for id, slots in moves:
        old = where[id]
        assert sum(slots.values()) == sum(old.slots.values())
        assert len({cell.group(queue) for queue in slots}) == 1
        uses = [*cell.fixed, *where.values()]
        assert all(count <= free(uses, queue, old) for queue, count in slots.items())
        where[id] = replace(old, slots=slots)
    assert fits([*cell.fixed, *where.values()], new, cell.group)


@given(cells(), needs())
def test_no_reservation_moves_where_there_is_room(cell: PoolMap, new: NodeDemand) -> None:
    if fits([*cell.fixed, *cell.movable.values()], new, cell.group):
        assert cell.find_moves(new) == []


def test_one_moves_so_that_two_of_another_are_free_throughout() -> None:
    """Reservation 1 has host h1, 2 has h2 later; once 1 moves to h2, the new one fits on h1."""
    apart = {1: SlotUse(1, 5, {"h1": 2}), 2: SlotUse(5, 9, {"h2": 2})}
    sizes = {"h1": 2, "h2": 2}
    new = NodeDemand(99, 1, 9, 2)
    for group in (anywhere, one_host):
        assert PoolMap(sizes, [], apart, group).find_moves(new) == [(1, {"h2": 2})]
        begun = [SlotUse(0, 2, {"h2": 1})]
        assert PoolMap(sizes, begun, apart, group).find_moves(new) is None


def test_what_is_taken_beyond_what_there_is_is_nowhere_free() -> None:
    over = [SlotUse(0, 9, {"h1": 3}), SlotUse(0, 2, {"h2": 2}), SlotUse(0, 9, {"gone": 1})]
    assert (
        PoolMap(SIZES, over, {1: SlotUse(2, 4, {"h2": 2})}, anywhere).find_moves(
            NodeDemand(9, 2, 4, 1)
        )
        == []
    )
    assert (
        PoolMap(SIZES, over, {1: SlotUse(2, 4, {"h2": 2})}, anywhere).find_moves(
            NodeDemand(9, 2, 4, 2)
        )
        is None
    )
