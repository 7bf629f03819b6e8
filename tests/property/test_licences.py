"""The line for licences against a count of everything: nobody who could go waits, none forever."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from metasched.licences import Lease, LicencePool, Licences, Place

NAMES = ("a", "b", "c")
TOTAL = 4


class Line(RuleBasedStateMachine):
    """Jobs come, wait, are leased what they want, give it back or lose interest."""

    @initialize(patience=st.sampled_from([0.0, 20.0, 1e9]), linger=st.sampled_from([0.0, 5.0]))
    def boot(self, patience: float, linger: float) -> None:
        self.now, self.jobs = 0.0, 0
        self.line = Licences()
        pools = [LicencePool(name=name, total=TOTAL, linger=linger) for name in NAMES]
        self.line.configure(pools, patience)
        self.waiting: dict[Place, dict[str, int]] = {}
        self.held: dict[Place, dict[str, int]] = {}

    def settle(self) -> list[Place]:
        """All who can go, go; in this order."""
        gone = []
        while (place := self.line.next(self.now)) is not None:
            wants = self.waiting.pop(place)
            self.line.take(Lease(*place, 1, wants, self.now))
            self.held[place] = wants
            gone.append(place)
            for name in wants:
                assert (self.line.standing(name, self.now).free or 0) >= 0
        return gone

    @rule(
        wants=st.dictionaries(st.sampled_from(NAMES), st.integers(1, TOTAL), min_size=1),
        earlier=st.sampled_from([0.0, 0.0, 50.0]),
    )
    def join(self, wants: dict[str, int], earlier: float) -> None:
        self.jobs += 1
        place = (self.jobs, 0)
        self.waiting[place] = wants
        self.line.join(place, (self.now - earlier, *place), wants)
        self.settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), used=st.booleans())
    def give_back(self, data: Any, used: bool) -> None:
        place = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[place]
        self.line.give_back(place, self.now, used)
        self.settle()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        place = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[place]
        self.line.leave(place)
        self.settle()

    @rule(name=st.sampled_from(NAMES), total=st.sampled_from([None, 0, 1, 9]))
    def choose(self, name: str, total: int | None) -> None:
        self.line.choose(name, total)
        self.settle()

    @rule(seconds=st.floats(0.1, 30.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.line.pass_time(self.now)
        self.settle()

    @invariant()
    def the_counts_are_those_of_a_recount(self) -> None:
        if not hasattr(self, "line"):
            return
        for name in NAMES:
            told = self.line.standing(name, self.now)
            assert told.ours == sum(wants.get(name, 0) for wants in self.held.values())
            assert told.waiting == sum(wants.get(name, 0) for wants in self.waiting.values())

    @invariant()
    def whoever_waits_lacks_something_or_it_is_kept_for_another(self) -> None:
        if not hasattr(self, "line"):
            return
        free = {name: self.line.standing(name, self.now).free or 0 for name in NAMES}
        for wants in self.waiting.values():
            if self.line.patience > 1e8:  # nothing is kept
                assert any(many > free[name] for name, many in wants.items())

    def teardown(self) -> None:
        """Whoever wants no more than there is goes, one of those that hold ending at a time."""
        if not hasattr(self, "line"):
            return
        for name in NAMES:
            self.line.choose(name, None)
        while self.waiting or self.held:
            self.now += 21.0
            self.line.pass_time(self.now)
            gone = self.settle()
            assert gone or self.held, self.waiting
            if self.held:
                place = min(self.held)
                del self.held[place]
                self.line.give_back(place, self.now, used=False)


TestLine = Line.TestCase
TestLine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_one_that_wants_all_is_passed_for_its_patience_and_no_longer() -> None:
    """Jobs that want one each come without end, as many as there are tokens."""
    line = Licences()
    line.configure([LicencePool(name="a", total=TOTAL)], patience=60.0)
    held: list[tuple[int, Place]] = []  # since when; each has it for as many seconds as there are
    passed = 0
    for second in range(1000):
        line.join((second, 0), (float(second), second, 0), {"a": 1})
        if second == 10:
            line.join((5000, 0), (10.0, 5000, 0), {"a": TOTAL})
        if held and held[0][0] + TOTAL <= second:
            line.give_back(held.pop(0)[1], float(second), used=False)
        while (place := line.next(float(second))) is not None:
            many = TOTAL if place == (5000, 0) else 1
            line.take(Lease(*place, 1, {"a": many}, float(second)))
            if many == TOTAL:
                assert passed >= 50  # while it had patience nothing stood idle
                assert 70 <= second <= 10 + 60 + TOTAL + 1
                return
            held.append((second, place))
            passed += second > 10
    raise AssertionError("it waits forever")
