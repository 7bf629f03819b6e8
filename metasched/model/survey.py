"""A manager's report about its nodes over time and about its reservations. Pure.

Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

Span = tuple[float, float]  # start, end


@dataclass(frozen=True)
class NodeUsage:
    """Nodes with the same processors, state and use."""

    nodes: tuple[str, ...]
    cpus: int  # of each node
    up: bool  # usable by jobs
    spans: tuple[Span, ...] = ()  # others' reservations, jobs until their limits; may overlap


@dataclass(frozen=True)
class ProcessorPool:
    """Units (processors or cores) that one reservation may span."""

    nodes: tuple[str, ...]  # all are up
    size: int  # units
    # start, end, units; reservations (also metasched's), and jobs in none until their limits; may
    # overlap
    uses: tuple[tuple[float, float, int], ...] = ()
    cpus: int = 1  # processors per unit


@dataclass(frozen=True)
class ManagerReservation:
    """A reservation of this instance as its manager reports it."""

    name: str  # see `reservation.manager_name`
    start: float
    end: float
    nodes: tuple[str, ...]
    size: int | None = None  # reported for pools only


class Survey(msgspec.Struct, frozen=True):
    """Use of a cluster's nodes over time as its manager reports it.

    A manager that reserves processors and chooses the nodes itself reports `pools` and no `nodes`.
    """

    observed: float  # when it was begun
    nodes: tuple[NodeUsage, ...]
    reservations: tuple[ManagerReservation, ...] = ()
    pools: tuple[ProcessorPool, ...] = ()
    # seconds for which jobs may outlast their limits, included in `pools`; None: not reported
    guard: float | None = None

    @property
    def usable_nodes(self) -> frozenset[str]:
        """The nodes that are up."""
        groups = [use.nodes for use in self.nodes if use.up] + [pool.nodes for pool in self.pools]
        return frozenset(node for group in groups for node in group)


@dataclass(frozen=True)
class ReservationSpec:
    """A reservation to create at a manager: exactly `nodes`, or `size` units of a pool.

    The manager kills its running jobs at `end`.
    """

    name: str
    user: str  # accounts whose jobs may run in it, separated by commas
    start: float
    end: float
    nodes: tuple[str, ...]
    size: int = 0  # units of a pool
    # in the manager's names; only licences that it can reserve
    licences: Mapping[str, int] = field(default_factory=dict)
    accounts: tuple[str, ...] = ()  # jobs of these may run in it, of any user; empty: see `user`
