"""Messages between the daemon and a worker process: frames of JSON."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import msgspec

from metasched.adapters.base import Submission, Withdrawal
from metasched.model.cluster import Cluster, ClusterInfo
from metasched.model.fair_share import ShareTree
from metasched.model.foreign_use import UseAnswer, UseQuery
from metasched.model.job_usage import EndedRun, RunUsage
from metasched.model.listing import (
    AccountingAnswer,
    Alteration,
    ClaimEnd,
    JobStatus,
    KnownJob,
    ListedQueue,
    MissingTask,
    PolicyExclusions,
    QuarantinedRow,
    TaskClaim,
)
from metasched.model.refusal_scope import RefusalScope
from metasched.model.survey import ReservationSpec, Survey

# Version of these messages. A cluster may have a Python of its own: a worker of another version is
# refused, and refuses the daemon.
WORKER_PROTOCOL = 4
MAX_REPLY_BYTES = 2**28  # of a worker


class WorkerBoot(msgspec.Struct, frozen=True):
    """The first message: the adapter to host."""

    adapter: str  # name of an entry point
    cluster: Cluster
    options: dict[str, Any]  # of the adapter
    instance: str  # of the daemon, part of every tag
    folder: str  # state of this cluster
    launcher: str = ""  # socket of the launcher in site mode
    protocol: int = 0  # of the daemon; 0: not sent
    former_instances: tuple[str, ...] = ()  # the database is a restored backup of theirs
    # inherited descriptor of `ActiveUntil`; None: no other daemon can become active
    active_until: int | None = None


FIRST_CURSOR = "0"  # of `WorkerCall`: no end is stored

_numbers = itertools.count(1)


class WorkerCall(msgspec.Struct, frozen=True):
    """A request to the worker; `operation` determines which other fields are used.

    Calls of one owner are executed in the order in which they were written, and calls without an
    owner among themselves. Calls of different owners run side by side.
    """

    # `use`, `shares` and `usage` run beside all other calls; only workers that report a
    # `use_source` have them
    operation: Literal[
        "submit",
        "withdraw",
        "poll",
        "accounting",
        "revoke",
        "survey",
        "reserve",
        "unreserve",
        "use",
        "shares",
        "usage",
    ]
    submission: Submission | None = None  # of submit
    # Of submit: the call was written before the reply to the previous submit. It is not executed
    # if the manager accepts no submissions for now.
    chained: bool = False
    withdrawals: tuple[Withdrawal, ...] = ()  # of withdraw
    full: bool = False  # of poll: report the whole listing, not the changes
    # of poll: the cursor behind the stored ends of tasks, where a whole listing begins;
    # None: no ends are stored, each listing has them all
    cursor: str | None = None
    # of poll: the jobs of live attempts that the last delta did not list
    known: tuple[KnownJob, ...] = ()
    # of poll: `Adapter.update_licence_demand`
    criticality: dict[str, float] = msgspec.field(default_factory=dict)
    missing: tuple[MissingTask, ...] = ()  # of accounting
    claims: tuple[TaskClaim, ...] = ()  # of revoke
    reservation: ReservationSpec | None = None  # of reserve
    reservation_name: str = ""  # of unreserve
    use_query: UseQuery | None = None  # of use
    ended: tuple[EndedRun, ...] = ()  # of usage
    # repeated in the reply; unique in the daemon's process
    number: int = msgspec.field(default_factory=_numbers.__next__)
    # site mode, of submit and withdraw: user whose processes the call may wait for
    owner: str = ""
    # seconds that it may wait for processes of its owner; of use, shares, usage: for all commands
    time_limit: float | None = None


class ListingDelta(msgspec.Struct, frozen=True):
    """The changes since the previous listing. Times are epoch seconds, see `Listing`."""

    taken: float
    since: float
    # A command that ended by then without an answer is in the listing, or arrives no more. 0: none.
    until: float
    rows: tuple[JobStatus, ...] = ()  # new or changed
    vanished: tuple[tuple[str, int, str], ...] = ()  # tag, task, owner
    info: ClusterInfo | None = None  # None: unchanged
    full: bool = False  # `rows` is the whole listing
    up_since: float = 0.0
    # changed start times that the manager expects: tag, task, owner, start or None
    expected_starts: tuple[tuple[str, int, str, float | None], ...] = ()
    quarantined: tuple[QuarantinedRow, ...] = ()  # all rows that are set aside now
    cursor: str = ""  # `Listing.cursor`; an ended task before it never vanishes
    partial: bool = False  # `rows` are the first ends of a listing whose rest follows
    queue: ListedQueue | None = None  # None: unchanged, or its order is unknown
    alterations: tuple[Alteration, ...] = ()  # found in this listing, the first of each kind


class WorkerReply(msgspec.Struct, frozen=True):
    """The reply to a call."""

    # "": success; "untried": a chained submit that was not executed; "partial": a submit that
    # stopped, see `PartlySubmitted`
    error: Literal["", "refused", "unreachable", "defect", "untried", "partial"] = ""
    reason: str = ""  # of the error
    retry_later: bool = False  # of "refused": the manager accepts no such submissions for now
    scope: RefusalScope = "cluster"  # of `retry_later`
    # of "unreachable" and "partial": what its program said that ended by itself, see `Unreachable`
    sentence: str = ""
    site_fault: bool = False  # of "unreachable": certainly not executed, see `SiteFault`
    native_ids: dict[int, str] = msgspec.field(default_factory=dict)  # by task index
    untried: tuple[int, ...] = ()  # of "partial": tasks that are certainly not queued
    delta: ListingDelta | None = None
    accounting: AccountingAnswer | None = None
    survey: Survey | None = None
    use: UseAnswer | None = None
    shares: ShareTree | None = None
    usage: dict[int, RunUsage] = msgspec.field(default_factory=dict)  # by position in `ended`
    revoked: dict[int, bool] = msgspec.field(default_factory=dict)  # by position in `claims`
    # of revoke, by position in `claims`: ends that the claims record
    ends: dict[int, ClaimEnd] = msgspec.field(default_factory=dict)
    access: str = ""  # how the adapter talks to its manager, if it has a choice
    exclusions: PolicyExclusions | None = None  # `Adapter.exclusions`
    number: int = 0  # of the call
    protocol: int = 0  # of the worker; 0: not sent
