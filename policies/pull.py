"""Pull: whether a queued job of another cluster would start on this cluster now, delaying no job.

Design §2: its processors are free on this cluster, and the queue is empty, or the job ends by the
shadow time of the head, or it fits in the extra processors (the rules of EASY, algorithms §7). A
future reservation has a shadow time and extra processors, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from metasched.model.cluster import ClusterInfo
from metasched.model.job import Job
from metasched.policies.eligible import fits_partition
from metasched.policies.local.capacity import earliest_fit


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
        head = self.info.queue_head
        for cpus, seconds in self.incoming:
            if head is None and cpus <= self.free_cpus:
                self._use(cpus, seconds)
            elif head is None:
                head = (cpus, seconds)
        if head is not None:
            self.reserve_head(*head)

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

    def _use(self, cpus: int, seconds: float) -> None:
        end = self.now + seconds
        self.free_cpus -= cpus
        self._releases.append((end, cpus))
        self._shadows = [
            (shadow, extra - cpus if end > shadow else extra) for shadow, extra in self._shadows
        ]

    def has_cpus_for(self, job: Job) -> bool:
        """Whether processors are free for the job now and it delays no head. O(reservations).

        A False stays False for the rest of the pass.
        """
        if job.cpus > self.free_cpus:
            return False
        cpus, end = job.cpus, self.now + (job.time_limit or job.estimated)
        # called for thousands of jobs: `all` takes four times as long
        for shadow, extra in self._shadows:  # noqa: SIM110
            if cpus > extra and end > shadow:
                return False
        return True

    def can_start(self, job: Job) -> bool:
        """Whether the job would start now and delay no head.

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
