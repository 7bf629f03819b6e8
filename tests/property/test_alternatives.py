"""Alternative licences with limits, drains and restarts: steps end, no alternative starves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event as note
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from metasched.core.alternatives import owner_id, request_ids
from metasched.core.events import DaemonStarted, TimerExpired, UserRequested
from metasched.core.scheduler import Core
from metasched.core.tasks import Task
from metasched.model.job import Job, Reason, State
from metasched.model.limits import LimitSettings, LimitTable
from tests.harness.examples import examples
from tests.property.core_model import EITHER
from tests.property.test_core import World
from tests.property.test_ineligible_tasks import Compared
from tests.property.test_usage_limits import LimitedRestored, WithLimits, recount

ACTIONS = ("cancel", "hold", "release")
# invariants of the models
CHECKS = (
    *("no_alternative_starves", "none_is_left_behind", "uses_are_right", "who_fits_does_not_wait"),
    *("licences_are_with_those_who_may_run", "no_more_licences_are_used_than_there_are"),
    "nobody_in_line_could_go",
)
LIMIT_REASONS = (Reason.LIMIT_USER, Reason.LIMIT_CLASS)
MAX_STEPS = 50  # that follow each other at once; each places or examines hundreds of tasks
LIMITS = (
    LimitSettings(for_all=LimitTable(licences={"a": 1}), each_user=LimitTable(licences={"b": 1})),
    LimitSettings(users={"a": LimitTable(licences={"a": 1, "c": 1}), "b": LimitTable(running=2)}),
    LimitSettings(each_user=LimitTable(running=3, licences={"b": 3}), for_all=LimitTable(queued=9)),
)


class WithAlternatives(WithLimits, World):
    """Limits of licences, and many jobs with alternatives."""

    remainder_minimum = 4

    def booted(self, max_priority: int = 10) -> DaemonStarted:
        event = super().booted(max_priority)
        chosen = LIMITS[(self.starts + event.policy.pull) % len(LIMITS)]
        return structs.replace(event, limits=chosen)

    def submit_alternatives(
        self,
        requests: list[tuple[dict[str, int], ...]],
        array: str | None,
        name: str,
        clusters: tuple[str, ...],
    ) -> None:
        for choices in requests:
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

    def ask_for_job(self, action: str, job: int) -> None:
        """Cancel, hold or release all tasks of a job, if there are as many."""
        if job in self.jobs:
            if action == "cancel":
                self.cancelled |= {(job, index) for index in self.jobs[job].indices}
            self.step(UserRequested(self.now, action, job, by="ada"))  # type: ignore[arg-type]

    def stuck(self, task: Task) -> bool:
        """Whether a task cannot go on, as under limits that have changed since its submission.

        It also waits for ever if unknown tasks take all that a limit allows.
        """
        if super().stuck(task) or self.core.rejection_reason(task.job) is not None:
            return True
        if task.state is not State.QUEUED or task.reason not in LIMIT_REASONS:
            return False
        lost = [other for other in self.core.tasks.values() if other.state is State.UNKNOWN]
        shortage = self.core.limits.shortage(task.job)
        return (
            shortage is not None
            and all(map(super().stuck, lost))
            and (
                recount(lost)[shortage.use.scope, shortage.resource]
                == shortage.use.used[shortage.resource]
            )
        )

    def go_on(self) -> None:
        """Let the core do at once what it put off; it must come to an end."""
        for _ in range(MAX_STEPS):
            if self.core.next_due is None or self.core.next_due > self.now:
                return
            self.step(TimerExpired(self.now))
        raise AssertionError("the core requests steps without end")

    def no_alternative_starves(self) -> None:
        """What waits is barred by a limit, by all clusters, or by too few free tokens."""
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

    def none_is_left_behind(self) -> None:
        """Only tasks that wait for a cluster have requests in the queue of licences."""
        gates = self.core._gates
        for task_id in (*gates._ready, *gates.ineligible._group_of):
            assert task_id == owner_id(task_id) or gates.alternatives.find(task_id) is not None
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


def command(method: str, /, **arguments: Any) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """Draw a call of a method."""
    return st.tuples(st.just(method), st.fixed_dictionaries(arguments))


CLUSTER = st.sampled_from(["left", "right"])
SUBMIT = command(
    "submit_alternatives",
    requests=st.lists(st.sampled_from(EITHER), min_size=1, max_size=4),
    array=st.sampled_from([None, None, "0-2", "1-6"]),
    name=st.sampled_from(["mine", "yours"]),
    clusters=st.sampled_from([(), (), ("right",)]),
)
COMMANDS = st.one_of(
    SUBMIT,
    command("work"),
    command("finish", name=CLUSTER, state=st.just(State.COMPLETED)),
    command("drain", name=CLUSTER, keep=st.booleans()),
    command("resume", name=CLUSTER),
    command("silence", name=CLUSTER),
    command("limit_jobs", name=CLUSTER, limit=st.sampled_from([None, 1, 2])),
    command("set_licence", name=st.sampled_from("abc"), total=st.sampled_from([None, 0, 1, 3])),
    command("ask_for_job", action=st.sampled_from(ACTIONS), job=st.integers(1, 4)),
    command("wait", seconds=st.sampled_from([1.0, 40.0])),
    command(
        "crash",
        submitted=st.booleans(),
        at_act=st.booleans(),
        configured=st.just(["left", "right"]),
        max_priority=st.just(10),
    ),
)


# a task waits for licences as all places in the queue of its only cluster are taken
FULL_QUEUE = [
    ("submit_alternatives", {"name": name, "array": array, "clusters": only, "requests": requests})
    for name, array, only, requests in (
        ("mine", "1-6", ("right",), [EITHER[1], EITHER[0]]),
        ("yours", "0-2", (), [EITHER[1], EITHER[1], EITHER[0], EITHER[0]]),
        ("yours", "1-6", (), [EITHER[2]]),
    )
]


@pytest.mark.slow("dozens of lives, each compared with a second core")
@pytest.mark.parametrize(
    ("machine", "number"), [(AlternativesCompared, 50), (AlternativesRestored, 25)]
)
def test_alternatives(machine: Any, number: int) -> None:
    @examples(number)
    @given(
        send=st.sampled_from(["at_once", "at_once", "late"]),
        pull=st.booleans(),
        first=SUBMIT,
        commands=st.lists(COMMANDS, min_size=4, max_size=20),
    )
    @example("at_once", True, FULL_QUEUE[0], [*FULL_QUEUE[1:], ("silence", {"name": "right"})])
    def follow(send: str, pull: bool, first: Any, commands: list[Any]) -> None:
        world = machine()
        boot: dict[str, Any] = {"pull": pull, "load": "paper", "send": send, "sizes": []}
        if machine is AlternativesRestored:
            boot |= {"binds_late": False, "together": 3, "by_share": False}
        world.boot(fences=[], **boot)
        world.work()
        for name, arguments in (first, *commands):
            getattr(world, name)(**arguments)
            for check in CHECKS:
                getattr(world, check)()
            world.go_on()
        world.teardown()  # every task ends, or is barred for ever

    follow()


TestAlternativesCompared = pytest.mark.slow("thirty lives, each in two cores")(
    AlternativesCompared.TestCase
)  # with the rules of all other tests, too
TestAlternativesCompared.settings = examples(30, steps=40)
