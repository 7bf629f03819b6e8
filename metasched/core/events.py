"""Events that the core receives, actions that it returns, and the outcome of a step. Pure.

`time` is when metasched learnt of an event (epoch seconds). Events are stored: replaying them with
a fresh core repeats every decision. Treat all events as read-only. The two most frequent events
are not frozen, since setting the fields of a frozen struct is slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from metasched.core.array_remainder import IndexRun, Remainder, RunChanges
from metasched.core.calendar_events import CalendarEvent
from metasched.core.dependency_status import TargetSummary
from metasched.core.reservations.events import ReservationAction, ReservationEvent
from metasched.core.strikes import Strike
from metasched.core.tasks import Attempt, EndedTask, PastAttempt, Task, TaskChange
from metasched.model.calendar import CalendarEntry
from metasched.model.cluster import Cluster, ClusterInfo
from metasched.model.fair_share import FairShareSettings, ForeignUse, ShareTree, ShareUse
from metasched.model.job import Job, State
from metasched.model.licence import Lease, LicenceCount, LicencePool, LicenceStatus, ReturnedLease
from metasched.model.limits import LimitChange, LimitScope, LimitSettings, LimitUse
from metasched.model.listing import ClaimEnd, JobStatus, MissingTask, TaskClaim
from metasched.model.refusal_scope import RefusalScope
from metasched.model.reservation import Reservation
from metasched.model.tuning import TuningChange, TuningState
from metasched.policies.classify import HeuristicContribution
from metasched.policies.eligible import Ineligibility
from metasched.policies.policy import Policy
from metasched.policies.shadow import Observation


class DaemonStarted(msgspec.Struct, frozen=True):
    """The daemon started or re-read its policy. The state of every cluster is unknown again."""

    time: float
    instance: str  # name of the database, part of every tag
    policy: Policy
    clusters: tuple[Cluster, ...]
    licence_count: int = 0  # number of different licences, if `pools` is None
    pools: tuple[LicencePool, ...] | None = None  # None: managers handle licences (simulations)
    # first dispatch id of each instance, oldest first; empty: `instance` has had all
    first_dispatches: Mapping[str, int] = msgspec.field(default_factory=dict)
    restored: bool = False  # the first start on a restored backup, or after the database went back
    went_back: str = ""  # how it was noticed that the database went back; for the record
    limits: LimitSettings = LimitSettings()
    fair_share: FairShareSettings | None = None  # None: users take turns
    policy_file: str = ""  # path of the policy file; "": the defaults
    policy_digest: str = ""  # SHA-256 of that file
    policy_owner: str = ""  # account that owns it, or activated it
    policy_version: int = 0  # 0: it has none, as in simulations
    policy_cause: str = ""  # how this version came into force, and why; for the record
    # of a daemon that re-read its configuration: who asked for it, and what changed; for the record
    by: str = ""
    config_changes: tuple[str, ...] = ()
    # until when calls of the replaced daemon may still reach a manager; 0: none
    former_acts_until: float = 0.0


class JobSubmitted(msgspec.Struct):
    """A job was accepted."""

    time: float
    job: Job
    target_summaries: tuple[TargetSummary, ...] = ()  # of the jobs that it depends on


class DispatchStarted(msgspec.Struct, frozen=True):
    """A dispatch may reach its manager from now on; stored just before the call."""

    time: float
    job: int
    dispatch_id: int
    fence: str = ""  # folder of its claims, with an unguessable name; "": none


class DispatchAccepted(msgspec.Struct, frozen=True):
    """The manager accepted a dispatch."""

    time: float
    job: int
    dispatch_id: int
    native_ids: dict[int, str]  # by task index
    access: str = ""  # interface that was used, if the adapter has several
    untried: tuple[int, ...] = ()  # indices of tasks that certainly did not reach the manager
    uncertain: tuple[int, ...] = ()  # indices of tasks for which there was no answer
    reason: str = ""  # why tasks are untried or uncertain
    sentence: str = ""  # of uncertain tasks, as in `DispatchUncertain`


class DispatchRejected(msgspec.Struct, frozen=True):
    """The manager certainly did not accept a dispatch."""

    time: float
    job: int
    dispatch_id: int
    reason: str
    retry_later: bool = False  # the manager is full and may accept it later
    scope: RefusalScope = "cluster"  # of `retry_later`: the jobs for which the manager is full


class DispatchUncertain(msgspec.Struct, frozen=True):
    """The result of a dispatch is unknown; listings will decide."""

    time: float
    job: int
    dispatch_id: int
    reason: str
    sentence: str = ""  # what a program said that ended by itself, see `Unreachable`


class DispatchSkipped(msgspec.Struct, frozen=True):
    """Dispatches were dropped before the call: their cluster is unreachable or full."""

    time: float
    dispatches: tuple[tuple[int, int], ...]  # (job, dispatch id)


class ListingReceived(msgspec.Struct):
    """A complete listing arrived, as the difference from the previous listing.

    It proves the absence of tasks that were dispatched in `since`..`until` and are not listed. No
    command that ended by `until` can arrive any more.
    """

    time: float
    cluster: str
    rows: tuple[JobStatus, ...] = ()  # new and changed rows
    vanished: tuple[tuple[str, int], ...] = ()  # (tag, index) of rows that are gone
    info: ClusterInfo | None = None  # None: unchanged
    full: bool = False  # `rows` are all rows: first listing of a worker, or after a failure
    since: float = 0.0  # epoch seconds
    until: float = 0.0  # epoch seconds
    previous_taken: float = 0.0  # epoch seconds; time of the previous listing, 0: there is none
    up_since: float = 0.0  # epoch seconds; last start of the manager
    # (job, dispatch id) of dispatches whose commands were under way during the poll: the listing
    # proves nothing about them
    in_flight: tuple[tuple[int, int], ...] = ()
    # (tag, index) of all rows that are set aside: present, with a status that cannot be used.
    # Index -1: it may be any task of the dispatch; tag "": any task of this instance
    quarantined: tuple[tuple[str, int], ...] = ()
    # position after the ends of tasks that are known for good: they are not listed again.
    # "": each full listing repeats all ends
    cursor: str = ""
    partial: bool = False  # the first ends of a listing whose rest follows; it proves nothing
    # (tag, index, defect) of the first rows that this listing sets aside; for the audit
    defects: tuple[tuple[str, int, str], ...] = ()
    # (tag, index) of tasks that are listed as cancelled, or gone, before the daemon began to
    # withdraw them: another program has cancelled them
    not_withdrawn: tuple[tuple[str, int], ...] = ()
    # (job, index, task with its listed attempts) of rows of which the core remembers nothing, from
    # the database
    looked_up: tuple[tuple[int, int, EndedTask], ...] = ()


class AccountingReceived(msgspec.Struct, frozen=True):
    """A manager's accounting answered a query about missing tasks; see `AccountingAnswer`."""

    time: float
    cluster: str
    rows: tuple[JobStatus, ...] = ()
    never_started: tuple[tuple[str, int], ...] = ()  # (tag, index)


