"""Places in the queue of a cluster: their number, who gets them, and that none is overlooked."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from metasched.core.scope_limits import ScopeLimits
from tests.harness.examples import examples

USERS = "abcde"


class Places(RuleBasedStateMachine):
    """Tasks are dispatched only where there is a place, and start in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.refills: set[str] = set()
        self.depth, self.idle = 4, 1
        self.limits = ScopeLimits("x", None, 1, self.depth, {}, self.refills)
        self.queued: Counter[str] = Counter()
        self.barred: set[str] = set()  # users who wait for a place

    @rule(user=st.sampled_from(USERS), number=st.integers(1, 6))
    def dispatch(self, user: str, number: int) -> None:
        for _ in range(number):
            if self.limits.awaits_place(user):
                assert self.queued.total() >= self.depth
                # who has no task there gets a place while processors are idle
                assert not self.idle or self.queued[user]
                self.barred.add(user)
                return
            self.limits.count_queued(user, 1)
            self.queued[user] += 1

    @rule(user=st.sampled_from(USERS))
    def start(self, user: str) -> None:
        if self.queued[user]:
            self.limits.count_queued(user, -1)
            self.queued[user] -= 1

    @rule(idle=st.integers(0, 5) | st.none())
    def report(self, idle: int | None) -> None:
        self.limits.set_idle_cpus(idle)
        self.idle = 1 if idle is None else idle

    @rule(depth=st.integers(1, 8))
    def resize(self, depth: int) -> None:
        self.limits.set_queue_depth(depth)
        self.depth = depth

    @invariant()
    def no_place_is_overlooked(self) -> None:
        """Whoever was barred and is no more, is examined."""
        admitted = {user for user in self.barred if not self.limits.awaits_place(user)}
        assert not admitted or self.refills == {"x"}
        if self.refills:
            self.barred.clear()
            self.refills.clear()

    @invariant()
    def beyond_the_depth_users_have_even_parts(self) -> None:
        for user in USERS:
            users = len(+self.queued | Counter({user: 1}))
            part = min(self.idle, max(self.depth // users, 1))
            full = self.queued.total() >= self.depth
            assert self.limits.awaits_place(user) == (full and self.queued[user] >= part)


TestPlaces = Places.TestCase
TestPlaces.settings = examples(100)
