"""A load without managers: users of the load test, with their draws, over a core in virtual time.

It shows which starts follow from order of arrival, turns and queues alone. Managers start tasks in
the order of dispatch as processors get free, and are listed at each poll. There are no faults, and
calls take no time.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from metasched.core.events import (
    CoreEvent,
    DaemonStarted,
    Dispatch,
    DispatchAccepted,
    JobSubmitted,
    ListingReceived,
    UserAction,
    UserRequested,
    Withdraw,
)
from metasched.core.scheduler import Core
from metasched.model.cluster import Cluster, ClusterInfo, NodeCapacity, Partition
from metasched.model.job import Job, State
from metasched.model.listing import JobStatus
from metasched.model.tags import tag_of
from metasched.policies.policy import Policy
from tests.load.run import plans
from tests.load.site import Size
from tests.load.user import User

INSTANCE = "cafe"
BEGIN = 1_000_000.0  # epoch seconds
PAYLOAD_SECONDS = 0.5  # of a task beside its drawn run time
Key = tuple[str, int]  # tag and index of a task


@dataclass
class Manager:
    """A manager that starts tasks in the order of dispatch, and reports changes at each poll."""

    name: str
    cpus: int
    waiting: dict[Key, float] = field(default_factory=dict)  # run times in seconds, in order
    running: list[tuple[float, Key, float]] = field(default_factory=list)  # a heap: end, key, start
    rows: dict[Key, JobStatus] = field(default_factory=dict)  # changed since the last listing

    def submit(self, key: Key, seconds: float) -> None:
        """Queue a task."""
        self.waiting[key] = seconds
        self._report(key, State.PENDING)

    def withdraw(self, key: Key, now: float) -> None:
        """Cancel a task unless it has started."""
        if self.waiting.pop(key, None) is not None:
            self._report(key, State.CANCELLED, ended=now)

    def pass_time(self, since: float, now: float) -> list[Key]:
        """Start and end tasks from `since` to `now`; return those that start."""
        started = []
        free = [since] * (self.cpus - len(self.running))  # when each processor gets free
        while True:
            while self.waiting and free:
                begin, key = heapq.heappop(free), next(iter(self.waiting))
                heapq.heappush(self.running, (begin + self.waiting.pop(key), key, begin))
                self._report(key, State.RUNNING, started=begin)
                started.append(key)
            if not self.running or self.running[0][0] > now:
                return started
            end, key, begin = heapq.heappop(self.running)
            heapq.heappush(free, end)
            self._report(key, State.COMPLETED, started=begin, ended=end, exit_code=0)

    def list(self) -> tuple[tuple[JobStatus, ...], ClusterInfo]:
        """Return the rows that have changed, and the state of the cluster."""
        rows, self.rows = tuple(self.rows.values()), {}
        used = len(self.running)
        partition = Partition("main", (NodeCapacity(1, self.cpus, self.cpus - used),), default=True)
        return rows, ClusterInfo(self.cpus, used, (partition,), pending_jobs=len(self.waiting))

    def _report(self, key: Key, state: State, **fields: Any) -> None:
        self.rows[key] = JobStatus(*key, f"{key[0]} {key[1]}", state, **fields)


class Model:
    """A load in virtual time; `starts` has those of each user."""

    def __init__(self, size: Size, cpus: dict[str, int], seed: str) -> None:
        """`cpus`: processors of each cluster."""
        self.now, self._size = BEGIN, size
        self.starts: Counter[str] = Counter()
        self._managers = {name: Manager(name, cpus[name]) for name in cpus}
        self._core, self._numbers = Core(), count(1)
        self._seconds: dict[int, float] = {}  # run time of a task, by job
        self._owners: dict[str, str] = {}  # user of a dispatch, by tag
        clusters = tuple(
            Cluster(name=name, adapter="local", queue_depth=size.queue_depth) for name in cpus
        )
        self._step(DaemonStarted(BEGIN, INSTANCE, Policy(), clusters))
        for manager in self._managers.values():
            self._list(manager, full=True)
        accounts = [f"u{number}" for number in range(size.accounts + 1)]
        self._users = [
            _User(plan, _Connection(self, plan.account), lambda: self.now)  # type: ignore[arg-type]
            for plan in plans(size, seed, tuple(cpus), accounts)
            if plan.tasks
        ]

    def run(self) -> Iterator[float]:
        """Let users act, tasks run and clusters be listed; yield the seconds after each poll."""
        acts = [(BEGIN + user.next_pause(), number) for number, user in enumerate(self._users)]
        heapq.heapify(acts)
        while True:
            since, poll = self.now, self.now + self._size.poll_interval
            while acts[0][0] <= poll:
                self.now, number = acts[0]
                self._users[number].act()
                pause = self._users[number].next_pause()
                heapq.heapreplace(acts, (self.now + pause, number))
            self.now = poll
            for manager in self._managers.values():
                for tag, _ in manager.pass_time(since, poll):
                    self.starts[self._owners[tag]] += 1
                self._list(manager)
            yield self.now - BEGIN

    def submit(self, requests: Sequence[dict[str, Any]], user: str) -> list[dict[str, int]]:
        """Submit jobs of a user; return the answer of the daemon."""
        answers = []
        for request in requests:
            job = Job(
                id=next(self._numbers),
                submitted=self.now,
                estimated=request["time_limit"],
                time_limit=request["time_limit"],
                cpus=1,
                user=user,
                array=request["array"],
                clusters=tuple(request["clusters"]),
            )
            self._seconds[job.id] = float(request["arguments"][2]) + PAYLOAD_SECONDS
            self._step(JobSubmitted(self.now, job))
            answers.append({"job": job.id})
        return answers

    def change(self, action: UserAction, task: str, user: str) -> None:
        """Cancel, hold or release a task."""
        job, _, index = task.partition("_")
        indices = (int(index),) if index else None
        self._step(UserRequested(self.now, action, int(job), indices, by=user))

    def _list(self, manager: Manager, *, full: bool = False) -> None:
        rows, info = manager.list()
        self._step(
            ListingReceived(
                self.now, manager.name, rows, info=info, full=full, since=BEGIN, until=self.now
            )
        )

    def _step(self, event: CoreEvent) -> None:
        for action in self._core.step(event).actions:
            if isinstance(action, Dispatch):
                tag = tag_of(INSTANCE, action.job, action.dispatch_id)
                task = self._core.tasks[action.job, action.indices[0]]
                self._owners[tag] = task.job.user
                for index in action.indices:
                    manager = self._managers[action.cluster]
                    manager.submit((tag, index), self._seconds[action.job])
                natives = {index: f"{tag} {index}" for index in action.indices}
                self._step(DispatchAccepted(self.now, action.job, action.dispatch_id, natives))
            elif isinstance(action, Withdraw):
                tag = tag_of(INSTANCE, action.job, action.dispatch_id)
                for index in action.native_ids:
                    self._managers[action.cluster].withdraw((tag, index), self.now)


class _User(User):
    def _stopped(self, _: float) -> bool:
        return False

    def _read(self, _: str) -> None:
        """A page changes nothing."""


class _Connection:
    """What a user of the load calls, in place of a connection to a daemon."""

    def __init__(self, model: Model, user: str) -> None:
        self._model, self._user = model, user

    def submit(self, body: dict[str, Any]) -> list[dict[str, int]]:
        return self._model.submit(body["jobs"], self._user)

    def change(self, action: UserAction, tasks: list[str]) -> bool:
        for task in tasks:
            self._model.change(action, task, self._user)
        return True

    def look(self, *_: object, **__: object) -> None:
        """Commands that change nothing need no answer."""

    explain = limits = clusters = look
