"""The line for licences against a count of everything: nobody who could go waits, none forever.

Whoever has licences gives them back by its time limit, as managers see to it. What reservations
have been promised is there for their jobs throughout their windows.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from metasched.core.licences.queue import LicenceQueue
from metasched.core.licences.windows import TokenWindow
from metasched.core.tasks import TaskId
from metasched.model.licence import Lease, LicencePool
from tests.harness.examples import examples

NAMES = ("a", "b", "c")
TOTAL = 4


class Line(RuleBasedStateMachine):
    """Jobs come, wait, are leased what they want, give it back or lose interest."""

    @initialize(patience=st.sampled_from([0.0, 20.0, 1e9]), linger=st.sampled_from([0.0, 5.0]))
    def boot(self, patience: float, linger: float) -> None:
        self.now, self.jobs = 0.0, 0
        self.line = LicenceQueue()
        pools = [LicencePool(name=name, total=TOTAL, linger=linger) for name in NAMES]
        self.line.configure(pools, patience)
        self.linger = linger
        self.windows: dict[int, TokenWindow] = {}
        self.inside: dict[TaskId, int] = {}  # jobs in reservations
        self.spoilt: set[str] = set()  # licences of which there are fewer than there were
        self.waiting: dict[TaskId, dict[str, int]] = {}
        self.held: dict[TaskId, dict[str, int]] = {}
        self.keys: dict[TaskId, float] = {}
        self.lasts: dict[TaskId, float] = {}
        self.ends: dict[TaskId, float] = {}
        self.lingering: list[tuple[float, str, int]] = []
        self.used_inside: list[tuple[float, str, int]] = []  # of these: by jobs in reservations

    def settle(self) -> list[TaskId]:
        """All who can go, go; in this order."""
        gone: list[TaskId] = []
        while True:
            place = self.line.next_ready(self.now)
            dues = [self.ends[other] for other in self.held]
            dues += [window.until for window in self.windows.values()]
            if all(due > self.now for due in dues):  # else more comes back at this moment
                assert place == self.first_that_may_go()
            if place is None:
                return gone
            wants = self.waiting.pop(place)
            self.ends[place] = self.now + self.lasts[place]
            window = self.inside.get(place)
            self.line.take(Lease(*place, 1, wants, self.now), self.ends[place], True, window)
            self.held[place] = wants
            gone.append(place)
            for name in wants:
                assert self.free(name) >= 0

    def first_that_may_go(self) -> TaskId | None:
        """The plain rule: try all that wait, in their order."""
        for place in sorted(self.waiting, key=self.order):
            if not self.lacks(place):
                return place
        return None

    def free(self, name: str) -> int:
        """What nobody has, be it kept for somebody or not."""
        told = self.line.status(name, self.now)
        return (told.free or 0) + told.reserved

    @rule(
        wants=st.dictionaries(st.sampled_from(NAMES), st.integers(1, TOTAL), min_size=1),
        earlier=st.sampled_from([0.0, 0.0, 50.0]),
        lasts=st.sampled_from([1.0, 8.0, 32.0, 256.0]),
    )
    def join(
        self, wants: dict[str, int], earlier: float, lasts: float, window: int | None = None
    ) -> None:
        self.jobs += 1
        place = (self.jobs, 0)
        if window is not None:
            self.inside[place] = window
        self.waiting[place] = wants
        self.keys[place], self.lasts[place] = self.now - earlier, lasts
        self.line.join(place, self.keys[place], wants, lasts, True, window)
        self.settle()

    @rule(
        wants=st.dictionaries(st.sampled_from(NAMES), st.integers(1, TOTAL), min_size=1),
        begins=st.sampled_from([0.0, 4.0, 20.0, 100.0]),
        lasts=st.sampled_from([1.0, 20.0, 100.0]),
    )
    def reserve(self, wants: dict[str, int], begins: float, lasts: float) -> None:
        """As the book does it: a window is promised where nothing lacks."""
        start, until = self.now + begins, self.now + begins + lasts
        lacking = self.line.lookahead.unavailable_spans(wants, self.now)
        if any(begin < until and start < end for begin, end in lacking):
            return
        self.jobs += 1
        self.windows[self.jobs] = TokenWindow(self.jobs, start, until, wants)
        self.line.keep_tokens_for_window(self.windows[self.jobs])
        self.settle()

    @precondition(lambda self: any(w.start <= self.now for w in self.windows.values()))
    @rule(data=st.data(), lasts=st.sampled_from([8.0, 64.0]))
    def join_inside(self, data: Any, lasts: float) -> None:
        begun = [id for id, window in self.windows.items() if window.start <= self.now]
        window = self.windows[data.draw(st.sampled_from(sorted(begun)))]
        wants = data.draw(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3), min_size=1))
        self.join(wants, 0.0, lasts, window.id)

    @precondition(lambda self: self.windows)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        self.close(data.draw(st.sampled_from(sorted(self.windows))))

    def close(self, id: int) -> None:
        """A window is over: what runs in it is killed, what waits for it leaves."""
        for place in [place for place, window in self.inside.items() if window == id]:
            del self.inside[place]
            if self.waiting.pop(place, None) is not None:
                self.line.leave(place)
            if place in self.held:
                self.end(place)
        del self.windows[id]
        self.line.remove_window(id)
        self.settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), used=st.booleans())
    def give_back(self, data: Any, used: bool) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.held))), used)

    def end(self, place: TaskId, used: bool = True) -> list[TaskId]:
        wants = self.held.pop(place)
        for name, until in self.line.return_lease(place, self.now, used).items():
            self.lingering.append((until, name, wants[name]))
            if place in self.inside:
                self.used_inside.append((until, name, wants[name]))
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
        self.line.set_operator_total(name, total)
        if total is not None:
            self.spoilt.add(name)
        self.settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def begin_late(self, data: Any) -> None:
        """Its time limit counts from now on, unless a reservation needs what it has."""
        place = data.draw(st.sampled_from(sorted(self.held)))
        self.ends[place] = self.now + self.lasts[place]
        self.line.expect_end(place, self.ends[place], True, self.inside.get(place))
        if self.line.lookahead.delayed_reservation(place, {}, self.now) is not None:
            self.end(place, used=False)
        self.settle()

    @rule(seconds=st.floats(0.1, 30.0))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            dues = [self.ends[place] for place in self.held] + [due for due, *_ in self.lingering]
            starts = [w for w in self.windows.values() if w.start > self.now]
            dues += [window.until for window in self.windows.values()]
            dues += [window.start for window in starts]
            self.now = min([*dues, until])
            self.lingering = [back for back in self.lingering if back[0] > self.now]
            self.line.expire_lingering(self.now)
            for window in starts:
                if window.start == self.now:  # as the core does when a reservation begins
                    self.line.keep_tokens_for_window(window)
            self.settle()
            for place in [place for place in self.held if self.ends[place] <= self.now]:
                self.end(place)
            for id in [id for id, w in self.windows.items() if w.until <= self.now]:
                self.close(id)
            if self.now == until:
                return

    @invariant()
    def the_counts_are_those_of_a_recount(self) -> None:
        if not hasattr(self, "line"):
            return
        for name in NAMES:
            told = self.line.status(name, self.now)
            assert told.leased_tokens == sum(wants.get(name, 0) for wants in self.held.values())
            assert told.waiting_tokens == sum(wants.get(name, 0) for wants in self.waiting.values())

    def order(self, place: TaskId) -> tuple[object, ...]:
        key, patience = self.keys[place], self.line.patience
        step = key // patience if patience else key
        return step, -sum(self.waiting[place].values()), key, place

    def first(self, name: str) -> TaskId | None:
        """Who is first in line for a licence."""
        wanting = [place for place, wants in self.waiting.items() if name in wants]
        return min(wanting, key=self.order, default=None)

    def claim(self, id: int, name: str) -> int:
        """What a window has of a licence that its jobs have not leased."""
        drawn = [self.held[p].get(name, 0) for p in self.held if self.inside.get(p) == id]
        return max(self.windows[id].licences.get(name, 0) - sum(drawn), 0)

    def amount(self, name: str, moment: float, own: int | None, sure: bool) -> int:
        """How many there will be then if all end by their time limits and nobody new comes."""
        linger = self.linger if sure else 0.0
        many = self.free(name)
        for place, has in self.held.items():
            end = self.ends[place] + linger
            window = self.windows.get(self.inside.get(place, 0))
            if window is not None and name in window.licences and window.id != own:
                end = max(end, window.until + linger)
            many += has.get(name, 0) if self.now < end <= moment else 0
        many += sum(n for until, other, n in self.lingering if other == name and until <= moment)
        at = [
            id
            for id, window in self.windows.items()
            if window.start <= moment < window.until + self.linger
        ]
        many -= sum(self.claim(id, name) for id in at if own is None or id < own)
        mine = sum(self.claim(id, name) for id in at if id == own)
        later = sum(self.claim(id, name) for id in at if own is not None and id > own)
        return max(many - later, min(many, mine))

    def moments(self) -> list[float]:
        """When anything changes."""
        found = [self.now, *(back[0] for back in self.lingering)]
        for end in self.ends.values():
            found += [end, end + self.linger]
        for window in self.windows.values():
            found += [window.start, window.until, window.until + self.linger]
        return sorted(moment for moment in found if moment >= self.now)

    def least(self, name: str, start: float, end: float, own: int | None, sure: bool) -> int:
        moments = [start, *(moment for moment in self.moments() if start < moment < end)]
        return min(self.amount(name, moment, own, sure) for moment in moments)

    def gone(self, place: TaskId, begun: float) -> float:
        """When it has given all back if it begins then."""
        window = self.windows.get(self.inside.get(place, 0))
        end = begun + self.lasts[place]
        return end if window is None else min(end, window.until)

    def kept(self, place: TaskId, name: str) -> bool:
        """Whether a window needs what one that waits would take."""
        own, end = self.inside.get(place), self.gone(place, self.now) + self.linger
        return self.waiting[place][name] > self.least(name, self.now, end, own, True)

    def would_delay(self, place: TaskId, name: str) -> bool:
        """Whether one that went now might keep the first in line for that licence waiting."""
        first = self.first(name)
        if (
            first is None
            or first == place
            or any(self.first(n) != first for n in self.waiting[first])
        ):
            return False
        own = self.inside.get(first)
        goes = [
            moment
            for moment in self.moments()
            if moment < self.gone(first, moment)
            and all(
                many <= self.least(n, moment, self.gone(first, moment), own, False)
                for n, many in self.waiting[first].items()
            )
        ]
        if not goes or self.gone(place, self.now) <= goes[0]:
            return False
        left = self.least(name, goes[0], self.gone(first, goes[0]), own, False)
        left -= self.waiting[first][name]
        window = self.inside.get(place)
        if window is not None and window != own:
            left += self.claim(window, name)
        return self.waiting[place][name] > left

    @invariant()
    def whoever_waits_lacks_something_or_would_delay_the_first_in_line(self) -> None:
        if not hasattr(self, "line"):
            return
        assert all(self.lacks(place) for place in self.waiting)

    def lacks(self, place: TaskId) -> bool:
        """Whether one that waits cannot have all that it wants now."""
        return any(
            many > self.free(name) or self.kept(place, name) or self.would_delay(place, name)
            for name, many in self.waiting[place].items()
        )

    @invariant()
    def whatever_has_been_promised_is_there(self) -> None:
        """Throughout every window what its jobs have not leased is free, or lingers after them."""
        if not hasattr(self, "line"):
            return
        for name in set(NAMES) - self.spoilt:
            begun = [id for id, window in self.windows.items() if window.start <= self.now]
            back = [n for until, other, n in self.used_inside if other == name and until > self.now]
            assert self.free(name) + sum(back) >= sum(self.claim(id, name) for id in begun)

    def teardown(self) -> None:
        """Whoever wants no more than there is goes, one of those that hold ending at a time."""
        if not hasattr(self, "line"):
            return
        for name in NAMES:
            self.line.set_operator_total(name, None)
        while self.waiting or self.held:
            self.wait(21.0)
            assert self.held or self.lingering or self.windows or not self.waiting


TestLine = Line.TestCase
TestLine.settings = examples(50, steps=40)


def test_one_that_wants_all_waits_only_for_those_who_were_there_before() -> None:
    """Jobs of four seconds that want one each come without end, as many as there are tokens."""
    line = LicenceQueue()
    line.configure([LicencePool(name="a", total=TOTAL)], patience=60.0)
    held: list[tuple[float, TaskId]] = []  # until when
    passed: list[TaskId] = []
    for second in range(100):
        now = float(second)
        line.join((second, 0), now, {"a": 1}, 4.0)
        line.join((1000 + second, 0), now, {"a": 1}, 1.0)
        if second == 10:
            line.join((5000, 0), now, {"a": TOTAL}, 4.0)
        while held and held[0][0] <= now:
            line.return_lease(held.pop(0)[1], now, was_used=False)
        while (place := line.next_ready(now)) is not None:
            if place == (5000, 0):
                assert passed  # short ones that were in nobody's way
                assert second <= 10 + 4
                return
            end = now + (4 if place[0] < 1000 else 1)
            line.take(Lease(*place, 1, {"a": 1}, now), end)
            held = sorted([*held, (end, place)])
            passed += [place] if second >= 10 else []
    raise AssertionError("it waits forever")
