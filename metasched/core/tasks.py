"""A task of the core: its attempts, what is remembered of them, a line of its story. Pure.

The core makes these at every step and nobody else changes them, so they are of plain classes with
slots: the fields of a frozen one are set one by one, and nine of them take three times as long.
mypyc does not compile them: checkpoints of the database read tasks back by their annotations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from metasched.core.transitions import UNSTARTED, TaskEvent
from metasched.model.job import Job, State
from metasched.model.stored_names import STORED_FIELDS

TaskId = tuple[int, int]  # of a task: job, index


class Intent(StrEnum):
    """Why we want a task out of its manager."""

    CANCEL = "cancel"
    HOLD = "hold"
    PULL = "pull"
    RECALL = "recall"  # it must not, or can never, start where it is
    REQUEUE = "requeue"
    YIELD = "yield"  # an older attempt is back and has begun: that goes before
    EXPIRE = "expire"  # the window of its reservation is over


# These are wishes only for as long as it has not begun.
IF_PENDING_INTENTS = frozenset({Intent.HOLD, Intent.PULL, Intent.RECALL, Intent.YIELD})


class Attempt(msgspec.Struct, rename=STORED_FIELDS["Attempt"]):
    """One try in one manager. `sent` is the time of the intent, `tried` of a doubtful try.

    `listed` is when the last listing was taken that held it before it was missed; missed, it is
    looked for in the manager's accounting again at `look_at`, after `looks` times.
    `rival` is the sending that it yields to, `restarts` how many its manager tells, `begun`
    whether the payload has ever begun under this sending. Its payload claims it in the folder
    `fence`; `revoking`: we may have taken that claim; `revoked`: we have.
    """

    number: int
    dispatch_id: int
    cluster: str
    state: State
    dispatched: float
    accepted: float | None = None
    tried: float | None = None
    in_last_listing: bool = False
    missing: bool = False  # complete listings lack it
    last_listed: float | None = None
    accounting_queries: int = 0
    next_accounting_query: float = 0.0
    native_id: str | None = None
    intent: Intent | None = None
    target: str | None = None
    withdrawal_requested: float | None = None
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    manager_reason: str = ""
    node: str = ""
    cpu_seconds: float | None = None
    max_memory: int | None = None
    rejected: bool = False
    observed_at_dispatch: float = 0.0  # reading of its cluster's clock `watched` when it was sent
    yields_to: int | None = None
    restarts: int = 0
    has_started: bool = False
    fence: str = ""
    revoking: bool = False
    revoked: bool = False

    @property
    def settled(self) -> bool:
        """The last listing held it, and nobody wants anything of it."""
        return self.in_last_listing and self.intent is None and not self.missing

    @property
    def unstarted(self) -> bool:
        """Whether it can still be moved: what its manager has restarted waits, but has begun."""
        return self.state in UNSTARTED and not self.has_started

    @property
    def untried(self) -> bool:
        """Certainly not with the manager: the call has not been made."""
        return self.state is State.DISPATCHING and self.tried is None

    def accounting_query_due(self, now: float) -> bool:
        """Whether it is missing, and accounting is to be asked again."""
        return self.missing and now >= self.next_accounting_query

    def adjust_clock(self, step: float) -> None:
        """The wall clock went `by` seconds more than time has: see `Core`."""
        backward_step = min(step, 0.0)
        self.dispatched += backward_step
        self.next_accounting_query += step
        if self.accepted is not None:
            self.accepted += backward_step
        if self.last_listed is not None:
            self.last_listed += backward_step
        if self.tried is not None:
            self.tried += step
        if self.withdrawal_requested is not None:
            self.withdrawal_requested += step


class PastAttempt(msgspec.Struct, rename=STORED_FIELDS["PastAttempt"]):
    """An earlier sending of a task: where it went, whether it began. It may come back."""

    cluster: str
    has_started: bool = False
    fence: str = ""
    revoked: bool = False  # it can never begin, whatever its manager says
    requeued: bool = False  # the task is to run anew since: should it go on, it is ended again


class EndedTask(msgspec.Struct, rename=STORED_FIELDS["EndedTask"]):
    """What is remembered of a task that has ended, in case an attempt comes back.

    `attempt` is its last one's number, `past` are all of them.
    """

    state: State
    last_attempt: int
    past_attempts: dict[int, PastAttempt]


class Task(msgspec.Struct, rename=STORED_FIELDS["Task"]):
    """One task of a job that has not ended. `key` orders tasks that wait and are pulled.

    `classified` is its priority whatever the policy's highest is now.
    """

    job: Job
    index: int
    priority: int
    queue_key: float
    state: State = State.QUEUED
    reason: str = ""
    held: bool = False
    ended: float | None = None
    attempts: int = 0
    moves: int = 0
    target: str | None = None  # where a pull wants it
    attempt: Attempt | None = None
    rejected_by: set[str] = msgspec.field(default_factory=set)
    ignore_rejections_until: int = 0  # refusals of attempts up to this number count no more
    past_attempts: dict[int, PastAttempt] = msgspec.field(default_factory=dict)  # by sending
    task_id: TaskId = (0, 0)
    classified_priority: int = 0

    def __post_init__(self) -> None:
        self.task_id, self.classified_priority = (self.job.id, self.index), self.priority

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        return f"{self.job.id}_{self.index}" if self.job.array else str(self.job.id)

    @property
    def live_attempt(self) -> Attempt:
        """Its attempt, where it is certain that it has one."""
        assert self.attempt is not None, self
        return self.attempt


@dataclass(slots=True)
class TaskChange:
    """One line of a task's story. `attempt` 0: it has none."""

    job: int
    index: int
    attempt: int
    event: TaskEvent | None  # None: the reason changed, not the state
    before: State | None
    after: State
    cluster: str | None
    reason: str
    cause: str
