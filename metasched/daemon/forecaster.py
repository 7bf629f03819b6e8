"""Expected starts in the daemon: forecast in the background, compared with real starts.

The loop of the scheduler takes a snapshot of bounded size; `forecast_process` runs it forward. A
refresh follows a change, at most every `INTERVAL` seconds if tasks wait. It takes at most a
twentieth of a core: a refresh of c processor seconds is followed by a pause of at least 19 c. No
estimate is part of a decision, so none is replayed; but with `load = "forecast"` the starts of
probes are, as events (`core.forecast_loads`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from metasched.core.events import Outcome, StartsForecast
from metasched.core.forecast_state import ForecastState, forecast_state, starts_forecast
from metasched.core.scheduler import Core
from metasched.core.tasks import Attempt, TaskId
from metasched.core.transitions import UNSTARTED
from metasched.daemon.forecast_policies import make_forecast_policy
from metasched.daemon.forecast_process import (
    EndedRunTime,
    ForecastProcess,
    ForecastRequest,
    ForecastRunner,
    NoForecast,
)
from metasched.db.store import StorageFailed
from metasched.forecast.estimates import MIN_LEARNT, Estimates, StartEstimate
from metasched.model.job import Job, State
from metasched.model.listing import ListedQueue
from metasched.policies.local.queueing import NEVER

log = logging.getLogger("metasched")

INTERVAL = 30.0  # seconds between the starts of two refreshes
IDLE_INTERVAL = 2.0  # the same after a refresh that had nothing to run forward
CORE_SHARE = 0.05  # of a core
MAX_SAMPLES = 1000  # compared starts of a cluster
MAX_FIRST = 20_000  # tasks whose first estimate is kept until they start
HORIZON = 7 * 86400.0  # seconds for which a compared start counts
MAX_ENDED = 20_000  # ended tasks that wait for the next refresh
MIN_SAMPLES = 20  # below, the coverage is unknown
MIN_COVERAGE = 0.65  # of intervals with a nominal 80%
TOLERANCE = 1.0  # most seconds that a start may lie outside
OUT_OF_TIME = "too many tasks wait to estimate their starts in time"
WAITING = UNSTARTED | {State.QUEUED}
QUEUED = ""  # in place of the name of a cluster: tasks that wait in metasched


class TaskEstimate(NamedTuple):
    """The expected start of a waiting task. Times are epoch seconds."""

    start: StartEstimate
    cluster: str  # in whose queue it is; QUEUED: in none
    made: float


class ProbedStart(NamedTuple):
    """When a task of that size and limit (seconds) would start, behind all others."""

    cpus: int
    limit: float
    start: StartEstimate  # epoch seconds


class _Coverage:
    """How many compared starts of a cluster were in their intervals. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples = deque[tuple[float, bool]]()  # (time of the comparison, whether covered)
        self._covered = 0  # of the samples; counted on, since each row of a page asks

    def add(self, now: float, covered: bool) -> None:
        with self._lock:
            self._samples.append((now, covered))
            self._covered += covered
            if len(self._samples) > MAX_SAMPLES:
                self._drop_first()

    def counts(self, now: float) -> tuple[int, int]:
        """Return how many starts compared since `HORIZON` were covered, and their number."""
        with self._lock:
            while self._samples and self._samples[0][0] < now - HORIZON:
                self._drop_first()
            return self._covered, len(self._samples)

    def _drop_first(self) -> None:
        self._covered -= self._samples.popleft()[1]


