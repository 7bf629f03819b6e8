"""The core against a small world of managers that answer, fall silent and lose answers.

Managers lose what they had acknowledged and issue its id again, bring back what was cancelled,
and restart jobs; the clock is set, operators err. Whatever the order of events: no illegal
transition, no job lost, none begun twice by our doing, nothing left behind in a manager, the
loads equal a recount, no more licences are leased than there are and none is lost, and the
recorded events replayed give the same decisions.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from metasched.adapters.claims import TAKEN
from metasched.arrays import folded
from metasched.core import Core, replay
from metasched.dependencies import KINDS as AFTER
from metasched.dependencies import SINGLETON, Fate, parse_dependency
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
    LicencesCounted,
    LicenceSet,
    LicencesReleased,
    Look,
    Modified,
    Outcome,
    Policy,
    Requeued,
    Resumed,
    Returned,
    Revoke,
    Revoked,
    Seen,
    Send,
    Silent,
    Submitted,
    Task,
    Traced,
    Tried,
    Unsure,
    Withdraw,
)
from metasched.licences import Lease, LicenceCount, LicencePool, Lingering
from metasched.model import (
    Cluster,
    Copies,
    Facts,
    Job,
    Nodes,
    Partition,
    Reason,
    Row,
    State,
    tag_of,
)
from metasched.transitions import ATTEMPT_FINAL, FINAL, LIVE, UNSTARTED, WITH_US, Event

INSTANCE = "cafe"
SIZES = {"left": 8, "right": 4}
KINDS = (*AFTER, SINGLETON)
POOLS = (
    LicencePool(name="a", total=2, linger=30.0),
    LicencePool(name="b", total=3, server="s", stale_after=500.0),
    LicencePool(name="c", total=1, clusters=("left",)),
)
WANTS: tuple[dict[str, int], ...] = (
    {},
    {},
    {},
    {"a": 1},
    {"a": 2},
    {"a": 1, "b": 1},
    {"b": 3},
    {"c": 1},
    {"a": 1, "c": 1},
)
Key = tuple[str, int]  # tag, task
Place = tuple[int, int]  # job, task


@dataclass
class Manager:
    """The truth on one cluster: what was queued under which tag, what began, what ended.

    Its listing proves absence from `up_since` on; its accounting keeps what it `forgot`. With a
    `fence` what begins makes its claim first: `claims` tells of each whether it is revoked.
    """

    cpus: int
    fence: str = ""
    claims: dict[Key, bool] = field(default_factory=dict)
    rows: dict[Key, Row] = field(default_factory=dict)
    sizes: dict[Key, int] = field(default_factory=dict)
    begun: Counter[Key] = field(default_factory=Counter)
    up_since: float = 0.0
    boot: float = 0.0
    forgot: dict[Key, Row] = field(default_factory=dict)
    licences: dict[str, Copies] = field(default_factory=dict)
    ids: int = 0
    told: set[Key] = field(default_factory=set)
    told_at: float = 0.0

    def submit(self, tag: str, indices: Iterable[int], cpus: int) -> dict[int, str]:
        taken = {}
        for index in indices:
            self.ids += 1
            taken[index] = f"n{self.ids}"
            self.rows[tag, index] = Row(tag, index, taken[index], State.PENDING)
            self.sizes[tag, index] = cpus
        return taken

    def used(self) -> int:
        return sum(self.sizes[t] for t, r in self.rows.items() if r.state is State.RUNNING)

    def start(self, now: float) -> None:
        for tag, row in self.rows.items():
            if row.state is State.PENDING and self.sizes[tag] <= self.cpus - self.used():
                self.rows[tag] = replace(row, state=State.RUNNING, started=now)
                if self.fence and tag in self.claims:
                    self.end_one(tag, now, State.FAILED, TAKEN)
                    continue
                self.claims[tag] = False
                self.begun[tag] += 1

    def end(self, now: float, state: State) -> None:
        for tag, row in self.rows.items():
            if row.state is State.RUNNING:
                self.end_one(tag, now, state, 0)
                return

    def end_one(self, key: Key, now: float, state: State, code: int) -> None:
        self.rows[key] = replace(self.rows[key], state=state, ended=now, exit_code=code)

    def withdraw(self, tag: str, indices: Iterable[int], unstarted: bool, now: float) -> None:
        for index in indices:
            row = self.rows.get((tag, index))
            if row is None or row.state not in (State.PENDING, State.RUNNING):
                continue
            if row.state is State.PENDING or not unstarted:
                self.rows[tag, index] = replace(row, state=State.CANCELLED, ended=now)

    def those(self, state: State, begun: bool | None = None) -> list[Key]:
        """Those in a state; `begun`: only those that have, or have not."""
        return [
            key
            for key, row in self.rows.items()
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
            tuple(
                self.forgot[m.tag, m.task] for m in look.missing if (m.tag, m.task) in self.forgot
            ),
            tuple((m.tag, m.task) for m in look.missing if (m.tag, m.task) not in known),
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
            licences=dict(self.licences),
        )


def place(key: Key) -> Place:
    """The job and the task that a manager's row is about."""
    return int(key[0].split("-")[2]), key[1]


