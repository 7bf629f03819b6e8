"""Alternative licences with limits, drains and restarts: steps end, no alternative starves."""

from __future__ import annotations

from typing import Any

from hypothesis import event as note
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from msgspec import structs

from metasched.core.alternatives import request_ids
from metasched.core.events import DaemonStarted, TimerExpired
from metasched.core.scheduler import Core
from metasched.core.tasks import Task
from metasched.model.job import Job, State
from metasched.model.limits import LimitSettings, LimitTable
from tests.harness.examples import examples
from tests.property.core_model import EITHER
from tests.property.test_ineligible_tasks import Compared
from tests.property.test_usage_limits import LimitedRestored, WithLimits

MAX_STEPS = 50  # that follow each other at once; each places or examines hundreds of tasks
LIMITS = (
    LimitSettings(for_all=LimitTable(licences={"a": 1}), each_user=LimitTable(licences={"b": 1})),
    LimitSettings(users={"a": LimitTable(licences={"a": 1, "c": 1}), "b": LimitTable(running=2)}),
    LimitSettings(each_user=LimitTable(running=3, licences={"b": 3}), for_all=LimitTable(queued=9)),
)


class WithAlternatives(WithLimits):
    """Limits of licences, and many jobs with alternatives."""

    remainder_minimum = 4

    def booted(self, max_priority: int = 10) -> DaemonStarted:
        event = super().booted(max_priority)
        chosen = LIMITS[(self.starts + event.policy.pull) % len(LIMITS)]
        return structs.replace(event, limits=chosen)

    @rule(
        choices=st.sampled_from(EITHER),
        array=st.sampled_from([None, None, "0-2", "1-6"]),
        name=st.sampled_from(["mine", "yours"]),
        clusters=st.sampled_from([(), (), ("right",)]),
    )
    def submit_alternatives(
        self,
        choices: tuple[dict[str, int], ...],
        array: str | None,
        name: str,
        clusters: tuple[str, ...],
    ) -> None:
        job = Job(
            id=len(self.jobs) + 1,
            submitted=self.now,
            user=self.users[name],
            estimated=100.0,
            name=name,
            licences=choices[0],
            licence_choices=choices,
            array=array,
            clusters=clusters,
        )
        self.submit_job(job)

    @rule()
    def go_on(self) -> None:
        """Let the core do at once what it put off; it must come to an end."""
        for _ in range(MAX_STEPS):
            if self.core.next_due is None or self.core.next_due > self.now:
                return
            self.step(TimerExpired(self.now))
        raise AssertionError("the core requests steps without end")

    @invariant()
    def no_alternative_starves(self) -> None:
        """What waits is barred by a limit, by all clusters, or by too few free tokens."""
        if not hasattr(self, "core"):
            return
        core, now = self.core, self.core.state.now
        if core.next_due is not None and core.next_due <= self.now:
            return  # the next step goes on
        for task in core.tasks.values():
            if task.state is not State.QUEUED or task.task_id not in core._gates.alternatives:
                continue
            note("a task waits for each of its alternatives")
            for stand_in in core._gates.alternatives.stand_ins_of(task):
                if core.limits.shortage(stand_in.job) is not None:
                    note("a limit bars an alternative")
                elif not may_go_somewhere(core, stand_in):
                    note("no cluster takes an alternative")
                elif core.policy.send == "at_once":
                    assert stand_in.task_id in core.licences, stand_in.reason
                    assert list(core.licences.missing_licences(stand_in.task_id, now))

    @invariant()
    def none_is_left_behind(self) -> None:
        """Only tasks that wait for a cluster have requests in the queue of licences."""
        if not hasattr(self, "core"):
            return
        for task in self.core.tasks.values():
            if task.job.licence_choices and task.task_id not in self.core._gates.alternatives:
                assert not any(request in self.core.licences for request in request_ids(task))
            elif task.job.licence_choices:
                assert task.state is State.QUEUED
                assert task.job.licence_choice == 0


def may_go_somewhere(core: Core, task: Task) -> bool:
    views: Any = core.state.views.values()
    return any(core._placement.check_task(task, view) is None for view in views)


class AlternativesCompared(WithAlternatives, Compared):
    """A core that examines every waiting task decides alike."""


class AlternativesRestored(WithAlternatives, LimitedRestored):
    """A restored core decides like one that went on."""


TestAlternativesCompared = AlternativesCompared.TestCase
TestAlternativesCompared.settings = examples(40, steps=40)
TestAlternativesRestored = AlternativesRestored.TestCase
TestAlternativesRestored.settings = examples(20, steps=40)
