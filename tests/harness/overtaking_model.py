"""A manager that stands still, a submission in its backlog, and polls: every order of events.

The manager runs or stands still. It handles what waits in any order while it runs, but a submission
within SETTLE ticks of running time. A command ends without an answer after COMMAND ticks, a poll
after POLL ticks. Polls begin whenever the model likes, at most `longest_gap` ticks after the last.

A standstill is noticed if it makes a call of metasched fail, or a poll slow. `unnoticed` of them
may happen after the last one that was noticed. With `cut` the network stands still instead: TCP
then repeats a submission, at intervals that double.

`explore` visits all states breadth first. It yields each state in which a listing without the
submission counts as a proof that it never arrives, though it may arrive, or already has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

from metasched.adapters.answered_calls import AnsweredCalls

SETTLE = 2  # ticks
COMMAND = 2
POLL = 3
LAST_DISPATCH = 3  # tick at which the submission is made at the latest


class Submission(NamedTuple):
    """The submission; a tick is -1 before its event."""

    sent: int = -1
    tried: int = -1  # end of the command without an answer
    enters_until: int = -1  # in the network until then at the latest; -1: in the backlog
    waited: int = 0  # ticks of running time in the backlog
    handled: bool = False
    dropped: bool = False  # it never arrives

    @property
    def waits(self) -> bool:
        return self.sent >= 0 and not (self.handled or self.dropped)


_NOT_SENT = Submission()


class Poll(NamedTuple):
    """A poll under way."""

    begun: int
    looked: bool = False  # the manager has made the answer
    listed: bool = False  # the answer has the submission


@dataclass(frozen=True)
class State:
    """A state of the model. `calls` is the record under test, never changed in place."""

    calls: AnsweredCalls
    now: int = 0
    runs: bool = True
    stops: int = 0  # standstills since the last answer
    unnoticed: int = 0  # standstills before, since the last that was noticed
    submission: Submission = _NOT_SENT
    poll: Poll | None = None
    poll_ended: int = 0
    outcome: str = ""  # "listed", "answered", "absent": proved rightly, "false": proved wrongly

    def key(self) -> tuple[object, ...]:
        """The state without absolute times."""
        now, sub, poll, calls = self.now, self.submission, self.poll, self.calls
        return (
            *(self.runs, self.stops, self.unnoticed, self.outcome, now - self.poll_ended),
            sub._replace(
                sent=_age_of_sent(self),
                tried=sub.tried >= 0,
                enters_until=max(sub.enters_until - now, 0) if sub.enters_until >= 0 else -1,
            ),
            poll and poll._replace(begun=now - poll.begun),
            # what began before the command ended proves nothing about it
            tuple((now - b, now - a) for b, a in calls._polls if 0 <= sub.tried <= b),
            min(calls._durations, default=-1),
            calls._silent_since is not None
            and min(now - calls._silent_since, calls.longest_repeat),
            max(min(calls._repeats_until - now, calls.longest_repeat + 1), -1),
            min(now - (calls._last_answer or 0.0), calls.longest_repeat),
        )


def _age_of_sent(state: State) -> int:
    """Return how long ago the submission was sent, as far as it still matters."""
    sub = state.submission
    if sub.sent < 0:
        return state.now - LAST_DISPATCH - 1
    if sub.tried >= 0 and sub.enters_until < 0:
        return 0
    return min(state.now - sub.sent, int(state.calls.longest_repeat) + 1 + COMMAND)


def _clone(calls: AnsweredCalls) -> AnsweredCalls:
    clone = copy(calls)
    clone._polls, clone._durations = calls._polls.copy(), calls._durations.copy()
    return clone


@dataclass(frozen=True)
class Model:
    """The rules; `make` returns the record under test."""

    make: Callable[[float], AnsweredCalls]
    own_commands: bool = True  # commands run as metasched, one call at a time; else as owners
    unnoticed: int = 1
    cut: bool = False
    repeat: int = 4  # ticks for which TCP repeats a message
    longest_gap: int = 3

    def begin(self) -> State:
        calls = self.make(SETTLE)
        calls.longest_repeat = self.repeat
        calls.begin_poll(0)
        calls.end_poll(0)
        return State(calls)

    def steps(self, state: State) -> Iterator[State]:
        """Yield the states that may follow."""
        if state.outcome:
            return
        sub = state.submission
        if state.runs:
            if state.unnoticed + state.stops <= self.unnoticed:
                yield replace(state, runs=False, stops=state.stops + 1)
        else:
            yield self._resumed(state)
        if sub.sent < 0 and (state.poll is None or not self.own_commands):
            yield replace(state, submission=self._sent(state))
        if sub.waits:
            yield from self._handled(state)
        if state.poll is None:
            if state.now > state.poll_ended and (
                sub.sent < 0 or sub.tried >= 0 or not self.own_commands
            ):
                yield self._poll_begun(state)
        else:
            yield from self._answered(state, state.poll)
        yield from self._tick(state)

    def _resumed(self, state: State) -> State:
        sub = state.submission
        if sub.waits and sub.enters_until >= 0:
            age = state.now - sub.sent
            sub = sub._replace(enters_until=state.now + age, dropped=age > self.repeat)
        return replace(state, runs=True, submission=sub)

    def _sent(self, state: State) -> Submission:
        in_network = self.cut and not state.runs
        return Submission(sent=state.now, enters_until=0 if in_network else -1)

    def _handled(self, state: State) -> Iterator[State]:
        sub = state.submission
        if sub.tried >= 0:
            yield replace(state, submission=sub._replace(dropped=True))
        if sub.enters_until >= 0:
            if state.runs:
                yield replace(state, submission=sub._replace(enters_until=-1))
        elif state.runs:
            outcome = "answered" if sub.tried < 0 else ""
            yield replace(state, submission=sub._replace(handled=True), outcome=outcome)

    def _poll_begun(self, state: State) -> State:
        calls = _clone(state.calls)
        calls.begin_poll(state.now)
        return replace(state, calls=calls, poll=Poll(state.now))

    def _answered(self, state: State, poll: Poll) -> Iterator[State]:
        if not state.runs:
            return
        if not poll.looked:
            seen = Poll(poll.begun, looked=True, listed=state.submission.handled)
            yield replace(state, poll=seen)
            return
        calls = _clone(state.calls)
        calls.end_poll(state.now)
        until, sub = calls.arrived_until(poll.begun), state.submission
        outcome = ""
        if poll.listed:
            outcome = "listed"
        elif 0 <= sub.tried <= until:
            outcome = "absent" if sub.dropped else "false"
        slow = state.now - poll.begun > SETTLE / 2
        unnoticed = 0 if slow else state.unnoticed + state.stops
        if unnoticed > self.unnoticed:
            return
        yield replace(
            state,
            calls=calls,
            poll=None,
            poll_ended=state.now,
            outcome=outcome,
            stops=0,
            unnoticed=unnoticed,
        )

    def _tick(self, state: State) -> Iterator[State]:
        """Let a tick pass, unless something has to happen before."""
        sub, poll, now = state.submission, state.poll, state.now + 1
        if sub.sent < 0 and state.now >= LAST_DISPATCH:
            return
        may_poll = sub.sent < 0 or sub.tried >= 0 or not self.own_commands
        if poll is None and may_poll and now - state.poll_ended > self.longest_gap:
            return
        if state.runs and sub.waits:
            if sub.enters_until < 0:
                if sub.waited == SETTLE:
                    return
                sub = sub._replace(waited=sub.waited + 1)
            elif sub.enters_until <= state.now:
                return
        calls, poll_ended = state.calls, state.poll_ended
        stops, unnoticed = state.stops, state.unnoticed
        if sub.sent >= 0 and sub.tried < 0 and now - sub.sent == COMMAND:
            sub = sub._replace(tried=now)
            if self.own_commands:
                calls, stops, unnoticed = _clone(calls), 0, 0
                calls.fail_change(sub.sent, now)
        if poll is not None and now - poll.begun == POLL:
            poll, poll_ended, stops, unnoticed = None, now, 0, 0
        yield replace(
            state,
            calls=calls,
            now=now,
            submission=sub,
            poll=poll,
            stops=stops,
            unnoticed=unnoticed,
            poll_ended=poll_ended,
        )


def explore(model: Model, limit: int = 3_000_000) -> Iterator[State]:
    """Yield every state once; raise if there are more than `limit`."""
    first = model.begin()
    seen, waiting = {first.key()}, deque([first])
    while waiting:
        state = waiting.popleft()
        yield state
        for following in model.steps(state):
            key = following.key()
            if key not in seen:
                seen.add(key)
                assert len(seen) <= limit
                waiting.append(following)


def polls_to_proof(state: State, gap: int, duration: int) -> int:
    """Return after how many polls a state ends, if the manager answers each from now on."""
    calls, sub, now = _clone(state.calls), state.submission, state.now
    if state.poll is not None:
        calls.end_poll(now)
    for number in range(1, 40):
        begun = now + gap
        now = begun + duration
        calls.begin_poll(begun)
        calls.end_poll(now)
        if sub.tried <= calls.arrived_until(begun):
            return number
    raise AssertionError(f"no proof: {state}")