class Forecaster:
    """Estimates of all waiting tasks. `estimate` and `obstacle` may be called from any thread."""

    def __init__(
        self,
        core: Core,
        changed: Callable[[], asyncio.Event],
        recent_runs: Callable[[int], list[tuple[Job, float]]],
        queues: Callable[[], Mapping[str, ListedQueue]],
        runner: ForecastRunner | None = None,
        notify: Callable[[StartsForecast], Awaitable[object]] | None = None,
    ) -> None:
        """`changed` returns an event that is set once the state has changed.

        `recent_runs` is that of `Queries`. `queues` returns the listed order of pending jobs, by
        cluster. `runner` None: a process of its own. `notify` passes forecasts to the core while
        its policy places jobs by them.
        """
        self._core, self._changed, self._recent_runs = core, changed, recent_runs
        self._queues, self._runner = queues, runner or ForecastProcess()
        self._notify = notify
        self._ended = deque[EndedRunTime](maxlen=MAX_ENDED)  # for the next request
        self._estimates: Mapping[TaskId, TaskEstimate] = {}  # replaced as a whole
        self._probed: Mapping[str, Sequence[ProbedStart]] = {}  # by cluster; likewise
        self._has_waiting = False  # at the last refresh
        self._unknown: Mapping[str, str] = {}  # reason by cluster; replaced as a whole
        self._unknown_jobs: Mapping[int, str] = {}  # of jobs that wait in metasched; likewise
        # first estimates: while it waited in metasched, and on the present cluster
        self._first_queued: dict[TaskId, TaskEstimate] = {}
        self._first: dict[TaskId, TaskEstimate] = {}
        self._compared: dict[str, _Coverage] = {}  # by cluster, or QUEUED
        self._refreshes = self._learnt = 0
        self._must_read = True  # whether the runner has learnt nothing yet

    def estimate(self, task_id: TaskId, cluster: str) -> TaskEstimate | None:
        """Return the estimate of a task that waits on a cluster, or QUEUED; None: `obstacle`."""
        estimate = self._estimates.get(task_id)
        if estimate is None or estimate.cluster != cluster or self.obstacle(cluster):
            return None
        return estimate

    def probes(self, cluster: str) -> Sequence[ProbedStart]:
        """Return when tasks would start there that are submitted now, behind all others."""
        return () if self.obstacle(cluster) else self._probed.get(cluster, ())

    def probe(self, cluster: str, cpus: int, limit: float) -> StartEstimate | None:
        """Return when a task would start there that is submitted now, behind all others.

        `limit` is in seconds. That is the start of the next larger and longer probe.
        """
        fitting = (p for p in self.probes(cluster) if p.cpus >= cpus and p.limit >= limit)
        return next((probed.start for probed in fitting), None)

    def obstacle(self, cluster: str, job: int | None = None) -> str:
        """Return why no starts are shown on a cluster, or QUEUED; or "".

        With `job`, the id of a job that waits in metasched, also why it has none.
        """
        if self._learnt < MIN_LEARNT:
            return f"only {self._learnt} of {MIN_LEARNT} ended tasks are known"
        if reason := self._unknown.get(cluster):
            return reason
        if job is not None and (reason := self._unknown_jobs.get(job)):
            return reason
        covered, number = self.coverage(cluster)
        if number >= MIN_SAMPLES and covered < MIN_COVERAGE * number:
            return f"only {covered} of the last {number} starts were in their intervals"
        return ""

    def coverage(self, cluster: str) -> tuple[int, int]:
        """Return how many of the last week's starts were in their intervals, and the starts."""
        compared = self._compared.get(cluster)
        return compared.counts(time.time()) if compared else (0, 0)

    async def run(self) -> None:
        """Learn from stored ends, then refresh the estimates until cancelled."""
        self._must_read, self._learnt = True, 0  # a new process has learnt nothing
        try:
            while True:
                if self._must_read:
                    with suppress(StorageFailed):  # try again: estimates must not end the service
                        runs = await asyncio.to_thread(self._recent_runs, MAX_ENDED)
                        self._must_read = False
                        for job, seconds in runs:
                            self._learn(job, seconds)
                changed, begun = self._changed(), time.monotonic()
                used = await self.refresh(time.time())
                interval = INTERVAL if self._has_waiting else IDLE_INTERVAL
                pause = max(interval - (time.monotonic() - begun), used * (1 / CORE_SHARE - 1))
                await asyncio.sleep(pause)
                await changed.wait()
        finally:
            self._estimates, self._probed = {}, {}  # after a defect the next may come in an hour
            await self._runner.close()

    async def refresh(self, now: float) -> float:
        """Estimate all starts anew. Return the processor seconds of it."""
        if self._learnt < MIN_LEARNT:
            return 0.0  # nothing would be shown: no process yet
        begun = time.thread_time()
        policies = {
            cluster.name: partial(make_forecast_policy, cluster.local_policy_or_fcfs)
            for cluster in self._core.clusters
        }
        state = forecast_state(self._core, policies, self._queues(), now)
        used = time.thread_time() - begun
        targets = frozenset(index for index, tasks in enumerate(state.tasks) if tasks)
        self._has_waiting = bool(targets)
        self._refreshes += 1
        learnt = tuple(self._ended)
        self._ended.clear()
        request = ForecastRequest(learnt, state.snapshot, targets, self._refreshes)
        asked = time.monotonic()
        try:
            reply = await self._runner.run(request)
        except NoForecast:
            log.warning("expected starts: the forecast process did not answer; it starts anew")
            self._must_read, self._learnt = True, 0
            self._estimates, self._probed = {}, {}
            # it may have computed all the time; if it cannot even start, not so soon again
            return max(used + time.monotonic() - asked, INTERVAL * CORE_SHARE)
        unknown, estimates = dict(state.unknown), dict[TaskId, TaskEstimate]()
        probed = dict[str, list[ProbedStart]]()
        if state.unknown_queued:
            unknown[QUEUED] = state.unknown_queued
        if reply.estimates is None:
            unknown = {**dict.fromkeys((*state.clusters, QUEUED), OUT_OF_TIME), **unknown}
        else:
            estimates = _by_task(state, reply.estimates)
            starts = zip(state.snapshot.probes, reply.estimates.probes, strict=True)
            for (cluster, cpus, limit), start in starts:
                if start.late < NEVER:
                    probes = probed.setdefault(state.clusters[cluster], [])
                    probes.append(ProbedStart(cpus, limit, start))
        self._unknown, self._unknown_jobs = unknown, state.unknown_jobs
        self._estimates, self._probed = estimates, probed
        self._remember(estimates)
        if reply.estimates is not None and self._core.policy.load == "forecast":
            await self._notify_core(state, reply.estimates)
        return used + reply.used

    async def _notify_core(self, state: ForecastState, estimates: Estimates) -> None:
        """Pass a forecast to the core, of the clusters whose estimates are shown."""
        if self._notify is None or len(self._core.clusters) < 2:  # then there is no choice
            return
        shown = [name for name in state.clusters if not self.obstacle(name)]
        event = starts_forecast(state, estimates, shown, time.time())
        if self._core.is_news(event):
            with suppress(StorageFailed):  # the service ends
                await self._notify(event)

    def _remember(self, estimates: Mapping[TaskId, TaskEstimate]) -> None:
        """Keep the first estimate of each task until it starts."""
        for task_id, estimate in estimates.items():
            if estimate.cluster == QUEUED:
                self._first_queued.setdefault(task_id, estimate)
                continue
            first = self._first.get(task_id)
            if first is None or first.cluster != estimate.cluster:
                self._first[task_id] = estimate
        for samples in (self._first, self._first_queued):
            while len(samples) > MAX_FIRST:
                del samples[next(iter(samples))]

    def observe(self, outcome: Outcome) -> None:
        """Learn from stored ends, and compare stored starts with their first estimates."""
        for task, attempt in outcome.closed_attempts:
            if attempt.started is not None and attempt.ended is not None:
                self._learn(task.job, attempt.ended - attempt.started)
        if not (self._first or self._first_queued):
            return
        for change in outcome.changes:
            if change.before in WAITING and change.after not in WAITING:
                task_id = change.job, change.index
                started = outcome.tasks.get(task_id)
                for samples in (self._first, self._first_queued):
                    first = samples.pop(task_id, None)
                    if first is not None and started is not None and started.attempt is not None:
                        self._compare(first, started.attempt)

    def _learn(self, job: Job, seconds: float) -> None:
        self._learnt += 1
        limit = job.time_limit or job.estimated
        self._ended.append(EndedRunTime(job.user, job.user_class, limit, seconds))

    def _compare(self, first: TaskEstimate, attempt: Attempt) -> None:
        """Compare the first estimate of a task with its start, if it has started there."""
        started = attempt.started
        if attempt.state is not State.RUNNING or started is None:
            return
        if first.cluster not in (QUEUED, attempt.cluster):
            return
        early, _, late = first.start
        covered = early - TOLERANCE <= started <= late + TOLERANCE
        self._compared.setdefault(first.cluster, _Coverage()).add(time.time(), covered)


def _by_task(state: ForecastState, estimates: Estimates) -> dict[TaskId, TaskEstimate]:
    now, by_task = state.snapshot.now, dict[TaskId, TaskEstimate]()
    for entry, task_ids, starts in zip(
        state.snapshot.waiting, state.tasks, estimates.tasks, strict=True
    ):
        where = QUEUED if entry.queued else state.clusters[next(iter(entry.limits))]
        for task_id, start in zip(task_ids, starts, strict=False):
            if start.late < NEVER:
                by_task[task_id] = TaskEstimate(start, where, now)
    return by_task
