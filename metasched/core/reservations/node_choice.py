"""Choice of nodes for reservations: late binding, rejected nodes, failed nodes. Pure.

Times are seconds since the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from metasched.carts.node_assignment import NodeDemand, move_order
from metasched.core.reservations.availability import Availability
from metasched.core.reservations.index import demand_of, may_still_move
from metasched.model.reservation import Reservation
from metasched.model.survey import Span

Assignment = Mapping[int, tuple[str, ...]]  # nodes by reservation


def lowest_free_nodes(
    availability: Availability, reservation: Reservation, bound: Iterable[Reservation], now: float
) -> tuple[str, ...] | None:
    """Return the lowest-numbered free nodes for a late-binding reservation, or None.

    `bound` are the reservations of the cluster whose nodes are chosen, but not active. Nodes that
    jobs may hold past their limits are avoided if possible.
    """
    earliest = max(reservation.start, now)
    bound = list(bound)
    for guard in (availability.guard(reservation.cluster), 0.0):
        busy = availability.busy_spans(reservation.cluster, now, guard=guard)
        for other in bound:
            for node in busy.keys() & set(other.nodes):
                busy[node].append((other.start, other.until))
        free = [
            node
            for node in sorted(busy, key=_natural_key)
            if not any(start < reservation.until and earliest < end for start, end in busy[node])
        ]
        if len(free) >= reservation.size:
            return tuple(free[: reservation.size])
    return None


def nodes_after_rejection(
    availability: Availability,
    reservation: Reservation,
    unassigned: Collection[int],
    busy: Mapping[str, Sequence[Span]],
) -> Assignment | None:
    """Return new nodes for a rejected reservation and for others that make room, or None.

    `unassigned` are the reservations still without valid nodes.
    """
    demand = replace(demand_of(reservation), current=())
    new = [demand] if may_still_move(reservation) else []
    assigned = availability.assigned_on(reservation.cluster)
    assignment = assigned.assign(busy, new, unassigned)
    if assignment is None:  # another reservation, perhaps in another window, lacks nodes
        assignment = assigned.place(busy, new, unassigned)
    return assignment


def nodes_after_failures(
    availability: Availability, cluster: str, failed: Iterable[Reservation], now: float
) -> Assignment:
    """Return nodes of reservations whose nodes failed, and of others, where there is room.

    Others that have not begun may move to make room. A reservation that has begun keeps the usable
    nodes that its manager has confirmed: they are among the busy nodes.
    """
    busy = availability.busy_spans(cluster, now)
    demands, held = [], dict[int, tuple[str, ...]]()
    for reservation in failed:
        if may_still_move(reservation):
            demands.append(demand_of(reservation))
            continue
        held[reservation.id] = tuple(node for node in reservation.bound_nodes if node in busy)
        missing = max(0, reservation.size - len(held[reservation.id]))
        others = (node for node in reservation.nodes if node not in held[reservation.id])
        demand = demand_of(reservation)
        demands.append(replace(demand, size=missing, current=tuple(others)[:missing]))
    assignment = availability.assigned_on(cluster).replace_lost(busy, demands)
    return {id: held.get(id, ()) + nodes for id, nodes in assignment.items()}


def changed_nodes(
    assignment: Assignment, reservations: Mapping[int, Reservation], forced: int | None
) -> dict[int, tuple[str, ...]]:
    """Return the part of an assignment that is not stored, or that the manager has not confirmed.

    The reservation `forced` is included even if its nodes stay the same.
    """
    return {
        id: nodes
        for id, nodes in assignment.items()
        if not set(nodes) == set(reservations[id].nodes) == set(reservations[id].bound_nodes)
        or id == forced
    }


def moves_in_order(
    new_nodes: Assignment, reservations: Mapping[int, Reservation]
) -> list[tuple[int, tuple[str, ...]]]:
    """Return the reservations in an order in which each finds its new nodes free."""
    current = {
        moved.id: NodeDemand(moved.id, moved.start, moved.until, moved.size, moved.bound_nodes)
        for moved in map(reservations.__getitem__, new_nodes)
    }
    return [(id, new_nodes[id]) for id in move_order(current, new_nodes)]


def _natural_key(node: str) -> list[tuple[int, str]]:
    """Return a key that sorts n2 before n10."""
    parts = re.split(r"(\d+)", node)
    return [(int(part) if part.isdecimal() else -1, part) for part in parts]
