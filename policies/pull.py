"""Pull: whether a queued job of another cluster would start on this cluster now, delaying no job.

Design §2: its processors are free on this cluster, and the queue is empty, or the job ends by the
shadow time of the head, or it fits in the extra processors (the rules of EASY, algorithms §7). A
future reservation has a shadow time and extra processors, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from msgspec import structs

from metasched.model.cluster import ClusterInfo, Partition
from metasched.model.job import Job
from metasched.policies.eligible import UnmappedNameError, fits_partition, take_nodes
from metasched.policies.local.capacity import earliest_fit

MAX_PLACED = 100  # jobs on their way whose nodes are counted; more use processors only


@dataclass
class BackfillCapacity:
    """Processors of a cluster where a job can start now; updated during a pass.

    Jobs that were dispatched and are missing from the last listing use processors first.
    """

    info: ClusterInfo
    now: float  # epoch seconds
    incoming: list[tuple[int, float]] = field(default_factory=list)
    """(processors, seconds) of dispatched, unlisted jobs, in the order of dispatch."""
    translate: Callable[[Job], Job] = lambda job: job
    """Returns an eligible job in the names of the cluster."""

    def __post_init__(self) -> None:
        self.free_cpus = max(self.info.cpus - self.info.used_cpus, 0)
        self._releases = list(self.info.running_jobs)
        self._head: tuple[int, float] | None = None
        self._fits: dict[Hashable, bool] = {}  # on the free nodes, by requirements of a job
        self._shadows = list(self.info.upcoming_windows)  # (shadow time, extra processors)
        if self.info.queue_head is not None:
            self.reserve_head(*self.info.queue_head)
        for cpus, seconds in self.incoming:
            self._expect(cpus, seconds)

    @property
    def has_head(self) -> bool:
        """Whether a queued job is the head of this cluster's queue."""
        return self._head is not None

    def fit_time(self, cpus: int) -> float:
        """Return when `cpus` processors are free, by the limits of running jobs; inf if never."""
        return earliest_fit(cpus, self.free_cpus, self._releases, self.now)[0]

    def reserve_head(self, cpus: int, seconds: float) -> None:
        """Reserve for a job that does not fit now: no job admitted later delays it."""
        self._head = (cpus, seconds)
        self._shadows.append(earliest_fit(cpus, self.free_cpus, self._releases, self.now))

    def _expect(self, cpus: int, seconds: float) -> None:
        """Count a job on its way: it starts, or is the head, or queues behind the head.

        Behind a head it starts if it does not delay it, as a job does that was pulled.
        """
        starts = cpus <= self.free_cpus
        if self._head is not None:
            starts = self._has_cpus(cpus, self.now + seconds)
        if starts:
            self._use(cpus, seconds)
        elif self._head is None:
            self.reserve_head(cpus, seconds)

    def _use(self, cpus: int, seconds: float) -> None:
        end = self.now + seconds
        self.free_cpus -= cpus
        self._releases.append((end, cpus))
        self._shadows = [
            (shadow, extra - cpus if end > shadow else extra) for shadow, extra in self._shadows
        ]

    def has_cpus_for(self, job: Job) -> bool:
        """Return whether processors are free for the job and it delays no head. O(reservations).

        A False stays False for the rest of the pass.
        """
        return self._has_cpus(job.cpus, self.now + (job.time_limit or job.estimated))

    def _has_cpus(self, cpus: int, end: float) -> bool:
        """Return whether processors are free for a job that ends by then, and it delays no head."""
        if cpus > self.free_cpus:
            return False
        # called for thousands of jobs: `all` takes four times as long
        for shadow, extra in self._shadows:  # noqa: SIM110
            if cpus > extra and end > shadow:
                return False
        return True

    def can_start(self, job: Job) -> bool:
        """Return whether the job would start now and delay no head.

        Nodes are checked once for all jobs with the same requirements.
        """
        if not self.has_cpus_for(job):
            return False
        if job.node_requirements not in self._fits:
            translated = self.translate(job)
            partition = self.info.partition(translated.partition)
            self._fits[job.node_requirements] = partition is not None and fits_partition(
                translated, partition, only_free=True
            )
        return self._fits[job.node_requirements]

    def record_start(self, job: Job) -> None:
        """Record a start of the job on this cluster in this pass."""
        self._use(job.cpus, job.time_limit or job.estimated)


