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

from metasched.core.events import (
    CoreEvent,
    DaemonStarted,
    Dispatch,
    DispatchAccepted,
    JobSubmitted,
    ListingReceived,
    TimerExpired,
    Withdraw,
)
from metasched.core.scheduler import Core
from metasched.model.cluster import Cluster, ClusterInfo
from metasched.model.job import Job, State
from metasched.model.licence import LicencePool
from metasched.model.listing import JobStatus
from metasched.model.tags import tag_of
from metasched.policies.local import queueing
from metasched.policies.policy import Policy
from metasched.simulate.clusters import ClusterError, SimulatedCluster
from metasched.simulate.manager import SimulatedManager
from metasched.simulate.planned import PlannedDispatch
from metasched.simulate.schemes import LateBindingQueue, SubmissionScheme
from metasched.simulate.workload import Workload, WorkloadEntry

INSTANCE = "lab"
_RUNNING: Final = State.RUNNING  # named for every job: see `attempts`
_COMPLETED: Final = State.COMPLETED
UPDATES_PER_LISTING = 1000  # news of one cluster in one listing

# What a row tells of a job: its native id, state, start, end (seconds) and exit code. Most such
# news are overtaken before they are told, so that only what is told is made a row.
_StatusUpdate = tuple[str, State, float | None, float | None, int | None]


class ScheduledJob(NamedTuple):
    """How one job fared: seconds from the trace's origin; `machine` counts from 0.

    `priority` is 0 for a job that did not pass the meta-scheduler.
    """

    entry: WorkloadEntry
    start: float
    end: float
    cpus: int
    cluster: int
    machine: int
    priority: int
    moves: int

    @property
    def job(self) -> Job:
        return self.entry.job

    @property
    def wait(self) -> float:
        return self.start - self.entry.job.submitted

    @property
    def flow(self) -> float:
        return self.end - self.entry.job.submitted


class Schedule(NamedTuple):
    """A whole run: one row for each job, in the order of the workload."""

    clusters: tuple[SimulatedCluster, ...]
    jobs: tuple[ScheduledJob, ...]
    dropped: dict[str, int]
    event_count: int  # that passed the core
    pass_count: int  # of local policies
    pools: tuple[LicencePool, ...] = ()  # licences that the core leases


THROUGH_METASCHED = SubmissionScheme()
LocalPolicyFactory = Callable[[SimulatedCluster], queueing.LocalPolicy]


