"""Turns of users: everyone is served within a round, nothing is left out, one user notices nothing.

That restarts and replays repeat all turns, and that groups of tasks change none, is tested with two
users in `test_recovery` and `test_ineligible_tasks`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from metasched.core.events import CoreEvent, DispatchAccepted, DispatchStarted, JobSubmitted
from metasched.core.scheduler import Core
from metasched.core.task_groups import QueuesOfGroups
from metasched.core.tasks import Task, TaskId
from metasched.core.transitions import TaskEvent
from metasched.core.user_turns import UserTurns
from metasched.model.job import Job, State
from metasched.model.listing import JobStatus
from metasched.model.tags import tag_of
from metasched.policies.policy import Policy
from tests.harness.examples import examples
from tests.property.test_ineligible_tasks import Compared, without_groups
from tests.unit.core_site import NOW, Site, facts, job

AGE = 100.0
USERS = "abcd"


def make_task(number: int, user: str, priority: int = 1) -> Task:
    job = Job(id=number, submitted=float(number), estimated=1.0, user=user)
    return Task(job, 0, priority, number - AGE * (priority - 1))


# A pass: users whose tasks come before it, how many tasks can be served, users that cannot be
PASSES = st.lists(
    st.tuples(
        st.lists(st.sampled_from(USERS), max_size=8),
        st.integers(0, 6),
        st.sets(st.sampled_from(USERS), max_size=2),
    ),
    max_size=12,
)


@given(PASSES)
@examples(300)
def test_nobody_who_waits_is_skipped_for_longer_than_a_round(
    passes: list[tuple[list[str], int, set[str]]],
) -> None:
    """Others have at most two turns each, of two rounds, between two turns of a waiting user."""
    turns, number = UserTurns(), 0
    waiting: dict[str, list[Task]] = {user: [] for user in USERS}
    # by waiting user: turns of the others since his last one
    skipped: dict[str, Counter[str]] = {user: Counter() for user in USERS}
    for arrivals, places, barred in passes:
        for user in arrivals:
            number += 1
            waiting[user].append(make_task(number, user))
        served: list[Task] = []
        queues = [iter(list(tasks)) for tasks in waiting.values()]
        for task in turns.in_turns(queues, float(number), 1e9, served.__contains__):
            user = task.job.user
            if user in barred:
                skipped[user].clear()
                continue
            if len(served) == places:
                continue
            served.append(task)
            assert waiting[user].pop(0) is task
            skipped[user].clear()
            for other in USERS:
                if waiting[other] and other not in {user, *barred}:
                    skipped[other][user] += 1
                    assert skipped[other][user] <= 2
        eligible = sum(len(tasks) for user, tasks in waiting.items() if user not in barred)
        assert len(served) == places or not eligible
        for user in USERS:
            if not waiting[user] or user in barred:
                skipped[user].clear()


@given(st.lists(st.tuples(st.sampled_from(USERS), st.integers(1, 3)), max_size=30), st.data())
@examples(200)
def test_each_task_comes_once_and_each_user_keeps_his_order(
    owners: list[tuple[str, int]], data: st.DataObject
) -> None:
    tasks = [make_task(number, *owner) for number, owner in enumerate(owners)]
    used = {task.job.id for task in tasks if data.draw(st.booleans())}
    queues: dict[tuple[str, int], list[Task]] = {}
    for task in tasks:
        queues.setdefault((task.job.user, task.priority), []).append(task)
    order = list(
        UserTurns().in_turns(
            map(iter, queues.values()), float(len(tasks)), AGE, lambda task: task.job.id in used
        )
    )
    assert sorted(task.job.id for task in order) == [task.job.id for task in tasks]
    for owner, queue in queues.items():
        assert [task for task in order if (task.job.user, task.priority) == owner] == queue


class BusyClusters:
    """A core over two clusters whose processors are busy, and turns that it gives to users."""

    def __init__(self, depth: int, remainder_minimum: int) -> None:
        self.site = Site(
            queue_depth=depth, remainder_minimum=remainder_minimum, pull=False, age=1e9
        )
        self.now, self.jobs = NOW, 0
        self.waiting = Counter[str]()  # tasks in metasched, by user
        # by waiting user: turns of the others since his last one
        self.skipped: dict[str, Counter[str]] = defaultdict(Counter)
        self.queues: dict[str, list[TaskId]] = {"left": [], "right": []}  # of the clusters
        for name in self.queues:
            self.list_starts(name, 0)

    def submit(self, user: str, tasks: int) -> None:
        self.now += 1.0
        self.jobs += 1
        array = f"0-{tasks - 1}" if tasks > 1 else None
        if not self.waiting[user]:
            self.skipped[user].clear()
        self.waiting[user] += tasks
        self.step(JobSubmitted(self.now, job(self.jobs, user=user, array=array)))

    def list_starts(self, cluster: str, number: int) -> None:
        """List the first tasks of a queue as started."""
        self.now += 1.0
        queue, tasks = self.queues[cluster], self.site.core.tasks
        rows = []
        for position, (id, index) in enumerate(queue):
            tag = tag_of("cafe", id, tasks[id, index].live_attempt.dispatch_id)
            if position < number:
                rows.append(JobStatus(tag, index, f"{id}_{index}", State.RUNNING, self.now))
            else:
                rows.append(JobStatus(tag, index, f"{id}_{index}", State.PENDING))
        del queue[:number]
        self.site.seen(cluster, facts(8, 0), *rows, at=self.now)
        self.follow()

    def step(self, event: CoreEvent) -> None:
        self.site.step(event)
        self.follow()

    def follow(self) -> None:
        """Count turns in the order of the step, and let the managers accept its tasks."""
        sent: dict[tuple[int, int], list[int]] = {}
        for change in self.site.out.changes:
            if change.event is TaskEvent.SEND:
                task = self.site.core.tasks[change.job, change.index]
                self.count_turn(task.job.user)
                attempt = task.live_attempt
                self.queues[attempt.cluster].append(task.task_id)
                sent.setdefault((change.job, attempt.dispatch_id), []).append(change.index)
        for (id, dispatch_id), indices in sent.items():
            self.step(DispatchStarted(self.now, id, dispatch_id))
            natives: dict[int, str] = {index: f"{id}_{index}" for index in indices}
            self.step(DispatchAccepted(self.now, id, dispatch_id, natives))

    def count_turn(self, user: str) -> None:
        self.waiting[user] -= 1
        self.skipped[user].clear()
        for other in +self.waiting:
            if other != user:
                self.skipped[other][user] += 1
                assert self.skipped[other][user] <= 2


SUBMISSIONS = st.tuples(st.sampled_from(USERS), st.integers(1, 12))
STARTS = st.tuples(st.sampled_from(["left", "right"]), st.integers(1, 4))


@given(
    st.lists(SUBMISSIONS, min_size=2, max_size=5),
    st.lists(STARTS | SUBMISSIONS, min_size=4, max_size=20),
    st.integers(1, 4),
    st.integers(2, 9),
)
@examples(100)
def test_nobody_is_skipped_for_longer_than_a_round_by_the_whole_core(
    backlog: list[tuple[str, int]],
    commands: list[tuple[str, int]],
    depth: int,
    remainder_minimum: int,
) -> None:
    """Single jobs, arrays and ranges of arrays, over passes that places in two queues begin."""
    clusters = BusyClusters(depth, remainder_minimum)
    for name, number in (*backlog, *commands):
        if name in clusters.queues:
            clusters.list_starts(name, number)
        else:
            clusters.submit(name, number)
        lengths = set(map(len, clusters.queues.values()))
        assert lengths == {depth} or not clusters.waiting.total()


class OneUser(Compared):
    """With one user, each event is decided as by a core that sorts all tasks that wait."""

    users = MappingProxyType({"mine": "a", "yours": "a"})

    def begin(self, policy: Policy, fences: Sequence[str]) -> None:
        super().begin(policy, fences)
        self.plain = sorting(self.plain)

    def restored(self) -> Core:
        core = super().restored()
        self.plain = sorting(self.plain)
        return core


def sorting(core: Core) -> Core:
    """Return the core, changed to place tasks in the order of the queue."""

    def in_order(waiting: list[Task], of_groups: QueuesOfGroups) -> Iterator[Task]:
        tasks = {task.task_id: task for task in waiting}
        tasks |= {task.task_id: task for queue in of_groups.values() for _, task in queue}
        yield from sorted(tasks.values(), key=lambda task: (task.queue_key, *task.task_id))

    placement: Any = without_groups(core)._placement
    placement._in_order = in_order
    return core


TestOneUser = OneUser.TestCase
TestOneUser.settings = examples(50, steps=40)
