"""What a manager lists about nodes over time and its reservations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from metasched.model.stored_names import STORED_FIELDS

Span = tuple[float, float]


@dataclass(frozen=True)
class NodeUsage:
    """Nodes that are alike: `cpus` of each, whether they are `up`, when they are taken.

    `spans` are others' reservations, and jobs until their limits; they may overlap.
    """

    nodes: tuple[str, ...]
    cpus: int
    up: bool
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True)
class ProcessorPool:
    """`size` units on nodes that are up, over all of which one reservation may spread.

    A unit is a processor, or a core that has several (`cpus`). `uses` are what takes some of them:
    start, end, units. They are reservations, also those of this instance, and jobs in none until
    their limits; they may overlap.
    """

    nodes: tuple[str, ...]
    size: int
    uses: tuple[tuple[float, float, int], ...] = ()
    cpus: int = 1


@dataclass(frozen=True)
class ManagerReservation:
    """A reservation of this instance as its manager keeps it; `size` is told of those in pools."""

    name: str
    start: float
    end: float
    nodes: tuple[str, ...]
    size: int | None = None


class Survey(msgspec.Struct, rename=STORED_FIELDS["Survey"], frozen=True):
    """What a manager tells of its nodes over time, begun at `taken`.

    One that promises processors and chooses the nodes by itself tells of `pools`, and no `nodes`.
    Jobs may hold theirs for `guard` seconds after their limits, and are counted so in pools; None:
    it does not tell.
    """

    observed: float
    nodes: tuple[NodeUsage, ...]
    reservations: tuple[ManagerReservation, ...] = ()
    pools: tuple[ProcessorPool, ...] = ()
    guard: float | None = None

    @property
    def usable_nodes(self) -> frozenset[str]:
        """The nodes that can be used."""
        groups = [use.nodes for use in self.nodes if use.up] + [pool.nodes for pool in self.pools]
        return frozenset(node for group in groups for node in group)


@dataclass(frozen=True)
class ReservationSpec:
    """What a manager is to keep for a user: exactly these nodes, or `size` units of a pool.

    With it go those `licences`, in its own names, that it can reserve. At `end` it kills what runs.
    """

    name: str
    user: str
    start: float
    end: float
    nodes: tuple[str, ...]
    size: int = 0
    licences: Mapping[str, int] = field(default_factory=dict)
