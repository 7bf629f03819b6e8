"""What one cluster can offer for a reservation request."""

from __future__ import annotations

from metasched.carts.carts import Carts
from metasched.model.reservation_request import Offer, ReservationRequest

MIN_OFFERED_DURATION = (
    60.0  # seconds: no window shorter than that is offered to somebody who asked for more
)


def best_offer(carts: Carts, request: ReservationRequest) -> Offer | None:
    """The best that the cluster can promise of a request, or None; nothing is reserved."""
    if request.min_duration < request.max_duration:
        return _longest_offer(carts, request)
    low, high, offer = request.min_size, min(request.max_size, carts.capacity), None
    while low <= high:  # where a size is free every smaller one is
        size = (low + high + 1) // 2
        start = carts.earliest_start(size, request.max_duration, request.ready, request.deadline)
        if start is None:
            high = size - 1
        else:
            offer, low = Offer(start, start + request.max_duration, size), size + 1
    return offer


def alternative_offers(carts: Carts, request: ReservationRequest, horizon: float) -> list[Offer]:
    """What would be possible instead of a request that is not, the nearest to it first.

    The same later, ending by `until` (the horizon); fewer processors in the window; a shorter time
    in the window.
    """
    ready, deadline, size = request.ready, request.deadline, request.min_size
    offers = []
    if ready + request.min_duration <= horizon:
        offers.append(
            best_offer(
                carts, ReservationRequest.flexible(size, request.min_duration, ready, horizon)
            )
        )
    if size > 1:
        fewer = ReservationRequest.best_size(1, size - 1, request.min_duration, ready, deadline)
        offers.append(best_offer(carts, fewer))
    if request.min_duration > MIN_OFFERED_DURATION:
        shorter = ReservationRequest.best_time(
            size, MIN_OFFERED_DURATION, request.min_duration, ready, deadline
        )
        offers.append(best_offer(carts, shorter))
    return [offer for offer in offers if offer is not None]


def _longest_offer(carts: Carts, request: ReservationRequest) -> Offer | None:
    gaps = carts.starts(request.min_size, request.min_duration, request.ready, request.deadline)
    offers = [
        Offer(
            first, min(first + request.max_duration, last + request.min_duration), request.min_size
        )
        for first, last in gaps
    ]
    return min(offers, key=lambda offer: offer.rank, default=None)
