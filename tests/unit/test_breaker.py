"""The circuit breaker: delays double, and a success resets them."""

from __future__ import annotations

from metasched.daemon.circuit_breaker import CircuitBreaker


def test_delays_double_up_to_the_maximum_and_a_success_resets_them() -> None:
    breaker = CircuitBreaker(initial_delay=2.0, max_delay=10.0)
    assert breaker.state(0.0) == "closed"
    assert [breaker.record_failure(f"no {n}", 1000.0 + n, 50.0) for n in range(4)] == [
        2.0,
        4.0,
        8.0,
        10.0,
    ]
    assert (breaker.failures, breaker.last_error) == (4, "no 3")
    assert (breaker.failing_since, breaker.next_retry) == (1000.0, 1013.0)
    assert [breaker.state(t) for t in (59.9, 60.0)] == ["open", "half_open"]
    breaker.record_success()
    assert breaker == CircuitBreaker(initial_delay=2.0, max_delay=10.0)


def test_a_delay_has_a_minimum() -> None:
    breaker = CircuitBreaker(initial_delay=2.0, max_delay=10.0)
    assert breaker.record_failure("", 0.0, 0.0, minimum=30.0) == 30.0


def test_ten_thousand_failures_do_not_overflow() -> None:
    breaker = CircuitBreaker(initial_delay=0.5, max_delay=60.0)
    assert {breaker.record_failure("", 0.0, 0.0) for _ in range(10_000)} >= {0.5, 60.0}
