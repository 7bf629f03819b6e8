"""The licence queue against a recount: no task that could start waits, and none waits forever.

Tasks with an enforced limit return their tokens by then, others at any time. Tokens promised to a
reservation are available to its jobs throughout its window. The oracle knows no groups and no
reservations of the head: it tries every task and computes its tokens from all leases.
"""

from __future__ import annotations

from math import inf, nextafter
from typing import Any

from hypothesis import given
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
    """Jobs join the queue, wait, take leases, return them or leave."""

    @initialize(patience=st.sampled_from([0.0, 20.0, 1e9]), linger=st.sampled_from([0.0, 5.0]))
    def boot(self, patience: float, linger: float) -> None:
        self.now, self.jobs = 0.0, 0
        self.line = LicenceQueue()
        pools = [LicencePool(name=name, total=TOTAL, linger=linger) for name in NAMES]
        self.line.configure(pools, patience)
        self.linger = linger
        self.windows: dict[int, TokenWindow] = {}
        self.inside: dict[TaskId, int] = {}  # jobs in reservations
        self.spoilt: set[str] = set()  # licences whose total an operator has set
        self.waiting: dict[TaskId, dict[str, int]] = {}
        self.held: dict[TaskId, dict[str, int]] = {}
        self.alternatives: dict[TaskId, list[TaskId]] = {}  # other requests of the same job
        self.keys: dict[TaskId, float] = {}
        self.lasts: dict[TaskId, float] = {}
        self.ends: dict[TaskId, float] = {}
        self.unenforced: set[TaskId] = set()  # jobs that may run beyond their limits
        self.lingering: list[tuple[float, str, int]] = []
        self.used_inside: list[tuple[float, str, int]] = []  # those used in reservations

    def settle(self) -> list[TaskId]:
        """Give leases to all tasks that can start; return the tasks in order."""
        gone: list[TaskId] = []
        while True:
            task_id = self.line.next_ready(self.now)
            dues = [self.ends[other] for other in self.held.keys() - self.unenforced]
            dues += [window.until for window in self.windows.values()]
            if all(due > self.now for due in dues):  # else more is returned at this time
                assert task_id == self.first_that_may_go()
            if task_id is None:
                return gone
            wants = self.waiting.pop(task_id)
            self.ends[task_id] = self.now + self.lasts[task_id]
            window = self.inside.get(task_id)
            lease = Lease(*task_id, 1, wants, self.now)
            enforced = task_id not in self.unenforced
            self.line.take(lease, self.ends[task_id], enforced, window)
            for other in self.alternatives.get(task_id, ()):
                self.waiting.pop(other, None)
                self.line.leave(other)
            self.held[task_id] = wants
            gone.append(task_id)
            for name in wants:
                assert self.free(name) >= 0

    def first_that_may_go(self) -> TaskId | None:
        """Apply the plain rule: try all waiting tasks in order."""
        for task_id in sorted(self.waiting, key=self.order):
            if not self.is_blocked(task_id):
                return task_id
        return None

    def free(self, name: str) -> int:
        """Return the tokens that no task has, including reserved tokens."""
        pool_status = self.line.status(name, self.now)
        return (pool_status.free or 0) + pool_status.reserved

    @rule(
        wants=st.dictionaries(st.sampled_from(NAMES), st.integers(1, TOTAL), min_size=1),
        earlier=st.sampled_from([0.0, 0.0, 50.0]),
        lasts=st.sampled_from([1.0, 8.0, 32.0, 256.0]),
        enforced=st.booleans(),
    )
    def join(
        self,
        wants: dict[str, int],
        earlier: float,
        lasts: float,
        enforced: bool,
        window: int | None = None,
    ) -> None:
        self.jobs += 1
        task_id = (self.jobs, 0)
        if window is not None:
            self.inside[task_id] = window
        self.waiting[task_id] = wants
        self.keys[task_id], self.lasts[task_id] = self.now - earlier, lasts
        if not enforced:
            self.unenforced.add(task_id)
        self.line.join(task_id, self.keys[task_id], wants, lasts, enforced, window)
        self.settle()

    @rule(
        wants=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, TOTAL)), min_size=2),
        lasts=st.sampled_from([1.0, 32.0]),
    )
    def join_with_alternatives(self, wants: list[tuple[str, int]], lasts: float) -> None:
        """Queue a request for each alternative; the job needs one of them."""
        self.jobs += 1
        requests = [(self.jobs, number) for number in range(len(wants))]
        for request, (name, count) in zip(requests, wants, strict=True):
            self.waiting[request] = {name: count}
            self.keys[request], self.lasts[request] = self.now, lasts
            self.alternatives[request] = [other for other in requests if other != request]
            self.line.join(request, self.now, {name: count}, lasts)
        self.settle()

    @rule(
        wants=st.dictionaries(st.sampled_from(NAMES), st.integers(1, TOTAL), min_size=1),
        begins=st.sampled_from([0.0, 4.0, 20.0, 100.0]),
        lasts=st.sampled_from([1.0, 20.0, 100.0]),
    )
    def reserve(self, wants: dict[str, int], begins: float, lasts: float) -> None:
        """Promise a window if its tokens are available throughout, as the reservation book does."""
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
        self.join(wants, 0.0, lasts, True, window.id)

    @precondition(lambda self: self.windows)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        self.close(data.draw(st.sampled_from(sorted(self.windows))))

    def close(self, id: int) -> None:
        """End a window: kill its running jobs and remove its waiting jobs."""
        for task_id in [task_id for task_id, window in self.inside.items() if window == id]:
            del self.inside[task_id]
            if self.waiting.pop(task_id, None) is not None:
                self.line.leave(task_id)
            if task_id in self.held:
                self.end(task_id)
        del self.windows[id]
        self.line.remove_window(id)
        self.settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), used=st.booleans())
    def give_back(self, data: Any, used: bool) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.held))), used)

    def end(self, task_id: TaskId, used: bool = True) -> list[TaskId]:
        wants = self.held.pop(task_id)
        for name, until in self.line.return_lease(task_id, self.now, used).items():
            self.lingering.append((until, name, wants[name]))
            if task_id in self.inside:
                self.used_inside.append((until, name, wants[name]))
        return self.settle()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        task_id = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[task_id]
        self.line.leave(task_id)
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
        """Start a job's time limit now; end the job if a reservation needs its tokens."""
        task_id = data.draw(st.sampled_from(sorted(self.held)))
        self.ends[task_id] = self.now + self.lasts[task_id]
        enforced = task_id not in self.unenforced
        self.line.expect_end(task_id, self.ends[task_id], enforced, self.inside.get(task_id))
        if self.line.lookahead.delayed_window(task_id, {}, self.now) is not None:
            self.end(task_id, used=False)
        self.settle()

    @rule(seconds=st.floats(0.1, 30.0))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            limited = self.held.keys() - self.unenforced
            dues = [self.ends[task_id] for task_id in limited]
            dues += [due for due, *_ in self.lingering]
            starts = [w for w in self.windows.values() if w.start > self.now]
            dues += [window.until for window in self.windows.values()]
            dues += [window.start for window in starts]
            change = self.line.next_change
            dues += [] if change is None else [change]
            self.now = min([*dues, until])
            self.lingering = [returned for returned in self.lingering if returned[0] > self.now]
            self.line.expire_lingering(self.now)
            for window in starts:
                if window.start == self.now:  # as the core does when a reservation begins
                    self.line.keep_tokens_for_window(window)
            gone = self.settle()
            assert not gone or self.now in dues
            for task_id in [task_id for task_id in limited if self.ends[task_id] <= self.now]:
                self.end(task_id)
            for id in [id for id, w in self.windows.items() if w.until <= self.now]:
                self.close(id)
            if self.now == until:
                return

    @invariant()
    def the_counts_are_those_of_a_recount(self) -> None:
        if not hasattr(self, "line"):
            return
        for name in NAMES:
            pool_status = self.line.status(name, self.now)
            assert pool_status.leased_tokens == sum(
                wants.get(name, 0) for wants in self.held.values()
            )
            assert pool_status.waiting_tokens == sum(
                wants.get(name, 0) for wants in self.waiting.values()
            )

    def order(self, task_id: TaskId) -> tuple[object, ...]:
        key, patience = self.keys[task_id], self.line.patience
        step = key // patience if patience else key
        return step, -sum(self.waiting[task_id].values()), key, task_id

    def first(self, name: str) -> TaskId | None:
        """Return the first task in the queue for a licence."""
        wanting = [task_id for task_id, wants in self.waiting.items() if name in wants]
        return min(wanting, key=self.order, default=None)

    def claim(self, id: int, name: str) -> int:
        """Return the tokens of a window that its jobs have not leased."""
        drawn = [self.held[p].get(name, 0) for p in self.held if self.inside.get(p) == id]
        return max(self.windows[id].licences.get(name, 0) - sum(drawn), 0)

    def amount(self, name: str, moment: float, own: int | None, sure: bool) -> int:
        """Return the tokens available at `moment` if tasks end by their limits and none joins."""
        linger = self.linger if sure else 0.0
        count = self.free(name)
        for task_id, has in self.held.items():
            if sure and task_id in self.unenforced:
                continue
            end = self.ends[task_id] + linger
            window = self.windows.get(self.inside.get(task_id, 0))
            if window is not None and name in window.licences and window.id != own:
                end = max(end, window.until + linger)
            # a task past its limit ends at any moment, but has not yet
            count += has.get(name, 0) if self.now < moment and end <= moment else 0
        count += sum(n for until, other, n in self.lingering if other == name and until <= moment)
        at = [
            id
            for id, window in self.windows.items()
            if window.start <= moment < window.until + self.linger
        ]
        count -= sum(self.claim(id, name) for id in at if own is None or id < own)
        claimed = sum(self.claim(id, name) for id in at if id == own)
        later = sum(self.claim(id, name) for id in at if own is not None and id > own)
        return max(count - later, min(count, claimed))

    def moments(self) -> list[float]:
        """Return the times at which the number of free tokens may change."""
        times = [self.now, nextafter(self.now, inf)]
        times += [returned[0] for returned in self.lingering]
        for end in self.ends.values():
            times += [end, end + self.linger]
        for window in self.windows.values():
            times += [window.start, window.until, window.until + self.linger]
        return sorted(moment for moment in times if moment >= self.now)

    def least(self, name: str, start: float, end: float, own: int | None, sure: bool) -> int:
        moments = [start, *(moment for moment in self.moments() if start < moment < end)]
        return min(self.amount(name, moment, own, sure) for moment in moments)

    def gone(self, task_id: TaskId, begun: float) -> float:
        """Return when the task returns its tokens if it starts at `begun`."""
        window = self.windows.get(self.inside.get(task_id, 0))
        end = begun + self.lasts[task_id]
        return end if window is None else min(end, window.until)

    def is_reserved(self, task_id: TaskId, name: str) -> bool:
        """Return whether a window needs tokens that the waiting task would take."""
        own, end = self.inside.get(task_id), self.gone(task_id, self.now) + self.linger
        end = inf if task_id in self.unenforced else end
        return self.waiting[task_id][name] > self.least(name, self.now, end, own, True)

    def would_delay(self, task_id: TaskId, name: str) -> bool:
        """Return whether a start now might delay the first task in the queue for the licence."""
        first = self.first(name)
        if (
            first is None
            or first == task_id
            or any(self.first(n) != first for n in self.waiting[first])
        ):
            return False
        own = self.inside.get(first)
        goes = [
            moment
            for moment in self.moments()
            if moment < self.gone(first, moment)
            and all(
                count <= self.least(n, moment, self.gone(first, moment), own, False)
                for n, count in self.waiting[first].items()
            )
        ]
        if not goes or self.gone(task_id, self.now) <= goes[0]:
            return False
        remaining = self.least(name, goes[0], self.gone(first, goes[0]), own, False)
        remaining -= self.waiting[first][name]
        window = self.inside.get(task_id)
        if window is not None and window != own:
            remaining += self.claim(window, name)
        return self.waiting[task_id][name] > remaining

    @invariant()
    def whoever_waits_lacks_something_or_would_delay_the_first_in_line(self) -> None:
        if not hasattr(self, "line"):
            return
        assert all(self.is_blocked(task_id) for task_id in self.waiting)

    def is_blocked(self, task_id: TaskId) -> bool:
        """Return whether a waiting task cannot have all its tokens now."""
        return any(
            count > self.free(name)
            or self.is_reserved(task_id, name)
            or self.would_delay(task_id, name)
            for name, count in self.waiting[task_id].items()
        )

    @invariant()
    def whatever_has_been_promised_is_there(self) -> None:
        """In a window, tokens that its jobs have not leased are free or linger after its jobs."""
        if not hasattr(self, "line"):
            return
        for name in set(NAMES) - self.spoilt:
            begun = [id for id, window in self.windows.items() if window.start <= self.now]
            returning = [
                n for until, other, n in self.used_inside if other == name and until > self.now
            ]
            assert self.free(name) + sum(returning) >= sum(self.claim(id, name) for id in begun)

    def teardown(self) -> None:
        """Restore all totals; every waiting task must start as running tasks end."""
        if not hasattr(self, "line"):
            return
        for name in NAMES:
            self.line.set_operator_total(name, None)
        self.settle()
        while self.waiting or self.held:
            self.wait(21.0)
            for task_id in self.unenforced & self.held.keys():
                self.end(task_id)
            assert self.held or self.lingering or self.windows or not self.waiting


