"""A simulated resource manager: a queue, running jobs, and a local policy that starts jobs."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from metasched.laboratory.simulate.clusters import ClusterError, SimulatedCluster, StoredInput
from metasched.laboratory.simulate.kept_windows import KeptWindows
from metasched.laboratory.simulate.lazy_head_plan import LazyHeadPlan
from metasched.model.cluster import ClusterInfo, HeadPlan, NodeCapacity, Partition
from metasched.model.job import Job
from metasched.model.survey import Survey
from metasched.policies.local.capacity import (
    HeadReservation,
    MachineHeadReservation,
    earliest_fit,
    make_capacity,
)
from metasched.policies.local.conservative import planned_start
from metasched.policies.local.queueing import (
    EMPTY,
    NEVER,
    FreeResources,
    JobStart,
    LocalPolicy,
    ReservedWindow,
    RunningJob,
    WaitingJob,
)

# A job that has just started, its machine, and its true run time in seconds.
StartedJob = tuple[int, int, float]


class ManagerPass(NamedTuple):
    """The result of a pass of the local policy."""

    started: list[StartedJob]
    suspended: Collection[int] = ()  # jobs, suspended before any start


class _Occupancy(NamedTuple):
    """Figures of the running jobs in a listing, as in `ClusterInfo`."""

    partitions: tuple[Partition, ...]
    running_jobs: tuple[tuple[float, int], ...]
    free_licences: Mapping[str, int]


class SimulatedManager:
    """The manager of a simulated cluster. Decisions use estimates, never true run times.

    `licences_leased`: the core leases licences, and submitted jobs already hold them.
    `reports_plan`: `cluster_info` has the plan of the queue's head, where it has to be known.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        policy: LocalPolicy,
        *,
        licences_leased: bool = False,
        reports_plan: bool = False,
    ) -> None:
        self.cluster, self.policy, self._licences_leased = cluster, policy, licences_leased
        if cluster.windows:
            self.require_windows()
        self.queue: dict[int, WaitingJob] = {}
        self.running: dict[int, RunningJob] = {}
        self.free_cpus = cluster.cpus
        self._free_licences = dict(cluster.licences)
        self._machine_sizes = [machine.cpus for machine in cluster.machines]
        # free processors of each machine; None where processors are counted
        self._free_by_machine = list(self._machine_sizes) if cluster.machines else None
        # machines of each shape: (processors, free processors)
        self._shapes = Counter(zip(self._machine_sizes, self._machine_sizes, strict=True))
        self._nodes = {shape: _make_nodes(count, *shape) for shape, count in self._shapes.items()}
        self._releases: list[tuple[float, int]] = []  # (estimated end, processors) of running jobs
        self._true_run_times: dict[int, float] = {}  # seconds, of queued jobs
        self._true_ends: dict[int, float] = {}  # of running jobs
        self._bypassing_work: dict[int, float] = {}  # cpu seconds of queued jobs past metasched
        usable = [machine.licences for machine in cluster.machines if machine.licences is not None]
        # licences that all machines can use
        self._universal_licences = frozenset[str]().union(*usable).intersection(*usable)
        self._machines_by_needs: dict[tuple[int, frozenset[str]], tuple[int, ...]] = {}
        self._in_order: bool = getattr(policy, "in_order", False)
        # counted processors alone are reported well enough by the `queue_head` of EASY
        self._plans_queue = hasattr(policy, "left_over")
        self._plans_head = (
            reports_plan
            and not self._in_order
            and bool(cluster.machines or self._free_licences or self._plans_queue)
        )
        self._last_pass = 0.0  # time of the last pass of the policy
        self._blocked_count = 0  # first jobs of the queue that cannot start before a job ends
        self._info: ClusterInfo | None = None  # cached until a change
        self._partitions_by_free: dict[int, Partition] = {}  # by free counted processors
        self._occupancy: _Occupancy | None = None  # cached until a start or an end
        self._plan: tuple[WaitingJob, HeadPlan] | None = None  # of a head; cached like the above
        # of the policy's last pass; None: it made none, or a job has ended or left since
        self._reservation: HeadReservation | None = None
        self.windows = KeptWindows(cluster)

    def require_windows(self) -> None:
        """Raise ClusterError if jobs would not stay out of reserved windows."""
        name, policy = self.cluster.name, self.policy
        if not getattr(policy, "keeps_windows", False):
            raise ClusterError(
                f'cluster "{name}" has reservations, which its policy does not keep; '
                "write fb-unmod, easy or another that does"
            )
        if self.cluster.machines and not getattr(policy, "keeps_plan", False):
            raise ClusterError(
                f'cluster "{name}" has machines and reservations, which only a policy with a plan '
                "keeps there; write eg-edf, tabu or rcbo"
            )

    def can_run(self, job: Job) -> bool:
        """Return whether the cluster could run the job if it were empty."""
        licences = self.cluster.licences
        if not self._licences_leased and any(
            licences.get(name, 0) < count for name, count in job.licences.items()
        ):
            return False
        if self._free_by_machine is None:
            return job.cpus <= self.cluster.cpus
        return bool(self._machines_for(job))

    def _machines_for(self, job: Job) -> tuple[int, ...]:
        """Return the machines that meet the job's minimal requirements (Pasquali 2008, §3.2.1)."""
        needs = (job.cpus, frozenset(job.licences) - self._universal_licences)
        cached = self._machines_by_needs.get(needs)
        if cached is None:
            cpus, licences = needs
            cached = self._machines_by_needs[needs] = tuple(
                index
                for index, machine in enumerate(self.cluster.machines)
                if machine.cpus >= cpus
                and (machine.licences is None or licences <= machine.licences)
            )
        return cached

    def submit(
        self,
        job: Job,
        priority: int,
        run_time: float,
        inputs: Sequence[StoredInput] = (),
        *,
        through_metasched: bool = True,
        window: str = "",
    ) -> None:
        """Queue a job that runs `run_time` seconds on a machine of its own benchmark.

        It waits for the window of that name, if any, and runs in it to the end at most.
        `through_metasched` False: the core sees the job only in the totals of `cluster_info`.
        """
        counted = self._free_by_machine is None
        speed = job.benchmark / self.cluster.benchmark if counted else job.benchmark
        self._true_run_times[job.id] = run_time * speed
        self._info = None
        waiting = self._waiting_job(job, priority, inputs)
        if window:
            self.windows.waiting[job.id] = window, waiting
        else:
            self.queue[job.id] = waiting
        if not through_metasched:
            self._bypassing_work[job.id] = job.cpus * job.estimated

    def _waiting_job(
        self, job: Job, priority: int, inputs: Sequence[StoredInput] = ()
    ) -> WaitingJob:
        """Return the job as the local policy of this cluster sees it.

        As for the daemon, a time limit is as long on each cluster, and an estimate is not. Among
        machines of different speeds, which only simulations have, limits count like estimates.
        """
        machines: Mapping[int, float] = EMPTY
        transfers: Mapping[int, float] = EMPTY
        limit, on_fastest = job.time_limit, 0.0
        if self._free_by_machine is None:
            estimated = limit or job.estimated * job.benchmark / self.cluster.benchmark
        else:
            estimated = limit or job.estimated
            work = estimated * job.benchmark
            on_fastest = work / self.cluster.machines[0].benchmark
            machines = {
                index: work / self.cluster.machines[index].benchmark
                for index in self._machines_for(job)
            }
            if inputs:
                transfers = {
                    index: self.cluster.transfer_seconds(inputs, index) for index in machines
                }
        return WaitingJob(
            job.id,
            job.cpus,
            estimated,
            EMPTY if self._licences_leased else job.licences,
            machines,
            job.submitted,
            job.deadline,
            priority,
            job.user,
            on_fastest=on_fastest,
            transfers=transfers,
        )

    def is_waiting(self, job_id: int) -> bool:
        """Return whether a job is queued, or waits for its window."""
        return job_id in self.queue or job_id in self.windows.waiting

    def withdraw(self, job_id: int) -> None:
        """Remove a queued job. KeyError if it is not queued."""
        if self.windows.waiting.pop(job_id, None) is None:
            del self.queue[job_id]
        del self._true_run_times[job_id]
        self._info, self._reservation, self._blocked_count = None, None, 0
        self._bypassing_work.pop(job_id, None)

    def run_policy(self, now: float) -> ManagerPass:
        """Run a pass of the local policy."""
        queue, self._last_pass, self._reservation = self.queue, now, None
        first: list[StartedJob] = []
        if self.windows:
            self._info = self._occupancy = None  # a window may have begun
            first, self._blocked_count = self._start_in_windows(now), 0
        if not queue or self.free_cpus <= 0:
            return ManagerPass(first)
        candidates: Collection[WaitingJob] = queue.values()
        if self._blocked_count and self._releases and self._releases[0][0] > now:
            jobs = list(candidates)
            candidates = [jobs[0], *jobs[self._blocked_count :]]
        started = [
            self._start(now, start)
            for start in self.policy.choose_starts(
                now, candidates, self._running_jobs(now), self._free_resources(now)
            )
        ]
        self._reservation = getattr(self.policy, "reservation", None)
        if self.policy.incremental:
            self._blocked_count = len(queue)
        elif self._plans_queue:
            self._plan = None
        return ManagerPass(first + started)

    def _start_in_windows(self, now: float) -> list[StartedJob]:
        """Start jobs in their windows that are open; each runs to the end of its at most."""
        windows, started = self.windows, []
        use = windows.use(now)
        for name, job in list(windows.waiting.values()):
            if job.cpus <= min(use.room(name), self.free_cpus):
                use.start(name, job.cpus)
                windows.start(job.id, name, job.cpus)
                remaining = windows.end_of(name) - now
                self._true_run_times[job.id] = min(self._true_run_times[job.id], remaining)
                # its processors are not free for others before the end of the window
                self.queue[job.id] = _with_estimate(job, remaining)
                started.append(self._start(now, JobStart(job.id)))
        return started

    def _start(self, now: float, start: JobStart) -> StartedJob:
        """Start a queued job."""
        job = self.queue.pop(start.id)
        self._forget_running()
        seconds, cpus, run_time = job.estimated, job.cpus, self._true_run_times.pop(job.id)
        self._bypassing_work.pop(job.id, None)
        if self._free_by_machine is not None:
            machine = self.cluster.machines[start.machine]
            seconds, run_time = job.machines[start.machine], run_time / machine.benchmark
            if not self.cluster.shared:
                cpus = self._free_by_machine[start.machine]
            self._change_free(start.machine, -cpus)
        self.free_cpus -= cpus
        for name, amount in job.resources.items():
            self._free_licences[name] -= amount
        self._true_ends[job.id] = now + run_time
        end = now + seconds
        self.running[job.id] = RunningJob(job.id, cpus, end, job.resources, start.machine, job.user)
        insort(self._releases, (end, cpus))
        return job.id, start.machine, run_time

    def end_job(self, job_id: int) -> None:
        """End a running job and release its resources."""
        ended = self.running.pop(job_id)
        self._forget_running()
        self._blocked_count = 0
        del self._true_ends[job_id]
        self.windows.end(job_id, ended.cpus)
        self.free_cpus += ended.cpus
        if self._free_by_machine is not None:
            self._change_free(ended.machine, ended.cpus)
        for name, amount in ended.resources.items():
            self._free_licences[name] += amount
        del self._releases[bisect_left(self._releases, (ended.end, ended.cpus))]

    def _change_free(self, machine: int, cpus: int) -> None:
        """Add to the free processors of a machine."""
        assert self._free_by_machine is not None
        size, free = self._machine_sizes[machine], self._free_by_machine[machine]
        self._free_by_machine[machine] = free + cpus
        for shape, change in ((size, free), -1), ((size, free + cpus), 1):
            self._shapes[shape] += change
            if count := self._shapes[shape]:
                self._nodes[shape] = _make_nodes(count, *shape)
            else:
                self._nodes.pop(shape, None)

    def _free_resources(self, now: float) -> FreeResources:
        """Return the free resources for the local policy; to it, windows are whole."""
        free_cpus, windows = self.free_cpus, tuple[ReservedWindow, ...]()
        if self.windows:
            use = self.windows.use(now)
            free_cpus, windows = free_cpus + use.held_cpus, use.unended
        return FreeResources(
            free_cpus,
            self._free_licences,
            self._free_by_machine,
            self.cluster.shared,
            windows=windows,
        )

    def _running_jobs(self, now: float) -> Collection[RunningJob]:
        """Return the running jobs for the local policy; to it, windows are whole."""
        running = self.running.values()
        return self.windows.outside(now, running) if self.windows else running

    # Reservations

    def survey(self, now: float) -> Survey:
        """Return the manager's report of its reservations and jobs."""
        return self.windows.survey(now, self.running.values())

    def reserve(self, name: str, window: ReservedWindow, now: float) -> bool:
        """Keep a window for a reservation; return False if its processors are not free."""
        self._forget_running()
        return self.windows.reserve(name, window, now, self.running.values())

    def has_reserved_cpus(self, now: float) -> bool:
        """Return whether the processors of open windows are there: free, or held by their jobs."""
        return self.windows.use(now).idle_cpus <= self.free_cpus

    def delete_reservation(self, name: str) -> None:
        """Keep the window of a reservation no more; do nothing if there is none of that name."""
        self._forget_running()
        self.windows.delete(name)

    # Estimated starts of a job that is not queued here, for the choice of a cluster

    def fit_time(self, job: Job, now: float) -> float:
        """Return when the job would fit with an empty queue, by limits; NEVER if never."""
        if self._free_by_machine is None:
            return earliest_fit(job.cpus, self.free_cpus, self._releases, now)[0]
        ends: dict[int, list[tuple[float, int]]] = {}
        for r in self.running.values():
            ends.setdefault(r.machine, []).append((r.end, r.cpus))
        fit_times = (
            earliest_fit(job.cpus, self._free_by_machine[m], ends.get(m, ()), now)[0]
            for m in self._machines_for(job)
        )
        return min(fit_times, default=NEVER)

    def pending_work(self) -> float:
        """Return the requested work of queued jobs, in seconds of the whole cluster."""
        return sum(job.cpus * job.estimated for job in self.queue.values()) / self.cluster.cpus

    def plan_start(self, job: Job, now: float, *, run_time: float | None = None) -> float:
        """Return the start of the job in a plan of the whole queue, by limits.

        With `run_time`, its true run time, the plan uses the true run times of all jobs: an oracle,
        for comparison. Only for counted processors; machines always use estimates.
        """
        queue, running = list(self.queue.values()), list(self.running.values())
        candidate = self._waiting_job(job, 1)
        if run_time is not None:
            queue = [_with_estimate(waiting, self._true_run_times[waiting.id]) for waiting in queue]
            running = [r._replace(end=self._true_ends[r.id]) for r in running]
            candidate = _with_estimate(candidate, run_time * job.benchmark / self.cluster.benchmark)
        if self.windows:
            running = list(self.windows.outside(now, running))
        return planned_start(now, queue, running, self._free_resources(now), candidate)

    def cluster_info(self) -> ClusterInfo:
        """Return the cluster's report to metasched."""
        if self._info is None:
            self._info = self._build_info()
        return self._info

    def _forget_running(self) -> None:
        """Forget what follows from the running jobs, which have changed."""
        self._info = self._occupancy = self._plan = self._reservation = None

    def _build_info(self) -> ClusterInfo:
        if self._occupancy is None:
            partition = (
                Partition("all", tuple(self._nodes.values()), default=True)
                if self._nodes
                else self._partition(self._unreserved_cpus, self._shapes)
            )
            self._occupancy = _Occupancy(
                (partition,),
                tuple(self._releases),
                {} if self._licences_leased else dict(self._free_licences),
            )
        partitions, running_jobs, free_licences = self._occupancy
        first = next(iter(self.queue.values()), None)
        plan: HeadPlan | None = None
        if self._plans_head and first is not None and self.free_cpus > 0:
            plan = self._head_plan(first)
        return ClusterInfo(
            cpus=self.cluster.cpus,
            used_cpus=self.cluster.cpus - self._unreserved_cpus,
            partitions=partitions,
            running_jobs=running_jobs,
            owed_by_others=sum(self._bypassing_work.values()),
            pending_jobs=len(self.queue),
            queue_head=None if first is None or plan is not None else (first.cpus, first.estimated),
            free_licences=free_licences,
            head_plan=plan,
            in_order=self._in_order,
            upcoming_windows=self._upcoming_windows(),
        )

    @property
    def _unreserved_cpus(self) -> int:
        """Free processors without those that open windows keep idle."""
        if not self.windows or self.cluster.machines:
            return self.free_cpus
        return max(self.free_cpus - self.windows.use(self._last_pass).idle_cpus, 0)

    def _upcoming_windows(self) -> tuple[tuple[float, int], ...]:
        if not self.windows or self.cluster.machines:
            return ()
        now = self._last_pass
        running = [(r.end, r.cpus) for r in self._running_jobs(now)]
        return tuple(self.windows.use(now).upcoming(self.cluster.cpus, running))

    def _head_plan(self, first: WaitingJob) -> HeadPlan:
        """Return the plan of the queue's head; `first` is the head unless the policy has another.

        A plan holds until a job starts or ends, or exceeds its estimate.
        """
        now = self._last_pass
        head = self.queue.get(getattr(self.policy, "head_id", None) or first.id, first)
        overrun = bool(self._releases) and self._releases[0][0] <= now
        if self._plan is None or self._plan[0] is not head or overrun:
            self._plan = head, LazyHeadPlan(partial(self._plan_head, head, now))
        return self._plan[1]

    def _partition(self, free_cpus: int, shapes: Mapping[tuple[int, int], int]) -> Partition:
        """Return the cluster's nodes, with these free processors and machines."""
        if shapes:
            nodes = tuple([_make_nodes(count, *shape) for shape, count in shapes.items() if count])
            return Partition("all", nodes, default=True)
        if (cached := self._partitions_by_free.get(free_cpus)) is None:
            nodes = (_make_nodes(1, self.cluster.cpus, free_cpus),)
            cached = self._partitions_by_free[free_cpus] = Partition("all", nodes, default=True)
        return cached

    def _partition_after(self, size: int, free: int, remaining: int) -> Partition:
        """Return the cluster's nodes after a machine's free processors have changed."""
        nodes = self._nodes
        if remaining != free:
            nodes = nodes.copy()
            for shape, change in ((size, free), -1), ((size, remaining), 1):
                if count := self._shapes[shape] + change:
                    nodes[shape] = _make_nodes(count, *shape)
                else:
                    del nodes[shape]
        return Partition("all", tuple(nodes.values()), default=True)

    def _plan_head(self, head: WaitingJob, now: float) -> HeadPlan:
        """Return the policy's plan for the head of the queue, or EASY's reservation for it."""
        if self._plans_queue:
            start, free = self.policy.left_over()  # type: ignore[attr-defined]
            sizes = self._machine_sizes
            shapes = Counter(zip(sizes, free.machines or (), strict=False))
            licences = {name: free.resources.get(name, 0) for name in self._free_licences}
            return HeadPlan(start, (self._partition(free.cpus, shapes),), licences)
        reservation = self._reservation
        if reservation is None or reservation.head is not head:
            capacity = make_capacity(now, self._running_jobs(now), self._free_resources(now))
            reservation = capacity.reserve(head)
        if reservation.shadow_time == NEVER:
            return HeadPlan(NEVER, (), {})
        if isinstance(reservation, MachineHeadReservation):
            assert self._free_by_machine is not None
            size = self._machine_sizes[reservation.machine]
            free = self._free_by_machine[reservation.machine]
            remaining = self._partition_after(size, free, min(free, reservation.extra_cpus))
        else:
            remaining = self._partition(min(self._unreserved_cpus, reservation.extra_cpus), {})
        extra = reservation.extra_resources
        return HeadPlan(
            reservation.shadow_time,
            (remaining,),
            {
                name: min(count, extra.get(name, count))
                for name, count in self._free_licences.items()
            },
        )


@lru_cache(maxsize=10_000)
def _make_nodes(count: int, cpus: int, free: int) -> NodeCapacity:
    return NodeCapacity(count, cpus, free)


def _with_estimate(job: WaitingJob, estimated: float) -> WaitingJob:
    """Return the job with another estimate, for counted processors."""
    return job._replace(estimated=estimated)
