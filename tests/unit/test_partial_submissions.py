"""A submission that stops: accepted tasks stay, untried ones are queued, others are uncertain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metasched.adapters import launcher_client
from metasched.adapters.base import Adapter, Submission
from metasched.adapters.launcher_client import TimeBudget, owner_deadline
from metasched.adapters.protocol import WorkerCall, WorkerReply
from metasched.adapters.single_submissions import submit_each
from metasched.adapters.worker import AdapterHost
from metasched.core.events import (
    Dispatch,
    DispatchAccepted,
    DispatchSkipped,
    DispatchStarted,
    JobSubmitted,
    UserRequested,
)
from metasched.daemon.command_executor import CommandExecutor, _has_failed, _result
from metasched.daemon.dispatches_in_flight import DispatchesInFlight
from metasched.model.adapter_errors import PartlySubmitted, Refused, SiteFault, Unreachable
from metasched.model.job import State
from tests.unit.core_site import NOW, Site, job

TASKS = (0, 1, 2, 3)
DISPATCH = Dispatch(cluster="left", job=1, dispatch_id=1, indices=TASKS)
SUBMISSION = Submission(tag="t", job=cast(Any, None), payload=cast(Any, None), indices=TASKS)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(launcher_client, "time", clock)
    return clock


def commands_started(clock: Clock, limit: float | None, seconds: Callable[[int], float]) -> int:
    """Return how many commands a call starts; `seconds` is how long each of them takes."""
    with owner_deadline(limit):
        budget = TimeBudget()
        for number in range(50):
            try:
                budget.start_step()
            except Unreachable:
                return number
            clock.now += seconds(number)
    return 50


@pytest.mark.parametrize(
    ("limit", "seconds", "started"),
    [
        (10.0, 0.1, 50),
        (10.0, 0.5, 15),  # a quarter of the time is left for the last command
        (10.0, 2.0, 3),  # twice the time of the longest command is left
        (10.0, 30.0, 1),
        (None, 30.0, 50),
    ],
)
def test_no_command_is_started_that_may_be_cut_off(
    clock: Clock, limit: float | None, seconds: float, started: int
) -> None:
    assert commands_started(clock, limit, lambda _: seconds) == started


def test_the_slowest_command_counts(clock: Clock) -> None:
    assert commands_started(clock, 10.0, lambda number: 4.0 if number == 0 else 0.0) == 1
    assert commands_started(clock, 10.0, lambda number: 3.0 if number == 0 else 0.5) == 3


def test_nothing_is_started_after_the_deadline(clock: Clock) -> None:
    with owner_deadline(5.0):
        budget = TimeBudget()
        clock.now += 5.0
        with pytest.raises(Unreachable, match="over after 0 commands"):
            budget.start_step()


@pytest.mark.parametrize(
    ("untried", "next_reply"),
    [
        ((1, 2, 3), "partial"),  # executed
        ((2, 3), "untried"),  # the manager may hang: each further call could leave such a task
    ],
)
def test_a_worker_reports_the_tasks_that_were_not_tried(
    untried: tuple[int, ...], next_reply: str
) -> None:
    class StoppingAdapter:
        settle = 0.0
        access = ""
        exclusions = None

        def submit(self, submission: Submission) -> dict[int, str]:
            raise PartlySubmitted("the time was over", {0: "7"}, untried)

    host = AdapterHost(cast(Adapter, StoppingAdapter()))
    reply = host.execute(WorkerCall("submit", submission=SUBMISSION, owner="a"))
    assert (reply.error, reply.native_ids, reply.untried) == ("partial", {0: "7"}, untried)
    call = WorkerCall("submit", submission=SUBMISSION, owner="a", chained=True)
    assert host.execute(call).error == next_reply


@pytest.mark.parametrize(
    ("native_ids", "untried", "uncertain", "failed"),
    [
        ({0: "7"}, (1, 2, 3), (), False),
        ({0: "7"}, (2, 3), (1,), True),
        ({}, (1, 2, 3), (0,), True),
    ],
)
def test_the_event_of_a_partial_reply(
    native_ids: dict[int, str], untried: tuple[int, ...], uncertain: tuple[int, ...], failed: bool
) -> None:
    reply = WorkerReply("partial", "why", native_ids=native_ids, untried=untried)
    event = _result(DISPATCH, reply, only_user=True)
    assert isinstance(event, DispatchAccepted)
    assert (event.native_ids, event.untried, event.uncertain) == (native_ids, untried, uncertain)
    assert event.reason == "why"
    assert _has_failed(DISPATCH, reply) is failed


def test_a_call_that_tried_nothing_is_skipped_and_pauses() -> None:
    reply = WorkerReply("partial", "why", untried=TASKS)
    assert isinstance(_result(DISPATCH, reply, only_user=True), DispatchSkipped)
    assert _has_failed(DISPATCH, reply)


def test_the_core_queues_untried_tasks_and_waits_for_uncertain_ones() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(1, array="0-3", clusters=("left",))))
    site.step(DispatchStarted(NOW, 1, 1))
    actions = site.step(
        DispatchAccepted(NOW + 5, 1, 1, {0: "7"}, untried=(2, 3), uncertain=(1,), reason="too slow")
    )
    tasks = {index: site.core.tasks[1, index] for index in TASKS}
    assert tasks[0].state is State.PENDING
    assert tasks[1].state is State.DISPATCHING
    assert tasks[1].live_attempt.dispatch_id == 1
    # at once they are dispatched again, without a rejection
    assert [
        (action.dispatch_id, action.indices) for action in actions if isinstance(action, Dispatch)
    ] == [(2, (2, 3))]
    assert not tasks[2].rejected_by
    # a listing without the uncertain task proves it absent; the accepted one stays
    site.seen("left", None, site.row(State.PENDING), at=NOW + 10, full=True, until=NOW + 8)
    assert tasks[0].state is State.PENDING
    assert tasks[1].live_attempt.dispatch_id == 3


def test_an_untried_task_that_is_to_be_cancelled_ends() -> None:

    site = Site()
    site.step(JobSubmitted(NOW, job(1, array="0-3", clusters=("left",))))
    site.step(DispatchStarted(NOW, 1, 1))
    site.step(UserRequested(NOW, "cancel", 1, (2,)))
    site.step(DispatchAccepted(NOW + 5, 1, 1, {0: "7", 1: "8"}, untried=(2, 3), reason="too slow"))
    assert (1, 2) not in site.core.tasks
    assert site.core.tasks[1, 3].state is State.DISPATCHING


@pytest.mark.parametrize("owner", ["", "ada"])
def test_every_submission_and_withdrawal_has_a_time(owner: str) -> None:
    """In personal mode too: a worker that is killed leaves all tasks of its calls uncertain."""
    calls: list[WorkerCall] = []

    class Worker:
        async def call(self, call: WorkerCall) -> WorkerReply:
            calls.append(call)
            return WorkerReply()

    pending = SimpleNamespace(
        build_submission=lambda dispatch, payload: SUBMISSION,
        next_withdrawals=lambda owner: [],
        remove_withdrawals=lambda batch, reason: None,
    )
    executor = CommandExecutor(
        host=cast(Any, SimpleNamespace(ledger=SimpleNamespace(payloads=lambda jobs: {1: None}))),
        settings=cast(Any, SimpleNamespace(call_timeout=60.0)),
        worker=cast(Any, Worker()),
        pending_actions=cast(Any, pending),
        in_flight=DispatchesInFlight(),
        on_site_fault=cast(Any, None),
    )
    calls += [call for _, call in executor._prepare_calls(owner, [DISPATCH], [], chained=False)]
    asyncio.run(executor.withdraw(owner))
    assert [(call.operation, call.time_limit) for call in calls] == [
        ("submit", 30.0),
        ("withdraw", 30.0),
    ]


class Answers:
    """Answers of a manager to the submission of each task."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers, self.tried = iter(answers), list[int]()

    def submit(self, index: int) -> str:
        self.tried.append(index)
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answer", "untried"),
    [
        (Refused("full", retryable=True), (2, 3)),
        (SiteFault("no program"), (2, 3)),
        (Unreachable("no answer"), (3,)),  # task 2 may be queued
    ],
)
def test_tasks_after_the_first_that_fails_are_not_tried(
    answer: Exception, untried: tuple[int, ...]
) -> None:
    answers = Answers("17", answer)
    with pytest.raises(PartlySubmitted) as stopped:
        submit_each((1, 2, 3), answers.submit, {0: "16"})
    assert stopped.value.native_ids == {0: "16", 1: "17"}
    assert stopped.value.untried == untried
    assert answers.tried == [1, 2]


@pytest.mark.parametrize("answer", [Refused("full"), SiteFault("no program")])
def test_a_refusal_of_the_first_task_refuses_all(answer: Exception) -> None:
    with pytest.raises(type(answer)):
        submit_each((1, 2), Answers(answer).submit, {})


def test_tasks_for_which_no_time_is_left_are_not_tried(clock: Clock) -> None:
    def submit(index: int) -> str:
        clock.now += 4.0
        return str(index)

    with owner_deadline(10.0), pytest.raises(PartlySubmitted) as stopped:
        submit_each((1, 2, 3), submit, {})
    assert (stopped.value.native_ids, stopped.value.untried) == ({1: "1"}, (2, 3))
