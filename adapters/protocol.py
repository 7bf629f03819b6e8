"""The messages between the daemon and a worker process: one JSON object a line."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from metasched.adapters.base import Order, Withdrawal
from metasched.model.cluster import Cluster, Facts
from metasched.model.listing import Claim, Missing, Row, Trace
from metasched.model.survey import Survey, Window


class Boot(msgspec.Struct, frozen=True):
    """The first line: which adapter to host. `folder` is the cluster's own."""

    adapter: str
    cluster: Cluster
    options: dict[str, Any]
    instance: str
    folder: str
    launcher: str = ""  # site mode: the launcher's socket


class Call(msgspec.Struct, frozen=True):
    """One request.

    `order` is for submit, `withdrawals` for withdraw, `missing` for trace, `claims` for revoke,
    `window` for reserve, `name` for unreserve, `rho` for poll. A submit that is `chained` was sent
    before the answer to the one before it was known: it is not carried out if that was not taken
    for now.
    """

    call: Literal["submit", "withdraw", "poll", "trace", "revoke", "survey", "reserve", "unreserve"]
    order: Order | None = None
    chained: bool = False
    withdrawals: tuple[Withdrawal, ...] = ()
    full: bool = False  # a poll is to tell everything, not what is new
    rho: dict[str, float] = msgspec.field(default_factory=dict)  # see `Adapter.criticality`
    missing: tuple[Missing, ...] = ()
    claims: tuple[Claim, ...] = ()
    window: Window | None = None
    name: str = ""


class News(msgspec.Struct, frozen=True):
    """A listing reduced to what is new since the last one; `facts` None: as before.

    `expected` are what the manager newly expects (`Row.expected`; None: nothing any more).
    """

    taken: float
    since: float
    until: float
    rows: tuple[Row, ...] = ()
    vanished: tuple[tuple[str, int, str], ...] = ()  # tag, task, owner
    facts: Facts | None = None
    full: bool = False
    up_since: float = 0.0
    expected: tuple[tuple[str, int, str, float | None], ...] = ()  # tag, task, owner, start


class Answer(msgspec.Struct, frozen=True):
    """One reply: `error` is "" or the kind of failure, with its `reason`.

    `untried`: a chained submit that was not carried out.
    """

    error: Literal["", "refused", "unreachable", "defect", "untried"] = ""
    reason: str = ""
    again: bool = False
    natives: dict[int, str] = msgspec.field(default_factory=dict)
    news: News | None = None
    trace: Trace | None = None
    survey: Survey | None = None
    revoked: dict[int, bool] = msgspec.field(default_factory=dict)  # by place in `claims`
    access: str = ""  # by what the adapter speaks to its manager, where there is a choice
