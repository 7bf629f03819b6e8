"""A task of the core: its attempts, what is remembered of them, a line of its story. Pure.

The core makes these at every step and nobody else changes them, so they are of plain classes with
slots: the fields of a frozen one are set one by one, and nine of them take three times as long.
mypyc does not compile them: checkpoints of the database read tasks back by their annotations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from metasched.core.transitions import UNSTARTED, Event
from metasched.model.job import Job, State

Place = tuple[int, int]  # of a task: job, index


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
BACK = frozenset({Intent.HOLD, Intent.PULL, Intent.RECALL, Intent.YIELD})


class Attempt(msgspec.Struct):
    """One try in one manager. `sent` is the time of the intent, `tried` of a doubtful try.

    `listed` is when the last listing was taken that held it before it was missed; missed, it is
    looked for in the manager's accounting again at `look_at`, after `looks` times.
    `rival` is the sending that it yields to, `restarts` how many its manager tells, `begun`
    whether the payload has ever begun under this sending. Its payload claims it in the folder
    `fence`; `revoking`: we may have taken that claim; `revoked`: we have.
    """

    number: int
    sending: int
    cluster: str
    state: State
    sent: float
    accepted: float | None = None
    tried: float | None = None
    seen: bool = False
    given_up: bool = False  # complete listings lack it
    listed: float | None = None
    looks: int = 0
    look_at: float = 0.0
    native_id: str | None = None
    intent: Intent | None = None
    target: str | None = None
    asked: float | None = None
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    word: str = ""
    node: str = ""
    cpu_seconds: float | None = None
    max_memory: int | None = None
    refused: bool = False
    watched: float = 0.0  # reading of its cluster's clock `watched` when it was sent
    rival: int | None = None
    restarts: int = 0
    begun: bool = False
    fence: str = ""
    revoking: bool = False
    revoked: bool = False

    @property
    def calm(self) -> bool:
        """The last listing held it, and nobody wants anything of it."""
        return self.seen and self.intent is None and not self.given_up

    @property
    def unstarted(self) -> bool:
        """Whether it can still be moved: what its manager has restarted waits, but has begun."""
        return self.state in UNSTARTED and not self.begun

    @property
    def untried(self) -> bool:
        """Certainly not with the manager: the call has not been made."""
        return self.state is State.DISPATCHING and self.tried is None

    def look_due(self, now: float) -> bool:
        """Whether it is missing, and accounting is to be asked again."""
        return self.given_up and now >= self.look_at

    def clock_set(self, by: float) -> None:
        """The wall clock went `by` seconds more than time has: see `Core`."""
        back = min(by, 0.0)
        self.sent += back
        self.look_at += by
        if self.accepted is not None:
            self.accepted += back
        if self.listed is not None:
            self.listed += back
        if self.tried is not None:
            self.tried += by
        if self.asked is not None:
            self.asked += by


class Past(msgspec.Struct):
    """An earlier sending of a task: where it went, whether it began. It may come back."""

    cluster: str
    began: bool = False
    fence: str = ""
    revoked: bool = False  # it can never begin, whatever its manager says
    requeued: bool = False  # the task is to run anew since: should it go on, it is ended again


class Ended(msgspec.Struct):
    """What is remembered of a task that has ended, in case an attempt comes back.

    `attempt` is its last one's number, `past` are all of them.
    """

    state: State
    attempt: int
    past: dict[int, Past]


class Task(msgspec.Struct):
    """One task of a job that has not ended. `key` orders tasks that wait and are pulled.

    `classified` is its priority whatever the policy's highest is now.
    """

    job: Job
    index: int
    priority: int
    key: float
    state: State = State.QUEUED
    reason: str = ""
    held: bool = False
    ended: float | None = None
    attempts: int = 0
    moves: int = 0
    target: str | None = None  # where a pull wants it
    attempt: Attempt | None = None
    refused: set[str] = msgspec.field(default_factory=set)
    forgiven: int = 0  # refusals of attempts up to this number count no more
    past: dict[int, Past] = msgspec.field(default_factory=dict)  # by sending
    place: Place = (0, 0)
    classified: int = 0

    def __post_init__(self) -> None:
        self.place, self.classified = (self.job.id, self.index), self.priority

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        return f"{self.job.id}_{self.index}" if self.job.array else str(self.job.id)

    @property
    def live(self) -> Attempt:
        """Its attempt, where it is certain that it has one."""
        assert self.attempt is not None, self
        return self.attempt


@dataclass(slots=True)
class Change:
    """One line of a task's story. `attempt` 0: it has none."""

    job: int
    index: int
    attempt: int
    event: Event | None  # None: the reason changed, not the state
    before: State | None
    after: State
    cluster: str | None
    reason: str
    cause: str
