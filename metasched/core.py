"""The meta-scheduler itself: events in, changes and actions out. Pure; clock and seeds are given.

One `Core.step(event)` runs in this order:
1. apply the event to the tasks and clusters it speaks of (`transitions`);
2. classify a job that is new (`policies.classify`);
3. let go on what waits with us and may (`gates`), and keep the clusters that may run it
   (`policies.eligible`);
4. lease all the licences that it wants (`licences`) and choose a cluster (`policies.dispatch`), or
   pull a pending task to where it starts now (`policies.pulling`);
5. pursue what is wished of tasks that are with a manager: cancel, hold, pull;
6. return what changed and what is to be done in the world.

Daemon and simulator drive the same core. Stepping a fresh core through the recorded events of a
daemon gives its decisions again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Literal

from metasched.dependencies import Fate, Prospect
from metasched.events import (
    BACK,
    Accepted,
    Asked,
    Attempt,
    Booted,
    Change,
    ClockSet,
    CoreEvent,
    Declined,
    Drained,
    Due,
    Ended,
    Intent,
    LicencesCounted,
    LicenceSet,
    LicencesReleased,
    Look,
    Modified,
    Outcome,
    Past,
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
    Verdict,
    Withdraw,
)
from metasched.gates import Gates
from metasched.licences import GivenBack, Lease, LicencePool, Licences, Lingering, Standing
from metasched.model import (
    MANAGER_REASON,
    Claim,
    Cluster,
    Facts,
    Job,
    Missing,
    Reason,
    Row,
    State,
    parse_tag,
    tag_of,
)
from metasched.policies.classify import Classifier, Deadline, Licence, User
from metasched.policies.dispatch import LoadOrdering
from metasched.policies.eligible import PERMANENT, Unfit, translated, unfit
from metasched.policies.pulling import Room
from metasched.transitions import BEGUN, FINAL, LIVE, UNSTARTED, Event, advance, reported

MARGINS = 1000  # jobs whose margins are kept: the largest window
FULL_AGAIN = (10.0, 300.0)  # seconds until a full cluster is tried again: first, at the most
LOOK_AGAIN = (5.0, 600.0)  # seconds until accounting is asked again: first, at the most
PURSUE_AGAIN = 60.0  # seconds after which a wish that shows no effect is told to the manager again
LATER_START = 5.0  # seconds by which a start must differ to be another; managers round their times
ENDED_KEPT = 20_000  # ended tasks that are remembered, in case an attempt of theirs comes back


@dataclass
class _Stray:
    """An attempt that is listed although we had given it up; `asked`: when its end was asked for.

    `wish` is None (let it be), or the `unstarted` of the withdrawal that is asked for.
    """

    row: Row
    wish: bool | None = None
    asked: float = 0.0


@dataclass
class _View:
    """One cluster as the core sees it.

    `full` is what its manager said when it took no more for now: until `probe_at` nothing is
    sent, then one task, to see. `ends` and `left` give the cpu seconds that running jobs still
    owe; `owed` are those of ours that have not begun, which are `unstarted`. What is live and not
    `Attempt.calm` is `uneasy`, so that a listing need not look at all the rest. `watched` are the
    seconds for which it has answered us, `missed` those of its present silence in which another
    cluster answered: what expires goes by these, and stands still while nobody could see anything.
    `strays` are by job, index and sending, `withheld` are rows of tasks whose claims are being
    revoked.
    """

    cluster: Cluster
    facts: Facts | None = None
    up: bool = False
    word: str = "not heard from since the start"
    full: str = ""
    full_since: float = 0.0
    watched: float = 0.0
    missed: float = 0.0
    probe_at: float = 0.0
    pause: float = 0.0
    ends: list[float] = field(default_factory=list)
    left: list[tuple[int, float]] = field(default_factory=list)
    owed: float = 0.0
    power: float = 0.0
    unstarted: dict[tuple[int, int], Task] = field(default_factory=dict)
    live: dict[tuple[int, int], Task] = field(default_factory=dict)
    uneasy: dict[tuple[int, int], Task] = field(default_factory=dict)
    strays: dict[tuple[int, int, int], _Stray] = field(default_factory=dict)
    withheld: dict[tuple[int, int], Row] = field(default_factory=dict)
    up_since: float = 0.0  # when its manager last started, as far as it tells

    def learn(self, facts: Facts) -> None:
        self.facts, self.power = facts, facts.cpus * self.cluster.benchmark
        self.ends = [end for end, _ in facts.running]
        cpus, seconds = 0, 0.0
        self.left = [(0, 0.0)]
        for end, size in reversed(facts.running):
            cpus, seconds = cpus + size, seconds + size * end
            self.left.append((cpus, seconds))
        self.left.reverse()

    def running(self, now: float) -> float:
        """Cpu seconds that running jobs owe by their limits; O(log n) in their number."""
        if not self.ends:
            return 0.0
        cpus, seconds = self.left[bisect_right(self.ends, now)]
        return seconds - cpus * now if cpus else 0.0


def _shape(facts: Facts | None, *, passing: bool = True) -> object:
    """What of the facts decides whether a job may be sent: not what is free or running.

    Without the `passing`, which nodes and partitions are up, whether it can ever start there.
    """
    if facts is None:
        return None
    shape = []
    for p in facts.partitions:
        nodes: dict[object, int] = {}
        for n in p.nodes:
            up = passing and n.up
            kind = (n.cpus, n.memory, tuple(sorted(n.gres.items())), n.features, up)
            nodes[kind] = nodes.get(kind, 0) + n.count
        shape.append((p.name, p.default, passing and p.up, p.max_time, p.max_nodes, nodes))
    licences = {n: (c.total, passing and c.used) for n, c in facts.licences.items()}
    return shape, licences


class Core:
    """The state of the whole system, and `step`, the only way to change it."""

    def __init__(self) -> None:
        self.policy = Policy()
        self.instance = ""
        self.tasks: dict[tuple[int, int], Task] = {}
        self._open: dict[int, dict[int, Task]] = {}
        self._ended: dict[tuple[int, int], Ended] = {}
        self._views: dict[str, _View] = {}
        self._sendings: dict[tuple[int, int], dict[int, Task]] = {}
        self._last_sending: dict[int, int] = {}
        self.licences = Licences()
        self._leasing = False  # licences are ours to lease, not the managers' own affair
        self._passed_on: dict[tuple[int, int], Task] = {}  # on the way to where they are pulled
        self._behind: dict[tuple[int, int], float] = {}  # recalled tasks: their key in line
        self._gates = Gates()
        self._margins: list[Job] = []
        self._facts: dict[str, Facts] = {}  # also of clusters that are not configured now
        self._drains: dict[str, Drained] = {}  # likewise
        self._now = 0.0
        self._ticked = 0.0
        self._look_again = False  # something has changed for all that wait
        self._withdrawals: dict[tuple[int, int, bool], dict[int, str | None]] = {}  # of this step
        self.classifier: Classifier
        self.dispatch: LoadOrdering

    # The one entry point

    def step(self, event: CoreEvent) -> Outcome:
        """Apply one event; return what changed and what to do. Never raises on a valid event."""
        out = Outcome()
        if isinstance(event, ClockSet):
            self._ticked += event.by
        self._tick(event.time)
        self._withdrawals = {}
        self.licences.pass_time(event.time)
        match event:
            case Submitted():
                self._submitted(event, out)
            case Seen():
                self._seen(event, out)
            case Traced():
                self._traced(event, out)
            case Revoked():
                self._revoked(event, out)
            case Accepted():
                self._accepted(event, out)
            case Declined():
                self._declined(event, out)
            case Tried():
                for task in self.sending(event.job, event.sending):
                    self._attempt(task).tried = event.time
                    out.tasks[task.job.id, task.index] = task
            case Unsure():
                for task in self.sending(event.job, event.sending):
                    self._attempt(task).tried = event.time
                    self._note(task, f"no answer: {event.reason}", out)
            case Returned():
                returned = [task for pair in event.sendings for task in self.sending(*pair)]
                for task in returned:
                    self._advance(task, Event.ABSENT, event.time, "never tried", out)
            case Silent():
                self._silent(event, out)
            case Asked():
                self._asked(event, out)
            case Requeued():
                self._requeued(event, out)
            case Modified():
                self._modified(event, out)
            case Drained():
                self._drained(event, out)
            case Resumed():
                self._resumed(event, out)
            case LicencesCounted():
                for count in event.counts:
                    if self.licences.counted(count, event.time):
                        out.standings[count.name] = self.licences.standing(count.name, event.time)
            case LicenceSet():
                self.licences.choose(event.name, event.total)
                out.standings[event.name] = self.licences.standing(event.name, event.time)
            case LicencesReleased():
                for task in self.tasks_of(event.job, event.indices):
                    if task.state is State.UNKNOWN:
                        self._give_back(task, f"released by {event.by}", event.time, out)
            case ClockSet():
                self._clock_set(event, out)
            case Booted():
                self._booted(event, out)
                self._look_again = True
            case Due():
                self._gates.pass_time(event.time)
                self._look_again = True
        self._place(event.time, out)
        if isinstance(event, Seen) and self.policy.pull:
            self._pull(self._views[event.cluster], event.time, out)
        return out

    def _tick(self, now: float) -> None:
        """Let time pass for the clusters that answer, and for those that alone do not."""
        passed, self._ticked, self._now = max(now - self._ticked, 0.0), now, now
        some = any(view.up for view in self._views.values())
        for view in self._views.values():
            if view.up:
                view.watched += passed
            elif some:
                view.missed += passed

    # Restoring what a database knows

    def restore(
        self,
        tasks: Iterable[Task],
        last_sendings: dict[int, int],
        facts: dict[str, Facts],
        margins: Iterable[Job],
        drains: Iterable[Drained] = (),
        ended: Mapping[tuple[int, int], Ended] | None = None,
        fates: Mapping[int, Iterable[Fate]] | None = None,
        leases: Iterable[Lease] = (),
        lingering: Iterable[Lingering] = (),
        totals: Mapping[str, int] | None = None,
    ) -> None:
        """Take over stored tasks before the first event, which must be `Booted`.

        `last_sendings` maps each open job to its highest sending, `margins` are the last jobs
        with a deadline that could be met, oldest first, `drains` what operators keep closed,
        `ended` the last tasks that ended, oldest first, `fates` maps an open job to what has
        become of those that it depends on; `leases` are the live ones, `totals` what operators have
        set of licences.
        """
        self.licences.restore(leases, lingering, totals or {})
        self._drains = {drain.cluster: drain for drain in drains}
        self._margins = list(margins)
        self._last_sending = dict(last_sendings)
        self._facts = dict(facts)
        self._ended = dict(ended or {})
        for task in tasks:
            self._keep_open(task)
        for id, found in (fates or {}).items():
            self._depend(self.tasks_of(id)[0].job, tuple(found))

    def _keep_open(self, task: Task) -> None:
        self.tasks[task.job.id, task.index] = task
        if task.job.id not in self._open:
            self._gates.opened(task.job)
        self._open.setdefault(task.job.id, {})[task.index] = task
        if task.attempt is not None:
            self._sendings.setdefault((task.job.id, task.attempt.sending), {})[task.index] = task

    def _depend(self, job: Job, fates: tuple[Fate, ...]) -> None:
        self._gates.depend(job, fates)
        for id in {fate.target.job for fate in fates}:
            for task in self.tasks_of(id):
                self._gates.happened(task)

    def _configure(
        self,
        policy: Policy,
        clusters: tuple[Cluster, ...],
        licences: int,
        pools: tuple[LicencePool, ...] | None,
    ) -> None:
        self.policy = policy
        self._leasing = pools is not None
        self.licences.configure(pools or (), policy.patience)
        self._passed_on, self._behind = {}, {}
        self.classifier = Classifier(
            max_priority=policy.max_priority,
            heuristics=[
                Deadline(window=policy.window),
                Licence(total=max(licences if pools is None else len(pools), 1)),
                User(classes=policy.classes),
            ],
            weights=policy.weights,
        )
        for job in self._margins[-policy.window :]:
            self.classifier.remember(job)
        self._views = {c.name: _View(c) for c in clusters}
        for name, view in self._views.items():
            if name in self._facts:
                view.learn(self._facts[name])
        self.dispatch = LoadOrdering(
            [c.name for c in clusters],
            max_priority=policy.max_priority,
            seed=policy.seed,
            tolerance=policy.tolerance,
            load=policy.load,
            ordering=policy.ordering,
        )

    def _booted(self, event: Booted, out: Outcome) -> None:
        self.instance = event.instance
        self._configure(event.policy, event.clusters, event.licences, event.pools)
        everything = [self.tasks[key] for key in sorted(self.tasks)]
        for kept in (self.tasks, self._open, self._sendings):
            kept.clear()  # from now on in the order in which a database gives them
        self._gates.restart(task for task in everything if task.attempt is not None)
        untried: dict[tuple[int, int, str], list[int]] = {}
        for task in everything:
            self._keep_open(task)
        for task in everything:
            task.priority = min(task.priority, event.policy.max_priority)
            task.key = self._key(task.job, task.priority)
            attempt = task.attempt
            if attempt is None:
                if task.state is State.QUEUED:
                    self._wait(task, event.time, out)
                continue
            attempt.watched = 0.0
            attempt.seen, attempt.given_up = False, False
            attempt.asked = None if attempt.intent is None else 0.0  # it may have been told
            attempt.listed, attempt.looks, attempt.look_at = None, 0, 0.0
            if attempt.sent > event.time:
                attempt.sent = 0.0  # the clock was set back meanwhile: no listing proves so much
            never_tried = attempt.untried
            if attempt.cluster in self._views:
                view = self._views[attempt.cluster]
                view.live[task.job.id, task.index] = view.uneasy[task.job.id, task.index] = task
                self._count(task, attempt.state, +1)
                if attempt.tried is not None:
                    attempt.tried = event.time  # a try may have gone on until now
                elif never_tried:
                    untried.setdefault((task.job.id, attempt.sending, attempt.cluster), []).append(
                        task.index
                    )
            elif attempt.state is not State.UNKNOWN:
                cause = f"cluster {attempt.cluster} is no longer configured"
                happened = Event.ABSENT if never_tried else Event.SILENCE
                self._advance(task, happened, event.time, cause, out)
        for (job, sending, cluster), indices in untried.items():
            out.actions.append(Send(job, sending, cluster, tuple(indices)))
        for view in self._views.values():
            self._revoke(view, [t for t in view.live.values() if self._attempt(t).revoking], out)
        self._reconcile(event.time, out)

    def _key(self, job: Job, priority: int) -> float:
        return job.submitted - self.policy.age * (priority - 1)

    def _clock_set(self, event: ClockSet, out: Outcome) -> None:
        """Move what durations are counted from: a step of the clock is no time that has passed.

        What bounds a proof from below is moved back, never forward: perhaps the time did pass,
        and this host slept.
        """
        back = min(event.by, 0.0)
        for task in self.tasks.values():
            if (attempt := task.attempt) is None:
                continue
            attempt.sent += back
            attempt.look_at += event.by
            for name, by in (
                *(("accepted", back), ("listed", back)),
                *(("tried", event.by), ("asked", event.by)),
            ):
                if (moment := getattr(attempt, name)) is not None:
                    setattr(attempt, name, moment + by)
            out.tasks[task.job.id, task.index] = task
        for view in self._views.values():
            view.full_since += back
            view.probe_at += event.by
            for stray in view.strays.values():
                stray.asked += event.by
        self.licences.clock_set(event.by)
        self._gates.pass_time(event.time)
        self._look_again = True

    # 1. Apply

    def _submitted(self, event: Submitted, out: Outcome) -> None:
        job = event.job
        out.parts = self.classifier.parts(job)
        priority = self.classifier.weighed(out.parts)
        self.classifier.remember(job)
        if job.margin is not None and job.margin >= 0:
            self._margins = [*self._margins[1 - MARGINS :], job]
        if job.dependency is not None:
            self._depend(job, event.fates)
        key = self._key(job, priority)
        tasks = [Task(job, index, priority, key, held=job.held) for index in job.indices]
        for task in tasks:  # all, before one of them may end
            self._keep_open(task)
        for task in tasks:
            if job.held:
                task.state, task.reason = State.HELD, Reason.HELD
                self._record(task, None, None, "submitted", out)
                continue
            prospect = self._gates.queued(task, event.time)
            waits = "" if prospect is Prospect.MET else f"; {self._gates.told(task, event.time)}"
            self._record(task, None, None, f"submitted{waits}", out)
            self._despair(task, prospect, event.time, out)

    def _accepted(self, event: Accepted, out: Outcome) -> None:
        for task in self.sending(event.job, event.sending):
            attempt = self._attempt(task)
            attempt.native_id = event.natives.get(task.index)
            attempt.accepted = event.time
            attempt.tried = None
            cause = "the manager took it" + (f", by {event.access}" if event.access else "")
            self._advance(task, Event.ACCEPT, event.time, cause, out)
            self._pursue(task, event.time, out)
            view = self._views.get(attempt.cluster)
            if view is not None and view.full:
                view.full, view.pause = "", 0.0
                self._look_again = True

    def _declined(self, event: Declined, out: Outcome) -> None:
        tasks = self.sending(event.job, event.sending)
        view = self._views.get(self._attempt(tasks[0]).cluster) if tasks else None
        full = event.again and view is not None
        if event.again and view is not None:
            first, most = FULL_AGAIN
            view.pause = min(view.pause * 2, most) or first
            view.full, view.full_since = event.reason, event.time
            view.probe_at = event.time + view.pause
        for task in tasks:
            if not full:
                attempt = self._attempt(task)
                task.refused.add(attempt.cluster)
                attempt.refused = True
            self._advance(task, Event.REFUSE, event.time, event.reason, out)

    def _silent(self, event: Silent, out: Outcome) -> None:
        view = self._views[event.cluster]
        view.up, view.word = False, event.reason
        for task in list(view.live.values()):
            attempt = self._attempt(task)
            if attempt.state is not State.UNKNOWN and not attempt.untried:
                self._advance(task, Event.SILENCE, event.time, event.reason, out)
        self._look_again = True

    def _seen(self, event: Seen, out: Outcome) -> None:
        view = self._views[event.cluster]
        waiting = bool(self._gates.ready)
        before = (view.up, _shape(view.facts) if waiting and event.facts else None)
        known = _shape(view.facts, passing=False) if view.up and event.facts else None
        view.up, view.word = True, ""
        if event.facts is not None:
            view.learn(event.facts)
            self._facts[event.cluster] = event.facts
        view.up_since = event.up_since
        if event.full:
            view.strays.clear()
            view.withheld.clear()
        for row in event.rows:
            sending = parse_tag(row.tag, self.instance)
            task = self._of(row.tag, row.task)
            if task is None and sending is not None:
                self._stray(view, *sending, row, event.time, out)
            elif task is not None and self._attempt(task).cluster == event.cluster:
                self._row(task, row, event.time, out)
        listed = {  # now, as some of them may just have been adopted
            (task.job.id, task.index)
            for row in event.rows
            if (task := self._of(row.tag, row.task)) is not None
            and self._attempt(task).cluster == event.cluster
        }
        gone = set()
        for tag, index in event.vanished:
            if (sending := parse_tag(tag, self.instance)) is not None:
                view.strays.pop((sending[0], index, sending[1]), None)
            if (task := self._of(tag, index)) is not None:
                gone.add((task.job.id, task.index))
                view.withheld.pop((task.job.id, task.index), None)
        for key, task in self._to_look_at(view, event, gone):
            attempt = self._attempt(task)
            if attempt.calm:
                view.uneasy.pop(key, None)
            if key in listed:
                continue
            if attempt.seen and not attempt.given_up and (event.full or key in gone):
                attempt.listed = event.before
            if event.full or key in gone or attempt.given_up or not attempt.seen:
                self._missing(task, event, out)
            self._pursue(task, event.time, out)
        if event.facts is not None and known != _shape(view.facts, passing=False):
            self._recall(view, event.time, out)
        self._lose_patience(view, event.time, out)
        missed, view.missed = view.missed, 0.0
        if view.cluster.move_after is not None and missed >= view.cluster.move_after:
            self._leave(view, f"it was silent for {missed:.0f} s", event.time, out)
        self._look(view, event.time, out)
        for known_by, stray in view.strays.items():
            self._chase(view, known_by, stray, event.time, out)
        self._weigh(view)
        self._gates.pass_time(event.time)
        after = (True, _shape(view.facts) if waiting and event.facts else None)
        if before != after or self._may_probe(view, event.time):
            self._look_again = True

    @staticmethod
    def _to_look_at(
        view: _View, event: Seen, gone: set[tuple[int, int]]
    ) -> list[tuple[tuple[int, int], Task]]:
        """What is live on a cluster and not simply as it was in the last listing."""
        if event.full:
            return list(view.live.items())
        keys = {**view.uneasy, **{key: view.live[key] for key in sorted(gone) if key in view.live}}
        return list(keys.items())

    def _row(self, task: Task, row: Row, now: float, out: Outcome) -> None:
        """What a manager lists of a live attempt.

        While its claim is being revoked that may be a payload which only finds its claim taken.
        """
        if self._attempt(task).revoking:
            view = self._views[self._attempt(task).cluster]
            view.withheld[task.job.id, task.index] = row
            return
        if self._restarted(self._attempt(task), row):
            self._restart(task, row, now, out)
        attempt = self._attempt(task)
        attempt.seen, attempt.given_up, attempt.tried = True, False, None
        attempt.native_id = row.native_id
        # what waits to begin again has no start of its own yet
        attempt.started = None if row.state is State.PENDING else row.started
        attempt.begun |= row.started is not None
        attempt.ended = row.ended
        attempt.exit_code, attempt.signal = row.exit_code, row.signal
        attempt.word, attempt.node = row.word, row.node
        attempt.cpu_seconds, attempt.max_memory = row.cpu_seconds, row.max_memory
        out.tasks[task.job.id, task.index] = task
        event = reported(attempt.state, row.state)
        moving = attempt.intent in BACK
        if event is Event.KILL and moving and row.started is None:
            event = Event.WITHDRAW
        if event is Event.WITHDRAW:
            self._advance(task, event, now, f"gone unstarted, for the {attempt.intent}", out)
        elif event is not None:
            self._advance(task, event, now, row.word, out)
        elif attempt.state is State.PENDING and row.word and task.reason != Reason.DUPLICATE:
            task.reason = MANAGER_REASON + row.word
        if moving and task.attempt is attempt and attempt.begun:
            if attempt.intent is Intent.RECALL and attempt.state in BEGUN:
                self._note(task, "it had begun before it could be taken back", out)
            if attempt.rival is not None:
                self._duplicate(task, attempt.rival, out)
            attempt.intent = attempt.target = attempt.asked = attempt.rival = None
            task.held = False
            out.tasks[task.job.id, task.index] = task
        self._pursue(task, now, out)

    @staticmethod
    def _restarted(attempt: Attempt, row: Row) -> bool:
        """Whether the manager has begun the payload anew since we last saw the attempt.

        By its own count, or because what ran waits, or has another start: a controller that
        lost its last seconds no longer counts. It may count while the payload has yet to end:
        then the start is still the one that we know.
        """
        if row.restarts > attempt.restarts:
            return row.state is State.PENDING or row.started != attempt.started
        if attempt.started is None:
            return False
        if row.state is State.PENDING:
            return True
        again = row.started is not None and row.started > attempt.started + LATER_START
        return again and row.state is State.RUNNING

    def _restart(self, task: Task, row: Row, now: float, out: Outcome) -> None:
        """Open the attempt that the manager has begun by itself; the last one ended with that."""
        last = self._attempt(task)
        before = last.state
        self._count(task, before, -1)
        last.state = State.NODE_FAIL
        last.ended = last.ended or now
        last.word = last.word or row.word
        out.closed.append((task, last))
        task.attempts += 1
        task.attempt = replace(
            last,
            number=task.attempts,
            state=State.PENDING,
            intent=None if last.intent in BACK else last.intent,
            target=None,
            rival=None,
            asked=None,
            started=None,
            ended=None,
            word="",
            restarts=row.restarts,
        )
        task.state, task.held = advance(before, Event.RESTART, task.name).task, False
        self._count(task, task.state, +1)
        cause = f"the manager restarted it by itself (restart {row.restarts})"
        self._record(task, Event.RESTART, before, cause, out)
        self._gates.happened(task)

    # Attempts that come back

    def _stray(
        self, view: _View, job: int, sending: int, row: Row, now: float, out: Outcome
    ) -> None:
        """An attempt is listed that is nobody's live one.

        A manager that lost its last seconds brings back what was cancelled; an operator may
        have called lost what was not. One that waits is withdrawn; one that began goes before a
        newer one that has not; two that began are both left alone, and told.
        """
        key = (job, row.task, sending)
        known = view.strays.pop(key, None)
        began = row.started is not None or row.state in (State.RUNNING, State.SUSPENDED)
        if not began and row.state is not State.PENDING:
            return
        stray = known or _Stray(row)
        stray.row = row
        past = self._past(job, row.task).get(sending)
        task = self.tasks.get((job, row.task))
        if past is None:
            if row.state in LIVE:
                out.warnings.append(f"{view.cluster.name} lists {row.tag}, and nobody knows why")
            return
        if past.revoked:
            if not began:  # else it has found its claim taken
                stray.wish = True
                view.strays[key] = stray
            return
        if task is None:
            self._after_end(view, key, stray, began, out)
            return
        view.strays[key] = stray
        if began:
            self._older_began(task, sending, row.state in LIVE, now, out)
            if task.attempt is not None and task.attempt.begun:
                self._end_waiting(view, key)
        elif task.attempt is None:
            self._adopt(task, sending, now, "it was given up, and is there after all", out)
        elif stray.wish is None:
            stray.wish = True
            cause = f"sending {sending} on {past.cluster} is back: it is withdrawn"
            self._note(task, cause, out)

    def _past(self, job: int, index: int) -> dict[int, Past]:
        """The earlier sendings of a task: of one that has ended, all."""
        if (task := self.tasks.get((job, index))) is not None:
            return task.past
        ended = self._ended.get((job, index))
        return {} if ended is None else ended.past

    def _older_began(self, task: Task, sending: int, live: bool, now: float, out: Outcome) -> None:
        """An earlier sending of a task has begun, which was not known, or is not over (`live`).

        What an operator called lost may have been known to have begun; what had ended its
        manager may begin anew.
        """
        past, attempt = task.past[sending], task.attempt
        news, past.began = not past.began, True
        if news:
            out.past[task.job.id, task.index, sending] = past
        elif not live:
            return
        where = f"sending {sending} on {past.cluster} is back"
        if attempt is None:
            self._adopt(task, sending, now, "it was given up, and is there after all", out)
        elif attempt.intent is Intent.CANCEL:
            if self._end_strays(task):
                self._note(task, f"{where}: it is cancelled", out)
        elif attempt.begun and past.requeued:
            if self._end_strays(task, sending):
                self._note(task, f"{where}: it was requeued, and is ended again", out)
        elif not attempt.begun:
            if attempt.intent is Intent.YIELD:
                return
            attempt.intent, attempt.rival = Intent.YIELD, sending
            attempt.target = attempt.asked = None
            self._note(task, f"{where} and has begun: it goes before", out)
            self._pursue(task, now, out)
        elif news or task.reason != Reason.DUPLICATE:
            self._duplicate(task, sending, out)

    @staticmethod
    def _end_waiting(view: _View, key: tuple[int, int, int]) -> None:
        """Wish for the end of one that its manager is to begin anew, though another has begun."""
        stray = view.strays.get(key)
        if stray is not None and stray.row.state is State.PENDING and stray.wish is None:
            stray.wish = False

    def _end_strays(self, task: Task, only: int | None = None) -> bool:
        """Wish for the end of whatever is back of a task, or of one sending; was any wish new?"""
        back = [
            stray
            for view in self._views.values()
            for (job, index, sending), stray in view.strays.items()
            if (job, index) == (task.job.id, task.index)
            and only in (None, sending)
            and stray.wish is not False
        ]
        for stray in back:
            stray.wish, stray.asked = False, 0.0
        return bool(back)

    def _after_end(
        self,
        view: _View,
        key: tuple[int, int, int],
        stray: _Stray,
        began: bool,
        out: Outcome,
    ) -> None:
        """An attempt of a task that has ended is listed as live, or as having begun."""
        job, index, sending = key
        ended, live = self._ended[job, index], stray.row.state in LIVE
        past = ended.past[sending]
        if past.began and not live:
            return
        where = f"sending {sending} on {view.cluster.name}"
        view.strays[key] = stray
        if stray.row.state is State.PENDING:
            wish, cause = not began, f"{where} is back: it is withdrawn"
        elif live and ended.state is State.CANCELLED:
            wish, cause = False, f"{where} is back: it is cancelled again"
        elif live and past.requeued:
            wish, cause = False, f"{where} is back: it was requeued, and is ended again"
        elif past.began:
            return
        else:
            wish, cause = None, f"DUPLICATE: {where} has begun, too"
            past.began = True
            out.past[key] = past
            out.warnings.append(f"job {job}: {cause}")
        if wish is not None and wish == stray.wish:
            return
        stray.wish, stray.asked = wish, 0.0
        out.changes.append(
            Change(
                *(job, index, ended.attempt, None, ended.state, ended.state),
                *(view.cluster.name, "", cause),
            )
        )

    def _chase(
        self,
        view: _View,
        key: tuple[int, int, int],
        stray: _Stray,
        now: float,
        out: Outcome,
    ) -> None:
        """Ask for the end of a stray that must not go on, again if that shows no effect."""
        if stray.wish is None or (stray.asked and now - stray.asked < PURSUE_AGAIN):
            return
        stray.asked = now
        job, index, sending = key
        natives: dict[int, str | None] = {index: stray.row.native_id}
        out.actions.append(Withdraw(job, sending, view.cluster.name, natives, stray.wish))

    def _duplicate(self, task: Task, sending: int, out: Outcome) -> None:
        """Two attempts have begun. Both go on; the newer one's end is the task's."""
        task.reason = Reason.DUPLICATE
        for view in self._views.values():
            self._end_waiting(view, (task.job.id, task.index, sending))
        cause = f"DUPLICATE: sending {sending} on {task.past[sending].cluster} has begun, too"
        self._note(task, cause, out)
        out.warnings.append(f"job {task.name}: {cause}")

    def _adopt(self, task: Task, sending: int, now: float, cause: str, out: Outcome) -> None:
        """Go on with an earlier sending, as a new attempt; the task waits with us.

        If it has not begun it is only taken back: a withdrawal of ours may still be under way.
        """
        past = task.past.pop(sending)
        task.attempts += 1
        task.held &= not past.began
        view = self._views.get(past.cluster)
        stray = view.strays.pop((task.job.id, task.index, sending), None) if view else None
        task.attempt = Attempt(
            *(task.attempts, sending, past.cluster, State.QUEUED, now),
            accepted=now,
            begun=past.began,
            fence=past.fence,
            restarts=stray.row.restarts if stray else 0,
        )
        if not past.began:
            task.attempt.intent = Intent.HOLD if task.held else Intent.RECALL
        elif past.requeued:
            task.attempt.intent = Intent.REQUEUE
        self._sendings.setdefault((task.job.id, sending), {})[task.index] = task
        self._advance(task, Event.ADOPT, now, cause, out)
        if view is not None:
            key = (task.job.id, task.index)
            view.live[key] = view.uneasy[key] = task
            if stray is not None:
                self._row(task, stray.row, now, out)

    def _missing(self, task: Task, seen: Seen, out: Outcome) -> None:
        """A complete listing lacks a live attempt: gone for certain, or nobody knows.

        What begins is listed for as long as the listing proves absence. So what was there
        unstarted within that span, and is not there now, never began: a manager may drop such
        tasks without a record (Slurm: tasks of an array).
        """
        attempt = self._attempt(task)
        if attempt.accepted is None and attempt.native_id is None:
            if attempt.tried is None or attempt.tried > seen.until:
                return  # not tried yet, or a late command of ours may still arrive
            if seen.since <= attempt.sent:
                cause = "a complete listing proves that it never arrived"
                self._advance(task, Event.ABSENT, seen.time, cause, out)
                return
        elif not attempt.begun:
            begun, there = attempt.sent, attempt.accepted or attempt.sent
            if attempt.listed is not None:
                begun = there = attempt.listed
            if seen.since <= begun and there <= seen.until:
                self._gone(task, seen.time, out)
                return
        if not attempt.given_up:
            attempt.given_up, attempt.looks, attempt.look_at = True, 0, seen.time
            if attempt.cluster in self._views:
                self._views[attempt.cluster].uneasy[task.job.id, task.index] = task
        if attempt.state is not State.UNKNOWN:
            cause = "the manager lists it no more and nothing tells how it ended"
            self._advance(task, Event.SILENCE, seen.time, cause, out)

    def _gone(self, task: Task, now: float, out: Outcome) -> None:
        """A manager that had the attempt has it no more, and it certainly never began.

        Either somebody cancelled it, or the manager started anew without it; then it is sent
        again.
        """
        attempt = self._attempt(task)
        there = attempt.listed or attempt.accepted or attempt.sent
        if there < self._views[attempt.cluster].up_since:
            cause = "its manager lost it when it started anew; it certainly never began"
            self._advance(task, Event.ABSENT, now, cause, out)
            return
        moving = attempt.intent in BACK
        cause = "gone from the manager; it certainly never began"
        self._advance(task, Event.WITHDRAW if moving else Event.KILL, now, cause, out)

    def _look(self, view: _View, now: float, out: Outcome) -> None:
        """Ask the accounting of a cluster's manager for what its listings lack."""
        due = [task for task in view.uneasy.values() if self._look_due(self._attempt(task), now)]
        missing, unclaimed = [], []
        records = bool(view.facts is not None and view.facts.records)
        for task in due:
            attempt = self._attempt(task)
            first, most = LOOK_AGAIN
            attempt.look_at = now + min(first * 2.0**attempt.looks, most)
            attempt.looks += 1
            if not records or attempt.looks > 1:  # accounting may tell more
                unclaimed.append(task)
            tag = tag_of(self.instance, task.job.id, attempt.sending)
            missing.append(
                Missing(tag, task.index, attempt.native_id, attempt.sent, attempt.accepted)
            )
        if missing and records:
            out.actions.append(Look(view.cluster.name, tuple(missing)))
        self._revoke(view, unclaimed, out)

    def _revoke(self, view: _View, tasks: Iterable[Task], out: Outcome) -> None:
        """Keep what has claimed nothing yet from ever beginning, as far as there is a fence."""
        claims = []
        for task in tasks:
            attempt = self._attempt(task)
            if not attempt.fence or attempt.begun:
                continue
            attempt.revoking = True
            out.tasks[task.job.id, task.index] = task
            tag = tag_of(self.instance, task.job.id, attempt.sending)
            claims.append(Claim(attempt.fence, tag, task.index))
        if claims:
            out.actions.append(Revoke(view.cluster.name, tuple(claims)))

    def _revoked(self, event: Revoked, out: Outcome) -> None:
        """Claims have been revoked: the tasks can be sent again. Or they were made before."""
        for tag, index in event.tasks:
            if (task := self._of(tag, index)) is not None:
                attempt = self._attempt(task)
                attempt.revoking, attempt.revoked = False, True
                self._views[attempt.cluster].withheld.pop((task.job.id, index), None)
                cause = "its claim is revoked: it can never begin"
                self._advance(task, Event.ABSENT, event.time, cause, out)
            elif (sending := parse_tag(tag, self.instance)) is not None:
                past = self._past(sending[0], index).get(sending[1])
                if past is not None:
                    past.revoked = True
                    out.past[sending[0], index, sending[1]] = past
        for tag, index in event.begun:
            if (task := self._of(tag, index)) is not None:
                attempt = self._attempt(task)
                attempt.revoking, attempt.begun = False, True
                self._note(task, "it has begun: its claim is made", out)
                row = self._views[attempt.cluster].withheld.pop((task.job.id, index), None)
                if row is not None:
                    self._row(task, row, event.time, out)
            elif (sending := parse_tag(tag, self.instance)) is not None:
                newer = self.tasks.get((sending[0], index))
                if newer is not None and sending[1] in newer.past:
                    self._older_began(newer, sending[1], False, event.time, out)
        self._place(event.time, out)

    @staticmethod
    def _look_due(attempt: Attempt, now: float) -> bool:
        return attempt.given_up and now >= attempt.look_at

    def _traced(self, event: Traced, out: Outcome) -> None:
        """What accounting knows of attempts that are missing still."""
        for row in event.rows:
            task = self._of(row.tag, row.task)
            if task is not None and self._attempt(task).given_up:
                self._note(task, "found in the manager's accounting", out)
                self._row(task, row, event.time, out)
        for tag, index in event.unstarted:
            task = self._of(tag, index)
            if task is None or not self._attempt(task).given_up:
                continue
            if self._attempt(task).native_id is None:
                cause = "accounting proves that it never arrived"
                self._advance(task, Event.ABSENT, event.time, cause, out)
            else:
                self._gone(task, event.time, out)

    def _asked(self, event: Asked, out: Outcome) -> None:
        for task in self.tasks_of(event.job, event.indices):
            by = f"by {event.by}" if event.by else ""
            attempt = task.attempt
            untried = attempt is not None and attempt.untried
            match event.wish:
                case "cancel" if attempt is None:
                    self._advance(task, Event.CANCEL, event.time, f"cancelled {by}", out)
                case "cancel":
                    assert attempt is not None
                    attempt.intent, attempt.target, attempt.asked = Intent.CANCEL, None, None
                    if not untried:
                        self._note(task, f"cancel asked for {by}", out)
                    self._end_strays(task)
                case "hold" if attempt is None:
                    task.held = True
                    if task.state is State.QUEUED:
                        self._advance(task, Event.HOLD, event.time, f"held {by}", out)
                case "hold" if attempt is not None and self._unstarted(attempt):
                    task.held = True
                    if attempt.intent not in (Intent.CANCEL, Intent.YIELD):
                        attempt.intent, attempt.target = Intent.HOLD, None
                        if not untried:
                            self._note(task, f"hold asked for {by}", out)
                case "release":
                    if task.state is State.HELD:
                        task.held = False
                        self._advance(task, Event.RELEASE, event.time, f"released {by}", out)
                    elif task.held:
                        task.held = False
                        self._note(task, f"release asked for {by}", out)
                case "requeue" if task.state in BEGUN:
                    assert attempt is not None
                    if attempt.intent is None:
                        attempt.intent = Intent.REQUEUE
                        self._note(task, f"requeue asked for {by}", out)
                case "lost" if task.state is State.UNKNOWN:
                    self._advance(task, Event.WRITE_OFF, event.time, f"lost, says {event.by}", out)
                case "ran" if task.state is State.UNKNOWN:
                    self._attempt(task).begun = True
                    self._advance(task, Event.VOUCH, event.time, f"it ran, says {event.by}", out)
            if untried and attempt is not None and attempt.intent is not None:
                self._advance(task, Event.ABSENT, event.time, "never tried", out)
            self._pursue(task, event.time, out)
        self._gates.pass_time(event.time)

    # Ended tasks that run again, and jobs that are changed

    def _requeued(self, event: Requeued, out: Outcome) -> None:
        priority = min(event.priority, self.policy.max_priority)
        by = f"by {event.by}" if event.by else ""
        if event.fates:
            self._depend(event.job, event.fates)
        key = self._key(event.job, priority)
        tasks = [
            Task(event.job, t.index, priority, key, state=t.state, attempts=t.attempts)
            for t in event.tasks
            if (event.job.id, t.index) not in self.tasks
        ]
        for task in tasks:  # all, before one of them may end again
            self._keep_open(task)
        for task in tasks:
            if (ended := self._ended.get((event.job.id, task.index))) is not None:
                task.past = copy(ended.past)
            self._reopen(task, event.last_sending, event.time, f"requeued {by}", out)
        self._gates.pass_time(event.time)

    def _reopen(self, task: Task, last: int, now: float, cause: str, out: Outcome) -> None:
        """Let an ended task wait again, as if no cluster had ever refused it."""
        task.ended, task.attempt, task.target, task.held = None, None, None, False
        task.forgiven, task.refused = task.attempts, set()
        task.reason = ""
        for sending, past in task.past.items():
            if past.began and not past.requeued:
                past.requeued = True
                out.past[task.job.id, task.index, sending] = past
        self._keep_open(task)
        self._last_sending[task.job.id] = max(last, self._last_sending.get(task.job.id, 0))
        self._advance(task, Event.REQUEUE, now, cause, out)

    def _modified(self, event: Modified, out: Outcome) -> None:
        """A job asks for something else: what waits in a manager comes back, to be sent anew."""
        job = event.job
        out.parts = self.classifier.parts(job)
        priority = event.priority or self.classifier.peek(job)
        by = f" by {event.by}" if event.by else ""
        tasks = self.tasks_of(job.id)
        if tasks:
            self._gates.changed(tasks[0].job, job)
        for task in tasks:
            if (attempt := task.attempt) is not None:
                self._count(task, attempt.state, -1)
            task.job, task.priority, task.key = job, priority, self._key(job, priority)
            task.forgiven, task.refused = task.attempts, set()
            if attempt is not None:
                self._count(task, attempt.state, +1)
            self._note(task, f"changed{by}: {event.what}", out)
            if task.state is State.QUEUED:
                task.reason = ""
                self._gates.forget(task)
                self.licences.leave((job.id, task.index))
                self._wait(task, event.time, out)
            elif attempt is not None and (view := self._views.get(attempt.cluster)) is not None:
                never = self._against(job, view)
                if event.resend or (never is not None and never.reason in PERMANENT):
                    self._want_back(task, view, f"to be sent {event.what}", event.time, out)
        self._gates.pass_time(event.time)

    # Drained and shrunken clusters

    def _drained(self, event: Drained, out: Outcome) -> None:
        self._drains[event.cluster] = event
        if event.cluster in self._views:
            self._recall(self._views[event.cluster], event.time, out)
        self._look_again = True

    def _resumed(self, event: Resumed, out: Outcome) -> None:
        self._drains.pop(event.cluster, None)
        for task in self.tasks_on(event.cluster) if event.cluster in self._views else ():
            attempt = self._attempt(task)
            if attempt.intent is Intent.RECALL and attempt.asked is None:
                attempt.intent = None
                self._note(task, f"{event.cluster} resumed: it stays", out)
        self._look_again = True

    def _recall(self, view: _View, now: float, out: Outcome) -> None:
        """Want back what has not begun on a cluster that may not, or cannot ever, start it."""
        drain = self._drains.get(view.cluster.name)
        drained = drain is not None and not drain.keep_pending
        for task in list(view.live.values()):
            if drained:
                self._want_back(task, view, str(drain), now, out)
            elif not self._attempt(task).begun:
                never = self._against(task.job, view)
                if never is not None and never.reason in PERMANENT:
                    self._want_back(task, view, never.text, now, out)

    def _lose_patience(self, view: _View, now: float, out: Outcome) -> None:
        """Want back what holds licences and does not begin, as far as that serves others.

        It then waits behind all who are in line now.
        """
        if not self.licences.waited_for:
            return
        freed: Counter[str] = Counter()
        for task in view.unstarted.values():
            if self._attempt(task).intent is Intent.RECALL:
                freed.update(self._leased(task))
        back: list[Task] = []
        for task in sorted(self._impatient(view), key=lambda t: t.key, reverse=True):
            if self.licences.serves(freed, now):
                break
            if now - (self._attempt(task).accepted or now) >= self.policy.patience:
                freed.update(self._leased(task))
                back.append(task)
        if not self.licences.serves(freed, now):
            return
        for task in back:
            why = "others wait for its licences, and it does not begin"
            if self._want_back(task, view, why, now, out):
                self._behind[task.job.id, task.index] = now

    def _impatient(self, view: _View) -> Iterator[Task]:
        """What a cluster has that may have to go for the sake of those who wait for licences."""
        if not self.licences.waited_for:
            return
        for place in self.licences.leases:
            task = view.unstarted.get(place)
            if task is not None and self._attempt(task).calm and self.licences.contended(place):
                yield task

    def _leased(self, task: Task) -> Mapping[str, int]:
        lease = self.licences.leases.get((task.job.id, task.index))
        return {} if lease is None else lease.tokens

    def _leave(self, view: _View, why: str, now: float, out: Outcome) -> None:
        """Move what has not begun on a cluster, as far as another one can take it."""
        for task in sorted(view.live.values(), key=lambda t: (t.key, t.job.id, t.index)):
            others = [
                name
                for name, other in self._views.items()
                if other is not view and self._unfit(task, other) is None
            ]
            if others and self._want_back(task, view, why, now, out):
                self._attempt(task).target = self.dispatch.choose(task.job, task.priority, others)

    def _want_back(self, task: Task, view: _View, why: str, now: float, out: Outcome) -> bool:
        """Recall a task, unless it has begun or is wished for otherwise."""
        attempt = self._attempt(task)
        if attempt.begun or attempt.intent is not None:
            return False
        attempt.intent = Intent.RECALL
        self._note(task, f"recalled from {view.cluster.name}: {why}", out)
        if view.up:
            self._pursue(task, now, out)
        return True

    def drain(self, cluster: str) -> Drained | None:
        """Who keeps new work from a cluster, since when and why; None: nobody."""
        return self._drains.get(cluster)

    def _advance(self, task: Task, event: Event, now: float, cause: str, out: Outcome) -> None:
        """Let `event` happen to a task: the only place where a state changes."""
        attempt, before = task.attempt, task.state
        step = advance(before, event, task.name)
        if attempt is not None and step.attempt is not None:
            left, joined = before in UNSTARTED, step.task in UNSTARTED
            if left and not joined:
                self._count(task, before, -1)
            attempt.state = step.attempt
            if joined and not left:
                self._count(task, step.task, +1)
        if task.reason != Reason.DUPLICATE:
            task.reason = Reason.HELD if step.task is State.HELD else ""
        task.state = step.task
        self._record(task, event, before, cause, out)
        if before is State.QUEUED:
            self.licences.leave((task.job.id, task.index))
        if attempt is not None and step.task not in LIVE:
            self._close(task, attempt, now, out)
        elif step.task in LIVE and self._leasing and task.job.licences:
            self._must_hold(task, now, out)
        if step.task in FINAL:
            task.ended = attempt.ended if attempt is not None else now
            self._remember(task)
        self._gates.happened(task)
        if step.task in FINAL:
            self._gates.gone(task, now)
            del self.tasks[task.job.id, task.index]
            del self._open[task.job.id][task.index]
            last = self._last_sending.get(task.job.id, 0)
            if not self._open[task.job.id]:
                del self._open[task.job.id]
                self._last_sending.pop(task.job.id, None)
                self._gates.closed(task.job)
            if attempt is not None and attempt.intent is Intent.REQUEUE:
                self._reopen(task, last, now, "requeued as asked", out)
        elif step.task is State.QUEUED:
            if attempt is not None and attempt.intent is Intent.CANCEL:
                self._advance(task, Event.CANCEL, now, "cancelled as asked", out)
            elif attempt is not None and attempt.rival in task.past:
                assert attempt.rival is not None
                self._adopt(task, attempt.rival, now, "it goes before the one that left", out)
            elif task.held:
                self._advance(task, Event.HOLD, now, "held as asked", out)
            else:
                self._wait(task, now, out)
        elif step.task is State.HELD:
            self._gates.gone(task, now)
        else:
            self._gates.sent(task)

    def _close(self, task: Task, attempt: Attempt, now: float, out: Outcome) -> None:
        """An attempt has ended; the task goes on without it, or has ended too."""
        if attempt.ended is None:
            attempt.ended = now
        out.closed.append((task, attempt))
        task.past[attempt.sending] = Past(
            *(attempt.cluster, attempt.begun, attempt.fence, attempt.revoked),
            requeued=attempt.begun and attempt.intent is Intent.REQUEUE,
        )
        tried = attempt.tried is not None or attempt.accepted is not None
        if tried and attempt.cluster in self._views and not (attempt.revoked or attempt.refused):
            # its manager may bring it back
            self._revoke(self._views[attempt.cluster], [task], out)
        chunk = self._sendings[task.job.id, attempt.sending]
        del chunk[task.index]
        if not chunk:
            del self._sendings[task.job.id, attempt.sending]
        if attempt.cluster in self._views:
            view, key = self._views[attempt.cluster], (task.job.id, task.index)
            view.live.pop(key, None)
            view.uneasy.pop(key, None)
        if task.state is State.QUEUED:
            task.attempt = None
            task.target = attempt.target
            task.moves += attempt.target is not None
        if task.state is State.QUEUED and task.target is not None:
            self._passed_on[task.job.id, task.index] = task
        else:
            self._give_back(task, str(task.state), now, out, attempt)

    def _remember(self, task: Task) -> None:
        """Keep what matters if an attempt of a task that has ended comes back."""
        self._ended[task.job.id, task.index] = Ended(task.state, task.attempts, task.past)
        if len(self._ended) > ENDED_KEPT:
            del self._ended[next(iter(self._ended))]

    def _count(self, task: Task, state: State, sign: Literal[1, -1]) -> None:
        """Keep the loads of a cluster in step with what waits there unstarted."""
        attempt = self._attempt(task)
        view = self._views.get(attempt.cluster)
        if state not in UNSTARTED or view is None:
            return
        if sign > 0:
            view.unstarted[task.job.id, task.index] = task
        else:
            del view.unstarted[task.job.id, task.index]
        # an empty queue owes nothing: no residue of floats may hide the zero that Load looks for
        view.owed = view.owed + sign * task.job.cpus * task.job.estimated if view.unstarted else 0.0
        if sign > 0:
            self.dispatch.assigned(attempt.cluster, task.job, task.priority)
        else:
            self.dispatch.left_queue(attempt.cluster, task.job, task.priority)
        self._weigh(view)

    def _weigh(self, view: _View) -> None:
        """Observed load: seconds of the whole cluster still owed (design §2)."""
        if self.policy.load == "observed" and view.facts is not None and view.power > 0:
            owed = view.facts.owed + view.running(self._now) + view.owed
            self.dispatch.observe(view.cluster.name, owed / view.power)

    # 3 and 4. Where waiting tasks go

    def _place(self, now: float, out: Outcome) -> None:
        """Send what waits for a cluster only, in order of its key.

        The tasks that have just become ready, or all where something has changed for all.
        """
        for task, why in self._gates.settle(now):
            self._note(task, why, out)
            self._despair(task, Prospect.NEVER, now, out)
        waiting = self._gates.take_fresh()
        if self._look_again:
            waiting, self._look_again = list(self._gates.ready.values()), False
        chunks: dict[tuple[int, str], tuple[int, list[int]]] = {}
        if waiting:
            for view in self._views.values():
                self._weigh(view)
        known: dict[tuple[int, str], Unfit | None] = {}
        in_line = []
        for task in sorted(waiting, key=lambda t: (t.key, t.job.id, t.index)):
            place = (task.job.id, task.index)
            if not (self._leasing and task.job.licences) or place in self._passed_on:
                self._let_go(task, known, chunks, now, out)
            elif self._fit(task, known, now, out):
                self.licences.join(place, self._order(task), task.job.licences)
                in_line.append(task)
        for task in self._passed_on.values():
            if task.attempt is None:
                self._give_back(task, "not sent on", now, out)
        self._passed_on = {}
        while (granted := self.licences.next(now)) is not None:
            self._let_go(self.tasks[granted], known, chunks, now, out)
        for task in in_line:
            if (task.job.id, task.index) in self.licences:
                self._keep(task, [self._lacking(task, now)], now, out)
        for (job, cluster), (sending, indices) in chunks.items():
            out.actions.append(Send(job, sending, cluster, tuple(indices)))

    def _fit(
        self,
        task: Task,
        known: dict[tuple[int, str], Unfit | None],
        now: float,
        out: Outcome,
    ) -> list[str]:
        """The clusters that may run a task now; if there is none it waits, not for licences."""
        against = {name: self._unfit(task, view, known) for name, view in self._views.items()}
        fit = [name for name, reason in against.items() if reason is None]
        if not fit:
            self.licences.leave((task.job.id, task.index))
            self._keep(task, [u for u in against.values() if u is not None], now, out)
        return fit

    def _let_go(
        self,
        task: Task,
        known: dict[tuple[int, str], Unfit | None],
        chunks: dict[tuple[int, str], tuple[int, list[int]]],
        now: float,
        out: Outcome,
    ) -> None:
        """Send a task that waits for nothing but a cluster."""
        if fit := self._fit(task, known, now, out):
            if task.target in fit:
                cluster = task.target
            else:
                cluster = self.dispatch.choose(task.job, task.priority, fit)
            self._send(task, cluster, now, chunks, out)

    def _send(
        self,
        task: Task,
        cluster: str,
        now: float,
        chunks: dict[tuple[int, str], tuple[int, list[int]]],
        out: Outcome,
    ) -> None:
        """Intend a sending; tasks of one job that go to one cluster now share it, up to a chunk."""
        job, view = task.job.id, self._views[cluster]
        sending, indices = chunks.get((job, cluster), (0, []))
        if len(indices) in (0, view.cluster.chunk):
            if indices:
                out.actions.append(Send(job, sending, cluster, tuple(indices)))
            self._last_sending[job] = self._last_sending.get(job, 0) + 1
            sending, indices = chunks[job, cluster] = (self._last_sending[job], [])
        indices.append(task.index)
        if view.full:
            view.probe_at = now + view.pause
        task.attempts += 1
        task.attempt = Attempt(
            *(task.attempts, sending, cluster, State.QUEUED, now),
            watched=view.watched,
            fence=view.cluster.fence_dir,
        )
        self._sendings.setdefault((job, sending), {})[task.index] = task
        view.live[job, task.index] = view.uneasy[job, task.index] = task
        cause = "moved on purpose" if task.target == cluster else "load and ordering"
        task.target = None
        if self._leasing and task.job.licences:
            cause += f", with {self._lease(task, now, out)}"
        self._advance(task, Event.SEND, now, cause, out)

    def _keep(self, task: Task, against: list[Unfit], now: float, out: Outcome) -> None:
        """Nothing fits: say why by the reason that comes first, or reject for good."""
        passing = [u for u in against if u.reason not in PERMANENT]
        first = min(passing or against, key=lambda u: _PRECEDENCE[u.reason], default=_NO_CLUSTER)
        task.target = None
        if task.refused and not passing:
            self._advance(task, Event.REJECT, now, first.text, out)
            task.reason = first.reason
        elif task.reason != first.reason:
            task.reason = first.reason
            self._note(task, first.text, out)

    def _pull(self, view: _View, now: float, out: Outcome) -> None:
        """Withdraw pending tasks elsewhere that would start on this cluster now."""
        name, facts = view.cluster.name, view.facts
        others = [v for v in self._views.values() if v is not view]
        if facts is None or facts.cpus <= facts.used or not any(v.unstarted for v in others):
            return
        on_their_way = [
            task.job
            for task in view.uneasy.values()
            if task.state in UNSTARTED and not self._attempt(task).seen
        ] + [
            task.job
            for other in others
            for task in other.uneasy.values()
            if self._attempt(task).target == name
        ]
        room = Room(facts, now, [(j.cpus, j.time_limit or j.estimated) for j in on_their_way])
        for tasks in self._pullable(others):
            job = tasks[0].job
            against = self._against(job, view)
            if against is not None or not room.admits(translated(job, view.cluster, facts)):
                continue
            here = translated(job, view.cluster, facts)
            for task in tasks:
                if not self._may_move(task) or self._unfit(task, view) is not None:
                    continue
                if not room.admits(here):
                    break
                room.take(here)
                attempt = self._attempt(task)
                attempt.intent, attempt.target = Intent.PULL, name
                self._note(task, f"would start on {name} now", out)
                self._pursue(task, now, out)
            if room.free <= 0:
                return

    def _pullable(self, views: Iterable[_View]) -> list[list[Task]]:
        """What has not begun on clusters that are up, by job, in the order in which it waits."""
        jobs: dict[int, list[Task]] = {}
        for view in views:
            if view.up:
                for task in view.unstarted.values():
                    jobs.setdefault(task.job.id, []).append(task)
        for tasks in jobs.values():
            tasks.sort(key=lambda task: task.index)
        return sorted(jobs.values(), key=lambda tasks: (tasks[0].key, tasks[0].job.id))

    def _may_move(self, task: Task) -> bool:
        attempt = self._attempt(task)
        view = self._views[attempt.cluster]
        patience = self.policy.pull_after * 2.0**task.moves
        return (
            task.state is State.PENDING
            and self._unstarted(attempt)
            and attempt.seen
            and attempt.intent is None
            and view.watched - attempt.watched >= patience
        )

    def _unfit(
        self, task: Task, view: _View, known: dict[tuple[int, str], Unfit | None] | None = None
    ) -> Unfit | None:
        """Why a task cannot be sent to a cluster now; `known` keeps what its job shares."""
        if view.cluster.name in task.refused:
            return Unfit(Reason.NO_CLUSTER_FITS, "its manager refused the job")
        known = {} if known is None else known
        key = (task.job.id, view.cluster.name)
        if key not in known:
            known[key] = self._against(task.job, view)
        against = known[key]
        if against is not None and against.reason in PERMANENT:
            return against
        if not view.up:
            return Unfit(Reason.CLUSTER_DOWN, view.word)
        if view.cluster.name in self._drains:
            return Unfit(Reason.CLUSTER_DRAINED, str(self._drains[view.cluster.name]))
        if against is None and view.full and not self._may_probe(view, self._now):
            return Unfit(Reason.CLUSTER_DRAINED, view.full)
        return against

    def _against(self, job: Job, view: _View) -> Unfit | None:
        """Why a cluster, as it is, cannot run a job; not whether it answers and may be used now."""
        if self._leasing and (barred := self.licences.barred(job.licences, view.cluster.name)):
            text = f"licence {barred} cannot be used there"
            return Unfit(Reason.NO_CLUSTER_FITS, text)
        return unfit(job, view.cluster, view.facts)

    @staticmethod
    def _may_probe(view: _View, now: float) -> bool:
        """Whether it is time to try a full cluster again, with one task."""
        return bool(view.full) and now >= view.probe_at

    def full_since(self, cluster: str) -> float | None:
        """When the cluster's manager said that it takes no more for now, or None."""
        view = self._views[cluster]
        return view.full_since if view.full else None

    def verdicts(self, task: Task) -> list[Verdict]:
        """What speaks against each cluster for a task now, with the loads that decide."""
        looks = self.dispatch.looked_at(task.job, task.priority)
        return [
            Verdict(name, self._unfit(task, view), *looks[name])
            for name, view in self._views.items()
        ]

    def refusal(self, job: Job) -> str | None:
        """Why no cluster can ever run a job that is about to be submitted, or None."""
        if unknown := [c for c in job.clusters if c not in self._views]:
            return f"there is no cluster {unknown[0]}; there are {', '.join(self._views)}"
        if self._leasing and (why := self.licences.refusal(job.licences)) is not None:
            return why
        probe = Task(job, 0, 1, 0.0)
        against: dict[str, Unfit] = {}
        for name, view in self._views.items():
            if job.clusters and name not in job.clusters:
                continue
            unfit_here = self._unfit(probe, view)
            if unfit_here is None or unfit_here.reason not in PERMANENT:
                return None
            against[name] = unfit_here
        sizes = [(v.facts.cpus, name) for name, v in self._views.items() if v.facts]
        if job.cpus > max((size for size, name in sizes if name in against), default=0):
            size, name = max(sizes, key=lambda pair: pair[0])
            return (
                f"no cluster has {job.cpus} processors, the largest is {name} with {size}; "
                "ask for fewer"
            )
        told = "; ".join(f"{name}: {u.text}" for name, u in against.items())
        return f"no cluster can run the job ({told}); change what it asks for"

    # Before any cluster

    def _wait(self, task: Task, now: float, out: Outcome) -> None:
        self._despair(task, self._gates.queued(task, now), now, out)

    def _despair(self, task: Task, prospect: Prospect, now: float, out: Outcome) -> None:
        """Cancel a task whose dependency can never come, if its owner wants that."""
        if prospect is Prospect.NEVER and task.job.kill_on_invalid_dep:
            self._advance(task, Event.CANCEL, now, self._gates.told(task, now), out)

    @property
    def next_due(self) -> float | None:
        """When time alone may let a waiting task go on (epoch seconds), or None."""
        dues = (self._gates.next_due, self.licences.next_due)
        return min((due for due in dues if due is not None), default=None)

    def waits_for(self, task: Task) -> str:
        """What a task's dependencies wait for, in words; empty if for nothing."""
        waits = task.state is State.QUEUED and task.reason == Reason.DEPENDENCY
        return self._gates.told(task, self._now) if waits else ""

    # Licences

    def _order(self, task: Task) -> tuple[float, int, int]:
        """Its place in line; one that was recalled for others gets in line behind them."""
        place = (task.job.id, task.index)
        return (max(task.key, self._behind.get(place, task.key)), *place)

    def _lacking(self, task: Task, now: float) -> Unfit:
        """Why a task in line cannot have its licences now."""
        lacks = self.lacks(task, now)
        texts = [f"licence {s.licence}: {s.word or self._told(task, s)}" for s in lacks]
        unknown = any(s.word for s in lacks)
        reason = Reason.LICENCE_UNKNOWN if unknown else Reason.LICENCE_BUSY
        return Unfit(reason, "; ".join(texts) or "its turn comes next")

    @staticmethod
    def _told(task: Task, s: Standing) -> str:
        wanted, free = task.job.licences[s.licence], s.free or 0
        if free >= wanted:
            return (
                f"{wanted} wanted, and {free} free, which are kept for one that was passed before"
            )
        return f"{wanted} wanted, {max(free, 0)} of {s.total} free"

    def lacking(self, task: Task, now: float) -> Unfit | None:
        """Why a task waits for licences, as it is now; None: it does not."""
        waits = (task.job.id, task.index) in self.licences
        return self._lacking(task, now) if waits else None

    def lacks(self, task: Task, now: float) -> list[Standing]:
        """The licences of which a task could not have what it wants now."""
        return list(self.licences.lacks(task.job.licences, self._order(task), now))

    def _lease(self, task: Task, now: float, out: Outcome, forced: bool = False) -> str:
        """Lease its licences to the attempt of a task, in words; they may be passed on to it."""
        place = (task.job.id, task.index)
        if place in self.licences.leases:  # also if there are too few by now: nothing is added
            self._give_back(task, "passed on", now, out)
            forced = True
        tokens = dict(task.job.licences)
        lease = Lease(*place, self._attempt(task).number, tokens, now, forced)
        self.licences.take(lease)
        self._behind.pop(place, None)
        out.leases.append(lease)
        return ", ".join(f"{name}:{many}" for name, many in tokens.items())

    def _must_hold(self, task: Task, now: float, out: Outcome) -> None:
        """What may run has its licences, whatever is left: it was there before we knew."""
        if (task.job.id, task.index) not in self.licences.leases:
            told = self._lease(task, now, out, forced=True)
            self._note(task, f"it has {told}, which are counted again", out)

    def _give_back(
        self, task: Task, why: str, now: float, out: Outcome, attempt: Attempt | None = None
    ) -> None:
        """End the lease of a task, if it has one; `attempt` is what may have used it."""
        lease = self.licences.leases.get((task.job.id, task.index))
        if lease is not None:
            used = attempt is not None and attempt.begun
            lingers = self.licences.give_back((task.job.id, task.index), now, used)
            out.leases.append(GivenBack(lease, now, why, lingers))

    def _reconcile(self, now: float, out: Outcome) -> None:
        """Make leases agree with what is live, and tell how it stands with every licence."""
        if not self._leasing:
            return
        for place, lease in list(self.licences.leases.items()):
            task = self.tasks.get(place)
            if task is None or task.attempt is None:
                lingers = self.licences.give_back(place, now, used=True)
                out.leases.append(GivenBack(lease, now, "nobody has it", lingers))
        for task in self.tasks.values():
            # what is unknown may have been released by an operator
            if task.attempt is not None and task.state is not State.UNKNOWN and task.job.licences:
                self._must_hold(task, now, out)
        for standing in self.licences.standings(now):
            out.standings[standing.licence] = standing

    # 5. Pursue

    def _pursue(self, task: Task, now: float, out: Outcome) -> None:
        """Tell the manager what is wished of a task, once it is certain that it is there."""
        attempt = task.attempt
        if attempt is None or attempt.intent is None or attempt.state not in LIVE:
            return
        if attempt.state is State.DISPATCHING or attempt.cluster not in self._views:
            return
        if attempt.asked is not None and now - attempt.asked < PURSUE_AGAIN:
            return
        attempt.asked = now
        out.tasks[task.job.id, task.index] = task
        unstarted = attempt.intent in BACK
        key = (task.job.id, attempt.sending, unstarted)
        if key not in self._withdrawals:
            self._withdrawals[key] = {}
            out.actions.append(
                Withdraw(
                    task.job.id,
                    attempt.sending,
                    attempt.cluster,
                    self._withdrawals[key],
                    unstarted=unstarted,
                )
            )
        self._withdrawals[key][task.index] = attempt.native_id

    # Looking things up

    def tasks_of(self, job: int, indices: Iterable[int] | None = None) -> list[Task]:
        """The open tasks of a job: all, or those of `indices`."""
        of_job = self._open.get(job, {})
        return [of_job[i] for i in (of_job if indices is None else indices) if i in of_job]

    def is_open(self, job: int, index: int | None = None) -> bool:
        """Whether a task (None: any of the job) has not ended."""
        return job in self._open if index is None else (job, index) in self.tasks

    def tasks_on(self, cluster: str) -> list[Task]:
        """The tasks that are live on a cluster."""
        return list(self._views[cluster].live.values())

    def view(self, cluster: str) -> tuple[Facts | None, str]:
        """What is known of a cluster, and "" if it answers, else why it does not."""
        view = self._views[cluster]
        return view.facts, "" if view.up else view.word

    @property
    def restless(self) -> bool:
        """Whether some task of ours is with a manager and has not begun."""
        return any(view.unstarted for view in self._views.values())

    @property
    def clusters(self) -> list[Cluster]:
        return [view.cluster for view in self._views.values()]

    def expects(self, cluster: str, now: float) -> bool:
        """Whether a listing without news may still change something.

        A task that it does not show, a wish to repeat, a full cluster to try again, a pull, or a
        recall for licences.
        """
        view = self._views[cluster]
        if self._gates.ready and self._may_probe(view, now):
            return True
        if any(s.wish is not None and now - s.asked >= PURSUE_AGAIN for s in view.strays.values()):
            return True
        if any(self._impatient(view)):
            return True
        for task in view.uneasy.values():
            attempt = self._attempt(task)
            if attempt.given_up:
                if self._look_due(attempt, now):
                    return True
                continue
            doubtful = attempt.tried is not None or attempt.accepted is not None
            if doubtful and not attempt.seen:
                return True
            if attempt.asked is not None and now - attempt.asked >= PURSUE_AGAIN:
                return True
        return self.policy.pull and any(
            task.state is State.PENDING
            for name, other in self._views.items()
            if name != cluster
            for task in other.unstarted.values()
        )

    def sending(self, job: int, sending: int) -> list[Task]:
        """The tasks whose live attempt is this sending."""
        return list(self._sendings.get((job, sending), {}).values())

    def _of(self, tag: str, index: int) -> Task | None:
        key = parse_tag(tag, self.instance)
        return self._sendings.get(key, {}).get(index) if key else None

    @staticmethod
    def _unstarted(attempt: Attempt) -> bool:
        """Whether it can still be moved: what its manager has restarted waits, but has begun."""
        return attempt.state in UNSTARTED and not attempt.begun

    @staticmethod
    def _attempt(task: Task) -> Attempt:
        assert task.attempt is not None, task
        return task.attempt

    # Telling the story

    def _note(self, task: Task, cause: str, out: Outcome) -> None:
        self._record(task, None, task.state, cause, out)

    def _record(
        self, task: Task, event: Event | None, before: State | None, cause: str, out: Outcome
    ) -> None:
        attempt, key = task.attempt, (task.job.id, task.index)
        if attempt is not None and not attempt.calm:
            view = self._views.get(attempt.cluster)
            if view is not None and key in view.live:
                view.uneasy[key] = task
        out.tasks[key] = task
        out.changes.append(
            Change(
                *key,
                attempt.number if attempt else 0,
                event,
                before,
                task.state,
                attempt.cluster if attempt else None,
                task.reason,
                cause,
            )
        )


def replay(events: Iterable[CoreEvent]) -> Iterator[Outcome]:
    """Step a fresh core through recorded events: the same decisions, one outcome per event."""
    core = Core()
    for event in events:
        yield core.step(event)


_PRECEDENCE = {reason: place for place, reason in enumerate(Reason)}
_NO_CLUSTER = Unfit(Reason.NO_CLUSTER_FITS, "no cluster is configured")
