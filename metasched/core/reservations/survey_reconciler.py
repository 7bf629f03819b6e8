"""Compare a survey with the book: lost, changed and unknown reservations, usable nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from metasched.core.reservations.availability import Availability
from metasched.core.reservations.binding import NodeBinding
from metasched.core.reservations.consequences import (
    Consequence,
    apply_transition,
    lacks_spare_node,
    with_cause,
)
from metasched.core.reservations.events import Bind, SurveyReceived, Unbind
from metasched.model.reservation import BOUND_STATES, ReservationTransition, reservation_id
from metasched.model.survey import ManagerReservation


class SurveyReconciler:
    """Applies surveys to the reservations of their cluster."""

    def __init__(self, availability: Availability, binding: NodeBinding) -> None:
        self._availability, self._binding = availability, binding

    def apply_survey(self, event: SurveyReceived) -> Iterator[Consequence]:
        """Store the survey, mend differences at the manager, then choose nodes that are due."""
        self._availability.record_survey(event.cluster, event.survey)
        yield from self._mend_differences(event)
        for reservation in self._availability.open_on(event.cluster):
            was_down = lacks_spare_node(reservation)
            if was_down and not self._availability.down_nodes(reservation):
                yield with_cause(reservation, "its nodes can be used again")
        yield from self._binding.choose_due_nodes(event.cluster, event.time)
        yield from self._binding.reassign_nodes(event.cluster, event.time)

    def _mend_differences(self, event: SurveyReceived) -> Iterator[Consequence]:
        """Delete what only the manager has; bind again what it lost or changed."""
        cluster, reported = event.cluster, self._reported(event)
        for id in reported.keys() - {r.id for r in self._availability.open_on(cluster)}:
            yield Unbind(cluster, id)  # unknown, or closed
        for reservation in self._availability.open_on(cluster):
            if reservation.state not in BOUND_STATES:
                continue
            if reservation.id in reported:
                if reported[reservation.id].size not in (None, reservation.size):
                    yield Bind(cluster, reservation.id)  # changed at the manager
            elif event.time < reservation.end:
                cause = "its manager does not know it any more"
                yield apply_transition(reservation, ReservationTransition.LOSE, cause)
                yield Bind(cluster, reservation.id)

    def _reported(self, event: SurveyReceived) -> dict[int, ManagerReservation]:
        """Return the reservations of this instance in a survey, by id."""
        instance = self._availability.instance
        ids = ((reservation_id(entry.name, instance), entry) for entry in event.survey.reservations)
        return {id: entry for id, entry in ids if id is not None}
