"""Expected starts in the daemon: the snapshot of the core, refreshes, and their coverage."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from metasched.api.explanations import describe_expectation, shown_start
from metasched.core.events import ClusterUnreachable, JobSubmitted, UserAction, UserRequested
from metasched.core.forecast_state import (
    FOREIGN,
    NO_REPORT,
    TOO_MANY,
    ForecastState,
    forecast_state,
)
from metasched.daemon.forecast_process import (
    ForecastProcess,
    ForecastReply,
    ForecastRequest,
    NoForecast,
    RequestHandler,
)
from metasched.daemon.forecaster import (
    MAX_SAMPLES,
    MIN_SAMPLES,
    OUT_OF_TIME,
    QUEUED,
    Forecaster,
    TaskEstimate,
)
from metasched.daemon.manager_start_times import ExpectedStart
from metasched.db.store import StorageFailed
from metasched.forecast.estimates import MIN_LEARNT, StartEstimate
from metasched.forecast.snapshot import RunningTask
from metasched.model.cluster import ClusterInfo
from metasched.model.job import Job, State
from metasched.model.listing import ListedQueue
from metasched.policies.local.orders import EASY
from tests.unit.core_site import NOW, Site, facts, job

POLICIES = {"left": EASY, "right": EASY}


def busy(pending: int, *running: tuple[float, int]) -> ClusterInfo:
    """The report of left, all of whose 8 processors are in use."""
    return facts(8, 0, running_jobs=running, pending_jobs=pending)


def waiting_site(*, pending: int = 2) -> Site:
    """Job 1 runs on left since 10 s; jobs 2 and 3 are pending there, all with 8 processors."""
    site = Site(pull=False)
    for number in (1, 2, 3):
        site.step(JobSubmitted(NOW, job(number, cpus=8, user="ann", user_class="gold")))
        site.sent(number, native=str(number))
    site.seen(
        "left",
        busy(pending, (NOW + 90, 8)),
        site.row(State.RUNNING, 1, started=NOW - 10),
        site.row(State.PENDING, 2),
        site.row(State.PENDING, 3),
    )
    return site


def state_of(
    site: Site, now: float = NOW, queues: dict[str, ListedQueue] | None = None
) -> ForecastState:
    return forecast_state(site.core, POLICIES, queues or {}, now)


# The snapshot


def test_the_snapshot_has_what_runs_and_what_waits() -> None:
    state = state_of(waiting_site())
    assert state.clusters == ("left", "right")
    assert state.unknown == {}
    assert [cluster.free_cpus for cluster in state.snapshot.clusters] == [0, 4]
    assert state.snapshot.running == (RunningTask(0, 8, NOW - 10, 100.0, "ann", "gold"),)
    assert state.tasks == (((2, 0),), ((3, 0),))
    assert [entry.limits for entry in state.snapshot.waiting] == [{0: 100.0}] * 2
    assert state.snapshot.waiting[0].user == "ann"


def test_running_jobs_of_others_have_the_rest_of_their_limits() -> None:
    site = waiting_site()
    site.seen("left", busy(2, (NOW + 20, 3), (NOW + 90, 8), (NOW - 5, 1)), at=NOW)
    running = state_of(site).snapshot.running
    assert running[0].user == "ann"
    assert sorted(running[1:]) == [RunningTask(0, 1, NOW, 1.0), RunningTask(0, 3, NOW, 20.0)]


def test_nothing_is_forecast_among_pending_jobs_of_others() -> None:
    state = state_of(waiting_site(pending=3))
    assert state.unknown == {"left": FOREIGN}
    assert state.clusters == ("right",)
    assert state.tasks == ()


@pytest.mark.parametrize("action", ["cancel", "hold"])
def test_a_task_that_is_being_withdrawn_is_no_job_of_others(action: UserAction) -> None:
    """Otherwise whoever cancels a task would take the estimates of all others away."""
    site = waiting_site()
    site.step(UserRequested(NOW, action, 2))
    state = state_of(site)
    assert state.unknown == {}
    assert state.tasks == (((3, 0),),)
    rows = [site.row(State.PENDING, number) for number in (2, 3)]
    site.seen("left", busy(3, (NOW + 90, 8)), *rows)
    assert state_of(site).unknown == {"left": FOREIGN}  # one more than listed of ours


def test_nothing_is_forecast_among_too_many_jobs() -> None:
    """A snapshot takes the thread of the scheduler."""

    def unknown(left: int, right: int) -> dict[str, str]:
        """The clusters without forecast if so many jobs of others run there."""
        site = Site()
        for name, jobs in (("left", left), ("right", right)):
            site.seen(name, facts(8, 0, running_jobs=((NOW + 90, 1),) * jobs))
        return dict(state_of(site).unknown)

    assert unknown(5000, 5000) == {}
    assert unknown(5001, 5000) == {"left": TOO_MANY}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("metasched.core.forecast_state.MAX_LIVE_OF_SITE", 30)
        assert unknown(20, 10) == {}
        assert unknown(20, 11) == {"left": TOO_MANY}  # the larger
        assert unknown(11, 20) == {"right": TOO_MANY}


def test_nothing_is_forecast_on_a_silent_cluster() -> None:
    site = waiting_site()
    site.step(ClusterUnreachable(NOW, "left", "no answer"))
    assert state_of(site).unknown == {"left": NO_REPORT}
    assert state_of(Site(listed=False)).unknown == {"left": NO_REPORT, "right": NO_REPORT}


# Refreshes


class InThisProcess:
    """Answers as the process of forecasts does."""

    def __init__(self) -> None:
        self.handler = RequestHandler()

    async def run(self, request: ForecastRequest) -> ForecastReply:
        return self.handler.handle(request)

    async def close(self) -> None:
        self.handler = RequestHandler()


def forecaster_of(site: Site, ended: int = MIN_LEARNT, seconds: float = 40.0) -> Forecaster:
    """A forecaster that knows ended jobs of ann, each of the same run time."""
    known = Job(id=9, submitted=NOW, estimated=100.0, cpus=1, user="ann", user_class="gold")
    forecaster = Forecaster(
        site.core,
        asyncio.Event,
        lambda limit: [(known, seconds)] * ended,
        dict,
        InThisProcess(),
    )
    for _ in range(ended):
        forecaster._learn(known, seconds)
    return forecaster


def test_a_refresh_estimates_the_tasks_that_wait() -> None:
    forecaster = forecaster_of(waiting_site())
    asyncio.run(forecaster.refresh(NOW))
    # job 1 ends after 40 s of its limit of 100, job 2 after further 40
    expected = {(2, 0): NOW + 30, (3, 0): NOW + 70}
    for task_id, start in expected.items():
        estimate = forecaster.estimate(task_id, "left")
        assert estimate == TaskEstimate(StartEstimate(start, start, start), "left", NOW)
        assert forecaster.estimate(task_id, "right") is None  # it has moved since
    assert forecaster.estimate((1, 0), "left") is None  # it runs


@pytest.mark.parametrize(
    ("declared", "starts"),
    [
        ("fcfs", {2: 30, 3: 70, 4: 70}),
        ("easy", {2: 30, 3: 70, 4: 0}),  # only 4 ends by its limit before 1 does
        ("first-fit", {2: 50, 3: 0, 4: 30}),
        ("", {2: 30, 3: 70, 4: 70}),  # an adapter that declares nothing
    ],
)
def test_starts_are_forecast_by_the_declared_local_policy(
    declared: str, starts: dict[int, float]
) -> None:
    """Job 1 has half of left for another 30 s, or 90 by its limit; 2 needs all of it."""
    site = Site(pull=False)
    left = structs.replace(site.core.clusters[0], local_policy=declared)
    site.step(site.started(NOW, clusters=(left,)))
    site.seen("left", facts(8))
    owner = {"user": "ann", "user_class": "gold"}
    for number, cpus, limit in ((1, 4, 100.0), (2, 8, 100.0), (3, 4, 100.0), (4, 4, 50.0)):
        site.step(JobSubmitted(NOW, job(number, cpus=cpus, time_limit=limit, **owner)))
        site.sent(number, native=str(number))
    site.seen(
        "left",
        facts(8, 4, running_jobs=((NOW + 90, 4),), pending_jobs=3),
        site.row(State.RUNNING, 1, started=NOW - 10),
        *(site.row(State.PENDING, number) for number in starts),
    )
    forecaster = forecaster_of(site)
    asyncio.run(forecaster.refresh(NOW))
    expected = {number: forecaster.estimate((number, 0), "left") for number in starts}
    assert {n: e and e.start.median - NOW for n, e in expected.items()} == starts


def test_few_ended_tasks_are_a_reason() -> None:
    forecaster = forecaster_of(waiting_site(), ended=MIN_LEARNT - 1)
    asyncio.run(forecaster.refresh(NOW))
    assert forecaster.obstacle("left") == "only 99 of 100 ended tasks are known"
    assert len(forecaster._ended) == MIN_LEARNT - 1  # no process was asked; it learns them later
    assert forecaster.estimate((2, 0), "left") is None


def test_jobs_of_others_are_a_reason() -> None:
    forecaster = forecaster_of(waiting_site(pending=5))
    asyncio.run(forecaster.refresh(NOW))
    assert forecaster.obstacle("left") == FOREIGN
    assert forecaster.obstacle("right") == ""
    assert forecaster.estimate((2, 0), "left") is None


def test_a_refresh_out_of_time_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    forecaster = forecaster_of(waiting_site())
    asyncio.run(forecaster.refresh(NOW))
    monkeypatch.setattr("metasched.daemon.forecast_process.CPU_SECONDS", -1.0)
    asyncio.run(forecaster.refresh(NOW))
    assert forecaster.obstacle("left") == OUT_OF_TIME
    assert forecaster.estimate((2, 0), "left") is None


def test_ends_are_learnt_from() -> None:
    site = waiting_site()
    forecaster = forecaster_of(site)
    site.seen("left", busy(2), site.row(State.COMPLETED, 1, started=NOW - 10, ended=NOW + 60))
    forecaster.observe(site.out)
    asyncio.run(forecaster.refresh(NOW + 60))
    assert forecaster._learnt == MIN_LEARNT + 1


@pytest.mark.parametrize(("started", "covered"), [(30.5, 1), (28.0, 0), (32.0, 0)])
def test_starts_are_compared_with_the_first_estimate(started: float, covered: int) -> None:
    site = waiting_site()
    forecaster = forecaster_of(site)
    asyncio.run(forecaster.refresh(NOW))
    forecaster._estimates = {}  # later estimates do not count
    site.seen(
        "left",
        busy(1, (NOW + 130, 8)),
        site.row(State.COMPLETED, 1, started=NOW - 10, ended=NOW + 30),
        site.row(State.RUNNING, 2, started=NOW + started),
        at=NOW + 40,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("metasched.daemon.forecaster.time.time", lambda: NOW + 40)
        forecaster.observe(site.out)
        assert forecaster.coverage("left") == (covered, 1)
        patch.setattr("metasched.daemon.forecaster.time.time", lambda: NOW + 8 * 86400)
        assert forecaster.coverage("left") == (0, 0)


@pytest.mark.parametrize(
    ("covered", "number", "shown"), [(13, 20, True), (12, 20, False), (0, 19, True)]
)
def test_a_poor_coverage_hides_the_estimates(
    covered: int, number: int, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metasched.daemon.forecaster.time.time", lambda: NOW)
    forecaster = forecaster_of(waiting_site())
    asyncio.run(forecaster.refresh(NOW))
    compare(forecaster, covered, number)
    assert (forecaster.estimate((2, 0), "left") is not None) == shown
    reason = "" if shown else "only 12 of the last 20 starts were in their intervals"
    assert forecaster.obstacle("left") == reason


def compare(forecaster: Forecaster, covered: int, number: int) -> None:
    """Compare starts of tasks on left: the first so many lie in their intervals."""
    estimate = TaskEstimate(StartEstimate(NOW, NOW, NOW), "left", NOW)
    for position in range(number):
        start = NOW if position < covered else NOW - 100
        attempt = SimpleNamespace(state=State.RUNNING, started=start, cluster="left")
        forecaster._compare(estimate, attempt)  # type: ignore[arg-type]


def test_only_the_last_thousand_starts_count() -> None:
    forecaster = forecaster_of(waiting_site())
    compare(forecaster, 300, 1200)
    assert forecaster.coverage("left") == (100, MAX_SAMPLES)


def test_a_look_up_costs_the_same_beside_many_compared_starts() -> None:
    """A page of a listing has 10,000 of them."""

    def steps(compared: int) -> int:
        """The bytecode instructions of a look-up."""
        forecaster = forecaster_of(waiting_site())
        asyncio.run(forecaster.refresh(NOW))
        compare(forecaster, compared, compared)
        count, before = 0, sys.gettrace()

        def counting(frame: FrameType, event: str, _: object) -> Any:
            nonlocal count
            frame.f_trace_opcodes = True
            count += event == "opcode"
            return counting

        sys.settrace(counting)
        try:
            assert forecaster.estimate((2, 0), "left") is not None
        finally:
            sys.settrace(before)
        return count

    assert steps(MAX_SAMPLES) <= steps(MIN_SAMPLES) * 1.1


def test_a_refresh_is_followed_by_a_pause_of_nineteen_times_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forecaster = forecaster_of(waiting_site())
    pauses: list[float] = []

    async def refresh(now: float) -> float:
        forecaster._has_waiting = bool(used[0])
        return used.pop(0)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if not used:
            raise asyncio.CancelledError

    answers: list[object] = [StorageFailed("the database does not answer"), [(job(9), 5.0)]]

    def recent_runs(limit: int) -> list[tuple[Job, float]]:
        answer = answers.pop(0)
        if isinstance(answer, StorageFailed):
            raise answer
        return answer  # type: ignore[return-value]

    forecaster._recent_runs = recent_runs
    used = [0.1, 2.0, 0.0]
    changed = asyncio.Event()
    changed.set()
    forecaster._changed = lambda: changed
    monkeypatch.setattr(forecaster, "refresh", refresh)
    monkeypatch.setattr("metasched.daemon.forecaster.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(forecaster.run())
    assert pauses == [pytest.approx(30, abs=1), pytest.approx(38), pytest.approx(2, abs=1)]
    assert answers == []  # the first answer did not end the service, the second was the last
    assert forecaster._learnt == 1  # what a process before had learnt is lost


# What users read


def test_an_estimate_goes_before_that_of_the_manager() -> None:
    of_manager = ExpectedStart(NOW + 5, "left", NOW)
    estimate = TaskEstimate(StartEstimate(NOW, NOW + 60, NOW + 120), "left", NOW)
    assert shown_start(of_manager, estimate) == NOW + 60
    assert shown_start(of_manager, None) == NOW + 5
    assert shown_start(None, None) is None
    assert describe_expectation(of_manager, estimate, "") == (
        " It is expected to start on left at 1970-01-12T13:47:40.000+00:00, with 80% probability "
        "between 1970-01-12T13:46:40.000+00:00 and 1970-01-12T13:48:40.000+00:00."
    )
    assert "left expects it to start at" in describe_expectation(of_manager, None, "none")
    assert describe_expectation(None, None, FOREIGN) == f" Its start is not estimated: {FOREIGN}."
    assert describe_expectation(None, None, "") == ""


# Tasks that wait in metasched


def queued_site() -> Site:
    """Jobs 1 and 2 have the places of both queues; job 3 waits in metasched."""
    site = Site(pull=False, queue_depth=1)
    site.seen("left", facts(8, 0, running_jobs=((NOW + 50, 8),)))
    site.seen("right", facts(4, 0, running_jobs=((NOW + 50, 4),)))
    for number in (1, 2, 3):
        site.step(JobSubmitted(NOW, job(number, cpus=4, user="ann")))
    for task in site.core.tasks.values():
        if task.attempt is not None:
            task.attempt.state = State.PENDING
    assert site.core.tasks[3, 0].attempt is None
    return site


def test_a_task_in_metasched_has_an_estimate_without_a_cluster() -> None:
    forecaster = forecaster_of(queued_site())
    asyncio.run(forecaster.refresh(NOW))
    estimate = forecaster.estimate((3, 0), QUEUED)
    assert estimate is not None
    assert estimate.start.median >= NOW
    assert forecaster.estimate((3, 0), "left") is None  # dispatched since
    assert " It is expected to start at " in describe_expectation(None, estimate, "")


def test_queued_estimates_have_a_coverage_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasched.daemon.forecaster.time.time", lambda: NOW + 60)
    site = queued_site()
    forecaster = forecaster_of(site)
    asyncio.run(forecaster.refresh(NOW))
    estimate = forecaster.estimate((3, 0), QUEUED)
    assert estimate is not None
    cluster = site.core.tasks[1, 0].live_attempt.cluster
    site.seen(cluster, facts(8, 4), site.row(State.RUNNING, 1, started=NOW + 50))
    forecaster.observe(site.out)
    assert forecaster.coverage(QUEUED) == (0, 0)  # job 3 has been dispatched, and may start now
    attempt = site.core.tasks[3, 0].live_attempt
    assert attempt.cluster == cluster
    site.sent(3, cluster, native="3")
    forecaster.observe(site.out)
    row = site.row(State.RUNNING, 3, started=estimate.start.median)
    site.seen(cluster, facts(8, 0), row, at=NOW + 60)
    forecaster.observe(site.out)
    assert forecaster.coverage(QUEUED) == (1, 1)
    assert forecaster.coverage(cluster)[1] == 1  # job 1, which was pending; not job 3


def test_a_job_in_metasched_has_its_own_reason() -> None:
    site = queued_site()
    site.seen("left", facts(8, 0, running_jobs=((NOW + 50, 8),), pending_jobs=9))
    forecaster = forecaster_of(site)
    asyncio.run(forecaster.refresh(NOW))
    assert forecaster.obstacle(QUEUED) == ""
    assert forecaster.obstacle(QUEUED, 3) == f"it may start on left: {FOREIGN}"


# The process


def test_the_process_learns_and_answers_as_this_one_does() -> None:
    site = waiting_site()
    ended = forecaster_of(site)._ended
    state = state_of(site)
    request = ForecastRequest(tuple(ended), state.snapshot, frozenset({0, 1}), 1)

    async def answers() -> list[ForecastReply]:
        process = ForecastProcess()
        try:
            replies = [await process.run(request), await process.run(request._replace(learnt=()))]
            assert process._process.pid is not None
            os.kill(process._process.pid, signal.SIGKILL)
            with pytest.raises(NoForecast):
                await process.run(request)
            return [*replies, await process.run(request._replace(learnt=()))]
        finally:
            await process.close()

    first, second, ignorant = asyncio.run(answers())
    expected = RequestHandler().handle(request)
    assert first.estimates == second.estimates == expected.estimates
    assert ignorant.estimates != expected.estimates  # the new process has learnt nothing


def test_a_process_without_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasched.daemon.forecast_process.TIME_LIMIT", 0.0)

    async def run() -> None:
        process = ForecastProcess()
        with pytest.raises(NoForecast):
            await process.run(
                ForecastRequest((), state_of(waiting_site()).snapshot, frozenset(), 1)
            )
        assert process._process.pid is None

    asyncio.run(run())


def test_the_process_ends_with_the_daemon() -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "metasched.daemon.forecast_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    output, _ = process.communicate(b"\0\0\0", timeout=60)  # the daemon died while it wrote
    assert (process.returncode, output) == (0, b"")


def test_a_defect_leaves_no_old_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next refresh may come in an hour."""
    forecaster = forecaster_of(waiting_site())
    asyncio.run(forecaster.refresh(NOW))
    assert forecaster.probes("left")
    monkeypatch.setattr("metasched.daemon.forecaster.forecast_state", None)
    with pytest.raises(TypeError):
        asyncio.run(forecaster.run())
    assert forecaster.estimate((2, 0), "left") is None
    assert not forecaster.probes("left")


def test_a_lost_process_is_told_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    forecaster = forecaster_of(waiting_site())
    clock = SimpleNamespace(time=time.time, thread_time=lambda: 0.0, monotonic=lambda: 5.0)

    async def lost(request: ForecastRequest) -> ForecastReply:
        clock.monotonic = lambda: 305.0
        raise NoForecast

    asyncio.run(forecaster.refresh(NOW))
    assert forecaster.estimate((2, 0), "left") is not None
    forecaster._runner.run = lost  # type: ignore[method-assign]
    monkeypatch.setattr("metasched.daemon.forecaster.time", clock)
    assert asyncio.run(forecaster.refresh(NOW)) == 300.0  # it may have computed all the time
    assert forecaster._must_read
    assert forecaster.obstacle("left") == "only 0 of 100 ended tasks are known"
    assert forecaster.estimate((2, 0), "left") is None
