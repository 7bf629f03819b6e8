"""One cluster as the core sees it: what its manager has told, what of ours is there. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from functools import reduce
from itertools import starmap
from operator import add, itemgetter, mul

from metasched.core.tasks import Task, TaskId
from metasched.model.cluster import Cluster, ClusterInfo
from metasched.model.job import Job, Reason, State
from metasched.model.listing import JobStatus
from metasched.policies.eligible import Ineligibility, find_ineligibility, translate_job

EligibilityKey = tuple[object, object]  # of partitions, of licences: see `shape`
_UNDECIDED = Ineligibility(Reason.PRIORITY, "not looked at yet")
MAX_CACHED_DECISIONS = 10_000  # different needs whose answers are kept, at the most
FULL_RETRY_DELAY = (10.0, 300.0)  # seconds until a full cluster is tried again: first, at the most


@dataclass
class StaleAttempt:
    """An attempt that is listed although we had given it up; `asked`: when its end was asked for.

    `wish` is None (let it be), or the `unstarted` of the withdrawal that is asked for.
    """

    row: JobStatus
    withdrawal: bool | None = None
    withdrawal_requested: float = 0.0


@dataclass
class ClusterView:
    """What is known of one cluster since the start.

    `full` is what its manager said when it took no more for now: until `probe_at` nothing is
    sent, then one task, to see. `owed` are the cpu seconds of ours that have not begun, which are
    `unstarted`, `told` those of others. `busy` processors run, by their limits, what is `work`
    (processors x end) in all, at times `since` to `until`: see `loads`. What
    is live and not `Attempt.calm` is `uneasy`, so that a listing need not look at all the rest.
    `strays` are by job, index and sending, `withheld` are rows of tasks whose claims are being
    revoked. `decided` is what `unfit` has answered, by needs: it holds while the `shape` of the
    facts does.
    """

    cluster: Cluster
    info: ClusterInfo | None = None
    up: bool = False
    down_reason: str = "not heard from since the start"
    full_reason: str = ""
    full_since: float = 0.0
    retry_at: float = 0.0
    retry_delay: float = 0.0
    owed_by_own: float = 0.0
    owed_by_others: float = 0.0
    busy_cpus: int = 0
    busy_work: float = 0.0
    valid_from: float = 0.0
    valid_until: float = -math.inf
    computing_power: float = math.inf  # unless it has told of processors
    unstarted_tasks: dict[TaskId, Task] = field(default_factory=dict)
    live_tasks: dict[TaskId, Task] = field(default_factory=dict)
    needs_attention: dict[TaskId, Task] = field(default_factory=dict)
    stale_attempts: dict[tuple[int, int, int], StaleAttempt] = field(default_factory=dict)
    deferred_rows: dict[TaskId, JobStatus] = field(default_factory=dict)
    up_since: float = 0.0  # when its manager last started, as far as it tells
    eligibility_key: EligibilityKey | None = None
    decisions: dict[Hashable, Ineligibility | None] = field(default_factory=dict)
    name: str = field(init=False)
    # in seconds of `Books.watch`: for how long it has answered until it last ceased or began to,
    # and when that was
    _answered_seconds: float = 0.0
    _turned_at: float = 0.0

    def __post_init__(self) -> None:
        self.name = self.cluster.name

    # Whether it answers. What expires goes by `watch`, which stands still while nobody could see
    # anything

    def mark_up(self, total_observed: float) -> float:
        """It answers; the seconds of its silence in which another cluster answered."""
        silent_seconds = 0.0
        if not self.up:
            silent_seconds, self._turned_at = total_observed - self._turned_at, total_observed
        self.up, self.down_reason = True, ""
        return silent_seconds

    def mark_down(self, reason: str, total_observed: float) -> None:
        if self.up:
            self._answered_seconds, self._turned_at = (
                self.observed_seconds(total_observed),
                total_observed,
            )
        self.up, self.down_reason = False, reason

    def observed_seconds(self, total_observed: float) -> float:
        """The seconds for which it has answered us."""
        return (
            self._answered_seconds + (total_observed - self._turned_at)
            if self.up
            else self._answered_seconds
        )

    # What its manager tells

    def update_info(self, info: ClusterInfo) -> None:
        previous_key, self.eligibility_key = self.eligibility_key, eligibility_key(info)
        if self.eligibility_key != previous_key:
            self.decisions.clear()
        self.info, self.owed_by_others = info, info.owed_by_others
        self.computing_power = info.cpus * self.cluster.benchmark or math.inf
        self.valid_until = -math.inf

    def sum_running(self, now: float) -> None:
        """Add up what should not have ended by now."""
        running = () if self.info is None else self.info.running_jobs
        ended = bisect_right(running, now, key=itemgetter(0))
        self.valid_from = running[ended - 1][0] if ended else -math.inf
        self.valid_until = running[ended][0] if ended < len(running) else math.inf
        still_running = running[ended:]
        self.busy_cpus = sum(map(itemgetter(1), still_running))
        self.busy_work = reduce(
            add, starmap(mul, reversed(still_running)), 0.0
        )  # `sum` depends on the Python

    def check_job(self, job: Job) -> Ineligibility | None:
        """Why the cluster cannot run a job, decided once for all that ask for the same."""
        licences_matter = self.cluster.licence_features or (
            self.info is not None and self.info.licences
        )
        cache_key = job.requirements if licences_matter else job.requirements_without_licences
        if self.cluster.filesystems:
            cache_key = (cache_key, job.directory, job.writes)
        cached = self.decisions.get(cache_key, _UNDECIDED)
        if cached is _UNDECIDED:
            if len(self.decisions) >= MAX_CACHED_DECISIONS:
                self.decisions.clear()
            cached = self.decisions[cache_key] = find_ineligibility(job, self.cluster, self.info)
        return cached

    def translate_job(self, job: Job) -> Job:
        """A job that fits the cluster, in the cluster's own words."""
        return translate_job(job, self.cluster, self.info)

    # What is ours there

    def add_task(self, task: Task) -> None:
        """A task of ours may be there from now on."""
        self.live_tasks[task.task_id] = self.needs_attention[task.task_id] = task

    def remove_task(self, task: Task) -> None:
        """Its attempt there has ended."""
        self.live_tasks.pop(task.task_id, None)
        self.needs_attention.pop(task.task_id, None)

    def withdraw_pending_stale(self, key: tuple[int, int, int]) -> None:
        """Wish for the end of a stray that is to begin anew, though another has begun."""
        stale_attempt = self.stale_attempts.get(key)
        if (
            stale_attempt is not None
            and stale_attempt.row.state is State.PENDING
            and stale_attempt.withdrawal is None
        ):
            stale_attempt.withdrawal = False

    # Whether it takes more

    def mark_full(self, reason: str, now: float) -> None:
        """Its manager is full; try again later, and ever later."""
        initial, maximum = FULL_RETRY_DELAY
        self.retry_delay = min(self.retry_delay * 2, maximum) or initial
        self.full_reason, self.full_since = reason, now
        self.retry_at = now + self.retry_delay

    def retry_due(self, now: float) -> bool:
        """Whether it is full, and time to try it again, with one task."""
        return bool(self.full_reason) and now >= self.retry_at

    def adjust_clock(self, step: float) -> None:
        """The wall clock went `by` seconds more than time has: see `Core`."""
        self.full_since += min(step, 0.0)
        self.retry_at += step
        for stale_attempt in self.stale_attempts.values():
            stale_attempt.withdrawal_requested += step


def loads(views: Collection[ClusterView], now: float) -> list[float]:
    """Seconds of each whole cluster still owed; 0 while it has told of no processors.

    All are asked at each submission: O(1) for each, but O(n) in its running jobs after news of it,
    and when one of them should have ended.
    """
    for view in views:
        if not view.valid_from <= now < view.valid_until:
            view.sum_running(now)
    owed = [
        (view.owed_by_others + (view.busy_work - view.busy_cpus * now) + view.owed_by_own)
        / view.computing_power
        for view in views
    ]
    if min(owed, default=0.0) < 0.0:  # by rounding, when all that runs is about to end
        return [max(0.0, seconds) for seconds in owed]
    return owed


def eligibility_key(
    info: ClusterInfo | None, *, include_transient: bool = True
) -> EligibilityKey | None:
    """What of the facts decides whether a job may be sent: not what is free or running.

    Without the `passing`, which nodes and partitions are up, whether it can ever start there.
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
    return partitions, licences
