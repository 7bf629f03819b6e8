"""What the core is told and what it answers: events, actions, the outcome of a step. Pure.

Events carry the time at which a thing was learnt (epoch seconds). They are stored as they are,
and stepping a fresh core through them gives every decision again. Nobody changes one; the two
that are most of all are not frozen, since the fields of a frozen class are set one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from metasched.core.reservations.events import ReservationAction, ReservationEvent
from metasched.core.tasks import Attempt, Change, Past, Task
from metasched.model.cluster import Cluster, Facts
from metasched.model.dependencies import Fate
from metasched.model.job import Job, State
from metasched.model.licence import GivenBack, Lease, LicenceCount, LicencePool, Standing
from metasched.model.listing import Claim, Missing, Row
from metasched.model.reservation import Reservation
from metasched.policies.classify import Part
from metasched.policies.eligible import Unfit
from metasched.policies.policy import Policy


class Booted(msgspec.Struct, frozen=True):
    """The daemon started, or re-read its policy: nothing is known of any cluster any more.

    `pools` None: licences are the managers' own affair (simulations), of which there are `licences`
    different ones.
    """

    time: float
    instance: str
    policy: Policy
    clusters: tuple[Cluster, ...]
    licences: int = 0
    pools: tuple[LicencePool, ...] | None = None


class Submitted(msgspec.Struct):
    """A job was accepted; `fates` tell what had become of the jobs that it depends on."""

    time: float
    job: Job
    fates: tuple[Fate, ...] = ()


class Tried(msgspec.Struct, frozen=True):
    """From now on a sending may be with its manager: stored just before the call is made."""

    time: float
    job: int
    sending: int


class Accepted(msgspec.Struct, frozen=True):
    """The manager took a sending; `natives` maps task index to native id.

    `access` is by what it was told, where there is a choice.
    """

    time: float
    job: int
    sending: int
    natives: dict[int, str]
    access: str = ""


class Declined(msgspec.Struct, frozen=True):
    """The manager certainly did not take a sending; `again`: it may take it later."""

    time: float
    job: int
    sending: int
    reason: str
    again: bool = False


class Unsure(msgspec.Struct, frozen=True):
    """No answer to a sending: perhaps it is there. Listings will tell."""

    time: float
    job: int
    sending: int
    reason: str


class Returned(msgspec.Struct, frozen=True):
    """Sendings, as (job, sending), that were never tried: their cluster is silent or full."""

    time: float
    sendings: tuple[tuple[int, int], ...]


class Seen(msgspec.Struct):
    """What a complete listing told: rows that are new or changed, rows gone since the last one.

    `full`: the rows are all there are (the first listing of a worker, or after a silence).
    `facts` None: as before. `since`..`until`: absence is proved for what was sent in it.
    `before` is when the listing was taken that the news is relative to, 0 if none is known;
    `up_since` when the manager last started.
    """

    time: float
    cluster: str
    rows: tuple[Row, ...] = ()
    vanished: tuple[tuple[str, int], ...] = ()
    facts: Facts | None = None
    full: bool = False
    since: float = 0.0
    until: float = 0.0
    before: float = 0.0
    up_since: float = 0.0


class Traced(msgspec.Struct, frozen=True):
    """What the accounting of a cluster's manager told of missing tasks (see `model.Trace`)."""

    time: float
    cluster: str
    rows: tuple[Row, ...] = ()
    unstarted: tuple[tuple[str, int], ...] = ()


class Revoked(msgspec.Struct, frozen=True):
    """What became of claims that we wanted to revoke.

    Those of `tasks`, as (tag, task), can never begin now; those `begun` have been made before.
    """

    time: float
    tasks: tuple[tuple[str, int], ...] = ()
    begun: tuple[tuple[str, int], ...] = ()


class Silent(msgspec.Struct, frozen=True):
    time: float
    cluster: str
    reason: str


Wish = Literal["cancel", "hold", "release", "requeue", "lost", "ran"]


class Asked(msgspec.Struct, frozen=True):
    """A user's wish for some tasks: `indices` None = all of the job.

    `lost` and `ran` are an operator's word on a task that is `unknown`.
    """

    time: float
    wish: Wish
    job: int
    indices: tuple[int, ...] | None = None
    by: str = ""


class Again(msgspec.Struct, frozen=True):
    """An ended task that is to run again, as the database knows it."""

    index: int
    state: State
    attempts: int


class Requeued(msgspec.Struct, frozen=True):
    """A user wants ended tasks to run again; what the core has forgotten of them comes along."""

    time: float
    job: Job
    priority: int
    last_sending: int
    tasks: tuple[Again, ...]
    by: str = ""
    fates: tuple[Fate, ...] = ()  # as in `Submitted`


class Modified(msgspec.Struct, frozen=True):
    """A user changed what a job asks for: `job` is how it is sent from now on.

    `what` tells the changes; `resend`: a manager that has it already must get it anew;
    `priority` None: as classified.
    """

    time: float
    job: Job
    what: str
    resend: bool
    priority: int | None = None
    by: str = ""


class Drained(msgspec.Struct, frozen=True):
    """An operator keeps new work from a cluster; `keep_pending`: what waits there may stay."""

    time: float
    cluster: str
    by: str = ""
    reason: str = ""
    keep_pending: bool = False

    def __str__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        return f"drained{by}{f': {self.reason}' if self.reason else ''}"


class Resumed(msgspec.Struct, frozen=True):
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


class Due(msgspec.Struct, frozen=True):
    """Time has passed; begin times may have come."""

    time: float


class ClockSet(msgspec.Struct, frozen=True):
    """The wall clock was set: since the last event it has gone `by` seconds more than time has."""

    time: float
    by: float


CoreEvent = (
    Booted
    | ClockSet
    | Submitted
    | Tried
    | Accepted
    | Declined
    | Unsure
    | Returned
    | Seen
    | Traced
    | Revoked
    | Silent
    | Asked
    | Requeued
    | Modified
    | Drained
    | Resumed
    | LicencesCounted
    | LicenceSet
    | LicencesReleased
    | ReservationEvent
    | Due
)


# What comes out.


class Send(NamedTuple):
    job: int
    sending: int
    cluster: str
    indices: tuple[int, ...]


@dataclass(frozen=True)
class Withdraw:
    """Ask a manager to end a sending's tasks; `unstarted`: only if they have not begun."""

    job: int
    sending: int
    cluster: str
    natives: dict[int, str | None]
    unstarted: bool


@dataclass(frozen=True)
class Look:
    """Ask a manager's accounting what has become of tasks that its listing lacks."""

    cluster: str
    missing: tuple[Missing, ...]


@dataclass(frozen=True)
class Revoke:
    """Take the claims of tasks in their payloads' stead, so that they can never begin."""

    cluster: str
    claims: tuple[Claim, ...]


Action = Send | Withdraw | Look | Revoke


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

    changes: list[Change] = field(default_factory=list)
    tasks: dict[tuple[int, int], Task] = field(default_factory=dict)
    closed: list[tuple[Task, Attempt]] = field(default_factory=list)
    past: dict[tuple[int, int, int], Past] = field(default_factory=dict)
    leases: list[Lease | GivenBack] = field(default_factory=list)
    standings: dict[str, Standing] = field(default_factory=dict)
    reservations: dict[int, Reservation] = field(default_factory=dict)
    bindings: list[ReservationAction] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)


@dataclass(frozen=True)
class Verdict:
    """What was thought of one cluster for a task; `load` in seconds of the whole cluster."""

    cluster: str
    unfit: Unfit | None
    load: float
    count: int
