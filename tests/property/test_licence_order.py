"""The licence queue of several users: its heaps of ranks decide as the plain rule does.

The plain rule ranks every user's line anew and checks all of them in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import Phase, settings
from hypothesis import event as note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from metasched.core import leasing, user_turns
from metasched.core.events import CoreEvent, DaemonStarted, Outcome
from metasched.core.licences import order
from metasched.core.licences.accounts import Followers
from metasched.core.licences.groups import (
    LeaseTerms,
    LineRank,
    OwnerLine,
    QueueKey,
    QueueOwner,
    RequestGroup,
)
from metasched.core.licences.lookahead import Lookahead
from metasched.core.licences.order import QueueOrder
from metasched.core.licences.pool import NEVER, PoolState
from metasched.core.licences.queue import LicenceQueue
from metasched.core.licences.windows import TokenWindow
from metasched.core.scheduler import Core
from metasched.core.tasks import Task, TaskId
from metasched.core.user_turns import UserTurns
from metasched.model.fair_share import FairShareSettings, ShareTree
from metasched.model.job import Job, State
from metasched.model.licence import Lease, LicencePool
from metasched.policies.policy import Policy
from tests.harness.examples import examples
from tests.property.core_rules import BEGINNING, Deeds

NAMES = ("a", "b")
TOTAL = 3
USERS = "stuvw"
AGE = 40.0  # seconds
# few kinds, so that several users wait with equal requests
REQUESTS = st.sampled_from(
    [{"a": 1}, {"a": 1}, {"a": 1}, {"a": 2}, {"a": 3}, {"b": 2}, {"a": 1, "b": 1}, {"a": 2, "b": 3}]
)
# request, user, duration in seconds, priority, seconds that the task has waited
TASKS = st.tuples(
    REQUESTS,
    st.sampled_from(USERS),
    st.sampled_from([8.0, 8.0, 256.0]),
    st.sampled_from([1, 1, 1, 2]),
    st.sampled_from([0.0, 0.0, 50.0]),
)
Wanting = tuple[dict[str, int], str, float, int, float]
FAIR_SHARE = FairShareSettings(half_life=60.0, tree=ShareTree(users={"s": 2.0, "t": 0.5}))


class PlainOrder(QueueOrder):
    """Nothing is kept: each rank is computed when it is needed."""

    def rank(self, group: RequestGroup) -> LineRank:
        return min(map(self._rank_of, group.lines.values()))

    def _rises_at(self, group: RequestGroup) -> float:
        return min(map(self._line_rises_at, group.lines.values())) + order.ROUNDING


class PlainLookahead(Lookahead):
    """The first task of a pool is looked for among all."""

    def first_key(self, pool: PoolState) -> QueueKey | None:
        order = self._state.order
        if pool.groups and (pool.head_key is None or pool.head_ranking != order.ranking):
            ranks = (order.rank(group) for group in pool.groups if not self._is_barred(group))
            first = min(ranks, default=None)
            pool.head_key = None if first is None else first[2]
            pool.head_ranking = order.ranking
        return pool.head_key


class PlainQueue(LicenceQueue):
    """At each step every line is ranked, and checked in this order."""

    def __init__(self, followers: Followers = tuple) -> None:
        super().__init__(followers)
        self.lookahead = PlainLookahead(self._state)

    def settled(self, now: float) -> bool:
        """A check of before proves nothing: time and shares may have changed the order."""
        return not self.has_waiting

    def set_turns(self, turns: UserTurns, age: float) -> None:
        self._state.order = PlainOrder(turns, age)

    def next_ready(self, now: float) -> TaskId | None:
        if self.settled(now):
            return None
        self.rank_anew(now)
        kept_pools: set[PoolState] = set()
        groups = [group for by_terms in self._groups.values() for group in by_terms.values()]
        lines = [line for group in groups for line in group.lines.values()]
        for line in sorted(lines, key=self._state.order._rank_of):
            pools = [(self._state.pools[name], n) for name, n in line.group.requested.items()]
            if any(count > (pool.free(now) or 0) for pool, count in pools):
                continue
            for pool, count in pools:
                key, terms = line.head_key, line.group.terms
                if not self.lookahead.may_take_free(pool, count, key, terms, now):
                    kept_pools.add(pool)
                    break
            else:
                return line.head_key[3:]
        heads = [self.lookahead.first_key(pool) for pool in kept_pools]
        self._state.order.promise([self._state.line_of[key[3:]] for key in heads if key])
        self._checked_version, self._checked_at = self._state.version, now
        changes = [self.lookahead.find_next_change(pool, now) for pool in kept_pools]
        self._next_change = min(changes, default=NEVER)
        return None

    def would_unblock(self, freed: Mapping[str, int], now: float) -> bool:
        """Ask for each group that requests one of these tokens."""
        return any(
            all(
                self.lookahead.may_take(
                    self._state.pools[name],
                    count - freed.get(name, 0),
                    self._state.order.rank(group)[2],
                    group.terms,
                    now,
                )
                for name, count in group.requested.items()
            )
            for freed_name in freed
            for group in self._state.pools[freed_name].groups
        )


class Shares:
    """Fair share that rules charge and discharge."""

    def __init__(self) -> None:
        self.use: Counter[str] = Counter()
        self.falls = 0

    def rank_of(self, job: Job) -> tuple[float, ...]:
        return (float(self.use[job.user]),)

    def charge(self, user: str, amount: int) -> None:
        self.falls += amount < 0
        self.use[user] = max(self.use[user] + amount, 0)


class Heap(RuleBasedStateMachine):
    """The heap of one group; its first line is found, whatever lets ranks rise or fall."""

    @initialize(
        age=st.sampled_from([0.0, AGE]), by_share=st.booleans(), turns=st.sampled_from([3, 1000])
    )
    def boot(self, age: float, by_share: bool, turns: int) -> None:
        """A new round begins after `turns`."""
        self.patched = patch.object(user_turns, "MAX_TURNS", turns)
        self.patched.start()
        self.now, self.number = 1000.0, 0
        self.shares = Shares() if by_share else None
        self.order = QueueOrder(UserTurns(self.shares), age)
        self.group = RequestGroup({"a": 1}, LeaseTerms(8.0, True, None))

    @rule(
        users=st.lists(st.sampled_from(USERS), min_size=1, max_size=5),
        priority=st.sampled_from([1, 1, 2]),
        waits=st.lists(st.sampled_from([0.0, 10.0, 33.0, 50.0, -30.0]), min_size=5, max_size=5),
    )
    def add(self, users: list[str], priority: int, waits: list[float]) -> None:
        for user, waited in zip(users, waits, strict=False):
            self.number += 1
            owner = QueueOwner(user, priority)
            job = Job(id=self.number, submitted=0.0, estimated=1.0, user=user)
            line = self.group.lines.setdefault(owner, OwnerLine(self.group, owner, job))
            line.add((self.number, 0), (0.0, -1, self.now - waited, self.number, 0))
        self.compare()

    @precondition(lambda self: self.group.lines)
    @rule(data=st.data(), head=st.booleans())
    def remove(self, data: Any, head: bool) -> None:
        line = data.draw(st.sampled_from(list(self.group.lines.values())))
        tasks = [line.head_key[3:]] if head else sorted(line.queue_keys)
        line.remove(data.draw(st.sampled_from(tasks)))
        self.compare()

    @precondition(lambda self: self.group.lines)
    @rule(data=st.data(), number=st.integers(1, 6))
    def use_turns(self, data: Any, number: int) -> None:
        for _ in range(number):
            line = data.draw(st.sampled_from(list(self.group.lines.values())))
            self.order.use_turn(line)
            if self.shares is not None:
                self.shares.charge(line.owner.user, 1)
            self.compare()

    @rule(data=st.data())
    def promise(self, data: Any) -> None:
        lines = list(self.group.lines.values())
        chosen = data.draw(st.sets(st.sampled_from(range(len(lines))), max_size=2)) if lines else ()
        self.order.promise([lines[number] for number in chosen])
        self.compare()

    @rule(user=st.sampled_from(USERS), amount=st.integers(-3, 3))
    def charge(self, user: str, amount: int) -> None:
        if self.shares is not None:
            self.shares.charge(user, amount)
        self.compare()

    @rule(seconds=st.sampled_from([0.5, 9.0, AGE / 2, AGE, -0.5, -AGE / 2, -3 * AGE]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.compare()

    @rule(back=st.sampled_from([AGE / 2, 3 * AGE]), steps=st.integers(1, 12))
    def set_back(self, back: float, steps: int) -> None:
        """The clock is set back, turns are used, and time passes again."""
        self.wait(-back)
        for user in sorted({owner.user for owner in self.group.lines}):
            line = next(line for line in self.group.lines.values() if line.owner.user == user)
            self.order.use_turn(line)
            self.wait(3.0)
        for _ in range(steps):
            self.wait(3.0)

    @rule()
    def be_alone(self) -> None:
        """One user has the order of the queue."""
        self.order.set_several_users(False)
        if self.group.lines:
            assert self.order.rank(self.group) == min(
                (0, (), line.head_key) for line in self.group.lines.values()
            )
        self.compare()

    def compare(self) -> None:
        self.order.set_several_users(True)
        self.order.rank_anew(self.now)
        lines = self.group.lines.values()
        if lines:
            assert self.order.rank(self.group) == min(map(self.order._rank_of, lines))
        if len(lines) > 1:
            note("several lines")

    def teardown(self) -> None:
        if hasattr(self, "patched"):
            self.patched.stop()


class Lines(RuleBasedStateMachine):
    """Tasks of several users wait; every decision is compared with that of the plain rule."""

    @initialize(
        patience=st.sampled_from([0.0, 20.0]),
        age=st.sampled_from([0.0, AGE, AGE]),
        by_share=st.booleans(),
        linger=st.sampled_from([0.0, 5.0]),
        waiting=st.lists(TASKS, min_size=6, max_size=14),
    )
    def boot(
        self, patience: float, age: float, by_share: bool, linger: float, waiting: list[Wanting]
    ) -> None:
        self.now, self.jobs = 1000.0, 0
        self.queue, self.plain = LicenceQueue(), PlainQueue()
        self.shares = Shares() if by_share else None
        self.settings = patience, age, linger
        self.waiting: dict[TaskId, Wanting] = {}  # the last is the queue time, epoch seconds
        self.held: dict[TaskId, Wanting] = {}
        self.windows: list[int] = []
        self.configure()
        for wanting in waiting:
            self.join(wanting, 1)

    def configure(self) -> None:
        patience, age, linger = self.settings
        pools = [LicencePool(name=name, total=TOTAL, linger=linger) for name in NAMES]
        for queue in (self.queue, self.plain):
            queue.configure(pools, patience)
            queue.set_turns(UserTurns(self.shares), age)

    def begin_step(self) -> None:
        for queue in (self.queue, self.plain):
            queue.expire_lingering(self.now)
            queue.rank_anew(self.now)

    def settle(self) -> None:
        """Give leases to all tasks that can start, as the plain rule does."""
        while True:
            task_id, expected = (queue.next_ready(self.now) for queue in (self.queue, self.plain))
            assert task_id == expected
            if task_id is None:
                break
            wanting = self.waiting.pop(task_id)
            requested, user, lasts = wanting[:3]
            if len({other[1] for other in self.waiting.values()} - {user}) > 1:
                note("a grant among several users")
            for queue in (self.queue, self.plain):
                queue.take(Lease(*task_id, 1, requested, self.now), self.now + lasts)
            self.held[task_id] = wanting
            if self.shares is not None:
                self.shares.charge(user, sum(requested.values()))
        assert self.queue._state.order.promised == self.plain._state.order.promised
        if self.queue._state.order.promised:
            note("tokens are kept for a task")

    def join_both(self, task_id: TaskId) -> None:
        requested, user, lasts, priority, key = self.waiting[task_id]
        job = Job(id=task_id[0], submitted=key, estimated=1.0, user=user)
        for queue in (self.queue, self.plain):
            queue.join(task_id, key, requested, lasts, True, None, job, priority)

    @rule(wanting=TASKS, number=st.sampled_from([1, 1, 3]))
    def join(self, wanting: Wanting, number: int) -> None:
        self.begin_step()
        for _ in range(number):
            self.jobs += 1
            requested, user, lasts, priority, waited = wanting
            key = self.now - waited - self.settings[1] * (priority - 1)
            self.waiting[self.jobs, 0] = requested, user, lasts, priority, key
            self.join_both((self.jobs, 0))
        self.settle()

    @precondition(lambda self: self.held)
    @rule(
        seconds=st.lists(st.sampled_from([0.0, 1.0, 7.0, AGE]), min_size=1, max_size=8),
        again=st.booleans(),
        used=st.booleans(),
    )
    def cycle(self, seconds: list[float], again: bool, used: bool) -> None:
        """Tasks end one by one; each user perhaps submits his task again."""
        for passed in seconds:
            self.now += passed
            self.begin_step()
            if not self.held:
                return
            task_id = min(self.held)
            wanting = self.held.pop(task_id)
            for queue in (self.queue, self.plain):
                queue.return_lease(task_id, self.now, used)
            if self.shares is not None and not used:
                self.shares.charge(wanting[1], -sum(wanting[0].values()))
            self.settle()
            if again:
                self.join((*wanting[:4], 0.0), 1)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), again=st.booleans())
    def leave(self, data: Any, again: bool) -> None:
        """A task leaves, and perhaps joins at its old position."""
        self.begin_step()
        task_id = data.draw(st.sampled_from(sorted(self.waiting)))
        for queue in (self.queue, self.plain):
            queue.leave(task_id)
        if again:
            self.join_both(task_id)
        else:
            del self.waiting[task_id]
        self.settle()

    @rule(user=st.sampled_from(USERS), amount=st.integers(-5, 5))
    def charge(self, user: str, amount: int) -> None:
        """Use is counted elsewhere, or taken back."""
        if self.shares is not None:
            self.shares.charge(user, amount)
        self.begin_step()
        self.settle()

    @rule(name=st.sampled_from(NAMES), total=st.sampled_from([None, 0, 1, 9]))
    def choose(self, name: str, total: int | None) -> None:
        self.begin_step()
        for queue in (self.queue, self.plain):
            queue.set_operator_total(name, total)
        self.settle()

    @rule(
        seconds=st.sampled_from([0.0, 1.0, AGE / 2, AGE, 3 * AGE, -1.0, -AGE]),
        several=st.integers(1, 3),
    )
    def wait(self, seconds: float, several: int) -> None:
        """Time passes, or the clock is set back."""
        for _ in range(several):
            due, held = self.queue.next_change, len(self.held)
            self.now += seconds
            if seconds < 0.0:
                for queue in (self.queue, self.plain):
                    queue.adjust_clock(seconds)
            self.begin_step()
            self.settle()
            if len(self.held) > held and seconds > 0.0:
                assert due is not None
                assert due <= self.now
                note("a grant by time alone")
        if seconds >= AGE and self.settings[1]:
            note("levels rise")

    @rule(
        begins=st.sampled_from([0.0, 4.0, 100.0]),
        lasts=st.sampled_from([1.0, 100.0]),
        count=st.integers(1, 3),
    )
    def reserve(self, begins: float, lasts: float, count: int) -> None:
        self.begin_step()
        self.jobs += 1
        self.windows.append(self.jobs)
        start = self.now + begins
        for queue in (self.queue, self.plain):
            queue.keep_tokens_for_window(TokenWindow(self.jobs, start, start + lasts, {"a": count}))
        self.settle()

    @precondition(lambda self: self.windows)
    @rule()
    def close(self) -> None:
        self.begin_step()
        id = self.windows.pop(0)
        for queue in (self.queue, self.plain):
            queue.remove_window(id)
        self.settle()

    @rule()
    def restart(self) -> None:
        """All turns begin anew; tasks that wait join again."""
        leases = list(self.queue.leases.values())
        for queue in (self.queue, self.plain):
            for lease in leases:
                queue.return_lease((lease.job, lease.index), self.now, False)
        self.configure()
        self.windows.clear()
        self.begin_step()
        for lease in leases:
            for queue in (self.queue, self.plain):
                queue.take(lease, self.now + 8.0)
        for task_id in sorted(self.waiting):
            self.join_both(task_id)
        self.settle()

    @invariant()
    def all_see_the_same(self) -> None:
        if not hasattr(self, "queue"):
            return
        for task_id in self.waiting:
            shown, expected = (
                list(queue.missing_licences(task_id, self.now))
                for queue in (self.queue, self.plain)
            )
            assert shown == expected
        for freed in ({"a": 1}, {"a": 1, "b": 2}):
            assert self.queue.would_unblock(freed, self.now) == self.plain.would_unblock(
                freed, self.now
            )


class FewTurns(Lines):
    """A new round of turns begins again and again."""

    @initialize(age=st.sampled_from([0.0, AGE]), waiting=st.lists(TASKS, min_size=6, max_size=14))
    def boot(self, age: float, waiting: list[Wanting]) -> None:
        self.patched = patch.object(user_turns, "MAX_TURNS", 4)
        self.patched.start()
        super().boot(0.0, age, False, 0.0, waiting)

    def teardown(self) -> None:
        if hasattr(self, "patched"):
            self.patched.stop()


class Licensed(Deeds):
    """Each event goes to a core and to a core whose licence queue has the plain rule."""

    by_share = False  # whether fair share is configured

    @initialize(**BEGINNING, by_share=st.booleans(), waiting=st.integers(0, 4))
    def boot(self, by_share: bool, waiting: int, **beginning: Any) -> None:
        """Let tasks of `waiting` users wait for a token."""
        self.by_share = by_share
        super().boot(**beginning)
        for user in USERS[:waiting]:
            self.submit_licensed(user, None, {"a": 2}, 60.0, 1)

    def begin(self, policy: Policy, fences: Sequence[str]) -> None:
        super().begin(policy, fences)
        self.plain = self.plain_core()

    def plain_core(self) -> Core:
        with patch.object(leasing, "LicenceQueue", PlainQueue):
            return self.new_core()

    def booted(self, max_priority: int = 10) -> DaemonStarted:
        event = super().booted(max_priority)
        age = (0.0, 30.0)[len(self.events) % 2]
        return structs.replace(
            event,
            policy=replace(event.policy, age=age),
            fair_share=FAIR_SHARE if self.by_share else None,
        )

    @rule(
        user=st.sampled_from(USERS),
        array=st.sampled_from([None, None, "0-5", "0-5%1"]),
        licences=st.sampled_from([{"a": 1}, {"a": 1}, {"a": 2}, {"a": 1, "b": 1}, {"b": 3}]),
        limit=st.sampled_from([None, 60.0, 600.0]),
        cpus=st.sampled_from([1, 1, 4]),
    )
    def submit_licensed(
        self, user: str, array: str | None, licences: dict[str, int], limit: float | None, cpus: int
    ) -> None:
        job = Job(
            id=len(self.jobs) + 1,
            submitted=self.now,
            user=user,
            estimated=limit or 100.0,
            time_limit=limit,
            cpus=cpus,
            tasks=cpus,
            licences=licences,
            array=array,
        )
        self.submit_job(job)

    @rule()
    def work(self) -> None:
        """End what runs, and start what waits in the managers."""
        for name, manager in self.managers.items():
            while manager.used():
                manager.end(self.now, State.COMPLETED)
            self.poll(name, False)
        while self.actions:
            self.act(None, "done")
        for name, manager in self.managers.items():
            manager.start(self.now)
            self.poll(name, False)

    def restored(self) -> Core:
        self.plain = self.restore_from(self.plain, self.plain_core())
        return super().restored()

    def decide(self, event: CoreEvent) -> Outcome:
        outcome, expected = super().decide(event), self.plain.step(event)
        assert outcome.actions == expected.actions
        assert outcome.leases == expected.leases
        assert outcome.changes == expected.changes
        # a level may be thought to rise too early, never too late
        dues = [core.next_due or NEVER for core in (self.core, self.plain)]
        assert dues[0] <= dues[1] + order.ROUNDING
        for task in self.core.tasks.values():
            shown = self.core.missing_licences(task, self.now) if self.waits(task) else []
            other = self.plain.tasks[task.task_id]
            assert shown == (
                self.plain.missing_licences(other, self.now) if self.waits(task) else []
            )
        if len({task.job.user for task in self.core.tasks.values() if self.waits(task)}) > 1:
            note("several users wait for licences")
            if outcome.leases:
                note("a lease changes while several users wait")
        return outcome

    def waits(self, task: Task) -> bool:
        return task.task_id in self.core.licences

    def teardown(self) -> None:
        """A replay, which is never restored, leases and tells the same."""
        if not hasattr(self, "core"):
            return
        replayed = self.new_core()
        for event, outcome in zip(self.events, self.outcomes, strict=True):
            again = replayed.step(event)
            assert again.leases == outcome.leases
            assert again.changes == outcome.changes


TestHeap = Heap.TestCase
TestHeap.settings = examples(200, steps=50)
TestLicensed = pytest.mark.slow("sixty lives of forty steps")(Licensed.TestCase)
TestLicensed.settings = examples(60, steps=40)
TestLines = pytest.mark.slow("150 lives of fifty steps")(Lines.TestCase)
# A failure is shown as it was drawn: to make it smaller takes Hypothesis over five minutes
TestLines.settings = settings(examples(150, steps=50), phases=(Phase.explicit, Phase.generate))
TestFewTurns = FewTurns.TestCase
TestFewTurns.settings = examples(50, steps=50)
