"""State of all licences: pools, leases, and the tasks queued for tokens.

Times are seconds since the epoch, durations seconds, amounts tokens (copies of a licence).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from metasched.core.licences.groups import OwnerLine, QueueKey
from metasched.core.licences.order import QueueOrder
from metasched.core.licences.ranked_groups import RankedGroups
from metasched.core.licences.windows import TokenClaim, TokenSlots, TokenWindow
from metasched.core.tasks import TaskId
from metasched.model.licence import Lease, LicenceCount, LicencePool, LicenceStatus

NEVER = math.inf


def unconfigured_pool(name: str) -> LicencePool:
    """Return an empty pool for a licence that the site does not configure (any more)."""
    return LicencePool(name=name, total=0)


@dataclass(eq=False)
class PoolState:
    """The current state of a licence pool."""

    config: LicencePool  # as configured by the site
    configured: bool = True  # whether the site configures it (now)
    operator_total: int | None = None  # total set by an operator
    server_count: LicenceCount | None = None  # last count of the licence server
    # by cluster, as managers report
    used_outside: dict[str, LicenceCount] = field(default_factory=dict)
    leased_tokens: int = 0  # by tasks of metasched
    leased_by_task: dict[TaskId, int] = field(default_factory=dict)  # adds up to `leased_tokens`
    waiting_tokens: int = 0  # requested by queued tasks
    requests: int = 0  # queued tasks that request some
    lingering: int = 0  # returned tokens that count as in use
    # heap of (free at, returned at, tokens)
    returning: list[tuple[float, float, int]] = field(default_factory=list)
    groups: RankedGroups = field(default_factory=RankedGroups)  # of queued tasks that request some
    head_key: QueueKey | None = None  # of the first task in `groups`; None: computed on demand
    head_ranking: int = -1  # `QueueOrder.ranking` of `head_key`
    windows: dict[int, TokenWindow] = field(default_factory=dict)  # by reservation
    # part of `leased_tokens`, by reservation
    leased_by_reservation: Counter[int] = field(default_factory=Counter)
    head_reservation: tuple[float, int] = (NEVER, 0)  # shadow time, extra tokens; cached
    head_cache_key: tuple[int, float] = (-1, 0.0)  # (version, time) of `head_reservation`
    slots_cache_key: tuple[int, float] = (-1, 0.0)  # (version, time) of `slots`
    # free tokens over time; cached
    slots: dict[tuple[int | None, bool, float], TokenSlots] = field(default_factory=dict)
    short_slots: TokenSlots | None = None  # slots within windows that lack tokens; cached with it

    total: int | None = None  # as configured, or set by an operator; at most the server's total
    outside: int = 0  # use outside metasched: the larger of the managers' and the server's figure

    def recompute(self) -> None:
        """Recompute `total`, `outside` and `lingering` after a source changed."""
        declared = self.config.total if self.operator_total is None else self.operator_total
        server_total = self.server_count.total if self.server_count is not None else None
        self.total = min(
            (amount for amount in (declared, server_total) if amount is not None), default=None
        )
        server_outside = self.server_count.outside if self.server_count is not None else 0
        manager_outside = sum(count.outside for count in self.used_outside.values())
        self.outside = max(server_outside, manager_outside)
        self.lingering = sum(entry[2] for entry in self.returning if self.still_lingers(entry))

    def still_lingers(self, entry: tuple[float, float, int]) -> bool:
        """Return whether an entry still counts; a later server count includes its tokens."""
        return self.server_count is None or entry[1] >= self.server_count.observed

    @property
    def observed(self) -> float | None:
        """When the figures were observed: by the licence server, else first by a cluster."""
        if self.server_count is not None:
            return self.server_count.observed
        return min((count.observed for count in self.used_outside.values()), default=None)

    def excludes(self, cluster: str) -> bool:
        """Return whether the licence cannot be used on a cluster."""
        return bool(self.config.clusters) and cluster not in self.config.clusters

    def unknown_reason(self, now: float) -> str:
        """Return why the number of free tokens is unknown; empty if it is known."""
        if not self.configured:
            return "no such licence is configured"
        if self.config.server and self.server_count is None:
            return f"its server {self.config.server} has not answered yet"
        if self.config.server and self.server_count is not None:
            age = now - self.server_count.observed
            if age > self.config.stale_after:
                return f"its server {self.config.server} has not answered for {age:.0f} s"
        return "" if self.total is not None else f"{self.config.server} reports no total"

    @property
    def known_until(self) -> float:
        """When the count of the licence server will be too old, if it counts; else infinity."""
        if self.server_count is None or not self.config.server:
            return NEVER
        return math.nextafter(self.server_count.observed + self.config.stale_after, NEVER)

    def free(self, now: float) -> int | None:
        """Return the tokens that may be leased now; None: unknown."""
        may_be_unknown = self.config.server or self.total is None or not self.configured
        if may_be_unknown and self.unknown_reason(now):
            return None
        assert self.total is not None
        in_use = self.leased_tokens + self.outside + self.lingering
        return self.total - in_use - self.config.headroom

    def status(self, now: float) -> LicenceStatus:
        """Return the status of the licence."""
        free, reserved = self.free(now), self.reserved_now(now)
        return LicenceStatus(
            self.config.name,
            self.total if self.configured else 0,
            self.leased_tokens,
            self.outside,
            self.lingering,
            None if free is None else free - reserved,
            self.waiting_tokens,
            self.unknown_reason(now),
            self.observed,
            self.operator_total,
            self.requests,
            self.used_outside.copy(),
            reserved,
        )

    def unleased_window_tokens(self) -> Iterator[TokenClaim]:
        """Yield each window with the tokens that its jobs have not leased.

        They stay claimed while tokens of the window may linger after its end.
        """
        for window in self.windows.values():
            count = self.claimed_by(window)
            if count > 0 and window.entry:
                yield window, count
            elif count > 0:
                yield replace(window, until=window.until + self.config.linger), count

    def claimed_by(self, window: TokenWindow) -> int:
        """Return the tokens that a window keeps from others; negative: none, and some to spare."""
        tokens = window.licences[self.config.name]
        if window.entry:
            return (self.total or 0) - tokens
        return tokens - self.leased_by_reservation[window.id]

    def reserved_now(self, now: float) -> int:
        """Return the unleased tokens of windows that have begun."""
        return sum(
            count
            for window, count in self.unleased_window_tokens()
            if window.start <= now < window.until
        )

    def windows_by_start(self) -> list[TokenWindow]:
        """Return the reservation windows that have tokens of this licence, by their start."""
        return sorted(self.windows.values(), key=lambda window: (window.start, window.id))


@dataclass(eq=False)
class LicenceState:
    """The state of all licences: shared by the queue, which changes it, and the look-ahead."""

    pools: dict[str, PoolState] = field(default_factory=dict)
    leases: dict[TaskId, Lease] = field(default_factory=dict)
    lease_ends: dict[TaskId, float] = field(default_factory=dict)  # by their tasks' time limits
    unenforced: set[TaskId] = field(default_factory=set)  # leases whose end is not enforced
    reservation_of: dict[TaskId, int] = field(default_factory=dict)  # leases within reservations
    windows: dict[int, TokenWindow] = field(default_factory=dict)  # also without any licence
    line_of: dict[TaskId, OwnerLine] = field(default_factory=dict)  # all queued tasks
    order: QueueOrder = field(default_factory=QueueOrder)
    version: int = 0  # increases with every change that shadow times depend on

    def pool(self, name: str) -> PoolState:
        """Return the state of a pool; an unknown licence gets an unconfigured pool."""
        if name not in self.pools:
            self.pools[name] = PoolState(unconfigured_pool(name), configured=False)
        return self.pools[name]
