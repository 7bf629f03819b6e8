"""Pull: would a job that waits elsewhere start on this cluster now, delaying nobody?

Design §2: its processors are free here, and the queue is empty, or it ends by the head's shadow
time, or it fits in the extra processors (the rules of EASY, algorithms §7). What is reserved for a
time to come has a shadow time and extra processors, too.
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
    """What one cluster can still start now, as decisions are made in one pass.

    `incoming` are (cpus, seconds) of jobs of ours that the listing did not show yet, in the
    order in which they were sent: they take their processors first. `here` puts a job, which fits
    the cluster, into the cluster's own words.
    """

    info: ClusterInfo
    now: float
    incoming: list[tuple[int, float]] = field(default_factory=list)
    translate: Callable[[Job], Job] = lambda job: job

    def __post_init__(self) -> None:
        self.free_cpus = max(self.info.cpus - self.info.used_cpus, 0)
        self._releases = list(self.info.running_jobs)
        self._head: tuple[int, float] | None = None
        self._fits_by_shape: dict[
            Hashable, bool
        ] = {}  # by shape: whether what is free holds all of it
        self._shadows = list(
            self.info.upcoming_windows
        )  # shadow times, each with its extra processors
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
        """Whether a job that waits heads the queue here."""
        return self._head is not None

    def fit_time(self, cpus: int) -> float:
        """When so many processors are free, by the limits of what runs; `inf` if never."""
        return earliest_fit(cpus, self.free_cpus, self._releases, self.now)[0]

    def reserve_head(self, cpus: int, seconds: float) -> None:
        """Let a job that does not fit now be the head, whom nothing admitted later delays."""
        self._head = (cpus, seconds)
        self._shadows.append(earliest_fit(cpus, self.free_cpus, self._releases, self.now))

    def _use(self, cpus: int, seconds: float) -> None:
        end = self.now + seconds
        self.free_cpus -= cpus
        self._releases.append((end, cpus))
        self._shadows = [
            (shadow, extra - cpus if end > shadow else extra) for shadow, extra in self._shadows
        ]

    def delays_no_head(self, job: Job) -> bool:
        """Whether there are processors for the job now, delaying no head: what was not spared
        is not spared later in the pass. O(1) but for windows to come."""
        if job.cpus > self.free_cpus:
            return False
        cpus, end = job.cpus, self.now + (job.time_limit or job.estimated)
        # thousands may be asked about: `all` takes four times as long
        for shadow, extra in self._shadows:  # noqa: SIM110
            if cpus > extra and end > shadow:
                return False
        return True

    def can_start(self, job: Job) -> bool:
        """Whether the job would start now and delay no head.

        Nodes are looked at once for all that ask for the same.
        """
        if not self.delays_no_head(job):
            return False
        if job.node_requirements not in self._fits_by_shape:
            translated = self.translate(job)
            partition = self.info.partition(translated.partition)
            fits = partition is not None and fits_partition(translated, partition, only_free=True)
            self._fits_by_shape[job.node_requirements] = fits
        return self._fits_by_shape[job.node_requirements]

    def record_start(self, job: Job) -> None:
        """Count the job as started here: what is left is for the next."""
        self._use(job.cpus, job.time_limit or job.estimated)
