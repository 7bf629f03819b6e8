"""A daemon over simulated managers, without the simulator: submissions, dispatches, full listings.

No time passes between a change and the listing that shows it. Managers are polled before and after
a submission, and when jobs have ended or started. A manager starts jobs before the poll that shows
the ends for which they waited.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from msgspec import structs

from metasched.core.events import (
    CoreEvent,
    DaemonStarted,
    Dispatch,
    DispatchAccepted,
    DispatchStarted,
    JobSubmitted,
    ListingReceived,
    TimerExpired,
    Withdraw,
)
from metasched.core.scheduler import Core
from metasched.core.tasks import TaskId
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.manager import SimulatedManager
from metasched.model.cluster import Cluster
from metasched.model.job import Job, State
from metasched.model.licence import LicencePool
from metasched.model.listing import JobStatus
from metasched.model.tags import tag_of
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy

INSTANCE = "cafe"


class Request(NamedTuple):
    """A job or an array that a user submits at `job.submitted`."""

    job: Job
    run_time: float  # true seconds of each task


class TaskPlace(NamedTuple):
    """Where and when a task has run; times are epoch seconds."""

    cluster: str
    start: float
    priority: int


class PolledSite:
    """Clusters of counted processors under EASY, and the core of their daemon."""

    def __init__(
        self,
        policy: Policy,
        clusters: Sequence[SimulatedCluster],
        pools: tuple[LicencePool, ...] | None = None,
    ) -> None:
        self.core = Core()
        self.places: dict[TaskId, TaskPlace] = {}
        self._policy, self._clusters, self._pools = policy, clusters, pools
        leased = bool(pools)
        self._managers = {
            c.name: SimulatedManager(c, make_policy("easy"), licences_leased=leased)
            for c in clusters
        }
        self._rows: dict[str, dict[int, JobStatus]] = {c.name: {} for c in clusters}
        self._numbers, self._tasks = count(1), dict[int, TaskId]()  # at managers
        self._ends: list[tuple[float, int, str]] = []
        self._run_times: dict[int, float] = {}

    def run(self, requests: Sequence[Request]) -> None:
        """Start the daemon, submit all requests in the order of their times, and run all tasks."""
        waiting = sorted(requests, key=lambda request: request.job.submitted)
        self._run_times = {request.job.id: request.run_time for request in waiting}
        begun = waiting[0].job.submitted
        clusters = tuple(
            Cluster(name=c.name, adapter="slurm", benchmark=c.benchmark, local_policy="easy")
            for c in self._clusters
        )
        self._step(DaemonStarted(begun, INSTANCE, self._policy, clusters, 0, self._pools))
        self._poll(begun)
        while waiting or self._ends:
            submitted = waiting[0].job.submitted if waiting else self._ends[0][0]
            now = min(submitted, self._ends[0][0] if self._ends else submitted)
            while self._ends and self._ends[0][0] <= now:
                self._end(*self._ends.pop(0))
            if submitted <= now and waiting:
                self._poll(now)
            while waiting and waiting[0].job.submitted <= now:
                self._step(JobSubmitted(now, waiting.pop(0).job))
            self._start_tasks(now)
            self._poll(now)
            self._pass_time(now)
            while self._start_tasks(now):
                self._poll(now)
                self._pass_time(now)

    def _pass_time(self, now: float) -> None:
        while (due := self.core.next_due) is not None and due <= now:
            self._step(TimerExpired(now))

    def _poll(self, now: float) -> None:
        for name, manager in self._managers.items():
            rows, info = tuple(self._rows[name].values()), manager.cluster_info()
            self._step(ListingReceived(now, name, rows, (), info, full=True, until=now))

    def _step(self, event: CoreEvent) -> None:
        for action in self.core.step(event).actions:
            match action:
                case Dispatch():
                    self._dispatch(action, event.time)
                case Withdraw():
                    raise AssertionError(action)

    def _dispatch(self, action: Dispatch, now: float) -> None:
        job, dispatch, cluster, indices = action
        tag, native_ids = tag_of(INSTANCE, job, dispatch), dict[int, str]()
        self._step(DispatchStarted(now, job, dispatch))
        for index in indices:
            task, number = self.core.tasks[job, index], next(self._numbers)
            numbered = structs.replace(task.job, id=number)
            self._managers[cluster].submit(numbered, task.priority, self._run_times[job])
            self._tasks[number], native_ids[index] = (job, index), str(number)
            self._rows[cluster][number] = JobStatus(tag, index, str(number), State.PENDING)
        self._step(DispatchAccepted(now, job, dispatch, native_ids))

    def _start_tasks(self, now: float) -> bool:
        """Run a pass of each manager. Return whether tasks have started."""
        has_rows = False
        for name, manager in self._managers.items():
            for number, _, seconds in manager.run_policy(now).started:
                task = self.core.tasks[self._tasks[number]]
                self._set_row(name, number, state=State.RUNNING, started=now)
                self.places[task.task_id] = TaskPlace(name, now, task.priority)
                self._ends.append((now + seconds, number, name))
                has_rows = True
        self._ends.sort()
        return has_rows

    def _end(self, now: float, number: int, cluster: str) -> None:
        self._managers[cluster].end_job(number)
        self._set_row(cluster, number, state=State.COMPLETED, ended=now, exit_code=0)

    def _set_row(self, cluster: str, number: int, **fields: object) -> None:
        rows = self._rows[cluster]
        rows[number] = structs.replace(rows[number], **fields)
