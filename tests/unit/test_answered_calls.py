"""Until when a command may have arrived: worked values, and every order of events of a model."""

from __future__ import annotations

import math

import pytest

from metasched.adapters.answered_calls import AnsweredCalls
from tests.harness.overtaking_model import Model, explore, polls_to_proof


class TimeAlone(AnsweredCalls):
    """The rule before: whatever ended `settle` seconds before a listing cannot arrive any more."""

    def arrived_until(self, listed: float) -> float:
        return listed - self._settle


class AnswerAndTime(AnsweredCalls):
    """An answer, then `settle` seconds in which the manager may stand still unnoticed."""

    def arrived_until(self, listed: float) -> float:
        answers = (begun for begun, at in self._polls if at + self._settle <= listed)
        return max(answers, default=-math.inf)


class FailuresIgnored(AnsweredCalls):
    """No call without an answer begins the proof anew."""

    def _restart(self) -> None:
        pass


def is_overtaken(model: Model) -> bool:
    """Return whether a listing proves the absence of a submission that arrives, in any state."""
    return any(state.outcome == "false" for state in explore(model))


@pytest.mark.slow("visits 80,000 states, and follows each to its end")
@pytest.mark.parametrize("own_commands", [True, False], ids=["personal", "site"])
def test_no_order_of_events_gives_a_false_proof(own_commands: bool) -> None:
    outcomes = set()
    for state in explore(Model(AnsweredCalls, own_commands=own_commands)):
        outcomes.add(state.outcome)
        if state.submission.tried >= 0 and not state.outcome:
            gap, duration = ((1, 0), (3, 0), (3, 3))[state.now % 3]
            polls_to_proof(state, gap, duration)
    assert outcomes == {"", "answered", "listed", "absent"}


@pytest.mark.parametrize("own_commands", [True, False], ids=["personal", "site"])
def test_what_a_cut_network_repeats_gives_no_false_proof(own_commands: bool) -> None:
    model = Model(AnsweredCalls, own_commands, unnoticed=0, cut=True, longest_gap=2, repeat=3)
    assert not is_overtaken(model)


@pytest.mark.parametrize("rule", [TimeAlone, AnswerAndTime, FailuresIgnored])
def test_the_model_finds_what_is_wrong_with_other_rules(rule: type[AnsweredCalls]) -> None:
    assert is_overtaken(Model(rule))


def test_a_second_standstill_that_no_call_notices_is_the_bound_of_the_proof() -> None:
    assert is_overtaken(Model(AnsweredCalls, unnoticed=2))


class Calls(AnsweredCalls):
    """A record of a manager that is polled at an interval, and takes some seconds each time."""

    def __init__(self, settle: float = 20.0, interval: float = 5.0, duration: float = 0.1) -> None:
        super().__init__(settle)
        self.now, self.interval, self.duration = 0.0, interval, duration

    def poll(self, duration: float | None = None, answered: bool = True) -> float:
        """Poll; return until when commands have arrived, by this listing."""
        self.now = begun = self.now + self.interval
        self.begin_poll(begun)
        self.now += self.duration if duration is None else duration
        if answered:
            self.end_poll(self.now)
        return self.arrived_until(begun)

    def polls_until_proved(self, tried: float) -> int:
        for number in range(1, 1000):
            if self.poll() >= tried:
                return number
        raise AssertionError("never proved")


@pytest.mark.parametrize(
    ("interval", "duration", "polls"),
    # the first is answered; then 20 s of gaps pass, of 10 s at most, and the longest is left out
    [(5, 0.1, 6), (5, 8, 6), (5, 15, 6), (2, 0.1, 12), (60, 1, 4), (1, 10, 22)],
)
def test_doubt_ends_whatever_the_interval_and_the_duration(
    interval: float, duration: float, polls: int
) -> None:
    calls = Calls(interval=interval, duration=duration)
    for _ in range(3):
        calls.poll()
    assert calls.polls_until_proved(tried=calls.now) == polls


def test_the_first_listings_prove_nothing() -> None:
    calls = Calls()
    assert [calls.poll() for _ in range(5)] == [-math.inf] * 5
    assert calls.poll() == 5.0  # the begin of the first


def test_a_manager_of_which_no_request_waits_is_proved_at_once() -> None:
    assert Calls(settle=0.0).poll() == 5.0


def test_a_poll_without_an_answer_begins_the_proof_anew() -> None:
    calls = Calls()
    for _ in range(8):
        calls.poll()
    calls.poll(3, answered=False)
    failed = calls.now
    assert calls.polls_until_proved(tried=0.0) == 9  # of which 3 while TCP repeats, for 13 s
    assert calls.now > failed + 25


def test_what_tcp_repeats_comes_as_long_after_a_silence_as_that_lasted() -> None:
    calls, lengths = Calls(), []
    for silence in (5.0, 50.0, 3600.0):
        calls.poll(silence, answered=False)
        calls.poll()
        answered = calls.now
        calls.polls_until_proved(tried=0.0)
        lengths.append(calls.now - answered)
    assert lengths[0] < 45
    assert 50 + 20 < lengths[1] < 100
    assert 120 + 20 < lengths[2] < 155  # TCP gives up


def test_a_slow_answer_begins_the_proof_anew_unless_all_are_slow() -> None:
    calls = Calls()
    for _ in range(8):
        calls.poll()
    assert calls.poll(9.0) > 0
    assert calls.poll(11.0) == -math.inf
    slow = Calls(duration=11.0)
    for duration in (11.0, 20.0, 15.0):
        slow.poll(duration)
    assert slow.polls_until_proved(tried=0.0) == 3


def test_a_change_without_an_answer_begins_the_proof_anew_unless_it_is_a_quick_error() -> None:
    calls = Calls()
    for _ in range(8):
        calls.poll()
    calls.fail_change(calls.now, calls.now + 0.3)
    assert calls.poll() > 0
    calls.fail_change(calls.now, calls.now + 10)
    assert calls.poll() == -math.inf


def test_a_change_without_an_answer_may_come_before_the_first_poll() -> None:
    calls = Calls()
    calls.now = 30.0
    calls.fail_change(0.0, calls.now)
    assert calls.polls_until_proved(tried=calls.now) < 20
    assert calls.now > 35 + 35 + 20  # while TCP repeats, then `settle`


def test_a_listing_that_is_complete_only_up_to_an_earlier_time_proves_less() -> None:
    calls = Calls()
    for _ in range(8):
        calls.poll()
    now = calls.now
    assert calls.arrived_until(now - 15) < calls.arrived_until(now) - 10
    assert calls.arrived_until(now - 35) == -math.inf
