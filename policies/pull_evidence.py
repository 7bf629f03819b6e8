"""Pulls that did not start at once, as evidence: which jobs a cluster is not tried for. Pure.

Facts that no manager reports (limits of a QOS, default memory, foreign priorities) show only when
a pulled job does not start. Then jobs that need at least as much are barred from that cluster,
until such a job ends there or the facts that it reports change. If the manager names a limit, jobs
that share it are barred while as much of it is in use as at the failure. The number of pulls under
way doubles with each pull that starts at once and drops to 1 after a failure. A failure for a
reason of its user alone (his limits, his priority, his native options) concerns only his jobs.

Where pulls keep failing (a cluster without backfilling, say), the ends that lift a bar double with
each failure. They halve after ten pulls that started at once: so either nine in ten start at once,
or there are hardly any pulls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from metasched.model.job import Job

MAX_BARS = 100  # of a cluster; the oldest is dropped
MAX_OWN_BARS = 10  # that concern a user alone, or share a limit
BAR_SECONDS = 3600.0  # for each end that lifts a bar: no manager reports that a limit was raised
FIRST_WINDOW = 16  # pulls under way at the start of the daemon
MAX_WINDOW = 1024
MAX_BAR_SECONDS = 24 * BAR_SECONDS
MAX_DISTRUST = 10.0  # a bar is lifted by 2 ** 10 ends at most
# QOS, account and user that share a limit, or the QOS alone; (): a job waits for no such limit
Scope = tuple[str | None, ...]
_REGAINED_TRUST = 0.1  # by a pull that started at once; a failure costs 1
_LIMITS_OF_A_USER = ("Assoc", "QOSMax")  # beginnings of Slurm's reasons
_COMPARABLE_TIME = 2.0  # a job of half the time limit and less may fit in front of a reservation


class SharedLimitUse(NamedTuple):
    """The use of a limit by the jobs that share it."""

    tasks: int = 0
    cpus: int = 0

    def with_job(self, job: Job) -> SharedLimitUse:
        return SharedLimitUse(self.tasks + 1, self.cpus + job.cpus)


_UNUSED = SharedLimitUse()


@dataclass
class PullBar:
    """A job that was pulled and did not start at once."""

    job: Job
    free_cpus: int  # of the cluster, when the failure was seen
    until: float  # epoch seconds
    ends_left: int = 1  # of such jobs, until the bar is lifted

    def covers(self, job: Job) -> bool:
        """Return whether the failure speaks against another job: it needs no less."""
        return job.estimated * _COMPARABLE_TIME > self.job.estimated and needs_at_least(
            job, self.job
        )

    def lifted_by_end(self, job: Job) -> bool:
        """Count the end of a job if it leaves room for the barred job; return whether it lifts."""
        if needs_at_least(job, self.job):
            self.ends_left -= 1
        return self.ends_left <= 0

    def lifted_by_time(self, now: float, free_cpus: int) -> bool:
        """Return whether time or other users' ends have lifted the bar."""
        return now >= self.until or free_cpus - self.free_cpus >= self.job.cpus * self.ends_left


@dataclass
class LimitBar:
    """A job that was pulled and waits for a limit of its user, account or QOS."""

    job: Job
    scope: Scope  # of the limit
    counts: str  # the limited quantity: "tasks", "cpus", or "" if that is not clear
    most: SharedLimitUse  # by jobs of metasched that had started, when the failure was seen
    until: float  # epoch seconds
    used: SharedLimitUse = _UNUSED  # by jobs of metasched that are there or on their way

    def covers(self, job: Job) -> bool:
        """Return whether another job would exceed the use at which the first could not start."""
        if _scope(job, len(self.scope)) != self.scope or not needs_at_least(job, self.job):
            return False
        exceeds_tasks = self.used.tasks + 1 > self.most.tasks
        exceeds_cpus = self.used.cpus + job.cpus > self.most.cpus
        if not self.counts:
            return exceeds_tasks or exceeds_cpus
        return exceeds_tasks if self.counts == "tasks" else exceeds_cpus