TestLine = Line.TestCase
TestLine.settings = examples(50, steps=40)


@examples(100)
@given(
    jobs=st.lists(
        st.tuples(
            st.sampled_from([{"a": 1}, {"a": 1}, {"a": 2}, {"a": 3}, {"a": 1, "b": 3}, {"b": 2}]),
            st.sampled_from([1.0, 4.0, 8.0, 32.0]),
        ),
        min_size=4,
        max_size=8,
    ),
    waits=st.lists(st.sampled_from([0.5, 2.0, 5.0]), min_size=3, max_size=6),
)
def test_time_alone_lets_tasks_go_when_leases_are_past_their_expected_ends(
    jobs: list[tuple[dict[str, int], float]], waits: list[float]
) -> None:
    """No lease has an enforced limit, and none ends."""
    machine = Line()
    machine.boot(patience=0.0, linger=0.0)
    for wants, lasts in jobs:
        machine.join(wants, 0.0, lasts, enforced=False)
    for seconds in waits:
        machine.wait(seconds)
        machine.whoever_waits_lacks_something_or_would_delay_the_first_in_line()


def test_one_that_wants_all_waits_only_for_those_who_were_there_before() -> None:
    """Jobs of four seconds and one token keep arriving, enough to use all tokens."""
    line = LicenceQueue()
    line.configure([LicencePool(name="a", total=TOTAL)], patience=60.0)
    held: list[tuple[float, TaskId]] = []  # end and task of each lease
    passed: list[TaskId] = []
    for second in range(100):
        now = float(second)
        line.join((second, 0), now, {"a": 1}, 4.0)
        line.join((1000 + second, 0), now, {"a": 1}, 1.0)
        if second == 10:
            line.join((5000, 0), now, {"a": TOTAL}, 4.0)
        while held and held[0][0] <= now:
            line.return_lease(held.pop(0)[1], now, was_used=False)
        while (task_id := line.next_ready(now)) is not None:
            if task_id == (5000, 0):
                assert passed  # short jobs that delayed no task
                assert second <= 10 + 4
                return
            end = now + (4 if task_id[0] < 1000 else 1)
            line.take(Lease(*task_id, 1, {"a": 1}, now), end)
            held = sorted([*held, (end, task_id)])
            passed += [task_id] if second >= 10 else []
    raise AssertionError("it waits forever")
