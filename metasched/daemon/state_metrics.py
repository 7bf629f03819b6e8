"""Readings of the scheduler's state for Prometheus: queue, clusters, licences, reservations.

They are computed for each scrape, so nothing has to be kept up to date. Tasks are counted in
portions, so that events and requests come in between.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from operator import attrgetter
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

from metasched.core.state import SchedulerState
from metasched.core.tasks import Task
from metasched.core.transitions import QUEUED_OR_HELD, UNSTARTED
from metasched.daemon.circuit_breaker import CircuitBreaker
from metasched.daemon.cluster_connection import ClusterConnection
from metasched.daemon.database_size import Size
from metasched.daemon.service import SchedulerService
from metasched.model.job import MANAGER_REASON, Reason
from metasched.version import COMMIT, VERSION

Family = GaugeMetricFamily | CounterMetricFamily | InfoMetricFamily

PORTION = 1_000  # tasks that are counted at a time, in less than half a millisecond
_REASONS: Final = {reason.value: reason.value for reason in Reason}
_WAITING: Final = frozenset(state.value for state in QUEUED_OR_HELD | UNSTARTED)
_submitted = attrgetter("job.submitted")
# state, class and reason of a task or remainder; the hash of a state itself takes longer
_kind = attrgetter("state._value_", "job.user_class", "reason")


class TaskCounts:
    """Open tasks by state, class and reason, and the longest wait of each class."""

    def __init__(self) -> None:
        self.tasks: Counter[tuple[str, str, str]] = Counter()  # by state, class, reason
        self.oldest: dict[str, float] = {}  # by class: submission of an unstarted task

    def count(self, state: SchedulerState) -> Iterator[None]:
        """Count all open tasks; yield after each portion."""
        tasks = iter(list(state.tasks.values()))
        while portion := list(islice(tasks, PORTION)):
            self._add_single(portion)
            yield
        remainders = iter(list(state.remainders.values()))
        while ranges := list(islice(remainders, PORTION)):
            for remainder in ranges:
                self._add(_kind(remainder), len(remainder), remainder.job.submitted)
            yield

    def _add_single(self, tasks: list[Task]) -> None:
        """Count tasks; Python calls no function of its own for each."""
        tasks.sort(key=_submitted, reverse=True)  # nearly in order
        kinds = list(map(_kind, tasks))
        oldest = dict(zip(kinds, map(_submitted, tasks), strict=True))  # the last of a kind remains
        for kind, count in Counter(kinds).items():
            self._add(kind, count, oldest[kind])

    def _add(self, kind: tuple[str, str, str], tasks: int, submitted: float) -> None:
        """Count tasks of a state, class and reason, the oldest submitted at `submitted`."""
        state, user_class, reason = kind
        self.tasks[state, user_class, reason_label(reason)] += tasks
        if state in _WAITING and submitted < self.oldest.get(user_class, math.inf):
            self.oldest[user_class] = submitted


def reason_label(reason: str) -> str:
    """Return the label of a task's reason; reasons of managers and unknown reasons share one."""
    if reason.startswith(MANAGER_REASON):
        return "manager"
    return _REASONS.get(reason, "other" if reason else "")


def daemon_families(
    started: float, *, database_up: bool, size: Size | None, running: bool
) -> list[Family]:
    """Return the readings that need no running service. `size` None: unknown."""
    used = _gauges("database_bytes", "Size of the database.")
    free = _gauges("database_free_bytes", "Room on the filesystem of SQLite's database.")
    if size is not None:
        used.add_metric([], size.used)
        if size.free is not None:
            free.add_metric([], size.free)
    release = {"version": VERSION, "commit": COMMIT or ""}
    return [
        InfoMetricFamily("metasched", "Release of the daemon.", release),
        _gauge("start_time_seconds", "Start of the daemon, epoch seconds.", started),
        _gauge("database_up", "Whether the database answers (1) or not (0).", float(database_up)),
        used,
        free,
        _gauge("scheduler_running", "Whether the scheduler service runs (1).", float(running)),
    ]


def service_families(service: SchedulerService, counts: TaskCounts) -> Iterator[Family | None]:
    """Yield the readings of a running service; None after each portion of the work."""
    now = time.time()
    yield from _queue(counts, now)
    yield from _clusters(service, now)
    yield from _pulls(service)
    yield from _licences(service, now)
    yield from _reservations(service)
    yield from _notifications(service, now)
    yield from _shadow(service)
    yield _gauge(
        "sources_paused",
        "Clusters, servers and users that pause after a defect of metasched.",
        len(service.quarantine.paused_sources),
    )


