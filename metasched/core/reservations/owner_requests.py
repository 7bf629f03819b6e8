"""Requests of owners and operators: grant a reservation, cancel it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import structs

from metasched.core.reservations.availability import Availability
from metasched.core.reservations.binding import NodeBinding
from metasched.core.reservations.consequences import Consequence, close
from metasched.core.reservations.events import ReservationCancelled, ReservationRequested
from metasched.core.reservations.offers import OfferFinder
from metasched.model.reservation import (
    OPEN_STATES,
    Reservation,
    ReservationState,
    ReservationTransition,
)
from metasched.policies.policy import Policy
from metasched.policies.reservation_choice import (
    ClusterChooser,
    MinimumCompletionTime,
    ResourcePriority,
)


class OwnerRequests:
    """Applies requests and cancellations."""

    def __init__(
        self,
        reservations: Mapping[int, Reservation],
        availability: Availability,
        offer_finder: OfferFinder,
        binding: NodeBinding,
    ) -> None:
        self._reservations, self._availability = reservations, availability
        self._offer_finder, self._binding = offer_finder, binding
        self._chooser: ClusterChooser = MinimumCompletionTime()

    def configure(self, policy: Policy, clusters: Iterable[str]) -> None:
        """Set the rule by which a cluster is chosen; `clusters` in the order of configuration."""
        self._chooser = MinimumCompletionTime(policy.seed)
        if policy.reserve == "first":
            self._chooser = ResourcePriority(list(clusters))

    def apply_request(self, event: ReservationRequested) -> Iterator[Consequence]:
        """Grant the best offer on the cluster that the policy chooses; nothing if none has room."""
        results = {name: self._offer_finder.find_offer(event, name) for name in event.clusters}
        offers = {name: result[0] for name, result in results.items() if result is not None}
        if not offers:
            return
        comparable = {
            name: self._offer_finder.comparable(event, name, offer)
            for name, offer in offers.items()
        }
        cluster = self._chooser.choose(comparable, event.request.deadline)
        result = results[cluster]
        assert result is not None
        offer, assignment = result
        reservation = Reservation(
            id=event.id,
            user=event.user,
            cluster=cluster,
            start=offer.start,
            end=offer.end,
            size=offer.size,
            cpus=offer.size * self._availability.cpus_per_unit(cluster),
            created=event.time,
            nodes=assignment[event.id],
            cause="requested",
            let_run=event.let_run,
            licences=event.licences,
            mail=event.mail,
            users=event.users,
            accounts=event.accounts,
            series=event.series,
        )
        settings = self._availability.clusters[cluster]
        if settings.binds_late:
            cause = f"its nodes are chosen {settings.lead:g} s before its start"
            confirmed = ReservationState.CONFIRMED
            reservation = structs.replace(reservation, state=confirmed, cause=cause)
        yield reservation
        yield from self._binding.assign_nodes(cluster, assignment, forced=event.id)

    def apply_cancellation(self, event: ReservationCancelled) -> Iterator[Consequence]:
        """Close a reservation that is open."""
        reservation = self._reservations[event.id]
        if reservation.state in OPEN_STATES:
            cause = f"cancelled by {event.by}"
            yield close(reservation, ReservationTransition.CANCEL, event.time, cause)
