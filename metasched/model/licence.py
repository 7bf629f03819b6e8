"""What is known of floating licences: pools, counts, leases of tokens, how a licence stands. Pure.

Times are seconds since the epoch, durations seconds, amounts tokens (copies of a licence).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from metasched.model.stored_names import STORED_FIELDS

LICENCE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,62}")
MAX_TOKENS = 1_000_000_000  # tokens: what every database holds, and more than any site has


def _check_amount(label: str, value: int) -> None:
    if not 0 <= value <= MAX_TOKENS:
        raise ValueError(f"{label} is {value}; it must be 0..{MAX_TOKENS}")


def _check_duration(label: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{label} is {value}; it must be 0 or more seconds")


@dataclass(frozen=True, kw_only=True)
class LicencePool:
    """All copies of one licence, as the site describes them.

    `total` None: its server tells. `clusters` are those on which it can be used (none named: on
    all). `headroom` copies are always left to others. What we gave back counts as in use for
    `linger` seconds, or until its server has been asked since. `server` names where counts come
    from; empty: `total` is the truth and nobody else uses it. A count older than `stale_after`
    seconds is none: then nothing is free. ValueError if a name or a number makes no sense.
    """

    name: str
    total: int | None = None
    clusters: tuple[str, ...] = ()
    headroom: int = 0
    linger: float = 0.0
    server: str = ""
    stale_after: float = 300.0

    def __post_init__(self) -> None:
        if not LICENCE_NAME.fullmatch(self.name):
            raise ValueError(
                f"licence {self.name!r} is no name; write letters, digits and _.+- after a letter "
                "or a digit, 63 at the most"
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
    """What a server, or a cluster's manager, told of one licence when asked at `observed`.

    `total` None: it does not say how many there are. `outside` are in use and not ours.
    ValueError if a number makes no sense.
    """

    name: str
    total: int | None
    outside: int
    observed: float

    def __post_init__(self) -> None:
        if self.total is not None:
            _check_amount(f"counted total of licence {self.name}", self.total)
        _check_amount(f"outside use of licence {self.name}", self.outside)
        if not math.isfinite(self.observed):
            raise ValueError(f"licence {self.name} was observed at {self.observed}; give a time")

    def adjusted_for_clock(self, shift: float) -> LicenceCount:
        """The same told no later, after the clock was set: perhaps it is older than it seems."""
        return replace(self, observed=self.observed + min(shift, 0.0))


@dataclass(frozen=True)
class Lease:
    """The tokens that an attempt of a task has taken, by licence.

    `forced`: its task has them already, so that it has them whatever is left.
    """

    job: int
    index: int
    attempt: int
    tokens: Mapping[str, int]
    since: float
    forced: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class ReturnedLease:
    """A lease that has ended, and why. Until `lingers` its tokens count as in use, by licence."""

    lease: Lease
    until: float
    reason: str
    lingering_until: Mapping[str, float] = field(default_factory=dict)


class LingeringTokens(msgspec.Struct, rename=STORED_FIELDS["LingeringTokens"], frozen=True):
    """Tokens that were given back, and count as in use for some time."""

    licence: str
    count: int
    returned: float
    until: float


@dataclass(frozen=True)
class LicenceStatus:
    """How many tokens of a licence there are, and whose they are.

    `total` None: nobody has said yet. `free` is what may be taken now, below 0 if more is in use
    than there is; None: not known, and `word` says why. `waiting` are wanted by the `asking` tasks
    in line. `chosen` is the total that an operator has set, `past_us` the part of `outside` that
    the managers of clusters have given to others, by cluster. `reserved` are kept for windows that
    have begun.
    """

    licence: str
    total: int | None
    leased_tokens: int
    outside: int
    lingering: int
    free: int | None
    waiting_tokens: int
    unknown_reason: str
    observed: float | None
    operator_total: int | None
    requests: int = 0
    used_outside: Mapping[str, LicenceCount] = field(default_factory=dict)
    reserved: int = 0

    @property
    def rho(self) -> float | None:
        """Tasks in line per copy (Pasquali 2008, §3.2.1); above 1 the licence is critical."""
        return self.requests / self.total if self.total else None
