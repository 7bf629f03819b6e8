"""Discrete-event simulation: workload and simulated managers, driven by the daemon's own core.

The steps at one time, in this order:
1. jobs end;
2. arriving jobs are submitted to the core, which dispatches them to a manager;
3. every manager whose state changed runs one pass of its local policy;
4. starts and endings are reported to the core, as a poll of that manager would; actions of the
   core (a pull) are executed at once, and 3 and 4 repeat until there are none.

A listing is reported at once where the core may act on it: if a task may be pulled, or has started
that would be pulled, if a pulled task has left its cluster or did not start; always with leases,
limits, bounded queues and late binding. Else it is reported before the next listing that the core
may act on, or before the next submission. With one cluster there is no choice to make, and it is
reported after every `UPDATES_PER_LISTING` changes. It has each job once, in its current state.

The core decides everything that the daemon's core does, from the same events: an array is one
submission. To managers and in results each of its tasks is a job. The engine draws no random
numbers: the same workload, clusters and policy give the same run. Jobs that bypass metasched
(`SubmissionScheme`) are queued at their managers directly; the core sees only their load, like that
of other users' jobs.

To the core a suspended job is running: it has left the queue of its cluster for good.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import NamedTuple

from msgspec import structs

from metasched.core.events import (
    ClusterDrained,
    ClusterResumed,
    CoreEvent,
    DaemonStarted,
    Dispatch,
    DispatchAccepted,
    JobSubmitted,
    ListingReceived,
    Outcome,
    TimerExpired,
    UserRequested,
    Withdraw,
)
from metasched.core.scheduler import Core
from metasched.core.tasks import Task
from metasched.laboratory.simulate.clusters import ClusterError, SimulatedCluster
from metasched.laboratory.simulate.forecasts import SimulatedForecaster
from metasched.laboratory.simulate.manager import SimulatedManager
from metasched.laboratory.simulate.planned import PlannedDispatch
from metasched.laboratory.simulate.preemptive_manager import PreemptiveManager
from metasched.laboratory.simulate.reservations import ReservationDesk, ReservationResult
from metasched.laboratory.simulate.schemes import SubmissionScheme
from metasched.laboratory.simulate.submissions import array_arrivals, task_id_of
from metasched.laboratory.simulate.workload import WindowRequest, Workload, WorkloadEntry
from metasched.model.cluster import Cluster, ClusterInfo
from metasched.model.fair_share import FairShareSettings
from metasched.model.job import Job, State
from metasched.model.licence import LicencePool
from metasched.model.limits import LimitSettings
from metasched.model.listing import JobStatus
from metasched.model.tags import tag_of
from metasched.policies.heuristic import ClusterTraits
from metasched.policies.local.preemption import PreemptivePolicy
from metasched.policies.local.queueing import LocalPolicy
from metasched.policies.plug_in_ratings import ask_all, load_all, plug_ins_of, rated_job
from metasched.policies.policy import Policy

INSTANCE = "lab"  # of the simulated daemon, in tags
UPDATES_PER_LISTING = 1000  # status changes of a cluster in a listing
# why jobs were left out, in `Schedule.dropped`
REFUSED, NEVER_STARTED = "refused by a limit", "kept waiting by a drain that does not end"
WINDOW_OVER = "their reservation ended before its processors were free"

# The fields of a job status: native id, state, start, end (seconds), exit code. Most are replaced
# before they are reported, so a JobStatus is created only for a report.
_StatusUpdate = tuple[str, State, float | None, float | None, int | None]


class Run(NamedTuple):
    """A run of a job that was suspended; times are seconds from the trace's origin."""

    start: float
    end: float
    cpus: int  # held
    machine: int  # index; 0 where processors are counted


