"""Floating licences: configured pools, counts, leases of tokens, status of a licence. Pure.

Times are seconds since the epoch, durations seconds, amounts tokens (copies of a licence).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

LICENCE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,62}")
MAX_TOKENS = 1_000_000_000  # tokens: fits every database's integers


def _check_amount(label: str, value: int) -> None:
    if not 0 <= value <= MAX_TOKENS:
        raise ValueError(f"{label} is {value}; it must be 0..{MAX_TOKENS}")


def _check_duration(label: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{label} is {value}; it must be 0 or more seconds")


@dataclass(frozen=True, kw_only=True)
class LicencePool:
    """All copies of a licence, as the site configures them. ValueError if a value is invalid."""

    name: str
    total: int | None = None  # None: its server reports it
    clusters: tuple[str, ...] = ()  # on which it can be used; empty: all
    headroom: int = 0  # copies that metasched never leases
    # seconds for which returned tokens count as in use, unless the server is queried
    linger: float = 0.0
    server: str = ""  # source of counts; empty: `total` is exact, with no use outside metasched
    stale_after: float = 300.0  # seconds after which a count is ignored, and nothing is free

    def __post_init__(self) -> None:
        if not LICENCE_NAME.fullmatch(self.name):
            raise ValueError(
                f"licence {self.name!r} is no name; write letters, digits and _.+- after a letter "
                "or a digit, at most 63"
            )
        if self.total is None and not self.server:
            raise ValueError(f"licence {self.name} has neither a total nor a server; give one")
        if self.total is not None:
            _check_amount(f"total of licence {self.name}", self.total)
        _check_amount(f"headroom of licence {self.name}", self.headroom)
        _check_duration(f"linger of licence {self.name}", self.linger)
        _check_duration(f"stale_after of licence {self.name}", self.stale_after)


@dataclass(frozen=True)
class LicenceCount:
    """The use of a licence as a server, or a cluster's manager, reported it.

    ValueError if a number is invalid.
    """

    name: str
    total: int | None  # None: not reported
    outside: int  # tokens in use, but not leased by metasched
    observed: float  # when it was queried, epoch seconds

    def __post_init__(self) -> None:
        if self.total is not None:
            _check_amount(f"counted total of licence {self.name}", self.total)
        _check_amount(f"outside use of licence {self.name}", self.outside)
        if not math.isfinite(self.observed):
            raise ValueError(f"licence {self.name} was observed at {self.observed}; give a time")

    def adjusted_for_clock(self, shift: float) -> LicenceCount:
        """Return the count after the clock was set forward by `shift` seconds.

        It is never dated later: it may be older than it seems.
        """
        return replace(self, observed=self.observed + min(shift, 0.0))


@dataclass(frozen=True)
class Lease:
    """The tokens leased to an attempt of a task, by licence."""

    job: int
    index: int  # of the task in its job
    attempt: int
    tokens: Mapping[str, int]  # by licence
    since: float  # epoch seconds
    # its task has the tokens already, even beyond the total
    forced: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class ReturnedLease:
    """A lease that has ended."""

    lease: Lease
    until: float  # when it ended, epoch seconds
    reason: str  # why it ended
    # when its tokens stop counting as in use, by licence
    lingering_until: Mapping[str, float] = field(default_factory=dict)


class LingeringTokens(msgspec.Struct, frozen=True):
    """Returned tokens that still count as in use for some time."""

    licence: str
    count: int  # tokens
    returned: float  # when the lease ended, epoch seconds
    until: float  # when they stop counting as in use, epoch seconds


class LicenceSample(NamedTuple):
    """The figures of a licence at a time, in tokens."""

    licence: str
    time: float  # epoch seconds
    total: int | None  # None: unknown
    leased: int  # by tasks of metasched
    outside: int  # in use outside metasched
    free: int | None  # may be leased; None: unknown
    waiting: int  # requested by queued tasks


class LicencePeriod(NamedTuple):
    """The extreme figures of a licence within a period, in tokens."""

    begin: float  # epoch seconds
    total: int | None  # the most; None: never known
    leased: int  # this and the next when most were in use
    outside: int
    free: int | None  # the fewest; None: never known
    waiting: int  # the most

    def merged(self, other: LicencePeriod) -> LicencePeriod:
        """Return the extreme figures of both periods, with the begin of this period."""
        busiest = max(self, other, key=lambda period: period.leased + period.outside)
        free = [period.free for period in (self, other) if period.free is not None]
        totals = [period.total for period in (self, other) if period.total is not None]
        return busiest._replace(
            begin=self.begin,
            total=max(totals, default=None),
            free=min(free, default=None),
            waiting=max(self.waiting, other.waiting),
        )


@dataclass(frozen=True)
class LicenceStatus:
    """How many tokens of a licence there are, and how they are used."""

    licence: str
    total: int | None  # None: unknown
    leased_tokens: int  # by tasks of metasched
    outside: int  # in use outside metasched
    lingering: int  # returned, but counted as in use
    free: int | None  # may be leased now; negative: over-committed; None: unknown
    waiting_tokens: int  # requested by queued tasks
    unknown_reason: str  # why `free` is None; else empty
    observed: float | None  # when the figures were observed
    operator_total: int | None  # total set by an operator
    requests: int = 0  # queued tasks that request some
    # part of `outside`, by cluster, as managers report
    used_outside: Mapping[str, LicenceCount] = field(default_factory=dict)
    reserved: int = 0  # kept for windows that have begun

    @property
    def rho(self) -> float | None:
        """Queued tasks per copy (Pasquali 2008, §3.2.1); above 1 the licence is critical."""
        return self.requests / self.total if self.total else None
