"""What the core is told and what it answers: events, actions, the outcome of a step. Pure.

Events carry the time at which a thing was learnt (epoch seconds). They are stored as they are,
and stepping a fresh core through them gives every decision again. Nobody changes one; the two
that are most of all are not frozen, since the fields of a frozen class are set one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from metasched.core.dependency_status import TargetSummary
from metasched.core.reservations.events import ReservationAction, ReservationEvent
from metasched.core.tasks import Attempt, PastAttempt, Task, TaskChange
from metasched.model.cluster import Cluster, ClusterInfo
from metasched.model.job import Job, State
from metasched.model.licence import Lease, LicenceCount, LicencePool, LicenceStatus, ReturnedLease
from metasched.model.listing import JobStatus, MissingTask, TaskClaim
from metasched.model.reservation import Reservation
from metasched.model.stored_names import STORED_FIELDS
from metasched.policies.classify import HeuristicContribution
from metasched.policies.eligible import Ineligibility
from metasched.policies.policy import Policy


class DaemonStarted(msgspec.Struct, rename=STORED_FIELDS["DaemonStarted"], frozen=True):
    """The daemon started, or re-read its policy: nothing is known of any cluster any more.

    `pools` None: licences are the managers' own affair (simulations), of which there are `licences`
    different ones.
    """

    time: float
    instance: str
    policy: Policy
    clusters: tuple[Cluster, ...]
    licence_count: int = 0
    pools: tuple[LicencePool, ...] | None = None


class JobSubmitted(msgspec.Struct, rename=STORED_FIELDS["JobSubmitted"]):
    """A job was accepted; `fates` tell what had become of the jobs that it depends on."""

    time: float
    job: Job
    target_summaries: tuple[TargetSummary, ...] = ()


class DispatchStarted(msgspec.Struct, rename=STORED_FIELDS["DispatchStarted"], frozen=True):
    """From now on a sending may be with its manager: stored just before the call is made."""

    time: float
    job: int
    dispatch_id: int


class DispatchAccepted(msgspec.Struct, rename=STORED_FIELDS["DispatchAccepted"], frozen=True):
    """The manager took a sending; `natives` maps task index to native id.

    `access` is by what it was told, where there is a choice.
    """

    time: float
    job: int
    dispatch_id: int
    native_ids: dict[int, str]
    access: str = ""


class DispatchRejected(msgspec.Struct, rename=STORED_FIELDS["DispatchRejected"], frozen=True):
    """The manager certainly did not take a sending; `again`: it may take it later."""

    time: float
    job: int
    dispatch_id: int
    reason: str
    retry_later: bool = False


class DispatchUncertain(msgspec.Struct, rename=STORED_FIELDS["DispatchUncertain"], frozen=True):
    """No answer to a sending: perhaps it is there. Listings will tell."""

    time: float
    job: int
    dispatch_id: int
    reason: str


class DispatchSkipped(msgspec.Struct, rename=STORED_FIELDS["DispatchSkipped"], frozen=True):
    """Sendings, as (job, sending), that were never tried: their cluster is silent or full."""

    time: float
    dispatches: tuple[tuple[int, int], ...]


class ListingReceived(msgspec.Struct, rename=STORED_FIELDS["ListingReceived"]):
    """What a complete listing told: rows that are new or changed, rows gone since the last one.

    `full`: the rows are all there are (the first listing of a worker, or after a silence).
    `facts` None: as before. `since`..`until`: absence is proved for what was sent in it.
    `before` is when the listing was taken that the news is relative to, 0 if none is known;
    `up_since` when the manager last started.
    """

    time: float
    cluster: str
    rows: tuple[JobStatus, ...] = ()
    vanished: tuple[tuple[str, int], ...] = ()
    info: ClusterInfo | None = None
    full: bool = False
    since: float = 0.0
    until: float = 0.0
    previous_taken: float = 0.0
    up_since: float = 0.0


class AccountingReceived(msgspec.Struct, rename=STORED_FIELDS["AccountingReceived"], frozen=True):
    """What the accounting of a cluster's manager told of missing tasks (see `model.Trace`)."""

    time: float
    cluster: str
    rows: tuple[JobStatus, ...] = ()
    never_started: tuple[tuple[str, int], ...] = ()


class ClaimsRevoked(msgspec.Struct, rename=STORED_FIELDS["ClaimsRevoked"], frozen=True):
    """What became of claims that we wanted to revoke.

    Those of `tasks`, as (tag, task), can never begin now; those `begun` have been made before.
    """

    time: float
    tasks: tuple[tuple[str, int], ...] = ()
    already_started: tuple[tuple[str, int], ...] = ()


class ClusterUnreachable(msgspec.Struct, frozen=True):
    time: float
    cluster: str
    reason: str


UserAction = Literal["cancel", "hold", "release", "requeue", "lost", "ran"]


class UserRequested(msgspec.Struct, rename=STORED_FIELDS["UserRequested"], frozen=True):
    """A user's wish for some tasks: `indices` None = all of the job.

    `lost` and `ran` are an operator's word on a task that is `unknown`.
    """

    time: float
    action: UserAction
    job: int
    indices: tuple[int, ...] | None = None
    by: str = ""


