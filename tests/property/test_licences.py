"""The line for licences against a count of everything: nobody who could go waits, none forever.

Whoever has licences gives them back by its time limit, as managers see to it.
"""

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
        self.keys: dict[Place, float] = {}
        self.lasts: dict[Place, float] = {}
        self.ends: dict[Place, float] = {}
        self.lingering: list[tuple[float, str, int]] = []

    def settle(self) -> list[Place]:
        """All who can go, go; in this order."""
        gone = []
        while (place := self.line.next(self.now)) is not None:
            wants = self.waiting.pop(place)
            self.ends[place] = self.now + self.lasts[place]
            self.line.take(Lease(*place, 1, wants, self.now), self.ends[place])
            self.held[place] = wants
            gone.append(place)
            for name in wants:
                assert (self.line.standing(name, self.now).free or 0) >= 0
        return gone

    @rule(
        wants=st.dictionaries(st.sampled_from(NAMES), st.integers(1, TOTAL), min_size=1),
        earlier=st.sampled_from([0.0, 0.0, 50.0]),
        lasts=st.sampled_from([1.0, 8.0, 32.0, 256.0]),
    )
    def join(self, wants: dict[str, int], earlier: float, lasts: float) -> None:
        self.jobs += 1
        place = (self.jobs, 0)
        self.waiting[place] = wants
        self.keys[place], self.lasts[place] = self.now - earlier, lasts
        self.line.join(place, self.keys[place], wants, lasts)
        self.settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), used=st.booleans())
    def give_back(self, data: Any, used: bool) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.held))), used)

    def end(self, place: Place, used: bool = True) -> list[Place]:
        wants = self.held.pop(place)
        for name, until in self.line.give_back(place, self.now, used).items():
            self.lingering.append((until, name, wants[name]))
        return self.settle()

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

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def begin_late(self, data: Any) -> None:
        """Its time limit counts from now on, not from when it was leased."""
        place = data.draw(st.sampled_from(sorted(self.held)))
        self.ends[place] = self.now + self.lasts[place]
        self.line.expect(place, self.ends[place])
        self.settle()

    @rule(seconds=st.floats(0.1, 30.0))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            dues = [self.ends[place] for place in self.held] + [due for due, *_ in self.lingering]
            self.now = min([*dues, until])
            self.lingering = [back for back in self.lingering if back[0] > self.now]
            self.line.pass_time(self.now)
            self.settle()
            for place in [place for place in self.held if self.ends[place] <= self.now]:
                self.end(place)
            if self.now == until:
                return

    @invariant()
    def the_counts_are_those_of_a_recount(self) -> None:
        if not hasattr(self, "line"):
            return
        for name in NAMES:
            told = self.line.standing(name, self.now)
            assert told.ours == sum(wants.get(name, 0) for wants in self.held.values())
            assert told.waiting == sum(wants.get(name, 0) for wants in self.waiting.values())

    def order(self, place: Place) -> tuple[object, ...]:
        key, patience = self.keys[place], self.line.patience
        step = key // patience if patience else key
        return step, -sum(self.waiting[place].values()), key, place

    def first(self, name: str) -> Place | None:
        """Who is first in line for a licence."""
        wanting = [place for place, wants in self.waiting.items() if name in wants]
        return min(wanting, key=self.order, default=None)

    def free_at(self, name: str, moment: float) -> int:
        """How many will be free if all end by their time limits, and nobody new comes."""
        back = [self.held[p].get(name, 0) for p in self.held if self.ends[p] <= moment]
        back += [many for until, n, many in self.lingering if n == name and until <= moment]
        return (self.line.standing(name, self.now).free or 0) + sum(back)

    def would_delay(self, place: Place, name: str) -> bool:
        """Whether one that went now might keep the first in line for that licence waiting."""
        first = self.first(name)
        if (
            first is None
            or first == place
            or any(self.first(n) != first for n in self.waiting[first])
        ):
            return False
        moments = [self.now, *(self.ends[p] for p in self.held), *(b[0] for b in self.lingering)]
        goes = [
            moment
            for moment in sorted(moments)
            if all(many <= self.free_at(n, moment) for n, many in self.waiting[first].items())
        ]
        if not goes or self.now + self.lasts[place] <= goes[0]:
            return False
        left = self.free_at(name, goes[0]) - self.waiting[first][name]
        return self.waiting[place][name] > left

    @invariant()
    def whoever_waits_lacks_something_or_would_delay_the_first_in_line(self) -> None:
        if not hasattr(self, "line"):
            return
        for place, wants in self.waiting.items():
            free = {name: self.line.standing(name, self.now).free or 0 for name in wants}
            assert any(
                many > free[name] or self.would_delay(place, name) for name, many in wants.items()
            )

    def teardown(self) -> None:
        """Whoever wants no more than there is goes, one of those that hold ending at a time."""
        if not hasattr(self, "line"):
            return
        for name in NAMES:
            self.line.choose(name, None)
        while self.waiting or self.held:
            self.wait(21.0)
            assert self.held or self.lingering or not self.waiting


TestLine = Line.TestCase
TestLine.settings = settings(max_examples=50, stateful_step_count=40)


def test_one_that_wants_all_waits_only_for_those_who_were_there_before() -> None:
    """Jobs of four seconds that want one each come without end, as many as there are tokens."""
    line = Licences()
    line.configure([LicencePool(name="a", total=TOTAL)], patience=60.0)
    held: list[tuple[float, Place]] = []  # until when
    passed: list[Place] = []
    for second in range(100):
        now = float(second)
        line.join((second, 0), now, {"a": 1}, 4.0)
        line.join((1000 + second, 0), now, {"a": 1}, 1.0)
        if second == 10:
            line.join((5000, 0), now, {"a": TOTAL}, 4.0)
        while held and held[0][0] <= now:
            line.give_back(held.pop(0)[1], now, used=False)
        while (place := line.next(now)) is not None:
            if place == (5000, 0):
                assert passed  # short ones that were in nobody's way
                assert second <= 10 + 4
                return
            end = now + (4 if place[0] < 1000 else 1)
            line.take(Lease(*place, 1, {"a": 1}, now), end)
            held = sorted([*held, (end, place)])
            passed += [place] if second >= 10 else []
    raise AssertionError("it waits forever")
