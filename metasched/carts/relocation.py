"""Relocation of reservations between pools of slots, so that another reservation fits. Pure.

For managers that choose slots themselves and never change them: a reservation is created in its new
pool before it is deleted in the old, and has slots of both for a moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from metasched.carts.carts import Carts
from metasched.carts.node_assignment import NodeDemand, assign_nodes, move_order
from metasched.model.survey import Span

NO_MOVE_BEFORE_START = 30.0  # seconds before its start while a reservation is not moved
_MAX_WORK = 1_000_000  # slots checked, per reservation assigned: measured, 1.1 s

SlotCounts = Mapping[str, int]  # by pool


@dataclass(frozen=True)
class SlotUse:
    """Slots that are taken in [start, end), by pool."""

    start: float
    end: float
    slots: SlotCounts


@dataclass(frozen=True)
class PoolMap:
    """Pools of slots with their uses: `fixed`, and by id the uses that may move."""

    slots: SlotCounts  # of each pool
    fixed: Sequence[SlotUse]
    movable: Mapping[int, SlotUse]
    group: Callable[[str], str]  # maps a pool to its group; a reservation stays within one group

    def find_moves(self, new: NodeDemand) -> list[tuple[int, SlotCounts]] | None:
        """Return the moves that make room for `new`, in order, with the new slots of each.

        None: no solution was found. Each slot is a node to `assign_nodes`. At first one reservation
        moves alone, then growing prefixes in order of their starts are assigned anew, in the end
        all. So a solution is missed only where that fails as well, where a reservation needs what
        another leaves after it, or beyond the work limit.
        """
        work_left = _MAX_WORK
        table = _SlotTable(self)
        order = sorted(self.movable, key=lambda id: (self.movable[id].start, id))
        overlapping = [
            id
            for id in order
            if self.movable[id].start < new.end and new.start < self.movable[id].end
        ]
        prefixes = (order[: 2**n] for n in range(1, len(order).bit_length() + 1))
        for movers in ([], *([id] for id in overlapping), *prefixes):
            work_left -= (len(movers) + 1) * sum(self.slots.values())
            if work_left < 0:
                return None
            if (placement := table.relocate(movers, new)) is None:
                continue
            moves = [(id, slots) for id, slots in placement if slots != self.movable[id].slots]
            if table.is_feasible(moves, new):
                return moves
        return None


class _SlotTable:
    """The slots of all pools, numbered. A pool with more uses than slots has nothing free."""

    def __init__(self, pool_map: PoolMap) -> None:
        self._pool_map = pool_map
        uses = [
            *pool_map.movable.items(),
            *((-1 - position, use) for position, use in enumerate(pool_map.fixed)),
        ]
        self._pool_of_slot: dict[str, str] = {}
        self._busy: dict[str, list[Span]] = {}  # by fixed uses
        self._slots_of: dict[int, tuple[str, ...]] = dict.fromkeys(pool_map.movable, ())
        for pool, count in pool_map.slots.items():
            demands = [
                NodeDemand(id, use.start, use.end, use.slots[pool])
                for id, use in uses
                if use.slots.get(pool)
            ]
            slot_names = [f"{pool} {number}" for number in range(count)]
            assignment = assign_nodes(dict.fromkeys(slot_names, ()), demands)
            if not slot_names or assignment is None:
                continue
            self._pool_of_slot |= dict.fromkeys(slot_names, pool)
            self._busy |= {slot_name: [] for slot_name in slot_names}
            for demand in demands:
                if demand.id >= 0:
                    self._slots_of[demand.id] += assignment[demand.id]
                else:
                    for slot_name in assignment[demand.id]:
                        self._busy[slot_name].append((demand.start, demand.end))

    def relocate(
        self, movers: Sequence[int], new: NodeDemand
    ) -> list[tuple[int, SlotCounts]] | None:
        """Return the new slots of each of `movers` beside `new`, in the order of their moves."""
        movable, group = self._pool_map.movable, self._pool_map.group
        busy = {slot: list(spans) for slot, spans in self._busy.items()}
        for id in movable.keys() - set(movers):
            for slot in self._slots_of[id]:
                busy[slot].append((movable[id].start, movable[id].end))
        current = {
            id: NodeDemand(
                id,
                movable[id].start,
                movable[id].end,
                _total_slots(movable[id]),
                self._slots_of[id],
            )
            for id in movers
        }
        left_pools: set[str] = set()
        if len(movers) == 1:
            left_pools.update(*(movable[id].slots for id in movers))
        excluded = tuple(slot for slot, pool in self._pool_of_slot.items() if pool in left_pools)
        demands = [
            NodeDemand(demand.id, demand.start, demand.end, demand.size, excluded=excluded)
            for demand in current.values()
        ]
        assignment = assign_nodes(
            busy, [*demands, new], lambda slot: group(self._pool_of_slot[slot])
        )
        if assignment is None:
            return None
        order = move_order(current, {id: assignment[id] for id in movers})
        return [(id, Counter(self._pool_of_slot[slot] for slot in assignment[id])) for id in order]

    def is_feasible(self, moves: Sequence[tuple[int, SlotCounts]], new: NodeDemand) -> bool:
        """Return whether each move finds free slots besides its old slots, and `new` fits then."""
        movable, fixed = self._pool_map.movable, self._pool_map.fixed
        divided_pools = set(self._pool_of_slot.values())
        free = {
            pool: Carts(count)
            for pool, count in self._pool_map.slots.items()
            if pool in divided_pools
        }

        def take(use: SlotUse) -> bool:
            parts = [(free[pool], count) for pool, count in use.slots.items() if pool in free]
            if any(carts.free(use.start, use.end) < count for carts, count in parts):
                return False
            for carts, count in parts:
                carts.reserve(use.start, use.end, count)
            return True

        for use in (*fixed, *movable.values()):
            take(use)
        for id, slots in moves:
            old = movable[id]
            if not take(SlotUse(old.start, old.end, slots)):
                return False
            for pool in old.slots.keys() & free.keys():
                free[pool].release(old.start, old.end, old.slots[pool])
        free_by_group: Counter[str] = Counter()
        for pool, carts in free.items():
            free_by_group[self._pool_map.group(pool)] += carts.free(new.start, new.end)
        return max(free_by_group.values(), default=0) >= new.size


def _total_slots(use: SlotUse) -> int:
    return sum(use.slots.values())
