"""Invalid reservation requests, offers, and the choice of a cluster."""

from __future__ import annotations

from collections import Counter
from math import inf, nan

import pytest

from metasched.carts.carts import Carts
from metasched.core.reservations.offers import alternative_offers, best_offer
from metasched.model.reservation_request import Offer, ReservationRequest
from metasched.policies.reservation_choice import MinimumCompletionTime, ResourcePriority

HOUR = 3600.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((0, 10, 0, 1, 5, 5), "size 0 is too small"),
        ((0, 10, 2, 1, 5, 5), "at most 1 is below at least 2"),
        ((0, 10, 1, 1, 0, 0), "a duration of 0 s is too short"),
        ((0, 10, 1, 1, -5, -5), "a duration of -5 s is too short"),
        ((0, 10, 1, 1, 5, 4), "at most 4 s is below at least 5 s"),
        ((10, 10, 1, 1, 5, 5), "the end is not after the start"),
        ((10, 5, 1, 1, 5, 5), "the end is not after the start"),
        ((0, 4, 1, 1, 5, 5), "5 s do not fit between ready and deadline, which are 4 s apart"),
        ((0, 10, 1, 2, 4, 5), "either the size or the duration may be open, not both"),
        ((nan, 10, 1, 1, 5, 5), "ready is nan"),
        ((0, inf, 1, 1, 5, 5), "deadline is inf"),
    ],
)
def test_requests_that_make_no_sense(fields: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReservationRequest(*fields)  # type: ignore[arg-type]


def test_what_is_offered_instead_of_a_window_that_is_taken() -> None:
    carts = Carts(4)
    carts.reserve(HOUR, 2 * HOUR, 3)
    request = ReservationRequest.fixed(2, 0.5 * HOUR, 1.5 * HOUR)
    assert best_offer(carts, request) is None
    assert alternative_offers(carts, request, 10 * HOUR) == [
        Offer(2 * HOUR, 3 * HOUR, 2),  # the same window later
        Offer(0.5 * HOUR, 1.5 * HOUR, 1),  # fewer processors
        Offer(0.5 * HOUR, HOUR, 2),  # a shorter time
    ]
    assert alternative_offers(carts, request, 2.5 * HOUR)[0] == Offer(0.5 * HOUR, 1.5 * HOUR, 1)


def test_more_than_the_cluster_has_is_offered_as_much_as_it_has() -> None:
    assert alternative_offers(Carts(4), ReservationRequest.fixed(9, 0, HOUR), 10 * HOUR) == [
        Offer(0, HOUR, 4)
    ]


def test_the_cluster_with_the_earliest_start_and_ties_are_drawn_by_the_seed() -> None:
    offers = {"a": Offer(9, 19, 1), "b": Offer(5, 15, 1), "c": Offer(5, 15, 1)}
    chooser = MinimumCompletionTime(seed=1)
    drawn = [chooser.choose(offers, 20) for _ in range(200)]
    assert Counter(drawn).keys() == {"b", "c"}
    again = MinimumCompletionTime(seed=1)
    assert drawn == [again.choose(offers, 20) for _ in range(200)]


def test_the_first_cluster_of_the_order_that_is_in_time_else_the_earliest_of_all() -> None:
    offers = {"a": Offer(9, 19, 1), "b": Offer(5, 15, 1), "c": Offer(7, 17, 1)}
    chooser = ResourcePriority(["a", "c", "b"])
    assert chooser.choose(offers, 20) == "a"
    assert chooser.choose(offers, 18) == "c"
    assert chooser.choose(offers, 10) == "b"
    assert ResourcePriority([]).choose(offers, 20) == "a"
    with pytest.raises(ValueError, match="named twice in a, a"):
        ResourcePriority(["a", "a"])