@dataclass
class Trust:
    """How many pulls to a cluster are tried at a time, and how soon after a failure."""

    window: int = FIRST_WINDOW  # pulls that may be under way
    distrust: float = 0.0  # logarithm of the ends that lift a bar, to base 2

    def record_success(self) -> None:
        """Record a pull that started at once."""
        self.window = min(2 * self.window, MAX_WINDOW)
        self.distrust = max(self.distrust - _REGAINED_TRUST, 0.0)

    @property
    def restored(self) -> bool:
        """Whether earlier failures do not matter any more."""
        return self.window >= MAX_WINDOW and self.distrust <= 0.0


@dataclass
class FailedPulls:
    """Failures that speak against the same users: their bars, and the trust that is left."""

    bars: list[PullBar] = field(default_factory=list)
    limits: list[LimitBar] = field(default_factory=list)
    trust: Trust = field(default_factory=Trust)

    def record_failure(self, job: Job, free_cpus: int, now: float, max_bars: int) -> None:
        """Bar jobs like this job, which did not start at once."""
        ends = 2 ** int(self.trust.distrust)
        self.trust.distrust = min(self.trust.distrust + 1.0, MAX_DISTRUST)
        if any(bar.covers(job) for bar in self.bars):
            return
        until = now + min(BAR_SECONDS * ends, MAX_BAR_SECONDS)
        new = PullBar(job, free_cpus, until, ends)
        remaining = [bar for bar in self.bars if not new.covers(bar.job)]
        self.bars = [*remaining[1 - max_bars :], new]

    def add_limit(self, new: LimitBar) -> None:
        """Add a bar in the place of older bars for the same jobs."""
        other_bars = [bar for bar in self.limits if bar.scope != new.scope]
        remaining = [
            bar
            for bar in self.limits
            if bar.scope == new.scope and not needs_at_least(bar.job, new.job)
        ]
        self.limits = [*other_bars[-MAX_BARS:], *remaining[1 - MAX_OWN_BARS :], new]

    def bars_job(self, job: Job) -> bool:
        """Return whether the job would not start at once, by these failures."""
        return any(bar.covers(job) for bar in self.bars) or any(
            bar.covers(job) for bar in self.limits
        )

    def add_use(self, job: Job) -> None:
        """Count a job that is pulled."""
        for bar in self.limits:
            if _scope(job, len(bar.scope)) == bar.scope:
                bar.used = bar.used.with_job(job)

    def record_end(self, job: Job) -> None:
        """Lift the bars for which the end of a job leaves room."""
        self.bars = [bar for bar in self.bars if not bar.lifted_by_end(job)]

    def pass_time(self, now: float, free_cpus: int) -> None:
        """Lift the bars that time or other users' ends have lifted."""
        self.bars = [bar for bar in self.bars if not bar.lifted_by_time(now, free_cpus)]
        self.limits = [bar for bar in self.limits if now < bar.until]

    @property
    def forgotten(self) -> bool:
        """Whether these failures do not matter any more."""
        return self.trust.restored and not (self.bars or self.limits)


