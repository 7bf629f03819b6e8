"""Tasks on the way to a manager that does not answer yet: users share a number of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from metasched.core.events import (
    Action,
    DaemonStarted,
    Dispatch,
    DispatchAccepted,
    JobSubmitted,
    TimerExpired,
)
from metasched.core.scheduler import Core
from metasched.model.cluster import Cluster
from metasched.model.job import State
from metasched.policies.policy import Policy
from tests.unit.core_site import NOW, Site, facts, job

CHUNK, TASKS = 50, 1600  # of a user, in two arrays
DEFAULT = Cluster(name="left", adapter="local", max_tasks_per_dispatch=CHUNK)
MOST = DEFAULT.max_unanswered or 0


class SlowSite(Site):
    """A site whose left cluster is idle and large, and does not answer by itself."""

    def __init__(self, users: int) -> None:
        super().__init__(listed=False)
        self.core = Core()
        self.step(DaemonStarted(NOW, "cafe", Policy(), (DEFAULT,)))
        self.seen("left", facts(100_000))
        self.under_way: list[Dispatch] = []
        self.now = NOW
        for number in range(1, 2 * users + 1):
            array = job(number, user=f"u{(number + 1) // 2}", array=f"1-{TASKS // 2}")
            self.settle(self.step(JobSubmitted(NOW, array)))

    def settle(self, actions: Sequence[Action]) -> None:
        """Note dispatches and let timers expire."""
        self.under_way += [action for action in actions if isinstance(action, Dispatch)]
        while self.core.next_due is not None and self.core.next_due <= self.now + 1:
            self.now += 0.01
            self.settle(self.step(TimerExpired(self.now)))

    def answer(self) -> None:
        """Accept the oldest dispatch."""
        first = self.under_way.pop(0)
        accepted = dict.fromkeys(first.indices, "7")
        self.settle(self.step(DispatchAccepted(self.now, first.job, first.dispatch_id, accepted)))

    @property
    def unanswered(self) -> Counter[str]:
        """The number of tasks on the way, by user."""
        return Counter(
            task.job.user for task in self.core.tasks.values() if task.state is State.DISPATCHING
        )


def test_a_single_user_has_many_tasks_on_the_way() -> None:
    assert SlowSite(1).unanswered == {"u1": MOST}


def test_users_share_the_number() -> None:
    site = SlowSite(4)
    for _ in range(30):
        site.answer()  # the first had all, until the others came
    for _ in range(50):
        assert MOST // 2 < site.unanswered.total() <= MOST
        site.answer()


def test_each_of_many_users_has_a_dispatch_on_the_way() -> None:
    users = 2 * MOST // CHUNK
    site = SlowSite(users)
    assert site.unanswered["u1"] == MOST
    assert all(site.unanswered[f"u{number}"] >= CHUNK for number in range(1, users + 1))
    assert site.unanswered[f"u{users}"] == CHUNK
    assert site.unanswered.total() < 6 * MOST


def test_all_tasks_are_sent_in_the_end() -> None:
    site = SlowSite(5)
    while site.under_way:
        site.answer()
    states = Counter(task.state for task in site.core.tasks.values())
    assert states == {State.PENDING: 5 * TASKS}
