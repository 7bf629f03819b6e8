"""Tasks of the core, their attempts, changes of their states, and lines of their stories. Pure.

Only the core changes these. The classes are not frozen and have slots, since setting the fields of
a frozen class takes three times as long. mypyc does not compile this module: checkpoints of the
database decode tasks by their annotations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final

import msgspec

from metasched.core.transitions import UNSTARTED, TaskEvent
from metasched.model.host_lists import expand_hosts
from metasched.model.job import Job, State

TaskId = tuple[int, int]  # job, index

NO_CLUSTERS: Final[frozenset[str]] = frozenset()  # shared: each empty set takes 216 bytes


class Intent(StrEnum):
    """Reason to withdraw a task from its manager."""

    CANCEL = "cancel"
    HOLD = "hold"
    PULL = "pull"
    RECALL = "recall"  # the task must not start there, or never can
    REQUEUE = "requeue"
    RECLAIM = "reclaim"  # its manager has requeued it: it is to be queued in metasched instead
    YIELD = "yield"  # an older attempt is listed again and has started
    EXPIRE = "expire"  # its reservation is over


class WithdrawalMode(Enum):
    """Withdrawal of a stale attempt."""

    NONE = "none"  # leave it
    IF_PENDING = "if_pending"  # unless it has started
    FORCE = "force"


# Withdrawals with these intents leave started tasks alone
IF_PENDING_INTENTS = frozenset({Intent.HOLD, Intent.PULL, Intent.RECALL, Intent.YIELD})


class Attempt(msgspec.Struct):
    """An attempt to run a task in a manager. Times are epoch seconds."""

    number: int  # 1 for the first attempt of the task
    dispatch_id: int
    cluster: str
    state: State
    dispatched: float  # when the intent was stored
    accepted: float | None = None  # when the manager confirmed the dispatch
    tried: float | None = None  # set before a call whose result is unknown, until it is known
    # what its program said that ended by itself without a usable answer: the refusal if the attempt
    # is proved absent; None: nothing, or it has been answered
    sentence: str | None = None
    in_last_listing: bool = False
    missing: bool = False  # from complete listings, which do not prove its absence
    missing_since: float = 0.0  # first such listing, or the first after its manager was unreachable
    lease_expired: bool = False  # missing for so long that it holds no licences and no array slot
    last_listed: float | None = None  # last listing that contained it; set once it is not listed
    # by then its dispatch, which got no answer, had not arrived, as listings without it show
    absent_until: float | None = None
    accounting_queries: int = 0  # since it is missing
    next_accounting_query: float = 0.0
    native_id: str | None = None
    submitted: float | None = None  # by its manager's clock, as last listed
    intent: Intent | None = None  # reason to withdraw it
    target: str | None = None  # target cluster after the withdrawal
    withdrawal_requested: float | None = None  # when the manager was last asked to cancel it
    maybe_withdrawn: bool = False  # an earlier withdrawal may have reached its manager
    # cancelled, or missing, since before any withdrawal could reach its manager
    gone_first: bool = False
    started: float | None = None  # as the manager lists it
    # its run counts from then: unlike `started`, this moves with the daemon's clock
    run_since: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    manager_reason: str = ""  # as the manager spells it
    node: str = ""
    cpu_seconds: float | None = None
    max_memory: int | None = None  # MiB
    rejected: bool = False  # by the manager
    observed_at_dispatch: float = 0.0  # `ClusterView.observed_seconds` at the dispatch
    yields_to: int | None = None  # id of the older dispatch that replaces it
    restarts: int = 0  # by the manager itself
    has_started: bool = False  # whether the payload ever started under this dispatch
    # folder of its payload's claim: `fence_dir` until the call; "": no claims
    fence: str = ""
    gres_choice: int | None = None  # `Job.gres_choices` that it requests; None: there is one
    licence_choice: int | None = None  # `Job.licence_choices` that it has leased; None: none
    revoking: bool = False  # its claim may have been revoked
    revoked: bool = False  # its claim has been revoked
    unbegun_on: str | None = None  # hosts that could not begin it, as its manager shows

    @property
    def settled(self) -> bool:
        """Whether the last listing contained it, and no withdrawal is intended."""
        return self.in_last_listing and self.intent is None and not self.missing

    @property
    def unstarted(self) -> bool:
        """Whether it never started and can move; a restarted attempt is pending but has started."""
        return self.state in UNSTARTED and not self.has_started

    @property
    def untried(self) -> bool:
        """Whether the dispatch call was never made, so that the manager cannot have it."""
        return self.state is State.DISPATCHING and self.tried is None

    @property
    def awaits_look(self) -> bool:
        """Whether listings are still to show if its dispatch, which may be under way, arrived."""
        return self.tried is not None and self.accepted is None and not self.missing

    def accounting_query_due(self, now: float) -> bool:
        """Return whether it is missing and the next query of accounting is due."""
        return self.missing and now >= self.next_accounting_query

    def forget_withdrawal(self) -> None:
        """Forget the intent to withdraw it; a call that was made may still take effect."""
        self.maybe_withdrawn |= self.withdrawal_requested is not None
        self.intent = self.target = self.withdrawal_requested = None

    def record_start(self, started: float, now: float) -> None:
        """Record the start of the payload as its manager lists it."""
        if self.started is None:
            self.run_since = min(max(started, self.run_since or 0.0), now)
        self.started = started

    def adjust_clock(self, step: float, now: float) -> None:
        """Correct times after the wall clock was set by `step` seconds, to `now`; see `Core`."""
        backward_step = min(step, 0.0)
        if self.started is None:
            self.run_since = now  # it may have started by the clock as it was
        elif self.run_since is not None:
            self.run_since += step
        self.dispatched += backward_step
        self.next_accounting_query += step
        self.missing_since += step
        if self.accepted is not None:
            self.accepted += backward_step
        if self.last_listed is not None:
            self.last_listed += backward_step
        if self.absent_until is not None:
            self.absent_until += backward_step
        if self.tried is not None:
            self.tried += step
        if self.withdrawal_requested is not None:
            self.withdrawal_requested += step


class PastAttempt(msgspec.Struct):
    """An attempt of an earlier dispatch of a task. Its manager may list it again."""

    cluster: str
    has_started: bool = False
    fence: str = ""  # folder of its payload's claim
    revoked: bool = False  # its claim is revoked: its payload can never start
    requeued: bool = False  # the task was requeued since: if it continues, it is cancelled again
    gres_choice: int | None = None  # as that of `Attempt`
    licence_choice: int | None = None  # as that of `Attempt`
    started: float | None = None  # as that of `Attempt`
    # as that of `Attempt`; None since its owner has asked for another try
    unbegun_on: str | None = None


class EndedTask(msgspec.Struct):
    """Record of an ended task, kept in case a manager lists an attempt of it again."""

    state: State
    last_attempt: int  # number of its last attempt
    past_attempts: dict[int, PastAttempt]  # by dispatch id


class Task(msgspec.Struct):
    """An open task of a job."""

    job: Job  # of alternative licences it has those of its attempt; queued, the first
    index: int
    priority: int
    queue_key: float  # order of queued and pulled tasks: see `SchedulerState.queue_key`
    state: State = State.QUEUED
    reason: str = ""
    held: bool = False
    ended: float | None = None  # epoch seconds
    attempts: int = 0  # number of attempts so far
    moves: int = 0  # number of moves to other clusters
    target: str | None = None  # target cluster of a pull
    attempt: Attempt | None = None  # its live attempt
    rejected_by: frozenset[str] = NO_CLUSTERS
    refusal: str = ""  # what the last of these clusters said
    ignore_rejections_until: int = 0  # number of the last attempt whose rejection does not count
    past_attempts: dict[int, PastAttempt] = msgspec.field(default_factory=dict)  # by dispatch id
    task_id: TaskId = (0, 0)
    classified_priority: int = 0  # `priority` before the limit of the current policy

    def __post_init__(self) -> None:
        self.task_id, self.classified_priority = (self.job.id, self.index), self.priority

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """The task as users write it: `17` or `17_3`."""
        return f"{self.job.id}_{self.index}" if self.job.array else str(self.job.id)

    def choose_licences(self, choice: int | None) -> None:
        """Choose among the alternative licences of the job, if it has any; None: as before."""
        self.job = self.job.with_licences(choice)

    def hosts_to_avoid(self, cluster: str) -> frozenset[str]:
        """Return the hosts of a cluster that could not begin the task."""
        return frozenset(
            host
            for past in self.past_attempts.values()
            if past.unbegun_on and past.cluster == cluster
            for host in expand_hosts(past.unbegun_on)
        )

    def forget_failures(self) -> None:
        """Forget which clusters have rejected the task, and which hosts could not begin it."""
        self.ignore_rejections_until, self.rejected_by = self.attempts, NO_CLUSTERS
        self.refusal = ""
        for past in self.past_attempts.values():
            past.unbegun_on = None

    @property
    def awaits_claim(self) -> bool:
        """Whether its claim is being revoked, and may still answer in time."""
        return (
            self.attempt is not None
            and self.attempt.revoking
            and self.attempt.state is not State.UNKNOWN
        )

    def note_ended_first(self) -> None:
        """Note that its manager lists it no more, or as cancelled, before it could be withdrawn.

        Not if an earlier request may have ended it, or the end of its reservation: at that, Grid
        Engine deletes the jobs that wait in it.
        """
        attempt = self.live_attempt
        attempt.gone_first |= not attempt.maybe_withdrawn and self.job.reservation is None

    @property
    def live_attempt(self) -> Attempt:
        """Return its live attempt; the caller knows that there is one."""
        assert self.attempt is not None, self
        return self.attempt


@dataclass(slots=True)
class TaskChange:
    """A line of a task's story, or equal lines of the tasks in a run of indices."""

    job: int
    index: int  # of a run: the first
    attempt: int  # number; 0: none
    event: TaskEvent | None  # None: the state did not change
    before: State | None  # None: the task is new
    after: State
    cluster: str | None
    reason: str
    cause: str
    run_last: int | None = None  # last index of a run; None: a single task
    run_step: int = 1  # between the indices of a run


class StateChange(msgspec.Struct, frozen=True):
    """A task's change of state. `Core.step` passes it to each part that keeps data about tasks."""

    task: Task  # in its new state
    event: TaskEvent
    before: State
    after: State
    attempt: Attempt | None  # it has ended unless `after` is in LIVE; None: the task had none
    follow_up: TaskEvent | None  # to be applied once all parts have received this change
    last_dispatch: int = 0  # highest dispatch id of the job, if there is a `follow_up`