class RequeuedTask(msgspec.Struct, frozen=True):
    """An ended task that is to run again, as the database knows it."""

    index: int
    state: State
    attempts: int


class JobRequeued(msgspec.Struct, rename=STORED_FIELDS["JobRequeued"], frozen=True):
    """A user wants ended tasks to run again; what the core has forgotten of them comes along."""

    time: float
    job: Job
    priority: int
    last_dispatch: int
    tasks: tuple[RequeuedTask, ...]
    by: str = ""
    target_summaries: tuple[TargetSummary, ...] = ()  # as in `Submitted`


class JobModified(msgspec.Struct, rename=STORED_FIELDS["JobModified"], frozen=True):
    """A user changed what a job asks for: `job` is how it is sent from now on.

    `what` tells the changes; `resend`: a manager that has it already must get it anew;
    `priority` None: as classified.
    """

    time: float
    job: Job
    change_summary: str
    redispatch: bool
    priority: int | None = None
    by: str = ""


class ClusterDrained(msgspec.Struct, frozen=True):
    """An operator keeps new work from a cluster; `keep_pending`: what waits there may stay."""

    time: float
    cluster: str
    by: str = ""
    reason: str = ""
    keep_pending: bool = False

    def __str__(self) -> str:
        by_user = f" by {self.by}" if self.by else ""
        return f"drained{by_user}{f': {self.reason}' if self.reason else ''}"


class ClusterResumed(msgspec.Struct, frozen=True):
    """An operator lets a drained cluster have work again."""

    time: float
    cluster: str
    by: str = ""


class LicencesCounted(msgspec.Struct, frozen=True):
    """What servers of licences told; of those that they do not name nothing new is known."""

    time: float
    counts: tuple[LicenceCount, ...]


class LicenceSet(msgspec.Struct, frozen=True):
    """An operator says how many of a licence there are; `total` None: as configured again."""

    time: float
    name: str
    total: int | None
    by: str = ""


class LicencesReleased(msgspec.Struct, frozen=True):
    """An operator takes back the licences of tasks of which nobody knows whether they run.

    `indices` None: of all such tasks of the job.
    """

    time: float
    job: int
    indices: tuple[int, ...] | None = None
    by: str = ""


class TimerExpired(msgspec.Struct, frozen=True):
    """Time has passed; begin times may have come."""

    time: float


class ClockSet(msgspec.Struct, rename=STORED_FIELDS["ClockSet"], frozen=True):
    """The wall clock was set: since the last event it has gone `by` seconds more than time has."""

    time: float
    step: float


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
    | ReservationEvent
    | TimerExpired
)


# What comes out.


class Dispatch(NamedTuple):
    job: int
    dispatch_id: int
    cluster: str
    indices: tuple[int, ...]


@dataclass(frozen=True)
class Withdraw:
    """Ask a manager to end a sending's tasks; `unstarted`: only if they have not begun."""

    job: int
    dispatch_id: int
    cluster: str
    native_ids: dict[int, str | None]
    only_pending: bool


@dataclass(frozen=True)
class QueryAccounting:
    """Ask a manager's accounting what has become of tasks that its listing lacks."""

    cluster: str
    missing_tasks: tuple[MissingTask, ...]


@dataclass(frozen=True)
class Revoke:
    """Take the claims of tasks in their payloads' stead, so that they can never begin."""

    cluster: str
    claims: tuple[TaskClaim, ...]


Action = Dispatch | Withdraw | QueryAccounting | Revoke


@dataclass(slots=True)
class Outcome:
    """The result of a step: the story's new lines, the tasks to store, what to do.

    `closed` are attempts that ended in this step, with the task they belonged to; a task's new
    attempt, if any, is in the task itself. `past` are sendings of the past of which something new
    is known, by job, index and sending. `leases` are licences taken and given back, in that order,
    `standings` what is new of licences, by name, `reservations` those that are new or have changed.
    `bindings` are what managers are to be told of them. `parts` made the priority of a new job,
    `warnings` are for the site's log.
    """

    changes: list[TaskChange] = field(default_factory=list)
    tasks: dict[tuple[int, int], Task] = field(default_factory=dict)
    closed_attempts: list[tuple[Task, Attempt]] = field(default_factory=list)
    past_attempts: dict[tuple[int, int, int], PastAttempt] = field(default_factory=dict)
    leases: list[Lease | ReturnedLease] = field(default_factory=list)
    licence_statuses: dict[str, LicenceStatus] = field(default_factory=dict)
    reservations: dict[int, Reservation] = field(default_factory=dict)
    reservation_actions: list[ReservationAction] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    priority_parts: list[HeuristicContribution] = field(default_factory=list)


@dataclass(frozen=True)
class ClusterAssessment:
    """What was thought of one cluster for a task; `load` in seconds of the whole cluster."""

    cluster: str
    obstacle: Ineligibility | None
    load: float
    pending_jobs: int