class Simulation:
    """One run. `local` makes each cluster its policy object; `step` sees every event."""

    def __init__(
        self,
        workload: Workload,
        clusters: Sequence[SimulatedCluster],
        policy: Policy,
        make_policy: LocalPolicyFactory,
        progress: Callable[[int], None] | None = None,
        scheme: SubmissionScheme = THROUGH_METASCHED,
        licence_pools: Sequence[LicencePool] = (),
    ) -> None:
        if not clusters:
            raise ClusterError("there are no clusters; describe them with --clusters")
        self._licence_pools, self._leasing = tuple(licence_pools), bool(licence_pools)
        self.core = Core()
        self.clusters = tuple(clusters)
        self._managers = [
            SimulatedManager(cluster, make_policy(cluster), licences_leased=self._leasing)
            for cluster in clusters
        ]
        self._index_by_name = {cluster.name: index for index, cluster in enumerate(clusters)}
        # with one cluster there is nothing to choose: what it says of its load decides nothing
        self._multiple_clusters = len(self.clusters) > 1
        self._pulling = policy.pull_enabled and self._multiple_clusters
        self._reports_info = self._pulling or (
            policy.load == "observed" and self._multiple_clusters
        )
        # a pull, and licences that come back, begin with what a manager tells
        self._reports_every_pass = self._pulling or self._leasing
        # what is sent late is held here: the core is told of it when it can start
        self._policy = replace(policy, send="at_once", pull=policy.pull_enabled)
        self._progress, self._late_binding = progress, scheme.late_binding or policy.send == "late"
        if self._late_binding and self._leasing:
            raise ClusterError(
                "late sending is not simulated with licences that are leased, send = late; "
                "leave out one of the two"
            )
        self.dropped = dict(workload.dropped)
        self._entries = self._runnable_entries(workload)
        self._entries_by_id = {entry.job.id: entry for entry in self._entries}
        self._ends: list[tuple[float, int, int]] = []  # (time, job, cluster)
        self._poll_times: list[float] = []
        self._updates: list[dict[int, _StatusUpdate]] = [
            {} for _ in clusters
        ]  # by job, as it is now
        self._reported_info: list[ClusterInfo | None] = [None] * len(
            clusters
        )  # as the core knows them
        self._needs_pass: set[int] = set()
        self._unreported: set[int] = set()  # what has changed since the core was last told of it
        self._has_periodic_policy = any(manager.policy.period > 0 for manager in self._managers)
        self._ticks: dict[int, float] = {}
        self._tags: dict[int, str] = {}
        self._unlisted: dict[int, int] = {}  # and not listed yet, with the cluster
        self._scheduled: dict[int, ScheduledJob] = {}
        self._scheme = scheme
        self._bypassing: dict[int, list[int]] = {}  # jobs that wait, and the places of their copies
        self._late_queue: LateBindingQueue | None = None
        self._planned_dispatch: PlannedDispatch | None = None
        self._event_count = self._pass_count = 0

    def _runnable_entries(self, workload: Workload) -> list[WorkloadEntry]:
        """The jobs that some cluster can run, each limited to those that can."""
        runnable, dropped = [], 0
        managers = self._managers
        uniform = not any(
            manager.cluster.machines or manager.cluster.licences for manager in managers
        )
        largest = max(cluster.cpus for cluster in self.clusters)
        for entry in workload.entries:
            job = entry.job
            if uniform and not job.licences:
                # the core itself keeps a job from clusters with too few processors
                if job.cpus <= largest:
                    runnable.append(entry)
                else:
                    dropped += 1
                continue
            eligible = tuple(
                manager.cluster.name for manager in managers if self._can_run(manager, job)
            )
            if len(eligible) == len(managers):
                runnable.append(entry)
            elif eligible:
                runnable.append(entry._replace(job=replace(job, clusters=eligible)))
            else:
                dropped += 1
        if dropped:
            self.dropped["fits on no cluster"] = dropped
        return runnable

    def _can_run(self, manager: SimulatedManager, job: Job) -> bool:
        """Whether it could run there if nothing else did, licences included."""
        pools = {pool.name: pool for pool in self._licence_pools}
        if self._leasing and any(
            (pool := pools.get(name)) is None
            or count > (pool.total or 0)
            or (pool.clusters and manager.cluster.name not in pool.clusters)
            for name, count in job.licences.items()
        ):
            return False
        return manager.can_run(job)

    def run(self) -> Schedule:
        """Run it all, from the first submission to the last ending."""
        self._start_core()
        entries, ends, polls, ticks = self._entries, self._ends, self._poll_times, self._ticks
        arrivals, index, now = len(entries), 0, 0.0
        arrival = entries[0].job.submitted if entries else math.inf
        timer = math.inf
        while index < arrivals or ends or polls or ticks or timer < math.inf:
            now = arrival
            if timer < now:
                now = timer
            if ends and ends[0][0] < now:
                now = ends[0][0]
            if polls and polls[0] < now:
                now = polls[0]
            if ticks:
                now = min(now, *ticks.values())
                self._needs_pass.update(index for index, tick in ticks.items() if tick <= now)
            while ends and ends[0][0] <= now:
                _, job_id, cluster = heappop(ends)
                self._end_job(now, job_id, cluster)
            if arrival <= now:
                self._report_before_submission(now)
                while arrival <= now:
                    self._arrive(now, entries[index])
                    index += 1
                    arrival = entries[index].job.submitted if index < arrivals else math.inf
            polled = False
            while polls and polls[0] <= now:
                heappop(polls)
                polled = True
            if timer <= now:
                self._step_core(TimerExpired(now))
            self._run_policies(now, polled)
            if self._leasing:
                timer = self._next_timer()
        self._report_to_core(now, sorted(self._unreported))
        scheduled = tuple(self._scheduled[entry.job.id] for entry in entries)
        return Schedule(
            *(
                self.clusters,
                scheduled,
                self.dropped,
                self._event_count,
                self._pass_count,
                self._licence_pools,
            )
        )

    def _next_timer(self) -> float:
        """When time alone gives licences back that somebody waits for."""
        timer = self.core.next_due
        return math.inf if timer is None else timer

    def _start_core(self) -> None:
        start = self._entries[0].job.submitted if self._entries else 0.0
        clusters = tuple(
            Cluster(name=c.name, adapter="simulated", benchmark=c.benchmark) for c in self.clusters
        )
        licences = {name for c in self.clusters for name in c.licences}
        pools = self._licence_pools if self._leasing else None
        self._step_core(
            DaemonStarted(start, INSTANCE, self._policy, clusters, len(licences), pools)
        )
        for manager in self._managers:
            self._step_core(
                ListingReceived(start, manager.cluster.name, info=manager.cluster_info(), full=True)
            )
        if self._scheme.planned_dispatch:
            self._planned_dispatch = self.core.state.load_ordering = PlannedDispatch(
                self._managers, self._policy
            )
        if self._late_binding:
            self._late_queue = LateBindingQueue(
                self._managers, self.core.classifier, self._policy.age
            )

    def _arrive(self, now: float, entry: WorkloadEntry) -> None:
        """A job is submitted: by its owner to managers, or to the meta-scheduler."""
        targets = self._scheme.bypass_targets(entry, now, self._policy.seed, self._managers)
        for index in targets:
            self._managers[index].submit(entry.job, 1, entry.run_time, through_metasched=False)
            self._needs_pass.add(index)
        if targets:
            self._bypassing[entry.job.id] = list(targets)
        elif self._late_queue is not None:
            self._late_queue.add(entry)
        else:
            self._submit(now, entry.job)

    def _submit(self, now: float, job: Job) -> None:
        if self._planned_dispatch is not None:
            self._planned_dispatch.now = now
        self._step_core(JobSubmitted(now, job))

    def _step_core(self, event: CoreEvent) -> None:
        """The only way to the core; what it wants done is done."""
        self._event_count += 1
        for action in self.core.step(event).actions:
            index = self._index_by_name[action.cluster]
            manager = self._managers[index]
            self._needs_pass.add(index)
            match action:
                case Dispatch(id, dispatch_id):
                    task = self.core.tasks[id, 0]
                    manager.submit(task.job, task.priority, self._entries_by_id[id].run_time)
                    self._tags[id] = tag_of(INSTANCE, id, dispatch_id)
                    self._unlisted[id] = index
                    if self._leasing:  # patience counts from here
                        self._step_core(DispatchAccepted(event.time, id, dispatch_id, {0: str(id)}))
                case Withdraw() if action.job in manager.queue:
                    manager.withdraw(action.job)
                    self._updates[index][action.job] = "", State.CANCELLED, None, event.time, None

    def _end_job(self, now: float, job_id: int, index: int) -> None:
        self._managers[index].end_job(job_id)
        self._needs_pass.add(index)
        if job_id in self._tags:
            start = self._scheduled[job_id].start
            self._updates[index][job_id] = str(job_id), _COMPLETED, start, now, 0
        if self._progress is not None:
            self._progress(1)

    def _run_policies(self, now: float, polled: bool) -> None:
        """Let managers start what they can and tell the core, until nobody wants anything."""
        needs_pass = self._needs_pass
        while (
            needs_pass
            or polled
            or (self._late_queue is not None and self._submit_startable(self._late_queue, now))
        ):
            reported = set[int]() if self._reports_every_pass else self._unreported
            while needs_pass:
                index = min(needs_pass)
                needs_pass.remove(index)
                reported.add(index)
                if not self._has_periodic_policy or self._policy_is_due(index, now):
                    self._run_policy(index, now)
            if polled:
                every_manager = (
                    self._leasing
                )  # also what waits there may have to give its licences back
                reported.update(
                    position
                    for position, manager in enumerate(self._managers)
                    if every_manager or manager.free_cpus > 0
                )
                polled = False
            if self._reports_every_pass:
                self._report_to_core(now, sorted(reported))

    def _submit_startable(self, late_queue: LateBindingQueue, now: float) -> bool:
        """Submit what was held until it starts at once; whether there was anything."""
        startable = late_queue.take_startable(now)
        for entry, index in startable:
            name = self.clusters[index].name
            self._submit(now, replace(entry.job, clusters=(name,)))
        return bool(startable)

    def _policy_is_due(self, index: int, now: float) -> bool:
        """Whether the local policy may look now: always, or at the ticks of its period."""
        manager = self._managers[index]
        period = manager.policy.period
        if period <= 0:
            return True
        tick = math.ceil(now / period) * period
        if tick > now:
            if manager.queue and index not in self._ticks:
                self._ticks[index] = tick
            return False
        self._ticks.pop(index, None)
        return True

    def _run_policy(self, index: int, now: float) -> None:
        """One pass of a manager's local policy."""
        manager = self._managers[index]
        self._pass_count += 1
        updates = self._updates[index]
        for job_id, machine, seconds in manager.run_policy(now):
            priority = moves = 0
            if job_id in self._bypassing:
                self._withdraw_copies(job_id, index)
            else:
                task = self.core.tasks[job_id, 0]
                priority, moves = task.priority, task.moves
                updates[job_id] = str(job_id), _RUNNING, now, None, None
            self._scheduled[job_id] = ScheduledJob(
                self._entries_by_id[job_id],
                now,
                now + seconds,
                manager.running[job_id].cpus,
                index,
                machine,
                priority,
                moves,
            )
            heappush(self._ends, (now + seconds, job_id, index))

    def _withdraw_copies(self, job_id: int, started_index: int) -> None:
        for index in self._bypassing.pop(job_id):
            if index != started_index:
                self._managers[index].withdraw(job_id)
                self._needs_pass.add(index)

    def _report_before_submission(self, now: float) -> None:
        """Before something is submitted: tell the core all on which its choice may depend."""
        if self._reports_every_pass:  # all but what ends just now has been told
            self._report_to_core(now, sorted(self._needs_pass))
        elif self._multiple_clusters or len(self._updates[0]) >= UPDATES_PER_LISTING:
            self._report_to_core(now, sorted(self._unreported | self._needs_pass))
            self._unreported.clear()

    def _report_to_core(self, now: float, indexes: Sequence[int]) -> None:
        """What polls of these managers would show now."""
        if not indexes:
            return
        if self._multiple_clusters or self._leasing:
            self._list_pending(now)
        may_pull: bool | None = None  # not asked yet, for the time and the tasks that there are now
        for index in indexes:
            manager, updates = self._managers[index], self._updates[index]
            if not (updates or self._reports_info):
                continue
            info = manager.cluster_info() if self._reports_info else None
            if not (updates or self._leasing) and info is self._reported_info[index]:
                if may_pull is None and self.core.state.now == now:
                    may_pull = self.core.may_pull
                if may_pull is False:
                    continue
            self._updates[index], self._reported_info[index], may_pull = {}, info, None
            statuses = tuple(
                [
                    JobStatus(self._tags[job_id], 0, native_id, state, start, end, exit_code)
                    for job_id, (native_id, state, start, end, exit_code) in updates.items()
                ]
            )
            self._step_core(ListingReceived(now, manager.cluster.name, statuses, (), info))

    def _list_pending(self, now: float) -> None:
        """List what was sent and has not begun; look again when it may be pulled."""
        for job_id, index in self._unlisted.items():
            if job_id in self._managers[index].queue:
                self._updates[index][job_id] = str(job_id), State.PENDING, None, None, None
                if self._leasing and self._entries_by_id[job_id].job.licences:
                    heappush(self._poll_times, now + self._policy.patience)
                if self._pulling:
                    task = self.core.tasks[job_id, 0]
                    heappush(self._poll_times, now + self._policy.pull_after * 2.0**task.moves)
        self._unlisted.clear()