class ClaimsRevoked(msgspec.Struct, frozen=True):
    """The daemon tried to revoke claims."""

    time: float
    tasks: tuple[tuple[str, int], ...] = ()  # (tag, index); revoked, can never start
    already_started: tuple[tuple[str, int], ...] = ()  # (tag, index); claimed by their payloads
    # (tag, index, end); recorded by payloads in their claims
    ends: tuple[tuple[str, int, ClaimEnd], ...] = ()
    unanswered: tuple[tuple[str, int], ...] = ()  # (tag, index); asked without a result


class ClusterUnreachable(msgspec.Struct, frozen=True):
    """A manager does not answer."""

    time: float
    cluster: str
    reason: str


UserAction = Literal["cancel", "hold", "release", "requeue", "lost", "ran"]


class UserRequested(msgspec.Struct, frozen=True):
    """A user requested an action on tasks of a job.

    By `lost` and `ran` an operator resolves tasks that are `unknown`.
    """

    time: float
    action: UserAction
    job: int
    indices: tuple[int, ...] | None = None  # None: all tasks
    by: str = ""  # name of the user
    exit_code: int | None = None  # of `ran`, if the operator knows it
    with_remainder: bool = False  # besides `indices`, all tasks of the array's remainder
    owner: str = ""  # user of the job; "": not recorded


