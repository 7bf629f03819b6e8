"""Use by jobs that metasched did not send, as accounting reports it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from metasched.model.fair_share import ForeignUse

MAX_ROWS = 5000  # of an answer; further accounts of a user are reported as no account
_MAX_NAME_LENGTH = 64  # characters of a user or an account
_MAX_AMOUNT = 2.0**53  # processor-seconds that a record can plausibly have


class UseQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for the use of other jobs than metasched's, after a cursor."""

    cursor: str = ""  # of the answer before; "": there is none
    since: float  # epoch seconds; earlier use is not wanted
    max_span: float  # seconds of use that an answer may sum up
    # native ids of jobs of metasched that run or ended lately, with epoch seconds of their
    # dispatch: a job of that id that was submitted before is another
    own_jobs: Mapping[str, float] = msgspec.field(default_factory=dict)

    def is_own(self, native_id: str, submitted: float) -> bool:
        """Return whether a job that was `submitted` at these epoch seconds is of metasched."""
        dispatched = self.own_jobs.get(native_id)
        return dispatched is not None and submitted >= dispatched - _CLOCK_TOLERANCE


_CLOCK_TOLERANCE = 2.0  # seconds; managers report whole seconds


class UseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The use of a span of time."""

    rows: tuple[ForeignUse, ...] = ()  # by user and account
    cursor: str = ""  # position after the last of it
    until: float = 0.0  # end of the use in this and earlier answers, in epoch seconds
    more: bool = False  # further use can be queried at once
    set_aside: int = 0  # records that cannot be read
    defect: str = ""  # why the first of them cannot be read


class UseSum:
    """Sums up records by user and account; a record that cannot be used is counted only."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], tuple[float, float]] = {}  # seconds, latest time
        self.set_aside = 0
        self.defect = ""  # of the first record that is set aside

    def add(self, user: str, account: str, processor_seconds: float, ended: float) -> None:
        """Add the use of a job; `ended` in epoch seconds."""
        if not is_name(user):
            self.reject(f"{user[:_MAX_NAME_LENGTH]!r} is no user")
            return
        if not 0.0 <= processor_seconds <= _MAX_AMOUNT or not math.isfinite(ended):
            self.reject(f"{processor_seconds!r} processor-seconds until {ended!r}")
            return
        if processor_seconds == 0.0:
            return
        key = (user, account if is_name(account) else "")
        if key not in self._sums and len(self._sums) >= MAX_ROWS:
            key = (user, "")
        total, latest = self._sums.get(key, (0.0, 0.0))
        self._sums[key] = (total + processor_seconds, max(latest, ended))

    def reject(self, defect: str) -> None:
        """Set a record aside."""
        self.set_aside += 1
        self.defect = self.defect or defect

    @property
    def rows(self) -> tuple[ForeignUse, ...]:
        """The sums, ordered by user and account."""
        return tuple(
            ForeignUse(user=user, account=account, processor_seconds=seconds, ended=ended)
            for (user, account), (seconds, ended) in sorted(self._sums.items())
        )


def is_name(text: str) -> bool:
    """Return whether a manager's text can be the name of a user or an account."""
    return (
        0 < len(text) <= _MAX_NAME_LENGTH
        and text.isprintable()
        and not any(character.isspace() or character in ":,|" for character in text)
    )