def _notifications(service: SchedulerService, now: float) -> Iterator[Family]:
    statuses = service.notifications.statuses
    is_failing = service.notifications.mail_error != ""
    yield _gauge("mail_failing", "Whether mails are not sent (1).", float(is_failing))
    waiting = _gauges("outbox_waiting", "Mails, or groups of events, that wait.", "receiver")
    oldest = _gauges("outbox_oldest_seconds", "Age of the oldest of these.", "receiver")
    failures = _gauges("outbox_failures", "Deliveries that failed in a row.", "receiver")
    for name, status in statuses.items():
        waiting.add_metric([name], status.waiting)
        age = 0.0 if status.oldest is None else max(now - status.oldest, 0.0)
        oldest.add_metric([name], age)
        failures.add_metric([name], status.failures)
    yield from (waiting, oldest, failures)


def _shadow(service: SchedulerService) -> Iterator[Family]:
    """Yield the readings of the candidate policy; without values while none runs."""
    runner = service.shadow
    state, totals = runner.state, runner.totals
    failing = _gauges("shadow_failing", "Whether a candidate policy is not compared (1).")
    waiting = _gauges("shadow_waiting", "Observations that a candidate has not seen.")
    if runner.shadow is not None:
        failing.add_metric([], float(bool(state.obstacle or state.problem)))
        waiting.add_metric([], state.waiting)
    yield from (failing, waiting)
    for name, text, tasks in (
        ("shadow_compared", "Dispatched tasks that a candidate decided on.", totals.compared),
        ("shadow_differing", "Those with another priority or cluster.", totals.differing),
        ("shadow_dropped", "Dispatched tasks that were not compared.", totals.dropped),
    ):
        counter = CounterMetricFamily(f"metasched_{name}", text)
        if runner.shadow is not None:
            counter.add_metric([], tasks)
        yield counter


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"metasched_{name}", text, value)


def _gauges(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"metasched_{name}", text, labels=labels)


def _queue(counts: TaskCounts, now: float) -> Iterator[Family]:
    tasks = _gauges("tasks", "Open tasks.", "state", "class", "reason")
    for labels, count in counts.tasks.items():
        tasks.add_metric(labels, count)
    yield tasks
    waits = _gauges("longest_wait_seconds", "Age of the oldest task that has not started.", "class")
    for user_class, submitted in counts.oldest.items():
        waits.add_metric([user_class], max(now - submitted, 0.0))
    yield waits


def _clusters(service: SchedulerService, now: float) -> Iterator[Family | None]:
    core = service.core
    readings = {
        "up": _gauges("cluster_up", "Whether the cluster answers (1) or not (0).", "cluster"),
        "drained": _gauges("cluster_drained", "Whether it is drained (1).", "cluster"),
        "refusing": _gauges("cluster_refusing", "Whether it refuses all jobs (1).", "cluster"),
        "cpus": _gauges("cluster_processors", "Its usable processors.", "cluster"),
        "used": _gauges("cluster_processors_used", "Its processors in use.", "cluster"),
        "pending": _gauges(
            "cluster_pending_jobs", "Jobs that wait in its queue, of all users.", "cluster"
        ),
        "age": _gauges("cluster_listing_age_seconds", "Age of its last listing.", "cluster"),
        "set_aside": _gauges(
            "cluster_rows_set_aside", "Rows of its listing that cannot be used.", "cluster"
        ),
    }
    loads = _gauges(
        "cluster_load_seconds",
        "Load by priority: seconds until its queue of that priority and above is empty.",
        *("cluster", "priority"),
    )
    breakers = _gauges(
        "breaker_failures",
        "Failures in a row of a repeated operation; 0 while it works.",
        *("source", "operation"),
    )
    actions = _gauges(
        "actions_pending",
        "Actions that wait for a cluster.",
        "cluster",
        "action",
    )
    for cluster in core.clusters:
        connection = service.connections[cluster.name]
        info, unreachable_reason = core.cluster_status(cluster.name)
        values = {
            "up": float(not unreachable_reason),
            "drained": float(core.find_drain(cluster.name) is not None),
            "refusing": float(bool(core.refusal_of(cluster.name)[0])),
            "cpus": info.cpus if info else 0,
            "used": info.used_cpus if info else 0,
            "pending": info.pending_jobs if info else 0,
            "set_aside": len(connection.row_filter.rows),
        }
        if connection.last_listed:
            values["age"] = max(now - connection.last_listed, 0.0)
        for name, value in values.items():
            readings[name].add_metric([cluster.name], value)
        for priority, load in enumerate(core.load_ordering.load(cluster.name), start=1):
            loads.add_metric([cluster.name, str(priority)], load)
        for operation, breaker in _breakers(connection):
            breakers.add_metric([f"cluster {cluster.name}", operation], breaker.failures)
        for action, count in connection.pending_actions.counts().items():
            actions.add_metric([cluster.name, action], count)
        yield None
    for monitor in service.licence_monitors:
        breakers.add_metric([f"licence server {monitor.name}", "query"], monitor.breaker.failures)
    yield from (*readings.values(), loads, breakers, actions)


