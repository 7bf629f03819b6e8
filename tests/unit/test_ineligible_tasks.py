"""Tasks above a limit of their owner cost no work until some of them can start."""

from __future__ import annotations

from collections import Counter

import pytest

from metasched.core.cluster_view import ClusterView
from metasched.core.events import (
    ClusterUnreachable,
    Dispatch,
    DispatchAccepted,
    DispatchRejected,
    DispatchStarted,
    JobModified,
    JobSubmitted,
    TimerExpired,
    UserRequested,
)
from metasched.core.gates import MAX_RELEASED_PER_STEP
from metasched.core.ineligible_tasks import MAX_REASONS_PER_STEP
from metasched.core.placement import Placement
from metasched.core.tasks import Task
from metasched.model.cluster import Cluster
from metasched.model.job import Job, Reason, State
from metasched.policies.eligible import Ineligibility
from tests.unit.core_site import NOW, Site, job
from tests.unit.limited_manager import LimitedManager

LIMIT = 4
TASKS = 3000
MAX_UNANSWERED = Cluster(name="x", adapter="local").max_unanswered or 0


class LimitedSite:
    """A site whose left cluster accepts LIMIT tasks of user a, each of which runs for 30 s.

    All tasks of an array are single.
    """

    def __init__(self) -> None:
        self.site, self.now = Site(remainder_minimum=TASKS + 1), NOW
        self.manager = LimitedManager(self.site, "left", LIMIT, 30.0)
        self.actions: list[object] = []

    def submit(self, *jobs: Job) -> None:
        for submitted in jobs:
            self.actions += self.site.step(JobSubmitted(self.now, submitted))

    def settle(self) -> None:
        """Let timers expire and the manager answer all dispatches."""
        while self.actions or self.site.core.next_due is not None:
            self.now += 0.001
            while self.actions:
                action = self.actions.pop(0)
                if isinstance(action, Dispatch):
                    self.actions += self.manager.submit(action, self.now)
            if self.site.core.next_due is not None:
                self.actions += self.site.step(TimerExpired(self.now))

    def poll(self, seconds: float) -> None:
        """Let time pass, and list the cluster."""
        self.now += seconds
        self.actions += self.manager.poll(self.now)

    @property
    def states(self) -> Counter[State]:
        return Counter(task.state for task in self.site.core.tasks.values())


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts, by user, how often a task was compared with a cluster."""
    count: Counter[str] = Counter()
    original = Placement.check_task

    def check_task(placement: Placement, task: Task, view: ClusterView) -> Ineligibility | None:
        count[task.job.user] += 1
        return original(placement, task, view)

    monkeypatch.setattr(Placement, "check_task", check_task)
    return count


def array(number: int, tasks: int) -> Job:
    return job(number, user="a", array=f"0-{tasks - 1}", clusters=("left",))


def different_jobs(number: int) -> list[Job]:
    """Jobs of user a, no two of which have the same requirements."""
    return [
        job(id, user="a", clusters=("left",), time_limit=60.0 + id) for id in range(1, number + 1)
    ]


@pytest.mark.parametrize("jobs", [[array(1, TASKS)], different_jobs(300)], ids=["array", "jobs"])
def test_a_freed_slot_examines_few_tasks(jobs: list[Job], examined: Counter[str]) -> None:
    limited = LimitedSite()
    limited.poll(0.0)  # the first listing changes what is known of the cluster
    limited.submit(*jobs)
    limited.settle()
    waiting = sum(len(submitted.indices) for submitted in jobs) - LIMIT
    assert limited.states == {State.QUEUED: waiting, State.PENDING: LIMIT}
    for _ in range(5):
        examined.clear()
        limited.poll(31.0)
        limited.settle()
        # each slot, one task more for a probe; two clusters
        assert examined["a"] <= 2 * 4 * (LIMIT + 1)
        assert limited.states[State.QUEUED] <= waiting - LIMIT
        waiting = limited.states[State.QUEUED]


def test_another_user_is_dispatched_at_once_and_costs_no_look_at_waiting_tasks(
    examined: Counter[str],
) -> None:
    limited = LimitedSite()
    limited.submit(array(1, TASKS))
    # while tasks of a are still on the way: not behind any of them
    [action] = limited.site.step(JobSubmitted(limited.now, job(2, user="b", clusters=("left",))))
    assert isinstance(action, Dispatch)
    limited.actions.append(action)
    limited.settle()
    examined.clear()
    limited.submit(job(3, user="b", clusters=("left",)))
    assert limited.site.state(3) is State.DISPATCHING
    limited.settle()
    assert limited.site.state(3) is State.PENDING
    assert examined["a"] == 0
    assert examined["b"] == 2  # clusters


def test_a_refusal_takes_back_few_tasks() -> None:
    """Few tasks are on the way when the manager refuses the first of them."""
    limited = LimitedSite()
    limited.submit(array(1, TASKS))
    limited.settle()
    attempts = [task.attempts for task in limited.site.core.tasks.values()]
    assert sum(map(bool, attempts)) <= MAX_UNANSWERED
    assert sum(attempts) <= 2 * MAX_UNANSWERED
    assert limited.manager.refusals <= 12  # bisection
    # the limit grows without bound
    limited.manager.limit = TASKS
    for _ in range(40):
        limited.poll(10.0)
        limited.settle()
    assert not limited.site.core.tasks
    assert limited.manager.refusals <= 12


def test_a_large_array_without_a_limit_is_dispatched_as_its_tasks_start() -> None:
    limited = LimitedSite()
    limited.manager.limit = TASKS
    limited.submit(array(1, TASKS))
    while limited.site.core.next_due is not None:  # no answer yet
        limited.actions += limited.site.step(TimerExpired(limited.now))
    assert limited.states == {State.DISPATCHING: MAX_UNANSWERED, State.QUEUED: TASKS - 1000}
    assert limited.site.core.tasks[1, TASKS - 1].reason == ""
    for running in (0, 1000, 2000):  # the others follow as these start
        limited.settle()
        states = {State.RUNNING: running, State.PENDING: 1000, State.QUEUED: 2000 - running}
        assert limited.states == {state: count for state, count in states.items() if count}
        limited.poll(1.0)
    assert limited.states == {State.RUNNING: TASKS}
    assert limited.manager.refusals == 0
    assert all(task.attempts == 1 for task in limited.site.core.tasks.values())


def test_reasons_of_all_tasks_follow_in_portions() -> None:
    limited = LimitedSite()
    limited.submit(array(1, TASKS))
    limited.settle()

    def reasons() -> set[str]:
        tasks = limited.site.core.tasks.values()
        return {task.reason for task in tasks if task.state is State.QUEUED}

    assert reasons() == {Reason.LIMIT_MANAGER}
    portions = []
    limited.site.step(ClusterUnreachable(limited.now, "left", "away"))
    while True:
        portions.append(sum(change.job == 1 for change in limited.site.out.changes))
        if limited.site.core.next_due is None:
            break
        limited.site.step(TimerExpired(limited.now))
    assert reasons() == {Reason.CLUSTER_DOWN}
    assert max(portions) <= MAX_REASONS_PER_STEP + 2 * LIMIT
    assert len(portions) <= TASKS // MAX_REASONS_PER_STEP + 2


def test_waiting_tasks_are_cancelled_held_and_changed_like_all() -> None:
    limited = LimitedSite()
    limited.submit(array(1, 20))
    limited.settle()
    core = limited.site.core
    limited.site.step(UserRequested(limited.now, "cancel", 1, (10,)))
    assert (1, 10) not in core.tasks
    limited.site.step(UserRequested(limited.now, "hold", 1, (11,)))
    assert core.tasks[1, 11].state is State.HELD
    limited.poll(31.0)
    limited.settle()
    assert core.tasks[1, 11].state is State.HELD
    limited.site.step(UserRequested(limited.now, "release", 1, (11,)))
    limited.site.step(
        JobModified(limited.now, array(1, 20), redispatch=False, change_summary="nothing")
    )
    for _ in range(10):
        limited.poll(31.0)
        limited.settle()
    assert not core.tasks


def test_a_refusal_of_one_job_closes_nothing_for_jobs_like_it() -> None:
    site = Site()
    for id in (1, 2):
        site.step(JobSubmitted(NOW, job(id, user="a", clusters=("left",))))
        site.step(DispatchStarted(NOW, id, 1))
    site.step(DispatchRejected(NOW, 1, 1, "reservation not usable now", True, "job"))
    site.step(DispatchAccepted(NOW, 2, 1, {0: "7"}))
    assert site.core.tasks[1, 0].reason == Reason.LIMIT_MANAGER
    site.step(JobSubmitted(NOW + 1, job(3, user="a", clusters=("left",))))
    assert site.state(3) is State.DISPATCHING


def test_a_portion_fills_dispatches() -> None:
    assert MAX_RELEASED_PER_STEP % 200 == 0
