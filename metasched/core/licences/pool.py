"""The tokens of one licence: leased, returning, used by others."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from metasched.core.licences.windows import Claim, Slots, TokenWindow
from metasched.model.licence import LicenceCount, LicencePool

Place = tuple[int, int]  # job, index


Order = tuple[float, int, float, int, int]  # step of patience, -size, key, place; the least first


Wants = tuple[tuple[str, int], ...]


_NEVER = math.inf


def _undescribed(name: str) -> LicencePool:
    """One of which the site says nothing (any more)."""
    return LicencePool(name=name, total=0)


class _Stay(NamedTuple):
    """For how many seconds at the most one has its licences, and in which reservation.

    `limited`: somebody sees to that.
    """

    lasts: float
    limited: bool
    window: int | None


@dataclass(eq=False)
class _Group:
    """Those in line that want the same for as long. It waits at the pool `at` ("": nowhere yet)."""

    wants: Wants
    stay: _Stay
    serial: int
    orders: dict[Place, Order] = field(default_factory=dict)
    heap: list[Order] = field(default_factory=list)
    at: str = ""

    def first(self) -> Order | None:
        """The order of the first member; O(log n) for each one that has left."""
        heap = self.heap
        while heap and self.orders.get(heap[0][3:]) != heap[0]:
            heapq.heappop(heap)
        return heap[0] if heap else None


_Entry = tuple[Order, int, _Group]  # of a heap of groups; stale once the group has another first


# the first group of a kind that waits at a licence: by how many it wants, and how long; whether
# those after it may go as well
_Parked = tuple[_Entry, str, int, _Stay, bool]


@dataclass(eq=False)
class _Pool:
    """The state of one pool. `known`: the site describes it (now)."""

    pool: LicencePool
    known: bool = True
    chosen: int | None = None
    count: LicenceCount | None = None
    past_us: dict[str, LicenceCount] = field(default_factory=dict)  # told by clusters
    ours: int = 0
    leased: dict[Place, int] = field(default_factory=dict)  # what `ours` consists of
    waiting: int = 0
    asking: int = 0  # tasks in line that want some
    lingering: int = 0
    # until, given back, many: a heap of what lingers, if no server has been asked since
    backs: list[tuple[float, float, int]] = field(default_factory=list)
    wanting: list[_Entry] = field(default_factory=list)
    # by how many they want, and how long
    parked: dict[int, dict[_Stay, list[_Entry]]] = field(default_factory=dict)
    first: Order | None = None  # in line for this licence
    windows: dict[int, TokenWindow] = field(default_factory=dict)
    drawn: Counter[int] = field(default_factory=Counter)  # of `ours`, by jobs of which reservation
    # for the first in line, and over time; after which change, and when, that was found
    reserved: tuple[float, int] = (_NEVER, 0)
    asked: tuple[int, float] = (-1, 0.0)
    seen: tuple[int, float] = (-1, 0.0)
    slots: dict[tuple[int | None, bool, float], Slots] = field(default_factory=dict)

    total: int | None = None  # what the site or an operator says, but no more than the server has
    # what clusters have given to others, or the server tells if it is more: it tells of those, too
    outside: int = 0

    def add_up(self) -> None:
        """Learn the total, outside use and what lingers anew, after what they come from changed."""
        told = self.pool.total if self.chosen is None else self.chosen
        counted = self.count.total if self.count is not None else None
        self.total = min((n for n in (told, counted) if n is not None), default=None)
        used = self.count.outside if self.count is not None else 0
        self.outside = max(used, sum(told.outside for told in self.past_us.values()))
        self.lingering = sum(back[2] for back in self.backs if self.lingers(back))

    def lingers(self, back: tuple[float, float, int]) -> bool:
        """Whether it still counts: what was given back before is told as in use now, or free."""
        return self.count is None or back[1] >= self.count.observed

    @property
    def observed(self) -> float | None:
        """When that was so: as its server told, else the first of the clusters."""
        if self.count is not None:
            return self.count.observed
        return min((told.observed for told in self.past_us.values()), default=None)

    def barred(self, cluster: str) -> bool:
        """Whether it cannot be used on a cluster."""
        return bool(self.pool.clusters) and cluster not in self.pool.clusters

    def word(self, now: float) -> str:
        """Why nobody can say how many are free; empty if that is known."""
        if not self.known:
            return "no such licence is configured"
        if self.pool.server and self.count is None:
            return f"its server {self.pool.server} has not been heard from yet"
        if self.pool.server and self.count is not None:
            age = now - self.count.observed
            if age > self.pool.stale_after:
                return f"its server {self.pool.server} has not answered for {age:.0f} s"
        return "" if self.total is not None else f"{self.pool.server} does not say how many"

    def free(self, now: float) -> int | None:
        """What may be taken now; None: not known."""
        if (self.pool.server or self.total is None or not self.known) and self.word(now):
            return None
        assert self.total is not None
        return self.total - self.ours - self.outside - self.lingering - self.pool.headroom

    def claims(self) -> Iterator[Claim]:
        """The windows, and what each still has of it, also while that lingers after its end."""
        for window in self.windows.values():
            many = window.licences[self.pool.name] - self.drawn[window.id]
            if many > 0:
                yield replace(window, until=window.until + self.pool.linger), many

    def reserved_now(self, now: float) -> int:
        """What windows that have begun still have of it."""
        return sum(many for window, many in self.claims() if window.start <= now < window.until)
