"""A job that runs in a window when it is over is ended once; no other job is ended."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from metasched.core.events import (
    ClusterUnreachable,
    CoreEvent,
    DaemonStarted,
    DispatchAccepted,
    DispatchStarted,
    JobSubmitted,
    ListingReceived,
    TimerExpired,
    Withdraw,
)
from metasched.core.reservations.events import (
    ReservationBound,
    ReservationCancelled,
    ReservationReleased,
    ReservationRequested,
    SurveyReceived,
)
from metasched.core.scheduler import Core
from metasched.model.cluster import Cluster, ClusterInfo, NodeCapacity, Partition
from metasched.model.job import Job, State
from metasched.model.listing import JobStatus
from metasched.model.reservation import OPEN_STATES, Reservation
from metasched.model.reservation_request import ReservationRequest
from metasched.model.survey import NodeUsage, Survey
from metasched.model.tags import tag_of
from metasched.policies.policy import Policy
from tests.harness.examples import examples

JOBS = 6
ALPHA = Cluster(name="alpha", adapter="slurm", supports_reservations=True)
FACTS = ClusterInfo(64, 0, (Partition("main", (NodeCapacity(8, 8, 8),), default=True),))
TOLD = "is over: it is to end"


class Windows(RuleBasedStateMachine):
    """Jobs inside and outside windows, and a manager that ends no job at a window's end."""

    @initialize(
        windows=st.lists(
            st.tuples(st.integers(1, 40), st.integers(5, 40), st.sampled_from([0.0, 0.0, 15.0])),
            min_size=1,
            max_size=3,
        ),
        data=st.data(),
    )
    def boot(self, windows: list[tuple[int, int, float]], data: Any) -> None:
        self.now, self.core = 0.0, Core()
        self.rows: dict[int, JobStatus] = {}  # the manager's row of each job
        self.withdrawals: list[Withdraw] = []
        self.reported: Counter[tuple[int, int]] = Counter()  # by job and attempt
        self.windows: dict[int, Reservation] = {}
        self.step(DaemonStarted(self.now, "i", Policy(), (ALPHA,)))
        self.poll()
        nodes = NodeUsage(tuple(f"n{n}" for n in range(8)), 8, True)
        self.step(SurveyReceived(self.now, "alpha", Survey(self.now, (nodes,))))
        for id, (start, lasts, let_run) in enumerate(windows, 1):
            request = ReservationRequest.fixed(1, start, start + lasts)
            self.step(
                ReservationRequested(self.now, id, "ada", request, True, ("alpha",), 1e6, let_run)
            )
            self.windows[id] = self.core.reservations.by_id[id]
            self.step(ReservationBound(self.now, id, self.windows[id].nodes))
        for id in range(1, JOBS + 1):
            within = data.draw(st.sampled_from([None, *self.windows, *self.windows]))
            self.step(
                JobSubmitted(self.now, Job(id=id, submitted=0, estimated=9, reservation=within))
            )
            self.step(DispatchStarted(self.now, id, 1))
            self.step(DispatchAccepted(self.now, id, 1, {0: str(id)}))
            self.rows[id] = JobStatus(tag_of("i", id, 1), 0, str(id), State.PENDING)

    def step(self, event: CoreEvent) -> None:
        out = self.core.step(event)
        self.withdrawals += [a for a in out.actions if isinstance(a, Withdraw)]
        for change in out.changes:
            if change.cause.endswith(TOLD):
                assert self.over(change.job, event.time)
                self.reported[change.job, change.attempt] += 1
        assert set(self.reported.values()) <= {1}
        for task, attempt in out.closed_attempts:
            ended = (task.job.id, attempt.number) in self.reported
            assert attempt.state is not (State.CANCELLED if ended else State.TIMEOUT)

    def over(self, job: int, now: float) -> bool:
        task = self.core.tasks[job, 0]
        return task.job.reservation is not None and self.windows[task.job.reservation].until <= now

    @rule(seconds=st.integers(1, 20))
    def passes(self, seconds: int) -> None:
        until = self.now + seconds
        while (due := self.core.next_due) is not None and due <= until:
            self.now = max(self.now, due)
            self.step(TimerExpired(self.now))
        self.now = until

    @rule(job=st.integers(1, JOBS))
    def begins(self, job: int) -> None:
        if self.rows[job].state is State.PENDING:
            self.becomes(job, State.RUNNING, started=self.now)

    @rule(job=st.integers(1, JOBS))
    def ends(self, job: int) -> None:
        if self.rows[job].state is State.RUNNING:
            self.becomes(job, State.COMPLETED, ended=self.now)

    def becomes(self, job: int, state: State, **fields: float) -> None:
        before = self.rows[job]
        reported = {"started": before.started, "ended": before.ended, **fields}
        self.rows[job] = JobStatus(before.tag, 0, before.native_id, state, **reported)  # type: ignore[arg-type]

    @rule()
    def poll(self) -> None:
        self.step(
            ListingReceived(
                time=self.now,
                cluster="alpha",
                rows=tuple(self.rows.values()),
                info=FACTS,
                full=True,
                until=self.now,
            )
        )
        for task in self.core.tasks_on("alpha"):
            has_reservation = task.job.reservation in self.core.reservations.by_id
            if (
                has_reservation
                and task.live_attempt.has_started
                and self.over(task.job.id, self.now)
            ):
                assert self.reported[task.job.id, task.live_attempt.number] == 1

    @rule()
    def act(self) -> None:
        """The manager carries out the next withdrawal at once."""
        if not self.withdrawals:
            return
        withdrawal = self.withdrawals.pop(0)
        running = self.rows[withdrawal.job].state is State.RUNNING
        if self.rows[withdrawal.job].state is State.PENDING or (
            running and not withdrawal.only_pending
        ):
            self.becomes(withdrawal.job, State.CANCELLED, ended=self.now)

    @rule()
    def crash(self) -> None:
        self.withdrawals.clear()
        self.step(DaemonStarted(self.now, "i", Policy(), (ALPHA,)))
        self.poll()

    @rule()
    def falls_silent(self) -> None:
        self.step(ClusterUnreachable(self.now, "alpha", "it is down"))

    @rule(id=st.integers(1, 3))
    def cancel(self, id: int) -> None:
        reservation = self.core.reservations.by_id.get(id)
        if reservation is not None and reservation.state in OPEN_STATES:
            self.step(ReservationCancelled(self.now, id, "ada"))

    @rule(id=st.integers(1, 3))
    def is_forgotten(self, id: int) -> None:
        """The manager deletes a closed reservation unless it has live jobs."""
        reservation = self.core.reservations.by_id.get(id)
        if reservation is None or reservation.state in OPEN_STATES:
            return
        live = {job for job, row in self.rows.items() if row.ended is None}
        inside = [t for t in self.core.tasks.values() if t.job.reservation == id]
        if not any(task.job.id in live for task in inside):
            self.step(ReservationReleased(self.now, id))

    def teardown(self) -> None:
        """At the end no live job is in a window, and jobs outside windows were not withdrawn."""
        if not hasattr(self, "core"):
            return
        self.passes(100)
        for _ in range(4):
            self.poll()
            while self.withdrawals:
                self.act()
        for job, row in self.rows.items():
            task = self.core.tasks.get((job, 0))
            if (job, 1) in self.reported:
                assert row.state in (State.CANCELLED, State.COMPLETED)
                assert task is None
            elif task is not None and task.job.reservation is not None:
                assert task.state is State.QUEUED
            elif task is not None:
                assert row.state in (State.PENDING, State.RUNNING)


TestWindows = Windows.TestCase
TestWindows.settings = examples(100, steps=30)
