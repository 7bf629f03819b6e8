"""The calendar: acts that recur, their next runs, and the runs that were missed. Pure.

Times are epoch seconds. The shell computes them from `rule` and `zone`; the core stores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

MAX_REMEMBERED_RUNS = 32  # of an entry: these are not repeated after the clock was set back
MAX_COUNTED = 1000  # missed runs of an entry that are counted
MAX_OCCURRENCES = 1000  # of a series of reservations
MIN_INTERVAL = 900.0  # seconds between the starts of two occurrences of a series
MAX_SERIES = 50  # open series of a user
MAX_PROMISED = 100  # occurrences of a user's series that are reserved at a time


class DrainCluster(msgspec.Struct, frozen=True, tag="drain"):
    """Drain a cluster, unless an operator did so before."""

    cluster: str
    reason: str = ""
    keep_pending: bool = False


class ResumeCluster(msgspec.Struct, frozen=True, tag="resume"):
    """Resume a cluster that the calendar drained; drains of operators stay."""

    cluster: str


class BackUpDatabase(msgspec.Struct, frozen=True, tag="backup"):
    """Copy the database to a new file in a folder, and delete the oldest copies."""

    folder: str  # absolute path
    copies: int  # number that is kept


class PruneDatabase(msgspec.Struct, frozen=True, tag="prune"):
    """Delete jobs and events that are older than the site keeps them."""


class ActivatePolicy(msgspec.Struct, frozen=True, tag="policy"):
    """Put the policy of a file in force, whichever is."""

    file: str  # absolute path; it is read at the time of the run


class LimitLicence(msgspec.Struct, frozen=True, tag="licence"):
    """Lower the total of a licence for some time, without an act of an operator."""

    licence: str
    total: int  # tokens that there are meanwhile, at the most
    duration: float  # seconds from the time of a run
    longest_gap: float | None = None  # seconds between the end of a run and the next; None: unknown


class CalendarLimit(msgspec.Struct, frozen=True):
    """When an entry of the calendar lowers the total of a licence, its later runs as well."""

    entry: int  # id
    name: str
    licence: str
    total: int  # tokens that there are meanwhile
    spans: tuple[tuple[float, float], ...]  # in order, without overlap


class Reserve(msgspec.Struct, frozen=True, tag="reserve", kw_only=True):
    """Reserve a window from the time of the occurrence on; see `ReservationTerms`."""

    least: int  # processors, or nodes if `by_node`
    most: int
    duration: float  # seconds
    by_node: bool = False
    clusters: tuple[str, ...] = ()  # to choose from; empty: all
    let_run: float | None = None  # seconds; None: the quota's
    licences: Mapping[str, int] = msgspec.field(default_factory=dict)
    mail: str = ""
    users: tuple[str, ...] = ()  # accounts that share it
    groups: tuple[str, ...] = ()  # their members share it
    accounts: tuple[str, ...] = ()  # of accounting; their jobs alone may run in it


CalendarAct = (
    DrainCluster
    | ResumeCluster
    | BackUpDatabase
    | PruneDatabase
    | ActivatePolicy
    | LimitLicence
    | Reserve
)


class CalendarEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An act that recurs: an entry of the site's file, or a series of reservations of a user."""

    id: int
    name: str = ""  # of an entry of the site's file; "": a series
    act: CalendarAct
    rule: str  # as written
    zone: str  # name in the IANA database
    owner: str = ""  # account; "": the site
    requested_by: str = ""  # account that requested a series for `owner`
    created: float
    grace: float  # most seconds that a run may be late; later it is skipped
    lead: float = 0.0  # seconds before the start at which a series reserves
    until: float | None = None  # no occurrence is later
    # nominal time of the next run; of a series, the start of the next occurrence to reserve.
    # None: there is none any more
    next_run: float | None = None
    last_runs: tuple[float, ...] = ()  # nominal times, oldest first
    running: float | None = None  # nominal time of a run that has begun outside of the core

    @property
    def due(self) -> float | None:
        """When the shell has to act; None: never again."""
        return None if self.next_run is None else self.next_run - self.lead

    @property
    def is_series(self) -> bool:
        return isinstance(self.act, Reserve)

    def describe(self) -> str:
        """Describe its effect in a few words."""
        match self.act:
            case DrainCluster():
                return f"drain {self.act.cluster}"
            case ResumeCluster():
                return f"resume {self.act.cluster}"
            case BackUpDatabase():
                return "back up the database"
            case PruneDatabase():
                return "prune the database"
            case ActivatePolicy():
                # only operators see where it is
                return f"put {self.act.file.rpartition('/')[2]} in force"
            case LimitLicence():
                total, licence = self.act.total, self.act.licence
                return f"have {total} of licence {licence} for {self.act.duration:g} s"
            case Reserve():
                least, most = self.act.least, self.act.most
                size = f"{least}" if least == most else f"{least} to {most}"
                unit = "nodes" if self.act.by_node else "processors"
                return f"reserve {size} {unit} for {self.act.duration:g} s"


class RunResult(StrEnum):
    """What became of a run. Stored: do not rename a value."""

    STARTED = "started"  # outside of the core; its end follows
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
