"""Requests for advance reservations, and the offers of one cluster: pure, over `Carts`.

Source: Kurowski et al. 2011, section 4.4.1. Times are seconds, sizes count processors or nodes,
whichever unit the cluster's `Carts` counts.
"""

from __future__ import annotations

from metasched.carts.carts import Carts
from metasched.model.reservation_request import Offer, ReservationRequest

MIN_OFFERED_DURATION = 60.0  # seconds: a request for more is offered no shorter window


def best_offer(carts: Carts, request: ReservationRequest) -> Offer | None:
    """Return the best offer of the cluster for a request, or None; nothing is reserved."""
    if request.min_duration < request.max_duration:
        return _longest_offer(carts, request)
    low, high, offer = request.min_size, min(request.max_size, carts.capacity), None
    while low <= high:  # if a size fits, so does every smaller size
        size = (low + high + 1) // 2
        start = carts.earliest_start(size, request.max_duration, request.ready, request.deadline)
        if start is None:
            high = size - 1
        else:
            offer, low = Offer(start, start + request.max_duration, size), size + 1
    return offer


def alternative_offers(carts: Carts, request: ReservationRequest, horizon: float) -> list[Offer]:
    """Return offers for a request that cannot be met, the nearest to it first.

    They are: the same later, ending by `horizon`; fewer processors in the window; a shorter
    duration in the window.
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
