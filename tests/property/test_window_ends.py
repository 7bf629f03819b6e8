"""Whatever happens, what runs in a window when it is over is ended once, and nothing else is."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from metasched.core.events import (
    Accepted,
    Booted,
    CoreEvent,
    Due,
    Seen,
    Silent,
    Submitted,
    Tried,
    Withdraw,
)
from metasched.core.reservations.events import (
    ReservationAsked,
    ReservationBound,
    ReservationCancelled,
    ReservationReleased,
    Surveyed,
)
from metasched.core.scheduler import Core
from metasched.model.cluster import Cluster, Facts, Nodes, Partition
from metasched.model.job import Job, State
from metasched.model.listing import Row
from metasched.model.reservation import OPEN, Reservation
from metasched.model.reservation_request import Request
from metasched.model.survey import NodesInUse, Survey
from metasched.model.tags import tag_of
from metasched.policies.policy import Policy

JOBS = 6
ALPHA = Cluster(name="alpha", adapter="slurm", reserves=True)
FACTS = Facts(64, 0, (Partition("main", (Nodes(8, 8, 8),), default=True),))
TOLD = "is over: it is to end"


class Windows(RuleBasedStateMachine):
    """Jobs in windows and in none, and a manager that ends no job by itself at their ends."""

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
        self.rows: dict[int, Row] = {}  # by job: what the manager has
        self.withdrawals: list[Withdraw] = []
        self.told: Counter[tuple[int, int]] = Counter()  # by job and attempt
        self.windows: dict[int, Reservation] = {}
        self.step(Booted(self.now, "i", Policy(), (ALPHA,)))
        self.poll()
        nodes = NodesInUse(tuple(f"n{n}" for n in range(8)), 8, True)
        self.step(Surveyed(self.now, "alpha", Survey(self.now, (nodes,))))
        for id, (start, lasts, let_run) in enumerate(windows, 1):
            request = Request.fixed(1, start, start + lasts)
            self.step(
                ReservationAsked(self.now, id, "ada", request, True, ("alpha",), 1e6, let_run)
            )
            self.windows[id] = self.core.reservations.known[id]
            self.step(ReservationBound(self.now, id, self.windows[id].nodes))
        for id in range(1, JOBS + 1):
            within = data.draw(st.sampled_from([None, *self.windows, *self.windows]))
            self.step(Submitted(self.now, Job(id=id, submitted=0, estimated=9, reservation=within)))
            self.step(Tried(self.now, id, 1))
            self.step(Accepted(self.now, id, 1, {0: str(id)}))
            self.rows[id] = Row(tag_of("i", id, 1), 0, str(id), State.PENDING)

    def step(self, event: CoreEvent) -> None:
        out = self.core.step(event)
        self.withdrawals += [a for a in out.actions if isinstance(a, Withdraw)]
        for change in out.changes:
            if change.cause.endswith(TOLD):
                assert self.over(change.job, event.time)
                self.told[change.job, change.attempt] += 1
        assert set(self.told.values()) <= {1}
        for task, attempt in out.closed:
            ended = (task.job.id, attempt.number) in self.told
            assert attempt.state is not (State.CANCELLED if ended else State.TIMEOUT)

    def over(self, job: int, now: float) -> bool:
        task = self.core.tasks[job, 0]
        return task.job.reservation is not None and self.windows[task.job.reservation].until <= now

    @rule(seconds=st.integers(1, 20))
    def passes(self, seconds: int) -> None:
        until = self.now + seconds
        while (due := self.core.next_due) is not None and due <= until:
            self.now = max(self.now, due)
            self.step(Due(self.now))
        self.now = until

    @rule(job=st.integers(1, JOBS))
    def begins(self, job: int) -> None:
        if self.rows[job].state is State.PENDING:
            self.becomes(job, State.RUNNING, started=self.now)

    @rule(job=st.integers(1, JOBS))
    def ends(self, job: int) -> None:
        if self.rows[job].state is State.RUNNING:
            self.becomes(job, State.COMPLETED, ended=self.now)

    def becomes(self, job: int, state: State, **more: float) -> None:
        before = self.rows[job]
        told = {"started": before.started, "ended": before.ended, **more}
        self.rows[job] = Row(before.tag, 0, before.native_id, state, **told)  # type: ignore[arg-type]

    @rule()
    def poll(self) -> None:
        self.step(
            Seen(
                *(self.now, "alpha", tuple(self.rows.values())),
                facts=FACTS,
                full=True,
                until=self.now,
            )
        )
        for task in self.core.tasks_on("alpha"):
            known = task.job.reservation in self.core.reservations.known
            if known and task.live.begun and self.over(task.job.id, self.now):
                assert self.told[task.job.id, task.live.number] == 1

    @rule()
    def act(self) -> None:
        """The manager is told of a wish; one whose jobs ignore it would take longer."""
        if not self.withdrawals:
            return
        wish = self.withdrawals.pop(0)
        running = self.rows[wish.job].state is State.RUNNING
        if self.rows[wish.job].state is State.PENDING or (running and not wish.unstarted):
            self.becomes(wish.job, State.CANCELLED, ended=self.now)

    @rule()
    def crash(self) -> None:
        self.withdrawals.clear()
        self.step(Booted(self.now, "i", Policy(), (ALPHA,)))
        self.poll()

    @rule()
    def falls_silent(self) -> None:
        self.step(Silent(self.now, "alpha", "it is down"))

    @rule(id=st.integers(1, 3))
    def cancel(self, id: int) -> None:
        one = self.core.reservations.known.get(id)
        if one is not None and one.state in OPEN:
            self.step(ReservationCancelled(self.now, id, "ada"))

    @rule(id=st.integers(1, 3))
    def is_forgotten(self, id: int) -> None:
        """A manager deletes none in which jobs are."""
        one = self.core.reservations.known.get(id)
        if one is None or one.state in OPEN:
            return
        live = {job for job, row in self.rows.items() if row.ended is None}
        inside = [t for t in self.core.tasks.values() if t.job.reservation == id]
        if not any(task.job.id in live for task in inside):
            self.step(ReservationReleased(self.now, id))

    def teardown(self) -> None:
        """In the end nothing is in a window any more, and what was in none has not been touched."""
        if not hasattr(self, "core"):
            return
        self.passes(100)
        for _ in range(4):
            self.poll()
            while self.withdrawals:
                self.act()
        for job, row in self.rows.items():
            task = self.core.tasks.get((job, 0))
            if (job, 1) in self.told:
                assert row.state in (State.CANCELLED, State.COMPLETED)
                assert task is None
            elif task is not None and task.job.reservation is not None:
                assert task.state is State.QUEUED
            elif task is not None:
                assert row.state in (State.PENDING, State.RUNNING)


TestWindows = Windows.TestCase
TestWindows.settings = settings(max_examples=100, stateful_step_count=30)
