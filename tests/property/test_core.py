"""The core against a small world of managers that answer, fall silent and lose answers.

Managers lose what they had acknowledged and issue its id again, bring back what was cancelled,
and restart jobs; the clock is set, operators err. Whatever the order of events: no illegal
transition, no job lost, none begun twice by our doing, nothing left behind in a manager, the
loads equal a recount, and the recorded events replayed give the same decisions.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from metasched.core import Core, replay
from metasched.events import (
    Accepted,
    Action,
    Again,
    Asked,
    Booted,
    ClockSet,
    CoreEvent,
    Declined,
    Drained,
    Due,
    Look,
    Modified,
    Outcome,
    Policy,
    Requeued,
    Resumed,
    Returned,
    Seen,
    Send,
    Silent,
    Submitted,
    Traced,
    Tried,
    Unsure,
    Withdraw,
)
from metasched.model import Cluster, Facts, Job, Nodes, Partition, Row, State, tag_of
from metasched.transitions import ATTEMPT_FINAL, FINAL, LIVE, UNSTARTED, WITH_US, Event

INSTANCE = "cafe"
SIZES = {"left": 8, "right": 4}


@dataclass
class Manager:
    """The truth on one cluster: what was queued under which tag, what began, what ended.

    Its listing proves absence from `up_since` on; its accounting keeps what it `forgot`.
    """

    cpus: int
    rows: dict[str, Row] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    begun: Counter[str] = field(default_factory=Counter)
    up_since: float = 0.0
    boot: float = 0.0
    forgot: dict[str, Row] = field(default_factory=dict)
    ids: int = 0
    told: set[str] = field(default_factory=set)
    told_at: float = 0.0

    def submit(self, tag: str, cpus: int) -> str:
        self.ids += 1
        self.rows[tag] = Row(tag, 0, f"n{self.ids}", State.PENDING)
        self.sizes[tag] = cpus
        return self.rows[tag].native_id

    def used(self) -> int:
        return sum(self.sizes[t] for t, r in self.rows.items() if r.state is State.RUNNING)

    def start(self, now: float) -> None:
        for tag, row in self.rows.items():
            if row.state is State.PENDING and self.sizes[tag] <= self.cpus - self.used():
                self.rows[tag] = replace(row, state=State.RUNNING, started=now)
                self.begun[tag] += 1

    def end(self, now: float, state: State) -> None:
        for tag, row in self.rows.items():
            if row.state is State.RUNNING:
                self.rows[tag] = replace(row, state=state, ended=now, exit_code=0)
                return

    def withdraw(self, tag: str, unstarted: bool, now: float) -> None:
        row = self.rows.get(tag)
        if row is None or row.state not in (State.PENDING, State.RUNNING):
            return
        if row.state is State.PENDING or not unstarted:
            self.rows[tag] = replace(row, state=State.CANCELLED, ended=now)

    def those(self, state: State, begun: bool | None = None) -> list[str]:
        """The tags in a state; `begun`: only those that have, or have not."""
        return [
            tag
            for tag, row in self.rows.items()
            if row.state is state and begun in (None, row.started is not None)
        ]

    def boots(self, now: float) -> None:
        """It was killed and started: its listings prove less now."""
        self.up_since = self.boot = now

    def trace(self, look: Look, now: float) -> Traced:
        known = self.rows.keys() | self.forgot.keys()
        return Traced(
            now,
            look.cluster,
            tuple(self.forgot[m.tag] for m in look.missing if m.tag in self.forgot),
            tuple((m.tag, m.task) for m in look.missing if m.tag not in known),
        )

    def facts(self) -> Facts:
        free = max(self.cpus - self.used(), 0)
        waiting = [self.sizes[t] for t, r in self.rows.items() if r.state is State.PENDING]
        return Facts(
            cpus=self.cpus,
            used=self.used(),
            partitions=(Partition("p", (Nodes(1, self.cpus, free),), default=True),),
            running=tuple(
                (1e9, self.sizes[t]) for t, r in self.rows.items() if r.state is State.RUNNING
            ),
            pending=len(waiting),
            head=(waiting[0], 100.0) if waiting else None,
            records="all that it forgot",
        )


def job_of(tag: str) -> int:
    return int(tag.split("-")[2])


class World(RuleBasedStateMachine):
    """Users, managers, a shell that may crash between any two steps, and the clock."""

    @initialize(
        pull=st.booleans(),
        load=st.sampled_from(["observed", "paper"]),
        sizes=st.lists(st.sampled_from([1, 2, 4, 6, 8]), max_size=6),
    )
    def boot(self, pull: bool, load: str, sizes: list[int]) -> None:
        """Both clusters have been heard from, and have what `sizes` asks for."""
        self.now = 1000.0
        self.policy = Policy(pull=pull, load=load, pull_after=5.0)  # type: ignore[arg-type]
        self.managers = {name: Manager(cpus) for name, cpus in SIZES.items()}
        self.core = Core()
        self.configured = sorted(SIZES)
        self.events: list[CoreEvent] = []
        self.outcomes: list[Outcome] = []
        self.actions: list[Action] = []
        self.jobs: dict[int, Job] = {}
        self.submitted: dict[int, Job] = {}
        self.again: dict[int, tuple[int, int]] = {}
        self.requeued: Counter[int] = Counter()
        self.cancelled: set[int] = set()
        self.lost: set[int] = set()
        self.excused: Counter[int] = Counter()  # starts that were not of our doing
        self.final: dict[int, State] = {}
        self.ended_attempts: dict[tuple[int, int], State] = {}
        self.pushed: dict[int, str] = {}
        self.step(self.booted())
        for name in SIZES:
            self.poll(name, True)
        for cpus in sizes:
            self.submit(cpus, None, None, False)
        while self.actions:
            self.act(None, "done")

    def booted(self, max_priority: int = 10) -> Booted:
        clusters = tuple(
            Cluster(name=name, adapter="local", move_after=20.0) for name in self.configured
        )
        policy = replace(self.policy, max_priority=max_priority)
        return Booted(self.now, INSTANCE, policy, clusters)

    def step(self, event: CoreEvent) -> None:
        self.events.append(event)
        out = self.core.step(event)
        self.outcomes.append(copy.deepcopy(out))
        self.actions += out.actions
        for task, attempt in out.closed:
            key = (task.job.id, attempt.number)
            assert key not in self.ended_attempts, "an ended attempt ended again"
            assert attempt.state in ATTEMPT_FINAL
            self.ended_attempts[key] = attempt.state
            self.again[task.job.id] = (task.attempts, attempt.sending)
        for change in out.changes:
            if change.event is Event.REQUEUE:
                self.requeued[change.job] += 1
                self.cancelled.discard(change.job)
                self.final.pop(change.job, None)
        for task in out.tasks.values():
            assert task.job.id not in self.final, "an ended task changed"
            if task.state in FINAL:
                self.final[task.job.id] = task.state

    # Users

    @rule(
        cpus=st.sampled_from([1, 2, 4, 6, 8]),
        deadline=st.one_of(st.none(), st.floats(-100, 1e5)),
        begin=st.one_of(st.none(), st.floats(0, 50)),
        held=st.booleans(),
    )
    def submit(self, cpus: int, deadline: float | None, begin: float | None, held: bool) -> None:
        job = Job(
            id=len(self.jobs) + 1,
            submitted=self.now,
            estimated=100.0,
            cpus=cpus,
            tasks=cpus,
            deadline=None if deadline is None else self.now + deadline,
            begin=None if begin is None else self.now + begin,
            held=held,
        )
        self.jobs[job.id] = self.submitted[job.id] = job
        self.step(Submitted(self.now, job))

    @rule(data=st.data(), wish=st.sampled_from(["cancel", "hold", "release"]))
    def ask(self, data: st.DataObject, wish: str) -> None:
        if not self.jobs:
            return
        job = data.draw(st.sampled_from(sorted(self.jobs)))
        if wish == "cancel" and job not in self.final:
            self.cancelled.add(job)
        self.step(Asked(self.now, wish, job, by="ada"))  # type: ignore[arg-type]

    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        if not self.jobs:
            return
        job = data.draw(st.sampled_from(sorted(self.jobs)))
        if job in self.final:
            attempts, sending = self.again.get(job, (0, 0))
            again = Again(0, self.final[job], attempts)
            self.step(Requeued(self.now, self.jobs[job], 10, sending, (again,), "ada"))
        else:
            self.step(Asked(self.now, "requeue", job, by="ada"))

    @rule(
        data=st.data(),
        limit=st.sampled_from([None, 50.0, 200.0]),
        clusters=st.sampled_from([(), ("left",)]),
        begin=st.one_of(st.none(), st.floats(0, 50)),
        resend=st.booleans(),
    )
    def modify(
        self,
        data: st.DataObject,
        limit: float | None,
        clusters: tuple[str, ...],
        begin: float | None,
        resend: bool,
    ) -> None:
        if not self.jobs:
            return
        job = replace(
            self.jobs[data.draw(st.sampled_from(sorted(self.jobs)))],
            time_limit=limit,
            estimated=limit or 100.0,
            clusters=clusters,
            begin=None if begin is None else self.now + begin,
        )
        self.jobs[job.id] = job
        self.step(Modified(self.now, job, "as drawn", resend, by="ada"))

    # The shell

    @precondition(lambda self: self.actions)
    @rule(data=st.data(), fate=st.sampled_from(["done", "done", "lost answer", "lost", "refused"]))
    def act(self, data: st.DataObject, fate: str) -> None:
        """Carry out the next action; its answer, or the request itself, may be lost."""
        action = self.actions.pop(0)
        manager = self.managers[action.cluster]
        if isinstance(action, Look):
            if fate == "done":
                self.step(manager.trace(action, self.now))
            return
        tag = tag_of(INSTANCE, action.job, action.sending)
        if isinstance(action, Withdraw):
            if fate in ("done", "lost answer"):
                manager.withdraw(tag, action.unstarted, self.now)
            if fate != "done":
                self.actions.append(action)
            return
        if not self.wanted(action):
            self.step(Returned(self.now, ((action.job, action.sending),)))
            return
        self.step(Tried(self.now, action.job, action.sending))
        cpus = self.jobs[action.job].cpus
        match fate:
            case "done":
                native = manager.submit(tag, cpus)
                self.step(Accepted(self.now, action.job, action.sending, {0: native}))
            case "lost answer":
                manager.submit(tag, cpus)
                self.step(Unsure(self.now, action.job, action.sending, "time-out"))
            case "lost":
                self.step(Unsure(self.now, action.job, action.sending, "time-out"))
            case "refused":
                again = data.draw(st.booleans())
                self.step(Declined(self.now, action.job, action.sending, "no", again))

    def wanted(self, send: Send) -> bool:
        tasks = self.core.sending(send.job, send.sending)
        return any(task.attempt and task.attempt.intent is None for task in tasks)

    @rule(
        submitted=st.booleans(),
        at_act=st.booleans(),
        configured=st.sampled_from([["left", "right"], ["left", "right"], ["right"]]),
        max_priority=st.sampled_from([10, 10, 3]),
    )
    def crash(
        self, submitted: bool, at_act: bool, configured: list[str], max_priority: int
    ) -> None:
        """The daemon dies, perhaps in the middle of a send, and starts again from its database.

        Its configuration may have changed meanwhile.
        """
        action = self.actions[0] if at_act and self.actions else None
        if isinstance(action, Send) and self.wanted(action):
            self.step(Tried(self.now, action.job, action.sending))
            if submitted:
                tag = tag_of(INSTANCE, action.job, action.sending)
                self.managers[action.cluster].submit(tag, self.jobs[action.job].cpus)
        stored = copy.deepcopy(self.core)
        self.actions.clear()
        self.core = Core()
        self.core.restore(
            stored.tasks.values(),
            stored._last_sending,
            stored._facts,
            [j for j in self.submitted.values() if (j.margin or -1) >= 0],
            stored._drains.values(),
            ended=stored._ended,
        )
        self.configured = configured
        self.step(self.booted(max_priority))

    @rule(name=st.sampled_from(sorted(SIZES)), full=st.booleans())
    def poll(self, name: str, full: bool) -> None:
        if name not in self.configured:
            return
        manager = self.managers[name]
        self.step(
            Seen(
                self.now,
                name,
                rows=tuple(manager.rows.values()),
                vanished=tuple((tag, 0) for tag in manager.told - manager.rows.keys()),
                facts=manager.facts(),
                full=full,
                since=manager.up_since,
                until=self.now,
                before=manager.told_at,
                up_since=manager.boot,
            )
        )
        manager.told, manager.told_at = set(manager.rows), self.now

    @rule(name=st.sampled_from(sorted(SIZES)))
    def silence(self, name: str) -> None:
        if name not in self.configured:
            return
        untried = [a for a in self.actions if isinstance(a, Send) and a.cluster == name]
        self.actions = [a for a in self.actions if a not in untried]
        self.step(Silent(self.now, name, "no answer"))
        self.step(Returned(self.now, tuple((send.job, send.sending) for send in untried)))

    # Operators

    @rule(name=st.sampled_from(sorted(SIZES)), keep=st.booleans())
    def drain(self, name: str, keep: bool) -> None:
        if name in self.configured:
            self.step(Drained(self.now, name, "op", "new kernel", keep))

    @rule(name=st.sampled_from(sorted(SIZES)))
    def resume(self, name: str) -> None:
        if name in self.configured:
            self.step(Resumed(self.now, name, "op"))

    @rule(name=st.sampled_from(sorted(SIZES)), part=st.sampled_from([1, 2, 4]))
    def resize(self, name: str, part: int) -> None:
        """Nodes are taken out of the cluster, or come back."""
        self.managers[name].cpus = SIZES[name] // part

    # The world

    @rule(seconds=st.floats(0.1, 100))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.step(Due(self.now))

    @rule(name=st.sampled_from(sorted(SIZES)))
    def start(self, name: str) -> None:
        self.managers[name].start(self.now)

    @rule(
        name=st.sampled_from(sorted(SIZES)),
        state=st.sampled_from([State.COMPLETED, State.FAILED, State.CANCELLED, State.NODE_FAIL]),
    )
    def end(self, name: str, state: State) -> None:
        self.managers[name].end(self.now, state)

    @rule(name=st.sampled_from(sorted(SIZES)))
    def lose(self, name: str) -> None:
        """The manager restarts without what it had taken last; its listings prove less now."""
        manager = self.managers[name]
        self.now += 1.0
        manager.boots(self.now)
        for tag in reversed(manager.those(State.PENDING, begun=False)):
            del manager.rows[tag]
            manager.ids -= 1  # the next job gets its id
            self.lost.add(job_of(tag))
            return

    @precondition(lambda self: self.those(State.CANCELLED, begun=False))
    @rule(data=st.data())
    def bring_back(self, data: st.DataObject) -> None:
        """A manager restarts without its last cancel: what was withdrawn waits again."""
        manager, tag = data.draw(st.sampled_from(self.those(State.CANCELLED, begun=False)))
        self.now += 1.0
        manager.boots(self.now)
        manager.rows[tag] = replace(manager.rows[tag], state=State.PENDING, ended=None)
        self.excused[job_of(tag)] += 1

    @precondition(lambda self: self.those(State.RUNNING))
    @rule(data=st.data(), counted=st.booleans())
    def restart(self, data: st.DataObject, counted: bool) -> None:
        """A manager begins a job anew, after a lost node or because it lost its last seconds."""
        manager, tag = data.draw(st.sampled_from(self.those(State.RUNNING)))
        self.now += 1.0
        row = manager.rows[tag]
        again = replace(row, state=State.PENDING, started=None)
        if counted:
            again = replace(again, restarts=row.restarts + 1, started=self.now)
        else:
            manager.boots(self.now)
        manager.rows[tag] = again
        self.excused[job_of(tag)] += 1

    @precondition(lambda self: self.unknown())
    @rule(data=st.data())
    def write_off(self, data: st.DataObject) -> None:
        """An operator calls lost what nobody knows of; it may be there."""
        job = data.draw(st.sampled_from(self.unknown()))
        self.excused[job] += 1
        self.step(Asked(self.now, "lost", job, by="root"))

    def unknown(self) -> list[int]:
        return sorted(j for (j, _), t in self.core.tasks.items() if t.state is State.UNKNOWN)

    def those(self, state: State, begun: bool | None = None) -> list[tuple[Manager, str]]:
        return [(m, tag) for m in self.managers.values() for tag in m.those(state, begun)]

    @rule(by=st.sampled_from([-3600.0, -5.0, 5.0, 3600.0]))
    def set_clock(self, by: float) -> None:
        self.now += by
        for manager in self.managers.values():
            manager.up_since += by
            manager.boot += by
            manager.told_at += by
        self.step(ClockSet(self.now, by))

    @rule(name=st.sampled_from(sorted(SIZES)))
    def forget(self, name: str) -> None:
        """The manager lists no more what has ended; its accounting still knows."""
        manager = self.managers[name]
        self.now += 1.0
        manager.up_since = self.now
        ended = {t: r for t, r in manager.rows.items() if r.state in ATTEMPT_FINAL}
        manager.forgot |= ended
        for tag in ended:
            del manager.rows[tag]

    @rule(name=st.sampled_from(sorted(SIZES)))
    def drop(self, name: str) -> None:
        """Somebody cancels a pending job, of which the manager keeps no record at all."""
        manager = self.managers[name]
        for tag, row in manager.rows.items():
            if row.state is State.PENDING:
                del manager.rows[tag]
                self.cancelled.add(job_of(tag))
                return

    # What must always hold

    @invariant()
    def none_begun_twice(self) -> None:
        begun: Counter[int] = Counter()
        for manager in self.managers.values():
            for tag, times in manager.begun.items():
                begun[job_of(tag)] += times
        for job, times in begun.items():
            assert times <= 1 + self.requeued[job] + self.excused[job], (job, times)

    @invariant()
    def one_place_each(self) -> None:
        for (job, _), task in self.core.tasks.items():
            assert job not in self.final
            if task.state in WITH_US:
                assert task.attempt is None
            else:
                assert task.state in LIVE
                assert task.attempt is not None
                assert task.attempt.state is task.state
        assert set(self.jobs) == set(self.final) | {job for job, _ in self.core.tasks}

    @invariant()
    def nothing_new_on_a_drained_cluster(self) -> None:
        out = self.outcomes[-1]
        for what in out.actions:
            assert not (isinstance(what, Send) and self.core.drain(what.cluster)) or isinstance(
                self.events[-1], Booted
            ), what

    @invariant()
    def loads_equal_a_recount(self) -> None:
        for name in self.configured:
            queued = [t for t in self.core.tasks_on(name) if t.state in UNSTARTED]
            counts = [
                sum(t.priority >= p for t in queued)
                for p in range(1, self.core.policy.max_priority + 1)
            ]
            assert self.core.dispatch.count(name) == counts

    def teardown(self) -> None:
        """All faults end: every job must end, having begun once, unless cancelled or refused."""
        if not hasattr(self, "core"):
            return
        self.crash(False, False, sorted(SIZES), 10)
        for name in SIZES:
            self.resume(name)
            self.resize(name, 1)
        for job in self.jobs:
            if (job, 0) in self.core.tasks:
                self.step(Asked(self.now, "release", job))
        for _ in range(20 * (len(self.jobs) + 2)):
            self.now += 301.0
            self.step(Due(self.now))
            for name in SIZES:
                self.poll(name, True)
            while self.actions:
                self.act(None, "done")
            for name in SIZES:
                self.poll(name, False)
            while self.actions:
                self.act(None, "done")
            for _, tag in self.those(State.PENDING):
                assert self.core._of(tag, 0), f"{tag} was left behind"
            for name, manager in self.managers.items():
                self.poll(name, False)
                manager.start(self.now)
                while manager.used():
                    manager.end(self.now, State.COMPLETED)
            if all(t.state is State.UNKNOWN for t in self.core.tasks.values()):
                break
        for (job, _), task in self.core.tasks.items():
            assert task.state is State.UNKNOWN, (task.name, task.state, task.reason)
            assert job in self.lost or any(m.boot for m in self.managers.values())
        for manager in self.managers.values():
            for tag, row in manager.rows.items():
                assert row.state in ATTEMPT_FINAL or (job_of(tag), 0) in self.core.tasks, row
        begun = {job_of(tag) for m in self.managers.values() for tag in m.begun}
        for job, state in self.final.items():
            if state is State.REJECTED:
                assert job not in begun
            elif job not in self.cancelled:
                assert job in begun, f"job {job} is {state} but never began"
        self.none_begun_twice()
        again = list(replay(self.events))
        assert [o.actions for o in again] == [o.actions for o in self.outcomes]
        assert [o.changes for o in again] == [o.changes for o in self.outcomes]


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