@dataclass
class PullEvidence:
    """Failed pulls to a cluster. A job is compared with those of everybody and of its user."""

    shared: FailedPulls = field(default_factory=FailedPulls)
    of_users: dict[str, FailedPulls] = field(default_factory=dict)  # for reasons of their own

    @property
    def trust(self) -> Trust:
        """How many pulls of all users are tried at a time."""
        return self.shared.trust

    @property
    def has_bars(self) -> bool:
        return bool(self.shared.bars or self.shared.limits or self.of_users)

    @property
    def limits(self) -> list[LimitBar]:
        """All bars for limits that jobs share."""
        own = (bar for failed in self.of_users.values() for bar in failed.limits)
        return [*self.shared.limits, *own]

    def _concerning(self, user: str) -> Iterator[FailedPulls]:
        """Yield the failures that concern the jobs of a user."""
        yield self.shared
        if (own := self.of_users.get(user)) is not None:
            yield own

    def record_success(self, user: str) -> None:
        """Record a pull that started at once."""
        for failed in self._concerning(user):
            failed.trust.record_success()
        if user in self.of_users and self.of_users[user].forgotten:
            del self.of_users[user]

    def record_failure(
        self, job: Job, manager_reason: str, free_cpus: int, now: float, started: Iterable[Job]
    ) -> None:
        """Bar jobs like this job, which did not start at once; `started` are all that did there."""
        own = _concerns_user(job, manager_reason)
        failed = self.of_users.setdefault(job.user, FailedPulls()) if own else self.shared
        failed.trust.window = 1
        if not (scope := _limited_scope(job, manager_reason)):
            failed.record_failure(job, free_cpus, now, MAX_OWN_BARS if own else MAX_BARS)
            return
        most = sum_up_uses(started, {scope})[scope]
        failed.add_limit(
            LimitBar(job, scope, _limited_amount(manager_reason), most, now + BAR_SECONDS)
        )

    def allows_pull(self, user: str, under_way: int) -> bool:
        """Return whether a user may have another pull under way besides so many of his."""
        own = self.of_users.get(user)
        return own is None or under_way < own.trust.window

    def bars_job(self, job: Job) -> bool:
        """Return whether the job would not start at once, by earlier pulls."""
        return any(failed.bars_job(job) for failed in self._concerning(job.user))

    def set_use(self, jobs: Iterable[Job]) -> None:
        """Count what jobs of metasched use that are on the cluster or on their way to it."""
        limits = self.limits
        uses = sum_up_uses(jobs, {bar.scope for bar in limits})
        for bar in limits:
            bar.used = uses[bar.scope]

    def add_use(self, job: Job) -> None:
        """Count a job that is pulled."""
        for failed in self._concerning(job.user):
            failed.add_use(job)

    def record_end(self, job: Job) -> None:
        """Lift the bars for which the end of a job leaves room: everybody's, and its user's."""
        for failed in self._concerning(job.user):
            failed.record_end(job)

    def pass_time(self, now: float, free_cpus: int) -> None:
        """Lift the bars that time or other users' ends have lifted."""
        for failed in (self.shared, *self.of_users.values()):
            failed.pass_time(now, free_cpus)
        self.of_users = {u: failed for u, failed in self.of_users.items() if not failed.forgotten}

    def clear(self) -> None:
        """Lift all bars: the facts of the cluster have changed."""
        for failed in (self.shared, *self.of_users.values()):
            failed.bars.clear()
            failed.limits.clear()


def sum_up_uses(jobs: Iterable[Job], scopes: Set[Scope]) -> dict[Scope, SharedLimitUse]:
    """Return the use by the jobs of each scope. O(jobs)."""
    uses = dict.fromkeys(scopes, _UNUSED)
    lengths = {len(scope) for scope in scopes}
    for job in jobs:
        for length in lengths:
            if (scope := _scope(job, length)) in uses:
                uses[scope] = uses[scope].with_job(job)
    return uses


def needs_at_least(job: Job, other: Job) -> bool:
    """Return whether a job needs at least as much as another: it starts only where that does.

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
        and job.gres_alternatives == other.gres_alternatives
    )


def _is_as_large(amount: int | None, other: int | None) -> bool:
    """Compare amounts of memory; without an amount a job gets the manager's default."""
    return amount == other if amount is None or other is None else amount >= other


def _limited_scope(job: Job, manager_reason: str) -> Scope:
    """Return whose limit a pending job waits for, by Slurm's reason; (): not for such a limit.

    Native options may keep a job pending at will: they are no evidence for other users.
    """
    if job.native or manager_reason.startswith(_LIMITS_OF_A_USER):
        return _scope(job, 3)
    return _scope(job, 1) if names_limit(manager_reason) else ()


def _concerns_user(job: Job, manager_reason: str) -> bool:
    """Return whether a pending job waits for a reason that other users need not share.

    With `Priority` the job has less priority than others, by the fair share of its user.
    """
    return len(_limited_scope(job, manager_reason)) > 1 or manager_reason == "Priority"


def names_limit(manager_reason: str) -> bool:
    """Return whether a job waits for a limit of its user, account or QOS, by Slurm's reason."""
    return manager_reason.startswith(("Assoc", "QOS"))


def _limited_amount(manager_reason: str) -> str:
    """Return what Slurm's reason limits: a quantity as in `LimitBar.counts`."""
    if "Job" in manager_reason and "PerJob" not in manager_reason:
        return "tasks"
    return "cpus" if "Cpu" in manager_reason else ""


def _scope(job: Job, length: int) -> Scope:
    return (job.qos, job.account, job.user)[:length]