@dataclass
class PullCapacity(BackfillCapacity):
    """Room for pulls: also counts nodes and licences, which earlier jobs of the pass take.

    A job that still runs when the head starts takes only what the head leaves (`HeadPlan`), if the
    manager reports it.
    """

    node_licences: Set[str] = frozenset()  # licences that only some nodes have

    def __post_init__(self) -> None:
        super().__post_init__()
        self._free_now = _FreeNodes(self.info.partitions, self.info.free_licences)
        self._free_later: _FreeNodes | None = None  # once a job would still run at the head's start
        self._placed: list[Job] = []  # jobs that take nodes and licences from those that follow

    def expect(self, jobs: Sequence[Job]) -> None:
        """Count jobs on their way, in the order of dispatch."""
        for job in jobs:
            self._expect(job.cpus, job.time_limit or job.estimated)
        self._placed += jobs[:MAX_PLACED]

    def can_start(self, job: Job, seconds: float | None = None) -> bool:
        """Return whether the job would start now and delay no head; `seconds` replace its limit."""
        seconds = seconds or job.time_limit or job.estimated
        return self.fits_now(job) and self.delays_no_head(job, seconds)

    def fits_now(self, job: Job) -> bool:
        """Return whether processors, nodes and licences are free for the job, despite the head."""
        return job.cpus <= self.free_cpus and self._hold(self._free_now, job)

    def leaves_head_cpus(self, job: Job, seconds: float) -> bool:
        """Return whether the head keeps its processors for `seconds` of a job. O(reservations)."""
        if not self._shadows:
            return True
        return self._has_cpus(min(job.cpus, self.free_cpus), self.now + seconds)

    def delays_no_head(self, job: Job, seconds: float) -> bool:
        """Return whether a job that fits now delays no head if it runs for `seconds`."""
        end = self.now + seconds
        if not self._has_cpus(job.cpus, end):
            return False
        plan = self.info.head_plan
        if plan is None or end <= plan.start:
            return True
        if self._free_later is None:
            self._free_later = _FreeNodes(plan.partitions, plan.licences)
        return self._hold(self._free_later, job)

    def _hold(self, free: _FreeNodes, job: Job) -> bool:
        """Return whether licences and nodes are free for a job; equal needs are checked once."""
        for placed in self._placed[free.taken :]:
            self._take(free, placed)
        if not free.has_licences(job):
            return False
        needs = job.node_requirements
        if self.node_licences and job.licences:
            needs = needs, frozenset(job.licences)
        if (holds := free.fits.get(needs)) is None:
            translated = self._translate_needs(job)
            holds = free.fits[needs] = translated is not None and free.hold(translated, self.info)
        return holds

    def record_start(self, job: Job) -> None:
        """Record a start of the job on this cluster in this pass."""
        super().record_start(job)
        self._placed.append(job)

    def _take(self, free: _FreeNodes, job: Job) -> None:
        free.taken += 1
        free.take_licences(job)
        if (translated := self._translate_needs(job)) is not None:
            free.take(translated, self.info)

    def _translate_needs(self, job: Job) -> Job | None:
        """Return a job in the cluster's names of partition and features; None: it has no such."""
        if job.account is not None or job.qos is not None:  # nodes do not depend on them
            job = structs.replace(job, account=None, qos=None)
        try:
            return self.translate(job)
        except UnmappedNameError:
            return None


class _FreeNodes:
    """Free nodes and licences of a cluster at some time."""

    def __init__(self, partitions: Iterable[Partition], licences: Mapping[str, int]) -> None:
        self._partitions = {partition.name: partition for partition in partitions}
        self._licences = licences
        self.taken = 0  # jobs whose nodes and licences have been taken
        self.fits: dict[Hashable, bool] = {}  # results of `hold` by the needs of a job

    def has_licences(self, job: Job) -> bool:
        """Return whether enough copies are free; a licence that is not counted does not matter."""
        free = self._licences
        # called for thousands of jobs: `all` takes three times as long
        for name, count in job.licences.items():  # noqa: SIM110
            if count > free.get(name, count):
                return False
        return True

    def hold(self, translated: Job, info: ClusterInfo) -> bool:
        """Return whether the free parts of nodes can hold a job in the names of the cluster."""
        partition = self._partition(translated, info)
        return partition is not None and fits_partition(translated, partition, only_free=True)

    def take_licences(self, job: Job) -> None:
        """Take the licences of a job that starts."""
        if self._licences and job.licences:
            self._licences = {
                name: count - job.licences.get(name, 0) for name, count in self._licences.items()
            }

    def take(self, translated: Job, info: ClusterInfo) -> None:
        """Take the nodes of a job that starts, in the names of the cluster."""
        partition = self._partition(translated, info)
        if partition is not None:
            self._partitions[partition.name] = take_nodes(translated, partition)
            self.fits = {needs: False for needs, fits in self.fits.items() if not fits}

    def _partition(self, translated: Job, info: ClusterInfo) -> Partition | None:
        partition = info.partition(translated.partition)
        return None if partition is None else self._partitions.get(partition.name)
