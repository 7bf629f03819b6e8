"""The core's view of a cluster: its reported state, and metasched's tasks there. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from functools import reduce
from itertools import starmap
from operator import add, itemgetter, mul

from metasched.core.pull_record import PullRecord
from metasched.core.scope_limits import Rechecks, ScopeLimits
from metasched.core.tasks import Task, TaskId, WithdrawalMode
from metasched.model.cluster import Cluster, ClusterInfo
from metasched.model.job import Job, Reason, State
from metasched.model.listing import JobStatus
from metasched.policies.eligible import (
    Ineligibility,
    find_charged_account,
    find_ineligibility,
    fits_without,
    translate_job,
)

# of partitions, of licences, of associations and nodes: see `eligibility_key`
EligibilityKey = tuple[object, dict[str, tuple[int, int]], object]
_UNDECIDED = Ineligibility(Reason.PRIORITY, "not checked yet")
MAX_CACHED_DECISIONS = 10_000  # different requirements in a cache
# Default of `Cluster.queue_depth`: managers look no deeper for jobs to backfill (1,000 and more is
# rare for `bf_max_job_test` of Slurm), and no cluster starts two fillings between two polls
LEAST_QUEUE_DEPTH = 1000  # tasks
QUEUE_DEPTH_PER_CPU = 2  # tasks
FULL_RETRY_DELAY = (10.0, 300.0)  # seconds until a full cluster is tried again: initial, maximum
REFUSING_RETRY_DELAY = (1.0, 600.0)  # likewise for a cluster that refuses


@dataclass
class StaleAttempt:
    """An attempt that is listed although it was considered lost or ended."""

    row: JobStatus
    withdrawal: WithdrawalMode = WithdrawalMode.NONE
    withdrawal_requested: float = 0.0  # epoch seconds; 0: not yet


@dataclass
class ClusterView:
    """State of a cluster since the start of the daemon. Times are epoch seconds."""

    cluster: Cluster
    name: str = field(init=False)
    info: ClusterInfo | None = None  # last reported
    up: bool = False  # whether its manager answers
    down_reason: str = "no answer since the start"
    full_reason: str = ""  # why its manager rejects dispatches for now; "": it is not full
    full_since: float = 0.0
    has_accepted: bool = False  # a task, since the start
    refusing: bool = False  # full: it refuses jobs of several owners with the same words
    # owners for whom alone it refuses; by owner, the words
    refused_owners: dict[str, str] = field(default_factory=dict)
    # since it last accepted a task: by words of refusals without proof, the jobs of each owner
    refusal_runs: dict[str, dict[str, set[int]]] = field(default_factory=dict)
    retry_at: float = 0.0  # full: no dispatch until then, then a single task
    retry_delay: float = 0.0  # seconds
    rechecks: Rechecks = field(default_factory=dict)  # of all clusters
    refills: set[str] = field(default_factory=set)  # clusters that may have queue places again
    scope_limits: ScopeLimits = field(init=False)  # refusals of some jobs only
    owed_by_own: float = 0.0  # processors x estimate (seconds) of metasched's unstarted tasks
    owed_by_others: float = 0.0  # processors x limit (seconds) of other users' pending jobs
    # running jobs at times `valid_from` to `valid_until`: their processors, and the sum of
    # processors x end by the limit; see `loads`
    busy_cpus: int = 0
    busy_work: float = 0.0
    valid_from: float = 0.0
    valid_until: float = -math.inf
    computing_power: float = math.inf  # processors x benchmark; inf: no processors reported
    unstarted_tasks: dict[TaskId, Task] = field(default_factory=dict)
    live_tasks: dict[TaskId, Task] = field(default_factory=dict)
    # live tasks whose attempt is not `settled`: a listing delta need not check the others
    needs_attention: dict[TaskId, Task] = field(default_factory=dict)
    # by (job, index, dispatch id)
    stale_attempts: dict[tuple[int, int, int], StaleAttempt] = field(default_factory=dict)
    deferred_rows: dict[TaskId, JobStatus] = field(default_factory=dict)  # claims being revoked
    up_since: float = 0.0  # last start of its manager; 0: not reported
    eligibility_key: EligibilityKey | None = None
    # results of `check_job` by requirements; valid for the current `eligibility_key`
    decisions: dict[Hashable, Ineligibility | None] = field(default_factory=dict)
    pulls: PullRecord = field(init=False)
    # in `SchedulerState.observed_seconds`: time up before the last change of `up`, and that change
    _answered_seconds: float = 0.0
    _turned_at: float = 0.0

    def __post_init__(self) -> None:
        self.name = self.cluster.name
        self.scope_limits = ScopeLimits(
            self.name,
            self.cluster.max_unanswered,
            self.cluster.max_tasks_per_dispatch,
            self.queue_depth,
            self.rechecks,
            self.refills,
        )
        self.pulls = PullRecord(self.name, self.cluster.start_delay)

    @property
    def queue_depth(self) -> int | None:
        """Tasks of all users that wait there at most; None: any number."""
        if self.cluster.queue_depth == 0:
            cpus = 0 if self.info is None else self.info.cpus
            return max(LEAST_QUEUE_DEPTH, QUEUE_DEPTH_PER_CPU * cpus)
        return self.cluster.queue_depth

    # Availability. `total_observed` is `SchedulerState.observed_seconds`, a clock that stands still
    # while no cluster answers

    def mark_up(self, total_observed: float) -> float:
        """Record an answer. Return the seconds without answer while another cluster was up."""
        silent_seconds = 0.0
        if not self.up:
            silent_seconds, self._turned_at = total_observed - self._turned_at, total_observed
        self.up, self.down_reason = True, ""
        return silent_seconds

    def mark_down(self, reason: str, total_observed: float) -> None:
        """Record that the manager does not answer."""
        if self.up:
            self._answered_seconds = self.observed_seconds(total_observed)
            self._turned_at = total_observed
        self.up, self.down_reason = False, reason

    def observed_seconds(self, total_observed: float) -> float:
        """Return the seconds for which the cluster was up."""
        if self.up:
            return self._answered_seconds + (total_observed - self._turned_at)
        return self._answered_seconds

    # Reported state

    def update_info(self, info: ClusterInfo) -> None:
        """Take over a new reported state."""
        if self.info is None or not _is_as_eligible(info, self.info):
            previous_key, self.eligibility_key = self.eligibility_key, eligibility_key(info)
            if self.eligibility_key != previous_key:
                self.decisions.clear()
                if _permanent(self.eligibility_key) != _permanent(previous_key):
                    self.pulls.evidence.clear()
        self.info, self.owed_by_others = info, info.owed_by_others
        self.computing_power = info.cpus * self.cluster.benchmark or math.inf
        self.valid_until = -math.inf
        self.scope_limits.set_queue_depth(self.queue_depth)
        self.scope_limits.set_idle_cpus(max(info.cpus - info.used_cpus, 0) if info.cpus else None)

    def sum_running(self, now: float) -> None:
        """Sum up running jobs that have not reached their limits."""
        running = () if self.info is None else self.info.running_jobs
        ended = bisect_right(running, now, key=itemgetter(0))
        self.valid_from = running[ended - 1][0] if ended else -math.inf
        self.valid_until = running[ended][0] if ended < len(running) else math.inf
        still_running = running[ended:]
        self.busy_cpus = sum(map(itemgetter(1), still_running))
        # not `sum`: its rounding depends on the version of Python
        self.busy_work = reduce(add, starmap(mul, reversed(still_running)), 0.0)

    @property
    def users_matter(self) -> bool:
        """Whether the user of a job decides on its eligibility."""
        has_associations = self.info is not None and self.info.requires_associations
        return has_associations or bool(self.cluster.user_accounts)

    def check_job(self, job: Job) -> Ineligibility | None:
        """Return why the cluster cannot run a job, or None; cached by the job's requirements."""
        licences_matter = self.cluster.licence_features or (
            self.info is not None and self.info.licences
        )
        cache_key = job.requirements if licences_matter else job.requirements_without_licences
        if self.cluster.has_listed_filesystems:
            cache_key = (cache_key, job.directory, job.writes)
        if self.users_matter:
            cache_key = (cache_key, job.user, job.native.get(self.name))
        cached = self.decisions.get(cache_key, _UNDECIDED)
        if cached is _UNDECIDED:
            if len(self.decisions) >= MAX_CACHED_DECISIONS:
                self.decisions.clear()
            cached = self.decisions[cache_key] = find_ineligibility(job, self.cluster, self.info)
        return cached

    def fits_without(self, job: Job, hosts: Collection[str]) -> bool:
        """Return whether the cluster can hold a job on other hosts, or does not name its hosts."""
        return not hosts or fits_without(job, self.cluster, self.info, hosts)

    def charged_account(self, job: Job) -> str | None:
        """Return the manager's name of the account that a job is charged to; None: unknown."""
        return find_charged_account(job, self.cluster, self.info)

    def translate_job(self, job: Job) -> Job:
        """Return an eligible job with the manager's names of partition, account and so on."""
        return translate_job(job, self.cluster, self.info)

    def choose_gres(self, job: Job) -> int:
        """Return which of its `gres_choices` an eligible job requests there."""
        return job.gres_choices.index(self.translate_job(job).gres)

    # Tasks of metasched

    def add_task(self, task: Task) -> None:
        """Add a task that may be in the manager from now on."""
        if self.scope_limits.counts_tasks:
            self.scope_limits.add_task(task)
        self.live_tasks[task.task_id] = self.needs_attention[task.task_id] = task

    def remove_task(self, task: Task) -> None:
        """Remove a task whose attempt there has ended."""
        if self.scope_limits.counts_tasks:
            self.scope_limits.remove_task(task)
        if task.attempt is not None and task.attempt.has_started:
            self.pulls.record_end(task.job)
        self.live_tasks.pop(task.task_id, None)
        self.needs_attention.pop(task.task_id, None)

    def withdraw_pending_stale(self, key: tuple[int, int, int]) -> None:
        """Withdraw a pending stale attempt, since another attempt of the task has started."""
        stale_attempt = self.stale_attempts.get(key)
        if (
            stale_attempt is not None
            and stale_attempt.row.state is State.PENDING
            and stale_attempt.withdrawal is WithdrawalMode.NONE
        ):
            stale_attempt.withdrawal = WithdrawalMode.FORCE

    # Full clusters

    def mark_full(self, reason: str, now: float, *, refusing: bool = False) -> None:
        """Record that the manager is full, or refuses; the delay of the next try doubles.

        A cluster that refuses does so until it accepts a task.
        """
        if refusing and not self.refusing:
            self.refusing, self.retry_delay = True, 0.0
        initial, maximum = REFUSING_RETRY_DELAY if self.refusing else FULL_RETRY_DELAY
        self.retry_delay = min(self.retry_delay * 2, maximum) or initial
        self.full_reason, self.full_since = reason, now
        self.retry_at = now + self.retry_delay

    def mark_open(self) -> bool:
        """Record that the manager has accepted a task. Return whether it was full."""
        was_full, self.full_reason = bool(self.full_reason), ""
        self.refusing, self.retry_delay = False, 0.0
        return was_full

    def retry_due(self, now: float) -> bool:
        """Return whether the cluster is full and due for another try with a single task."""
        return bool(self.full_reason) and now >= self.retry_at

    def adjust_clock(self, step: float) -> None:
        """Correct times after the wall clock was set by `step` seconds; see `Core`."""
        self.full_since += min(step, 0.0)
        self.retry_at += step
        self.scope_limits.adjust_clock(step)
        for stale_attempt in self.stale_attempts.values():
            stale_attempt.withdrawal_requested += step


