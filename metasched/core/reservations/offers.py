"""What one cluster can offer for a reservation request."""

from __future__ import annotations

from metasched.carts.carts import Carts
from metasched.model.reservation_request import Offer, Request

BRIEFEST = 60.0  # seconds: no window shorter than that is offered to somebody who asked for more


def best(carts: Carts, request: Request) -> Offer | None:
    """The best that the cluster can promise of a request, or None; nothing is reserved."""
    if request.shortest < request.longest:
        return _longest(carts, request)
    low, high, found = request.least, min(request.most, carts.capacity), None
    while low <= high:  # where a size is free every smaller one is
        size = (low + high + 1) // 2
        start = carts.earliest_start(size, request.longest, request.ready, request.deadline)
        if start is None:
            high = size - 1
        else:
            found, low = Offer(start, start + request.longest, size), size + 1
    return found


def instead(carts: Carts, request: Request, until: float) -> list[Offer]:
    """What would be possible instead of a request that is not, the nearest to it first.

    The same later, ending by `until` (the horizon); fewer processors in the window; a shorter time
    in the window.
    """
    ready, deadline, size = request.ready, request.deadline, request.least
    offers = []
    if ready + request.shortest <= until:
        offers.append(best(carts, Request.flexible(size, request.shortest, ready, until)))
    if size > 1:
        fewer = Request.best_size(1, size - 1, request.shortest, ready, deadline)
        offers.append(best(carts, fewer))
    if request.shortest > BRIEFEST:
        shorter = Request.best_time(size, BRIEFEST, request.shortest, ready, deadline)
        offers.append(best(carts, shorter))
    return [offer for offer in offers if offer is not None]


def _longest(carts: Carts, request: Request) -> Offer | None:
    gaps = carts.starts(request.least, request.shortest, request.ready, request.deadline)
    offers = [
        Offer(first, min(first + request.longest, last + request.shortest), request.least)
        for first, last in gaps
    ]
    return min(offers, key=lambda offer: offer.rank, default=None)
