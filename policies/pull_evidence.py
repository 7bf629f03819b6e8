"""Pulls that did not start at once, as evidence: which jobs a cluster is not tried for. Pure.

Facts that no manager reports (limits of a QOS, default memory, foreign priorities) show only when
a pulled job does not start. Then jobs that need at least as much are barred from that cluster,
until such a job ends there or the facts that it reports change. The number of pulls under way
doubles with each pull that starts at once and drops to one after a failure.

Where pulls keep failing (a cluster without backfilling, say), the ends that lift a bar double with
each failure. They halve after ten pulls that started at once: so either nine in ten start at once,
or there are hardly any pulls.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metasched.model.job import Job

MAX_BARS = 100  # of a cluster; the oldest is dropped
BAR_SECONDS = 3600.0  # for each end that lifts a bar: nobody reports that a limit was raised
FIRST_WINDOW = 16  # pulls under way at the start of the daemon
MAX_WINDOW = 1024
MAX_DISTRUST = 10.0  # a bar is lifted by 2 ** 10 ends at most
_REGAINED_TRUST = 0.1  # by a pull that started at once; a failure costs 1
_COMPARABLE_TIME = 2.0  # a job of half the time limit and less may fit in front of a reservation


@dataclass
class PullBar:
    """A job that was pulled and did not start at once."""

    job: Job
    scope: tuple[str | None, ...]  # user, account and QOS that share the limit; (): of all jobs
    free_cpus: int  # of the cluster, when the failure was seen
    until: float  # epoch seconds
    ends_left: int = 1  # of such jobs, until the bar is lifted

    def covers(self, job: Job) -> bool:
        """Whether the failure speaks against another job: same limit, and no smaller request."""
        return (
            job.estimated * _COMPARABLE_TIME > self.job.estimated
            and needs_at_least(job, self.job)
            and (not self.scope or _scope(job, len(self.scope)) == self.scope)
        )

    def lifted_by_end(self, job: Job) -> bool:
        """Count the end of a job if it leaves room for the barred job; return whether it lifts."""
        in_scope = not self.scope or _scope(job, len(self.scope)) == self.scope
        if in_scope and needs_at_least(job, self.job):
            self.ends_left -= 1
        return self.ends_left <= 0

    def lifted_by_time(self, now: float, free_cpus: int) -> bool:
        """Whether time or other users' ends have lifted the bar."""
        return now >= self.until or free_cpus - self.free_cpus >= self.job.cpus * self.ends_left


@dataclass
class PullEvidence:
    """Bars and window of a cluster."""

    bars: list[PullBar] = field(default_factory=list)
    window: int = FIRST_WINDOW  # pulls that may be under way
    distrust: float = 0.0  # logarithm of the ends that lift a bar, to base 2

    def record_success(self) -> None:
        """Record a pull that started at once."""
        self.window = min(2 * self.window, MAX_WINDOW)
        self.distrust = max(self.distrust - _REGAINED_TRUST, 0.0)

    def record_failure(self, job: Job, manager_reason: str, free_cpus: int, now: float) -> None:
        """Bar jobs like this one, which did not start at once."""
        self.window, ends = 1, 2 ** int(self.distrust)
        scope = _limited_scope(job, manager_reason)
        if not scope:
            self.distrust = min(self.distrust + 1.0, MAX_DISTRUST)
        if self.bars_job(job):
            return
        new = PullBar(job, scope, free_cpus, now + BAR_SECONDS * ends, ends)
        kept = [bar for bar in self.bars if not (new.covers(bar.job) and not new.scope)]
        self.bars = [*kept[1 - MAX_BARS :], new]

    def bars_job(self, job: Job) -> bool:
        """Whether the job would not start at once, by earlier pulls."""
        return any(bar.covers(job) for bar in self.bars)

    def record_end(self, job: Job) -> None:
        """Lift the bars for which the end of a job leaves room."""
        self.bars = [bar for bar in self.bars if not bar.lifted_by_end(job)]

    def pass_time(self, now: float, free_cpus: int) -> None:
        """Lift the bars that time or other users' ends have lifted."""
        self.bars = [bar for bar in self.bars if not bar.lifted_by_time(now, free_cpus)]


def needs_at_least(job: Job, other: Job) -> bool:
    """Whether a job needs at least as much as another: it starts nowhere where that does not.

    False if they cannot be compared. Time limits do not count.
    """
    return (
        job.cpus >= other.cpus
        and all(job.licences.get(name, 0) >= count for name, count in other.licences.items())
        and job.cpus_per_task >= other.cpus_per_task
        and (other.nodes is None or job.nodes == other.nodes)
        and job.exclusive >= other.exclusive
        and (job.partition, job.reservation) == (other.partition, other.reservation)
        and (other.constraint is None or job.constraint == other.constraint)
        and _is_as_large(job.memory, other.memory)
        and _is_as_large(job.memory_per_cpu, other.memory_per_cpu)
        and all(job.gres.get(name, 0) >= count for name, count in other.gres.items())
    )


def _is_as_large(amount: int | None, other: int | None) -> bool:
    """Compare amounts of memory; without an amount a job gets the manager's default."""
    return amount == other if amount is None or other is None else amount >= other


def _limited_scope(job: Job, manager_reason: str) -> tuple[str | None, ...]:
    """Return whose limit a pending job waits for, by Slurm's reason; (): not for such a limit.

    Native options may keep a job pending at will: they are no evidence for other users.
    """
    if job.native or manager_reason.startswith(("Assoc", "QOSMax")):
        return _scope(job, 3)
    return _scope(job, 1) if manager_reason.startswith("QOS") else ()


def _scope(job: Job, length: int) -> tuple[str | None, ...]:
    return (job.qos, job.account, job.user)[:length]
