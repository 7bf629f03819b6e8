"""Offers for a reservation request, compared with trying every window of whole seconds."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from metasched.carts.carts import Carts
from metasched.core.reservations.offers import alternative_offers, best_offer
from metasched.model.reservation_request import Offer, ReservationRequest
from tests.harness.examples import examples

CAPACITY, END = 4, 30
SIZES = st.integers(1, CAPACITY + 1)


@st.composite
def booked(draw: st.DrawFn) -> Carts:
    carts = Carts(CAPACITY)
    for _ in range(draw(st.integers(0, 8))):
        start, length = draw(st.integers(0, END)), draw(st.integers(1, 12))
        if free := carts.free(start, start + length):
            carts.reserve(start, start + length, draw(st.integers(1, free)))
    return carts


@st.composite
def requests(draw: st.DrawFn) -> ReservationRequest:
    ready = draw(st.integers(0, END))
    window = draw(st.integers(1, END))
    duration = draw(st.integers(1, window))
    size = draw(SIZES)
    form = draw(st.sampled_from(["fixed", "flexible", "size", "time"]))
    match form:
        case "fixed":
            return ReservationRequest.fixed(size, ready, ready + window)
        case "flexible":
            return ReservationRequest.flexible(size, duration, ready, ready + window)
        case "size":
            most = draw(st.integers(size, CAPACITY + 2))
            return ReservationRequest.best_size(size, most, duration, ready, ready + window)
        case _:
            longest = draw(st.integers(duration, END))
            return ReservationRequest.best_time(size, duration, longest, ready, ready + window)


def every_offer(carts: Carts, request: ReservationRequest) -> list[Offer]:
    """Return every offer that meets the request; all changes of `carts` are at whole seconds."""
    starts = range(int(request.ready), int(request.deadline))
    ends = range(int(request.ready) + 1, int(request.deadline) + 1)
    return [
        Offer(start, end, size)
        for start, end in product(starts, ends)
        if request.min_duration <= end - start <= request.max_duration
        for size in range(request.min_size, min(request.max_size, carts.free(start, end)) + 1)
    ]


@examples(600)
@given(booked(), requests())
def test_the_best_offer_is_the_best_of_all(carts: Carts, request: ReservationRequest) -> None:
    slots = carts.slots()
    ranks = [offer.rank for offer in every_offer(carts, request)]
    offer = best_offer(carts, request)
    assert (offer.rank if offer else None) == min(ranks, default=None)
    assert carts.slots() == slots


@examples(400)
@given(booked(), requests(), st.integers(1, 3 * END))
def test_what_is_offered_instead_can_be_reserved(
    carts: Carts, request: ReservationRequest, until: int
) -> None:
    if best_offer(carts, request) is not None:
        return
    for offer in alternative_offers(carts, request, until):
        assert request.ready <= offer.start < offer.end <= max(until, request.deadline)
        assert offer.size <= request.min_size
        assert offer.end - offer.start <= request.min_duration
        carts.reserve(offer.start, offer.end, offer.size)
        carts.release(offer.start, offer.end, offer.size)


@given(st.floats(0, 4e9), st.floats(1e-3, 1e6), st.floats(0, 1e6), st.integers(1, CAPACITY))
def test_a_fixed_window_is_given_whatever_floats_it_has(
    start: float, length: float, before: float, size: int
) -> None:
    carts = Carts(CAPACITY, origin=max(start - before, 0.0))
    offer = best_offer(carts, ReservationRequest.fixed(size, start, start + length))
    assert offer is not None
    assert offer.start == start
    assert offer.end <= start + length
    carts.reserve(offer.start, offer.end, offer.size)