def _breakers(connection: ClusterConnection) -> list[tuple[str, CircuitBreaker]]:
    return [
        ("listing", connection.breaker),
        ("worker", connection.worker.breaker),
        ("use", connection.use_monitor.breaker),
        ("shares", connection.use_monitor.shares_breaker),
    ]


def _pulls(service: SchedulerService) -> Iterator[Family]:
    pulls = CounterMetricFamily(
        "metasched_pulls",
        "Tasks that were moved to a cluster where they should start at once.",
        labels=["cluster"],
    )
    started = CounterMetricFamily(
        "metasched_pulls_started_at_once", "Pulled tasks that started at once.", labels=["cluster"]
    )
    for cluster in service.core.clusters:
        pulled, started_at_once = service.core.pull_counts(cluster.name)
        pulls.add_metric([cluster.name], pulled)
        started.add_metric([cluster.name], started_at_once)
    yield from (pulls, started)


def _licences(service: SchedulerService, now: float) -> Iterator[Family | None]:
    readings = {
        "known": _gauges("licence_known", "Whether its tokens can be leased (1).", "licence"),
        "total": _gauges("licence_tokens", "Tokens that exist.", "licence"),
        "leased": _gauges("licence_tokens_leased", "Tokens leased to tasks.", "licence"),
        "outside": _gauges("licence_tokens_outside", "Tokens that others use.", "licence"),
        "lingering": _gauges(
            "licence_tokens_lingering", "Returned tokens that still count as used.", "licence"
        ),
        "reserved": _gauges(
            "licence_tokens_reserved", "Unleased tokens of active reservations.", "licence"
        ),
        "free": _gauges("licence_tokens_free", "Tokens that may be leased now.", "licence"),
        "waiting": _gauges(
            "licence_tokens_waiting", "Tokens that queued tasks ask for.", "licence"
        ),
        "age": _gauges(
            "licence_count_age_seconds", "Age of the last count of server or managers.", "licence"
        ),
        "drift": _gauges(
            "licence_tokens_unseen",
            "Tokens leased to running tasks that the last count of the server does not show.",
            "licence",
        ),
    }
    unseen = {name: n for monitor in service.licence_monitors for name, n in monitor.unseen.items()}
    for status in service.core.licences.statuses(now):
        values: dict[str, float | None] = {
            "known": float(not status.unknown_reason),
            "total": status.total,
            "leased": status.leased_tokens,
            "outside": status.outside,
            "lingering": status.lingering,
            "reserved": status.reserved,
            "free": None if status.free is None else max(status.free, 0),
            "waiting": status.waiting_tokens,
            "age": None if status.observed is None else max(now - status.observed, 0.0),
            "drift": unseen.get(status.licence),
        }
        for name, value in values.items():
            if value is not None:
                readings[name].add_metric([status.licence], value)
        yield None  # each walks the arrays that wait
    yield from readings.values()


def _reservations(service: SchedulerService) -> Iterator[Family]:
    reservations = _gauges(
        "reservations", "Reservations that are open, or known to a manager.", "cluster", "state"
    )
    counts = Counter(
        (reservation.cluster, reservation.state.value)
        for reservation in list(service.core.reservations.by_id.values())
    )
    for labels, count in counts.items():
        reservations.add_metric(labels, count)
    yield reservations
