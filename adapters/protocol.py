"""The messages between the daemon and a worker process: one JSON object a line."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from metasched.adapters.base import Submission, Withdrawal
from metasched.model.cluster import Cluster, ClusterInfo
from metasched.model.listing import AccountingAnswer, JobStatus, MissingTask, TaskClaim
from metasched.model.stored_names import STORED_FIELDS
from metasched.model.survey import ReservationSpec, Survey


class WorkerBoot(msgspec.Struct, frozen=True):
    """The first line: which adapter to host. `folder` is the cluster's own."""

    adapter: str
    cluster: Cluster
    options: dict[str, Any]
    instance: str
    folder: str
    launcher: str = ""  # site mode: the launcher's socket


class WorkerCall(msgspec.Struct, rename=STORED_FIELDS["WorkerCall"], frozen=True):
    """One request.

    `order` is for submit, `withdrawals` for withdraw, `missing` for trace, `claims` for revoke,
    `window` for reserve, `name` for unreserve, `rho` for poll. A submit that is `chained` was sent
    before the answer to the one before it was known: it is not carried out if that was not taken
    for now.
    """

    operation: Literal[
        "submit", "withdraw", "poll", "trace", "revoke", "survey", "reserve", "unreserve"
    ]
    submission: Submission | None = None
    chained: bool = False
    withdrawals: tuple[Withdrawal, ...] = ()
    full: bool = False  # a poll is to tell everything, not what is new
    criticality: dict[str, float] = msgspec.field(default_factory=dict)  # see `Adapter.criticality`
    missing: tuple[MissingTask, ...] = ()
    claims: tuple[TaskClaim, ...] = ()
    reservation: ReservationSpec | None = None
    reservation_name: str = ""


class ListingDelta(msgspec.Struct, rename=STORED_FIELDS["ListingDelta"], frozen=True):
    """A listing reduced to what is new since the last one; `facts` None: as before.

    `expected` are what the manager newly expects (`Row.expected`; None: nothing any more).
    """

    taken: float
    since: float
    until: float
    rows: tuple[JobStatus, ...] = ()
    vanished: tuple[tuple[str, int, str], ...] = ()  # tag, task, owner
    info: ClusterInfo | None = None
    full: bool = False
    up_since: float = 0.0
    expected_starts: tuple[tuple[str, int, str, float | None], ...] = ()  # tag, task, owner, start


class WorkerReply(msgspec.Struct, rename=STORED_FIELDS["WorkerReply"], frozen=True):
    """One reply: `error` is "" or the kind of failure, with its `reason`.

    `untried`: a chained submit that was not carried out.
    """

    error: Literal["", "refused", "unreachable", "defect", "untried"] = ""
    reason: str = ""
    retry_later: bool = False
    native_ids: dict[int, str] = msgspec.field(default_factory=dict)
    delta: ListingDelta | None = None
    accounting: AccountingAnswer | None = None
    survey: Survey | None = None
    revoked: dict[int, bool] = msgspec.field(default_factory=dict)  # by place in `claims`
    access: str = ""  # by what the adapter speaks to its manager, where there is a choice