class World(RuleBasedStateMachine):
    """Users, managers, a shell that may crash between any two steps, and the clock."""

    binds_late = False  # what is reserved

    @initialize(
        pull=st.booleans(),
        load=st.sampled_from(["observed", "paper"]),
        send=st.sampled_from(["at_once", "at_once", "late"]),
        sizes=st.lists(st.sampled_from([1, 2, 4, 6, 8]), max_size=6),
        fences=st.sampled_from([[], [], ["left"], ["left", "right"]]),
    )
    def boot(self, pull: bool, load: str, send: str, sizes: list[int], fences: list[str]) -> None:
        """Both clusters have been heard from, and have what `sizes` asks for."""
        self.now = 1000.0
        self.policy = Policy(pull=pull, load=load, send=send, pull_after=5.0, patience=60.0)  # type: ignore[arg-type]
        self.managers = {
            name: Manager(cpus, "/fence" if name in fences else "") for name, cpus in SIZES.items()
        }
        self.core = Core()
        self.configured = sorted(SIZES)
        self.described: tuple[LicencePool, ...] = POOLS
        self.events: list[CoreEvent] = []
        self.outcomes: list[Outcome] = []
        self.actions: list[Action] = []
        self.jobs: dict[int, Job] = {}
        self.submitted: dict[int, Job] = {}
        self.again: dict[Place, tuple[int, int]] = {}
        self.requeued: Counter[Place] = Counter()
        self.cancelled: set[Place] = set()
        self.lost: set[Place] = set()
        self.excused: Counter[Place] = Counter()  # starts that were not of our doing
        self.final: dict[Place, State] = {}
        self.begun_at: dict[Place, float] = {}  # as we know it; of ended ones, too
        self.came: set[Place] = set()  # their dependencies held at some time
        self.ended_attempts: dict[tuple[int, int, int], State] = {}
        self.pools: dict[str, list[int]] = {}  # total, leased, beyond it, as the database counts
        self.held: dict[Place, dict[str, int]] = {}  # likewise, by whom
        self.lingering: list[Lingering] = []
        self.totals: dict[str, int] = {}  # that an operator has set
        self.doubted = False  # an operator has said what was not so
        self.step(self.booted())
        for name in SIZES:
            self.poll(name, True)
        for cpus in sizes:
            self.submit(cpus, None, None, False, None, [], False, False, "mine", {}, None)
        while self.actions:
            self.act(None, "done")

    def booted(self, max_priority: int = 10) -> Booted:
        clusters = tuple(
            Cluster(
                name=name,
                adapter="local",
                move_after=20.0,
                fence_dir=self.managers[name].fence,
                reserves=True,
                binds_late=self.binds_late,
            )
            for name in self.configured
        )
        policy = replace(self.policy, max_priority=max_priority)
        return Booted(self.now, INSTANCE, policy, clusters, pools=self.described)

    def step(self, event: CoreEvent) -> None:
        self.events.append(event)
        out = self.core.step(event)
        self.outcomes.append(copy.deepcopy(out))
        self.actions += out.actions
        self.store_licences(out)
        for task, attempt in out.closed:
            key = (task.job.id, task.index, attempt.number)
            assert key not in self.ended_attempts, "an ended attempt ended again"
            assert attempt.state in ATTEMPT_FINAL
            self.ended_attempts[key] = attempt.state
            place = (task.job.id, task.index)
            highest = max(attempt.sending, self.again.get(place, (0, 0))[1])
            self.again[place] = (task.attempts, highest)
        for change in out.changes:
            if change.event is Event.REQUEUE:
                place = (change.job, change.index)
                self.requeued[place] += 1
                self.cancelled.discard(place)
                self.final.pop(place, None)
                self.begun_at.pop(place, None)
        for place, task in out.tasks.items():
            assert place not in self.final, "an ended task changed"
            started = task.attempt.started if task.attempt else None
            if task.state in FINAL:
                self.final[place] = task.state
                assert task.ended is not None
                self.begun_at[place] = task.ended if started is None else started
            elif started is not None:
                self.begun_at[place] = started
            else:
                self.begun_at.pop(place, None)
        for place, task in self.core.tasks.items():
            if not task.attempts and task.job.dependency and self.has_come(task.job, task.index):
                self.came.add(place)
        for action in out.actions:
            if isinstance(action, Send) and not isinstance(event, Booted):
                for index in action.indices:
                    self.may_be_sent(self.core.tasks[action.job, index])

    def store_licences(self, out: Outcome) -> None:
        """As the database does it, with its constraint."""
        for name, told in out.standings.items():
            pool = self.pools.setdefault(name, [0, 0, 0])
            pool[0] = pool[0] if told.total is None else told.total
            pool[2] = max(pool[1] - pool[0], 0)
        for change in out.leases:
            lease = change if isinstance(change, Lease) else change.lease
            place = (lease.job, lease.index)
            for name, many in lease.tokens.items():
                pool = self.pools[name]
                pool[1] += many if change is lease else -many
                if change is not lease or lease.forced:
                    pool[2] = max(pool[1] - pool[0], 0)
                assert 0 <= pool[1] <= pool[0] + pool[2], (name, pool)
            if isinstance(change, Lease):
                assert place not in self.held
                self.held[place] = dict(lease.tokens)
            else:
                assert self.held.pop(place) == lease.tokens
                self.lingering += [
                    Lingering(name, lease.tokens[name], change.until, until)
                    for name, until in change.lingers.items()
                ]

    def may_be_sent(self, task: Task) -> None:
        """What it depends on has come, if it is sent for the first time; by the words of sbatch."""
        if task.attempts == 1 and task.job.dependency is not None:
            came = (task.job.id, task.index) in self.came
            assert came or self.has_come(task.job, task.index), (task.name, task.job.dependency)

    def has_come(self, job: Job, index: int) -> bool:
        any_of = "?" in (job.dependency or "")
        found = [
            self.term_has_come(job, index, word)
            for word in (job.dependency or "").replace("?", ",").split(",")
        ]
        return any(found) if any_of else all(found)

    def term_has_come(self, job: Job, index: int, word: str) -> bool:
        kind, _, target = word.partition(":")
        if kind == "singleton":
            earlier = [j for j in self.jobs.values() if j.name == job.name and j.id < job.id]
            return all((j.id, i) in self.final for j in earlier for i in j.indices)
        target, _, minutes = target.partition("+")
        id, _, one = target.partition("_")
        places = [(int(id), i) for i in ([int(one)] if one else self.jobs[int(id)].indices)]
        if kind == "aftercorr" and not one and job.array and self.jobs[int(id)].array:
            places = [(int(id), index)]
        ends = [self.final.get(place) for place in places]
        match kind:
            case "after":
                begun = [self.begun_at.get(place, 1e12) for place in places]
                return self.now >= max(begun) + 60 * int(minutes or 0)
            case "afterany":
                return None not in ends
            case "afternotok":
                return None not in ends and any(end is not State.COMPLETED for end in ends)
            case _:
                return all(end is State.COMPLETED for end in ends)

    def fates_of(self, job: Job) -> tuple[Fate, ...]:
        """What the database knows of the jobs that one depends on."""
        found = []
        for target in parse_dependency(job.dependency or "").targets:
            places = [
                (target.job, i) for i in self.jobs[target.job].indices if target.index in (None, i)
            ]
            ended = [place for place in places if place in self.final]
            good = [i for j, i in ended if self.final[j, i] is State.COMPLETED]
            bad = [i for j, i in ended if self.final[j, i] is not State.COMPLETED]
            begun = max((self.begun_at[place] for place in ended), default=0.0)
            array = self.jobs[target.job].array is not None
            found.append(Fate(target, len(places), array, folded(good), folded(bad), begun))
        return tuple(found)

    # Users

    @rule(
        cpus=st.sampled_from([1, 2, 4, 6, 8]),
        deadline=st.one_of(st.none(), st.floats(-100, 1e5)),
        begin=st.one_of(st.none(), st.floats(0, 50)),
        held=st.booleans(),
        array=st.sampled_from([None, None, None, "0-2", "1-4%1", "1-6%2", "2,5%1", "3"]),
        kinds=st.lists(st.sampled_from(KINDS), max_size=2),
        any_of=st.booleans(),
        kill=st.booleans(),
        name=st.sampled_from(["mine", "yours"]),
        wants=st.sampled_from(WANTS),
        data=st.data(),
    )
    def submit(
        self,
        cpus: int,
        deadline: float | None,
        begin: float | None,
        held: bool,
        array: str | None,
        kinds: list[str],
        any_of: bool,
        kill: bool,
        name: str,
        wants: dict[str, int],
        data: Any,
    ) -> None:
        terms = [term for kind in kinds if (term := self.some_term(kind, array, data)) is not None]
        job = Job(
            id=len(self.jobs) + 1,
            submitted=self.now,
            estimated=100.0,
            cpus=cpus,
            tasks=cpus,
            deadline=None if deadline is None else self.now + deadline,
            begin=None if begin is None else self.now + begin,
            held=held,
            name=name,
            licences=wants,
            array=array,
            dependency=("?" if any_of else ",").join(terms) or None,
            kill_on_invalid_dep=kill,
        )
        fates = self.fates_of(job) if job.dependency else ()
        self.jobs[job.id] = self.submitted[job.id] = job
        self.step(Submitted(self.now, job, fates))

    def some_term(self, kind: str, array: str | None, data: Any) -> str | None:
        if kind == "singleton":
            return kind
        jobs = sorted(self.jobs)
        if kind == "aftercorr" and array is not None:  # each of its tasks must have its like there
            jobs = [j for j in jobs if self.jobs[j].array == array or not self.jobs[j].array]
        if not jobs:
            return None
        job = data.draw(st.sampled_from(jobs))
        index = data.draw(st.sampled_from((None, *self.jobs[job].indices)))
        later = "+1" if kind == "after" and data.draw(st.booleans()) else ""
        return f"{kind}:{job}{'' if index is None else f'_{index}'}{later}"

    @rule(data=st.data(), wish=st.sampled_from(["cancel", "hold", "release"]))
    def ask(self, data: st.DataObject, wish: str) -> None:
        if not self.jobs:
            return
        job = data.draw(st.sampled_from(sorted(self.jobs)))
        some = tuple(data.draw(st.sets(st.sampled_from(self.jobs[job].indices))))
        if wish == "cancel":
            self.cancelled |= {(job, i) for i in some or self.jobs[job].indices}
        self.step(Asked(self.now, wish, job, some or None, by="ada"))  # type: ignore[arg-type]

    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        if not self.jobs:
            return
        job = data.draw(st.sampled_from(sorted(self.jobs)))
        ended = [i for i in self.jobs[job].indices if (job, i) in self.final]
        last = max(
            sending for _, sending in (self.again.get((job, i), (0, 0)) for i in ended or [0])
        )
        tasks = tuple(
            Again(i, self.final[job, i], self.again.get((job, i), (0, 0))[0]) for i in ended
        )
        fates = self.fates_of(self.jobs[job]) if self.jobs[job].dependency else ()
        self.step(Asked(self.now, "requeue", job, by="ada"))
        if tasks:
            priority = self.priority(job)
            self.step(Requeued(self.now, self.jobs[job], priority, last, tasks, "ada", fates))

    def priority(self, job: int) -> int:
        """Of a job that is to run again."""
        return 10

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
        if not self.core.tasks:
            return
        job = replace(
            self.jobs[data.draw(st.sampled_from(sorted({id for id, _ in self.core.tasks})))],
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
        if isinstance(action, Revoke):
            self.revoke(manager, action, fate)
            return
        tag = tag_of(INSTANCE, action.job, action.sending)
        if isinstance(action, Withdraw):
            if fate in ("done", "lost answer"):
                manager.withdraw(tag, action.natives, action.unstarted, self.now)
            if fate != "done":
                self.actions.append(action)
            return
        if not self.wanted(action):
            self.step(Returned(self.now, ((action.job, action.sending),)))
            return
        self.step(Tried(self.now, action.job, action.sending))
        cpus, indices = self.jobs[action.job].cpus, self.indices(action)
        match fate:
            case "done":
                natives = manager.submit(tag, indices, cpus)
                self.step(Accepted(self.now, action.job, action.sending, natives))
            case "lost answer":
                taken = data.draw(st.integers(1, len(indices)))
                manager.submit(tag, indices[:taken], cpus)
                self.step(Unsure(self.now, action.job, action.sending, "time-out"))
            case "lost":
                self.step(Unsure(self.now, action.job, action.sending, "time-out"))
            case "refused":
                again = data.draw(st.booleans())
                self.step(Declined(self.now, action.job, action.sending, "no", again))

    def indices(self, send: Send) -> list[int]:
        return [task.index for task in self.core.sending(send.job, send.sending)]

    def goes_before(self, key: Key) -> bool:
        """Whether the task's newer attempt is to yield to this one, which has begun before."""
        task = self.core.tasks.get(place(key))
        sending = int(key[0].split("-")[3])
        return task is not None and task.attempt is not None and task.attempt.rival == sending

    def revoke(self, manager: Manager, action: Revoke, fate: str) -> None:
        if fate in ("done", "lost answer"):
            told = [
                ((c.tag, c.task), manager.claims.setdefault((c.tag, c.task), True))
                for c in action.claims
            ]
            if fate == "done":
                never = tuple(key for key, revoked in told if revoked)
                begun = tuple(key for key, revoked in told if not revoked)
                self.step(Revoked(self.now, never, begun))

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
                cpus = self.jobs[action.job].cpus
                self.managers[action.cluster].submit(tag, self.indices(action), cpus)
        self.actions.clear()
        self.core = self.restored()
        self.configured = configured
        self.step(self.booted(max_priority))

    def restored(self) -> Core:
        """As a database does it."""
        stored, core = copy.deepcopy(self.core), Core()
        core.restore(
            [task for _, task in sorted(stored.tasks.items())],
            stored.books.last_sending,
            stored._facts,
            [j for j in self.submitted.values() if (j.margin or -1) >= 0],
            stored.books.drains.values(),
            ended=stored.books.ended,
            fates={
                id: self.fates_of(self.jobs[id])
                for id in sorted({id for id, _ in stored.tasks})
                if self.jobs[id].dependency
            },
            leases=sorted(
                stored.licences.leases.values(), key=lambda lease: (lease.job, lease.index)
            ),
            lingering=self.lingering,
            totals=self.totals,
        )
        return core

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
                vanished=tuple(sorted(manager.told - manager.rows.keys())),
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

    @rule(name=st.sampled_from("abc"), total=st.sampled_from([None, None, 0, 1, 2, 4]))
    def set_licence(self, name: str, total: int | None) -> None:
        if total is None:
            self.totals.pop(name, None)
        else:
            self.totals[name] = total
        self.step(LicenceSet(self.now, name, total, "op"))

    @rule(total=st.sampled_from([None, 2, 3, 9]), outside=st.integers(0, 3), age=st.floats(-1, 99))
    def count(self, total: int | None, outside: int, age: float) -> None:
        """The server of a licence answers; perhaps with another's clock."""
        count = LicenceCount("b", total, outside, self.now - age)
        self.step(LicencesCounted(self.now, (count,)))

    @precondition(lambda self: self.unknown())
    @rule(data=st.data())
    def release_licences(self, data: st.DataObject) -> None:
        job, index = data.draw(st.sampled_from(self.unknown()))
        self.doubted = True
        self.step(LicencesReleased(self.now, job, (index,), by="op"))
        assert (job, index) not in self.held

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
        for key in reversed(manager.those(State.PENDING, begun=False)):
            del manager.rows[key]
            manager.ids -= 1  # the next job gets its id
            self.lost.add(place(key))
            return

    @precondition(lambda self: self.those(State.CANCELLED, begun=False))
    @rule(data=st.data())
    def bring_back(self, data: st.DataObject) -> None:
        """A manager restarts without its last cancel: what was withdrawn waits again."""
        manager, key = data.draw(st.sampled_from(self.those(State.CANCELLED, begun=False)))
        self.now += 1.0
        manager.boots(self.now)
        manager.rows[key] = replace(manager.rows[key], state=State.PENDING, ended=None)
        self.excused[place(key)] += 1

    @precondition(lambda self: self.those(State.RUNNING))
    @rule(data=st.data(), counted=st.booleans())
    def restart(self, data: st.DataObject, counted: bool) -> None:
        """A manager begins a job anew, after a lost node or because it lost its last seconds."""
        manager, key = data.draw(st.sampled_from(self.those(State.RUNNING)))
        self.now += 1.0
        row = manager.rows[key]
        again = replace(row, state=State.PENDING, started=None)
        if counted:
            again = replace(again, restarts=row.restarts + 1, started=self.now)
        else:
            manager.boots(self.now)
        manager.rows[key] = again
        self.excused[place(key)] += 1

    @precondition(lambda self: self.unknown())
    @rule(data=st.data())
    def write_off(self, data: st.DataObject) -> None:
        """An operator calls lost what nobody knows of; it may be there."""
        job, index = data.draw(st.sampled_from(self.unknown()))
        self.excused[job, index] += 1
        self.step(Asked(self.now, "lost", job, (index,), by="root"))

    def unknown(self) -> list[Place]:
        return sorted(p for p, t in self.core.tasks.items() if t.state is State.UNKNOWN)

    def those(self, state: State, begun: bool | None = None) -> list[tuple[Manager, Key]]:
        return [(m, key) for m in self.managers.values() for key in m.those(state, begun)]

    @rule(by=st.sampled_from([-3600.0, -5.0, 5.0, 3600.0]))
    def set_clock(self, by: float) -> None:
        self.now += by
        for manager in self.managers.values():
            manager.up_since += by
            manager.boot += by
            manager.told_at += by
        self.lingering = [
            replace(back, given_back=back.given_back + by, until=back.until + by)
            for back in self.lingering
        ]
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
        for key, row in manager.rows.items():
            if row.state is State.PENDING:
                del manager.rows[key]
                self.cancelled.add(place(key))
                return

    # What must always hold

    def beginnings(self) -> Counter[Place]:
        begun: Counter[Place] = Counter()
        for manager in self.managers.values():
            for key, times in manager.begun.items():
                begun[place(key)] += times
        return begun

    @invariant()
    def none_begun_twice(self) -> None:
        for task, times in self.beginnings().items():
            assert times <= 1 + self.requeued[task] + self.excused[task], (task, times)

    @invariant()
    def one_place_each(self) -> None:
        for key, task in self.core.tasks.items():
            assert key not in self.final
            if task.state in WITH_US:
                assert task.attempt is None
            else:
                assert task.state in LIVE
                assert task.attempt is not None
                assert task.attempt.state is task.state
        every = {(job.id, index) for job in self.jobs.values() for index in job.indices}
        assert every == self.final.keys() | self.core.tasks.keys()

    @invariant()
    def licences_are_with_those_who_may_run(self) -> None:
        held = {place: lease.tokens for place, lease in self.core.licences.leases.items()}
        assert held == self.held
        for place, task in self.core.tasks.items():
            if task.state in WITH_US:
                assert place not in held, task.name
            elif task.state is not State.UNKNOWN:  # else an operator may have taken them back
                assert held.get(place, {}) == task.job.licences, task.name
        assert held.keys() <= self.core.tasks.keys()
        for name, (_, leased, _) in self.pools.items():
            assert leased == sum(tokens.get(name, 0) for tokens in held.values())

    @invariant()
    def no_more_licences_are_used_than_there_are(self) -> None:
        """In the managers themselves, as long as these and operators tell the truth."""
        if self.excused or self.doubted or self.totals:
            return
        for pool in POOLS:
            used = sum(
                self.jobs[key[0]].licences.get(pool.name, 0)
                for key in (place(k) for _, k in self.those(State.RUNNING))
            )
            assert pool.total is None or used <= pool.total, pool.name

    @invariant()
    def nobody_in_line_could_go(self) -> None:
        for place, task in self.core.tasks.items():
            if place in self.core.licences:
                assert task.state is State.QUEUED
                assert self.core.lacks(task, self.core.books.now), task.name

    @invariant()
    def limits_are_kept_over_all_clusters(self) -> None:
        for job in self.jobs.values():
            limit = job.tasks_of_array.limit if job.tasks_of_array else None
            if limit is None:
                continue
            ours = [t for t in self.core.tasks_of(job.id) if t.state not in WITH_US]
            back = sum(times for key, times in self.excused.items() if key[0] == job.id)
            assert len(ours) <= limit + back, [t.name for t in ours]
            theirs = [
                key
                for manager in self.managers.values()
                for key, row in manager.rows.items()
                if row.state not in ATTEMPT_FINAL and place(key)[0] == job.id
            ]
            assert len(theirs) <= limit + back, theirs

    @invariant()
    def what_may_go_waits_for_a_cluster_only(self) -> None:
        for task in self.core.tasks.values():
            if task.state is State.QUEUED and not task.attempts and task.job.dependency:
                due = self.core.next_due
                if due is not None and due <= self.now:
                    continue
                if task.reason == Reason.DEPENDENCY:
                    assert not self.has_come(task.job, task.index), task.name
                else:
                    assert (task.job.id, task.index) in self.came, task.name

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
        for pool in POOLS:
            self.set_licence(pool.name, None)
        for job in self.jobs:
            self.step(Asked(self.now, "release", job))
        for _ in range(20 * (len(self.jobs) + 2)):
            self.now += 301.0
            self.step(Due(self.now))
            self.count(None, 0, 0.0)
            for name in SIZES:
                self.poll(name, True)
            while self.actions:
                self.act(None, "done")
            for name in SIZES:
                self.poll(name, False)
            while self.actions:
                self.act(None, "done")
            for _, listed in self.those(State.PENDING):
                assert self.core.books.of(*listed) or self.goes_before(listed), f"{listed} is left"
            for name, manager in self.managers.items():
                self.poll(name, False)
                manager.start(self.now)
                while manager.used():
                    manager.end(self.now, State.COMPLETED)
            if all(self.stuck(task) for task in self.core.tasks.values()):
                break
        for key, task in self.core.tasks.items():
            assert self.stuck(task), (
                task.name,
                task.state,
                task.reason,
                task.job.dependency,
                self.core.waits_for(task),
                self.core.next_due,
                self.now,
            )
            if task.state is State.UNKNOWN:
                assert task.attempt is not None
                assert task.attempt.begun or not task.attempt.fence, task  # else it was sent again
                assert key in self.lost or any(m.boot for m in self.managers.values())
        for manager in self.managers.values():
            for listed, row in manager.rows.items():
                assert row.state in ATTEMPT_FINAL or place(listed) in self.core.tasks, row
        begun = self.beginnings()
        for key, state in self.final.items():
            if state is State.REJECTED:  # but perhaps it ran before it was requeued, or called lost
                assert begun[key] <= self.requeued[key] + self.excused[key]
            elif key not in self.cancelled and key not in begun:
                assert state is State.CANCELLED, f"{key} is {state} but never began"
                assert self.jobs[key[0]].kill_on_invalid_dep, key
                # what it depended on may have been requeued since
                assert self.requeued or not self.has_come(self.jobs[key[0]], key[1])
        self.none_begun_twice()
        again = list(replay(self.events))
        assert [o.actions for o in again] == [o.actions for o in self.outcomes]
        assert [o.changes for o in again] == [o.changes for o in self.outcomes]
        assert [o.leases for o in again] == [o.leases for o in self.outcomes]

    def stuck(self, task: Task) -> bool:
        """Nothing that the world still does can end it."""
        if task.state is State.UNKNOWN:
            return True
        if task.state is not State.QUEUED:
            return False
        if task.reason == Reason.DEPENDENCY:
            return not self.has_come(task.job, task.index) and self.core.next_due is None
        if task.reason == Reason.LICENCE_BUSY:
            return bool(self.held)  # with one that is unknown
        unknown = [t for t in self.core.tasks_of(task.job.id) if t.state is State.UNKNOWN]
        limit = task.job.tasks_of_array.limit if task.job.tasks_of_array else None
        return task.reason == Reason.LIMIT_ARRAY and limit is not None and len(unknown) >= limit


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=150, stateful_step_count=40)
