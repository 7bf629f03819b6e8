"""The core against simulated managers that answer, fall silent and lose answers.

Managers lose accepted jobs and issue their ids again, restore cancelled jobs and restart running
jobs. The clock is set, and operators make errors. After any order of events no transition is
illegal, no job is lost, and metasched starts no job twice. Managers keep no leftover jobs, and
loads equal a recount. No more licences are leased than exist, and none is lost. A replay of the
recorded events gives the same decisions.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis.stateful import invariant

from metasched.core.alternatives import request_ids
from metasched.core.events import DaemonStarted, Dispatch, TimerExpired, UserRequested
from metasched.core.tasks import Task
from metasched.core.transitions import ATTEMPT_FINAL, LIVE, QUEUED_OR_HELD, UNSTARTED
from metasched.model.job import Reason, State
from tests.harness.examples import examples
from tests.property.core_model import POOLS, SIZES
from tests.property.core_scenarios import Scenarios
from tests.property.managers import Place, place_of

# of tasks that keep a slot of their array while they wait
WAITS_WITH_SLOT = (Reason.LICENCE_BUSY, Reason.LIMIT_USER, Reason.LIMIT_CLASS)


class World(Scenarios):
    """Invariants of every step, and the required outcome of every job. All arrays are ranges."""

    remainder_minimum = 2

    @invariant()
    def none_begun_twice(self) -> None:
        for task, times in self.beginnings().items():
            assert times <= 1 + self.requeued[task] + self.excused[task], (task, times)

    @invariant()
    def one_place_each(self) -> None:
        for key, task in self.core.tasks.items():
            assert key not in self.final
            if task.state in QUEUED_OR_HELD:
                assert task.attempt is None
            else:
                assert task.state in LIVE
                assert task.attempt is not None
                assert task.attempt.state is task.state
        every = {(job.id, index) for job in self.jobs.values() for index in job.indices}
        assert every == self.final.keys() | self.open_tasks().keys()

    @invariant()
    def licences_are_with_those_who_may_run(self) -> None:
        held = {task_id: lease.tokens for task_id, lease in self.core.licences.leases.items()}
        assert held == self.held
        for task_id, task in self.core.tasks.items():
            if task.state in QUEUED_OR_HELD:
                assert task_id not in held, task.name
            elif task.state is not State.UNKNOWN:  # operators may release those of unknown tasks
                assert held.get(task_id, {}) == task.job.licences, task.name
            chosen = 0 if task.attempt is None else task.attempt.licence_choice
            assert task.job.licence_choice == (chosen if task.job.licence_choices else None)
        assert held.keys() <= self.core.tasks.keys()
        for name, (_, leased, _) in self.pools.items():
            assert leased == sum(tokens.get(name, 0) for tokens in held.values())

    @invariant()
    def no_more_licences_are_used_than_there_are(self) -> None:
        """Count running jobs in the managers, unless managers or operators changed the facts."""
        if self.excused or self.doubted or self.totals:
            return
        for pool in POOLS:
            used = sum(
                self.licences_of(key).get(pool.name, 0)
                for key in (place_of(k) for _, k in self.those(State.RUNNING))
            )
            _, _, excess = self.pools.get(pool.name, (0, 0, 0))  # of a total that was lowered
            assert pool.total is None or used <= pool.total + excess, pool.name

    def licences_of(self, place: Place) -> Mapping[str, int]:
        """Return the licences of a running task: of alternatives those that it has leased."""
        job = self.jobs[place[0]]
        return self.held.get(place, {}) if job.licence_choices else job.licences

    @invariant()
    def nobody_in_line_could_go(self) -> None:
        for task in self.core.tasks.values():
            for request in request_ids(task):
                if request in self.core.licences:
                    assert task.state is State.QUEUED
                    missing = self.core.licences.missing_licences(request, self.core.state.now)
                    assert list(missing), task.name

    @invariant()
    def limits_are_kept_over_all_clusters(self) -> None:
        for job in self.jobs.values():
            limit = job.parsed_array.limit if job.parsed_array else None
            if limit is None:
                continue
            dispatched = [t for t in self.core.tasks_of(job.id) if t.state not in QUEUED_OR_HELD]
            excused = sum(times for key, times in self.excused.items() if key[0] == job.id)
            assert len(dispatched) <= limit + excused, [t.name for t in dispatched]
            started = [
                key
                for manager in self.managers.values()
                for key, row in manager.rows.items()
                if row.state not in ATTEMPT_FINAL and place_of(key)[0] == job.id
            ]
            assert len(started) <= limit + excused, started

    @invariant()
    def what_may_go_waits_for_a_cluster_only(self) -> None:
        for task in self.open_tasks().values():
            if task.state is State.QUEUED and not task.attempts and task.job.dependency:
                due = self.core.next_due
                if due is not None and due <= self.now:
                    continue
                if task.reason == Reason.DEPENDENCY:
                    assert not self.has_come(task.job, task.index), task.name
                else:
                    assert (task.job.id, task.index) in self.came, task.name

    @invariant()
    def refilled_as_tasks_end(self) -> None:
        """A task waits for the limit of a manager only while that bars it."""
        if isinstance(self.events[-1], DaemonStarted):
            return
        views = self.core.state.views.values()
        for task in self.core.tasks.values():
            if task.state is State.QUEUED and task.reason == Reason.LIMIT_MANAGER:
                barred = [v for v in views if v.full_reason or v.scope_limits.obstacle(task.job)]
                assert barred, task.name

    @invariant()
    def nothing_new_on_a_drained_cluster(self) -> None:
        out = self.outcomes[-1]
        for action in out.actions:
            assert not (
                isinstance(action, Dispatch) and self.core.find_drain(action.cluster)
            ) or isinstance(self.events[-1], DaemonStarted), action

    @invariant()
    def loads_equal_a_recount(self) -> None:
        for name in self.configured:
            queued = [t for t in self.core.tasks_on(name) if t.state in UNSTARTED]
            counts = [
                sum(t.priority >= p for t in queued)
                for p in range(1, self.core.policy.max_priority + 1)
            ]
            assert self.core.load_ordering.count(name) == counts

    def check_restart(self) -> None:
        """A dispatch that was not started is known not to be in a manager."""
        for task in self.core.tasks.values():
            if task.state is State.UNKNOWN and task.attempt is not None:
                attempt = task.attempt
                assert attempt.tried or attempt.accepted or attempt.native_id, task.name

    def teardown(self) -> None:
        """End all faults; every job must then end after one start, unless cancelled or rejected."""
        if not hasattr(self, "core"):
            return
        self.crash(False, False, sorted(SIZES), 10)
        for name in SIZES:
            self.resume(name)
            self.resize(name, 1)
            self.limit_jobs(name, None)
        for pool in POOLS:
            self.set_licence(pool.name, None)
        for job in self.jobs:
            self.step(UserRequested(self.now, "release", job))
        for _ in range(20 * (len(self.jobs) + 2)):
            self.now += 301.0
            self.step(TimerExpired(self.now))
            self.count(None, 0, 0.0)
            for name in SIZES:
                self.poll(name, True)
            while self.actions:
                self.act(None, "done")
            for name in SIZES:
                self.poll(name, False)
            while self.actions:
                self.act(None, "done")
            for _, listed in self.those(State.PENDING):
                assert self.core.state.task_by_tag(*listed) or self.goes_before(listed), (
                    f"{listed} is left"
                )
            for name, manager in self.managers.items():
                self.poll(name, False)
                manager.start(self.now)
                while manager.used():
                    manager.end(self.now, State.COMPLETED)
            if all(self.stuck(task) for task in self.open_tasks().values()):
                break
        for key, task in self.open_tasks().items():
            assert self.stuck(task), (
                task.name,
                task.state,
                task.reason,
                task.job.dependency,
                self.core.describe_dependencies(task),
                self.core.next_due,
                self.now,
            )
            if task.state is State.UNKNOWN:
                assert task.attempt is not None
                assert task.attempt.has_started or not task.attempt.fence, (
                    task
                )  # an unstarted task with a claim is sent again
                assert key in self.lost or any(m.boot for m in self.managers.values())
                expires = task.attempt.missing and task.job.time_limit is not None
                assert not (expires and key in self.held), f"{task.name} keeps its licences"
        for manager in self.managers.values():
            for listed, row in manager.rows.items():
                assert row.state in ATTEMPT_FINAL or place_of(listed) in self.core.tasks, row
        begun = self.beginnings()
        for key, state in self.final.items():
            if state is State.REJECTED:  # may have run before a requeue or a loss
                assert begun[key] <= self.requeued[key] + self.excused[key]
            elif key not in self.cancelled and (key not in begun or state is State.CANCELLED):
                assert state is State.CANCELLED, f"{key} is {state} but never began"
                if self.clock_set_back:  # a loss looks like a cancel before the manager's start
                    continue
                if key in self.restarted:  # a withdrawal under way may have ended the second run
                    continue
                assert self.jobs[key[0]].kill_on_invalid_dep, key
                # its dependencies may have been requeued since
                assert self.requeued or not self.has_come(self.jobs[key[0]], key[1])
        self.none_begun_twice()
        replayed = self.new_core()
        again = [replayed.step(event) for event in self.events]
        assert [o.actions for o in again] == [o.actions for o in self.outcomes]
        assert [o.changes for o in again] == [o.changes for o in self.outcomes]
        assert [o.leases for o in again] == [o.leases for o in self.outcomes]

    def stuck(self, task: Task) -> bool:
        """Return whether nothing in this simulation can end the task any more."""
        if task.state is State.UNKNOWN:
            expires = task.job.time_limit is not None
            return not (expires and task.attempt and task.attempt.missing) or (
                task.attempt.lease_expired
            )
        if task.state is not State.QUEUED:
            return False
        if task.reason == Reason.DEPENDENCY:
            return not self.has_come(task.job, task.index, within=3600.0)
        if task.reason == Reason.LICENCE_BUSY:
            return bool(self.held)  # by an unknown task
        limit = task.job.parsed_array.limit if task.job.parsed_array else None
        if task.reason != Reason.LIMIT_ARRAY or limit is None:
            return False
        with_slot = [
            t
            for t in self.core.tasks_of(task.job.id)
            if (t.state is State.UNKNOWN and not (t.attempt and t.attempt.lease_expired))
            or (t.reason in WAITS_WITH_SLOT and self.stuck(t))
        ]
        return len(with_slot) >= limit


TestWorld = pytest.mark.slow("a hundred lives of forty steps")(World.TestCase)
TestWorld.settings = examples(100, steps=40)
