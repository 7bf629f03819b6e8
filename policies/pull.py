"""Pull: would a job that waits elsewhere start on this cluster now, delaying nobody?

Design §2: its processors are free here, and the queue is empty, or it ends by the head's shadow
time, or it fits in the extra processors (the rules of EASY, algorithms §7). What is reserved for a
time to come has a shadow time and extra processors, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from metasched.model.cluster import Facts
from metasched.model.job import Job
from metasched.policies.eligible import holds
from metasched.policies.local.capacity import earliest_fit


@dataclass
class Room:
    """What one cluster can still start now, as decisions are made in one pass.

    `incoming` are (cpus, seconds) of jobs of ours that the listing did not show yet, in the
    order in which they were sent: they take their processors first. `here` puts a job, which fits
    the cluster, into the cluster's own words.
    """

    facts: Facts
    now: float
    incoming: list[tuple[int, float]] = field(default_factory=list)
    here: Callable[[Job], Job] = lambda job: job

    def __post_init__(self) -> None:
        self.free = max(self.facts.cpus - self.facts.used, 0)
        self._running = list(self.facts.running)
        self._head: tuple[int, float] | None = None
        self._held: dict[Hashable, bool] = {}  # by shape: whether what is free holds all of it
        self._kept = list(self.facts.coming)  # shadow times, each with its extra processors
        head = self.facts.head
        for cpus, seconds in self.incoming:
            if head is None and cpus <= self.free:
                self._take(cpus, seconds)
            elif head is None:
                head = (cpus, seconds)
        if head is not None:
            self.promise(*head)

    @property
    def promised(self) -> bool:
        """Whether a job that waits heads the queue here."""
        return self._head is not None

    def fits_at(self, cpus: int) -> float:
        """When so many processors are free, by the limits of what runs; `inf` if never."""
        return earliest_fit(cpus, self.free, self._running, self.now)[0]

    def promise(self, cpus: int, seconds: float) -> None:
        """Let a job that does not fit now be the head, whom nothing admitted later delays."""
        self._head = (cpus, seconds)
        self._kept.append(earliest_fit(cpus, self.free, self._running, self.now))

    def _take(self, cpus: int, seconds: float) -> None:
        end = self.now + seconds
        self.free -= cpus
        self._running.append((end, cpus))
        self._kept = [
            (shadow, extra - cpus if end > shadow else extra) for shadow, extra in self._kept
        ]

    def spares(self, job: Job) -> bool:
        """Whether there are processors for the job now, delaying no head: what was not spared
        is not spared later in the pass. O(1) but for windows to come."""
        if job.cpus > self.free:
            return False
        cpus, end = job.cpus, self.now + (job.time_limit or job.estimated)
        # thousands may be asked about: `all` takes four times as long
        for shadow, extra in self._kept:  # noqa: SIM110
            if cpus > extra and end > shadow:
                return False
        return True

    def admits(self, job: Job) -> bool:
        """Whether the job would start now and delay no head.

        Nodes are looked at once for all that ask for the same.
        """
        if not self.spares(job):
            return False
        if job.shape not in self._held:
            here = self.here(job)
            partition = self.facts.partition(here.partition)
            held = partition is not None and holds(here, partition, free=True)
            self._held[job.shape] = held
        return self._held[job.shape]

    def take(self, job: Job) -> None:
        """Count the job as started here: what is left is for the next."""
        self._take(job.cpus, job.time_limit or job.estimated)
