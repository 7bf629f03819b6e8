"""Counters and histograms of the daemon for Prometheus; they outlive a restart of its service.

Labels are names that the site configures (clusters, classes), states, and routes. None is a user, a
job or a text from outside, so their number is bounded and a reader learns nothing of users.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from metasched.core.events import Outcome
from metasched.core.tasks import Attempt, TaskChange, TaskId
from metasched.core.transitions import ATTEMPT_FINAL, STARTED, UNSTARTED, TaskEvent
from metasched.model.job import Job
from metasched.policies.plug_in_ratings import PlugIn

# upper bounds in seconds
WAIT_BUCKETS = (1, 10, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400)
REQUEST_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
COMMIT_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)

# else each has a second series, the time of its first value
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Counters of the daemon's events. Readings of its state are computed at a scrape."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        self._wall_clock = wall_clock
        self._tasks_started = self._counter(
            "tasks_started", "Tasks whose payload started.", "cluster", "class"
        )
        self._attempts_ended = self._counter(
            "attempts_ended", "Attempts that ended, by their final state.", "cluster", "state"
        )
        self._transitions = self._counter(
            "transitions", "Changes of a task's state, by the event that caused them.", "event"
        )
        self._waits = self._histogram(
            "wait_seconds",
            "Seconds from the submission of a task to the start of its payload.",
            WAIT_BUCKETS,
            "class",
        )
        self.commits = self._histogram(
            "commit_seconds", "Seconds of a commit to the database.", COMMIT_BUCKETS
        )
        self.failed_commits = self._counter("failed_commits", "Commits that the database failed.")
        self.service_starts = self._counter(
            "service_starts", "Starts of the scheduler service from the database."
        )
        self._exclusions = self._counter(
            "plug_in_exclusions",
            "Jobs for which a heuristic of the site was excluded.",
            *("table", "heuristic"),
        )
        self._requests = self._histogram(
            "http_request_seconds",
            "Seconds from a request's admission to the end of its response.",
            REQUEST_BUCKETS,
            *("method", "route", "status"),
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace="metasched", registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(
            *(name, text, labels),
            namespace="metasched",
            registry=self.registry,
            buckets=tuple(buckets),
        )

    @contextmanager
    def timed_commit(self) -> Iterator[None]:
        """Time the commit within the block, and count it if it fails."""
        begun = time.perf_counter()
        try:
            yield
        except Exception:
            self.failed_commits.inc()
            raise
        finally:
            self.commits.observe(time.perf_counter() - begun)

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request; `route` is the pattern of its path, `status` that of its response."""
        self._requests.labels(method, route, f"{status // 100}xx").observe(seconds)

    def count_exclusions(self, plug_in: PlugIn, jobs: int) -> None:
        """Count jobs for which a plug-in was excluded."""
        self._exclusions.labels(plug_in.kind.value, plug_in.name).inc(jobs)

    def observe(self, outcome: Outcome) -> None:
        """Count the changes of a stored outcome."""
        ended = {
            (task.job.id, task.index): (task.job, attempt)
            for task, attempt in outcome.closed_attempts
        }
        for _, attempt in ended.values():
            self._attempts_ended.labels(attempt.cluster, attempt.state.value).inc()
        for change in outcome.changes:
            if change.event is not None:
                self._transitions.labels(change.event.value).inc(_length(change))
            if change.before in UNSTARTED:
                self._observe_start(change, outcome, ended)

    def _observe_start(
        self,
        change: TaskChange,
        outcome: Outcome,
        ended: dict[TaskId, tuple[Job, Attempt]],
    ) -> None:
        """Count the start of a task; a listing may show its end first."""
        task_id = (change.job, change.index)
        if change.after in STARTED:
            task = outcome.tasks.get(task_id)
            attempt, job = (None, None) if task is None else (task.attempt, task.job)
        elif change.event is not TaskEvent.WITHDRAW and task_id in ended:
            job, attempt = ended[task_id]
            if attempt.state not in ATTEMPT_FINAL:
                return
        else:
            return
        if attempt is None or job is None or attempt.started is None:
            return
        self._tasks_started.labels(attempt.cluster, job.user_class).inc()
        wait = min(attempt.started, self._wall_clock()) - job.submitted
        self._waits.labels(job.user_class).observe(max(wait, 0.0))


def _length(change: TaskChange) -> int:
    """Return the number of tasks that a line of a story concerns."""
    if change.run_last is None:
        return 1
    return (change.run_last - change.index) // change.run_step + 1