class ScheduledJob(NamedTuple):
    """The result of a job; times are seconds from the trace's origin."""

    entry: WorkloadEntry
    start: float  # of its first run
    end: float  # of its last run
    cpus: int  # held
    cluster: int  # index
    machine: int  # index; 0 where processors are counted
    priority: int  # 0 for a job that bypassed metasched
    moves: int  # between clusters, before the start
    suspended_runs: tuple[Run, ...] = ()  # all runs of a job that was suspended

    @property
    def job(self) -> Job:
        return self.entry.job

    @property
    def runs(self) -> tuple[Run, ...]:
        return self.suspended_runs or (Run(self.start, self.end, self.cpus, self.machine),)

    @property
    def run_time(self) -> float:
        """Its running time in seconds."""
        if not self.suspended_runs:
            return self.end - self.start
        return sum(run.end - run.start for run in self.suspended_runs)

    @property
    def wait(self) -> float:
        """Seconds without running: before its start, and suspended."""
        wait = self.start - self.entry.job.submitted
        return wait + (self.end - self.start - self.run_time if self.suspended_runs else 0.0)

    @property
    def flow(self) -> float:
        return self.end - self.entry.job.submitted


class Schedule(NamedTuple):
    """The result of a run."""

    clusters: tuple[SimulatedCluster, ...]
    jobs: tuple[ScheduledJob, ...]  # in the order of the workload
    dropped: dict[str, int]  # jobs left out, by cause
    event_count: int  # passed to the core
    pass_count: int  # of local policies
    pools: tuple[LicencePool, ...] = ()  # licences leased by the core
    pulls: int = 0  # moves of pending jobs to a cluster that would start them at once
    pulls_started: int = 0  # those that did start at once
    policy_seconds: float = 0.0  # in passes of local policies, by the clock of the simulation
    search_iterations: int = 0  # of local policies that search plans
    # jobs for which a heuristic of the site was excluded, by its name
    excluded: Mapping[str, int] = MappingProxyType({})
    # passes that FCFS decided, since a policy of another package failed, by its name
    excluded_passes: Mapping[str, int] = MappingProxyType({})
    reservations: tuple[ReservationResult, ...] = ()  # in the order of their requests


THROUGH_METASCHED = SubmissionScheme()
LocalPolicyFactory = Callable[[SimulatedCluster], LocalPolicy]


