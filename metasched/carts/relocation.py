"""Which reservations of slots to move, and where to, so that another one fits. Pure.

For managers that choose slots by themselves and never change them: what moves is made elsewhere
before it is given up where it was, so that it has slots of both for a moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from metasched.carts.carts import Carts
from metasched.carts.node_assignment import Need, assigned, in_turn
from metasched.model.survey import Span

BEGINS = 30.0  # seconds before its start in which one is not moved any more for another
_WORK = 1_000_000  # slots looked at, once for each reservation placed: measured, 1.1 s

Slots = Mapping[str, int]  # how many of each place


@dataclass(frozen=True)
class Taken:
    """So many slots that are taken for [start, end)."""

    start: float
    end: float
    slots: Slots


@dataclass(frozen=True)
class Places:
    """Places with so many slots each: `fixed` uses, and by id those that may move.

    A reservation lies within one of the groups that `group` makes of the places.
    """

    slots: Slots
    fixed: Sequence[Taken]
    movable: Mapping[int, Taken]
    group: Callable[[str], str]

    def moves(self, new: Need) -> list[tuple[int, Slots]] | None:
        """Who is to move, one after the other, and what each has then; None: nothing was found.

        Each slot is a node to `assigned`. At first one is moved alone, then more and more are
        placed anew, by their starts, in the end all; so nothing is found only where that fails,
        too, or where one needs what another leaves after it, or after too much of work.
        """
        left = _WORK
        units = _Units(self)
        order = sorted(self.movable, key=lambda id: (self.movable[id].start, id))
        over = [
            id
            for id in order
            if self.movable[id].start < new.end and new.start < self.movable[id].end
        ]
        twice = (order[: 2**n] for n in range(1, len(order).bit_length() + 1))
        for some in ([], *([id] for id in over), *twice):
            left -= (len(some) + 1) * sum(self.slots.values())
            if left < 0:
                return None
            if (then := units.placed(some, new)) is None:
                continue
            moves = [(id, slots) for id, slots in then if slots != self.movable[id].slots]
            if units.admit(moves, new):
                return moves
        return None


class _Units:
    """The slots of all places, told apart. Where more is taken than there is nothing is free."""

    def __init__(self, places: Places) -> None:
        self._places = places
        uses = [*places.movable.items(), *((-1 - n, use) for n, use in enumerate(places.fixed))]
        self._place: dict[str, str] = {}
        self._taken: dict[str, list[Span]] = {}  # by what is fixed
        self._of: dict[int, tuple[str, ...]] = dict.fromkeys(places.movable, ())
        for place, many in places.slots.items():
            needs = [
                Need(id, use.start, use.end, use.slots[place])
                for id, use in uses
                if use.slots.get(place)
            ]
            names = [f"{place} {number}" for number in range(many)]
            if not names or (found := assigned(dict.fromkeys(names, ()), needs)) is None:
                continue
            self._place |= dict.fromkeys(names, place)
            self._taken |= {name: [] for name in names}
            for need in needs:
                if need.id >= 0:
                    self._of[need.id] += found[need.id]
                else:
                    for name in found[need.id]:
                        self._taken[name].append((need.start, need.end))

    def placed(self, some: Sequence[int], new: Need) -> list[tuple[int, Slots]] | None:
        """What each of some would have, and in which order they would get it, beside `new`."""
        movable, group = self._places.movable, self._places.group
        taken = {name: list(spans) for name, spans in self._taken.items()}
        for id in movable.keys() - set(some):
            for name in self._of[id]:
                taken[name].append((movable[id].start, movable[id].end))
        now = {
            id: Need(id, movable[id].start, movable[id].end, _size(movable[id]), self._of[id])
            for id in some
        }
        leaves: set[str] = set()
        if len(some) == 1:
            leaves.update(*(movable[id].slots for id in some))
        left = tuple(name for name, place in self._place.items() if place in leaves)
        needs = [Need(one.id, one.start, one.end, one.size, leaves=left) for one in now.values()]
        found = assigned(taken, [*needs, new], lambda name: group(self._place[name]))
        if found is None:
            return None
        order = in_turn(now, {id: found[id] for id in some})
        return [(id, Counter(self._place[name] for name in found[id])) for id in order]

    def admit(self, moves: Sequence[tuple[int, Slots]], new: Need) -> bool:
        """Whether each finds its slots free while it still has the old, and `new` fits then."""
        movable, fixed = self._places.movable, self._places.fixed
        known = set(self._place.values())
        free = {place: Carts(many) for place, many in self._places.slots.items() if place in known}

        def take(use: Taken) -> bool:
            parts = [(free[place], many) for place, many in use.slots.items() if place in free]
            if any(carts.free(use.start, use.end) < many for carts, many in parts):
                return False
            for carts, many in parts:
                carts.reserve(use.start, use.end, many)
            return True

        for use in (*fixed, *movable.values()):
            take(use)
        for id, slots in moves:
            old = movable[id]
            if not take(Taken(old.start, old.end, slots)):
                return False
            for place in old.slots.keys() & free.keys():
                free[place].release(old.start, old.end, old.slots[place])
        left: Counter[str] = Counter()
        for place, carts in free.items():
            left[self._places.group(place)] += carts.free(new.start, new.end)
        return max(left.values(), default=0) >= new.size


def _size(use: Taken) -> int:
    return sum(use.slots.values())