class RequeuedTask(msgspec.Struct, frozen=True):
    """An ended task that shall run again, as stored in the database."""

    index: int
    state: State
    attempts: int  # number of attempts so far


class JobRequeued(msgspec.Struct, frozen=True):
    """A user requeued ended tasks. The core may have forgotten the job, which is included."""

    time: float
    job: Job
    priority: int
    last_dispatch: int  # highest dispatch id of the job
    tasks: tuple[RequeuedTask, ...]
    by: str = ""
    target_summaries: tuple[TargetSummary, ...] = ()  # as in `JobSubmitted`


class JobModified(msgspec.Struct, frozen=True):
    """A user modified a job."""

    time: float
    job: Job  # with the changes
    change_summary: str  # for the story
    redispatch: bool  # pending tasks must be withdrawn and dispatched again
    priority: int | None = None  # None: as classified
    by: str = ""


class ClusterDrained(msgspec.Struct, frozen=True):
    """An operator drained a cluster: it gets no new tasks."""

    time: float
    cluster: str
    by: str = ""
    reason: str = ""
    keep_pending: bool = False  # pending tasks stay there
    entry: str = ""  # of the calendar, which drained it; "": an operator did

    def __str__(self) -> str:
        who = self.by or (self.entry and f"calendar entry {self.entry}")
        by_user = f" by {who}" if who else ""
        return f"drained{by_user}{f': {self.reason}' if self.reason else ''}"


class ClusterResumed(msgspec.Struct, frozen=True):
    """An operator resumed a drained cluster."""

    time: float
    cluster: str
    by: str = ""


class LicencesCounted(msgspec.Struct, frozen=True):
    """Licence servers reported counts; the counts of other licences are unchanged."""

    time: float
    counts: tuple[LicenceCount, ...]


class LicenceSet(msgspec.Struct, frozen=True):
    """An operator set the total of a licence."""

    time: float
    name: str
    total: int | None  # None: as configured
    by: str = ""


class LicencesReleased(msgspec.Struct, frozen=True):
    """An operator released the leases of tasks that are `unknown`."""

    time: float
    job: int
    indices: tuple[int, ...] | None = None  # None: all tasks
    by: str = ""
    owner: str = ""  # user of the job; "": not recorded


class UseReported(msgspec.Struct, frozen=True):
    """A manager's accounting reported ended jobs that metasched did not send, each job once."""

    time: float
    cluster: str
    cursor: str  # position after these jobs in the accounting, stored with their use
    uses: tuple[ForeignUse, ...] = ()


class SharesReported(msgspec.Struct, frozen=True):
    """A manager reported its tree of shares, which is in force if the site says so."""

    time: float
    cluster: str
    tree: ShareTree


class StartsForecast(msgspec.Struct, frozen=True):
    """Forward runs estimated starts of further jobs, behind all others: `load = "forecast"`."""

    time: float
    made: float  # epoch seconds; time of the snapshot
    limits: tuple[float, ...]  # seconds, ascending; of the jobs that were tried
    # median wait in seconds after `made`, by cluster and processors, for each of `limits`; None:
    # beyond the forward runs
    waits: dict[str, dict[int, tuple[float | None, ...]]]
    free_cpus: dict[str, int]  # processors that were free in the snapshot, by cluster


class TimerExpired(msgspec.Struct, frozen=True):
    """The time `Core.next_due` has come."""

    time: float


class ClockSet(msgspec.Struct, frozen=True):
    """The wall clock was set."""

    time: float
    step: float  # seconds by which it advanced more than time did since the last event


CoreEvent = (
    DaemonStarted
    | ClockSet
    | JobSubmitted
    | DispatchStarted
    | DispatchAccepted
    | DispatchRejected
    | DispatchUncertain
    | DispatchSkipped
    | ListingReceived
    | AccountingReceived
    | ClaimsRevoked
    | ClusterUnreachable
    | UserRequested
    | JobRequeued
    | JobModified
    | ClusterDrained
    | ClusterResumed
    | LicencesCounted
    | LicenceSet
    | LicencesReleased
    | UseReported
    | SharesReported
    | StartsForecast
    | ReservationEvent
    | CalendarEvent
    | TimerExpired
)


