"""One future of a snapshot: its clusters' own local policies, with given run times. Pure.

No further tasks arrive. A task that may start on several clusters waits in the queue of each, and
leaves the others when it starts: as by a pull, it goes where it can start first. A reservation
takes its processors at its start, whether or not they are free; only policies that have
`keeps_windows` keep them free before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import NamedTuple

from metasched.forecast.snapshot import ForecastCluster, Snapshot
from metasched.policies.local.queueing import FreeResources, RunningJob, WaitingJob

MAX_TESTED = 500  # tasks of a queue that a pass considers, as by bf_max_job_test of Slurm


class _Event(NamedTuple):
    """The end of a running task or reservation, or the start of a reservation."""

    time: float
    number: int  # of the event; no two events compare further
    cluster: int
    job: RunningJob
    reserved_until: float | None = None  # of a reservation that starts; else None


class _Queue:
    """A cluster during a forward run: its queue, its running tasks and free resources."""

    def __init__(self, cluster: ForecastCluster) -> None:
        self.policy = cluster.make_policy()
        self.waiting: dict[int, WaitingJob] = {}  # by index in `Snapshot.waiting`
        self.running: dict[int, RunningJob] = {}
        self.free_cpus = cluster.free_cpus
        self.resources = dict(cluster.resources)  # free
        self.windows = cluster.windows


class ForwardRun:
    """One future.

    `end_of(i)` is the true end of running task i. `run_time(i, limit)` is the true run time of the
    next task of entry i of `Snapshot.waiting`, in seconds. The run is over when the tasks of all
    `targets` (entries; None: of all) have started, when `max_starts` tasks have, or when nothing is
    left to happen. An event takes O(r log r) for r running tasks, and a pass over at most
    MAX_TESTED waiting tasks.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        end_of: Callable[[int], float],
        run_time: Callable[[int, float], float],
        *,
        targets: frozenset[int] | None = None,
        max_starts: int = 10_000,
    ) -> None:
        self.starts: list[list[float]] = [[] for _ in snapshot.waiting]  # by entry, ascending
        self._snapshot, self._run_time = snapshot, run_time
        self._targets, self._starts_left = targets, max_starts
        self._left = [entry.tasks for entry in snapshot.waiting]  # unstarted tasks by entry
        self._targets_left = sum(
            left for index, left in enumerate(self._left) if targets is None or index in targets
        )
        self._site_resources = dict(snapshot.site_resources)  # free
        self._queues = [_Queue(cluster) for cluster in snapshot.clusters]
        self._numbers = count()
        self._events: list[_Event] = []
        for index, task in enumerate(snapshot.running):
            number, end = next(self._numbers), task.start + task.limit
            job = RunningJob(number, task.cpus, end, task.resources, user=task.user)
            self._queues[task.cluster].running[number] = job
            self._events.append(_Event(end_of(index), number, task.cluster, job))
        self._add_windows()
        heapify(self._events)
        self._queue_tasks()

    def _add_windows(self) -> None:
        """Add reservations; the processors of those that have begun are not free already."""
        for index, queue in enumerate(self._queues):
            for window in queue.windows:
                number = next(self._numbers)
                job = RunningJob(number, window.cpus, window.end)
                if window.start > self._snapshot.now:
                    event = _Event(window.start, number, index, job, window.end)
                else:
                    queue.running[number] = job
                    event = _Event(window.end, number, index, job)
                self._events.append(event)

    def _queue_tasks(self) -> None:
        for index, entry in enumerate(self._snapshot.waiting):
            for cluster, limit in entry.limits.items():
                self._queues[cluster].waiting[index] = WaitingJob(
                    index,
                    entry.cpus,
                    limit,
                    entry.resources,
                    waiting_since=entry.waiting_since,
                    deadline=entry.deadline,
                    priority=entry.priority,
                    user=entry.user,
                )

    def run(self, may_continue: Callable[[], bool] = lambda: True) -> bool:
        """Run to the end. False if `may_continue`, asked before each pass, returned False."""
        events, now = self._events, self._snapshot.now
        changed: Iterable[int] = range(len(self._queues))
        while True:
            for index in changed:  # nothing that starts lets others start elsewhere
                if not may_continue():
                    return False
                self._run_policy(now, index)
            if self._targets_left <= 0 or self._starts_left <= 0 or not events:
                return True
            now, ended = max(now, events[0].time), set[int]()
            while events and events[0].time <= now:
                ended.update(self._apply(heappop(events)))
            changed = sorted(ended)

    def _apply(self, event: _Event) -> Iterable[int]:
        """Apply an event; return the clusters on which tasks may start now."""
        queue, job = self._queues[event.cluster], event.job
        if event.reserved_until is not None:
            queue.running[job.id] = job
            queue.free_cpus -= job.cpus
            number = next(self._numbers)
            heappush(self._events, _Event(event.reserved_until, number, event.cluster, job))
            return ()
        del queue.running[job.id]
        queue.free_cpus += job.cpus
        shared = self._change_resources(queue, job, 1)
        return range(len(self._queues)) if shared else (event.cluster,)

    def _change_resources(self, queue: _Queue, job: RunningJob, sign: int) -> bool:
        """Return (1) or take (-1) the resources of a task; return whether clusters share any."""
        shared = False
        for name, amount in job.resources.items():
            if name in self._site_resources:
                self._site_resources[name] += sign * amount
                shared = True
            elif name in queue.resources:
                queue.resources[name] += sign * amount
        return shared

    def _run_policy(self, now: float, cluster: int) -> None:
        """Run a pass of the local policy of a cluster."""
        queue = self._queues[cluster]
        if not queue.waiting or queue.free_cpus <= 0:
            return
        free = FreeResources(
            queue.free_cpus, {**queue.resources, **self._site_resources}, windows=queue.windows
        )
        candidates = list(islice(self._candidates(queue), MAX_TESTED))
        for start in queue.policy.choose_starts(now, candidates, queue.running.values(), free):
            self._start(now, start.id, cluster)

    def _candidates(self, queue: _Queue) -> Iterator[WaitingJob]:
        """Yield waiting tasks in order; of equal tasks those that fit together, and one more."""
        for index, job in queue.waiting.items():
            copies = min(self._left[index], queue.free_cpus // job.cpus + 1)
            for _ in range(copies):
                yield job

    def _start(self, now: float, entry: int, cluster: int) -> None:
        queue = self._queues[cluster]
        waiting, number = queue.waiting[entry], next(self._numbers)
        job = RunningJob(
            number, waiting.cpus, now + waiting.estimated, waiting.resources, user=waiting.user
        )
        queue.running[number] = job
        queue.free_cpus -= job.cpus
        self._change_resources(queue, job, -1)
        end = now + self._run_time(entry, waiting.estimated)
        heappush(self._events, _Event(end, number, cluster, job))
        self.starts[entry].append(now)
        self._starts_left -= 1
        if self._targets is None or entry in self._targets:
            self._targets_left -= 1
        self._left[entry] -= 1
        if not self._left[entry]:
            for other in self._snapshot.waiting[entry].limits:
                del self._queues[other].waiting[entry]
