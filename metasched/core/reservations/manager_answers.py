"""Answers of managers to bind and unbind: bound, rejected, released. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import structs

from metasched.core.reservations.availability import Availability
from metasched.core.reservations.binding import NodeBinding
from metasched.core.reservations.consequences import (
    Consequence,
    apply_transition,
    break_off,
    no_spare_node_cause,
    with_cause,
)
from metasched.core.reservations.events import (
    ReservationBound,
    ReservationRejected,
    ReservationReleased,
    SurveyCluster,
)
from metasched.model.reservation import (
    BOUND_STATES,
    OPEN_STATES,
    Reservation,
    ReservationState,
    ReservationTransition,
)

MAX_REJECTIONS = 5  # rejections, retried at once, after which a requested reservation breaks
# The same for a confirmed reservation, retried at each survey after the first MAX_REJECTIONS: a
# controller that has just started rejects everything until it has heard from its nodes
MAX_REJECTIONS_CONFIRMED = MAX_REJECTIONS + 12


class ManagerAnswers:
    """Applies what managers did with reservations."""

    def __init__(
        self,
        reservations: Mapping[int, Reservation],
        availability: Availability,
        binding: NodeBinding,
    ) -> None:
        self._reservations, self._availability = reservations, availability
        self._binding = binding

    def apply_bound(self, event: ReservationBound) -> Iterator[Consequence]:
        """Record the nodes that the manager keeps; a reservation not bound before is bound now."""
        reservation = structs.replace(
            self._reservations[event.id],
            bound_nodes=event.nodes,
            known_to_manager=True,
            rejections=0,
        )
        self._binding.keep_nodes(reservation)
        if reservation.state in (ReservationState.REQUESTED, ReservationState.CONFIRMED):
            resources = ", ".join(event.nodes) or f"{reservation.cpus} processors"
            cause = f"its manager keeps {resources}"
            yield apply_transition(reservation, ReservationTransition.BIND, cause)
            return
        if reservation.state in OPEN_STATES and reservation.nodes == event.nodes:
            cause = f"moved to {', '.join(event.nodes) or 'other nodes'}"
            reservation = with_cause(reservation, cause)
        yield reservation

    def apply_rejected(self, event: ReservationRejected) -> Iterator[Consequence]:
        """Survey again and assign other nodes; its nodes may have been taken meanwhile."""
        reservation = self._reservations[event.id]
        reservation = structs.replace(
            reservation,
            rejections=reservation.rejections + 1,
            cause=f"its manager refused: {event.reason}",
        )
        if reservation.state in BOUND_STATES:  # it keeps its nodes
            if down_nodes := self._availability.down_nodes(reservation):
                reservation = with_cause(reservation, no_spare_node_cause(down_nodes))
            yield structs.replace(reservation, nodes=reservation.bound_nodes)
            return
        if reservation.state not in OPEN_STATES:
            return
        is_new = reservation.state is ReservationState.REQUESTED
        if reservation.rejections >= (MAX_REJECTIONS if is_new else MAX_REJECTIONS_CONFIRMED):
            yield break_off(reservation, event.time, reservation.cause)
            return
        yield reservation
        self._binding.request_other_nodes(reservation)
        if reservation.rejections < MAX_REJECTIONS:
            yield SurveyCluster(reservation.cluster)

    def apply_released(self, event: ReservationReleased) -> Iterator[Consequence]:
        """Record that the manager no longer has a reservation that is over."""
        reservation = self._reservations.get(event.id)
        if reservation is not None and reservation.state not in OPEN_STATES:
            yield structs.replace(reservation, known_to_manager=False)
