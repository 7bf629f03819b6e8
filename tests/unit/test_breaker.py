"""The circuit breaker: waits that double, and forget all when it goes well again."""

from __future__ import annotations

from metasched.daemon.circuit_breaker import Breaker


def test_waits_double_up_to_the_longest_and_start_again_after_a_success() -> None:
    breaker = Breaker(first=2.0, most=10.0)
    assert breaker.state(0.0) == "closed"
    assert [breaker.fail(f"no {n}", 1000.0 + n, 50.0) for n in range(4)] == [2.0, 4.0, 8.0, 10.0]
    assert (breaker.failures, breaker.words) == (4, "no 3")
    assert (breaker.since, breaker.next_try) == (1000.0, 1013.0)
    assert [breaker.state(t) for t in (59.9, 60.0)] == ["open", "half_open"]
    breaker.succeed()
    assert breaker == Breaker(first=2.0, most=10.0)


def test_a_wait_is_at_least_as_long_as_asked() -> None:
    assert Breaker(first=2.0, most=10.0).fail("", 0.0, 0.0, least=30.0) == 30.0


def test_ten_thousand_failures_are_no_trouble() -> None:
    breaker = Breaker(first=0.5, most=60.0)
    assert {breaker.fail("", 0.0, 0.0) for _ in range(10_000)} >= {0.5, 60.0}