# Actions


class Dispatch(NamedTuple):
    """Submit tasks of a job to a cluster under a tag."""

    job: int
    dispatch_id: int
    cluster: str
    indices: tuple[int, ...]


@dataclass(frozen=True)
class Withdraw:
    """Cancel tasks of a dispatch in their manager."""

    job: int
    dispatch_id: int
    cluster: str
    native_ids: dict[int, str | None]  # by task index
    only_pending: bool  # leave started tasks alone


@dataclass(frozen=True)
class QueryAccounting:
    """Query a manager's accounting about tasks that are missing from its listing."""

    cluster: str
    missing_tasks: tuple[MissingTask, ...]


@dataclass(frozen=True)
class Revoke:
    """Take the claims of tasks before their payloads do, so that these can never start.

    Of payloads that have started, read the ends that their claims record.
    """

    cluster: str
    claims: tuple[TaskClaim, ...]


Action = Dispatch | Withdraw | QueryAccounting | Revoke


@dataclass(slots=True)
class Outcome:
    """The result of a step: records to store, and actions to execute."""

    changes: list[TaskChange] = field(default_factory=list)  # new lines of stories
    tasks: dict[tuple[int, int], Task] = field(default_factory=dict)  # changed, by (job, index)
    # tasks that have left the remainder of their array, by (job, index)
    split_tasks: set[tuple[int, int]] = field(default_factory=set)
    # changed remainders of arrays, by job; None: it has no task any more
    remainders: dict[int, Remainder | None] = field(default_factory=dict)
    run_changes: dict[int, RunChanges] = field(default_factory=dict)  # of `remainders`, by job
    cancelled_runs: list[tuple[int, IndexRun]] = field(default_factory=list)  # job, tasks
    # attempts that ended in this step, with their tasks; a task refers to its new attempt, if any
    closed_attempts: list[tuple[Task, Attempt]] = field(default_factory=list)
    # changed attempts of earlier dispatches, by (job, index, dispatch id)
    past_attempts: dict[tuple[int, int, int], PastAttempt] = field(default_factory=dict)
    # changed strikes, by job and cluster; None: forgotten
    strikes: dict[tuple[int, str], Strike | None] = field(default_factory=dict)
    # clusters that began to refuse all jobs, with their words, or ("") that have accepted one
    refusing: dict[str, str] = field(default_factory=dict)
    leases: list[Lease | ReturnedLease] = field(default_factory=list)  # in order
    licence_statuses: dict[str, LicenceStatus] = field(default_factory=dict)  # changed, by name
    reservations: dict[int, Reservation] = field(default_factory=dict)  # new or changed, by id
    reservation_actions: list[ReservationAction] = field(default_factory=list)
    limit_uses: list[LimitUse] | None = None  # all, after a start; None: only changes
    limit_changes: dict[tuple[LimitScope, str], LimitChange] = field(
        default_factory=dict
    )  # after `limit_uses`; by scope and resource
    # changed decayed use by (account, user); None: forgotten
    share_uses: dict[tuple[str, str], ShareUse | None] = field(default_factory=dict)
    foreign_uses: tuple[ForeignUse, ...] = ()  # as reported, with metasched's names of accounts
    # changed entries of the calendar, by id; None: removed
    calendar: dict[int, CalendarEntry | None] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)  # for the log
    actions: list[Action] = field(default_factory=list)
    # state of the self-optimising classification; None: unchanged
    tuning: list[TuningState] | None = None
    tuning_changes: list[TuningChange] = field(default_factory=list)
    priority: int = 0  # of the event's job, if it is new or modified
    priority_parts: list[HeuristicContribution] = field(default_factory=list)  # of that job
    # for a candidate beside the policy in force, see `SchedulerState.observes`; not stored
    observed: list[Observation] = field(default_factory=list)
    unobserved: int = 0  # placements above the number that a step hands on


@dataclass(frozen=True)
class ClusterAssessment:
    """Assessment of a cluster for a task."""

    cluster: str
    obstacle: Ineligibility | None  # None: the task can be dispatched there
    load: float  # seconds of the whole cluster, at the task's priority
    pending_jobs: int  # at the task's priority
    account: str | None  # that is or would be charged for the task; None: unknown
