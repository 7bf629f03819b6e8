"""The state of the core as a snapshot, to forecast starts from. Pure.

Tasks that are pending in the queue of a manager have their place there: as the manager lists it
with jobs of others, else in the order of dispatch. Tasks that wait in metasched follow in the order
of their turns, on each cluster that may take them. Not forecast are tasks that something else bars:
a dependency, a limit of the site or of a manager, a hold, a reservation.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from metasched.core.cluster_view import ClusterView, limit_on
from metasched.core.events import StartsForecast
from metasched.core.scheduler import Core
from metasched.core.tasks import Task, TaskId
from metasched.forecast.estimates import Estimates
from metasched.forecast.snapshot import ForecastCluster, Probe, RunningTask, Snapshot, WaitingTasks
from metasched.model.job import State
from metasched.model.listing import ListedQueue, PendingJob, StartedJob
from metasched.model.reservation import OPEN_STATES
from metasched.policies.local.queueing import EMPTY, NEVER, LocalPolicy, ReservedWindow

MAX_TASKS = 2000  # pending tasks of a cluster that are forecast: the first in its queue
# Tasks that wait in metasched and are forecast: the first in their order. These take .1 to .3 s of
# the scheduler's thread (with 49,000 that wait); such refreshes are minutes apart
MAX_QUEUED = 5_000
MAX_CHECKS = 20_000  # of a task and a cluster, for tasks of no group: these take 0.1 s as well
MAX_READY = 50_000  # tasks that wait in metasched; with more, none of them is forecast
# Running jobs, or own tasks if these are more, of a cluster with a forecast, and of all these
# clusters together: 10,000 take 30 ms of the scheduler's thread
MAX_LIVE = 5_000
MAX_LIVE_OF_SITE = 10_000

FOREIGN = "jobs of others are pending there, and their order is unknown"
PROBED_LIMITS = (600.0, 3600.0, 6 * 3600.0, 2 * 86400.0)  # seconds, ascending

TOO_MANY_QUEUED = f"more than {MAX_READY:,} tasks wait in metasched"
TOO_MANY = f"more than {MAX_LIVE:,} jobs are there, or too many on all clusters"
NO_REPORT = "it does not answer, or reports no processors"


class ForecastState(NamedTuple):
    """A snapshot, the tasks of its entries, and the tasks without a forecast."""

    snapshot: Snapshot
    tasks: tuple[tuple[TaskId, ...], ...]  # of each entry of `snapshot.waiting`; (): of others
    clusters: tuple[str, ...]  # names of `snapshot.clusters`
    unknown: Mapping[str, str]  # reason by cluster without forecast
    unknown_jobs: Mapping[int, str] = EMPTY  # reason by job that waits in metasched
    unknown_queued: str = ""  # why none of the jobs that wait in metasched has a forecast


def starts_forecast(
    state: ForecastState, estimates: Estimates, clusters: Collection[str], now: float
) -> StartsForecast:
    """Return the event that reports these estimates to the core, for some of the clusters."""
    snapshot, waits = state.snapshot, dict[str, dict[int, list[float | None]]]()
    for probe, start in zip(snapshot.probes, estimates.probes, strict=True):
        name = state.clusters[probe.cluster]
        if name in clusters:
            of_size = waits.setdefault(name, {}).setdefault(probe.cpus, [])
            is_bounded = start.median < NEVER
            of_size.append(round(start.median - snapshot.now, 1) if is_bounded else None)
    return StartsForecast(
        now,
        snapshot.now,
        PROBED_LIMITS,
        {name: {cpus: tuple(row) for cpus, row in sizes.items()} for name, sizes in waits.items()},
        {state.clusters[i]: each.free_cpus for i, each in enumerate(snapshot.clusters)},
    )


class _Entries:
    """The entries of a snapshot while they are collected."""

    def __init__(self) -> None:
        self.waiting: list[WaitingTasks] = []
        self.tasks: list[tuple[TaskId, ...]] = []

    def add(self, entry: WaitingTasks, tasks: tuple[TaskId, ...]) -> None:
        self.waiting.append(entry)
        self.tasks.append(tasks)


def forecast_state(
    core: Core,
    policies: Mapping[str, Callable[[], LocalPolicy]],
    queues: Mapping[str, ListedQueue],
    now: float,
) -> ForecastState:
    """Return the present state. O(t log t) for t tasks, see MAX_LIVE_OF_SITE and MAX_READY.

    `policies`: the local policy of each cluster, as it is or as the most like it. `queues`: the
    pending jobs of clusters that list their order.
    """
    views = core.state.views
    unknown = _obstacles(views.values(), queues)
    indices = {name: i for i, name in enumerate(name for name in views if name not in unknown)}
    queued = _QueuedTasks(core, indices, unknown)
    if core.ready_count <= MAX_READY:
        queued.collect(now)
    shared = {name: count for name, count in queued.free.items() if count is not None}
    leases = _Leases(core, shared)
    running: list[RunningTask] = []
    entries = _Entries()
    for name, index in indices.items():
        view = views[name]
        running += _running_tasks(view, index, queues.get(name), now, leases)
        for tasks, job in _in_queue(view, queues.get(name)):
            if tasks:
                entry = _pending_entry(tasks, index, view, core, leases)
                entries.add(entry, tuple(task.task_id for task in tasks))
            elif job is not None:
                entries.add(_foreign_entry(job, index, now), ())
    for entry, ids in queued.entries:
        entries.add(entry, ids)
    snapshot = Snapshot(
        now,
        tuple(_cluster(views[name], policies[name], core, now) for name in indices),
        tuple(running),
        tuple(entries.waiting),
        shared,
        tuple(_probes(views, indices)),
    )
    return ForecastState(
        snapshot,
        tuple(entries.tasks),
        tuple(indices),
        unknown,
        queued.reasons,
        "" if core.ready_count <= MAX_READY else TOO_MANY_QUEUED,
    )


def _cluster(
    view: ClusterView, policy: Callable[[], LocalPolicy], core: Core, now: float
) -> ForecastCluster:
    """Return a cluster with its reservations."""
    assert view.info is not None
    windows = tuple(
        ReservedWindow(reservation.start, reservation.until, reservation.cpus)
        for reservation in core.reservations.by_id.values()
        if reservation.cluster == view.name
        and reservation.state in OPEN_STATES
        and reservation.until > now
    )
    return ForecastCluster(max(view.info.cpus - view.info.used_cpus, 0), policy, windows=windows)


def _probes(views: Mapping[str, ClusterView], indices: Mapping[str, int]) -> Iterator[Probe]:
    """Yield tasks of 1, 2, 4 and so on processors of each cluster, of each of PROBED_LIMITS."""
    for name, index in indices.items():
        info = views[name].info
        assert info is not None
        sizes = {info.cpus, *(1 << power for power in range(info.cpus.bit_length()))}
        for cpus in sorted(sizes):
            for limit in PROBED_LIMITS:
                yield Probe(index, cpus, limit)


class _Leases:
    """Tokens that tasks have leased, of the licences for which queued tasks wait."""

    def __init__(self, core: Core, awaited: Mapping[str, int]) -> None:
        self._leases, self._awaited = core.licences.leases, awaited

    def of(self, task_id: TaskId) -> Mapping[str, int]:
        if not self._awaited or (lease := self._leases.get(task_id)) is None:
            return EMPTY
        return {name: count for name, count in lease.tokens.items() if name in self._awaited}


class _QueuedTasks:
    """Tasks that wait in metasched for a cluster or licences, in the order of their turns."""

    def __init__(self, core: Core, clusters: Mapping[str, int], unknown: Mapping[str, str]) -> None:
        self._core, self._clusters, self._unknown = core, clusters, unknown
        self.entries: list[tuple[WaitingTasks, tuple[TaskId, ...]]] = []
        self.free: dict[str, int | None] = {}  # tokens by licence that is asked for; None: unknown
        self.reasons: dict[int, str] = {}  # by job without forecast
        self._clusters_of: dict[int, list[str]] = {}  # by group of tasks
        self._checks = 0

    def collect(self, now: float) -> None:
        """Collect the first MAX_QUEUED tasks, or fewer after MAX_CHECKS. O(n log n) for n tasks."""
        core, heads = self._core, dict[int, Task]()
        order = islice(core.preview_order(now, core.policy.age), MAX_QUEUED)
        entries = dict[int, WaitingTasks | None]()  # by job
        run: list[TaskId] = []
        for task_id in order:
            job_id = task_id[0]
            if job_id not in entries:  # its first task, which is single
                if self._checks >= MAX_CHECKS:
                    break
                heads[job_id] = core.tasks[task_id]
                entries[job_id] = self._entry(heads[job_id], now)
            if run and run[0][0] != job_id:
                self._add(entries[run[0][0]], run)
                run = []
            run.append(task_id)
        if run:
            self._add(entries[run[0][0]], run)

    def _add(self, entry: WaitingTasks | None, run: list[TaskId]) -> None:
        if entry is not None:
            self.entries.append((entry._replace(tasks=len(run)), tuple(run)))

    def _entry(self, task: Task, now: float) -> WaitingTasks | None:
        """Return the entry of a task; None: it has no forecast."""
        core, job = self._core, task.job
        if job.reservation is not None:
            return None
        group = core.queued_group(task.task_id)
        names = self._clusters_of.get(group) if group is not None else None
        if names is None:
            names = core.clusters_in_time(task)
            self._checks += len(core.state.views)
            if group is not None:
                self._clusters_of[group] = names
        if not names:
            return None  # its reason says why
        if uncertain := next((name for name in names if name in self._unknown), None):
            self.reasons[job.id] = f"it may start on {uncertain}: {self._unknown[uncertain]}"
            return None
        licences = job.licences if core.leases_licences else EMPTY
        for name in licences:
            if name not in self.free:
                self.free[name] = core.licences.status(name, now).free
            if self.free[name] is None:
                self.reasons[job.id] = f"it is unknown how many tokens of {name} are free"
                return None
        views = core.state.views
        return WaitingTasks(
            job.cpus,
            {self._clusters[name]: limit_on(job, views[name]) for name in names},
            1,
            job.user,
            job.user_class,
            licences,
            waiting_since=core.waits_since(task),
            deadline=job.deadline,
            priority=task.priority,
            queued=True,
        )


def _obstacles(views: Iterable[ClusterView], queues: Mapping[str, ListedQueue]) -> dict[str, str]:
    """Return why nothing can be forecast, by cluster. The smallest clusters go first."""
    obstacles, budget = dict[str, str](), MAX_LIVE_OF_SITE
    for view in sorted(views, key=_size):
        if reason := _obstacle(view, min(budget, MAX_LIVE), view.name in queues):
            obstacles[view.name] = reason
        else:
            budget -= _size(view)
    return obstacles


def _size(view: ClusterView) -> int:
    return max(len(view.info.running_jobs) if view.info else 0, len(view.live_tasks))


def _obstacle(view: ClusterView, max_live: int, lists_queue: bool) -> str:
    """Return why nothing can be forecast on a cluster, or ""."""
    info = view.info
    if not view.up or info is None or not info.cpus:
        return NO_REPORT
    if _size(view) > max_live:
        return TOO_MANY
    if lists_queue:
        return ""
    own = sum(map(_is_listed_pending, view.unstarted_tasks.values()))
    return FOREIGN if info.pending_jobs > own else ""


def _in_queue(
    view: ClusterView, queue: ListedQueue | None
) -> Iterator[tuple[list[Task], PendingJob | None]]:
    """Yield tasks of equal jobs, or a job of others, in the order of the cluster's queue."""
    pending = (task for task in view.unstarted_tasks.values() if _stays_pending(task))
    if queue is None:
        first = list(islice(pending, MAX_TASKS))  # in the order of their dispatches
        if view.cluster.orders_by_priority:
            first.sort(key=attrgetter("queue_key", "task_id"))
        for tasks in _equal_runs(first):
            yield tasks, None
        return
    by_job: dict[str, list[Task]] = {}
    for task in pending:
        by_job.setdefault(_native_job(task), []).append(task)
    own = {_native_job(task) for task in view.unstarted_tasks.values()}
    for job in queue.jobs:
        if job.native_id and job.native_id in own:
            yield by_job.pop(job.native_id, []), None  # [] while it is being withdrawn
        else:
            yield [], job
    if queue.complete:  # jobs that are listed but not in the queue cannot start for now
        late = [task for tasks in by_job.values() for task in tasks if not _was_listed(task)]
        for tasks in _equal_runs(late):
            yield tasks, None