class Simulation:
    """One run. `make_policy` creates the local policy of each cluster.

    With a `clock`, as `time.process_time`, the passes of local policies are timed. `drains`: acts
    of operators, in the order of their times.
    """

    def __init__(
        self,
        workload: Workload,
        clusters: Sequence[SimulatedCluster],
        policy: Policy,
        make_policy: LocalPolicyFactory,
        progress: Callable[[int], None] | None = None,
        scheme: SubmissionScheme = THROUGH_METASCHED,
        licence_pools: Sequence[LicencePool] = (),
        fair_share: FairShareSettings | None = None,
        limits: LimitSettings | None = None,
        clock: Callable[[], float] | None = None,
        drains: Sequence[ClusterDrained | ClusterResumed] = (),
    ) -> None:
        if not clusters:
            raise ClusterError("there are no clusters; describe them with --clusters")
        self._licence_pools, self._leasing = tuple(licence_pools), bool(licence_pools)
        self.core = Core()
        self.clusters = tuple(clusters)
        self._index_by_name = {cluster.name: index for index, cluster in enumerate(clusters)}
        # with one cluster there is no choice: its reported load has no effect
        self._multiple_clusters = len(self.clusters) > 1
        self._pulling = policy.pull_enabled and self._multiple_clusters
        self._managers = [self.make_manager(c, make_policy(c)) for c in clusters]
        self._fair_share, self._limits = fair_share, limits or LimitSettings()
        self._limited = self._limits.configured
        refills = fair_share is not None or any(c.queue_depth is not None for c in clusters)
        self._binds_late = policy.send == "late"
        self._reports_info = (
            self._pulling
            or refills
            or self._binds_late
            or (policy.load != "paper" and self._multiple_clusters)
        )
        self._policy, self._progress = replace(policy, pull=policy.pull_enabled), progress
        self.dropped = dict(workload.dropped)
        self._entries = self._runnable_entries(workload)
        self._entries_by_id = {entry.job.id: entry for entry in self._entries}
        self._arrays = array_arrivals(self._entries)
        # returned licences, tasks that follow others, and tasks bound late follow from a listing
        limited = self._limited or any(array.has_limit for array in self._arrays.values())
        self._reports_every_pass = self._leasing or refills or limited or self._binds_late
        # the task of the core for each job of the managers, and the reverse
        self._task_ids = {entry.job.id: task_id_of(entry) for entry in self._entries}
        self._job_ids = {task_id: job_id for job_id, task_id in self._task_ids.items()}
        self._ends: list[tuple[float, int, int]] = []  # (time, job, cluster)
        self._void_ends = Counter[tuple[float, int, int]]()  # of jobs that were suspended before
        self._poll_times: list[float] = []
        # unreported status by job, and the last reported info, of each cluster
        self._updates: list[dict[int, _StatusUpdate]] = [{} for _ in clusters]
        self._reported_info: list[ClusterInfo | None] = [None] * len(clusters)
        self._needs_pass: set[int] = set()  # clusters changed since their last pass
        self._unreported: set[int] = set()  # clusters changed since the last report to the core
        self._pull_waits = False  # whether an unreported change ends a withdrawal, or fails a pull
        self._has_periodic_policy = any(manager.policy.period > 0 for manager in self._managers)
        self._ticks: dict[int, float] = {}  # next pass of clusters with a periodic policy
        # when windows of clusters begin and end: jobs may start then
        self._window_changes = [
            (window.end, index) for index, c in enumerate(clusters) for window in c.windows
        ]
        heapify(self._window_changes)
        self._window_requests = deque(workload.windows)
        self._desk = self._make_desk(workload) if workload.has_windows else None
        self._tags: dict[int, str] = {}  # of dispatched jobs
        self._unlisted: dict[int, int] = {}  # job to cluster; missing from listings so far
        start = self._start = self._entries[0].job.submitted if self._entries else 0.0
        self._drains = [structs.replace(act, time=max(act.time, start)) for act in drains]
        self._scheduled: dict[int, ScheduledJob] = {}
        self._refused: set[int] = set()  # jobs
        self._scheme = scheme
        self._bypassing: dict[int, list[int]] = {}  # waiting jobs and the clusters of their copies
        self._planned_dispatch: PlannedDispatch | None = None
        self._forecaster: SimulatedForecaster | None = None
        if policy.load == "forecast" and self._multiple_clusters:
            policies = {c.name: partial(make_policy, c) for c in clusters}
            self._forecaster = SimulatedForecaster(self.core, policies, policy.seed)
        self._event_count = self._pass_count = 0
        self._plug_ins = load_all(plug_ins_of(policy))
        self._traits = [ClusterTraits(c.name, "simulated", c.benchmark, c.cpus) for c in clusters]
        self._excluded = Counter[str]()
        self._clock, self._policy_seconds = clock, 0.0

    def _make_desk(self, workload: Workload) -> ReservationDesk:
        names = {cluster.name: index for index, cluster in enumerate(self.clusters)}
        for window in (*workload.windows, *(entry.window for entry in workload.entries)):
            if window is not None and (unknown := set(window.clusters) - names.keys()):
                raise ClusterError(
                    f'a reservation asks for cluster "{min(unknown)}", --reservations; '
                    f"there are {', '.join(names)}"
                )
        for manager in self._managers:
            manager.require_windows()

        def record_change(cluster: str, time: float) -> None:
            heappush(self._window_changes, (time, names[cluster]))

        managers = {
            cluster.name: self._managers[index]
            for cluster, index in zip(self.clusters, names.values(), strict=True)
        }
        return self.make_desk(managers, record_change)

    def make_desk(
        self, managers: Mapping[str, SimulatedManager], changed: Callable[[str, float], None]
    ) -> ReservationDesk:
        """Create the desk; experiments with other managers override it."""
        offers = self.core.reservations.offer_finder.offers
        return ReservationDesk(managers, INSTANCE, self._step_core, offers, changed)

    def make_manager(self, cluster: SimulatedCluster, policy: LocalPolicy) -> SimulatedManager:
        """Create the manager of a cluster; experiments with other managers override it."""
        if not isinstance(policy, PreemptivePolicy):
            return SimulatedManager(
                cluster, policy, licences_leased=self._leasing, reports_plan=self._pulling
            )
        if self._leasing:
            raise ClusterError(
                f'policy {policy.name} suspends jobs, cluster "{cluster.name}", but leased '
                "licences stay with their jobs until these end; use licences of the clusters"
            )
        return PreemptiveManager(cluster, policy, reports_plan=self._pulling)

    def _runnable_entries(self, workload: Workload) -> list[WorkloadEntry]:
        """Return the jobs that some cluster can run, each restricted to the clusters that can."""
        runnable, dropped = [], 0
        managers = self._managers
        uniform = not any(cluster.machines or cluster.licences for cluster in self.clusters)
        largest = max(cluster.cpus for cluster in self.clusters)
        for entry in workload.entries:
            job = entry.job
            if uniform and not job.licences:
                # the core itself skips clusters with too few processors
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
                runnable.append(entry._replace(job=structs.replace(job, clusters=eligible)))
            else:
                dropped += 1
        if dropped:
            self.dropped["fits on no cluster"] = dropped
        return runnable

    def _can_run(self, manager: SimulatedManager, job: Job) -> bool:
        """Return whether the job could run there on an empty cluster, with its licences."""
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
        """Simulate from the first submission to the last ending."""
        self._start_core()
        entries, ends, polls, ticks = self._entries, self._ends, self._poll_times, self._ticks
        changes, drains = self._window_changes, deque(self._drains)
        requests, desk = self._window_requests, self._desk
        arrivals, index, now = len(entries), 0, 0.0
        arrival = entries[0].job.submitted if entries else math.inf
        timer = math.inf
        while (
            index < arrivals
            or ends
            or polls
            or ticks
            or changes
            or drains
            or requests
            or timer < math.inf
        ):
            now = arrival
            if timer < now:
                now = timer
            if ends and ends[0][0] < now:
                now = ends[0][0]
            if polls and polls[0] < now:
                now = polls[0]
            if drains and drains[0].time < now:
                now = drains[0].time
            if ticks:
                now = min(now, *ticks.values())
                self._needs_pass.update(index for index, tick in ticks.items() if tick <= now)
            if requests:
                now = min(now, max(requests[0].submitted, self._start))
            if changes:
                now = min(now, changes[0][0])
                while changes and changes[0][0] <= now:
                    self._needs_pass.add(heappop(changes)[1])
            while ends and ends[0][0] <= now:
                end = heappop(ends)
                if self._void_ends and self._void_ends[end]:
                    self._void_ends[end] -= 1
                else:
                    self._end_job(now, end[1], end[2])
            polled = False
            while drains and drains[0].time <= now:
                self._apply_drain(now, drains.popleft())
                polled = True
            if arrival <= now:
                self._report_before_submission(now)
                while arrival <= now:
                    self._arrive(now, entries[index])
                    index += 1
                    arrival = entries[index].job.submitted if index < arrivals else math.inf
            while polls and polls[0] <= now:
                heappop(polls)
                polled = True
            while requests and requests[0].submitted <= now:
                assert desk is not None
                desk.request(now, requests.popleft(), None)
            if timer <= now:
                if desk is not None:  # an ended job is not to be ended with its window
                    self._report_to_core(now, self._unreported | self._needs_pass)
                self._step_core(TimerExpired(now))
            self._run_policies(now, polled)
            if desk is not None:
                desk.record_passes(now)
            if self._leasing or self._limited or self._arrays or desk is not None:
                timer = self._next_timer(now)
        self._report_to_core(now, self._unreported)
        stuck = self._stuck_jobs()
        pulls_by_cluster = [self.core.pull_counts(cluster.name) for cluster in self.clusters]
        return Schedule(
            clusters=self.clusters,
            jobs=tuple(
                [
                    self._scheduled[entry.job.id]
                    for entry in entries
                    if entry.job.id not in self._refused and entry.job.id not in stuck
                ]
            ),
            dropped=self.dropped,
            event_count=self._event_count,
            pass_count=self._pass_count,
            pools=self._licence_pools,
            pulls=sum(pulls for pulls, _ in pulls_by_cluster),
            pulls_started=sum(started for _, started in pulls_by_cluster),
            policy_seconds=self._policy_seconds,
            search_iterations=sum(
                getattr(manager.policy, "iterations", 0) for manager in self._managers
            ),
            excluded=self._excluded,
            excluded_passes=self._excluded_passes(),
            reservations=() if desk is None else desk.results,
        )

    def _excluded_passes(self) -> Counter[str]:
        counts = Counter[str]()
        for manager in self._managers:
            if passes := getattr(manager.policy, "excluded_passes", 0):
                counts[getattr(manager.policy, "name", "")] += passes
        return counts

    def _apply_drain(self, now: float, event: ClusterDrained | ClusterResumed) -> None:
        """Pass the act of an operator to the core, which knows the pending tasks from polls."""
        self._list_pending(now)
        self._report_to_core(now, set(range(len(self._managers))))
        self._step_core(event)

    def _stuck_jobs(self) -> Set[int]:
        """Return the jobs that wait for a drain without end, or whose window is over."""
        if not self._drains and self._desk is None:
            return set()
        ids = {entry.job.id for entry in self._entries}
        stuck = ids - self._scheduled.keys() - self._refused
        over = set[int]()
        if self._desk is not None:
            over = {id for id in stuck if self._task(id).job.reservation is not None}
        for cause, count in ((NEVER_STARTED, len(stuck - over)), (WINDOW_OVER, len(over))):
            if count:
                self.dropped[cause] = count
        return stuck

    def _next_timer(self, now: float) -> float:
        """Return when time alone lets jobs go that wait for licences or limits; inf if never."""
        timer = self.core.next_due
        return math.inf if timer is None else max(timer, now)

    def _start_core(self) -> None:
        clusters = tuple(
            Cluster(
                name=c.name,
                adapter="simulated",
                benchmark=c.benchmark,
                max_unanswered=None,
                queue_depth=self._queue_depth(c),
                start_delay=0.0,
                supports_reservations=self._desk is not None,
                local_policy=getattr(manager.policy, "name", ""),
            )
            for c, manager in zip(self.clusters, self._managers, strict=True)
        )
        licences = {name for c in self.clusters for name in c.licences}
        pools = self._licence_pools if self._leasing else None
        start = self._start
        self._step_core(
            DaemonStarted(
                start,
                INSTANCE,
                self._policy,
                clusters,
                len(licences),
                pools,
                limits=self._limits,
                fair_share=self._fair_share,
            )
        )
        for manager in self._managers:
            self._step_core(
                ListingReceived(start, manager.cluster.name, info=manager.cluster_info(), full=True)
            )
        if self._scheme.planned_dispatch:
            self._planned_dispatch = self.core.state.load_ordering = PlannedDispatch(
                self._managers, self._policy
            )

    def _queue_depth(self, cluster: SimulatedCluster) -> int | None:
        """Return how many tasks may wait on a cluster; shares order only tasks that do not."""
        if cluster.queue_depth is None and self._fair_share is not None and not self._binds_late:
            return 0
        return cluster.queue_depth

    def _arrive(self, now: float, entry: WorkloadEntry) -> None:
        """Submit a job to managers if it bypasses metasched, else to the core.

        Arrays come from records, where nothing bypasses it.
        """
        if entry.job.array is not None:
            self._arrive_in_array(now, entry)
            return
        if entry.window is not None and not (self._limited and self._is_refused(entry.job)):
            self._arrive_with_window(now, entry, entry.window)
            return
        targets = self._scheme.bypass_targets(entry, now, self._policy.seed, self._managers)
        for index in targets:
            self._managers[index].submit(
                entry.job, 1, entry.run_time, entry.inputs, through_metasched=False
            )
            self._needs_pass.add(index)
        if targets:
            self._bypassing[entry.job.id] = list(targets)
        elif self._limited and self._is_refused(entry.job):
            self._refused.add(entry.job.id)
            self.dropped[REFUSED] = len(self._refused)
        else:
            self._submit(now, self._as_submitted(entry))

    def _as_submitted(self, entry: WorkloadEntry) -> Job:
        """Return a job as the core gets it: recorded jobs have the ids of the record."""
        id, _ = self._task_ids[entry.job.id]
        return entry.job if id == entry.job.id else structs.replace(entry.job, id=id)

    def _arrive_with_window(self, now: float, entry: WorkloadEntry, wish: WindowRequest) -> None:
        """Request the reservation of a job, then submit the job into it, or like all others."""
        assert self._desk is not None
        if self._scheme.in_turn:
            self._run_policies(now, polled=False)
        job = self._as_submitted(entry)
        wish = wish._replace(clusters=wish.clusters or job.clusters)
        reservation = self._desk.request(now, wish, entry.job.id, job.benchmark)
        if reservation is None:
            self._arrive(now, entry._replace(window=None))
            return
        self._submit(
            now,
            structs.replace(job, reservation=reservation.id, clusters=(reservation.cluster,)),
        )

    def _arrive_in_array(self, now: float, entry: WorkloadEntry) -> None:
        """Submit an array with its first task; release those that arrive later, if any."""
        arrival = self._arrays.get(entry.job.id)
        if arrival is None or entry.job.id in self._refused:
            return  # it has come with another task
        job = arrival.job
        if arrival.submits:
            if self._limited and self._is_refused(job):
                self._refused.update(self._job_ids[job.id, index] for index in job.indices)
                self.dropped[REFUSED] = len(self._refused)
                return
            self._submit(now, job)
        if job.held:
            self._step_core(UserRequested(now, "release", job.id, arrival.indices))

    def _is_refused(self, job: Job) -> bool:
        """Return whether the daemon would refuse the submission for a limit of the site."""
        limits, tasks = self.core.limits, len(job.indices)
        refusal = limits.permanent_refusal(job) or limits.admission_refusal([(job, tasks)])
        return refusal is not None

    def _submit(self, now: float, job: Job) -> None:
        if self._planned_dispatch is not None:
            self._planned_dispatch.now = now
        if self._forecaster is not None and (event := self._forecaster.forecast(now)) is not None:
            self._step_core(event)
        if self._plug_ins:
            ratings = ask_all(self._plug_ins, job, self._traits)
            self._excluded.update(plug_in.name for plug_in in ratings if ratings[plug_in].error)
            job = rated_job(job, ratings, self._policy)
        self._step_core(JobSubmitted(now, job))

    def _step_core(self, event: CoreEvent) -> Outcome:
        """Pass an event to the core and execute its actions; the only access to `core.step`."""
        self._event_count += 1
        outcome = self.core.step(event)
        if self._desk is not None:
            self._desk.record(outcome.reservations)
        if self._forecaster is not None:
            self._forecaster.learn(outcome)
        for action in outcome.actions:
            index = self._index_by_name[action.cluster]
            manager = self._managers[index]
            self._needs_pass.add(index)
            match action:
                case Dispatch(id, dispatch_id):
                    tag = tag_of(INSTANCE, id, dispatch_id)
                    job_ids = {task: self._job_ids[id, task] for task in action.indices}
                    for job_id in job_ids.values():
                        self._queue_at_manager(job_id, manager)
                        self._tags[job_id], self._unlisted[job_id] = tag, index
                    if self._leasing:  # patience counts from the acceptance
                        native_ids = {task: str(job_id) for task, job_id in job_ids.items()}
                        self._step_core(DispatchAccepted(event.time, id, dispatch_id, native_ids))
                case Withdraw(id):
                    cancelled = "", State.CANCELLED, None, event.time, None
                    for task in action.native_ids:
                        if manager.is_waiting(job_id := self._job_ids[id, task]):
                            manager.withdraw(job_id)
                            self._updates[index][job_id] = cancelled
                            self._pull_waits = True
        if outcome.reservation_actions and self._desk is not None:
            book = self.core.reservations.by_id
            self._desk.act(event.time, outcome.reservation_actions, book)
        return outcome

    def _queue_at_manager(self, job_id: int, manager: SimulatedManager) -> None:
        """Queue a task of the core at a manager, as a job of its own."""
        task, entry = self._task(job_id), self._entries_by_id[job_id]
        job, window = task.job, ""
        if (reservation := job.reservation) is not None and self._desk is not None:
            window = self._desk.name_of(reservation)
        if entry.task is not None:
            own = entry.job
            job = structs.replace(job, id=job_id, submitted=own.submitted, array=None)
        manager.submit(job, task.priority, entry.run_time, entry.inputs, window=window)

    def _task(self, job_id: int) -> Task:
        """Return the open task of the core for a job of the managers. KeyError if there is none."""
        return self.core.tasks[self._task_ids[job_id]]

    def _end_job(self, now: float, job_id: int, index: int) -> None:
        self._managers[index].end_job(job_id)
        self._needs_pass.add(index)
        if job_id in self._tags:
            start = self._scheduled[job_id].start
            self._updates[index][job_id] = str(job_id), State.COMPLETED, start, now, 0
        if self._progress is not None:
            self._progress(1)

    def _run_policies(self, now: float, polled: bool) -> None:
        """Run local policies and report to the core until no manager changes."""
        needs_pass = self._needs_pass
        while needs_pass or polled:
            changed: set[int] = set()
            while needs_pass:
                index = min(needs_pass)
                needs_pass.remove(index)
                changed.add(index)
                if not self._has_periodic_policy or self._policy_is_due(index, now):
                    self._run_policy(index, now)
            self._unreported |= changed
            if polled and self._leasing:  # pending jobs anywhere may have to return licences
                self._unreported.update(range(len(self._managers)))
            pulling, starting = self._find_pulling(
                now, range(len(self._managers)) if polled else changed
            )
            polled = False
            if self._reports_every_pass or pulling or self._pull_waits:
                self._report_to_core(now, self._unreported | pulling, pulling)
            elif starting:
                self._report_to_core(now, starting)

    def _find_pulling(self, now: float, indexes: Iterable[int]) -> tuple[Set[int], Set[int]]:
        """Return the clusters among these whose listing may let tasks be pulled there.

        Also the clusters where tasks have started that the listings of others would pull: the core
        has to know that before.
        """
        pulling: set[int] = set()
        starting: set[int] = set()
        if not self._pulling:
            return pulling, starting
        if self._unlisted:
            self._list_pending(now)
        for index in indexes:
            for task in self._pull_candidates(index, now):
                if (scheduled := self._scheduled.get(self._job_ids[task.task_id])) is None:
                    pulling.add(index)
                    break
                starting.add(scheduled.cluster)
        return pulling, starting

    def _pull_candidates(self, index: int, now: float) -> Iterable[Task]:
        """Return the tasks that a listing of the cluster may let be pulled there."""
        manager, core = self._managers[index], self.core
        name, free_cpus = manager.cluster.name, manager.free_cpus
        if free_cpus <= 0 or not core.has_task_for(name, free_cpus):
            return ()
        return core.pull_candidates(name, manager.cluster_info(), now)

    def _policy_is_due(self, index: int, now: float) -> bool:
        """Return whether the local policy may run now: always, or at multiples of its period."""
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
        """Run a pass of a manager's local policy."""
        manager = self._managers[index]
        self._pass_count += 1
        updates = self._updates[index]
        begun = 0.0 if self._clock is None else self._clock()
        started, suspended = manager.run_policy(now)
        if self._clock is not None:
            self._policy_seconds += self._clock() - begun
        for job_id in suspended:
            self._record_suspension(job_id, now)
        for job_id, machine, seconds in started:
            if job_id in self._scheduled:
                self._record_resumption(job_id, machine, now, seconds)
                continue
            priority = moves = 0
            if job_id in self._bypassing:
                self._withdraw_copies(job_id, index)
            else:
                task = self._task(job_id)
                priority, moves = task.priority, task.moves
                if (reservation := task.job.reservation) is not None and self._desk is not None:
                    self._desk.record_start(reservation, now)
                updates[job_id] = str(job_id), State.RUNNING, now, None, None
            self._scheduled[job_id] = ScheduledJob(
                self._entries_by_id[job_id],
                start=now,
                end=now + seconds,
                cpus=manager.running[job_id].cpus,
                cluster=index,
                machine=machine,
                priority=priority,
                moves=moves,
            )
            heappush(self._ends, (now + seconds, job_id, index))

    def _record_suspension(self, job_id: int, now: float) -> None:
        scheduled = self._scheduled[job_id]
        self._void_ends[scheduled.end, job_id, scheduled.cluster] += 1
        *before, last = scheduled.runs
        runs = (*before, last._replace(end=now))
        self._scheduled[job_id] = scheduled._replace(end=now, suspended_runs=runs)

    def _record_resumption(self, job_id: int, machine: int, now: float, seconds: float) -> None:
        scheduled, end = self._scheduled[job_id], now + seconds
        cpus = self._managers[scheduled.cluster].running[job_id].cpus
        runs = (*scheduled.suspended_runs, Run(now, end, cpus, machine))
        self._scheduled[job_id] = scheduled._replace(
            end=end, cpus=cpus, machine=machine, suspended_runs=runs
        )
        heappush(self._ends, (end, job_id, scheduled.cluster))

    def _withdraw_copies(self, job_id: int, started_index: int) -> None:
        """Withdraw the copies of a job that started on one of several clusters."""
        for index in self._bypassing.pop(job_id):
            if index != started_index:
                self._managers[index].withdraw(job_id)
                self._needs_pass.add(index)

    def _report_before_submission(self, now: float) -> None:
        """Before a submission, report all that its dispatch may depend on."""
        if (
            self._reports_every_pass
            or self._multiple_clusters
            or len(self._updates[0]) >= UPDATES_PER_LISTING
        ):
            self._report_to_core(now, self._unreported | self._needs_pass)

    def _report_to_core(
        self, now: float, indexes: Set[int], pulling: Set[int] = frozenset()
    ) -> None:
        """Report to the core what polls of these managers would show now.

        Those that may pull come last, so that tasks that have started elsewhere are known. Of
        unchanged managers only those are reported, but with leases all.
        """
        self._unreported, self._pull_waits = self._unreported - indexes, False
        if not indexes:
            return
        if self._multiple_clusters or self._leasing or self._binds_late:
            self._list_pending(now)
        for index in sorted(indexes - pulling):
            self._report_cluster(now, index)
        for number, index in enumerate(sorted(pulling)):
            # another may have pulled the tasks that it would pull
            pulls = number == 0 or any(True for _ in self._pull_candidates(index, now))
            self._report_cluster(now, index, pulls=pulls)

    def _report_cluster(self, now: float, index: int, *, pulls: bool = False) -> None:
        """Report the listing of a manager as of a poll; nothing without a change or a pull."""
        if self._leasing and self._unlisted:  # dispatched by the report of another, and accepted
            self._list_pending(now)
        manager, updates = self._managers[index], self._updates[index]
        if not (updates or self._reports_info):
            return
        info = manager.cluster_info() if self._reports_info else None
        if not (updates or self._leasing or pulls) and info is self._reported_info[index]:
            return
        self._updates[index], self._reported_info[index] = {}, info
        tags, tasks = self._tags, self._task_ids
        statuses = tuple(
            [
                JobStatus(tags[job_id], tasks[job_id][1], native_id, state, start, end, exit_code)
                for job_id, (native_id, state, start, end, exit_code) in updates.items()
            ]
        )
        self._step_core(ListingReceived(now, manager.cluster.name, statuses, (), info))

    def _list_pending(self, now: float) -> None:
        """List dispatched jobs that are pending; schedule polls for when they may be pulled."""
        for job_id, index in self._unlisted.items():
            # a suspended job is queued, too
            if self._managers[index].is_waiting(job_id) and job_id not in self._scheduled:
                self._updates[index][job_id] = str(job_id), State.PENDING, None, None, None
                task = self._task(job_id)
                if self._leasing and task.job.licences:
                    heappush(self._poll_times, now + self.core.recall_wait(task))
                if self._pulling:
                    heappush(self._poll_times, now + self._policy.pull_after * 2.0**task.moves)
                    self._pull_waits |= task.moves > 0
        self._unlisted.clear()
