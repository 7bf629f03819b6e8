"""What the core knows, as the snapshot from which starts are forecast. Pure.

Only tasks that are pending in the queue of a manager are forecast. What waits in metasched has no
place in a queue yet. Where jobs of others are pending, their requests and their place in the queue
are unknown: then nothing is forecast on that cluster.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from metasched.core.cluster_view import ClusterView
from metasched.core.state import SchedulerState
from metasched.core.tasks import Task, TaskId
from metasched.forecast.snapshot import ForecastCluster, RunningTask, Snapshot, WaitingTasks
from metasched.model.job import State
from metasched.policies.local.queueing import LocalPolicy

MAX_TASKS = 2000  # pending tasks of a cluster that are forecast: the first in its queue
# Running jobs, or own tasks if these are more, of a cluster with a forecast, and of all these
# clusters together: 10,000 take 30 ms of the scheduler's thread
MAX_LIVE = 5_000
MAX_LIVE_OF_SITE = 10_000

FOREIGN = "jobs of others are pending there, and their order is unknown"
TOO_MANY = f"more than {MAX_LIVE:,} jobs are there, or too many on all clusters"
NO_REPORT = "it does not answer, or reports no processors"


class ForecastState(NamedTuple):
    """A snapshot, the tasks of its entries, and the clusters without forecast."""

    snapshot: Snapshot
    tasks: tuple[tuple[TaskId, ...], ...]  # of each entry of `snapshot.waiting`, in order
    clusters: tuple[str, ...]  # names of `snapshot.clusters`
    unknown: Mapping[str, str]  # reason by cluster without forecast


def forecast_state(
    state: SchedulerState, policies: Mapping[str, Callable[[], LocalPolicy]], now: float
) -> ForecastState:
    """Return the present state. O(t log t) for t tasks, at most MAX_LIVE_OF_SITE.

    `policies`: the local policy of each cluster, as it is or as the most like it.
    """
    clusters: list[ForecastCluster] = []
    names: list[str] = []
    running: list[RunningTask] = []
    waiting: list[WaitingTasks] = []
    task_ids: list[tuple[TaskId, ...]] = []
    unknown = _obstacles(state.views.values())
    for view in state.views.values():
        if view.name in unknown:
            continue
        assert view.info is not None
        index = len(clusters)
        names.append(view.name)
        free_cpus = max(view.info.cpus - view.info.used_cpus, 0)
        clusters.append(ForecastCluster(free_cpus, policies[view.name]))
        running += _running_tasks(view, index, now)
        for tasks in _equal_runs(_pending_tasks(view)):
            waiting.append(_waiting_tasks(tasks, index, view, state))
            task_ids.append(tuple(task.task_id for task in tasks))
    snapshot = Snapshot(now, tuple(clusters), tuple(running), tuple(waiting))
    return ForecastState(snapshot, tuple(task_ids), tuple(names), unknown)


def _obstacles(views: Iterable[ClusterView]) -> dict[str, str]:
    """Return why nothing can be forecast, by cluster. The smallest clusters go first."""
    obstacles, left = dict[str, str](), MAX_LIVE_OF_SITE
    for view in sorted(views, key=_size):
        if reason := _obstacle(view, min(left, MAX_LIVE)):
            obstacles[view.name] = reason
        else:
            left -= _size(view)
    return obstacles


def _size(view: ClusterView) -> int:
    return max(len(view.info.running_jobs) if view.info else 0, len(view.live_tasks))


def _obstacle(view: ClusterView, max_live: int) -> str:
    """Return why nothing can be forecast on a cluster, or ""."""
    info = view.info
    if not view.up or info is None or not info.cpus:
        return NO_REPORT
    if _size(view) > max_live:
        return TOO_MANY
    own = sum(map(_is_listed_pending, view.unstarted_tasks.values()))
    return FOREIGN if info.pending_jobs > own else ""


def _pending_tasks(view: ClusterView) -> list[Task]:
    """Return the pending tasks in the order of the queue, as far as it is known."""
    pending = (task for task in view.unstarted_tasks.values() if _stays_pending(task))
    first = list(islice(pending, MAX_TASKS))  # in the order of their dispatches
    if view.cluster.adapter == "local":  # its queue has the order of metasched's own
        first.sort(key=attrgetter("queue_key", "task_id"))
    return first


def _is_listed_pending(task: Task) -> bool:
    """Whether its manager last listed a task as pending; what is being withdrawn still is."""
    return task.attempt is not None and task.attempt.state is State.PENDING


def _stays_pending(task: Task) -> bool:
    """Whether a task waits in the queue of its manager and is to stay there."""
    return _is_listed_pending(task) and task.live_attempt.intent is None and not task.held


def _running_tasks(view: ClusterView, index: int, now: float) -> Iterable[RunningTask]:
    """Yield the running tasks; of others the part of their limits that is left, from now."""
    assert view.info is not None
    ends_by_cpus: dict[int, list[float]] = {}
    for end, cpus in view.info.running_jobs:
        ends_by_cpus.setdefault(cpus, []).append(end)
    for task in view.live_tasks.values():
        attempt, job = task.live_attempt, task.job
        if attempt.state is not State.RUNNING or attempt.started is None:
            continue
        limit = _limit(task, view)
        ends = ends_by_cpus.get(job.cpus)
        if not ends:
            continue  # not in the listing that counts the free processors
        position = min(bisect_left(ends, attempt.started + limit), len(ends) - 1)
        del ends[position]
        yield RunningTask(index, job.cpus, attempt.started, limit, job.user, job.user_class)
    for cpus, ends in ends_by_cpus.items():
        for end in ends:
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


def _waiting_tasks(
    tasks: list[Task], index: int, view: ClusterView, state: SchedulerState
) -> WaitingTasks:
    first, job = tasks[0], tasks[0].job
    return WaitingTasks(
        job.cpus,
        {index: _limit(first, view)},
        len(tasks),
        job.user,
        job.user_class,
        waiting_since=state.waits_since(first),
        deadline=job.deadline,
        priority=first.priority,
    )


def _limit(task: Task, view: ClusterView) -> float:
    """Return the seconds after which the manager ends a task."""
    job = task.job
    if job.time_limit is not None:
        return job.time_limit
    return job.estimated * job.benchmark / view.cluster.benchmark
