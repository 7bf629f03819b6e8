"""The tokens of one licence: leased, returning, used by others."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from metasched.core.licences.windows import TokenClaim, TokenSlots, TokenWindow
from metasched.model.licence import LicenceCount, LicencePool

TaskId = tuple[int, int]  # job, index


QueueKey = tuple[
    float, int, float, int, int
]  # step of patience, -size, key, place; the least first


RequestedTokens = tuple[tuple[str, int], ...]


_NEVER = math.inf


def unconfigured_pool(name: str) -> LicencePool:
    """One of which the site says nothing (any more)."""
    return LicencePool(name=name, total=0)


class LeaseTerms(NamedTuple):
    """For how many seconds at the most one has its licences, and in which reservation.

    `limited`: somebody sees to that.
    """

    duration: float
    enforced: bool
    reservation: int | None


@dataclass(eq=False)
class TaskGroup:
    """Those in line that want the same for as long. It waits at the pool `at` ("": nowhere yet)."""

    requested: RequestedTokens
    terms: LeaseTerms
    serial: int
    queue_keys: dict[TaskId, QueueKey] = field(default_factory=dict)
    heap: list[QueueKey] = field(default_factory=list)
    blocked_at: str = ""

    def head_key(self) -> QueueKey | None:
        """The order of the first member; O(log n) for each one that has left."""
        heap = self.heap
        while heap and self.queue_keys.get(heap[0][3:]) != heap[0]:
            heapq.heappop(heap)
        return heap[0] if heap else None


GroupEntry = tuple[
    QueueKey, int, TaskGroup
]  # of a heap of groups; stale once the group has another first


# the first group of a kind that waits at a licence: by how many it wants, and how long; whether
# those after it may go as well
BlockedGroup = tuple[GroupEntry, str, int, LeaseTerms, bool]


@dataclass(eq=False)
class PoolState:
    """The state of one pool. `known`: the site describes it (now)."""

    config: LicencePool
    configured: bool = True
    operator_total: int | None = None
    server_count: LicenceCount | None = None
    used_outside: dict[str, LicenceCount] = field(default_factory=dict)  # told by clusters
    leased_tokens: int = 0
    leased_by_task: dict[TaskId, int] = field(default_factory=dict)  # what `ours` consists of
    waiting_tokens: int = 0
    requests: int = 0  # tasks in line that want some
    lingering: int = 0
    # until, given back, many: a heap of what lingers, if no server has been asked since
    returning: list[tuple[float, float, int]] = field(default_factory=list)
    queue: list[GroupEntry] = field(default_factory=list)
    # by how many they want, and how long
    blocked: dict[int, dict[LeaseTerms, list[GroupEntry]]] = field(default_factory=dict)
    head_key: QueueKey | None = None  # in line for this licence
    windows: dict[int, TokenWindow] = field(default_factory=dict)
    leased_by_reservation: Counter[int] = field(
        default_factory=Counter
    )  # of `ours`, by jobs of which reservation
    # for the first in line, and over time; after which change, and when, that was found
    head_reservation: tuple[float, int] = (_NEVER, 0)
    head_cache_key: tuple[int, float] = (-1, 0.0)
    slots_cache_key: tuple[int, float] = (-1, 0.0)
    slots: dict[tuple[int | None, bool, float], TokenSlots] = field(default_factory=dict)

    total: int | None = None  # what the site or an operator says, but no more than the server has
    # what clusters have given to others, or the server tells if it is more: it tells of those, too
    outside: int = 0

    def recompute(self) -> None:
        """Learn the total, outside use and what lingers anew, after what they come from changed."""
        declared = self.config.total if self.operator_total is None else self.operator_total
        server_total = self.server_count.total if self.server_count is not None else None
        self.total = min(
            (amount for amount in (declared, server_total) if amount is not None), default=None
        )
        server_outside = self.server_count.outside if self.server_count is not None else 0
        self.outside = max(
            server_outside, sum(declared.outside for declared in self.used_outside.values())
        )
        self.lingering = sum(entry[2] for entry in self.returning if self.still_lingers(entry))

    def still_lingers(self, entry: tuple[float, float, int]) -> bool:
        """Whether it still counts: what was given back before is told as in use now, or free."""
        return self.server_count is None or entry[1] >= self.server_count.observed

    @property
    def observed(self) -> float | None:
        """When that was so: as its server told, else the first of the clusters."""
        if self.server_count is not None:
            return self.server_count.observed
        return min((count.observed for count in self.used_outside.values()), default=None)

    def excludes(self, cluster: str) -> bool:
        """Whether it cannot be used on a cluster."""
        return bool(self.config.clusters) and cluster not in self.config.clusters

    def unknown_reason(self, now: float) -> str:
        """Why nobody can say how many are free; empty if that is known."""
        if not self.configured:
            return "no such licence is configured"
        if self.config.server and self.server_count is None:
            return f"its server {self.config.server} has not been heard from yet"
        if self.config.server and self.server_count is not None:
            age = now - self.server_count.observed
            if age > self.config.stale_after:
                return f"its server {self.config.server} has not answered for {age:.0f} s"
        return "" if self.total is not None else f"{self.config.server} does not say how many"

    def free(self, now: float) -> int | None:
        """What may be taken now; None: not known."""
        if (
            self.config.server or self.total is None or not self.configured
        ) and self.unknown_reason(now):
            return None
        assert self.total is not None
        return (
            self.total - self.leased_tokens - self.outside - self.lingering - self.config.headroom
        )

    def unleased_claims(self) -> Iterator[TokenClaim]:
        """The windows, and what each still has of it, also while that lingers after its end."""
        for window in self.windows.values():
            count = window.licences[self.config.name] - self.leased_by_reservation[window.id]
            if count > 0:
                yield replace(window, until=window.until + self.config.linger), count

    def reserved_now(self, now: float) -> int:
        """What windows that have begun still have of it."""
        return sum(
            count for window, count in self.unleased_claims() if window.start <= now < window.until
        )
