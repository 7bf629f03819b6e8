"""A simulated manager that stands still, behind the real worker and the real core.

Time is simulated. `trial` runs a schedule drawn by a seed: submissions, polls, and standstills of
5 to 120 s. The manager handles each submission within `settle` seconds of running time, and a
listing at once: it overtakes. Nothing but the adapter is simulated.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

from metasched.adapters import worker
from metasched.adapters.base import Adapter, Submission, Withdrawal
from metasched.adapters.protocol import WorkerCall
from metasched.adapters.worker import AdapterHost
from metasched.core.events import (
    ClusterUnreachable,
    CoreEvent,
    DaemonStarted,
    Dispatch,
    DispatchAccepted,
    DispatchStarted,
    DispatchUncertain,
    JobSubmitted,
    ListingReceived,
    TimerExpired,
)
from metasched.core.scheduler import Core
from metasched.model.adapter_errors import Unreachable
from metasched.model.cluster import Cluster, ClusterInfo, NodeCapacity, Partition
from metasched.model.job import Job, Payload, State
from metasched.model.listing import JobStatus, Listing
from metasched.model.tags import tag_of
from metasched.policies.policy import Policy

EPOCH = 1_000_000.0  # epoch seconds of simulated time 0
COMMAND_LIMIT = 15.0  # seconds until a command counts as unanswered
SHORT = 5.0  # seconds; the shortest standstill
LONG = 120.0  # seconds; the longest
TASKS = 4  # of a job
INFO = ClusterInfo(
    cpus=1000, used_cpus=0, partitions=(Partition("main", (NodeCapacity(1, 1000, 1000),), True),)
)


@dataclass
class Standstills:
    """When the manager stands still; the spans are disjoint and in order."""

    spans: list[tuple[float, float]]

    def after_running(self, begin: float, seconds: float) -> float:
        """Return when the manager has run for so long since `begin`."""
        now = begin
        for stopped, continued in self.spans:
            if continued <= now:
                continue
            if now + seconds <= stopped:
                break
            seconds -= max(stopped - now, 0.0)
            now = continued
        return now + seconds


class StandingManager(Adapter):
    """The adapter of the simulated manager."""

    def __init__(self, draw: random.Random, settle: float, spans: Standstills, look: float) -> None:
        super().__init__(Cluster(name="here", adapter="none"), None, "cafe", None)  # type: ignore[arg-type]
        self.settle, self._draw, self._spans, self._look = settle, draw, spans, look
        self.now = 0.0
        self.arrivals: list[tuple[float, str, tuple[int, ...]]] = []  # when, tag, indices

    def submit(self, submission: Submission) -> dict[int, str]:
        quick = self._draw.random() < 0.5
        needed = 0.05 if quick else self._draw.uniform(0.0, self.settle)
        arrival = self._spans.after_running(self.now, needed)
        if self._draw.random() < 0.9:  # else it is dropped
            self.arrivals.append((arrival, submission.tag, submission.indices))
        elif arrival - self.now <= COMMAND_LIMIT:
            arrival = self.now + 2 * COMMAND_LIMIT
        if arrival - self.now > COMMAND_LIMIT:
            self.now += COMMAND_LIMIT
            raise Unreachable("no answer")
        self.now = arrival
        return dict.fromkeys(submission.indices, submission.tag)

    def withdraw(self, withdrawal: Withdrawal) -> None:
        raise AssertionError

    def poll(self) -> Listing:
        begun = self.now
        looked = self._spans.after_running(begun, 0.01)
        answered = self._spans.after_running(looked, self._look * self._draw.uniform(0.8, 1.2))
        if answered - begun > COMMAND_LIMIT:
            self.now += COMMAND_LIMIT
            raise Unreachable("no answer")
        self.now = answered
        rows = tuple(
            JobStatus(tag, index, tag, State.PENDING)
            for arrival, tag, indices in self.arrivals
            if arrival <= looked
            for index in indices
        )
        return Listing(EPOCH + begun, EPOCH - 1.0, EPOCH + begun, rows, INFO)


@dataclass
class Verdict:
    """The result of a trial."""

    uncertain: int = 0  # dispatches without an answer
    repeated: int = 0  # dispatches that were made again
    doubled: list[tuple[int, int]] = field(default_factory=list)  # tasks that the manager has twice
    lost: list[tuple[int, int]] = field(default_factory=list)  # tasks that it never gets


class _Trial:
    def __init__(self, seed: str) -> None:
        draw = self.draw = random.Random(seed)
        self.settle = draw.choice((3.0, 20.0, 20.0, 60.0))
        self.interval = draw.choice((1.0, 5.0, 5.0, 20.0))
        spans, at = list[tuple[float, float]](), draw.uniform(1.0, 60.0)
        # one may pass unnoticed between two polls; the others are longer than all that is between
        noticed = self.interval + self.settle / 2 + 2 * COMMAND_LIMIT
        shortest = SHORT
        for _ in range(draw.randint(1, 4)):
            end = at + draw.uniform(min(shortest, LONG), max(LONG, shortest + 1.0))
            if end - at < noticed:
                shortest = noticed
            spans.append((at, end))
            at = end + draw.expovariate(1 / draw.choice((1.0, 30.0, 200.0)))
        self.spans = Standstills(spans)
        self.manager = StandingManager(draw, self.settle, self.spans, draw.choice((0.1, 1.0, 8.0)))
        self.host = AdapterHost(self.manager)
        self.core, self.actions, self.verdict = Core(), list[Any](), Verdict()
        # submissions just before and within the standstills
        self.jobs = sorted(
            max(0.0, draw.uniform(begun - 3.0, end)) for begun, end in spans for _ in range(2)
        )

    @property
    def time(self) -> float:
        return EPOCH + self.manager.now

    def step(self, event: CoreEvent) -> None:
        self.actions += self.core.step(event).actions

    def run(self) -> Verdict:
        cluster = Cluster(name="here", adapter="none", queue_depth=None)
        self.step(DaemonStarted(self.time, "cafe", Policy(), (cluster,)))
        submitted, failures, full, taken = 0, 0, True, 0.0
        next_poll, last = 0.0, self.spans.spans[-1][1]
        while submitted < len(self.jobs) or self.manager.now < last or self._is_open():
            assert self.manager.now < last + 100 * (self.settle + self.interval + LONG), "no end"
            while submitted < len(self.jobs) and self.jobs[submitted] <= self.manager.now:
                submitted += 1
                job = Job(
                    id=submitted,
                    submitted=self.time,
                    estimated=60.0,
                    array=f"0-{TASKS - 1}",
                )
                self.step(JobSubmitted(self.time, job))
            if self.core.next_due is not None and self.core.next_due <= self.time:
                self.step(TimerExpired(self.time))
            if self.manager.now >= next_poll:
                reply = self.host.execute(WorkerCall("poll", full=full))
                if reply.delta is None:
                    failures, full = failures + 1, True
                    if failures == 2:
                        self.step(ClusterUnreachable(self.time, "here", reply.reason))
                else:
                    delta, failures, full = reply.delta, 0, False
                    gone = tuple((tag, index) for tag, index, _ in delta.vanished)
                    self.step(
                        ListingReceived(
                            *(self.time, "here", delta.rows, gone, delta.info, delta.full),
                            since=delta.since,
                            until=delta.until,
                            previous_taken=taken,
                        )
                    )
                    taken = delta.taken
                next_poll = self.manager.now + self.interval
            elif self.actions:
                self._execute(self.actions.pop(0))
                if self.verdict.uncertain and self.draw.random() < 0.5:
                    next_poll = self.manager.now
            else:
                self.manager.now = min([next_poll, *self.jobs[submitted : submitted + 1]])
        self._judge()
        return self.verdict

    def _is_open(self) -> bool:
        return bool(self.actions) or any(
            task.state is not State.PENDING or not task.live_attempt.in_last_listing
            for task in self.core.tasks.values()
        )

    def _execute(self, action: Any) -> None:
        if not isinstance(action, Dispatch):
            return
        self.verdict.repeated += action.dispatch_id > 1
        key = (action.job, action.dispatch_id)
        self.step(DispatchStarted(self.time, *key))
        job = self.core.tasks_of_dispatch(*key)[0].job
        payload = Payload(script="true")
        submission = Submission(
            tag=tag_of("cafe", *key), job=job, payload=payload, indices=action.indices
        )
        reply = self.host.execute(WorkerCall("submit", submission=submission))
        assert reply.error in ("", "unreachable"), reply.reason
        if reply.error:
            self.verdict.uncertain += 1
            self.step(DispatchUncertain(self.time, *key, reply.reason))
        else:
            self.step(DispatchAccepted(self.time, *key, reply.native_ids))

    def _judge(self) -> None:
        copies: dict[tuple[int, int], int] = {}
        for _, tag, indices in self.manager.arrivals:
            job = int(tag.split("-")[2])
            for index in indices:
                copies[job, index] = copies.get((job, index), 0) + 1
        self.verdict.doubled = [task for task, count in copies.items() if count > 1]
        every = {(job, index) for job in range(1, len(self.jobs) + 1) for index in range(TASKS)}
        self.verdict.lost = sorted(every - copies.keys())


def trial(seed: str) -> Verdict:
    """Run a trial; the same seed gives the same trial."""
    started = _Trial(seed)
    clock = SimpleNamespace(
        monotonic=lambda: started.manager.now, time=lambda: EPOCH + started.manager.now
    )
    with mock.patch.object(worker, "time", clock):
        return started.run()
