"""Nodes that managers are to bind: chosen late, or again after rejections and failures. Pure.

`node_choice` computes the nodes. Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from msgspec import structs

from metasched.core.reservations.availability import Availability
from metasched.core.reservations.consequences import (
    Consequence,
    break_off,
    no_spare_node_cause,
    warning_about,
    with_cause,
)
from metasched.core.reservations.events import Bind
from metasched.core.reservations.node_choice import (
    Assignment,
    changed_nodes,
    lowest_free_nodes,
    moves_in_order,
    nodes_after_failures,
    nodes_after_rejection,
)
from metasched.model.reservation import BOUND_STATES, Reservation, ReservationState

_NO_CAUSES: Final[Mapping[int, str]] = {}
_NODES_FAILED = "nodes of its cluster cannot be used"  # of reservations that make room for others


class NodeBinding:
    """Chooses the nodes of stored reservations and requests their binding."""

    def __init__(self, reservations: Mapping[int, Reservation], availability: Availability) -> None:
        self._reservations, self._availability = reservations, availability
        self._to_reassign: set[int] = set()  # rejected: the next survey assigns other nodes
        self._nodes_chosen: set[int] = set()  # late-binding: nodes are chosen

    def reset(self) -> None:
        """Forget rejections and late choices, at a start of the daemon."""
        self._to_reassign, self._nodes_chosen = set(), set()

    def awaits_choice(self, reservation: Reservation) -> bool:
        """Return whether its nodes are still to be chosen and bound, shortly before its start."""
        if (
            reservation.state is not ReservationState.CONFIRMED
            or reservation.bound_nodes
            or reservation.id in self._nodes_chosen
        ):
            return False
        cluster = self._availability.clusters.get(reservation.cluster)
        return cluster is not None and cluster.binds_late

    def needs_nodes_on(self, cluster: str) -> bool:
        """Return whether a reservation there waits for usable nodes, which a survey may show."""
        return any(
            reservation.id in self._to_reassign
            or (reservation.bound_nodes and self._availability.down_nodes(reservation))
            for reservation in self._availability.open_on(cluster)
        )

    def request_other_nodes(self, reservation: Reservation) -> None:
        """Let the next survey of its cluster assign other nodes to a rejected reservation."""
        self._to_reassign.add(reservation.id)

    def keep_nodes(self, reservation: Reservation) -> None:
        """Let the next survey assign no other nodes to a reservation: its manager has bound it."""
        self._to_reassign.discard(reservation.id)

    def remove(self, reservation: Reservation) -> None:
        """Assign no other nodes to a reservation that is over."""
        self._to_reassign.discard(reservation.id)
        self._nodes_chosen.discard(reservation.id)

    def choose_due_nodes(self, cluster: str, now: float) -> Iterator[Consequence]:
        """Bind reservations whose nodes are due, on the lowest-numbered nodes that will be free."""
        lead = self._availability.clusters[cluster].lead
        reservations = self._availability.open_on(cluster)
        due = [r for r in reservations if self.awaits_choice(r) and r.start - lead <= now]
        for reservation in sorted(due, key=lambda r: (r.start, r.id)):
            bound = [
                other
                for other in self._availability.open_on(cluster)
                if other.state is not ReservationState.ACTIVE and not self.awaits_choice(other)
            ]
            nodes = lowest_free_nodes(self._availability, reservation, bound, now)
            if nodes is not None:
                self._nodes_chosen.add(reservation.id)
                yield structs.replace(reservation, nodes=nodes, cause="its nodes are chosen")
                yield Bind(cluster, reservation.id)
            elif now >= reservation.start:
                yield break_off(reservation, now, "too few nodes are free at its start")
            elif reservation.cause != (cause := "too few nodes are free for it as yet"):
                yield with_cause(reservation, cause)

    def reassign_nodes(self, cluster: str, now: float) -> Iterator[Consequence]:
        """Replace failed nodes, and assign new nodes to rejected reservations."""
        rejected = [r for r in self._availability.open_on(cluster) if r.id in self._to_reassign]
        self._to_reassign.difference_update(reservation.id for reservation in rejected)
        if not self._availability.reserves_nodes(cluster):  # the manager chooses
            for reservation in (*rejected, *self._failed_on(cluster)):
                yield Bind(cluster, reservation.id)
            return
        if rejected:
            yield from self._replace_rejected_nodes(cluster, rejected, now)
        if failed := self._failed_on(cluster):  # a rejected reservation may have moved it
            yield from self._replace_failed_nodes(cluster, failed, now)

    def _failed_on(self, cluster: str) -> list[Reservation]:
        """Return the reservations of which nodes that the manager keeps are not up."""
        return [
            reservation
            for reservation in self._availability.open_on(cluster)
            if reservation.state in BOUND_STATES and self._availability.down_nodes(reservation)
        ]

    def _replace_rejected_nodes(
        self, cluster: str, rejected: list[Reservation], now: float
    ) -> Iterator[Consequence]:
        unassigned = {reservation.id for reservation in rejected}
        busy = self._availability.busy_spans(cluster, now)
        for reservation in rejected:
            assignment = nodes_after_rejection(self._availability, reservation, unassigned, busy)
            if assignment is None:
                yield break_off(reservation, now, reservation.cause)
                continue
            unassigned.discard(reservation.id)
            yield from self.assign_nodes(
                cluster, assignment, forced=reservation.id, without=unassigned
            )

    def _replace_failed_nodes(
        self, cluster: str, failed: list[Reservation], now: float
    ) -> Iterator[Consequence]:
        """Replace failed nodes of all reservations for which there is room, at once.

        A rack may take nodes of hundreds of reservations.
        """
        assignment = nodes_after_failures(self._availability, cluster, failed, now)
        down_nodes = {r.id: self._availability.down_nodes(r) for r in failed}
        causes = {
            id: _NODES_FAILED
            for id, nodes in assignment.items()
            if set(nodes) != set(self._reservations[id].nodes)
        }
        for reservation in failed:
            if reservation.id in assignment:
                nodes = ", ".join(down_nodes[reservation.id])
                causes[reservation.id] = f"{nodes} cannot be used"
                continue
            cause = no_spare_node_cause(down_nodes[reservation.id])
            if reservation.cause != cause:
                yield with_cause(reservation, cause)
                yield warning_about(reservation, f": {cause}")
        if assignment:
            yield from self.assign_nodes(cluster, assignment, causes=causes)

    def assign_nodes(
        self,
        cluster: str,
        assignment: Assignment,
        forced: int | None = None,
        without: Collection[int] = (),
        causes: Mapping[int, str] = _NO_CAUSES,
    ) -> Iterator[Consequence]:
        """Store and bind the nodes that change, and the nodes of the reservation `forced`.

        `causes` are new causes by reservation; others keep theirs.

        Reservations that need nodes which a moved reservation still has are bound again, after
        it, except those in `without`.
        """
        changes = changed_nodes(assignment, self._reservations, forced)
        changes |= self._waiting_for_nodes(cluster, changes, without)
        moves = moves_in_order(changes, self._reservations)
        for id, nodes in moves:
            reservation = self._reservations[id]
            cause = causes.get(id, reservation.cause)
            moved = structs.replace(reservation, nodes=nodes, cause=cause)
            if moved != reservation:  # else it is bound again only
                yield moved
            if not self.awaits_choice(reservation):
                yield Bind(cluster, id)

    def _waiting_for_nodes(
        self, cluster: str, moving: Collection[int], without: Collection[int]
    ) -> dict[int, tuple[str, ...]]:
        """Return the nodes of reservations that are to be bound, and must be so after the moving.

        They need nodes that one of the moving, or of themselves, has at the manager. Their number
        is that of the nodes looked at, not that of all reservations to be bound.
        """
        assigned = self._availability.assigned_on(cluster)
        waiting = dict[int, tuple[str, ...]]()
        blockers = list(moving)
        for id in blockers:  # grows
            blocker = self._reservations[id]
            for node in blocker.bound_nodes:
                for other_id in assigned.ids_on(node, blocker.start, blocker.until):
                    if other_id in waiting or other_id in moving or other_id in without:
                        continue
                    other = self._reservations[other_id]
                    is_bound = set(other.nodes) == set(other.bound_nodes)
                    if not (is_bound or self.awaits_choice(other)):
                        waiting[other_id] = other.nodes
                        blockers.append(other_id)
        return waiting
