"""What a manager's listing and accounting say of jobs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from msgspec import structs

from metasched.model.cluster import ClusterInfo
from metasched.model.job import State
from metasched.model.stored_names import STORED_FIELDS


class JobStatus(msgspec.Struct, rename=STORED_FIELDS["JobStatus"]):
    """One task of ours as a manager lists it.

    `started` is None until it began, and stays None if it ended without ever having begun: that
    is the proof on which a moved job is sent again. `exit_code` is the payload's own (None if a
    signal ended it), `signal` the number of that signal; `word` the manager's own reason;
    `restarts` how often the manager has begun it anew by itself.
    `owner` is in site mode the account that the manager names: anybody can write a tag, so a row
    counts only if the task is that user's. `expected` is when the manager itself expects a task
    that waits to begin (epoch seconds), if it says so: rows that differ in it alone are equal.
    """

    tag: str
    task: int
    native_id: str
    state: State
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    manager_reason: str = ""
    node: str = ""
    cpu_seconds: float | None = None
    max_memory: int | None = None
    restarts: int = 0
    owner: str = ""
    expected: float | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobStatus) and (
            structs.astuple(self)[:-1] == structs.astuple(other)[:-1]
        )


@dataclass(frozen=True)
class Listing:
    """One complete bulk listing: every task of ours that the manager still knows, and `Facts`.

    The listing proves absence for the span `since`..`until`: whatever reached the manager in it
    would be in `rows`. (Slurm: since the controller's boot and no longer ago than MinJobAge;
    until `settle` seconds before the listing began, as a command of ours may still be under way.)
    `up_since` is when the manager last started (0: it keeps all that it takes over a restart).
    """

    taken: float
    since: float
    until: float
    rows: tuple[JobStatus, ...]
    info: ClusterInfo
    up_since: float = 0.0


class MissingTask(msgspec.Struct, rename=STORED_FIELDS["MissingTask"], frozen=True):
    """A task of ours that a complete listing lacks: intended at `sent`.

    `native_id` None: the manager never said that it took it. `accepted` is when it did. `user` is
    in site mode the job's owner: what others have marked is not ours.
    """

    tag: str
    task: int
    native_id: str | None
    dispatched: float
    accepted: float | None = None
    user: str = ""


@dataclass(frozen=True)
class TaskClaim:
    """What the payload of one task takes before it begins, in the folder `fence`."""

    fence: str
    tag: str
    task: int


class AccountingAnswer(msgspec.Struct, rename=STORED_FIELDS["AccountingAnswer"], frozen=True):
    """What a manager's accounting tells of missing tasks.

    `rows` have ended. `unstarted`, as (tag, task), never began and cannot begin any more: that is
    proved, not supposed. Of all others it tells nothing, or nothing yet.
    """

    rows: tuple[JobStatus, ...] = ()
    never_started: tuple[tuple[str, int], ...] = ()