def loads(views: Collection[ClusterView], now: float) -> list[float]:
    """Return the load of each cluster: seconds of the whole cluster until its work is done.

    The load is 0 while a cluster has reported no processors. Called at each submission: O(1) per
    cluster, but O(running jobs) after a listing and at the end of a job.
    """
    for view in views:
        if not view.valid_from <= now < view.valid_until:
            view.sum_running(now)
    owed = [
        (view.owed_by_others + (view.busy_work - view.busy_cpus * now) + view.owed_by_own)
        / view.computing_power
        for view in views
    ]
    if min(owed, default=0.0) < 0.0:  # by rounding, when all running jobs are about to end
        return [max(0.0, seconds) for seconds in owed]
    return owed


def limit_on(job: Job, view: ClusterView) -> float:
    """Return the seconds after which the manager ends a task of a job."""
    if job.time_limit is not None:
        return job.time_limit
    return job.estimated * job.benchmark / view.cluster.benchmark


def _is_as_eligible(info: ClusterInfo, before: ClusterInfo) -> bool:
    """Return whether both have the same `eligibility_key`, except for the load of queues; O(1)."""
    return (
        info.partitions is before.partitions
        and info.associations is before.associations
        and info.licences == before.licences
        and info.hosts == before.hosts
    )


def _permanent(key: EligibilityKey | None) -> object:
    """Return the part of the key without the use of licences, which changes all the time."""
    if key is None:
        return None
    partitions, licences, requirements = key
    return partitions, {name: total for name, (total, _) in licences.items()}, requirements


def eligibility_key(
    info: ClusterInfo | None, *, include_transient: bool = True
) -> EligibilityKey | None:
    """Key of the properties that decide whether jobs are eligible; ignores free resources.

    Without the transient properties (nodes and partitions that are up, used licences) the key
    decides whether jobs can ever start there.
    """
    if info is None:
        return None
    partitions = [
        partition.eligibility_key
        if include_transient
        else partition.with_all_nodes_up.eligibility_key
        for partition in info.partitions
    ]
    licences = {
        name: (counts.total, include_transient and counts.used)
        for name, counts in info.licences.items()
    }
    return partitions, licences, (info.associations, info.hosts)
