"""Discrete events: time, workload and managers below, the daemon's own core on top.

At one moment, in this order:
1. whatever ends, ends;
2. whatever arrives is told to the core, which sends it to a manager;
3. every manager with news makes one pass of its local policy;
4. what began and ended is told to the core, as a poll of that manager would; what the core wants
   then (a pull) is done at once, and 3 and 4 are repeated until it wants nothing. As in the daemon
   a listing without news is told only where something may follow from it.

Where pending jobs are not pulled the core has nothing to decide between two submissions, so a
poll is made before the next one, if there are several clusters to choose between, else after
every `POLLED` news: it lists each job once, as it is by then.

The core decides everything that the daemon's core does, from the same events. Nothing is drawn
here: the same workload, clusters and policy give the same run. Jobs of which a `Scheme` says that
their owners submit them past the meta-scheduler go to their managers, and the core hears of them
only as it would of other people's jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Final, NamedTuple

from metasched.core.events import Accepted, Booted, CoreEvent, Due, Seen, Send, Submitted, Withdraw
from metasched.core.scheduler import Core
from metasched.model.cluster import Cluster, Facts
from metasched.model.job import Job, State
from metasched.model.licence import LicencePool
from metasched.model.listing import Row
from metasched.model.tags import tag_of
from metasched.policies.local import queueing
from metasched.policies.policy import Policy
from metasched.simulate.clusters import ClusterError, SimulatedCluster
from metasched.simulate.manager import Manager
from metasched.simulate.planned import Planned
from metasched.simulate.schemes import Late, Scheme
from metasched.simulate.workload import Request, Workload

INSTANCE = "lab"
_RUNNING: Final = State.RUNNING  # named for every job: see `attempts`
_COMPLETED: Final = State.COMPLETED
POLLED = 1000  # news of one cluster in one listing

# What a row tells of a job: its native id, state, start, end (seconds) and exit code. Most such
# news are overtaken before they are told, so that only what is told is made a row.
_News = tuple[str, State, float | None, float | None, int | None]


class Placed(NamedTuple):
    """How one job fared: seconds from the trace's origin; `machine` counts from 0.

    `priority` is 0 for a job that did not pass the meta-scheduler.
    """

    request: Request
    start: float
    end: float
    cpus: int
    cluster: int
    machine: int
    priority: int
    moves: int

    @property
    def job(self) -> Job:
        return self.request.job

    @property
    def wait(self) -> float:
        return self.start - self.request.job.submitted

    @property
    def flow(self) -> float:
        return self.end - self.request.job.submitted


class Schedule(NamedTuple):
    """A whole run: one row for each job, in the order of the workload."""

    clusters: tuple[SimulatedCluster, ...]
    placed: tuple[Placed, ...]
    dropped: dict[str, int]
    events: int  # that passed the core
    passes: int  # of local policies
    pools: tuple[LicencePool, ...] = ()  # licences that the core leases


THROUGH_US = Scheme()
Local = Callable[[SimulatedCluster], queueing.Policy]


class Engine:
    """One run. `local` makes each cluster its policy object; `step` sees every event."""

    def __init__(
        self,
        workload: Workload,
        clusters: Sequence[SimulatedCluster],
        policy: Policy,
        local: Local,
        progress: Callable[[int], None] | None = None,
        scheme: Scheme = THROUGH_US,
        pools: Sequence[LicencePool] = (),
    ) -> None:
        if not clusters:
            raise ClusterError("there are no clusters; describe them with --clusters")
        self._pools, self._leases = tuple(pools), bool(pools)
        self.core = Core()
        self.clusters = tuple(clusters)
        self._managers = [
            Manager(cluster, local(cluster), leased=self._leases) for cluster in clusters
        ]
        self._named = {c.name: place for place, c in enumerate(clusters)}
        # with one cluster there is nothing to choose: what it says of its load decides nothing
        self._several = len(self.clusters) > 1
        self._pulls = policy.pulls and self._several
        self._tells = self._pulls or (policy.load == "observed" and self._several)
        # a pull, and licences that come back, begin with what a manager tells
        self._heeds = self._pulls or self._leases
        # what is sent late is held here: the core is told of it when it can start
        self._policy = replace(policy, send="at_once", pull=policy.pulls)
        self._progress, self._holds = progress, scheme.late or policy.send == "late"
        if self._holds and self._leases:
            raise ClusterError(
                "late sending is not simulated with licences that are leased, send = late; "
                "leave out one of the two"
            )
        self.dropped = dict(workload.dropped)
        self._requests = self._possible(workload)
        self._by_id = {request.job.id: request for request in self._requests}
        self._ends: list[tuple[float, int, int]] = []  # (time, job, cluster)
        self._polls: list[float] = []
        self._news: list[dict[int, _News]] = [{} for _ in clusters]  # by job, as it is now
        self._facts: list[Facts | None] = [None] * len(clusters)  # as the core knows them
        self._stirred: set[int] = set()
        self._untold: set[int] = set()  # what has changed since the core was last told of it
        self._periods = any(manager.policy.period > 0 for manager in self._managers)
        self._ticks: dict[int, float] = {}
        self._tags: dict[int, str] = {}
        self._sent: dict[int, int] = {}  # and not listed yet, with the cluster
        self._begun: dict[int, Placed] = {}
        self._scheme = scheme
        self._past_us: dict[int, list[int]] = {}  # jobs that wait, and the places of their copies
        self._late: Late | None = None
        self._planned: Planned | None = None
        self._events = self._passes = 0

    def _possible(self, workload: Workload) -> list[Request]:
        """The jobs that some cluster can run, each limited to those that can."""
        kept, dropped = [], 0
        managers = self._managers
        uniform = not any(m.cluster.machines or m.cluster.licences for m in managers)
        largest = max(cluster.cpus for cluster in self.clusters)
        for request in workload.requests:
            job = request.job
            if uniform and not job.licences:
                # the core itself keeps a job from clusters with too few processors
                if job.cpus <= largest:
                    kept.append(request)
                else:
                    dropped += 1
                continue
            able = tuple(m.cluster.name for m in managers if self._able(m, job))
            if len(able) == len(managers):
                kept.append(request)
            elif able:
                kept.append(request._replace(job=replace(job, clusters=able)))
            else:
                dropped += 1
        if dropped:
            self.dropped["fits on no cluster"] = dropped
        return kept

    def _able(self, manager: Manager, job: Job) -> bool:
        """Whether it could run there if nothing else did, licences included."""
        pools = {pool.name: pool for pool in self._pools}
        if self._leases and any(
            (pool := pools.get(name)) is None
            or count > (pool.total or 0)
            or (pool.clusters and manager.cluster.name not in pool.clusters)
            for name, count in job.licences.items()
        ):
            return False
        return manager.able(job)

    def run(self) -> Schedule:
        """Run it all, from the first submission to the last ending."""
        self._boot()
        requests, ends, polls, ticks = self._requests, self._ends, self._polls, self._ticks
        arrivals, place, now = len(requests), 0, 0.0
        arrival = requests[0].job.submitted if requests else math.inf
        due = math.inf
        while place < arrivals or ends or polls or ticks or due < math.inf:
            now = arrival
            if due < now:
                now = due
            if ends and ends[0][0] < now:
                now = ends[0][0]
            if polls and polls[0] < now:
                now = polls[0]
            if ticks:
                now = min(now, *ticks.values())
                self._stirred.update(place for place, tick in ticks.items() if tick <= now)
            while ends and ends[0][0] <= now:
                _, job, where = heappop(ends)
                self._end(now, job, where)
            if arrival <= now:
                self._tell_of_the_past(now)
                while arrival <= now:
                    self._arrive(now, requests[place])
                    place += 1
                    arrival = requests[place].job.submitted if place < arrivals else math.inf
            polled = False
            while polls and polls[0] <= now:
                heappop(polls)
                polled = True
            if due <= now:
                self._step(Due(now))
            self._settle(now, polled)
            if self._leases:
                due = self._due()
        self._report(now, sorted(self._untold))
        placed = tuple(self._begun[r.job.id] for r in requests)
        return Schedule(
            *(self.clusters, placed, self.dropped, self._events, self._passes, self._pools)
        )

    def _due(self) -> float:
        """When time alone gives licences back that somebody waits for."""
        due = self.core.next_due
        return math.inf if due is None else due

    def _boot(self) -> None:
        start = self._requests[0].job.submitted if self._requests else 0.0
        clusters = tuple(
            Cluster(name=c.name, adapter="simulated", benchmark=c.benchmark) for c in self.clusters
        )
        licences = {name for c in self.clusters for name in c.licences}
        pools = self._pools if self._leases else None
        self._step(Booted(start, INSTANCE, self._policy, clusters, len(licences), pools))
        for manager in self._managers:
            self._step(Seen(start, manager.cluster.name, facts=manager.facts(), full=True))
        if self._scheme.plan:
            self._planned = self.core.books.dispatch = Planned(self._managers, self._policy)
        if self._holds:
            self._late = Late(self._managers, self.core.classifier, self._policy.age)

    def _arrive(self, now: float, request: Request) -> None:
        """A job is submitted: by its owner to managers, or to the meta-scheduler."""
        places = self._scheme.places(request, now, self._policy.seed, self._managers)
        for place in places:
            self._managers[place].submit(request.job, 1, request.ran, ours=False)
            self._stirred.add(place)
        if places:
            self._past_us[request.job.id] = list(places)
        elif self._late is not None:
            self._late.hold(request)
        else:
            self._submit(now, request.job)

    def _submit(self, now: float, job: Job) -> None:
        if self._planned is not None:
            self._planned.now = now
        self._step(Submitted(now, job))

    def _step(self, event: CoreEvent) -> None:
        """The only way to the core; what it wants done is done."""
        self._events += 1
        for action in self.core.step(event).actions:
            place = self._named[action.cluster]
            manager = self._managers[place]
            self._stirred.add(place)
            match action:
                case Send(id, sending):
                    task = self.core.tasks[id, 0]
                    manager.submit(task.job, task.priority, self._by_id[id].ran)
                    self._tags[id] = tag_of(INSTANCE, id, sending)
                    self._sent[id] = place
                    if self._leases:  # patience counts from here
                        self._step(Accepted(event.time, id, sending, {0: str(id)}))
                case Withdraw() if action.job in manager.queue:
                    manager.withdraw(action.job)
                    self._news[place][action.job] = "", State.CANCELLED, None, event.time, None

    def _end(self, now: float, job: int, place: int) -> None:
        self._managers[place].end(job)
        self._stirred.add(place)
        if job in self._tags:
            start = self._begun[job].start
            self._news[place][job] = str(job), _COMPLETED, start, now, 0
        if self._progress is not None:
            self._progress(1)

    def _settle(self, now: float, polled: bool) -> None:
        """Let managers start what they can and tell the core, until nobody wants anything."""
        stirred = self._stirred
        while stirred or polled or (self._late is not None and self._send_late(self._late, now)):
            told = set[int]() if self._heeds else self._untold
            while stirred:
                place = min(stirred)
                stirred.remove(place)
                told.add(place)
                if not self._periods or self._looks(place, now):
                    self._schedule(place, now)
            if polled:
                full = self._leases  # also what waits there may have to give its licences back
                told.update(c for c, m in enumerate(self._managers) if full or m.free > 0)
                polled = False
            if self._heeds:
                self._report(now, sorted(told))

    def _send_late(self, late: Late, now: float) -> bool:
        """Submit what was held until it starts at once; whether there was anything."""
        sent = late.sendable(now)
        for request, place in sent:
            name = self.clusters[place].name
            self._submit(now, replace(request.job, clusters=(name,)))
        return bool(sent)

    def _looks(self, place: int, now: float) -> bool:
        """Whether the local policy may look now: always, or at the ticks of its period."""
        manager = self._managers[place]
        period = manager.policy.period
        if period <= 0:
            return True
        tick = math.ceil(now / period) * period
        if tick > now:
            if manager.queue and place not in self._ticks:
                self._ticks[place] = tick
            return False
        self._ticks.pop(place, None)
        return True

    def _schedule(self, place: int, now: float) -> None:
        """One pass of a manager's local policy."""
        manager = self._managers[place]
        self._passes += 1
        news = self._news[place]
        for job, machine, seconds in manager.schedule(now):
            priority = moves = 0
            if job in self._past_us:
                self._withdraw_copies(job, place)
            else:
                task = self.core.tasks[job, 0]
                priority, moves = task.priority, task.moves
                news[job] = str(job), _RUNNING, now, None, None
            self._begun[job] = Placed(
                self._by_id[job],
                now,
                now + seconds,
                manager.running[job].cpus,
                place,
                machine,
                priority,
                moves,
            )
            heappush(self._ends, (now + seconds, job, place))

    def _withdraw_copies(self, job: int, begun: int) -> None:
        for place in self._past_us.pop(job):
            if place != begun:
                self._managers[place].withdraw(job)
                self._stirred.add(place)

    def _tell_of_the_past(self, now: float) -> None:
        """Before something is submitted: tell the core all on which its choice may depend."""
        if self._heeds:  # all but what ends just now has been told
            self._report(now, sorted(self._stirred))
        elif self._several or len(self._news[0]) >= POLLED:
            self._report(now, sorted(self._untold | self._stirred))
            self._untold.clear()

    def _report(self, now: float, places: Sequence[int]) -> None:
        """What polls of these managers would show now."""
        if not places:
            return
        if self._several or self._leases:
            self._show_waiting(now)
        may_pull: bool | None = None  # not asked yet, for the time and the tasks that there are now
        for place in places:
            manager, news = self._managers[place], self._news[place]
            if not (news or self._tells):
                continue
            facts = manager.facts() if self._tells else None
            if not (news or self._leases) and facts is self._facts[place]:
                if may_pull is None and self.core.books.now == now:
                    may_pull = self.core.may_pull
                if may_pull is False:
                    continue
            self._news[place], self._facts[place], may_pull = {}, facts, None
            rows = tuple(
                [
                    Row(self._tags[job], 0, native, state, start, end, code)
                    for job, (native, state, start, end, code) in news.items()
                ]
            )
            self._step(Seen(now, manager.cluster.name, rows, (), facts))

    def _show_waiting(self, now: float) -> None:
        """List what was sent and has not begun; look again when it may be pulled."""
        for job, place in self._sent.items():
            if job in self._managers[place].queue:
                self._news[place][job] = str(job), State.PENDING, None, None, None
                if self._leases and self._by_id[job].job.licences:
                    heappush(self._polls, now + self._policy.patience)
                if self._pulls:
                    task = self.core.tasks[job, 0]
                    heappush(self._polls, now + self._policy.pull_after * 2.0**task.moves)
        self._sent.clear()