def _native_job(task: Task) -> str:
    """Return the id of a pending task's job in its manager, without the task."""
    return re.split(r"\D", task.live_attempt.native_id or "", maxsplit=1)[0]


def _was_listed(task: Task) -> bool:
    return task.live_attempt.in_last_listing


def _is_listed_pending(task: Task) -> bool:
    """Return whether its manager last listed a task as pending, also during a withdrawal."""
    return task.attempt is not None and task.attempt.state is State.PENDING


def _stays_pending(task: Task) -> bool:
    """Return whether a task waits in the queue of its manager and is to stay there."""
    return (
        _is_listed_pending(task)
        and task.live_attempt.intent is None
        and not task.held
        and task.job.reservation is None
    )


def _running_tasks(
    view: ClusterView, index: int, queue: ListedQueue | None, now: float, leases: _Leases
) -> Iterator[RunningTask]:
    """Yield the running tasks. If a queue does not list those of others, from now on.

    These have the rest of their limits. Tasks in a reservation leave their processors to it.
    """
    assert view.info is not None
    ends_by_cpus: dict[int, list[float]] = {}
    for end, cpus in view.info.running_jobs:
        ends_by_cpus.setdefault(cpus, []).append(end)
    for task in view.live_tasks.values():
        attempt, job = task.live_attempt, task.job
        if attempt.state is not State.RUNNING or attempt.started is None:
            continue
        limit = limit_on(job, view)
        ends = ends_by_cpus.get(job.cpus)
        if not ends:
            continue  # not in the listing that counts the free processors
        position = min(bisect_left(ends, attempt.started + limit), len(ends) - 1)
        del ends[position]
        cpus = job.cpus if job.reservation is None else 0
        held = leases.of(task.task_id)
        yield RunningTask(index, cpus, attempt.started, limit, job.user, job.user_class, held)
    listed: dict[tuple[float, int], list[StartedJob]] = {}
    for started in () if queue is None else queue.running:
        listed.setdefault((started.end, started.cpus), []).append(started)
    for cpus, ends in ends_by_cpus.items():
        for end in ends:
            if alike := listed.get((end, cpus)):
                started = alike.pop()
                owner, limit = _foreign_user(started.owner), started.limit
                yield RunningTask(index, cpus, min(end - limit, now), limit, owner)
            else:
                yield RunningTask(index, cpus, now, max(end - now, 1.0))


def _equal_runs(tasks: Iterable[Task]) -> Iterable[list[Task]]:
    """Yield neighbouring tasks of the same job together."""
    run: list[Task] = []
    for task in tasks:
        if run and run[0].job is not task.job:
            yield run
            run = []
        run.append(task)
    if run:
        yield run


def _pending_entry(
    tasks: list[Task], index: int, view: ClusterView, core: Core, leases: _Leases
) -> WaitingTasks:
    first, job = tasks[0], tasks[0].job
    return WaitingTasks(
        job.cpus,
        {index: limit_on(job, view)},
        len(tasks),
        job.user,
        job.user_class,
        leases.of(first.task_id),
        waiting_since=core.waits_since(first),
        deadline=job.deadline,
        priority=first.priority,
        leased=True,
    )


def _foreign_entry(job: PendingJob, index: int, now: float) -> WaitingTasks:
    limits, owner = {index: job.limit}, _foreign_user(job.owner)
    return WaitingTasks(job.cpus, limits, job.tasks, owner, waiting_since=now)


def _foreign_user(owner: str) -> str:
    """Return the user of a job of others: no user of ours, who may have the same name."""
    return f"#{owner}" if owner else ""
