"""One future of a snapshot: its clusters' own local policies, with given run times. Pure.

No further tasks arrive. A task that may start on several clusters waits in the queue of each, and
leaves the others when it starts: as by a pull, it goes where it can start first. While resources
that clusters share are not free, it blocks nobody in these queues: it waits in metasched, where
later tasks may overtake it if they do not delay it (EASY on the licences). A
reservation takes its processors at its start, whether or not they are free. Before, no task starts
that would need them by its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import NamedTuple

from metasched.forecast.snapshot import ForecastCluster, Snapshot
from metasched.policies.local.capacity import earliest_fit
from metasched.policies.local.queueing import EMPTY, NEVER, FreeResources, RunningJob, WaitingJob

MAX_TESTED = 500  # tasks of a queue that a pass considers, as by bf_max_job_test of Slurm
# Seconds: a limit may be 68 years, and the queue of one user so long that no date can be written
MAX_AHEAD = 2 * 365 * 86400.0
MAX_WINDOWS = 20  # later reservations of a cluster that a pass keeps free; the first to begin


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
        self.probes: dict[int, WaitingJob] = {}  # by ~index in `Snapshot.probes`, below 0
        self.running: dict[int, RunningJob] = {}
        self.free_cpus = cluster.free_cpus
        self.resources = dict(cluster.resources)  # free
        self.windows = cluster.windows
        self.plans = getattr(self.policy, "keeps_plan", False)
        self.kept_for = () if self.plans else sorted(cluster.windows)[:MAX_WINDOWS]

    def room_before_windows(self, now: float) -> list[tuple[float, int]]:
        """Return when reservations begin, and the processors for tasks that still run then."""
        return [
            (
                window.start,
                self.free_cpus
                - window.cpus
                + sum(job.cpus for job in self.running.values() if job.end <= window.start),
            )
            for window in self.kept_for
            if window.start > now
        ]


class _BlockedTaker(NamedTuple):
    """An entry that waits for a shared resource: when it is free, and the amount left then."""

    entry: int
    shadow: float
    extra: int


def _has_room(job: WaitingJob, now: float, room: list[tuple[float, int]]) -> bool:
    """Return whether a task that starts now leaves later reservations their processors."""
    end = now + job.estimated
    return all(end <= start or job.cpus <= cpus for start, cpus in room)


class ForwardRun:
    """One future.

    `end_of(i)` is the true end of running task i. `run_time(i, limit)` is the true run time of the
    next task of entry i of `Snapshot.waiting`, in seconds. The run is over when the tasks of all
    `targets` (entries; None: of all) and all probes have started, when `max_starts` tasks have,
    after MAX_AHEAD, or when nothing is left to happen. An event takes O(r log r) for r running
    tasks, and a pass over at most MAX_TESTED waiting tasks.
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
        self._unstarted = [entry.tasks for entry in snapshot.waiting]  # unstarted tasks by entry
        self._targets_left = sum(
            tasks
            for index, tasks in enumerate(self._unstarted)
            if targets is None or index in targets
        )
        self._site_resources = dict(snapshot.site_resources)  # free
        # entries that have to take some of these, in order
        self._takers = [
            index
            for index, entry in enumerate(snapshot.waiting)
            if not entry.leased and not self._site_resources.keys().isdisjoint(entry.resources)
        ]
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
        # by index in `Snapshot.probes`; NEVER: it has not started, or its policy plans
        self.probe_starts = [NEVER] * len(snapshot.probes)
        self._probes_left = 0
        for index, probe in sorted(enumerate(snapshot.probes), key=lambda item: item[1][1:]):
            queue = self._queues[probe.cluster]
            total = queue.free_cpus + sum(job.cpus for job in queue.running.values())
            if probe.cpus <= total and not queue.plans:  # the smallest first: see `_run_policy`
                queue.probes[~index] = WaitingJob(~index, probe.cpus, probe.limit)
                self._probes_left += 1

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
                    EMPTY if entry.leased else entry.resources,
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
            is_complete = self._targets_left <= 0 and not self._probes_left
            if is_complete or self._starts_left <= 0 or not events:
                return True
            if events[0].time > self._snapshot.now + MAX_AHEAD:
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
        """Run a pass of the local policy of a cluster.

        Further passes follow if a reservation refuses a start, or a probe starts. A probe takes
        nothing, so the others start in the next pass as if it had never been. The smallest probe
        goes first: a probe that does not fit would be a head that delays smaller probes.
        """
        queue, refused = self._queues[cluster], True
        while refused and (queue.waiting or queue.probes) and queue.free_cpus > 0:
            refused = False
            free = FreeResources(
                queue.free_cpus,
                {**queue.resources, **self._site_resources},
                windows=queue.windows if queue.plans else (),  # `room` has them for the others
            )
            room = queue.room_before_windows(now)
            candidates = list(islice(self._candidates(queue, now, room), MAX_TESTED))
            if len(candidates) < MAX_TESTED:
                candidates += [job for job in queue.probes.values() if _has_room(job, now, room)]
            chosen = queue.policy.choose_starts(now, candidates, queue.running.values(), free)
            for start in chosen:  # the first has room
                if start.id < 0:
                    refused = True
                    del queue.probes[start.id]
                    self.probe_starts[~start.id] = now
                    self._probes_left -= 1
                    continue
                job = queue.waiting[start.id]
                if _has_room(job, now, room):
                    end = now + job.estimated
                    room = [(at, cpus - job.cpus * (end > at)) for at, cpus in room]
                    self._start(now, start.id, cluster)
                else:
                    refused = True

    def _blocked_takers(self, now: float) -> dict[str, _BlockedTaker]:
        """Return the first entry without its shared resource, by resource. O(takers + running)."""
        blocked, free = dict[str, _BlockedTaker](), self._site_resources
        if len(self._takers) > 2 * MAX_TESTED or not self._unstarted[self._takers[0]]:
            self._takers = [index for index in self._takers if self._unstarted[index]]
        for index in islice(self._takers, MAX_TESTED):
            if not self._unstarted[index]:
                continue
            for name, amount in self._snapshot.waiting[index].resources.items():
                if name not in blocked and amount > free.get(name, amount):
                    releases = [
                        (job.end, job.resources[name])
                        for queue in self._queues
                        for job in queue.running.values()
                        if name in job.resources
                    ]
                    shadow, extra = earliest_fit(amount, free[name], releases, now)
                    blocked[name] = _BlockedTaker(index, shadow, extra)
            if len(blocked) == len(free):
                break
        return blocked

    def _may_take(
        self, index: int, job: WaitingJob, now: float, blocked: Mapping[str, _BlockedTaker]
    ) -> bool:
        """Return whether an entry's shared resources are free, and kept for no earlier entry."""
        free = self._site_resources
        for name, amount in job.resources.items():
            if amount > free.get(name, amount):
                return False
            first = blocked.get(name)
            if (
                first is not None
                and first.entry < index
                and now + job.estimated > first.shadow
                and amount > first.extra
            ):
                return False
        return True

    def _candidates(
        self, queue: _Queue, now: float, room: list[tuple[float, int]]
    ) -> Iterator[WaitingJob]:
        """Yield waiting tasks in order; of equal tasks those that fit together, and the next."""
        blocked = self._blocked_takers(now) if self._takers else {}
        for index, job in queue.waiting.items():
            if blocked and job.resources and not self._may_take(index, job, now, blocked):
                continue
            if room and not _has_room(job, now, room):
                continue
            copies = min(self._unstarted[index], queue.free_cpus // job.cpus + 1)
            for _ in range(copies):
                yield job

    def _start(self, now: float, entry: int, cluster: int) -> None:
        queue, held = self._queues[cluster], self._snapshot.waiting[entry]
        waiting, number = queue.waiting[entry], next(self._numbers)
        job = RunningJob(
            number, waiting.cpus, now + waiting.estimated, held.resources, user=waiting.user
        )
        queue.running[number] = job
        queue.free_cpus -= job.cpus
        if not held.leased:
            self._change_resources(queue, job, -1)
        end = now + self._run_time(entry, waiting.estimated)
        heappush(self._events, _Event(end, number, cluster, job))
        self.starts[entry].append(now)
        self._starts_left -= 1
        if self._targets is None or entry in self._targets:
            self._targets_left -= 1
        self._unstarted[entry] -= 1
        if not self._unstarted[entry]:
            for other in self._snapshot.waiting[entry].limits:
                del self._queues[other].waiting[entry]
