"""Expected starts in the daemon: forecast in the background, compared with real starts.

The loop of the scheduler takes a snapshot of bounded size; a thread runs it forward. A refresh
follows a change, at most every `INTERVAL` seconds if tasks wait. It takes at most a twentieth of a
core: a refresh of c processor seconds is followed by a pause of at least 19 c. An estimate is never
part of a decision, so nothing of it is replayed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from metasched.config.settings import ClusterSettings
from metasched.core.events import Outcome
from metasched.core.forecast_state import ForecastState, forecast_state
from metasched.core.scheduler import Core
from metasched.core.tasks import Attempt, TaskId
from metasched.core.transitions import UNSTARTED
from metasched.db.store import StorageFailed
from metasched.forecast.estimates import StartEstimate, estimate_starts
from metasched.forecast.run_times import RunTimeModel
from metasched.model.job import Job, State
from metasched.policies.local.orders import EASY, FirstFit
from metasched.policies.local.queueing import NEVER, LocalPolicy
from metasched.policies.local.registry import DEFAULT_POLICY, make_policy

INTERVAL = 30.0  # seconds between the starts of two refreshes
IDLE_INTERVAL = 2.0  # the same after a refresh that had nothing to run forward
# processor time of a refresh, after which no pass of a policy begins. Nine futures of 2,000 tasks
# with EASY take 3.3 s beside 500 running tasks; one pass of `rcbo` beside 2,000 takes 3.5 s
CPU_SECONDS = 4.0
CORE_SHARE = 0.05  # of a core
MAX_SAMPLES = 1000  # compared starts of a cluster
MAX_FIRST = 20_000  # tasks whose first estimate is kept until they start
HORIZON = 7 * 86400.0  # seconds for which a compared start counts
MAX_ENDED = 20_000  # ended tasks that wait for the next refresh
MIN_LEARNT = 100  # ended tasks, below which nothing is forecast
MIN_SAMPLES = 20  # below, the coverage is unknown
MIN_COVERAGE = 0.65  # of intervals with a nominal 80%
TOLERANCE = 1.0  # seconds by which a start may lie outside
OUT_OF_TIME = "too many tasks wait to estimate their starts in time"


class TaskEstimate(NamedTuple):
    """The expected start of a pending task. Times are epoch seconds."""

    start: StartEstimate
    cluster: str
    made: float


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
    """Estimates of all pending tasks. `estimate` and `obstacle` may be called from any thread."""

    def __init__(
        self,
        core: Core,
        clusters: tuple[ClusterSettings, ...],
        changed: Callable[[], asyncio.Event],
        recent_runs: Callable[[int], list[tuple[Job, float]]],
    ) -> None:
        """`changed` returns an event that is set once the state has changed.

        `recent_runs` is that of `Queries`.
        """
        self._core, self._changed, self._recent_runs = core, changed, recent_runs
        self._policies = {entry.cluster.name: _policy_like(entry) for entry in clusters}
        self._model = RunTimeModel()  # changed only while no thread reads it
        self._ended = deque[tuple[Job, float]](maxlen=MAX_ENDED)  # for the model
        self._estimates: Mapping[TaskId, TaskEstimate] = {}  # replaced as a whole
        self._unknown: Mapping[str, str] = {}  # reason by cluster; replaced as a whole
        self._first: dict[TaskId, TaskEstimate] = {}  # the first estimate on the present cluster
        self._compared: dict[str, _Coverage] = {}  # by cluster
        self._refreshes = self._learnt = 0

    def estimate(self, task_id: TaskId, cluster: str) -> TaskEstimate | None:
        """Return the estimate of a task that is pending on a cluster; None: see `obstacle`."""
        estimate = self._estimates.get(task_id)
        if estimate is None or estimate.cluster != cluster or self.obstacle(cluster):
            return None
        return estimate

    def obstacle(self, cluster: str) -> str:
        """Return why no starts are shown on a cluster, or ""."""
        if self._learnt < MIN_LEARNT:
            return f"only {self._learnt} of {MIN_LEARNT} ended tasks are known"
        if reason := self._unknown.get(cluster):
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
        must_read = True
        while True:
            if must_read:
                with suppress(StorageFailed):  # try again: estimates must not end the service
                    runs = await asyncio.to_thread(self._recent_runs, MAX_ENDED)
                    must_read = False
                    for job, seconds in runs:
                        self._learn(job, seconds)
            changed, begun = self._changed(), time.monotonic()
            used = await self.refresh(time.time())
            interval = INTERVAL if used else IDLE_INTERVAL
            pause = max(interval - (time.monotonic() - begun), used * (1 / CORE_SHARE - 1))
            await asyncio.sleep(pause)
            await changed.wait()

    async def refresh(self, now: float) -> float:
        """Estimate all starts anew. Return the processor seconds of the thread; 0: none waits."""
        state = forecast_state(self._core.state, self._policies, now)
        self._refreshes += 1
        while self._ended:
            self._learn(*self._ended.popleft())
        estimates, used = await asyncio.to_thread(_estimate, state, self._model, self._refreshes)
        self._unknown = state.unknown
        if estimates is None:
            estimates = {}
            self._unknown = {**dict.fromkeys(state.clusters, OUT_OF_TIME), **state.unknown}
        self._estimates = estimates
        for task_id, estimate in estimates.items():
            first = self._first.get(task_id)
            if first is None or first.cluster != estimate.cluster:
                self._first[task_id] = estimate
        while len(self._first) > MAX_FIRST:
            del self._first[next(iter(self._first))]
        return used

    def observe(self, outcome: Outcome) -> None:
        """Learn from stored ends, and compare stored starts with their first estimates."""
        for task, attempt in outcome.closed_attempts:
            if attempt.started is not None and attempt.ended is not None:
                self._ended.append((task.job, attempt.ended - attempt.started))
        if not self._first:
            return
        for change in outcome.changes:
            if change.before in UNSTARTED and change.after not in UNSTARTED:
                first = self._first.pop((change.job, change.index), None)
                started = outcome.tasks.get((change.job, change.index))
                if first is not None and started is not None and started.attempt is not None:
                    self._compare(first, started.attempt)

    def _learn(self, job: Job, seconds: float) -> None:
        self._learnt += 1
        self._model.add(job.user, job.user_class, job.time_limit or job.estimated, seconds)

    def _compare(self, first: TaskEstimate, attempt: Attempt) -> None:
        """Compare the first estimate of a task with its start, if it has started there."""
        started = attempt.started
        if attempt.state is not State.RUNNING or started is None:
            return
        if attempt.cluster != first.cluster:
            return
        early, _, late = first.start
        covered = early - TOLERANCE <= started <= late + TOLERANCE
        self._compared.setdefault(first.cluster, _Coverage()).add(time.time(), covered)


def _estimate(
    state: ForecastState, model: RunTimeModel, seed: int
) -> tuple[dict[TaskId, TaskEstimate] | None, float]:
    """Return the estimates, and the processor seconds of this thread; 0 if no task waits.

    The estimates are None if too few forward runs ended within CPU_SECONDS.
    """
    if not state.snapshot.waiting:
        return {}, 0.0
    begun = time.thread_time()
    estimates = estimate_starts(
        state.snapshot, model, seed, may_continue=lambda: time.thread_time() - begun < CPU_SECONDS
    )
    if estimates is None:
        return None, time.thread_time() - begun
    now, by_task = state.snapshot.now, dict[TaskId, TaskEstimate]()
    for entry, task_ids, starts in zip(
        state.snapshot.waiting, state.tasks, estimates.tasks, strict=True
    ):
        (cluster,) = entry.limits
        for task_id, start in zip(task_ids, starts, strict=False):
            if start.late < NEVER:
                by_task[task_id] = TaskEstimate(start, state.clusters[cluster], now)
    return by_task, time.thread_time() - begun


def _policy_like(entry: ClusterSettings) -> Callable[[], LocalPolicy]:
    """Return the policy of a cluster of ours, or the one most like that of its manager."""
    if entry.cluster.adapter == "local":
        return partial(make_policy, entry.options.get("policy", DEFAULT_POLICY))
    return FirstFit if entry.cluster.adapter == "gridengine" else EASY
