"""Reservations over time: begin and end of windows, and what was not bound in time. Pure.

Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

from metasched.core.reservations.availability import Availability
from metasched.core.reservations.binding import NodeBinding
from metasched.core.reservations.consequences import (
    Consequence,
    apply_transition,
    break_off,
    close,
    no_spare_node_cause,
)
from metasched.core.reservations.events import SurveyCluster
from metasched.core.reservations.index import DueTimes
from metasched.model.reservation import (
    OPEN_STATES,
    Reservation,
    ReservationState,
    ReservationTransition,
)

BIND_TIMEOUT = 20.0  # seconds: a reservation that begins at once must be bound by then


class ReservationTimer:
    """Begins, ends and breaks reservations when they are due."""

    def __init__(
        self,
        reservations: Mapping[int, Reservation],
        availability: Availability,
        binding: NodeBinding,
    ) -> None:
        self._reservations, self._availability = reservations, availability
        self._binding = binding
        self._survey_requested: dict[int, float] = {}  # late-binding: when a survey was requested
        self._expired: set[int] = set()  # returned by `collect_expired`: jobs must be gone
        self._due = DueTimes()  # of open reservations
        self._expiring = DueTimes()  # of those that are over and not in `_expired`

    def reset(self) -> None:
        """Forget surveys and expirations, at a start of the daemon."""
        self._survey_requested, self._expired = {}, set()
        self._due, self._expiring = DueTimes(), DueTimes()
        for reservation in self._reservations.values():
            self.update(reservation)

    def update(self, reservation: Reservation) -> None:
        """Take over a new version of a reservation. O(log n)."""
        if reservation.state in OPEN_STATES:
            self._due.set(reservation.id, self._due_time(reservation))
            return
        self._due.discard(reservation.id)
        if reservation.id not in self._expired:
            self._expiring.set(reservation.id, reservation.until)

    def remove(self, reservation: Reservation) -> None:
        """Forget a reservation that its manager has deleted."""
        self._survey_requested.pop(reservation.id, None)
        self._expiring.discard(reservation.id)
        self._expired.discard(reservation.id)

    @property
    def next_due(self) -> float | None:
        """The next time at which a reservation is due, or None. O(1)."""
        dues = (self._due.first, self._expiring.first)
        return min((due for due in dues if due is not None), default=None)

    def _due_time(self, reservation: Reservation) -> float:
        """Return when time alone changes the open reservation next."""
        cluster = self._availability.clusters.get(reservation.cluster)
        if cluster is None:
            is_active = reservation.state is ReservationState.ACTIVE
            return reservation.end if is_active else reservation.start
        if self._binding.awaits_choice(reservation):
            requested = self._survey_requested.get(reservation.id, -inf)
            times = (reservation.start - cluster.lead, reservation.start, reservation.end)
            return next(time for time in times if time > requested or time == reservation.end)
        if reservation.state is ReservationState.REQUESTED:
            return min(max(reservation.start, reservation.created + BIND_TIMEOUT), reservation.end)
        if reservation.state is ReservationState.BOUND:
            return reservation.start
        return reservation.end

    def apply_time(self, now: float) -> Iterator[Consequence]:
        """Begin and end reservations that are due; break reservations not bound in time.

        Only these are looked at, in the order of their ids.
        """
        for id in self._due.ids_until(now):
            reservation = self._reservations[id]
            is_configured = reservation.cluster in self._availability.clusters
            is_bound = reservation.state is ReservationState.BOUND
            if is_bound and reservation.start <= now and is_configured:
                reservation = self._begin(reservation, now)
                yield reservation
            if reservation.state not in OPEN_STATES or self._due_time(reservation) > now:
                continue
            if self._binding.awaits_choice(reservation) and now < reservation.end:
                self._survey_requested[id] = now
                self.update(reservation)
                yield SurveyCluster(reservation.cluster)
            elif reservation.state is ReservationState.ACTIVE:
                yield close(reservation, ReservationTransition.END, now, "its window is over")
            elif not is_configured:
                yield break_off(reservation, now, reservation.cause)
            elif reservation.state is not ReservationState.BOUND:
                yield break_off(reservation, now, f"not bound in time: {reservation.cause}")

    def _begin(self, reservation: Reservation, now: float) -> Reservation:
        """Return a bound reservation active, or broken if nodes are missing at its start."""
        down_nodes = self._availability.down_nodes(reservation)
        if down_nodes and now < reservation.end:
            return break_off(reservation, now, no_spare_node_cause(down_nodes))
        return apply_transition(reservation, ReservationTransition.BEGIN, "its window has begun")

    def collect_expired(self, now: float) -> list[Reservation]:
        """Return reservations in which nothing may run any more, each once per daemon epoch."""
        ids = self._expiring.ids_until(now)
        for id in ids:
            self._expiring.discard(id)
        self._expired.update(ids)
        return [self._reservations[id] for id in ids]

    def expired_on(self, cluster: str) -> list[Reservation]:
        """Return reservations that `collect_expired` returned and the manager may still have."""
        expired = (self._reservations[id] for id in sorted(self._expired))
        return [reservation for reservation in expired if reservation.cluster == cluster]
